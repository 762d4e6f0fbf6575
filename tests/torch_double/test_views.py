# SPDX-License-Identifier: Apache-2.0
"""Tensors of a runtime in the memory of the CUDA double, as tensors of the device `late`: both have
one context, and the order of what either enqueues is judged.

usage: test_views.py MODULE, over the double of CUDA's driver.
"""
import os
import shutil
import sys
import tempfile
import unittest

import double
import stepwell
import support
import torch

MODULE = sys.argv.pop(1)
COUNT, ELEMENTS = 12, support.BLOCK // 4  # on a device of eight blocks


def stream():
    return double.current_handle() or stepwell.Stream.LEGACY


class Views(unittest.TestCase):
    def setUp(self):
        double.violations()
        # A module is loaded from where nobody else can write.
        directory = tempfile.mkdtemp(prefix="stepwell-late-", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory)
        module = os.path.join(directory, "libstepwell-cuda.so")
        shutil.copyfile(MODULE, module)
        os.chmod(module, 0o644)
        self.runtime = support.open_small(
            directory, devices=[stepwell.Device(8 * support.BLOCK, driver=module)],
            nvme=stepwell.Nvme(directory, 256 * support.BLOCK, driver="posix",
                               driver_options="allow_tmpfs=1"))
        self.addCleanup(self.runtime.close)
        self.tensors = [self.runtime.create(f"t{i}", (ELEMENTS,), "f32") for i in range(COUNT)]
        for tensor in self.tensors:
            tensor.fill(1)

    def taken(self, tensor, access):
        view = self.runtime.fetch(tensor, access, stream=stream())
        return double.take(view.__dlpack__(max_version=(1, 1), stream=stream()))

    def add_to_each(self, value):
        for tensor in self.tensors:
            here = self.taken(tensor, "read_write")
            self.assertEqual((here.device, here.shape), (double.DEVICE, (ELEMENTS,)))
            here.add_(value)

    def values(self):
        return [self.taken(tensor, "read").sum().item() / ELEMENTS for tensor in self.tensors]

    def test_updates_of_more_than_fits_are_kept(self):
        moved = self.runtime.link_stats(stepwell.Link.DEVICE_TO_HOST).bytes
        for value in (1, 2):
            self.add_to_each(value)
        self.assertEqual(self.values(), [4.0] * COUNT)
        self.assertGreater(self.runtime.link_stats(stepwell.Link.DEVICE_TO_HOST).bytes, moved)
        self.assertEqual(double.violations(), [])

    def test_another_stream_is_as_good_if_it_is_told(self):
        with torch.late.Stream():
            self.add_to_each(1)
        self.add_to_each(1)
        self.assertEqual(self.values(), [3.0] * COUNT)
        self.assertEqual(double.violations(), [])

    def test_work_on_a_stream_that_was_not_told_is_named(self):
        side = torch.late.Stream()
        with double.held(side):
            for tensor in self.tensors[:8]:
                here = self.taken(tensor, "read_write")
                with side:
                    here.add_(1)
                del here
            for tensor in self.tensors[8:]:
                self.taken(tensor, "read")
        torch.late.synchronize()
        found = double.violations()
        self.assertRegex(found[0], "cuMemcpyDtoHAsync.* not ordered after aten::add")

    def test_memory_of_the_host_is_no_memory_of_the_device(self):
        with self.runtime.fetch(self.tensors[0], tier="host") as view:
            with self.assertRaisesRegex(BufferError, "device type 1"):
                double.take(view.__dlpack__(max_version=(1, 1)))


if __name__ == "__main__":
    unittest.main()
