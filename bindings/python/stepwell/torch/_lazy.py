# SPDX-License-Identifier: Apache-2.0
"""Lazy tensors: objects that stand for a tensor in tiers, as `.grad` and optimizer.state do.

Each operation on one fetches its bytes, and a view of one is lazy too: it has the same source with
another geometry, so that a write through any view reaches the tensor. What torch allows on a tensor
and cannot be done on bytes in tiers (another memory, another shape in place) is refused by name.
"""
from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .._enums import Access
from .._tensor import Tensor
from ..errors import BudgetError

if TYPE_CHECKING:
    from ._offload import Offload

READ, READ_WRITE = Access.READ, Access.READ_WRITE

_refuse_address = torch._C._set_throw_on_mutable_data_ptr  # type: ignore[attr-defined]
_numbers = itertools.count()
_detach_in_place = torch.ops.aten.detach_.default
# Operations that write all elements of their first argument and read none of them.
_OVERWRITES = {
    torch.ops.aten.zero_.default, torch.ops.aten.copy_.default, torch.ops.aten.fill_.Scalar,
    torch.ops.aten.fill_.Tensor, torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default,
}

# Functions that call other operations of LAPACK, of other bits, for subclasses of Tensor.
PLAINLY = {
    torch.linalg.svdvals, torch.linalg.eigvals, torch.linalg.eigvalsh, torch.linalg.matrix_norm,
    torch.linalg.norm, torch.linalg.cond, torch.linalg.matrix_rank, torch.norm, torch.nuclear_norm,
    torch.Tensor.norm,
}
_Off = torch._C.DisableTorchFunctionSubclass

collectives: List[Any] = []  # what _collectives.py has for operations of torch.distributed
absent: List[Any] = []  # the class of unpinned parameters, whose function fetches them
handlers: Dict[Any, Any] = {}  # operations that another file has a function for


class Source:
    """The bytes behind lazy tensors, of a tensor in tiers or of memory that took its place."""

    __slots__ = ("record", "offload", "size", "stride", "dtype", "plain", "_copy", "__weakref__")
    of_all = True  # every rank has one, so that all can collect its bytes at close()

    def __init__(self, record: Any, size: Tuple[int, ...], stride: Tuple[int, ...],
                 dtype: torch.dtype) -> None:
        self.record = record  # of the parameter, with which an optimizer's loop reaches the bytes
        self.offload: "Offload" = record.offload
        self.size = size
        self.stride = stride
        self.dtype = dtype
        self.plain: Optional[torch.Tensor] = None  # instead of the tiers, after close()
        self._copy: Optional[StorageWeakRef] = None
        self.offload.sources[next(_numbers)] = self

    @property
    def device(self) -> torch.device:
        """That of the lazy tensors."""
        return self.offload.place.device

    @property
    def tensor(self) -> Optional[Tensor]:
        """Where the bytes are, if they are in one tensor of the tiers."""
        raise NotImplementedError

    def label(self) -> str:
        raise NotImplementedError

    def memory(self, write: bool) -> torch.Tensor:
        """A tensor over the bytes, from the beginning of its storage, that holds their pin."""
        raise NotImplementedError

    def is_gone(self) -> bool:
        """Whether there are no values: an operation that writes all of them may give new ones."""
        return False

    def renew(self, values: torch.Tensor) -> None:
        """Take new values, in a tensor of its own like memory()."""
        raise NotImplementedError

    @property
    def copied(self) -> bool:
        """Whether memory() returns a copy, since the bytes are never pinned as a whole."""
        return bool(self.record.large)

    def used(self, memory: torch.Tensor, result: Any, wrote: bool) -> None:
        """An operation has used what memory() returned."""

    def by_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation that needs no more than a part at a time; None: it does."""

    def fetch(self, tensor: Tensor, write: bool) -> torch.Tensor:
        """Fetch a tensor in tiers, for memory()."""
        access = READ_WRITE if write else READ
        shown = self.offload.shown_memory(tensor, self.dtype)
        if shown is not None:
            return shown
        if self.offload.window is not None and not torch.is_grad_enabled():
            return self.offload.window.fetch(self.record, tensor, access)
        return self.offload.place.tensor_of(self.offload.runtime.fetch(tensor, access))

    def settle(self) -> None:
        """Take the bytes into plain memory, since the tiers are closed."""
        raise NotImplementedError

    def lazy(self) -> "Lazy":
        return Lazy(self, self.size, self.stride, 0, self.dtype)

    def copy_for_all(self) -> torch.Tensor:
        """A copy of its values, in the memory of the last one if somebody has that, unchanged: as
        the storage of several views does, it comes into a file once."""
        made = self.lazy().clone()
        known = None if self._copy is None else memory_of(self._copy, self.dtype)
        if known is not None and torch.equal(_bytes(known), _bytes(made)):
            return _shaped(known, made)
        self._copy = StorageWeakRef(made.untyped_storage())
        return made


class Lazy(torch.Tensor):
    """A tensor in tiers, or a view of one."""

    _source: Source

    @staticmethod
    def __new__(cls, source: Source, size: Any, stride: Any, offset: int,
                dtype: torch.dtype) -> "Lazy":
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, size, strides=stride, storage_offset=offset, dtype=dtype, device=source.device)
        _refuse_address(made)  # to code in C that does not ask for it by the methods below
        made._source = source
        return made  # type: ignore[no-any-return]

    def __init__(self, *_: Any) -> None:
        pass

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PLAINLY and kwargs.get("out") is None:
            args = [each.in_memory() if type(each) is Lazy else each for each in args]
            kwargs = {name: each.in_memory() if type(each) is Lazy else each
                      for name, each in kwargs.items()}
        if absent[0] in types:
            return absent[0].__torch_function__(func, types, args, kwargs)
        try:
            with _Off():
                return _called(func, args, kwargs)
        finally:
            args = kwargs = None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        form = _forms.get(func)
        if form is None:
            form = _forms[func] = _form_of(func)
        if form.collective:
            return collectives[0](func, args, kwargs)
        if form.handler is not None:
            return form.handler(func, args, kwargs)
        if form.view and type(args[0]) is Lazy:
            return _viewed(func, args, kwargs)
        if form.reshapes:
            if func is _detach_in_place:
                return args[0]
            lazies: Dict[Source, bool] = {}
            _collect(args, False, lazies)
            raise NotImplementedError(
                f"{func.__name__} would give {next(iter(lazies)).label()} another memory or shape "
                "in place, and its bytes are in tiers: use the form that returns a tensor, or "
                "clone() first")
        if form.lists and args and isinstance(args[0], (list, tuple)):
            return _one_by_one(func, args, kwargs, form)
        return _run(func, args, kwargs, form)

    # -- what torch's own methods read from the memory -----------------------------------------

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, data: torch.Tensor) -> None:
        if isinstance(data, Lazy) and data.is_same_as(self):  # as Module.to() does to move nothing
            return
        if data.size() != self.size() or data.dtype != self.dtype:
            raise RuntimeError(
                f"data of {tuple(data.size())}, {data.dtype} for {self._source.label()} of "
                f"{tuple(self.size())}, {self.dtype}: its bytes are in tiers, which keep their "
                "shape and dtype")
        with torch.no_grad():
            self.copy_(data)

    def in_memory(self, write: bool = False) -> torch.Tensor:
        """A plain tensor over the bytes, which are pinned while it lives."""
        return _shaped(self._source.memory(write), self)

    def _shown(self) -> torch.Tensor:
        """The same, for the program to keep."""
        source = self._source
        memory = source.memory(True)
        if source.tensor is not None and not source.copied and memory is not source.plain:
            source.offload.shown[source.tensor] = StorageWeakRef(memory.untyped_storage()), source
        return _shaped(memory, self)

    def numpy(self, *, force: bool = False) -> Any:
        if not self._source.copied:
            return self._shown().numpy(force=force)
        array = self.clone().numpy(force=force)
        array.flags.writeable = False  # it would not reach the tensor
        return array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        array = self.numpy() if not copy else self.clone().numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def _by_element(self, function: Any, *others: torch.Tensor) -> "Lazy":
        values = self.clone()
        function(values, *(each.clone() if isinstance(each, Lazy) else each for each in others))
        return self.copy_(values)  # type: ignore[return-value]

    def apply_(self, function: Any) -> Any:  # type: ignore[override]
        return self._by_element(lambda tensor: tensor.apply_(function))

    def map_(self, other: Any, function: Any) -> Any:  # type: ignore[override]
        return self._by_element(lambda tensor, other: tensor.map_(other, function), other)

    def map2_(self, x: Any, y: Any, function: Any) -> Any:  # type: ignore[override]
        return self._by_element(lambda tensor, x, y: tensor.map2_(x, y, function), x, y)

    def is_same_as(self, other: "Lazy") -> bool:
        return self._source is other._source and _geometry(self) == _geometry(other)

    def __copy__(self) -> torch.Tensor:
        return self.detach()

    def tolist(self) -> Any:
        return self.clone().tolist()

    def data_ptr(self) -> int:
        memory = self._shown()
        self._source.offload.hold(memory)
        return memory.data_ptr()

    def untyped_storage(self) -> Any:
        memory = self._shown()
        self._source.offload.hold(memory)
        return memory.untyped_storage()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._shown().__dlpack__(**kwargs)

    def share_memory_(self) -> Any:
        raise NotImplementedError(f"{self._source.label()} is in tiers, whose memory is not shared "
                                  "with other processes: share a clone() of it")

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return self.clone().__repr__(**kwargs)

    def __format__(self, spec: Any) -> str:
        return self.clone().__format__(spec)

    def __deepcopy__(self, memo: Dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            source = self._source  # of which there is one copy, as of a storage
            if id(source) not in memo:
                memo[id(source)] = source.lazy().clone()
            memo[id(self)] = self.of_copy(memo[id(source)])
        return memo[id(self)]  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.of_copy(self._source.copy_for_all()).__reduce_ex__(protocol)

    def of_copy(self, copy: torch.Tensor) -> torch.Tensor:
        """What this is of its source, of a copy of that."""
        if _geometry(self) == _geometry(copy):
            return copy
        empty: Any = torch.empty(0, dtype=self.dtype, device=copy.device)
        return empty.set_(  # type: ignore[no-any-return]
            copy.untyped_storage(), self.storage_offset(), self.size(), self.stride())


class _Form(NamedTuple):
    """What an operation does with its arguments."""

    view: bool
    reshapes: bool
    lists: bool
    collective: bool
    handler: Any
    writes: Set[Any]  # positions and names of the arguments that it writes


_forms: Dict[Any, _Form] = {}


def _form_of(func: Any) -> _Form:
    writes: Set[Any] = set()
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.update((at, argument.name))
    return _Form(func.is_view, torch.Tag.inplace_view in func.tags,
                 "_foreach_" in func._schema.name, "c10d" in func._schema.name,
                 handlers.get(func), writes)


def _viewed(func: Any, args: Any, kwargs: Any) -> Any:
    lazy = args[0]
    source = lazy._source
    elements = _elements(source) * source.dtype.itemsize // lazy.dtype.itemsize
    like = torch.empty(max(1, elements), dtype=lazy.dtype, device="meta").as_strided(
        lazy.size(), lazy.stride(), lazy.storage_offset())
    result = func(like, *args[1:], **kwargs)
    if isinstance(result, (list, tuple)):
        return type(result)(_as_lazy(source, each) for each in result)
    return _as_lazy(source, result)


def _as_lazy(source: Source, like: torch.Tensor) -> Lazy:
    if like.is_conj() or like.is_neg():
        raise NotImplementedError(
            f"a conjugate or negative of {source.label()} that is a view of it: its bytes are in "
            "tiers, so take resolve_conj() of a clone()")
    return Lazy(source, like.size(), like.stride(), like.storage_offset(), like.dtype)


def _shaped(memory: torch.Tensor, lazy: torch.Tensor) -> torch.Tensor:
    if memory.dtype != lazy.dtype:
        memory = memory.as_strided((memory.untyped_storage().nbytes() // memory.element_size(),),
                                   (1,), 0).view(lazy.dtype)
    return memory.as_strided(lazy.size(), lazy.stride(), lazy.storage_offset())


def memory_of(storage: StorageWeakRef, dtype: torch.dtype) -> Optional[torch.Tensor]:
    """All elements of a storage; None: it has ended."""
    found = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)  # type: ignore[attr-defined]
    if found is None:
        return None
    empty: Any = torch.empty(0, dtype=dtype, device=found.device)
    return empty.set_(  # type: ignore[no-any-return]
        found, 0, (found.nbytes() // dtype.itemsize,))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    empty: Any = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    storage = tensor.untyped_storage()
    return empty.set_(storage, 0, (storage.nbytes(),))  # type: ignore[no-any-return]


def _collect(value: Any, write: bool, found: Dict[Source, bool]) -> None:
    if type(value) is Lazy:
        found[value._source] = found.get(value._source, False) or write
    elif isinstance(value, (list, tuple)):
        for each in value:
            _collect(each, write, found)


def _replaced(value: Any, memories: Dict[Source, torch.Tensor],
              shown: List[Tuple[torch.Tensor, Lazy]]) -> Any:
    if type(value) is Lazy:
        tensor = _shaped(memories[value._source], value)
        shown.append((tensor, value))
        return tensor
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(each, memories, shown) for each in value)
    return value


def _run(func: Any, args: Any, kwargs: Any, form: _Form) -> Any:
    """Call an operation with each lazy tensor replaced by its fetched memory."""
    wanted: Dict[Source, bool] = {}
    for at, value in enumerate(args):
        _collect(value, at in form.writes, wanted)
    for name, value in kwargs.items():
        _collect(value, name in form.writes, wanted)
    first = args[0] if args else None
    renewed = None  # an operation that fails leaves it without values
    if func in _OVERWRITES and type(first) is Lazy and first._source.is_gone() and _is_all(first):
        rest: Dict[Source, bool] = {}
        _collect(args[1:], False, rest)
        renewed = None if first._source in rest else first._source
    if len(wanted) == 1 and renewed is None:
        result = _called(next(iter(wanted)).by_parts, (func, args, kwargs), {})
        if result is not None:
            return result
    memories = {source: source.memory(write) for source, write in wanted.items()
                if source is not renewed}
    if renewed is not None:
        memories[renewed] = torch.empty_strided(renewed.size, renewed.stride, dtype=renewed.dtype,
                                                device=renewed.device)
    shown: List[Tuple[torch.Tensor, Lazy]] = []
    plain = [_replaced(value, memories, shown) for value in args]
    named = {name: _replaced(value, memories, shown) for name, value in kwargs.items()}
    try:
        result = _called(func, plain, named)
        for source, write in wanted.items():
            if source is renewed:
                source.renew(memories[source])
            else:
                source.used(memories[source], result, write)
        return _returned(result, shown)
    finally:
        memories.clear()
        shown.clear()
        del plain, named


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of pinned memory. The program may keep its exception, and frames with that
    memory would keep the pins."""
    try:
        return func(*args, **kwargs)
    except Exception as error:
        raise error.with_traceback(None)
    finally:
        del args, kwargs


def run_one(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation, without the function that another file has for it."""
    return _run(func, args, kwargs, _forms[func])


def _geometry(lazy: torch.Tensor) -> Any:
    return lazy.size(), lazy.stride(), lazy.storage_offset(), lazy.dtype


def _elements(source: Source) -> int:
    elements = 1
    for each in source.size:
        elements *= each
    return elements


def _is_all(lazy: Lazy) -> bool:
    """Whether a view has each byte of its source, once."""
    like: Any = torch.empty_strided(lazy.size(), lazy.stride(), device="meta")
    dense = not torch._debug_has_internal_overlap(like)  # type: ignore[attr-defined]
    return (dense and not lazy.storage_offset() and lazy.numel() * lazy.dtype.itemsize
            == _elements(lazy._source) * lazy._source.dtype.itemsize)


def _returned(result: Any, shown: List[Tuple[torch.Tensor, Lazy]]) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(_returned(each, shown) for each in result)
    for tensor, lazy in shown:
        if result is tensor:
            if tensor.size() != lazy.size():
                raise RuntimeError(
                    f"an output of {tuple(tensor.size())} was asked for in "
                    f"{lazy._source.label()} of {tuple(lazy.size())}: tiers keep its shape")
            return lazy
    return result


def _one_by_one(func: Any, args: Any, kwargs: Any, form: _Form) -> Any:
    """An operation over lists, split by index so that one element at a time is fetched."""
    n = len(args[0])
    results: List[Any] = []
    names = [each.name for each in func._schema.arguments]
    for at in range(n):
        part = [[value[at]] if isinstance(value, (list, tuple)) and len(value) == n
                else value[at:at + 1] if name == "scalars" and isinstance(value, torch.Tensor)
                else value for name, value in zip(names, args)]
        named = {name: [value[at]] if isinstance(value, (list, tuple)) and len(value) == n
                 else value for name, value in kwargs.items()}
        result = _run(func, part, named, form)
        results += result if isinstance(result, (list, tuple)) else []
    return results or None


class Window:
    """What an optimizer's own loop has fetched of the parameter that it is at.

    The bytes stay pinned while the loop uses the same parameter, its gradient and its states, and
    are released when it reaches another one, so that one parameter at a time is pinned.
    """

    def __init__(self, offload: "Offload") -> None:
        self._offload = offload
        self._owner: Any = None
        self._held: Dict[Tensor, Tuple[torch.Tensor, Access]] = {}

    def at(self, owner: Any) -> None:
        if owner is not self._owner:
            self.end()
            self._owner = owner

    def end(self) -> None:
        self._held.clear()
        if self._owner is not None:
            self._offload.accesses.end_touched([self._owner])
            self._owner = None

    def forget(self, tensor: Tensor) -> None:
        """It is dropped by the loop."""
        self._held.pop(tensor, None)

    def holds(self, tensor: Tensor) -> bool:
        return not torch.is_grad_enabled() and tensor in self._held

    def fetch(self, owner: Any, tensor: Tensor, access: Access) -> torch.Tensor:
        self.at(owner)
        held = self._held.get(tensor)
        if held is not None:
            if access == READ or held[1] != READ:
                return held[0]
            del self._held[tensor], held
        runtime, tensor_of = self._offload.runtime, self._offload.place.tensor_of
        try:
            memory = tensor_of(runtime.fetch(tensor, access))
        except BudgetError:
            self.end()
            memory = tensor_of(runtime.fetch(tensor, access))
            self._owner = owner
        self._held[tensor] = memory, access
        return memory


def alone(holder: Any, key: Any) -> bool:
    """Whether nothing but the holder refers to the tensor `holder[key]` or to its memory."""
    value = dict.__getitem__(holder, key)
    if not value.untyped_storage().resizable():  # NumPy's, for one
        return False
    count = torch._C._storage_Use_Count  # type: ignore[attr-defined]
    return (sys.getrefcount(value) <= _BASE
            and count(value.untyped_storage()._cdata) <= 2)


_BASE = 1 << 30
_probe = {"": torch.zeros(1, device="cpu")}


def _measure() -> int:
    """The references that a tensor has in alone(), while only the holder has it."""
    least = 1
    global _BASE
    while True:
        _BASE = least
        if alone(_probe, ""):
            return least
        least += 1


_BASE = _measure()
