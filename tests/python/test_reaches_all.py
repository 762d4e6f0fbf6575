# SPDX-License-Identifier: Apache-2.0
"""The tests of the package, run in one process, call every function of the C API.

What they call is counted on its way to the library: a comment, an import or a name in a table is no
call. What the process as a whole does (signals, forks, exits) is tested elsewhere.
"""
import ctypes
import sys
import unittest

called = set()


class Counted:
    """A function of the library, as ctypes has it, that remembers that it was used."""

    def __init__(self, name, function):
        self.__dict__.update(name=name, function=function)

    def __call__(self, *arguments):
        called.add(self.name)
        return self.function(*arguments)

    @property
    def _as_parameter_(self):  # its address is taken, for C to call it
        called.add(self.name)
        return self.function

    def __setattr__(self, name, value):
        setattr(self.function, name, value)


class Library(ctypes.CDLL):
    def __getitem__(self, name):
        function = super().__getitem__(name)
        return Counted(name, function) if name.startswith("stw_") else function


loader, ctypes.CDLL = ctypes.CDLL, Library
import stepwell  # noqa: E402  # pylint: disable=wrong-import-position
ctypes.CDLL = loader
MODULES = ("test_awaits", "test_dlpack", "test_errors", "test_generations", "test_groups",
           "test_memory", "test_processes.Threads", "test_steps", "test_tensors", "test_victims",
           "test_views")
# Ends of operations come by eventfd: a callback would run on a thread of the library.
NOT_USED = {"stw_operation_on_done"}


class ReachesAll(unittest.TestCase):
    def test_every_function_is_called(self):
        suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromName(name)
                                   for name in MODULES)
        result = unittest.TextTestRunner(verbosity=0).run(suite)
        self.assertTrue(result.wasSuccessful())
        self.assertGreater(len(called), 40)
        self.assertEqual(set(stepwell._abi.FUNCTIONS) - called, NOT_USED)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
