# SPDX-License-Identifier: Apache-2.0
"""Accesses to parameters outside their units: by torch functions, `.data`, and copies of them."""
from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Dict, List, Optional

import torch

from . import _edges, _tiles
from ._division import room_of, split
from ._entries import Entry, Snapshot
from ._lazy import READ, READ_WRITE, Lazy
from ._private import pop
from ._records import (
    DTYPES, VERSIONED, Absent, Offloaded, Present, Record, find_absent, memory_order, read,
    users_of, view_like, write,
)

if TYPE_CHECKING:
    from ._offload import Offload

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_transforms = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]
_Off = torch._C.DisableTorchFunctionSubclass


class Accesses:
    """The accesses of one Offload. An access lasts at most until the next mark."""

    def __init__(self, offload: "Offload") -> None:
        self._offload = offload
        self.touched: Dict[Record, Any] = {}  # the views
        self._shown: Dict[Record, int] = {}  # of these, accesses held only by tensors
        self._told = False  # that such a tensor was left
        self.copies = 0   # number of running state_dict() calls, which return copies
        self._sources: Dict[Record, Snapshot] = {}  # those of the outermost call

    def end(self) -> None:
        """End all accesses, at a mark."""
        if self._shown and not self._told and not self._offload.serves_faults:
            self._tell_of_held()
        while self.touched:
            self._untouch(next(reversed(self.touched)))
        self.copies = 0
        self._sources.clear()

    def repair(self) -> None:
        """An exception has ended _touch() or _untouch() between two lines. No unit is entered: the
        records have no other pins."""
        for record, view in list(self.touched.items()):
            if view.held:
                record.pin()
                record.parameter.__class__ = Absent
                self._offload.casts.fill([record])
            else:
                del self.touched[record]

    def pinned(self, record: Record) -> torch.Tensor:
        """Its bytes as a flat tensor, with which the pin ends."""
        return self._offload.place.tensor_of(self._offload.runtime.fetch(record.tensor))

    def view(self, record: Record, like: torch.Tensor) -> torch.Tensor:
        """What the program reads of a node: over the parameter's memory, until the next mark."""
        if record.large:
            return view_like(self.copy_of(record), like)
        return self.touch(  # type: ignore[no-any-return]
            [record], lambda _: like, (record.parameter,), {}, False)

    def touch(self, records: List[Record], func: Any, args: Any, kwargs: Any, escapes: bool,
              others: bool = False) -> Any:
        """Fetch the unpinned parameters of a torch function's arguments, and call it. others: there
        are some of another Offload too, which does the same in the call."""
        offload = self._offload
        if not offload.place.calls_backward and _edges.takes(func, args, kwargs):
            return _edges.call(func, args, kwargs)  # another thread's nodes take turns themselves
        if not offload.inside():
            return offload.alone(self.touch, records, func, args, kwargs, escapes, others)
        if offload.closed:  # since the call was dispatched
            return _called(func, args, kwargs, others)
        for record in records:
            record.check_use()
        if self.copies and func is torch.Tensor.detach:
            source = self._source(records[0])
            return Entry(source.whole, source)
        if (func in VERSIONED and escapes and offload.commits is not None
                and records[0].frozen and args and args[0] is records[0].parameter):
            # Its memory may not be written to, as it is in generations: its views are lazy, and
            # make it writable.
            source = self._source(records[0])
            entry = Entry(source.whole, source)
            return entry if func is torch.Tensor.detach else func(entry, *args[1:], **kwargs)
        if _edges.takes(func, args, kwargs):
            return _edges.call(func, args, kwargs)
        if any(record.large for record in records):
            return _tiles.touch(offload, records, func, args, kwargs, escapes)
        if offload.hooks.others_on_top():
            if _task() < 0:
                for record in records:
                    record.outside = True
            elif not any(record.outside or record.unit is None for record in records):
                # A checkpoint inside a unit recomputes a part of it. As in the forward pass, the
                # whole unit is pinned, and the checkpoint's own hooks get the saved tensors.
                for record in records:
                    offload.backward.pin(record.unit, _task(), _node())
                return _called(func, args, kwargs, others)
        # An optimizer's own code writes the parameters that it reaches, one after the other.
        window = offload.window if not torch.is_grad_enabled() else None
        if window is not None:
            window.at(records[0])
        written: List[Record] = []
        name = getattr(func, "__name__", "")
        if (name == "__setitem__" or name.startswith("__i")
                or (name.endswith("_") and not name.endswith("__"))):
            find_absent(args[:1] or kwargs.values(), written)  # the other arguments are read
        if offload.in_step():
            for record in records:
                if record.unit is not None and not record.unit.calls:
                    split(record.unit)
        if sum(self._shown.values()) > offload.unit_bytes:
            self._end_shown()
        held = [record for record in records if record in self.touched]  # until the next mark
        for record in records:
            record.touches += 1
            record.escaped = record.escaped or escapes
            # If faults are served, a write through an address is one, except for a frozen
            # parameter; and a view is enough if torch notices the write.
            given = escapes and (record.frozen or not offload.serves_faults)
            writes = (given or record in written or "out" in kwargs
                      or window is not None and record.hooked is not None)
            # A backward pass that holds it saves what was written when it ends that.
            of_unit = record.pins > (record in self.touched)
            self._touch(record, writes and not of_unit
                        and not (record.frozen and func in VERSIONED))
            record.parameter.__class__ = Present
            if record in written:
                offload.casts.keep(record)
        keep = escapes  # until the next mark
        result = None
        try:
            transformed = _transforms() is not None  # which have no saved-tensor hooks
            keep = keep or transformed
            pushed = not transformed and offload.hooks.push()
            try:
                result = _called(func, args, kwargs, others)
            finally:
                if pushed:
                    pop()
            keep = transformed or keep or any(
                self._shares(value, records) for value in
                (result if isinstance(result, (tuple, list)) else (result,)))
        finally:
            for record in records:
                record.addressed = record.addressed or func is torch.Tensor.data_ptr
                if record not in self.touched:  # ended by a unit that ran inside
                    continue
                if keep:  # what the program is given may be written to
                    offload.casts.keep(record)
                if not keep:
                    if record not in held and (window is None or record is not records[0]):
                        self._untouch(record)
                elif isinstance(result, torch.Tensor) or offload.serves_faults:
                    self._shown[record] = room_of(offload, [record])
                if window is None:  # what saves it next has to have hooks, as this had
                    record.parameter.__class__ = Absent
        if written or "out" in kwargs:
            offload.renew_lent()
        return result

    def _end_shown(self) -> None:
        """End accesses whose tensors have ended, since a loop over `.data` may exceed the budget.
        If faults are served, the other accesses may end as well: a fault fetches them again."""
        for record in list(self._shown):
            if self._offload.serves_faults or not _is_held(record):
                self._untouch(record)

    def _tell_of_held(self) -> None:
        """Warn once of tensors that outlive their access, since no fault serves their uses."""
        held = next((record for record in self._shown if _is_held(record)), None)
        if held is None or self._offload.closed:
            return
        self._told = True
        warnings.warn(
            f"the program still has a tensor over the memory of {held.label()} from .data, "
            "detach() or a view, whose contents are undefined from now on, as the parameter may "
            "leave the device: take it from the parameter again, or take a clone()",
            stacklevel=2)

    def _touch(self, record: Record, writes: bool) -> None:
        held = self.touched.get(record)
        if held is not None and (held.access != READ or not writes):
            return
        if held is not None:
            self._untouch(record)
        if writes:
            self._offload.end_kept()
            record.thaw()
        self.touched[record] = self._offload.runtime.fetch(
            record.tensor, READ_WRITE if writes else READ)
        record.pin()
        if self._offload.casts.found:
            self._offload.casts.fill([record])

    def end_touched(self, records: List[Record]) -> None:
        """End accesses that would block a unit's fetch."""
        for record in records:
            if record in self.touched:
                self._untouch(record)

    def _untouch(self, record: Record) -> None:
        view = self.touched[record]
        self._shown.pop(record, None)
        if self._offload.casts.found:
            self._offload.casts.empty([record])
        changed = record.unpin(stays=view.access != READ)
        if not view.released:  # an interrupt came between these, and what it ends is ended again
            view.release()
        del self.touched[record]
        record.save(changed)

    @staticmethod
    def _shares(value: Any, records: List[Record]) -> bool:
        # The address of a lazy tensor would pin it until the next mark.
        if not isinstance(value, torch.Tensor) or isinstance(value, (Offloaded, Lazy)):
            return False
        if value.layout != torch.strided or value.device != records[0].alias.device:
            return False
        address = value.untyped_storage().data_ptr()
        return any(record.address == address for record in records)

    def set_data(self, record: Record, data: torch.Tensor) -> None:
        """Replace its bytes, but not its memory, to which aliases and tiers refer."""
        if tuple(data.shape) != record.size or data.dtype != record.dtype:
            if self._offload.making is not None and data.dtype in DTYPES:
                record.name = self._offload.making.fresh(record.name)
                self._offload.renew(record, data.detach(), False)
                return
            raise RuntimeError(
                f"data of {tuple(data.shape)}, {data.dtype} for {record.label()} of {record.size}, "
                f"{record.dtype}: a parameter in tiers keeps its shape and dtype; change it before "
                "offload()")
        if self._offload.making is None and data.device != record.alias.device:
            raise RuntimeError(
                f"data on {data.device} for {record.label()} on {record.alias.device}, which a "
                "parameter in tiers does not leave: copy it there with p.data.copy_()")
        if data is record.parameter:  # like Module.to() when nothing has to be moved
            return
        if self._shares(data, [record]):
            if data.stride() == record.alias.stride() and not data.storage_offset():
                return
            data = data.clone()
        if self._offload.making is None:
            if memory_order(data) != record.stride:
                raise RuntimeError(
                    f"data of strides {data.stride()} for {record.label()} of {record.stride}: a "
                    "parameter in tiers keeps its order in memory; give it .contiguous(), or "
                    "change it before offload()")
            if record.seen_outside():
                raise RuntimeError(
                    f"{record.label()} is given other data while the program has a tensor, an "
                    "array or the address of its memory, which keeps the old values in plain "
                    "torch, and would have the new ones here: take p.data.clone() before")
        self.fill(record, data)

    def fill(self, record: Record, data: torch.Tensor) -> None:
        """Write all of its bytes, of which other tensors over its memory have the new values."""
        record.check_use()
        self._offload.copied.end(record.tensor)
        if record.pins:  # in its module's call, or its address was returned since the last mark
            with torch.no_grad():
                record.alias.copy_(data)
        else:
            self._offload.end_kept()
            record.thaw(by_view=False)
            write(record.tensor, data, record.stride)
        record.changes += 1
        self._offload.renew_lent()

    def copy_of(self, record: Record) -> torch.Tensor:
        record.check_use()
        if record.pins:
            return record.alias.clone()
        self._offload.copied.sync(record.tensor)
        return read(self._offload.place, record.tensor, record.size, record.stride, record.dtype)

    def _source(self, record: Record) -> Snapshot:
        """The one copy of a parameter in a call of state_dict(), so that tied entries share it."""
        found = self._sources.get(record)
        if found is None:
            with torch.inference_mode(False):
                found = self._sources[record] = Snapshot(record, self.copy_of(record))
        return found

    def end_copies(self, state: Dict[str, Any]) -> None:
        """A call of state_dict() ends. After the outermost one no entry refers to the tiers, as
        those of pinned parameters do."""
        self.copies = max(0, self.copies - 1)
        if self.copies:
            return
        for name, value in state.items():
            if (type(value) is torch.Tensor and value.layout == torch.strided
                    and value.device == self._offload.place.device):
                record = self._offload.by_address.get(value.untyped_storage().data_ptr())
                if record is not None:
                    source = self._source(record)
                    state[name] = Entry(source.whole.as_strided(
                        value.size(), value.stride(), value.storage_offset()), source)
        self._sources.clear()


def _called(func: Any, args: Any, kwargs: Any, others: bool) -> Any:
    if others:
        return func(*args, **kwargs)
    with _Off():
        return func(*args, **kwargs)


def _is_held(record: Record) -> bool:
    """Whether the program has a tensor over the memory: another than the parameter's own, this one,
    and the kept views."""
    return users_of(record.alias) > 2 + len(record.views)


def _accesses_of(module: torch.nn.Module) -> Optional[Accesses]:
    for parameter in module.parameters():
        if isinstance(parameter, Offloaded):
            return parameter._stepwell.offload.accesses
    return None


# Module-level functions, so that models with these hooks can be copied and pickled.
def copies_begin(module: torch.nn.Module, *_: Any) -> None:
    accesses = _accesses_of(module)
    if accesses is not None:
        accesses.copies += 1


def copies_end(module: torch.nn.Module, state: Dict[str, Any], *_: Any) -> None:
    accesses = _accesses_of(module)
    if accesses is not None:
        accesses.end_copies(state)
