# SPDX-License-Identifier: Apache-2.0
"""estimate(): the budgets of a model before it is offloaded.

The division into units, the room for gradients, and the default of nvme_bytes are those of
offload(): its functions are asked with records that have sizes and no tensors.
"""
from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

import torch

from .. import _abi
from .._enums import Link
from .._options import Device
from .._runtime import Runtime
from ..errors import BudgetError
from . import _kinds, _optimizer, _tiles
from ._division import SHARE, Part, beside, check_room, parts
from ._making import checked, need, spec_of
from ._sizes import Places, Size, nvme_of, size_of, text_of

_ALIGNED = 256      # bytes; small tensors in a block begin at multiples of it
_TOGETHER = 4096    # the maximum number of tensors in a block
_OPEN = 8 << 20     # bytes of tiers that are opened to read the profile
Profile = Union[str, "os.PathLike[str]", None]


class Estimate(NamedTuple):
    """What estimate() found; its string form is a table of it. Sizes are bytes."""

    parameters: int
    gradients: int
    states: int                 # of the optimizer, with masters of parameters of 16 bits
    nvme_bytes: int             # the default of offload()
    least_device_bytes: int     # a training step fits
    sensible_device_bytes: int  # the next layers can be read ahead beside the current one
    resident_device_bytes: int  # nothing moves
    device_bytes: int           # for which the fields below are: the argument, or the sensible one
    units: int                  # into which the model is divided
    step_read_bytes: int        # from the drive, at most, in a step
    step_written_bytes: int
    drive_seconds: Optional[float]  # that these take, by the machine's profile; None: not known

    def __str__(self) -> str:
        lines = [
            f"parameters {text_of(self.parameters)}, gradients {text_of(self.gradients)}, "
            f"optimizer states {text_of(self.states)}",
            f"nvme_bytes    {text_of(self.nvme_bytes)} by default",
            f"device_bytes  {text_of(self.least_device_bytes)} at least, "
            f"{text_of(self.sensible_device_bytes)} to read ahead, "
            f"{text_of(self.resident_device_bytes)} so that nothing moves",
            f"a step with device_bytes={text_of(self.device_bytes)}: {self.units} units, at most "
            f"{text_of(self.step_read_bytes)} read and {text_of(self.step_written_bytes)} written, "
            + ("of unknown time: give nvme= a directory that `stepwell tune` has measured"
               if self.drive_seconds is None else f"{self.drive_seconds:.3g} s of the drive"),
        ]
        if self.device_bytes < self.least_device_bytes:
            lines.append("this device_bytes is not enough")
        return "\n".join(lines)


class _Space:
    """The size and the blocks of a tensor that does not exist."""

    def __init__(self, nbytes: int, blocks: "range") -> None:
        self.nbytes = nbytes
        self.blocks = blocks


class _Tensor:
    """The part of a Record that the division asks for."""

    def __init__(self, parameter: torch.nn.Parameter, name: str, space: _Space) -> None:
        self.parameter = parameter
        self.name = name
        self.tensor = self.alias = space
        self.size = tuple(parameter.size())
        self.elements = parameter.numel()
        self.dtype = parameter.dtype
        self.tiles: Any = None

    def label(self) -> str:
        return f"parameter '{self.name}'"


class _Plan:
    """Stands for an Offload and its runtime in the functions of _division.py and _tiles.py."""

    has_host = adds_elsewhere = False
    ranks = None

    def __init__(self, parameters: List[Tuple[str, torch.nn.Parameter]], block: int,
                 durable: bool) -> None:
        self.block_bytes = block
        self.blocks = 0
        self.runtime = self
        self.records: List[Any] = []
        open_blocks: Dict[int, Tuple[int, int, int]] = {}  # by neighbour: number, bytes, tensors
        for name, parameter in parameters:
            spec = spec_of(name, parameter, parameter.requires_grad, durable, False)
            nbytes = int(spec.shape) * parameter.element_size()  # type: ignore[call-overload]
            self.records.append(_Tensor(parameter, name, _Space(
                nbytes, self._place(nbytes, spec.neighbour, open_blocks))))
        self.by_parameter = {id(record.parameter): record for record in self.records}

    def _place(self, nbytes: int, neighbour: int,
               open_blocks: Dict[int, Tuple[int, int, int]]) -> "range":
        """As the library places tensors when they are created."""
        if nbytes >= self.block_bytes:
            first = self.blocks
            self.blocks += -(-nbytes // self.block_bytes)
            return range(first, self.blocks)
        at, used, count = open_blocks.get(neighbour, (0, self.block_bytes, 0))
        begin = -(-used // _ALIGNED) * _ALIGNED
        if begin + nbytes > self.block_bytes or count == _TOGETHER:
            at, begin, count = self.blocks, 0, 0
            self.blocks += 1
        open_blocks[neighbour] = at, begin + nbytes, count + 1
        return range(at, at + 1)

    def fits(self, spaces: Iterable[_Space]) -> bool:
        return self._count(spaces) <= self.budget // self.block_bytes

    @staticmethod
    def _count(spaces: Iterable[_Space]) -> int:
        return len({block for space in spaces for block in space.blocks})

    def divide(self, model: torch.nn.Module, budget: int, most: Optional[int]) -> List[Part]:
        """The units in a budget, tiles excluded; BudgetError as from offload()."""
        self.budget = budget
        self.unit_bytes = self.unit_most = budget // SHARE
        for record in self.records:
            record.tiles = None
        for _, record in _tiles.oversized(self, model, most):
            record.tiles = _tiles.ranges(self, record, most)
        found = list(parts(self, "", model, 0))
        for part in found:
            check_room(self, *part)
        return found

    def largest(self, model: torch.nn.Module) -> int:
        """Bytes of the largest unit that cannot be divided, without tiles."""
        self.unit_bytes = self.unit_most = 0
        for record in self.records:
            record.tiles = None
        return max(sum(record.tensor.nbytes for record in records)
                   for _, _, records in parts(self, "", model, 0))

    def pinned(self, model: torch.nn.Module, found: List[Part], update: int) -> int:
        """The maximum number of blocks that are in use at once: by units of a module and of those
        above it, or by a tile and its gradient. update: those of the update of a parameter, which
        may run while units above another one are held."""
        units = {id(module): records for _, module, records in found}

        def deepest(module: torch.nn.Module, above: Set[int], trained: bool) -> int:
            records = units.get(id(module), ())
            held = above | {block for record in records for block in record.tensor.blocks}
            trained = trained or any(record.parameter.requires_grad for record in records)
            own = len(held) + trained + (update if above and records else 0)
            return max([own] + [deepest(child, held, trained) for child in module.children()])

        return max([deepest(model, set(), False), update]
                   + [self._tile_blocks(record, *rows) * (1 + record.parameter.requires_grad)
                      for record in self.records for rows in record.tiles or ()])

    def _tile_blocks(self, record: Any, begin: int, end: int) -> int:
        row, block = record.size[1] * record.dtype.itemsize, self.block_bytes
        return -(-end * row // block) - begin * row // block


def estimate(model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, *,
             device_bytes: Optional[Size] = None, nvme: Places = None, block_bytes: int = 0,
             store_name: Optional[str] = None, generations_kept: int = 0,
             tile_bytes: Optional[Size] = None, profile: Profile = None) -> Estimate:
    """The budgets that offload() needs for a model, and what a step moves; nothing is offloaded.

        print(stepwell.torch.estimate(model, optimizer, nvme="/fast"))

    The model may be on the device "meta", so that nothing is allocated; its optimizer is made as
    usual. The arguments are those of offload(); device_bytes: the budget for which to compute what
    a step moves, by default the sensible one. With a directory in nvme the time on the drive is
    known if `stepwell tune` has measured its file system on this machine; profile: as of
    stepwell.Runtime.

    Optimizers without a kernel are taken to have three states as large as a parameter. A step moves
    at most these bytes: parameters are read for forward, backward and update, gradients and states
    are read and written. Accumulation adds to that for each further backward pass. A step takes the
    time of the drive or of the computation, whichever is longer, if enough is read ahead.
    """
    parameters = checked(model, devices=("cpu", "meta"))
    if optimizer is not None:
        _optimizer.check_parameters(optimizer, {id(parameter) for _, parameter in parameters})
    block = block_bytes or _abi.STW_BLOCK_2M
    most = None if tile_bytes is None else size_of(tile_bytes)
    plan = _Plan(parameters, block, store_name is not None)
    states = 0 if optimizer is None else _kinds.states_of(optimizer)
    trained = [record for record in plan.records if record.parameter.requires_grad]
    elements = sum(record.elements for record in trained)
    halves = sum(record.elements for record in trained if record.dtype.itemsize < 4)
    kernel = optimizer is None or _kinds.kind_of(optimizer) is not None
    update = 0 if optimizer is None else _update_blocks(plan, kernel, states)

    def enough(budget: int) -> bool:
        try:
            found = plan.divide(model, budget, most)
        except BudgetError:
            return False
        return plan.pinned(model, found, update) <= budget // block

    def stays(budget: int) -> bool:
        if not enough(budget):
            return False
        seen: Set[int] = set()
        owned = []
        for _, _, records in plan.divide(model, budget, most):  # a tied one is of its first unit
            owned.append([record for record in records if id(record) not in seen])
            seen.update(id(record) for record in records)
        used = plan.blocks * block
        return used + beside(owned, states, block) <= budget * 15 // 16

    every = (plan.blocks * (2 + states) + sum(1 + states for _ in plan.records) + 2) * block
    least = _smallest(enough, block, 2 * every, block)
    resident = _smallest(stays, least, 2 * every, block)
    sensible = min(max(least, -(-SHARE * plan.largest(model) // block) * block), resident)
    budget = sensible if device_bytes is None else size_of(device_bytes)
    units = 0
    if budget >= least:
        units = len(plan.divide(model, budget, most)) + sum(
            len(record.tiles) for record in plan.records if record.tiles)
    total = sum(record.tensor.nbytes for record in plan.records)
    gradients = sum(record.tensor.nbytes for record in trained) if optimizer is not None else 0
    state_bytes = 4 * (elements * states + (halves if kernel and optimizer is not None else 0))
    written = 2 * gradients + state_bytes if budget < resident else 0
    read = 2 * total + written if budget < resident else 0
    copies = 1 + (generations_kept or 2) if store_name else 1
    return Estimate(
        total, gradients, state_bytes, need(model, parameters, optimizer, block, copies),
        least, sensible, resident, budget, units, read, written,
        _drive_seconds(nvme, profile, read, written))


def _update_blocks(plan: _Plan, kernel: bool, states: int) -> int:
    """Blocks for the update of a parameter: kernels work on a block of each of its tensors, and own
    code on all of them."""
    found = 0
    for record in plan.records:
        if record.parameter.requires_grad:
            master = kernel and record.dtype.itemsize < 4
            found = max(found, (2 + states + master) * (1 if kernel else len(record.tensor.blocks)))
    return found


def _smallest(enough: Callable[[int], bool], low: int, high: int, block: int) -> int:
    """The smallest budget in whole blocks that is enough, between two of which the second is."""
    few, many = low // block, -(-high // block)
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle * block) else (middle + 1, many)
    return many * block


def _drive_seconds(nvme: Places, profile: Profile, read: int, written: int) -> Optional[float]:
    """By the machine's profile, which a runtime reads when it opens directories."""
    places = [replace(place, budget_bytes=_OPEN) for place in nvme_of(nvme, 0, _OPEN)]
    if not places:
        return None
    with Runtime(devices=[Device(_OPEN)], nvme=places, probe=False, profile=profile,
                 thread_count=1) as runtime:
        speeds = [runtime.link_stats(link).measured_bytes_per_s
                  for link in (Link.NVME_TO_DEVICE, Link.DEVICE_TO_NVME)]
    return read / speeds[0] + written / speeds[1] if all(speeds) else None
