# SPDX-License-Identifier: Apache-2.0
"""offload(update_in_backward=True): a parameter is updated as soon as backward has its gradient.

autograd adds the gradient of a parameter in one piece when all nodes that lead to it have run, so
the update may begin then. It waits for the end of the hold of the parameter's unit, since later
nodes of the unit may read the bytes that it writes. Parameters that share blocks wait for the end
of the pass: while one is updated, a unit that needs another one in its block would wait. Operations
that need all gradients first are refused in this mode, as are uses of updated parameters and states
before step(), where plain torch has the old values. The first step updates nothing before step(),
so that a loop with such an operation is refused with its model unchanged.
"""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, List

import torch

from ._records import Record
from ._steps import Steps

if TYPE_CHECKING:
    from ._offload import Offload

_task = torch._C._current_graph_task_id
_run_backward = torch.autograd.graph._engine_run_backward.__code__


class InBackward:
    """The updates of one optimizer. Called on the thread that runs backward."""

    def __init__(self, offload: "Offload", steps: Steps) -> None:
        self._offload = offload
        self._steps = steps
        self._armed = False     # a step has ended without an operation that is refused
        # In this step: updated (True), or about to be updated.
        self._taken: Dict[Record, bool] = {}
        self._due: Dict[Record, None] = {}  # of these, those that are not updated yet
        self._groups: Dict[Record, int] = {}
        self._settings: List[Dict[str, Any]] = []  # of the groups, at the first gradient
        self._task = -1         # the backward pass of the last gradient
        self._outermost = False
        self._open = -1         # the outermost running pass

    # -- gradients, as they come --------------------------------------------------------------

    def coming(self, record: Record) -> None:
        """A gradient will be added."""
        if record in self._taken:
            raise RuntimeError(
                f"{record.label()} gets another gradient in this step, and "
                f"{self._what_was_done()}: with update_in_backward there is one backward pass for "
                "each optimizer.step(), and what reentrant checkpoints share with the rest of the "
                "model is not supported (use_reentrant=False is); offload without it to accumulate "
                "gradients")

    def arrived(self, record: Record) -> None:
        """A gradient was added; if it was the last of its unit, the hold of the unit has ended."""
        task = _task()
        if task != self._task:
            self._begin(task)
        # A nested pass, as in reentrant checkpoints, may be followed by others. Gradients of tiles,
        # and of other uses of their weight, arrive one by one. What the program sees of a parameter
        # through its memory has the old values until step(), and so has what a node has returned
        # of it, as a gradient of another one.
        if (not self._outermost or record not in self._groups or record.large
                or record.seen_outside() or record.is_passed_on()):
            return
        self._taken[record], self._due[record] = False, None
        if self._armed and not record.pins:
            self._update()

    def _begin(self, task: int) -> None:
        self._task = task
        self._outermost = _passes() == self._offload.place.calls_backward
        if not self._taken:
            self._groups = {record: at for at, record in self._steps.records()}
            self._settings = self._seen()
        if self._outermost and self._open != task:
            self._open = task
            torch.autograd.Variable._execution_engine.queue_callback(  # type: ignore[attr-defined]
                self._end_pass)

    def _end_pass(self) -> None:
        self._task = self._open = -1
        if self._armed:
            self._update(last=True)

    def _update(self, last: bool = False) -> None:
        ready = [(self._groups[record], record) for record in self._due
                 if not record.pins and (last or not record.shares_block)]
        if ready:
            self._offload.gradients.small.copy()
        for _, record in ready:
            del self._due[record]
            self._taken[record] = True
        for record in self._steps.update_early(ready) if ready else ():
            self._taken[record] = False

    # -- the rest of the step -----------------------------------------------------------------

    def _seen(self) -> List[Dict[str, Any]]:
        return [{**settings, "params": [id(each) for each in group["params"]]} for settings, group
                in zip(self._steps.settings(), self._steps.optimizer.param_groups)]

    def check_settings(self) -> None:
        """step() begins: check that its hyper-parameters are those of the updates made so far."""
        if not self._taken:
            return
        now = self._seen()
        changed = [key for before, after in zip(self._settings, now)
                   for key in after if str(before.get(key)) != str(after[key])]
        if changed or len(now) != len(self._settings):
            raise RuntimeError(
                f"{changed or 'groups'} of the optimizer changed between backward() and step(), "
                f"and {self._what_was_done()}: with update_in_backward, change hyper-parameters "
                "before backward() or after step(), or offload without it")

    def has_taken(self, record: Record) -> bool:
        """Whether this step has updated it already."""
        return record in self._taken

    def end_step(self) -> None:
        self._armed = True
        self._forget()

    def has_changed(self, record: Record) -> bool:
        """Whether it has the values that plain torch gives it in step()."""
        return self._taken.get(record, False)

    def check_values(self, record: Record) -> None:
        """The program, or a call of the model, uses its bytes or those of its states."""
        if self.has_changed(record) and self._offload.window is None:
            raise RuntimeError(
                f"{record.label()} or a state of it is used between backward() and step(), and "
                f"{self._what_was_done()}: with update_in_backward there is one backward pass for "
                "each optimizer.step(), and plain torch has the old values between them; use it "
                "before backward() or after step(), or offload without it")

    def check_ended(self, what: str) -> None:
        """The state of all of the model is taken."""
        if any(self._taken.values()):
            raise RuntimeError(
                f"{what} between backward() and step(), and {self._what_was_done()}: call step() "
                "before")

    def check_use(self, record: Record) -> None:
        """The bytes of a gradient are accessed."""
        if record in self._taken:
            raise RuntimeError(
                f"the gradient of {record.label()} is used between backward() and step(), and "
                f"{self._what_was_done()}: with update_in_backward there is nothing to clip, scale "
                "or read there (no clip_grad_norm_, no GradScaler); leave that away, or offload "
                "without it")

    def dropped(self, record: Record) -> None:
        """A gradient is dropped or replaced, as a program does to continue after a failed pass."""
        if record not in self._taken:
            return
        if self._open >= 0 and not any(self._taken.values()):
            self._forget()
            return
        raise RuntimeError(
            f"the gradient of {record.label()} is dropped between backward() and step(), and "
            f"{self._what_was_done()}: with update_in_backward a backward pass, also a failed one, "
            "cannot be taken back; call step() before zero_grad(), which updates by the gradients "
            "that there are, or offload without it")

    def _forget(self) -> None:
        self._taken.clear()
        self._due.clear()
        self._task = self._open = -1

    def _what_was_done(self) -> str:
        if not self._armed:
            return "was to be used for its update in backward (nothing is updated yet)"
        return f"{sum(self._taken.values())} parameters were updated in backward already"


def _passes() -> int:
    """The number of nested backward passes of this thread."""
    return _passes_from(sys._getframe(1))


def runs_backward(thread: int) -> bool:
    """Whether this thread is in a call of backward()."""
    return _passes_from(sys._current_frames().get(thread)) > 0


def _passes_from(frame: Any) -> int:
    found = 0
    while frame is not None:
        found += frame.f_code is _run_backward
        frame = frame.f_back
    return found
