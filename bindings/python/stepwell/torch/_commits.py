# SPDX-License-Identifier: Apache-2.0
"""Generations of an offloaded model: the state outside the library's durable tensors.

Parameters and large states are durable tensors, and kernels keep their counts. A commit copies
buffers, and extra states that are tensors, to durable tensors, and writes hyper-parameters, small
and extra states and all names into the metadata, together with the program's own metadata.
"""
from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

import torch

from .._tensor import Tensor, TensorSpec
from ..errors import NotFoundError
from ._naming import matched
from ._place import HOST
from ._records import memory_order, read, write

if TYPE_CHECKING:
    from ._offload import Offload

_SMALL = 4096  # bytes; tensors up to this size are kept in the metadata
_SHAPE = "shape of the tensor"
_EXTRA = torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX


class Commits:
    """The commits of an Offload with a store. Created before the parameters are moved."""

    def __init__(self, offload: "Offload",
                 parameters: List[Tuple[str, torch.nn.Parameter]], strict: bool) -> None:
        self._offload = offload
        self._strict = strict
        self._kept: Dict[str, Tensor] = {}
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
        self._extra: Dict[str, Any] = found.get("extra", {})
        self._own = [name for name, _ in parameters]
        names = self._own + [name for name, _ in self._buffers()] + [
            name for name, _ in extra_states(self._model())]
        self._names = matched(names, found["names"], strict) if "names" in found else {}
        self.parameters = [(self._name(name), parameter) for name, parameter in parameters]
        # The metadata has the shape and strides of each parameter, and the shape and dtype of each
        # buffer.
        orders: Dict[str, Any] = found.get("orders", {})
        self._shapes: Dict[str, Any] = found.get("buffers", {})
        for name, parameter in self.parameters:
            now = tuple(parameter.size()), memory_order(parameter)
            then = orders.get(name, now)
            if then != now:
                raise ValueError(
                    f"parameter '{name}' of {now[0]} with strides {now[1]} is {then[0]} with "
                    f"strides {then[1]} in generation {self.generation}: make the model, and its "
                    "memory format, as it was made")

    def restore(self) -> None:
        """Set the buffers and extra states of the resumed generation."""
        for name, buffer in self._buffers():
            shape, dtype = self._shapes.get(self._name(name), (buffer.shape, buffer.dtype))
            if tuple(shape) != tuple(buffer.shape):
                raise ValueError(f"buffer '{name}' of {tuple(buffer.shape)} is {tuple(shape)} in "
                                 f"generation {self.generation}: make the model as it was made")
            tensor = self._tensor(name, buffer.numel() * dtype.itemsize)
            if tensor.restored:
                with torch.no_grad():
                    buffer.copy_(_tensor_of(tensor, dtype, buffer.shape))
        for name, module in extra_states(self._model()):
            if self._name(name) in self._extra:
                module.set_extra_state(self.restored(name, self._extra[self._name(name)]))

    def commit(self, metadata: Any, label: Optional[str]) -> int:
        offload = self._offload
        if offload.in_backward is not None:
            offload.in_backward.check_ended("commit() is called")
        offload.mark()
        steps = getattr(offload.optimizer, "_stepwell", None)
        if self._strict and self.optimizer is not None and steps is None:
            raise ValueError(
                f"generation {self.generation}, which was resumed, has the states of "
                f"{self.optimizer['class']}, and the next one would not: give offload() the "
                "optimizer, or strict=False to leave them out")
        names = list(self._own)
        for name, buffer in self._buffers():
            names.append(name)
            write(self._tensor(name, buffer.numel() * buffer.element_size()), _bytes_of(buffer),
                  (1,))
        extra = {}
        for name, module in extra_states(self._model()):
            names.append(name)
            extra[self._name(name)] = self.described(name, module.get_extra_state())
        self.kept = True
        kept = _packed({"program": metadata, "optimizer": steps and steps.kept(), "extra": extra,
                        "names": [self._name(name) for name in names],
                        "orders": {name: (tuple(each.size()), memory_order(each))
                                   for name, each in self.parameters},
                        "buffers": {self._name(name): (tuple(each.shape), each.dtype)
                                    for name, each in self._buffers()}})
        try:
            return offload.runtime.commit(label, kept, complete=self._strict)
        except NotFoundError as error:
            error.sentence = (
                f"'{error.tensor}' of generation {self.generation}, which was resumed, was not "
                "made again, so the next generation would be without it: give offload() the same "
                "model and optimizer, or strict=False to leave it out")
            raise

    def _model(self) -> torch.nn.Module:
        assert self._offload.model is not None
        return self._offload.model

    def _name(self, name: str) -> str:
        """The name in generations."""
        return self._names.get(name, name)

    def described(self, name: str, value: Any) -> Any:
        """A value for the metadata, in which there is no room for large tensors."""
        if not isinstance(value, torch.Tensor) or value.nbytes <= _SMALL:
            return value
        write(self._tensor(name, value.nbytes), _bytes_of(value), (1,))
        return {_SHAPE: list(value.shape), "dtype": value.dtype}

    def restored(self, name: str, value: Any) -> Any:
        """What described() has made this of."""
        if not isinstance(value, dict) or _SHAPE not in value:
            return value
        shape, dtype = value[_SHAPE], value["dtype"]
        made = torch.empty(shape, dtype=dtype, device="cpu")
        return _tensor_of(self._tensor(name, made.nbytes), dtype, shape) if made.numel() else made

    def _buffers(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """The buffers in state_dict()."""
        for prefix, module in self._model().named_modules():
            for key, buffer in module._buffers.items():
                if (buffer is not None and buffer.numel()
                        and key not in module._non_persistent_buffers_set):
                    yield f"{prefix}.{key}" if prefix else key, buffer

    def _tensor(self, name: str, nbytes: int) -> Tensor:
        name = self._name(name)
        known = self._kept.get(name)
        if known is not None and known.elements == nbytes:
            return known
        if known is not None:
            known.destroy()
        made = self._offload.runtime.create_many([TensorSpec(
            shape=nbytes, dtype="u8", name=name, durable=True)])[0]
        self._kept[name] = made
        return made


def extra_states(model: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module]]:
    """The modules with an extra state, by its name in state_dict()."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield f"{prefix}.{_EXTRA}" if prefix else _EXTRA, module


def _tensor_of(tensor: Tensor, dtype: torch.dtype, shape: Any) -> torch.Tensor:
    return read(HOST, tensor, (tensor.elements,), (1,), torch.uint8).view(dtype).view(shape)


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
                        "numbers, text, and lists and dicts of them; of the metadata, of the "
                        "optimizer's groups and states, or of the extra state of a module, it "
                        f"says: {error}") from error
    return made


def _unpacked(kept: bytes) -> Dict[str, Any]:
    return torch.load(  # type: ignore[no-any-return]
        io.BytesIO(zlib.decompress(kept)), weights_only=True)
