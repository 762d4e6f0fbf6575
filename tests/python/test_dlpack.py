# SPDX-License-Identifier: Apache-2.0
"""DLPack: what is negotiated, and that what consumers make is a pin as long as it lives."""
import ctypes
import gc
import unittest

import stepwell
import support
from support import numpy

try:
    import torch
except ImportError:
    torch = None

needs_torch = unittest.skipIf(torch is None, "torch is not installed")
_get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi))
_USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", _deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", _deleter), ("flags", ctypes.c_uint64),
                ("tensor", Tensor)]


class Consumer:
    """As an array library takes a capsule: the tensor is its own from then on."""

    def __init__(self, capsule, name=b"dltensor_versioned"):
        self.at = _get(capsule, name)  # a ValueError for another name
        kind = Versioned if name == b"dltensor_versioned" else Legacy
        self.managed = kind.from_address(self.at)
        self.tensor = self.managed.tensor
        _rename(capsule, _USED[name])

    def floats(self):
        count = 1
        for dimension in range(self.tensor.ndim):
            count *= self.tensor.shape[dimension]
        return (ctypes.c_float * count).from_address(self.tensor.data)

    def delete(self):
        self.managed.deleter(self.at)


def newest(window):
    return window.__dlpack__(max_version=(1, 1))


class Negotiation(support.Machine):
    def exports(self):
        return self.runtime.tier_stats("device").exports

    def test_a_reader_is_exported_often_and_goes_on(self):
        tensor = self.runtime.create("t", (2, 5), "f32")
        tensor.fill(3)
        with tensor.fetch() as view:
            self.assertEqual(view.__dlpack_device__(), (1, 0))
            taken = [Consumer(newest(view)) for _ in range(2)]
            self.assertEqual(taken[0].tensor.data, view.address)
        first = taken[0]
        self.assertEqual((first.managed.major, first.managed.flags), (1, 1))
        self.assertEqual(([first.tensor.shape[at] for at in range(2)], first.tensor.bits),
                         ([2, 5], 32))
        self.assertEqual((list(first.floats()), self.exports()), ([3.0] * 10, 2))
        first.delete()
        self.assertEqual((self.exports(), self.pinned()), (1, 1))
        taken[1].delete()
        self.assertEqual(self.pinned(), 0)

    def test_a_converted_view_moves_and_a_copy_is_its_owners(self):
        tensor = self.floats(10, "t", 1.5)
        with tensor.fetch(dtype="bf16") as view:
            with self.assertRaises(BufferError):
                view.__dlpack__()
            taken = Consumer(newest(view))
            self.assertTrue(view.released)
        self.assertEqual((taken.tensor.code, taken.tensor.bits, taken.managed.flags), (4, 16, 1))
        self.assertEqual(ctypes.c_uint16.from_address(taken.tensor.data).value, 0x3fc0)
        self.assertEqual((self.exports(), self.pinned()), (1, 1))
        taken.delete()
        self.assertEqual(self.pinned(), 0)
        with tensor.fetch(into=bytearray(40)) as view:
            with self.assertRaisesRegex(BufferError, "your own"):
                newest(view)

    def test_a_writer_moves_into_its_export(self):
        tensor = self.floats(10, "t", 1.0)
        for ask, name, flags in ((newest, b"dltensor_versioned", 0),
                                 (lambda view: view.__dlpack__(), b"dltensor", None)):
            with tensor.fetch("read_write") as view:
                taken = Consumer(ask(view), name)
                self.assertTrue(view.released)
                for use in (view.release, view.share, lambda: view.bytes, lambda: view.address,
                            lambda: newest(view)):
                    with self.assertRaises(stepwell.ClosedError) as caught:
                        use()
                    self.assertIn("'t' was exported to DLPack", str(caught.exception))
            if flags is not None:
                self.assertEqual(taken.managed.flags, flags)
            taken.floats()[0] += 4
            with self.assertRaises(stepwell.BusyError):
                tensor.fetch(at_once=True)
            taken.delete()
        self.assertEqual(bytes(tensor.read(bytearray(4), 0, 1)), b"\0\0\x10\x41")

    def test_a_writer_with_arrays_is_not_exported(self):
        with self.floats(10, "t", 1.0).fetch("read_write") as view:
            memory = view.bytes
            with self.assertRaises(BufferError):
                newest(view)
            del memory
            Consumer(newest(view)).delete()

    def test_members_of_a_set_are_exported_one_by_one(self):
        tensors = [self.floats(10, None, at) for at in range(4)]
        with self.runtime.fetch_many(tensors, "read_write") as views:
            taken = Consumer(newest(views[0]))
            with self.assertRaises(stepwell.ClosedError) as caught:
                views[0].bytes
            self.assertIn("was exported", str(caught.exception))
            self.assertEqual(bytes(views[3].bytes[:4]), b"\0\0\x40\x40")
        self.assertEqual(self.pinned(), 1)
        taken.delete()
        with self.runtime.fetch_many(tensors[:2], "read_write") as views:
            taken = [Consumer(newest(member)) for member in views]
        self.assertEqual((views.released, self.pinned()), (True, 2))
        with self.runtime.fetch_many(tensors[2:]) as views:
            taken.append(Consumer(newest(views[1])))
        for each in taken:
            each.delete()
        self.assertEqual(self.pinned(), 0)

    def test_a_reader_moves_into_its_export_when_asked_to(self):
        tensor = self.floats(10, "t", 1.5)
        view = tensor.fetch()
        taken = Consumer(view.to_dlpack())
        self.assertEqual((view.released, taken.managed.flags, self.pinned()), (True, 1, 1))
        with self.assertRaisesRegex(stepwell.ClosedError, "was exported"):
            view.to_dlpack()
        with self.assertRaisesRegex(BufferError, "your own"):
            tensor.fetch(into=bytearray(40)).to_dlpack()
        self.assertEqual(list(taken.floats()), [1.5] * 10)
        taken.delete()
        with self.runtime.fetch_many([tensor, self.floats(4, None, 2.0)]) as views:
            made = views[1].to_dlpack()
            self.assertEqual(self.pinned(), 2)
        self.assertEqual(self.pinned(), 1)
        del made
        self.assertEqual(self.pinned(), 0)

    def test_the_older_form_has_no_readers_and_no_8_bit_floats(self):
        with self.floats(10, "t", 1.0).fetch() as view:
            for version in (None, (0, 8)):
                with self.assertRaises(BufferError) as caught:
                    view.__dlpack__(max_version=version)
                self.assertIn("is for reading here", str(caught.exception))
            self.assertEqual(self.pinned(), 1)
        small = self.runtime.create("f8", 10, "f8_e4m3")
        with small.fetch("write") as view:
            for version in (None, (1, 0)):
                with self.assertRaises(BufferError):
                    view.__dlpack__(max_version=version)
            taken = Consumer(view.__dlpack__(max_version=(1, 2)))
            self.assertEqual((taken.tensor.code, taken.tensor.bits), (10, 8))
            taken.delete()

    def test_bf16_is_bf16(self):
        with self.runtime.create("half", 10, "bf16").fetch("write") as view:
            taken = Consumer(newest(view))
            self.assertEqual((taken.tensor.code, taken.tensor.bits), (4, 16))
            taken.delete()

    def test_other_devices_and_streams_are_refused(self):
        with self.floats(10, "t", 1.0).fetch() as view:
            view.__dlpack__(max_version=(1, 0), dl_device=(1, 0), stream=-1, copy=False)
            with self.assertRaises(BufferError):
                view.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
            with self.assertRaises(stepwell.InvalidError):
                view.__dlpack__(max_version=(1, 0), stream=1)
            self.assertEqual(self.pinned(), 1)

    def test_a_released_view_is_not_exported(self):
        view = self.floats(10, "t", 1.0).fetch()
        view.release()
        with self.assertRaises(stepwell.ClosedError):
            newest(view)


class Capsules(support.Machine):
    def test_one_that_nobody_takes_gives_its_pin_back(self):
        tensor = self.floats(10, "t", 1.0)
        made = newest(tensor.fetch())
        self.assertEqual(self.pinned(), 1)
        del made
        self.assertEqual(self.pinned(), 0)
        made = tensor.fetch("read_write").__dlpack__()
        self.assertEqual(self.pinned(), 1)
        del made
        self.assertEqual(self.pinned(), 0)

    def test_one_is_taken_once_and_by_its_name(self):
        made = newest(self.floats(10, "t", 1.0).fetch())
        with self.assertRaises(ValueError):
            Consumer(made, b"dltensor")  # who knows the older form alone
        taken = Consumer(made)
        with self.assertRaises(ValueError):
            Consumer(made)
        del made
        self.assertEqual(self.pinned(), 1)
        taken.delete()

    @support.needs_numpy
    def test_numpy_refuses_one_that_was_used(self):
        class Again:
            def __init__(self, view):
                self.made = view.__dlpack__()

            def __dlpack__(self, **_):
                return self.made

            def __dlpack_device__(self):
                return (1, 0)

        again = Again(self.floats(10, "t", 1.0).fetch("read_write"))
        array = numpy.from_dlpack(again)
        with self.assertRaises((ValueError, RuntimeError)):
            numpy.from_dlpack(again)
        self.assertEqual((float(array[0]), self.pinned()), (1.0, 1))
        del array
        self.assertEqual(self.pinned(), 0)

    def test_a_capsule_outlives_its_runtime(self):
        tensor = self.floats(10, "t", 1.0)
        with self.runtime:
            made = newest(tensor.fetch())
            with self.assertRaises(stepwell.BusyError) as caught:
                self.runtime.close()
            self.assertIn("exported to DLPack", str(caught.exception))
        taken = Consumer(made)
        self.assertEqual(taken.floats()[9], 1.0)
        support.in_thread(taken.delete)

    def test_an_aborted_step_leaves_what_was_exported(self):
        tensor = self.floats(10, "t", 1.0)
        phase = self.runtime.phase("train")
        with self.assertRaises(ZeroDivisionError):
            with phase.step():
                taken = Consumer(newest(tensor.fetch()))
                raise ZeroDivisionError
        self.assertEqual((taken.floats()[0], self.pinned()), (1.0, 1))
        taken.delete()

    def test_addresses_pin_nothing(self):
        tensor = self.floats(10, "t", 1.0)
        held = Consumer(newest(tensor.by_address()))
        self.assertEqual((held.tensor.data, self.pinned()), (tensor.address()[0], 0))
        with tensor.fetch():
            self.assertEqual(held.floats()[9], 1.0)
        self.assertEqual(tensor.by_address().__dlpack_device__(), (1, 0))
        for wrong in ({"copy": True}, {"dl_device": (2, 0)}):
            with self.assertRaises(BufferError):
                tensor.by_address().__dlpack__(**wrong)
        Consumer(tensor.by_address().__dlpack__(), b"dltensor").delete()
        with self.assertRaises(stepwell.UnsupportedError):
            tensor.by_address(7)
        held.delete()


class Exporter:
    """An array of a library of its own, made of `buffer`."""

    def __init__(self, buffer, code, bits, shape, strides=None, device=(1, 0), flags=0):
        self.buffer = buffer  # the rest goes with it
        self.ended = []
        self.sizes = (ctypes.c_int64 * len(shape))(*shape)
        self.steps = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self.end = _deleter(self.ended.append)
        self.tensor = Tensor(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), *device,
                             len(shape), code, bits, 1, self.sizes, self.steps, 0)
        self.made = Versioned(1, 1, None, self.end, flags, self.tensor)

    def __dlpack__(self, *, max_version=None):
        return stepwell._dlpack._new_capsule(ctypes.addressof(self.made),
                                             stepwell._dlpack._NAME_VERSIONED,
                                             stepwell._dlpack._destroy)


class Taken(support.Machine):
    """What other libraries export is memory of the caller's."""

    def test_an_array_is_written_summed_and_read_and_given_back(self):
        tensor = self.runtime.create("t", (2, 2), "f32")
        array = Exporter(bytearray(b"\x80\x3f\0\x40" * 2), 4, 16, (2, 2))  # bf16 1, 2
        tensor.write(array)
        tensor.reduce(array)
        self.assertEqual(len(array.ended), 2)
        out = Exporter(bytearray(16), 2, 32, (4,), (1,))
        self.assertIs(tensor.read(out), out)
        self.assertEqual(list(memoryview(out.buffer).cast("f")), [2.0, 4.0] * 2)
        with tensor.fetch(into=out, begin=0, count=4):
            self.assertEqual(len(out.ended), 1)  # held as long as the view is
        bits = Exporter(bytearray(b"\0\x3c" * 4), 0, 16, (4,))
        tensor.write(bits, dtype="f16")
        self.assertEqual(bytes(tensor.read(bytearray(4), 0, 1)), b"\0\0\x80\x3f")

    def test_arrays_that_cannot_be_taken_are_refused(self):
        tensor = self.floats(4, "t", 1.0)
        wrong = (
            (TypeError, {"code": 5, "bits": 64}), (ValueError, {"strides": (2,)}),
            (ValueError, {"device": (2, 0)}), (ValueError, {"shape": (3,)}),
        )
        for error, change in wrong:
            array = Exporter(bytearray(64), **{"code": 2, "bits": 32, "shape": (4,), **change})
            with self.assertRaises(error):
                tensor.write(array)
            self.assertEqual(len(array.ended), 1)
        array = Exporter(bytearray(16), 2, 32, (4,), flags=1)
        with self.assertRaisesRegex(ValueError, "writeable"):
            tensor.read(array)
        self.assertEqual(self.runtime.tier_stats("device").open_views, 0)

    def test_a_gradient_is_the_librarys_until_it_is_added(self):
        gradient = self.runtime.create("g", 4, "f32", role="grad")
        gradient.fill(1)
        array = Exporter(bytearray(b"\x80\x3f\0\x40" * 2), 4, 16, (4,))  # bf16 1, 2
        with gradient.fetch():  # its sum waits for the view
            gradient.reduce(array, adopt=True)
            self.assertEqual((array.ended, self.runtime.tier_stats("host").adopted_bytes), ([], 8))
        self.assertEqual(bytes(gradient.read(bytearray(4), 1, 1)), b"\0\0\x40\x40")
        self.runtime.drain()
        self.assertEqual(array.ended, [ctypes.addressof(array.made)])
        self.assertEqual(self.runtime.tier_stats("host").adopted_bytes, 0)
        refused = Exporter(bytearray(16), 2, 32, (4,))
        for wrong in ({"scale": float("inf")}, {"dtype": "f64"}):
            with self.assertRaises(ValueError):
                gradient.reduce(refused, adopt=True, **wrong)
        frozen = self.runtime.create("frozen", 4, "f32", read_only=True)
        with self.assertRaises(stepwell.InvalidError):
            frozen.reduce(refused, adopt=True)
        self.assertEqual(len(refused.ended), 3)  # each by its capsule, here
        with self.assertRaises(AttributeError):
            gradient.reduce(bytearray(16), adopt=True)

    @needs_torch
    def test_pytorchs_gradients_are_adopted(self):
        gradient = self.runtime.create("g", (4, 5), "bf16", role="grad")
        for at in range(20):
            given = torch.full((4, 5), float(at % 3), dtype=torch.bfloat16)
            gradient.reduce(given, adopt=True, scale=0.5)
            del given
        total = torch.empty(4, 5, dtype=torch.bfloat16)
        gradient.read(total)
        self.assertEqual(total.tolist(), [[9.5] * 5] * 4)

    @support.needs_numpy
    def test_a_view_is_read_and_goes_on(self):
        source, tensor = self.floats(4, "s", 3.0), self.floats(4, "t", 1.0)
        with source.fetch("read_write") as view:
            tensor.write(view)
            self.assertFalse(view.released)
        self.assertEqual(tensor.read().tolist(), [3.0] * 4)

    @needs_torch
    def test_pytorchs_tensors_are_taken(self):
        half = self.runtime.create("h", (2, 3), "bf16")
        given = torch.arange(6).reshape(2, 3).to(torch.bfloat16).requires_grad_()
        half.write(given)
        half.reduce(given.detach().t().contiguous().t())  # a copy is made of it
        out = torch.empty(2, 3, dtype=torch.bfloat16)
        half.read(out)
        self.assertTrue(torch.equal(out, 2 * given.detach()))
        with self.assertRaises(ValueError):
            half.read(out.t())
        whole = torch.empty(2, 3)
        half.read(whole)
        self.assertEqual(whole.tolist(), [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]])
        for name, kind in (("f16", torch.float16), ("f64", torch.float64), ("i64", torch.int64),
                           ("u8", torch.uint8), ("bool", torch.bool)):
            tensor = self.runtime.create(name, 3, name)
            tensor.write(torch.tensor([0, 1, 1]).to(kind))
            again = torch.zeros(3, dtype=kind)
            tensor.read(again)
            self.assertEqual(again.tolist(), [0, 1, 1])
        empty = self.runtime.create("empty", 0, "f32")
        empty.write(torch.empty(0))


@support.needs_numpy
class NumPy(support.Machine):
    def test_an_array_is_a_pin_without_the_view(self):
        tensor = self.runtime.create("m", (4, 5), "f32")
        tensor.fill(2)
        array = numpy.from_dlpack(tensor.fetch("read_write"))
        part = array[1:3]
        del array
        gc.collect()
        self.assertEqual((part.shape, float(part.sum()), self.pinned()), ((2, 5), 20.0, 1))
        del part
        self.assertEqual(self.pinned(), 0)

    def test_an_array_outlives_its_runtime(self):
        tensor = self.floats(10, "t", 5.0)
        with self.runtime:
            array = numpy.from_dlpack(tensor.fetch("read_write"))
        self.assertEqual(float(array.sum()), 50.0)
        del array

    def test_a_copy_is_no_pin(self):
        with self.floats(10, "t", 5.0).fetch() as view:
            made = view.__dlpack__(copy=True)

            class Copied:
                def __dlpack__(self, **_):
                    return made

                def __dlpack_device__(self):
                    return (1, 0)

            array = numpy.from_dlpack(Copied())
        self.assertEqual((float(array.sum()), self.pinned()), (50.0, 0))
        with self.runtime.create("half", 10, "bf16").fetch("write") as view:
            with self.assertRaises(BufferError):
                view.__dlpack__(copy=True)


@needs_torch
class Torch(support.Machine):
    def test_a_writer_is_a_tensor_that_writes(self):
        tensor = self.runtime.create("m", (4, 5), "bf16")
        tensor.fill(2)
        made = torch.from_dlpack(tensor.fetch("read_write"))
        self.assertEqual((made.dtype, tuple(made.shape)), (torch.bfloat16, (4, 5)))
        made.mul_(3)
        del made
        self.assertEqual(self.pinned(), 0)
        self.assertEqual(tensor.read(bytearray(2), 0, 1), bytearray(b"\xc0\x40"))

    def test_a_reader_is_a_tensor_that_pins(self):
        tensor = self.floats(10, "t", 1.5)
        with tensor.fetch() as view:
            made = torch.from_dlpack(view)
            self.assertEqual(made.data_ptr(), view.address)
        self.assertEqual((float(made.sum()), self.pinned()), (15.0, 1))
        with self.assertRaises(stepwell.BusyError):
            tensor.fetch("write")
        del made
        self.assertEqual(self.pinned(), 0)

    def test_an_address_is_a_parameter_that_is_fetched_around_its_uses(self):
        tensor = self.floats(10, "t", 1.0)
        parameter = torch.nn.Parameter(torch.from_dlpack(tensor.by_address()))
        for _ in range(3):
            with tensor.fetch("read_write"):
                parameter.data += 1
            tensor.evict("device")
        with tensor.fetch():
            self.assertEqual(float(parameter.detach().sum()), 40.0)


# Ends with a capsule that nobody took, one whose tensor a consumer has, and NumPy's array.
EXITS = """
import ctypes, sys, tempfile
import stepwell, support, test_dlpack
directory = tempfile.TemporaryDirectory(dir=".")
runtime = support.open_small(directory.name, log=lambda *line: None, log_level=10)
tensors = [runtime.create(str(at), 100) for at in range(3)]
for tensor in tensors:
    tensor.fill(1)
stepwell.kept = [test_dlpack.newest(tensors[0].fetch()),
                 test_dlpack.Consumer(test_dlpack.newest(tensors[1].fetch()))]
if support.numpy:
    stepwell.kept.append(support.numpy.from_dlpack(tensors[2].fetch("read_write")))
if sys.argv[1] == "cycle":
    stepwell.kept.append(stepwell.kept)
"""

FORKS = """
import os, sys, tempfile, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import stepwell, support, test_dlpack
directory = tempfile.TemporaryDirectory(dir=".")
runtime = support.open_small(directory.name)
tensor = runtime.create("t", 100)
tensor.fill(1)
made = test_dlpack.newest(tensor.fetch())
taken = test_dlpack.Consumer(test_dlpack.newest(tensor.fetch()))
view = tensor.fetch()
child = os.fork()
if child == 0:
    del made
    taken.delete()
    try:
        test_dlpack.newest(view)
    except stepwell.ForkedError:
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert runtime.tier_stats("device").exports == 2
assert taken.floats()[99] == 1
taken.delete()
del made
view.release()
runtime.close()
print("parent is well")
"""


class Ends(unittest.TestCase):
    def test_the_interpreter_ends_with_exports(self):
        for how in ("plain", "cycle"):
            self.assertEqual(support.run_program(EXITS, how), (0, ""))

    def test_a_forked_child_leaves_its_parents_exports(self):
        self.assertEqual(support.run_program(FORKS), (0, "parent is well\n"))


if __name__ == "__main__":
    support.main()
