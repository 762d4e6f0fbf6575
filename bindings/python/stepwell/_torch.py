# SPDX-License-Identifier: Apache-2.0
"""The collectives of torch.distributed as an engine of a group, over Gloo and in host memory.

It has a separate process group: Gloo matches the calls of ranks by their order, which collectives
of the program in another thread would change. Each work is a generator, which a poll resumes when
its current step is done. Sums are computed here, from the parts of an all-to-all: the work of
Gloo's own reduce-scatter does not complete before a wait, and its order of additions differs from
MPI's. There is no abort(): Gloo's has no effect, and its timeout ends works in flight.
"""
from __future__ import annotations

import ctypes
import datetime
import os
import threading
from typing import Any, Generator, Optional

import torch
import torch.distributed as distributed

from . import _abi
from ._dtypes import Dtype
from .errors import raised

DTYPES = {
    Dtype.F32: torch.float32, Dtype.F16: torch.float16, Dtype.BF16: torch.bfloat16,
    Dtype.F64: torch.float64,
}
# Its newer name, if it exists.
ALL_GATHER = (getattr(distributed, "all_gather_single", None)
              or distributed.all_gather_into_tensor)
TIMEOUT_SECONDS = 300.0
PATIENCE = 5.0  # added for Gloo, whose timeout restarts with each of its works

Work = Generator[Any, None, None]
_alone = threading.local()


def _be_alone() -> None:
    """Make the operations of torch on this thread start no threads: a team of OpenMP would spin
    beside the one of the program's thread, which computes meanwhile. For a thread of the library;
    torch.set_num_threads() would set it for the program's as well."""
    if getattr(_alone, "is_set", False):
        return
    _alone.is_set = True
    torch.get_num_threads()  # the first use of torch on a thread sets it
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        ctypes.CDLL(path).omp_set_num_threads(1)
    except (OSError, AttributeError):
        pass  # a torch without OpenMP


class Engine:
    def __init__(self, process_group: Any, timeout: Optional[float]) -> None:
        if not distributed.is_available() or not distributed.is_gloo_available():
            raise raised(_abi.STW_ERROR_UNSUPPORTED,
                         "this PyTorch is built without torch.distributed or Gloo")
        if not distributed.is_initialized():
            raise raised(_abi.STW_ERROR_INVALID,
                         "torch.distributed is not set up: call init_process_group() first")
        self.rank = distributed.get_rank(process_group)
        if self.rank < 0:
            raise raised(_abi.STW_ERROR_INVALID,
                         "this process is not in the process group; those that are make the group")
        ranks = distributed.get_process_group_ranks(process_group or distributed.group.WORLD)
        self.size = len(ranks)
        self.group = distributed.new_group(
            ranks=ranks, backend="gloo", use_local_synchronization=True,
            timeout=datetime.timedelta(seconds=timeout or TIMEOUT_SECONDS))

    def all_gather(self, shard: memoryview, whole: memoryview) -> Work:
        return self._begun(self._all_gather(torch.frombuffer(whole, dtype=torch.uint8),
                                            torch.frombuffer(shard, dtype=torch.uint8)))

    def reduce_scatter(self, whole: memoryview, shard: memoryview, dtype: Dtype) -> Work:
        return self._begun(self._sum_parts(self._tensor(whole, dtype), self._tensor(shard, dtype)))

    def all_reduce(self, data: memoryview, dtype: Dtype) -> Work:
        return self._begun(self._sum_all(self._tensor(data, dtype)))

    def _begun(self, work: Work) -> Work:
        _be_alone()
        next(work, None)
        return work

    def poll(self, work: Work) -> bool:
        """Resume it where it stopped; a failed work of torch raises there."""
        try:
            next(work)
        except StopIteration:
            return True
        return False

    # -- works ------------------------------------------------------------------------------------

    @staticmethod
    def _tensor(memory: memoryview, dtype: Dtype) -> torch.Tensor:
        return torch.frombuffer(memory, dtype=DTYPES[dtype])

    @staticmethod
    def _done(work: Any) -> Work:
        while not work.is_completed():
            yield
        work.wait()  # raises its error

    def _all_gather(self, whole: torch.Tensor, shard: torch.Tensor) -> Work:
        yield from self._done(ALL_GATHER(whole, shard, group=self.group, async_op=True))

    def _sum_parts(self, whole: torch.Tensor, part: torch.Tensor) -> Work:
        """This rank's part of the sum: in rank order, in f32 (f64 for f64), rounded once."""
        parts = torch.empty_like(whole)
        yield from self._done(distributed.all_to_all_single(
            parts, whole, group=self.group, async_op=True))
        rows = parts.view(self.size, -1)
        total = rows[0] if whole.dtype == torch.float64 else rows[0].float()
        for row in rows[1:]:
            total += row
        part.copy_(total)

    def _sum_all(self, data: torch.Tensor) -> Work:
        each = -(-data.numel() // self.size)
        padded = data.new_zeros(each * self.size)
        padded[:data.numel()] = data
        part = data.new_empty(each)
        yield from self._sum_parts(padded, part)
        yield from self._all_gather(padded, part)
        data.copy_(padded[:data.numel()])

    def close(self) -> None:
        if distributed.is_initialized():
            distributed.destroy_process_group(self.group)
