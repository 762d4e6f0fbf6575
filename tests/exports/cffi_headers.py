#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The public headers, preprocessed, feed cffi: it parses them, and what it read calls the library.

The constants it found are compared with a list of those that programs were built with: an
enumerator may be added but never removed or renumbered, which abidiff cannot see, since the API's
integers are plain integers.

usage: cffi_headers.py CC INCLUDE LIBRARY CONSTANTS [--write]. --write makes the list.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
try:
    import cffi
except ImportError:
    print("skipped: cffi is not installed (python3-cffi)")
    sys.exit(SKIPPED)

HEADERS = "#include <stepwell/stepwell.h>\n#include <stepwell/driver.h>\n"
LIST_HEAD = "# SPDX-License-Identifier: Apache-2.0\n# Made by scripts/abi-baseline.\n"
WHAT_TO_DO = (
    "Programs that were built with the old value would break. Add a constant instead; if this break"
    " is meant, raise abi_major and run scripts/abi-baseline."
)


def preprocess(cc, include):
    """The headers as cffi wants them: no directives, no attributes, its own fixed-size integers."""
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "stdint.h").touch()
        command = [cc, "-E", "-P", "-nostdinc", "-D__attribute__(x)=", "-I", empty]
        return subprocess.run(
            [*command, "-I", include, "-x", "c", "-std=c99", "-"],
            input=HEADERS,
            capture_output=True,
            check=True,
            text=True,
        ).stdout


def use(ffi, library):
    """A runtime is opened and closed: the layout that cffi computed is the library's."""
    options = ffi.new("stw_runtime_options *")
    options.struct_size = ffi.sizeof("stw_runtime_options")
    options.host_bytes = 1 << 20
    options.block_bytes = library.STW_BLOCK_64K
    runtime = ffi.new("stw_runtime **")
    status = library.stw_runtime_open(options, runtime)
    if status == library.STW_OK:
        status = library.stw_runtime_close(runtime[0], 0, 0)
    if status != library.STW_OK:
        raise RuntimeError(ffi.string(library.stw_last_error()).decode())


def constants_of(library):
    names = (name for name in dir(library) if name.startswith("STW_"))
    return {name: getattr(library, name) for name in names}


def read_list(path):
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {words[0]: int(words[1]) for words in lines if words[0] != "#"}


def main(cc, include, path, listed_in, *options):
    ffi = cffi.FFI()
    ffi.cdef(preprocess(cc, include))
    library = ffi.dlopen(path)
    use(ffi, library)
    found = constants_of(library)
    if "--write" in options:
        lines = (f"{name} {value}\n" for name, value in sorted(found.items()))
        Path(listed_in).write_text(LIST_HEAD + "".join(lines), encoding="utf-8")
        return 0
    listed = read_list(Path(listed_in))
    broken = sorted(name for name, value in listed.items() if found.get(name) != value)
    for name in broken:
        print(f"{name} was {listed[name]} and is {found.get(name, 'gone')}")
    if broken or not listed:
        print(WHAT_TO_DO)
        return 1
    print(f"{len(found)} constants, {len(found) - len(listed)} of them not yet in the list")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
