# SPDX-License-Identifier: Apache-2.0
"""offload(): a model and its optimizer in tiers, for an unchanged training loop."""
from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from typing import (
    Any, Callable, Collection, ContextManager, Dict, Iterator, List, Optional, Set, Tuple, TypeVar,
    Union,
)

import torch

from .. import _abi
from .._enums import Access, Role, number
from .._fetching import Item
from .._phase import Phase, Step, StepStats
from .._runtime import Runtime
from .._tensor import Tensor, TensorSpec
from .._views import View
from ..errors import BudgetError, BusyError, ExistsError, InvalidError, MismatchError
from . import _collectives, _kinds, _optimizer, _scaling, _tiles, _wrappers
from ._accesses import Accesses, copies_begin, copies_end
from ._budgets import budgets
from ._casts import Casts
from ._commits import Commits
from ._division import DEVICE_UNIT, SHARE, choose_staying, cut, stays
from ._gradients import Gradients
from ._held import Event, Held
from ._in_backward import InBackward, runs_backward
from ._lazy import Lazy, Window, memory_of
from ._making import (
    check_alone, check_options, check_place, check_updates, check_updates_fit, checked, chosen,
    fit_whole, lacking, later_of, move_buffers, need, offloads, spec_of, unwrapped, warn_of_held,
)
from ._place import HOST, KINDS, DeviceLike, Place
from ._private import not_compiled
from ._progress import Meter, Progress
from ._ranks import Ranks
from ._records import Absent, Present, Record, own_grad, set_own_grad
from ._saved import Backward, Hooks
from ._sizes import Places, Size, nvme_of, size_of, text_of
from ._spill import Spill
from ._units import Unit, install, uninstall

_Made = TypeVar("_Made")
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame  # type: ignore[attr-defined]
_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_thread = threading.get_ident
_is_autocast = torch.is_autocast_enabled
_serials = itertools.count()



class Offload:
    """The result of offload(): tiers, units and gradients of one model. From offloaded(model).

    Threads: any may call the model and use its parameters: they wait for another thread's call of
    the model and for its backward pass. Other methods are for one thread at a time. close() moves
    the model back to plain memory.
    """

    def __init__(self, runtime: Runtime, budget: int, block_bytes: int, keep_gradients: bool,
                 ranks: int, place: Place = HOST) -> None:
        self.place = place
        self.serial = next(_serials)
        self.model: Optional[torch.nn.Module] = None  # None during init()
        self.runtime = runtime
        self.making: Any = None  # the Tiers of init(), until a model is offloaded
        self.commits: Optional[Commits] = None  # with a store_name
        self.in_backward: Optional[InBackward] = None  # with update_in_backward
        self.closed = False
        self.keep_gradients = keep_gradients
        self.budget = budget
        self.block_bytes = block_bytes
        self.unit_bytes = budget // SHARE
        self.unit_most = self.unit_bytes if place.is_host else min(self.unit_bytes, DEVICE_UNIT)
        self.copied = _tiles.Copies(place)
        self.records: List[Record] = []
        self.by_parameter: Dict[int, Record] = {}
        self.by_address: Dict[int, Record] = {}
        self.first, self.last = 1 << 64, 0  # the range of all these addresses
        self.units: List[Unit] = []
        self.hooks = Hooks(self)
        self.accesses = Accesses(self)
        self.casts = Casts(self)
        self.gradients = Gradients(self, ranks)
        self.backward = Backward(self.gradients.small)
        self.meter = Meter(runtime)
        self.saved_tensors = Spill(self)
        self.serves_faults = False
        self.has_host = False  # there is a separate host tier
        self.adds_elsewhere = False  # gradients are added there, and need no room on the device
        self.ranks: Optional[Ranks] = Ranks(self) if ranks > 1 else None
        self.spill: Optional[Spill] = None  # if saved tensors may be moved to nvme
        self.held: List[Unit] = []  # released at the next mark
        self.sources: Any = weakref.WeakValueDictionary()  # of lazy tensors, in their order
        self.window: Optional[Window] = None  # during a step by an optimizer's own code
        self.shown: Dict[Any, Any] = {}  # tensors of lazy ones over which the program has arrays
        self.lent: Dict[int, Any] = {}  # snapshots over which the program has arrays, by their ids
        self.ended: List[Any] = []  # tensors that nothing refers to any more
        self._addresses: List[torch.Tensor] = []  # given out since the last mark
        self.fits = False      # everything has room in the device budget
        self.resident = False  # and stays there from use to use
        self.keeps_pins = False  # then pins may last from a forward pass to the backward pass
        self.plain_gradients = False  # then they stay where autograd has made them
        self.kept: Dict[Unit, None] = {}
        self.optimizer: Optional[torch.optim.Optimizer] = None
        self.parameters: List[Tuple[str, torch.nn.Parameter]] = []
        # What the default of nvme_bytes has room for: parameters with gradients and states (None:
        # it was given), copies of durable tensors, and other bytes.
        self.later: Optional[Set[int]] = None
        self.copies, self.more = 1, 0
        self.own_steps = False  # the optimizer's own step() accesses gradients at their addresses
        self._phases: Dict[str, Phase] = {}
        self._handles: List[Any] = []  # of hooks on modules
        self.modules: List[Tuple[torch.nn.Module, Dict[str, Any]]] = []  # with their fields
        self.fields: List[Tuple[Dict[str, Any], str, Any]] = []  # of modules, until close()
        self._train: Optional[Step] = None
        self._eval: Optional[Step] = None
        _collectives.install(self)
        _scaling.install()
        self._lock = threading.RLock()  # held during outermost calls: see alone()
        self.inside = self._lock._is_owned  # type: ignore[attr-defined]
        self.patience = 300.0   # seconds that a call waits for another thread's
        self._caller = 0        # the thread of the outermost call
        self._unclean = False   # a call has raised, maybe between two lines: see recover()

    # -- making -----------------------------------------------------------------------------------

    def begin(self, model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer],
              parameters: List[Tuple[str, torch.nn.Parameter]], durable: bool,
              update_in_backward: bool, find_unused_parameters: bool,
              tile_bytes: Optional[Size], strict: bool) -> None:
        """Convert a model, so that its calls and steps use the tiers."""
        if self.ranks is not None:
            self.ranks.find_unused = find_unused_parameters
        self.model, self.optimizer, self.parameters = model, optimizer, parameters
        self.own_steps = optimizer is not None and _kinds.kind_of(optimizer) is None
        if durable:
            self.commits = Commits(self, parameters, strict)
            parameters = self.commits.parameters
            if optimizer is not None and self.commits.optimizer is not None:
                _optimizer.check_resumed(optimizer, self.commits.optimizer, strict)
        self.take(parameters, durable)
        _tiles.divide(self, model, None if tile_bytes is None else size_of(tile_bytes))
        check_updates_fit(self, optimizer)
        cut(self, "", model, 0)
        install(self, model, None, root=True)
        for module in model.modules():
            self.modules.append((module, module.__dict__))
            self._handles.append(module.register_state_dict_pre_hook(copies_begin))
            self._handles.append(module.register_state_dict_post_hook(copies_end))
        if self.commits is not None:
            self.commits.restore()
        states = 0 if optimizer is None else _kinds.states_of(optimizer)
        self.fits = stays(self, states)
        # Parameters that are updated in backward release their pins and gradients there.
        self.resident = not update_in_backward and self.fits
        if not self.place.is_host and not self.fits and self.ranks is None:
            choose_staying(self, states)
        self.keeps_pins = self.resident and self.place.keeps_pins
        if self.resident and self.ranks is None and self.place.lends_gradients:
            self.keep_plain()
        if optimizer is not None:
            steps = _optimizer.convert(optimizer, self)
            if update_in_backward:
                self.in_backward = InBackward(self, steps)
        _wrappers.refuse(self, model)
        offloads[model] = weakref.ref(self)

    def take(self, parameters: List[Tuple[str, torch.nn.Parameter]], durable: bool) -> None:
        """Move every parameter of the model into its tensor."""
        self.move([(name, parameter) for name, parameter in parameters
                   if id(parameter) not in self.by_parameter], durable)
        for name, parameter in parameters:
            record = self.by_parameter[id(parameter)]
            if record.name != name:  # created by init()
                record.name = name
                if durable:
                    self.renew(record, record.alias, durable)

    def move(self, parameters: List[Tuple[str, torch.nn.Parameter]],
             durable: bool) -> List[Record]:
        """Move each of these to a tensor."""
        specs = [spec_of(name, parameter, parameter.requires_grad, durable,
                         self.place.fixed_addresses)
                 for name, parameter in parameters]
        tensors = self.room(self.runtime.create_many, specs)
        made = [Record(self, name, parameter, tensor, spec.read_only)
                for (name, parameter), tensor, spec in zip(parameters, tensors, specs)]
        for record in made:
            grad = record.parameter.grad
            record.adopt()
            self.remember(record)
            if isinstance(grad, Lazy) and grad._source.is_gone():
                set_own_grad(record.parameter, None)
                record.become(Event.ADDED)
                record.become(Event.CONSUMED)
            elif grad is not None:
                set_own_grad(record.parameter, None)
                try:
                    record.add_gradient(grad)
                except BaseException:
                    set_own_grad(record.parameter, grad)
                    raise
        return made

    def keep_plain(self) -> None:
        """From now on gradients are in plain memory, as there is room for them in the budget."""
        self.plain_gradients = True
        for record in self.records:
            if record.held is Held.SUM:
                grad = record.gradient_copy()
                record.drop_gradient()
                set_own_grad(record.parameter, grad)

    def room(self, make: Callable[..., _Made], *args: Any, **options: Any) -> _Made:
        """Call a function that makes tensors. Its BudgetError names arguments of offload()."""
        try:
            return make(*args, **options)
        except BudgetError as error:
            error.sentence = lacking(self, error)
            raise

    def make(self, spec: TensorSpec) -> Tensor:
        """Create a tensor whose name only this caller uses. If there is one already, an interrupt
        came between its creation and the assignment of the result: it is destroyed first."""
        try:
            return self.room(self.runtime.create_many, [spec])[0]
        except ExistsError:
            assert spec.name is not None
            left = self.runtime.find(spec.name)
            if left.info().role != number(Role, spec.role):
                raise
            left.destroy()
            return self.room(self.runtime.create_many, [spec])[0]

    def room_for(self, item: Item, access: Access = Access.READ) -> View:
        """Fetch on a device. Units that are held for later nodes of a backward pass give way."""
        while True:
            try:
                return self.runtime.fetch(item, access)
            except BudgetError:
                if not self.backward.drop(_node()):
                    raise

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
        """Give a parameter another tensor, for data with its own memory, or another size or
        dtype."""
        old = record.tensor
        self.mark()
        if data is record.alias:
            data = self.accesses.copy_of(record)
        self.forget(record)
        spec = spec_of(record.name, data, record.parameter.requires_grad, durable,
                       self.place.fixed_addresses)
        record.tensor, record.frozen = self.runtime.create_many([spec])[0], spec.read_only
        record.like(data)
        record.adopt(data)
        self.remember(record)
        old.destroy()

    # -- calls and steps --------------------------------------------------------------------------

    def begin_call(self, module: torch.nn.Module) -> bool:
        """The model is called. Returns whether end_call() will follow."""
        captures = self.place.kind.captures
        if captures is not None and captures():
            raise NotImplementedError(
                "a graph is captured around a call of the offloaded model, and repeated it would "
                "find other bytes in the device's memory: capture modules inside of it, or none")
        if not self.place.is_host and torch._C._get_tracing_state() is not None:
            raise NotImplementedError(
                "torch.jit.trace() of the offloaded model reads its parameters later without a "
                "call of its modules, when others may lie in the device's memory: trace "
                "copy.deepcopy(model)")
        self.mark()
        if self.optimizer is not None and torch.is_grad_enabled() and module.training:
            self.begin_train()
            if self.ranks is not None:
                self.ranks.begin()
            return False
        if self._eval is not None:
            return False
        self._eval = self._step("eval")
        return True

    def begin_train(self) -> None:
        if self._train is None and self.optimizer is not None:
            self._train = self._step("train")

    def end_call(self) -> None:
        if self._eval is not None:
            _end(self._eval)
        self._eval = None

    def end_step(self) -> None:
        stats = None if self._train is None else _end(self._train)
        self._train = None
        if stats is not None:
            self.meter.add(stats)
        self.renew_lent()

    def in_step(self) -> bool:
        return self._eval is not None or self._train is not None

    def _step(self, name: str) -> Step:
        phase = self._phases.get(name)
        if phase is None:
            phase = self._phases[name] = self.runtime.phase(name)
        if phase._open is not None:
            _end(phase._open)
        step = phase.step()
        step.begin()
        return step

    def mark(self) -> None:
        """End the accesses outside units."""
        if not self.inside():
            self.alone(self.mark)
            return
        self.end_kept()
        if self.window is not None:
            self.window.end()
        self._addresses.clear()
        if self.ended:
            self.destroy_ended()
        self.accesses.end()
        while self.held:
            self.held.pop().leave()
        self.backward.clear()
        if self.backward.failed:
            self.backward.failed = False
            for record in self.records:
                if record.lacks_gradient():  # the exception came before the first of it was added
                    record.become(Event.DROPPED)
        self.copied.mark()
        self.renew_lent()

    def renew_lent(self) -> None:
        """Arrays over entries of state_dict() get what the parameters have become."""
        if self.lent and self.ranks is None:
            early = self.in_backward
            for snapshot in {snapshot for snapshot, _ in list(self.lent.values())}:
                if early is None or not early.has_changed(snapshot.record):
                    snapshot.renew(used=False)

    def hold(self, memory: torch.Tensor) -> None:
        """Keep memory pinned until the next mark, since its address was given out."""
        self._addresses.append(memory)

    def shown_memory(self, tensor: Tensor, dtype: torch.dtype) -> Optional[torch.Tensor]:
        """The memory of a gradient or a state over which the program may have an array."""
        found = self.shown.get(tensor)
        if found is None:
            return None
        memory = memory_of(found[0], dtype)
        if memory is None:
            del self.shown[tensor]
        return memory

    def check_shown(self, what: str) -> None:
        """Raise if the program has an array over a gradient or a state."""
        for tensor, (storage, source) in list(self.shown.items()):
            if not storage.expired():
                raise RuntimeError(
                    f"{what} while the program has an array over {source.label()}, or its "
                    "address, which pins it: delete the array before, or make it of a clone()")
            del self.shown[tensor]

    def check_lent(self) -> None:
        """Over ranks a step raises if the program has an array over an entry."""
        for snapshot, _ in self.lent.values() if self.ranks is not None else ():
            raise RuntimeError(
                f"step() is called while the program has an array over an entry of state_dict(), "
                f"of {snapshot.record.label()}, whose new values all processes would have to "
                "collect: delete the array before, or make it of a clone() of the entry")

    def destroy_ended(self) -> None:
        ended, self.ended = self.ended, []
        for tensor in ended:
            try:
                tensor.destroy()
            except BusyError:  # an array over its memory is left
                self.ended.append(tensor)

    def end_kept(self) -> None:
        """Release the views that units keep for their backward pass."""
        for unit in list(self.kept):
            unit.kept = False
            if unit.views.held and not unit.depth:
                unit.views.release()
            self.kept.pop(unit, None)

    # -- threads and signals ----------------------------------------------------------------------

    def alone(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it while no other thread is in a call of the model or in a backward pass.

        A signal handler may raise between any two lines. So what is done is noted before it is
        done, and what has been left is found by the next outermost call.
        """
        compiler = _set_eval_frame(None)
        try:
            while True:
                self._await_turn()
                with self._lock:
                    if self.backward.foreign():
                        continue
                    self._caller = _thread()
                    try:
                        unclean = self._unclean or self.backward.broken
                        if unclean and (_task() < 0 or not self.backward.runs()):
                            self._recover()
                        before, self._unclean = self._unclean, True
                        if _is_autocast(self.place.device.type):
                            self.casts.begin()
                        if compiler is not None:
                            _set_eval_frame(compiler)
                        result = function(*args, **kwargs)
                        self._unclean = before
                        return result
                    finally:
                        self._caller = 0
        finally:
            if compiler is not None:
                _set_eval_frame(compiler)

    def _await_turn(self) -> None:
        begin = time.monotonic()
        while self._caller not in (0, _thread()) or self.backward.foreign():
            if not self.place.calls_backward and _task() >= 0 and runs_backward(self._caller):
                raise NotImplementedError(
                    f"backward() is called inside a call of the model, and its nodes on "
                    f"{self.place.device} run on a thread of autograd, which would wait for the "
                    "call: call it after the model has returned")
            time.sleep(0.0005)
            if time.monotonic() - begin > self.patience:
                raise BusyError(
                    f"another thread is in a call or a backward pass of the model since "
                    f"{self.patience:.0f} s, and calls of several threads follow one another: end "
                    "that call before, and do not wait in it for a thread that calls its modules; "
                    "offload(timeout=) is the time to wait")

    def _recover(self) -> None:
        """Nothing runs: end what an exception between two lines has left."""
        for record in self.by_address.values():
            record.pins = 0
            if type(record.parameter) is Present:
                record.parameter.__class__ = Absent
        if self._eval is not None:
            self.end_call()
        self.held.clear()
        self.window = None
        self._addresses.clear()
        self.backward.reset()
        for unit in self.units:
            unit.reset()
        self.accesses.repair()

    def no_sync(self) -> ContextManager[None]:
        """In the block, each rank accumulates gradients; the next backward pass after it sums all
        of them over the ranks. For all micro-batches of a step except the last:

            with stepwell.torch.offloaded(model).no_sync():
                loss(model, first).backward()
            loss(model, last).backward()
            optimizer.step()

        step() sums gradients that the last pass does not reach. No effect on one rank.
        """
        if self.in_backward is not None:
            raise ValueError("no_sync() is for several backward passes in a step, and with "
                             "update_in_backward=True there is one: offload without it")
        return contextlib.nullcontext() if self.ranks is None else self.ranks.no_sync()

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the model and the optimizer plain memory again, and close the tiers."""
        if self.closed:
            self.runtime.close(deferred=True)
            return
        if not self.inside():  # no other thread is in a call
            self.alone(self.close)
            return
        if self.in_backward is not None:
            self.in_backward.check_ended("close() is called")
        model = self.model
        self.mark()
        self.casts.end()
        if self.ranks is not None:
            self.ranks.settle()
        self.runtime.drain()
        if self.model is not None:
            self.let_go(self.model)
        outlived = {}  # these take room: last
        for record in self.records:
            gradient = (own_grad(record.parameter) if record.held is Held.NONE
                        else record.grad_source().end() if record.held is Held.SPENT
                        else record.last_gradient())
            data = record.copy()
            if record.is_outlived():
                outlived[record] = data, gradient
                continue
            record.restore(data)
            record.parameter.grad = gradient
        for source in list(self.sources.values()):
            if self.ranks is None or source.of_all:
                source.settle()
        if hasattr(self.optimizer, "_stepwell"):
            _optimizer.restore(self.optimizer)
        for record, (data, gradient) in outlived.items():
            record.restore(data, in_place=True)
            record.parameter.grad = gradient
        self.closed = True
        if model is not None:
            offloads.pop(model, None)
        self.runtime.close(deferred=True)

    def let_go(self, model: torch.nn.Module) -> None:
        """Restore the calls of its modules to torch's; parameters stay in their tensors."""
        for module in model.modules():
            uninstall(module)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.modules.clear()
        model.__dict__.pop("_call_impl", None)
        _wrappers.allow(self)
        self.units.clear()
        for record in self.records:
            record.unit = None
            _tiles.undo(record)

    # -- generations ------------------------------------------------------------------------------

    def commit(self, metadata: Any = None, *, label: Optional[str] = None) -> int:
        """Make a generation of the present state, and return its number; needs store_name.

        It includes parameters, persistent buffers, extra states, the optimizer's states, counts and
        groups, but no gradients, so call it after step() and zero_grad().
        metadata: values that torch.load() reads with weights_only, at most 1 MiB together with the
        small states. The program must add random states, schedulers, scalers and the position in
        the data:

            model, optimizer = stepwell.torch.offload(model, optimizer, ..., store_name="run1",
                                                      resume=True, overwrite=True)
            found = stepwell.torch.offloaded(model).metadata  # None: nothing was resumed
            if found:
                torch.set_rng_state(found["random"])
                scheduler.load_state_dict(found["scheduler"])
            ...
            stepwell.torch.offloaded(model).commit({
                "random": torch.get_rng_state(), "scheduler": scheduler.state_dict()})

        Blocks until it is on stable storage. A process that resumes it continues with the same
        bits.
        """
        return self._stored().commit(metadata, label)

    @property
    def generation(self) -> int:
        """The number of the resumed generation; 0: none."""
        return self.commits.generation if self.commits is not None else 0

    @property
    def metadata(self) -> Any:
        """The metadata of the resumed generation, as passed to commit()."""
        return self.commits.metadata if self.commits is not None else None

    def _stored(self) -> Commits:
        if self.commits is None:
            raise ValueError("the model has no store: give offload() or init() a store_name")
        return self.commits

    def __enter__(self) -> "Offload":
        return self

    def __exit__(self, _: Any, error: Any, __: Any) -> None:
        if error is not None and self.in_backward is not None:
            self.in_backward.end_step()  # what was updated stays updated; the error is the news
        self.close()

    def __deepcopy__(self, memo: Dict[int, Any]) -> None:
        return None

    def progress(self) -> Progress:
        """The bytes and waits of the steps since the last call, for a line of text:

            bar.set_postfix_str(stepwell.torch.offloaded(model).progress())

        Never blocks.
        """
        return self.meter.progress()

    def write_report(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.runtime.write_report(path)


not_compiled(Offload.alone)


def _end(step: Step) -> Optional[StepStats]:
    """End a step; None if it has ended in the library, and an exception came before the rest."""
    try:
        return step.end()
    except InvalidError:
        step._close()
        return None


def offload(model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, *,
            device: Optional[DeviceLike] = None, device_bytes: Optional[Size] = None,
            host_bytes: Optional[Size] = None, nvme: Places = None,
            nvme_bytes: Optional[Size] = None, keep_gradients: bool = False,
            update_in_backward: bool = False, find_unused_parameters: bool = False,
            activation_bytes: Optional[Size] = None, activation_nvme_bytes: Size = "4GiB",
            store_name: Optional[str] = None, tile_bytes: Optional[Size] = None,
            strict: bool = True,
            trainable_later: Union[None, str, torch.Tensor, Collection[Any]] = None, **options: Any
            ) -> Tuple[torch.nn.Module, Optional[torch.optim.Optimizer]]:
    """Keep a model's parameters, gradients and optimizer states in tiers; returns both arguments.

    The training loop is unchanged. device: where the model computes, by default where it is;
    device="cuda" takes one that is on the CPU there, which is never on the device as a whole.
    device_bytes: memory in which the model computes, on a GPU by default half of what is free;
    host_bytes: a second tier of memory if the device is a GPU, by default enough for parameters,
    gradients and states, but at most three quarters of the memory that is left. nvme: a directory,
    or several, for bytes that do not fit; nvme_bytes: its size, by default enough for parameters,
    and for the gradients and states of those that require a gradient, and of trainable_later:
    parameters, or patterns of their names ("*.norm.*"), that will later.
    store_name: the name of a store for generations (Offload.commit()); resume=True: resume the
    newest generation, which replaces the contents of the arguments; with overwrite=True start anew
    if there is none. strict: a generation is resumed only if it has the parameters and buffers of
    the model and no others, and the next one must have all that it had; names may differ by the
    wrappers of torch.compile and others, or by one prefix.
    keep_gradients: `.grad` remains after optimizer.step() until zero_grad(), as in plain torch, and
    uses room until then. update_in_backward: update each parameter as soon as backward has its
    gradient, for loops that do nothing else with gradients.
    find_unused_parameters: some ranks may have no gradient for a parameter while others have one.
    activation_bytes: tensors saved by autograd beyond this many bytes are moved to nvme (of a model
    on a device: to host_bytes first) until backward needs them, in activation_nvme_bytes; None:
    they stay in memory. tile_bytes: weights of
    Linear, Embedding and Conv1D larger than this are processed in tiles of at most this size; None:
    those that do not fit into device_bytes, in tiles of an eighth of it. options: those of
    stepwell.Runtime.

    Blocks while the parameters are copied to their tiers. Raises BudgetError if a module's
    parameters do not fit together, naming it.
    """
    check_options("offload", options)
    given, optimizer = optimizer, unwrapped(optimizer)
    check_updates(optimizer, keep_gradients, update_in_backward, find_unused_parameters)
    parameters = checked(model, devices=tuple(KINDS))
    before = parameters[0][1].device
    place = Place(before if device is None else chosen(device, *parameters[0]))
    check_place(place, host_bytes, options)
    if place.device == before:  # in plain PyTorch a move leaves other users behind, too
        check_alone(model, parameters)
        warn_of_held(parameters, optimizer)
    known = {id(parameter) for _, parameter in parameters}
    if optimizer is not None:
        _optimizer.check_parameters(optimizer, known)
    later = later_of(trainable_later, parameters)
    copies = copies_of(store_name, options)
    more = 0 if activation_bytes is None else size_of(activation_nvme_bytes)
    block = options.get("block_bytes") or _abi.STW_BLOCK_2M

    def every(packed: bool) -> int:
        return need(model, parameters, optimizer, block, copies, later, packed)

    size = more + every(False) if nvme_bytes is None and nvme is not None else nvme_bytes
    given_bytes = budgets(place, device_bytes, host_bytes, lambda: every(True), nvme is not None,
                          options)
    whole = tile_bytes is None and fit_whole(model, given_bytes[0], block)
    try:
        made = opened(*given_bytes, nvme, size, store_name, keep_gradients, options, place, whole)
    except MismatchError:
        if nvme_bytes is not None or not options.get("resume"):
            raise
        # The store was made for another optimizer, or others were frozen: it keeps its size.
        made = opened(*given_bytes, nvme, 0, store_name, keep_gradients, options, place, whole)
    made.more = more
    if nvme_bytes is None:
        made.later = later | {id(parameter) for _, parameter in parameters
                              if parameter.requires_grad}
    try:
        made.begin(model, optimizer, parameters, store_name is not None, update_in_backward,
                   find_unused_parameters, tile_bytes, strict)
        if activation_bytes is not None:
            made.spill = made.saved_tensors.begin(size_of(activation_bytes))
        if device is not None:
            move_buffers(model, place.device)
    except BaseException:
        place.plain = before
        made.close()
        raise
    return model, given


def copies_of(store_name: Optional[str], options: Dict[str, Any]) -> int:
    """Copies of each durable tensor that the tiers have room for."""
    return 1 + (options.get("generations_kept") or 2) if store_name else 1


def opened(device_bytes: int, host_bytes: int, nvme: Places, nvme_bytes: Optional[Size],
           store_name: Optional[str], keep_gradients: bool, options: Dict[str, Any],
           place: Place, whole: bool) -> Offload:
    """Open tiers without a model. whole: none of its weights will be in tiles."""
    block = options.get("block_bytes") or _abi.STW_BLOCK_2M
    for name, size in ("device_bytes", device_bytes), ("host_bytes", host_bytes or block):
        if size < block:
            raise ValueError(f"{name} is {text_of(size)}, less than one block of {text_of(block)}: "
                             "give more, or a smaller block_bytes (stepwell.BLOCK_64K)")
    ranks = options.get("group") is not None or options.get("replica_group") is not None
    # A fault on one rank cannot start a fetch on all.
    options.setdefault("fault_in", place.serves_faults and not ranks)
    options.setdefault("room_farthest", True)  # a step needs the device for views of its units
    runtime = place.open(
        device_bytes, whole, host_bytes=host_bytes,
        nvme=nvme_of(nvme, size_of(nvme_bytes or 0), block), store_name=store_name, **options)
    runtime._warns = False  # it ends with a model that is dropped
    group = options.get("group")
    made = Offload(runtime, device_bytes, block, keep_gradients,
                   1 if group is None else group.size, place)
    made.patience = options.get("timeout") or made.patience
    made.serves_faults = bool(options["fault_in"])
    made.has_host = host_bytes > 0
    made.adds_elsewhere = made.has_host and place.adopts_gradients
    made.copies = copies_of(store_name, options)
    return made


@contextlib.contextmanager
def save_on_tiers(model: torch.nn.Module, keep_bytes: Size) -> Iterator[Spill]:
    """In the block, tensors saved by an offloaded model beyond keep_bytes are moved to its tiers.

    offload(activation_bytes=) does the same for all calls. The nvme budget must have room for them.
    The `with` returns a Spill, which counts their bytes. Backward may run after the block.
    """
    made = offloaded(model)
    before, kept = made.spill, made.saved_tensors.keep_bytes
    made.spill = made.saved_tensors.begin(size_of(keep_bytes))
    try:
        yield made.spill
    finally:
        made.spill, made.saved_tensors.keep_bytes = before, kept


def offloaded(model: torch.nn.Module) -> Offload:
    """The Offload object of a model, or of the one inside a wrapper, with its runtime, report and
    close()."""
    inside = [model] if model in offloads else [
        module for module in model.modules() if module in offloads]
    found = offloads[inside[0]]() if len(inside) == 1 else None
    if found is None:
        raise KeyError(f"this model is not offloaded, and contains {len(inside)} models that are")
    return found  # type: ignore[no-any-return]
