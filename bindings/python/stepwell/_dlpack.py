# SPDX-License-Identifier: Apache-2.0
"""DLPack: views and addresses as capsules for other array libraries. The contents of a capsule, its
names and its destructor are in C: it may end on any thread, after the runtime, and at the end of
the interpreter, when no Python code can run.
"""
from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from . import _abi, _exchange
from ._dtypes import Dtype, numpy
from ._enums import Stream, Tier
from ._library import lib, unchecked
from .errors import InvalidError, check, error_of

if TYPE_CHECKING:
    from ._tensor import Tensor

Device = Tuple[int, int]
CPU: Device = (1, 0)  # DLPack's kDLCPU: the device of all tiers of the built-in drivers
_CUDA = 2  # kDLCUDA, combined with the device's ordinal
Version = Optional[Tuple[int, int]]
# DLPack's codes of what gradients are made of, and bits.
_CODES = {Dtype.F32: (2, 32), Dtype.F16: (2, 16), Dtype.BF16: (4, 16)}

_python = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
)(("PyCapsule_New", _python))
_destroy = ctypes.cast(lib.stw_dlpack_capsule_destroy, ctypes.c_void_p)
_export = unchecked("stw_view_to_dlpack")
_export_legacy = unchecked("stw_view_to_dlpack_legacy")
_pointer, _byref = ctypes.c_void_p, ctypes.byref
_run: Any = partial.__call__

_NAME, _NAME_VERSIONED = (_exchange.NAMES[name][0]
                          for name in (_exchange.NAME, _exchange.NAME_VERSIONED))


def is_versioned(max_version: Version, dtype: int) -> bool:
    """Whether the consumer requests the versioned form; BufferError for unsupported arguments."""
    versioned = max_version is not None and max_version[0] >= 1
    if dtype in (Dtype.F8_E4M3, Dtype.F8_E5M2) and (max_version or (0, 0)) < (1, 1):
        raise BufferError("8-bit floats are in DLPack 1.1 and later, and the consumer asks for "
                          f"{max_version or 'the form before 1.0'}")
    return versioned


def device_of(info: Any) -> Device:
    """The device of a DeviceInfo. The library refuses devices unknown to DLPack at the export."""
    return (_CUDA, info.ordinal) if info.driver == "cuda" else CPU


def check_device(dl_device: Optional[Device], device: Device) -> None:
    if dl_device is not None and tuple(int(at) for at in dl_device) != device:
        raise BufferError(f"the bytes are on DLPack's device {device}, not on {tuple(dl_device)}; "
                          "a consumer there copies them")


def consumer_stream(stream: Optional[int], device: Device, own: Optional[int]) -> Optional[int]:
    """The stream of a view's consumer; `own`: the stream of the fetch."""
    if device == CPU:
        return stream
    if stream == 0:
        raise BufferError("stream 0 has two meanings with CUDA: DLPack says 1 for the legacy "
                          "default stream and 2 for that of the thread")
    if stream == -1:  # the consumer orders its work after the view's stream itself
        return own
    # DLPack and the library use the same numbers for the default streams.
    return Stream.LEGACY if stream is None else stream


def capsule(versioned: bool, status: int, made: Any) -> Any:
    """A capsule around the object that a call with this status has written to `made`."""
    if status == _abi.STW_ERROR_UNSUPPORTED:
        raise BufferError(str(error_of(status)))
    if status:
        check(status)
    return _new_capsule(made, _NAME_VERSIONED if versioned else _NAME, _destroy)


def view_capsule(versioned: bool, view: Any, stream: Any) -> Any:
    """A capsule into which a view moves."""
    made = _pointer()
    name = _NAME_VERSIONED if versioned else _NAME
    export = _export if versioned else _export_legacy
    found: List[Any] = []
    try:
        # Both calls in one of C: between them no signal handler may raise, as no object would own
        # the pin.
        found.extend(map(_run, (partial(export, _byref(view), stream, _byref(made)),
                                partial(_new_capsule, made, name, _destroy))))
    except ValueError:  # of the second call, which got no pointer
        pass
    return found[1] if not found[0] else capsule(versioned, found[0], made)


def copied(array: Any, dtype: int, max_version: Version) -> Any:
    """A NumPy capsule around a copy, which pins nothing."""
    if numpy is None or dtype in (Dtype.BF16, Dtype.F8_E4M3, Dtype.F8_E5M2):
        raise BufferError("copy=True needs NumPy and a dtype that it has; export without a copy "
                          "and copy what the consumer made of it")
    copy = array().copy()
    try:
        return copy.__dlpack__(max_version=max_version)
    except TypeError:  # NumPy before 2.1: only the legacy form
        return copy.__dlpack__()


class ByAddress:
    """A tensor's address on a device, for DLPack, without a pin. From Tensor.by_address()."""

    def __init__(self, tensor: "Tensor", device: int) -> None:
        self.tensor = tensor
        self.device = device

    def __dlpack_device__(self) -> Device:
        return self.tensor._runtime._dlpack_device(Tier.DEVICE, self.device)

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Version = None,
                   dl_device: Optional[Device] = None,
                   copy: Optional[bool] = None) -> Any:
        tensor = self.tensor
        device = self.__dlpack_device__()
        check_device(dl_device, device)
        if copy:
            raise BufferError("the bytes may not be there; copy=True needs a view")
        if stream is not None and device == CPU:
            raise InvalidError("a stream, of an address that orders nothing")
        versioned = is_versioned(max_version, tensor._dtype)
        function = lib.stw_tensor_to_dlpack if versioned else lib.stw_tensor_to_dlpack_legacy
        made = _pointer()
        return capsule(versioned, function(tensor._use(), self.device, made), made)


class AtAddress:
    """The address at which a view had a tensor, for DLPack, without a pin: flat, to be accessed
    while a view has it there."""

    def __init__(self, tensor: "Tensor", address: int) -> None:
        self.tensor = tensor
        self.address = address

    def __dlpack_device__(self) -> Device:
        return self.tensor._runtime._dlpack_device(Tier.DEVICE, 0)

    def __dlpack__(self, **_: Any) -> Any:
        tensor = self.tensor
        made = _exchange.flat(self.address, self.__dlpack_device__(), _CODES[tensor._dtype],
                              tensor._elements)
        return _new_capsule(made, _NAME, _destroy)
