# SPDX-License-Identifier: Apache-2.0
"""offload(): a model and its optimizer in tiers, for a training loop that stays as it is."""
from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import torch

from .. import _abi
from .._exchange import given, given_back
from .._library import unchecked
from .._options import Device
from .._phase import Phase, Step
from .._runtime import Runtime
from .._tensor import Tensor
from ..errors import BudgetError, error_of
from . import _optimizer, _tiles
from ._commits import Commits
from ._gradients import Arrived
from ._in_backward import InBackward
from ._making import check_updates, checked, need, offloads, spec_of, too_large
from ._progress import Meter, Progress
from ._ranks import Ranks
from ._records import (
    DTYPES, READ, READ_WRITE, VERSIONED, Offloaded, Record, own_grad, read, set_own_grad,
    users_of, write,
)
from ._saved import Backward, Hooks, pop
from ._sizes import Places, Size, nvme_of, size_of
from ._spill import Spill
from ._units import Unit, install, is_holder, own, shares, uninstall

_SHARE = 8      # of the device budget: what a unit's parameters are together at most
_adopt = unchecked("stw_reduce_adopt")
_adopt.argtypes = [ctypes.c_void_p] * 5
_reduce = unchecked("stw_reduce")
_reduce.argtypes = [ctypes.c_void_p] * 3
_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_Off = torch._C.DisableTorchFunctionSubclass


class Offload:
    """What offload() made: tiers, units and gradients of one model. Found by offloaded(model).

    Threads: any may call the model, and calls of several wait for each other; the rest is for one
    thread at a time. close() gives the model its memory back.
    """

    def __init__(self, runtime: Runtime, budget: int, block_bytes: int, keep_gradients: bool,
                 ranks: int) -> None:
        self.model: Optional[torch.nn.Module] = None  # of init(): not made yet
        self.runtime = runtime
        self.making: Any = None  # the Tiers of init(), until they have a model
        self.commits: Optional[Commits] = None  # with a store_name
        self.in_backward: Optional[InBackward] = None  # with update_in_backward
        self.closed = False
        self.keep_gradients = keep_gradients
        self.budget = budget
        self.block_bytes = block_bytes
        self.unit_bytes = budget // _SHARE
        self.copied = _tiles.Copies()
        self.records: List[Record] = []
        self.by_parameter: Dict[int, Record] = {}
        self.by_address: Dict[int, Record] = {}
        self.first, self.last = 1 << 64, 0  # all of these addresses are in between
        self.units: List[Unit] = []
        self.hooks = Hooks(self)
        self.small = Arrived(runtime)
        self.backward = Backward(self.small)
        self.meter = Meter(runtime)
        self.saved_tensors = Spill(self)
        self.serves_faults = False
        self.has_host = False  # a tier of its own beside the device's, where gradients are added
        self.copies = 0   # state_dict() calls under way: what they give are copies
        # Of gradients: over ranks the sum of them is to be the mean.
        self._reduce_options = [_abi.stw_reduce_options.initial(scale=1.0 / ranks, flags=flags)
                                for flags in (0, _abi.STW_REDUCE_MORE)]
        self._reduce_at = [ctypes.addressof(options) for options in self._reduce_options]
        self.ranks: Optional[Ranks] = Ranks(self) if ranks > 1 else None
        self.spill: Optional[Spill] = None  # the same, where saved tensors may leave memory
        self.held: List[Unit] = []  # left at the next mark
        self.resident = False  # all of it fits the device budget for good
        self.kept: Dict[Unit, None] = {}
        self.optimizer: Optional[torch.optim.Optimizer] = None
        self.touched: Dict[Record, Any] = {}
        self.shown: Dict[Record, int] = {}  # of these, what tensors alone have the memory of
        self._phases: Dict[str, Phase] = {}
        self._handles: List[Any] = []  # of hooks on modules
        self._train: Optional[Step] = None
        self._eval: Optional[Step] = None
        self.lock = threading.RLock()  # of the model's calls

    # -- making -----------------------------------------------------------------------------------

    def begin(self, model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer],
              parameters: List[Tuple[str, torch.nn.Parameter]], durable: bool,
              update_in_backward: bool, find_unused_parameters: bool,
              tile_bytes: Optional[Size]) -> None:
        """Take all of a model, and let its calls and steps go through the tiers."""
        if self.ranks is not None:
            self.ranks.find_unused = find_unused_parameters
        self.model, self.optimizer = model, optimizer
        self.take(parameters, durable)
        _tiles.divide(self, model, None if tile_bytes is None else size_of(tile_bytes))
        self.cut("", model, 0)
        install(self, model, None, root=True)
        for module in model.modules():
            self._handles.append(module.register_state_dict_pre_hook(_copies_begin))
            self._handles.append(module.register_state_dict_post_hook(_copies_end))
        if durable:
            self.commits = Commits(self)
        states = 0 if optimizer is None else _optimizer.states_of(optimizer)
        # What is updated in backward gives its pins and gradients up there.
        self.resident = not update_in_backward and self._stays(states)
        if optimizer is not None:
            steps = _optimizer.convert(optimizer, self)
            if update_in_backward:
                self.in_backward = InBackward(self, steps)
        offloads[model] = self

    def _stays(self, states: int) -> bool:
        """Whether all of it stays in the device budget: nothing has to leave it between uses."""
        used = self.runtime.tier_stats("device").used_bytes
        if self.ranks is not None or used < sum(record.tensor.nbytes for record in self.records):
            return False
        for unit in self.units:  # each has blocks of its own for gradients, and for each state
            own = [record for record in unit.records if record.unit is unit]
            gradients = sum(record.elements * record.dtype.itemsize for record in own)
            state = 4 * sum(record.elements for record in own)
            halves = any(record.dtype.itemsize < 4 for record in own)
            used += sum(-(-each // self.block_bytes) * self.block_bytes
                        for each in [gradients] + [state] * (states + halves))
        return used <= self.budget * 15 // 16

    def take(self, parameters: List[Tuple[str, torch.nn.Parameter]], durable: bool) -> None:
        """Move every parameter of the model into its tensor."""
        self.move([(name, parameter) for name, parameter in parameters
                   if id(parameter) not in self.by_parameter], durable)
        for name, parameter in parameters:
            record = self.by_parameter[id(parameter)]
            if record.name != name:  # of init()
                record.name = name
                if durable:
                    self.renew(record, record.alias, durable)

    def move(self, parameters: List[Tuple[str, torch.nn.Parameter]],
             durable: bool) -> List[Record]:
        """Move these into tensors of their own."""
        specs = [spec_of(name, parameter, parameter.requires_grad, durable)
                 for name, parameter in parameters]
        tensors = self.runtime.create_many(specs)
        made = [Record(self, name, parameter, tensor, spec.read_only)
                for (name, parameter), tensor, spec in zip(parameters, tensors, specs)]
        for record in made:
            grad = record.parameter.grad
            record.adopt()
            self.remember(record)
            if grad is not None:
                set_own_grad(record.parameter, None)
                record.add_gradient(grad)
        return made

    def remember(self, record: Record) -> None:
        self.records.append(record)
        self.by_parameter[id(record.parameter)] = record
        self.by_address[record.address] = record
        self.first = min(self.first, record.address)
        self.last = max(self.last, record.address + record.tensor.nbytes)
        record.large = (record.tensor.nbytes > self.unit_bytes
                        and not self.runtime.fits([record.tensor]))

    def forget(self, record: Record) -> None:
        self.records.remove(record)
        del self.by_parameter[id(record.parameter)]
        del self.by_address[record.address]

    def renew(self, record: Record, data: torch.Tensor, durable: bool) -> None:
        """Give a parameter another tensor, for data of its own or of another size or dtype."""
        old = record.tensor
        self.mark()
        if data is record.alias:
            data = self.copy_of(record)
        self.forget(record)
        spec = spec_of(record.name, data, record.parameter.requires_grad, durable)
        record.tensor, record.frozen = self.runtime.create_many([spec])[0], spec.read_only
        record.like(data)
        record.adopt(data)
        self.remember(record)
        old.destroy()

    def cut(self, name: str, module: torch.nn.Module, least: int) -> None:
        """Make units of a subtree: as large as may be, and of what is called."""
        found = self._records_of(module.parameters())
        if not found:
            return
        total = sum(record.tensor.nbytes for record in found)
        below = [(key, child) for key, child in module.named_children()
                 if any(True for _ in child.parameters())]
        whole = not is_holder(module) and (
            shares(module) or not below or (least == 0 and total <= self.unit_bytes))
        if whole:
            self._unit(name, module, found)
            return
        direct = self._records_of(own(module))
        if direct and not is_holder(module):
            self._unit(name, module, direct)
        for key, child in below:
            if not isinstance(child, (torch.nn.ParameterList, torch.nn.ParameterDict)):
                self.cut(f"{name}.{key}" if name else key, child, 0)

    def _records_of(self, parameters: Iterable[torch.nn.Parameter]) -> List[Record]:
        found: Dict[int, Record] = {}
        for parameter in parameters:
            if id(parameter) in self.by_parameter:
                found[id(parameter)] = self.by_parameter[id(parameter)]
        return [record for record in found.values() if record.tiles is None]

    def _unit(self, name: str, module: torch.nn.Module, records: List[Record]) -> None:
        unit = Unit(self, name, module, records)
        if not self.runtime.fits(unit.tensors):
            raise BudgetError(too_large(name, module, unit.bytes, self.budget))
        self._check_room_for_gradients(unit)
        self.units.append(unit)
        install(self, module, unit)

    def _check_room_for_gradients(self, unit: Unit) -> None:
        """Gradients are added, block by block, while backward holds their unit."""
        block = self.block_bytes
        sizes = [record.alias.nbytes for record in unit.records]
        small = sum(size for size in sizes if size < block)
        blocks = -(-small // block) + sum(-(-size // block) for size in sizes if size >= block)
        if (blocks < self.budget // block or self.has_host or self.ranks is not None
                or not any(record.parameter.requires_grad for record in unit.records)):
            return
        raise BudgetError(
            f"module '{unit.name or type(unit.module).__name__}' ({type(unit.module).__name__}) "
            f"takes {blocks} blocks of {block} bytes, its parameters of {unit.bytes} bytes, and "
            f"the device budget of {self.budget} bytes has {self.budget // block}: none is left "
            "to add its gradients while backward holds it. Raise device_bytes, or give a smaller "
            "block_bytes (stepwell.BLOCK_64K)")

    # -- calls and steps --------------------------------------------------------------------------

    def begin_call(self, module: torch.nn.Module) -> bool:
        """The model is called. True: end_call() is to come."""
        self.mark()
        if self.optimizer is not None and torch.is_grad_enabled() and module.training:
            if self._train is None:
                self._train = self._step("train")
            if self.ranks is not None:
                self.ranks.begin()
            return False
        if self._eval is not None:
            return False
        self._eval = self._step("eval")
        return True

    def end_call(self) -> None:
        step, self._eval = self._eval, None
        if step is not None:
            step.end()

    def end_step(self) -> None:
        step, self._train = self._train, None
        if step is not None:
            self.meter.add(step.end())

    def _step(self, name: str) -> Step:
        phase = self._phases.get(name)
        if phase is None:
            phase = self._phases[name] = self.runtime.phase(name)
        step = phase.step()
        step.begin()
        return step

    def mark(self) -> None:
        """Accesses outside units end here."""
        self.end_kept()
        while self.touched:
            self._untouch(next(reversed(self.touched)))
        while self.held:
            self.held.pop().leave()
        self.copies = 0
        self.backward.clear()
        self.copied.mark()

    def end_kept(self) -> None:
        """Give back the views that units keep for their backward pass."""
        while self.kept:
            unit, _ = self.kept.popitem()
            unit.kept = False
            unit.views.release()

    # -- accesses ---------------------------------------------------------------------------------

    def pinned(self, record: Record) -> torch.Tensor:
        """Its bytes, flat: the pin ends with the tensor."""
        return torch.from_dlpack(self.runtime.fetch(record.tensor))

    def touch(self, records: List[Record], func: Any, args: Any, kwargs: Any,
              escapes: bool) -> Any:
        """Fetch the unpinned parameters of a torch function's arguments, and call it."""
        if self.copies and func is torch.Tensor.detach:
            return self.copy_of(records[0])
        if any(record.large for record in records):
            return _tiles.touch(self, records, func, args, kwargs, escapes)
        if self.hooks.others_on_top():
            if _task() < 0:
                for record in records:
                    record.outside = True
            elif not any(record.outside or record.unit is None for record in records):
                # A checkpoint inside a unit computes a part of it again. As in the forward pass
                # all of it is pinned, and the checkpoint's own hooks see what is saved.
                for record in records:
                    self.backward.pin(record.unit, _task(), _node())
                with _Off():
                    return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        writes = ("out" in kwargs or name == "__setitem__" or name.startswith("__i")
                  or (name.endswith("_") and not name.endswith("__")))
        if self._eval is not None or self._train is not None:
            for record in records:
                if record.unit is not None and not record.unit.calls:
                    record.unit.split()
        if sum(self.shown.values()) > self.unit_bytes:
            self._end_shown()
        for record in records:
            record.touches += 1
            # A write by an address is a fault where these are served; of what is frozen it is
            # not, and a view is enough where torch notices a write.
            given = escapes and (record.frozen or not self.serves_faults)
            self._touch(record, (writes or given) and not (record.frozen and func in VERSIONED))
        keep = escapes  # until the next mark
        result = None
        try:
            pushed = self.hooks.push()
            try:
                with _Off():
                    result = func(*args, **kwargs)
            finally:
                if pushed:
                    pop()
            keep = keep or any(
                self._shares(value, records) for value in
                (result if isinstance(result, (tuple, list)) else (result,)))
        finally:
            for record in records:
                if not keep:
                    self._untouch(record)
                elif isinstance(result, torch.Tensor) or self.serves_faults:
                    self.shown[record] = record.tensor.nbytes
        return result

    def _end_shown(self) -> None:
        """End accesses whose tensors are gone: a loop over `.data` may exceed the budget. Where
        faults are served the others may end as well, and come back by one."""
        for record in list(self.shown):
            # The parameter's own, this one, and those that are kept.
            if self.serves_faults or users_of(record.alias) == 2 + len(record.views):
                self._untouch(record)

    def _touch(self, record: Record, writes: bool) -> None:
        held = self.touched.get(record)
        if held is not None and (held.access != READ or not writes):
            return
        if held is not None:
            self._untouch(record)
        if writes:
            self.end_kept()
            record.thaw()
        self.touched[record] = self.runtime.fetch(record.tensor,
                                                  READ_WRITE if writes else READ)
        record.pin()

    def end_touched(self, records: List[Record]) -> None:
        """End accesses that would be in the way of a unit's fetch."""
        for record in records:
            if record in self.touched:
                self._untouch(record)

    def _untouch(self, record: Record) -> None:
        view = self.touched.pop(record)
        self.shown.pop(record, None)
        changed = record.unpin(stays=view.access != READ)
        view.release()
        record.save(changed)

    @staticmethod
    def _shares(value: Any, records: List[Record]) -> bool:
        if not isinstance(value, torch.Tensor) or isinstance(value, Offloaded):
            return False
        if value.layout != torch.strided or value.device.type != "cpu":
            return False
        address = value.untyped_storage().data_ptr()
        return any(record.address == address for record in records)

    def set_data(self, record: Record, data: torch.Tensor) -> None:
        """Its bytes are others; its memory stays, as aliases of it and the tiers do."""
        if tuple(data.shape) != record.size or data.dtype != record.dtype:
            if self.making is not None and data.dtype in DTYPES:
                record.name = self.making.fresh(record.name)
                self.renew(record, data.detach(), False)
                return
            raise RuntimeError(
                f"data of {tuple(data.shape)}, {data.dtype} for {record.label()} of {record.size}, "
                f"{record.dtype}: a parameter in tiers keeps its shape and dtype; change it before "
                "offload()")
        self.copied.end(record.tensor)
        if data is record.parameter:  # as Module.to() does where nothing is to be moved
            return
        if record.pins:  # in its module's call, or its memory was given away since the last mark
            with torch.no_grad():
                record.alias.copy_(data)
        else:
            self.end_kept()
            record.thaw(by_view=False)
            write(record.tensor, data, record.stride)
        record.changes += 1

    def copy_of(self, record: Record) -> torch.Tensor:
        if record.pins:
            return record.alias.clone()
        self.copied.sync(record.tensor)
        return read(record.tensor, record.size, record.stride, record.dtype)

    # -- gradients --------------------------------------------------------------------------------

    def accumulated(self, parameter: torch.Tensor) -> None:
        """Autograd has a gradient; its memory goes at once."""
        record: Record = parameter._stepwell  # type: ignore[attr-defined]
        task = _task()
        if self.in_backward is not None:
            self.in_backward.coming(record)
        if (record.place is not None and not record.has_gradient and not record.spent
                and parameter is record.parameter):  # else it stands for a part of one
            self.small.put(record, self.backward.knows(task))
        else:
            grad = own_grad(parameter)
            set_own_grad(parameter, None)
            if grad is not None:
                record.add_gradient(grad)
        unit = record.unit
        record.done = task
        if self.ranks is not None and self.ranks.find_unused:
            pass  # others hold it longer
        elif unit is not None and unit.task == task and task >= 0:
            unit.awaited -= 1
            if unit.awaited <= 0:
                self.backward.release(unit)
        if self.in_backward is not None:
            self.in_backward.arrived(record)

    def reduce(self, gradient: Tensor, source: torch.Tensor, more: bool) -> None:
        """Give a gradient's memory away; it is added behind the call. more: to this rank's part."""
        # As gradient.reduce(source, adopt=True) does, in a sixth of its time.
        capsule = torch._C._to_dlpack(source)  # type: ignore[attr-defined]
        managed, deleter = given(capsule)
        status = _adopt(gradient._handle, source.data_ptr(), self._reduce_at[more], deleter,
                        managed)
        if status < 0:
            given_back(capsule)
            raise error_of(status)

    def add(self, gradient: Tensor, source: torch.Tensor) -> bool:
        """Add to a gradient at once. False: it is to be given away, as views are in the way."""
        return _reduce(gradient._handle, source.data_ptr(), self._reduce_at[0]) == 0

    def no_sync(self) -> ContextManager[None]:
        """In the block, gradients of several ranks are added up on each; the next backward pass
        after it sums all of them over the ranks. For all micro-batches of a step but the last:

            with stepwell.torch.offloaded(model).no_sync():
                loss(model, first).backward()
            loss(model, last).backward()
            optimizer.step()

        What the last pass does not reach is summed by step(). One rank alone has nothing to sum.
        """
        if self.in_backward is not None:
            raise ValueError("no_sync() is for several backward passes in a step, and with "
                             "update_in_backward=True there is one: offload without it")
        return contextlib.nullcontext() if self.ranks is None else self.ranks.no_sync()

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the model and the optimizer plain memory again, and close the tiers."""
        if self.closed:
            return
        self.mark()
        if self.ranks is not None:
            self.ranks.settle()
        self.runtime.drain()
        if self.model is not None:
            self.let_go(self.model)
        for record in self.records:
            gradient = record.gradient_copy() if record.has_gradient and not record.spent else None
            record.restore()
            record.parameter.grad = gradient
        if hasattr(self.optimizer, "_stepwell"):
            _optimizer.restore(self.optimizer)
        self.closed = True
        self.runtime.close(deferred=True)

    def let_go(self, model: torch.nn.Module) -> None:
        """Call its modules as torch does; parameters stay in their tensors."""
        for module in model.modules():
            uninstall(module)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        model.__dict__.pop("_call_impl", None)
        offloads.pop(model, None)
        self.model = None
        self.units.clear()
        for record in self.records:
            record.unit = None
            _tiles.undo(record)

    # -- generations ------------------------------------------------------------------------------

    def commit(self, metadata: Any = None, *, label: Optional[str] = None) -> int:
        """Make the present state a generation, and return its number; needs store_name.

        In it: parameters, persistent buffers, the optimizer's states, counts and groups. Not in it:
        gradients, so call it after step() and zero_grad(). metadata: what torch.load() reads with
        weights_only, at most 1 MiB with the small states. Random states, schedulers, scalers and
        the place in the data are the program's:

            model, optimizer = stepwell.torch.offload(model, optimizer, ..., store_name="run1",
                                                      resume=True, overwrite=True)
            found = stepwell.torch.offloaded(model).metadata  # None: nothing was resumed
            if found:
                torch.set_rng_state(found["random"])
                scheduler.load_state_dict(found["scheduler"])
            ...
            stepwell.torch.offloaded(model).commit({
                "random": torch.get_rng_state(), "scheduler": scheduler.state_dict()})

        Blocks until it is on stable storage. A process that resumes it goes on with equal bits.
        """
        return self._stored().commit(metadata, label)

    @property
    def generation(self) -> int:
        """The number of the generation that was resumed; 0: none."""
        return self.commits.generation if self.commits is not None else 0

    @property
    def metadata(self) -> Any:
        """What commit() was given for it."""
        return self.commits.metadata if self.commits is not None else None

    def _stored(self) -> Commits:
        if self.commits is None:
            raise ValueError("the model has no store: give offload() or init() a store_name")
        return self.commits

    def __enter__(self) -> "Offload":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __deepcopy__(self, memo: Dict[int, Any]) -> None:
        return None

    def progress(self) -> Progress:
        """What the steps moved and waited since this was called last, for a line of text:

            bar.set_postfix_str(stepwell.torch.offloaded(model).progress())

        Never blocks.
        """
        return self.meter.progress()

    def write_report(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.runtime.write_report(path)


def _count_copies(module: torch.nn.Module, more: int) -> None:
    for parameter in module.parameters():
        if isinstance(parameter, Offloaded):
            parameter._stepwell.offload.copies += more
            return


# Functions of the module, so that models with these hooks are copied and pickled.
def _copies_begin(module: torch.nn.Module, *_: Any) -> None:
    _count_copies(module, 1)


def _copies_end(module: torch.nn.Module, *_: Any) -> None:
    _count_copies(module, -1)


def offload(model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, *,
            device_bytes: Size, host_bytes: Size = 0, nvme: Places = None,
            nvme_bytes: Optional[Size] = None, keep_gradients: bool = False,
            update_in_backward: bool = False, find_unused_parameters: bool = False,
            activation_bytes: Optional[Size] = None, activation_nvme_bytes: Size = "4GiB",
            store_name: Optional[str] = None, tile_bytes: Optional[Size] = None,
            **options: Any) -> Tuple[torch.nn.Module, Optional[torch.optim.Optimizer]]:
    """Keep a model's parameters, gradients and optimizer states in tiers; returns both arguments.

    The training loop stays as it is. device_bytes: memory for what is computed with; host_bytes:
    more of it behind, of use where the device is a GPU; nvme: a directory, or several, for what
    does not fit; nvme_bytes: its size, by default what parameters, gradients and states need.
    store_name: generations stay there (Offload.commit()); resume=True: go on with the newest, and
    with overwrite=True begin anew where there is none; what the arguments have is replaced then.
    keep_gradients: `.grad` stays after optimizer.step() until zero_grad(), as in plain torch, and
    takes room meanwhile. update_in_backward: update each parameter once backward has its gradient,
    which needs a loop that does nothing with gradients. find_unused_parameters: some ranks may have
    no gradient of a parameter where others have one. activation_bytes: what autograd saves beyond
    so many bytes goes to nvme until backward needs it, of which activation_nvme_bytes are for that;
    None: it stays in memory. tile_bytes: weights of Linear, Embedding and Conv1D larger than that
    are computed with in tiles of at most so many; None: those that do not fit device_bytes, in
    tiles of an eighth of it.
    options: those of stepwell.Runtime.

    Blocks while the parameters are copied to their tiers. Raises BudgetError where a module's
    parameters do not fit together, naming it.
    """
    check_updates(optimizer, keep_gradients, update_in_backward, find_unused_parameters)
    parameters = checked(model)
    known = {id(parameter) for _, parameter in parameters}
    if optimizer is not None:
        _optimizer.check_parameters(optimizer, known)
    if nvme_bytes is None and nvme is not None:
        nvme_bytes = need(model, parameters, optimizer,
                           options.get("block_bytes") or _abi.STW_BLOCK_2M,
                           1 + (options.get("generations_kept") or 2) if store_name else 1)
        if activation_bytes is not None:
            nvme_bytes += size_of(activation_nvme_bytes)
    made = opened(device_bytes, host_bytes, nvme, nvme_bytes, store_name, keep_gradients, options)
    try:
        made.begin(model, optimizer, parameters, store_name is not None, update_in_backward,
                   find_unused_parameters, tile_bytes)
        if activation_bytes is not None:
            made.spill = made.saved_tensors.begin(size_of(activation_bytes))
    except BaseException:
        made.close()
        raise
    return model, optimizer


def opened(device_bytes: Size, host_bytes: Size, nvme: Places, nvme_bytes: Optional[Size],
           store_name: Optional[str], keep_gradients: bool, options: Dict[str, Any]) -> Offload:
    """Tiers without a model."""
    device = size_of(device_bytes)
    block = options.get("block_bytes") or _abi.STW_BLOCK_2M
    ranks = options.get("group") is not None or options.get("replica_group") is not None
    options.setdefault("fault_in", not ranks)  # what all ranks fetch together, no fault of one can
    runtime = Runtime(
        devices=[Device(device)], host_bytes=size_of(host_bytes),
        nvme=nvme_of(nvme, size_of(nvme_bytes or 0), block), store_name=store_name, **options)
    group = options.get("group")
    made = Offload(runtime, device, block, keep_gradients, 1 if group is None else group.size)
    made.serves_faults = bool(options["fault_in"])
    made.has_host = size_of(host_bytes) > 0
    return made


@contextlib.contextmanager
def save_on_tiers(model: torch.nn.Module, keep_bytes: Size) -> Iterator[Spill]:
    """In the block, saved tensors of an offloaded model beyond keep_bytes go to its tiers.

    As offload(activation_bytes=) does throughout. The nvme budget is to have room for them. What
    gives it: Spill, which counts. Backward may come after the block.
    """
    made = offloaded(model)
    before, kept = made.spill, made.saved_tensors.keep_bytes
    made.spill = made.saved_tensors.begin(size_of(keep_bytes))
    try:
        yield made.spill
    finally:
        made.spill, made.saved_tensors.keep_bytes = before, kept


def offloaded(model: torch.nn.Module) -> Offload:
    """The Offload of a model: its runtime, report and close()."""
    found = offloads.get(model)
    if found is None:
        raise KeyError("this model is not offloaded")
    return found
