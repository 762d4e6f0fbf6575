# SPDX-License-Identifier: Apache-2.0
"""offload(update_in_backward=True), and what updates compute with: the bits of plain PyTorch, and
what is refused.

Skipped where PyTorch is not installed.
"""
import itertools
import copy
import unittest
import warnings

import support
from test_offload import BLOCK, HAS_TORCH, Run, offload, own_steps, stack_loss

if HAS_TORCH:
    import torch
    import torch.nn.functional as F
    from test_offload import Product, Stack
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    import stepwell.torch

    class Tied(nn.Module):
        """A language model whose embedding is its head, and whose middle is used twice."""

        def __init__(self, width=64):
            super().__init__()
            self.embedding = nn.Embedding(96, width)
            self.middle = nn.Linear(width, width)
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, 96, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            x = self.embedding(tokens)
            for _ in range(2):
                x = self.norm(x + torch.tanh(self.middle(x)))
            return self.head(x)

    class Branches(nn.Module):
        """Layers of which a step uses every other one; one is frozen, and one nobody calls."""

        def __init__(self, width=128):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
            self.layers[3].requires_grad_(False)
            self.shared = nn.Linear(width, width)
            self.unused = nn.Linear(width, width)
            self.at = 0

        def forward(self, x):
            self.at += 1
            for layer in self.layers[self.at % 2::2]:
                x = self.shared(torch.tanh(layer(x)))
            return x


def tied_loss(model):
    tokens = torch.randint(0, 96, (4, 8))
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-3)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class InBackward(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(2)

    def run_of(self, make, optimizer, blocks):
        run = Run(make, optimizer, blocks, **({"update_in_backward": True} if blocks else {}))
        self.addCleanup(run.__exit__)
        return run

    def train(self, make, loss, optimizer, blocks, steps=10):
        """Losses, and the parameters at the end; how many were updated before step()."""
        run = self.run_of(make, optimizer, blocks)
        schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 3, 0.5)
        found, early = [], []
        for step in range(steps):
            torch.manual_seed(step)
            value = loss(run.model)
            value.backward()
            early.append(sum(record.held.name == "SPENT"
                             for record in stepwell.torch.offloaded(run.model).records)
                         if blocks else 0)
            run.optimizer.step()
            schedule.step()
            run.optimizer.zero_grad()
            found.append(value.item())
        if blocks:
            view_count = stepwell.torch.offloaded(run.model).runtime.tier_stats("device").open_views
            self.assertEqual(view_count, 0)
        return found, [p.detach().clone() for p in run.model.parameters()], early

    def same(self, make, loss, optimizer, blocks=32, early=None):
        plain = self.train(make, loss, optimizer, 0)
        ours = self.train(make, loss, optimizer, blocks)
        self.assertEqual(ours[0], plain[0])
        for one, other in zip(ours[1], plain[1]):
            self.assertTrue(torch.equal(one, other))
        self.assertEqual(ours[2][0], 0)  # the first step shows whether the loop may have it
        every = len([p for p in make().parameters() if p.requires_grad])
        self.assertEqual(set(ours[2][1:]), {every} if early is None else early)

    def test_all_parameters_are_updated_in_backward_with_the_bits_of_plain_torch(self):
        for name, optimizer in support.some((
                ("adamw", adamw),
                ("adam", lambda p: torch.optim.Adam(p, 1e-3, weight_decay=0.01)),
                ("sgd", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True)),
                ("adagrad", lambda p: torch.optim.Adagrad(p, 1e-2)),
                ("own code", own_steps)), 2):
            with self.subTest(name):
                self.same(Stack, stack_loss, optimizer)

    def test_tied_and_repeated_modules_have_the_bits_of_plain_torch(self):
        self.same(Tied, tied_loss, adamw)
        self.same(Tied, tied_loss, own_steps)

    def test_unused_and_frozen_parameters_are_left_alone_as_by_plain_torch(self):
        self.same(Branches, stack_loss, adamw, 40, early={6, 8})

    def test_checkpoints_that_are_not_reentrant_are_updated_in_backward(self):
        self.same(lambda: Stack(False), stack_loss, adamw)

    def test_what_reentrant_checkpoints_have_inside_is_left_to_the_step(self):
        class Twice(Stack):
            """Its first layer has gradients from two passes inside one."""

            def forward(self, x):
                x = super().forward(x)
                return x + checkpoint(self.layers[0], x, use_reentrant=True)
        self.same(lambda: Twice(True), stack_loss, adamw, early={0})

    def test_a_unit_that_is_let_go_before_its_gradients_is_updated(self):
        """Units that run in turns, more than a pass holds at once."""
        class Turns(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(8))

            def forward(self, x):
                for _ in range(2):
                    for layer in self.layers:
                        x = torch.tanh(layer(x))
                return x
        for optimizer in (adamw, own_steps):
            self.same(Turns, stack_loss, optimizer, 16, early={16})

    def test_an_optimizer_of_some_parameters_updates_those(self):
        def some(parameters):
            return adamw(list(parameters)[:12])
        self.same(Stack, stack_loss, some, early={12})

    def test_a_model_that_was_made_in_tiers_is_updated_in_backward(self):
        with stepwell.torch.init(device_bytes=64 * BLOCK, block_bytes=BLOCK) as tiers:
            model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        tiers.offload(model, adamw(model.parameters()), update_in_backward=True)
        made = stepwell.torch.offloaded(model)
        self.addCleanup(made.close)
        for step in range(2):
            model(torch.ones(1, 32)).sum().backward()
            self.assertEqual([record.held.name == "SPENT" for record in made.records],
                             [step == 1] * 4)
            made.optimizer.step()
            made.optimizer.zero_grad()

    # -- what cannot go with it -------------------------------------------------------------------

    def refused(self, words, loop, steps=(1, 2)):
        """In the first step nothing is changed by it; in a later one it is an error all the same.
        """
        for step in steps:
            run = self.run_of(Stack, adamw, 32)
            for seed in range(step - 1):
                run.step(seed, stack_loss)
            before = [p.detach().clone() for p in run.model.parameters()]
            with self.assertRaisesRegex(RuntimeError, words) as error:
                loop(run)
            self.assertIn("offload without it", str(error.exception))
            if step == 1:
                self.assertIn("nothing is updated yet", str(error.exception))
                for parameter, value in zip(run.model.parameters(), before):
                    self.assertTrue(torch.equal(parameter, value))
            else:
                self.assertIn("36 parameters were updated", str(error.exception))

    def test_a_clip_between_backward_and_step_is_refused(self):
        def loop(run):
            stack_loss(run.model).backward()
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        self.refused("no clip_grad_norm_", loop)

    def test_a_scaler_is_refused(self):
        def loop(run):
            scaler = torch.amp.GradScaler(support.DEVICE)
            scaler.scale(stack_loss(run.model)).backward()
            scaler.step(run.optimizer)
        self.refused("no GradScaler", loop)
        run = self.run_of(Stack, adamw, 32)
        scaler = torch.amp.GradScaler(support.DEVICE, enabled=False)
        for _ in range(2):
            scaler.scale(stack_loss(run.model)).backward()
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()

    def test_several_backward_passes_for_one_step_are_refused(self):
        def loop(run):
            for _ in range(2):
                stack_loss(run.model).backward()
        self.refused("one backward pass for each optimizer.step", loop)

    def test_a_pass_that_is_taken_back_is_refused(self):
        def loop(run):
            stack_loss(run.model).backward()
            run.optimizer.zero_grad()
        self.refused("cannot be taken back", loop)

    def test_a_rate_that_is_set_after_backward_is_refused(self):
        def loop(run):
            stack_loss(run.model).backward()
            run.optimizer.param_groups[0]["lr"] = 0.5
            run.optimizer.step()
        self.refused("'lr'.* changed between", loop)

    def test_a_parameter_of_a_reentrant_checkpoint_and_of_the_rest_is_refused(self):
        class Both(Stack):
            def forward(self, x):
                return self.layers[0](checkpoint(self.layers[0], x, use_reentrant=True))
        run = self.run_of(Both, adamw, 32)
        with self.assertRaisesRegex(RuntimeError, "use_reentrant=False"):
            stack_loss(run.model).backward()

    def test_arguments_that_contradict_each_other_are_refused(self):
        for words, optimizer, options in (
                ("needs the optimizer", None, {}),
                ("keep_gradients=True has none to keep", adamw, {"keep_gradients": True})):
            model = nn.Linear(4, 4)
            with self.assertRaisesRegex(ValueError, words):
                stepwell.torch.offload(model, optimizer and optimizer(model.parameters()),
                                       device_bytes=16 * BLOCK, update_in_backward=True, **options)

    def test_a_second_pass_through_one_graph_is_refused(self):
        run = self.run_of(Stack, adamw, 32)
        run.step(0, stack_loss)
        loss = stack_loss(run.model)
        loss.backward(retain_graph=True)
        with self.assertRaisesRegex(RuntimeError, "was updated or written after the forward pass"):
            loss.backward()

    # -- failures ---------------------------------------------------------------------------------

    def test_after_a_backward_pass_that_failed_there_is_a_step_of_the_gradients_it_left(self):
        found = []
        for blocks in (0, 32):
            run = self.run_of(Stack, adamw, blocks)
            for seed in range(2):
                run.step(seed, stack_loss)
            run.interrupt_step(3, drop=False)
            if blocks:
                made = stepwell.torch.offloaded(run.model)
                made.mark()
                self.assertEqual(made.runtime.tier_stats("device").open_views, 0)
                # Updated are the last layers. Parameters that share blocks are at the end of a
                # pass, which it did not reach.
                changed = [made.in_backward.has_changed(record) for record in made.records]
                large = [not record.shares_block for record in made.records]
                self.assertEqual(changed, [False] * 12 + changed[12:18] + large[18:])
                if any(changed):
                    with self.assertRaisesRegex(RuntimeError, "also a failed one"):
                        run.optimizer.zero_grad()
                    with self.assertRaisesRegex(RuntimeError, "between backward"):
                        stack_loss(run.model)
            run.optimizer.step()
            run.optimizer.zero_grad()
            losses = [run.step(seed, stack_loss) for seed in range(4, 8)]
            found.append((losses, [p.detach().clone() for p in run.model.parameters()]))
        (plain, weights), (ours, others) = found
        self.assertEqual(plain, ours)
        for one, other in zip(weights, others):
            self.assertTrue(torch.equal(one, other))

    def test_what_was_updated_is_not_used_before_the_step(self):
        def reads(run, use):
            stack_loss(run.model).backward()
            return use(run, run.model.layers[4][1].weight)

        def first(run, p):
            return run.optimizer.state[p]
        held = []
        uses = (lambda _, p: p.norm(), lambda _, p: p.data, lambda _, p: p.detach()[0],
                lambda _, p: copy.deepcopy(p), lambda _, p: repr(p),
                lambda run, _: run.model.state_dict(), lambda run, _: run.model.layers[4](
                    torch.ones(1, 128)), lambda _, p: p.data.zero_(),
                lambda run, _: run.model.load_state_dict(run.model.state_dict()),
                first, lambda run, p: held[-1]["exp_avg"].sum(),
                lambda run, p: held[-1]["step"].item(),
                lambda run, _: run.optimizer.state_dict(),
                lambda run, _: stepwell.torch.offloaded(run.model).close())
        for use in support.some(uses, 5):
            with Run(Stack, adamw, 32, update_in_backward=True) as run:
                run.step(0, stack_loss)
                held.append(first(run, run.model.layers[4][1].weight))
                with self.assertRaisesRegex(RuntimeError, "between backward.. and step"):
                    reads(run, use)
                run.optimizer.step()
                use(run, run.model.layers[4][1].weight)

    @unittest.skipUnless(support.DEVICE == "cpu", "on a device such memory is undefined")
    def test_what_the_program_sees_of_a_parameter_has_its_old_values_until_the_step(self):
        run = self.run_of(Stack, adamw, 32)
        run.step(0, stack_loss)
        weight = run.model.layers[4][1].weight
        seen, array = weight.data, run.model.state_dict()["layers.4.1.weight"].numpy()
        before = seen.clone()
        stack_loss(run.model).backward()
        self.assertTrue(torch.equal(seen, before))
        self.assertTrue((array == before.numpy()).all())
        run.optimizer.step()
        self.assertFalse(torch.equal(weight.data, before))
        self.assertTrue(torch.equal(weight.data, seen))
        self.assertTrue((array == weight.data.numpy()).all())

    def test_a_weight_that_is_the_gradient_of_another_is_updated_by_the_step(self):
        def loss(model):
            weights = model.layers[0][1].weight, model.layers[1][1].weight
            return Product.apply(model(torch.randn(8, 128)), *weights).square().mean()
        plain, ours = (self.train(Stack, loss, adamw, blocks, steps=4) for blocks in (0, 32))
        self.assertEqual(plain[0], ours[0])

    def test_states_of_empty_parameters_come_in_the_order_of_plain_torch(self):
        class Empty(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(128, 128)
                self.scale = nn.Parameter(torch.ones(1))
                self.empty = nn.Parameter(torch.empty(0, 4))
                self.last = nn.Linear(128, 128)

            def forward(self, x):
                return self.last(self.first(x)) * self.scale + self.empty.sum()
        orders = []
        for blocks in (0, 32):
            run = self.run_of(Empty, adamw, blocks)
            for seed in range(3):
                run.step(seed, stack_loss)
            named = {parameter: name for name, parameter in run.model.named_parameters()}
            orders.append([named[each] for each in run.optimizer.state])
        self.assertEqual(*orders)

    def test_an_exception_inside_the_block_ends_it(self):
        run = self.run_of(Stack, adamw, 32)
        run.step(0, stack_loss)
        with self.assertRaisesRegex(KeyError, "the program's own"):
            with stepwell.torch.offloaded(run.model):
                stack_loss(run.model).backward()
                raise KeyError("the program's own")
        self.assertEqual(type(run.optimizer), torch.optim.AdamW)

    def test_a_known_parameter_that_is_added_between_is_refused(self):
        def some(parameters):
            return adamw(list(parameters)[:12])
        run = self.run_of(Stack, some, 32)
        run.step(0, stack_loss)
        stack_loss(run.model).backward()
        run.optimizer.param_groups[0]["params"].append(list(run.model.parameters())[12])
        with self.assertRaisesRegex(RuntimeError, "'params'.* changed between"):
            run.optimizer.step()


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Numbers(unittest.TestCase):
    """What an update computes with: as torch does, or refused where it is written."""

    def states(self, optimizer, budget, steps=4, **options):
        with Run(Stack, optimizer, budget, **options) as run:
            for seed in range(steps):
                run.step(seed, stack_loss)
            return [{name: value.clone() for name, value in run.optimizer.state[p].items()}
                    | {"weight": p.detach().clone()} for p in run.model.parameters()]

    def same(self, optimizer, **options):
        pairs = zip(self.states(optimizer, None), self.states(optimizer, 24, **options))
        for at, (plain, tiers) in enumerate(pairs):
            self.assertEqual(list(plain), list(tiers))
            for name, value in plain.items():
                with self.subTest(parameter=at, state=name):
                    self.assertEqual(value.dtype, tiers[name].dtype)
                    self.assertTrue((value == tiers[name]).all())

    def test_tensors_as_decay_and_dampening_have_the_bits_of_plain_torch(self):
        # 1 - 0.01 * 0.347 differs in fp32 and in double.
        decay = next(x for x in (torch.tensor(k / 1000) for k in range(1, 4000))
                     if (1 - 0.01 * x).item() != torch.tensor(1 - 0.01 * x.item()).item())
        self.same(lambda p: torch.optim.AdamW(p, 0.01, weight_decay=decay))
        self.same(lambda p: torch.optim.SGD(p, 0.01, momentum=0.9,
                                            dampening=torch.tensor(0.347)))

    def test_a_number_that_float32_does_not_hold_is_refused_as_by_plain_torch(self):
        for offloads in (False, True):
            with Run(Stack, adamw, 24 if offloads else None) as run:
                run.step(0, stack_loss)
                run.optimizer.param_groups[0]["lr"] = 1e39
                before = [p.detach().clone() for p in run.model.parameters()]
                with self.assertRaisesRegex(RuntimeError, "without overflow"):
                    run.step(1, stack_loss)
                for one, other in zip(before, run.model.parameters() if offloads else ()):
                    self.assertTrue(torch.equal(one, other))

    def test_counts_stay_where_those_of_plain_torch_do(self):
        found = []
        for blocks in (None, 24):
            with Run(Stack, adamw, blocks) as run:
                run.step(0, stack_loss)
                state = run.optimizer.state_dict()
                for each in state["state"].values():
                    each["step"] = torch.tensor(16777215.0, device="cpu")
                run.optimizer.load_state_dict(state)
                for seed in range(3):
                    run.step(seed, stack_loss)
                found.append([each["step"].item() for each in run.optimizer.state.values()])
                if blocks:
                    with self.assertRaisesRegex(ValueError, "to 16777216"):
                        next(iter(run.optimizer.state.values()))["step"].fill_(16777218.0)
        self.assertEqual(*found)

    def test_what_a_step_leaves_in_a_gradient_is_there_or_refused(self):
        def sgd(**more):
            return lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True, **more)
        on_cpu = torch.empty(0).device.type == "cpu"  # else other blocks, which do not all fit
        for blocks, options in [(24, {"keep_gradients": True})] + on_cpu * [(512, {})]:
            for make in (sgd(foreach=False), sgd(foreach=True, weight_decay=0.1),
                         sgd(foreach=True, maximize=True)):
                with Run(Stack, make, None) as plain, Run(Stack, make, blocks, **options) as run:
                    for each in plain, run:
                        torch.manual_seed(0)
                        stack_loss(each.model).backward()
                        each.optimizer.step()
                    for one, other in zip(plain.model.parameters(), run.model.parameters()):
                        self.assertTrue(torch.allclose(one.grad, other.grad))
        with Run(Stack, sgd(foreach=True), 24, keep_gradients=True) as run:
            stack_loss(run.model).backward()
            run.optimizer.step()
            with self.assertRaisesRegex(RuntimeError, "consumed by the update"):
                next(run.model.parameters()).grad.sum()
        # Gradients in plain memory have what torch leaves there.
        for blocks, given in [(24, True), (512, True)] + on_cpu * [(512, False)]:
            with Run(Stack, sgd(foreach=True), None) as plain, \
                    Run(Stack, sgd(foreach=True), blocks) as run:
                for each in plain, run:
                    weight = next(each.model.parameters())
                    grad = torch.ones_like(weight)
                    if given:
                        weight.grad = grad
                    for seed in range(3):
                        torch.manual_seed(seed)
                        stack_loss(each.model).backward()
                        each.optimizer.step()
                        each.seen = weight.grad.clone()
                        kept = weight.grad if given or seed != 1 else None
                        each.optimizer.zero_grad()
                        weight.grad = kept
                self.assertTrue(torch.allclose(plain.seen, run.seen))
                self.assertFalse(torch.allclose(plain.seen, torch.zeros_like(plain.seen)))

    def test_an_eps_that_follows_from_the_first_parameter_is_refused(self):
        def adafactor(**more):
            return lambda p: torch.optim.Adafactor(p, 0.01, **more)

        def mixed():
            return nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.Linear(8, 8))
        model = mixed()
        with self.assertRaisesRegex(ValueError, "groups of one dtype"):
            offload(model, adafactor()(model.parameters()), 24, ".", update_in_backward=True)
        for make, model in (adafactor(), Stack), (adafactor(eps=(1e-7, 1e-3)), mixed):
            with Run(model, make, 24, update_in_backward=True):
                pass

    def test_tensors_that_are_set_later_are_refused(self):
        with Run(Stack, adamw, 24) as run:
            run.optimizer.param_groups[0]["betas"] = [torch.tensor(0.9), torch.tensor(0.999)]
            with self.assertRaisesRegex(RuntimeError, "tensors as hyper-parameters"):
                run.step(0, stack_loss)

    def test_counts_have_the_default_dtype(self):
        def wide(parameters):
            torch.set_default_dtype(torch.float64)
            return torch.optim.AdamW(parameters, 0.01)
        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())

        def loss(model):
            return model(torch.ones(4, 128, dtype=torch.float32)).square().mean()
        counts = []
        for budget in (None, 24):
            torch.set_default_dtype(torch.float32)
            with Run(lambda: nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128)), wide,
                     budget) as run:
                run.step(0, loss)
                counts.append([run.optimizer.state[p]["step"].clone()
                               for p in run.model.parameters()])
        self.assertEqual(counts[0], counts[1])
        self.assertEqual({count.dtype for count in counts[1]}, {torch.float64})

    def test_flushed_denormals_are_refused_by_kernels(self):
        self.addCleanup(torch.set_flush_denormal, False)
        with Run(Stack, adamw, 24) as run, Run(Stack, adamw, None) as plain:
            run.step(0, stack_loss)
            plain.step(0, stack_loss)
            if not torch.set_flush_denormal(True):
                self.skipTest("this processor does not flush them")
            with self.assertRaisesRegex(RuntimeError, r"set_flush_denormal\(False\) before"):
                run.step(1, stack_loss)
            torch.set_flush_denormal(False)
            run.optimizer.zero_grad()
            self.assertEqual(run.step(1, stack_loss), plain.step(1, stack_loss))

    def test_a_gradient_over_a_parameter_is_refused(self):
        with Run(Stack, adamw, 24) as run, Run(Stack, adamw, None) as plain:
            weights = [layer[1].weight for layer in list(run.model.layers)[:2]]
            for other in weights:
                stack_loss(run.model).backward()
                weights[0].grad = other.data
                with self.assertRaisesRegex(RuntimeError, r"shares the memory of .* clone\(\)"):
                    run.optimizer.step()
                run.optimizer.zero_grad()
            self.assertEqual(run.step(0, stack_loss), plain.step(0, stack_loss))

    def test_torch_optims_own_code_runs_in_backward(self):
        self.same(lambda p: torch.optim.Adafactor(p, 0.01), update_in_backward=True)

    def test_hooks_of_saved_tensors_are_given_parameters(self):
        def half(tensor):
            return tensor.bfloat16() if tensor.dtype == torch.float32 else tensor

        def full(packed):
            return packed.float() if packed.dtype == torch.bfloat16 else packed

        def nothing(tensor):
            return tensor
        losses = []
        for budget, pack, unpack in itertools.product((None, 24), (half, nothing), (full, )):
            seen = []

            def counted(tensor, pack=pack, seen=seen):
                seen.append(tuple(tensor.shape))
                return pack(tensor)

            def loss(model, counted=counted, unpack=unpack):
                with torch.autograd.graph.saved_tensors_hooks(counted, unpack):
                    return stack_loss(model)
            with Run(Stack, adamw, budget) as run:
                losses.append([run.step(seed, loss) for seed in range(4)] + [sorted(seen)])
        self.assertEqual(losses[0], losses[2])
        self.assertEqual(losses[1], losses[3])
        self.assertNotEqual(losses[0], losses[1])

    def test_sparse_tensors_are_saved(self):
        class Graph(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(6))
                self.edges = torch.eye(8).roll(1, 0).to_sparse()

            def forward(self, x):
                for layer in self.layers:
                    x = torch.sparse.mm(self.edges, layer(x))
                return x

        def loss(model):
            return model(torch.ones(8, 128).cumsum(0) / 8).square().mean()
        for options in ({}, {"activation_bytes": 0}):
            with Run(Graph, adamw, None) as plain, Run(Graph, adamw, 24, **options) as run:
                for seed in range(3):
                    self.assertEqual(run.step(seed, loss), plain.step(seed, loss))

    def test_views_of_weights_as_other_numbers_are_saved(self):
        class Filter(nn.Module):
            def __init__(self, bits):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(64, 128, 2))
                self.bits = bits

            def forward(self, x):
                x = x * self.bits(torch.view_as_complex(self.weight))
                return torch.view_as_real(x).sum(-1) if x.is_complex() else x

        def loss(model):
            return model(torch.ones(64, 128).cumsum(0) / 64).square().mean()
        for bits in lambda w: w, torch.conj, lambda w: w.conj().imag:
            def make(bits=bits):
                torch.manual_seed(0)
                return nn.Sequential(nn.Linear(128, 128), Filter(bits),
                                     *(nn.Linear(128, 128) for _ in range(6)))
            with Run(make, adamw, None) as plain, Run(make, adamw, 24) as run:
                for seed in range(3):
                    self.assertEqual(run.step(seed, loss), plain.step(seed, loss))

        class Bytes(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(128, 128).bfloat16().view(torch.uint8),
                                           requires_grad=False)
                self.linear = nn.Linear(128, 128)

            def forward(self, x):
                return self.linear(x) @ self.weight.view(torch.bfloat16).float()

        def stack():
            return nn.Sequential(*(Bytes() for _ in range(4)))
        with Run(stack, adamw, None) as plain, Run(stack, adamw, 24) as run:
            for seed in range(3):
                self.assertEqual(run.step(seed, loss), plain.step(seed, loss))

    def test_scalars_of_numpy_are_computed_with_as_torch_does(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")
        self.same(lambda p: torch.optim.AdamW(p, numpy.float32(0.01)))
        with Run(Stack, adamw, 24) as run:
            run.optimizer.param_groups[0]["lr"] = numpy.float32(0.01)
            with self.assertRaisesRegex(RuntimeError, "scalars of NumPy"):
                run.step(0, stack_loss)

    def test_a_buffer_over_a_parameter_is_refused(self):
        model = nn.Sequential(nn.Linear(8, 8))
        model.register_buffer("alias", model[0].weight.detach())
        with self.assertRaisesRegex(ValueError, "buffer 'alias' and parameter '0.weight' share"):
            offload(model, None, 24, ".")

    def test_memory_that_the_program_uses_elsewhere_is_refused(self):
        for use in (lambda model: model[0].weight.data, lambda model: model[0].weight[0],
                    lambda model: model[0].bias.detach(), nn.Module.state_dict,
                    lambda model: model(torch.ones(2, 8))):
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
            used = use(model)
            with self.assertRaisesRegex(ValueError, r"shares memory with a .* clone\(\)"):
                offload(model, None, 24, ".")
            del used
            ring = [model[0].weight.data]
            ring.append(ring)
            del ring
            offload(model, None, 24, ".")
            stepwell.torch.offloaded(model).close()
        model = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(8, 8)))
        offload(model, None, 24, ".")
        stepwell.torch.offloaded(model).close()

    def test_gradients_and_states_that_the_program_holds_are_told(self):
        for use in (lambda model, optimizer: None, lambda model, optimizer: model[1].weight.grad,
                    lambda model, optimizer: model[1].weight.grad[0],
                    lambda model, optimizer: optimizer.state[model[1].weight]["exp_avg"],
                    lambda model, optimizer: optimizer.state_dict()):
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            used = use(model, optimizer)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                offload(model, optimizer, 24, ".")
            stepwell.torch.offloaded(model).close()
            self.assertEqual([used is not None], [
                "are used elsewhere" in str(each.message) for each in told] or [False])

    @unittest.skipUnless(support.DEVICE == "cpu", "on a device such memory is undefined")
    def test_what_is_read_around_functions_after_a_step_is_updated(self):
        """Also what shares its block."""
        def around(parameter):
            with torch._C.DisableTorchFunctionSubclass():
                return parameter.detach() * 1

        def run(budget):
            with Run(Stack, adamw, budget) as run:
                for seed in range(6):
                    run.step(seed, stack_loss)
                    yield [around(p) for p in reversed(list(run.model.parameters()))]
        for plain, tiers in zip(run(None), run(24)):
            for one, other in zip(plain, tiers):
                self.assertTrue(torch.equal(one, other))


if __name__ == "__main__":
    unittest.main()
