# SPDX-License-Identifier: Apache-2.0
"""What autocast's cache has of parameters in tiers.

autocast converts a weight once in its block and keeps the copy until the block ends, beside the
budget: half a model in the course of its forward pass. The uses of a copy have one node in the
graph, whose gradient is a sum in the copy's dtype, so the copies must stay the same objects. Only
their memory is given back while the parameter is not pinned: nothing uses it then.
"""
from __future__ import annotations

import sys
import weakref
from typing import Any, Dict, Iterable, List

import torch
from torch.autograd.graph import saved_tensors_hooks

from ._records import Record, users_of

_LEAST = 64 << 10  # bytes of a copy that is worth it


class _Cast:
    __slots__ = ("copy", "nbytes", "made", "whole")

    def __init__(self, record: Record, copy: torch.Tensor) -> None:
        self.copy = weakref.ref(copy)
        self.nbytes = copy.nbytes
        self.made = _changes(record)  # of the parameter, until it was made
        self.whole = True             # it has memory and contents; noted before they go


def _changes(record: Record) -> Any:
    return record.changes, record.alias._version


class Casts:
    """The copies of one model's parameters. Called while the parameters are pinned."""

    def __init__(self) -> None:
        self.found: Dict[Record, _Cast] = {}

    def note(self, record: Record, copy: torch.Tensor) -> None:
        """A node saves a copy of a parameter, or a view of it: it may be the one in the cache."""
        known = self.found.get(record)
        if copy.nbytes >= _LEAST and (known is None or known.copy() is None):
            self.found[record] = _Cast(record, copy)

    def empty(self, records: Iterable[Record]) -> None:
        """Give back the memory of copies, as the last pin of their parameters ends."""
        for record in records:
            cast = self.found.get(record)
            if cast is None or record.pins > 1:
                continue
            copy = cast.copy()
            if copy is None:
                del self.found[record]
            elif _is_alone(copy) and _in_cache(record.parameter, copy.dtype) is copy:
                cast.whole = False
                copy.untyped_storage().resize_(0)

    def fill(self, records: Iterable[Record]) -> None:
        """Make the contents of emptied copies again, as their parameters are pinned."""
        for record in records:
            cast = self.found.get(record)
            copy = None if cast is None or cast.whole else cast.copy()
            if cast is None or copy is None:
                continue
            if _changes(record) != cast.made:
                raise RuntimeError(
                    f"autocast's cache has a copy of {record.label()} from before its last change, "
                    "which plain torch goes on with: end autocast's block before the parameters "
                    "change, or set cache_enabled=False")
            copy.untyped_storage().resize_(cast.nbytes)
            copy.data.copy_(record.alias)  # without counting as a change of the copy
            cast.whole = True


def _is_alone(copy: torch.Tensor) -> bool:
    """Whether one owner in C++ has it, and no object of Python."""
    return (sys.getrefcount(copy) <= _BASE and copy._use_count() == 2  # type: ignore[attr-defined]
            and users_of(copy) == 1)


def _in_cache(parameter: torch.Tensor, dtype: torch.dtype) -> Any:
    """The copy that autocast takes for an operation with the parameter: one without elements."""
    found: List[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> None:
        found.append(tensor._base if tensor._is_view() else tensor)  # type: ignore[arg-type]

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda _: None):  # type: ignore[arg-type]
        none = torch.empty(parameter.shape[-1], 0, dtype=dtype, requires_grad=True)
        torch.matmul(parameter, none)
    return next((each for each in found if each.dtype == dtype and each.numel()), None)


def _measure() -> int:
    """The references that _is_alone() sees of an object, called as in Casts.empty(), that a node
    of a graph has and nothing else."""
    global _BASE
    probe = torch.zeros(1, requires_grad=True) * 1
    refer = weakref.ref(probe)
    node = probe * torch.ones(1, requires_grad=True)
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
