# SPDX-License-Identifier: Apache-2.0
"""Steps by a kernel of the library."""
from __future__ import annotations

import math
import sys
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

import torch
from torch.autograd.graph import increment_version

from .._enums import Allow, Partition, Retain, Tier
from .._optimizer import Hyper
from .._optimizer import Optimizer as Kernel
from .._tensor import Policy, TensorSpec
from ._held import Event
from ._kinds import Kind, kind_of, torch_order, writes_gradients
from ._lazy import Lazy
from ._records import Record, own_grad, write
from ._states import CountSource, MasterSource, ParameterState, StateSource, copied, parts, whole
from ._steps import Steps, closure_of

if TYPE_CHECKING:
    from ._offload import Offload

_THERE = Policy(home=Tier.DEVICE, retention=Retain.KEEP)
_STAYS = Policy(home=Tier.DEVICE, allowed_tiers=Allow.DEVICE)
_NOW = (sys.maxsize, 0)  # of a step that has not ended
_DENORMAL = 5e-324  # 0.0 where they are flushed
_MOST = torch.finfo(torch.float32).max
MASTER = "master_param"  # the name in state_dict() of a 16-bit parameter's fp32 master


def _check_float(settings: Dict[str, Any], group: int) -> None:
    for name, value in settings.items():
        if isinstance(value, (int, float)) and _MOST < abs(value) < math.inf:
            raise RuntimeError(
                f"'{name}' of group {group} is {value}, which cannot be converted to float32 "
                "without overflow: set it to a number that the optimizer computes with")


class KernelSteps(Steps):
    """Steps by a kernel of the library."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload", kind: Kind) -> None:
        super().__init__(optimizer, offload)
        self.kind = kind
        self._given: Dict[int, Hyper] = {}
        group = optimizer.param_groups[0]
        self.momentum = type(optimizer) is not torch.optim.SGD or bool(group["momentum"])
        self.names = dict(kind.states) if self.momentum else {}
        self.counts = type(optimizer) is not torch.optim.SGD  # whether torch has a state "step"
        self._changed: Dict[Record, ParameterState] = {}  # by the program, and not in the kernel
        self._pending = False   # an update may still be under way
        self._lent: List[torch.Tensor] = []  # gradients in plain memory, which it reads
        # Those to which torch's step() adds the momentum buffer, times this.
        self._left: List[Tuple[float, Record]] = []
        # Those without entries as yet, by their step and their place in it: see look().
        self._unsure: Dict[Record, Tuple[int, int]] = {}
        self._steps = 0
        self._shown_none: Dict[Record, None] = {}  # whose entries the program has set to None
        self._agreed: Dict[Record, int] = {}  # counts of all ranks, until the next step
        self._masters: Dict[Record, torch.Tensor] = {}  # loaded, for the next update
        self._mastered: Set[Record] = set()  # that have one before their first update
        # The tensors that the program has assigned or loaded as states, in which torch would train.
        self._taken: Dict[Tuple[Record, str], "weakref.ref[torch.Tensor]"] = {}
        in_order = offload.place.torch_order and torch_order(optimizer)
        # Without a policy the library leaves half of a device to the program.
        self._on_device = not offload.place.is_host and not in_order
        self.kernel = Kernel(offload.runtime, kind.algorithm(group), kind.hyper(group),
                             name="optimizer", durable=offload.commits is not None,
                             state_policy=_THERE if self._on_device and offload.fits else None,
                             torch_order=in_order)
        self._given[0] = kind.hyper(group)
        self._add([(at, record) for at, record in self.records()
                   if record.parameter.requires_grad])

    def _add(self, pairs: List[Tuple[int, Record]]) -> None:
        """Add the parameters that have no states yet, with their states."""
        for group in sorted({group for group, _ in pairs}):
            self._set_hyper(group)
            fresh = [record for at, record in pairs if at == group and record.group < 0]
            staying = [record for record in fresh if record.stays and self._on_device]
            for record in staying:  # one by one: each leaves the room of farther tiers to the next
                self._make([record], group)
                self._keep_there(record)
            self._make([record for record in fresh if record.group < 0], group)
            for record in fresh:
                if record.parameter in self.state:
                    self._changed.setdefault(record, self.state.shown(record))
            for at, record in pairs:
                if at == group and record.group != group:
                    raise RuntimeError(
                        f"{record.label()} was updated in group {record.group} of the optimizer "
                        f"and is in group {group} now: a parameter in tiers keeps its group, so "
                        "close() the model, change the groups and offload again")

    def _make(self, records: List[Record], group: int) -> None:
        """Make their gradients and states."""
        if records:
            self.finish()
            self.offload.room(self.kernel.add_many, [
                (record.tensor, record.make_gradient()) for record in records], group=group)
        for record in records:
            record.group = group
            there = self._on_device and (self.offload.fits or record.stays)
            if there and record.dtype.itemsize < 4 and record.elements:
                self.kernel.state(record.tensor, "master")  # a device does not update split masters

    def _keep_there(self, record: Record) -> None:
        """Where it and its states are at home on a device, they are updated there. What is durable
        has its room on the drive, all other has none elsewhere."""
        there = _STAYS if self.offload.commits is None else _THERE
        names = [*self.names.values(), *["master"] * (record.dtype.itemsize < 4)]
        for tensor in (record.tensor, record.make_gradient(),
                       *(self.kernel.state(record.tensor, name) for name in names)):
            tensor.set_policy(there)

    def _set_hyper(self, group: int) -> None:
        settings = self.optimizer.param_groups[group]
        hyper = self.kind.hyper(settings)
        if self._given.get(group) == hyper:
            return
        if bool(settings.get("momentum", self.momentum)) != self.momentum:
            raise RuntimeError(
                f"the momentum of group {group} is {settings['momentum']} now, and the optimizer "
                f"was offloaded {'with' if self.momentum else 'without'} momentum, by which its "
                "states were made: close() the model and offload again")
        _check_float(settings, group)
        self.kernel.set_hyper(hyper, group=group)
        self._given[group] = hyper

    def step(self, args: Any, kwargs: Any) -> Any:
        loss = None
        closure = closure_of(*args, **kwargs)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        kind = kind_of(self.optimizer, self.before)
        if kind is None or kind.algorithm(self.optimizer.param_groups[0]) != self.kernel.algorithm:
            raise RuntimeError(
                f"{self.before.__name__} was offloaded to be stepped by a kernel, and its groups "
                "ask for what it has not now (amsgrad, capturable, differentiable, another kind of "
                "decay, groups that differ in having momentum, tensors as hyper-parameters, or "
                "scalars of NumPy, which float() makes numbers): "
                "close() the model and offload again")
        offload = self.offload
        try:
            every = self._begin()
            due = self._due(every)
            if due:
                self.update(due)
            # Where nothing moves, an update beside the next forward pass takes a core from torch,
            # whose other threads wait for it.
            takes_cores = offload.resident and offload.place.shares_cores
            if self._lent or takes_cores or any(record.seen_outside() for _, record in every):
                self.finish()
            self._leave_momentum()
            self._steps += 1
            if self._unsure:
                for at, (_, record) in enumerate(every):
                    if self._unsure.get(record) is _NOW:
                        self._unsure[record] = self._steps, at
            if offload.in_backward is not None:
                offload.in_backward.end_step()
        finally:
            offload.end_step()
        return loss

    def _leave_momentum(self) -> None:
        """Write to gradients in plain memory what torch leaves there."""
        left, self._left = self._left, []
        for momentum, record in left:
            self.look()
            buffer = self.state[record.parameter]["momentum_buffer"]
            grad = own_grad(record.parameter)
            if grad is not None:
                with torch.no_grad():
                    grad.add_(buffer.to(grad.dtype), alpha=momentum)

    def _own_gradient(self, record: Record) -> Optional[torch.Tensor]:
        """A gradient that the program has set."""
        own = record.own_gradient()
        other = None if own is None else self.offload.by_address.get(
            own.untyped_storage().data_ptr())
        if other is not None:
            raise RuntimeError(
                f"the gradient of {record.label()} shares the memory of {other.label()}, and an "
                "update in tiers writes parameters while it reads gradients: set .grad to a "
                "clone()")
        return own

    def update(self, due: List[Tuple[int, Record]]) -> None:
        if _DENORMAL == 0.0:
            raise RuntimeError(
                "torch.set_flush_denormal(True) takes numbers below 1.2e-38 for zeros in this "
                f"thread, and the kernel that steps {self.before.__name__} keeps them: call "
                "torch.set_flush_denormal(False) before step()")
        self._add(due)
        self._agreed = {}
        if self._changed:
            self.settle()
        if self._masters:
            self._give_masters()
        for _, record in due:
            self._notice_write(record)
        groups, device = self.optimizer.param_groups, self.offload.place.device
        written = {record: groups[group]["momentum"] for group, record in due
                   if writes_gradients(groups[group], device)}
        # The library updates the parameters of the last call first. That one names those that share
        # blocks: a fetch of one of them waits for updates of the others in its block.
        alike: Dict[Tuple[bool, bool, float], List[Record]] = {}
        for _, record in due:
            last = record.shares_block and not self.offload.fits
            keep = self.offload.keep_gradients or record.keeps  # if its tensor keeps its memory
            alike.setdefault((last, keep, record.scale), []).append(record)
        for (_, keep, scale), records in sorted(alike.items(), key=lambda pair: pair[0][0]):
            own = [self._own_gradient(record) for record in records]
            self._left += [(written[record], record) for grad, record in zip(own, records)
                           if grad is not None and record in written]
            if not self.offload.place.lends_gradients:
                own = [None if grad is None else grad.cpu() for grad in own]
            self._lent += [grad for grad in own if grad is not None]
            self._pending = True
            self.kernel.step([record.tensor for record in records], verdict=False, scale=scale,
                             keep_gradients=keep, gradients=None if not self._lent else [
                                 0 if grad is None else grad.data_ptr() for grad in own])
        increment_version([value for _, record in due  # for graphs that have saved them
                           for value in dict.get(self.state, record.parameter, {}).values()
                           if type(value) is Lazy])
        for _, record in due:
            record.changes += 1
            if record.held and (not self.offload.keep_gradients or record in written):
                record.become(Event.CONSUMED)
                record.scale = 1.0
            if self._shown_none.pop(record, 0) is None:
                self._show(record)
            if not self.state.get(record.parameter):
                if self.offload.ranks is None and self.offload.in_backward is None:
                    self._show(record)
                else:
                    self._unsure.setdefault(record, _NOW)
            if not record.elements and self.counts:  # a kernel counts updates of elements
                if not self.state.get(record.parameter):
                    self._show(record)
                    if self.offload.ranks is not None or self.offload.in_backward is not None:
                        self._unsure.setdefault(record, _NOW)
                self.state[record.parameter]["step"].add_(1)

    def may_be_empty(self, every: List[Tuple[int, Record]]) -> Set[Record]:
        return {record for _, record in every}

    def update_early(self, due: List[Tuple[int, Record]]) -> List[Record]:
        # A queued step waits for its room after the call; parameters are added between steps.
        known = [(group, record) for group, record in due if record.group >= 0]
        if known:
            self.update(known)
        return [record for _, record in due if record.group < 0]

    # -- states -----------------------------------------------------------------------------------

    def count(self, record: Record) -> int:
        """The number of its updates, those under way included."""
        self.finish()
        own = self.kernel.count(record.tensor) if record.group >= 0 else 0
        return own or self._agreed.get(record, 0)

    def _agree(self) -> None:
        """Ask all ranks for the counts: one without a part of a parameter has none."""
        records = [record for _, record in self.records() if record.group >= 0]
        if self.offload.ranks is None or not records:
            return
        self.finish()
        own = torch.tensor([self.kernel.count(record.tensor) for record in records],
                           dtype=torch.float32)
        sums = self.offload.room(self.offload.runtime.create_many, [TensorSpec(
            shape=2 * len(records), name="optimizer.counts", role="grad",
            partition=Partition.REPLICATED)])[0]
        try:
            sums.reduce(torch.cat((own, (own > 0).float())))
            found = torch.empty(2, len(records))
            sums.read(found)
        finally:
            sums.destroy()
        self._agreed = {record: round(total / known) for record, total, known in zip(
            records, found[0].tolist(), found[1].tolist()) if known}

    def finish(self) -> None:
        """Wait for the updates under way."""
        if self._pending:
            self.offload.runtime.drain()
            self._pending = False
            self._lent.clear()

    def set_count(self, record: Record, count: int) -> None:
        self.count(record)  # no update may be under way
        self.kernel.set_count(record.tensor, count)

    def look(self) -> None:
        unsure, self._unsure = self._unsure, {}
        every = [record for _, record in self.records() if record in unsure] if unsure else []
        for record in sorted(every, key=unsure.__getitem__):  # as torch makes them
            if not record.elements and record.parameter in self.state:  # shown early
                self.state.put_last(record.parameter)
            elif not self.state.get(record.parameter) and (
                    self.count(record) or not record.elements):
                self._show(record)

    def _show(self, record: Record) -> None:
        """Make the entries that torch has after the first update."""
        if not self.names and not self.counts:
            return
        state = self.state.shown(record)
        if self.counts:
            state.show("step", CountSource(self, record).lazy() if record.elements
                       else torch.zeros((), device="cpu"))
        for name, own in self.names.items():
            state.show(name, self._lazy(record, name, own))

    def _lazy(self, record: Record, name: str, own: str) -> Lazy:
        return StateSource(record, name, self.kernel.state(record.tensor, own), record.size,
                           record.stride, torch.float32, owned=False).lazy()

    def state_set(self, state: ParameterState, name: Any) -> None:
        if name == MASTER:
            value = dict.pop(state, MASTER, None)
            if isinstance(value, torch.Tensor) and tuple(value.size()) == state.record.size:
                self._masters[state.record] = copied(value).detach().float()
                if not state and not self.names:
                    self.state.drop(state)  # torch has none
        elif name in self.names or name == "step":
            self._changed[state.record] = state
            self._give_back(state.record, name, dict.get(state, name))

    def master_of(self, record: Record) -> Optional[MasterSource]:
        """The fp32 values that updates of a 16-bit parameter go on from, if there are any."""
        if record.dtype.itemsize >= 4 or record.group < 0 or not record.elements \
                or not self.count(record) and record not in self._mastered:
            return None
        return MasterSource(record, self.kernel)

    def _notice_write(self, record: Record) -> None:
        """Write a parameter anew that the program has written at its address, so that its master
        follows it: of those that share a block a fault shows the first write alone."""
        source = (self.master_of(record) if record.escaped and record.shares_block
                  and self.offload.serves_faults else None)
        if source is None:
            return
        now, master = record.copy(), source.memory(False)
        if not torch.equal(master.to(now), now):
            self.offload.mark()
            write(record.tensor, now, record.stride)

    def prepare(self) -> None:
        self.take_edits()
        self._agree()
        self.look()
        self.settle()
        self._give_masters(waiting=True)
        for _, record in self.records():
            self._notice_write(record)

    def _give_masters(self, waiting: bool = False) -> None:
        """Go on from the masters that were loaded, where the weights are still the values of them
        in their dtype: other weights have been changed since, as plain torch would train them.
        waiting: other weights may be loaded yet."""
        masters, self._masters = self._masters, {}
        for record, values in masters.items():
            if record.group < 0:
                if waiting:
                    self._masters[record] = values
                continue
            self.offload.copied.sync(record.tensor)
            now = record.copy()
            own = now.float()
            if waiting and not torch.equal(values.to(now), now):
                self._masters[record] = values
                continue
            self._mastered.add(record)
            MasterSource(record, self.kernel).write(
                torch.where(values.to(now) == now, values.to(own), own))

    def saved(self, state: ParameterState) -> Dict[Any, Any]:
        return {**super().saved(state), **self._saved_master(state.record)}

    def _saved_master(self, record: Record) -> Dict[Any, Any]:
        if record in self._masters:
            return {MASTER: self._masters[record].clone()}
        master = self.master_of(record)
        if master is None:
            return {}
        return {MASTER: master.lazy() if self.offload.ranks is None else master.lazy().clone()}

    def alone(self, found: Dict[Any, Any]) -> Dict[int, Any]:
        every = {at: self._saved_master(record) for at, (_, record) in enumerate(self.records())
                 if at not in found}
        return {at: saved for at, saved in every.items() if saved}

    def restore(self) -> None:
        self.prepare()
        self._give_masters()
        for (record, name), reference in self._taken.items():
            value = reference()
            if value is not None:  # torch would have trained on in it, and goes on to
                state = self.state.shown(record)
                with torch.no_grad():
                    value.copy_(dict.__getitem__(state, name))
                state.show(name, value)
        for _, record in self.records():
            master = self.master_of(record)
            if master is not None:
                self.state.shown(record).show(MASTER, master.lazy())
        super().restore()

    def settle(self) -> None:
        """Give the kernel the states that the program has assigned."""
        changed, self._changed = self._changed, {}
        for record, state in changed.items():
            if record.group >= 0 and record.elements:  # else the entries stay as they are
                self._give(record, state)

    def _give(self, record: Record, state: ParameterState) -> None:
        values = dict(parts(state))
        present = [name for name in self.names if values.get(name) is not None]
        if not present:
            if any(name in values for name in self.names):  # None until the next update
                self._shown_none[record] = None
            if self.count(record):
                self.kernel.set_count(record.tensor, 0)
                for own in self.names.values():
                    self.kernel.state(record.tensor, own).fill(0)
            if self.counts and "step" in values and self.names:
                self._changed[record] = state
                raise KeyError(next(name for name in self.names if name not in values))
            return
        missing = [name for name in self.names if name not in present]
        if missing or self.counts and "step" not in values:
            self._changed[record] = state
            raise KeyError((missing + ["step"])[0])  # as torch does
        self.count(record)
        for name, own in self.names.items():
            value = values[name]
            tensor = self.kernel.state(record.tensor, own)
            if isinstance(value, Lazy) and getattr(value._source, "tensor", None) is tensor:
                continue
            if tuple(value.size()) != record.size:
                raise RuntimeError(
                    f"the state '{name}' of {record.label()} is {tuple(value.size())}, and the "
                    f"parameter is {record.size}")
            write(tensor, value.detach().float(), record.stride)
            self._take(record, name, value)
            state.show(name, self._lazy(record, name, own))
        step = values.get("step", max(1, self.kernel.count(record.tensor)))
        if not isinstance(step, Lazy) or step._source.plain is not None:
            self.kernel.set_count(record.tensor, whole(step, record))
            self._take(record, "step", step)
            if self.counts:
                state.show("step", CountSource(self, record).lazy())

    def _take(self, record: Record, name: str, value: Any) -> None:
        own = not isinstance(value, Lazy) or value._source.plain is not None
        if isinstance(value, torch.Tensor) and own and (
                value.device == self.offload.place.device or not value.dim()):
            self._taken[record, name] = weakref.ref(value)

    @torch.no_grad()
    def _give_back(self, record: Record, name: str, now: Any) -> None:
        """An entry is another or none: what the program had assigned or loaded gets the values to
        which torch would have trained it."""
        reference = self._taken.get((record, name))
        if reference is None:
            return
        last = (CountSource(self, record).lazy() if name == "step"
                else self._lazy(record, name, self.names[name]))
        if (isinstance(now, Lazy) and now._source.record is record
                and now._source.tensor is last._source.tensor):
            return  # the same
        del self._taken[record, name]
        value = reference()
        # Over ranks all would have to collect it, and not all need have what was loaded.
        if value is not None and self.offload.ranks is None:
            value.copy_(last)

    @torch.no_grad()
    def _renew(self, given: Dict[Any, Dict[str, Any]]) -> None:
        """Give the program's tensors the values that torch would have written to them, before they
        are loaded again."""
        known = {id(value) for state in given.values() for value in state.values()}
        for (record, name), reference in list(self._taken.items()):
            value = reference()
            if value is None:
                del self._taken[record, name]
            elif id(value) in known:
                value.copy_(dict.__getitem__(self.state.shown(record), name))

    def kept(self) -> Dict[str, Any]:
        self._add([(group, record) for group, record in self.records()
                   if record.group < 0 and record.elements and self._has_values(group, record)])
        self.prepare()
        every = [record for _, record in self.records()]
        shown = (self.record_of(key) for key in self.state)
        return {**super().kept(), "more": self._more(),
                "added": [record.name for record in every if record.group >= 0],
                "order": [record.name for record in shown if record is not None],
                "empty": {record.name: state["step"].item() if self.counts else 0
                          for record, state in ((each, self.state.get(each.parameter))
                                                for each in every if not each.elements)
                          if state}}

    def _more(self) -> Dict[str, Dict[Any, Any]]:
        """Of each parameter the entries that the kernel does not have."""
        commits = self.offload.commits
        assert commits is not None
        return {record.name: {name: commits.described(f"{record.name}.{name}", copied(value))
                              for name, value in parts(state)
                              if name not in self.names and name != "step"}
                for record, state in ((self.record_of(key), each)
                                      for key, each in dict.items(self.state))
                if record is not None}

    def _has_values(self, group: int, record: Record) -> bool:
        """Whether the states of a frozen parameter are others than those of a new optimizer."""
        state = self.state.get(record.parameter, {})
        if not self.kind.eager:
            return any(name in self.names for name in state)
        first = self.optimizer.param_groups[group]["initial_accumulator_value"]
        return any(bool((value != (0 if name == "step" else first)).any())
                   for name, value in state.items())

    def resume(self, kept: Dict[str, Any], first: Any) -> None:
        """Add the parameters again, which restores their states and counts."""
        added = set(kept["added"])
        self._add([(group, record) for group, record in self.records() if record.name in added])
        self._changed.clear()
        for _, record in self.records():
            if record.group >= 0 and (self.kind.eager or self.count(record)) \
                    or record.name in kept["empty"]:
                self._show(record)
                if not record.elements and self.counts:
                    self.state[record.parameter]["step"].fill_(kept["empty"].get(record.name, 0))
            elif self.kind.eager and record.group < 0:
                self.state[record.parameter] = first[record.parameter]
        named = {record.name: record.parameter for _, record in self.records()}
        commits = self.offload.commits
        assert commits is not None
        for name, entries in kept["more"].items():
            for entry, value in entries.items() if name in named else ():
                self.state[named[name]][entry] = commits.restored(f"{name}.{entry}", value)
        self.state.arrange([named[each] for each in kept["order"] if each in named], every=True)
        self.resume_others(kept["others"])

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As torch's, but states of 16-bit parameters keep their own dtype: torch converts them to
        the parameter's, and the kernel has them in fp32."""
        seen: List[Dict[str, Any]] = []

        def look(_: Any, given: Dict[str, Any]) -> None:  # as the program's hooks have made it
            self._renew(given["state"])
            seen.append(given)
        handle = self.optimizer.register_load_state_dict_pre_hook(look)
        try:
            self.before.load_state_dict(self.optimizer, state_dict)
        finally:
            handle.remove()
        given = seen[0]["state"]
        numbers = [number for group in seen[0]["param_groups"] for number in group["params"]]
        for number, (_, record) in zip(numbers, self.records()):
            if record.dtype.itemsize < 4 and number in given:
                state = self.state[record.parameter]
                state.update({name: value for name, value in given[number].items()
                              if isinstance(value, torch.Tensor)})
        self._add([(group, record) for group, record in self.records()
                   if any(name in self.names for name in self.state.get(record.parameter, ()))])
        self.settle()
        for group in range(len(self.optimizer.param_groups)):
            if group in self._given:
                self._set_hyper(group)
