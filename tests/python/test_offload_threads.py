# SPDX-License-Identifier: Apache-2.0
"""A second thread that evaluates an offloaded model, or reads its weights, while the first trains.

Skipped where PyTorch is not installed.
"""
import importlib.util
import tempfile
import threading
import unittest
from unittest import mock

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import numpy
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch

BLOCK = support.BLOCK


class Other:
    """A thread that runs a function; its exception is raised by join()."""

    def __init__(self, function):
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self.thread.start()

    def _run(self, function):
        try:
            function()
        except Exception as error:
            self.error = error

    def join(self):
        self.thread.join(60)
        assert not self.thread.is_alive(), "the second thread has not ended"
        if self.error is not None:
            raise self.error


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Threads(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def losses(self, blocks, during=None, **options):
        """Losses of four steps; during(model) is called in each backward pass."""
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        found = []
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            if blocks:
                stepwell.torch.offload(
                    model, optimizer, device_bytes=blocks * BLOCK, block_bytes=BLOCK,
                    thread_count=2, nvme=stepwell.Nvme(directory, (1 << 20) + 256 * BLOCK,
                                                       driver_options="allow_tmpfs=1"), **options)
            if during:
                model[2].weight.register_hook(lambda _: during(model))
            for step in range(4):
                torch.manual_seed(step)
                loss = model(torch.randn(8, 128)).square().mean()
                if during:
                    loss.register_hook(lambda _: during(model))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
            if blocks:
                stepwell.torch.offloaded(model).close()
        return found

    def waits(self, function, blocks):
        """The losses while function(model) of another thread begins in each backward pass."""
        others, waiting = [], threading.Event()

        def slept(_):
            waiting.set()

        def during(model):
            waiting.clear()
            others.append(Other(lambda: function(model)))
            if len(others) % 2 == 0:  # a pass that has begun, with a unit held
                self.assertTrue(waiting.wait(30), "the second thread did not wait")
        with mock.patch("stepwell.torch._offload.time.sleep", slept):
            found = self.losses(blocks, during)
            for other in others:
                other.join()
        self.assertEqual(len(others), 8)
        return found

    def test_another_thread_evaluates_in_backward(self):
        def evaluate(model):
            with torch.no_grad():
                model(torch.ones(8, 128, device=support.DEVICE))
        for blocks in (16, 128):
            with self.subTest(blocks=blocks):
                self.assertEqual(self.waits(evaluate, blocks), self.losses(0))

    def test_another_thread_reads_weights_in_backward(self):
        def read(model):
            assert all(parameter.norm().isfinite() for parameter in model.parameters())
            assert all(value.isfinite().all() for value in model.state_dict().values())
        self.assertEqual(self.waits(read, 16), self.losses(0))

    @unittest.skipUnless(support.DEVICE == "cpu", "memory of a device has no addresses that fault")
    def test_a_thread_that_reads_arrays_of_weights_without_end_holds_up_nothing(self):
        ends, others, rounds = threading.Event(), [], []

        def read(arrays):
            while not ends.is_set():
                assert all(numpy.isfinite(array.sum()) for array in arrays)
                rounds.append(0)

        def during(model):
            if not others:
                arrays = [parameter.detach().numpy() for parameter in model.parameters()]
                others.append(Other(lambda: read(arrays)))
        try:
            found = self.losses(16, during)
        finally:
            ends.set()
            others[0].join()
        self.assertEqual(found, self.losses(0))
        self.assertTrue(rounds)

    def test_a_thread_that_a_call_waits_for_is_told_so(self):
        class Asking(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(128, 128), nn.Linear(128, 128)

            def forward(self, x):
                Other(lambda: self.second(x)).join()
                return self.first(x)
        model = Asking()
        stepwell.torch.offload(model, device_bytes=8 * BLOCK, block_bytes=BLOCK)
        tiers = stepwell.torch.offloaded(model)
        tiers.patience = 0
        with self.assertRaisesRegex(stepwell.BusyError, "do not wait in it for a thread"):
            model(torch.ones(1, 128))
        tiers.close()


if __name__ == "__main__":
    unittest.main()
