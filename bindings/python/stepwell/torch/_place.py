# SPDX-License-Identifier: Apache-2.0
"""The place in which a model computes: the memory of the CPU, or of a device with streams.

All that differs by the device is a property of this object, so that the rest of the package has one
path. What a device computes runs later than the calls, in the order of the current stream: fetches
and releases name it, and the library orders its copies by that.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Union

import torch

from .._enums import Stream
from .._options import Device
from .._runtime import Runtime
from .._stream_fetching import StreamRuntime
from .._views import View

DeviceLike = Union[str, int, torch.device]

_from_capsule = torch._C._from_dlpack  # type: ignore[attr-defined]
_set_data: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Kind(NamedTuple):
    """What is to be known of a device of PyTorch."""

    # Of stepwell.Device; None: the CPU's own.
    driver: Optional[str]
    # The same, of a device whose tensors with fixed addresses are fetched whole.
    whole_options: Optional[str]
    # The current stream of the calling thread on the device of this index, 0 for the default
    # stream; None: what it computes is there when the call returns.
    stream: Optional[Callable[[int], int]]
    # A tensor over what exports DLPack: a view, whose pin it holds, or a tensor's address.
    tensor_of: Callable[[Any], torch.Tensor]
    # Whether its operations have the bits of the CPU's, so that updates in the order of torch.optim
    # have the bits of plain torch.
    torch_order: bool
    # Whether what is enqueued on the current stream is recorded to be repeated later.
    captures: Optional[Callable[[], bool]] = None
    # Bytes that are free on the device of this index, when PyTorch has returned what it caches.
    free: Optional[Callable[[int], int]] = None
    # Whether it has the memory of the CPU and none of its own.
    is_unified: Callable[[int], bool] = lambda index: False
    # Give a parameter, of this device or of the CPU, other memory.
    set_data: Callable[[torch.Tensor, torch.Tensor], None] = _set_data


def _cuda_free(index: int) -> int:
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(index)[0]


def _on_cpu(exporter: Any) -> torch.Tensor:
    """A view moves into the tensor: what is left of it needs no finaliser, which an interrupt would
    keep from releasing the pin."""
    return (_from_capsule(exporter.to_dlpack()) if type(exporter) is View
            else torch.from_dlpack(exporter))


def _is_integrated(index: int) -> bool:
    return bool(torch.cuda.get_device_properties(index).is_integrated)


# By the type of torch.device. A test adds a device of its own before offload().
KINDS: Dict[str, Kind] = {
    "cpu": Kind(None, None, None, _on_cpu, True),
    # Large handles are mapped at the addresses of parameters faster than a bus copies.
    "cuda": Kind("cuda", "arena=permanent",
                 getattr(torch._C, "_cuda_getCurrentRawStream", None), torch.from_dlpack, False,
                 torch.cuda.is_current_stream_capturing, _cuda_free, _is_integrated),
}


class Place:
    """Where the parameters of one Offload are for the model."""

    def __init__(self, device: torch.device) -> None:
        kind = KINDS[device.type]
        self.device = device
        self.plain = device  # of copies for the program
        self.kind = kind
        self.tensor_of = kind.tensor_of
        self.torch_order = kind.torch_order
        in_order = kind.stream is None  # what was called before is done
        self.is_host = in_order  # the CPU addresses its memory
        # An access of the program to bytes that are not there can be served.
        self.serves_faults = in_order
        # An address of a tensor is its own by a flag at its creation alone.
        self.fixed_addresses = not in_order
        # The library takes the memory of a gradient over, and adds it after the call.
        self.adopts_gradients = in_order
        # A kernel of the library reads gradients in memory of torch.
        self.lends_gradients = in_order
        # A pin outlasts the call of a module: its bytes are used on no other stream.
        self.keeps_pins = in_order
        # The thread on which autograd runs its nodes has called backward() itself.
        self.calls_backward = in_order
        # An update beside the next forward pass takes cores from the model.
        self.shares_cores = in_order

    def stream(self) -> int:
        """The current one, as the library names it."""
        assert self.kind.stream is not None
        return self.kind.stream(self.device.index or 0) or Stream.LEGACY

    def free(self) -> int:
        """Bytes that are free there."""
        assert self.kind.free is not None
        return self.kind.free(self.device.index or 0)

    def is_unified(self) -> bool:
        """Whether it has the memory of the CPU and none of its own."""
        return self.kind.is_unified(self.device.index or 0)

    def open(self, nbytes: int, whole: bool, **options: Any) -> Runtime:
        """A runtime with one device tier, of so many bytes. whole: no parameter will be in
        tiles."""
        tier = Device(nbytes, driver=self.kind.driver, ordinal=self.device.index or 0,
                      driver_options=self.kind.whole_options if whole else None)
        if self.kind.stream is None:
            return Runtime(devices=[tier], **options)
        return StreamRuntime(self.stream, devices=[tier], **options)

    @staticmethod
    def part(tensor: torch.Tensor, begin: int, count: int) -> torch.Tensor:
        """Elements of a contiguous tensor, with a storage of their own over its memory."""
        each = tensor.element_size()
        memory: Any = tensor.untyped_storage()
        part = memory[begin * each:(begin + count) * each]
        empty: Any = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(part, 0, (count,))  # type: ignore[no-any-return]

    @staticmethod
    def bytes_of(tensor: torch.Tensor, begin: int, count: int) -> torch.Tensor:
        """A range of the bytes of its storage."""
        empty: Any = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return empty.set_(  # type: ignore[no-any-return]
            tensor.untyped_storage(), begin, (count,))

    def used_here(self, tensor: torch.Tensor) -> None:
        """It is used on the current stream, and may be freed before that is over: its memory is
        given out for another stream after it."""
        tensor.record_stream(torch.accelerator.current_stream())

    def to(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself if it is where the program has its copies, else a copy."""
        return tensor.to(self.plain)


def device_of(given: DeviceLike) -> torch.device:
    """The device of an argument, with its index."""
    wanted = torch.device(given)
    if wanted.type not in KINDS:
        raise ValueError(f"device='{wanted}': a model computes on {' or '.join(KINDS)}")
    try:
        return torch.empty(0, device=wanted).device
    except (AssertionError, RuntimeError) as error:
        raise RuntimeError(
            f"device='{wanted}': PyTorch {torch.__version__} cannot use it here: "
            f"{str(error).splitlines()[0]}; torch.accelerator.device_count() says how many devices "
            "this process sees, and without device= the model computes where it is") from error


HOST = Place(torch.device("cpu"))
