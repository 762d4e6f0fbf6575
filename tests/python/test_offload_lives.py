# SPDX-License-Identifier: Apache-2.0
"""Offloaded models that are dropped without close(), and that are passed to spawned processes.

Skipped where PyTorch is not installed.
"""
import gc
import importlib.util
import multiprocessing.context
import multiprocessing.reduction
import os
import pickle
import tempfile
import unittest
import weakref
from unittest import mock

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch

BLOCK = support.BLOCK


def made(directory, kind=None):
    """An offloaded model after a step."""
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))
    optimizer = (kind or torch.optim.AdamW)(model.parameters(), 1e-3)
    stepwell.torch.offload(model, optimizer, device_bytes=8 * BLOCK, block_bytes=BLOCK,
                           thread_count=2,
                           nvme=stepwell.Nvme(directory, (1 << 20) + 128 * BLOCK,
                                              driver_options="allow_tmpfs=1"))
    model(torch.ones(4, 128)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def used():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Lives(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        directory = tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def test_dropped_models_give_back_threads_descriptors_and_the_drive(self):
        kinds = (torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD)
        model, optimizer = made(self.directory)
        known = weakref.ref(model)
        del model, optimizer
        gc.collect()
        self.assertIsNone(known())
        before = used()
        for number in range(18):  # more than runtimes may be open at once
            model, optimizer = made(self.directory, kinds[number % 3])
            del model, optimizer
            gc.collect()
        self.assertEqual(used(), before)
        self.assertEqual(os.listdir(self.directory), [])

    def test_a_model_that_is_dropped_between_forward_and_backward_is_freed(self):
        model, optimizer = made(self.directory)
        before = used()
        loss = model(torch.ones(4, 128)).sum()
        known = weakref.ref(stepwell.torch.offloaded(model).runtime)
        del model, optimizer
        gc.collect()
        loss.backward()  # the graph has what it needs
        del loss
        gc.collect()
        gc.collect()  # what was held by storages that ended in the first
        self.assertIsNone(known())
        self.assertLess(used(), before)

    def test_tensors_over_weights_outlive_the_model(self):
        model, optimizer = made(self.directory)
        detached, right = model[0].weight.detach(), model[0].weight.detach().clone()
        known = weakref.ref(model)
        del model, optimizer
        gc.collect()
        self.assertIsNone(known())
        self.assertTrue(torch.equal(detached, right))

    def test_tensors_over_weights_follow_them_after_close(self):
        before = used()
        model, optimizer = made(self.directory)
        held = [model[0].weight.data, model[1].bias.detach().numpy()]
        stepwell.torch.offloaded(model).close()
        with torch.no_grad():
            for parameter in model.parameters():
                self.assertIs(type(parameter), nn.Parameter)
                parameter.add_(1)
        self.assertTrue(torch.equal(held[0], model[0].weight))
        self.assertTrue(torch.equal(torch.from_numpy(held[1]), model[1].bias))
        self.assertGreater(used(), before)  # the tiers close with the last one
        del parameter, held[:], model, optimizer
        gc.collect()
        self.assertEqual(used(), before)
        # More than there is room for.
        model, _ = made(self.directory)
        held = [parameter.data for parameter in model.parameters()]
        full = mock.patch.object(stepwell.Tensor, "fetch", side_effect=stepwell.BudgetError("full"))
        with self.assertWarnsRegex(UserWarning, "must not be used any more"), full:
            stepwell.torch.offloaded(model).close()

    def test_a_spawned_process_gets_the_weights(self):
        class Spawning:  # of multiprocessing: descriptors that the child would inherit
            def duplicate_for_child(self, descriptor):
                raise AssertionError("a descriptor that would be closed before the spawn")
        import torch.multiprocessing  # noqa: F401: registers torch's reductions
        model, _ = made(self.directory)
        model[0].weight.requires_grad_(False)
        model[2].weight.kind = "kept"
        multiprocessing.context.set_spawning_popen(Spawning())
        try:
            text = bytes(multiprocessing.reduction.ForkingPickler.dumps(model))
        finally:
            multiprocessing.context.set_spawning_popen(None)
        got = pickle.loads(text)
        for mine, theirs in zip(model.parameters(), got.parameters()):
            self.assertIs(type(theirs), nn.Parameter)
            self.assertTrue(torch.equal(mine, theirs))
            self.assertEqual(mine.requires_grad, theirs.requires_grad)
        for copy in got, pickle.loads(pickle.dumps(model)):
            self.assertEqual([vars(each) for each in copy.parameters()],
                             [{"kind": "kept"} if at == 4 else {} for at in range(8)])
        x = torch.ones(2, 128)
        self.assertTrue(torch.equal(model(x), got(x)))
        stepwell.torch.offloaded(model).close()


if __name__ == "__main__":
    unittest.main()
