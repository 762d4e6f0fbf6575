# SPDX-License-Identifier: Apache-2.0
"""The interpreter's exit, and forks. The epoch changes at both: objects opened before must not be
released any more.
"""
from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, List

from . import _waiting

if TYPE_CHECKING:
    from ._runtime import Runtime

EXIT_TIMEOUT_SECONDS = 30.0
CALLS_TIMEOUT_SECONDS = 1.0

_epoch = 0
_open: "weakref.WeakSet[Runtime]" = weakref.WeakSet()
_kept: List[Any] = []


def epoch() -> int:
    return _epoch


def opened(runtime: "Runtime") -> None:
    _open.add(runtime)


def closed(runtime: "Runtime") -> None:
    _open.discard(runtime)


def keep(what: Any) -> None:
    """Keep an object until the process ends, since the library may still call it."""
    _kept.append(what)


def _end_calls(runtime: "Runtime") -> bool:
    """End the waits of daemon threads in the library; returns whether they have left it."""
    deadline = time.monotonic() + CALLS_TIMEOUT_SECONDS
    while runtime._inside and time.monotonic() < deadline:
        runtime.interrupt()
        time.sleep(0.01)
    return not runtime._inside


def _at_exit() -> None:
    """Close open runtimes. Memory that views still pin stays until the process ends, as later
    finalisers may read arrays in it."""
    global _epoch
    _waiting.end()
    for runtime in list(_open):
        _kept.append((runtime._log, runtime._rank))
        try:
            if _end_calls(runtime):
                for operation in list(runtime._operations):
                    operation.free()
                runtime.close(deferred=True, timeout=EXIT_TIMEOUT_SECONDS)
        except Exception:  # no caller is left to report it to
            pass
    _epoch += 1


def _in_child() -> None:
    global _epoch
    _epoch += 1
    for runtime in _open:
        _kept.append(runtime)  # the handle and its objects belong to the parent
    _open.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
