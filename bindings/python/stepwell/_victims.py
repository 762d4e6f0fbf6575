# SPDX-License-Identifier: Apache-2.0
"""Victim policies: functions of the program that score tensors for eviction."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence

from . import _abi
from ._enums import Retain, Role, Tier
from ._tensor import Tensor

if TYPE_CHECKING:
    from ._runtime import Runtime

_UNKNOWN = 2**64 - 1
_RANK = dict(_abi.stw_victim_policy._fields_)["rank"]


class Victim(NamedTuple):
    """A snapshot of a tensor that may be at a tier."""

    tensor: Optional[Tensor]  # None: the program holds no object for it
    bytes: int                  # resident there; 0: the score applies once it is fetched
    dirty_bytes: int            # of these, those in no farther tier
    last_use: Optional[int]     # in accesses before now; None: never used
    next_use: Optional[int]     # in accesses from now, by the learned order; None: not known
    role: Role
    retention: Retain
    priority: int
    pinned: bool                # by open views
    shared: bool                # its block has other tensors: their highest score applies


Rank = Callable[[Tier, int, List[Victim]], Sequence[float]]


def _known(count: int) -> Optional[int]:
    return None if count == _UNKNOWN else count


def _victim(runtime: "Runtime", at: Any) -> Victim:
    return Victim(runtime._tensors.get(at.tensor), at.bytes, at.dirty_bytes, _known(at.last_use),
                  _known(at.next_use), Role(at.role), Retain(at.retention), at.priority,
                  bool(at.flags & _abi.STW_VICTIM_PINNED), bool(at.flags & _abi.STW_VICTIM_SHARED))


def rank_function(runtime: "Runtime", rank: Rank) -> Any:
    """The policy as a callback for the library. ctypes prints its exceptions; a call that raises
    sets no scores."""

    def score(_user: Any, tier: int, device: int, victims: Any, n: int, scores_out: Any) -> None:
        scores = rank(Tier(tier), device, [_victim(runtime, victims[at]) for at in range(n)])
        if len(scores) != n:
            raise ValueError(f"the victim policy returned {len(scores)} scores for {n} victims")
        values = (ctypes.c_double * n)(*scores)
        ctypes.memmove(scores_out, values, ctypes.sizeof(values))

    return _RANK(score)
