# SPDX-License-Identifier: Apache-2.0
"""What an offloaded model refuses by name, and objects of other libraries that wrap one.

Skipped where PyTorch is not installed.
"""
import importlib.util
import unittest

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch

BLOCK = support.BLOCK


class Agent(nn.Module if HAS_TORCH else object):
    """A model that is called through its parts."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(128, 128) for _ in range(2)))

    def act(self, x):
        return self.net(x)

    def forward(self, x):
        return self.net(x)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Words(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(1)

    def made(self, model=None, blocks=64, optimizer=torch.optim.AdamW, **options):
        model = Agent() if model is None else model
        optimizer = optimizer(model.parameters(), 1e-3)
        stepwell.torch.offload(model, optimizer, device_bytes=blocks * BLOCK, block_bytes=BLOCK,
                               **options)
        self.addCleanup(stepwell.torch.offloaded(model).close)
        return model, optimizer

    def test_a_gradient_with_a_graph_is_refused_where_gradients_are_in_tiers(self):
        for kind in (torch.optim.AdamW, torch.optim.RMSprop):
            model, optimizer = self.made(optimizer=kind, update_in_backward=True)
            loss = model(torch.ones(2, 128)).square().mean()
            with self.assertRaisesRegex(RuntimeError, r"backward\(create_graph=True\).*net\..*"
                                                      r"torch.autograd.grad"):
                loss.backward(create_graph=True)
            model.zero_grad()
            self.assertTrue(all(grad.requires_grad for grad in torch.autograd.grad(
                model(torch.ones(2, 128)).square().mean(), [*model.net.parameters()],
                create_graph=True)))
            model(torch.ones(2, 128)).mean().backward()  # training goes on
            optimizer.step()

    def test_a_gradient_with_a_graph_is_a_term_of_a_loss_where_all_fits(self):
        def trained(model, optimizer):
            for _ in range(2):
                loss = model(torch.ones(2, 128)).square().mean()
                loss.backward(create_graph=True)
                penalty = sum(p.grad.square().sum() for p in model.parameters())
                optimizer.zero_grad()
                (model(torch.ones(2, 128)).square().mean() + penalty).backward()
                optimizer.step()
                optimizer.zero_grad()
            return [p.sum().item() for p in model.parameters()]
        for kind in (torch.optim.AdamW, torch.optim.RMSprop):
            torch.manual_seed(1)
            plain = Agent()
            expected = trained(plain, kind(plain.parameters(), 1e-3))
            torch.manual_seed(1)
            model, optimizer = self.made(optimizer=kind)
            self.assertTrue(stepwell.torch.offloaded(model).plain_gradients)
            self.assertEqual(trained(model, optimizer), expected)

    def test_gradients_of_another_dtype_are_refused(self):
        if not hasattr(torch.Tensor, "grad_dtype"):
            self.skipTest("this torch has no grad_dtype")
        model, _ = self.made(Agent().bfloat16())
        weight = model.net[0].weight
        with self.assertRaisesRegex(RuntimeError, "grad_dtype = torch.float32 of parameter "
                                                  "'net.0.weight'"):
            weight.grad_dtype = torch.float32
        weight.grad_dtype = torch.bfloat16
        self.assertEqual(weight.grad_dtype, torch.bfloat16)
        other = Agent().bfloat16()
        other.net[1].bias.grad_dtype = torch.float32
        with self.assertRaisesRegex(TypeError, "'net.1.bias'.*grad_dtype"):
            stepwell.torch.offload(other, device_bytes=64 * BLOCK)

    def test_other_memory_for_a_parameter_is_refused(self):
        model, _ = self.made()
        for move in (lambda: model.to("meta"), lambda: model.net[1].to_empty(device="meta"),
                     lambda: model.net[0].weight.set_(torch.zeros(128, 128))):
            with self.assertRaisesRegex(RuntimeError, "would replace the memory of parameter"):
                move()
        elsewhere = torch.empty(128, 128, device="meta")
        with self.assertRaisesRegex(RuntimeError, "data on meta for parameter 'net.0.weight'"):
            model.net[0].weight.data = elsewhere
        model(torch.ones(2, 128)).sum().backward()
        before = model.net[0].weight.grad.clone()
        with self.assertRaisesRegex(RuntimeError, "on meta for parameter 'net.0.weight'"):
            model.net[0].weight.grad = elsewhere
        self.assertTrue(torch.equal(model.net[0].weight.grad, before))
        self.assertEqual(model.net[0].weight.to("meta").device.type, "meta")  # a copy
        self.assertIs(model.to(support.DEVICE), model)
        self.assertTrue(model(torch.ones(2, 128)).isfinite().all())

    def test_progress_counts_steps_of_models_called_through_parts_and_in_eval(self):
        for call in ("forward", "act", "eval"):
            model, optimizer = self.made()
            model.train(call != "eval")
            for _ in range(3):
                (model.act if call == "act" else model)(torch.ones(2, 128)).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            found = stepwell.torch.offloaded(model).progress()
            self.assertEqual(found.steps, 3, call)

    def test_offloaded_finds_the_model_inside_a_wrapper(self):
        model, _ = self.made()
        tiers = stepwell.torch.offloaded(model)
        self.assertIs(stepwell.torch.offloaded(torch.compile(model, backend="eager")), tiers)
        other, _ = self.made()
        with self.assertRaisesRegex(KeyError, "contains 2 models"):
            stepwell.torch.offloaded(nn.ModuleList([model, other]))
        with self.assertRaisesRegex(KeyError, "contains 0 models"):
            stepwell.torch.offloaded(model.net)

    def test_what_accelerate_has_prepared_is_offloaded(self):
        if importlib.util.find_spec("accelerate") is None:
            self.skipTest("accelerate is not installed (./dev test long)")
        import accelerate
        losses = []
        for blocks in (0, 64):
            torch.manual_seed(1)
            accelerator = accelerate.Accelerator(cpu=True)
            model = Agent()
            model, optimizer = accelerator.prepare(
                model, torch.optim.AdamW(model.parameters(), 1e-3))
            if blocks:
                same = stepwell.torch.offload(model, optimizer, device_bytes=blocks * BLOCK,
                                              block_bytes=BLOCK)
                self.assertIs(same[1], optimizer)
            for _ in range(3):
                loss = model(torch.ones(2, 128)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if blocks:
                stepwell.torch.offloaded(model).close()
        self.assertEqual(*losses)
        optimizer.scaler = torch.amp.GradScaler(support.DEVICE)
        with self.assertRaisesRegex(TypeError, "before prepare"):
            stepwell.torch.offload(model, optimizer, device_bytes=64 * BLOCK)


if __name__ == "__main__":
    unittest.main()
