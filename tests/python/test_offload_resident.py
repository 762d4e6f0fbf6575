# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload() where all of the model stays in the device budget: units keep their
views from the call to the backward pass, and small gradients are copied to tensors that stay.

Skipped where PyTorch is not installed.
"""
import gc
import tempfile
import unittest
from unittest import mock

import support
from test_offload import HAS_TORCH, Run, offload, own_steps, stack_loss, steps_with_writes

if HAS_TORCH:
    import torch
    from test_offload import Stack
    from torch import nn
    from torch.multiprocessing.reductions import StorageWeakRef

    import stepwell.torch

BLOCKS = 288  # 18 MiB for 3 MiB of parameters: each layer is a unit


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Resident(unittest.TestCase):
    def setUp(self):
        if HAS_TORCH:
            torch.set_num_threads(1)

    def run_of(self, blocks, make=None, optimizer=own_steps):
        run = Run(make or Stack, optimizer, blocks)
        if blocks and support.DEVICE == "cpu":
            self.assertTrue(stepwell.torch.offloaded(run.model).resident)
        return run

    def same(self, train):
        plain = train(0)
        self.assertEqual(train(BLOCKS), plain)
        return plain

    def views(self, run):
        return stepwell.torch.offloaded(run.model).runtime.tier_stats("device").open_views

    def test_views_are_kept_for_backward_and_given_back_by_it(self):
        with self.run_of(BLOCKS) as run:
            loss = stack_loss(run.model)
            kept = self.views(run)
            self.assertEqual(kept, len(list(run.model.parameters())))
            with torch.no_grad():
                stack_loss(run.model)  # a call of the model ends what calls before it kept
            self.assertEqual(self.views(run), 0)
            loss.backward()
            stack_loss(run.model).backward()
            self.assertEqual(self.views(run), 0)
            stack_loss(run.model)
            run.optimizer.zero_grad()
            self.assertEqual(self.views(run), 0)

    def test_what_does_not_fit_keeps_nothing(self):
        with Run(Stack, own_steps, 96) as run:  # 6 MiB for 3 MiB of parameters
            self.assertFalse(stepwell.torch.offloaded(run.model).resident)
            stack_loss(run.model)
            self.assertEqual(self.views(run), 0)

    def test_micro_batches_and_dropped_gradients_have_the_same_losses(self):
        for make in (own_steps, lambda p: torch.optim.AdamW(p, 1e-3),
                     lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)):
            for model in (Stack, lambda: Stack(False), lambda: Stack(True),
                          lambda: Stack(width=272, layers=1)):  # gradients beyond 256 KiB too
                def train(blocks):
                    found = []
                    with self.run_of(blocks, model, make) as run:
                        width = run.model.layers[0][1].in_features
                        for step in range(4):
                            torch.manual_seed(step)
                            for _ in range(1 + step % 3):
                                data = torch.randn(8, width, requires_grad=True)
                                loss = run.model(data).pow(2).mean()
                                loss.backward()
                            if step != 1:  # a step that is skipped
                                run.optimizer.step()
                            found += [p.grad.norm().item() for p in run.model.parameters()
                                      ] if step == 1 else [loss.item()]
                            run.optimizer.zero_grad()
                    return found
                self.same(train)

    def test_the_order_of_zero_grad_and_of_calls_does_not_matter(self):
        def train(blocks):
            found = []
            with self.run_of(blocks) as run:
                for step in range(3):
                    torch.manual_seed(step)
                    loss = stack_loss(run.model) + stack_loss(run.model)
                    run.optimizer.zero_grad()
                    loss.backward()
                    with torch.no_grad():
                        stack_loss(run.model)
                    run.optimizer.step()
                    found.append(loss.item())
            return found
        self.same(train)

    def test_writes_between_forward_and_backward_are_kept(self):
        def train(blocks):
            with self.run_of(blocks) as run:
                found = steps_with_writes(run)
                loss = stack_loss(run.model)
                with torch.no_grad():
                    run.model.layers[2][1].weight.mul_(0.5)
                with self.assertRaisesRegex(RuntimeError, "modified"):
                    loss.backward()
                run.optimizer.zero_grad()
                found.append(run.step(5, stack_loss))
            return found
        self.same(train)

    def test_hooks_see_and_change_gradients_that_wait(self):
        def train(blocks):
            with self.run_of(blocks) as run:
                seen = []

                def halve(parameter):
                    parameter.grad.mul_(0.5)
                first, last = run.model.layers[0][1].weight, run.model.layers[5][3].weight
                last.register_post_accumulate_grad_hook(halve)
                first.register_post_accumulate_grad_hook(
                    lambda p: seen.append(p.grad.norm().item() + last.grad.norm().item()))
                for seed in range(3):
                    torch.manual_seed(seed)
                    for _ in range(2):
                        stack_loss(run.model).backward()
                    run.optimizer.step()
                    run.optimizer.zero_grad()
                return seen
        self.same(train)

    def test_a_backward_that_failed_leaves_no_view_and_no_gradient(self):
        with self.run_of(BLOCKS) as run:
            run.interrupt_step(0)
            self.assertEqual(self.views(run), 0)
            self.assertTrue(all(p.grad is None for p in run.model.parameters()))
            run.step(1, stack_loss)

    def test_gradients_outlive_an_interrupted_wait_for_their_update(self):
        # The update reads gradients in torch's memory until it has ended; nothing else holds them.
        with self.run_of(BLOCKS, optimizer=torch.optim.AdamW) as run:
            stack_loss(run.model).backward()
            lent = [StorageWeakRef(p.grad.untyped_storage()) for p in run.model.parameters()]
            runtime = type(stepwell.torch.offloaded(run.model).runtime)
            with mock.patch.object(runtime, "drain", side_effect=KeyboardInterrupt):
                with self.assertRaises(KeyboardInterrupt):
                    run.optimizer.step()
                run.optimizer.zero_grad()
                gc.collect()
                self.assertFalse(any(storage.expired() for storage in lent))
            run.step(1, stack_loss)  # waits for the update
            gc.collect()
            self.assertTrue(all(storage.expired() for storage in lent))

    def test_gradients_are_those_of_plain_torch(self):
        def train(blocks):
            with self.run_of(blocks) as run:
                found = []
                for _ in range(2):
                    stack_loss(run.model).backward()
                    run.optimizer.step()  # the second one with the sum of both
                found.append([p.grad.norm().item() for p in run.model.parameters()])
                run.optimizer.step()
                for p in run.model.parameters():
                    if p.dim() == 2:
                        p.grad = p.grad.t().contiguous().t()  # other strides
                run.optimizer.step()
                run.optimizer.zero_grad(set_to_none=False)
                run.optimizer.step()
                found += [p.grad.sum().item() for p in run.model.parameters()]
                return found + [p.sum().item() for p in run.model.parameters()]
        self.same(train)

    def test_gradients_from_before_stay_and_are_added_to(self):
        def train(offloaded):
            torch.manual_seed(0)
            model = nn.Linear(8, 8)
            optimizer = torch.optim.AdamW(model.parameters(), 0.1)
            model(torch.ones(2, 8)).sum().backward()
            before = model.weight.grad
            if offloaded:
                stepwell.torch.offload(model, optimizer, device_bytes=32 * support.BLOCK,
                                       block_bytes=support.BLOCK)
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            found = [p.grad.sum().item() for p in model.parameters()]
            if offloaded:
                self.assertIs(type(model.weight.grad), torch.Tensor)
                stepwell.torch.offloaded(model).close()
            del before
            return found + [p.sum().item() for p in model.parameters()]
        self.assertEqual(train(True), train(False))

    def test_errors_of_gradients_are_those_of_a_model_that_moves(self):
        with self.run_of(BLOCKS) as run:
            loss = stack_loss(run.model)
            loss.backward(retain_graph=True)
            run.optimizer.step()
            with self.assertRaisesRegex(RuntimeError, "modified: parameter 'layers.*'"):
                loss.backward()
            run.model.zero_grad()
            run.step(1, stack_loss)
        sparse = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 8))
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            offload(sparse, torch.optim.SGD(sparse.parameters(), 0.1), BLOCKS, directory)
            with self.assertRaisesRegex(RuntimeError, "sparse=False"):
                sparse(torch.tensor([1])).sum().backward()
            stepwell.torch.offloaded(sparse).close()


if __name__ == "__main__":
    unittest.main()
