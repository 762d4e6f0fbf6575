# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload(): the losses of plain PyTorch, to the bit, beyond the budget.

Skipped where PyTorch is not installed.
"""
import contextlib
import copy
import gc
import importlib.util
import io
import json
import os
import statistics
import tempfile
import unittest
import warnings
import weakref

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    import stepwell
    import stepwell.torch

BLOCK = support.BLOCK


def own_steps(parameters):
    """An optimizer that has no kernel here: its own code runs, so that all bits are torch's."""
    return torch.optim.RMSprop(parameters, 1e-3, foreach=False)


if HAS_TORCH:
    class Adapted(nn.Module):
        """A frozen base of a block each, with adapters of 2 KiB."""

        def __init__(self, layers=24, width=128):
            super().__init__()
            self.base = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
            self.base.requires_grad_(False)
            self.down = nn.ModuleList(nn.Linear(width, 4, bias=False) for _ in range(layers))
            self.up = nn.ModuleList(nn.Linear(4, width, bias=False) for _ in range(layers))

        def forward(self, x):
            for base, down, up in zip(self.base, self.down, self.up):
                x = x + base(x) + up(down(x))
            return x

    class Quantised(nn.Module):
        """A weight of int8 with scales by row, and an adapter."""

        def __init__(self, width=128):
            super().__init__()
            values = torch.randn(width, width) / width
            self.scale = nn.Parameter(values.abs().amax(1, keepdim=True) / 127, False)
            self.weight = nn.Parameter((values / self.scale).round().to(torch.int8), False)
            self.bits = nn.Parameter(torch.randint(256, (width,)).to(torch.uint8), False)
            self.down = nn.Linear(width, 4, bias=False)
            self.up = nn.Linear(4, width, bias=False)

        def forward(self, x):
            weight = self.weight.to(x.dtype) * self.scale * (self.bits > 127)
            return x + nn.functional.linear(x, weight) + self.up(self.down(x))

    class Product(torch.autograd.Function):
        """Adds the sum of a product; the gradient of one weight is the other weight itself."""

        @staticmethod
        def forward(ctx, x, one, other):
            ctx.save_for_backward(one, other)
            return x + (one * other).sum()

        @staticmethod
        def backward(ctx, grad):
            one, other = ctx.saved_tensors
            return grad, other, one * 1

    class Stack(nn.Module):
        """Layers of 512 KiB; how = None, or use_reentrant of a checkpoint around each."""

        def __init__(self, how=None, layers=6, width=128):
            super().__init__()
            self.how = how
            self.layers = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                              nn.Linear(4 * width, width)) for _ in range(layers))

        def forward(self, x):
            for layer in self.layers:
                x = x + (layer(x) if self.how is None
                         else checkpoint(layer, x, use_reentrant=self.how))
            return x


def stack_loss(model):
    return model(torch.randn(8, 128, requires_grad=True)).pow(2).mean()


def steps_with_writes(run):
    """Losses of three steps, with all parameters written between forward and backward."""
    found = []
    for step in range(3):
        torch.manual_seed(step)
        loss = stack_loss(run.model)
        for parameter in run.model.parameters():
            parameter.data.mul_(0.99)
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        found.append(loss.item())
    return found


class Run:
    """A model that trains some steps, plain or offloaded."""

    def __init__(self, make, optimizer, budget, **options):
        torch.manual_seed(1)
        self.model = make()
        self.optimizer = optimizer(self.model.parameters())
        self.directory = None
        if budget:
            self.directory = tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".")
            self.model, self.optimizer = offload(self.model, self.optimizer, budget,
                                                 self.directory.name, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.directory:
            with contextlib.suppress(KeyError):  # closed by the test
                made = stepwell.torch.offloaded(self.model)
                if made.in_backward is not None:  # a refused loop has left its step open
                    made.in_backward.end_step()
                made.close()
            self.directory.cleanup()

    def step(self, seed, loss):
        torch.manual_seed(seed)
        value = loss(self.model)
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value.item()

    def interrupt_step(self, seed, drop=True):
        """A step of a Stack whose backward pass is interrupted in its middle, and zero_grad()."""
        def interrupted(_):
            raise KeyboardInterrupt
        handle = self.model.layers[2][1].weight.register_hook(interrupted)
        try:
            self.step(seed, stack_loss)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the backward pass was not interrupted")
        finally:
            handle.remove()
        if drop:
            self.optimizer.zero_grad()


def offload(model, optimizer, blocks, directory, nvme_blocks=1024, **options):
    return stepwell.torch.offload(
        model, optimizer, device_bytes=blocks * BLOCK, block_bytes=BLOCK, thread_count=2,
        nvme=stepwell.Nvme(directory, (1 << 20) + nvme_blocks * BLOCK,
                           driver_options="allow_tmpfs=1"),
        **options)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Offload(unittest.TestCase):
    def setUp(self):
        if HAS_TORCH:
            torch.set_num_threads(2)

    def train(self, make, loss, budget, optimizer=own_steps, steps=3, after=None):
        with Run(make, optimizer, budget) as run:
            found = [run.step(step, loss) for step in range(steps)]
            run.model.eval()
            with torch.no_grad():
                torch.manual_seed(7)
                found.append(loss(run.model).item())
            if after:
                found.append(after(run))
            return found

    def same(self, make, loss, blocks=64, **options):
        """The values of a plain run; fails where the offloaded one has others."""
        plain = self.train(make, loss, 0, **options)
        self.assertEqual(self.train(make, loss, blocks, **options), plain)
        return plain

    # -- models -----------------------------------------------------------------------------------

    def test_a_model_beyond_the_budget_has_the_losses_of_plain_torch(self):
        # 3 MiB of parameters, as many gradients and states, through 1.5 MiB.
        self.same(Stack, stack_loss, blocks=24)

    def test_steps_write_the_blocks_of_adapters_and_not_their_frozen_base(self):
        # 24 blocks of base, through 16; the adapters fill 2, and so do their gradients.
        written = []

        def moved(run):
            run.model.train()
            tiers = stepwell.torch.offloaded(run.model)
            for step in range(6):
                run.step(10 + step, stack_loss)
                tiers.runtime.drain()
                written.append(tiers.runtime.link_stats("device_to_nvme").bytes)
        self.train(Adapted, stack_loss, 16, after=moved)
        # 24 blocks of base, or one for each adapter's gradient, would be many more. A block of base
        # is written once, which a busy machine may put off to any of these steps.
        steps = [after - before for before, after in zip(written, written[1:])]
        self.assertLessEqual(statistics.median(steps), 12 * BLOCK)
        self.same(Adapted, stack_loss, blocks=16)

    def test_weights_of_integers_are_read_as_in_plain_torch(self):
        self.same(lambda: nn.Sequential(*[Quantised() for _ in range(12)]), stack_loss, blocks=16)

    def test_both_kinds_of_checkpoints_have_the_same_losses(self):
        for how in (False, True):
            with self.subTest(use_reentrant=how):
                self.same(lambda: Stack(how), stack_loss, blocks=24)

    def test_nested_checkpoints_have_the_same_losses(self):
        class Nested(Stack):
            def forward(self, x):
                def half(x):
                    for layer in self.layers[:3]:
                        x = x + checkpoint(layer, x, use_reentrant=False)
                    return x
                x = checkpoint(half, x, use_reentrant=False)
                return super().forward(x)
        self.same(Nested, stack_loss, blocks=24)

    def test_checkpoints_inside_a_unit_have_the_same_losses(self):
        class Pair(nn.Module):
            """One unit, parts of which are computed again in backward."""

            def __init__(self, frozen=False):
                super().__init__()
                self.inner = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128))
                self.scale = nn.Parameter(torch.ones(128))
                if frozen:
                    self.requires_grad_(False)

            def forward(self, x):
                return self.scale * (x + checkpoint(self.inner, x, use_reentrant=self.how))

        class Elsewhere(nn.Module):
            """A weight that is used in a checkpoint and not by its module there."""

            def __init__(self):
                super().__init__()
                self.first = nn.Linear(128, 128)
                self.rest = nn.Sequential(*(Pair() for _ in range(12)))

            def forward(self, x):
                x = self.rest(self.first(x))
                return checkpoint(lambda x: F.linear(x, self.first.weight), x, use_reentrant=False)

        for how in (False, True):
            Pair.how = how
            for blocks in support.some((24, 768), 1):
                with self.subTest(use_reentrant=how, blocks=blocks):
                    self.same(lambda: nn.Sequential(*(Pair() for _ in range(12))), stack_loss,
                              blocks=blocks)
                    self.same(Elsewhere, stack_loss, blocks=blocks)
                    self.same(lambda: nn.Sequential(*(Pair(at % 2 == 0) for at in range(12))),
                              stack_loss, blocks=blocks)

    def test_convolutions_and_batch_norm_have_the_same_losses(self):
        def make():
            return nn.Sequential(
                nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                nn.Flatten(), nn.Linear(64, 10))

        def loss(model):
            return F.cross_entropy(model(torch.randn(8, 3, 16, 16)), torch.arange(8))

        def channels_last(model):
            data = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
            return F.cross_entropy(model(data), torch.arange(8))

        self.same(make, loss)
        self.same(lambda: make().to(memory_format=torch.channels_last), channels_last)

    def test_modules_that_use_parameters_of_their_children_have_the_same_losses(self):
        layers = torch.nn.utils.parametrizations

        def hooked():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                return nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(64, 64)), nn.ReLU())
        for name, make, loss in (
                ("lstm", lambda: nn.LSTM(64, 64, 2, batch_first=True),
                 lambda model: model(torch.randn(4, 10, 64))[0].pow(2).mean()),
                ("attention", lambda: nn.MultiheadAttention(64, 4, batch_first=True),
                 lambda model: (lambda x: model(x, x, x)[0].pow(2).mean())(
                     torch.randn(4, 10, 64))),
                ("encoder", lambda: nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2),
                 lambda model: model(torch.randn(4, 10, 64)).pow(2).mean()),
                ("parametrized", lambda: nn.Sequential(
                    layers.weight_norm(nn.Linear(64, 64)), nn.ReLU(),
                    layers.spectral_norm(nn.Linear(64, 8))),
                 lambda model: model(torch.randn(4, 64)).pow(2).mean()),
                ("weight_norm", hooked,
                 lambda model: model(torch.randn(4, 64)).pow(2).mean())):
            with self.subTest(name):
                self.same(make, loss)

    def test_tied_reused_and_listed_parameters_have_the_same_losses(self):
        class Lists(nn.Module):
            def __init__(self):
                super().__init__()
                self.each = nn.ParameterList(
                    nn.Parameter(torch.randn(128, 128) * 0.05) for _ in range(12))
                self.named = nn.ParameterDict({"a": nn.Parameter(torch.randn(128))})
                self.scale = nn.Parameter(torch.ones(128))
                self.first = nn.Linear(128, 128)
                self.last = nn.Linear(128, 128)
                self.last.weight = self.first.weight

            def forward(self, x):
                x = self.first(self.first(x))
                for each in self.each:
                    x = torch.tanh(x @ each) * self.scale
                return self.last(x + self.named["a"])
        self.same(Lists, stack_loss, blocks=40)

    def test_parameters_used_outside_their_module_have_the_same_losses(self):
        class Outside(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(128, 128)
                self.b = nn.ModuleList(nn.Linear(128, 128) for _ in range(6))

            def forward(self, x):
                x = F.linear(x, self.a.weight, self.a.bias)
                for layer in self.b:
                    x = x @ layer.weight.t()
                return x

        def loss(model):
            return stack_loss(model) + sum(p.pow(2).sum() for p in model.parameters()) * 1e-4
        self.same(Outside, loss, blocks=64)

    def test_writes_inside_forward_are_kept(self):
        class Writes(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(128, 128)
                self.b = nn.Linear(128, 128)

            def forward(self, x):
                with torch.no_grad():
                    self.a.weight.clamp_(-0.03, 0.03)
                    self.b.weight.mul_(0.99)
                return self.b(torch.relu_(self.a(x)))
        self.same(Writes, stack_loss)

    @support.needs_numpy
    def test_arrays_over_parameters_are_written_inside_forward_and_kept_for_good(self):
        class Writes(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(128, 128) / 12)

            def forward(self, x):
                self.weight.detach().numpy()[3] *= 0.9
                x = torch.relu(x @ self.weight)
                self.weight.detach().numpy()[5] += 0.001
                return x

        def train(budget):
            with Run(lambda: nn.Sequential(*(Writes() for _ in range(40))), own_steps,
                     budget) as run:
                arrays = [p.detach().numpy() for p in run.model.parameters()]
                found = []
                for step in range(3):
                    found.append(run.step(step, stack_loss))
                    for array in arrays:
                        found.append(float(array.sum()))
                        array *= 0.98
                return found + [run.step(3, stack_loss)]
        self.assertEqual(train(24), train(0))

    def test_frozen_and_unfrozen_parameters_have_the_same_losses(self):
        def train(budget):
            with Run(Stack, own_steps, budget) as run:
                first, second = run.model.layers[0], run.model.layers[1]
                first.requires_grad_(False)
                found = [run.step(seed, stack_loss) for seed in range(2)]
                first.requires_grad_(True)
                for parameter in second.parameters():
                    parameter.requires_grad = False
                return found + [run.step(seed, stack_loss) for seed in range(2)]
        self.assertEqual(train(24), train(0))

    def test_autocast_and_half_precision_have_the_same_losses(self):
        def autocast(model):
            with torch.autocast(support.DEVICE, torch.bfloat16):
                return model(torch.randn(8, 128)).float().pow(2).mean()
        self.same(Stack, autocast, blocks=24)
        self.same(lambda: Stack(False), autocast, blocks=24)
        self.same(lambda: Stack().bfloat16(),
                  lambda model: model(torch.randn(8, 128).bfloat16()).float().pow(2).mean(),
                  blocks=24)

    # -- loops ------------------------------------------------------------------------------------

    def test_the_default_device_of_torch_is_the_programs_alone(self):
        """Tensors of the package's own are where they belong: none is on that device."""
        found = []
        for budget in (0, 12):
            for optimizer in (own_steps, lambda each: torch.optim.AdamW(each, 1e-2)):
                with Run(Stack, optimizer, budget) as run:
                    torch.manual_seed(2)
                    data = [torch.randn(8, 128) for _ in range(3)]
                    with torch.device("meta"):
                        losses = []
                        for at, batch in enumerate(data):
                            loss = run.model(batch).pow(2).mean()
                            loss.backward()
                            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
                            run.optimizer.step()
                            run.optimizer.zero_grad()
                            losses.append(loss.item())
                        run.optimizer.load_state_dict(run.optimizer.state_dict())
                        state = copy.deepcopy(run.model.state_dict())
                        run.model.load_state_dict(state)
                        states = [value.double().sum().item() if isinstance(value, torch.Tensor)
                                  else value for each in run.optimizer.state.values()
                                  for name, value in each.items() if name != "step"]
                        if budget:
                            stepwell.torch.offloaded(run.model).close()
                            run.directory = run.directory.cleanup()
                    found.append((losses, states, [value.double().sum().item()
                                                   for value in run.model.state_dict().values()]))
        self.assertEqual(found[:2], found[2:])

    def test_a_scaler_a_clip_a_schedule_and_micro_batches_have_the_same_losses(self):
        def train(budget):
            with Run(Stack, own_steps, budget) as run:
                scaler = torch.amp.GradScaler(support.DEVICE, init_scale=1024.0, growth_interval=2)
                schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 1, 0.5)
                found = []
                for step in range(4):
                    for micro in range(2):
                        torch.manual_seed(10 * step + micro)
                        loss = stack_loss(run.model) / 2
                        if step == 2:
                            loss = loss * float("inf")
                        scaler.scale(loss).backward()
                    scaler.unscale_(run.optimizer)
                    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
                    torch.nn.utils.clip_grad_value_(run.model.parameters(), 0.05)
                    scaler.step(run.optimizer)
                    scaler.update()
                    run.optimizer.zero_grad()
                    schedule.step()
                    found.append((step == 2 or loss.item(), step == 2 or norm.item(),
                                  scaler.get_scale()))
                return found
        self.assertEqual(train(24), train(0))

    def test_optimizers_that_have_kernels_have_the_bits_of_torch(self):
        for make in (lambda p: torch.optim.AdamW(p, 1e-3),
                     lambda p: torch.optim.Adam(p, 1e-3, weight_decay=0.01),
                     lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
                     lambda p: torch.optim.Adagrad(p, 1e-2)):
            self.same(Stack, stack_loss, blocks=24, optimizer=make)

    def test_kernels_in_their_own_order_follow_torch_closely(self):
        def make(parameters):
            return torch.optim.AdamW(parameters, 1e-3, foreach=True)
        plain = self.train(Stack, stack_loss, 0, optimizer=make)
        ours = self.train(Stack, stack_loss, 24, optimizer=make)
        for ours, plain in zip(ours, plain):
            self.assertAlmostEqual(ours, plain, delta=2e-6 * plain)

    def test_any_other_optimizer_has_the_same_losses(self):
        for name in support.some(("NAdam", "Adafactor", "Adamax", "RAdam", "Rprop"), 2):
            with self.subTest(name):
                self.same(Stack, stack_loss, blocks=40,
                          optimizer=lambda p: getattr(torch.optim, name)(p, foreach=False))
        self.same(Stack, stack_loss, blocks=40,
                  optimizer=lambda p: torch.optim.AdamW(p, amsgrad=True, foreach=False))

    def test_states_travel_between_plain_and_offloaded_optimizers(self):
        for make in (lambda p: torch.optim.AdamW(p, 1e-3), own_steps):
            with Run(Stack, make, 0) as plain, Run(Stack, make, 24) as run:
                for step in range(2):
                    plain.step(step, stack_loss)
                run.model.load_state_dict(plain.model.state_dict())
                run.optimizer.load_state_dict(plain.optimizer.state_dict())
                kept = run.optimizer.state_dict()
                expected = plain.optimizer.state_dict()
                self.assertEqual(kept["param_groups"], expected["param_groups"])
                for at, state in expected["state"].items():
                    for name, value in state.items():
                        self.assertTrue(torch.equal(kept["state"][at][name], value), name)
                self.assertAlmostEqual(run.step(5, stack_loss), plain.step(5, stack_loss))

    def test_closing_gives_the_model_and_the_optimizer_plain_memory(self):
        def train(budget):
            run = Run(Stack, own_steps, budget)
            with run:
                found = [run.step(0, stack_loss)]
                for parameter in run.model.parameters():
                    parameter.data = parameter.data * 0.5
            return found + [run.step(1, stack_loss)], run
        ours, run = train(24)
        self.assertEqual(ours, train(0)[0])
        self.assertTrue(all(type(p) is nn.Parameter for p in run.model.parameters()))
        self.assertIs(type(run.optimizer), torch.optim.RMSprop)

    def test_schedulers_made_before_and_after_offload_watch_the_steps(self):
        def train(when, inside):
            """Losses and rates: `inside` steps in tiers, the others after close()."""
            torch.manual_seed(1)
            model = Stack(layers=2)
            optimizer = own_steps(model.parameters())
            make = torch.optim.lr_scheduler.StepLR
            schedule = make(optimizer, 1, 0.5) if when == "before" else None
            if when is not None:
                directory = tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".")
                self.addCleanup(directory.cleanup)
                offload(model, optimizer, 24, directory.name)
            schedule = schedule or make(optimizer, 1, 0.5)
            found = []
            for step in range(3):
                if when is not None and step == inside:
                    stepwell.torch.offloaded(model).close()
                torch.manual_seed(step)
                loss = stack_loss(model)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                found.append((loss.item(), schedule.get_last_lr()))
            if when is not None and inside == 3:
                stepwell.torch.offloaded(model).close()
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            expected = train(None, 0)
            for when in ("before", "after"):
                for inside in (0, 3):
                    with self.subTest(when=when, inside=inside):
                        self.assertEqual(train(when, inside), expected)

    def test_two_models_in_turn_have_the_same_losses(self):
        def train(budget):
            entropy = F.binary_cross_entropy_with_logits
            with Run(lambda: Stack(layers=3), own_steps, budget) as generates, \
                    Run(lambda: nn.Sequential(Stack(layers=2), nn.Linear(128, 1)), own_steps,
                        budget) as judges:
                generator, critic = generates.model, judges.model
                found = []
                for step in range(3):
                    torch.manual_seed(step)
                    made = generator(torch.randn(8, 128))
                    known = entropy(critic(torch.randn(8, 128)), torch.ones(8, 1))
                    known.backward()
                    entropy(critic(made.detach()), torch.zeros(8, 1)).backward()
                    judges.optimizer.step()
                    judges.optimizer.zero_grad()
                    critic.requires_grad_(False)
                    missed = entropy(critic(made), torch.ones(8, 1))
                    missed.backward()
                    critic.requires_grad_(True)
                    generates.optimizer.step()
                    generates.optimizer.zero_grad()
                    found.append((known.item(), missed.item()))
                return found
        self.assertEqual(train(24), train(0))

    def test_a_schedule_ahead_of_the_steps_is_warned_of_as_in_plain_torch(self):
        make = torch.optim.lr_scheduler.StepLR
        for budget in (0, 24):
            with Run(Stack, own_steps, budget) as run:
                run.step(0, stack_loss)  # nothing watches it
                schedule = make(run.optimizer, 1)
                with self.assertWarnsRegex(UserWarning, "call of `lr_scheduler.step..` before"):
                    schedule.step()

    # -- accesses ---------------------------------------------------------------------------------

    def test_accesses_between_steps_see_and_keep_the_bytes(self):
        def after(run):
            model, optimizer = run.model, run.optimizer
            found = [sum(value.double().sum().item() for value in model.state_dict().values())]
            copied = copy.deepcopy(model)
            self.assertTrue(all(type(p) is nn.Parameter for p in copied.parameters()))
            torch.manual_seed(3)
            data = torch.randn(2, 128)
            with torch.no_grad():
                self.assertTrue(torch.equal(copied(data), model(data)))
                found.append(sum(p.norm().item() for p in model.parameters()))
                average = [p.detach().clone() for p in model.parameters()]
                for mean, p in zip(average, model.parameters()):
                    mean.mul_(0.9).add_(p, alpha=0.1)
                found.append(sum(mean.sum().item() for mean in average))
                for p in model.parameters():
                    p.mul_(1.01)
                for p in model.parameters():
                    p.data.add_(0.001)
                found.append(model(data).sum().item())
                self.assertIn("Linear", repr(model))
                self.assertIn("tensor", str(next(model.parameters())))
                file = io.BytesIO()
                torch.save(model.state_dict(), file)
                file.seek(0)
                for p in model.parameters():
                    p.zero_()
                model.load_state_dict(torch.load(file))
                found.append(model(data).sum().item())
            optimizer.load_state_dict(optimizer.state_dict())
            loss = model(data).pow(2).mean()
            loss.backward()
            found.append(next(model.parameters()).grad.norm().item())
            optimizer.step()
            optimizer.zero_grad()
            self.assertIsNone(next(model.parameters()).grad)
            return found + [model(data).sum().item()]
        self.same(lambda: Stack(layers=3), stack_loss, blocks=96, after=after)

    def test_a_parameter_that_is_read_into_another_tensor_is_not_written_again(self):
        with Run(Stack, own_steps, 24) as run, torch.no_grad():
            runtime = stepwell.torch.offloaded(run.model).runtime

            def written():
                runtime.evict()
                return sum(runtime.link_stats(link).bytes
                           for link in ("device_to_host", "device_to_nvme"))
            means = [torch.ones(p.shape) for p in run.model.parameters()]
            before = written()
            for mean, p in zip(means, run.model.parameters()):
                mean.lerp_(p, 0.5)
                mean.copy_(p)
            self.assertEqual(written(), before)
            for mean, p in zip(means, run.model.parameters()):
                self.assertTrue(torch.equal(mean, p))
                p.lerp_(mean, 0.5).mul_(2)
                nn.init.constant_(p, 3)
            self.assertGreater(written(), before)
            self.assertTrue(all(bool((p == 3).all()) for p in run.model.parameters()))

    def test_writes_between_forward_and_backward_are_kept(self):
        def train(budget):
            with Run(Stack, own_steps, budget) as run:
                return steps_with_writes(run)
        self.assertEqual(train(24), train(0))

    def test_every_access_to_data_between_forward_and_backward_is_alike(self):
        def train(budget):
            with Run(Stack, own_steps, budget) as run:
                loss = stack_loss(run.model)
                for parameter in run.model.parameters():
                    parameter.data.mul_(0.99)
                    parameter.data.mul_(1.01)
                loss.backward()
                return [p.grad.clone() for p in run.model.parameters()]
        for plain, resident, tight in zip(train(0), train(512), train(24)):
            self.assertTrue(torch.equal(plain, resident))
            self.assertTrue(torch.equal(plain, tight))

    def test_a_weight_that_a_node_returns_as_a_gradient_is_summed_as_it_was(self):
        class Last(Stack):
            def forward(self, x):
                return Product.apply(super().forward(x), self.layers[0][1].weight,
                                     self.layers[1][1].weight)

        def train(budget, **options):
            with Run(Last, own_steps, budget, **options) as run:
                return [run.step(seed, stack_loss) for seed in range(4)]
        self.assertEqual(train(24), train(0))
        if support.DEVICE == "cpu":
            self.assertEqual(train(24, fault_in=False), train(0))

    def test_a_backward_after_the_step_is_an_error(self):
        with Run(Stack, own_steps, 24) as run:
            loss = stack_loss(run.model)
            loss.backward(retain_graph=True)
            run.optimizer.step()
            run.optimizer.zero_grad()
            with self.assertRaisesRegex(RuntimeError, "modified: parameter 'layers.*'"):
                loss.backward()
            # And what is no parameter is still watched as by torch itself.
            y = run.model(torch.randn(4, 128))
            z = y.exp()
            with self.assertRaisesRegex(RuntimeError, "inplace"):
                class Inside(nn.Module):
                    def forward(self, x):
                        z = x.exp()
                        z.add_(1)
                        return z
                run.model.layers.append(Inside())
                run.model(torch.randn(4, 128)).sum().backward()
            del y, z

    def test_gradients_of_gradients_have_the_same_values(self):
        def train(budget):
            with Run(Stack, own_steps, budget) as run:
                torch.manual_seed(0)
                data = torch.randn(4, 128, requires_grad=True)
                first, = torch.autograd.grad(run.model(data).pow(3).sum(), data, create_graph=True)
                first.pow(2).sum().backward()
                found = [p.grad.norm().item() for p in run.model.parameters()]
                run.optimizer.step()
                return found
        self.assertEqual(train(32), train(0))
        self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(True))

    def test_a_failed_forward_gives_all_views_back(self):
        with Run(Stack, own_steps, 24) as run:
            stats = stepwell.torch.offloaded(run.model).runtime.tier_stats
            with self.assertRaises(RuntimeError):
                run.model(torch.randn(4, 5))

            def interrupted(*_):
                raise KeyboardInterrupt
            handle = run.model.layers[2][1].register_forward_hook(interrupted)
            with self.assertRaises(KeyboardInterrupt):
                stack_loss(run.model)
            handle.remove()
            self.assertEqual(stats("device").open_views, 0)
            self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(True))
            run.step(0, stack_loss)

    def test_gradients_are_dropped_while_they_are_added(self):
        with Run(lambda: Stack(width=512, layers=2), own_steps, 512) as run:
            for seed in range(4):
                torch.manual_seed(seed)
                run.model(torch.randn(1, 512)).sum().backward()
                run.optimizer.zero_grad()  # at once, with sums under way
            self.assertTrue(all(p.grad is None for p in run.model.parameters()))

    def test_gradients_that_an_update_has_consumed_are_refused_where_they_are_used(self):
        for make in own_steps, torch.optim.AdamW:
            with self.subTest(make), Run(Stack, make, 24) as run:
                stack_loss(run.model).backward()
                run.optimizer.step()
                stack_loss(run.model).backward()  # a sum that nothing has used yet
                with self.assertRaisesRegex(RuntimeError, "consumed by the update"):
                    run.model.layers[5][3].weight.grad.norm()
                with self.assertRaisesRegex(RuntimeError, "consumed by the update"):
                    run.optimizer.step()
                run.model.zero_grad()
                run.step(1, stack_loss)

    def test_a_graph_that_is_dropped_goes(self):
        class Exponential(nn.Module):
            def forward(self, x):
                return x.exp()  # its node saves what it returns
        with Run(lambda: nn.Sequential(nn.Linear(8, 8), Exponential()), own_steps, 24) as run:
            result = run.model(torch.randn(4, 8))
            alive = weakref.ref(result)
            del result
            gc.collect()
            self.assertIsNone(alive())

    # -- activations ------------------------------------------------------------------------------

    def spilled(self, how, keep):
        with Run(lambda: Stack(how), own_steps, 32) as run:
            found = []
            for step in range(4):
                torch.manual_seed(step)
                with stepwell.torch.save_on_tiers(run.model, keep) as spill:
                    loss = run.model(torch.randn(128, 128, requires_grad=True)).pow(2).mean()
                loss.backward()
                run.optimizer.step()
                run.optimizer.zero_grad()
                found.append(loss.item())
                del loss
                self.assertEqual(spill.kept, 0)
            stats = stepwell.torch.offloaded(run.model).runtime.tier_stats("device")
            self.assertEqual(stats.open_views, 0)
            return found, spill

    def test_saved_tensors_beyond_the_limit_come_back_from_tiers(self):
        everything, spill = self.spilled(None, 1 << 30)
        self.assertEqual(spill.left, 0)
        self.assertGreater(spill.peak, 3 << 20)
        beyond, spill = self.spilled(None, 1 << 20)
        self.assertEqual(beyond, everything)
        self.assertGreater(spill.left, 2 << 20)
        self.assertLess(spill.peak, 2 << 20)

    def test_a_saved_tensor_that_is_written_is_an_error_wherever_it_is(self):
        with Run(Stack, own_steps, 32) as run:
            for keep in (0, 1 << 30):
                with stepwell.torch.save_on_tiers(run.model, keep):
                    class Written(nn.Module):
                        def forward(self, x):
                            z = x.exp()
                            z.add_(1)
                            return z
                    run.model.layers.append(Written())
                    loss = run.model(torch.randn(256, 128)).sum()
                with self.assertRaisesRegex(RuntimeError, "inplace operation"):
                    loss.backward()
                del run.model.layers[-1]
                run.optimizer.zero_grad()

    # -- refusals ---------------------------------------------------------------------------------

    def test_a_unit_leaves_a_block_for_its_gradients_or_is_refused(self):
        def make():  # units of five blocks
            return nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))

        def loss(model):
            return model(torch.randn(8, 256)).pow(2).mean()
        with tempfile.TemporaryDirectory(dir=".") as directory:
            with self.assertRaisesRegex(stepwell.BudgetError, r"module '0' \(Linear\) takes 5 "
                                        "blocks .* has 5: none is left to add its gradients"):
                model = make()
                offload(model, torch.optim.AdamW(model.parameters()), 5, directory)

        def train(blocks):
            options = {"timeout": 30} if blocks else {}
            with Run(make, torch.optim.AdamW, blocks, **options) as run:
                return [run.step(seed, loss) for seed in range(3)]
        self.assertEqual(train(6), train(0))

    def test_what_cannot_be_offloaded_is_refused_by_name(self):
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            def refused(error, words, model, optimizer=None, blocks=24):
                with self.assertRaisesRegex(error, words):
                    offload(model, optimizer, blocks, directory)
            half = nn.Linear(4, 4)
            half.weight = nn.Parameter(half.weight.to(torch.complex64))
            refused(TypeError, "'weight' is torch.complex64", half)
            refused(TypeError, "'weight' is on meta", nn.Linear(4, 4, device="meta"))
            refused(TypeError, "'weight' has no shape yet", nn.LazyLinear(4))
            refused(TypeError, "DataParallel keeps copies", nn.DataParallel(nn.Linear(4, 4)))
            refused(ValueError, "no parameters", nn.ReLU())
            twice = nn.Linear(4, 4)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own
                refused(ValueError, "in the optimizer's groups twice", twice,
                        torch.optim.SGD([twice.weight, twice.bias, twice.weight], 0.1))
            refused(ValueError, "1 of the 1 parameters of the optimizer are not the model's",
                    nn.Linear(4, 4), torch.optim.SGD([nn.Parameter(torch.zeros(3))]))
            refused(TypeError, "LBFGS", *(lambda m: (m, torch.optim.LBFGS(m.parameters())))(
                nn.Linear(4, 4)))
            refused(stepwell.BudgetError, r"module '1' \(Conv2d\) take \d+ bytes",
                    nn.Sequential(nn.Linear(8, 8), nn.Conv2d(1024, 1024, 1)))
            sparse = nn.Embedding(10, 8, sparse=True)
            offload(sparse, torch.optim.SGD(sparse.parameters(), 0.1), 24, directory)
            with self.assertRaisesRegex(RuntimeError, "sparse=False"):
                sparse(torch.tensor([1])).sum().backward()
            stepwell.torch.offloaded(sparse).close()

    def test_parameters_of_quantizers_are_refused_with_what_to_do(self):
        class Packed(nn.Parameter):
            """As of bitsandbytes: bytes of which the class knows the meaning."""

        class Scaled(torch.Tensor):
            """As of torchao: two tensors inside and no memory of its own."""

            @staticmethod
            def __new__(cls, values, scale):
                made = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)
                made.values, made.scale = values, scale
                return made

            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                if function is torch.ops.aten.detach.default:
                    return cls(args[0].values, args[0].scale)
                raise NotImplementedError(function)

        values = torch.zeros(4, 4, dtype=torch.int8)
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            for name, made in (("Packed", Packed(values, requires_grad=False)),
                               ("Scaled", nn.Parameter(Scaled(values, torch.ones(4)), False))):
                words = f"'1.weight' is a {name}, and .* convert it, or keep that module out"
                model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
                model[1].weight = made
                with self.assertRaisesRegex(TypeError, words):
                    offload(model, None, 24, directory)
                with stepwell.torch.init(device_bytes=24 * BLOCK, block_bytes=BLOCK, nvme=directory,
                                         nvme_bytes=128 * BLOCK) as tiers:
                    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
                    model[1].weight = made
                with self.assertRaisesRegex(TypeError, words):
                    tiers.offload(model)

    def test_compiled_models_and_function_transforms_work(self):
        def func(run):
            from torch.func import functional_call, grad
            values = {name: p.detach().clone() for name, p in run.model.named_parameters()}
            torch.manual_seed(5)
            data = torch.randn(4, 128)
            made = grad(lambda values: functional_call(
                run.model, values, (data,)).pow(2).mean())(values)
            inputs = grad(lambda x: run.model(x).pow(2).mean())(data)
            return [sum(value.sum().item() for value in made.values()), inputs.sum().item()]
        self.same(lambda: Stack(layers=2), stack_loss, blocks=96, after=func)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Report(unittest.TestCase):
    def test_the_report_has_the_phases_of_the_loop(self):
        with Run(Stack, own_steps, 24) as run:
            for step in range(3):
                run.step(step, stack_loss)
            path = os.path.join(run.directory.name, "report.json")
            stepwell.torch.offloaded(run.model).write_report(path)
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            self.assertIn("train", json.dumps(report))


if __name__ == "__main__":
    unittest.main()
