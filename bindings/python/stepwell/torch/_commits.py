# SPDX-License-Identifier: Apache-2.0
"""Generations of an offloaded model: the state outside the library's durable tensors.

Parameters and large states are durable tensors, and kernels keep their counts. A commit copies
buffers to durable tensors, and writes hyper-parameters and small states into the metadata, together
with the program's own metadata.
"""
from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple

import torch

from .._tensor import Tensor, TensorSpec
from ..errors import NotFoundError
from ._records import read, write

if TYPE_CHECKING:
    from ._offload import Offload


class Commits:
    """The commits of an Offload with a store. Created before the optimizer is converted."""

    def __init__(self, offload: "Offload") -> None:
        self._offload = offload
        self._buffers: Dict[str, Tensor] = {}
        self.generation = 0  # the number of the resumed one; 0: none
        self.kept = False    # a generation has the frozen parameters
        found: Dict[str, Any] = {}
        try:
            info = offload.runtime.generation()
            self.generation, found = info.generation, _unpacked(info.metadata)
            self.kept = True
        except NotFoundError:
            pass
        self.metadata = found.get("program")
        self.optimizer: Optional[Dict[str, Any]] = found.get("optimizer")
        for name, buffer in self._stated():
            tensor = self._tensor(name, buffer)
            if tensor.restored:
                with torch.no_grad():
                    buffer.copy_(read(tensor, (tensor.elements,), (1,), torch.uint8)
                                 .view(buffer.dtype).view(buffer.shape))

    def commit(self, metadata: Any, label: Optional[str]) -> int:
        offload = self._offload
        offload.mark()
        for name, buffer in self._stated():
            write(self._tensor(name, buffer), _bytes_of(buffer), (1,))
        steps = getattr(offload.optimizer, "_stepwell", None)
        self.kept = True
        kept = _packed({"program": metadata, "optimizer": steps and steps.kept()})
        return offload.runtime.commit(label, kept)

    def _stated(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """The buffers in state_dict()."""
        assert self._offload.model is not None
        for prefix, module in self._offload.model.named_modules():
            for key, buffer in module._buffers.items():
                if (buffer is not None and buffer.numel()
                        and key not in module._non_persistent_buffers_set):
                    yield f"{prefix}.{key}" if prefix else key, buffer

    def _tensor(self, name: str, buffer: torch.Tensor) -> Tensor:
        known = self._buffers.get(name)
        nbytes = buffer.numel() * buffer.element_size()
        if known is not None and known.elements == nbytes:
            return known
        if known is not None:
            known.destroy()
        made = self._offload.runtime.create_many([TensorSpec(
            shape=nbytes, dtype="u8", name=name, durable=True)])[0]
        self._buffers[name] = made
        return made


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _packed(kept: Dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(kept, file)
    made = zlib.compress(file.getvalue(), 1)
    try:
        _unpacked(made)
    except Exception as error:
        raise TypeError("a generation keeps what torch.load(weights_only=True) reads: tensors, "
                        "numbers, text, and lists and dicts of them; of the metadata, or of the "
                        f"optimizer's groups and states, it says: {error}") from error
    return made


def _unpacked(kept: bytes) -> Dict[str, Any]:
    return torch.load(  # type: ignore[no-any-return]
        io.BytesIO(zlib.decompress(kept)), weights_only=True)
