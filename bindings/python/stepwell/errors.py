# SPDX-License-Identifier: Apache-2.0
"""One exception class per status code, with the library's sentence and its numbers."""
from __future__ import annotations

from typing import Dict, Optional, Type

from . import _abi
from ._library import lib


class Error(Exception):
    """A call failed. str() is the library's full sentence.

    status and code are the STW_ERROR_* number and its name. The other attributes are 0, "" or -1
    (rank) if the failure has no such number.
    """

    status: int = 0
    code: str = ""
    os_errno: int = 0
    rank: int = -1
    tier: int = 0
    device: int = 0
    needed_bytes: int = 0
    free_bytes: int = 0
    pinned_bytes: int = 0
    pinned_views: int = 0
    offset_bytes: int = 0
    tensor: str = ""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


class InvalidError(Error, ValueError):
    """An argument is wrong."""


class InternalError(Error, RuntimeError):
    """A fault of the library."""


class OutOfMemoryError(Error, MemoryError):
    """The process or its cgroup cannot allocate that much memory."""


class BudgetError(Error, MemoryError):
    """The tier's budget cannot hold the request: needed_bytes, free_bytes, pinned_bytes."""


class StorageError(Error, OSError):
    """A read or write failed."""


class ChecksumError(Error):
    """Stored bytes differ from the bytes that were written."""


class SyncError(Error, OSError):
    """A flush failed."""


class NoSpaceError(Error, OSError):
    """The file system cannot reserve the space."""


class TimedOutError(Error, TimeoutError):
    """The timeout passed."""


class LockedError(Error):
    """Another running process has the store open."""


class PeerError(Error, ConnectionError):
    """A rank has ended, is stopped or cannot be reached."""


class DeviceError(Error):
    """The device has failed."""


class ClosedError(Error):
    """The runtime, or the object, was closed, destroyed or released."""


class ForkedError(Error):
    """This process is a fork of the one that opened the runtime."""


class OrderError(Error):
    """Ranks called in different order, or with different tensors."""


class UnsupportedError(Error, NotImplementedError):
    """Not available here, or not in this build."""


class BusyError(Error):
    """Views, a writer or background work prevent the call."""


class EmptyError(Error):
    """The tensor was never written, or was discarded."""


class NotFoundError(Error, KeyError):
    """No such tensor, file, label or generation."""


class ExistsError(Error):
    """The name is taken, or a store is already there."""


class MismatchError(Error, ValueError):
    """Dtype, shape, partition or group differ from those of the other side."""


class CancelledError(Error):
    """The operation was cancelled."""


class WaitInterruptedError(Error, InterruptedError):
    """Runtime.interrupt(), or Ctrl-C in the main thread, ended the wait."""


class LimitError(Error):
    """A limit set at open was reached."""


class FormatError(Error):
    """A file is damaged, foreign or of a newer format."""


class AccessError(Error, PermissionError):
    """Access refused, or a path or module is not safe."""


class WearError(Error):
    """The daily write budget of a device is used up."""


CLASSES: Dict[int, Type[Error]] = {
    _abi.STW_ERROR_INVALID: InvalidError,
    _abi.STW_ERROR_INTERNAL: InternalError,
    _abi.STW_ERROR_MEMORY: OutOfMemoryError,
    _abi.STW_ERROR_BUDGET: BudgetError,
    _abi.STW_ERROR_IO: StorageError,
    _abi.STW_ERROR_CHECKSUM: ChecksumError,
    _abi.STW_ERROR_SYNC: SyncError,
    _abi.STW_ERROR_NO_SPACE: NoSpaceError,
    _abi.STW_ERROR_TIMEOUT: TimedOutError,
    _abi.STW_ERROR_LOCKED: LockedError,
    _abi.STW_ERROR_PEER: PeerError,
    _abi.STW_ERROR_DEVICE: DeviceError,
    _abi.STW_ERROR_CLOSED: ClosedError,
    _abi.STW_ERROR_FORKED: ForkedError,
    _abi.STW_ERROR_ORDER: OrderError,
    _abi.STW_ERROR_UNSUPPORTED: UnsupportedError,
    _abi.STW_ERROR_BUSY: BusyError,
    _abi.STW_ERROR_EMPTY: EmptyError,
    _abi.STW_ERROR_NOT_FOUND: NotFoundError,
    _abi.STW_ERROR_EXISTS: ExistsError,
    _abi.STW_ERROR_MISMATCH: MismatchError,
    _abi.STW_ERROR_CANCELLED: CancelledError,
    _abi.STW_ERROR_INTERRUPTED: WaitInterruptedError,
    _abi.STW_ERROR_LIMIT: LimitError,
    _abi.STW_ERROR_FORMAT: FormatError,
    _abi.STW_ERROR_PERMISSION: AccessError,
    _abi.STW_ERROR_WEAR: WearError,
}

NUMBERS = ("os_errno", "rank", "tier", "device", "needed_bytes", "free_bytes", "pinned_bytes",
           "pinned_views", "offset_bytes")


def error_of(status: int, info: Optional[_abi.stw_error_info] = None) -> Error:
    """The exception for a status returned by this thread's last call."""
    if info is None:
        info = _abi.stw_error_info.initial()
        lib.stw_last_error_info(info)
    # A finaliser may have called the library in between.
    told = info.status == status
    sentence = info.sentence if told else lib.stw_status_string(status)
    error = CLASSES.get(status, Error)(sentence.decode("utf-8", "replace"))
    error.status = status
    error.code = _abi.STATUSES.get(status, (str(status), ""))[0]
    if told:
        for name in NUMBERS:
            setattr(error, name, getattr(info, name))
        error.tensor = info.tensor.decode("utf-8", "replace")
    if isinstance(error, OSError):
        error.errno = error.os_errno or None
    return error


def raised(status: int, sentence: str) -> Error:
    """An error detected by this package itself."""
    error = CLASSES[status](sentence)
    error.status = status
    error.code = _abi.STATUSES[status][0]
    return error


def check(status: int) -> int:
    """The status, if it is not an error."""
    if status < 0:
        raise error_of(status)
    return status


def status_string(status: int) -> str:
    return str(lib.stw_status_string(status).decode())


def last_error() -> str:
    """The message of this thread's last failed call, which exceptions contain already."""
    return str(lib.stw_last_error().decode("utf-8", "replace"))


__all__ = ["Error", *(kind.__name__ for kind in CLASSES.values())]
