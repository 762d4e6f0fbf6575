# SPDX-License-Identifier: Apache-2.0
"""The matrix products of the example: OpenBLAS picks its kernels by a table of processors."""

import os
from pathlib import Path


def use_widest_kernels():
    """Debian 12's OpenBLAS does not know processors younger than itself and falls back to AVX2.

    The same choice for every run of a comparison, so that its bits are the same too. What the
    caller has set stays.
    """
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    if "avx512dq" in flags and "avx512vl" in flags:
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
