# SPDX-License-Identifier: Apache-2.0
"""Gradients over ranks: which are added on this rank alone for now, and when all ranks sum them.

A sum is a collective, so all ranks make the same sums in the same order. By default a parameter's
gradient is summed when autograd has it. Where ranks may use different parameters
(find_unused_parameters), each adds its own up, and all ranks sum all of them in one order when the
gradients are needed; who has none says so.
"""
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Container, Dict, Iterator, List

from ..errors import EmptyError
from ._records import Record

if TYPE_CHECKING:
    from ._offload import Offload


class Ranks:
    """Of one Offload that has a group of several ranks. settle() is a collective."""

    def __init__(self, offload: "Offload") -> None:
        self._offload = offload
        self.find_unused = False
        self._local = 0  # no_sync() blocks that are open
        self._begun = False  # a training step, which other ranks may have gradients of
        self._partial: Dict[Record, None] = {}  # sums that only this rank has added to

    def begin(self) -> None:
        """The model is called to be trained, or step() is called."""
        self._begun = self.find_unused

    def keeps(self, record: Record) -> bool:
        """Whether what is added to a gradient now stays on this rank."""
        self._begun |= self.find_unused
        if self._local or self.find_unused:
            self._partial[record] = None
            return True
        self._partial.pop(record, None)
        return False

    def drop(self, record: Record) -> None:
        self._partial.pop(record, None)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self._local += 1
        try:
            yield
        finally:
            self._local -= 1

    def settle(self, may_be_empty: Container[Record] = ()) -> None:
        """Somebody asks for gradients: sum them, and find out which there are. may_be_empty: those
        of which nobody needs to know, which saves the wait for their sums.
        """
        if not self._partial and not self._begun:
            return
        for record in self._sum():
            record.has_gradient = True
            if record in may_be_empty:
                continue
            try:  # whole: some ranks may have no part of it, and would not know
                record.offload.runtime.fetch(record.make_gradient()).release()
            except EmptyError:
                record.has_gradient = record.spent = False

    def _sum(self) -> List[Record]:
        due = [record for record in self._offload.records
               if record in self._partial or self._begun and record.hooked is not None]
        for record in due:
            record.make_gradient().reduce(None)
        self._partial.clear()
        self._begun = False
        return due
