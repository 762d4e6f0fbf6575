# SPDX-License-Identifier: Apache-2.0
"""Runtimes: open and close, tensors, hints, statistics."""
from __future__ import annotations

import ctypes
import itertools
import os
import threading
import warnings
import weakref
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Union

from . import _abi, _dlpack, _life, _waiting
from ._enums import Advice, DeviceFlag, Link, Preset, Tier, number
from ._fetching import Fetches
from ._generations import Generations, Resume, flags_of
from ._group import Group
from ._library import lib
from ._memory import HostMemory
from ._operation import Operation
from ._optimizer import Custom, Hyper, Optimizer
from ._options import (
    Device, DeviceInfo, LinkStats, Log, Nvme, TierStats, device_of, levels_of, log_function,
    nvme_of,
)
from ._phase import Phase, Step
from ._tensor import Tensor, TensorSpec, nanoseconds
from ._victims import Rank, rank_function
from .errors import Error, check, error_of, raised

DeviceLike = Union[int, Device, Mapping[str, Any]]
NvmeLike = Union[Nvme, Mapping[str, Any]]

_BUSY = _abi.STW_ERROR_BUSY
# After these errors the runtime is not closed; a completed close returns other ones.
_STAYS_OPEN = frozenset((
    _abi.STW_ERROR_BUSY, _abi.STW_ERROR_TIMEOUT, _abi.STW_ERROR_FORKED, _abi.STW_ERROR_INVALID,
    _abi.STW_ERROR_INTERNAL, _abi.STW_ERROR_INTERRUPTED,
))


class Runtime(Fetches, Generations):
    """Tiers, budgets and threads. A context manager; the end of the `with` closes it.

    A budget of 0 means no such tier; sizes are bytes, times are seconds. devices: budgets, Device
    or dicts; nvme: Nvme or dicts. log: a logging.Logger, or a function of (level, topic, line) with
    a level of the logging module; it is called on threads of the library and must not call blocking
    functions. profile: a machine profile of `stepwell tune`, "" for none, None for the user's or
    the machine's; probe=False: no directory is measured at open. plan=False: earlier steps are not
    used to predict the next. group: ranks over which tensors are sharded, which all open a runtime
    on it; a group has one runtime at a time. whole_bytes (0: half) of the nearest tier's budget are
    reserved for gathered tensors; node_host_bytes: the limit for the host tiers of all ranks of one
    host together. replica_group: the ranks with the same shards in other groups; sums are made over
    both groups.

    fault_in: on a CPU, an access to the address of a tensor (Tensor.by_address()) without a view
    fetches the tensor, by a SIGSEGV handler; enable faulthandler before the open. A separate thread
    then passes on log lines, with a delay.

    room_farthest: a tensor is refused where the farthest tier that its policy allows is full, even
    if a nearer one has room.

    store_name: durable tensors persist, in files of that name in the directories of nvme. resume:
    True for the newest generation, or the number of one; overwrite: an existing store is deleted,
    with resume only if there is nothing to resume. generations_kept: at most 7, 0 for 2; a durable
    tensor takes (1 + this number) times its blocks at nvme.
    """

    def __init__(self, *, host_bytes: int = 0,
                 devices: Union[DeviceLike, Sequence[DeviceLike]] = (),
                 nvme: Union[NvmeLike, Sequence[NvmeLike]] = (),
                 name: Optional[str] = None, preset: Union[Preset, str] = Preset.AUTO,
                 thread_count: int = 0, timeout: Optional[float] = None, tensors_max: int = 0,
                 views_max: int = 0, operations_max: int = 0, block_bytes: int = 0,
                 log: Log = None, log_level: Optional[int] = None,
                 metadata_bytes: int = 0, host_scratch_bytes: int = 0,
                 profile: Union[str, "os.PathLike[str]", None] = None,
                 probe: bool = True, plan: bool = True, fault_in: bool = False,
                 room_farthest: bool = False,
                 group: Optional[Group] = None, whole_bytes: int = 0,
                 node_host_bytes: int = 0, replica_group: Optional[Group] = None,
                 store_name: Optional[str] = None, resume: Resume = False,
                 overwrite: bool = False, generations_kept: int = 0) -> None:
        self._handle = ctypes.c_void_p()
        self._epoch = _life.epoch()
        self._warns = True  # of an end without close()
        self._inside: Set[int] = set()  # threads waiting in the library
        self._devices: Dict[int, DeviceInfo] = {}
        self._interrupts = 0
        self._tensors: "weakref.WeakValueDictionary[int, Tensor]" = weakref.WeakValueDictionary()
        self._operations: "weakref.WeakSet[Operation]" = weakref.WeakSet()
        self._steps: List[Step] = []
        self._step: Optional[Step] = None  # the step of fetches without a phase argument
        self._aborting: List[Step] = []
        # Finalisers run at any time, also in the middle of these: each access is atomic.
        self._exports: Dict[int, None] = {}
        self._export_numbers = itertools.count(1)
        self._log = log_function(log)
        self._kernels: List[Any] = []
        self._rank: Any = None  # the victim policy as a C callback
        self._group = group, replica_group  # kept alive: the library calls their callbacks
        one = (int, Device, Nvme, Mapping, str, os.PathLike)
        device_list = [device_of(at) for at in ([devices] if isinstance(devices, one)
                                                else devices)]
        nvme_list = [nvme_of(at) for at in ([nvme] if isinstance(nvme, one) else nvme)]
        self._device_count = len(device_list)
        ways, resume_generation = flags_of(resume, overwrite)
        options = _abi.stw_runtime_options.initial(
            name=None if name is None else name.encode(),
            devices=(_abi.stw_device_options * max(len(device_list), 1))(*device_list),
            nvme=(_abi.stw_nvme_options * max(len(nvme_list), 1))(*nvme_list),
            device_count=len(device_list), nvme_count=len(nvme_list), host_bytes=host_bytes,
            preset=number(Preset, preset), thread_count=thread_count,
            timeout_ns=nanoseconds(timeout), tensors_max=tensors_max, views_max=views_max,
            operations_max=operations_max, block_bytes=block_bytes, log=self._log,
            log_level=levels_of(log, log_level), metadata_bytes=metadata_bytes,
            profile_path=None if profile is None else os.fsencode(profile),
            flags=ways | (0 if probe else _abi.STW_RUNTIME_NO_PROBE)
            | (0 if plan else _abi.STW_RUNTIME_NO_PLAN)
            | (_abi.STW_RUNTIME_FAULT_IN if fault_in else 0)
            | (_abi.STW_RUNTIME_ROOM_FARTHEST if room_farthest else 0),
            host_scratch_bytes=host_scratch_bytes, group=None if group is None else group._use(),
            whole_bytes=whole_bytes, node_host_bytes=node_host_bytes,
            replica_group=None if replica_group is None else replica_group._use(),
            store_name=None if store_name is None else store_name.encode(),
            resume_generation=resume_generation, generations_kept=generations_kept,
        )
        self._timeout_ns = options.timeout_ns  # default of waits; 0: the library's own
        check(lib.stw_runtime_open(options, self._handle))
        _life.opened(self)

    # -- the end ------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return not self._handle

    def close(self, *, deferred: bool = False, timeout: Optional[float] = None) -> None:
        """Close it and all objects made from it; blocks until I/O in flight is done.

        BusyError while views or operations are open, or another thread waits in the runtime.
        deferred: views, and arrays made from them, remain valid, and the memory is freed with the
        last of them. A second close has no effect. After Ctrl-C the runtime is still open.
        """
        if not self._handle:
            return
        others = self._inside - {threading.get_ident()}
        if others and self._may_finalise():
            raise raised(_BUSY, f"{len(others)} other threads wait in the runtime; join them first")
        self._finish_aborts()
        flags = _abi.STW_CLOSE_DEFERRED if deferred else 0
        try:
            status = _waiting.call(self, lib.stw_runtime_close, self._handle, flags,
                                   nanoseconds(timeout))
        except BaseException:  # from a signal handler, which may have run just after the end
            if lib.stw_runtime_error(self._handle, None) == _abi.STW_ERROR_CLOSED:
                self._closed()
            raise
        # It is closed already if a signal handler has raised just after the end of a call before.
        error = error_of(status) if status < 0 and status != _abi.STW_ERROR_CLOSED else None
        if status not in _STAYS_OPEN:
            self._closed()
        if error is not None:
            raise error

    def _closed(self) -> None:
        self._handle = ctypes.c_void_p()
        _life.closed(self)
        for tensor in list(self._tensors.values()):
            tensor._end()

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        for operation in list(self._operations):
            operation.free()
        try:
            self.close(deferred=True)
        except Error:
            if kind is None:
                raise

    def __del__(self) -> None:
        try:
            if self._handle and self._may_finalise():
                if self._warns:
                    warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self)
                self.close(deferred=True, timeout=_life.EXIT_TIMEOUT_SECONDS)
        except (AttributeError, TypeError, Error):
            pass  # partly constructed, or no caller to report it to

    def __repr__(self) -> str:
        return f"<stepwell.Runtime at {self._handle.value or 0:#x}{', closed' * self.closed}>"

    def _may_finalise(self) -> bool:
        """Finalisers must not touch objects of a parent process or of an ending interpreter."""
        return self._epoch == _life.epoch()

    def _use(self) -> ctypes.c_void_p:
        if not self._handle:
            raise raised(_abi.STW_ERROR_CLOSED, "the runtime was closed")
        return self._handle

    def drain(self, timeout: Optional[float] = None) -> None:
        """Wait for updates, sums and write-back. Raises the first background error."""
        check(_waiting.call(self, lib.stw_runtime_drain, self._use(), nanoseconds(timeout)))

    def interrupt(self) -> None:
        """End every wait in this runtime with WaitInterruptedError. Never blocks."""
        self._interrupts += 1
        status = lib.stw_runtime_interrupt(self._use())
        if status < 0:
            raise raised(status, lib.stw_status_string(status).decode())

    def background_error(self) -> Optional[Error]:
        """The first background error since the last clear_error(); returned, not raised."""
        info = _abi.stw_error_info.initial()
        status = lib.stw_runtime_error(self._use(), info)
        return error_of(status, info if info.status == status else None) if status < 0 else None

    def clear_error(self) -> None:
        check(lib.stw_runtime_clear_error(self._use()))

    # -- tensors ------------------------------------------------------------------------------

    def create(self, name: Optional[str] = None, shape: Union[int, Sequence[int]] = (),
               dtype: Any = "f32", **details: Any) -> Tensor:
        """Create a tensor; details: fields of TensorSpec. Allocates nothing; EMPTY until
        written."""
        return self.create_many([TensorSpec(shape=shape, dtype=dtype, name=name, **details)])[0]

    def create_many(self, specs: Sequence[TensorSpec]) -> List[Tensor]:
        """All or none."""
        if not specs:
            return []
        array = (_abi.stw_tensor_spec * len(specs))()
        keep: List[Any] = []
        for at, spec in zip(array, specs):
            spec._fill(at, keep)
        handles = (ctypes.c_void_p * len(specs))()
        try:
            check(lib.stw_tensor_create(self._use(), array, len(specs), handles))
            return [self._tensor(handle) for handle in handles]
        except BaseException:  # A signal handler may raise after the tensors were made.
            if handles[0]:
                self.destroy([self._tensor(handle) for handle in handles])
            raise

    def destroy(self, tensors: Sequence[Tensor]) -> None:
        """All or none. BusyError while views are open, or an optimizer uses one of them."""
        if tensors:
            check(lib.stw_tensor_destroy(self._handles(tensors), len(tensors)))
            for tensor in tensors:
                self._forget(tensor)

    def discard(self, tensors: Sequence[Tensor]) -> None:
        """Declare their contents dead. BusyError while views are open."""
        if tensors:
            check(lib.stw_tensor_discard(self._handles(tensors), len(tensors)))

    def advise(self, tensors: Sequence[Tensor], advice: Union[Advice, str]) -> None:
        if tensors:
            check(lib.stw_advise(self._handles(tensors), len(tensors), number(Advice, advice)))

    def find(self, name: str) -> Tensor:
        """The tensor of that name. NotFoundError, a KeyError, if there is none."""
        handle = ctypes.c_void_p()
        check(lib.stw_tensor_find(self._use(), name.encode(), handle))
        return self._tensor(handle.value)

    __getitem__ = find

    def __contains__(self, name: str) -> bool:
        handle = ctypes.c_void_p()
        status = lib.stw_tensor_find(self._use(), name.encode(), handle)
        return status != _abi.STW_ERROR_NOT_FOUND and check(status) >= 0

    def __iter__(self) -> Iterator[Tensor]:
        """Tensors in the order of creation. Do not destroy the current one."""
        handle = ctypes.c_void_p()
        check(lib.stw_tensor_next(self._use(), None, handle))
        while handle.value:
            yield self._tensor(handle.value)
            check(lib.stw_tensor_next(self._use(), handle.value, handle))

    def _tensor(self, handle: Optional[int]) -> Tensor:
        assert handle is not None
        tensor = self._tensors.get(handle)
        if tensor is None:
            tensor = self._tensors.setdefault(handle, Tensor(self, handle))
        return tensor

    def _forget(self, tensor: Tensor) -> None:
        if tensor._handle is not None:
            self._tensors.pop(tensor._handle, None)
            tensor._end()

    def _look_for_ended(self) -> None:
        """Remove state tensors, which end with their optimizer."""
        info = _abi.stw_tensor_info.initial()
        for tensor in list(self._tensors.values()):
            if lib.stw_tensor_info_get(tensor._handle, info) == _abi.STW_ERROR_INVALID:
                self._forget(tensor)

    def _handles(self, tensors: Sequence[Tensor]) -> Any:
        for tensor in tensors:
            if tensor._runtime is not self:
                raise ValueError(f"{tensor!r} is of another runtime")
        return (ctypes.c_void_p * max(len(tensors), 1))(*(tensor._use() for tensor in tensors))

    def evict(self, tensors: Optional[Sequence[Tensor]] = None,
              tier: Union[Tier, str] = Tier.DEVICE, device: int = 0, *,
              timeout: Optional[float] = None) -> None:
        """Evict these (None: all) from a tier; blocks until done. BusyError names open views."""
        if tensors is not None and not tensors:
            return
        handles = None if tensors is None else self._handles(tensors)
        check(_waiting.call(self, lib.stw_evict, self._use(), handles, len(tensors or ()),
                            number(Tier, tier), device, nanoseconds(timeout)))

    def forget_stream(self, stream: int) -> None:
        """Call it before a stream is destroyed on which views were fetched or released.

        The stream's work may continue after that, and CUDA reuses its handle for the next stream:
        later work is ordered after marks that are made now. BusyError while it records a graph.
        """
        check(lib.stw_stream_forget(self._use(), ctypes.c_void_p(stream)))

    def set_budget(self, tier: Union[Tier, str], size: int, device: int = 0, *,
                   timeout: Optional[float] = None) -> None:
        """Change a tier's budget to `size` bytes, no more than at open; 0: evicts everything.

        Blocks until the excess is evicted and its memory was returned to the system. The new budget
        holds when the call returns; after an error the old one holds.
        """
        check(_waiting.call(self, lib.stw_tier_set_budget, self._use(), number(Tier, tier), device,
                            size, nanoseconds(timeout)))

    def set_victim_policy(self, rank: Optional[Rank], *,
                          timeout: Optional[float] = None) -> None:
        """Let rank(tier, device, victims) set the order of eviction from device and host tiers;
        None removes it.

        It returns a score for each Victim: lower is evicted first, 0 keeps the default order. It
        runs from time to time on a thread of the library, with the GIL held: nothing waits for it,
        and it must not call blocking functions. Its exceptions are printed, and its scores are then
        0. Blocks until a running call of the previous policy has returned.
        """
        if rank is None:
            function, policy = None, None
        else:
            function = rank_function(self, rank)
            policy = _abi.stw_victim_policy.initial(rank=function)
        check(_waiting.call(self, lib.stw_runtime_set_victim_policy, self._use(), policy,
                            nanoseconds(timeout)))
        self._rank = function

    def host_alloc(self, nbytes: int, *, align: int = 0, zero: bool = False) -> HostMemory:
        """Allocate a piece of host_scratch_bytes. align: a power of two, 0: 64.

        Never blocks. BudgetError contains the free bytes.
        """
        return HostMemory(self, nbytes, align, zero)

    # -- phases, steps and what lives in them -------------------------------------------------

    def phase(self, name: str) -> Phase:
        return Phase(self, name)

    def _begun(self, step: Step) -> None:
        self._steps.append(step)
        self._step = step

    def _over(self, step: Step) -> None:
        if step in self._steps:
            self._steps.remove(step)
        self._step = self._steps[-1] if self._steps else None

    def _exported(self) -> int:
        made = next(self._export_numbers)
        self._exports[made] = None
        return made

    def _unexported(self, export: int) -> None:
        self._exports.pop(export, None)
        if self._aborting:
            self._finish_aborts()

    def _exports_since(self, begin: int) -> bool:
        return any(export > begin for export in list(self._exports))

    def _finish_aborts(self) -> None:
        """Complete aborts that waited for arrays."""
        for step in list(self._aborting):
            if self._exports_since(step._since) or not self._may_finalise():
                continue
            self._aborting.remove(step)
            try:
                step._abort_now()
            except Error:
                pass  # the runtime was closed meanwhile

    # -- optimizers ---------------------------------------------------------------------------

    def adamw(self, hyper: Hyper = Hyper(weight_decay=0.01), **details: Any) -> Optimizer:
        """AdamW. details: name, state_policy, state_dtype; ema_decay: a state "ema" averages the
        parameters with this decay, for evaluation; durable: states and counts are part of
        generations; torch_order: the bits of torch.optim on the CPU (STW_OPTIMIZER_TORCH_ORDER)."""
        return Optimizer(self, "adamw", hyper, **details)

    def adam(self, hyper: Hyper = Hyper(), **details: Any) -> Optimizer:
        return Optimizer(self, "adam", hyper, **details)

    def sgd(self, hyper: Hyper = Hyper(), **details: Any) -> Optimizer:
        return Optimizer(self, "sgd", hyper, **details)

    def adagrad(self, hyper: Hyper = Hyper(lr=1e-2, eps=1e-10), **details: Any) -> Optimizer:
        return Optimizer(self, "adagrad", hyper, **details)

    def lion(self, hyper: Hyper = Hyper(lr=1e-4, beta2=0.99), **details: Any) -> Optimizer:
        return Optimizer(self, "lion", hyper, **details)

    def custom(self, update: Any, states: Sequence[str] = (), hyper: Hyper = Hyper(), *,
               user: Union[int, ctypes.c_void_p, None] = None, **details: Any) -> Optimizer:
        """A custom algorithm, called for one range of elements after the other.

        update: a Python function of an UpdatePiece, over NumPy arrays; or, to run in parallel
        without the GIL, a C function of the type UpdateKernel: from ctypes, or an address (for
        example of numba's cfunc). states: names of its fp32 arrays; user: the first argument of a C
        function.
        """
        return Optimizer(self, "custom", hyper, custom=Custom(update, tuple(states), user),
                         **details)

    # -- observing ----------------------------------------------------------------------------

    def tier_stats(self, tier: Union[Tier, str], device: int = 0) -> TierStats:
        """Totals since open. Never blocks."""
        stats = _abi.stw_tier_stats.initial()
        check(lib.stw_tier_stats_get(self._use(), number(Tier, tier), device, stats))
        return TierStats(*(getattr(stats, name) for name in TierStats._fields))

    def link_stats(self, link: Union[Link, str], device: int = 0) -> LinkStats:
        """Totals since open. Never blocks."""
        stats = _abi.stw_link_stats.initial()
        check(lib.stw_link_stats_get(self._use(), number(Link, link), device, stats))
        return LinkStats(*(getattr(stats, name) for name in LinkStats._fields))

    def _device(self, device: int) -> DeviceInfo:
        """A cached device_info(): the fields used here do not change."""
        known = self._devices.get(device)
        if known is None:
            known = self._devices[device] = self.device_info(device)
        return known

    def _device_with(self, ordinal: int) -> int:
        """The number here of a CUDA device."""
        for device in range(self._device_count):
            info = self._device(device)
            if info.driver == "cuda" and info.ordinal == ordinal:
                return device
        raise ValueError(f"the array is on CUDA device {ordinal}, which is no device of the "
                         "runtime: copy it to the host, or to one that is")

    def _dlpack_device(self, tier: int, device: int) -> _dlpack.Device:
        return _dlpack.device_of(self._device(device)) if tier == Tier.DEVICE else _dlpack.CPU

    def _cpu_reaches(self, device: int) -> bool:
        info = self._device(device)
        return info.driver != "cuda" or DeviceFlag.UNIFIED in info.flags

    def device_info(self, device: int = 0) -> DeviceInfo:
        info = _abi.stw_device_info.initial()
        check(lib.stw_device_info_get(self._use(), device, info))
        return DeviceInfo._of(info)

    def write_report(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Write a JSON report. Blocks until the file is written."""
        check(lib.stw_report_write(self._use(), os.fsencode(path)))

    def write_timeline(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Write a Chrome trace, for Perfetto. Blocks until the file is written."""
        check(lib.stw_timeline_write(self._use(), os.fsencode(path)))
