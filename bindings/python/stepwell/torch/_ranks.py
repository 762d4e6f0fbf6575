# SPDX-License-Identifier: Apache-2.0
"""Gradients over ranks: local accumulation, and the sums of all ranks.

A sum is a collective, so all ranks make the same sums in the same order. By default a parameter's
gradient is summed as soon as autograd has it. If ranks may use different parameters
(find_unused_parameters), each rank accumulates its own gradients, and all ranks sum all of them in
one order when they are needed; ranks without a gradient take part too.
"""
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Container, Dict, Iterator, List

from ..errors import EmptyError
from ._held import Event
from ._records import Record

if TYPE_CHECKING:
    from ._offload import Offload


class Ranks:
    """The state of one Offload with a group of several ranks. settle() is a collective."""

    def __init__(self, offload: "Offload") -> None:
        self._offload = offload
        self.find_unused = False
        self._local = 0  # open no_sync() blocks
        self._begun = False  # a training step has begun: other ranks may have gradients
        self._partial: Dict[Record, None] = {}  # sums of this rank alone

    def begin(self) -> None:
        """The model is called in training mode, or step() is called."""
        self._begun = self.find_unused

    def keeps(self, record: Record) -> bool:
        """Whether contributions to a gradient are kept on this rank for now."""
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
        """Gradients are needed: sum them, and determine which exist. may_be_empty: gradients whose
        existence need not be known, which saves the wait for their sums.
        """
        if not self._partial and not self._begun:
            return
        for record in self._sum():
            record.become(Event.ADDED)
            if record in may_be_empty:
                continue
            try:  # gathered, since ranks without a part of it would not know otherwise
                record.offload.runtime.fetch(record.make_gradient()).release()
            except EmptyError:
                record.become(Event.DROPPED)

    def _sum(self) -> List[Record]:
        due = [record for record in self._offload.records
               if record in self._partial or self._begun and record.hooked is not None]
        for record in due:
            record.make_gradient().reduce(None)
        self._partial.clear()
        self._begun = False
        return due
