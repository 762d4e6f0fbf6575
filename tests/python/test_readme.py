# SPDX-License-Identifier: Apache-2.0
"""The README's PyTorch program, as it stands there: its losses are those without the library.

Skipped where PyTorch is not installed.
"""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/docs"))
import blocks  # noqa: E402  pylint: disable=wrong-import-position
import pages   # noqa: E402  pylint: disable=wrong-import-position

OFFLOAD = "stepwell.torch.offload("
SEED = "import torch\ntorch.manual_seed(1)\n"


def program():
    """Made smaller as the page's comments say, as blocks.py runs it."""
    page = ROOT / "README.md"
    (found,) = [block for block in pages.blocks_of(page, page.read_text(encoding="utf-8"))
                if block.language == "python" and OFFLOAD in block.text
                and block.text.startswith("import torch")]  # what stands before it needs a GPU
    return blocks.content_of(found)


def printed(text, directory):
    done = subprocess.run([sys.executable, "-B", "-c", SEED + text], cwd=directory, text=True,
                          stdout=subprocess.PIPE, timeout=120, check=True,
                          env=support.environment())
    return done.stdout.splitlines()


@unittest.skipUnless(importlib.util.find_spec("torch"),
                     "PyTorch is not installed (./dev setup --torch)")
class Readme(unittest.TestCase):
    def test_the_program_has_the_losses_that_it_has_without_its_offload(self):
        ours = program()
        # The build directory may lie on tmpfs.
        tiered = ours.replace('nvme="."', 'nvme=stepwell.Nvme(".", 64 << 20, '
                              'driver_options="allow_tmpfs=1")')
        self.assertNotEqual(tiered, ours)
        plain = "".join(line for line in ours.splitlines(keepends=True) if OFFLOAD not in line)
        with tempfile.TemporaryDirectory(prefix="stepwell-readme-", dir=".") as directory:
            expected = printed(plain, directory)
            self.assertEqual(len(expected), 3)
            self.assertEqual(printed(tiered, directory), expected)


if __name__ == "__main__":
    unittest.main()
