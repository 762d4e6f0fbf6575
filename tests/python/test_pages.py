# SPDX-License-Identifier: Apache-2.0
"""The first Python program of a page runs as printed there, made smaller."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import support

ROOT = pathlib.Path(__file__).resolve().parents[2]


def first_program(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.search(r"^```python\n(.*?)^```$", text, flags=re.S | re.M)[1]


@support.needs_numpy
class Pages(unittest.TestCase):
    def runs(self, program):
        with tempfile.TemporaryDirectory(prefix="stepwell-python-", dir=".") as directory:
            done = subprocess.run([sys.executable, "-B", "-c", program], cwd=directory,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=support.environment(), check=False)
            left = set(os.listdir(directory)) - {"report.json"}
        self.assertEqual((done.returncode, left), (0, set()), done.stdout)
        return done.stdout

    def test_the_program_of_the_readme(self):
        self.runs(first_program("README.md"))

    def test_the_trainer_of_the_tour(self):
        program = first_program("docs/python.md")
        self.assertIn("N, STEPS = 4096, 50", program)
        told = self.runs(program.replace("N, STEPS = 4096, 50", "N, STEPS = 256, 3"))
        self.assertEqual(len(told.splitlines()), 3)


if __name__ == "__main__":
    support.main()
