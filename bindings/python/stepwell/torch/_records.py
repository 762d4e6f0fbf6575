# SPDX-License-Identifier: Apache-2.0
"""The record of a parameter: its tensors, its pins, and the current class of its object.

A parameter object always aliases its tensor's address. Its class says whether the bytes may be
accessed without a call of ours: Present while a unit of the model holds a pin, during an access,
and in an optimizer's own step; Absent otherwise, in which case each torch function called with it
fetches it first, or finds the pin of an earlier access. Its gradient is a separate tensor; `.grad`
is an object that fetches it for each operation.
"""
from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import warnings
import weakref
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch

from .. import _abi, _waiting
from .._dtypes import Dtype
from .._enums import Access, State
from .._library import lib
from .._tensor import Tensor, TensorSpec
from ..errors import BudgetError, BusyError, EmptyError, Error, check
from ._held import Event, Held, after
from ._lazy import Lazy, Source, absent
from ._place import KINDS, Place
from ._private import not_compiled

if TYPE_CHECKING:
    from ._offload import Offload

# Integers are for quantised weights, which torch cannot train.
DTYPES = {torch.float32: Dtype.F32, torch.float16: Dtype.F16, torch.bfloat16: Dtype.BF16,
          torch.int8: Dtype.I8, torch.uint8: Dtype.U8}

_grad = torch.Tensor.grad  # the C++ fields, hidden by the properties below
_data = torch.Tensor.data
_Off = torch._C.DisableTorchFunctionSubclass
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame  # type: ignore[attr-defined]
TRAINED = 1  # neighbour number of tensors that a step writes; small ones share blocks
CONSUMED = "consumed by the update of the last step"
_VIEWS = 16         # maximum number of kept views of a parameter


def own_grad(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    return _grad.__get__(parameter)  # type: ignore[attr-defined,no-any-return]


def set_own_grad(parameter: torch.Tensor, grad: Optional[torch.Tensor]) -> None:
    _grad.__set__(parameter, grad)  # type: ignore[attr-defined]


def users_of(tensor: torch.Tensor) -> int:
    """The number of tensors over its memory, including itself."""
    count = torch._C._storage_Use_Count  # type: ignore[attr-defined]
    return count(tensor.untyped_storage()._cdata) - 1  # type: ignore[no-any-return]


def memory_order(tensor: torch.Tensor) -> Tuple[int, ...]:
    """Strides of the same order without gaps, like torch.preserve_format."""
    return torch.empty_like(tensor, device="meta").stride()


def flat(tensor: torch.Tensor, stride: Tuple[int, ...]) -> torch.Tensor:
    """The elements of a tensor in the order of `stride`, contiguous; a copy if necessary."""
    if tensor.stride() != stride:
        same = torch.empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device)
        tensor = same.copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def write(to: Tensor, data: torch.Tensor, stride: Tuple[int, ...]) -> None:
    if not data.numel():
        to.fill(0)  # it has one element, since a tensor cannot be empty
        return
    if isinstance(data, Lazy):
        data = data.in_memory()
    source = flat(data.detach(), stride)
    here = source.cpu()
    options = _abi.stw_copy_options.initial()
    try:
        check(_waiting.call(to._runtime, lib.stw_tensor_write, to._use(), here.data_ptr(), options))
    except BusyError:  # this thread has a neighbour in its block open, which is on the device
        if source.is_cpu:
            raise
        memory = KINDS[source.device.type].tensor_of(to._runtime.fetch(to, Access.WRITE))
        memory.view(-1).copy_(source)


def read(place: Place, tensor: Tensor, size: Tuple[int, ...], stride: Tuple[int, ...],
         dtype: torch.dtype) -> torch.Tensor:
    """A copy of its bytes, in the memory of the place."""
    out = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    if not out.numel():
        return place.to(out)
    options = _abi.stw_copy_options.initial()
    try:
        check(_waiting.call(tensor._runtime, lib.stw_tensor_read, tensor._use(), out.data_ptr(),
                            options))
    except BusyError:  # this thread has it open for writing, as a signal's handler may find it
        memory = (at_address(place, tensor, size, stride) if place.is_host else
                  # Or a neighbour in its block, which is on the device.
                  place.tensor_of(tensor._runtime.fetch(tensor)).as_strided(size, stride))
        return memory.clone(memory_format=torch.preserve_format)
    return place.to(out)


def settle(record: "Record") -> None:
    """Multiply the gradient by the factor that waits for the update."""
    if record.scale == 1.0:
        return
    place, runtime = record.offload.place, record.offload.runtime
    memory = place.tensor_of(runtime.fetch(record.gradient, Access.READ_WRITE))
    scale, record.scale = record.scale, 1.0
    with torch.no_grad():
        memory.mul_(scale)


def at_address(place: Place, tensor: Tensor, size: Tuple[int, ...],
               stride: Tuple[int, ...]) -> torch.Tensor:
    """A tensor over its memory, for accesses while a view of it is held; not a pin."""
    made = place.tensor_of(tensor.by_address())
    made.untyped_storage()._stepwell = tensor._runtime  # open while tensors over it exist
    return made.view(-1).as_strided(size, stride)


def view_like(base: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What `like` is of its own base."""
    place = like.size(), like.stride(), like.storage_offset()
    if like.dtype == base.dtype:
        view = base.as_strided(*place)
    else:  # by view_as_complex(), view_as_real() or view(dtype)
        empty: Any = torch.empty(0, dtype=like.dtype, device=base.device)
        view = empty.set_(base.untyped_storage(), place[2], *place[:2])
    return with_bits(view, like.is_conj(), like.is_neg())


def with_bits(view: torch.Tensor, conj: bool, neg: bool) -> torch.Tensor:
    """The same memory, of which torch takes the conjugate, or the negative."""
    if conj:
        view = view.conj()
    return torch._neg_view(view) if neg else view


@functools.lru_cache(maxsize=None)
def _owners() -> int:
    """The owners in C++ that a parameter has in its hook after a gradient, of one whose nodes have
    run."""
    found: List[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        probe: Any = torch.nn.Parameter(torch.zeros(1, device="cpu"))
        probe.register_post_accumulate_grad_hook(lambda each: found.append(each._use_count()))
        (probe * probe).sum().backward()
    return found[0]


def check_data(saved: Optional[torch.Tensor], storage: int) -> None:
    """A tensor that a node has saved, if the program has it still, is over the same storage."""
    if saved is not None and saved.untyped_storage()._cdata != storage:
        raise RuntimeError(
            f"a tensor of {list(saved.size())} was given other data after a node had saved it, and "
            "the node of an offloaded model has what it was: take a new tensor")


def version_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without memory whose `_version` is that of this one and of its views."""
    made = tensor.detach()
    _data.__set__(made, torch.empty(0, dtype=made.dtype, device=made.device))  # type: ignore
    return made


class Record:
    """One parameter of the model, with any number of names and modules."""

    __slots__ = ("offload", "name", "parameter", "tensor", "alias", "size", "stride", "dtype",
                 "address", "pins", "changes", "seen", "gradient", "held", "source",
                 "given", "addressed", "scale",
                 "unit", "hooked", "group", "touches", "touched", "done", "frozen", "large",
                 "tiles", "elements", "collected", "keeps", "memory_at", "views", "outside",
                 "escaped", "stays", "_guard")

    def __init__(self, offload: "Offload", name: str, parameter: torch.nn.Parameter,
                 tensor: Tensor, frozen: bool) -> None:
        self.offload = offload
        self.name = name
        self.parameter = parameter
        self.tensor = tensor
        self.frozen = frozen    # of the tensor: its only copy is part of a generation
        self.like(parameter)
        self.pins = 0           # of units and accesses; without those of autograd's nodes
        self.changes = 0        # number of updates and writes, compared by saved tensors
        self.gradient: Optional[Tensor] = None
        self.held = Held.NONE   # of that: changed by become()
        self.scale = 1.0        # a factor of the gradient that waits for the update: _scaling.py
        self.source: "Optional[weakref.ref[GradSource]]" = None  # of the objects of its gradient
        self.addressed = False  # the program may have its address, which nothing counts
        self.given = False      # the program has set `.grad` to memory of its own
        self.unit: Any = None
        self.hooked: Any = None  # the handle of its hook
        self.group = -1         # of the optimizer; -1: none
        self.touches = 0        # accesses outside a unit
        self.outside = False    # some of them under saved-tensor hooks of others
        self.escaped = False    # some of them gave out its memory, which may be written since
        self.touched: Any = None  # the view of an access that lasts until the next mark
        self.done = -1          # the backward pass of its last gradient
        self.large = False      # never pinned as a whole: see _tiles.py
        self.tiles: Any = None  # its parts, for a weight that is computed in tiles
        self.views: Dict[Any, torch.Tensor] = {}  # of the alias, made by modules
        self.collected = False  # its gradient is copied to its tensor together with others
        self.keeps = False      # and the tensor keeps its memory from step to step
        self.stays = False      # on a device, with its gradient and states: _division.py
        # The address at which its gradient was seen last, and a tensor over it that is no pin.
        self.memory_at: Tuple[int, Optional[torch.Tensor]] = (0, None)

    def like(self, data: torch.Tensor) -> None:
        self.size = tuple(data.size())
        self.elements = data.numel()
        self.stride = memory_order(data)
        self.dtype = data.dtype

    def adopt(self, data: Optional[torch.Tensor] = None) -> None:
        """Move the parameter's bytes to its tensor; the object refers to the tensor's address."""
        parameter = self.parameter
        if self.tensor.info().state == 0:
            write(self.tensor, parameter if data is None else data, self.stride)
        with _Off():
            self.offload.place.kind.set_data(
                parameter, at_address(self.offload.place, self.tensor, self.size, self.stride))
        self.views.clear()
        self.alias = parameter.detach()  # shares the version counter, and is faster to query
        self.address = self.alias.untyped_storage().data_ptr()
        self.seen = self.alias._version
        parameter.__class__ = Absent
        parameter._stepwell = self  # type: ignore[attr-defined]
        self._guard = weakref.ref(parameter)  # with which torch.utils.swap_tensors() refuses
        if parameter.requires_grad:
            self.hook()

    def is_outlived(self) -> bool:
        """Whether other tensors and arrays are over its memory on the CPU."""
        offload = self.offload
        return (offload.place.is_host and offload.ranks is None
                and users_of(self.alias) > 2 + len(self.views))

    def copy(self) -> torch.Tensor:
        return read(self.offload.place, self.tensor, self.size, self.stride, self.dtype)

    def restore(self, data: torch.Tensor, in_place: bool = False) -> None:
        """Make it a plain parameter: over a copy of its bytes, or over its tensor's memory as long
        as there are others over it."""
        parameter = self.parameter
        stays = in_place and self._stays()
        if self.hooked is not None:
            self.hooked.remove()
        parameter.__class__ = torch.nn.Parameter
        parameter.__dict__.pop("_stepwell", None)
        self._guard = None
        if not stays:
            self.offload.place.kind.set_data(parameter, data)

    def _stays(self) -> bool:
        try:
            self.thaw()
            view = self.tensor.fetch(Access.READ_WRITE)
        except Error as error:
            warnings.warn(
                f"{self.label()} leaves its tiers, and a tensor or array over its memory, from "
                f".data, detach() or a view, must not be used any more: {error}", stacklevel=4)
            return False
        storage: Any = self.alias.untyped_storage()
        storage._stepwell = view  # released with the last tensor over it
        return True

    def view(self, like: torch.Tensor) -> torch.Tensor:
        """A view of the parameter. It is kept, since a module makes the same views each time."""
        key = (like.size(), like.stride(), like.storage_offset(), like.dtype, like.is_conj(),
               like.is_neg())
        found = self.views.get(key)
        if found is None:
            if len(self.views) >= _VIEWS:
                self.views.clear()
            found = self.views[key] = view_like(self.alias, like)
        return found

    @property
    def shares_block(self) -> bool:
        return self.tensor.nbytes < self.offload.block_bytes

    def label(self) -> str:
        return f"parameter '{self.name}'"

    def check_use(self) -> None:
        """The program uses its bytes, or those of its states."""
        if self.offload.in_backward is not None:
            self.offload.in_backward.check_values(self)

    def seen_outside(self) -> bool:
        """Whether the program may read the bytes through another tensor, an array or an address,
        which does not wait for an update."""
        return self.addressed or users_of(self.alias) > 2 + len(self.views)

    def is_passed_on(self) -> bool:
        """Whether autograd has what a node has unpacked, beyond the node's run."""
        views: Any = list(self.views.values())
        alias: Any = self.alias
        parameter: Any = self.parameter
        return (parameter._use_count() > _owners() or any(view._use_count() > 1 for view in views)
                or alias._use_count() > 1 + sum(view._is_view() for view in views))

    # -- pins -------------------------------------------------------------------------------------

    def pin(self) -> None:
        self.pins += 1
        if self.pins == 1:
            self.parameter.__class__ = Present

    def unpin(self, stays: bool = False) -> Optional[torch.Tensor]:
        """The bytes, if the program has changed them: the caller must write them to the tensor.
        stays: they were changed through a view for writing."""
        self.pins -= 1
        written = None
        if self.alias._version != self.seen:
            written = None if stays else self.alias.clone()
            self.seen = self.alias._version
        if self.pins == 0:
            self.parameter.__class__ = Absent
        return written

    def thaw(self, by_view: bool = True) -> None:
        """Make it writable, which takes room for more copies. A write through a view is allowed
        only until a generation includes it."""
        commits = self.offload.commits
        if self.frozen and (by_view or commits is not None and commits.kept):
            self.offload.room(self.tensor.freeze, False)
            self.frozen = False

    def save(self, written: Optional[torch.Tensor]) -> None:
        if written is not None:
            self.offload.end_kept()
            self.thaw(by_view=False)
            write(self.tensor, written, self.stride)

    # -- gradients --------------------------------------------------------------------------------

    def become(self, event: Event) -> None:
        self.held = after(self.held, event)

    def hook(self) -> None:
        if self.hooked is None:
            self.thaw()
            if self.tiles is None:
                self.hooked = self.parameter.register_post_accumulate_grad_hook(
                    self.offload.gradients.accumulated)
                # Before those of the program, to which `.grad` then is the sum. Torch calls them in
                # the order in which the dict got them.
                hooks: Any = self.parameter._post_accumulate_grad_hooks
                others = [each for each in hooks.items() if each[0] != self.hooked.id]
                for key, _ in others:
                    del hooks[key]
                hooks.update(others)

    def make_gradient(self) -> Tensor:
        if self.gradient is None:
            self.thaw()
            self.gradient = self.offload.make(TensorSpec(
                shape=max(1, self.alias.numel()), dtype=DTYPES[self.dtype],
                name=self.name + ".grad", role="grad", zero=self.large,
                neighbour=TRAINED, no_address=not self.offload.own_steps))
            self.collected = bool(
                self.elements and self.gradient.nbytes <= self.offload.gradients.collected_max)
            self.keeps = self.collected and self.offload.resident
        return self.gradient

    def own_gradient(self) -> Optional[torch.Tensor]:
        """Its gradient in plain memory, in the order of the parameter's; None: it is in tiers."""
        grad = own_grad(self.parameter)
        if grad is None:
            return None
        self.check_gradient(grad)
        return flat(grad.detach(), self.stride)

    def has_own_gradient(self) -> bool:
        return own_grad(self.parameter) is not None

    def check_gradient(self, grad: Optional[torch.Tensor]) -> None:
        if grad is not None and grad.layout != torch.strided:
            raise RuntimeError(
                f"the gradient of {self.label()} is sparse, and gradients in tiers are dense: make "
                "the layer with sparse=False")

    def add_gradient(self, grad: torch.Tensor) -> None:
        self.check_gradient(grad)
        if self.held is Held.SPENT:
            return
        gradient = self.make_gradient()
        if self.scale != 1.0:
            settle(self)
        if self.large:
            self.offload.copied.end(gradient)
        if self.keeps and not self.held:
            self.discard_gradient()  # from an earlier step
        self.note_sum()
        first = not self.held
        self.become(Event.ADDED)  # before it is: an interrupt drops it
        if grad.numel():
            ranks, gradients = self.offload.ranks, self.offload.gradients
            grad = flat(grad, self.stride)
            if self.offload.first <= grad.data_ptr() < self.offload.last:
                grad = grad.clone()  # a parameter's memory, which may change before it is added
            shown = self.offload.shown_memory(gradient, self.dtype)
            if shown is not None:
                with torch.no_grad():
                    shown.add_(grad)
                return
            if not self.keeps or not gradients.add(gradient, grad):
                gradients.reduce(gradient, grad, first, ranks is not None and ranks.keeps(self))

    def note_sum(self) -> None:
        """A gradient is added to the one that there is, which torch does in its memory."""
        source = self.source() if self.source is not None else None
        if self.held and source is not None:
            torch.autograd.graph.increment_version(source.lazy())

    def grad_source(self) -> "GradSource":
        found = self.source() if self.source is not None else None
        if found is None:
            found = GradSource(self)
            self.source = weakref.ref(found)
        return found

    def drop_gradient(self) -> None:
        source = self.source() if self.source is not None else None
        if self.gradient in self.offload.shown:
            self.offload.check_shown("a gradient is dropped")
        self.source = None
        if source is not None and self.held:
            source.leave()
        self.given = False
        if self.large and self.gradient is not None:
            self.offload.copied.forget(self.gradient)
        if self.held is Held.SUM and self.gradient is not None:
            if self.offload.window is not None:
                self.offload.window.forget(self.gradient)
            if not self.keeps:
                self.discard_gradient()
        if self.offload.ranks is not None:
            self.offload.ranks.drop(self)
        self.become(Event.DROPPED)
        self.scale = 1.0

    def discard_gradient(self) -> None:
        assert self.gradient is not None
        try:
            self.gradient.discard()
        except BusyError:  # its last contribution is still being added
            if self.large:  # it has no room as a whole
                self.offload.runtime.drain()
            else:  # only this rank's part, since others may not have to wait
                with contextlib.suppress(EmptyError):
                    self.gradient.fetch(scope="shard").release()
            self.gradient.discard()

    def gradient_copy(self) -> torch.Tensor:
        assert self.gradient is not None
        settle(self)
        return read(self.offload.place, self.gradient, self.size, self.stride, self.dtype)

    def lacks_gradient(self) -> bool:
        """Whether it has a gradient without contents. Waits for one that is being added."""
        if (self.held is not Held.SUM or self.gradient is None
                or self.gradient.info().state is not State.EMPTY):
            return False
        self.offload.runtime.drain()
        return self.gradient.info().state is State.EMPTY

    def last_gradient(self) -> Optional[torch.Tensor]:
        """The same at the end; None after an exception before the first of it was added."""
        try:
            return self.gradient_copy()
        except EmptyError:
            return None


# Functions of an absent parameter that do not access its bytes.
_METADATA_NAMES = (
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn", "_version",
    "names", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_mkldnn", "is_xla",
    "is_mps", "is_xpu", "is_nested", "itemsize", "nbytes", "output_nr", "_backward_hooks",
    "is_sparse_csr", "is_vulkan", "is_ipu", "is_maia", "is_mtia", "retains_grad", "grad_dtype",
    "_post_accumulate_grad_hooks", "grad",
)
_METADATA_CALLS = (
    "size", "stride", "dim", "numel", "nelement", "element_size", "storage_offset", "is_contiguous",
    "is_floating_point", "is_complex", "get_device", "ndimension", "is_signed", "is_inference",
    "register_hook", "register_post_accumulate_grad_hook", "_is_view", "is_shared", "__len__",
    "__hash__", "_is_zerotensor", "is_conj", "is_neg", "is_pinned", "is_same_size",
)


_HOOKS = {torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook}
_GRAD_SWITCHES = {torch.Tensor.requires_grad_,
                  torch.Tensor.requires_grad.__set__}  # type: ignore[attr-defined]


def _metadata() -> Any:
    found = set()
    for name in _METADATA_NAMES:
        field = getattr(torch.Tensor, name, None)
        if hasattr(field, "__set__"):  # a field of C, not a method
            found.update((field.__get__, field.__set__))
    for name in _METADATA_CALLS:
        if hasattr(torch.Tensor, name):
            found.add(getattr(torch.Tensor, name))
    for name in ("is_floating_point", "is_complex", "numel", "is_same_size"):
        found.add(getattr(torch, name))
    return found - _GRAD_SWITCHES - _HOOKS


_METADATA = _metadata()
_compatible = torch._has_compatible_shallow_copy_type  # asked by Module.to() and its like
# Functions that return the address, so that the pin lasts until the next mark.
_ESCAPES = {getattr(torch.Tensor, name) for name in (
    "data_ptr", "numpy", "storage", "untyped_storage", "__dlpack__", "__array__", "share_memory_",
    "_typed_storage", "view", "__getitem__", "detach",
) if hasattr(torch.Tensor, name)}
_ESCAPES.add(_data.__get__)  # type: ignore[attr-defined]
# Results of these share the parameter's version counter.
VERSIONED = {torch.Tensor.view, torch.Tensor.__getitem__, torch.Tensor.detach}


class Offloaded(torch.nn.Parameter):
    """A parameter in tiers; see the module's docstring."""

    _stepwell: Record

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        """A plain one, as type(p)(data) asks for."""
        return torch.nn.Parameter(data, requires_grad)

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        record = self._stepwell
        accesses = record.offload.accesses
        if record.pins > (record in accesses.touched):  # of its module's call
            return self.detach()  # unlike in torch, a write to it is a write to the parameter
        if record.pins:
            return accesses.touch(  # type: ignore[no-any-return]
                [record], _data.__get__, (self,), {}, True)  # type: ignore[attr-defined]
        return _data.__get__(self)  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, data: torch.Tensor) -> None:
        record = self._stepwell
        record.offload.accesses.set_data(record, data)

    @property
    def grad(self) -> Optional[torch.Tensor]:  # type: ignore[override]
        own = own_grad(self)
        record = self._stepwell
        if record.offload.ranks is not None:
            record.offload.ranks.settle()
        if own is not None and record.held and not record.given:
            del own
            record.offload.gradients.small.copy()  # a part of the sum, of a later micro-batch
            own = own_grad(self)
        if own is not None or not record.held:
            return own
        return record.grad_source().lazy()

    @grad.setter
    def grad(self, grad: Optional[torch.Tensor]) -> None:
        record = self._stepwell
        source = record.source() if record.source is not None else None
        if isinstance(grad, Lazy) and isinstance(grad._source, GradSource):
            if grad._source is source and grad.is_same_as(source.lazy()):
                return
            if grad._source.record is record and grad._source.restored(grad):
                return
            if grad._source.plain is None:
                raise NotImplementedError(
                    f"the gradient of {record.label()} is set to {grad._source.label()} as it is, "
                    "and both would share memory: set it to a clone()")
        if grad is not None and (grad.size() != self.size() or grad.dtype != self.dtype
                                 or grad.device != self.device):
            raise RuntimeError(
                f"a gradient of {tuple(grad.size())}, {grad.dtype} on {grad.device} for "
                f"{record.label()} of {record.size}, {record.dtype} on {self.device}")
        if grad is not None and grad.requires_grad and not record.offload.plain_gradients:
            raise RuntimeError(
                f"the gradient of {record.label()} is set to a tensor that requires a gradient, "
                "and gradients in tiers are values: set it to its detach()")
        if record.offload.in_backward is not None:
            record.offload.in_backward.dropped(record)
        values = grad.clone() if isinstance(grad, Lazy) else grad
        record.drop_gradient()
        set_own_grad(self, None)
        if values is not None:
            record.offload.gradients.give(record, values)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    _grad = grad  # type: ignore[assignment]  # as older programs ask for it

    @property
    def grad_dtype(self) -> Optional[torch.dtype]:
        return self.dtype

    @grad_dtype.setter
    def grad_dtype(self, dtype: Optional[torch.dtype]) -> None:
        if dtype != self.dtype:
            raise RuntimeError(
                f"grad_dtype = {dtype} of {self._stepwell.label()}, which is {self.dtype}: a "
                "gradient in tiers has the dtype of its parameter")

    def set_(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if self._stepwell.offload.making is None:
            raise _replaced(self, "set_()")
        return super().set_(*args, **kwargs)  # as parametrizations do in a constructor

    def __deepcopy__(self, memo: Dict[int, Any]) -> torch.nn.Parameter:
        """A plain parameter with its own memory."""
        record = self._stepwell
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(record.offload.accesses.copy_of(record),
                                                self.requires_grad)
            if record.offload.making is not None:
                record.offload.making.copied(record.name, memo[id(self)])
        return memo[id(self)]  # type: ignore[no-any-return]

    def share_memory_(self) -> torch.Tensor:
        raise NotImplementedError(
            f"{self._stepwell.label()} is in tiers, and its memory cannot be shared with other "
            "processes: share a copy, such as copy.deepcopy(model).share_memory(), and copy "
            "state_dict() to it")

    def __repr__(self, **_: Any) -> str:
        record = self._stepwell
        return repr(torch.nn.Parameter(record.offload.accesses.copy_of(record), self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        record = self._stepwell
        plain = torch.nn.Parameter(record.offload.accesses.copy_of(record), self.requires_grad)
        attributes = {name: value for name, value in vars(self).items() if name != "_stepwell"}
        if get_spawning_popen() is None:
            vars(plain).update(attributes)
            return plain.__reduce_ex__(protocol)
        # To a spawned process by value: shared memory of the copy would end before it begins.
        here = plain.detach().cpu()
        bytes_of = ctypes.string_at(here.data_ptr(), here.nbytes) if here.numel() else b""
        return _sent, (bytes_of, record.size, record.stride, record.dtype, plain.device,
                       self.requires_grad, attributes)


def _sent(data: bytes, size: Any, stride: Any, dtype: Any, device: torch.device,
          requires_grad: bool, attributes: Dict[str, Any]) -> Any:
    made = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    ctypes.memmove(made.data_ptr(), data, len(data))
    parameter = torch.nn.Parameter(made.to(device), requires_grad)
    vars(parameter).update(attributes)
    return parameter


def _replaced(parameter: Offloaded, what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} would replace the memory of {parameter._stepwell.label()}, which is in tiers: do "
        "it before offload(), or after offloaded(model).close()")


def _shaped_in_place(name: str) -> Any:
    """A function of torch that would give the object another shape over the same memory."""
    def refuse(self: Offloaded, *args: Any, **kwargs: Any) -> Any:
        if self._stepwell.offload.making is None:
            raise NotImplementedError(
                f"{name}() would give {self._stepwell.label()} another shape in place, and tiers "
                "keep its shape: do it before offload()")
        return getattr(torch.Tensor, name)(self, *args, **kwargs)
    return refuse


for _name in ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "resize_",
              "resize_as_", "as_strided_"):
    setattr(Offloaded, _name, _shaped_in_place(_name))


class Present(Offloaded):
    """The class of a pinned parameter: no torch function is intercepted."""


class Absent(Offloaded):
    """The class of an unpinned parameter: each operation fetches it first."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with _Off():
                return func(*args, **kwargs)
        if func in _GRAD_SWITCHES:
            with _Off():
                result = func(*args, **kwargs)
                for parameter in args:
                    if isinstance(parameter, Offloaded) and parameter.requires_grad:
                        parameter._stepwell.hook()
            return result
        if func is _compatible and args[0].device != args[1].device:
            raise _replaced(args[0], f"a move of the model to {args[1].device}")
        if func in _HOOKS:
            record = args[0]._stepwell
            if record.tiles is not None:
                raise NotImplementedError(
                    f"{record.label()} is computed with in tiles and has no gradient as a whole to "
                    "call a hook with: use a hook of its module, or raise device_bytes")
            with _Off():
                return func(*args, **kwargs)
        found: List[Record] = []
        find_absent(args, found)
        if kwargs:
            find_absent(kwargs.values(), found)
        if not found:  # became Present since the call was dispatched
            with _Off():
                return func(*args, **kwargs)
        # In one order, as another thread may have others of the same ones.
        first = min((record.offload for record in found), key=lambda each: each.serial)
        own = [record for record in found if record.offload is first]
        compiler = _set_eval_frame(None)  # torch.compile's graphs end here
        try:
            return first.accesses.touch(own, func, args, kwargs, func in _ESCAPES,
                                        len(own) < len(found))
        finally:
            if compiler is not None:
                _set_eval_frame(compiler)


not_compiled(Absent.__torch_function__.__func__)
absent.append(Absent)


def find_absent(values: Any, found: List[Record]) -> None:
    for value in values:
        if type(value) is Absent:
            if value._stepwell not in found:
                found.append(value._stepwell)
        elif isinstance(value, (tuple, list)):
            find_absent(value, found)
        elif isinstance(value, dict):
            find_absent(value.values(), found)


class _Gradient(enum.Enum):
    """Where the values of a GradSource are."""

    PRESENT = 0  # in the parameter's gradient tensor
    MOVED = 1    # in a tensor of the source's own, since the gradient was dropped
    GONE = 2     # nowhere: an update had consumed them


class GradSource(Source):
    """The bytes of a parameter's gradient. If the gradient is dropped while the program still has
    an object of it, its values move to a tensor of the source's own."""

    __slots__ = ("_lazy", "_state", "_moved")

    def __init__(self, record: Record) -> None:
        super().__init__(record, record.size, record.stride, record.dtype)
        self._state = _Gradient.PRESENT
        self._moved: Optional[Tensor] = None
        self._lazy: "Optional[weakref.ref[Lazy]]" = None

    @property
    def tensor(self) -> Optional[Tensor]:
        return self._moved if self._state is _Gradient.MOVED else self.record.gradient

    def is_present(self) -> bool:
        """Whether its bytes are those of the parameter's gradient tensor."""
        return self._state is _Gradient.PRESENT and self.plain is None

    def label(self) -> str:
        return f"the gradient of {self.record.label()}"

    def lazy(self) -> Lazy:
        """The object that `.grad` returns, the same one while the program has it."""
        found = self._lazy() if self._lazy is not None else None
        if found is None:
            found = super().lazy()
            self._lazy = weakref.ref(found)
        return found

    def is_gone(self) -> bool:
        return self.plain is None and (
            self._state is _Gradient.GONE
            or self._state is _Gradient.PRESENT and self.record.held is Held.SPENT)

    def renew(self, values: torch.Tensor) -> None:
        record = self.record
        if self._state is _Gradient.GONE or not record.elements:
            self.plain = values
            return
        gradient = record.make_gradient()
        self._check_use()
        if record.large:
            record.offload.copied.forget(gradient)
        write(gradient, values, self.stride)
        record.scale = 1.0
        record.become(Event.WRITTEN)

    def _check_use(self) -> None:
        early = self.record.offload.in_backward
        if early is not None and self.record.offload.window is None:
            early.check_use(self.record)

    def memory(self, write: bool) -> torch.Tensor:
        if self.plain is not None:
            return self.plain
        record = self.record
        if not record.elements:
            self.plain = torch.empty_strided(self.size, self.stride, dtype=self.dtype,
                                             device=self.device)
            return self.plain
        if self._state is _Gradient.MOVED:
            assert self._moved is not None
            return self.fetch(self._moved, write).as_strided(self.size, self.stride, 0)
        if self._state is _Gradient.PRESENT:
            self._check_use()
            if record.scale != 1.0 and record.held is not Held.SPENT:
                settle(record)
        if self._state is _Gradient.GONE or record.held is Held.SPENT or record.gradient is None:
            raise RuntimeError(
                f"{self.label()} was "
                f"{CONSUMED}: use it before optimizer.step(), or offload with keep_gradients=True")
        if record.large:
            return record.offload.copied.of(record.gradient, record.size, record.stride,
                                            record.dtype)
        return self.fetch(record.gradient, write).as_strided(self.size, self.stride, 0)

    def used(self, memory: torch.Tensor, result: Any, wrote: bool) -> None:
        record = self.record
        if record.large and self._state is _Gradient.PRESENT and record.gradient is not None:
            record.offload.copied.used(record.gradient, memory, record.stride, result, False, wrote)

    def by_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.record.tiles is None or self._state is not _Gradient.PRESENT or type(
                args[0]) is not Lazy or args[0].size() != self.size:
            return None
        return self.record.offload.copied.by_tiles(args[0], self.record, func, args, kwargs)

    def leave(self) -> None:
        """The gradient is dropped: keep its values for the program."""
        record = self.record
        if record.held is Held.SPENT or record.gradient is None:
            self._state = _Gradient.GONE
            return
        offload = record.offload
        try:
            moved = offload.runtime.create_many([TensorSpec(
                shape=max(1, record.elements), dtype=DTYPES[record.dtype], role="grad",
                neighbour=TRAINED)])[0]
        except BudgetError as error:
            raise BudgetError(
                f"{self.label()} is dropped while the program still has it, and there is no room "
                "to keep its values: delete what p.grad returned before zero_grad(), or raise "
                f"nvme_bytes or device_bytes ({error})") from error
        values = record.gradient_copy() if record.large else self.memory(False)
        write(moved, values, self.stride)
        self._moved, self._state = moved, _Gradient.MOVED

    def restored(self, lazy: Lazy) -> bool:
        """The program sets `.grad` to what it was before it was dropped."""
        if self._state is not _Gradient.MOVED or not lazy.is_same_as(super().lazy()):
            return False
        record = self.record
        record.drop_gradient()
        set_own_grad(record.parameter, None)
        assert self._moved is not None
        record.add_gradient(
            read(self.offload.place, self._moved, self.size, self.stride, self.dtype))
        self.offload.ended.append(self._moved)
        self._moved, self._state = None, _Gradient.PRESENT
        self._lazy, record.source = weakref.ref(lazy), weakref.ref(self)
        return True

    def end(self) -> Lazy:
        """What `.grad` is after close() if an update has consumed it: every use is refused, until
        all of it is written."""
        self._state = _Gradient.GONE
        return self.lazy()

    def settle(self) -> None:
        if self.plain is None and self._state is _Gradient.MOVED:
            assert self._moved is not None
            self.plain = read(self.offload.place, self._moved, self.size, self.stride, self.dtype)
        elif (self.plain is None and self._state is _Gradient.PRESENT
              and self.record.held is not Held.SPENT):
            self.plain = own_grad(self.record.parameter)

    def __del__(self) -> None:
        if getattr(self, "_moved", None) is not None:  # not partly constructed
            self.offload.ended.append(self._moved)
