# SPDX-License-Identifier: Apache-2.0
"""Activations in tiers: saved tensors beyond a number of bytes leave memory until backward.

Backward needs the last saved tensors first, so the oldest are moved first, and none while all of
them fit. A tensor that was not moved is returned without a copy. A storage is saved once, however
many nodes save a view of it, and moved when nothing else has it: before, it would not give memory
back, and might be written to.

Of a model on the CPU they go to nvme, and a node reads them where they were fetched. Of a model on
a device with streams they go to the host tier, and what has no room there to nvme: in parts, by
copies on the current stream, so that little room of the device is enough, and their memory is
PyTorch's again as soon as the copies are enqueued. They come back into memory that PyTorch
allocates for the stream of the node.

Tensors of tiers are used again for storages of about the same size, an eighth of a power of two.
If there is no room for another tensor, those that are not in use are destroyed.
"""
from __future__ import annotations

import collections
import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .. import _abi, _waiting
from .._dtypes import Dtype
from .._enums import Access, Tier
from .._library import lib
from .._tensor import Policy, Tensor, TensorSpec
from ..errors import BudgetError, BusyError, check
from ._records import check_data, users_of, with_bits

if TYPE_CHECKING:
    from ._offload import Offload

_LEAST = 64 << 10  # bytes; smaller storages stay
_AHEAD = 4         # storages that are prefetched
_HELD = 16         # storages of the program that a call looks at
_PART = 16 << 20   # bytes of a storage that are copied together on a device


def _room_of(nbytes: int) -> int:
    """Rounded up to an eighth of the power of two below it."""
    step = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // step) * step


class _Storage:
    """A storage saved by nodes: the memory itself, or the tensors that hold its bytes."""

    __slots__ = ("spill", "memory", "version", "bytes", "alive", "tensors", "before",
                 "__weakref__")

    def __init__(self, spill: "Spill", memory: torch.Tensor, nbytes: int) -> None:
        self.spill = spill
        self.memory: Optional[torch.Tensor] = memory
        self.version = memory._version
        self.bytes = nbytes
        self.alive = StorageWeakRef(memory.untyped_storage())
        self.tensors: List[Tensor] = []
        self.before: "Optional[weakref.ref[_Storage]]" = None  # moved before, needed later

    def is_held(self) -> bool:
        """Whether other tensors are over its memory."""
        return self.memory is not None and users_of(self.memory) > 1

    def __del__(self) -> None:
        try:
            self.spill.ended(self)
        except AttributeError:
            pass  # partly constructed, or the interpreter is ending


class Kept:
    """The form in which a node saves a tensor."""

    __slots__ = ("storage", "dtype", "size", "stride", "offset", "bits", "input")

    def __init__(self, storage: _Storage, tensor: torch.Tensor) -> None:
        self.storage = storage
        self.bits = tensor.is_conj(), tensor.is_neg()
        self.input = weakref.ref(tensor)  # of a detached output, to nothing soon
        self.dtype = tensor.dtype
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()

    def fetch(self) -> torch.Tensor:
        storage = self.storage
        memory = storage.memory
        check_data(self.input(), storage.alive.cdata)
        if memory is None:
            memory = storage.spill.brought(storage)
        elif memory._version != storage.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of {list(self.size)} is at version "
                f"{memory._version}; expected version {storage.version} instead")
        empty: Any = torch.empty(0, dtype=self.dtype, device=memory.device)
        return with_bits(
            empty.set_(memory.untyped_storage(), self.offset, self.size, self.stride), *self.bits)


class Spill:
    """The saved tensors of one Offload. Counts in bytes: kept, left and peak."""

    def __init__(self, offload: "Offload") -> None:
        self.offload = offload
        self.kept = 0        # bytes of saved tensors in memory
        self.begin(0)
        self._order: Deque["weakref.ref[_Storage]"] = collections.deque()
        self._known: "Dict[int, weakref.ref[_Storage]]" = {}
        self._free: Dict[int, List[Tensor]] = {}
        self._dead: List[Tensor] = []
        self._last: "Optional[weakref.ref[_Storage]]" = None

    def begin(self, keep_bytes: int) -> "Spill":
        self.keep_bytes = keep_bytes
        self.peak = 0
        self.left = 0  # bytes moved to tiers since then
        return self

    def pack(self, tensor: torch.Tensor) -> Any:
        """The saved form of a tensor; None: it is left to torch."""
        if (tensor.layout != torch.strided or tensor.is_nested or tensor._is_zerotensor()
                or tensor.device != self.offload.place.device):
            return None
        memory = tensor.untyped_storage()
        nbytes = memory.nbytes()
        if nbytes < _LEAST:
            return None
        found = self._known.get(memory._cdata)
        storage = found() if found is not None else None
        if storage is None or storage.alive.expired() or storage.version != tensor._version:
            if nbytes > 2 * tensor.numel() * tensor.element_size():
                return None  # a small part of a large storage
            storage = _Storage(self, tensor.detach(), nbytes)
            reference = weakref.ref(storage)
            self._known[memory._cdata] = reference
            self._order.append(reference)
            self.kept += nbytes
            self.peak = max(self.peak, self.kept)
        kept = Kept(storage, tensor)
        held = 0
        while self.kept > self.keep_bytes and len(self._order) > 1 and held < _HELD:
            oldest = self._order[0]()  # the newest one stays
            if oldest is not None and oldest.is_held():
                self._order.rotate(-1)
                held += 1
                continue
            self._order.popleft()
            if oldest is not None:
                self._leave(oldest)
        return kept

    def _leave(self, storage: _Storage) -> None:
        memory = storage.memory
        if memory is None or memory._version != storage.version:
            return  # changed since: its node will raise
        self._sweep()
        if self.offload.place.is_host:
            tensors = [self._room(storage.bytes)]
            source = memory.untyped_storage().data_ptr()
            check(_waiting.call(self.offload.runtime, lib.stw_tensor_write, tensors[0]._use(),
                                source, _abi.stw_copy_options.initial()))
        else:
            tensors = self._copied(memory, storage.bytes)
        storage.tensors, storage.memory = tensors, None
        storage.before, self._last = self._last, weakref.ref(storage)
        self.kept -= storage.bytes
        self.left += storage.bytes

    def _copied(self, memory: torch.Tensor, nbytes: int) -> List[Tensor]:
        """Tensors with its bytes, copied on the current stream."""
        place, tensors = self.offload.place, []
        place.used_here(memory)
        for begin, count in self._parts(nbytes):
            tensors.append(self._room(count))
            view = self.offload.room_for(tensors[-1], Access.WRITE)
            place.tensor_of(view).copy_(place.bytes_of(memory, begin, count))
        return tensors

    def _parts(self, nbytes: int) -> List[Tuple[int, int]]:
        each = max(self.offload.block_bytes, min(_PART, self.offload.unit_bytes))
        return [(begin, min(each, nbytes - begin)) for begin in range(0, nbytes, each)]

    def _room(self, nbytes: int) -> Tensor:
        """A tensor of so many bytes; its size at creation is that of its class."""
        room = _room_of(nbytes)
        free = self._free.get(room)
        if not free:
            try:
                free = [self._make(room)]
            except BudgetError:
                for each in self._free.values():
                    while each:
                        each.pop().destroy()
                free = [self._make(room)]
        tensor = free.pop()
        tensor.reshape(nbytes)
        return tensor

    def _make(self, nbytes: int) -> Tensor:
        homes = [Tier.NVME] if self.offload.place.is_host else [Tier.HOST, Tier.NVME]
        while True:
            home = homes.pop(0)
            try:
                return self.offload.runtime.create_many([TensorSpec(
                    shape=nbytes, dtype=Dtype.U8, role="activation", policy=Policy(home=home))])[0]
            except BudgetError:
                if not homes or not self.offload.runtime.tier_stats("nvme").budget_bytes:
                    raise

    def brought(self, storage: _Storage) -> torch.Tensor:
        """Its bytes: on the CPU pinned until the node drops them; on a device, or where the tiers
        have no room for all of them at once, in memory of PyTorch. Prefetches the next storages."""
        runtime, place = self.offload.runtime, self.offload.place
        flat = None
        if place.is_host:
            with contextlib.suppress(BudgetError):
                flat = place.tensor_of(runtime.fetch(storage.tensors[0]))
        if flat is None:
            flat = torch.empty(storage.bytes, dtype=torch.uint8, device=place.device)
            if place.is_host:
                storage.tensors[0].read(flat)
            else:
                for (begin, count), tensor in zip(self._parts(storage.bytes), storage.tensors):
                    view = self.offload.room_for(tensor, Access.READ)
                    flat[begin:begin + count].copy_(place.tensor_of(view))
            self._dead += storage.tensors
            storage.tensors, storage.memory, storage.version = [], flat, flat._version
            self.kept += storage.bytes
        ahead: List[Tensor] = []
        at = storage.before() if storage.before is not None else None
        while at is not None and at.tensors and len(ahead) < _AHEAD:
            ahead += at.tensors
            at = at.before() if at.before is not None else None
        runtime.prefetch(ahead)
        return flat

    def ended(self, storage: _Storage) -> None:
        """No node needs the storage any more. May be called while a node still holds its bytes."""
        if storage.memory is not None:
            self.kept -= storage.bytes
        self._dead += storage.tensors

    def _sweep(self) -> None:
        dead, self._dead = self._dead, []
        for tensor in dead:
            try:
                tensor.discard()
                self._free.setdefault(_room_of(tensor.elements), []).append(tensor)
            except BusyError:
                self._dead.append(tensor)
        if len(self._known) > 4096:
            self._known = {key: value for key, value in self._known.items()
                           if value() is not None}
