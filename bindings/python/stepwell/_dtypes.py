# SPDX-License-Identifier: Apache-2.0
"""Element types, and the caller's memory as pointer and size: NumPy arrays, buffers, and arrays of
any library that exports them by DLPack. NumPy is optional.
"""
from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any, Dict, NamedTuple, Optional, Tuple

from . import _abi, _exchange
from ._library import lib

numpy: Any
try:
    import numpy
except ImportError:  # buffers and bytes work without it
    numpy = None


class Dtype(IntEnum):
    F32 = _abi.STW_F32
    F16 = _abi.STW_F16
    BF16 = _abi.STW_BF16
    F64 = _abi.STW_F64
    F8_E4M3 = _abi.STW_F8_E4M3
    F8_E5M2 = _abi.STW_F8_E5M2
    I64 = _abi.STW_I64
    I32 = _abi.STW_I32
    I16 = _abi.STW_I16
    I8 = _abi.STW_I8
    U8 = _abi.STW_U8
    BOOL = _abi.STW_BOOL


# NumPy's names. NumPy has no bf16 and no f8: these arrays hold the bits as integers.
NUMPY_NAMES: Dict[int, str] = {
    Dtype.F32: "float32", Dtype.F16: "float16", Dtype.BF16: "uint16", Dtype.F64: "float64",
    Dtype.F8_E4M3: "uint8", Dtype.F8_E5M2: "uint8", Dtype.I64: "int64", Dtype.I32: "int32",
    Dtype.I16: "int16", Dtype.I8: "int8", Dtype.U8: "uint8", Dtype.BOOL: "bool",
}
FROM_NUMPY: Dict[str, Dtype] = {
    name: Dtype(code) for code, name in NUMPY_NAMES.items()
    if code not in (Dtype.BF16, Dtype.F8_E4M3, Dtype.F8_E5M2)
}
ITEM_BYTES: Dict[int, int] = {int(code): lib.stw_dtype_bits(code) // 8 for code in Dtype}
# Letters of the buffer protocol. Plain bytes have no dtype.
FORMATS: Dict[str, Optional[Dtype]] = {
    "B": None, "c": None, "f": Dtype.F32, "d": Dtype.F64, "e": Dtype.F16, "?": Dtype.BOOL,
    "b": Dtype.I8, "h": Dtype.I16, "i": Dtype.I32, "l": Dtype.I64, "q": Dtype.I64,
}
# DLPack's type codes, with the bits.
FROM_DLPACK: Dict[Tuple[int, int], Dtype] = {
    (2, 32): Dtype.F32, (2, 16): Dtype.F16, (4, 16): Dtype.BF16, (2, 64): Dtype.F64,
    (10, 8): Dtype.F8_E4M3, (12, 8): Dtype.F8_E5M2, (0, 64): Dtype.I64, (0, 32): Dtype.I32,
    (0, 16): Dtype.I16, (0, 8): Dtype.I8, (1, 8): Dtype.U8, (6, 8): Dtype.BOOL,
}
NUMPY_DTYPES: Dict[int, Any] = (
    {int(code): numpy.dtype(name) for code, name in NUMPY_NAMES.items()} if numpy else {}
)


def dtype_of(value: Any) -> Dtype:
    """From a Dtype, its number or name ("bf16"), or a NumPy dtype ("float32")."""
    if isinstance(value, int):
        return Dtype(value)
    if isinstance(value, str):
        if value.upper() in Dtype.__members__:
            return Dtype[value.upper()]
        if value == "bfloat16":
            return Dtype.BF16
    name = value if isinstance(value, str) else None
    if numpy:
        name = numpy.dtype(value).name
    if name not in FROM_NUMPY:
        raise TypeError(f"{value!r} is no dtype of Stepwell")
    return FROM_NUMPY[name]


class Memory(NamedTuple):
    """Contiguous memory of the caller, kept alive by `owner`."""

    owner: Any
    pointer: int
    bytes: int
    dtype: Optional[Dtype]  # None: not given; the tensor's dtype applies
    cuda: Optional[int] = None  # the ordinal of the device that it is on; None: the host

    def on_host(self) -> "Memory":
        if self.cuda is not None:
            raise ValueError(f"the array is on CUDA device {self.cuda}, and this call takes host "
                             "memory; copy it there first")
        return self


def readable(source: Any, dtype: int, given: Any = None) -> Memory:
    """Memory to read from. An object that is neither an array nor a buffer is converted to an array
    of `dtype`. given: the dtype of the elements, overriding that of the array."""
    if given is not None:
        dtype = dtype_of(given)
    memory, made = _readable(source, dtype)
    # A list of numbers for a dtype unknown to NumPy has the dtype of the converted array.
    return memory if given is None or made else memory._replace(dtype=Dtype(dtype))


def _readable(source: Any, dtype: int) -> Tuple[Memory, bool]:
    """Also returns whether an array was made from numbers."""
    if numpy and isinstance(source, (numpy.ndarray, numpy.generic)):
        array = numpy.ascontiguousarray(source, source.dtype.newbyteorder("="))
        return memory_of(array, numpy_code(array, dtype)), False
    try:
        view = memoryview(source)
    except TypeError:
        if _exchange.is_exporter(source):
            return memory_of_export(contiguous_export(source)), False
        if not numpy:
            raise
        numbers = Dtype.F32 if dtype == Dtype.BF16 else dtype
        array = numpy.ascontiguousarray(source, NUMPY_DTYPES[numbers])
        return memory_of(array, numpy_code(array, dtype)), True
    if view.c_contiguous and not view.readonly:
        return writable(view, dtype), False
    if numpy:
        flat = view.cast("B") if view.c_contiguous else view.tobytes()
        array = numpy.frombuffer(flat, numpy.uint8)
        return memory_of(array, buffer_code(view, dtype)), False
    held = ctypes.create_string_buffer(view.tobytes(), max(view.nbytes, 1))
    return Memory(held, ctypes.addressof(held), view.nbytes, buffer_code(view, dtype)), False


def contiguous_export(source: Any) -> _exchange.Exported:
    """Memory of an array that another library exports by DLPack; a copy if it is not contiguous."""
    made = _exchange.exported(source)
    if not made.contiguous:
        if not hasattr(source, "contiguous"):
            raise ValueError("the array must be C-contiguous")
        made = _exchange.exported(source.contiguous())
    return made


def memory_of_export(made: _exchange.Exported, given: Any = None) -> Memory:
    code, bits = made.dtype
    if given is not None:
        return Memory(made.capsule, made.pointer, made.bytes, dtype_of(given), made.cuda)
    if made.dtype not in FROM_DLPACK:
        raise TypeError(f"an array of {bits} bits of DLPack's type {code} is no dtype of Stepwell")
    return Memory(made.capsule, made.pointer, made.bytes, FROM_DLPACK[made.dtype], made.cuda)


def numpy_code(array: Any, dtype: int) -> Optional[Dtype]:
    """The array's dtype; None if it is NumPy's representation of `dtype`."""
    return None if array.dtype == NUMPY_DTYPES[dtype] else dtype_of(array.dtype)


def buffer_code(view: memoryview, dtype: int) -> Optional[Dtype]:
    letter = view.format.lstrip("@=<")
    if letter == "H" and dtype == Dtype.BF16:
        return None  # the bits of bf16
    if letter == "l" and view.itemsize == 4:
        return Dtype.I32  # of standard size
    if letter not in FORMATS:
        raise TypeError(f"a buffer of format '{view.format}' is no dtype of Stepwell")
    return FORMATS[letter]


def memory_of(array: Any, code: Optional[Dtype]) -> Memory:
    return Memory(array, array.__array_interface__["data"][0], array.nbytes, code)


def writable(target: Any, dtype: int) -> Memory:
    """Memory to write to, in place."""
    if numpy and isinstance(target, numpy.ndarray):
        if not (target.flags.c_contiguous and target.flags.writeable and target.dtype.isnative):
            raise ValueError("the array must be writeable, C-contiguous and of native byte order")
        return memory_of(target, numpy_code(target, dtype))
    if _exchange.is_exporter(target):
        made = _exchange.exported(target)
        if made.read_only or not made.contiguous:
            raise ValueError("the array must be writeable and C-contiguous")
        return memory_of_export(made)
    view = memoryview(target)
    if view.readonly or not view.c_contiguous:
        raise ValueError("the buffer must be writeable and C-contiguous")
    code = buffer_code(view, dtype)
    if not view.nbytes:
        return Memory(view, 0, 0, code)
    held = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B"))
    return Memory(held, ctypes.addressof(held), view.nbytes, code)


def made_for(count: int, dtype: int) -> Tuple[Any, Memory]:
    """New memory for `count` elements, and the same as Memory."""
    if numpy:
        array = numpy.empty(count, NUMPY_DTYPES[dtype])
        return array, memory_of(array, None)
    held = bytearray(count * ITEM_BYTES[dtype])
    return held, writable(held, dtype)
