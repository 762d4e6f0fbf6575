# SPDX-License-Identifier: Apache-2.0
"""Views: what they show, and that what was made from them is a pin as long as it lives."""
import ctypes
import gc

import stepwell
import support
from support import BLOCK, numpy

F32 = BLOCK // 4


class Ends(support.Machine):
    """What ends a view."""

    def test_a_view_is_given_back_once(self):
        tensor = self.floats(10, "t", 1.0)
        view = tensor.fetch()
        self.assertEqual((self.pinned(), view.released), (1, False))
        view.release()
        self.assertEqual((self.pinned(), view.released), (0, True))
        for use in (view.release, view.share, lambda: view.bytes, lambda: view.address):
            with self.assertRaises(stepwell.ClosedError) as caught:
                use()
            self.assertIn("'t' was released", str(caught.exception))

    def test_a_block_ends_its_view_and_may_do_so_earlier(self):
        tensor = self.floats(10, "t", 1.0)
        with tensor.fetch() as view:
            self.assertEqual(self.pinned(), 1)
            view.release(stepwell.Release.FAR)
        self.assertEqual(self.pinned(), 0)

    def test_a_view_that_is_dropped_is_given_back(self):
        tensor = self.floats(10, "t", 1.0)
        tensor.fetch()
        self.runtime.fetch_many([tensor, tensor])
        self.assertEqual(self.pinned(), 0)

    def test_an_exception_abandons_what_was_being_written(self):
        tensor = self.floats(10, "t", 1.0)
        for access in ("write", "read_write"):
            tensor.fill(1)
            with self.assertRaises(ZeroDivisionError):
                with tensor.fetch(access):
                    raise ZeroDivisionError
            self.assertEqual(tensor.info().state, stepwell.State.EMPTY)
        tensor.fill(1)
        with self.assertRaises(ZeroDivisionError):
            with tensor.fetch():
                raise ZeroDivisionError
        self.assertEqual(tensor.info().state, stepwell.State.VALID)

    def test_a_set_is_given_back_together(self):
        tensors = [self.floats(10, None, at) for at in range(40)]
        with self.runtime.fetch_many(tensors) as views:
            self.assertEqual((len(views), self.pinned()), (40, 40))
            self.assertIs(views[7].tensor, tensors[7])
            self.assertEqual([view.tensor for view in views[-2:]], tensors[-2:])
            member = views[39]
            self.assertEqual(bytes(member.bytes[:4]), bytes(tensors[39].read())[:4])
            with self.assertRaises(IndexError):
                views[40]
        self.assertEqual(self.pinned(), 0)
        with self.assertRaises(stepwell.ClosedError):
            member.bytes
        with self.assertRaises(stepwell.ClosedError):
            views.release()

    def test_a_set_is_all_or_nothing(self):
        tensors = [self.floats(10, None, at) for at in range(300)]
        held = tensors[290].fetch("write")
        with self.assertRaises(stepwell.BusyError):
            self.runtime.fetch_many(tensors, at_once=True)
        with self.assertRaises(stepwell.BusyError):
            self.runtime.fetch_many(tensors)  # would wait for its own thread
        self.assertEqual(self.pinned(), 1)
        held.release()

    def test_a_set_may_be_of_nothing(self):
        with self.runtime.fetch_many([], "write") as views:
            self.assertEqual((list(views), self.pinned()), ([], 0))
        self.assertTrue(views.released)
        with self.assertRaisesRegex(stepwell.ClosedError, "was released"):
            views.release()

    def test_a_refused_set_leaves_what_it_would_have_written(self):
        tensors = [self.floats(10, None, at + 1) for at in range(300)]
        versions = [tensor.info().version for tensor in tensors]
        held = tensors[290].fetch()
        for _ in range(2):
            with self.assertRaises(stepwell.BusyError):
                self.runtime.fetch_many(tensors, "write")
        held.release()
        self.assertEqual([tensor.info().version for tensor in tensors], versions)
        self.assertEqual(bytes(tensors[0].read(bytearray(4), 0, 1)), b"\0\0\x80\x3f")


class Shows(support.Machine):
    """What a view shows."""

    def test_bytes_are_the_memory_itself(self):
        tensor = self.runtime.create("t", 100, "u8")
        with tensor.fetch("write") as view:
            view.bytes[:] = bytes(range(100))
        with tensor.fetch(begin=10, count=5) as view:
            self.assertEqual(bytes(view.bytes), bytes(range(10, 15)))
            self.assertTrue(view.bytes.readonly)
            self.assertEqual((view.begin, view.count, view.nbytes), (10, 5, 5))
            self.assertEqual((view.access, view.tier), (stepwell.READ, stepwell.Tier.DEVICE))
            self.assertEqual((view.dtype, view.device), (stepwell.Dtype.U8, 0))

    def test_requests_name_ranges_tiers_and_accesses(self):
        tensor = self.runtime.create("t", 100, "u8")
        tensor.fill(3)
        requests = [tensor.request("read", 0, 10, tier="host"), tensor.request(begin=50, count=20)]
        with self.runtime.fetch_many([requests[0]]) as views:
            self.assertEqual((views[0].tier, views[0].count), (stepwell.Tier.HOST, 10))
        with self.runtime.fetch_many(requests[1:] + [tensor]) as views:
            self.assertEqual([view.count for view in views], [20, 100])
        with self.runtime.fetch(requests[1], timeout=5, priority=1) as view:
            self.assertEqual(view.begin, 50)

    def test_readers_share(self):
        tensor = self.floats(10, "t", 1.0)
        with tensor.fetch() as view:
            more = view.share()
            self.assertEqual((more.address, self.pinned()), (view.address, 2))
            more.release()
        with self.assertRaises(stepwell.InvalidError):
            with tensor.fetch("read_write") as view:
                view.share()

    def test_what_has_no_elements_has_a_view(self):
        tensor = self.runtime.create("none", (0, 4), "f32", zero=True)
        with tensor.fetch() as view:
            self.assertEqual((view.count, bytes(view.bytes)), (0, b""))
            if numpy:
                self.assertEqual(view.numpy().shape, (0, 4))

    @support.needs_numpy
    def test_arrays_share_memory_and_have_the_tensors_shape(self):
        tensor = self.runtime.create("m", (4, 5), "f32")
        with tensor.fetch("write") as view:
            view.numpy()[:] = numpy.arange(20).reshape(4, 5)
        with tensor.fetch("read_write") as view:
            self.assertEqual(view.numpy().shape, (4, 5))
            self.assertEqual(view.numpy().ctypes.data, view.address)
            numpy.asarray(view)[1] += 1
        with tensor.fetch(begin=5, count=5) as view:
            array = view.numpy()
            self.assertEqual((array.shape, array.tolist()), ((5,), [6, 7, 8, 9, 10]))
            with self.assertRaises(ValueError):
                array[0] = 1  # a reader
            del array


@support.needs_numpy
class Arrays(support.Machine):
    """An array made from a view is a pin."""

    def test_the_release_waits_for_the_last_array(self):
        tensor = self.floats(F32, "t", 5.0)
        with tensor.fetch() as view:
            first = view.numpy()
            second = view.numpy()[10:20]
            flat = view.bytes
        self.assertTrue(view.released)
        with self.assertRaises(stepwell.ClosedError):
            view.numpy()
        with self.assertRaises(stepwell.BusyError):
            self.runtime.evict([tensor], "device")
        del first
        self.assertEqual((second[0], self.pinned()), (5.0, 1))
        del second
        self.assertEqual((flat[3], self.pinned()), (0x40, 1))
        del flat
        self.assertEqual(self.pinned(), 0)
        self.runtime.evict([tensor], "device")

    def test_an_array_keeps_a_view_that_nobody_else_has(self):
        tensor = self.floats(F32, "t", 5.0)
        array = tensor.fetch().numpy()
        gc.collect()
        self.assertEqual((array[7], self.pinned()), (5.0, 1))
        del array
        self.assertEqual(self.pinned(), 0)

    def test_an_open_view_stays_when_its_arrays_go(self):
        tensor = self.floats(F32, "t", 5.0)
        view = tensor.fetch()
        for _ in range(3):
            array = view.numpy()
            del array
            self.assertEqual(self.pinned(), 1)
        view.release()
        self.assertEqual(self.pinned(), 0)

    def test_a_member_of_a_set_pins_the_set(self):
        tensors = [self.floats(10, None, at) for at in range(3)]
        with self.runtime.fetch_many(tensors) as views:
            array = views[1].numpy()
            self.assertEqual([at[0] for at in views.arrays()], [0, 1, 2])
        self.assertEqual((array[0], self.pinned()), (1.0, 3))
        del array
        self.assertEqual(self.pinned(), 0)

    def test_written_arrays_count_until_their_end(self):
        tensor = self.floats(10, "t", 0.0)
        with tensor.fetch("read_write") as view:
            array = view.numpy()
        array[:] = 7
        with self.assertRaises(stepwell.BusyError):
            tensor.fetch(at_once=True)
        del array
        self.assertEqual(tensor.read().tolist(), [7.0] * 10)

    def test_an_array_outlives_the_runtime(self):
        tensor = self.floats(F32, "t", 5.0)
        with self.runtime:
            array = tensor.fetch().numpy()
            with self.assertRaises(stepwell.BusyError):
                self.runtime.close()
        self.assertTrue(self.runtime.closed)
        self.assertEqual(float(array.sum()), 5.0 * F32)
        with self.assertRaises(stepwell.ClosedError):
            tensor.fetch()
        with self.assertRaises(stepwell.ClosedError):
            self.runtime.tier_stats("device")
        del array

    def test_another_thread_may_let_the_last_array_go(self):
        tensor = self.floats(10, "t", 1.0)
        with tensor.fetch() as view:
            arrays = [view.numpy()]
        support.in_thread(arrays.clear)
        self.assertEqual(self.pinned(), 0)


class Copies(support.Machine):
    """Memory of the caller's, and other dtypes."""

    def test_bytes_are_copied_to_a_buffer_and_nothing_is_pinned(self):
        tensor = self.floats(100 * F32, "large", 2.0)  # more than the near tiers hold
        held = bytearray(4 * tensor.elements)
        with tensor.fetch(into=held) as view:
            self.assertEqual((view.count, view.dtype, self.pinned()),
                             (tensor.elements, stepwell.Dtype.F32, 0))
            tensor.fill(3)  # nobody waits for the view
            self.assertEqual(held, b"\0\0\0\x40" * tensor.elements)
            self.assertEqual(bytes(view.bytes[-4:]), b"\0\0\0\x40")
        tensor.fetch(into=held)  # need not be released
        self.assertEqual(held, b"\0\0\x40\x40" * tensor.elements)
        with self.assertRaises(stepwell.InvalidError):
            tensor.fetch(into=held).share()

    def test_a_set_of_copies_and_pins_keeps_its_order(self):
        tensors = [self.floats(F32 + 7, None, float(i)) for i in range(4)]
        outs = [bytearray(4 * 20) for _ in tensors]
        wanted = [tensor.request(begin=30, count=20, into=out)
                  for tensor, out in zip(tensors, outs)]
        wanted.insert(1, tensors[2])
        for part in (wanted, wanted * 5):
            with self.runtime.fetch_many(part) as views:
                self.assertEqual([view.count for view in views[:3]], [20, F32 + 7, 20])
                self.assertEqual(views[0].address, ctypes.addressof(
                    (ctypes.c_char * 80).from_buffer(outs[0])))
        self.assertEqual(outs[3], b"\0\0\x40\x40" * 20)
        with self.runtime.fetch_async(tensors[3], into=bytearray(4 * (F32 + 7))) as late:
            with late.collect() as view:
                self.assertEqual(bytes(view.bytes[-4:]), b"\0\0\x40\x40")
                self.assertIs(type(view._item.into), bytearray)
        self.assertEqual(self.pinned(), 0)

    def test_memory_that_does_not_fit_is_refused_before_anything_is_copied(self):
        tensor = self.floats(10, "ten", 1.0)
        for wrong in (bytearray(39), bytearray(41)):
            with self.assertRaisesRegex(ValueError, "'ten'"):
                tensor.fetch(into=wrong)
        with self.assertRaises(ValueError):
            tensor.fetch(into=bytes(40))
        with self.assertRaisesRegex(ValueError, "not inside"):
            tensor.request(begin=8, count=3, into=bytearray(12))
        with self.assertRaisesRegex(stepwell.InvalidError, "memory of the caller's"):
            tensor.fetch("write", into=bytearray(40))
        with self.assertRaisesRegex(stepwell.InvalidError, "for writing"):
            tensor.fetch("read_write", dtype="bf16")
        with self.assertRaisesRegex(stepwell.InvalidError, "to i32"):
            tensor.fetch(dtype="i32")

    def test_views_are_converted(self):
        tensor = self.floats(3 * F32, "t", 1.5)
        before = self.runtime.tier_stats("device").pinned_bytes
        with tensor.fetch(dtype="bf16") as view:
            self.assertEqual((view.dtype, view.nbytes), (stepwell.Dtype.BF16, 6 * F32))
            self.assertEqual(bytes(view.bytes[-2:]), b"\xc0\x3f")
            self.assertEqual(self.pinned(), 1)
        self.assertEqual(self.runtime.tier_stats("device").pinned_bytes, before)
        grad = self.runtime.create("g", 50, "bf16", role="grad")
        with grad.fetch("reduce", dtype="f32") as view:
            view.bytes[:] = b"\0\0\x20\x40" * 50
        self.assertEqual(bytes(grad.fetch().bytes), b"\x20\x40" * 50)

    @support.needs_numpy
    def test_arrays_have_the_dtype_of_the_view(self):
        tensor = self.runtime.create("m", (30, 40), "f32")
        values = numpy.linspace(-3, 7e4, 1200, dtype="f4").reshape(30, 40)
        tensor.write(values)
        half = numpy.empty((30, 40), "f2")
        with numpy.errstate(over="ignore"), tensor.fetch(into=half) as view:  # its own dtype
            expected = values.astype("f2")
            self.assertTrue((half == expected).all() and numpy.isinf(half[-1, -1]))
            self.assertEqual((view.dtype, view.numpy().shape), (stepwell.Dtype.F16, (30, 40)))
            self.assertTrue(numpy.shares_memory(view.numpy(), half))
        with tensor.fetch(dtype="f16") as view:
            self.assertTrue((view.numpy() == expected).all())
        array = tensor.fetch(begin=5, count=7, into=numpy.empty(7, "f4")).numpy()
        gc.collect()
        self.assertTrue((array == values.ravel()[5:12]).all())  # the memory lives with it
        with self.assertRaises(ValueError):
            tensor.fetch(into=half.T)


class Late(support.Machine):
    """Asynchronous fetches."""

    def test_an_operation_is_waited_for_and_collected(self):
        tensor = self.floats(4 * F32, "t", 2.0)
        tensor.evict("device")
        tensor.evict("host")
        with self.runtime.fetch_async(tensor) as operation:
            self.assertTrue(operation.wait())
            self.assertTrue(operation.poll())
            with operation.collect() as view:
                self.assertEqual(bytes(view.bytes[:4]), b"\0\0\0\x40")
            with self.assertRaises(stepwell.InvalidError):
                operation.collect()
        with self.assertRaises(stepwell.ClosedError):
            operation.poll()
        operation.free()

    def test_what_is_not_collected_is_undone(self):
        tensors = [self.floats(10, None, 1.0) for _ in range(3)]
        with self.runtime.fetch_many_async(tensors) as operation:
            self.assertEqual(len(operation.collect()), 3)
        operation = self.runtime.fetch_many_async(tensors, "write")
        operation.cancel()
        del operation
        gc.collect()
        self.runtime.drain()
        self.assertEqual(self.pinned(), 0)

    def test_a_fetch_that_failed_says_why(self):
        with self.runtime.fetch_async(self.floats(10, "blank")) as operation:
            with self.assertRaises(stepwell.EmptyError) as caught:
                operation.wait()
        self.assertEqual(caught.exception.tensor, "blank")

    def test_sets_fit_or_do_not(self):
        big = [self.floats(3 * F32) for _ in range(3)]
        self.assertTrue(self.runtime.fits(big[:2]))
        self.assertFalse(self.runtime.fits(big, "write"))
        self.runtime.prefetch(big)


if __name__ == "__main__":
    support.main()
