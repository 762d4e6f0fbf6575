# SPDX-License-Identifier: Apache-2.0
"""The functions of this process's PyTorch that an optimizer needs to give the bits of torch.optim.

If torch was built with MKL, it computes square roots by MKL's vmsSqrt(), whose results are not the
nearest fp32 on every processor: with HA, the mode that torch uses, 1 in 150 is not on a processor
with AVX-512. The function is in the library that torch has loaded, with the one that keeps it from
starting threads in each thread that calls it.
"""
from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

from . import _abi
from .errors import raised

_FIELDS = dict(_abi.stw_optimizer_options._fields_)
#: The ctypes types of stw_optimizer_options.square_root and square_root_threads.
SquareRoot: Any = _FIELDS["square_root"]
SetThreads: Any = _FIELDS["square_root_threads"]
MODE = 0x140102  # VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE, as in ATen/cpu/vml.h


class Roots(NamedTuple):
    """Null pointers if torch rounds to the nearest fp32."""

    function: Any = SquareRoot()
    mode: int = 0
    set_threads: Any = SetThreads()


def square_root() -> Roots:
    import torch
    if os.environ.get("ATEN_CPU_CAPABILITY") == "default":
        raise raised(_abi.STW_ERROR_UNSUPPORTED,
                     "torch_order: ATEN_CPU_CAPABILITY is 'default', with which PyTorch rounds "
                     "otherwise than this processor could; unset it before torch is imported")
    if not torch.backends.mkl.is_available():
        return Roots()
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(path)
        function = library.vmsSqrt
    except (OSError, AttributeError) as cause:
        raise raised(_abi.STW_ERROR_UNSUPPORTED,
                     "torch_order: this PyTorch takes square roots from MKL, whose vmsSqrt cannot "
                     f"be reached through {path}: {cause}") from cause
    set_threads = getattr(library, "MKL_Set_Num_Threads_Local", None)
    return Roots(ctypes.cast(function, SquareRoot), MODE,
                 SetThreads() if set_threads is None else ctypes.cast(set_threads, SetThreads))
