# SPDX-License-Identifier: Apache-2.0
"""Asynchronous fetches."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, List, Optional, Union

from . import _abi, _waiting
from ._library import lib
from ._tensor import nanoseconds
from ._views import View, Views
from .errors import check, raised

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._tensor import Request, Tensor


class Operation:
    """One asynchronous fetch. A context manager: at its end, what was not collected is undone."""

    __slots__ = ("_runtime", "_handle", "_items", "_single", "_step", "__weakref__")

    def __init__(self, runtime: "Runtime", items: "List[Union[Tensor, Request]]",
                 single: bool) -> None:
        self._runtime = runtime
        self._handle = ctypes.c_void_p()
        self._items = items
        self._single = single
        self._step = runtime._step

    def _use(self) -> ctypes.c_void_p:
        self._runtime._use()
        if not self._handle:
            raise raised(_abi.STW_ERROR_CLOSED, "the operation was freed")
        return self._handle

    def poll(self) -> bool:
        """Whether it is over. Raises what it failed with. Never blocks."""
        return check(lib.stw_operation_poll(self._use())) != _abi.STW_PENDING

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait at most so long (None: the runtime's default); whether it is over."""
        status = _waiting.call(self._runtime, lib.stw_operation_wait, self._use(),
                               nanoseconds(timeout))
        return check(status) != _abi.STW_PENDING

    def cancel(self) -> None:
        """Ask it to end early: it raises CancelledError then, or was too late. Never blocks."""
        check(lib.stw_operation_cancel(self._use()))

    def collect(self, stream: Optional[int] = None) -> Any:
        """Wait, then take the View (of fetch_async) or Views (of fetch_many_async). Once only."""
        while not self.wait():
            pass
        taken = (View(self._runtime, self._items[0].tensor) if self._single
                 else Views(self._runtime, self._items))
        taken._step = self._step
        if stream:
            taken._stream = ctypes.c_void_p(stream)
        at = ctypes.byref(taken._views) if self._single else taken._views
        check(lib.stw_fetch_collect(self._use(), stream, at, len(self._items)))
        return taken

    def free(self) -> None:
        """End it. Views that were not collected are given back. A second time is nothing."""
        if self._handle:
            status = lib.stw_operation_free(self._handle)
            self._handle = ctypes.c_void_p()
            self._runtime._operations.discard(self)
            check(status)

    def __enter__(self) -> "Operation":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._handle and not self._runtime.closed:
            self.free()

    def __del__(self) -> None:
        try:
            if self._handle and self._runtime._may_finalise():
                lib.stw_operation_free(self._handle)
        except (AttributeError, TypeError):
            pass  # half made, or the interpreter is going
