# SPDX-License-Identifier: Apache-2.0
"""The division of a model into units, and whether all of them fit in the device budget."""
from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterable, List

import torch

from ..errors import BudgetError
from ._making import too_large
from ._records import Record
from ._units import Unit, install, is_holder, own, shares, uninstall

if TYPE_CHECKING:
    from ._offload import Offload


def cut(offload: "Offload", name: str, module: torch.nn.Module, least: int) -> None:
    """Divide a subtree into units: as large as allowed, and only modules that are called."""
    found = _records_of(offload, module.parameters())
    if not found:
        return
    total = sum(record.tensor.nbytes for record in found)
    below = [(key, child) for key, child in module.named_children()
             if any(True for _ in child.parameters())]
    whole = not is_holder(module) and (
        shares(module) or not below or (least == 0 and total <= offload.unit_bytes))
    if whole:
        _unit(offload, name, module, found)
        return
    direct = _records_of(offload, own(module))
    if direct and not is_holder(module):
        _unit(offload, name, module, direct)
    for key, child in below:
        if not isinstance(child, (torch.nn.ParameterList, torch.nn.ParameterDict)):
            cut(offload, f"{name}.{key}" if name else key, child, 0)


def _records_of(offload: "Offload", parameters: Iterable[torch.nn.Parameter]) -> List[Record]:
    found: Dict[int, Record] = {}
    for parameter in parameters:
        if id(parameter) in offload.by_parameter:
            found[id(parameter)] = offload.by_parameter[id(parameter)]
    return [record for record in found.values() if record.tiles is None]


def _unit(offload: "Offload", name: str, module: torch.nn.Module, records: List[Record]) -> None:
    unit = Unit(offload, name, module, records)
    if not offload.runtime.fits(unit.tensors):
        raise BudgetError(too_large(name, module, unit.bytes, offload.budget))
    _check_room_for_gradients(offload, unit)
    offload.units.append(unit)
    install(offload, module, unit)


def _check_room_for_gradients(offload: "Offload", unit: Unit) -> None:
    """Check for the room in which gradients are added, by blocks, while backward holds a unit."""
    block = offload.block_bytes
    sizes = [record.alias.nbytes for record in unit.records]
    small = sum(size for size in sizes if size < block)
    blocks = -(-small // block) + sum(-(-size // block) for size in sizes if size >= block)
    if (blocks < offload.budget // block or offload.has_host or offload.ranks is not None
            or not any(record.parameter.requires_grad for record in unit.records)):
        return
    raise BudgetError(
        f"module '{unit.name or type(unit.module).__name__}' ({type(unit.module).__name__}) "
        f"takes {blocks} blocks of {block} bytes, its parameters of {unit.bytes} bytes, and "
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
    used = offload.runtime.tier_stats("device").used_bytes
    if offload.ranks is not None or used < sum(record.tensor.nbytes for record in offload.records):
        return False
    for unit in offload.units:  # each has separate blocks for gradients and for each state
        own = [record for record in unit.records if record.unit is unit]
        gradients = sum(record.elements * record.dtype.itemsize for record in own)
        state = 4 * sum(record.elements for record in own)
        halves = any(record.dtype.itemsize < 4 for record in own)
        used += sum(-(-each // offload.block_bytes) * offload.block_bytes
                    for each in [gradients] + [state] * (states + halves))
    return used <= offload.budget * 15 // 16
