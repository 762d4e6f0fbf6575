# SPDX-License-Identifier: Apache-2.0
"""Tensors saved by autograd: a parameter is saved as a reference and fetched when its node runs.

The first node of a unit fetches the whole unit, which is held until its gradients have arrived; see
Backward. Saved-tensor hooks of others (checkpoints, the program's own) handle all other tensors:
ours are pushed above these and call them.
"""
from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import BudgetError
from ._gradients import Arrived
from ._lazy import Lazy, memory_of
from ._private import not_compiled
from ._records import Absent, Record, check_data, users_of, version_of, view_like
from ._units import HELD, Unit

if TYPE_CHECKING:
    from ._offload import Offload

_autograd = torch._C._autograd  # type: ignore[attr-defined]
_push = _autograd._push_saved_tensors_default_hooks
_top = _autograd._top_saved_tensors_default_hooks
_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_grad_enabled = torch.is_grad_enabled
_full = torch.float32
_strided = torch.strided
_thread = threading.get_ident

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


class Saved:
    """The form in which a node of the graph saves a parameter, or a view of one."""

    __slots__ = ("record", "data", "changes", "version")

    def __init__(self, record: Record, tensor: torch.Tensor) -> None:
        self.record = record
        self.data = record.alias if tensor is record.parameter else record.view(tensor)
        self.changes = record.changes
        self.version = record.alias._version  # fetches in a backward pass have their own count

    def _is_same(self) -> bool:
        """Whether the parameter is what it was."""
        record = self.record
        return self.changes == record.changes and self.version == record.alias._version

    def fetch(self) -> torch.Tensor:
        record = self.record
        if not self._is_same():
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified: "
                f"{record.label()} was updated or written after the forward pass that saved it; "
                "run the forward pass again")
        task = _task()
        unit = record.unit
        data = self.data
        if task < 0:  # the program reads it: like .detach() of the parameter
            return record.offload.accesses.view(record, data)
        if unit is None:
            return view_like(record.offload.accesses.pinned(record), data)
        record.offload.backward.pin(unit, task, _node())
        return data


class SavedCast(Saved):
    """The form in which a node saves a copy of a parameter in another dtype, as autocast makes. If
    nothing else has the copy then, it is made again when the node runs. Else a half copy of the
    model were in plain memory."""

    __slots__ = ("dtype", "place", "_copy", "_version", "_kept", "__weakref__")

    def __init__(self, record: Record, tensor: torch.Tensor) -> None:
        super().__init__(record, record.parameter)
        self.dtype = tensor.dtype
        self.place = tensor.size(), tensor.stride(), tensor.storage_offset()
        self._copy = StorageWeakRef(tensor.untyped_storage())
        self._version = version_of(tensor)
        self._kept: Optional[torch.Tensor] = None

    def fetch(self) -> torch.Tensor:
        if self._version._version:
            raise _modified(self._version, 0)
        with torch.no_grad():
            copy = self._kept if self._kept is not None else self._left()
            if copy is None:
                data = super().fetch()  # which fills what autocast's cache has
                copy = self._left()
                if copy is None:
                    copy = data.to(self.dtype)
            return copy.as_strided(*self.place)

    def keep(self) -> None:
        """The parameter, which is pinned, may be written: it is not made again after that."""
        if self._is_same():
            self._kept = self._left()
            if self._kept is None:
                self._kept = self.record.alias.to(self.dtype)

    def _left(self) -> Optional[torch.Tensor]:
        """The copy, if the program or autocast's cache has it and its contents."""
        memory = memory_of(self._copy, self.dtype)
        return memory if memory is not None and memory.numel() else None


def _cast(tensor: torch.Tensor) -> Any:
    """The saved form of a tensor that is a copy, or a view of one; None: it is none."""
    base: Any = tensor._base if tensor._is_view() else tensor
    function = base.grad_fn
    if function is None or function.name() != "ToCopyBackward0" or tensor._version:
        return None
    record = getattr(getattr(function.next_functions[0][0], "variable", None), "_stepwell", None)
    if (record is None or record.tiles is not None or base.dtype != tensor.dtype
            or base.device != tensor.device or base.device != record.alias.device
            or base.stride() != record.stride or base.storage_offset()):
        return None
    if not record.offload.casts.note(record, base):
        return None
    saved = SavedCast(record, tensor)
    record.offload.casts.saved.setdefault(record, weakref.WeakSet()).add(saved)
    return saved


class Backward:
    """The units that backward passes hold.

    A hold ends when the gradients of all parameters of the unit have arrived in the pass that began
    it: then every node that saved one of them has run. If some do not arrive (frozen or unused
    parameters), it ends when later units are held, oldest first, but not while the running node has
    unpacked it, or at the end of the pass.
    """

    def __init__(self, small: Arrived) -> None:
        self._small = small
        self._held: Dict[Unit, None] = {}
        self._passes: Dict[int, int] = {}  # those that run, with their threads
        self.failed = False  # one of them, since the last mark
        self.broken = False  # one has, and what it left was not ended yet

    def pin(self, unit: Unit, task: int, node: Any) -> None:
        """A node of a pass needs the parameters of a unit."""
        if unit.task < 0:
            self._hold(unit, task, node)
        unit.node = node

    def _hold(self, unit: Unit, task: int, node: Any) -> None:
        if task not in self._passes:
            unit.offload.alone(self._begin, unit, task)
        held = self._held
        while len(held) >= HELD and self.drop(node):
            pass
        while True:
            try:
                unit.enter()
                break
            except BudgetError:
                if not self.drop(node):
                    raise
        unit.task = task
        if not unit.offload.serves_faults:
            unit.others = _others(unit)
        held[unit] = None
        awaited = 0
        for record in unit.records:
            if record.outside:  # a checkpoint that recomputes needs the state of the forward pass
                record.parameter.__class__ = Absent
            if record.hooked is not None and record.done != task and record.elements:
                awaited += 1
        unit.awaited = awaited

    def _begin(self, unit: Unit, task: int) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(  # type: ignore[attr-defined]
            _Pass(self, task))
        self._passes[task] = _thread()
        unit.offload.begin_train()  # if the forward pass was none: by parts, or in eval()

    def foreign(self) -> bool:
        """Whether another thread is in a pass."""
        return any(thread != _thread() for thread in list(self._passes.values()))

    def runs(self) -> bool:
        return bool(self._passes)

    def knows(self, task: int) -> bool:
        """Whether the end of the pass will be reported."""
        return task in self._passes

    def drop(self, node: Any) -> bool:
        """End the oldest hold that this node does not need. Returns whether there was one."""
        for unit in self._held:
            if node is not None and unit.node is not node and not self.keeps(unit):
                self.release(unit)
                return True
        return False

    def keeps(self, unit: Unit) -> bool:
        """Whether a hold lasts to the end of the pass: a node has returned a parameter as it is, as
        the gradient of something, and no fault would bring it back."""
        return not unit.offload.serves_faults and (
            _others(unit) > unit.others or any(record.is_passed_on() for record in unit.records))

    def release(self, unit: Unit) -> None:
        """End a hold."""
        unit.leave()
        unit.task, unit.node = -1, None
        self._held.pop(unit, None)

    def end(self, task: int) -> None:
        for unit in [unit for unit in self._held if unit.task == task]:
            self.release(unit)
        self._small.copy()
        self._passes.pop(task, None)

    def clear(self) -> None:
        """End the holds of failed passes; all are, if this thread is in none."""
        if _task() < 0:
            self.failed = self.failed or bool(self._passes)
            self._passes.clear()
        for unit in [unit for unit in self._held if unit.task not in self._passes]:
            self.release(unit)
        if not self._passes:
            self._small.copy()

    def reset(self) -> None:
        self.broken = False
        self._held.clear()
        self._passes.clear()


def _others(unit: Unit) -> int:
    """The tensors over the memory of its parameters that are not ours."""
    return sum(users_of(record.alias) - len(record.views) for record in unit.records)


class _Pass:
    """The engine calls it at the end of a backward pass, and drops it also after a failed one."""

    def __init__(self, backward: Backward, task: int) -> None:
        self._backward, self._task = backward, task

    def __call__(self) -> None:
        self._backward.end(self._task)

    def __del__(self) -> None:
        try:
            if self._backward._passes.pop(self._task, None) is not None:
                self._backward.failed = self._backward.broken = True
        except AttributeError:
            pass  # partly constructed


class _Given:
    """A parameter, or a view of it, that the program's hook has packed as it is."""

    __slots__ = ("saved",)

    def __init__(self, saved: Saved) -> None:
        self.saved = saved


def _packed(record: Record, tensor: torch.Tensor, below: Pack) -> Any:
    """What the program's hook makes of a parameter, or a view of it."""
    if record.offload.serves_faults:
        return below(tensor)
    before = sys.getrefcount(tensor), users_of(record.alias)
    packed = below(tensor)
    if not isinstance(packed, torch.Tensor) and (
            sys.getrefcount(tensor) > before[0] or users_of(record.alias) > before[1]):
        raise RuntimeError(
            f"a hook for saved tensors keeps {record.label()} inside of another object, and no "
            "fault would fetch it in the backward pass: return the tensor itself, or a clone() "
            "in it, or offload with fault_in=True")
    return packed


class Hooks:
    """The pair of hooks of one Offload, pushed unless it is on top already.

    A backward pass that makes a graph (create_graph=True) saves the unpacked tensors: each node
    that unpacks a parameter pushes the pair itself, since the engine restores the thread state of
    the backward() call after each node.
    """

    def __init__(self, offload: "Offload") -> None:
        records: Dict[int, Record] = offload.by_address
        self._records = records

        def pack(tensor: torch.Tensor) -> Any:
            if tensor.layout is not _strided or type(tensor) is Lazy:  # whose address would pin it
                return tensor if tensor.is_leaf else tensor.detach(), tensor._version
            if offload.first <= tensor.data_ptr() < offload.last:
                record = records.get(tensor.untyped_storage().data_ptr())
                if record is not None:
                    return Saved(record, tensor)
            if tensor.dtype is not _full and tensor.grad_fn is not None:
                cast = _cast(tensor)
                if cast is not None:
                    return cast
            if offload.spill is not None:
                kept = offload.spill.pack(tensor)
                if kept is not None:
                    return kept
            # As in torch: an output is saved without its graph, which would otherwise never be
            # freed.
            if tensor.is_leaf:
                return tensor, tensor._version
            return tensor.detach(), tensor._version, weakref.ref(tensor)

        def unpack(packed: Any) -> torch.Tensor:
            if type(packed) is tuple:
                tensor, version = packed[:2]
                if tensor._version != version:
                    raise _modified(tensor, version)
                if len(packed) == 3:
                    check_data(packed[2](), tensor.untyped_storage()._cdata)
                return tensor  # type: ignore[no-any-return]
            self._follow()
            return packed.fetch()  # type: ignore[no-any-return]

        self._pack, self._unpack = pack, unpack
        not_compiled(pack, callees=True)
        pack._stepwell = self  # type: ignore[attr-defined]

    def push(self) -> bool:
        """Returns False if ours are on top already and must not be popped."""
        top = _top(True)
        if top is None:
            _push(self._pack, self._unpack)
            return True
        if getattr(top[0], "_stepwell", None) is self:
            return False
        _push(*self._over(*top))
        return True

    def _follow(self) -> None:
        """A node may make a graph, and the engine pops the pair after it."""
        if _grad_enabled() and _task() >= 0:
            self.push()

    @staticmethod
    def others_on_top() -> bool:
        """Whether those of others get what is saved, maybe below a pair of an Offload."""
        top = _top(True)
        return top is not None and _is_foreign(top[0])

    def _over(self, below: Pack, below_unpack: Unpack) -> Tuple[Pack, Unpack]:
        records = self._records
        # Those of torch itself (checkpoints, save_on_cpu) and of another Offload give back what
        # they were given, so parameters pass them by, and no copies of them are made.
        neutral = ((getattr(below, "__module__", None) or "").startswith("torch.")
                   or hasattr(below, "_stepwell"))

        def record_of(tensor: torch.Tensor) -> Optional[Record]:
            if tensor.layout is not _strided or type(tensor) is Lazy:
                return None
            return records.get(tensor.untyped_storage().data_ptr())

        def pack(tensor: torch.Tensor) -> Any:
            record = record_of(tensor)
            if record is not None:
                if neutral:
                    return Saved(record, tensor)
                packed = _packed(record, tensor, below)
                again = record_of(packed) if isinstance(packed, torch.Tensor) else None
                return packed if again is None else _Given(Saved(again, packed))
            if tensor.dtype is not _full and tensor.grad_fn is not None:
                _cast(tensor)  # which notes it
            return below(tensor)

        def unpack(packed: Any) -> torch.Tensor:
            if type(packed) is Saved:
                self._follow()
                return packed.fetch()
            if type(packed) is _Given:
                return below_unpack(packed.saved.fetch())
            return below_unpack(packed)

        pack._stepwell = self  # type: ignore[attr-defined]
        pack._over_foreign = _is_foreign(below)  # type: ignore[attr-defined]
        return pack, unpack


def _is_foreign(pack: Pack) -> bool:
    return getattr(pack, "_over_foreign", not hasattr(pack, "_stepwell"))


for _function in (Saved.__init__, SavedCast.__init__, _cast):
    not_compiled(_function, callees=True)


def _modified(tensor: torch.Tensor, version: int) -> RuntimeError:
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: a {tensor.type()} of {list(tensor.size())} is at version {tensor._version}; "
        f"expected version {version} instead")
