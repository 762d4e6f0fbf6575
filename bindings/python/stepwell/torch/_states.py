# SPDX-License-Identifier: Apache-2.0
"""optimizer.state of an offloaded optimizer: the mapping of torch, whose tensors are in tiers.

The dicts hold lazy tensors (_lazy.py). A tensor that the program assigns is kept as it is, since it
may hold it under another name, and moves to tiers when its Steps see that it does not.
"""
from __future__ import annotations

import collections
import copy
import weakref
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

import torch

from .._tensor import Tensor, TensorSpec
from ._lazy import Lazy, Source
from ._place import HOST
from ._records import Record, flat, read

_clone = torch.ops.aten.clone.default
_COUNTED = 1 << 24  # where a count in float32 stays


class StateSource(Source):
    """The bytes of a state of a parameter. owned: its tensor ends with it."""

    __slots__ = ("name", "held", "owned")

    def __init__(self, record: Record, name: str, tensor: Tensor, size: Tuple[int, ...],
                 stride: Tuple[int, ...], dtype: torch.dtype, owned: bool) -> None:
        super().__init__(record, size, stride, dtype)
        self.name = name
        self.held: Optional[Tensor] = tensor
        self.owned = owned

    @property
    def tensor(self) -> Optional[Tensor]:
        return self.held

    def label(self) -> str:
        return f"the state '{self.name}' of {self.record.label()}"

    def memory(self, write: bool) -> torch.Tensor:
        if self.plain is not None:
            return self.plain
        assert self.held is not None
        self.record.check_use()
        if not self.record.elements:
            return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        if self.record.large:
            return self.offload.copied.of(self.held, self.size, self.stride, self.dtype)
        return self.fetch(self.held, write).as_strided(self.size, self.stride, 0)

    def used(self, memory: torch.Tensor, result: Any, wrote: bool) -> None:
        if self.plain is None and self.record.large and self.held is not None:
            self.offload.copied.used(self.held, memory, self.stride, result, False, wrote)

    def by_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        whole = (func is _clone and self.plain is None and not kwargs
                 and args[0].size() == self.size and args[0].dtype == self.dtype
                 and args[0].stride() == self.stride)
        return self.copy() if whole else None

    def copy(self) -> torch.Tensor:
        """Its values in plain memory, without a pin of all of them."""
        if self.plain is not None:
            return self.plain.clone()
        assert self.held is not None
        self.record.check_use()
        window = self.offload.window
        if self.held in self.offload.shown or window is not None and window.holds(self.held):
            return self.memory(False).clone(memory_format=torch.preserve_format)  # pinned
        self.offload.copied.sync(self.held)
        return read(self.offload.place, self.held, self.size, self.stride, self.dtype)

    def settle(self) -> None:
        if self.plain is None:
            self.plain = self.copy()
            self.held = None

    def __del__(self) -> None:
        if getattr(self, "owned", False) and self.held is not None:  # else partly constructed
            self.offload.ended.append(self.held)


def whole(step: Any, record: Record) -> int:
    """A number of updates that the program sets."""
    if int(step) != float(step) or not 0 <= step <= _COUNTED:
        raise ValueError(f"the state 'step' of {record.label()} is set to {float(step)}, and its "
                         f"kernel counts whole updates to {_COUNTED}, as far as float32 does: set "
                         "it to such a number")
    return int(step)


class CountSource(Source):
    """The number of updates of a parameter, which its kernel counts."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Any, record: Record) -> None:
        # Torch makes a count in the default dtype at its first step.
        wide = torch.get_default_dtype() == torch.float64
        super().__init__(record, (), (), torch.float64 if wide else torch.float32)
        self._steps = steps

    tensor = None
    device = HOST.device  # as torch has it

    def label(self) -> str:
        return f"the state 'step' of {self.record.label()}"

    def memory(self, write: bool) -> torch.Tensor:
        if self.plain is not None:
            return self.plain
        return self._value()

    def used(self, memory: torch.Tensor, result: Any, wrote: bool) -> None:
        if wrote and self.plain is None:
            self._steps.set_count(self.record, whole(memory, self.record))

    def settle(self) -> None:
        if self.plain is None:
            self.plain = self._value()

    def _value(self) -> torch.Tensor:
        self.record.check_use()
        count = self._steps.count(self.record)
        if self.dtype is torch.float32:
            count = min(count, _COUNTED)
        return torch.tensor(float(count), dtype=self.dtype, device=self.device)


class MasterSource(Source):
    """The fp32 values of a parameter of 16 bits, which its kernel updates; not part of
    optimizer.state, but of state_dict()."""

    __slots__ = ("_kernel",)
    of_all = False

    def __init__(self, record: Record, kernel: Any) -> None:
        super().__init__(record, record.size, record.stride, torch.float32)
        self._kernel = kernel

    @property
    def copied(self) -> bool:
        return True

    tensor = None

    def label(self) -> str:
        return f"the fp32 master of {self.record.label()}"

    def memory(self, write: bool) -> torch.Tensor:
        if self.plain is not None:
            return self.plain
        self.record.check_use()
        if self.offload.ranks is not None:
            return self._gathered()
        memory = torch.empty_strided(self.size, self.stride, dtype=torch.float32, device="cpu")
        self.read(memory.as_strided((memory.numel(),), (1,)), 0)
        return self.offload.place.to(memory)

    def _gathered(self) -> torch.Tensor:
        """The parts of all ranks, by a tensor that is divided like the parameter. A collective."""
        part = torch.empty(self.record.tensor.info().shard_elements, device="cpu")
        whole = self.offload.room(self.offload.runtime.create_many, [TensorSpec(
            shape=self.record.elements, name=f"{self.record.name}.gathered_master",
            role="param")])[0]
        try:
            if part.numel():
                self._kernel.read_master(self.record.tensor, part, scope="shard")
                whole.write(part, scope="shard")
            return read(self.offload.place, whole, self.size, self.stride, torch.float32)
        finally:
            whole.destroy()

    def read(self, memory: torch.Tensor, begin: int) -> None:
        """Copy elements in the order of the parameter's memory."""
        self._kernel.read_master(self.record.tensor, memory, begin, memory.numel())

    def used(self, memory: torch.Tensor, result: Any, wrote: bool) -> None:
        if wrote and self.plain is None:
            self.write(memory)

    def write(self, values: torch.Tensor) -> None:
        """Set the master, and the parameter to the nearest values of its dtype."""
        self.record.thaw(by_view=False)
        memory, info = flat(values, self.stride).cpu(), self.record.tensor.info()
        if self.offload.ranks is None:
            self._kernel.write_master(self.record.tensor, memory)
        elif info.shard_elements:
            self._kernel.write_master(
                self.record.tensor,
                memory[info.shard_begin:info.shard_begin + info.shard_elements], scope="shard")
        self.record.changes += 1
        self.offload.renew_lent()

    def settle(self) -> None:
        if self.plain is None:
            self.plain = self.memory(False)


def _places(state: Dict[Any, Any], *names: Any) -> List["weakref.ref[Source]"]:
    """The sources of entries that are about to go, but for those with a tensor of their own."""
    entries = (dict.get(state, name) for name in names)
    return [weakref.ref(value._source) for value in entries
            if isinstance(value, Lazy) and not getattr(value._source, "owned", False)]


def _keep(places: List["weakref.ref[Source]"]) -> None:
    """What the program still has of entries that have gone keeps its values."""
    for place in places:
        source = place()
        if source is not None:
            source.settle()


class ParameterState(Dict[Any, Any]):
    """optimizer.state[p]. Its Steps are told what is assigned and what is removed. Once another
    object has taken its place it has no Steps, and is a dict of the program's with the values
    that it had until then."""

    __slots__ = ("_steps", "record")

    def __init__(self, steps: Any, record: Record) -> None:
        super().__init__()
        self._steps = steps
        self.record = record

    def leave(self) -> List["weakref.ref[Source]"]:
        """Another one takes its place. Returns what _keep() is for, without a reference to it."""
        if self._steps is not None:
            self._steps.forget_state(self)
        self._steps = None
        return _places(self, *self)

    def show(self, name: str, value: Any) -> None:
        """Set an entry without telling the Steps."""
        super().__setitem__(name, value)

    def __getitem__(self, name: Any) -> Any:
        if self._steps is not None:
            self._steps.read_state(self, name)
        return super().__getitem__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        return self[name] if name in self else default

    def __setitem__(self, name: Any, value: Any) -> None:
        if self._steps is None or dict.get(self, name) is value:
            super().__setitem__(name, value)
            return
        places = _places(self, name)
        super().__setitem__(name, value)
        _keep(places)
        self._steps.state_set(self, name)

    def __delitem__(self, name: Any) -> None:
        places = [] if self._steps is None else _places(self, name)
        super().__delitem__(name)
        _keep(places)
        if self._steps is not None:
            self._steps.state_set(self, name)

    def setdefault(self, name: Any, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
            # The caller gets the object that it gave, and may go on writing to it.
            return default
        return self[name]

    def update(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __ior__(self, other: Any) -> "ParameterState":  # type: ignore[override,misc]
        self.update(other)
        return self

    def pop(self, name: Any, *default: Any) -> Any:
        if name not in self and default:
            return default[0]
        value = _kept(super().__getitem__(name))
        del self[name]
        return value

    def popitem(self) -> Any:
        name = next(reversed(self))
        return name, self.pop(name)

    def clear(self) -> None:
        for name in list(self):
            del self[name]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Dict[Any, Any]:
        return {name: copy.deepcopy(value, memo) for name, value in self.items()}


def _kept(value: Any) -> Any:
    """A removed value for the program: in memory, since its place in the tiers is given back."""
    return value.clone() if isinstance(value, Lazy) else value


class States(collections.defaultdict):  # type: ignore[type-arg]
    """optimizer.state. Keys that are no parameters of the optimizer have plain values."""

    def __init__(self, steps: Any) -> None:
        super().__init__(dict)
        self._steps = steps
        self.given: Optional[Dict[Any, Any]] = None  # of the program's, with the same entries
        self._arranged: Set[int] = set()

    def leave(self) -> None:
        """Another one takes its place, and it is the program's."""
        self._steps = None

    def _made(self, parameter: Any) -> Any:
        record = None if self._steps is None else self._steps.record_of(parameter)
        made = {} if record is None else ParameterState(self._steps, record)
        self._put(parameter, made)
        return made

    def _put(self, parameter: Any, state: Any) -> None:
        super().__setitem__(parameter, state)
        if self.given is not None:
            dict.__setitem__(self.given, parameter, state)

    def __missing__(self, parameter: Any) -> Any:
        made = self._made(parameter)
        if self._steps is None or self._steps.offload.window is None:  # the program, and no step
            self._arranged.add(id(parameter))
        return made

    def shown(self, record: Record) -> ParameterState:
        """The dict of a parameter, whether the program has asked for it or not."""
        if record.parameter not in self:
            self._made(record.parameter)
        return super().__getitem__(record.parameter)  # type: ignore[no-any-return]

    def __setitem__(self, parameter: Any, values: Any) -> None:
        if self._steps is None or self._steps.record_of(parameter) is None:
            self._put(parameter, values)
            return
        if dict.get(self, parameter) is values:
            return
        if not isinstance(values, dict):
            raise TypeError(f"the state of {self._steps.record_of(parameter).label()} is set to a "
                            f"{type(values).__name__}, and tiers keep the entries of a dict: put "
                            "it into one")
        given = dict(dict.items(values))  # before what it may be taken from changes
        names, places = self._leave(parameter)
        state = self._made(parameter)
        self._arranged.add(id(parameter))
        for name, value in given.items():
            dict.__setitem__(state, name, value)
        del given
        _keep(places)
        for name in dict.fromkeys((*names, *state)):
            self._steps.state_set(state, name)

    def __delitem__(self, parameter: Any) -> None:
        record = None if self._steps is None else self._steps.record_of(parameter)
        names, places = self._leave(parameter)
        super().__delitem__(parameter)
        if self.given is not None:
            dict.pop(self.given, parameter, None)
        self._arranged.discard(id(parameter))
        _keep(places)
        if record is not None:
            nothing = ParameterState(self._steps, record)
            for name in names:
                self._steps.state_set(nothing, name)

    def _leave(self, parameter: Any) -> Tuple[List[Any], List["weakref.ref[Source]"]]:
        """The entry goes: its names, and what _keep() is for once no reference is left here."""
        state = dict.get(self, parameter)
        if self._steps is None or not isinstance(state, ParameterState):
            return [], []
        names, places = list(state), state.leave()
        if parameter in self:
            dict.__setitem__(self, parameter, None)
        return names, places

    def __ior__(self, other: Any) -> "States":  # type: ignore[override,misc]
        self.update(other)
        return self

    def copy(self) -> Dict[Any, Any]:
        """A plain one with the same entries."""
        return collections.defaultdict(dict, self)

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return self.copy() | other  # type: ignore[operator]

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def pop(self, parameter: Any, *default: Any) -> Any:
        if parameter not in self and default:
            return default[0]
        state = self[parameter]
        if isinstance(state, ParameterState):
            state = {name: _kept(value) for name, value in state.items()}
        del self[parameter]
        return state

    def popitem(self) -> Any:
        parameter = next(reversed(self))
        return parameter, self.pop(parameter)

    def clear(self) -> None:
        for parameter in list(self):
            del self[parameter]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for parameter, values in dict(*args, **kwargs).items():
            self[parameter] = values

    def setdefault(self, parameter: Any, default: Any = None) -> Any:
        if parameter not in self:
            self[parameter] = default
        return self[parameter]

    def drop(self, state: ParameterState) -> None:
        """Remove the entry of a parameter if it is this one, which is empty."""
        parameter = state.record.parameter
        if dict.get(self, parameter) is state:
            dict.pop(self, parameter)
            self._arranged.discard(id(parameter))
            if self.given is not None:
                dict.pop(self.given, parameter, None)

    def put_last(self, parameter: Any) -> None:
        dict.__setitem__(self, parameter, dict.pop(self, parameter))

    def arrange(self, parameters: Any, every: bool = False) -> None:
        """Put the entries that steps have made since the last call, or every one, in this order."""
        new = [each for each in parameters
               if each in self and (every or id(each) not in self._arranged)]
        for parameter in new:
            self.put_last(parameter)
        self._arranged = {id(each) for each in self}

    def replace(self, values: Any) -> None:
        """Have these contents and no others."""
        for parameter in [parameter for parameter in self if parameter not in values]:
            del self[parameter]
        self.update(values)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("the state of an offloaded optimizer is not pickled or copied: use "
                        "state_dict()")


def copied(value: Any) -> Any:
    """The same with all lazy tensors copied into memory."""
    if isinstance(value, Lazy):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    return value


def parts(state: Dict[Any, Any]) -> Iterable[Tuple[Any, Any]]:
    """The entries of a ParameterState as they are."""
    return list(dict.items(state))
