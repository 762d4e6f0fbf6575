# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries, such as PyTorch, imported by DLPack as memory of the caller, which the
capsule keeps alive. The other library itself is not imported.
"""
from __future__ import annotations

import ctypes
import struct
from typing import Any, Dict, NamedTuple, Optional, Tuple

_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetName", ctypes.pythonapi))

_libc = ctypes.CDLL(None)
_malloc = _libc.malloc
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_free = ctypes.cast(_libc.free, ctypes.c_void_p).value
# Never freed: a capsule points to its name, and may outlive this module.
_copy_of_text = _libc.strdup
_copy_of_text.restype = ctypes.c_void_p
NAME, NAME_VERSIONED = b"dltensor", b"dltensor_versioned"
NAMES = {name: (_copy_of_text(name), _copy_of_text(b"used_" + name))
         for name in (NAME, NAME_VERSIONED)}
# data, device type and number, dimensions, dtype, shape, strides, offset.
_TENSOR = "PiiiBBHPPQ"
_LEGACY = struct.Struct("@" + _TENSOR + "PP")
_VERSIONED = struct.Struct("@IIPPQ" + _TENSOR)
_READ_ONLY = 1
_HOST = (1, 3)  # kDLCPU and kDLCUDAHost
_CUDA = 2       # kDLCUDA


class Exported(NamedTuple):
    """The contents of a capsule. It owns the memory."""

    capsule: Any
    name: bytes  # the capsule's
    managed: int
    deleter: int  # of `managed`, a C function; 0: none
    pointer: int
    bytes: int
    dtype: Tuple[int, int]  # DLPack's code, and bits
    read_only: bool
    contiguous: bool
    cuda: Optional[int]  # the ordinal of the device that it is on; None: in host memory


def is_exporter(source: Any) -> bool:
    """False for a view of a tensor, since its export may end it."""
    return hasattr(source, "__dlpack__") and not hasattr(source, "to_dlpack")


def _capsule_of(source: Any) -> Any:
    if getattr(source, "requires_grad", False):
        source = source.detach()  # PyTorch exports no tensor that requires a gradient
    asked: Dict[str, Any] = {}
    if getattr(source, "__dlpack_device__", lambda: (1, 0))()[0] == _CUDA:
        asked["stream"] = 1  # the exporter orders the legacy default stream after its work
    try:
        return source.__dlpack__(max_version=(1, 1), **asked)
    except TypeError:  # a library with only the legacy form
        return source.__dlpack__(**asked)


def _is_contiguous(shape: Tuple[int, ...], strides: Tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def exported(source: Any) -> Exported:
    """From its __dlpack__()."""
    capsule = _capsule_of(source)
    flags = 0
    name = NAME_VERSIONED if _is_valid(capsule, NAME_VERSIONED) else NAME
    managed = _pointer_of(capsule, name)
    if name == NAME_VERSIONED:
        text = ctypes.string_at(managed, _VERSIONED.size)
        _, _, _, deleter, flags, *tensor = _VERSIONED.unpack(text)
    else:
        *tensor, _, deleter = _LEGACY.unpack(ctypes.string_at(managed, _LEGACY.size))
    data, device, number, n, code, bits, lanes, shape_at, strides_at, offset = tensor
    if device not in (*_HOST, _CUDA):
        raise ValueError(f"the array is on DLPack's device {(device, number)}, neither in host "
                         "memory nor on a CUDA device; copy it there first")
    shape = tuple((ctypes.c_int64 * n).from_address(shape_at)) if n else ()
    count = 1
    for size in shape:
        count *= size
    strides = tuple((ctypes.c_int64 * n).from_address(strides_at)) if n and strides_at else None
    return Exported(capsule, name, managed, deleter or 0, (data or 0) + offset,
                    count * bits * lanes // 8, (code, bits * lanes), bool(flags & _READ_ONLY),
                    not count or strides is None or _is_contiguous(shape, strides),
                    number if device == _CUDA else None)


def take(made: Exported) -> None:
    """Mark the capsule as used: the new owner of the tensor calls its deleter."""
    _rename(made.capsule, NAMES[made.name][1])


def leave(made: Exported) -> None:
    """Give the tensor back to the capsule."""
    _rename(made.capsule, NAMES[made.name][0])


def flat(address: int, device: Tuple[int, int], dtype: Tuple[int, int], count: int) -> int:
    """The address of a legacy tensor over memory that it does not own. dtype: DLPack's code, and
    bits."""
    managed = _malloc(_LEGACY.size + 8)
    if not managed:
        raise MemoryError
    shape = managed + _LEGACY.size  # freed with it
    made = _LEGACY.pack(address, *device, 1, *dtype, 1, shape, 0, 0, 0, _free)
    ctypes.memmove(managed, made + struct.pack("@q", count), _LEGACY.size + 8)
    return int(managed)


def given(capsule: Any) -> Tuple[int, int]:
    """Take a legacy capsule's tensor: (tensor, address of the deleter that the caller must
    call)."""
    managed = _pointer_of(capsule, NAME)
    deleter = ctypes.c_void_p.from_address(managed + _LEGACY.size - 8).value
    _rename(capsule, NAMES[NAME][1])
    return managed, deleter or 0


def given_back(capsule: Any) -> None:
    _rename(capsule, NAMES[NAME][0])
