# SPDX-License-Identifier: Apache-2.0
"""Several offloaded models in one program, and parts and copies of one: the bits of plain torch.

Skipped where PyTorch is not installed.
"""
import copy
import importlib.util
import pickle
import tempfile
import threading
import unittest
import warnings

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn
    from torch.autograd import forward_ad
    from torch.utils.checkpoint import checkpoint

    import stepwell
    import stepwell.torch
    torch.set_num_threads(1)

WIDTH, BLOCKS = 128, 12
BUDGETS = ({"device_bytes": 512 * support.BLOCK},
           {"device_bytes": BLOCKS * support.BLOCK},
           {"device_bytes": BLOCKS * support.BLOCK, "fault_in": False},
           {"device_bytes": BLOCKS * support.BLOCK, "activation_bytes": 0})


def layers(count=6):
    return nn.Sequential(*(each for _ in range(count) for each in
                           (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def bits(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().cpu().contiguous().view(-1).view(torch.uint8).tolist()
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    return value


class Case(unittest.TestCase):
    def offload(self, model, optimizer=None, **options):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".")
        self.addCleanup(directory.cleanup)
        stepwell.torch.offload(
            model, optimizer, block_bytes=support.BLOCK, thread_count=1, timeout=60,
            nvme=stepwell.Nvme(directory.name, 64 << 20, driver_options="allow_tmpfs=1"),
            **options)
        made = stepwell.torch.offloaded(model)
        self.addCleanup(made.close)
        return made

    def same(self, program, budgets=BUDGETS):
        """program(into_tiers) returns what it has seen."""
        torch.manual_seed(0)
        expected = bits(program(lambda *given: None))
        for options in budgets:
            with self.subTest(**options):
                made = []
                torch.manual_seed(0)
                found = bits(program(lambda *given: made.append(self.offload(*given, **options))))
                self.assertTrue(found == expected)
                for each in made:
                    each.mark()
                    if not each.serves_faults and not each.closed:  # a fault leaves one
                        self.assertEqual(each.runtime.tier_stats("device").open_views, 0)
                    each.close()


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Two(Case):
    """A student and a teacher, each offloaded."""

    @staticmethod
    def two(into_tiers, train_both=True):
        made = []
        for trained in True, train_both:
            model = layers()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2) if trained else None
            into_tiers(model, optimizer)
            made += [model, optimizer]
        return made

    @staticmethod
    def step(loss, *optimizers):
        loss.backward()
        for each in optimizers:
            each.step()
        for each in optimizers:
            each.zero_grad()

    def test_a_teacher_follows_by_operations_over_both(self):
        def program(into_tiers):
            student, optimizer, teacher, _ = self.two(into_tiers, False)
            teacher.load_state_dict(student.state_dict())
            for _ in range(3):
                x = torch.randn(8, WIDTH)
                self.step((student(x) - teacher(x).detach()).square().mean()
                          + student(x).square().mean(), optimizer)
                with torch.no_grad():
                    for to, of in zip(teacher.parameters(), student.parameters()):
                        to.mul_(.9).add_(of, alpha=.05).lerp_(of, .1)
                        to.data.copy_(to.data * .5 + of.data * .5)
            one, other = student[0].weight, teacher[2].weight
            return [*teacher.parameters(), *student.parameters(), teacher(x),
                    torch.cat([one, other]), torch.stack((one, other)).sum(),
                    nn.utils.parameters_to_vector([one, other]), (one - other).norm()]
        self.same(program)

    def test_weights_of_both_are_saved_by_one_node(self):
        def program(into_tiers):
            one, first, other, second = self.two(into_tiers)
            for _ in range(2):
                x = torch.randn(8, WIDTH)
                for a, b in zip(one[::2], other[::2]):
                    x = nn.functional.linear(x, a.weight * b.weight, a.bias * b.bias).tanh()
                self.step(x.square().mean(), first, second)
            return [*one.parameters(), *other.parameters()]
        self.same(program)

    def test_one_is_called_inside_the_call_of_the_other(self):
        class Outer(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.layers, self.inner = layers(), [inner]

            def forward(self, x):
                for own, other in zip(self.layers, self.inner[0]):
                    x = own(other(own(x)))
                return x

        def program(into_tiers):
            inner = layers()
            outer = Outer(inner)
            optimizers = [torch.optim.AdamW(each.parameters(), 1e-2) for each in (outer, inner)]
            into_tiers(outer, optimizers[0])
            into_tiers(inner, optimizers[1])
            for _ in range(3):
                self.step(outer(torch.randn(8, WIDTH)).square().mean(), *optimizers)
            return [*outer.parameters(), *inner.parameters()]
        self.same(program)

    def test_they_are_in_one_loss_with_checkpoints_and_gradients_of_gradients(self):
        def program(into_tiers):
            one, first, other, second = self.two(into_tiers)
            x = torch.randn(8, WIDTH, requires_grad=True)
            for a, b in zip(one[::2], other[::2]):
                y = checkpoint(lambda x, a=a, b=b: b(a(x)) + a.bias * b.bias, x,
                               use_reentrant=False)
            self.step((one(x) - other(x)).square().mean() + y.square().mean(), first, second)
            slope, = torch.autograd.grad((one(x) * other(x)).sum(), x, create_graph=True)
            self.step(slope.square().mean(), first, second)
            loss = (one(x) + other(x)).square().mean()
            found = torch.autograd.grad(loss, [one[0].weight, other[0].weight])
            (one(x) + other(x)).square().mean().backward()
            with torch.no_grad():
                other[0].weight.grad.add_(one[0].weight.grad)
                one[0].weight.sub_(other[0].weight.grad)
            second.step()
            return [*found, *one.parameters(), *other.parameters()]
        self.same(program)


    def test_threads_use_them_in_any_order(self):
        one, other = layers(), layers()
        for each in one, other:
            self.offload(each, device_bytes=BLOCKS * support.BLOCK)

        def products(first, second):
            with torch.no_grad():
                return [(a.weight @ b.weight).sum().item() for _ in range(30)
                        for a, b in zip(first[::2], second[::2])]
        expected = products(one, other), products(other, one)
        found = [None, None]

        def run(at, *models):
            found[at] = products(*models)
        threads = [threading.Thread(target=run, args=args)
                   for args in ((0, one, other), (1, other, one))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.assertEqual(tuple(found), expected)


class Scaled(nn.Module if HAS_TORCH else object):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(WIDTH, WIDTH), 1.

    def forward(self, x):
        return self.layer(x) * self.scale


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Parts(Case):
    """Modules that are called without the model, or are copies of a part of it."""

    def test_a_shallow_copy_is_called_itself(self):
        def program(into_tiers):
            model = nn.Sequential(*(Scaled() for _ in range(6)))
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            into_tiers(model, optimizer)
            found = []
            for make in copy.copy, lambda each: each._replicate_for_data_parallel():
                part, whole = make(model[0]), make(model)
                part.scale = 100.
                whole._modules = dict(list(model._modules.items())[:2])
                for each in part, whole, model:
                    loss = each(torch.randn(8, WIDTH)).square().mean()
                    loss.backward()
                    found.append(loss)
                optimizer.step()
                optimizer.zero_grad()
            return [*found, *model.parameters()]
        self.same(program, BUDGETS[:3])

    def test_copies_of_a_shallow_copy_are_those_of_it(self):
        def program(into_tiers):
            model = nn.Sequential(*(Scaled() for _ in range(6)))
            into_tiers(model)
            part = copy.copy(model[0])
            part.scale = 3.
            x = torch.ones(2, WIDTH)

            def copies():
                return [pickle.loads(pickle.dumps(part)), copy.deepcopy(part),
                        copy.deepcopy([part, model[0]])[0], *copy.deepcopy([model[0], part]),
                        copy.deepcopy(model)[0]]
            found = [[each(x), each(x)] for each in copies()]
            if isinstance(model[0].__dict__.get("_call_impl"), stepwell.torch._units.Call):
                stepwell.torch.offloaded(model).close()
            return [*found, *[[each(x), each(x)] for each in copies()]]
        self.same(program, BUDGETS[:3])

    def test_a_deep_copy_is_a_plain_module(self):
        def program(into_tiers):
            model = nn.Sequential(*(Scaled() for _ in range(6)))
            into_tiers(model)
            x = torch.ones(2, WIDTH)
            whole, part = copy.deepcopy(model), copy.deepcopy(model[1])
            keys = [sorted(vars(each)) for each in (whole, whole[0], part)]
            self.assertFalse([key for each in keys for key in each if "call_impl" in key])
            found = [whole(x), part(x), torch.compile(part, backend="eager")(x)]
            for each in whole[0], part:  # a shallow copy of a deep one
                each = copy.copy(each)
                each.scale = 5.
                found.append(each(x))
            return found
        self.same(program, BUDGETS[:3])

    def test_transforms_of_functions_of_a_parameter(self):
        def program(into_tiers):
            model = layers()
            into_tiers(model)
            x, weight, bias = torch.ones(2, WIDTH), model[2].weight, model[2].bias
            return [
                torch.func.grad(lambda x: (x * weight[:2]).sum())(x),
                torch.func.grad(lambda x: nn.functional.linear(x, weight).tanh().sum())(x),
                torch.func.vjp(lambda x: x @ weight, x)[1](torch.ones(2, WIDTH))[0],
                torch.func.vmap(lambda i: nn.functional.embedding(i, weight))(torch.arange(3)),
                torch.func.functionalize(lambda x: nn.functional.linear(x, weight))(x),
                torch.func.jvp(lambda b: (x + b).tanh(), (bias,), (torch.ones(WIDTH),))[1],
                torch.func.hessian(lambda b: (x[:, :4] + b[:4]).tanh().sum())(bias),
                model(x)]
        self.same(program, BUDGETS[:3])

    def test_a_compiled_step(self):
        def program(into_tiers):
            model = layers()
            optimizer = torch.optim.SGD(model.parameters(), .1)
            into_tiers(model, optimizer)

            def step(x):
                loss = (model(x) - x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss
            compiled = torch.compile(optimizer.step, backend="eager")
            found = [torch.compile(step, backend="eager")(torch.ones(2, WIDTH))]
            model(torch.ones(2, WIDTH)).square().mean().backward()
            compiled()
            return [*found, *model.parameters()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what ends a graph
            self.same(program, BUDGETS[:2])
        torch.compiler.reset()

    def test_gradients_are_dropped_between_the_passes_of_a_compiled_model(self):
        def program(into_tiers):
            model = nn.Sequential(*(each for _ in range(5) for each in
                                    (nn.Linear(192, 192), nn.ReLU())))
            optimizer = torch.optim.AdamW(model.parameters(), .1)
            into_tiers(model, optimizer)
            torch.compiler.reset()
            compiled, found = torch.compile(model, backend="eager"), []
            for _ in range(3):
                loss = compiled(torch.ones(2, 192)).square().mean()
                optimizer.zero_grad()  # the compiler looks at .grad of what it sees before
                loss.backward()
                optimizer.step()
                found.append(loss)
            return [*found, *model.parameters()]
        self.same(program, BUDGETS[:3])
        torch.compiler.reset()

    def test_what_is_in_tiers_meets_a_parameter_in_one_operation(self):
        def program(into_tiers):
            model = layers()
            optimizer = torch.optim.SGD(model.parameters(), .1, momentum=.9)
            into_tiers(model, optimizer)
            found = []
            for seed in range(3):
                model(torch.ones(2, WIDTH)).square().mean().backward()
                entries = model.state_dict()
                with torch.no_grad():
                    for name, p in model.named_parameters():
                        p.grad.add_(p, alpha=.1)
                        found += [p.grad.add(p), torch.where(p.grad * p > 0, p.grad, p),
                                  torch.linalg.vector_norm(torch.stack([p.grad, p])),
                                  entries[name].mul(p)]
                        torch._foreach_add_([p.grad], [p], alpha=.1)
                        if seed:
                            optimizer.state[p]["momentum_buffer"].add_(p, alpha=.1)
                optimizer.step()
                optimizer.zero_grad()
            return [*found, *model.parameters()]
        self.same(program, BUDGETS)

    def test_activations_may_be_larger_than_the_budget(self):
        def program(into_tiers):
            model = layers()
            optimizer = torch.optim.SGD(model.parameters(), .1)
            into_tiers(model, optimizer)
            found = []
            for _ in range(2):
                loss = model(torch.ones(40 * 128, WIDTH)).square().mean()  # 40 blocks each
                loss.backward(retain_graph=True)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss)
            return [*found, *model.parameters()]
        self.same(program, BUDGETS[3:])

    def test_code_in_c_that_writes_what_it_has_saved(self):
        class Recurrent(nn.Module):  # oneDNN's LSTM writes its workspace in backward
            def __init__(self):
                super().__init__()
                self.lstm, self.conv = nn.LSTM(64, 96, batch_first=True), nn.Conv1d(96, 96, 3)

            def forward(self, x):
                return self.conv(self.lstm(x)[0].transpose(1, 2)).relu()

        def program(into_tiers):
            model = nn.Sequential(Recurrent(), nn.Flatten(), nn.Linear(96 * 14, 64))
            optimizer = torch.optim.SGD(model.parameters(), .1)
            into_tiers(model, optimizer)
            found = []
            for _ in range(3):
                loss = model(torch.ones(4, 16, 64)).square().mean()
                loss.backward(retain_graph=True)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss)
            return [*found, *model.parameters()]
        self.same(program, BUDGETS)

    def test_parts_of_a_transformer_take_the_paths_of_plain_torch(self):
        x = torch.randn(3, 9, 96)

        def program(into_tiers):
            encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(96, 4, 192, batch_first=True), 5)
            pairs = nn.ModuleList([nn.MultiheadAttention(96, 4, batch_first=True)
                                   for _ in range(4)])
            whole = nn.Transformer(96, 4, 2, 2, 128, batch_first=True)
            for each in encoder, pairs, whole:
                into_tiers(each.eval())
            found = []
            for grad in False, True:
                with torch.set_grad_enabled(grad):
                    found += [encoder(x), whole.encoder(x), whole.decoder(x, x)]
                    y = x
                    for each in encoder.layers:
                        y = each(y)
                        found.append(y)
                    for each in pairs:
                        y = each(y, y, y, need_weights=False)[0]
                        found.append(y)
            return found
        self.same(program, BUDGETS[:3])

    def test_a_compiled_function_around_the_model_and_a_parameter(self):
        def program(into_tiers):
            model = layers()
            into_tiers(model)
            function = torch.compile(lambda x: model(x) + model[2].bias, backend="eager")
            return [function(torch.ones(1, WIDTH)) for _ in range(2)]
        self.same(program, BUDGETS[:3])
        torch.compiler.reset()

    def test_derivatives_in_forward_mode_with_activations_in_tiers(self):
        def program(into_tiers):
            model = layers()
            into_tiers(model)
            with forward_ad.dual_level():
                x = forward_ad.make_dual(torch.randn(200, WIDTH), torch.ones(200, WIDTH))
                return list(forward_ad.unpack_dual(model(x)))
        self.same(program)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Nodes(Case):
    """What a program reads of autograd's nodes."""

    @staticmethod
    def top():
        return torch._C._autograd._top_saved_tensors_default_hooks(True)

    def test_reading_a_weight_of_a_node_leaves_no_hooks(self):
        def program(into_tiers):
            model = layers()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            into_tiers(model, optimizer)
            found = []
            for switch in torch.enable_grad, torch.no_grad:
                y = model[:5](torch.randn(8, WIDTH))
                with torch.autograd.graph.saved_tensors_hooks(
                        lambda each: each.half(), lambda each: each.float()):
                    with switch():
                        found.append(y.grad_fn._saved_mat2.sum())
                self.assertIsNone(self.top())
                leaf = torch.full((3,), 1.2345, requires_grad=True)
                (leaf * leaf).sum().backward()
                y.square().mean().backward()
                found.append(leaf.grad)
            optimizer.step()
            return [*found, *model.parameters()]
        self.same(program)

    def test_a_weight_that_was_read_of_a_node_holds_up_no_step(self):
        def program(into_tiers, kind):
            model = layers()
            optimizer = kind(model.parameters())
            into_tiers(model, optimizer)
            y = model[:5](torch.randn(8, WIDTH))
            seen = y.grad_fn._saved_mat2
            y.square().mean().backward()
            optimizer.step()
            return [seen, *model.parameters()]
        for kind in torch.optim.AdamW, torch.optim.RMSprop:
            self.same(lambda into_tiers, kind=kind: program(into_tiers, kind), BUDGETS[:2])


    def test_a_weight_that_an_access_has_pinned_is_saved_like_any_other(self):
        def program(into_tiers):
            model, other = layers(12), layers(12)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            into_tiers(model, optimizer)
            into_tiers(other)
            found = []
            for stepped in False, True:
                x = torch.randn(8, WIDTH, requires_grad=True)
                found.append(model[0].weight[0].sum())  # which stays pinned
                losses = [nn.functional.linear(x, model[0].weight).square().sum(),
                          other(model[0].weight).square().sum(),
                          (model[0].weight * other[0].weight * x[:1]).sum()]
                model(x.detach()).sum().backward()
                if stepped:
                    optimizer.step()
                for loss in losses:
                    try:
                        found += torch.autograd.grad(loss, [x], allow_unused=True)
                    except RuntimeError as error:
                        self.assertIn("modified", str(error))
                        found.append("modified")
            return [*found, [each.grad for each in other.parameters()]]
        self.same(program)

    def test_checkpoints_of_functions_that_use_weights_and_views_of_them(self):
        functions = [
            lambda x, w, v, m: torch.tanh(torch.tanh(x) @ w) * w[0].sum(),
            lambda x, w, v, m: w[0].sum() * torch.tanh(x @ w),
            lambda x, w, v, m: (w[0].sum() * torch.tanh(x @ w)) @ w,
            lambda x, w, v, m: torch.tanh(m(x) * w[0].sum()) @ m.weight,
            lambda x, w, v, m: torch.tanh(m(torch.tanh(x @ w)) * w[0].sum()) @ m.weight
            + m.weight[0],
            lambda x, w, v, m: torch.tanh(w.detach().sum() * (x @ w)) @ w,
            lambda x, w, v, m: torch.tanh(torch.tanh(x @ w) * v[0].sum()) @ v,
        ]

        def program(into_tiers):
            model = layers(4)
            into_tiers(model)
            weights = [model[at].weight for at in (0, 2, 4)]
            found = []
            for function in functions:
                x = torch.randn(WIDTH, WIDTH, requires_grad=True)
                loss = checkpoint(lambda x, function=function: function(x, *weights[:2], model[4]),
                                  x, use_reentrant=False).square().mean()
                for weight in weights:
                    loss = loss + weight.square().sum()
                loss.backward()
                found += [x.grad, *[weight.grad for weight in weights]]
                model.zero_grad()
            return found
        self.same(program)

    def test_a_checkpoint_of_a_call_that_is_given_a_weight_of_another_model(self):
        def program(into_tiers):
            model, adapter = layers(3), layers(3)
            into_tiers(model)
            into_tiers(adapter)
            weight = adapter[0].weight
            model[2].register_forward_hook(lambda module, given, out: out + given[0] @ weight)
            x = torch.randn(8, WIDTH, requires_grad=True)

            def both(x):
                return model(x) @ model(weight)
            loss = checkpoint(both, x, use_reentrant=False).square().mean() + weight.square().mean()
            loss.backward()
            return [x.grad, *[each.grad for each in (*model.parameters(), weight)]]
        self.same(program)

    def test_a_hook_that_keeps_a_weight_inside_of_another_object(self):
        def program(into_tiers):
            model = layers(12)
            into_tiers(model)
            x = torch.randn(8, WIDTH, requires_grad=True)
            with torch.autograd.graph.saved_tensors_hooks(lambda each: [each],
                                                          lambda each: each[0]):
                loss = model(x).square().mean()
            loss.backward()
            return [x.grad, *[each.grad for each in model.parameters()]]
        self.same(program, BUDGETS[:2])
        with self.assertRaisesRegex(RuntimeError, "'0.weight' inside of another object.*clone"):
            program(lambda model: self.offload(model, **BUDGETS[2]))


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Refused(Case):
    def test_parameters_are_not_swapped(self):
        model = layers()
        made = self.offload(model, device_bytes=BLOCKS * support.BLOCK)
        with self.assertRaisesRegex(RuntimeError, "swap"):
            torch.utils.swap_tensors(model[0].weight, model[2].weight)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            with self.assertRaisesRegex(RuntimeError, "swap"):
                model.load_state_dict(layers().state_dict())
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        made.close()
        other = model[2].weight.detach().clone()
        torch.utils.swap_tensors(model[0].weight, model[2].weight)
        self.assertTrue(torch.equal(model[0].weight, other))

    def test_the_class_of_a_parameter_makes_plain_ones(self):
        model = layers()
        self.offload(model, device_bytes=BLOCKS * support.BLOCK)
        parameter = model[0].weight
        for kind in type(parameter), parameter.__class__:
            made = kind(torch.ones(3), requires_grad=False)
            self.assertIs(type(made), nn.Parameter)
            self.assertEqual((made.data.sum().item(), made.grad, made.requires_grad),
                             (3.0, None, False))

    def test_a_budget_of_less_than_a_block_names_the_argument(self):
        for options, name in (({"device_bytes": "32KiB"}, "device_bytes is 32 KiB"),
                              ({"device_bytes": 0}, "device_bytes is 0 B"),
                              ({"device_bytes": "1MiB", "host_bytes": "4KiB"}, "host_bytes is 4")):
            with self.assertRaisesRegex(ValueError, f"{name}.*one block of 64 KiB"):
                self.offload(layers(), **options)


if __name__ == "__main__":
    unittest.main()
