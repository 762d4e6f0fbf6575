# SPDX-License-Identifier: Apache-2.0
"""check(): some steps of the program's own loop, plain and offloaded, compared by bits."""
from __future__ import annotations

import copy
import random
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple, Union

import torch

from ._offload import offload, offloaded
from ._place import KINDS

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_Seen = Tuple[str, Any]  # what it is, in words; a tensor, or a value that is compared by ==


class Checked(NamedTuple):
    """The result of check(); true if nothing differed, and its string says what did."""

    steps: int        # that were compared, the one that differed included
    compared: int     # values that were compared
    difference: str   # the first one, with its step and call; "" if there is none

    def __bool__(self) -> bool:
        return not self.difference

    def __str__(self) -> str:
        return self.difference or (f"{self.steps} steps are equal to plain torch by bits: "
                                   f"{self.compared} values were compared")


class _Differs(Exception):
    """The two runs are not equal any more."""


def check(step: Callable[[torch.nn.Module, torch.optim.Optimizer, Any], Any],
          model: torch.nn.Module, optimizer: torch.optim.Optimizer, *,
          batches: Union[int, Iterable[Any]] = 3, **options: Any) -> Checked:
    """Run some steps of a training loop with plain torch and offloaded, and compare them by bits.

        def step(model, optimizer, batch):
            loss = loss_of(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        found = stepwell.torch.check(step, model, optimizer, batches=itertools.islice(loader, 3),
                                     device_bytes="1GiB", nvme=".")
        assert found, found

    step: the body of the loop, which must use the model and optimizer that it is given; a value
    that it returns is compared. batches: what step() gets, one after the other, or a number of
    steps, which get 0, 1, and so on. options: those of offload().

    Compared are, in the order of the program: what each module returns, all gradients at each
    optimizer.step() (not with update_in_backward), what step() returns, and after it parameters,
    buffers, optimizer states and hyper-parameters, and random states. The comparison ends at the
    first difference. The optimizer must have torch's own order of operations: with fused=True or
    foreach=True, and for 16-bit parameters with kernels, which have masters, bits differ.

    The model and the optimizer remain as they are, and so do the random states of torch, Python and
    NumPy: each step is run twice, on two copies. So it needs memory for the model, its gradients
    and states twice, and what the modules return in a step: check a model of fewer layers if it
    does not fit. Errors of both runs are raised, refusals of offload() included.
    """
    given = range(batches) if isinstance(batches, int) else list(batches)
    if not given:
        raise ValueError("check() without batches compares nothing: give it a number of steps, or "
                         "at least one batch")
    random_states = _random_states()
    plain, tiered = _copy(model, optimizer), _copy(model, optimizer)
    found = 0
    if options.get("device") is not None:
        plain[0].to(options["device"])
        plain[1].load_state_dict(plain[1].state_dict())  # states go where the parameters are
    offload(*tiered, **options)
    try:
        for at, batch in enumerate(given):
            begin = _random_states()
            events: List[_Seen] = []
            _run(step, plain, batch, options, lambda what, value: events.append((what, value)))
            _set_random_states(begin)
            expected = iter(events)

            def compare(what: str, value: Any) -> None:
                nonlocal found
                found += 1
                _compare(next(expected, None), what, value)

            try:
                _run(step, tiered, batch, options, compare)
                _compare(next(expected, None), "", None)
            except _Differs as difference:
                return Checked(at + 1, found, f"step {at}: {difference}")
    finally:
        offloaded(tiered[0]).close()
        _set_random_states(random_states)
    return Checked(len(given), found, "")


def _copy(model: torch.nn.Module,
          optimizer: torch.optim.Optimizer) -> Tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Copies of both, over the same copies of parameters."""
    memo: Dict[int, Any] = {}
    copied = copy.deepcopy(model, memo)
    # Unlike in copy.deepcopy(optimizer), attributes of a class of the program are kept. Schedulers
    # replace step() by one of the given object.
    made = type(optimizer).__new__(type(optimizer))
    made.__dict__.update(copy.deepcopy(
        {name: value for name, value in optimizer.__dict__.items() if name != "step"}, memo))
    return copied, made


def _run(step: Callable[[torch.nn.Module, torch.optim.Optimizer, Any], Any],
         pair: Tuple[torch.nn.Module, torch.optim.Optimizer], batch: Any, options: Dict[str, Any],
         see: Callable[[str, Any], None]) -> None:
    """Run one step, and pass all values to see()."""
    model, optimizer = pair
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    handles: List[Any] = []
    calls: Dict[str, int] = {}

    def count(what: str) -> str:
        calls[what] = calls.get(what, 0) + 1
        return f"call {calls[what]} of {what}"

    def returned(name: str) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, result: Any) -> None:
            call = count(f"module '{name}'" if name else "the model")
            for where, tensor in _tensors(result, "what it returns"):
                see(f"{call}: {where}", _kept(tensor))
        return hook

    def stepped(*_: Any) -> None:
        call = count("optimizer.step()")
        for name, parameter in model.named_parameters():
            grad = parameter.grad
            see(f"{call}: the gradient of parameter '{name}'",
                None if grad is None else _kept(grad))

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(returned(name)))
    if not options.get("update_in_backward"):
        handles.append(optimizer.register_step_pre_hook(stepped))
    try:
        result = step(model, optimizer, copy.deepcopy(batch))
    finally:
        for handle in handles:
            handle.remove()
    for where, tensor in _tensors(result, "what step() returns"):
        see(where, _kept(tensor))
    for name, parameter in model.named_parameters():
        see(f"after it: parameter '{name}'", _kept(parameter))
    for name, buffer in model.named_buffers():
        see(f"after it: buffer '{name}'", _kept(buffer))
    state = optimizer.state_dict()
    for at, parameter in enumerate(each for group in optimizer.param_groups
                                   for each in group["params"]):
        label = f"of parameter '{names.get(id(parameter), at)}'"
        values = state["state"].get(at)
        see(f"after it: the names of states {label}", None if values is None else sorted(values))
        for key in sorted(values or ()):
            see(f"after it: state '{key}' {label}", _kept(values[key]))
    for at, group in enumerate(state["param_groups"]):
        see(f"after it: group {at} of the optimizer", repr(group))
    for name, value in _random_states().items():
        see(f"after it: the random state of {name}", _kept(value))


def _kept(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        return value.detach().clone()


def _tensors(value: Any, where: str) -> Iterator[Tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield where, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(each, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from _tensors(each, f"{where}[{at}]")
    elif isinstance(value, (int, float)):
        yield where, torch.tensor(value)


def _compare(expected: Any, what: str, value: Any) -> None:
    if expected is None:
        if what:
            raise _Differs(f"{what} is there offloaded, and plain torch had ended")
        return
    name, right = expected
    if name != what:
        raise _Differs(f"{name} in plain torch, and offloaded {what or 'nothing follows'}")
    if isinstance(right, torch.Tensor) and isinstance(value, torch.Tensor):
        different = _different(right, value)
        if different:
            raise _Differs(f"{name}: {different}")
    elif type(right) is not type(value) or not (right == value):
        raise _Differs(f"{name}: {_short(right)} in plain torch, {_short(value)} offloaded")


def _different(right: torch.Tensor, value: torch.Tensor) -> str:
    if right.shape != value.shape or right.dtype != value.dtype or right.layout != value.layout:
        return f"{_short(right)} in plain torch, {_short(value)} offloaded"
    if right.layout != torch.strided:
        return _different(right.to_dense(), value.to_dense())
    right, value = right.contiguous().flatten(), value.contiguous().flatten()
    if right.is_complex():
        right, value = torch.view_as_real(right).flatten(), torch.view_as_real(value).flatten()
    integers = _INTEGERS[right.element_size()]
    wrong = right.view(integers) != value.view(integers)
    if right.is_floating_point():
        wrong &= ~(right.isnan() & value.isnan())
    if not wrong.any():
        return ""
    first = int(wrong.nonzero()[0])
    return (f"{int(wrong.sum())} of {right.numel()} elements differ; element {first} is "
            f"{right[first].item()!r} in plain torch, {value[first].item()!r} offloaded")


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {tuple(value.shape)}, {value.dtype}"
    return repr(value)


def _random_states() -> Dict[str, Any]:
    states: Dict[str, Any] = {"torch": torch.get_rng_state(), "Python": random.getstate()}
    numpy = sys.modules.get("numpy")
    for device in KINDS.keys() - {"cpu"}:
        module: Any = torch.get_device_module(device)
        if module.is_initialized():
            states[device] = module.get_rng_state()
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["NumPy"] = (kind, tuple(keys.tolist()), *rest)
    return states


def _set_random_states(states: Dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["Python"])
    for device in states.keys() & (KINDS.keys() - {"cpu"}):
        torch.get_device_module(device).set_rng_state(states[device])
    if "NumPy" in states:
        sys.modules["numpy"].random.set_state(states["NumPy"])
