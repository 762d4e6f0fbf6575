# SPDX-License-Identifier: Apache-2.0
"""Custom optimizers whose kernel is a Python function over NumPy arrays."""
from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Sequence

from . import _abi
from ._dtypes import Dtype, numpy

# Dtypes of gradients, by their parameter's handle.
GradientDtypes = Dict[int, int]


@dataclass
class UpdatePiece:
    """The range of one parameter that is being updated: fp32 arrays, valid during the call.

    values and states are the memory itself: the function writes or assigns the new parameter and
    the new states. gradient is a copy, already multiplied by the scale and the clip coefficient.
    """

    values: Any               # or the master of a bf16 or f16 parameter; the library rounds it
    gradient: Any
    states: Dict[str, Any]
    begin: int                # first element in the flattened tensor
    step: int                 # number of updates of this parameter, including this one
    lr: float
    weight_decay: float
    hyper: Any                # all hyper-parameters of the group, as in stw_hyper


def array_at(address: int, count: int, dtype: Any) -> Any:
    memory = (ctypes.c_uint8 * (count * numpy.dtype(dtype).itemsize)).from_address(address)
    return numpy.frombuffer(memory, dtype)


def widened(address: int, count: int, dtype: int) -> Any:
    """A copy in fp32."""
    if dtype == Dtype.F32:
        return array_at(address, count, numpy.float32).copy()
    if dtype == Dtype.F16:
        return array_at(address, count, numpy.float16).astype(numpy.float32)
    bits = array_at(address, count, numpy.uint16).astype(numpy.uint32) << 16
    return bits.view(numpy.float32)


def kernel_over_arrays(function: Callable[[UpdatePiece], Any], states: Sequence[str],
                       dtypes: GradientDtypes) -> Callable[[Any, Any], int]:
    """A kernel of the C API that calls the function. An exception makes the update fail and is
    passed to sys.excepthook."""
    if numpy is None:
        raise ImportError("an update in Python needs NumPy (pip install numpy)")

    def kernel(_user: Any, pointer: Any) -> int:
        try:
            chunk = pointer.contents
            count, hyper = chunk.element_count, chunk.hyper.contents
            master = ctypes.cast(chunk.master, ctypes.c_void_p).value
            values = array_at(master, count, numpy.float32)
            gradient = widened(chunk.gradient, count, dtypes[chunk.parameter])
            gradient *= numpy.float32(chunk.gradient_scale)
            arrays = {
                name: array_at(ctypes.cast(chunk.states[at], ctypes.c_void_p).value, count,
                               numpy.float32)
                for at, name in enumerate(states)
            }
            piece = UpdatePiece(values, gradient, dict(arrays), chunk.element_begin, chunk.step,
                                hyper.lr, hyper.weight_decay, hyper)
            function(piece)
            if piece.values is not values:
                values[:] = piece.values
            for name, array in arrays.items():
                if piece.states[name] is not array:
                    array[:] = piece.states[name]
            return _abi.STW_OK
        except BaseException:  # ctypes would ignore it and return 0
            sys.excepthook(*sys.exc_info())
            return _abi.STW_ERROR_INVALID

    return kernel
