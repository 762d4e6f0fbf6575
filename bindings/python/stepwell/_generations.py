# SPDX-License-Identifier: Apache-2.0
"""Generations: states of all durable tensors that persist after the process."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional, Tuple, Union

from . import _abi, _waiting
from ._library import lib
from ._tensor import nanoseconds
from .errors import check

Resume = Union[bool, int]


class GenerationInfo(NamedTuple):
    """Information about a generation."""

    generation: int
    label: str         # "": none
    metadata: bytes    # as passed to commit() on this rank
    tensors: int
    tensor_bytes: int  # of these tensors, on this rank
    ranks: int         # with a part of it
    time_unix_ns: int  # time at which this rank's part was written
    left_out: int      # tensors of the resumed generation that were not created again


def flags_of(resume: Resume, overwrite: bool) -> Tuple[int, int]:
    """The flags for open, and the requested generation; 0: the newest."""
    flags = _abi.STW_RUNTIME_OVERWRITE if overwrite else 0
    if resume is False:
        return flags, 0
    if resume is True:
        return flags | _abi.STW_RUNTIME_RESUME, 0
    if resume < 1:
        raise ValueError(f"no generation: {resume}; they are numbered from 1 on")
    return flags | _abi.STW_RUNTIME_RESUME, resume


class Generations:
    """The commit calls of Runtime. They need a store_name."""

    def _use(self) -> ctypes.c_void_p:
        raise NotImplementedError

    def commit(self, label: Optional[str] = None, metadata: Any = b"", *,
               complete: bool = False, timeout: Optional[float] = None) -> int:
        """Make a generation of the present contents of all durable tensors, and return its number.

        Blocks until it is on stable storage on all ranks of a group, which must all call it. label:
        text of at most LABEL_BYTES_MAX bytes; metadata: at most METADATA_BYTES_MAX bytes of the
        program; generation() returns both. BusyError while a view may write a durable
        tensor; other threads read them meanwhile. A tensor of the resumed generation that was not
        created again is not in the new one: a warning names it, or with complete=True the commit is
        refused (NotFoundError).

        It is not restarted after Ctrl-C, since other ranks may have voted already.
        """
        kept = memoryview(metadata).tobytes()
        options = _abi.stw_commit_options.initial(
            label=None if label is None else label.encode(),
            metadata=ctypes.cast(kept, ctypes.c_void_p).value if kept else None,
            metadata_bytes=len(kept), timeout_ns=nanoseconds(timeout),
            flags=_abi.STW_COMMIT_COMPLETE * complete,
        )
        made = ctypes.c_uint64()
        check(_waiting.call(self, lib.stw_commit, self._use(), options, made, again=False))
        return made.value

    def generation(self, number: int = 0) -> GenerationInfo:
        """Information about a generation; 0: the newest. Never blocks.

        NotFoundError lists the existing generations, at most generations_kept.
        """
        info = _abi.stw_generation_info.initial()
        check(lib.stw_generation_get(self._use(), number, info))
        buffer, count = ctypes.create_string_buffer(info.metadata_bytes), ctypes.c_uint64()
        check(lib.stw_generation_metadata(self._use(), info.generation, buffer,
                                          info.metadata_bytes, count))
        return GenerationInfo(info.generation, info.label.decode("utf-8", "replace"), buffer.raw,
                              info.tensors, info.bytes, info.ranks, info.time_unix_ns,
                              info.left_out)
