#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `stepwell report` as a C++ header: markup, style and script in one, cut where the
title and the report go.

usage: embed.py OUTPUT PAGE STYLE SCRIPT...

The page may run this script and no other: it names its SHA-256 in a Content-Security-Policy.
"""

import base64
import hashlib
import pathlib
import re
import sys

LICENCE = re.compile(r"^(//|/\*|<!--) SPDX-License-Identifier: .*$", re.M)


def hash_of(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def bytes_of(name, text):
    data = text.encode()
    rows = [data[at : at + 24] for at in range(0, len(data), 24)]
    body = "\n".join("    " + "".join(f"{byte}, " for byte in row).rstrip() for row in rows)
    return f"inline constexpr unsigned char {name}[] = {{\n{body}\n}};\n"


def main(output, page, style, *scripts):
    read = lambda path: pathlib.Path(path).read_text(encoding="utf-8")
    css = LICENCE.sub("", read(style))
    parts = "".join(LICENCE.sub("", read(path)) for path in scripts)
    script = "'use strict';\n(() => {" + parts + "})();\n"
    html = read(page)
    for hole, text in {
        "@STYLE_HASH@": hash_of(css),
        "@SCRIPT_HASH@": hash_of(script),
        "@STYLE@": css,
        "@SCRIPT@": script,
    }.items():
        if html.count(hole) != 1:
            sys.exit(f"embed.py: {page} has {html.count(hole)} places for {hole}, not one")
        html = html.replace(hole, text)
    if "</script" in script.lower() or "</style" in css.lower():
        sys.exit("embed.py: the script or the style would end its own element")
    head, rest = html.split("@TITLE@")
    middle, tail = rest.split("@DATA@")
    parts = {"kPageHead": head, "kPageMiddle": middle, "kPageTail": tail}
    text = "// Made by embed.py.\n#pragma once\n\nnamespace stepwell::cli {\n\n"
    text += "\n".join(bytes_of(name, part) for name, part in parts.items())
    text += "\n}  // namespace stepwell::cli\n"
    pathlib.Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
