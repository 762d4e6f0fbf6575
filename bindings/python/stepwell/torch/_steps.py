# SPDX-License-Identifier: Apache-2.0
"""The common part of an optimizer's steps, by kernels (_kernel_steps.py) and by its own code
(_own_steps.py)."""
from __future__ import annotations

import collections
import sys
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import torch

from ._held import Held
from ._lazy import Lazy
from ._place import Place
from ._records import CONSUMED, Record, own_grad, set_own_grad
from ._states import ParameterState, States, copied, parts

if TYPE_CHECKING:
    from ._offload import Offload

_Off = torch._C.DisableTorchFunctionSubclass  # for fields of parameters that may be Absent


class Steps:
    """The common part of both kinds of steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, offload: "Offload") -> None:
        self.optimizer = optimizer
        self.offload = offload
        self.before: Any = type(optimizer)
        self.own_zero_grad = self.before.zero_grad is not torch.optim.Optimizer.zero_grad
        self.state = States(self)
        # The dicts in what state_dict() returned, whose entries were these.
        self._handed: List[Tuple[Dict[Any, Any], ParameterState, Dict[Any, Any]]] = []

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
        return [{key: value for key, value in group.items() if key != "params"}
                for group in self.optimizer.param_groups]

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
        offload.check_lent()
        if self._handed:
            self.take_edits()
        every = self.records()
        with _Off():
            for _, record in every:
                if record.hooked is None and record.parameter.requires_grad:
                    record.hook()
                own = own_grad(record.parameter)
                if own is None or record.given or offload.plain_gradients:
                    continue
                set_own_grad(record.parameter, None)  # it is older than the parameter's hook
                record.add_gradient(own)
        if offload.ranks is not None:
            offload.ranks.begin()
            offload.ranks.settle(self.may_be_empty(every))
        return every

    def _due(self, every: List[Tuple[int, Record]]) -> List[Tuple[int, Record]]:
        """Those that have a gradient, without those that were updated in backward."""
        taken = self.offload.in_backward
        for _, record in every:
            if record.held is Held.SPENT and (taken is None or not taken.has_taken(record)):
                raise RuntimeError(
                    f"step() needs the gradient of {record.label()}, which was {CONSUMED}: call "
                    "zero_grad() before the next backward pass, or offload with "
                    "keep_gradients=True")
        return [(group, record) for group, record in every
                if record.held is Held.SUM or record.has_own_gradient()]

    def may_be_empty(self, every: List[Tuple[int, Record]]) -> Set[Record]:
        """Parameters that a step skips if their gradient is empty."""
        return set()

    def update_early(self, due: List[Tuple[int, Record]]) -> List[Record]:
        """Update parameters during backward. Returns those that are left to step()."""
        raise NotImplementedError

    # -- states -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Somebody looks at optimizer.state."""

    def read_state(self, state: ParameterState, name: Any) -> None:
        """The program reads an entry."""

    def state_set(self, state: ParameterState, name: Any) -> None:
        """The program has assigned an entry, or removed it."""
        raise NotImplementedError

    def forget_state(self, state: ParameterState) -> None:
        """It is no entry of optimizer.state any more."""

    def replace_state(self, values: Any) -> None:
        """The program assigns optimizer.state. What was it until now, and the dict that the program
        had given for it, keep their entries; the dict that it gives now has those of the new one,
        as in torch, where it is optimizer.state itself."""
        if values is self.state:
            return
        new = States(self)
        dict.update(new, self.state)
        new._arranged = set(self.state._arranged)
        before = weakref.ref(self.state)
        self.state.given = None  # it lives on if the program has it
        self.state = new
        new.replace(values)
        last = before()
        if last is not None:
            last.leave()
        if isinstance(values, dict):
            new.given = values
            for parameter, state in dict.items(new):
                dict.__setitem__(values, parameter, state)

    def settle(self) -> None:
        """Move what the program has assigned to tiers."""
        raise NotImplementedError

    def restore(self) -> None:
        """Give the optimizer plain states, after close()."""
        self.optimizer.state = in_memory(self.state)

    def kept(self) -> Dict[str, Any]:
        """Its part of a generation's metadata."""
        return {"class": self.before.__name__, "groups": self.settings(), "others": self.others(),
                "sizes": [len(group["params"]) for group in self.optimizer.param_groups]}

    def all_states(self) -> Iterator[Tuple[str, States]]:
        """(suffix of names, states) of the optimizer and of those that it steps itself."""
        yield "", self.state

    def others(self) -> List[Any]:
        """What is in the states under keys that are no parameters, with its places."""
        return [[(at, key, copied(value)) for at, (key, value) in enumerate(dict.items(states))
                 if self.record_of(key) is None] for _, states in self.all_states()]

    def resume_others(self, kept: List[Any]) -> None:
        """After the states of parameters."""
        for (_, states), found in zip(self.all_states(), kept):
            order = list(states)
            for at, key, value in found:
                states[key] = value
                order.insert(at, key)
            for key in order:
                states.put_last(key)

    def resume(self, kept: Dict[str, Any], first: Any) -> None:
        """Take the states of a generation; first: those that the constructor made."""
        raise NotImplementedError

    def state_dict(self) -> Dict[str, Any]:
        def save(_: Any, made: Dict[str, Any]) -> None:  # before hooks of the program see it
            made["state"] = {key: self._hand(value) if isinstance(value, ParameterState) else value
                             for key, value in made["state"].items()}
            made["state"].update(self.alone(made["state"]))
        self.prepare()
        handle = self.optimizer.register_state_dict_post_hook(save, prepend=True)
        try:
            made: Dict[str, Any] = self.before.state_dict(self.optimizer)
        finally:
            handle.remove()
        if "state" in made:  # of a class that calls no hooks
            save(None, made)
        return made

    def _hand(self, state: ParameterState) -> Dict[Any, Any]:
        made = self.saved(state)
        self._handed.append((made, state, dict(made)))
        return made

    def take_edits(self) -> None:
        """Make the edits of what state_dict() returned, whose dicts torch shares with the state."""
        handed, self._handed = self._handed, []
        while handed:
            kept = _references(handed) > _BASE
            made, state, before = handed.pop()
            for name in [*made, *(each for each in before if each not in made)]:
                if made.get(name) is before.get(name) and name in made:
                    continue
                if name in made:
                    state[name] = made[name]
                elif name in state:
                    del state[name]
            if kept:
                self._handed.append((made, state, dict(made)))

    def prepare(self) -> None:
        """The states are about to be saved."""
        self.take_edits()
        self.settle()

    def saved(self, state: ParameterState) -> Dict[Any, Any]:
        """A parameter's part of state_dict(). Over ranks it is collected now, in all of them, since
        programs save it in one."""
        return dict(parts(state)) if self.offload.ranks is None else copied(dict(parts(state)))

    def alone(self, found: Dict[Any, Any]) -> Dict[int, Any]:
        """Parts of state_dict() of parameters that are not among these."""
        return {}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.before.load_state_dict(self.optimizer, state_dict)
        self.settle()


def in_memory(states: States) -> Any:
    """The mapping as torch has it, after close()."""
    found: Any = collections.defaultdict(dict)
    for parameter, state in states.items():
        found[parameter] = ({name: _settled(value) for name, value in parts(state)}
                            if isinstance(state, dict) else state)
    return found


def _settled(value: Any) -> Any:
    """The memory that an object of a state has from now on."""
    if not isinstance(value, Lazy):
        return value
    source = value._source
    source.settle()
    return value.in_memory() if source.plain is None else value.of_copy(source.plain)


def _references(handed: List[Any]) -> int:
    """To the dict of the last one."""
    made = handed[-1][0]
    return sys.getrefcount(made)


_BASE = _references([({}, None, {})])  # to one that nothing else refers to


def closure_of(closure: Any = None) -> Any:
    """The argument of torch's step()."""
    return closure


def check_closure(place: Place, arguments: Iterable[Any]) -> None:
    """Refuse a function among the arguments of a step() that it would run in its turn."""
    if not place.calls_backward and any(map(callable, arguments)):
        raise NotImplementedError(
            f"step(closure) with parameters on {place.device}: a backward pass there runs on a "
            "thread of autograd, which would wait for the step: call closure() before step()")
