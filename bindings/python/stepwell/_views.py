# SPDX-License-Identifier: Apache-2.0
"""Views: pins, and the memory they refer to. An array made from a view is a pin too: the view is
released when it has ended and the last such array has been freed. A DLPack capsule has a separate
pin, which ends in C: an additional one for a reader, the view's own, which moves there, for a
writer.
"""
from __future__ import annotations

import ctypes
import weakref
from typing import (
    TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union, overload,
)

from . import _abi, _dlpack
from ._dtypes import NUMPY_DTYPES, Dtype, numpy
from ._enums import Access, Tier
from ._library import lib, unchecked
from .errors import InvalidError, check, error_of, raised

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._tensor import Request, Tensor

_release = unchecked("stw_release")
_share = unchecked("stw_view_share")
_new_view, _byref = _abi.stw_view, ctypes.byref
_EMPTY = (ctypes.c_ubyte * 0)
_COPY = 1 << 63  # the cookie of a copy in the caller's memory


class _Export:
    """The common owner of the arrays made from one view; ends with the last of them."""

    __slots__ = ("owner", "number", "__weakref__")

    def __init__(self, owner: "_Pins") -> None:
        self.owner = owner
        self.number = owner._runtime._exported()

    def __del__(self) -> None:
        owner = self.owner
        owner._runtime._unexported(self.number)
        if owner._ended:
            owner._give_back_quietly()


class _Pins:
    """Views of one fetch, released together. cookie: of the first view; 0 when released."""

    __slots__ = ("_runtime", "_views", "_at", "_ended", "_flags", "_stream", "_step", "_export",
                 "__weakref__")
    _n: int  # structs at _at

    def __init__(self, runtime: "Runtime", views: Any, at: Any) -> None:
        self._runtime = runtime
        self._views = views  # the C structs: one, or an array
        self._at = at        # a reference to them, for the release; None: all were exported
        self._ended = False
        self._step = runtime._step
        self._export: Optional["weakref.ref[_Export]"] = None  # alive: arrays exist
        self._stream: Any = None

    def _cookie(self) -> int:
        raise NotImplementedError

    def _name(self) -> str:
        raise NotImplementedError

    # -- the end ------------------------------------------------------------------------------

    @property
    def released(self) -> bool:
        """Whether release() was called, or the step of the view was aborted."""
        return self._ended or (self._step is not None and self._step.aborted)

    @property
    def held(self) -> bool:
        """Whether they are pinned, also if an exception has ended fetch() or release() between
        two lines."""
        return not self._ended and bool(self._cookie())

    def release(self, flags: int = 0) -> None:
        """Release it, once. Deferred while an array made from the view exists. Never blocks.

        Raises ClosedError the second time, and the first background error of the tensors.
        """
        if self._ended:
            raise self._gone()
        self._flags = flags
        if self._export is not None:
            self._ended = True
            if self._export() is None and self._cookie():
                self._check(_release(self._at, self._n, self._stream, flags))
            return
        # A signal handler may raise between these: the view is not ended before its release, and of
        # one that is released the library has taken the cookie.
        status = 0  # None: an empty set, or all its views were exported
        if self._at is not None and self._cookie():
            status = _release(self._at, self._n, self._stream, flags)
        self._ended = True
        if status < 0:
            self._check(status)

    def _check(self, status: int) -> None:
        if status < 0:
            error = error_of(status)
            if self._step is None or not self._step.aborted:
                raise error
            raise raised(_abi.STW_ERROR_CLOSED, f"the view of {self._name()} ended when its step "
                         "was aborted")

    def _gone(self, exported: bool = False) -> Exception:
        why = "ended when its step was aborted"
        if exported or (self._ended and self._at is None and getattr(self, "_items", True)):
            why = "was exported to DLPack, where it ends with what was made from it"
        elif self._ended:
            why = "was released"
        return raised(_abi.STW_ERROR_CLOSED, f"the view of {self._name()} {why}")

    def _give_back_quietly(self) -> None:
        if self._cookie() and self._runtime._may_finalise():
            _release(self._at, self._n, self._stream, self._flags)

    def __del__(self) -> None:
        try:
            if not self._ended:
                self._flags = 0
                self._give_back_quietly()
                self._ended = True
            elif self._export is not None:
                self._give_back_quietly()  # a signal handler has raised in release()
        except (AttributeError, TypeError):
            pass  # partly constructed, or the interpreter is ending

    def _writes(self) -> bool:
        raise NotImplementedError

    def _moved(self) -> None:
        """An export has taken the pin of one of the structs, which has no cookie any more."""
        raise NotImplementedError

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._ended:
            return
        if kind is None:
            self.release()
            return
        try:
            self.release(_abi.STW_RELEASE_ABANDON if self._writes() else 0)
        except Exception:  # the exception being raised is the cause
            self._ended = True

    # -- memory -------------------------------------------------------------------------------

    def _check_open(self, view: _abi.stw_view) -> None:
        if self._ended or not view.cookie or (self._step is not None and self._step.aborted):
            raise self._gone(exported=not self._ended and not view.cookie)

    def _memory(self, view: _abi.stw_view) -> memoryview:
        """The bytes of one of the structs; objects made from it are pins."""
        self._check_open(view)
        if not view.bytes:
            return memoryview(_EMPTY()).cast("B")
        if view.tier == _abi.STW_TIER_DEVICE and not self._runtime._cpu_reaches(view.device):
            raise InvalidError(
                f"the bytes of {self._name()} are in the memory of device {view.device}, which the "
                "CPU cannot read: take torch.from_dlpack(view), or fetch it with tier='host'")
        export = self._export() if self._export is not None else None
        if export is None:
            export = _Export(self)
            self._export = weakref.ref(export)
        block = (ctypes.c_ubyte * view.bytes).from_address(view.pointer)
        block._stepwell_export = export
        memory = memoryview(block).cast("B")
        return memory.toreadonly() if view.access == _abi.STW_READ else memory


class _Window:
    """The attributes of one view, alone or in a set."""

    __slots__ = ()
    tensor: "Tensor"
    _item: "Union[Tensor, Request]"  # as requested; keeps the destination of a copy alive

    def _struct(self) -> _abi.stw_view:
        raise NotImplementedError

    def _owner(self) -> _Pins:
        raise NotImplementedError

    @property
    def access(self) -> Access:
        return Access(self._struct().access)

    @property
    def tier(self) -> Tier:
        return Tier(self._struct().tier)

    @property
    def device(self) -> int:
        return int(self._struct().device)

    @property
    def begin(self) -> int:
        """The first element, in the flattened tensor."""
        return int(self._struct().element_begin)

    @property
    def count(self) -> int:
        """The number of elements."""
        return int(self._struct().element_count)

    @property
    def nbytes(self) -> int:
        return int(self._struct().bytes)

    @property
    def dtype(self) -> Dtype:
        """The dtype of the tensor, or that of the request."""
        return Dtype(self._item._dtype)

    @property
    def address(self) -> int:
        """The address of the bytes, for other libraries; valid as long as the view."""
        view = self._struct()
        self._owner()._check_open(view)
        return int(view.pointer or 0)

    @property
    def bytes(self) -> memoryview:
        """The bytes themselves, flat; read-only for READ. A pin while it, or a slice, exists."""
        return self._owner()._memory(self._struct())

    def numpy(self) -> Any:
        """The bytes themselves as an array: the tensor's shape, or one dimension for a range.

        A pin while it, or an array made from it without a copy, exists. bf16 is uint16 and f8 is
        uint8, the bits; .view() with the dtype of another package (ml_dtypes) gives the numbers.
        """
        if numpy is None:
            raise ImportError("View.numpy() needs NumPy (pip install numpy); View.bytes does not")
        view = self._struct()
        tensor = self.tensor
        dtype = NUMPY_DTYPES[self._item._dtype]
        memory = self._owner()._memory(view)
        shape = tensor._shape if view.element_count == tensor._elements else (view.element_count,)
        if not view.bytes:
            return numpy.empty(shape, dtype)
        return numpy.frombuffer(memory, dtype).reshape(shape)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack_device__(self) -> _dlpack.Device:
        view = self._struct()
        return self._owner()._runtime._dlpack_device(view.tier, view.device)

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: _dlpack.Version = None,
                   dl_device: Optional[_dlpack.Device] = None,
                   copy: Optional[bool] = None) -> Any:
        """For torch.from_dlpack(view), numpy.from_dlpack(view) and similar functions.

        The resulting array is a pin until it ends, on any thread, also after the runtime. A reader
        may be exported repeatedly. A writer, and a view in another dtype than the tensor's, moves
        into its only export: the view has ended then, and its writes take effect, whatever is
        raised. BufferError if the consumer's form of DLPack cannot express it, as the legacy form
        has no read-only memory, and for a copy `into` memory of the program, which can be exported
        itself. On a GPU the consumer passes its stream, which waits until the bytes have arrived.
        """
        owner, view = self._owner(), self._struct()
        owner._check_open(view)
        device = self.__dlpack_device__()
        _dlpack.check_device(dl_device, device)
        if copy and device != _dlpack.CPU:
            raise BufferError("no copy is made in the memory of a GPU; export without copy, and "
                              "copy what the consumer made of it")
        if copy:
            return _dlpack.copied(self.numpy, self._item._dtype, max_version)
        versioned = _dlpack.is_versioned(max_version, self._item._dtype)
        if view.access != _abi.STW_READ or self._item._waits:
            return self._moved_to_dlpack(versioned, stream, device)
        at = self._consumer_stream(stream, device)
        more = _new_view()
        try:
            status = _share(_byref(view), _byref(more))
            if status:
                raise error_of(status)
            return _dlpack.view_capsule(versioned, more, at)
        except BaseException:
            if more.cookie:
                _release(_byref(more), 1, None, 0)
            raise

    def to_dlpack(self, stream: Optional[int] = None) -> Any:
        """A capsule of DLPack 1.1 into which the view moves, also a reader: the view has ended
        then, as if released, and its pin belongs to the capsule and the consumer's array. For
        torch.utils.dlpack.from_dlpack(), which takes the pin over at half the cost of
        torch.from_dlpack(view). stream: the consumer's, as for __dlpack__().
        """
        self._owner()._check_open(self._struct())
        return self._moved_to_dlpack(True, stream, self.__dlpack_device__())

    def _moved_to_dlpack(self, versioned: bool, stream: Optional[int],
                         device: _dlpack.Device) -> Any:
        owner, view = self._owner(), self._struct()
        at = self._consumer_stream(stream, device)
        if owner._export is not None and owner._export() is not None:
            raise BufferError(f"the view of {owner._name()} has one export, and arrays made from "
                              "it live; delete them before")
        made = _dlpack.view_capsule(versioned, view, at)
        owner._moved()
        return made

    def _consumer_stream(self, stream: Optional[int], device: _dlpack.Device) -> Any:
        owner = self._owner()
        if self._struct().cookie == _COPY:
            raise BufferError(f"the view of {owner._name()} shows memory of your own; export that")
        own = owner._stream.value if owner._stream is not None else None
        at = _dlpack.consumer_stream(stream, device, own)
        return None if at is None else ctypes.c_void_p(at)

    def share(self) -> "View":
        """An additional pin on the same bytes, for a second consumer. READ views only, no
        copies."""
        owner = self._owner()
        owner._check_open(self._struct())
        more = View(owner._runtime, self._item)
        more._step, more._stream = owner._step, owner._stream
        check(lib.stw_view_share(self._struct(), more._views))
        return more


class View(_Pins, _Window):
    """A pin on a range of a tensor: while it is held the bytes are neither moved nor evicted.

    A context manager; an exception in the block abandons its writes.
    """

    __slots__ = ("tensor", "_item")
    _n = 1

    def __init__(self, runtime: "Runtime", item: "Union[Tensor, Request]") -> None:
        views = _new_view()
        self._item = item
        self.tensor = item.tensor
        super().__init__(runtime, views, ctypes.byref(views))

    def _cookie(self) -> int:
        return int(self._views.cookie)

    def _name(self) -> str:
        return self.tensor._label()

    def _writes(self) -> bool:
        return bool(self._views.access != _abi.STW_READ)

    def _moved(self) -> None:
        self._ended = True
        self._at = None

    def _struct(self) -> _abi.stw_view:
        return self._views  # type: ignore[no-any-return]

    def _owner(self) -> _Pins:
        return self

    def __enter__(self) -> "View":
        return self

    def __repr__(self) -> str:
        state = ", released" if self.released else ""
        what = f"{self._name()}, {self.access.name}, {self.count} elements"
        return f"<stepwell.View of {what}{state}>"


class Member(_Window):
    """One view of a set, released with the set."""

    __slots__ = ("tensor", "_item", "_set", "_view")

    def __init__(self, views: "Views", index: int) -> None:
        self._item = views._items[index]
        self.tensor = self._item.tensor
        self._set = views
        self._view = views._views[index]

    def _struct(self) -> _abi.stw_view:
        return self._view  # type: ignore[no-any-return]

    def _owner(self) -> _Pins:
        return self._set


class Views(_Pins, Sequence[Member]):
    """The views of one fetch, in the order of the requests, released together.

    A context manager and a sequence, whose members are created when they are accessed.
    """

    __slots__ = ("_items", "_n")

    def __init__(self, runtime: "Runtime", items: List[Union["Tensor", "Request"]]) -> None:
        n = len(items)
        views = _array_type(n)()
        self._items = items
        self._n = n
        super().__init__(runtime, views, views if n else None)

    def _cookie(self) -> int:
        return int(self._at[0].cookie) if self._at is not None else 0

    def _name(self) -> str:
        if not self._items:
            return "no tensor"
        first = self._items[0].tensor._label()
        more = len(self._items) - 1
        return first if more == 0 else f"{first} and {more} more"

    def _writes(self) -> bool:
        return any(view.access != _abi.STW_READ for view in self._views)

    def _moved(self) -> None:
        left = [view for view in self._views if view.cookie]
        self._n = len(left)
        self._at = _array_type(len(left))(*left) if left else None

    @overload
    def __getitem__(self, index: int) -> Member: ...

    @overload
    def __getitem__(self, index: slice) -> List[Member]: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[Member, List[Member]]:
        if isinstance(index, slice):
            return [Member(self, at) for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"views[{index}] of {len(self)}")
        return Member(self, at)

    def __iter__(self) -> Iterator[Member]:
        return (Member(self, index) for index in range(len(self)))

    def __len__(self) -> int:
        return len(self._items)

    def __enter__(self) -> "Views":
        return self

    def arrays(self) -> Tuple[Any, ...]:
        """numpy() of each view."""
        return tuple(member.numpy() for member in self)


_array_types: Dict[int, Any] = {}


def _array_type(n: int) -> Any:
    try:
        return _array_types[n]
    except KeyError:
        if len(_array_types) > 1024:
            _array_types.clear()
        made = _array_types[n] = _new_view * n
        return made
