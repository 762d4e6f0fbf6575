# SPDX-License-Identifier: Apache-2.0
"""torch.autograd.grad() and backward(inputs=) of parameters in tiers.

They need to know where in the graph a parameter is, not its bytes. Each parameter is replaced by
its gradient edge, so nothing is pinned and the nodes that run fetch what they need.
"""
from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ._records import Absent, Offloaded

_CALLS = {torch.autograd.grad, torch.autograd.backward}
_Off = torch._C.DisableTorchFunctionSubclass


def call(func: Any, args: Any, options: Any) -> Any:
    """torch.autograd.grad() or backward(), without torch functions of its inputs."""
    options = dict(options)
    inputs = args[1] if func is torch.autograd.grad else options.pop("inputs")
    edges = tuple(_edge_of(each) if isinstance(each, Offloaded) else each for each in inputs)
    if func is torch.autograd.backward:
        return func(args[0], inputs=edges, **options)
    zeros = options.pop("materialize_grads")
    found = func(args[0], edges, **options)
    return found if not zeros else tuple(
        _zeros_like(each, options["create_graph"]) if grad is None else grad
        for each, grad in zip(inputs, found))


def takes(func: Any, args: Any, options: Any) -> bool:
    """Whether call() applies: no parameter is an output or a gradient, whose bytes are needed."""
    return func in _CALLS and not any(
        type(each) is Absent for values in (args[0], options.get("grad_outputs"),
                                            options.get("grad_tensors"))
        for each in (values if isinstance(values, (list, tuple)) else (values,)))


def _edge_of(parameter: Offloaded) -> Any:
    record = parameter._stepwell
    if record.large:
        raise NotImplementedError(
            f"{record.label()} is larger than the device budget and is computed with in parts, so "
            "autograd has no gradient of it as a whole: call loss.backward() without inputs= and "
            "use .grad, or raise device_bytes")
    if not parameter.requires_grad:
        raise RuntimeError(f"One of the differentiated Tensors does not require grad: "
                           f"{record.label()}")
    with _Off():
        return get_gradient_edge(parameter)


def _zeros_like(value: torch.Tensor, trained: bool) -> torch.Tensor:
    with _Off():
        return torch.zeros_like(value, requires_grad=trained)
