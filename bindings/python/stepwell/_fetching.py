# SPDX-License-Identifier: Apache-2.0
"""Fetches of a runtime: at once if the bytes are resident, else with a wait or an operation."""
from __future__ import annotations

import ctypes
import operator
import weakref
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence, Union, cast

from . import _abi, _waiting
from ._enums import Access, Scope, Tier, number
from ._library import lib, unchecked
from ._operation import Operation
from ._phase import Phase, Step
from ._tensor import Request, Tensor, nanoseconds
from ._views import View, Views, _array_type, _release
from .errors import Error, check, error_of

if TYPE_CHECKING:
    from ._runtime import Runtime

Item = Union[Tensor, Request]

_fetch = unchecked("stw_fetch")
_memmove = ctypes.memmove
_TRY = _abi.stw_fetch_options.initial(flags=_abi.STW_FETCH_TRY)
_AT_ONCE = ctypes.byref(_TRY)
_byref, _new_view = ctypes.byref, _abi.stw_view
_new: Callable[[Any], Any] = object.__new__
_READ, _NEAREST, _WHOLE = Access.READ, Tier.DEFAULT, Scope.WHOLE
_waits = operator.attrgetter("_waits")
# Size of the parts that are tried, so that a miss wastes one part at most.
_HITS_MAX = 256
_ACCESS_AT = _abi.stw_fetch_request.access.offset  # its lowest byte; READ is 0


class Prepared(Views):
    """A fetch that is repeated and released without allocations."""

    __slots__ = ("_wire", "_slow")

    def __init__(self, runtime: "Runtime", items: Sequence[Item], access: Access = _READ) -> None:
        super().__init__(runtime, list(items))
        self._ended = True  # until it is fetched
        self._wire = b"".join([item._requests[access] for item in items])
        self._slow = True in map(_waits, items)

    def fetch(self) -> None:
        """Pin them; no effect if they are."""
        runtime = self._runtime
        if not self._ended and self.held:
            if self._views[self._n - 1].cookie:
                return
            _release(self._at, self._n, None, 0)  # those of the first parts of a long one
        self._step = runtime._step
        self._ended = False
        if self._n > _HITS_MAX:
            hit = not self._slow and runtime._hits(self._wire, self._views, self._n)
        else:
            hit = not self._slow and _fetch(runtime._handle, _AT_ONCE, self._wire, self._n,
                                            self._at) == 0
        if not hit:
            runtime._fetch_slowly(self._items, self._wire, self, {})


def copy_at_once(runtime: "Runtime", requests: List[bytes], sources: List[int]) -> bool:
    """Fetch, copy from these addresses, release. False: not all is resident, or the fetch would
    have to wait."""
    n = len(requests)
    views = _array_type(n)()
    hit, status = False, 0
    try:
        hit = _fetch(runtime._handle, _AT_ONCE, b"".join(requests), n, views) == 0
        if hit:
            for view, source in zip(views, sources):
                _memmove(view.pointer, source, view.bytes)
    finally:  # nothing before the call: a signal handler may raise
        status = _release(views, n, None, 0)
    if hit and status < 0:
        raise error_of(status)
    return hit


class Fetches:
    """The fetch calls of Runtime."""

    _handle: ctypes.c_void_p
    _operations: "weakref.WeakSet[Operation]"
    _step: Optional[Step]

    def _use(self) -> ctypes.c_void_p:
        raise NotImplementedError

    def fetch(self, tensor: Item, access: Union[Access, str] = _READ, begin: int = 0,
              count: int = 0, *, tier: Union[Tier, str] = _NEAREST, device: int = 0,
              dtype: Any = None, into: Any = None, scope: Union[Scope, str] = _WHOLE,
              **options: Any) -> View:
        """Pin a tensor, or elements [begin, begin + count) of it, at a tier.

        into: copy to this array or buffer instead, and pin nothing. dtype: a view in another dtype,
        f32, f16 or bf16. scope: "shard" for this rank's part; otherwise all ranks of a group fetch
        it. Blocks until the bytes are there. options: those of fetch_many().
        """
        kind: Any = access if type(access) is not str else number(Access, access)
        if begin or count or tier or device or scope or dtype is not None or into is not None:
            tensor = tensor.tensor.request(kind, begin, count, tier=tier, device=device,
                                           dtype=dtype, into=into, scope=scope)
        # View(self, tensor), without the call: every hit runs this.
        view: View = _new(View)
        view._item = tensor
        view.tensor = tensor if type(tensor) is Tensor else tensor.tensor
        view._runtime = self  # type: ignore[assignment]
        view._views = struct = _new_view()
        view._at = at = _byref(struct)
        view._ended = False
        view._step = self._step
        view._export = view._stream = None
        try:
            if not options and not tensor._waits:
                status = _fetch(self._handle, _AT_ONCE, tensor._requests[kind], 1, at)
                if status == 0:
                    return view
                if status != _abi.STW_ERROR_BUSY:
                    raise self._refused(status, [tensor])
            self._fetch_slowly([tensor], tensor._requests[kind], view, options)
            return view
        except BaseException:  # a signal handler's too, whose traceback may keep the view
            view.__del__()
            raise

    def fetch_many(self, items: Sequence[Item], access: Union[Access, str] = _READ,
                   **options: Any) -> Views:
        """Pin tensors, or requests made by Tensor.request(), together: all or nothing. The copies
        to the requests' `into` show the same moment.

        options: phase, timeout, priority, stream; at_once: BusyError instead of any wait;
        wait_room: wait until other threads release views; hand_over: another thread will release;
        absent: this rank needs no bytes, and only sends its shard; speculated: what was updated
        speculatively is read before its verdict.
        """
        kind: Any = access if type(access) is not str else number(Access, access)
        wanted = list(items)
        views = Views(cast("Runtime", self), wanted)
        if not wanted:
            self._use()
            return views
        requests = b"".join([item._requests[kind] for item in wanted])
        slow = bool(options) or True in map(_waits, wanted)
        try:
            if slow or not self._hits(requests, views._views, len(wanted)):
                self._fetch_slowly(wanted, requests, views, options)
            return views
        except BaseException:
            views.__del__()
            raise

    def prepared(self, items: Sequence[Item], access: Access = _READ) -> Prepared:
        """A fetch that will be repeated."""
        return Prepared(cast("Runtime", self), items, access)

    def _hits(self, requests: bytes, views: Any, n: int, at_once: Any = _AT_ONCE,
              stream: Any = None) -> bool:
        """Pin all on the hit path, in parts; returns whether all were resident."""
        size = len(requests) // n
        # Writes are not split: a part could not be released unchanged.
        if n > _HITS_MAX and any(requests[_ACCESS_AT::size]):
            return False
        each = ctypes.sizeof(_new_view)
        handle = self._handle
        for at in range(0, n, _HITS_MAX):
            part = min(_HITS_MAX, n - at)
            if _fetch(handle, at_once, requests[at * size:(at + part) * size], part,
                      ctypes.byref(views, at * each)) != 0:
                if at:
                    lib.stw_release(views, at, stream, 0)
                return False
        return True

    def _fetch_slowly(self, items: Sequence[Item], requests: bytes, views: Any,
                      options: Mapping[str, Any]) -> None:
        settings = self._fetch_options(views, **options)
        status = _waiting.call(self, _fetch, self._handle, ctypes.byref(settings), requests,
                               len(items), views._at)
        if status < 0:
            raise self._refused(status, items)

    def _refused(self, status: int, items: Sequence[Item]) -> Error:
        error = error_of(status)
        self._use()
        if status == _abi.STW_ERROR_INVALID:
            for item in items:
                item.tensor._use()  # raises if it was destroyed
        return error

    def _fetch_options(self, views: Any, *, phase: "Optional[Phase]" = None,
                       timeout: Optional[float] = None, priority: int = 0,
                       stream: Optional[int] = None, at_once: bool = False,
                       wait_room: bool = False,
                       hand_over: bool = False, absent: bool = False,
                       speculated: bool = False) -> _abi.stw_fetch_options:
        if phase is not None:
            views._step = phase._open
        if stream and not isinstance(views, Operation):
            views._stream = ctypes.c_void_p(stream)
        return _abi.stw_fetch_options.initial(
            flags=(_abi.STW_FETCH_TRY * at_once | _abi.STW_FETCH_WAIT_ROOM * wait_room
                   | _abi.STW_FETCH_HAND_OVER * hand_over | _abi.STW_FETCH_ABSENT * absent
                   | _abi.STW_FETCH_SPECULATED * speculated),
            stream=stream, phase=None if phase is None else phase._use(),
            timeout_ns=nanoseconds(timeout), priority=priority,
        )

    def fetch_async(self, tensor: Item, access: Union[Access, str] = _READ, *, dtype: Any = None,
                    into: Any = None, scope: Union[Scope, str] = _WHOLE,
                    **options: Any) -> Operation:
        """Like fetch(), without blocking: returns an Operation, whose collect() returns the View.

        The memory of `into` is in use until the operation is over or freed.
        """
        if scope or dtype is not None or into is not None:
            tensor = tensor.tensor.request(access, dtype=dtype, into=into, scope=scope)
        return self._start([tensor], access, options, True)

    def fetch_many_async(self, items: Sequence[Item], access: Union[Access, str] = _READ,
                         **options: Any) -> Operation:
        """Like fetch_many(), without blocking: returns an Operation; collect() returns the
        Views."""
        return self._start(list(items), access, options, False)

    def _start(self, items: List[Item], access: Union[Access, str], options: Mapping[str, Any],
               single: bool) -> Operation:
        operation = Operation(cast("Runtime", self), items, single)
        settings = self._fetch_options(operation, **options)
        requests = self._requests(items, access)
        check(lib.stw_fetch_async(self._use(), settings, requests, len(items), operation._handle))
        self._operations.add(operation)
        return operation

    def _requests(self, items: Sequence[Item], access: Union[Access, str]) -> Any:
        kind = number(Access, access)
        text = b"".join([item._requests[kind] for item in items])
        return (_abi.stw_fetch_request * max(len(items), 1)).from_buffer_copy(
            text or bytes(_abi.stw_fetch_request()))

    def fits(self, items: Sequence[Item], access: Union[Access, str] = _READ) -> bool:
        """Whether these could be fetched together if nothing else were pinned. Never blocks."""
        status = lib.stw_fetch_fits(self._use(), self._requests(items, access), len(items))
        return status != _abi.STW_ERROR_BUDGET and check(status) >= 0

    def prefetch(self, items: Sequence[Item], access: Union[Access, str] = _READ) -> None:
        """A hint that these fetches will follow. Never blocks, never fails for lack of room."""
        if items:
            check(lib.stw_prefetch(self._use(), self._requests(items, access), len(items)))
