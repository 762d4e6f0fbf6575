# SPDX-License-Identifier: Apache-2.0
"""Views at a GPU in Python: what array libraries are told of them, and what the CPU is refused.

usage: python_test.py MODULE, over the double of CUDA's driver.
"""
import os
import shutil
import sys
import tempfile
import unittest

import stepwell
import support
from test_dlpack import Consumer, newest

MODULE = sys.argv.pop(1)
LEGACY, PER_THREAD = stepwell.Stream.LEGACY, stepwell.Stream.PER_THREAD


class OnAGpu(unittest.TestCase):
    def setUp(self):
        # A module is loaded from where nobody else can write.
        self.directory = tempfile.mkdtemp(prefix="stepwell-cuda-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.directory)
        module = os.path.join(self.directory, "libstepwell-cuda.so")
        shutil.copyfile(MODULE, module)
        os.chmod(module, 0o644)
        self.runtime = support.open_small(
            self.directory, devices=[stepwell.Device(8 * support.BLOCK, driver=module)],
            nvme=stepwell.Nvme(self.directory, 256 * support.BLOCK, driver="posix",
                               driver_options="allow_tmpfs=1"))
        self.addCleanup(self.runtime.close)

    def make(self):
        tensor = self.runtime.create("t", (2, 5), "f32")
        tensor.fill(3)
        return tensor

    def test_a_view_is_named_as_cudas_and_lives_as_long_as_its_consumer(self):
        tensor = self.make()
        with tensor.fetch(stream=PER_THREAD) as view:
            self.assertEqual(view.__dlpack_device__(), (2, 0))
            taken = Consumer(view.__dlpack__(max_version=(1, 1), stream=LEGACY, dl_device=(2, 0)))
            others = Consumer(newest(view))  # None: the legacy stream
            unordered = Consumer(view.__dlpack__(max_version=(1, 1), stream=-1))
            self.assertEqual(taken.tensor.data, view.address)
        self.assertEqual((taken.tensor.device_type, taken.tensor.device_id), (2, 0))
        self.assertEqual(self.runtime.tier_stats("device").exports, 3)
        for one in (taken, others, unordered):
            one.delete()
        self.assertEqual(self.runtime.tier_stats("device").exports, 0)

    def test_what_no_consumer_may_ask_for_is_refused(self):
        tensor = self.make()
        with tensor.fetch(stream=LEGACY) as view:
            for asked, why in (({"stream": 0}, "two meanings"), ({"dl_device": (1, 0)}, "not on"),
                               ({"copy": True}, "copy")):
                with self.assertRaisesRegex(BufferError, why):
                    view.__dlpack__(max_version=(1, 1), **asked)
            self.assertFalse(view.released)

    def test_the_cpu_does_not_touch_the_devices_memory(self):
        tensor = self.make()
        with tensor.fetch(stream=LEGACY) as view:
            for touch in (lambda: view.bytes, view.numpy):
                with self.assertRaisesRegex(stepwell.InvalidError, "'t' are in the memory of dev"):
                    touch()
        with self.runtime.fetch(tensor, tier="host") as view:
            self.assertEqual(view.__dlpack_device__(), (1, 0))
            self.assertEqual(view.bytes.cast("f")[9], 3.0)

    def test_an_array_of_the_device_is_written_read_and_summed(self):
        class Array:  # of another library
            def __init__(self, view):
                self.__dlpack_device__, self.__dlpack__ = view.__dlpack_device__, view.__dlpack__
        elements = support.BLOCK // 4
        numbers = [n % 251 / 8 for n in range(elements)]
        source, other, total = (self.runtime.create(name, elements, "f32")
                                for name in ("source", "other", "total"))
        for tensor in source, other, total:
            tensor.write(numbers)
        with source.fetch(stream=LEGACY) as view:
            other.write(Array(view))
            total.reduce(Array(view), scale=2.0)
            total.reduce(Array(view), adopt=True)
        self.assertEqual(list(other.read()), numbers)
        self.assertEqual(list(total.read()), [4 * number for number in numbers])
        with source.fetch("write", stream=LEGACY) as view:
            total.read(Array(view))
        with source.fetch("read_write", stream=LEGACY) as view:
            with self.assertRaisesRegex(ValueError, "CUDA device 0, and this call takes host"):
                other.request(into=Array(view))
        self.assertEqual(list(source.read()), [4 * number for number in numbers])
        with support.open_small(self.directory, nvme=()) as alone, \
                source.fetch(stream=LEGACY) as view:
            with self.assertRaisesRegex(ValueError, "0, which is no device of the runtime"):
                alone.create("t", elements, "f32").write(Array(view))

    def test_a_stream_that_was_forgotten_may_be_used_anew(self):
        tensor = self.make()
        for _ in range(3):
            with tensor.fetch(stream=LEGACY) as view:
                self.assertFalse(view.released)
            self.runtime.forget_stream(LEGACY)


if __name__ == "__main__":
    unittest.main()
