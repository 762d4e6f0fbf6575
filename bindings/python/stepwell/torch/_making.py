# SPDX-License-Identifier: Apache-2.0
"""Checks of offload() before a model's parameters are moved, and the creation of their tensors.
"""
from __future__ import annotations

import fnmatch
import gc
import inspect
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Collection, Dict, List, Optional, Set, Tuple, Union

import torch

from .._runtime import Runtime
from .._tensor import TensorSpec
from ..errors import BudgetError
from . import _kinds, _tiles, _wrappers
from ._commits import extra_states
from ._lazy import Lazy
from ._place import HOST, DeviceLike, Place, device_of
from ._records import DTYPES, TRAINED, Offloaded, Record, users_of
from ._sizes import Size, size_of

if TYPE_CHECKING:
    from ._offload import Offload

_SLACK = 32     # blocks of nvme in addition to the computed number
_FROZEN = TRAINED + 1  # neighbour number

# References, since the Offload refers to the model, which keeps it by the entry of its calls.
offloads: "weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Any]]" = (
    weakref.WeakKeyDictionary())


def checked(model: torch.nn.Module, made: Any = None,
            devices: Collection[str] = ("cpu",)) -> List[Tuple[str, torch.nn.Parameter]]:
    """The parameters, each once. Raises if one of them is not supported. made: the tiers of
    init(), in which some of them are. devices: types of devices, or devices."""
    _wrappers.check_model(model)
    if model in offloads:
        raise ValueError("this model is offloaded already; offloaded(model).close() ends it")
    found: List[Tuple[str, torch.nn.Parameter]] = []
    storages: Dict[int, str] = {}
    for name, parameter in model.named_parameters():
        what = f"parameter '{name}'"
        if isinstance(parameter, Offloaded) and parameter._stepwell.offload is made:
            found.append((name, parameter))
            continue
        if isinstance(parameter, Offloaded):
            raise ValueError(f"{what} is of a model that is offloaded already, inside this one or "
                             "sharing it; offloaded(that model).close() ends it")
        if isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin):
            raise TypeError(f"{what} has no shape yet: run the model once before offload()")
        if type(parameter) is not torch.nn.Parameter:
            raise TypeError(f"{what} is a {type(parameter).__name__}, and offload takes plain "
                            "Parameters, those of int8 and uint8 with requires_grad=False: convert "
                            "it, or keep that module out of the model")
        if parameter.layout != torch.strided:
            raise TypeError(f"{what} is sparse ({parameter.layout}); offload takes dense ones")
        if parameter.dtype not in DTYPES:
            raise TypeError(f"{what} is {parameter.dtype}; offload takes float32, bfloat16, "
                            "float16, int8 and uint8: convert it, or keep that module out of the "
                            "model")
        if getattr(parameter, "grad_dtype", parameter.dtype) != parameter.dtype:
            raise TypeError(f"{what} is {parameter.dtype} with grad_dtype={parameter.grad_dtype}: "
                            "a gradient in tiers has the dtype of its parameter")
        if parameter.is_meta and "meta" not in devices:
            raise TypeError(f"{what} is on meta and has no values: make the model inside of "
                            "stepwell.torch.init(), or give it memory with "
                            "model.to_empty(device='cpu') and load its values")
        if not {parameter.device.type, str(parameter.device)} & set(devices):
            raise TypeError(f"{what} is on {parameter.device}, and this call takes parameters on "
                            f"{' or '.join(devices)}: move the model there with model.to()")
        if made is None and found and parameter.device != found[0][1].device:
            raise TypeError(f"{what} is on {parameter.device} and '{found[0][0]}' on "
                            f"{found[0][1].device}, and one offload() is for one device: move the "
                            "model to one of them, or offload its parts one by one")
        address = parameter.untyped_storage().data_ptr()
        if address in storages:
            raise ValueError(f"{what} and '{storages[address]}' share memory and are not one "
                             "Parameter; tie them by assigning one object to both modules")
        if address and parameter.numel():
            storages[address] = name
        found.append((name, parameter))
    if not found:
        raise ValueError("the model has no parameters")
    for name, buffer in model.named_buffers():
        shared = None if buffer.layout != torch.strided else storages.get(
            buffer.untyped_storage().data_ptr())
        if shared is not None and buffer.numel():
            raise ValueError(f"buffer '{name}' and parameter '{shared}' share memory, and the "
                             "parameter leaves it: register a clone() of it, or read the parameter")
    return found


def check_alone(model: torch.nn.Module, parameters: List[Tuple[str, torch.nn.Parameter]]) -> None:
    """Raise if a parameter's memory has another user, which would keep the values of now."""
    # Made anew in each call, by torch.nn.utils.spectral_norm.
    normed: Set[int] = {
        value.untyped_storage()._cdata for module in model.modules()
        for name, value in vars(module).items()
        if f"{name}_orig" in module._parameters and isinstance(value, torch.Tensor)
        and value.layout == torch.strided}
    for collected in False, True:
        used = [name for name, parameter in parameters
                if not isinstance(parameter, Offloaded) and parameter.numel()
                and users_of(parameter) > 1 + (parameter.untyped_storage()._cdata in normed)]
        if used and not collected:
            gc.collect()
    if used:
        raise ValueError(
            f"parameter '{used[0]}' shares memory with a tensor or array of the program"
            f"{f', and {len(used) - 1} others do' if used[1:] else ''}: .data, a view, a state "
            "dict that is held or was assigned, or what a forward pass saved for backward. The "
            "parameter leaves that memory, whose values would be those of now: delete what shares "
            "it before offload(), or make it a clone()")


def warn_of_held(parameters: List[Tuple[str, torch.nn.Parameter]],
                 optimizer: Optional[torch.optim.Optimizer]) -> None:
    """Warn if the program holds gradients or states, as a checkpoint does that states were loaded
    from: they keep their memory, and the values of now."""
    states = {} if optimizer is None else optimizer.state
    # Python counts so many references to a tensor that only a dict holds, and below to a gradient
    # that only its parameter holds.
    state: Any = {0: torch.empty(1)}
    value = state[0]
    usual = sys.getrefcount(value)
    alone = torch.empty(1, requires_grad=True)
    alone.grad = torch.empty(1)
    grad = alone.grad
    usual_grad = sys.getrefcount(grad)
    held: List[Tuple[str, int]] = []
    for collected in False, True:
        if held:
            gc.collect()
        elif collected:
            break
        held = []
        for name, parameter in parameters:
            if isinstance(parameter, Offloaded):
                continue
            grad = parameter.grad
            if (grad is not None and type(grad) is not Lazy  # used up, in the tiers from before
                    and (sys.getrefcount(grad) > usual_grad or users_of(grad) > 1)):
                held.append((f"the gradient of '{name}'", grad.nbytes))
            state = states.get(parameter)
            dict_held = sys.getrefcount(state) > usual  # by a state_dict()
            for key in state or ():
                value = state[key]
                if not isinstance(value, torch.Tensor) or value.numel() < 2:
                    continue
                if dict_held or sys.getrefcount(value) > usual or users_of(value) > 1:
                    held.append((f"the state '{key}' of '{name}'", value.nbytes))
    if held:
        warnings.warn(
            f"{held[0][0]}{f' and {len(held) - 1} others' if held[1:] else ''} of the program, "
            f"{sum(nbytes for _, nbytes in held)} bytes, are used elsewhere too, as by a "
            "checkpoint that they were loaded from: what is held there keeps its memory and the "
            "values of now. Delete it before offload()", stacklevel=3)


def chosen(device: DeviceLike, name: str, parameter: torch.Tensor) -> torch.device:
    """The device that the program has asked for. The parameter: one of the model's."""
    wanted = device_of(device)
    if parameter.device not in (HOST.device, wanted):
        raise ValueError(
            f"device='{wanted}', and parameter '{name}' is on {parameter.device}: only what is on "
            "the CPU is moved to another device. Move the model with model.to('cpu') before, or "
            "leave device= out")
    return wanted


def move_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """Replace buffers by copies on the device, or none of them."""
    copies: Dict[int, torch.Tensor] = {}
    places = [(module._buffers, name, buffer) for module in model.modules()
              for name, buffer in module._buffers.items() if buffer is not None]
    for _, _, buffer in places:
        if id(buffer) not in copies:
            copies[id(buffer)] = buffer.to(device)
    for buffers, name, buffer in places:
        buffers[name] = copies[id(buffer)]


def check_updates(optimizer: Optional[torch.optim.Optimizer], keep_gradients: bool,
                  update_in_backward: bool, find_unused_parameters: bool) -> None:
    if update_in_backward and optimizer is None:
        raise ValueError("update_in_backward=True needs the optimizer: give it to offload()")
    if (update_in_backward and optimizer is not None and _kinds.kind_of(optimizer) is None
            and not f"{type(optimizer).__module__}.".startswith("torch.optim.")):
        raise ValueError(
            f"update_in_backward=True runs an optimizer for one parameter after the other, and "
            f"{type(optimizer).__name__} is no class of torch.optim, whose code does nothing for "
            "all of them together: leave the argument out")
    if update_in_backward and isinstance(optimizer, torch.optim.Adafactor) and any(
            group["eps"][0] is None and len({each.dtype for each in group["params"]}) > 1
            for group in optimizer.param_groups):
        raise ValueError(
            "update_in_backward=True runs Adafactor for one parameter after the other, and without "
            "eps=(number, ...) its first eps follows from the dtype of the first one with a "
            "gradient: give the number, or groups of one dtype")
    if update_in_backward and keep_gradients:
        raise ValueError("update_in_backward=True uses up each gradient in backward, so "
                         "keep_gradients=True has none to keep: give one of them")
    if update_in_backward and find_unused_parameters:
        raise ValueError("find_unused_parameters=True sums gradients after backward, and "
                         "update_in_backward=True needs them in it: give one of them")


def check_place(place: Place, host_bytes: Optional[Size], options: Dict[str, Any]) -> None:
    """Refuse what a device with streams does not have yet."""
    if place.is_host:
        return
    refusals = {
        "group": "the parameters of several ranks are not divided there yet: train with one, or "
                 "keep the model on the CPU",
        "replica_group": "replicas are not kept there yet: leave it out, or keep the model on the "
                         "CPU",
        "fault_in": "an access to bytes that are not there is served in memory of the CPU alone: "
                    "leave it out",
    }
    for name, why in refusals.items():
        if options.get(name):
            raise ValueError(f"{name} with parameters on {place.device}: {why}")
    if host_bytes is not None and not size_of(host_bytes):
        raise ValueError(
            f"offload() of parameters on {place.device} needs host_bytes: memory of the CPU for "
            "what leaves the device, best enough for all parameters, gradients and states")


def check_options(call: str, options: Dict[str, Any]) -> None:
    known = set(inspect.signature(Runtime.__init__).parameters) - {"self", "devices"}
    for name in options:
        if name not in known:
            raise TypeError(f"{call}() got an unexpected keyword argument '{name}', which neither "
                            "it nor stepwell.Runtime has")


def later_of(given: Union[None, str, torch.Tensor, Collection[Any]],
             parameters: List[Tuple[str, torch.nn.Parameter]]) -> Set[int]:
    """The ids of the parameters of trainable_later."""
    found: Set[int] = set()
    for each in [given] if isinstance(given, (str, torch.Tensor)) else given or ():
        fits = {id(parameter) for name, parameter in parameters if parameter is each
                or isinstance(each, str) and fnmatch.fnmatchcase(name, each)}
        if not fits:
            raise ValueError("trainable_later has "
                             + (f"'{each}', which no parameter's name matches"
                                if isinstance(each, str) else "what is no parameter of the model"))
        found |= fits
    return found


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside the wrapper that prepare() of accelerate returns."""
    if type(optimizer).__name__ != "AcceleratedOptimizer":
        return optimizer
    if optimizer.scaler is not None:
        raise TypeError("this AcceleratedOptimizer has a GradScaler and keeps the step() of the "
                        "optimizer that it was given: call offload() before prepare()")
    return optimizer.optimizer


def need(model: torch.nn.Module, parameters: List[Tuple[str, torch.nn.Parameter]],
          optimizer: Optional[torch.optim.Optimizer], block: int, copies: int,
          later: Collection[int] = (), packed: bool = False) -> int:
    """Bytes of nvme for parameters, gradients and states. copies: of each durable tensor. packed:
    small gradients and states share blocks, which is not counted else."""
    states = 0 if optimizer is None else _kinds.states_of(optimizer)
    need = _SLACK * block
    for _, parameter in parameters:
        half = parameter.element_size() < 4
        own = [parameter.element_size()]
        if parameter.requires_grad or id(parameter) in later:
            sizes = own * (1 + copies) + [4] * copies * (states + half)
        else:  # a single copy, if it shares its block with no other tensor
            alone = parameter.numel() * parameter.element_size() >= block
            sizes = own if alone else own * copies
        need += sum(_room(parameter.numel() * size, block, packed and at > 0)
                    for at, size in enumerate(sizes))
    if copies > 1:  # the file of generations: see docs/generations.md
        extra = [module.get_extra_state() for _, module in extra_states(model)]
        need += copies * sum(-(-buffer.numel() * buffer.element_size() // block) * block
                             for buffer in [*model.buffers(), *extra]
                             if isinstance(buffer, torch.Tensor))
        need += copies * ((2 << 20) + 512 * (need // block))
    return need


def _room(nbytes: int, block: int, packed: bool) -> int:
    """Whole blocks; of those that are shared at least a half is used."""
    return 2 * nbytes + 512 if packed and 2 * nbytes < block else -(-nbytes // block) * block


def fit_whole(model: torch.nn.Module, budget: int, block: int) -> bool:
    """Whether each module's own parameters fit together, so that none is computed in tiles."""
    rooms = (sum(-(-each.nbytes // block) * block for each in module._parameters.values()
                 if each is not None) for module in model.modules())
    return all(room <= budget for room in rooms)


def lacking(offload: "Offload", error: BudgetError) -> str:
    """A BudgetError of the creation of a tensor, with what to change in the arguments."""
    parameters = [(record.name, record.parameter) for record in offload.records]
    model = offload.model if offload.model is not None else torch.nn.Module()
    bytes_ = need(model, parameters or offload.parameters, offload.optimizer,
                  offload.block_bytes, offload.copies, offload.later or ()) + offload.more
    budget = offload.runtime.tier_stats("nvme").budget_bytes
    late = [name for name, parameter in parameters if offload.later is not None
            and parameter.requires_grad and id(parameter) not in offload.later]
    told = error.sentence.split("; raise the budget")[0]
    if not budget:
        bytes_ -= _SLACK * offload.block_bytes
        into = ("device_bytes" if not offload.has_host else "host_bytes" if offload.place.is_host
                else "host_bytes and what device_bytes has beside what is worked in")
        return (f"{told}; without nvme all parameters, gradients and states must fit into {into}, "
                f"and take up to {bytes_} bytes: raise it, or give nvme=, a directory on a drive")
    give = f"give nvme_bytes={max(bytes_, budget + error.needed_bytes)} or more" + (
        " when the store is made, which keeps its size" if offload.commits is not None else "")
    if not late:
        return (f"{told}; nvme_bytes must have room for all parameters, gradients and states: "
                f"{give}")
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return (f"{told}; parameter '{late[0]}'{more} did not require a gradient at offload(), whose "
            "nvme_bytes has room for the gradients and states of those that did: name them in "
            f"trainable_later=, or {give}")


def check_updates_fit(offload: "Offload", optimizer: Optional[torch.optim.Optimizer]) -> None:
    """A kernel works on a block of each of a parameter's tensors at a time, own code on all of
    them."""
    kind = None if optimizer is None else _kinds.kind_of(optimizer)
    trained = [record for record in offload.records if record.parameter.requires_grad]
    if optimizer is None or offload.has_host or not trained:
        return
    if kind is None:
        _check_own_fits(offload, optimizer, trained)
        return
    states = (_kinds.states_of(optimizer)
              + any(record.dtype.itemsize < 4 for record in trained))
    blocks, block = offload.budget // offload.block_bytes, offload.block_bytes
    if (blocks < 2 + states and states
            and 4 * sum(record.elements for record in trained) > block):  # else states share one
        raise BudgetError(
            f"an update works on {2 + states} blocks of {block} bytes at once, of a parameter, its "
            f"gradient and {states} states, and device_bytes={offload.budget} has {blocks}: give "
            f"device_bytes={(2 + states) * block} or more, or a smaller block_bytes "
            "(stepwell.BLOCK_64K)")


def _check_own_fits(offload: "Offload", optimizer: torch.optim.Optimizer,
                    trained: List[Record]) -> None:
    states = _kinds.own_states_of(optimizer)
    largest = max(trained, key=lambda record: record.tensor.nbytes)
    blocks, block = offload.budget // offload.block_bytes, offload.block_bytes
    own = -(-largest.tensor.nbytes // block)
    if states is not None and not largest.large and (2 + states) * own > blocks:
        raise BudgetError(
            f"{type(optimizer).__name__} runs its own code with these settings, which works on "
            f"{largest.label()}, its gradient and {states} states at once, {2 + states} times "
            f"{own} blocks of {block} bytes, and device_bytes={offload.budget} has {blocks}: give "
            f"device_bytes={(2 + states) * own * block} or more")


def spec_of(name: str, like: torch.Tensor, trained: bool, durable: bool,
            fixed_address: bool) -> TensorSpec:
    """The spec of a parameter's tensor. Small tensors fill blocks in the order of creation. Frozen
    ones, which are never written, have separate blocks, except with a store: a generation needs the
    same places whichever parameters are frozen in a run, and keeps one copy of the frozen ones."""
    return TensorSpec(shape=max(1, like.numel()), dtype=DTYPES[like.dtype], name=name,
                      role="param", neighbour=TRAINED if trained or durable else _FROZEN,
                      read_only=durable and not trained, durable=durable,
                      fixed_address=fixed_address)


def too_large(name: str, module: torch.nn.Module, nbytes: int, budget: int, block: int) -> str:
    return (f"the parameters of module '{name or type(module).__name__}' ({type(module).__name__}) "
            f"take {nbytes} bytes in blocks of {block} bytes and are used together, and the device "
            f"budget of {budget} bytes cannot hold them: raise it, or divide the module; "
            f"{_tiles.why_not(module) or 'its weight is in tiles already'}")
