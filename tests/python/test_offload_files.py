# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.init(), files of safetensors, and generations: models that never fit anywhere.

Skipped where PyTorch is not installed.
"""
import copy
import gc
import importlib.util
import os
import tempfile
import unittest

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_TRANSFORMERS = HAS_TORCH and importlib.util.find_spec("transformers") is not None
HAS_SAFETENSORS = HAS_TORCH and importlib.util.find_spec("safetensors") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch
if HAS_TRANSFORMERS:
    import transformers

BLOCK = support.BLOCK


def tiers(directory, blocks=24, **options):
    return dict(device_bytes=blocks * BLOCK, block_bytes=BLOCK, thread_count=2,
                nvme=stepwell.Nvme(directory, (1 << 20) + 2048 * BLOCK,
                                   driver_options="allow_tmpfs=1"), **options)


def values_of(model):
    """Copies of all parameters and buffers, one at a time."""
    return {name: value.detach().clone() for name, value in
            list(model.named_parameters()) + list(model.named_buffers())}


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=512, n_positions=64, n_embd=64, n_layer=4, n_head=4))


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=512, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0))


if HAS_TORCH:
    class Block(nn.Module):
        """Initialises its children after they were made, and has parameters of its own."""

        def __init__(self, width):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(width))
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width, bias=False)
            self.late = nn.Parameter(torch.empty(width, width))
            nn.init.normal_(self.up.weight, std=0.02)
            self.up.bias.data.fill_(0.25)
            nn.init.trunc_normal_(self.late, std=0.1)
            with torch.no_grad():
                self.down.weight[0].zero_()
                self.down.weight.mul_(0.5)
                self.scale.copy_(self.late.sum(0))

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x * self.scale))) @ self.late

    class Custom(nn.Module):
        """Ties, replaces, reads, copies and clones what it has."""

        def __init__(self, width=128, layers=6):
            super().__init__()
            self.wte = nn.Embedding(200, width, padding_idx=0)
            self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
            self.clones = nn.ModuleList(copy.deepcopy(self.blocks[0]) for _ in range(2))
            self.list = nn.ParameterList(nn.Parameter(torch.randn(9)) for _ in range(4))
            self.named = nn.ParameterDict({"a": nn.Parameter(torch.rand(3, 5).t())})
            self.head = nn.Linear(width, 200, bias=False)
            self.head.weight = self.wte.weight
            self.other = nn.Linear(width, width)
            self.other.weight = nn.Parameter(torch.eye(width) * self.blocks[1].late.mean().item())
            self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
            self.none = nn.Parameter(torch.empty(0))
            self.small = nn.Linear(width, width).to(torch.bfloat16)
            self.clones[1].down.to(torch.bfloat16)
            self.clones[1].up.bias.data = torch.ones(7)
            self.register_buffer("mean", torch.arange(5.0))
            self.apply(self.init)

        def init(self, module):
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.weight.data.normal_(0, 0.03)
                nn.init.zeros_(module.bias)

        def forward(self, ids):
            x = self.wte(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(self.other(self.clones[0](x)))

    class Bare(nn.Module):
        """A subclass without __init__()."""

        def forward(self, x):
            return x


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-files-", dir=".")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        if HAS_TORCH:
            torch.set_num_threads(2)

    def equal(self, ours, plain):
        self.assertEqual(list(ours), list(plain))
        for name, value in plain.items():
            self.assertEqual((ours[name].dtype, ours[name].shape), (value.dtype, value.shape), name)
            self.assertTrue(torch.equal(ours[name], value), name)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Init(Case):
    def same(self, make, blocks=24):
        """Make it plainly and in tiers: equal values, an equal random state, all in tiers."""
        torch.manual_seed(3)
        plain = make()
        state = torch.get_rng_state()
        torch.manual_seed(3)
        with stepwell.torch.init(**tiers(self.directory, blocks)) as made:
            model = make()
        try:
            self.assertTrue(torch.equal(torch.get_rng_state(), state))
            made.offload(model)
            for name, parameter in model.named_parameters():
                self.assertTrue(hasattr(parameter, "_stepwell"), name)
                self.assertEqual(parameter._stepwell.name, name)
            self.equal(values_of(model), values_of(plain))
            for name, parameter in plain.named_parameters():
                self.assertEqual(model.get_parameter(name).requires_grad, parameter.requires_grad)
        finally:
            made.close()
        self.equal(values_of(model), values_of(plain))

    def test_modules_of_torch_have_the_values_of_plain_construction(self):
        def every():
            return nn.ModuleList([
                nn.Linear(64, 64), nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Embedding(100, 64),
                nn.LSTM(32, 32, 2, bidirectional=True), nn.MultiheadAttention(64, 4),
                nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128), 3,
                                      enable_nested_tensor=False),
                nn.Bilinear(4, 5, 6), nn.PReLU(), nn.GroupNorm(2, 8), Bare(),
                nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)),
                nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)),
                nn.Sequential(*[nn.Linear(128, 128) for _ in range(40)])])
        self.same(every)

    def test_a_nested_model_has_the_values_of_plain_construction(self):
        self.same(Custom)

    @unittest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
    def test_models_of_transformers_have_the_values_of_plain_construction(self):
        for make in (gpt2, t5):
            with self.subTest(make.__name__):
                self.same(make)

    def test_a_model_that_was_made_in_tiers_trains_as_a_plain_one(self):
        def train(model, optimizer):
            for seed in range(2):
                torch.manual_seed(seed)
                loss = model(torch.randint(0, 200, (2, 16))).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                yield loss.item()
        torch.manual_seed(1)
        model = Custom()
        plain = list(train(model, torch.optim.RMSprop(model.parameters(), foreach=False)))
        torch.manual_seed(1)
        with stepwell.torch.init(**tiers(self.directory, 32)) as made:
            model = Custom()
        optimizer = torch.optim.RMSprop(model.parameters(), foreach=False)
        made.offload(model, optimizer)
        self.assertEqual(list(train(model, optimizer)), plain)
        made.close()

    def test_tensors_of_parameters_that_nothing_refers_to_are_destroyed(self):
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
            model[1].weight = model[0].weight
            model[2].bias = nn.Parameter(torch.zeros(32))
            loose = nn.Linear(8, 8)
            unused = nn.Linear(16, 16)
            nn.Linear(4, 4)
            del unused
        before = len(list(made.runtime))
        made.offload(model)
        self.assertEqual(before - len(list(made.runtime)), 2 + 2)
        with torch.no_grad():
            self.assertEqual(loose.weight.add_(1).shape, (8, 8))
        made.close()
        self.assertIs(type(loose.weight), nn.Parameter)
        self.assertIs(model[0].weight, model[1].weight)

    def test_memory_that_something_else_writes_to_stays_where_it_is(self):
        class Writes(nn.Module):
            def __init__(self):
                super().__init__()
                data = torch.zeros(100)
                self.own = nn.Parameter(data)
                self.child = nn.Linear(5, 5)
                shown = self.child.weight.data
                self.next = nn.Linear(5, 5)
                data.fill_(3)
                shown.fill_(4)
        self.same(Writes)

    def test_little_is_in_plain_memory_meanwhile(self):
        most = []

        def plain():
            gc.collect()
            return sum(each.numel() * each.element_size() for each in gc.get_objects()
                       if type(each) is nn.Parameter)

        class Watched(nn.Linear):
            def __init__(self):
                super().__init__(128, 128)
                most.append(plain() - before)
        before = plain()
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.Sequential(*[Watched() for _ in range(30)])
            self.assertLessEqual(max(most), 4 * 129 * 128)
            copies = []
            for layer in model:
                copies.append(copy.deepcopy(layer))
                self.assertLessEqual(plain() - before, 4 * 128 * 128 + 3 * BLOCK)
        self.assertLessEqual(plain() - before, 0)
        self.assertLessEqual(made.runtime.tier_stats("device").peak_bytes, 24 * BLOCK)
        made.offload(model)
        made.close()

    def test_what_makes_no_sense_is_refused(self):
        with self.assertRaisesRegex(ValueError, "needs nvme_bytes"):
            stepwell.torch.init(device_bytes="4MiB", nvme=self.directory)
        with self.assertRaisesRegex(stepwell.BudgetError, "'Linear.weight #1' of 4194304 bytes"):
            with stepwell.torch.init(**tiers(self.directory)) as made:
                with self.assertRaisesRegex(ValueError, "inside init"):
                    with stepwell.torch.init(**tiers(self.directory)):
                        pass
                with self.assertRaisesRegex(ValueError, "after the with"):
                    made.offload(nn.Linear(2, 2))
                nn.Sequential(nn.Linear(1024, 1024), nn.ReLU())
        self.assertIs(type(nn.Linear(2, 2).weight), nn.Parameter)
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.Linear(2, 2)
        made.offload(model)
        with self.assertRaisesRegex(ValueError, "have a model already"):
            made.offload(nn.Linear(2, 2))
        made.close()
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
            model[1].weight = nn.Parameter(model[0].weight)
        with self.assertRaisesRegex(ValueError, "'1.weight' was made as Parameter.. of '0.weight'"):
            made.offload(model)
        made.close()


if __name__ == "__main__":
    support.main()
