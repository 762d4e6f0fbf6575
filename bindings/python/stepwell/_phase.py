# SPDX-License-Identifier: Apache-2.0
"""Phases and their steps, with the statistics of each step."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Union

from . import _abi
from ._enums import Access, PlanAdviceKind, number
from ._library import lib
from ._tensor import Request, Tensor, nanoseconds
from .errors import check, raised

if TYPE_CHECKING:
    from ._runtime import Runtime


class StepStats(NamedTuple):
    """Statistics of one step; times in nanoseconds."""

    planned: int
    step: int
    wall_ns: int
    bound_ns: int
    stall_ns: int
    stall_nvme_ns: int
    stall_host_device_ns: int
    stall_collective_ns: int
    stall_room_ns: int
    stall_update_ns: int
    nvme_read_bytes: int
    nvme_write_bytes: int
    host_to_device_bytes: int
    device_to_host_bytes: int
    collective_bytes: int
    least_ns: int


class PlanAdvice(NamedTuple):
    """Bytes moved by a step in its present order and in another. text: the advice."""

    kind: PlanAdviceKind
    micro_batches: int
    parameters: int
    now_nvme_read_bytes: int
    now_nvme_write_bytes: int
    now_host_to_device_bytes: int
    now_device_to_host_bytes: int
    now_step_ns: int
    then_nvme_read_bytes: int
    then_nvme_write_bytes: int
    then_host_to_device_bytes: int
    then_device_to_host_bytes: int
    then_step_ns: int
    text: str


class PlannedFetch(NamedTuple):
    """A fetch of a step that is known in advance, for Phase.declare().

    items: a tensor, a Request, or several that are fetched together. release: flags of the release
    (Release). compute: seconds for which the views are held; 0: measured.
    """

    items: Union[Tensor, Request, Sequence[Union[Tensor, Request]]]
    access: Union[Access, str] = Access.READ
    release: int = 0
    compute: float = 0.0

    def _entries(self, number_of_fetch: int) -> "list[_abi.stw_plan_entry]":
        single = isinstance(self.items, (Tensor, Request))
        items = [self.items] if single else list(self.items)  # type: ignore[list-item, arg-type]
        kind = number(Access, self.access)
        entries = []
        for item in items:
            asked = _abi.stw_fetch_request.from_buffer_copy(item._requests[kind])
            entries.append(_abi.stw_plan_entry.initial(
                fetch=number_of_fetch, tensor=asked.tensor, access=asked.access,
                scope=asked.scope, tier=asked.tier, device=asked.device,
                release_flags=int(self.release), element_begin=asked.element_begin,
                element_count=asked.element_count, compute_ns=nanoseconds(self.compute) or 0))
        return entries


class Phase:
    """A repeating unit: "train", "eval", "decode". From Runtime.phase()."""

    def __init__(self, runtime: "Runtime", name: str) -> None:
        self._runtime = runtime
        self.name = name
        self._open: Optional[Step] = None
        self._handle: Optional[int] = None
        handle = ctypes.c_void_p()
        check(lib.stw_phase_create(runtime._use(), name.encode(), handle))
        self._handle = handle.value

    def _use(self) -> int:
        self._runtime._use()
        if self._handle is None:
            raise raised(_abi.STW_ERROR_CLOSED, f"phase '{self.name}' was destroyed")
        return self._handle

    def step(self) -> "Step":
        """One run of the phase: `with phase.step() as step:` begins it."""
        return Step(self)

    def declare(self, fetches: "Sequence[Union[PlannedFetch, Tensor, Request]]") -> None:
        """Declare its steps, fetch by fetch, so that the first one is planned too.

        It replaces an earlier declaration; an empty list removes it. BusyError while a step is
        open. A tensor or Request alone stands for a fetch of it.
        """
        entries = []
        for at, fetch in enumerate(fetches):
            planned = fetch if isinstance(fetch, PlannedFetch) else PlannedFetch(fetch)
            entries += planned._entries(at)
        check(lib.stw_phase_declare(self._use(), (_abi.stw_plan_entry * len(entries))(*entries),
                                    len(entries)))

    def advice(self) -> List[PlanAdvice]:
        """Advice on other orders of its steps, best first; often there is none.

        It replays the last step, which takes up to some seconds for the largest steps, with the GIL
        released. Raises EmptyError before the first step has ended.
        """
        found = (_abi.stw_plan_advice * 3)(*(_abi.stw_plan_advice.initial() for _ in range(3)))
        count = ctypes.c_uint32()
        check(lib.stw_phase_advice_get(self._use(), found, len(found), count))
        names = PlanAdvice._fields[1:-1]
        return [PlanAdvice(PlanAdviceKind(advice.kind), *(getattr(advice, name) for name in names),
                           advice.text.decode()) for advice in found[:count.value]]

    def destroy(self) -> None:
        """BusyError while a step is open."""
        check(lib.stw_phase_destroy(self._use()))
        self._handle = None


class Step:
    """One run of a phase. An exception in the block aborts it: every view fetched in it is released
    as abandoned, its gradients are dropped, and nothing is learned.

    While arrays made from views of the step exist, an abort waits for the last of them.
    """

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.stats: Optional[StepStats] = None  # after the end
        self.aborted = False
        self._since = 0

    def __enter__(self) -> "Step":
        self.begin()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self.phase._open is not self:
            return  # ended or aborted inside
        if kind is None:
            self.end()
            return
        try:
            self.abort()
        except Exception:  # the exception being raised is the cause
            pass

    def begin(self) -> None:
        """BusyError if the phase has an open step."""
        phase, runtime = self.phase, self.phase._runtime
        runtime._finish_aborts()
        if phase._open is not None and phase._open.aborted:
            raise raised(_abi.STW_ERROR_BUSY,
                         f"the aborted step of phase '{phase.name}' still has arrays made from "
                         "its views; delete them first")
        handle, status = phase._use(), None
        try:
            status = lib.stw_step_begin(handle)
            check(status)
            phase._open = self
            self._since = next(runtime._export_numbers)
            runtime._begun(self)
        except BaseException:  # also from a signal handler, at any point
            others = phase._open not in (None, self)
            if not others and (status is None or status >= 0):
                lib.stw_step_abort(handle, None)
                self._close()
            raise

    def _close(self) -> None:
        self.phase._open = None
        self.phase._runtime._over(self)

    def end(self) -> StepStats:
        """End it and return its statistics. Does not wait for updates. Raises the first background
        error."""
        stats = _abi.stw_step_stats.initial()
        status = lib.stw_step_end(self.phase._use(), stats)
        if status != _abi.STW_ERROR_INVALID:
            self._close()
            self.stats = StepStats(*(getattr(stats, name) for name in StepStats._fields))
        check(status)
        assert self.stats is not None
        return self.stats

    def abort(self) -> None:
        """Abort it. Its views end; deferred while arrays made from them exist."""
        self.aborted = True
        runtime = self.phase._runtime
        runtime._over(self)
        if not runtime._exports_since(self._since):
            self._abort_now()
        else:
            runtime._aborting.append(self)

    def _abort_now(self) -> None:
        handle = self.phase._use()
        self.phase._open = None
        check(lib.stw_step_abort(handle, None))
