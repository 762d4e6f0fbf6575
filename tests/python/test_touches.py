# SPDX-License-Identifier: Apache-2.0
"""Touches without a view: arrays by address that are read and written as if they were ordinary."""
import ctypes
import json
import os
import unittest

import stepwell
import support
from support import BLOCK, numpy

try:
    import torch
except ImportError:
    torch = None

ELEMENTS = BLOCK // 4
TENSORS = 12


class Touches(support.Machine):
    options = {"devices": 6 * BLOCK, "host_bytes": 0, "fault_in": True}

    def setUp(self):
        super().setUp()
        self.tensors = [self.runtime.create(f"t{i}", ELEMENTS, "f32") for i in range(TENSORS)]
        for i, tensor in enumerate(self.tensors):
            tensor.fill(float(i))

    def array(self, tensor):
        """All of it, of memory that is not there as a rule."""
        memory = (ctypes.c_float * ELEMENTS).from_address(tensor.address()[0])
        return numpy.frombuffer(memory, numpy.float32)

    def touches(self):
        path = f"touches-{os.getpid()}.json"
        self.runtime.write_report(path)
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)["touches"]
        finally:
            os.remove(path)
        return {one["tensor"]: (one["reads"], one["writes"]) for one in found}

    @support.needs_numpy
    def test_arrays_at_addresses_are_read_and_written_without_views(self):
        arrays = [self.array(tensor) for tensor in self.tensors]
        for _ in range(3):
            for i, array in enumerate(arrays):
                self.assertEqual(float(array.sum()), i * ELEMENTS)
        for i, array in enumerate(arrays):
            array += 1
        for i, tensor in enumerate(self.tensors):
            self.assertEqual(float(tensor.read()[5]), i + 1)
        found = self.touches()
        self.assertEqual(set(found), {f"t{i}" for i in range(TENSORS)})
        self.assertTrue(all(writes > 0 for _, writes in found.values()), found)

    @support.needs_numpy
    def test_a_step_that_forgot_its_views_computes_the_same(self):
        w = self.runtime.create("w", ELEMENTS, "f32", role="param")
        gradient = self.runtime.create("w.grad", ELEMENTS, "f32", role="grad")
        w.fill(10.0)
        array = self.array(w)
        optimizer = self.runtime.sgd(stepwell.Hyper(lr=0.5))
        optimizer.add(w, gradient)
        phase = self.runtime.phase("train")
        for number in range(8):
            with phase.step():
                self.assertEqual((float(array[0]), float(array[-1])), (10 - number,) * 2)
                gradient.reduce(numpy.full(ELEMENTS, 2.0, numpy.float32))
                for tensor in self.tensors:
                    tensor.read()
                optimizer.step()
        self.assertEqual(float(array[7]), 2.0)

    @unittest.skipIf(torch is None, "PyTorch not found (./dev setup --torch)")
    def test_parameters_of_torch_live_at_their_addresses(self):
        parameters = [torch.nn.Parameter(torch.from_dlpack(tensor.by_address()))
                      for tensor in self.tensors]
        total = sum(parameter.sum() for parameter in parameters)
        self.assertEqual(float(total.detach()), sum(range(TENSORS)) * ELEMENTS)
        total.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= parameter.grad
        for i, tensor in enumerate(self.tensors):
            self.assertEqual(float(tensor.read()[0]), i - 1)


class Lock(support.Machine):
    """The thread that faults holds the interpreter's lock, which the log's callback wants."""

    options = {"devices": 6 * BLOCK, "host_bytes": 0, "fault_in": True, "log_level": 10,
               "log": lambda level, topic, line: None}

    def test_a_fault_is_served_while_the_lock_is_held(self):
        tensors = [self.runtime.create(f"t{i}", ELEMENTS, "f32") for i in range(TENSORS)]
        for i, tensor in enumerate(tensors):
            tensor.fill(float(i))
        for _ in range(5):
            for i, tensor in enumerate(tensors):
                self.assertEqual(ctypes.c_float.from_address(tensor.address()[0] + 8).value, i)


if __name__ == "__main__":
    unittest.main()
