# SPDX-License-Identifier: Apache-2.0
"""Asynchronous fetches. An eventfd notifies their end, for which an event loop waits with its other
descriptors: a callback would run on a thread of the library, which must not wait for the GIL while
others wait for it, and must not enter an interpreter that is ending.
"""
from __future__ import annotations

import asyncio
import ctypes
import os
from typing import TYPE_CHECKING, Any, Generator, List, Optional, Union

from . import _abi, _waiting
from ._library import lib
from ._tensor import Request, Tensor, nanoseconds
from ._views import View, Views
from .errors import check, raised

if TYPE_CHECKING:
    from ._runtime import Runtime


def _eventfd() -> int:
    flags = os.O_CLOEXEC | os.O_NONBLOCK  # the bits of EFD_CLOEXEC and EFD_NONBLOCK
    if hasattr(os, "eventfd"):
        return int(os.eventfd(0, flags))
    libc = ctypes.CDLL(None, use_errno=True)  # Python 3.9
    descriptor = int(libc.eventfd(0, flags))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "no eventfd for the operation")
    return descriptor


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Operation:
    """One asynchronous fetch. A context manager, whose end undoes an uncollected fetch.

    In a coroutine, `await operation` returns its View or Views, like collect().
    """

    __slots__ = ("_runtime", "_handle", "_items", "_single", "_step", "_awaited", "__weakref__")

    def __init__(self, runtime: "Runtime", items: List[Union[Tensor, Request]],
                 single: bool) -> None:
        self._runtime = runtime
        self._handle = ctypes.c_void_p()
        self._items = items
        self._single = single
        self._step = runtime._step
        self._awaited = False

    def _use(self) -> ctypes.c_void_p:
        self._runtime._use()
        if not self._handle:
            raise raised(_abi.STW_ERROR_CLOSED, "the operation was freed")
        return self._handle

    def poll(self) -> bool:
        """Whether it is over. Raises its error. Never blocks."""
        return check(lib.stw_operation_poll(self._use())) != _abi.STW_PENDING

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait at most `timeout` (None: the runtime's default), and return whether it is over."""
        status = _waiting.call(self._runtime, lib.stw_operation_wait, self._use(),
                               nanoseconds(timeout))
        return check(status) != _abi.STW_PENDING

    def cancel(self) -> None:
        """Ask it to end early, with a CancelledError if it is not over yet. Never blocks."""
        check(lib.stw_operation_cancel(self._use()))

    def collect(self, stream: Optional[int] = None) -> Any:
        """Wait, and return the View (of fetch_async) or Views (of fetch_many_async). Only once."""
        while not self.wait():
            pass
        return self._take(stream)

    def _take(self, stream: Optional[int] = None) -> Any:
        taken = (View(self._runtime, self._items[0]) if self._single
                 else Views(self._runtime, self._items))
        taken._step = self._step
        if stream:
            taken._stream = ctypes.c_void_p(stream)
        at = ctypes.byref(taken._views) if self._single else taken._views
        check(lib.stw_fetch_collect(self._use(), stream, at, len(self._items)))
        return taken

    def notify(self, descriptor: Optional[int]) -> None:
        """Add 1 to an eventfd when it is over, or now if it is. For event loops other than
        asyncio's.

        The descriptor must be non-blocking and must stay open until it was written; it remains the
        program's. One descriptor serves many operations; an operation has one at a time. None
        removes it. Never blocks.
        """
        check(lib.stw_operation_notify_fd(self._use(), -1 if descriptor is None else descriptor))

    async def _over(self) -> None:
        if self._awaited:
            raise raised(_abi.STW_ERROR_BUSY, "another task awaits the operation")
        loop = asyncio.get_running_loop()
        descriptor = _eventfd()
        self._awaited = True
        try:
            over = loop.create_future()
            loop.add_reader(descriptor, _wake, over)
            try:
                self.notify(descriptor)
                await over
            except asyncio.CancelledError:
                if self._handle:
                    self.cancel()
                raise
            finally:
                loop.remove_reader(descriptor)
                if self._handle and not self._runtime.closed:
                    self.notify(None)
        finally:
            self._awaited = False
            os.close(descriptor)

    def __await__(self) -> "Generator[Any, None, Any]":
        """A task that is cancelled while it waits cancels the operation."""
        if not self.poll():
            yield from self._over().__await__()
            self.poll()  # raises its error
        return self._take()

    def free(self) -> None:
        """End it. Uncollected views are released. A second call has no effect."""
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
            pass  # partly constructed, or the interpreter is ending
