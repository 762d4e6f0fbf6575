# SPDX-License-Identifier: Apache-2.0
"""Products of whole gradients with a number, which wait for the update.

clip_grad_norm_() and GradScaler multiply all gradients between backward and step(). The library
makes such a product on the way of the update, with the bits of torch's: in fp32, rounded once. So
the factor is kept in the record, and no byte moves. Any other use of the gradient makes the product
first.
"""
from __future__ import annotations

import ctypes
import math
from typing import Any, List, Optional, Tuple

import torch

from ._held import Held
from ._kernel_steps import KernelSteps
from ._lazy import Lazy, handlers, run_one
from ._records import GradSource, Record, settle

_aten = torch.ops.aten


def _number(value: Any) -> Optional[float]:
    """The factor that a product in fp32 takes of it; None: it is not one for all elements, or one
    that an update refuses."""
    if isinstance(value, torch.Tensor):
        if isinstance(value, Lazy) or value.dim() or not value.is_floating_point():
            return None
        value = value.item()
    if type(value) not in (int, float):
        return None
    rounded = ctypes.c_float(value).value
    return rounded if rounded > 0 and math.isfinite(rounded) else None


def _waiting(lazy: Any) -> Optional[Record]:
    """The record of a complete gradient that the next update will read from its tensor."""
    source = lazy._source if type(lazy) is Lazy else None
    if type(source) is not GradSource or not source.is_present():
        return None
    record, offload = source.record, source.offload
    usable = (record.held is Held.SUM and record.group >= 0 and record.elements
              and record.dtype is torch.float32 and not record.large and offload.ranks is None
              and offload.in_backward is None and offload.window is None
              and record.gradient not in offload.shown and lazy.dtype is torch.float32
              and (tuple(lazy.size()), lazy.stride(), lazy.storage_offset())
              == (record.size, record.stride, 0))
    return record if usable and type(_steps(record)) is KernelSteps else None


def _steps(record: Record) -> Any:
    return getattr(record.offload.optimizer, "_stepwell", None)


def _scale(record: Record, factor: float) -> None:
    """Two products are rounded twice, which matters where the bits are those of torch."""
    if record.scale != 1.0 and record.offload.place.torch_order:
        settle(record)
    record.scale *= factor


def _measure(records: List[Record], scale: float, norm_type: float) -> Any:
    """The norm of their gradients, and whether there is one: no byte leaves its tier."""
    steps: KernelSteps = _steps(records[0])
    return steps.kernel.step([record.tensor for record in records], measure=True, scale=scale,
                             norm_type=norm_type)


def _multiply(func: Any, args: Any, kwargs: Any) -> Any:
    """mul_(), and the same of a list."""
    lists = isinstance(args[0], (list, tuple))
    given = list(args[0]) if lists else [args[0]]
    records = [_waiting(each) for each in given]
    factor = _number(args[1]) if len(args) == 2 and not kwargs and any(records) else None
    for lazy, record in zip(given, records):
        if record is None or factor is None:
            run_one(func, ([lazy] if lists else lazy, *args[1:]), kwargs)
        else:
            _scale(record, factor)
    return None if lists else args[0]


def _unscale(func: Any, args: Any, kwargs: Any) -> Any:
    """Of GradScaler: found is 1 if an element is not finite, and all are multiplied."""
    given, found, inverse = args
    records = [_waiting(each) for each in given]
    ours = [record for record in records if record is not None]
    factor = _number(inverse) if ours else None
    if factor is not None:
        for record in ours:  # of the values that the program sees
            settle(record)
        if _measure(ours, 1.0, 2.0).nonfinite:
            found.fill_(1.0)
    for lazy, known in zip(given, records):
        if known is None or factor is None:
            run_one(func, ([lazy], found, inverse), kwargs)
        else:
            _scale(known, factor)


def _norm(lazy: Any, ord: Any = 2, **options: Any) -> Optional[torch.Tensor]:
    """Of a gradient that stays where it is. None where updates have the bits of torch's, so that
    norms have them too, and where it is another kind of norm, or none."""
    record = _waiting(lazy)
    if (record is None or record.offload.place.torch_order or ord not in (2, math.inf)
            or any(value is not None for value in options.values())):
        return None
    measured = _measure([record], record.scale, float(ord))
    if measured.nonfinite:
        return None
    return torch.tensor(measured.norm, dtype=record.dtype, device=lazy.device)


def _norms(func: Any, args: Any, kwargs: Any) -> Any:
    results = []
    for lazy in args[0]:
        norm = _norm(lazy, *args[1:], **kwargs)
        results += run_one(func, ([lazy], *args[1:]), kwargs) if norm is None else [norm]
    return results


def _vector_norm(func: Any, args: Any, kwargs: Any) -> Any:
    norm = _norm(*args, **kwargs) if len(args) <= 2 else None
    return run_one(func, args, kwargs) if norm is None else norm


_FUNCTIONS: Tuple[Tuple[Any, Any], ...] = (
    (_aten.mul_.Tensor, _multiply), (_aten.mul_.Scalar, _multiply),
    (_aten._foreach_mul_.Tensor, _multiply), (_aten._foreach_mul_.Scalar, _multiply),
    (_aten._amp_foreach_non_finite_check_and_unscale_.default, _unscale),
    (_aten._foreach_norm.Scalar, _norms), (_aten.linalg_vector_norm.default, _vector_norm),
)


def install() -> None:
    handlers.update(_FUNCTIONS)
