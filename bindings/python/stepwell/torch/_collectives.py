# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with tensors in tiers.

A collective passes addresses to system calls and other threads, which cannot fault. So what is in
tiers is pinned before an operation begins, until its Work has been waited for.
"""
from __future__ import annotations

import ctypes
import datetime
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

import torch

from .._group import engines
from ._lazy import READ, READ_WRITE, Lazy, Source, collectives
from ._records import Offloaded, Record

if TYPE_CHECKING:
    from ._offload import Offload

_Off = torch._C.DisableTorchFunctionSubclass
_INPUTS = ("input", "inputs", "input_tensor", "input_tensors", "input_list")
_ABOVE = (torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
          | torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView))
_known: "weakref.WeakSet[Offload]" = weakref.WeakSet()
_pins: "Dict[Any, _Pin]" = {}  # by the record of a parameter, or the source of lazy tensors
_open: Dict[Any, None] = {}  # every Work that was not waited for
_library: Any = None
_work: Any = None  # the class _Work


def install(offload: "Offload") -> None:
    """Pin what an Offload has in tiers in all collectives on the CPU."""
    global _library, _work
    _known.add(offload)
    if _library is not None or not torch.distributed.is_available():
        return
    _work = _work_class()
    _library = torch.library.Library("c10d", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("c10d::"):
            op = getattr(torch.ops.c10d, name[6:]).default
            if op._schema.returns and "Work" in str(op._schema.returns[-1].type):
                for key in "AutogradCPU", "ADInplaceOrView":  # the second in inference mode
                    _library.impl(name[6:], _kernel(op), key)


def _kernel(op: Any) -> Callable[..., Any]:
    def plain(*args: Any, **kwargs: Any) -> Any:  # without the GIL, which a worker may need
        with torch._C._ExcludeDispatchKeyGuard(_ABOVE), _Off():
            return op(*args, **kwargs)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if getattr(engines, "running", False):  # for a group of ranks, whose memory is pinned
            return plain(*args, **kwargs)
        return _call(lambda *shown: plain(*shown, **kwargs), op, args)
    return kernel


def of_lazies(func: Any, args: Any, kwargs: Any) -> Any:
    """A collective that is called with lazy tensors."""
    if func.namespace == "c10d":
        return _call(lambda *shown: func(*shown, **kwargs), func, args)
    pins: List[_Pin] = []  # the functional ones return new tensors, and some read theirs later
    try:
        result = func(*[_shown(each, func._schema.name.endswith("_"), pins) for each in args],
                      **kwargs)
        wait = torch.ops._c10d_functional.wait_tensor
        for each in result if isinstance(result, (tuple, list)) else (result,):
            wait(each)
    finally:
        _end(pins)
    return args[0] if func._schema.name.endswith("_") else result


collectives.append(of_lazies)


def _call(run: Callable[..., Any], op: Any, args: Any) -> Any:
    pins: List[_Pin] = []
    try:
        shown = [_shown(each, argument.name not in _INPUTS and op.name() != "c10d::send", pins)
                 for each, argument in zip(args, op._schema.arguments)]
        result = run(*shown)
    except BaseException:
        _end(pins)
        raise
    if not pins:
        return result
    work = _work(result[-1] if isinstance(result, tuple) else result, pins, args[0])
    _open[work] = None
    return (args[0], work.boxed()) if isinstance(result, tuple) else work.boxed()


def _work_class() -> Any:
    from torch._C._distributed_c10d import Work

    class _Work(Work):  # type: ignore[misc]
        """The Work of an operation on pinned tensors: their pins end with wait()."""

        def __init__(self, script: Any, pins: List[_Pin], tensors: Any) -> None:
            super().__init__()
            self._work = Work.unbox(script)
            self._pins = pins
            self._tensors = tensors

        def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
            try:
                return self._work.wait(timeout)  # type: ignore[no-any-return]
            finally:
                self._ended()

        def synchronize(self) -> None:
            self.wait()

        def get_future(self) -> Any:
            return self._work.get_future().then(self._ended)

        def result(self) -> Any:
            return list(self._tensors)

        def is_completed(self) -> bool:
            return self._work.is_completed()  # type: ignore[no-any-return]

        def is_success(self) -> bool:
            return self._work.is_success()  # type: ignore[no-any-return]

        def exception(self) -> Any:
            return self._work.exception()

        def source_rank(self) -> int:
            return self._work.source_rank()  # type: ignore[no-any-return]

        def _ended(self, future: Any = None) -> Any:
            if future is not None:
                future.wait()  # raises its error
            _end(self._pins)
            _open.pop(self, None)
            return self._tensors

    return _Work


class _Pin:
    """A tensor that operations use, pinned until the last of them has ended."""

    def __init__(self, of: Any, write: bool) -> None:
        self.of = of
        self.write = write
        self.users = 0
        self.begin()
        _pins[of] = self

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def memory(self, like: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class _Parameter(_Pin):
    of: Record

    def begin(self) -> None:
        record, self.copy = self.of, None
        offload = record.offload
        accesses = offload.accesses
        if record.large:
            self.copy = offload.copied.of(record.tensor, record.size, record.stride, record.dtype)
            return
        # An access lasts until the next mark, so it ends after the operation, and not in it.
        self.touched = record in accesses.touched
        if self.touched and self.write:
            accesses._touch(record, True)
        self.view = accesses.touched.pop(record, None)
        self.shown = accesses._shown.pop(record, None)
        if self.view is None:
            if self.write:
                offload.end_kept()
                record.thaw()
            self.view = offload.runtime.fetch(record.tensor, READ_WRITE if self.write else READ)
            record.pin()

    def end(self) -> None:
        record = self.of
        offload = record.offload
        if self.copy is not None:
            offload.copied.used(record.tensor, self.copy, record.stride, None, False, self.write)
            return
        offload.accesses.touched[record] = self.view
        if not self.touched:
            offload.accesses._untouch(record)
        elif self.shown is not None:
            offload.accesses._shown[record] = self.shown

    def memory(self, like: torch.Tensor) -> torch.Tensor:
        if self.copy is None:
            return like
        with _Off():
            return self.copy.as_strided(like.size(), like.stride(), like.storage_offset())


class _Lazies(_Pin):
    of: Source

    def begin(self) -> None:
        self.pinned: Optional[torch.Tensor] = self.of.memory(self.write)

    def end(self) -> None:
        pinned, self.pinned = self.pinned, None
        assert pinned is not None
        self.of.used(pinned, None, self.write)

    def memory(self, like: Any) -> torch.Tensor:
        pinned = self.pinned
        assert pinned is not None
        if not pinned.numel():
            return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype,
                                       device="cpu")
        # Not the pinned tensor itself, to which the operation may refer after its end.
        span = pinned.numel() * pinned.element_size()
        flat = torch.frombuffer((ctypes.c_byte * span).from_address(pinned.data_ptr()),
                                dtype=like.dtype)
        return flat.as_strided(like.size(), like.stride(), like.storage_offset())


def _shown(value: Any, write: bool, pins: List[_Pin]) -> Any:
    """An argument of an operation, with everything in tiers pinned."""
    if isinstance(value, (list, tuple)):
        return [_shown(each, write, pins) for each in value]
    if isinstance(value, Lazy):
        kind: Any = _Lazies
        of: Any = value._source
    elif type(value) is torch.Tensor or isinstance(value, torch.nn.Parameter):
        kind, of = _Parameter, _record_of(value)
    else:
        return value
    if of is None:
        return value
    if not of.offload.place.is_host:
        raise NotImplementedError(
            f"{of.label()} is in tiers behind {of.offload.place.device}, and torch.distributed "
            "uses no memory of them there: call it with a clone(), and copy_() the result back")
    pin = _pins.get(of)
    if pin is None or pin.write < write:
        pin = kind(of, write)
    pin.users += 1
    pins.append(pin)
    return pin.memory(value)


def _record_of(tensor: torch.Tensor) -> Optional[Record]:
    if isinstance(tensor, Offloaded):
        return tensor._stepwell
    if tensor.layout != torch.strided:
        return None
    address = tensor.untyped_storage().data_ptr()
    for offload in _known:
        if (not offload.closed and tensor.device == offload.place.device
                and offload.first <= address < offload.last
                and address in offload.by_address):
            return offload.by_address[address]
    return None


def _end(pins: List[_Pin]) -> None:
    while pins:
        pin = pins.pop()
        pin.users -= 1
        if not pin.users:
            if _pins.get(pin.of) is pin:
                del _pins[pin.of]
            pin.end()
