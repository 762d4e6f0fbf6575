# SPDX-License-Identifier: Apache-2.0
"""Pieces of the host tier's scratch memory. Arrays made from a piece keep it alive: its memory is
freed after free() and the end of the last such array.
"""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from . import _abi
from ._dtypes import NUMPY_DTYPES, dtype_of, numpy
from ._library import lib
from .errors import check, raised

if TYPE_CHECKING:
    from ._runtime import Runtime


class _Piece:
    """The common owner of the arrays made from one piece; freed with the last of them."""

    __slots__ = ("runtime", "handle", "address", "__weakref__")

    def __init__(self, runtime: "Runtime", address: int) -> None:
        self.runtime = runtime
        self.handle = runtime._handle.value  # valid for the free even after the runtime was closed
        self.address = address

    def __del__(self) -> None:
        try:
            if self.runtime._may_finalise():
                lib.stw_host_free(self.handle, self.address)
        except (AttributeError, TypeError):
            pass  # the interpreter is ending


class HostMemory:
    """A piece of host memory, pinned if the host tier is. A context manager.

    bytes and numpy() are the memory itself. free(), the end of a `with`, or dropping the object
    releases it; the memory is freed when no array made from it exists.
    """

    __slots__ = ("_piece", "nbytes", "address")

    def __init__(self, runtime: "Runtime", nbytes: int, align: int, zero: bool) -> None:
        pointer = ctypes.c_void_p()
        flags = _abi.STW_HOST_ZERO if zero else 0
        check(lib.stw_host_alloc(runtime._use(), nbytes, align, flags, pointer))
        assert pointer.value is not None
        self._piece: Optional[_Piece] = _Piece(runtime, pointer.value)
        self.nbytes = nbytes
        self.address = pointer.value

    @property
    def bytes(self) -> memoryview:
        """All of it, to read and write."""
        if self._piece is None:
            raise raised(_abi.STW_ERROR_CLOSED, "the piece of host memory was freed")
        block = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        block._stepwell_piece = self._piece
        return memoryview(block).cast("B")

    def numpy(self, dtype: Any = "u8", shape: Union[None, int, Sequence[int]] = None) -> Any:
        """An array of this dtype over the memory; by default flat, with as many elements as fit."""
        if numpy is None:
            raise ImportError("HostMemory.numpy() needs NumPy (pip install numpy); "
                              "HostMemory.bytes does not")
        kind = NUMPY_DTYPES[dtype_of(dtype)]
        array = numpy.frombuffer(self.bytes, kind, self.nbytes // kind.itemsize)
        if shape is None:
            return array
        count = int(numpy.prod(shape))
        return array[:count].reshape(shape)

    def free(self) -> None:
        """Release it. A second call has no effect."""
        self._piece = None

    def __enter__(self) -> "HostMemory":
        return self

    def __exit__(self, *_: Any) -> None:
        self.free()
