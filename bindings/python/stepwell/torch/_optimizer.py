# SPDX-License-Identifier: Apache-2.0
"""The program's own optimizer object, whose steps use the tiers after offload().

Its class is replaced by one derived from Streamed and its old class, so that schedulers, scalers
and trainers keep their object. AdamW, Adam, SGD and Adagrad are stepped by kernels of the library.
Any other optimizer runs its own code, for one parameter after the other, over states that are
tensors of the library.
"""
from __future__ import annotations

import copy
import functools
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

import torch

from .._enums import Access
from .._optimizer import Hyper
from .._optimizer import Optimizer as Kernel
from .._tensor import TensorSpec
from ..errors import BudgetError
from ._records import (
    DTYPES, TRAINED, Record, at_address, memory_order, own_grad, read, set_own_grad, write,
)

if TYPE_CHECKING:
    from ._offload import Offload

_SMALL = 4096  # bytes; states up to this size stay in plain memory
_Off = torch._C.DisableTorchFunctionSubclass  # for fields of parameters that may be Absent


def _adam(group: Dict[str, Any]) -> Hyper:
    beta1, beta2 = group["betas"]
    return Hyper(lr=float(group["lr"]), beta1=float(beta1), beta2=float(beta2),
                 eps=float(group["eps"]), weight_decay=float(group["weight_decay"]),
                 maximize=bool(group["maximize"]))


def _sgd(group: Dict[str, Any]) -> Hyper:
    return Hyper(lr=float(group["lr"]), momentum=float(group["momentum"]),
                 dampening=float(group["dampening"]), weight_decay=float(group["weight_decay"]),
                 nesterov=bool(group["nesterov"]), maximize=bool(group["maximize"]))


def _adagrad(group: Dict[str, Any]) -> Hyper:
    return Hyper(lr=float(group["lr"]), lr_decay=float(group["lr_decay"]),
                 eps=float(group["eps"]), weight_decay=float(group["weight_decay"]),
                 maximize=bool(group["maximize"]))


class _Kind:
    """The mapping of a class of torch.optim to a kernel."""

    def __init__(self, algorithm: Callable[[Dict[str, Any]], str],
                 hyper: Callable[[Dict[str, Any]], Hyper],
                 states: Dict[str, str]) -> None:
        self.algorithm = algorithm
        self.hyper = hyper
        self.states = states  # maps torch's names to the library's


_KINDS = {
    torch.optim.AdamW: _Kind(lambda group: "adamw", _adam,
                             {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}),
    torch.optim.Adam: _Kind(
        lambda group: "adamw" if group.get("decoupled_weight_decay") else "adam", _adam,
        {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}),
    torch.optim.SGD: _Kind(lambda group: "sgd", _sgd, {"momentum_buffer": "momentum"}),
    torch.optim.Adagrad: _Kind(lambda group: "adagrad", _adagrad, {"sum": "sum"}),
}


def kind_of(optimizer: torch.optim.Optimizer) -> Optional[_Kind]:
    """The kernel of an optimizer; None: it runs its own code."""
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        return None
    algorithms = {kind.algorithm(group) for group in optimizer.param_groups}
    for group in optimizer.param_groups:
        if group.get("amsgrad") or group.get("capturable") or group.get("differentiable"):
            return None
        if group.get("initial_accumulator_value"):
            return None
    if type(optimizer) is torch.optim.SGD:
        # Groups with and without momentum differ in states; a kernel has only one form.
        if len({bool(group["momentum"]) for group in optimizer.param_groups}) > 1:
            return None
    return kind if len(algorithms) == 1 else None


def torch_order(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its kernel has to give the bits of torch's own loop: unless the program selected a
    faster form, whose bits differ."""
    return not any(group.get("fused") or group.get("foreach") for group in optimizer.param_groups)


def states_of(optimizer: torch.optim.Optimizer) -> int:
    """The maximum number of fp32 states per parameter, as far as known."""
    kind = kind_of(optimizer)
    if kind is None:
        return 3
    if type(optimizer) is torch.optim.SGD:
        return int(any(group["momentum"] for group in optimizer.param_groups))
    return len(kind.states)


def check_parameters(optimizer: torch.optim.Optimizer, known: Set[int]) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{optimizer!r} is no torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS works on all parameters at once, which tiers do not hold")
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in known for parameter in every)
    if foreign:
        raise ValueError(f"{foreign} of the {len(every)} parameters of the optimizer are not the "
                         "model's: make the optimizer from model.parameters()")


class Streamed:
    """The class by which offload() extends the class of an optimizer."""

    _stepwell: "Steps"
    param_groups: List[Dict[str, Any]]
    state: Dict[Any, Any]

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._stepwell.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        steps = self._stepwell
        steps.offload.mark()
        with _Off():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if "_stepwell" in self.__dict__:
            given = param_group["params"]
            given = [given] if isinstance(given, torch.Tensor) else list(given)
            param_group = {**param_group, "params": given}
            known = self._stepwell.offload.by_parameter
            if any(id(parameter) not in known for parameter in given):
                raise ValueError("a group with parameters that are not of the offloaded model")
        super().add_param_group(param_group)  # type: ignore[misc]

    def state_dict(self) -> Dict[str, Any]:
        """Like torch's, with copies of the states in memory."""
        return self._stepwell.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._stepwell.load_state_dict(state_dict)

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("an offloaded optimizer is not pickled or copied: use state_dict()")

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("an offloaded optimizer is not pickled or copied: use state_dict()")


_classes: Dict[type, type] = {}


def convert(optimizer: torch.optim.Optimizer, offload: "Offload") -> "Steps":
    before = type(optimizer)
    resumed = offload.commits.optimizer if offload.commits is not None else None
    if resumed is not None:
        _resume_groups(optimizer, resumed)
    kind = kind_of(optimizer)
    steps: Steps = (KernelSteps(optimizer, offload, kind) if kind is not None
                    else OwnSteps(optimizer, offload))
    made = _classes.get(before)
    if made is None:
        made = _classes[before] = type(before.__name__, (Streamed, before), {
            "__module__": before.__module__, "__doc__": before.__doc__})
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    if resumed is not None:
        steps.resume(resumed)
    else:
        steps.load(dict(optimizer.state))
    optimizer.state.clear()
    optimizer.__class__ = made
    optimizer._stepwell = steps  # type: ignore[attr-defined]
    optimizer._patch_step_function()  # type: ignore[no-untyped-call]
    _rewrap_step(optimizer)
    return steps


def _rewrap_step(optimizer: torch.optim.Optimizer) -> None:
    """Keep a scheduler's wrapper around step(). Schedulers wrap step() to count calls, and warn if
    the wrapper is removed. It calls the step() of the old class: replace this by a lookup in the
    current class."""
    known = optimizer.__dict__.pop("step", None)
    if not hasattr(known, "_wrapped_by_lr_sched"):
        return
    reference = weakref.ref(optimizer)

    @functools.wraps(type(optimizer).step)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer: Any = reference()
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]


def _resume_groups(optimizer: torch.optim.Optimizer, resumed: Dict[str, Any]) -> None:
    """Set the hyper-parameters of the groups to those of a generation."""
    name, groups = resumed["class"], resumed["groups"]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if type(optimizer).__name__ != name or sizes != resumed["sizes"]:
        raise ValueError(f"the generation has states of {name} with groups of {resumed['sizes']} "
                         f"parameters, and the optimizer is {type(optimizer).__name__} with groups "
                         f"of {sizes}: make it as it was made, or begin with overwrite=True and "
                         "without resume")
    for group, settings in zip(optimizer.param_groups, groups):
        group.update(settings)


def restore(optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimizer's original class, and its states in plain memory."""
    steps: Steps = optimizer._stepwell  # type: ignore[attr-defined]
    state = steps.states()
    optimizer.__class__ = steps.before
    del optimizer._stepwell  # type: ignore[attr-defined]
    _rewrap_step(optimizer)
    optimizer.state.update(state)


class Steps:
    """The common part of both kinds of steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload") -> None:
        self.optimizer = optimizer
        self.offload = offload
        self.before: Any = type(optimizer)

    def records(self) -> List[Tuple[int, Record]]:
        """(group, record) of each parameter, in the optimizer's order."""
        known = self.offload.by_parameter
        return [(at, known[id(parameter)])
                for at, group in enumerate(self.optimizer.param_groups)
                for parameter in group["params"]]

    def settings(self) -> List[Dict[str, Any]]:
        """The hyper-parameters of the groups."""
        return [_settings(group) for group in self.optimizer.param_groups]

    def step(self) -> None:
        offload = self.offload
        if offload.in_backward is not None:
            offload.in_backward.check_settings()
        offload.mark()
        # Gradients that the program has set itself, or that are older than the parameter's hook.
        every = self.records()
        with _Off():
            for _, record in every:
                if record.hooked is None and record.parameter.requires_grad:
                    record.hook()
                own = own_grad(record.parameter)
                if own is not None:
                    set_own_grad(record.parameter, None)
                    record.add_gradient(own)
        if offload.ranks is not None:
            offload.ranks.begin()
            offload.ranks.settle(self.may_be_empty(every))
        due = [(group, record) for group, record in every
               if record.has_gradient and not record.spent]
        try:
            if due:
                self.update(due)
            if offload.in_backward is not None:
                offload.in_backward.end_step()
        finally:
            offload.end_step()

    def may_be_empty(self, every: List[Tuple[int, Record]]) -> Set[Record]:
        """Parameters that update() skips if their gradient is empty."""
        return set()

    def update(self, due: List[Tuple[int, Record]]) -> None:
        raise NotImplementedError

    def update_early(self, due: List[Tuple[int, Record]]) -> None:
        """Update parameters during backward. Those without room are left to step()."""
        raise NotImplementedError

    def states(self) -> Dict[torch.Tensor, Dict[str, Any]]:
        raise NotImplementedError

    def load(self, state: Dict[Any, Dict[str, Any]]) -> None:
        raise NotImplementedError

    def kept(self) -> Dict[str, Any]:
        """Its part of a generation's metadata."""
        return {"class": self.before.__name__, "groups": self.settings(),
                "sizes": [len(group["params"]) for group in self.optimizer.param_groups]}

    def resume(self, kept: Dict[str, Any]) -> None:
        raise NotImplementedError

    def state_dict(self) -> Dict[str, Any]:
        optimizer = self.optimizer
        optimizer.state.update(self.states())
        try:
            return self.before.state_dict(optimizer)  # type: ignore[no-any-return]
        finally:
            optimizer.state.clear()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        optimizer = self.optimizer
        try:
            self.before.load_state_dict(optimizer, state_dict)
            self.load(dict(optimizer.state))
        finally:
            optimizer.state.clear()


class KernelSteps(Steps):
    """Steps by a kernel of the library."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload", kind: _Kind) -> None:
        super().__init__(optimizer, offload)
        self.kind = kind
        self._given: Dict[int, Hyper] = {}
        group = optimizer.param_groups[0]
        self.momentum = type(optimizer) is not torch.optim.SGD or bool(group["momentum"])
        self.kernel = Kernel(offload.runtime, kind.algorithm(group), kind.hyper(group),
                             name="optimizer", durable=offload.commits is not None,
                             torch_order=torch_order(optimizer))
        self._given[0] = kind.hyper(group)
        self._add([(at, record) for at, record in self.records()
                   if record.parameter.requires_grad])

    def _add(self, pairs: List[Tuple[int, Record]]) -> None:
        """Add the parameters that have no states yet, with their states."""
        for group in sorted({group for group, _ in pairs}):
            self._set_hyper(group)
            fresh = [record for at, record in pairs if at == group and record.group < 0]
            if fresh:
                self.kernel.add_many([(record.tensor, record.make_gradient())
                                      for record in fresh], group=group)
            for record in fresh:
                record.group = group

    def _set_hyper(self, group: int) -> None:
        hyper = self.kind.hyper(self.optimizer.param_groups[group])
        if self._given.get(group) != hyper:
            self.kernel.set_hyper(hyper, group=group)
            self._given[group] = hyper

    def update(self, due: List[Tuple[int, Record]]) -> None:
        self._add(due)
        for keep in (False, True):  # a gradient with its own place keeps it
            tensors = [record.tensor for _, record in due
                       if (self.offload.keep_gradients or record.place is not None) == keep]
            if tensors:
                self.kernel.step(tensors, verdict=False, keep_gradients=keep)
        for _, record in due:
            record.changes += 1
            record.spent = not self.offload.keep_gradients

    def may_be_empty(self, every: List[Tuple[int, Record]]) -> Set[Record]:
        return {record for _, record in every}

    update_early = update  # a queued step waits for its room after the call

    def states(self) -> Dict[torch.Tensor, Dict[str, Any]]:
        found = {}
        for _, record in self.records():
            count = self.kernel.count(record.tensor) if record.group >= 0 else 0
            if not count:
                continue
            values: Dict[str, Any] = {}
            if not isinstance(self.before(
                    [torch.nn.Parameter(torch.zeros(1))], lr=0.1), torch.optim.SGD):
                values["step"] = torch.tensor(float(count))
            for name, own in self.kind.states.items():
                if not self.momentum:
                    values[name] = None
                    continue
                values[name] = read(self.kernel.state(record.tensor, own), record.size,
                                    record.stride, torch.float32)
            found[record.parameter] = values
        return found

    def kept(self) -> Dict[str, Any]:
        return {**super().kept(), "added": [record.name for _, record in self.records()
                                            if record.group >= 0]}

    def resume(self, kept: Dict[str, Any]) -> None:
        """Add the parameters again, which restores their states and counts."""
        added = set(kept["added"])
        self._add([(group, record) for group, record in self.records() if record.name in added])

    def load(self, state: Dict[Any, Dict[str, Any]]) -> None:
        self._add([(group, record) for group, record in self.records()
                   if record.parameter in state])
        for parameter, values in state.items():
            record = self.offload.by_parameter[id(parameter)]
            for name, own in self.kind.states.items():
                if values.get(name) is not None:
                    write(self.kernel.state(record.tensor, own), values[name].float(),
                          record.stride)
            self.kernel.set_count(record.tensor, int(values.get("step", 1)))
        for group in range(len(self.optimizer.param_groups)):
            if group in self._given:
                self._set_hyper(group)


class _State:
    """A state of an optimizer without a kernel, in a tensor of the library."""

    def __init__(self, record: Record, name: str, value: torch.Tensor) -> None:
        self.size = tuple(value.size())
        self.stride = memory_order(value)
        self.dtype = value.dtype
        self.tensor = record.offload.runtime.create_many([TensorSpec(
            shape=value.numel(), dtype=DTYPES[value.dtype], name=f"{record.name}.{name}",
            role="optimizer_state", neighbour=TRAINED,
            durable=record.offload.commits is not None)])[0]
        if value.device.type != "meta":  # else its contents come from a generation
            write(self.tensor, value, self.stride)
        self.alias = at_address(self.tensor, self.size, self.stride)


class OwnSteps(Steps):
    """Steps of the optimizer's own code, one parameter at a time."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload") -> None:
        super().__init__(optimizer, offload)
        self._keep: Dict[Record, Dict[str, Any]] = {}
        for _, record in self.records():
            least = 2 * record.tensor.nbytes
            if record.parameter.requires_grad and least > offload.budget:
                raise BudgetError(
                    f"{self.before.__name__} is run by its own code, which is given all of a "
                    f"parameter with its gradient: {least} bytes of {record.label()}, and the "
                    f"device budget is {offload.budget} bytes. Use AdamW, Adam, SGD or Adagrad of "
                    "torch.optim, which have kernels that update a parameter in parts (without "
                    "amsgrad and the like), or raise device_bytes")

    def update(self, due: List[Tuple[int, Record]]) -> None:
        self._each(due, len(due) > 1)

    def update_early(self, due: List[Tuple[int, Record]]) -> None:
        for group, record in due:
            changes = record.changes
            try:
                self._each([(group, record)], True)
            except BudgetError:  # held units use the room
                if record.changes != changes:
                    raise

    def _each(self, due: List[Tuple[int, Record]], among_others: bool) -> None:
        optimizer = self.optimizer
        parameters = [group["params"] for group in optimizer.param_groups]
        before = self.settings()
        try:
            for group in optimizer.param_groups:
                group["params"] = []
            for at, record in due:
                optimizer.param_groups[at]["params"] = [record.parameter]
                self._one(record)
                optimizer.param_groups[at]["params"] = []
                after = self.settings()
                if among_others and str(after) != str(before):
                    changed = [key for key in after[at] if str(after[at][key])
                               != str(before[at].get(key))]
                    raise NotImplementedError(
                        f"{self.before.__name__} keeps {changed or 'values'} for all parameters "
                        "together and changes it in a step, so it cannot be run for one parameter "
                        "after the other: use one whose state is each parameter's own")
        finally:
            for group, kept in zip(optimizer.param_groups, parameters):
                group["params"] = kept

    def _one(self, record: Record) -> None:
        offload, optimizer = self.offload, self.optimizer
        kept = self._keep.setdefault(record, {})
        states = {name: value for name, value in kept.items() if isinstance(value, _State)}
        assert record.gradient is not None
        views = offload.runtime.fetch_many(
            [record.tensor, record.gradient] + [state.tensor for state in states.values()],
            Access.READ_WRITE)
        record.pin()
        try:
            shown = {name: state.alias for name, state in states.items()}
            optimizer.state[record.parameter] = {
                name: shown.get(name, value) for name, value in kept.items()}
            set_own_grad(record.parameter, at_address(record.gradient, record.size, record.stride))
            _plain(self.before.step)(optimizer)
            result = optimizer.state.pop(record.parameter, {})
            fresh = {}
            for name, value in result.items():
                if name in shown and value is shown[name]:
                    kept[name] = states[name]
                else:
                    fresh[name] = value
            for name in set(kept) - set(result):
                del kept[name]
        finally:
            optimizer.state.clear()
            set_own_grad(record.parameter, None)
            record.seen = record.alias._version
            record.unpin()
            record.changes += 1
            views.release()
        for name, value in fresh.items():
            kept[name] = self._kept(record, name, value, kept.get(name))
        if not offload.keep_gradients:
            if record.place is None:
                record.discard_gradient()
            record.spent = True

    def _kept(self, record: Record, name: str, value: Any, known: Any) -> Any:
        least = _SMALL if self.offload.commits is None else 4  # the room for metadata is small
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES \
                or value.numel() * value.element_size() <= least:
            return value
        if isinstance(known, _State) and known.size == tuple(value.size()) \
                and known.dtype == value.dtype:
            write(known.tensor, value, known.stride)
            return known
        if isinstance(known, _State):
            known.tensor.destroy()
        return _State(record, name, value)

    def states(self) -> Dict[torch.Tensor, Dict[str, Any]]:
        return {record.parameter: {
            name: read(value.tensor, value.size, value.stride, value.dtype)
            if isinstance(value, _State) else copy.deepcopy(value)
            for name, value in kept.items()} for record, kept in self._keep.items()}

    def load(self, state: Dict[Any, Dict[str, Any]]) -> None:
        for parameter, values in state.items():
            record = self.offload.by_parameter[id(parameter)]
            kept = self._keep.setdefault(record, {})
            for name, value in values.items():
                kept[name] = self._kept(record, name, value, kept.get(name))


    def kept(self) -> Dict[str, Any]:
        return {**super().kept(), "states": {
            record.name: {name: _described(value) for name, value in kept.items()}
            for record, kept in self._keep.items()}}

    def resume(self, kept: Dict[str, Any]) -> None:
        for _, record in self.records():
            states = kept["states"].get(record.name)
            if states is not None:
                self._keep[record] = {name: _of_description(record, name, value)
                                      for name, value in states.items()}


def _described(value: Any) -> Any:
    """A state for the metadata. A tensor costs hundreds of bytes there, so numbers are plain."""
    if isinstance(value, _State):
        return {"size": value.size, "stride": value.stride, "dtype": value.dtype}
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
        return {"number": value.item(), "dtype": value.dtype}
    return value


def _of_description(record: Record, name: str, value: Any) -> Any:
    if isinstance(value, dict) and "stride" in value:
        return _State(record, name, torch.empty_strided(
            value["size"], value["stride"], dtype=value["dtype"], device="meta"))
    if isinstance(value, dict) and "number" in value:
        return torch.tensor(value["number"], dtype=value["dtype"])
    return value


def _plain(step: Any) -> Any:
    """A class's step() without the hooks of profiler and program, which Streamed.step() runs."""
    return getattr(step, "__wrapped__", step)


def _settings(group: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}
