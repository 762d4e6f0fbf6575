# SPDX-License-Identifier: Apache-2.0
"""Optimizers of the program's own whose kernel is a function of Python over NumPy arrays."""
from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Sequence

from . import _abi
from ._dtypes import Dtype, numpy

# Dtypes of (parameter, gradient), by the parameter's handle.
Pairs = Dict[int, "tuple[int, int]"]


@dataclass
class UpdatePiece:
    """A range of one parameter that is updated now: fp32 arrays, which end with the call.

    values and states are the memory itself, and what the function leaves in them, or assigns, is
    the new parameter and the new states. gradient is a copy, with the scale and the clip multiplied
    in.
    """

    values: Any               # of a bf16 or f16 parameter its master, which is rounded afterwards
    gradient: Any
    states: Dict[str, Any]
    begin: int                # first element, of the flattened tensor
    step: int                 # updates of this parameter, with this one
    lr: float
    weight_decay: float
    hyper: Any                # all of them, as stw_hyper has them


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


def narrow(values: Any, address: int, dtype: int) -> None:
    """To nearest even, as the library's own updates do."""
    if dtype == Dtype.F16:
        array_at(address, len(values), numpy.float16)[:] = values
        return
    bits = values.view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = numpy.where(numpy.isnan(values), (bits >> 16) | 0x40, rounded)
    array_at(address, len(values), numpy.uint16)[:] = quiet.astype(numpy.uint16)


def kernel_over_arrays(function: Callable[[UpdatePiece], Any], states: Sequence[str],
                       pairs: Pairs) -> Callable[[Any, Any], int]:
    """The kernel of the C API that calls it. What it raises fails the update, and is told as
    exceptions in threads are."""
    if numpy is None:
        raise ImportError("an update in Python needs NumPy (pip install numpy)")

    def kernel(_user: Any, pointer: Any) -> int:
        try:
            chunk = pointer.contents
            dtype, gradient_dtype = pairs[chunk.parameter]
            count, hyper = chunk.element_count, chunk.hyper.contents
            master = ctypes.cast(chunk.master, ctypes.c_void_p).value
            values = array_at(master, count, numpy.float32)
            gradient = widened(chunk.gradient, count, gradient_dtype)
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
            if dtype != Dtype.F32:
                narrow(values, chunk.values, dtype)
            return _abi.STW_OK
        except BaseException:  # nothing may be taken for done
            sys.excepthook(*sys.exc_info())
            return _abi.STW_ERROR_INVALID

    return kernel
