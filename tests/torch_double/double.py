# SPDX-License-Identifier: Apache-2.0
"""PyTorch's device `late`: what it is to Python, and what the double below it saw.

LATE_LIBRARY names the library; LD_LIBRARY_PATH the folder of the CUDA double. After the import
torch.device("late") is there, and torch.late beside torch.cuda.
"""
import contextlib
import ctypes
import functools
import os
import types

import torch

_driver = ctypes.CDLL("libcuda.so.1")
_late = ctypes.CDLL(os.environ["LATE_LIBRARY"])
for _function in (_late.late_current_stream, _late.late_take_counts, _driver.stw_double_calls,
                  _driver.stw_double_settle):
    _function.restype = ctypes.c_uint64

torch.utils.rename_privateuse1_backend("late")
DEVICE = torch.device("late", 0)
TEXT_BYTES = 1 << 20


def violations():
    """What was not ordered since the last call: a sentence for each."""
    text = ctypes.create_string_buffer(TEXT_BYTES)
    _driver.stw_double_take_violations(text, ctypes.c_size_t(len(text)))
    return text.value.decode().splitlines()


def calls(entry=None):
    """Calls of the driver, or of one of its entry points."""
    return _driver.stw_double_calls(entry.encode() if entry else None)


def take_counts():
    """How many operations were enqueued since the last call, and the names of those that waited."""
    text = ctypes.create_string_buffer(TEXT_BYTES)
    count = _late.late_take_counts(text, ctypes.c_size_t(len(text)))
    return count, text.value.decode().splitlines()


def current_handle():
    """The current stream as the driver knows it; 0: the legacy one."""
    return _late.late_current_stream()


@contextlib.contextmanager
def held(stream):
    """What is enqueued on the stream does not begin before the end."""
    with stream:
        handle = ctypes.c_void_p(current_handle())
    _driver.stw_double_hold(handle)
    try:
        yield
    finally:
        _driver.stw_double_let_go(handle, ctypes.c_uint64(0))


def set_rate(flops_per_s):
    """Of products in virtual time; 0, as at first: they take the time of their bytes alone."""
    _late.late_set_rate(ctypes.c_double(flops_per_s))


def settle():
    """The virtual time in ns at the end of all that was enqueued: threads go on from there."""
    return _driver.stw_double_settle()


def busy_ns():
    """What copies up, copies down and kernels took of virtual time so far."""
    found = []
    for engine in range(3):
        totals = (ctypes.c_uint64 * 3)()  # operations, bytes, ns
        _driver.stw_double_engine_totals(0, engine, totals)
        found.append(totals[2])
    return found


def _pointer_of(capsule, name):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


def _is_named(capsule, name):
    asked = ctypes.pythonapi.PyCapsule_IsValid
    asked.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return asked(capsule, name) == 1


# Of the device's type in a tensor of DLPack, which is the second word of it.
_DEVICE_TYPES = {b"dltensor_versioned": 40, b"dltensor": 8}
_CUDA, _EXTENSION = 2, 12


def take(capsule):
    """A capsule of memory of the CUDA double as a tensor: it is named as this device's."""
    for name, offset in _DEVICE_TYPES.items():
        if _is_named(capsule, name):
            kind = ctypes.c_int32.from_address(_pointer_of(capsule, name) + offset)
            if kind.value != _CUDA:
                raise BufferError(f"the capsule has memory of DLPack's device type {kind.value}")
            kind.value = _EXTENSION
    return torch.utils.dlpack.from_dlpack(capsule)


class Stream(torch.Stream):
    """As torch.cuda.Stream."""

    def __new__(cls, device=None, priority=0, **of):
        return super().__new__(cls, **(of or {"device": DEVICE, "priority": priority}))


def Event(enable_timing=False, blocking=False, interprocess=False):
    """As torch.cuda.Event. No class: PyTorch measures from one torch.Event to another alone."""
    return torch.Event(device=DEVICE, enable_timing=enable_timing, blocking=blocking,
                       interprocess=interprocess)


def _keep_identities(name, target_of):
    """Modules move as to a GPU: a parameter stays the same object, which others share or hold.
    PyTorch sets `.data` for the devices that it knows, and makes new parameters for others.
    """
    moves = getattr(torch.nn.Module, name)
    future = torch.__future__

    @functools.wraps(moves)
    def move(self, *args, **more):
        target = target_of(*args, **more)
        crosses = target is not None and any(
            (target.type == "late") != each.is_late for each in self.parameters())
        before = future.get_swap_module_params_on_conversion()
        future.set_swap_module_params_on_conversion(before or crosses)
        try:
            return moves(self, *args, **more)
        finally:
            future.set_swap_module_params_on_conversion(before)

    setattr(torch.nn.Module, name, move)


def _tell_reads(name):
    """What PyTorch reads for Python without an operation."""
    reads = getattr(torch.Tensor, name)

    @functools.wraps(reads)
    def read(self, *args, **more):
        plain = type(self) is torch.Tensor and self.is_cpu and self.numel() > 0
        if plain and not torch.late._is_in_bad_fork():
            last = sum((size - 1) * step for size, step in zip(self.shape, self.stride()))
            _driver.stw_double_host_reads(ctypes.c_uint64(self.data_ptr()),
                                          ctypes.c_uint64((last + 1) * self.element_size()))
        return reads(self, *args, **more)

    setattr(torch.Tensor, name, read)


def _index(device=None):
    return 0


def _default_stream(device=None):
    kind = torch.accelerator.current_stream().device_type
    return torch.Stream(stream_id=0, device_index=0, device_type=kind)


def _get_rng_state(device=None):
    words = (ctypes.c_uint64 * 2)()
    _late.late_get_state(ctypes.byref(words), ctypes.byref(words, 8))
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


def _set_rng_state(state, device=None):
    words = (ctypes.c_uint64 * 2).from_buffer_copy(bytes(state.tolist()))
    _late.late_set_state(*(ctypes.c_uint64(word) for word in words))


def _manual_seed(seed):
    _late.late_set_seed(ctypes.c_uint64(int(seed) & (1 << 64) - 1))


def _module():
    module = types.ModuleType("torch.late")
    ours = {
        "Event": Event, "Stream": Stream, "_initialized": True,
        "_is_in_bad_fork": lambda: bool(_late.late_is_forked()),
        "current_device": _index, "device": lambda device: contextlib.nullcontext(),
        "device_count": lambda: 1, "is_available": lambda: True,
        "is_initialized": lambda: True, "init": lambda: None, "_lazy_init": lambda: None,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "is_bf16_supported": lambda *of, **more: True,
        "get_rng_state": _get_rng_state, "set_rng_state": _set_rng_state,
        "manual_seed": _manual_seed, "manual_seed_all": _manual_seed,
        "set_device": lambda device: None, "stream": lambda stream: stream,
        "default_stream": _default_stream,
        "mem_get_info": torch.accelerator.get_memory_info,
    }
    generic = (
        "current_stream", "empty_cache", "max_memory_allocated", "max_memory_reserved",
        "memory_allocated", "memory_reserved", "memory_stats", "reset_accumulated_memory_stats",
        "reset_peak_memory_stats", "set_stream", "synchronize")
    for name, value in ours.items():
        setattr(module, name, value)
    for name in generic:
        setattr(module, name, getattr(torch.accelerator, name))
    return module


torch._register_device_module("late", _module())
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
for _name, _target_of in {
    "cpu": lambda: torch.device("cpu"), "late": lambda *of: DEVICE,
    "to": lambda *args, **more: torch._C._nn._parse_to(*args, **more)[0],
}.items():
    _keep_identities(_name, _target_of)
for _name in ("numpy", "tolist"):
    _tell_reads(_name)


def register(module, torch_order=True, arena="arena=permanent"):
    """Let offload() take models on this device. module: the path of the library's module for
    CUDA. torch_order: of updates; on a GPU they have another one. arena: the module's option, by
    default the one that a CUDA device gets."""
    from stepwell._enums import Stream
    from stepwell.torch import _place

    def tensor_of(exporter):
        stream = current_handle() or Stream.LEGACY
        return take(exporter.__dlpack__(max_version=(1, 1), stream=stream))

    def free(index):
        torch.late.empty_cache()
        return torch.late.mem_get_info(index)[0]

    def set_data(parameter, data):  # as _keep_identities()
        if parameter.device == data.device:
            torch.Tensor.data.__set__(parameter, data)
        else:
            torch.utils.swap_tensors(parameter, torch.nn.Parameter(data, parameter.requires_grad))

    _place.KINDS["late"] = _place.Kind(
        module, arena, lambda index: current_handle(), tensor_of, torch_order, free=free,
        set_data=set_data)
