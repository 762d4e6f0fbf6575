# SPDX-License-Identifier: Apache-2.0
"""Fetches for a device with streams, on the current stream of the thread that calls."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

from . import _abi
from ._enums import Access
from ._fetching import _HITS_MAX, Item, Prepared, _fetch
from ._runtime import Runtime
from ._views import View, Views, _release

_READ = Access.READ


class _OnStream(Dict[int, Tuple[Any, ctypes.c_void_p]]):
    """The options of a fetch at once, and the argument of a release, by the stream."""

    def __missing__(self, stream: int) -> Tuple[Any, ctypes.c_void_p]:
        options = _abi.stw_fetch_options.initial(flags=_abi.STW_FETCH_TRY, stream=stream)
        made = self[stream] = ctypes.byref(options), ctypes.c_void_p(stream)
        return made


_on_stream = _OnStream()


class StreamPrepared(Prepared):
    """A repeated fetch, on the stream that is the current one each time. A hit calls no driver."""

    __slots__ = ()
    _runtime: "StreamRuntime"

    def fetch(self) -> None:
        runtime = self._runtime
        if not self._ended and self.held:
            if self._views[self._n - 1].cookie:
                return
            _release(self._at, self._n, self._stream, 0)  # those of the first parts of a long one
        at_once, self._stream = _on_stream[runtime.stream_now()]
        self._step = runtime._step
        self._ended = False
        if self._slow:
            hit = False
        elif self._n > _HITS_MAX:
            hit = runtime._hits(self._wire, self._views, self._n, at_once, self._stream)
        else:
            hit = _fetch(runtime._handle, at_once, self._wire, self._n, self._at) == 0
        if not hit:
            runtime._fetch_slowly(self._items, self._wire, self, {})


class StreamRuntime(Runtime):
    """A runtime whose fetches that name no stream are on the one that stream_now() returns."""

    def __init__(self, stream_now: Callable[[], int], **options: Any) -> None:
        self.stream_now = stream_now
        super().__init__(**options)

    def fetch(self, tensor: Item, access: Union[Access, str] = _READ, begin: int = 0,
              count: int = 0, **options: Any) -> View:
        options.setdefault("stream", self.stream_now())
        return super().fetch(tensor, access, begin, count, **options)

    def fetch_many(self, items: Sequence[Item], access: Union[Access, str] = _READ,
                   **options: Any) -> Views:
        options.setdefault("stream", self.stream_now())
        return super().fetch_many(items, access, **options)

    def prepared(self, items: Sequence[Item], access: Access = _READ) -> Prepared:
        return StreamPrepared(self, items, access)

    def _fetch_options(self, views: Any, **options: Any) -> _abi.stw_fetch_options:
        options.setdefault("stream", self.stream_now())
        return super()._fetch_options(views, **options)
