# SPDX-License-Identifier: Apache-2.0
"""Bytes and waits of training, for a progress line."""
from __future__ import annotations

from typing import Any, NamedTuple

from .._enums import Link
from .._phase import StepStats
from .._runtime import Runtime

_READ = (Link.NVME_TO_DEVICE, Link.NVME_TO_HOST)
_WRITTEN = (Link.DEVICE_TO_NVME, Link.HOST_TO_NVME)


class Progress(NamedTuple):
    """Progress of the steps since the last Offload.progress(). Its string is for a progress bar."""

    steps: int
    read_bytes: int     # from nvme per step, including evaluation
    written_bytes: int  # to nvme, likewise
    wait_share: float   # share of the steps' time in which the program waited for the tiers

    def __str__(self) -> str:
        return (f"{_size(self.read_bytes)} read, {_size(self.written_bytes)} written, "
                f"{self.wait_share:.0%} waiting")


class Meter:
    """Sums over the steps of one Offload since the last call."""

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
