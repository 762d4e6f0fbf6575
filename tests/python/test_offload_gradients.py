# SPDX-License-Identifier: Apache-2.0
"""`.grad` of offload(), and operations on tensors in tiers: those of plain torch.

Each test runs a program plain and offloaded, as in test_offload_states.py. Skipped where PyTorch is
not installed.
"""
import copy
import io
import tempfile
import unittest
import unittest.mock

import support
from test_offload_states import (
    HAS_TORCH, LAYERS, TIGHT, WIDTH, Same, backward, close, flat, memory_of, optimizers,
    plain, step,
)

if HAS_TORCH:
    import numpy
    import torch
    from torch import nn

    import stepwell.torch


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Gradient(Same):
    """`.grad` is a tensor."""

    def test_writes_through_every_view_are_kept(self):
        edits = {
            "rows": lambda g: g[:20].zero_(), "row": lambda g: g[3].mul_(100),
            "view": lambda g: g.view(-1)[:100].fill_(0), "data": lambda g: g.data.mul_(-1),
            "detach": lambda g: g.detach()[5:].mul_(-1), "t": lambda g: g.t()[:10].fill_(1),
            "chunk": lambda g: [each.mul_(2) for each in g.chunk(4)[1:3]],
            "unbind": lambda g: g.unbind()[7].add_(1), "diagonal": lambda g: g.diagonal().zero_(),
            "index": lambda g: g.__setitem__(torch.arange(0, 64, 2), 0),
            "mask": lambda g: g.__setitem__(g < 0, 0), "out": lambda g: torch.mul(g, 3, out=g),
            "bytes": lambda g: g.view(torch.int32)[2].fill_(0),
            "assign": lambda g: setattr(g, "data", torch.ones_like(g)),
            "narrow of a view": lambda g: g[8:].narrow(1, 3, 9).T[4].copy_(g[0, :56]),
        }
        if support.DEVICE == "cpu":
            edits["numpy"] = lambda g: g.numpy().fill(2)
        for name, edit in edits.items():
            def program(model, optimizer):
                torch.manual_seed(3)
                model(torch.randn(4, WIDTH) * 30).square().sum().backward()
                for layer in model:
                    edit(layer.weight.grad)
                seen = [layer.weight.grad.norm() for layer in model]
                optimizer.step()
                return seen
            with self.subTest(name):
                self.same(lambda p: torch.optim.SGD(p, 1.), program)

    def test_another_shape_in_place_is_refused(self):
        model = self.model()
        self.offload(model, torch.optim.SGD(model.parameters(), 1.), TIGHT)
        model(torch.randn(4, WIDTH)).sum().backward()
        for change in (lambda g: g.t_(), lambda g: g.resize_(3), lambda g: g.set_(torch.ones(2))):
            with self.assertRaisesRegex(NotImplementedError, "gradient of parameter '0.weight'"):
                change(model[0].weight.grad)
        with self.assertRaisesRegex(NotImplementedError, "clone"):
            model[0].weight.grad.share_memory_()

    def test_held_gradients_keep_their_values(self):
        def program(model, optimizer):
            seen = []
            for seed in range(3):
                tasks = []
                for task in range(2):
                    optimizer.zero_grad()
                    torch.manual_seed(2 * seed + task)
                    model(torch.randn(4, WIDTH)).sub(task).square().mean().backward()
                    tasks.append([p.grad for p in model.parameters()])
                first = [g.view(-1)[1:] for g in tasks[0]]
                for p, a, b in zip(model.parameters(), *tasks):
                    dot = (a * b).sum()
                    p.grad = a + b if dot >= 0 else a - dot / b.square().sum() * b + b
                seen += [g.sum() for g in first]
                optimizer.step()
            return seen
        self.same(lambda p: torch.optim.SGD(p, .1), program)

    def test_values_of_a_held_gradient_leave_the_tiers_with_it(self):
        model = self.model()
        self.offload(model, torch.optim.SGD(model.parameters(), .1), TIGHT)
        tiers = stepwell.torch.offloaded(model)

        def used():
            tiers.mark()
            return sum(tiers.runtime.tier_stats(tier).used_bytes
                       for tier in ("device", "host", "nvme"))
        model(torch.randn(4, WIDTH)).sum().backward()
        model.zero_grad()
        least = used()
        model(torch.randn(4, WIDTH)).sum().backward()
        held = [p.grad for p in model.parameters()]
        model.zero_grad()
        self.assertGreater(used(), least)
        del held
        self.assertEqual(used(), least)

    def test_a_buffer_that_the_program_sets_is_filled(self):
        def program(model, optimizer):
            buffers = [torch.zeros_like(p) for p in model.parameters()]
            for p, buffer in zip(model.parameters(), buffers):
                p.grad = buffer
            seen = []
            for seed in range(3):
                torch.manual_seed(seed)
                model(torch.randn(4, WIDTH)).square().mean().backward()
                seen += [buffer.clone() for buffer in buffers]
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                seen.append([p.grad is buffer for p, buffer in zip(model.parameters(), buffers)])
            return seen
        for make in torch.optim.AdamW, lambda p: torch.optim.RMSprop(p, 1e-3):
            self.same(make, program)

    def test_what_nobody_else_refers_to_moves_to_tiers(self):
        model = self.model()
        self.offload(model, torch.optim.SGD(model.parameters(), .1), TIGHT)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        lazy = [type(p.grad).__name__ for p in model.parameters()]
        self.assertEqual(lazy[:-1], ["Lazy"] * (2 * LAYERS - 1))

    def test_hooks_that_are_older_than_the_offload_see_the_sum(self):
        seen = []

        def see(p):
            seen.append(p.grad.clone())
            p.grad.mul_(0.5)

        def make(parameters):
            every = list(parameters)
            for p in every:
                p.register_post_accumulate_grad_hook(see)
            return torch.optim.AdamW(every, 0.01)

        def program(model, optimizer):
            for _ in range(3):
                backward(model)
            optimizer.step()
            found = list(seen)
            seen.clear()
            return found
        self.same(make, program)

    def test_what_code_in_c_or_numpy_does_is_done_or_refused(self):
        def hooks(model, optimizer):
            seen = []
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))
            backward(model)
            for g in seen:
                g.zero_()
            found = [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            return found + [step(model, optimizer, 1)]

        def stashed(model, optimizer):
            backward(model)
            g, model[0].weight.grad = model[0].weight.grad, None
            model[0].weight.grad = g
            g.zero_()
            return [model[0].weight.grad is g, model[0].weight.grad]

        def buffer(model, optimizer):
            array = numpy.zeros((WIDTH, WIDTH), numpy.float32)
            model[0].weight.grad = torch.from_numpy(array)
            model[1].weight.grad = torch.zeros(WIDTH, WIDTH)
            backward(model)
            found = [float(array.sum())]
            array[:] = 0
            return found + [model[0].weight.grad]

        def array(model, optimizer):
            backward(model)
            shown = numpy.asarray(model[0].weight.grad)
            shown[:] = 0
            model[0].weight.grad.add_(1)
            return [float(shown.sum()), model[0].weight.grad]

        def by_element(model, optimizer):
            backward(model)
            model[0].weight.grad.apply_(lambda value: value * .5)
            model[1].weight.grad.map_(torch.ones(WIDTH, WIDTH), lambda a, b: a + b)
            copy.copy(model[2].weight.grad).zero_()
            return [layer.weight._grad for layer in model]

        def same_data(model, optimizer):
            old = model[0].weight.data
            model(torch.randn(4, WIDTH))
            model[0].weight.data = old
            return [model[0].weight]
        for program in hooks, stashed, buffer, array, by_element, same_data:
            with self.subTest(program.__name__):
                self.same(lambda p: torch.optim.AdamW(p, lr=.1), program)
        for make in (lambda p: torch.optim.AdamW(p, lr=torch.tensor(.01), foreach=False),
                     lambda p: torch.optim.Adagrad(p, lr=torch.tensor(.013), lr_decay=.1,
                                                   foreach=False)):
            self.same(make, lambda m, o: [step(m, o, seed) for seed in range(4)])

    def test_what_would_not_have_the_values_of_torch_is_refused(self):
        def exported(model, optimizer):
            torch.utils.dlpack.to_dlpack(model[0].weight.grad)

        def swapped(model, optimizer):
            backup = model[0].weight.data
            model[0].weight.data = torch.zeros(WIDTH, WIDTH)
            return backup

        def kept(model, optimizer):
            array = memory_of(model[0].weight.grad)
            try:
                optimizer.step()
            finally:
                del array

        def dropped(model, optimizer):
            array = memory_of(model[0].weight.grad)
            try:
                optimizer.zero_grad()
            finally:
                del array

        def fraction(model, optimizer):
            optimizer.step()
            optimizer.state[model[0].weight]["step"].mul_(.5)

        def decay(model, optimizer):
            optimizer.param_groups[0]["decoupled_weight_decay"] = False
            optimizer.step()

        def order(model, optimizer):
            model[0].weight.data = torch.ones(WIDTH, WIDTH).t()

        def another(model, optimizer):
            model[0].weight.grad = model[1].weight.grad

        for program, error, text in (
                (exported, RuntimeError, "data pointer"),
                (swapped, RuntimeError, "'0.weight' is given other data while .*clone"),
                (kept, RuntimeError, "step.. is called while .* array over the gradient of"),
                (dropped, RuntimeError, "a gradient is dropped while .* array over the gradient"),
                (fraction, ValueError, "'step' of parameter '0.weight' is set to 0.5"),
                (decay, RuntimeError, "another kind of decay"),
                (order, RuntimeError, "strides .* for parameter '0.weight'"),
                (another, NotImplementedError, "the gradient of parameter '1.weight'.*clone"),
                (lambda m, o: m[0].weight.t_(), NotImplementedError, "t_.. .* '0.weight'")):
            with self.subTest(text):
                model = self.model()
                optimizer = torch.optim.AdamW(model.parameters())
                self.offload(model, optimizer, TIGHT)
                backward(model)
                with self.assertRaisesRegex(error, text):
                    program(model, optimizer)
                close(model)
        model = self.model()
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.step = lambda: None
        with self.assertRaisesRegex(TypeError, "step.. of its own"):
            self.offload(model, optimizer, TIGHT)

    def test_zeros_stay_gradients(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

            def forward(self, x, both):
                return self.a(x) + (self.b(x) if both else 0)

        def zero(p):
            if p.grad is not None:
                p.grad.zero_()
        ways = {
            "optimizer": lambda m, o: o.zero_grad(set_to_none=False),
            "model": lambda m, o: m.zero_grad(False),
            "grad": lambda m, o: [zero(p) for p in m.parameters()],
        }
        makes = {"AdamW": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=.1),
                 "SGD": lambda p: torch.optim.SGD(p, .1, momentum=.9),
                 "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-3, momentum=.5)}
        for way, clear in ways.items():
            def program(model, optimizer):
                for seed in range(5):
                    torch.manual_seed(seed)
                    model(torch.randn(4, WIDTH), seed % 3 == 0).square().mean().backward()
                    optimizer.step()
                    clear(model, optimizer)
                return [p.grad for p in model.parameters()]
            for name, make in makes.items():
                with self.subTest(name, way=way), unittest.mock.patch.object(
                        self, "model", lambda: (torch.manual_seed(0), Two())[1]):
                    self.same(make, program)

    def test_two_steps_with_one_gradient(self):
        def program(model, optimizer):
            for seed in range(3):
                torch.manual_seed(seed)
                model(torch.randn(4, WIDTH)).square().mean().backward()
                optimizer.step()
                optimizer.step()
                optimizer.zero_grad()
        for name, make in optimizers().items():
            with self.subTest(name):
                self.same(make, program, keep_gradients=True)
                model = self.model()
                optimizer = make(model.parameters())
                self.offload(model, optimizer, TIGHT)
                with self.assertRaisesRegex(RuntimeError, "consumed by the update"):
                    program(model, optimizer)


class Own(torch.optim.Optimizer if HAS_TORCH else object):
    """Calls a function with itself, each parameter and its group."""

    def __init__(self, parameters, function):
        super().__init__(parameters, {})
        self.function = function

    @torch.no_grad() if HAS_TORCH else lambda step: step
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.function(self, p)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Operation(Same):
    """One on a gradient, on a state or on an entry of state_dict()."""

    @staticmethod
    def wide():
        """A weight has blocks of its own."""
        torch.manual_seed(0)
        return nn.Sequential(*(each for _ in range(LAYERS // 4) for each in
                               (nn.Linear(WIDTH, 10 * WIDTH), nn.Linear(10 * WIDTH, WIDTH))))

    @staticmethod
    def of_each(model, optimizer):
        """A gradient and a state of each layer."""
        step(model, optimizer, 1)
        backward(model)
        return [each for layer in model
                for each in (layer.weight.grad, optimizer.state[layer.weight]["exp_avg"])]

    def test_one_that_fails_leaves_the_values_that_were_there(self):
        failing = {
            "size": lambda each: each.copy_(torch.ones(3)),
            "deviation": lambda each: each.normal_(0, -1.),
            "range": lambda each: each.uniform_(2, 1),
            "out": lambda each: torch.add(each, torch.ones(3), out=each),
        }
        for name, operation in failing.items():
            def program(model, optimizer):
                for each in self.of_each(model, optimizer):
                    with self.assertRaises(RuntimeError):
                        operation(each)
                seen = [each.clone() for each in self.of_each(model, optimizer)]
                optimizer.step()
                return seen
            with self.subTest(name), unittest.mock.patch.object(self, "model", self.wide):
                self.same(torch.optim.AdamW, program, tight=16)

    def test_an_exception_that_the_program_keeps_holds_up_no_step(self):
        def program(model, optimizer):
            kept = []
            for each in self.of_each(model, optimizer):
                for operation in (lambda each: each + torch.ones(3),
                                  lambda each: each.add_(torch.ones(3)),
                                  lambda each: torch.linalg.cond(each, p="none"),
                                  lambda each: torch.norm(each, p="none")):
                    try:
                        operation(each)
                    except RuntimeError as error:
                        kept.append(error)
            optimizer.step()
            optimizer.zero_grad()
            return [len(kept), step(model, optimizer, 2)]
        self.same(torch.optim.AdamW, program, timeout=20)

    def test_one_on_as_many_elements_as_there_are_writes_no_others(self):
        views = {
            "half of the bytes": lambda each: each.view(torch.int16).view(-1)[:each.numel()],
            "overlapping": lambda each: each.as_strided(each.size(), (1, 1)),
            "a row again and again": lambda each: each[:1].expand_as(each),
        }
        for name, view in views.items():
            def program(model, optimizer):
                for each in self.of_each(model, optimizer):
                    view(each).zero_()
                return [each.clone() for each in self.of_each(model, optimizer)]
            with self.subTest(name), unittest.mock.patch.object(self, "model", self.wide):
                self.same(torch.optim.AdamW, program, tight=16)

    def test_what_was_used_up_stays_so_until_all_of_it_is_written(self):
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), 1.)
        self.offload(model, optimizer, TIGHT)
        backward(model)
        optimizer.step()
        grad = model[0].weight.grad
        for write in (lambda: grad.copy_(torch.ones(3)), lambda: grad.normal_(0, -1.),
                      lambda: grad[1:].zero_(), lambda: grad[:1].expand(WIDTH, WIDTH).fill_(1)):
            with self.assertRaises(RuntimeError):
                write()
            with self.assertRaisesRegex(RuntimeError, "consumed by the update"):
                grad.norm()
        grad.t().fill_(2)
        self.assertEqual(grad.sum().item(), 2 * WIDTH * WIDTH)
        before = model[0].weight.detach().clone()
        for p in model.parameters():
            p.grad = None if p is not model[0].weight else p.grad
        optimizer.step()
        self.assertTrue(torch.equal(model[0].weight.detach(), before - 2))

    def test_functions_of_lapack_have_the_bits_of_plain_tensors(self):
        functions = {
            "svdvals": torch.linalg.svdvals, "eigvals": torch.linalg.eigvals,
            "eigvalsh": torch.linalg.eigvalsh, "cond": torch.linalg.cond,
            "2": lambda each: torch.linalg.matrix_norm(each, 2),
            "nuclear": lambda each: torch.linalg.matrix_norm(each, "nuc"),
            "norm": lambda each: torch.linalg.norm(each, ord=-2),
            "method": lambda each: each.norm(p="nuc"),
            "named": lambda each: torch.norm(input=each, p="nuc"),
            "rank": torch.linalg.matrix_rank,
        }

        def program(model, optimizer):
            entry = model.state_dict()["0.weight"]
            return [[function(each) for each in (*self.of_each(model, optimizer)[:2], entry)]
                    for function in functions.values()]
        self.same(torch.optim.AdamW, program)

    def test_formats_and_lists_with_a_tensor_of_scalars(self):
        def program(model, optimizer):
            step(model, optimizer, 1)
            backward(model)
            grads = [p.grad for p in model.parameters()]
            weight, entry = model[0].weight, model.state_dict()["0.bias"]
            scalars = torch.linspace(0, 1, len(grads), device="cpu")
            return [f"{optimizer.state[weight]['step']:.0f} {weight.grad[0, 0]:.3f} {entry[0]:.3f}",
                    torch._foreach_addcmul(grads, grads, grads, scalars)]
        self.same(torch.optim.AdamW, program)

    def test_a_graph_over_a_state_ends_with_a_step(self):
        def program(model, optimizer):
            step(model, optimizer, 1)
            leaf = torch.ones(WIDTH, WIDTH, requires_grad=True)
            loss = (optimizer.state[model[0].weight]["exp_avg"] * leaf).sum()
            step(model, optimizer, 2)
            with self.assertRaisesRegex(RuntimeError, "modified"):
                loss.backward()
        self.same(torch.optim.AdamW, program)

    def test_an_optimizer_of_its_own_drops_each_gradient_when_it_has_used_it(self):
        def use(optimizer, p):
            p.sub_(p.grad, alpha=.1)
            p.grad = None
        self.same(lambda p: Own(p, use),
                  lambda m, o: [step(m, o, seed) for seed in range(3)])

    def test_what_requires_a_gradient_is_no_gradient_in_tiers(self):
        model = self.model()
        self.offload(model, torch.optim.SGD(model.parameters(), 1.), TIGHT)
        with self.assertRaisesRegex(RuntimeError, "'0.weight' is set to .* requires a gradient"):
            model[0].weight.grad = nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.assertIsNone(model[0].weight.grad)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Shared(Same):
    """States that share memory."""

    @staticmethod
    def update(optimizer, p):
        state = optimizer.state[p]
        if not state:
            state["m"] = torch.zeros_like(p)
            state["first"], state["turned"] = state["m"][:1], state["m"].t()
        state["m"].add_(p.grad)
        state["first"].mul_(.5)
        p.sub_(state["turned"].t(), alpha=.1)

    def make(self, parameters):
        return Own(parameters, self.update)

    def test_they_share_it_in_copies_and_files(self):
        def through_file(kept):
            file = io.BytesIO()
            torch.save(kept, file)
            return torch.load(io.BytesIO(file.getvalue()))
        for way in copy.deepcopy, through_file, lambda kept: kept:
            def program(model, optimizer):
                for seed in range(2):
                    step(model, optimizer, seed)
                kept = way(optimizer.state_dict())
                state = kept["state"][0]
                state["m"][0].fill_(3)
                optimizer.load_state_dict(kept)
                return [state, step(model, optimizer, 3), optimizer.state_dict()["state"]]
            with self.subTest(way):
                self.same(self.make, program)

    def test_a_file_of_them_has_their_values_of_the_time(self):
        def program(model, optimizer):
            found = []
            for seed in range(3):
                step(model, optimizer, seed)
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                found.append(torch.load(io.BytesIO(file.getvalue()))["state"])
            return found
        self.same(self.make, program)

    def test_generations_keep_them_shared(self):
        def made(directory, **options):
            model = self.model()
            optimizer = self.make(model.parameters())
            stepwell.torch.offload(
                model, optimizer, device_bytes=64 * support.BLOCK, block_bytes=support.BLOCK,
                store_name="s", nvme=stepwell.Nvme(directory, 64 << 20,
                                                   driver_options="allow_tmpfs=1"), **options)
            self.addCleanup(close, model)
            return model, optimizer

        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            found = []
            model, optimizer = made(directory)
            step(model, optimizer, 0)
            optimizer.state[model[1].weight] = {"turned": optimizer.state[
                model[1].weight]["turned"], **optimizer.state[model[1].weight]}
            stepwell.torch.offloaded(model).commit()
            for turn in range(2):
                if turn:
                    close(model)
                    model, optimizer = made(directory, resume=True)
                seen = [step(model, optimizer, seed) for seed in (1, 2)]
                state = optimizer.state_dict()["state"]
                found.append(flat(plain([seen, state, list(model.parameters())])))
            self.assertEqual(found[1], found[0])
            backward(model)
            optimizer.state[model[0].weight]["m"] = model[0].weight.grad
            with self.assertRaisesRegex(RuntimeError, "'m' of parameter '0.weight' is the grad"):
                stepwell.torch.offloaded(model).commit()
            close(model)


if __name__ == "__main__":
    unittest.main()
