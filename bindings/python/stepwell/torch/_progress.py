# SPDX-License-Identifier: Apache-2.0
"""What training moves and waits, for a progress line and for the Trainer of transformers."""
from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Optional, Union

import torch

from .._enums import Link
from .._phase import StepStats
from .._runtime import Runtime

_READ = (Link.NVME_TO_DEVICE, Link.NVME_TO_HOST)
_WRITTEN = (Link.DEVICE_TO_NVME, Link.HOST_TO_NVME)


class Progress(NamedTuple):
    """Of the steps since the last Offload.progress(). As text it is for a progress bar."""

    steps: int
    read_bytes: int     # from nvme for each step, with what evaluation read
    written_bytes: int  # to nvme, likewise
    wait_share: float   # of the time of the steps: what the program waited for the tiers

    def __str__(self) -> str:
        return (f"{_size(self.read_bytes)} read, {_size(self.written_bytes)} written, "
                f"{self.wait_share:.0%} waiting")


class Meter:
    """Sums of one Offload since it was asked last."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._read = self._written = 0
        self._begin()

    def _begin(self) -> None:
        self._steps = self._wall_ns = self._stall_ns = 0

    def add(self, stats: StepStats) -> None:
        self._steps += 1
        self._wall_ns += stats.wall_ns
        self._stall_ns += stats.stall_ns

    def progress(self) -> Progress:
        read, written = self._total(_READ), self._total(_WRITTEN)
        steps = max(1, self._steps)
        found = Progress(self._steps, (read - self._read) // steps,
                         (written - self._written) // steps,
                         self._stall_ns / max(1, self._wall_ns))
        self._read, self._written = read, written
        self._begin()
        return found

    def _total(self, links: Any) -> int:
        return sum(self._runtime.link_stats(link).bytes for link in links)


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def report_callback(path: "Union[None, str, os.PathLike[str]]" = None, *,
                    model: Optional[torch.nn.Module] = None) -> Any:
    """A TrainerCallback for the Trainer of transformers, which has to be installed.

    What is logged gets stepwell/read_bytes, stepwell/written_bytes and stepwell/wait_share, as
    Offload.progress() has them. path: the report is written there with each checkpoint and at the
    end. model: the offloaded one, where it is inside that of the Trainer.
    """
    import transformers
    from ._offload import offloaded

    class ReportCallback(transformers.TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None,
                   **given: Any) -> None:
            found = offloaded(model or given["model"]).progress()
            if logs is None or not found.steps:
                return
            own: Dict[str, float] = {
                "stepwell/read_bytes": found.read_bytes,
                "stepwell/written_bytes": found.written_bytes,
                "stepwell/wait_share": found.wait_share}
            logs.update(own)
            if state.log_history:  # it has a copy of the logs
                state.log_history[-1].update(own)

        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if path is not None:
                offloaded(model or given["model"]).write_report(path)

        on_train_end = on_save

    return ReportCallback()
