# SPDX-License-Identifier: Apache-2.0
"""The program's own optimizer object, whose steps use the tiers after offload().

Its class is replaced by one derived from Streamed and its old class, so that schedulers, scalers
and trainers keep their object. AdamW, Adam, SGD and Adagrad are stepped by kernels of the library.
Any other optimizer runs its own code, once a step, over parameters, gradients and states that are
fetched as its loop reaches them.
"""
from __future__ import annotations

import collections
import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._optimizer import Hyper
from .._optimizer import Optimizer as Kernel
from .._tensor import TensorSpec
from ..errors import BudgetError
from ._lazy import Lazy, Window, alone
from ._records import (
    CONSUMED, DTYPES, TRAINED, Offloaded, Record, memory_order, own_grad, set_own_grad, write,
)
from ._states import (
    CountSource, MasterSource, ParameterState, States, StateSource, copied, parts, whole,
)

if TYPE_CHECKING:
    from ._offload import Offload

MASTER = "master_param"  # the name in state_dict() of a 16-bit parameter's fp32 master
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
                 states: Dict[str, str], eager: bool = False) -> None:
        self.algorithm = algorithm
        self.hyper = hyper
        self.states = states  # maps torch's names to the library's
        self.eager = eager    # torch makes the states in the constructor


_KINDS = {
    torch.optim.AdamW: _Kind(
        lambda group: "adamw" if group.get("decoupled_weight_decay", True) else "adam", _adam,
                             {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}),
    torch.optim.Adam: _Kind(
        lambda group: "adamw" if group.get("decoupled_weight_decay") else "adam", _adam,
        {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}),
    torch.optim.SGD: _Kind(lambda group: "sgd", _sgd, {"momentum_buffer": "momentum"}),
    torch.optim.Adagrad: _Kind(lambda group: "adagrad", _adagrad, {"sum": "sum"}, eager=True),
}


def kind_of(optimizer: torch.optim.Optimizer, own: Any = None) -> Optional[_Kind]:
    """The kernel of an optimizer; None: it runs its own code. own: its class before offload()."""
    own = own or type(optimizer)
    kind = _KINDS.get(own)
    if kind is None:
        return None
    algorithms = {kind.algorithm(group) for group in optimizer.param_groups}
    for group in optimizer.param_groups:
        if group.get("amsgrad") or group.get("capturable") or group.get("differentiable"):
            return None
        if group.get("initial_accumulator_value"):
            return None
        if own is not torch.optim.SGD and any(
                isinstance(value, torch.Tensor) for name in ("lr", "betas", "eps", "lr_decay")
                for value in _numbers(group.get(name))):
            return None  # torch computes with them in fp32
    if own is torch.optim.SGD:
        # Groups with and without momentum differ in states; a kernel has only one form.
        if len({bool(group["momentum"]) for group in optimizer.param_groups}) > 1:
            return None
    return kind if len(algorithms) == 1 else None


def _numbers(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


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
    if "step" in vars(optimizer) and not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise TypeError("the optimizer has a step() of its own, which was set on the object and "
                        "calls that of its class: set it after offload()")
    if kind_of(optimizer) is None:
        for form in ("foreach", "fused"):
            if any(group.get(form) for group in optimizer.param_groups):
                raise TypeError(
                    f"{type(optimizer).__name__} with {form}=True is run by its own code, which "
                    f"works on all parameters at once then, and tiers do not hold them: make it "
                    f"with {form}=False, which goes from one to the next")
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in known for parameter in every)
    if foreign:
        raise ValueError(f"{foreign} of the {len(every)} parameters of the optimizer are not the "
                         "model's: make the optimizer from model.parameters()")


def _is_late(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Warn of an optimizer that offload() was not given, at its first step."""
    if isinstance(optimizer, Streamed) or optimizer.__dict__.get("_stepwell_seen"):
        return
    optimizer._stepwell_seen = True  # type: ignore[attr-defined]
    if not isinstance(optimizer.state, States) and any(
            isinstance(parameter, Offloaded) for group in optimizer.param_groups
            for parameter in group["params"]):
        warnings.warn(
            f"{type(optimizer).__name__} has parameters of an offloaded model and was not given to "
            "offload(): its states are in plain memory, beside the budgets. Make it before "
            "offload(model, optimizer, ...)", stacklevel=4)


register_optimizer_step_pre_hook(_is_late)


class Streamed:
    """The class by which offload() extends the class of an optimizer."""

    _stepwell: "Steps"
    param_groups: List[Dict[str, Any]]

    @property
    def state(self) -> Any:
        steps = self.__dict__.get("_stepwell")
        if steps is None:
            return self.__dict__["state"]
        steps.look()
        return steps.state

    @state.setter
    def state(self, values: Any) -> None:
        self._stepwell.state.replace(values)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        steps = self._stepwell
        if steps.offload.inside():
            return steps.step(args, kwargs)
        return steps.offload.alone(steps.step, args, kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._stepwell.offload.mark()
        if not set_to_none or self._stepwell.own_zero_grad:
            super().zero_grad(set_to_none)  # type: ignore[misc]
            return
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
        """Like torch's, whose tensors are the states themselves: they stay in tiers until they are
        used, and a copy or a file of them has their values."""
        return self._stepwell.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._stepwell.load_state_dict(state_dict)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        values = state.pop("state", None)  # torch's load_state_dict() passes it this way
        super().__setstate__(state)  # type: ignore[misc]
        if values is not None:
            self.state = values

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
    before_state = optimizer.__dict__.pop("state")
    optimizer.__class__ = made
    optimizer._stepwell = steps  # type: ignore[attr-defined]
    if resumed is not None:
        steps.resume(resumed)
    else:
        steps.state.replace(before_state)
    steps.settle()
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
    optimizer.__class__ = steps.before
    del optimizer._stepwell  # type: ignore[attr-defined]
    _rewrap_step(optimizer)
    steps.restore()


def _in_memory(states: States) -> Any:
    """The mapping as torch has it, after close()."""
    found: Any = collections.defaultdict(dict)
    for parameter, state in states.items():
        found[parameter] = {
            name: _settled(value) for name, value in parts(state)}
    return found


def _settled(value: Any) -> Any:
    """The memory that an object of a state has from now on."""
    if not isinstance(value, Lazy):
        return value
    value._source.settle()
    return value.in_memory()


class Steps:
    """The common part of both kinds of steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload") -> None:
        self.optimizer = optimizer
        self.offload = offload
        self.before: Any = type(optimizer)
        self.own_zero_grad = self.before.zero_grad is not torch.optim.Optimizer.zero_grad
        self.state = States(self)

    def records(self) -> List[Tuple[int, Record]]:
        """(group, record) of each parameter, in the optimizer's order."""
        known = self.offload.by_parameter
        return [(at, known[id(parameter)])
                for at, group in enumerate(self.optimizer.param_groups)
                for parameter in group["params"]]

    def record_of(self, parameter: Any) -> Optional[Record]:
        """The record of a key of optimizer.state."""
        return self.offload.by_parameter.get(id(parameter))

    def settings(self) -> List[Dict[str, Any]]:
        """The hyper-parameters of the groups."""
        return [_settings(group) for group in self.optimizer.param_groups]

    def step(self, args: Any, kwargs: Any) -> Any:
        """The optimizer's step(), with its arguments."""
        raise NotImplementedError

    def _begin(self) -> List[Tuple[int, Record]]:
        """The beginning of a step; returns all (group, record)."""
        offload = self.offload
        if offload.in_backward is not None:
            offload.in_backward.check_settings()
        offload.mark()
        if offload.shown:
            offload.check_shown("step() is called")
        every = self.records()
        with _Off():
            for _, record in every:
                if record.hooked is None and record.parameter.requires_grad:
                    record.hook()
                own = own_grad(record.parameter)
                if own is not None and not record.given:  # older than the parameter's hook
                    set_own_grad(record.parameter, None)
                    record.add_gradient(own)
        if offload.ranks is not None:
            offload.ranks.begin()
            offload.ranks.settle(self.may_be_empty(every))
        return every

    def _due(self, every: List[Tuple[int, Record]]) -> List[Tuple[int, Record]]:
        """Those that have a gradient, without those that were updated in backward."""
        taken = self.offload.in_backward
        for _, record in every:
            if record.spent and (taken is None or not taken.has_taken(record)):
                raise RuntimeError(
                    f"step() needs the gradient of {record.label()}, which was {CONSUMED}: call "
                    "zero_grad() before the next backward pass, or offload with "
                    "keep_gradients=True")
        return [(group, record) for group, record in every
                if record.has_gradient and not record.spent]

    def may_be_empty(self, every: List[Tuple[int, Record]]) -> Set[Record]:
        """Parameters that a step skips if their gradient is empty."""
        return set()

    def update_early(self, due: List[Tuple[int, Record]]) -> None:
        """Update parameters during backward. Those without room are left to step()."""
        raise NotImplementedError

    # -- states -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Somebody looks at optimizer.state."""

    def read_state(self, state: ParameterState, name: Any) -> None:
        """The program reads an entry."""

    def state_set(self, state: ParameterState, name: Any) -> None:
        """The program has assigned an entry, or removed it."""
        raise NotImplementedError

    def settle(self) -> None:
        """Move what the program has assigned to tiers."""
        raise NotImplementedError

    def restore(self) -> None:
        """Give the optimizer plain states, after close()."""
        self.optimizer.state = _in_memory(self.state)

    def kept(self) -> Dict[str, Any]:
        """Its part of a generation's metadata."""
        return {"class": self.before.__name__, "groups": self.settings(),
                "sizes": [len(group["params"]) for group in self.optimizer.param_groups]}

    def resume(self, kept: Dict[str, Any]) -> None:
        raise NotImplementedError

    def state_dict(self) -> Dict[str, Any]:
        self.prepare()
        made = self.before.state_dict(self.optimizer)
        made["state"] = {key: self.saved(value) if isinstance(value, ParameterState) else value
                         for key, value in made["state"].items()}
        return made  # type: ignore[no-any-return]

    def prepare(self) -> None:
        """The states are about to be saved."""
        self.settle()

    def saved(self, state: ParameterState) -> Dict[Any, Any]:
        """A parameter's part of state_dict()."""
        return dict(parts(state))

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.before.load_state_dict(self.optimizer, state_dict)
        self.settle()


class KernelSteps(Steps):
    """Steps by a kernel of the library."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload", kind: _Kind) -> None:
        super().__init__(optimizer, offload)
        self.kind = kind
        self._given: Dict[int, Hyper] = {}
        group = optimizer.param_groups[0]
        self.momentum = type(optimizer) is not torch.optim.SGD or bool(group["momentum"])
        self.names = dict(kind.states) if self.momentum else {}
        self.counts = type(optimizer) is not torch.optim.SGD  # whether torch has a state "step"
        self._changed: Dict[Record, ParameterState] = {}  # by the program, and not in the kernel
        self._pending = False   # an update may still be under way
        self._unsure: Dict[Record, None] = {}  # over ranks: updated if any rank had a gradient
        self._masters: Dict[Record, torch.Tensor] = {}  # loaded, for the next update
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
                self.finish()
                self.offload.room(self.kernel.add_many, [
                    (record.tensor, record.make_gradient()) for record in fresh], group=group)
            for record in fresh:
                record.group = group
                if record.parameter in self.state:
                    self._changed.setdefault(record, self.state.shown(record))
            for at, record in pairs:
                if at == group and record.group != group:
                    raise RuntimeError(
                        f"{record.label()} was updated in group {record.group} of the optimizer "
                        f"and is in group {group} now: a parameter in tiers keeps its group, so "
                        "close() the model, change the groups and offload again")

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
        self.kernel.set_hyper(hyper, group=group)
        self._given[group] = hyper

    def step(self, args: Any, kwargs: Any) -> Any:
        loss = None
        closure = _closure(*args, **kwargs)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        kind = kind_of(self.optimizer, self.before)
        if kind is None or kind.algorithm(self.optimizer.param_groups[0]) != self.kernel.algorithm:
            raise RuntimeError(
                f"{self.before.__name__} was offloaded to be stepped by a kernel, and its groups "
                "ask for what it has not now (amsgrad, capturable, differentiable, another kind of "
                "decay, groups that differ in having momentum, tensors as hyper-parameters): "
                "close() the model and offload again")
        offload = self.offload
        try:
            every = self._begin()
            lent = [record for _, record in every if record.given]
            for record in lent:
                offload.gradients.lend(record)
            due = self._due(every)
            if due:
                self.update(due)
            for record in lent:
                offload.gradients.lent(record)
            # With no transfers to wait for, an update beside the next forward pass would only take
            # one of its cores, for which torch's other threads wait.
            if offload.resident or any(record.seen_outside() for _, record in every):
                self.finish()
            if offload.in_backward is not None:
                offload.in_backward.end_step()
        finally:
            offload.end_step()
        return loss

    def update(self, due: List[Tuple[int, Record]]) -> None:
        self._add(due)
        if self._changed:
            self.settle()
        if self._masters:
            self._give_masters()
        for keep in (False, True):  # a gradient with its own place keeps it
            tensors = [record.tensor for _, record in due
                       if (self.offload.keep_gradients or record.place is not None) == keep]
            if tensors:
                self._pending = True
                self.kernel.step(tensors, verdict=False, keep_gradients=keep)
        for _, record in due:
            record.changes += 1
            record.spent = not self.offload.keep_gradients
            if not self.state.get(record.parameter):
                if self.offload.ranks is None:
                    self._show(record)
                else:
                    self._unsure[record] = None
            if not record.elements and self.counts:  # a kernel counts updates of elements
                self.state[record.parameter]["step"].add_(1)

    def may_be_empty(self, every: List[Tuple[int, Record]]) -> Set[Record]:
        return {record for _, record in every}

    def update_early(self, due: List[Tuple[int, Record]]) -> None:
        # A queued step waits for its room after the call; parameters are added between steps.
        known = [(group, record) for group, record in due if record.group >= 0]
        if known:
            self.update(known)

    # -- states -----------------------------------------------------------------------------------

    def count(self, record: Record) -> int:
        """The number of its updates, those under way included."""
        self.finish()
        return self.kernel.count(record.tensor) if record.group >= 0 else 0

    def finish(self) -> None:
        """Wait for the updates under way."""
        if self._pending:
            self.offload.runtime.drain()
            self._pending = False

    def set_count(self, record: Record, count: int) -> None:
        self.count(record)  # no update may be under way
        self.kernel.set_count(record.tensor, count)

    def look(self) -> None:
        unsure, self._unsure = self._unsure, {}
        for record in unsure:
            if self.count(record) and not self.state.get(record.parameter):
                self._show(record)

    def _show(self, record: Record) -> None:
        """Make the entries that torch has after the first update."""
        if not self.names and not self.counts:
            return
        state = self.state.shown(record)
        if self.counts:
            state.show("step", CountSource(self, record).lazy() if record.elements
                       else torch.zeros(()))
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
        elif name in self.names or name == "step":
            self._changed[state.record] = state

    def master_of(self, record: Record) -> Optional[MasterSource]:
        """The fp32 values that updates of a 16-bit parameter go on from, if there are any."""
        if record.dtype.itemsize >= 4 or record.group < 0 or self.offload.ranks is not None \
                or not record.elements or not self.count(record):
            return None
        return MasterSource(record, self.kernel)

    def prepare(self) -> None:
        self.look()
        self.settle()
        self._give_masters()

    def _give_masters(self) -> None:
        """Go on from the masters that were loaded, where the weights are still the values of them
        in their dtype: other weights have been changed since, as plain torch would train them."""
        masters, self._masters = self._masters, {}
        for record, values in masters.items():
            if record.group < 0:
                continue
            now = self.offload.accesses.copy_of(record)
            own = now.float()
            MasterSource(record, self.kernel).write(
                torch.where(values.to(record.dtype) == now, values, own))

    def saved(self, state: ParameterState) -> Dict[Any, Any]:
        master = self.master_of(state.record)
        return {**super().saved(state), **({} if master is None else {MASTER: master.lazy()})}

    def restore(self) -> None:
        self.prepare()
        for state in self.state.values():
            master = self.master_of(state.record) if isinstance(state, ParameterState) else None
            if master is not None:
                state.show(MASTER, master.lazy())
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
            state.show(name, self._lazy(record, name, own))
        step = values.get("step", max(1, self.kernel.count(record.tensor)))
        if not isinstance(step, Lazy):
            self.kernel.set_count(record.tensor, whole(step, record))
        if self.counts and not isinstance(step, Lazy):
            state.show("step", CountSource(self, record).lazy())

    def kept(self) -> Dict[str, Any]:
        self.prepare()
        return {**super().kept(), "added": [record.name for _, record in self.records()
                                            if record.group >= 0]}

    def resume(self, kept: Dict[str, Any]) -> None:
        """Add the parameters again, which restores their states and counts."""
        added = set(kept["added"])
        self._add([(group, record) for group, record in self.records() if record.name in added])
        self._changed.clear()
        for _, record in self.records():
            if self.kind.eager or self.count(record):
                self._show(record)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As torch's, but states of 16-bit parameters keep their own dtype: torch converts them to
        the parameter's, and the kernel has them in fp32."""
        seen: List[Dict[str, Any]] = []
        handle = self.optimizer.register_load_state_dict_pre_hook(
            lambda _, given: seen.append(given))
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


class OwnSteps(Steps):
    """Steps of the optimizer's own code."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload") -> None:
        super().__init__(optimizer, offload)
        self._assigned: Dict[Tuple[int, Any], ParameterState] = {}  # values that are still plain
        self._places: Dict[str, "weakref.ref[StateSource]"] = {}    # by the name of their tensor
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
                closure = _closure(*args, **kwargs)
                result = None
                if closure is not None:
                    with torch.enable_grad():
                        result = closure()
                for group, record in self._due(every):
                    self._one(group, record)
                offload.in_backward.end_step()
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
            if record.has_gradient and not record.spent:
                if record.place is None:
                    record.discard_gradient()
                record.spent = True

    def update_early(self, due: List[Tuple[int, Record]]) -> None:
        for group, record in due:
            version = record.alias._version
            try:
                self._one(group, record)
            except BudgetError:  # held units use the room
                if record.alias._version != version:
                    raise

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

    def _all(self) -> Iterator[Tuple[str, States]]:
        """(suffix of names, states) of the optimizer and of those that it steps itself."""
        yield "", self.state
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

    def settle(self) -> None:
        for (key, name), state in list(self._assigned.items()):
            if self._leave(state, name):
                del self._assigned[key, name]

    def _leave(self, state: ParameterState, name: Any) -> bool:
        """Move a state to tiers, unless the program refers to its memory. Returns whether it has
        not to be looked at again."""
        value = dict.get(state, name)
        least = _SMALL if self.offload.commits is None else 4  # the room for metadata is small
        if not isinstance(value, torch.Tensor) or isinstance(value, Lazy) \
                or value.dtype not in DTYPES or value.layout is not torch.strided \
                or value.requires_grad or value.device.type != "cpu" \
                or value.numel() * value.element_size() <= least:
            return True
        del value
        if not alone(state, name):
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
        for suffix, states in self._all():
            if dict.get(states, state.record.parameter) is state:
                return f"{state.record.name}{suffix}.{name}"
        return f"{state.record.name}.{name}"

    def _source(self, record: Record, full: str, name: str, size: Tuple[int, ...],
                stride: Tuple[int, ...], dtype: torch.dtype) -> StateSource:
        self.offload.destroy_ended()
        elements = 1
        for each in size:
            elements *= each
        tensor = self.offload.room(self.offload.runtime.create_many, [TensorSpec(
            shape=elements, dtype=DTYPES[dtype], name=full, role="optimizer_state",
            neighbour=TRAINED, durable=self.offload.commits is not None)])[0]
        source = StateSource(record, name, tensor, size, stride, dtype, owned=True)
        self._places[full] = weakref.ref(source)
        return source

    def restore(self) -> None:
        super().restore()
        for each in self._inner:
            if isinstance(each.state, States):
                each.state = _in_memory(each.state)

    def kept(self) -> Dict[str, Any]:
        self.settle()
        return {**super().kept(), "states": [
            {record.name: {name: _described(value) for name, value in parts(state)}
             for record, state in ((self.record_of(key), each) for key, each in states.items())
             if record is not None} for _, states in self._all()]}

    def resume(self, kept: Dict[str, Any]) -> None:
        for (suffix, states), found in zip(self._all(), kept["states"]):
            for _, record in self.records():
                for name, value in found.get(record.name, {}).items():
                    if isinstance(value, dict) and "stride" in value:
                        value = self._source(record, f"{record.name}{suffix}.{name}", name,
                                             value["size"], value["stride"],
                                             value["dtype"]).lazy()
                    elif isinstance(value, dict) and "number" in value:
                        value = torch.tensor(value["number"], dtype=value["dtype"])
                    states.shown(record).show(name, value)


def _closure(closure: Any = None) -> Any:
    """The argument of torch's step()."""
    return closure


def _described(value: Any) -> Any:
    """A state for the metadata. A tensor costs hundreds of bytes there, so numbers are plain."""
    if isinstance(value, Lazy):
        source = value._source
        return {"size": source.size, "stride": source.stride, "dtype": source.dtype}
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
        return {"number": value.item(), "dtype": value.dtype}
    return value


def _plain(step: Any) -> Any:
    """A class's step() without the hooks of profiler and program, which run around Streamed's."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _settings(group: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}
