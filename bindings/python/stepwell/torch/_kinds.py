# SPDX-License-Identifier: Apache-2.0
"""The kernel of each class of torch.optim that has one, and what it computes with."""
from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch

from .._optimizer import Hyper


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


class Kind:
    """The mapping of a class of torch.optim to a kernel."""

    def __init__(self, algorithm: Callable[[Dict[str, Any]], str],
                 hyper: Callable[[Dict[str, Any]], Hyper],
                 states: Dict[str, str], eager: bool = False) -> None:
        self.algorithm = algorithm
        self.hyper = hyper
        self.states = states  # maps torch's names to the library's
        self.eager = eager    # torch makes the states in the constructor


KINDS = {
    torch.optim.AdamW: Kind(
        lambda group: "adamw" if group.get("decoupled_weight_decay", True) else "adam", _adam,
                             {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}),
    torch.optim.Adam: Kind(
        lambda group: "adamw" if group.get("decoupled_weight_decay") else "adam", _adam,
        {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}),
    torch.optim.SGD: Kind(lambda group: "sgd", _sgd, {"momentum_buffer": "momentum"}),
    torch.optim.Adagrad: Kind(lambda group: "adagrad", _adagrad, {"sum": "sum"}, eager=True),
}


_SETTINGS = "lr", "betas", "eps", "weight_decay", "lr_decay", "momentum", "dampening"


def kind_of(optimizer: torch.optim.Optimizer, own: Any = None) -> Optional[Kind]:
    """The kernel of an optimizer; None: it runs its own code. own: its class before offload()."""
    own = own or type(optimizer)
    kind = KINDS.get(own)
    if kind is None:
        return None
    algorithms = {kind.algorithm(group) for group in optimizer.param_groups}
    for group in optimizer.param_groups:
        if group.get("amsgrad") or group.get("capturable") or group.get("differentiable"):
            return None
        if group.get("initial_accumulator_value"):
            return None
        if any(isinstance(value, torch.Tensor) for name in (
                ("dampening",) if own is torch.optim.SGD
                else ("lr", "betas", "eps", "lr_decay", "weight_decay"))
                for value in _numbers(group.get(name))):
            return None  # torch computes with them in fp32
        if not all(isinstance(value, (int, float, torch.Tensor, type(None))) for name in _SETTINGS
                   for value in _numbers(group.get(name))):
            return None  # NumPy's scalars, with which torch computes in their precision
    if own is torch.optim.SGD:
        # Groups with and without momentum differ in states; a kernel has only one form.
        if len({bool(group["momentum"]) for group in optimizer.param_groups}) > 1:
            return None
    return kind if len(algorithms) == 1 else None


def _numbers(value: Any) -> Any:
    return value if isinstance(value, (tuple, list)) else (value,)


def torch_order(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its kernel has to give the bits of torch's own loop: unless the program selected a
    faster form, whose bits differ."""
    return not any(group.get("fused") or group.get("foreach") for group in optimizer.param_groups)


def writes_gradients(group: Dict[str, Any], device: torch.device) -> bool:
    """Whether torch's step() leaves something else in `.grad`: SGD with nesterov, by operations on
    lists of tensors, adds the momentum there."""
    lists = group.get("foreach")
    if lists is None:  # as torch chooses
        lists = device.type != "cpu" and not group.get("fused")
    return bool(group.get("nesterov") and lists
                and not group["weight_decay"] and not group["maximize"])


def own_states_of(optimizer: torch.optim.Optimizer) -> Optional[int]:
    """The number of states as large as a parameter, of those of torch that are known and run their
    own code."""
    groups = optimizer.param_groups
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        return 2 + any(group["amsgrad"] for group in groups)
    if type(optimizer) is torch.optim.RMSprop:
        return 1 + any(group["centered"] for group in groups) + any(
            group["momentum"] for group in groups)
    return None


def states_of(optimizer: torch.optim.Optimizer) -> int:
    """The maximum number of fp32 states per parameter, as far as known."""
    kind = kind_of(optimizer)
    if kind is None:
        return 3
    if type(optimizer) is torch.optim.SGD:
        return int(any(group["momentum"] for group in optimizer.param_groups))
    return len(kind.states)
