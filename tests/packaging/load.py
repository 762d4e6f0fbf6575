# SPDX-License-Identifier: Apache-2.0
"""Python loads the library by ctypes and calls it: a version, a refusal and its sentence.

usage: load.py LIBRARY VERSION
"""

import ctypes
import sys


def main(library, version):
    stepwell = ctypes.CDLL(library)
    stepwell.stw_version_string.restype = ctypes.c_char_p
    stepwell.stw_last_error.restype = ctypes.c_char_p
    stepwell.stw_runtime_open.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    said = stepwell.stw_version_string().decode()
    if not said.startswith(version):
        return f"its version is {said}, not {version}"
    runtime = ctypes.c_void_p()
    status = stepwell.stw_runtime_open(None, ctypes.byref(runtime))
    sentence = stepwell.stw_last_error().decode()
    if status >= 0 or runtime or not sentence:
        return f"opened without options: status {status}, '{sentence}'"
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
