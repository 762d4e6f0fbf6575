# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch as scripts/gpu-checks/torch_step.py uses, over the double of CUDA's driver.

A kernel tells the double of all bytes that it touches, which checks their order, and computes with
one number in STRIDE. It holds no tensor: what it works on may end before it runs. Memory that is
let go is kept for the stream it was made on, as PyTorch does.
"""
import atexit
import collections
import ctypes
import types

from test_dlpack import Consumer

STRIDE = 1 << 16
__version__ = "stand-in"
float32 = "f32"
version = types.SimpleNamespace(cuda="double")
_driver = ctypes.CDLL("libcuda.so.1")
_u64 = ctypes.c_uint64


class _Range(ctypes.Structure):
    _fields_ = [("address", _u64), ("bytes", _u64), ("writes", ctypes.c_uint32),
                ("reserved", ctypes.c_uint32)]


_alias_of = ctypes.CFUNCTYPE(ctypes.c_void_p, _u64)
_work = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _alias_of)
_works = []                             # of kernels that may not have run yet
_kept = collections.defaultdict(list)   # addresses, by stream and bytes
_graphs = []                            # the one that is captured now


def _must(error, call):
    if error != 0:
        raise RuntimeError(f"CUDA error: {call}: {error}")


def _synchronize():
    _must(_driver.cuCtxSynchronize(), "cuCtxSynchronize")
    _works.clear()


class Stream:
    current, made = None, []

    def __init__(self, handle=None):
        made = ctypes.c_void_p()
        if handle is None:
            _must(_driver.cuStreamCreate(ctypes.byref(made), 1), "cuStreamCreate")
            Stream.made.append(made)
        self.cuda_stream = made.value or 0


def _handle():
    return ctypes.c_void_p(Stream.current.cuda_stream)


def _enqueue(work):
    """On the current stream; while a graph is captured it is the graph's."""
    if _graphs:
        _graphs[0].works.append(work)
    else:
        work()


def _launch(name, places, writes, compute):
    """compute: of the indices, and of all numbers of each place. The last one may be written."""
    count = places[-1].bytes // 4
    ranges = (_Range * (len(places) + 1))(
        *((at.address, at.bytes, 0, 0) for at in places),
        (places[-1].address, places[-1].bytes if writes else 0, 1, 0))

    def floats(alias, at):
        return ctypes.cast(alias(at.address), ctypes.POINTER(ctypes.c_float))

    def work():
        _works.append(_work(lambda user, alias: compute(
            range(0, count, STRIDE), *(floats(alias, at) for at in places))))
        _must(_driver.stw_double_consume(_handle(), name, ranges, len(ranges), _works[-1], None),
              name)
    _enqueue(work)


class Tensor:
    def __init__(self, count, address=None, consumer=None):
        self.count, self.bytes, self.consumer = count, 4 * count, consumer
        self.key = Stream.current.cuda_stream, self.bytes
        if address is None:
            address = _kept[self.key].pop() if _kept[self.key] else self.made()
        self.address = address

    def made(self):
        address, mode = _u64(), ctypes.c_int(2)  # relaxed: it is no part of a graph
        exchange = getattr(_driver, "cuThreadExchangeStreamCaptureMode", lambda at: 0)
        exchange(ctypes.byref(mode))
        _must(_driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(self.bytes)),
              "cuMemAlloc")
        exchange(ctypes.byref(mode))
        return address.value

    def __del__(self):
        if self.consumer is None:
            _kept[self.key].append(self.address)
        else:
            self.consumer.delete()

    def place(self):
        return types.SimpleNamespace(address=self.address, bytes=self.bytes)

    def values(self):
        found = []
        _launch(b"read", [self.place()], False,
                lambda indices, floats: found.extend(floats[i] for i in indices))
        _must(_driver.cuStreamSynchronize(_handle()), "cuStreamSynchronize")
        return found

    def written(self, name, value, *others):
        """value: of the index, and of what the other tensors have there."""
        def compute(indices, *sides):
            for i in indices:
                sides[-1][i] = value(i, *(side[i] for side in sides[:-1]))
        _launch(name, [other.place() for other in (*others, self)], True, compute)
        return self

    def copy_(self, other):
        address, source, size = _u64(self.address), _u64(other.address), ctypes.c_size_t(self.bytes)
        _enqueue(lambda: _must(_driver.cuMemcpyDtoDAsync_v2(address, source, size, _handle()),
                               "cuMemcpyDtoDAsync"))
        return self

    def clone(self):
        return Tensor(self.count).copy_(self)

    def add_(self, number):
        return self.written(b"add_", lambda i, old: old + number, self)

    def __add__(self, number):
        return Tensor(self.count).written(b"add", lambda i, old: old + number, self)

    def __mul__(self, number):
        return Tensor(self.count).written(b"mul", lambda i, old: old * number, self)

    def __eq__(self, other):
        own = self.values()
        theirs = other.values() if isinstance(other, Tensor) else [float(other)] * len(own)
        return Truths(one == two for one, two in zip(own, theirs))

    def __ne__(self, other):
        return Truths(not same for same in self == other)

    def __getitem__(self, index):
        return self.values()[index]

    def numel(self):
        return self.count

    def sum(self):
        return sum(self.values())


class Truths(list):
    def all(self):
        return all(self)

    def sum(self):
        return sum(self)


def from_dlpack(view):
    capsule = view.__dlpack__(max_version=(1, 1), dl_device=(2, 0),
                              stream=Stream.current.cuda_stream or 1)
    consumer = Consumer(capsule)
    return Tensor(consumer.tensor.shape[0], consumer.tensor.data, consumer)


def arange(count, **_):
    return Tensor(count).written(b"arange", lambda i: float(i))


def ones(count, **_):
    return Tensor(count).written(b"ones", lambda i: 1.0)


def full(shape, value, **_):
    return Tensor(shape[0]).written(b"full", lambda i: value)


class _On:
    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.before, Stream.current = Stream.current, self.stream

    def __exit__(self, *_):
        Stream.current = self.before


class CUDAGraph:
    def __init__(self):
        self.works = []

    def replay(self):
        for work in self.works:
            work()


class _Capture(_On):
    def __init__(self, graph):
        super().__init__(_side)
        self.graph = graph

    def __enter__(self):
        super().__enter__()
        _driver.stw_double_capture(_handle(), 1)
        _graphs.append(self.graph)

    def __exit__(self, *_):
        _graphs.clear()
        _driver.stw_double_capture(_handle(), 0)
        super().__exit__()


def _empty_cache():
    _synchronize()
    for addresses in _kept.values():
        while addresses:
            _must(_driver.cuMemFree_v2(_u64(addresses.pop())), "cuMemFree")


def _mem_get_info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _must(_driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    return free.value, total.value


_context = ctypes.c_void_p()
_must(_driver.cuInit(0), "cuInit")
_must(_driver.cuDevicePrimaryCtxRetain(ctypes.byref(_context), 0), "cuDevicePrimaryCtxRetain")
_must(_driver.cuCtxSetCurrent(_context), "cuCtxSetCurrent")
Stream.current = Stream(0)
_side = Stream()


@atexit.register
def _end():
    _empty_cache()
    for stream in Stream.made:
        _must(_driver.cuStreamDestroy_v2(stream), "cuStreamDestroy")
    _must(_driver.cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease")


cuda = types.SimpleNamespace(
    is_available=lambda: True, init=lambda: None, get_device_name=lambda: "CUDA double",
    current_stream=lambda: Stream.current, Stream=Stream, stream=_On, CUDAGraph=CUDAGraph,
    graph=_Capture, synchronize=_synchronize, empty_cache=_empty_cache, mem_get_info=_mem_get_info)
