# SPDX-License-Identifier: Apache-2.0
"""Wrappers that would average or divide the parameters of a model in tiers themselves.

DistributedDataParallel averages gradients that autograd keeps, and FSDP replaces parameters: around
an offloaded model each rank would train apart, or nothing would be trained. They are refused where
they are created if that can be known there, else at the next call.
"""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from ._records import Offloaded

if torch.distributed.is_available():
    from torch.distributed._composable.contract import STATE_KEY as _COMPOSED
else:
    _COMPOSED = ""
if TYPE_CHECKING:
    from ._offload import Offload

# Attributes of a module. The first is read by DistributedDataParallel before it does anything.
_IGNORED = "_ddp_params_and_buffers_to_ignore"
_PREPARED = "_is_accelerate_prepared"
_DIVIDED = "_is_fsdp_managed_module"
_AVERAGED = ("offload(model, optimizer, group=stepwell.Group.from_torch()) averages gradients over "
             "the processes itself, and the model is called without a wrapper")


class _Refusing:
    """The parameters that DistributedDataParallel is to ignore."""

    def __iter__(self) -> Any:
        raise TypeError("DistributedDataParallel cannot average the gradients of an offloaded "
                        f"model, which are in tiers: {_AVERAGED}; if accelerate makes it for "
                        "mixed precision, call accelerator.prepare_model(model, "
                        "evaluation_mode=True) before prepare()")

    def __reduce__(self) -> Any:  # a copy of the model is plain
        return list, ()


class _Prepared:
    """Whether Accelerator.prepare() leaves a model over ranks as it is: unless mixed precision is
    on and was not applied yet."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._fields = model.__dict__

    def __bool__(self) -> bool:
        state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
        mixed = "no" if state is None else state._shared_state.get("_mixed_precision")
        return mixed in ("no", None) or "_original_forward" in self._fields

    def __reduce__(self) -> Any:
        return bool, ()


def refuse(offload: "Offload", model: torch.nn.Module) -> None:
    """Make wrappers of a model, or of a part of it, raise."""
    refusing = _Refusing()
    given: List[Tuple[Dict[str, Any], str, Any]] = [
        (module.__dict__, _IGNORED, refusing) for module in model.modules()]
    if offload.ranks is not None:
        given.append((model.__dict__, _PREPARED, _Prepared(model)))
    offload.fields = [(fields, name, fields.get(name)) for fields, name, _ in given]
    for fields, name, value in given:
        fields[name] = value


def allow(offload: "Offload") -> None:
    for fields, name, value in offload.fields:
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = value
    offload.fields.clear()


def check(offload: "Offload") -> None:
    """The model, or a part of it, is called. Raises if a wrapper calls it, or has changed it."""
    wrapper = DistributedDataParallel._active_ddp_module
    if wrapper is not None and any(
            parameter.requires_grad and isinstance(parameter, Offloaded)
            and parameter._stepwell.offload is offload for parameter in wrapper.parameters()):
        raise TypeError("DistributedDataParallel calls an offloaded model, whose gradients it "
                        f"cannot average, since they are in tiers: {_AVERAGED}")
    for module, fields in offload.modules:
        if (_DIVIDED in fields or _COMPOSED in fields) and _is_divided(module):
            raise TypeError(f"a {type(module).__name__} of an offloaded model was given to FSDP or "
                            "replicate(), which replace parameters that are in tiers or average "
                            f"their gradients: {_AVERAGED}")


def _is_divided(module: torch.nn.Module) -> bool:
    return _DIVIDED in module.__dict__ or any(
        function.__name__ in ("fully_shard", "replicate")
        for function in module.__dict__.get(_COMPOSED, ()))


def check_model(model: torch.nn.Module) -> None:
    """offload() is called. Raises if the model contains a wrapper."""
    if isinstance(model, torch.nn.DataParallel):
        raise TypeError("DataParallel keeps copies of parameters: offload the model inside it "
                        "(model.module)")
    for module in model.modules():
        if isinstance(module, DistributedDataParallel) or _is_divided(module):
            raise TypeError(f"{type(module).__name__} averages gradients or divides parameters "
                            "over processes, and cannot do so for those in tiers: make the model "
                            f"without it; {_AVERAGED}")
