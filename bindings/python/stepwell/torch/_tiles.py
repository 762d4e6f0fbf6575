# SPDX-License-Identifier: Apache-2.0
"""Parameters larger than the device budget: processed in tiles, copied for other uses.

A tile is a number of rows of a weight: a range of its tensor, fetched, used and released before the
next. The parameter object still represents the whole weight; its torch functions are handled here
(Absent in _records.py): F.linear, F.embedding and torch.addmm run tile by tile, each over a
separate leaf, so that autograd saves and differentiates one tile at a time. Any other function gets
a copy in plain memory.
"""
from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.nn.functional as F

from .._enums import Access, State
from .._tensor import Tensor
from ..errors import BudgetError
from ._held import Event, Held
from ._lazy import READ, READ_WRITE
from ._private import not_compiled, pop
from ._place import Place
from ._records import Offloaded, Record, at_address, read, users_of, write
from ._units import Unit, shares

if TYPE_CHECKING:
    from ._offload import Offload

_transforms = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame  # type: ignore[attr-defined]
_norm = torch.ops.aten.linalg_vector_norm.default
_ROWS = 16  # a tile of at least this size has a multiple of it: the block of gemm kernels


class Tile(Record):
    """Rows of a weight, as a parameter of autograd and units."""

    __slots__ = ("whole", "begin", "end", "columns")

    def __init__(self, whole: Record, begin: int, end: int) -> None:
        self.whole = whole
        self.begin, self.end, self.columns = begin, end, whole.size[1]
        count = (end - begin) * self.columns
        place, at = whole.offload.place, begin * self.columns
        address = whole.address + at * whole.dtype.itemsize
        # A separate storage, since saved tensors are identified by its address.
        self.alias = place.part(at_address(place, whole.tensor, whole.size, whole.stride), at,
                                count).view(end - begin, self.columns)
        super().__init__(whole.offload, f"{whole.name}[{begin}:{end}]",
                         torch.nn.Parameter(self.alias, whole.parameter.requires_grad),
                         self.request(whole.tensor), False)
        self.address, self.seen = address, self.alias._version
        self.parameter._stepwell = self  # type: ignore[attr-defined]
        if self.parameter.requires_grad:
            self.hook()

    def request(self, tensor: Tensor, access: Access = READ) -> Any:
        """A request for these rows of the parameter's tensor, or of one of the same shape."""
        return tensor.request(access, self.begin * self.columns,
                              (self.end - self.begin) * self.columns)

    @property
    def changes(self) -> int:  # type: ignore[override]
        return self.whole.changes

    @changes.setter
    def changes(self, value: int) -> None:
        pass  # done by the whole parameter

    def run(self, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Call a function with these rows as a new leaf, so that each use has its own gradient."""
        self.unit.enter()
        try:
            if _transforms() is not None:  # our hooks get no saved tensors, and no leaf is made
                return function(self.parameter.clone())
            rows = self.alias.detach()
            if self.whole.parameter.requires_grad and torch.is_grad_enabled():
                rows.requires_grad_()
                rows._stepwell = self  # type: ignore[attr-defined]
                rows.register_post_accumulate_grad_hook(self.offload.gradients.accumulated)
            return function(rows)
        finally:
            self.unit.leave()

    def add_gradient(self, grad: torch.Tensor) -> None:
        whole = self.whole
        whole.check_gradient(grad)
        tensor = whole.make_gradient()
        self.offload.copied.end(tensor)
        # Rows without contributions are zero: the tensor reads as zeros at first, unless it was
        # made before the tiles were.
        if not whole.held and tensor.info().state is State.EMPTY:
            tensor.fill(0.0)
        rows = self.offload.place.tensor_of(
            self.offload.room_for(self.request(tensor, READ_WRITE)))
        rows.view(self.size).add_(grad.detach())
        whole.become(Event.ADDED)


# -- making ---------------------------------------------------------------------------------------

def divide(offload: "Offload", module: torch.nn.Module, most: Optional[int]) -> None:
    """Divide the module's weights that do not fit, or are larger than `most` bytes, into tiles."""
    for owner, record in oversized(offload, module, most):
        _make(offload, owner, record, most)


def oversized(offload: Any, module: torch.nn.Module,
              most: Optional[int]) -> Iterator[Tuple[torch.nn.Module, Record]]:
    """The weights to divide, with their modules; each is to have tiles before the next one."""
    if most is not None and offload.ranks is not None:
        raise ValueError("tile_bytes over several ranks: weights that are divided over ranks are "
                         "gathered whole, and not in tiles, in this release; leave it out")
    if shares(module) or offload.ranks is not None:
        return
    record = offload.by_parameter.get(id(module._parameters.get("weight")))
    if record is not None and record.tiles is None and why_not(module) is None:
        own = [offload.by_parameter[id(each)].tensor for each in module._parameters.values()
               if each is not None]
        if (most is not None and record.tensor.nbytes > most) or not offload.runtime.fits(own):
            yield module, record
    for child in module.children():
        yield from oversized(offload, child, most)


def why_not(module: torch.nn.Module) -> Optional[str]:
    """The reason why its weight cannot be divided; None if it can."""
    if shares(module):
        return "a weight that is used without its module being called is not computed in tiles"
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 2 or weight.numel() == 0 or not (
            isinstance(module, (torch.nn.Linear, torch.nn.Embedding))
            or type(module).__name__ == "Conv1D"):  # of transformers
        return "only the weight of a Linear, an Embedding or a Conv1D can be computed in tiles"
    if getattr(module, "max_norm", None) is not None:
        return "an Embedding with max_norm writes to its weight, and is not computed in tiles"
    if not weight.is_contiguous():
        return ("only a weight in row-major order is computed in tiles: make it so by "
                "weight.data = weight.data.contiguous() before offload()")
    ours = isinstance(weight, Offloaded) and weight._stepwell.hooked is not None
    if weight._backward_hooks or len(weight._post_accumulate_grad_hooks or ()) > ours:
        return ("its weight has hooks, and a weight in tiles has no gradient as a whole to call "
                "them with: remove them")
    return None


def ranges(offload: Any, record: Record, most: Optional[int]) -> List[Tuple[int, int]]:
    """The first row of each tile, and the row after its last."""
    rows, columns = record.size
    row = columns * record.dtype.itemsize
    count = (offload.unit_bytes if most is None else most) // row
    if count == 0 and most is not None:
        raise ValueError(f"tile_bytes={most} is less than one row of {record.label()}, which is "
                         f"{row} bytes: a tile has whole rows, so give as much or more")
    count = max(count, 1)
    each = -(-rows // -(-rows // count))  # as equal as possible
    if count >= _ROWS:
        each = min(-(-each // _ROWS) * _ROWS, count // _ROWS * _ROWS)
    return [(begin, min(begin + each, rows)) for begin in range(0, rows, each)]


def _make(offload: "Offload", module: torch.nn.Module, record: Record,
          most: Optional[int]) -> None:
    tiles = [Tile(record, *rows) for rows in ranges(offload, record, most)]
    if not offload.runtime.fits([tiles[0].tensor]):
        row = record.size[1] * record.dtype.itemsize
        raise BudgetError(
            f"{record.label()} of {record.tensor.nbytes} bytes does not fit into the device budget "
            f"of {offload.budget} bytes, and neither does a tile of it, which has at least one row "
            f"of {row} bytes: raise device_bytes")
    record.tiles, record.large = tiles, True
    for tile in tiles:
        offload.units.append(Unit(offload, tile.name, module, [tile]))
        offload.by_address[tile.address] = tile


def undo(record: Record) -> None:
    """Remove the tiles of a parameter, whose units were removed."""
    if record.tiles is None:
        return
    offload = record.offload
    for tile in record.tiles:
        del offload.by_address[tile.address]
        tile.unit = None
    offload.by_address[record.address] = record
    record.tiles, record.large = None, not offload.runtime.fits([record.tensor])


# -- functions ------------------------------------------------------------------------------------

def _tiles_of(tensor: Any) -> Optional[List[Tile]]:
    return tensor._stepwell.tiles if isinstance(tensor, Offloaded) else None


def _rows_of(tiles: List[Tile]) -> List[int]:
    return [tile.end - tile.begin for tile in tiles]


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    tiles = _tiles_of(weight)
    if tiles is None:
        return None
    parts = [None] * len(tiles) if bias is None else bias.split(_rows_of(tiles))
    return torch.cat([tile.run(lambda rows, part=part: F.linear(input, rows, part))
                      for tile, part in zip(tiles, parts)], -1)


def _addmm(input: Any, mat1: Any, mat2: Any, **options: Any) -> Any:
    tiles = _tiles_of(mat2)
    if tiles is None or options:
        return None
    for tile, part in zip(tiles, mat1.split(_rows_of(tiles), 1)):
        input = tile.run(lambda rows: torch.addmm(input, part, rows))
    return input


def _embedding(input: Any, weight: Any, padding_idx: Optional[int] = None,
               max_norm: Optional[float] = None, norm_type: float = 2.0,
               scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:
    tiles = _tiles_of(weight)
    if tiles is None or max_norm is not None:
        return None
    rows = weight.size(0)
    if padding_idx is not None and padding_idx < 0:
        padding_idx += rows
    # After sorting, each tile has a range of them; equal ones keep their order, in which their
    # gradients are added.
    known, order = input.reshape(-1).sort(stable=True)
    if len(known) and not 0 <= int(known[0]) <= int(known[-1]) < rows:
        raise IndexError("index out of range in self")
    ends = torch.searchsorted(known, torch.tensor(
        [tile.end for tile in tiles], dtype=known.dtype, device=known.device))
    found, begin = [], 0
    for tile, end in zip(tiles, ends.tolist()):
        if end > begin or end == 0 and tile is tiles[-1]:  # at least one: gradients are dense
            inside = padding_idx is not None and tile.begin <= padding_idx < tile.end
            ids, pad = known[begin:end] - tile.begin, padding_idx - tile.begin if inside else None
            found.append(tile.run(lambda rows: F.embedding(
                ids, rows, pad, None, norm_type, scale_grad_by_freq, sparse)))
        begin = end
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return torch.cat(found).index_select(0, place).view(*input.shape, weight.size(1))


_BY_TILES: Dict[Any, Callable[..., Any]] = {
    F.linear: _linear, F.embedding: _embedding, torch.addmm: _addmm,
}


def touch(offload: "Offload", records: List[Record], func: Any, args: Any, kwargs: Any,
          escapes: bool) -> Any:
    """Accesses.touch() for functions with a parameter that is too large."""
    compiler = _set_eval_frame(None)  # torch.compile's graphs end here
    try:
        return _touch(offload, [record for record in records if record.large], func, args, kwargs,
                      escapes)
    finally:
        _set_eval_frame(compiler)


not_compiled(touch)


def _touch(offload: "Offload", large: List[Record], func: Any, args: Any, kwargs: Any,
           escapes: bool) -> Any:
    by_tiles = _BY_TILES.get(func)
    if by_tiles is not None:
        for record in large:
            offload.copied.sync(record.tensor)
        pushed = _transforms() is None and offload.hooks.push()
        try:
            result = by_tiles(*args, **kwargs)
        finally:
            if pushed:
                pop()
        if result is not None:
            return result
    shown = {id(record.parameter): _leaf(record) for record in large}
    before = [leaf._version for leaf in shown.values()]
    result = func(*_replaced(args, shown), **_replaced(kwargs, shown))
    for record, leaf, version in zip(large, shown.values(), before):
        if leaf._version != version:
            record.changes += 1
            record.thaw(by_view=False)
        offload.copied.used(record.tensor, leaf, record.stride, result, escapes,
                            leaf._version != version)
        result = record.parameter if result is leaf else result
    return result


def _leaf(record: Record) -> torch.Tensor:
    """A copy of a parameter, whose gradient is the parameter's."""
    offload = record.offload
    leaf = offload.copied.of(record.tensor, record.size, record.stride, record.dtype).detach()
    if record.parameter.requires_grad and torch.is_grad_enabled():
        leaf.requires_grad_()
        leaf._stepwell = record  # type: ignore[attr-defined]
        leaf.register_post_accumulate_grad_hook(offload.gradients.accumulated)
    return leaf


def _replaced(value: Any, shown: Dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return shown.get(id(value), value)
    if type(value) in (tuple, list):
        return type(value)(_replaced(each, shown) for each in value)
    if isinstance(value, dict):
        return {key: _replaced(each, shown) for key, each in value.items()}
    return value


def _aliases(value: Any, memory: torch.Tensor) -> bool:
    """Whether `value` contains a tensor through which the program may write to the memory."""
    if isinstance(value, (tuple, list)):
        return any(_aliases(each, memory) for each in value)
    return (isinstance(value, torch.Tensor) and value.layout == torch.strided
            and value.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr())


class Copies:
    """Copies in plain memory. A copy that the program may write to is kept as long as a pin would
    last, until the next mark or until nothing else refers to it, and is written back.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        # The copy, its stride, and whether its references can be counted.
        self._kept: Dict[Tensor, Tuple[torch.Tensor, Tuple[int, ...], bool]] = {}

    def of(self, tensor: Tensor, size: Tuple[int, ...], stride: Tuple[int, ...],
           dtype: torch.dtype) -> torch.Tensor:
        """A copy of the tensor; used() must follow."""
        for each, (copy, _, counted) in list(self._kept.items()):
            if counted and users_of(copy) == 1:
                self.end(each)
        kept = self._kept.get(tensor)
        return read(self._place, tensor, size, stride, dtype) if kept is None else kept[0]

    def used(self, tensor: Tensor, copy: torch.Tensor, stride: Tuple[int, ...], result: Any,
             escapes: bool, wrote: bool) -> None:
        """A function was called with the copy. escapes: it may return its address."""
        if wrote:
            write(tensor, copy, stride)
        counted = isinstance(result, (torch.Tensor, tuple, list))
        if result is not copy and (_aliases(result, copy) if counted else escapes):
            _, _, before = self._kept.get(tensor, (None, None, True))
            self._kept[tensor] = copy.detach(), stride, counted and before

    def sync(self, tensor: Tensor) -> None:
        """Write a copy back that may have been changed."""
        if tensor in self._kept:
            copy, stride, _ = self._kept[tensor]
            write(tensor, copy, stride)

    def end(self, tensor: Tensor) -> None:
        self.sync(tensor)
        self.forget(tensor)

    def forget(self, tensor: Tensor) -> None:
        self._kept.pop(tensor, None)

    def mark(self) -> None:
        for tensor, (copy, _, counted) in list(self._kept.items()):
            self.end(tensor)
            if counted and users_of(copy) > 1:
                warnings.warn(
                    f"the program still has a tensor over a copy of '{tensor.name}', which is "
                    "computed with in tiles: what is written to it from now on is lost, and it "
                    "does not follow the parameter; take it again, or take a clone()",
                    stacklevel=2)

    def by_tiles(self, grad: Any, record: Record, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation on a gradient, tile by tile; None if it needs the whole gradient."""
        rest = [*args[1:], *kwargs.values()]
        writes = func._schema.name.endswith("_") and torch.Tag.pointwise in func.tags
        if (record.held is not Held.SUM or record.gradient is None
                or any(isinstance(each, (tuple, list)) for each in rest)
                or any(isinstance(each, torch.Tensor) and each.dim() for each in rest)
                or not (writes or func is _norm and len(rest) < 2 and rest != [0])):
            return None
        self.end(record.gradient)
        found = []
        for tile in record.tiles:
            rows = self._place.tensor_of(record.offload.runtime.fetch(
                tile.request(record.gradient, READ_WRITE if writes else READ)))
            result = func(rows, *args[1:], **kwargs)
            if not writes:
                found.append(result)
            del rows, result
        return grad if writes else _norm(torch.stack(found), *args[1:])
