# SPDX-License-Identifier: Apache-2.0
"""What autocast's cache has of parameters in tiers.

autocast converts a weight once in its block and keeps the copy until the block ends, beside the
budget: half a model in the course of its forward pass. The uses of a copy have one node in the
graph, whose gradient is a sum in the copy's dtype, so the copies must stay the same objects. Only
their memory is given back while the parameter is not pinned: nothing uses it then.

A copy that is older than a change of its parameter keeps its memory, since it cannot be made again.
"""
from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Set

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.graph import saved_tensors_hooks

from ._place import HOST
from ._records import Record, users_of

if TYPE_CHECKING:
    from ._offload import Offload

_LEAST = 64 << 10  # bytes of a copy that is worth it
_PRODUCTS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
_is_enabled = torch.is_autocast_enabled
_transforms = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=None)
def _sentinel(device: torch.device) -> torch.nn.Parameter:
    """A parameter whose copy exists as long as the cache's contents."""
    return torch.nn.Parameter(torch.zeros(1, 1, device=device))


_sentinel(HOST.device)  # now, and not in a block of inference_mode()


class _Cast:
    __slots__ = ("copy", "nbytes", "made", "whole")

    def __init__(self, record: Record, copy: torch.Tensor) -> None:
        self.copy = weakref.ref(copy)
        self.nbytes = copy.nbytes
        self.made = _changes(record)  # of the parameter, since when it is the same
        self.whole = True             # it has memory and contents; noted before they go


def _changes(record: Record) -> Any:
    return record.changes, record.alias._version


class Casts:
    """The copies of one model's parameters. Called while the parameters are pinned."""

    def __init__(self, offload: "Offload") -> None:
        self._offload = offload
        self.found: Dict[Record, _Cast] = {}
        self._sentinel = _sentinel(offload.place.device)
        self._begun: Any = lambda: None       # refers to the sentinel's copy
        self._products: Optional[Set[int]] = None  # weights of modules that cast them as a whole
        self._at_begin: Dict[Record, Any] = {}  # what the parameters were changed by then
        self.saved: Dict[Record, Any] = {}  # sets of what nodes have instead of copies

    def begin(self) -> None:
        """An outermost call or access with autocast: it may be the first of a block."""
        if self._begun() is not None or _transforms() is not None:
            return
        copy = _in_cache(self._sentinel,
                         torch.get_autocast_dtype(self._offload.place.device.type))
        if copy is not None:
            self._begun = weakref.ref(copy)
            self._at_begin = {record: _changes(record) for record in self._offload.records}

    def note(self, record: Record, copy: torch.Tensor) -> bool:
        """A node saves a copy of a parameter, or a view of it. Returns whether it can be made
        again: the parameter has not changed since it was made."""
        known = self.found.get(record)
        if known is not None and known.copy() is copy:
            return bool(known.made == _changes(record))
        if record.seen_outside():
            return False
        if self._begun() is None or self._at_begin.get(record) != _changes(record):
            if not torch.equal(copy.detach(), record.alias.to(copy.dtype)):
                return False
        if copy.nbytes >= _LEAST and (known is None or known.copy() is None):
            self.found[record] = _Cast(record, copy)
        return True

    def keep(self, record: Record) -> None:
        """The program may write to a parameter, which is pinned, without a count from now on. What
        was made of it until now has its values."""
        self._at_begin.pop(record, None)
        if record in self.found:
            self.found[record].made = None
        for saved in self.saved.pop(record, ()):
            saved.keep()

    def are_kept(self) -> bool:
        """Whether there may be copies: some are known, or a block with a cache is open."""
        return bool(self.found) or self._begun() is not None

    def _look(self, records: Iterable[Record]) -> None:
        """Find the copies that no node saves. A look makes one where there is none, so it is for
        weights that autocast converts. Where everything fits they stay as they are: to make them
        again at each call would cost more than the call."""
        if self._products is None:
            self._products = {
                id(module.weight) for module, _ in self._offload.modules
                if isinstance(module, _PRODUCTS) or type(module).__name__ == "Conv1D"}
        dtype = torch.get_autocast_dtype(self._offload.place.device.type)
        for record in records:
            known = self.found.get(record)
            if (record.pins == 1 and record.dtype is torch.float32
                    and record.elements * dtype.itemsize >= _LEAST
                    and record.parameter.requires_grad  # else autocast keeps no copy
                    and id(record.parameter) in self._products
                    and (known is None or known.copy() is None)):
                copy = _in_cache(record.parameter, dtype)
                if copy is not None:
                    self.note(record, copy)

    def empty(self, records: Iterable[Record]) -> None:
        """Give back the memory of copies, as the last pin of their parameters ends."""
        if _transforms() is not None:
            return
        if not torch.is_grad_enabled() and not self._offload.fits and self._begun() is not None:
            self._look(records)
        for record in records:
            cast = self.found.get(record)
            if cast is None or record.pins > 1:
                continue
            copy = cast.copy()
            if copy is None:
                del self.found[record]
            elif (cast.made == _changes(record) and _is_alone(copy)
                    and _in_cache(record.parameter, copy.dtype) is copy):
                cast.whole = False
                copy.untyped_storage().resize_(0)

    def fill(self, records: Iterable[Record]) -> None:
        """Make the contents of emptied copies again, as their parameters are pinned."""
        for record in records:
            cast = self.found.get(record)
            if cast is not None and not cast.whole:
                _fill(record, cast, record.alias)

    def end(self) -> None:
        """The tiers are closed: all copies that are left have contents."""
        for record, cast in self.found.items():
            if not cast.whole:
                _fill(record, cast, self._offload.accesses.copy_of(record))


def _fill(record: Record, cast: _Cast, values: torch.Tensor) -> None:
    copy = cast.copy()
    if copy is None:
        return
    if _changes(record) != cast.made:
        raise RuntimeError(
            f"autocast's cache has a copy of {record.label()} from before its last change, which "
            "plain torch goes on with: end autocast's block before the parameters change, or set "
            "cache_enabled=False")
    with temporarily_clear_interpreter_stack():
        copy.untyped_storage().resize_(cast.nbytes)
        copy.data.copy_(values)  # without counting as a change of the copy
    cast.whole = True


def _is_alone(copy: torch.Tensor) -> bool:
    """Whether one owner in C++ has it, and no object of Python."""
    return (sys.getrefcount(copy) <= _BASE and copy._use_count() == 2  # type: ignore[attr-defined]
            and users_of(copy) == 1)


def _in_cache(parameter: torch.Tensor, dtype: torch.dtype) -> Any:
    """The copy that autocast takes for an operation with the parameter: one without elements. None:
    autocast is off here, or converts to another dtype."""
    kind = parameter.device.type
    if not _is_enabled(kind) or torch.get_autocast_dtype(kind) != dtype:
        return None
    found: List[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> None:
        found.append(tensor._base if tensor._is_view() else tensor)  # type: ignore[arg-type]

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda _: None):  # type: ignore[arg-type]
        none = torch.empty(parameter.shape[-1], 0, dtype=dtype, device=parameter.device,
                           requires_grad=True)
        torch.matmul(parameter, none)
    return next((each for each in found if each.dtype == dtype and each.numel()), None)


def _measure() -> int:
    """The references that _is_alone() sees of an object, called as in Casts.empty(), that a node
    of a graph has and nothing else."""
    global _BASE
    probe = torch.zeros(1, device="cpu", requires_grad=True) * 1
    refer = weakref.ref(probe)
    node = probe * torch.ones(1, device="cpu", requires_grad=True)
    del probe

    def empty() -> bool:
        copy = refer()
        return copy is not None and _is_alone(copy)
    _BASE = 1
    while not empty():
        _BASE += 1
    del node
    return _BASE


_BASE = _measure()
