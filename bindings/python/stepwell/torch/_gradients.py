# SPDX-License-Identifier: Apache-2.0
"""Small gradients of a model that stays in the device budget: copied to their tensors, many at
once.

To give a gradient away wakes another thread, which costs more than to copy some hundred kilobytes.
Their tensors keep their memory from step to step: the first gradient of a step overwrites what is
there.
"""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, List

import torch

from .._fetching import fetch_at_once, release
from ._records import Record, flat

if TYPE_CHECKING:
    from .._runtime import Runtime

_TOGETHER = 64          # gradients that wait for each other at most,
_ELEMENTS = 1 << 20     # and about so many elements of them
_memmove = ctypes.memmove
_get_grad = torch.Tensor.grad.__get__  # type: ignore[attr-defined]
_set_grad = torch.Tensor.grad.__set__  # type: ignore[attr-defined]
_strided = torch.strided
_Off = torch._C.DisableTorchFunctionSubclass


class Arrived:
    """Those that have come in a backward pass. They wait in the parameters' own `.grad`."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._records: List[Record] = []
        self._elements = 0

    def put(self, record: Record, wait: bool) -> None:
        """wait: copy() will be called at the end of the pass."""
        records = self._records
        records.append(record)
        self._elements += record.elements
        if not wait or len(records) >= _TOGETHER or self._elements >= _ELEMENTS:
            self.copy()

    def copy(self) -> None:
        """Move all that wait to their tensors."""
        records, self._records, self._elements = self._records, [], 0
        if records:
            with _Off():  # a parameter may be Absent again
                self._copy(records)

    def _copy(self, records: List[Record]) -> None:
        found, grads, requests = [], [], []
        for record in records:
            grad = _get_grad(record.parameter)
            if grad is None:  # dropped, or it has come twice in the pass
                continue
            if grad.layout is not _strided or record.has_gradient:
                _set_grad(record.parameter, None)
                record.add_gradient(grad)
                continue
            found.append(record)
            grads.append(grad if grad.stride() == record.stride else flat(grad, record.stride))
            requests.append(record.place)
        if not found:
            return
        views = fetch_at_once(self._runtime, requests)
        if views is not None:
            for view, grad in zip(views, grads):
                _memmove(view.pointer, grad.data_ptr(), view.bytes)
            release(views)
        for record, grad in zip(found, grads):
            _set_grad(record.parameter, None)
            if views is None:  # they have no memory yet, or somebody holds a view
                record.add_gradient(grad)
            record.has_gradient = True
