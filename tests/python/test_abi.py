# SPDX-License-Identifier: Apache-2.0
"""The ctypes structures are the compiler's, the generated file is fresh, nothing is left out."""
import ctypes
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import stepwell
from stepwell import _abi

import support

ROOT = pathlib.Path(__file__).resolve().parents[2]


def layout_program():
    lines = ["#include <stepwell/stepwell.h>", "#include <stddef.h>", "#include <stdio.h>",
             "int main(void)", "{"]
    for struct in _abi.STRUCTS:
        name = struct.__name__
        lines.append(f'    printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'    printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));'
                  for field in struct._fields_]
    return "\n".join(lines + ["    return 0;", "}"]) + "\n"


def layout_of_ctypes():
    lines = []
    for struct in _abi.STRUCTS:
        lines.append(f"{struct.__name__} {ctypes.sizeof(struct)}")
        lines += [f"{struct.__name__}.{field[0]} {getattr(struct, field[0]).offset}"
                  for field in struct._fields_]
    return lines


class Abi(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("pycparser"), "pycparser is not installed")
    def test_the_generated_file_is_what_the_headers_say(self):
        script = str(ROOT / "scripts" / "gen-python-abi")
        done = subprocess.run([sys.executable, "-B", script, "--check"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_structs_have_the_compilers_layout(self):
        with tempfile.TemporaryDirectory(dir=".") as directory:
            source, program = os.path.join(directory, "layout.c"), os.path.join(directory, "layout")
            pathlib.Path(source).write_text(layout_program(), encoding="utf-8")
            compiler = shlex.split(os.environ.get("CC", "cc"))
            subprocess.run([*compiler, "-I", str(ROOT / "include"), source, "-o", program],
                           check=True)
            printed = subprocess.run([os.path.abspath(program)], stdout=subprocess.PIPE, text=True,
                                     check=True).stdout
        self.assertEqual(printed.splitlines(), layout_of_ctypes())

    def test_initial_values_are_those_of_the_macros(self):
        hyper = _abi.stw_hyper.initial()
        self.assertEqual((hyper.struct_size, hyper.lr, hyper.beta2), (72, 1e-3, 0.999))
        self.assertEqual(stepwell.Hyper()._struct().eps, hyper.eps)
        request = _abi.stw_fetch_request.initial()
        self.assertEqual(request.struct_size, ctypes.sizeof(request))

    def test_every_error_status_has_a_class_of_its_own(self):
        errors = {status for status in _abi.STATUSES if status < 0}
        classes = stepwell.errors.CLASSES
        self.assertEqual(set(classes), errors)
        self.assertEqual(len(set(classes.values())), len(errors))
        for kind in classes.values():
            self.assertTrue(issubclass(kind, stepwell.Error))
            self.assertIs(getattr(stepwell, kind.__name__), kind)


    def test_every_file_of_the_package_is_installed(self):
        package = ROOT / "bindings" / "python"
        files = {str(path.relative_to(package)) for path in (package / "stepwell").rglob("*")
                 if path.suffix == ".py" or path.name == "py.typed"}
        build = (package / "meson.build").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r"'(stepwell/[\w/]+\.[\w.]+)'", build)), files)


class Finding(unittest.TestCase):
    """Which library is loaded, and what is said when it cannot be."""

    @staticmethod
    def load(library):
        text = ("import os, sys\nos.environ['STEPWELL_LIBRARY'] = sys.argv[1]\n"
                "try:\n    import stepwell\nexcept ImportError as error:\n    print(error)\n")
        return support.run_program(text, library)

    def test_the_environment_names_the_library(self):
        self.assertEqual(self.load(os.environ["STEPWELL_LIBRARY"]), (0, ""))

    def test_a_relative_path_is_refused(self):
        self.assertIn("must be an absolute path", self.load("libstepwell.so.0")[1])

    def test_a_missing_library_is_an_import_error(self):
        self.assertIn("cannot be loaded", self.load("/nowhere/libstepwell.so.0")[1])

    def test_another_abi_major_is_refused(self):
        with tempfile.TemporaryDirectory(dir=".") as directory:
            library = os.path.abspath(os.path.join(directory, "libother.so"))
            subprocess.run(
                [*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC", "-x", "c", "-",
                 "-o", library],
                input="unsigned stw_abi_version(void) { return 77; }\n", text=True, check=True)
            self.assertIn("ABI major 77", self.load(library)[1])


if __name__ == "__main__":
    support.main()
