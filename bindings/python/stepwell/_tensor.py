# SPDX-License-Identifier: Apache-2.0
"""Tensors, requests for ranges of them, and the classes that describe them."""
from __future__ import annotations

import ctypes
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _exchange, _waiting
from ._dtypes import (
    ITEM_BYTES, Dtype, Memory, contiguous_export, dtype_of, made_for, memory_of_export, readable,
    writable,
)
from ._dlpack import ByAddress
from ._enums import (
    Access, Advice, Allow, Partition, Retain, Role, Scope, State, Stream, Tier, number,
)
from ._library import lib
from ._views import View
from ._waiting import nanoseconds
from .errors import check, raised

if TYPE_CHECKING:
    from ._runtime import Runtime

_deleter = _abi.stw_deleter_fn
_request = _abi.stw_fetch_request
_TENSOR_AT = _request.tensor.offset
# Requests for a whole tensor: the bytes before and after its handle.
_OF_NOTHING = tuple(bytes(_request.initial(access=int(access))) for access in Access)
_HEADS = [request[:_TENSOR_AT] for request in _OF_NOTHING]
_TAIL = _OF_NOTHING[0][_TENSOR_AT + 8:]


@dataclass(frozen=True)
class Policy:
    """The default and the allowed tiers of a tensor, and its order of eviction."""

    home: Union[Tier, str] = Tier.DEFAULT
    allowed_tiers: int = 0  # Allow.HOST | Allow.NVME; 0: all
    retention: Union[Retain, str] = Retain.DEFAULT
    priority: int = 0
    home_device: int = 0

    def _struct(self) -> _abi.stw_policy:
        return _abi.stw_policy.initial(
            home=number(Tier, self.home), allowed_tiers=int(self.allowed_tiers),
            retention=number(Retain, self.retention), priority=self.priority,
            home_device=self.home_device,
        )


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be created, for Runtime.create_many()."""

    shape: Union[int, Sequence[int]]
    dtype: Any = Dtype.F32
    name: Optional[str] = None
    role: Union[Role, str] = Role.OTHER
    zero: bool = False       # reads as zeros until written, without using memory
    read_only: bool = False  # written only by Tensor.write()
    align_bytes: int = 0
    neighbour: int = 0
    policy: Optional[Policy] = None
    partition: Union[Partition, str] = Partition.DEFAULT
    partition_multiple: int = 0  # shards hold a multiple of this many elements
    fixed_address: bool = False  # one address at each device for its lifetime
    no_address: bool = False  # address() is refused; with fault_in its writes cost less
    durable: bool = False  # part of generations, found again by its name
    own_blocks: bool = False  # it shares no block with others, however small it is

    def _fill(self, spec: _abi.stw_tensor_spec, keep: List[Any]) -> None:
        spec.struct_size = ctypes.sizeof(spec)
        spec.flags = _abi.STW_TENSOR_ZERO * self.zero
        spec.flags |= _abi.STW_TENSOR_READ_ONLY * self.read_only
        spec.flags |= _abi.STW_TENSOR_FIXED_ADDRESS * self.fixed_address
        spec.flags |= _abi.STW_TENSOR_NO_ADDRESS * self.no_address
        spec.flags |= _abi.STW_TENSOR_DURABLE * self.durable
        spec.flags |= _abi.STW_TENSOR_OWN_BLOCKS * self.own_blocks
        spec.name = None if self.name is None else self.name.encode()
        spec.role = number(Role, self.role)
        spec.dtype = dtype_of(self.dtype)
        shape = dimensions_of(self.shape)
        spec.dimensions = len(shape)
        spec.shape[:len(shape)] = shape
        spec.align_bytes = self.align_bytes
        spec.neighbour = self.neighbour
        spec.partition = number(Partition, self.partition)
        spec.partition_multiple = self.partition_multiple
        if self.policy is not None:
            keep.append(self.policy._struct())
            spec.policy = ctypes.pointer(keep[-1])


def dimensions_of(shape: Union[int, Sequence[int]]) -> Tuple[int, ...]:
    try:
        sizes = tuple(shape)  # type: ignore[arg-type]
    except TypeError:
        sizes = (shape,)  # type: ignore[assignment]
    try:
        dimensions = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise ValueError(f"no shape: {shape!r}; sizes are integers") from None
    if len(dimensions) > _abi.STW_DIMENSIONS_MAX:
        raise ValueError(f"{len(dimensions)} dimensions; at most {_abi.STW_DIMENSIONS_MAX}")
    if any(size < 0 or size >= 2**64 for size in dimensions):
        raise ValueError(f"no shape: {dimensions}")
    return dimensions


class TensorInfo(NamedTuple):
    """A snapshot of the properties of a tensor and its residency."""

    name: Optional[str]
    state: State
    dtype: Dtype
    role: Role
    shape: Tuple[int, ...]
    elements: int
    residence: Allow
    shard_begin: int
    shard_elements: int
    shard_bytes: int
    whole_bytes: int
    version: int
    open_views: int
    partition: Partition
    restored: bool  # contents restored from a generation: do not initialise it
    frozen: bool    # read_only=True, or Tensor.freeze()


class Request:
    """A range of a tensor at a tier, created once and fetched often. From Tensor.request()."""

    __slots__ = ("tensor", "access", "into", "_dtype", "_requests", "_memory", "_waits")

    def __init__(self, tensor: "Tensor", access: int, request: _abi.stw_fetch_request,
                 into: Any = None, memory: Optional[Memory] = None) -> None:
        self.tensor = tensor
        self.access = Access(access)
        self.into = into        # the destination of the copy, as given
        self._memory = memory   # keeps the destination in place
        self._dtype = int(request.dtype) or tensor._dtype
        # Copies and gathered tensors are not tried without a wait, which would already do all of
        # the work. Their views are not shared: each has its own bytes, or its turn.
        self._waits = (memory is not None or self._dtype != tensor._dtype
                       or (tensor._waits and request.scope == Scope.WHOLE))
        # Indexed by access like a tensor's, so that a list may contain tensors and requests.
        self._requests = (bytes(request),) * len(Access)

    @property
    def dtype(self) -> Dtype:
        """The dtype of the view."""
        return Dtype(self._dtype)


class Tensor:
    """A tensor of a runtime. It exists until destroy() or the end of the runtime, even if the
    object is dropped.

    Runtime.create(), find() and iteration return the same object for the same tensor.
    """

    __slots__ = ("_runtime", "_handle", "_dtype", "_shape", "_elements", "_requests",
                 "_told", "_waits", "__weakref__")

    def __init__(self, runtime: "Runtime", handle: int) -> None:
        self._runtime = runtime
        self._handle: Optional[int] = handle
        self._told: Optional[str] = None
        info = self.info()
        self._told = info.name
        self._dtype = int(info.dtype)
        self._shape, self._elements = info.shape, info.elements
        self._waits = info.partition == Partition.SHARDED
        at = handle.to_bytes(8, "little")
        self._requests = tuple([head + at + _TAIL for head in _HEADS])

    @property
    def tensor(self) -> "Tensor":
        """Itself, since a list for fetch_many() may contain tensors and requests."""
        return self

    @property
    def runtime(self) -> "Runtime":
        return self._runtime

    @property
    def name(self) -> Optional[str]:
        return self._told

    @property
    def dtype(self) -> Dtype:
        return Dtype(self._dtype)

    @property
    def shape(self) -> Tuple[int, ...]:
        return self._shape

    @property
    def elements(self) -> int:
        return self._elements

    @property
    def nbytes(self) -> int:
        return self._elements * ITEM_BYTES[self._dtype]

    @property
    def restored(self) -> bool:
        """Whether its contents were restored from the resumed generation: do not initialise it."""
        return self.info().restored

    def __repr__(self) -> str:
        state = "" if self._handle else ", destroyed"
        name = f"'{self._told}'" if self._told else "without a name"
        return f"<stepwell.Tensor {name}, {self.dtype.name} {self._shape}{state}>"

    def _label(self) -> str:
        """Its description in error messages, as in the library's."""
        return f"tensor '{self._told}'" if self._told else "a tensor without a name"

    def _use(self) -> int:
        """The handle, if the tensor still exists."""
        self._runtime._use()
        if self._handle is None:
            raise raised(_abi.STW_ERROR_CLOSED, f"{self._label()} was destroyed")
        return self._handle

    def _end(self) -> None:
        self._handle = None
        self._requests = _OF_NOTHING

    def _alone(self) -> Any:
        """Itself, as an argument of functions over several tensors."""
        return (ctypes.c_void_p * 1)(self._use())

    # -- what is known of it ------------------------------------------------------------------

    def info(self) -> TensorInfo:
        """A snapshot of its properties and residency. Never blocks."""
        info = _abi.stw_tensor_info.initial()
        check(lib.stw_tensor_info_get(self._use(), info))
        return TensorInfo(
            info.name.decode() if info.name else None, State(info.state), Dtype(info.dtype),
            Role(info.role), tuple(info.shape[:info.dimensions]), info.elements,
            Allow(info.residence), info.shard_begin, info.shard_elements, info.shard_bytes,
            info.whole_bytes, info.version, info.open_views, Partition(info.partition),
            bool(info.restored), bool(info.frozen),
        )

    def address(self, device: int = 0) -> Tuple[int, int]:
        """Address and size on a device, constant for its lifetime. A view makes the bytes
        resident."""
        pointer, count = ctypes.c_void_p(), ctypes.c_uint64()
        check(lib.stw_tensor_address(self._use(), device, pointer, count))
        return pointer.value or 0, count.value

    def by_address(self, device: int = 0) -> ByAddress:
        """An object for torch.from_dlpack() and similar functions, to make an array at address().
        The array pins nothing, and may be accessed only while the tensor is fetched there, or with
        the runtime's fault_in=True.
        """
        self.address(device)
        return ByAddress(self, device)

    # -- views --------------------------------------------------------------------------------

    def request(self, access: Union[Access, str] = Access.READ, begin: int = 0, count: int = 0, *,
                tier: Union[Tier, str] = Tier.DEFAULT, device: int = 0, dtype: Any = None,
                into: Any = None, scope: Union[Scope, str] = Scope.WHOLE) -> Request:
        """Create a request for a fetch. begin, count: elements of the flattened tensor; 0, 0: all.
        scope: "shard" for this rank's part.

        into: an array or buffer of exactly these elements, to which they are copied; READ only.
        dtype: of the view; conversion between f32, f16 and bf16, for READ or REDUCE. None: that of
        `into`, else the tensor's.
        """
        kind = number(Access, access)
        handle = self._use()
        code = 0 if dtype is None else int(dtype_of(dtype))
        memory = None
        if into is not None:
            memory = writable(into, code or self._dtype).on_host()
            if code == 0 and memory.dtype is not None:
                code = int(memory.dtype)
            self._fits(memory._replace(dtype=Dtype(code or self._dtype)),
                       self._range(begin, count, scope))
        return Request(self, kind, _request.initial(
            access=kind, tensor=handle, scope=number(Scope, scope), tier=number(Tier, tier),
            device=device, dtype=code, element_begin=begin, element_count=count,
            into=memory.pointer if memory is not None else None,
        ), into, memory)

    def fetch(self, access: Union[Access, str] = Access.READ, begin: int = 0, count: int = 0,
              **options: Any) -> View:
        """Runtime.fetch() of this tensor: scope=, into=, dtype= and the options of fetch_many()."""
        return self._runtime.fetch(self, access, begin, count, **options)

    # -- copies -------------------------------------------------------------------------------

    def _range(self, begin: int, count: int, scope: Union[Scope, str] = Scope.WHOLE) -> int:
        if begin < 0 or count < 0 or begin + count > self._elements:
            raise ValueError(
                f"elements [{begin}, +{count}) are not inside {self._label()} of "
                f"{self._elements} elements")
        if begin == 0 and count == 0 and number(Scope, scope) == Scope.SHARD:
            return self.info().shard_elements
        return count or (self._elements if begin == 0 else 0)

    def _fits(self, memory: Memory, count: int) -> None:
        """Check the size, which the library trusts."""
        each = ITEM_BYTES[self._dtype if memory.dtype is None else memory.dtype]
        if memory.bytes != count * each:
            raise ValueError(f"{memory.bytes} bytes of the caller's for {count} elements of "
                             f"{each} bytes of {self._label()}")

    def _has_shape_of(self, source: Any, begin: int, count: int) -> None:
        shape = tuple(getattr(source, "shape", ()))
        whole = begin == 0 and count in (0, self._elements)
        if whole and len(shape) > 1 and len(self._shape) > 1 and shape != self._shape:
            raise ValueError(f"{self._label()} has the shape {self._shape}, and what is written "
                             f"{shape}; reshape it, or write it flat")

    def _place(self, memory: Optional[Memory]) -> Dict[str, Any]:
        """Where it is, for options. Its exporter has ordered the legacy stream behind its work."""
        if memory is None or memory.cuda is None:
            return {}
        return {"tier": Tier.DEVICE, "device": self._runtime._device_with(memory.cuda),
                "stream": Stream.LEGACY}

    def _options(self, memory: Optional[Memory], begin: int, count: int, timeout: Optional[float],
                 scope: Union[Scope, str]) -> _abi.stw_copy_options:
        return _abi.stw_copy_options.initial(
            scope=number(Scope, scope), **self._place(memory),
            dtype=0 if memory is None or memory.dtype is None else memory.dtype,
            element_begin=begin, element_count=count, timeout_ns=nanoseconds(timeout),
        )

    def write(self, source: Any, begin: int = 0, count: int = 0, *, dtype: Any = None,
              timeout: Optional[float] = None,
              scope: Union[Scope, str] = Scope.WHOLE) -> None:
        """Copy from an array, a buffer or a sequence of numbers; blocks until it is copied.

        f32, f16 and bf16 are converted with rounding to nearest; other dtypes must be the tensor's.
        A buffer without a dtype counts as the tensor's. Arrays are from NumPy or any library that
        exports them by DLPack, like PyTorch, in host memory or on a CUDA device of the runtime,
        after the work that was enqueued on it. dtype: the type of the elements,
        overriding that of the array or buffer, for example "bf16" for NumPy's uint16.
        """
        handle, memory = self._use(), readable(source, self._dtype, dtype)
        self._fits(memory, self._range(begin, count, scope))
        self._has_shape_of(source, begin, count)
        check(_waiting.call(self._runtime, lib.stw_tensor_write, handle, memory.pointer,
                            self._options(memory, begin, count, timeout, scope)))

    def read(self, out: Any = None, begin: int = 0, count: int = 0, *, dtype: Any = None,
             timeout: Optional[float] = None, scope: Union[Scope, str] = Scope.WHOLE) -> Any:
        """Copy to `out`, or to a new array (a bytearray without NumPy), and return it.

        out: a writeable array or buffer, as for write(). dtype: the type of the elements of `out`,
        overriding its own, or of a new array: the tensor's, or another one of f32, f16 and bf16.
        """
        handle, elements = self._use(), self._range(begin, count, scope)
        code = self._dtype if dtype is None else int(dtype_of(dtype))
        if out is None:
            out, memory = made_for(elements, code)
            if elements == self._elements and hasattr(out, "reshape"):
                out = out.reshape(self._shape)
            memory = memory._replace(dtype=Dtype(code))
        else:
            memory = writable(out, code)
            if dtype is not None:
                memory = memory._replace(dtype=Dtype(code))
        self._fits(memory, elements)
        check(_waiting.call(self._runtime, lib.stw_tensor_read, handle, memory.pointer,
                            self._options(memory, begin, count, timeout, scope)))
        return out

    def fill(self, value: float, begin: int = 0, count: int = 0, *,
             timeout: Optional[float] = None, scope: Union[Scope, str] = Scope.WHOLE) -> None:
        """Fill it with a value, rounded to nearest; blocks until every block is filled."""
        handle = self._use()
        self._range(begin, count)
        check(_waiting.call(self._runtime, lib.stw_tensor_fill, handle, float(value),
                            self._options(None, begin, count, timeout, scope)))

    def reduce(self, local: Any = None, *, dtype: Any = None, scale: float = 1.0,
               more: bool = False, adopt: bool = False,
               timeout: Optional[float] = None) -> None:
        """Add an array to the whole tensor. Blocks until it is added. None: this rank has no
        gradient. If no rank has one, the tensor stays empty and its parameter is not updated.

        adopt: return at once, and add the array later; it belongs to the library until it is added,
        and must not be changed. It is passed by DLPack, as by PyTorch, and freed by its deleter, in
        C on a thread of the library. The call waits if the library already holds too much.

        more: further micro-batches follow before the sums of the ranks are added. Arrays and dtype
        are as for write().

        It is not restarted after Ctrl-C: it may be half done then, which reads of the tensor raise.
        """
        handle = self._use()
        made = contiguous_export(local) if adopt else None
        memory = None
        if made is not None:
            memory = memory_of_export(made, dtype)
        elif local is not None:
            memory = readable(local, self._dtype, dtype)
        if memory is not None:
            self._fits(memory, self._elements)
        options = _abi.stw_reduce_options.initial(
            dtype=0 if memory is None or memory.dtype is None else memory.dtype,
            flags=_abi.STW_REDUCE_MORE * more, scale=scale, timeout_ns=nanoseconds(timeout),
            **self._place(memory),
        )
        if scale == 0 or not math.isfinite(scale):
            raise ValueError(f"a scale of {scale}; do not reduce what is not to be added")
        if made is not None and memory is not None:
            _exchange.take(made)  # an interrupt here leaks the array, but never frees it twice
            status = _waiting.call(self._runtime, lib.stw_reduce_adopt, handle, memory.pointer,
                                   options, _deleter(made.deleter), made.managed, again=False)
            if status < 0:
                _exchange.leave(made)
            check(status)
            return
        check(_waiting.call(self._runtime, lib.stw_reduce, handle,
                            None if memory is None else memory.pointer, options, again=False))

    # -- contents and policy ------------------------------------------------------------------

    def discard(self) -> None:
        """Declare the contents dead: EMPTY (or zeros) from now on. BusyError while views are
        open."""
        check(lib.stw_tensor_discard(self._alone(), 1))

    def destroy(self) -> None:
        """End it; its bytes return to their budgets. BusyError while views are open, or an
        optimizer uses it."""
        check(lib.stw_tensor_destroy(self._alone(), 1))
        self._runtime._forget(self)

    def advise(self, advice: Union[Advice, str]) -> None:
        check(lib.stw_advise(self._alone(), 1, number(Advice, advice)))

    def prefetch(self, access: Union[Access, str] = Access.READ) -> None:
        """A hint that a fetch will follow. Never blocks, never fails for lack of room."""
        self._runtime.prefetch([self], access)

    def evict(self, tier: Union[Tier, str], device: int = 0, *,
              timeout: Optional[float] = None) -> None:
        """Evict it from a tier; blocks until done."""
        self._runtime.evict([self], tier, device, timeout=timeout)

    def reshape(self, shape: Union[int, Sequence[int]]) -> None:
        """Change its shape, to at most the elements at creation; EMPTY from now on. BusyError while
        views are open."""
        dimensions = dimensions_of(shape)
        sizes = (ctypes.c_uint64 * max(len(dimensions), 1))(*dimensions)
        check(lib.stw_tensor_reshape(self._use(), sizes, len(dimensions)))
        info = self.info()
        self._shape, self._elements = info.shape, info.elements

    def freeze(self, frozen: bool = True) -> None:
        """Freeze it, so that only write() changes it, as with read_only=True; False: unfreeze it.

        Steps of its optimizer do not change it. A durable frozen tensor cannot be written once a
        generation includes it, so nvme keeps a single copy. Never blocks.
        """
        check(lib.stw_tensor_freeze(self._use(), int(bool(frozen))))

    def set_policy(self, policy: Policy) -> None:
        """Takes effect at the next decision. Never blocks."""
        check(lib.stw_tensor_set_policy(self._use(), policy._struct()))
