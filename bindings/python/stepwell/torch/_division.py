# SPDX-License-Identifier: Apache-2.0
"""The division of a model into units, and whether all of them fit in the device budget.

Functions of a `Plan` are those that estimate() asks too, with records that have no tensors.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Tuple, Union

import torch

from ..errors import BudgetError
from ._making import too_large
from ._records import Record
from ._units import HELD, Unit, install, is_holder, looks, own, shares, uninstall

if TYPE_CHECKING:
    from ._offload import Offload

Plan = Union["Offload", Any]
Part = Tuple[str, torch.nn.Module, List[Record]]  # of the model: a unit, or what may become one
SHARE = 8      # a unit's parameters are at most this fraction of the device budget
DEVICE_UNIT = 256 << 20  # bytes, and on a device at most this: a pass begins with the first update
WORKING = 4    # at least this fraction of it is left to what comes and goes
_ALIGNED = 256  # bytes; where tensors of a block begin


def cut(offload: "Offload", name: str, module: torch.nn.Module, least: int) -> None:
    """Divide a subtree into units."""
    for part in parts(offload, name, module, least):
        check_room(offload, *part)
        unit = Unit(offload, *part)
        offload.units.append(unit)
        install(offload, unit.module, unit)
        own = {id(record) for record in unit.records}
        for each in unit.module.modules():  # for calls without the unit's module
            records = _records_of(offload, each.parameters()) if looks(each) else []
            if records and all(id(record) in own for record in records):
                install(offload, each, unit)
    for each in module.modules():
        if isinstance(each, torch.nn.TransformerEncoder):
            install(offload, each, None)


def parts(offload: Plan, name: str, module: torch.nn.Module, least: int) -> Iterator[Part]:
    """The division of a subtree: as large as allowed, and only modules that are called."""
    found = _records_of(offload, module.parameters())
    if not found:
        return
    total = room_of(offload, found)
    below = [(key, child) for key, child in module.named_children()
             if any(True for _ in child.parameters())]
    whole = not is_holder(module) and (
        shares(module) or not below or (least == 0 and total <= offload.unit_most))
    if whole:
        yield name, module, found
        return
    direct = _records_of(offload, own(module))
    if direct and not is_holder(module):
        yield name, module, direct
    for key, child in below:
        if not isinstance(child, (torch.nn.ParameterList, torch.nn.ParameterDict)):
            yield from parts(offload, f"{name}.{key}" if name else key, child, 0)


def room_of(offload: Plan, records: List[Record]) -> int:
    """Bytes of the device for parameters: large ones take whole blocks, and small ones share."""
    block = offload.block_bytes
    sizes = [record.tensor.nbytes for record in records]
    return sum(size if size < block else -(-size // block) * block for size in sizes)


def _records_of(offload: Plan, parameters: Iterable[torch.nn.Parameter]) -> List[Record]:
    found: Dict[int, Record] = {}
    for parameter in parameters:
        if id(parameter) in offload.by_parameter:
            found[id(parameter)] = offload.by_parameter[id(parameter)]
    return [record for record in found.values() if record.tiles is None]


def check_room(offload: Plan, name: str, module: torch.nn.Module, records: List[Record]) -> None:
    """Raise BudgetError if a part does not fit, or the room in which its gradients are added, by
    blocks, while backward holds it."""
    nbytes = room_of(offload, records)
    if not offload.runtime.fits([record.tensor for record in records]):
        raise BudgetError(too_large(name, module, nbytes, offload.budget, offload.block_bytes))
    block = offload.block_bytes
    blocks = -(-nbytes // block)
    if (blocks < offload.budget // block or offload.adds_elsewhere or offload.ranks is not None
            or not any(record.parameter.requires_grad for record in records)):
        return
    raise BudgetError(
        f"module '{name or type(module).__name__}' ({type(module).__name__}) "
        f"takes {blocks} blocks of {block} bytes, its parameters of {nbytes} bytes, and "
        f"the device budget of {offload.budget} bytes has {offload.budget // block}: none is left "
        "to add its gradients while backward holds it. Raise device_bytes, or give a smaller "
        "block_bytes (stepwell.BLOCK_64K)")


def split(unit: Unit) -> None:
    """Make units of its children, since its parameters are used without a call of its module."""
    if unit.depth or shares(unit.module):
        return
    uninstall(unit.module)
    unit.offload.units.remove(unit)
    for record in unit.records:
        record.unit = None
    cut(unit.offload, unit.name, unit.module, 0)


def stays(offload: "Offload", states: int) -> bool:
    """Whether everything fits in the device budget, so that nothing is evicted between uses."""
    if not offload.place.is_host:  # parameters come there when they are used first
        return _packed(offload, states, offload.records) <= offload.budget * 15 // 16
    used = offload.runtime.tier_stats("device").used_bytes
    if offload.ranks is not None or used < sum(record.tensor.nbytes for record in offload.records):
        return False
    owned = [[record for record in unit.records if record.unit is unit] for unit in offload.units]
    return used + beside(owned, states, offload.block_bytes) <= offload.budget * 15 // 16


def _packed(offload: "Offload", states: int, records: List[Record]) -> int:
    """Bytes of parameters, gradients and states, in blocks as the library fills them."""
    trained = [record for record in records if record.parameter.requires_grad]
    halves = any(record.dtype.itemsize < 4 for record in trained)
    kinds = [[record.tensor.nbytes for record in records],
             [record.tensor.nbytes for record in trained],
             *[[4 * record.elements for record in trained]] * (states + halves)]
    blocks, block = 0, offload.block_bytes
    for sizes in kinds:
        used = block
        for size in sizes:
            if size >= block:
                blocks += -(-size // block)
                continue
            if used + size > block:
                blocks, used = blocks + 1, 0
            used += -(-size // _ALIGNED) * _ALIGNED
    return blocks * block


def choose_staying(offload: "Offload", states: int) -> None:
    """Choose the parameters that stay on a device with their gradients and states, and are updated
    there: from the first unit on as many as have room beside what is worked in, of those that share
    no block. The next forward pass begins with them while the CPU updates the others."""
    most = max((unit.bytes for unit in offload.units), default=0)
    room = offload.budget - max(offload.budget // WORKING, 2 * HELD * most)
    for unit in offload.units:
        own = [record for record in unit.records
               if type(record) is Record and record.unit is unit and record.parameter.requires_grad
               and record.tensor.nbytes >= offload.block_bytes]
        room -= _packed(offload, states, own)
        if room < 0:
            break
        for record in own:
            record.stays = True


def beside(owned: Iterable[List[Record]], states: int, block: int) -> int:
    """Bytes of gradients and states: of the parameters of each unit, separate blocks for gradients
    and for each state."""
    found = 0
    for own in owned:
        gradients = sum(record.elements * record.dtype.itemsize for record in own)
        state = 4 * sum(record.elements for record in own)
        halves = any(record.dtype.itemsize < 4 for record in own)
        found += sum(-(-each // block) * block
                     for each in [gradients] + [state] * (states + halves))
    return found
