# SPDX-License-Identifier: Apache-2.0
"""The function of this process's PyTorch that an optimizer needs to give the bits of torch.optim.

If torch was built with MKL, it computes square roots by MKL's vmsSqrt(), whose results are not the
nearest fp32 on every processor. The function is in the library that torch has loaded.
"""
from __future__ import annotations

import ctypes
import os
from typing import Any, Tuple

from . import _abi
from .errors import raised

#: The ctypes type of stw_optimizer_options.square_root.
SquareRoot: Any = dict(_abi.stw_optimizer_options._fields_)["square_root"]
MODE = 0x140102  # VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE, as in ATen/cpu/vml.h


def square_root() -> Tuple[Any, int]:
    """The function and its mode; a null pointer if torch rounds to the nearest fp32."""
    import torch
    if os.environ.get("ATEN_CPU_CAPABILITY") == "default":
        raise raised(_abi.STW_ERROR_UNSUPPORTED,
                     "torch_order: ATEN_CPU_CAPABILITY is 'default', with which PyTorch rounds "
                     "otherwise than this processor could; unset it before torch is imported")
    if not torch.backends.mkl.is_available():
        return SquareRoot(), 0
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        function = ctypes.CDLL(path).vmsSqrt
    except (OSError, AttributeError) as cause:
        raise raised(_abi.STW_ERROR_UNSUPPORTED,
                     "torch_order: this PyTorch takes square roots from MKL, whose vmsSqrt cannot "
                     f"be reached through {path}: {cause}") from cause
    return ctypes.cast(function, SquareRoot), MODE
