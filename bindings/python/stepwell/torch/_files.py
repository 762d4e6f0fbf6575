# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors, read into and written from tensors in tiers without a copy of the model.

This module implements the format itself, since the package of the format maps whole files into
memory and needs all tensors of a file at once to write it. A tensor is moved in slices, through the
buffers of _streams.py; a tensor that is not in row-major order is moved as a whole.
"""
from __future__ import annotations

import json
import math
import os
import re
from collections import deque
from contextlib import ExitStack
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Tuple, Union

import torch

from .. import _abi, _waiting
from .._library import lib
from ..errors import check
from ._commits import extra_states
from ._lazy import READ, Lazy
from ._place import HOST
from ._records import Offloaded, Record, read, write
from ._sizes import Size, size_of
from ._streams import PART_BYTES, Place, Reader, Writer

Path = Union[str, "os.PathLike[str]"]
_AHEAD = 8  # slices of tensors in tiers that are prefetched by a save
_HEADER_MAX = 100 << 20
_ALIGN = 8
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")


class _Entry(NamedTuple):
    """A tensor in a file."""

    descriptor: int
    path: str
    dtype: torch.dtype
    shape: Tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def place(self) -> Place:
        return Place(self.path, self.descriptor, self.begin, self.size)


def _stated(model: torch.nn.Module, saved: bool) -> Dict[str, torch.Tensor]:
    """The entries of state_dict(), as the parameters and buffers themselves."""
    found = model.state_dict(keep_vars=True)
    for name, value in found.items():
        if not isinstance(value, torch.Tensor) and not saved:
            # An extra state that a file may not have.
            found[name] = value = torch.empty(0, device="cpu")
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"'{name}' of the model's state is a {type(value).__name__}: a file "
                             "of safetensors has tensors alone, which a get_extra_state() may "
                             "return; state_dict() and generations have others, too")
        if value.device.type == "meta":
            raise ValueError(f"'{name}' is on meta and has no memory: make the model in "
                             "stepwell.torch.init()")
        if isinstance(value, Offloaded):
            value._stepwell.offload.mark()
    return found


def _in_order(record: Record) -> bool:
    return record.stride == torch.empty(record.size, device="meta").stride()


def _copy(call: Any, record: Record, memory: torch.Tensor, begin: int) -> None:
    options = _abi.stw_copy_options.initial(element_begin=begin, element_count=memory.numel())
    check(_waiting.call(record.tensor._runtime, call, record.tensor._use(), memory.data_ptr(),
                        options))


# -- loading --------------------------------------------------------------------------------------

def load_safetensors(model: torch.nn.Module, path: Path, *, strict: bool = True) -> Any:
    """Load a model's parameters and buffers from a file, or from a folder written by
    save_safetensors() or transformers; returns (missing_keys, unexpected_keys) like
    load_state_dict().

    Names are those of state_dict(); for a parameter with several names one is enough. Values of
    another dtype are converted to the model's, like copy_(). strict: missing or unexpected names
    raise a RuntimeError, as another shape always does; nothing has been loaded then. It uses 10 MiB
    of plain memory at a time. The model may be plain, made by init(), or offloaded. Extra states
    are set after all parameters.
    """
    state = _stated(model, False)
    extra = dict(extra_states(model))
    own = {id(value) for value in [*model.parameters(), *model.buffers()]}
    with ExitStack() as stack:
        entries = _entries(os.fspath(path), stack)
        groups: Dict[int, List[str]] = {}
        for name, value in state.items():
            groups.setdefault(id(value), []).append(name)
        missing = [name for name, value in state.items()
                   if not any(each in entries for each in groups[id(value)])]
        unexpected = [name for name in entries if name not in state]
        wrong = [f"size mismatch for {name}: copying a param with shape "
                 f"{torch.Size(entries[name].shape)} from checkpoint, the shape in current model "
                 f"is {value.shape}."
                 for name, value in state.items()
                 if name in entries and tuple(value.shape) != entries[name].shape
                 and name not in extra]
        made = [name for name, value in state.items()
                if name in entries and name not in extra and id(value) not in own]
        if made:
            raise ValueError(f"'{made[0]}' of the model's state is made for state_dict() and is no "
                             "parameter or buffer into which a file is read: use "
                             "load_state_dict(safetensors.torch.load_file(...))")
        if strict and unexpected:
            wrong.insert(0, "Unexpected key(s) in state_dict: "
                         + ", ".join(f'"{name}"' for name in unexpected) + ". ")
        if strict and missing:
            wrong.insert(0, "Missing key(s) in state_dict: "
                         + ", ".join(f'"{name}"' for name in missing) + ". ")
        if wrong:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(model).__name__}:\n\t"
                               + "\n\t".join(wrong))
        # The last of several names of a parameter applies, as in load_state_dict(); in the order of
        # the files.
        chosen = {id(value): (entries[name], value, name) for name, value in state.items()
                  if name in entries}
        due = sorted(chosen.values(), key=lambda each: (each[0].path, each[0].begin))
        found = {}
        with Reader([entry.place() for entry, _, _ in due]) as reader:
            slices = iter(reader)
            for entry, value, name in due:
                if name in extra:
                    found[name] = _whole(entry, slices)
                else:
                    _load(value, entry, slices)
        for name, data in found.items():
            extra[name].set_extra_state(data)
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


def _load(value: torch.Tensor, entry: _Entry, slices: Iterator[memoryview]) -> None:
    record = value._stepwell if isinstance(value, Offloaded) else None
    if record is not None:
        record.thaw(by_view=False)
    if record is not None and _in_order(record):
        for begin, part in _parts(entry, slices):
            _copy(lib.stw_tensor_write, record, part.to(record.dtype), begin)
        record.changes += 1
        return
    data = _whole(entry, slices)
    if record is None:
        with torch.no_grad():
            value.copy_(data)
    else:
        write(record.tensor, data.to(record.dtype), record.stride)
        record.changes += 1


def _whole(entry: _Entry, slices: Iterator[memoryview]) -> torch.Tensor:
    data = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
    for begin, part in _parts(entry, slices):
        data.view(-1)[begin:begin + len(part)] = part
    return data


def _parts(entry: _Entry, slices: Iterator[memoryview]) -> Iterator[Tuple[int, torch.Tensor]]:
    """(first element, elements) of each slice of a tensor to read."""
    at = 0
    while at < entry.size:
        memory = next(slices)
        yield at // entry.dtype.itemsize, torch.frombuffer(memory, dtype=entry.dtype)
        at += len(memory)


def _entries(path: str, stack: ExitStack) -> Dict[str, _Entry]:
    """All tensors of a file or folder; the stack closes the files."""
    if not os.path.isdir(path):
        return _opened(path, stack)
    if os.path.exists(os.path.join(path, _ONE)):
        return _opened(os.path.join(path, _ONE), stack)
    index = os.path.join(path, _INDEX)
    if not os.path.exists(index):
        raise FileNotFoundError(f"{path} has neither {_ONE} nor {_INDEX}")
    with open(index, encoding="utf-8") as file:
        places = json.load(file)["weight_map"]
    files = {name: _opened(os.path.join(path, name), stack) for name in set(places.values())}
    found = {}
    for name, place in places.items():
        if name not in files[place]:
            raise ValueError(f"{os.path.join(path, place)} has no tensor '{name}', though {_INDEX} "
                             "says so")
        found[name] = files[place][name]
    return found


def _opened(path: str, stack: ExitStack) -> Dict[str, _Entry]:
    file = stack.enter_context(open(path, "rb"))
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(_HEADER_MAX, size - 8):
        raise ValueError(f"{path} is no file of safetensors: it has {size} bytes, and a header of "
                         f"{length}")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = {name: _entry(file.fileno(), path, 8 + length, size, **each)
                 for name, each in header.items()}
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError,
            json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no file of safetensors: its header is damaged "
                         f"({type(error).__name__}: {error})") from error
    return found


def _entry(descriptor: int, path: str, at: int, size: int, dtype: str, shape: List[int],
           data_offsets: Tuple[int, int]) -> _Entry:
    if dtype not in _DTYPES:
        raise ValueError(f"{path} has a tensor of {dtype}; known are {', '.join(_DTYPES)}")
    begin, end = data_offsets
    entry = _Entry(descriptor, path, _DTYPES[dtype], tuple(shape), at + begin)
    if not 0 <= begin <= end or at + end > size or end - begin != entry.size:
        raise ValueError(f"{path} has a tensor of {entry.size} bytes at [{begin}, {end}), and "
                         f"{size - at} bytes of tensors")
    return entry


# -- saving ---------------------------------------------------------------------------------------

def save_safetensors(model: torch.nn.Module, path: Path, *,
                     max_shard_bytes: Size = "50GiB", masters: bool = False) -> None:
    """Save a model's parameters and buffers for load_safetensors(), safetensors and transformers
    (which needs model.config.save_pretrained(path), too).

    path: a folder, created if necessary, for model.safetensors, or for several files of at most
    max_shard_bytes and model.safetensors.index.json; or the name of one file, ending in
    ".safetensors". Names are those of state_dict(), the first one if a parameter has several.
    dtypes are the model's; masters: parameters of 16 bits that a kernel updates have their fp32
    masters instead, from which a run goes on without rounding. Files are written under other names,
    flushed, and renamed when all are complete: until then a reader finds the old model, or nothing.
    A folder whose shards are replaced has both for a moment. It uses 10 MiB of plain memory at a
    time.
    """
    path, state = os.fspath(path), _stated(model, True)
    first: Dict[int, str] = {}
    for name, value in state.items():
        first.setdefault(id(value), name)
    tied = {name: first[id(value)] for name, value in state.items() if first[id(value)] != name}
    state = {name: _master(value) if masters else value
             for name, value in state.items() if name not in tied}
    for name, value in state.items():
        if value.dtype not in _NAMES:
            raise ValueError(f"'{name}' is {value.dtype}, which a file of safetensors has not")
    if path.endswith(".safetensors"):
        folder, shards = os.path.dirname(path) or ".", {os.path.basename(path): list(state)}
    else:
        os.makedirs(path, exist_ok=True)
        folder, shards = path, _shards(state, size_of(max_shard_bytes))
    files: Dict[str, str] = {}
    try:
        for shard, names in shards.items():
            _write(_temporary(folder, shard, files), {name: state[name] for name in names}, tied)
        if len(shards) > 1:
            total = sum(value.numel() * value.element_size() for value in state.values())
            places = {name: shard for shard, names in shards.items() for name in names}
            text = json.dumps({"metadata": {"total_size": total},
                               "weight_map": dict(sorted(places.items()))}, indent=2).encode()
            with Writer(_temporary(folder, _INDEX, files), len(text)) as file:
                file.put(text)
        for shard, temporary in files.items():
            os.replace(temporary, os.path.join(folder, shard))
    finally:
        for temporary in files.values():
            if os.path.exists(temporary):
                os.unlink(temporary)
    if folder == path:
        _remove_others(folder, set(files))
    _flush(folder)


def _master(value: torch.Tensor) -> torch.Tensor:
    """The fp32 master of a parameter, or what is saved where it has none."""
    record = value._stepwell if isinstance(value, Offloaded) else None
    steps = getattr(record.offload.optimizer, "_stepwell", None) if record is not None else None
    if not hasattr(steps, "master_of"):
        return value
    steps.prepare()
    found = steps.master_of(record)
    return value if found is None else found.lazy()


def _temporary(folder: str, name: str, files: Dict[str, str]) -> str:
    files[name] = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    return files[name]


def _shards(state: Dict[str, torch.Tensor], most: int) -> Dict[str, List[str]]:
    shards: List[List[str]] = [[]]
    size = 0
    for name, value in state.items():
        nbytes = value.numel() * value.element_size()
        if shards[-1] and size + nbytes > most:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += nbytes
    if len(shards) == 1:
        return {_ONE: shards[0]}
    return {f"model-{at:05}-of-{len(shards):05}.safetensors": names
            for at, names in enumerate(shards, 1)}


def _write(path: str, state: Dict[str, torch.Tensor], tied: Dict[str, str]) -> None:
    order = sorted(state, key=lambda name: (-state[name].element_size(), name))
    header: Dict[str, Any] = {"__metadata__": {
        "format": "pt", **{name: kept for name, kept in tied.items() if kept in state}}}
    at = 0
    for name in order:
        value = state[name]
        end = at + value.numel() * value.element_size()
        header[name] = {"dtype": _NAMES[value.dtype], "shape": list(value.shape),
                        "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    with Writer(path, 8 + len(text) + at) as file:
        file.put(len(text).to_bytes(8, "little") + text)
        ahead = _Ahead([state[name] for name in order])
        for name in order:
            _save(file, state[name], ahead)


class _Ahead:
    """Prefetches the next slices, in the order of saving."""

    def __init__(self, values: List[torch.Tensor]) -> None:
        self._left = ((record, begin) for record in map(_streamed, values) if record is not None
                      for begin in range(0, record.alias.numel(), self._step(record)))
        self._asked: Deque[Tuple[Record, int]] = deque()

    @staticmethod
    def _step(record: Record) -> int:
        return PART_BYTES // record.dtype.itemsize

    def __call__(self, record: Record, begin: int) -> None:
        """The elements from `begin` on are about to be saved."""
        while self._asked and (self._asked[0][0] is not record
                               or self._asked[0][1] + self._step(record) <= begin):
            self._asked.popleft()
        while len(self._asked) < _AHEAD:
            found = next(self._left, None)
            if found is None:
                return
            self._asked.append(found)
            later, at = found
            count = min(self._step(later), later.alias.numel() - at)
            later.offload.runtime.prefetch([later.tensor.request(READ, at, count)])


def _streamed(value: torch.Tensor) -> Any:
    """The record of a tensor in tiers that is moved in slices; None for others."""
    record = value._stepwell if isinstance(value, Offloaded) else None
    return record if record is not None and _in_order(record) else None


def _save(file: Writer, value: torch.Tensor, ahead: _Ahead) -> None:
    record, begin = _streamed(value), 0
    master = (value._source if isinstance(value, Lazy) and value.is_contiguous()
              and value._source.offload.ranks is None else None)
    if record is None and master is None:
        whole = (read(HOST, value._stepwell.tensor, value.size(), value._stepwell.stride,
                      value.dtype)
                 if isinstance(value, Offloaded) else value.detach().clone()
                 if isinstance(value, Lazy) else value.detach()).reshape(-1)
    for memory in file.room(value.numel() * value.element_size()):
        part = torch.frombuffer(memory, dtype=value.dtype)
        if record is not None:
            ahead(record, begin)
            _copy(lib.stw_tensor_read, record, part, begin)
        elif master is not None:
            master.read(part, begin)
        else:
            part.copy_(whole[begin:begin + len(part)])
        begin += len(part)


def _remove_others(folder: str, kept: Any) -> None:
    """Remove files of a model that was saved here with another division into shards."""
    for name in os.listdir(folder):
        if name not in kept and (name in (_ONE, _INDEX) or _SHARD.fullmatch(name)):
            os.unlink(os.path.join(folder, name))


def _flush(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
