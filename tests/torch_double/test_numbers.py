# SPDX-License-Identifier: Apache-2.0
"""Training on the device `late` has the bits of the CPU, whatever is late there."""
import os
import subprocess
import sys
import unittest
from pathlib import Path

import double
import torch
import training
from torch.nn import functional

SEEDS = (1, 2, 3)


class Numbers(unittest.TestCase):
    def setUp(self):
        double.violations()
        double.take_counts()

    def tearDown(self):
        self.assertEqual(double.violations(), [])

    def same(self, name, optimizer, clip=None):
        with self.subTest(model=name, optimizer=optimizer, clip=clip):
            losses, state = training.train(name, optimizer, "cpu", clip)
            found, after = training.train(name, optimizer, "late", clip)
            self.assertEqual(found, losses)
            self.assertNotEqual(losses[0], losses[-1])
            for key, value in state.items():
                self.assertTrue(torch.equal(after[key], value), key)

    def test_each_model_and_optimizer_has_the_bits_of_the_cpu(self):
        for name in training.MODELS:
            for optimizer in training.OPTIMIZERS:
                self.same(name, optimizer)

    def test_gradients_are_clipped_to_the_same_bits(self):
        for name in training.MODELS:
            self.same(name, "adamw", clip=0.5)

    def test_no_step_waits_for_its_results(self):
        for name in training.MODELS:
            training.train(name, "adamw", "late", clip=0.5)
        count, waited = double.take_counts()
        self.assertGreater(count, 100)
        self.assertEqual(waited, [])

    def test_what_depends_on_bytes_waits(self):
        numbers = torch.arange(6, device="late")
        self.assertEqual(numbers[numbers > 3].tolist(), [4, 5])
        self.assertNotEqual(double.take_counts()[1], [])

    def test_results_have_the_forms_of_the_cpus(self):
        image, table = torch.rand(2, 3, 4, 4), torch.rand(9, 4)
        ids, parts = torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2])
        wide, narrow = torch.rand(6, 8), torch.rand(6, 8).bfloat16()
        mean, variance, weight = torch.rand(3), torch.rand(3), torch.rand(8)
        for use in (
            lambda move: [loss(move(wide), move(wide.flip(0)), reduction=reduction)
                          for loss in (functional.mse_loss, functional.smooth_l1_loss)
                          for reduction in ("none", "mean", "sum")],
            lambda move: [functional.batch_norm(move(image.to(dtype)), move(mean), move(variance),
                                                training=training)
                          for dtype in (torch.float32, torch.bfloat16)
                          for training in (False, True)],
            lambda move: [functional.layer_norm(move(narrow), (8,), scale)
                          for scale in (None, move(weight), move(weight.bfloat16()))],
            lambda move: [functional.embedding_bag(move(ids), move(table), move(parts))],
            lambda move: [torch.add(move(wide), 2, out=move(torch.empty(0))),
                          move(wide).add_(move(wide).t().sum(0)[:, None]),
                          move(wide).t().contiguous(), move(narrow) * 1.1, move(ids) / 3],
            lambda move: [functional.conv2d(move(image).to(memory_format=torch.channels_last),
                                            move(image))],
        ):
            found = use(lambda tensor: tensor.to("late"))
            for one, other in zip(found, use(torch.clone), strict=True):
                self.assertTrue(one.is_late)
                self.assertEqual((one.shape, one.dtype), (other.shape, other.dtype))
                self.assertTrue(torch.equal(one.cpu(), other))
        self.assertEqual(torch.ones(1, 1, device="late").item(), 1)

    def test_the_arguments_are_those_of_a_gpu(self):
        here, there = torch.ones(3), torch.ones(3, device="late")
        with self.assertRaisesRegex(RuntimeError, "same device"):
            torch.add(there, here)
        self.assertTrue(torch.equal((there + torch.tensor(2.0)).cpu(), here + 2))
        there[torch.tensor([0, 2])] = 5
        self.assertEqual(there[torch.tensor([2, 1])].tolist(), [5, 1])
        self.assertEqual((torch.ones((), device="late", dtype=torch.bfloat16) * 1.5).dtype,
                         torch.bfloat16)
        with self.assertRaisesRegex(RuntimeError, "size"):
            torch.add(there, torch.ones(2, device="late"))

    def test_a_parameter_stays_the_same_object(self):
        model = training.Attention()
        parameters = list(model.parameters())
        model.to("late")
        self.assertIs(model.head.weight, model.embedding.weight)
        for before, after in zip(parameters, model.parameters(), strict=True):
            self.assertIs(before, after)
            self.assertEqual(after.device, double.DEVICE)

    def test_any_delays_have_the_same_bits(self):
        digests = set()
        for seed in SEEDS:
            run = subprocess.run(
                [sys.executable, "-B", Path(training.__file__)], capture_output=True, check=True,
                text=True, env={**os.environ, "STW_CUDA_DOUBLE": f"seed={seed},delay_us=300"})
            digest, violations = run.stdout.split()
            digests.add(digest)
            self.assertEqual(violations, "0", run.stdout)
        self.assertEqual(len(digests), 1)


if __name__ == "__main__":
    unittest.main()
