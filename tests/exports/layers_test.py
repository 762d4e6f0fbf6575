#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-layers finds what it is there for, in trees that have one fault each.

usage: layers_test.py SOURCE
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1))


def checked(files):
    """The exit status and the complaints about a tree of these files."""
    with tempfile.TemporaryDirectory() as tree:
        subprocess.run(["git", "init", "-q", tree], check=True)
        for name, text in files.items():
            path = Path(tree, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-B", SOURCE / "scripts" / "check-layers"],
            cwd=tree, capture_output=True, text=True, check=False,
        )
    *complaints, summary = result.stdout.splitlines()
    assert summary.startswith("layers: "), result
    return result.returncode, complaints


def including(target):
    return f'#pragma once\n#include "{target}"\n'


class Layers(unittest.TestCase):
    def accepts(self, name, target):
        self.assertEqual(checked({name: including(target)}), (0, []))

    def refuses(self, name, target, complaint):
        self.assertEqual(checked({name: including(target)}),
                         (1, [f'{name}:2: {complaint}: #include "{target}"']))

    def test_a_folder_includes_lower_ones_alone(self):
        self.accepts("lib/store/a.h", "lib/residency/b.h")
        self.refuses("lib/residency/a.h", "lib/store/b.h", "lib/residency looks up at lib/store")
        self.refuses("lib/store/a.h", "lib/memory/b.h", "lib/store looks up at lib/memory")

    def test_a_room_includes_itself_and_lower_ones_alone(self):
        self.accepts("lib/schedule/plan/a.h", "lib/schedule/plan/b.h")
        self.accepts("lib/schedule/plan/a.h", "lib/schedule/trace/b.h")
        self.refuses("lib/schedule/trace/a.h", "lib/schedule/plan/b.h",
                     "lib/schedule/trace looks up at lib/schedule/plan")

    def test_other_folders_include_any_room(self):
        self.accepts("lib/runtime/a.h", "lib/schedule/advice/b.h")

    def test_what_lies_beside_the_rooms_is_above_them(self):
        self.accepts("lib/schedule/a.h", "lib/schedule/advice/b.h")
        self.refuses("lib/schedule/advice/a.h", "lib/schedule/b.h",
                     "lib/schedule/advice looks up at lib/schedule")

    def test_a_header_of_the_runtime_draws_in_few(self):
        public = {f"include/stepwell/h{i}.h": "#pragma once\n" for i in range(25)}
        first = "".join(f"#include <stepwell/h{i}.h>\n" for i in range(24))
        files = {**public, "lib/support/b.h": first,
                 "lib/runtime/a.h": '#include "lib/support/b.h"\n'}
        self.assertEqual(checked(files), (0, []))
        files["lib/support/b.h"] += "#include <stepwell/h24.h>\n"
        self.assertEqual(checked(files), (1, ["lib/runtime/a.h: draws in 26 project headers, more "
                                              "than 25"]))
        files["lib/runtime/open/runtime.h"] = files.pop("lib/runtime/a.h")
        self.assertEqual(checked(files), (0, []))

    def test_every_folder_has_a_place(self):
        self.refuses("lib/attic/a.h", "lib/support/b.h",
                     "lib/attic has no place in the order of layers")
        self.refuses("lib/schedule/attic/a.h", "lib/support/b.h",
                     "lib/schedule/attic has no place in the order of rooms")
        self.refuses("lib/runtime/a.h", "lib/schedule/attic/b.h",
                     "lib/schedule/attic has no place in the order of rooms")


if __name__ == "__main__":
    unittest.main()
