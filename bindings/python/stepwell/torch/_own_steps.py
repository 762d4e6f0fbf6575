# SPDX-License-Identifier: Apache-2.0
"""Steps of an optimizer's own code, which is run once a step over parameters, gradients and states
that are fetched as its loop reaches them."""
from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Tuple

import torch

from .._tensor import TensorSpec
from ..errors import BudgetError
from ._held import Event, Held
from ._lazy import Lazy, Window, alone
from ._records import DTYPES, TRAINED, Record, memory_order, write
from ._states import ParameterState, States, StateSource, parts
from ._steps import Steps, closure_of, in_memory

if TYPE_CHECKING:
    from ._offload import Offload

_SMALL = 4096  # bytes; states up to this size stay in plain memory


class OwnSteps(Steps):
    """Steps of the optimizer's own code."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload") -> None:
        super().__init__(optimizer, offload)
        self._assigned: Dict[Tuple[int, Any], ParameterState] = {}  # values that are still plain
        self._places: Dict[str, "weakref.ref[StateSource]"] = {}    # by the name of their tensor
        self._arrives = True  # states that are on the CPU go where the parameters go
        self._inner = [each for each in vars(optimizer).values()
                       if isinstance(each, torch.optim.Optimizer)]
        for each in self._inner:
            states, before = States(self), each.state
            states.replace(before)
            each.state = states
        for _, record in self.records():
            least = 2 * record.tensor.nbytes
            if record.parameter.requires_grad and least > offload.budget:
                raise BudgetError(
                    f"{self.before.__name__} is run by its own code, which is given all of a "
                    f"parameter with its gradient: {least} bytes of {record.label()}, and the "
                    f"device budget is {offload.budget} bytes. Use AdamW, Adam, SGD or Adagrad of "
                    "torch.optim, which have kernels that update a parameter in parts (without "
                    "amsgrad and the like), or raise device_bytes")

    def step(self, args: Any, kwargs: Any) -> Any:
        offload = self.offload
        try:
            every = self._begin()
            if offload.in_backward is None:
                result = self._run(args, kwargs)
                self._consume([record for _, record in every])
            else:
                closure = closure_of(*args, **kwargs)
                result = None
                if closure is not None:
                    with torch.enable_grad():
                        result = closure()
                for group, record in self._due(every):
                    self._one(group, record)
                offload.in_backward.end_step()
                for states in [states for _, states in self.all_states()]:
                    states.arrange([record.parameter for _, record in every])
        finally:
            offload.end_step()
        return result

    def _run(self, args: Any, kwargs: Any) -> Any:
        offload = self.offload
        window = offload.window = Window(offload)
        try:
            return _plain(self.before.step)(self.optimizer, *args, **kwargs)
        finally:
            offload.window = None
            window.end()
            self.settle()

    def _consume(self, records: List[Record]) -> None:
        """The gradients are used up."""
        if self.offload.keep_gradients:
            return
        for record in records:
            if record.held is Held.SUM:
                if not record.keeps:
                    record.discard_gradient()
                record.become(Event.CONSUMED)

    def update_early(self, due: List[Tuple[int, Record]]) -> List[Record]:
        left = []
        for group, record in due:
            version = record.alias._version
            try:  # alone: what an exception has left ends before, and not at a use of a state
                if self.offload.inside():
                    self._one(group, record)
                else:
                    self.offload.alone(self._one, group, record)
            except BudgetError:  # held units use the room
                if record.alias._version != version:
                    raise
                left.append(record)
        return left

    def _one(self, at: int, record: Record) -> None:
        """Run the code for one parameter, with update_in_backward."""
        groups = self.optimizer.param_groups
        parameters = [group["params"] for group in groups]
        try:
            for group in groups:
                group["params"] = []
            groups[at]["params"] = [record.parameter]
            self._run((), {})
        finally:
            for group, kept in zip(groups, parameters):
                group["params"] = kept
        record.changes += 1
        self._consume([record])

    # -- states -----------------------------------------------------------------------------------

    def all_states(self) -> Iterator[Tuple[str, States]]:
        yield from super().all_states()
        for at, each in enumerate(self._inner):
            if isinstance(each.state, States):
                yield f".{at}", each.state

    def read_state(self, state: ParameterState, name: Any) -> None:
        if (id(state), name) in self._assigned and self._leave(state, name):
            del self._assigned[id(state), name]

    def state_set(self, state: ParameterState, name: Any) -> None:
        last = next(reversed(self._assigned), None)
        value = dict.get(state, name)
        if isinstance(value, torch.Tensor) and not isinstance(value, Lazy):
            self._assigned[id(state), name] = state
        else:
            self._assigned.pop((id(state), name), None)
        if last is not None and last != (id(state), name) and last in self._assigned:
            if self._leave(self._assigned[last], last[1]):
                del self._assigned[last]

    def forget_state(self, state: ParameterState) -> None:
        for key in [key for key in self._assigned if key[0] == id(state)]:
            del self._assigned[key]

    def settle(self) -> None:
        for (key, name), state in list(self._assigned.items()):
            if self._leave(state, name):
                del self._assigned[key, name]
        self._arrives = False

    def _leave(self, state: ParameterState, name: Any) -> bool:
        """Move a state to tiers, unless the program refers to its memory. Returns whether it has
        not to be looked at again."""
        value = dict.get(state, name)
        least = _SMALL if self.offload.commits is None else 4  # the room for metadata is small
        if not isinstance(value, torch.Tensor) or isinstance(value, Lazy) \
                or value.dtype not in DTYPES or value.layout is not torch.strided \
                or value.requires_grad:
            return True
        here = value.device == self.offload.place.device
        if not here and not (self._arrives and value.is_cpu and value.dim()):
            return True
        if value.numel() * value.element_size() <= least:
            if not here:
                state.show(name, self.offload.place.to(value))
            return True
        del value
        if here and not alone(state, name):
            return False
        value = dict.get(state, name)
        full = self._name(state, name)
        before = self._places[full]() if full in self._places else None
        if before is not None:  # the program has the value that was there before
            return False
        source = self._source(state.record, full, str(name), tuple(value.size()),
                              memory_order(value), value.dtype)
        assert source.tensor is not None
        write(source.tensor, value, source.stride)
        state.show(name, source.lazy())
        return True

    def _name(self, state: ParameterState, name: Any) -> str:
        for suffix, states in self.all_states():
            if dict.get(states, state.record.parameter) is state:
                return f"{state.record.name}{suffix}.{name}"
        return f"{state.record.name}.{name}"

    def _source(self, record: Record, full: str, name: str, size: Tuple[int, ...],
                stride: Tuple[int, ...], dtype: torch.dtype) -> StateSource:
        self.offload.destroy_ended()
        if self.offload.ended and self.offload.window is not None:
            self.offload.window.end()  # it had the value that this one replaces
            self.offload.destroy_ended()
        elements = 1
        for each in size:
            elements *= each
        tensor = self.offload.make(TensorSpec(
            shape=elements, dtype=DTYPES[dtype], name=full, role="optimizer_state",
            neighbour=TRAINED, durable=self.offload.commits is not None))
        source = StateSource(record, name, tensor, size, stride, dtype, owned=True)
        self._places[full] = weakref.ref(source)
        return source

    def restore(self) -> None:
        super().restore()
        for each in self._inner:
            if isinstance(each.state, States):
                each.state = in_memory(each.state)

    def kept(self) -> Dict[str, Any]:
        self.settle()
        return {**super().kept(), "states": [
            {record.name: {name: _described(record, name, value) for name, value in parts(state)}
             for record, state in ((self.record_of(key), each) for key, each in states.items())
             if record is not None} for _, states in self.all_states()]}

    def resume(self, kept: Dict[str, Any], first: Any) -> None:
        named = {record.name: record for _, record in self.records()}
        sources: Dict[str, StateSource] = {}
        for (_, states), found in zip(self.all_states(), kept["states"]):
            for record in (named[each] for each in found if each in named):
                for name, value in found[record.name].items():
                    if isinstance(value, dict) and "of" in value:
                        full, source = value["of"], sources.get(value["of"])
                        if source is None:
                            source = sources[full] = self._source(
                                named[value["owner"]], full, name, *value["source"])
                        value = Lazy(source, *value["view"])
                    elif isinstance(value, dict) and "number" in value:
                        value = torch.tensor(value["number"], dtype=value["dtype"], device="cpu")
                    if type(value) is torch.Tensor and name != "step":  # as load_state_dict() does
                        value = self.offload.place.to(value)
                    states.shown(record).show(name, value)
            states.arrange((), every=True)
        self.resume_others(kept["others"])


def _described(record: Record, name: Any, value: Any) -> Any:
    """A state for the metadata. A tensor costs hundreds of bytes there, so numbers are plain."""
    if isinstance(value, Lazy):
        source = value._source
        if not isinstance(source, StateSource) or source.held is None:
            raise RuntimeError(
                f"the state '{name}' of {record.label()} is {source.label()} itself, which a "
                "generation does not keep: set it to a clone()")
        return {"of": source.held.name, "owner": source.record.name,
                "source": (source.size, source.stride, source.dtype),
                "view": (tuple(value.size()), value.stride(), value.storage_offset(), value.dtype)}
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
        return {"number": value.item(), "dtype": value.dtype}
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _plain(step: Any) -> Any:
    """A class's step() without the hooks of profiler and program, which run around Streamed's."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step
