# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks: over MPI, NCCL, torch.distributed or the program's own collectives."""
from __future__ import annotations

import ctypes
import itertools
import signal
import threading
import warnings
from typing import Any, Dict, List, Optional, Protocol, Union

from . import _abi, _life, _waiting
from ._dtypes import ITEM_BYTES, Dtype
from ._library import lib
from ._tensor import nanoseconds
from .errors import Error, check, raised


class Engine(Protocol):
    """The program's own collectives, for Group.callbacks().

    Each call starts the work and returns it as an object of any type; poll(work) returns whether it
    is done, and raises if it failed, which ends the group. Calls are made one at a time, in the
    same order on all ranks, on a thread of the library unless caller_thread was set. Memory is host
    memory, as bytes; it may be accessed until poll() has reported the end. An optional abort() ends
    all work in flight soon, with an error.
    """

    def all_gather(self, shard: memoryview, whole: memoryview) -> Any:
        """The shards of all ranks in rank order; `shard` may be this rank's part of `whole`."""

    def reduce_scatter(self, whole: memoryview, shard: memoryview, dtype: Dtype) -> Any:
        """Rank r gets the sum of the r-th part of `whole`, which may be overwritten. The order of
        additions must always be the same, so that runs are reproducible."""

    def all_reduce(self, data: memoryview, dtype: Dtype) -> Any:
        """Sum in place, on every rank."""

    def poll(self, work: Any) -> bool:
        """Whether the work is done. Never blocks."""


_FIELDS = dict(_abi.stw_group_ops._fields_)
engines = threading.local()  # running: this thread is in a call of an engine
_NEEDED = ("all_gather", "reduce_scatter", "all_reduce", "poll")


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _status_of(error: BaseException) -> int:
    """The status by which an engine's exception is reported to the library and other ranks."""
    if isinstance(error, Error) and error.status < 0:
        return error.status
    if isinstance(error, MemoryError):
        return _abi.STW_ERROR_MEMORY
    if isinstance(error, NotImplementedError):
        return _abi.STW_ERROR_UNSUPPORTED
    if isinstance(error, KeyboardInterrupt):
        return _abi.STW_ERROR_INTERRUPTED
    return _abi.STW_ERROR_PEER


class _Calls:
    """Adapter of an engine for the library: works are numbers, exceptions are statuses."""

    def __init__(self, engine: Engine) -> None:
        missing = [name for name in _NEEDED if not callable(getattr(engine, name, None))]
        if missing:
            raise TypeError(f"{engine!r} is no engine: it has no {', '.join(missing)}")
        self.engine = engine
        self.failure: Optional[BaseException] = None
        self._works: Dict[int, Any] = {}
        self._numbers = itertools.count(1)
        names = [*_NEEDED, *(["abort"] if callable(getattr(engine, "abort", None)) else [])]
        self._functions = {name: _FIELDS[name](self._marked(getattr(self, "_" + name)))
                           for name in names}
        self.ops = _abi.stw_group_ops.initial(**self._functions)

    def _marked(self, function: Any) -> Any:
        def called(*args: Any) -> int:
            try:
                engines.running = True
                return function(*args)  # type: ignore[no-any-return]
            except BaseException as error:
                return self._failed(error)
            finally:
                engines.running = False
        return called

    def _failed(self, error: BaseException) -> int:
        # Only the first failure is kept: later ones are consequences of the group's end.
        self.failure = self.failure or error
        return _status_of(error)

    def _started(self, work: Any, work_out: Any) -> int:
        number = next(self._numbers)
        self._works[number] = work
        work_out[0] = number
        return _abi.STW_OK

    # No exception may leave these functions, not even KeyboardInterrupt, which may be raised
    # anywhere. After the first failure they return its status.

    def _all_gather(self, _user: Any, shard: int, whole: int, shard_bytes: int, *rest: Any) -> int:
        if self.failure is not None:
            return _status_of(self.failure)
        try:
            size = self.size * shard_bytes
            work = self.engine.all_gather(_memory(shard, shard_bytes), _memory(whole, size))
            return self._started(work, rest[-1])
        except BaseException as error:
            return self._failed(error)

    def _reduce_scatter(self, _user: Any, whole: int, shard: int, shard_elements: int, dtype: int,
                        *rest: Any) -> int:
        if self.failure is not None:
            return _status_of(self.failure)
        try:
            size = shard_elements * ITEM_BYTES[dtype]
            work = self.engine.reduce_scatter(_memory(whole, self.size * size),
                                              _memory(shard, size), Dtype(dtype))
            return self._started(work, rest[-1])
        except BaseException as error:
            return self._failed(error)

    def _all_reduce(self, _user: Any, data: int, elements: int, dtype: int, *rest: Any) -> int:
        if self.failure is not None:
            return _status_of(self.failure)
        try:
            size = elements * ITEM_BYTES[dtype]
            return self._started(self.engine.all_reduce(_memory(data, size), Dtype(dtype)),
                                 rest[-1])
        except BaseException as error:
            return self._failed(error)

    def _poll(self, _user: Any, work: int) -> int:
        if self.failure is not None:
            return _status_of(self.failure)
        try:
            if not self.engine.poll(self._works[work]):
                return _abi.STW_PENDING
            del self._works[work]
            return _abi.STW_OK
        except BaseException as error:
            return self._failed(error)

    def _abort(self, _user: Any) -> int:
        try:
            self.engine.abort()  # type: ignore[attr-defined]
            return _abi.STW_OK
        except BaseException as error:
            return self._failed(error)

    size = 1


class Group:
    """Ranks over which tensors are sharded, one process each: Runtime(group=group). A context
    manager.

    All ranks create it together, by Group.alone(), mpi(), nccl(), from_torch() or callbacks(),
    which block until all have joined; timeout, in seconds, limits each wait for other ranks (None:
    300). Call destroy() after its runtime was closed. `failure` is the first exception of an
    engine; calls of the library raise the matching error, usually PeerError.
    """

    def __init__(self, driver: int, calls: Optional[_Calls] = None, **options: Any) -> None:
        self._handle: Optional[int] = None
        self._calls = calls
        self._epoch = _life.epoch()
        if calls is not None:
            calls.size = options["size"]
            options["ops"] = ctypes.pointer(calls.ops)
        handle = ctypes.c_void_p()
        made = _abi.stw_group_options.initial(driver=driver, **options)
        if calls is None or made.flags & _abi.STW_GROUP_CALLER_THREAD:
            check(lib.stw_group_create(made, handle))
        else:
            self._create_aside(made, handle)
        self._handle = handle.value

    def _create_aside(self, options: _abi.stw_group_options, handle: ctypes.c_void_p) -> None:
        """Create the group in a separate thread, since the engine is called meanwhile: signal
        handlers run in the main thread, at any point of Python code, and ctypes loses an exception
        that a handler raises at the edge of a callback, and returns an arbitrary result. Here such
        an exception ends the wait for the other ranks."""
        assert self._calls is not None
        failed: List[BaseException] = []
        ended = threading.Event()

        def create() -> None:
            try:
                check(lib.stw_group_create(options, handle))
            except BaseException as error:
                failed.append(error)
            finally:
                ended.set()

        interrupted: Optional[BaseException] = None
        # No exception may occur between the start and the wait: the thread would be left running.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=create, name="stepwell-group").start()
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        while not ended.is_set():
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                # A signal that arrived just before, or in another thread, does not end the wait.
                ended.wait(_waiting.AGAIN_SECONDS)
            except BaseException as error:
                interrupted = interrupted or error
                self._calls.failure = self._calls.failure or error
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if interrupted is not None:
            if handle.value is not None:  # the other ranks had joined nevertheless
                lib.stw_group_destroy(handle.value)
            raise interrupted
        if failed:
            own = self._calls.failure
            raise own if isinstance(own, KeyboardInterrupt) else failed[0]

    @classmethod
    def alone(cls) -> "Group":
        """A group of this process only, as for a runtime without a group."""
        return cls(_abi.STW_GROUP_SELF)

    @classmethod
    def mpi(cls, comm: Any = None, *, caller_thread: bool = False,
            timeout: Optional[float] = None, module: Optional[str] = None) -> "Group":
        """Over MPI, which the program has initialised. comm: a communicator of mpi4py, or the
        number from MPI_Comm_c2f; None: MPI_COMM_WORLD. caller_thread: MPI is called only inside
        calls of the library, on their thread. module: as for a Device."""
        number = 0 if comm is None else comm if isinstance(comm, int) else comm.py2f()
        return cls(_abi.STW_GROUP_MPI, mpi_comm=number, flags=_flags(caller_thread),
                   timeout_ns=nanoseconds(timeout), module=_text(module))

    @classmethod
    def nccl(cls, rank: int = 0, size: int = 0, unique_id: bytes = b"", *,
             communicator: Union[int, ctypes.c_void_p, None] = None, device_ordinal: int = 0,
             timeout: Optional[float] = None, module: Optional[str] = None) -> "Group":
        """Over NCCL: from the bytes of an id that one rank created and sent to all, or from a
        communicator (its address) that the program owns. device_ordinal: the device of this rank,
        among those visible to the process."""
        told = ctypes.create_string_buffer(unique_id, len(unique_id)) if unique_id else None
        return cls(_abi.STW_GROUP_NCCL, rank=rank, size=size, nccl_comm=communicator,
                   unique_id=ctypes.cast(told, ctypes.c_void_p) if told else None,
                   unique_id_bytes=len(unique_id), device_ordinal=device_ordinal,
                   timeout_ns=nanoseconds(timeout), module=_text(module))

    @classmethod
    def callbacks(cls, engine: Engine, rank: int, size: int, *, caller_thread: bool = False,
                  timeout: Optional[float] = None) -> "Group":
        """Over an engine, an object with all_gather(), reduce_scatter(), all_reduce() and poll().
        """
        return cls(_abi.STW_GROUP_CALLBACKS, _Calls(engine), rank=rank, size=size,
                   flags=_flags(caller_thread), timeout_ns=nanoseconds(timeout))

    @classmethod
    def from_torch(cls, process_group: Any = None, *, timeout: Optional[float] = None) -> "Group":
        """Over torch.distributed, among the processes of a process group (None: all) with any
        backend: collectives run over Gloo, in host memory, in a separate process group. All its
        processes must call this, in the same order as they create groups of torch.distributed."""
        from . import _torch  # PyTorch is needed only here
        engine = _torch.Engine(process_group, timeout)
        try:
            # Gloo's own timeout is shorter: it ends works in flight.
            return cls.callbacks(engine, engine.rank, engine.size,
                                 timeout=_torch.PATIENCE + (timeout or _torch.TIMEOUT_SECONDS))
        except BaseException:
            engine.close()
            raise

    # -- what is known of it ------------------------------------------------------------------

    @property
    def rank(self) -> int:
        rank = ctypes.c_uint32()
        check(lib.stw_group_rank(self._use(), rank, None))
        return rank.value

    @property
    def size(self) -> int:
        size = ctypes.c_uint32()
        check(lib.stw_group_rank(self._use(), None, size))
        return size.value

    @property
    def failure(self) -> Optional[BaseException]:
        """The first exception of its engine."""
        return self._calls.failure if self._calls is not None else None

    def __repr__(self) -> str:
        return f"<stepwell.Group at {self._handle or 0:#x}{', destroyed' * (not self._handle)}>"

    def _use(self) -> int:
        if self._handle is None:
            raise raised(_abi.STW_ERROR_CLOSED, "the group was destroyed")
        return self._handle

    # -- parts, and the end -------------------------------------------------------------------

    def split(self, colour: int, key: int = 0) -> "Optional[Group]":
        """Called by all ranks: ranks of one colour form a group, in order of key, then of rank;
        None for ranks with colour -1. UnsupportedError over callbacks and NCCL: split the program's
        own group and create a Group for each part."""
        handle = ctypes.c_void_p()
        check(lib.stw_group_split(self._use(), colour, key, handle))
        if handle.value is None:
            return None
        part: Group = object.__new__(Group)
        part._handle, part._calls, part._epoch = handle.value, None, self._epoch
        return part

    def destroy(self) -> None:
        """BusyError while a runtime uses it. A second call has no effect."""
        if self._handle is None:
            return
        check(lib.stw_group_destroy(self._handle))
        self._handle = None
        close = getattr(self._calls and self._calls.engine, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.destroy()
        except Error:
            if kind is None:
                raise

    def __del__(self) -> None:
        try:
            if self._handle is None or self._epoch != _life.epoch():
                return
            label = repr(self)
            try:
                self.destroy()
            except Error:
                # A runtime or its views are still open: the engine may still be called.
                _life.keep(self._calls)
            warnings.warn(f"{label} was not destroyed", ResourceWarning, source=self)
        except (AttributeError, TypeError):
            pass  # partly constructed, or the interpreter is ending


def _flags(caller_thread: bool) -> int:
    return _abi.STW_GROUP_CALLER_THREAD if caller_thread else 0


def _text(module: Optional[str]) -> Optional[bytes]:
    return None if module is None else module.encode()
