# SPDX-License-Identifier: Apache-2.0
"""Gradients, from autograd to their tensors.

On the CPU each gradient is passed to the library, which adds it after the call. If the model fits
in the device budget, small gradients are copied to their tensors instead, many at once: adopting
one wakes another thread, which costs more than copying some hundred kilobytes. On a device all but
large ones are copied or added so: a fetch of many costs little more than one. If everything fits,
tensors of such gradients keep their memory from step to step, and the first gradient of a step
overwrites the old contents.
"""
from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch

from .. import _abi
from .._dlpack import AtAddress
from .._enums import Access
from .._exchange import given, given_back
from .._fetching import copy_at_once
from .._library import unchecked
from .._runtime import Runtime
from .._tensor import Tensor
from ..errors import BudgetError, error_of
from ._held import Event, Held
from ._place import Place
from ._records import Record, flat, own_grad, set_own_grad, settle

if TYPE_CHECKING:
    from ._offload import Offload

_TOGETHER = 64          # the maximum number of collected gradients,
_FEW = 4 << 20          # and on the CPU about the maximum of their bytes
_SMALL = 256 << 10      # bytes; the largest that is collected there
_MOST = 64 << 20        # bytes; about the maximum of those on a device, and of one of them
_PART = 16 << 20        # bytes of a larger one that are copied to its tensor together
_get_grad = torch.Tensor.grad.__get__  # type: ignore[attr-defined]
_set_grad = torch.Tensor.grad.__set__  # type: ignore[attr-defined]
_strided = torch.strided
_users = torch._C._storage_Use_Count  # type: ignore[attr-defined]
_adopt = unchecked("stw_reduce_adopt")
_adopt.argtypes = [ctypes.c_void_p] * 5
_reduce = unchecked("stw_reduce")
_reduce.argtypes = [ctypes.c_void_p] * 3
_task = torch._C._current_graph_task_id
_grad_enabled = torch.is_grad_enabled
_Off = torch._C.DisableTorchFunctionSubclass


def _alone(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """Its `.grad`; None if anything else refers to it, or to the memory of it."""
    grad = _get_grad(parameter)
    if grad is None or grad.layout is not _strided:
        return None
    storage = grad.untyped_storage()
    if (sys.getrefcount(grad) > _BASE or _users(storage._cdata) > 2  # with this object
            or not storage.resizable()):
        return None
    return grad  # type: ignore[no-any-return]


def _program_has(parameter: torch.Tensor) -> bool:
    """Whether anything but the parameter refers to its `.grad`, or to the memory of it."""
    if _alone(parameter) is not None:
        return False
    grad = _get_grad(parameter)
    return grad is not None and grad.layout is _strided  # else it is refused where it is taken


_BASE = 1 << 30
_probe = torch.nn.Parameter(torch.zeros(1, device="cpu"))
_probe.grad = torch.zeros(1, device="cpu")


def _measure() -> int:
    """The references that a gradient has in _alone() while only its parameter has it."""
    global _BASE
    _BASE = 1
    while _alone(_probe) is None:
        _BASE += 1
    return _BASE


_BASE = _measure()


class Arrived:
    """The collected gradients of a backward pass, which are in the parameters' own `.grad`."""

    def __init__(self, runtime: Runtime, place: Place, most: int) -> None:
        """most: bytes, about the maximum of all together."""
        self._runtime = runtime
        self._place = place
        self._most = most
        self._records: List[Record] = []
        self._bytes = 0
        # The stream on which they were computed, and what the library calls it.
        self._stream: Optional[torch.Stream] = None
        self._handle = 0

    def put(self, record: Record, wait: bool) -> None:
        """Add a gradient. wait: copy() will be called at the end of the pass."""
        if self._place.kind.stream is not None:
            self._follow()
        records = self._records
        records.append(record)
        self._bytes += record.elements * record.dtype.itemsize
        if not wait or len(records) >= _TOGETHER or self._bytes >= self._most:
            self.copy()

    def copy(self) -> None:
        """Copy all collected gradients to their tensors."""
        if self._records and self._stream is not None:
            self._follow()
        records, self._records, self._bytes = self._records, [], 0
        self._stream = None
        if records:
            with _Off():  # a parameter may be Absent again
                self._copy(records)

    def _follow(self) -> None:
        """Make the current stream wait for the one on which the collected gradients were computed.
        """
        before, handle = self._stream, self._place.stream()
        if before is not None and handle == self._handle:
            return
        self._stream, self._handle = torch.accelerator.current_stream(), handle
        if before is None:
            return
        self._stream.wait_stream(before)
        for record in self._records:
            grad = _get_grad(record.parameter)
            if grad is not None:
                self._place.used_here(grad)

    def _copy(self, records: List[Record]) -> None:
        found, grads, requests = [], [], []
        for record in records:
            grad = _alone(record.parameter)
            if grad is None or record.held:
                if record.offload.gradients.kept_by_program(record):
                    continue
                grad = _get_grad(record.parameter)
                if grad is None:  # dropped, or computed twice in the pass
                    continue
                if grad.layout is not _strided or record.held and self._place.is_host:
                    _set_grad(record.parameter, None)
                    record.add_gradient(grad)
                    continue
            found.append(record)
            grads.append(grad if grad.stride() == record.stride else flat(grad, record.stride))
            requests.append(record.make_gradient()._requests[Access.WRITE])
        if not found:
            return
        if not self._place.is_host:
            self._take_there(found, grads)
            return
        copied = copy_at_once(self._runtime, requests, [grad.data_ptr() for grad in grads])
        for record, grad in zip(found, grads):
            _set_grad(record.parameter, None)
            if not copied:  # the tensors have no memory yet, or a view is open
                record.add_gradient(grad)
            record.become(Event.ADDED)

    def _take_there(self, records: List[Record], grads: List[torch.Tensor]) -> None:
        """The same on the current stream of a device, where they may be added to others."""
        groups: Dict[Access, List[Tuple[Record, torch.Tensor]]] = {}
        for record, grad in zip(records, grads):
            record.note_sum()
            # To what may have left, it is added where that is.
            access = (Access.WRITE if not record.held else
                      Access.READ_WRITE if record.keeps or record.stays else Access.REDUCE)
            groups.setdefault(access, []).append((record, grad))
            if record.held and record.scale != 1.0:
                settle(record)
            _set_grad(record.parameter, None)  # before it is added: an interrupt drops it
        for access, pairs in groups.items():
            self._copy_there(access, pairs)

    def _copy_there(self, access: Access, pairs: List[Tuple[Record, torch.Tensor]]) -> None:
        """Copy or add to their tensors; fewer at once, if they have no room together."""
        try:
            views = self._runtime.fetch_many([record.make_gradient() for record, _ in pairs],
                                             access)
        except BudgetError:
            if len(pairs) == 1:
                pairs[0][0].add_gradient(pairs[0][1])
                return
            self._copy_there(access, pairs[:len(pairs) // 2])
            self._copy_there(access, pairs[len(pairs) // 2:])
            return
        for record, _ in pairs:
            record.become(Event.ADDED)
        put: Any = (torch._foreach_add_ if access is Access.READ_WRITE  # type: ignore[attr-defined]
                    else torch._foreach_copy_)  # type: ignore[attr-defined]
        with views, torch.no_grad():
            put([self._memory_of(record, view.address) for (record, _), view in zip(pairs, views)],
                [flat(grad, record.stride) for record, grad in pairs])

    def _memory_of(self, record: Record, address: int) -> torch.Tensor:
        """A tensor over the fetched gradient: most come to the same address each time."""
        seen, memory = record.memory_at
        if memory is None or seen != address:
            assert record.gradient is not None
            memory = self._place.tensor_of(AtAddress(record.gradient, address))
            record.memory_at = address, memory
        return memory


def _check_graph(parameter: torch.Tensor, record: Record) -> None:
    grad = own_grad(parameter)
    if grad is not None and grad.requires_grad:
        set_own_grad(parameter, None)
        raise RuntimeError(
            f"backward(create_graph=True) makes a gradient of {record.label()} that has a graph, "
            "and gradients in tiers are values: for a term of gradients take "
            "torch.autograd.grad(loss, list(model.parameters()), create_graph=True), whose results "
            "are plain tensors")


class Gradients:
    """The gradients of one Offload, in the order of arrival."""

    def __init__(self, offload: "Offload", ranks: int) -> None:
        self._offload = offload
        self._place = offload.place
        on_device = not self._place.adopts_gradients
        most = min(_MOST, offload.unit_bytes)
        self.small = Arrived(offload.runtime, self._place, most if on_device else _FEW)
        self._most = most if on_device and ranks == 1 else 0
        self._given: Dict[Record, None] = {}  # whose `.grad` the program has set
        # Over ranks the sum must be the mean.
        self._reduce_options = [_abi.stw_reduce_options.initial(scale=1.0 / ranks, flags=flags)
                                for flags in (0, _abi.STW_REDUCE_MORE)]
        self._reduce_at = [ctypes.addressof(options) for options in self._reduce_options]

    @property
    def collected_max(self) -> int:
        """Bytes of a gradient that is copied to its tensor together with others."""
        if not self._place.adopts_gradients:
            return self._most
        return _SMALL if self._offload.resident else 0

    @staticmethod  # the garbage collector does not see what autograd's hooks refer to
    def accumulated(parameter: torch.Tensor) -> None:
        """Autograd has computed a gradient; its memory is released at once."""
        record: Record = parameter._stepwell  # type: ignore[attr-defined]
        offload = record.offload
        task = _task()
        if _grad_enabled() and not offload.plain_gradients:
            _check_graph(parameter, record)
        if offload.in_backward is not None:
            offload.in_backward.coming(record)
        whole = parameter is record.parameter  # else it stands for a part of a parameter
        small = (record.collected and record.held is not Held.SPENT
                 and not (record.held and offload.place.is_host))
        if whole and offload.plain_gradients:
            record.check_gradient(own_grad(parameter))
        elif whole and record.given:
            pass  # autograd has added it to the program's memory
        elif whole and small:  # Arrived looks whether the program has it
            offload.gradients.small.put(record, offload.backward.knows(task))
        elif whole and offload.gradients.kept_by_program(record):
            pass  # a hook has kept it
        else:
            grad = own_grad(parameter)
            set_own_grad(parameter, None)
            if grad is not None:
                record.add_gradient(grad)
        unit = record.unit
        record.done = task
        if offload.ranks is not None and offload.ranks.find_unused:
            pass  # others refer to it longer
        elif unit is not None and unit.task == task and task >= 0:
            unit.awaited -= 1
            if unit.awaited <= 0 and not offload.backward.keeps(unit):
                offload.backward.release(unit)
        if offload.in_backward is not None:
            offload.in_backward.arrived(record)

    def give(self, record: Record, grad: torch.Tensor) -> None:
        """The program sets `.grad`: its tensor is filled by backward passes while the program has
        it, and moves to tiers when it has not."""
        offload = record.offload
        if offload.plain_gradients:
            set_own_grad(record.parameter, grad)
            return
        if offload.ranks is not None or offload.in_backward is not None or record.large:
            record.add_gradient(grad)
            return
        for each in list(self._given):
            if each is not record and not _program_has(each.parameter):
                self._take(each)
        set_own_grad(record.parameter, grad)
        record.given = True
        self._given[record] = None

    def kept_by_program(self, record: Record) -> bool:
        """Leave a gradient that autograd has made to a program that refers to it."""
        if (record.held or record.large or record.offload.ranks is not None
                or record.offload.in_backward is not None or not _program_has(record.parameter)):
            return False
        record.given = True
        self._given[record] = None
        return True

    def _take(self, record: Record) -> None:
        del self._given[record]
        if record.given:
            record.given = False
            grad = own_grad(record.parameter)
            if grad is not None:
                set_own_grad(record.parameter, None)
                record.add_gradient(grad)

    def reduce(self, gradient: Tensor, source: torch.Tensor, first: bool, more: bool) -> None:
        """Pass a gradient's memory on, to be added after the call. first: to nothing. more: to this
        rank's part."""
        if not self._place.adopts_gradients:
            self._copy(gradient, source, first)
            return
        # Like gradient.reduce(source, adopt=True), in a sixth of its time.
        capsule = torch._C._to_dlpack(source)  # type: ignore[attr-defined]
        managed, deleter = given(capsule)
        status = _adopt(gradient._handle, source.data_ptr(), self._reduce_at[more], deleter,
                        managed)
        if status < 0:
            given_back(capsule)
            raise error_of(status)

    def _copy(self, gradient: Tensor, source: torch.Tensor, first: bool) -> None:
        """Copy a gradient on the current stream, in parts, so that little room is enough. first: it
        is all that there is as yet, else it is added."""
        access = Access.WRITE if first else Access.REDUCE
        offload = self._offload
        blocks = max(1, min(_PART, offload.unit_bytes) // offload.block_bytes)
        each = blocks * offload.block_bytes // source.element_size()
        for begin in range(0, source.numel(), each):
            part = source[begin:begin + each]
            view = offload.room_for(gradient.request(access, begin, part.numel()))
            self._place.tensor_of(view).copy_(part)
            del view

    def add(self, gradient: Tensor, source: torch.Tensor) -> bool:
        """Add to a gradient at once. False: open views prevent it, or the CPU does not reach it, so
        its memory must be passed on."""
        return self._place.adopts_gradients and _reduce(
            gradient._handle, source.data_ptr(), self._reduce_at[0]) == 0
