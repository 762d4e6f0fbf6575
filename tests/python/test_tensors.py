# SPDX-License-Identifier: Apache-2.0
"""Tensors: made, found, copied, reshaped, moved, ended."""
import array

import stepwell
import support
from support import BLOCK, MIB, budget_sentence, numpy

F32 = BLOCK // 4


class Tensors(support.Machine):
    def test_a_tensor_is_what_was_asked_for(self):
        tensor = self.runtime.create("w", (3, 5), "bf16", role="param", zero=True,
                                     policy=stepwell.Policy(home="host", retention="keep"),
                                     neighbour=7)
        info = tensor.info()
        self.assertEqual((info.name, info.shape, info.elements), ("w", (3, 5), 15))
        self.assertEqual((info.dtype, info.role), (stepwell.Dtype.BF16, stepwell.Role.PARAM))
        self.assertEqual((tensor.nbytes, tensor.elements, tensor.shape), (30, 15, (3, 5)))
        self.assertIn("'w'", repr(tensor))

    def test_tensors_are_found_and_walked_through_as_the_same_objects(self):
        specs = [stepwell.TensorSpec(shape=4, name=f"t{at}") for at in range(5)]
        made = self.runtime.create_many(specs)
        self.assertEqual(list(self.runtime), made)
        self.assertIs(self.runtime.find("t3"), made[3])
        self.assertIs(self.runtime["t3"], made[3])
        self.assertIn("t3", self.runtime)
        self.assertNotIn("t7", self.runtime)
        self.assertEqual(self.runtime.create_many([]), [])
        with self.assertRaises(KeyError):
            self.runtime.find("t7")

    def test_an_object_that_was_dropped_does_not_end_its_tensor(self):
        self.floats(10, "kept", 4.0)
        self.assertEqual(bytes(self.runtime["kept"].read())[:4], b"\0\0\x80\x40")

    def test_a_sentence_says_that_a_tensor_has_no_name(self):
        tensor = self.floats(10)
        self.assertIn("<stepwell.Tensor without a name, F32", repr(tensor))
        with self.assertRaises(stepwell.EmptyError) as caught:
            tensor.fetch()
        self.assertIn("a tensor without a name is empty", str(caught.exception))
        with self.assertRaises(ValueError) as caught:
            tensor.fetch(begin=8, count=3)
        self.assertIn("inside a tensor without a name of 10 elements", str(caught.exception))
        with self.assertRaises(ValueError) as caught:
            tensor.write([1.0] * 11)
        self.assertIn("bytes of a tensor without a name", str(caught.exception))
        tensor.destroy()
        with self.assertRaises(stepwell.ClosedError) as caught:
            tensor.info()
        self.assertEqual(str(caught.exception), "a tensor without a name was destroyed")

    def test_a_destroyed_tensor_says_so(self):
        tensor = self.floats(10, "gone", 1.0)
        request = tensor.request()
        tensor.destroy()
        for use in (tensor.info, tensor.read, tensor.fetch, tensor.destroy,
                    lambda: self.runtime.fetch(request)):
            with self.assertRaises(stepwell.ClosedError) as caught:
                use()
            self.assertEqual(str(caught.exception), "tensor 'gone' was destroyed")
        others = [self.floats(4), self.floats(4)]
        self.runtime.destroy(others)
        self.assertEqual(list(self.runtime), [])

    def test_buffers_are_written_and_read_without_numpy(self):
        tensor = self.runtime.create(None, 8, "i16")
        tensor.write(bytes(range(16)))
        out = bytearray(16)
        self.assertIs(tensor.read(out), out)
        self.assertEqual(bytes(out), bytes(range(16)))
        tensor.write(bytearray(b"abcd"), begin=2, count=2)
        self.assertEqual(bytes(tensor.read(bytearray(4), 2, 2)), b"abcd")

    def test_buffers_have_a_dtype_where_they_say_so(self):
        tensor = self.floats(4, "t")
        tensor.write(array.array("f", [1, 2, 3, 4]))
        out = array.array("f", [0] * 4)
        tensor.read(out)
        self.assertEqual(out.tolist(), [1, 2, 3, 4])
        with self.assertRaises(stepwell.InvalidError):
            tensor.write(array.array("i", [1, 2, 3, 4]))
        with self.assertRaises(TypeError):
            tensor.write(array.array("I", [1, 2, 3, 4]))
        half = self.runtime.create(None, 4, "bf16")
        half.write(array.array("H", [0x3f80] * 4))
        half.read(out)
        self.assertEqual(out.tolist(), [1] * 4)

    def test_a_buffer_may_be_of_another_dtype_than_it_says(self):
        tensor = self.floats(4, "t")
        tensor.write(array.array("H", [0x3f80] * 4), dtype="bf16")
        tensor.reduce(array.array("H", [0x4000] * 4), dtype="bf16")
        out = array.array("H", [0] * 4)
        tensor.read(out, dtype="bf16")
        self.assertEqual(out.tolist(), [0x4040] * 4)
        with self.assertRaises(ValueError):
            tensor.write(array.array("h", [0x3f8] * 4), dtype="f32")

    def test_arguments_that_make_no_sense_are_refused_with_their_value(self):
        t = self.runtime.create("t", (2, 3), "f32")
        t.fill(1)
        with support.open_small(self.directory, nvme=()) as other:
            stranger = other.create("stranger", 4)
            calls = [
                (lambda: self.runtime.create("s", (3.5,)), "3.5"),
                (lambda: self.runtime.create("a\0b", 4), "NUL"),
                (lambda: self.runtime.create("s", 4, neighbour=-1), "-1"),
                (lambda: self.runtime.create("s", 4, neighbour=1 << 64), str(1 << 64)),
                (lambda: t.fetch(device=99), "device 99"),
                (lambda: t.fetch(timeout=float("nan")), "nan"),
                (lambda: t.reduce(bytes(24), scale=float("nan")), "nan"),
                (lambda: t.reduce(bytes(24), scale=float("inf")), "inf"),
                (lambda: self.runtime.set_budget("host", -1), "-1"),
                (lambda: self.runtime.set_budget("host", MIB, 1 << 32), str(1 << 32)),
                (lambda: self.runtime.host_alloc(1 << 64), str(1 << 64)),
                (lambda: self.runtime.tier_stats("host", -1), "-1"),
                (lambda: t.address((1 << 32) + 1), str((1 << 32) + 1)),
                (lambda: t.read(begin=-1), "-1"),
                (lambda: self.runtime.destroy([stranger]), "stranger"),
                (lambda: self.runtime.discard([stranger]), "stranger"),
                (lambda: self.runtime.advise([stranger], "hot"), "stranger"),
            ]
            for call, words in calls:
                with self.assertRaises(ValueError) as caught:
                    call()
                self.assertIn(words, str(caught.exception))
        for wrong in ({"host_bytes": -1}, {"host_bytes": 1 << 64}, {"devices": -1},
                      {"nvme": stepwell.Nvme("a\0b", MIB)}, {"name": "a\0b"}):
            with self.assertRaises(ValueError):
                support.open_small(self.directory, **wrong)
        with self.assertRaisesRegex(TypeError, "host_bytes is '16MiB', and no integer"):
            support.open_small(self.directory, host_bytes="16MiB")
        t.fetch(timeout=float("inf")).release()

    @support.needs_numpy
    def test_shapes_are_compared_and_sizes_may_be_numpys(self):
        t = self.runtime.create("t", (numpy.int64(2), numpy.uint8(3)), "f32")
        self.assertEqual(self.runtime.create("s", numpy.int64(5)).shape, (5,))
        with self.assertRaisesRegex(ValueError, r"\(2, 3\), and what is written \(3, 2\)"):
            t.write(numpy.zeros((3, 2), "f4"))
        t.write(numpy.arange(6, dtype="f4"))
        t.write(numpy.arange(6, dtype="f4").reshape(2, 3))
        support.open_small(self.directory, nvme=(), host_bytes=numpy.int64(16 * BLOCK)).close()

    def test_sizes_that_do_not_fit_are_refused_here(self):
        tensor = self.floats(10, "ten", 0.0)
        for wrong in (lambda: tensor.write(bytes(39)), lambda: tensor.write(bytes(40), 1, 9),
                      lambda: tensor.read(bytearray(41)), lambda: tensor.read(None, 5, 6),
                      lambda: tensor.fill(1, -1), lambda: tensor.reduce(bytes(4)),
                      lambda: tensor.read(b"x" * 40), lambda: tensor.write(bytes(4), 10)):
            with self.assertRaises(ValueError):
                wrong()
        with self.assertRaises(ValueError):
            self.runtime.create(None, (1,) * 9)
        with self.assertRaises(ValueError):
            self.runtime.create(None, 4, role="no role")

    @support.needs_numpy
    def test_arrays_are_copied_and_converted(self):
        tensor = self.runtime.create("m", (4, 6), "f32")
        values = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)
        tensor.write(values)
        self.assertTrue((tensor.read() == values).all())
        tensor.write(values.astype(numpy.float16).T.copy().T)  # not C-contiguous
        self.assertTrue((tensor.read() == values).all())
        tensor.write(values.astype(">f4"))
        self.assertTrue((tensor.read() == values).all())
        half = tensor.read(dtype="f16")
        self.assertEqual((half.dtype, half.shape), (numpy.float16, (4, 6)))
        tensor.write([9, 8, 7], begin=6, count=3)
        self.assertEqual(tensor.read(begin=6, count=3).tolist(), [9, 8, 7])
        with self.assertRaises(stepwell.InvalidError):
            tensor.write(values.astype(numpy.int64))
        with self.assertRaises(ValueError):
            tensor.read(numpy.empty((6, 4), numpy.float32).T)
        with self.assertRaises(ValueError):
            tensor.read(numpy.empty((4, 6), ">f4"))

    @support.needs_numpy
    def test_every_dtype_has_its_array(self):
        for dtype in stepwell.Dtype:
            tensor = self.runtime.create(None, 5, dtype)
            tensor.fill(0)
            array = tensor.read()
            self.assertEqual(array.nbytes, tensor.nbytes, dtype)
            tensor.write(array)
            with tensor.fetch() as view:
                self.assertEqual(view.numpy().dtype, array.dtype)
                del array

    @support.needs_numpy
    def test_bf16_is_shown_as_its_bits(self):
        tensor = self.runtime.create(None, 3, "bf16")
        tensor.write([1.0, 2.0, -1.5])
        with tensor.fetch() as view:
            bits = view.numpy().copy()
        self.assertEqual(bits.dtype, numpy.uint16)
        self.assertEqual((bits.astype(numpy.uint32) << 16).view(numpy.float32).tolist(),
                         [1.0, 2.0, -1.5])
        tensor.write(bits[::-1].copy())
        self.assertEqual(tensor.read(dtype="f32").tolist(), [-1.5, 2.0, 1.0])

    @support.needs_numpy
    def test_sums_are_added_and_discarded(self):
        tensor = self.floats(6, "g")
        tensor.reduce(None)
        self.assertEqual(tensor.info().state, stepwell.State.EMPTY)
        tensor.reduce(numpy.ones(6, numpy.float32), scale=2.0)
        tensor.reduce(numpy.ones(6, numpy.float32))
        tensor.reduce(None)
        self.assertEqual(tensor.read().tolist(), [3.0] * 6)
        tensor.discard()
        self.assertEqual(tensor.info().state, stepwell.State.EMPTY)
        with self.assertRaises(stepwell.EmptyError):
            tensor.read()

    def test_a_tensor_takes_fewer_elements_but_not_more(self):
        tensor = self.floats(12, "r", 1.0)
        tensor.reshape((2, 3))
        self.assertEqual((tensor.shape, tensor.elements), ((2, 3), 6))
        with self.assertRaises(stepwell.InvalidError):
            tensor.reshape(13)
        self.assertEqual(tensor.shape, (2, 3))

    def test_a_tensor_moves_and_has_one_address(self):
        tensor = self.floats(2 * F32, "big", 1.0)
        address = tensor.address()
        tensor.advise("hot")
        self.runtime.advise([tensor], stepwell.Advice.COLD)
        tensor.set_policy(stepwell.Policy(home="nvme", priority=-1))
        tensor.evict("device")
        tensor.evict(stepwell.Tier.HOST)
        self.assertEqual(tensor.info().residence, stepwell.Allow.NVME)
        tensor.prefetch()
        with tensor.fetch() as view:
            self.assertEqual((view.address, view.nbytes), (address[0], 2 * BLOCK))
        self.runtime.evict(tier="device")
        self.runtime.evict([], "device")
        self.assertEqual(tensor.address(), address)

    def test_a_budget_goes_to_nothing_and_back(self):
        tensor = self.floats(2 * F32, "kept", 1.0)
        before = self.runtime.tier_stats("device").budget_bytes
        self.runtime.set_budget("device", 0)
        self.assertEqual(self.runtime.tier_stats("device").used_bytes, 0)
        with self.assertRaises(stepwell.BudgetError) as caught:
            tensor.fetch(tier="device")
        self.assertEqual(budget_sentence.check(caught.exception), (2 * BLOCK, 0, [0]))
        with self.assertRaises(stepwell.LimitError):
            self.runtime.set_budget("device", 2 * before)
        self.runtime.set_budget(stepwell.Tier.DEVICE, before, timeout=60.0)
        with tensor.fetch(tier="device") as view:
            self.assertEqual(bytes(view.bytes[-4:]), b"\0\0\x80\x3f")


if __name__ == "__main__":
    support.main()
