# SPDX-License-Identifier: Apache-2.0
"""The program's own optimizer object, whose steps use the tiers after offload().

Its class is replaced by one derived from Streamed and its old class, so that schedulers, scalers
and trainers keep their object. AdamW, Adam, SGD and Adagrad are stepped by kernels of the library.
Any other optimizer runs its own code.
"""
from __future__ import annotations

import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Set

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ._kernel_steps import KernelSteps
from ._kinds import kind_of
from ._own_steps import OwnSteps
from ._private import ends_graph
from ._records import Offloaded
from ._states import States
from ._steps import Steps, check_closure

if TYPE_CHECKING:
    from ._offload import Offload

_Off = torch._C.DisableTorchFunctionSubclass  # for fields of parameters that may be Absent


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
    if len({id(parameter) for parameter in every}) < len(every):
        raise ValueError("a parameter is in the optimizer's groups twice, and plain torch updates "
                         "it twice a step, with two counts: give each parameter once")


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

    _stepwell: Steps
    param_groups: List[Dict[str, Any]]

    @property
    def state(self) -> Any:
        steps = self.__dict__.get("_stepwell")
        if steps is None:
            return self.__dict__["state"]
        early = steps.offload.in_backward
        if early is not None and steps.offload.window is None:
            early.check_ended("optimizer.state is used")
        steps.take_edits()
        steps.look()
        return steps.state

    @state.setter
    def state(self, values: Any) -> None:
        self._stepwell.look()
        self._stepwell.replace_state(values)

    @ends_graph
    def step(self, *args: Any, **kwargs: Any) -> Any:
        steps = self._stepwell
        check_closure(steps.offload.place, (*args, *kwargs.values()))
        if steps.offload.inside():
            return steps.step(args, kwargs)
        return steps.offload.alone(steps.step, args, kwargs)

    @ends_graph
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


def convert(optimizer: torch.optim.Optimizer, offload: "Offload") -> Steps:
    before = type(optimizer)
    resumed = offload.commits.optimizer if offload.commits is not None else None
    if resumed is not None:
        for group, settings in zip(optimizer.param_groups, resumed["groups"]):
            group.update(settings)
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
        steps.resume(resumed, before_state)
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


def check_resumed(optimizer: torch.optim.Optimizer, resumed: Dict[str, Any], strict: bool) -> None:
    """Raise if a generation has the states of another optimizer. strict: with other parameters."""
    name = resumed["class"]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    alike = sizes == resumed["sizes"] if strict else len(sizes) == len(resumed["sizes"])
    if type(optimizer).__name__ != name or not alike:
        raise ValueError(f"the generation has states of {name} with groups of {resumed['sizes']} "
                         f"parameters, and the optimizer is {type(optimizer).__name__} with groups "
                         f"of {sizes}: make it as it was made, or begin with overwrite=True and "
                         "without resume")


def restore(optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimizer's original class, and its states in plain memory."""
    steps: Steps = optimizer._stepwell  # type: ignore[attr-defined]
    optimizer.__class__ = steps.before
    del optimizer._stepwell  # type: ignore[attr-defined]
    _rewrap_step(optimizer)
    steps.restore()
