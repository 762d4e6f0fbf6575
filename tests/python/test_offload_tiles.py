# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload(): weights that the device budget does not hold, computed with in tiles.

Where bits are compared all values are small integers, whose sums are exact in any order. Skipped
where PyTorch is not installed.
"""
import copy
import os
import pickle
import unittest
import unittest.mock
import warnings

import support
from test_offload import HAS_TORCH, Run, offload, own_steps
from test_offload_files import HAS_TRANSFORMERS, Case, tiers, values_of

if HAS_TORCH:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    import stepwell
    import stepwell.torch

BLOCK = support.BLOCK
BLOCKS = 12  # of device memory: 768 KiB
WORDS, WIDTH = 2000, 128


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-3)


if HAS_TORCH:
    class Language(nn.Module):
        """An embedding and a head of 1000 KiB each, or one weight of both."""

        def __init__(self, tied=False, bias=False, how=None):
            super().__init__()
            self.wte = nn.Embedding(WORDS, WIDTH, padding_idx=5)
            self.block = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
            self.lm_head = nn.Linear(WIDTH, WORDS, bias=bias)
            self.how = how
            if tied:
                self.lm_head.weight = self.wte.weight

        def forward(self, ids):
            x = self.wte(ids)
            x = x + self.block(x)
            return (self.lm_head(x) if self.how is None
                    else checkpoint(self.lm_head, x, use_reentrant=self.how))

    class Linears(nn.Module):
        """Without anything that rounds."""

        def __init__(self, tied=True):
            super().__init__()
            self.wte = nn.Embedding(WORDS, WIDTH, padding_idx=-4)
            self.middle = nn.Linear(WIDTH, 1700)
            self.last = nn.Linear(1700, WIDTH)
            self.lm_head = nn.Linear(WIDTH, WORDS)
            if tied:
                self.lm_head.weight = self.wte.weight
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.copy_(torch.randint(-2, 3, parameter.shape))

        def forward(self, ids):
            x = torch.randint_like(self.wte(ids), -1, 2)
            return self.lm_head(self.last(self.middle(x + self.wte(ids))).remainder(3))


def language_loss(model):
    ids = torch.randint(0, WORDS, (4, 12))
    return F.cross_entropy(model(ids).flatten(0, 1), torch.randint(0, WORDS, (48,)))


def exact_loss(model):
    ids = torch.cat([torch.randint(0, 50, (2, 9)), torch.randint(1900, WORDS, (2, 9))])
    made = model(ids)
    return (made * torch.randint_like(made, -1, 2)).sum()


class Tiles(Case):
    """Cases that need PyTorch."""

    def setUp(self):
        super().setUp()
        if not HAS_TORCH:
            self.skipTest("PyTorch is not installed (./dev setup --torch)")
        warnings.simplefilter("ignore")

    def tiled(self, run, *names):
        """Fails where other parameters are in tiles."""
        records = stepwell.torch.offloaded(run.model).records
        self.assertEqual([record.name for record in records if record.tiles], list(names))

    def close_to(self, ours, plain, delta=1e-5):
        for one, other in zip(ours, plain):
            self.assertAlmostEqual(one, other, delta=delta * abs(other))

    def train(self, make, loss, blocks, optimizer=adamw, steps=3):
        with Run(make, optimizer, blocks) as run:
            if blocks:
                self.assertTrue(any(
                    record.tiles for record in stepwell.torch.offloaded(run.model).records))
            found = [run.step(step, loss) for step in range(steps)]
            run.model.eval()
            with torch.no_grad():
                torch.manual_seed(7)
                return found + [loss(run.model).item()]

    def same(self, make, loss=language_loss, blocks=BLOCKS, delta=1e-5, **options):
        self.close_to(self.train(make, loss, blocks, **options),
                      self.train(make, loss, 0, **options), delta)


class Training(Tiles):
    def exact(self, make, loss=exact_loss):
        """All values and gradients after two passes and a step, plain and in tiles."""
        found = []
        for blocks in (0, BLOCKS):
            with Run(make, lambda p: torch.optim.SGD(p, 0.5), blocks) as run:
                values = {}
                for seed in range(2):
                    torch.manual_seed(seed)
                    made = loss(run.model)
                    values[f"loss {seed}"] = made.detach()
                    made.backward()
                for name, parameter in run.model.named_parameters():
                    values[name + ".grad"] = parameter.grad.clone()
                run.optimizer.step()
                run.optimizer.zero_grad()
                found.append({**values, **values_of(run.model)})
                if blocks:
                    self.assertLessEqual(stepwell.torch.offloaded(run.model).runtime
                                         .tier_stats("device").peak_bytes, blocks * BLOCK)
        self.assertTrue(all(value.abs().max() < 1 << 24 for value in found[0].values()))
        self.equal(found[1], found[0])

    def test_exact_sums_have_the_bits_of_plain_torch(self):
        for tied in (False, True):
            with self.subTest(tied=tied):
                self.exact(lambda: Linears(tied))

    def test_a_weight_of_transformers_conv1d_has_the_bits_of_plain_torch(self):
        class Conv1D(nn.Module):  # as transformers has it
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randint(-2, 3, (2000, 128)).float())
                self.bias = nn.Parameter(torch.randint(-2, 3, (128,)).float())

            def forward(self, x):
                return torch.addmm(self.bias, x, self.weight)

        def loss(model):
            made = model(torch.randint(-2, 3, (7, 2000)).float())
            return (made * torch.randint_like(made, -2, 3)).sum()
        self.exact(Conv1D, loss)

    def test_embeddings_have_the_bits_of_plain_torch(self):
        def loss(model):
            ids = torch.randint(0, WORDS, (3, 40))
            ids[:, :2] = torch.tensor([700, WORDS - 700])
            return model(ids).pow(3).sum()
        for options in ({}, {"padding_idx": 700}, {"scale_grad_by_freq": True}):
            def make(options=options):
                return nn.Embedding(WORDS, WIDTH, **options)
            with self.subTest(**options):
                self.assertEqual(self.train(make, loss, BLOCKS), self.train(make, loss, 0))

        class Direct(nn.Embedding):
            def forward(self, ids):
                return F.embedding(ids, self.weight, -700)
        self.assertEqual(self.train(lambda: Direct(WORDS, WIDTH), loss, BLOCKS),
                         self.train(lambda: Direct(WORDS, WIDTH), loss, 0))

        def nothing(model):
            return model(torch.zeros(2, 0, dtype=torch.int32)).sum()
        self.exact(lambda: nn.Embedding(WORDS, WIDTH), nothing)

    def test_language_models_follow_plain_torch(self):
        for options in ({}, {"tied": True}, {"bias": True}, {"how": True}, {"how": False}):
            with self.subTest(**options):
                self.same(lambda options=options: Language(**options))

    @unittest.skipUnless(HAS_TRANSFORMERS, support.NO_TRANSFORMERS)
    def test_models_of_transformers_follow_plain_torch(self):
        def gpt2():
            import transformers  # for seconds
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=2000, n_positions=32, n_embd=96, n_layer=1, n_head=4, n_inner=1500,
                attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
                bos_token_id=0, eos_token_id=1, pad_token_id=2))

        def loss(model):
            data = torch.randint(4, 2000, (2, 12))
            return model(input_ids=data, labels=data).loss
        self.same(gpt2, loss, 9)
        with Run(gpt2, adamw, 9) as run:
            self.tiled(run, "transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight",
                       "transformer.h.0.mlp.c_proj.weight")
            data = torch.arange(4, 10)[None]
            made = run.model.generate(data, max_new_tokens=5, do_sample=False)
            copied = copy.deepcopy(run.model)
            self.assertEqual(made.tolist(), copied.generate(
                data, max_new_tokens=5, do_sample=False).tolist())

    def test_one_tile_at_a_time_is_pinned(self):
        units, most = set(), [0, 0]
        enter, leave = stepwell.torch._units.Unit.enter, stepwell.torch._units.Unit.leave

        def entered(unit):
            enter(unit)
            if "[" in unit.name:
                units.add(unit)
                most[0] = max(most[0], sum(each.depth > 0 for each in units))
                most[1] += 1

        with unittest.mock.patch.multiple(stepwell.torch._units.Unit, enter=entered, leave=leave):
            for tied in (False, True):
                with Run(lambda: Language(tied), adamw, BLOCKS) as run:
                    run.step(0, language_loss)
                    run.step(1, language_loss)
        self.assertEqual(most[0], 1)
        self.assertGreater(most[1], 100)

    def test_frozen_weights_in_tiles_follow_plain_torch(self):
        def make():
            model = Language()
            model.lm_head.weight.requires_grad_(False)
            return model
        self.same(make)

        def train(blocks):
            with Run(make, adamw, blocks) as run:
                found = [run.step(0, language_loss)]
                run.model.lm_head.weight.requires_grad_(True)
                run.model.wte.weight.requires_grad_(False)
                return found + [run.step(seed, language_loss) for seed in range(2)]
        self.close_to(train(BLOCKS), train(0))

    def test_autocast_and_half_precision_follow_plain_torch(self):
        def autocast(model):
            with torch.autocast(support.DEVICE, torch.bfloat16):
                return language_loss(model)
        self.same(Language, autocast, delta=2e-3)
        self.same(lambda: Language().bfloat16(), delta=2e-3, blocks=7)

    def test_clips_scalers_and_micro_batches_follow_plain_torch(self):
        def train(blocks):
            with Run(Language, adamw, blocks) as run:
                scaler = torch.amp.GradScaler(support.DEVICE, init_scale=1024.0)
                found = []
                for step in range(3):
                    for micro in range(2):
                        torch.manual_seed(10 * step + micro)
                        scaler.scale(language_loss(run.model) / 2).backward()
                    scaler.unscale_(run.optimizer)
                    found.append(torch.nn.utils.clip_grad_norm_(
                        run.model.parameters(), 0.1).item())
                    found.append(torch.nn.utils.get_total_norm(
                        [p.grad for p in run.model.parameters()], float("inf")).item())
                    torch.nn.utils.clip_grad_value_(run.model.parameters(), 0.003)
                    found.append(run.model.wte.weight.grad.abs().max().item())
                    scaler.step(run.optimizer)
                    scaler.update()
                    run.optimizer.zero_grad()
                return found
        self.close_to(train(BLOCKS), train(0), 1e-4)

    def test_a_clip_has_one_tile_in_memory(self):
        with Run(Language, adamw, BLOCKS) as run:
            language_loss(run.model).backward()
            with unittest.mock.patch("stepwell.torch._tiles.read",
                                     side_effect=AssertionError("a whole gradient")):
                torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
                torch.nn.utils.clip_grad_value_(run.model.parameters(), 0.003)

    def test_kernels_update_weights_in_tiles(self):
        for make in (lambda p: torch.optim.Adam(p, 1e-3, weight_decay=0.01),
                     lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
                     lambda p: torch.optim.Adagrad(p, 1e-2)):
            self.same(Language, optimizer=make)

    def test_tiles_of_ones_own_size_follow_plain_torch(self):
        def train(blocks):
            torch.manual_seed(1)
            model = Language(tied=True)
            optimizer = own_steps(model.parameters())  # all of a weight has room for its step
            if blocks:
                offload(model, optimizer, blocks, self.directory, tile_bytes="60KiB")
                names = [unit.name for unit in stepwell.torch.offloaded(model).units]
                self.assertIn("wte.weight[112:224]", names)
                self.assertIn("block.1.weight[64:128]", names)
                self.assertIn("", names)
            found = []
            for seed in range(3):
                torch.manual_seed(seed)
                loss = language_loss(model)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
            if blocks:
                stepwell.torch.offloaded(model).close()
            return found
        self.close_to(train(96), train(0))

    def test_a_gradient_that_was_kept_is_dropped_without_room_for_all_of_it(self):
        model = nn.Embedding(WORDS, WIDTH)
        optimizer = adamw(model.parameters())
        offload(model, optimizer, BLOCKS, self.directory, keep_gradients=True)
        for _ in range(3):
            model(torch.arange(9)).square().sum().backward()
            optimizer.step()
            self.assertEqual(tuple(model.weight.grad.shape), (WORDS, WIDTH))
            optimizer.zero_grad()
            self.assertIsNone(model.weight.grad)

    def test_a_gradient_from_before_is_added_to_and_used_up(self):
        def losses(blocks, **options):
            torch.manual_seed(0)
            model = nn.Linear(64, 3000)
            optimizer = torch.optim.SGD(model.parameters(), .1)
            model(torch.randn(2, 64)).square().mean().backward()
            if options:
                offload(model, optimizer, blocks, self.directory, **options)
            found = []
            for _ in range(3):
                loss = model(torch.randn(2, 64)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
            return found
        self.assertEqual(losses(64, tile_bytes=20000), losses(0))

    def test_a_view_that_the_program_keeps_is_warned_of(self):
        model = nn.Linear(64, 3000)
        offload(model, None, BLOCKS, self.directory)
        weight = model.weight.data
        with self.assertWarnsRegex(UserWarning, "over a copy of 'weight'.* is lost"):
            model(torch.randn(2, 64))
        del weight

    def test_tiles_that_are_held_make_room_for_a_gradient(self):
        words, width = 3000, 64
        for _ in range(6):  # what is held when it is added depends on the update beside
            model = nn.Sequential(nn.Embedding(words, width), nn.Linear(width, width),
                                  nn.Linear(width, words))
            model[2].weight = model[0].weight
            optimizer = adamw(model.parameters())
            offload(model, optimizer, BLOCKS, self.directory, tile_bytes=20000)
            made = stepwell.torch.offloaded(model)
            for _ in range(6):
                ids = torch.randint(0, words, (3, 5))
                F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
            self.assertLessEqual(made.runtime.tier_stats("device").peak_bytes, BLOCKS * BLOCK)
            made.close()

    def test_gradients_of_gradients_have_the_same_values(self):
        def train(blocks):
            with Run(lambda: nn.Sequential(nn.Linear(128, 2000), nn.Tanh(), nn.Linear(2000, 8)),
                     adamw, blocks) as run:
                torch.manual_seed(0)
                data = torch.randn(4, 128, requires_grad=True)
                first, = torch.autograd.grad(run.model(data).pow(3).sum(), data, create_graph=True)
                first.pow(2).sum().backward()
                return [p.grad.norm().item() for p in run.model.parameters()]
        self.close_to(train(BLOCKS), train(0), 1e-4)

    def test_compiled_models_and_function_transforms_follow_plain_torch(self):
        def compiled():
            model = Language(tied=True, bias=True)
            model.forward = torch.compile(model.forward, backend="eager")
            return model
        self.same(compiled, steps=2)

        def func(blocks):
            with Run(Language, adamw, blocks) as run:
                ids = torch.arange(12)
                values = {"lm_head.weight": torch.ones(WORDS, WIDTH)}
                torch.manual_seed(3)
                x = torch.randn(3, WIDTH)
                made = torch.func.grad(lambda x: run.model.lm_head(x).pow(2).mean())(x)
                return [made.norm().item(), torch.func.functional_call(
                    run.model, values, (ids,)).mean().item()]
        self.close_to(func(BLOCKS), func(0))

    def test_backward_after_a_write_or_the_step_is_an_error(self):
        with Run(Language, adamw, BLOCKS) as run:
            loss = language_loss(run.model)
            with torch.no_grad():
                run.model.lm_head.weight.mul_(0.5)
            with self.assertRaisesRegex(RuntimeError, r"modified: parameter 'lm_head.weight\["):
                loss.backward()
            run.optimizer.zero_grad()
            loss = language_loss(run.model)
            loss.backward(retain_graph=True)
            run.optimizer.step()
            run.optimizer.zero_grad()
            with self.assertRaisesRegex(RuntimeError, r"modified: parameter 'lm_head.weight\["):
                loss.backward()
            language_loss(run.model).backward()
            run.optimizer.step()
            language_loss(run.model).backward()
            with self.assertRaisesRegex(RuntimeError, "call zero_grad"):
                run.optimizer.step()

    def test_indices_outside_are_an_error_as_in_plain_torch(self):
        with Run(Language, adamw, BLOCKS) as run:
            for ids in ([WORDS], [-1, 3]):
                with self.assertRaisesRegex(IndexError, "index out of range in self"):
                    run.model(torch.tensor(ids))
            run.step(0, language_loss)


class Accesses(Tiles):
    def test_states_travel_between_plain_and_tiled_models(self):
        with Run(Language, adamw, 0) as plain, Run(Language, adamw, BLOCKS) as run:
            self.tiled(run, "wte.weight", "lm_head.weight")
            plain.step(0, language_loss)
            run.model.load_state_dict(plain.model.state_dict())
            run.optimizer.load_state_dict(plain.optimizer.state_dict())
            self.equal(run.model.state_dict(), plain.model.state_dict())
            self.equal(dict(run.model.named_parameters()), dict(plain.model.named_parameters()))
            ours, theirs = run.optimizer.state_dict(), plain.optimizer.state_dict()
            self.assertEqual(ours["param_groups"], theirs["param_groups"])
            for at, state in theirs["state"].items():
                self.equal(ours["state"][at], state)
            self.close_to([run.step(1, language_loss)], [plain.step(1, language_loss)])
            plain.model.load_state_dict(run.model.state_dict())
            plain.optimizer.load_state_dict(run.optimizer.state_dict())

    def test_accesses_see_and_keep_the_bytes(self):
        def accessed(blocks):
            found = []
            with Run(Language, adamw, blocks) as run:
                weight = run.model.lm_head.weight
                found.append(weight.norm())
                with torch.no_grad():
                    weight.mul_(0.5)
                    weight[7].zero_()
                    weight.data[8:10] += 1
                    torch.nn.init.normal_(run.model.wte.weight)
                    shown = weight.detach()
                    shown.clamp_(max=0.9)
                    found.append(run.model.state_dict()["lm_head.weight"].clone())
                    found.append(weight.sum())
                    weight.numpy()[3] = 2
                    found.append(run.model(torch.arange(9)).sum())
                weight.data = weight.data * 0.5
                del shown
                found.append(weight @ torch.ones(WIDTH))
                self.assertEqual(weight.shape, (WORDS, WIDTH))
                # Elsewhere than in its module: a gradient that is added to that of its tiles.
                x = torch.ones(2, WIDTH, requires_grad=True)
                (run.model.lm_head(x).sum() + (x @ weight.t()).pow(2).sum()).backward()
                found += [weight.grad.clone(), x.grad]
                grad = weight.grad
                grad.mul_(2)
                grad.view(-1)[:5] = 1
                grad[9].zero_()
                found += [grad.norm(), (grad * 3).sum(), grad[0:11].clone()]
                weight.grad = weight.grad * 2
                found.append(weight.grad.abs().sum())
                found.append(copy.deepcopy(run.model).lm_head.weight)
                found.append(pickle.loads(pickle.dumps(run.model)).wte.weight)
                weight.detach().numpy()[4] = 1
                run.optimizer.step()
                run.optimizer.zero_grad()
                self.assertIsNone(weight.grad)
                found += [weight.clone(), torch.stack([weight, weight]).sum()]
            found.append(run.model.lm_head.weight)
            self.assertIs(type(run.model.lm_head.weight), nn.Parameter)
            return [value.detach().clone() for value in found]
        for at, (ours, plain) in enumerate(zip(accessed(BLOCKS), accessed(0))):
            with self.subTest(at):
                torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)

    def test_files_have_the_whole_weight(self):
        path = os.path.join(self.directory, "saved")
        with Run(lambda: Language(tied=True), adamw, BLOCKS) as run:
            run.step(0, language_loss)
            stepwell.torch.save_safetensors(run.model, path)
            plain = Language(tied=True)
            self.assertEqual(stepwell.torch.load_safetensors(plain, path), ([], []))
            self.equal(values_of(run.model), values_of(plain))
            with torch.no_grad():
                run.model.wte.weight.zero_()
            stepwell.torch.load_safetensors(run.model, path)
            self.equal(values_of(run.model), values_of(plain))

    def test_a_run_goes_on_from_a_generation_whatever_its_tiles(self):
        def begin(**options):
            torch.manual_seed(1)
            model = Language()
            optimizer = adamw(model.parameters())
            stepwell.torch.offload(model, optimizer, **tiers(
                self.directory, store_name="run", **options))
            return model, optimizer, stepwell.torch.offloaded(model)

        def step(model, optimizer, seed):
            torch.manual_seed(seed)
            language_loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()
        model, optimizer, made = begin(blocks=BLOCKS)
        step(model, optimizer, 0)
        made.commit("first")
        expected = values_of(model)
        step(model, optimizer, 1)
        after = values_of(model)
        made.close()
        model, optimizer, made = begin(blocks=BLOCKS, resume=True)
        self.equal(values_of(model), expected)
        step(model, optimizer, 1)
        self.equal(values_of(model), after)
        made.close()
        model, optimizer, made = begin(blocks=256, resume=True)
        self.assertFalse(any(record.tiles for record in made.records))
        self.equal(values_of(model), expected)
        made.close()

    def test_a_weight_beyond_the_budget_is_made_in_tiers(self):
        class Made(Language):
            def __init__(self):
                super().__init__(bias=True)
                self.apply(self.init)

            def init(self, module):
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    module.weight.data.normal_(0, 0.02)
                    nn.init.uniform_(module.weight[1].detach())
        torch.manual_seed(1)
        plain = Made()
        torch.manual_seed(1)
        with stepwell.torch.init(**tiers(self.directory, BLOCKS)) as made:
            model = Made()
        self.equal(values_of(model), values_of(plain))
        optimizer = adamw(model.parameters())
        made.offload(model, optimizer)
        self.assertTrue(model.lm_head.weight._stepwell.tiles)
        self.close_to([language_loss(model).item()], [language_loss(plain).item()], 1)
        for each, steps in ((model, optimizer), (plain, adamw(plain.parameters()))):
            torch.manual_seed(2)
            loss = language_loss(each)
            loss.backward()
            steps.step()
            steps.zero_grad()
        for name, value in values_of(model).items():
            torch.testing.assert_close(value, plain.get_parameter(name), rtol=1e-4, atol=1e-4)
        made.close()


class Refusals(Tiles):
    def refused(self, error, words, model, optimizer=None, blocks=BLOCKS, **options):
        with self.assertRaisesRegex(error, words):
            offload(model, optimizer, blocks, self.directory, **options)
        self.assertTrue(all(type(each) is nn.Parameter for each in model.parameters()))

    def test_what_tiles_cannot_be_made_of_is_refused_by_name(self):
        budget = stepwell.BudgetError
        self.refused(budget, r"module '0' \(Conv2d\) take 1048576 bytes .* budget of 786432 bytes "
                     ".* only the weight of a Linear, an Embedding or a Conv1D",
                     nn.Sequential(nn.Conv2d(512, 512, 1, bias=False)))
        self.refused(budget, "module 'MultiheadAttention' .*without its module being called",
                     nn.MultiheadAttention(256, 4))
        self.refused(budget, "module '0' .*without its module being called", nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(512, 512))))
        self.refused(budget, "max_norm writes to its weight",
                     nn.Embedding(WORDS, WIDTH, max_norm=1.0))
        turned = nn.Linear(WIDTH, WORDS)
        turned.weight.data = turned.weight.data.t().contiguous().t()
        self.refused(budget, "only a weight in row-major order", turned)
        hooked = nn.Linear(WIDTH, WORDS)
        handle = hooked.weight.register_hook(lambda grad: grad)
        self.refused(budget, "its weight has hooks", hooked)
        handle.remove()
        hooked.weight.register_post_accumulate_grad_hook(lambda parameter: None)
        self.refused(budget, "its weight has hooks", hooked)
        self.refused(budget, "'weight' of 2000000 bytes .* one row of 1000000 bytes",
                     nn.Linear(250000, 2))
        self.refused(budget, r"module '1' \(Linear\) take 1048576 bytes .* in tiles already",
                     nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 250000)))

    def test_tiles_smaller_than_a_row_are_refused(self):
        self.refused(ValueError, "tile_bytes=100 is less than one row of parameter 'weight', "
                     "which is 512 bytes", nn.Linear(WIDTH, 8), blocks=64, tile_bytes=100)
        self.refused(ValueError, "no size: 'few'", nn.Linear(8, 8), tile_bytes="few")

    def test_optimizers_that_need_the_whole_parameter_are_refused(self):
        for make in (own_steps, lambda p: torch.optim.Adafactor(p),
                     lambda p: torch.optim.Muon([each for each in p if each.dim() == 2]),
                     lambda p: torch.optim.AdamW(p, amsgrad=True)):
            model = Language()
            optimizer = make(list(model.parameters()))
            name = type(optimizer).__name__
            self.refused(stepwell.BudgetError, f"{name} is run by its own code, .*2048000 bytes of "
                         "parameter 'wte.weight', .*Use AdamW, Adam, SGD or Adagrad",
                         model, optimizer)
            self.assertEqual(type(optimizer).__name__, name)
        model = Language()
        optimizer = own_steps(model.block.parameters())
        model.wte.requires_grad_(False)
        offload(model, optimizer, BLOCKS, self.directory)
        stepwell.torch.offloaded(model).close()

    def test_hooks_on_a_gradient_in_tiles_are_refused(self):
        with Run(Language, adamw, BLOCKS) as run:
            for register in (run.model.wte.weight.register_hook,
                             run.model.wte.weight.register_post_accumulate_grad_hook):
                with self.assertRaisesRegex(NotImplementedError, "'wte.weight' is computed with in "
                                            "tiles and has no gradient as a whole"):
                    register(lambda value: None)
            run.step(0, language_loss)

    def test_a_model_that_was_refused_in_init_can_be_offloaded_in_part(self):
        with stepwell.torch.init(**tiers(self.directory, BLOCKS)) as made:
            model = nn.Sequential(nn.Linear(WIDTH, WORDS), nn.Conv2d(512, 512, 1))
        with self.assertRaisesRegex(stepwell.BudgetError, r"module '1' \(Conv2d\)"):
            made.offload(model)
        self.assertIsNone(model[0].weight._stepwell.tiles)
        made.offload(model[0])
        model[0](torch.ones(2, WIDTH)).sum().backward()
        self.assertEqual(model[0].weight.grad.sum().item(), 2 * WIDTH * WORDS)
        made.close()


if __name__ == "__main__":
    unittest.main()
