#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a C++ file that has the bytes of the image: embed.py OUTPUT [IMAGE]; without one, none."""

import sys
from pathlib import Path

BYTES_PER_LINE = 24


def main():
    image = Path(sys.argv[2]).read_bytes() if len(sys.argv) > 2 else b""
    # A string literal compiles many times faster than a list of numbers. Its last byte is 0.
    lines = [
        '"' + "".join(f"\\{byte:03o}" for byte in image[at : at + BYTES_PER_LINE]) + '"'
        for at in range(0, len(image), BYTES_PER_LINE)
    ] or ['""']
    Path(sys.argv[1]).write_text(
        "// Written by the build.\n"
        '#include "gpu.h"\n\n'
        "// Longer than every compiler of C++ has to take; those that build this do.\n"
        "#if defined(__clang__)\n"
        '#pragma clang diagnostic ignored "-Woverlength-strings"\n'
        "#endif\n\n"
        "alignas(64) const unsigned char train_gpt_image[] =\n"
        + "\n".join(lines)
        + f";\nconst uint64_t train_gpt_image_bytes = {len(image)};\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
