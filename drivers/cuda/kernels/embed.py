#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a C++ file that has the bytes of an image: embed.py OUTPUT [IMAGE]; without one, none."""

import sys
from pathlib import Path

BYTES_PER_LINE = 24

HEAD = """// Written by the build.
#include "drivers/cuda/kernels/launch.h"

// Longer than every compiler of C++ has to take; those that build this do.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Woverlength-strings"
#endif

"""


def main():
    output = Path(sys.argv[1])
    image = Path(sys.argv[2]).read_bytes() if len(sys.argv) > 2 else b""
    # A string literal compiles many times faster than a list of numbers. Its last byte is 0.
    lines = [
        '"' + "".join(f"\\{byte:03o}" for byte in image[at : at + BYTES_PER_LINE]) + '"'
        for at in range(0, len(image), BYTES_PER_LINE)
    ] or ['""']
    output.write_text(
        HEAD
        + "alignas(64) const unsigned char stw_cuda_image[] =\n"
        + "\n".join(lines)
        + f";\nconst uint64_t stw_cuda_image_bytes = {len(image)};\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
