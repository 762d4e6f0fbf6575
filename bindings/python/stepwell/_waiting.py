# SPDX-License-Identifier: Apache-2.0
"""Calls that wait. Python's signal handlers run only in the main thread, between bytecodes, and
therefore not while it waits in the library. Meanwhile a helper thread is notified of Ctrl-C by the
wakeup descriptor and ends the wait with stw_runtime_interrupt(); then Python runs the handler.
"""
from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import Any, Callable, Optional, Tuple

from . import _abi
from ._library import lib

# Signals whose handlers usually end the program. Handlers of other signals run when the call ends.
ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
AGAIN_SECONDS = 0.02


class Listener:
    """The thread, its sockets, and the wait that it may have to end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handle: Any = None  # of the runtime in which the main thread is waiting
        self.calls = 0           # number of waits: a signal ends the one during which it arrives
        self.before = -1         # the program's own wakeup descriptor, served meanwhile
        self.ears, self.mouth = socket.socketpair()
        self.mouth.setblocking(False)
        threading.Thread(target=self.listen, name="stepwell-signals", daemon=True).start()

    def listen(self) -> None:
        while True:
            heard = self.ears.recv(64)
            if self.before >= 0:
                try:
                    os.write(self.before, heard)
                except OSError:
                    pass  # full or closed: as it would be without this thread
            if not ENDING.isdisjoint(heard):
                self.end_wait()

    def end_wait(self) -> None:
        # Repeatedly, since the signal may have arrived just before the wait began. Later waits are
        # not interrupted: they belong to a handler, or to code that runs after it.
        with self.lock:
            call = self.calls
        while True:
            with self.lock:
                if self.handle is None or self.calls != call:
                    return
                lib.stw_runtime_interrupt(self.handle)
            time.sleep(AGAIN_SECONDS)

    def call(self, handle: Any, function: Callable[..., int], arguments: Tuple[Any, ...]) -> int:
        mouth = self.mouth.fileno()
        try:
            before = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
        except ValueError:  # embedded: Python's main thread receives no signals
            return function(*arguments)
        if before != mouth:  # else a handler raised an exception before the end below
            self.before = before
        try:
            with self.lock:
                self.handle = handle
                self.calls += 1
            return function(*arguments)
        finally:
            with self.lock:
                self.handle = None
            signal.set_wakeup_fd(self.before)


class Patience:
    """The timeout of a call that may be repeated, counted from the first call."""

    def __init__(self, arguments: Tuple[Any, ...], begin: int, default: int = 0) -> None:
        self.arguments, self.begin, self.default = arguments, begin, default
        structs = [getattr(at, "_obj", at) for at in arguments]  # the arguments of byref()
        self.options = [at for at in structs if getattr(at, "timeout_ns", None) is not None]
        self.given = [at.timeout_ns or default for at in self.options]

    def left(self) -> Tuple[Any, ...]:
        """The arguments with the remaining time, in a field of options or as the last argument."""
        spent = time.monotonic_ns() - self.begin
        for options, given in zip(self.options, self.given):
            options.timeout_ns = given and max(1, given - spent)
        given = self.arguments[-1]
        if isinstance(given, Nanoseconds) and (given or self.default):
            return (*self.arguments[:-1], Nanoseconds(max(1, (given or self.default) - spent)))
        return self.arguments


class Nanoseconds(int):
    """A timeout as a separate argument."""


def nanoseconds(seconds: Optional[float]) -> int:
    """None: the runtime's default, 0 in the library."""
    if seconds is None:
        return Nanoseconds(0)
    if not seconds >= 0:
        raise ValueError(f"a timeout of {seconds} s; it is 0 or more, or inf")
    return Nanoseconds(max(1, round(min(seconds * 1e9, 2.0**63))))


_listener: Optional[Listener] = None
_main = threading.main_thread().ident
_ending = False  # the interpreter is ending; no thread may start any more


def end() -> None:
    global _ending
    _ending = True


def call(runtime: Any, function: Callable[..., int], *arguments: Any, again: bool = True) -> int:
    """A call that may wait, in `runtime`. again: the call may be repeated after a signal handler
    has returned. It is not repeated after an interrupt by the program."""
    me = threading.get_ident()
    nested = me in runtime._inside
    runtime._inside.add(me)
    try:
        if me != _main or _ending:
            return function(*arguments)
        global _listener
        if _listener is None:
            _listener = Listener()
        begin, patience = time.monotonic_ns(), None
        while True:
            asked = runtime._interrupts
            status = _listener.call(runtime._handle, function, arguments)
            if status != _abi.STW_ERROR_INTERRUPTED or not again or asked != runtime._interrupts:
                return status
            patience = patience or Patience(arguments, begin, runtime._timeout_ns)
            arguments = patience.left()
    finally:
        if not nested:
            runtime._inside.discard(me)


def _forget_listener() -> None:
    """In a forked child: the thread and the sockets belong to the parent."""
    global _listener, _main
    if _listener is not None:
        before = signal.set_wakeup_fd(-1)
        if before == _listener.mouth.fileno():
            before = _listener.before
        if before >= 0:
            signal.set_wakeup_fd(before)
    _listener = None
    _main = threading.get_ident()


os.register_at_fork(after_in_child=_forget_listener)
