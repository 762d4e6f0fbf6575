# SPDX-License-Identifier: Apache-2.0
"""optimizer.state, an optimizer's own code and `.grad` of offload(): those of plain torch.

Each test runs a program plain and offloaded and compares weights, and what the program looked at,
by bits. Skipped where PyTorch is not installed.
"""
import collections
import copy
import functools
import importlib.util
import io
import tempfile
import unittest
import unittest.mock
import warnings

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import numpy
    import torch
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    import stepwell
    import stepwell.torch

WIDTH, LAYERS = 64, 8
TIGHT, RESIDENT = 7, 512  # blocks; a layer is one, and its bias shares another


class Same(unittest.TestCase):
    """A program, plain and offloaded under two budgets."""

    def setUp(self):
        torch.set_num_threads(1)

    @staticmethod
    def model():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    def offload(self, model, optimizer, blocks, **options):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".")
        self.addCleanup(directory.cleanup)
        made = stepwell.torch.offload(
            model, optimizer, device_bytes=blocks * support.BLOCK, block_bytes=support.BLOCK,
            thread_count=2, nvme=stepwell.Nvme(directory.name, 64 << 20,
                                               driver_options="allow_tmpfs=1"), **options)
        self.addCleanup(close, model)
        return made

    def close_and_offload(self, model, optimizer):
        """For the program of same(): nothing for plain torch."""
        if self.offload_again:
            close(model)
            self.offload_again(model, optimizer)

    def same(self, make, program, tight=TIGHT, **options):
        """`program(model, optimizer)` returns what it saw; the weights are compared as well."""
        expected = None
        for blocks in 0, tight, RESIDENT:
            self.offload_again = blocks and functools.partial(
                self.offload, blocks=blocks, **options)
            with self.subTest(blocks=blocks):
                model = self.model()
                optimizer = make(model.parameters())
                if blocks:
                    self.offload(model, optimizer, blocks, **options)
                seen = program(model, optimizer)
                found = plain([seen, [p.detach().clone() for p in model.parameters()]])
                if expected is None:
                    expected = found
                self.assertTrue(flat(found) == flat(expected), difference(found, expected))
                close(model)


def backward(model):
    torch.manual_seed(0)
    model(torch.randn(4, WIDTH)).square().sum().backward()


def close(model):
    try:
        stepwell.torch.offloaded(model).close()
    except KeyError:
        pass  # it is closed


def step(model, optimizer, seed):
    torch.manual_seed(seed)
    loss = model(torch.randn(4, WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def plain(value):
    """The same, with tensors as their bytes with their type and shape."""
    if isinstance(value, torch.Tensor):
        copied = value.detach().clone().contiguous().cpu()
        # A count of steps is where torch makes tensors by default.
        device = str(value.device) if copied.dim() else ""
        return (str(copied.dtype), tuple(copied.shape), device,
                copied.reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def flat(value):
    return repr(value)


def memory_of(lazy):
    """What shows the memory to the program, on any device."""
    return lazy.numpy() if support.DEVICE == "cpu" else lazy.untyped_storage()


def difference(ours, expected, path=""):
    """The first place where two values differ, in a text."""
    if isinstance(expected, (list, tuple)) and isinstance(ours, (list, tuple)) \
            and len(ours) == len(expected):
        pairs = enumerate(zip(ours, expected))
    elif isinstance(expected, dict) and isinstance(ours, dict) and list(ours) == list(expected):
        pairs = ((key, (ours[key], expected[key])) for key in expected)
    else:
        return f"{path}: {str(ours)[:200]} for {str(expected)[:200]}"
    for key, (one, other) in pairs:
        if flat(one) != flat(other):
            return difference(one, other, f"{path}[{key!r}]")
    return ""


def optimizers():
    return {
        "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
        "SGD": lambda p: torch.optim.SGD(p, lr=.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=.1, momentum=.9, dampening=.1),
        "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
        "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=.5),
        "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    }


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class State(Same):
    """optimizer.state."""

    def for_each(self, program):
        for name, make in optimizers().items():
            with self.subTest(name):
                self.same(make, program)

    def test_it_has_the_entries_of_torch_at_each_time(self):
        def program(model, optimizer):
            def look():
                return plain([[(name, value) for name, value in optimizer.state[p].items()]
                              if p in optimizer.state else None for p in model.parameters()])
            found = [len(optimizer.state), look()]
            model[2].requires_grad_(False)
            for seed in range(2):
                step(model, optimizer, seed)
                found += [look(), plain(optimizer.state_dict())]
            return found
        self.for_each(program)

    def test_it_is_written_by_assignment_and_in_place(self):
        def program(model, optimizer):
            step(model, optimizer, 0)
            for p in model.parameters():
                for name, value in optimizer.state[p].items():
                    if name != "step" and value is not None:
                        value.mul_(.5)
                        value.view(-1)[:7] = 1e-3
                        optimizer.state[p][name] = value + 1e-4
            held = [torch.full_like(p, 1e-3) for p in model.parameters()]
            for p, value in zip(model.parameters(), held):
                for name in optimizer.state[p]:
                    if name in ("exp_avg", "momentum_buffer", "sum", "square_avg"):
                        optimizer.state[p][name] = value
                        value.add_(1e-3)  # the same tensor, before the step
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"] += 2
            step(model, optimizer, 1)
            return optimizer.state_dict()
        self.for_each(program)

    def test_it_is_reset_as_in_torch(self):
        resets = {
            "clear": lambda o, first: o.state.clear(),
            "assign": lambda o, first: setattr(o, "state", collections.defaultdict(dict)),
            "of a parameter": lambda o, first: [s.clear() for s in list(o.state.values())[:3]],
            "pop": lambda o, first: [o.state.pop(p) for p in list(o.state)[1:3]],
            "early": lambda o, first: o.load_state_dict(first),
            "partial": lambda o, first: o.load_state_dict({**o.state_dict(), "state": {
                at: s for at, s in o.state_dict()["state"].items() if at % 2}}),
        }
        def program(reset, model, optimizer):
            first = copy.deepcopy(optimizer.state_dict())
            step(model, optimizer, 0)
            reset(optimizer, first)
            for seed in range(1, 3):
                step(model, optimizer, seed)
            return optimizer.state_dict()
        for name, make in optimizers().items():
            for what, reset in support.some(resets.items(), 2):
                with self.subTest(name, what=what):
                    self.same(make, functools.partial(program, reset))

    def test_it_has_the_operators_of_dicts(self):
        def program(model, optimizer):
            found = [step(model, optimizer, seed) for seed in range(2)]
            p, q = model[0].weight, model[1].weight
            kept = optimizer.state.copy()
            optimizer.state |= {p: {key: torch.ones_like(value) for key, value
                                    in optimizer.state[p].items()}}
            optimizer.state[q] |= {"more": torch.ones(3)}
            merged = optimizer.state | {p: {"x": 1}}
            other = {p: {"x": 1}} | optimizer.state
            found += [type(kept).__name__, len(kept), merged[p], sorted(other[p]),
                      copy.copy(optimizer.state)[q]["more"], list(optimizer.state[q])]
            return found + [step(model, optimizer, 3), list(optimizer.state.values())]
        for make in (lambda p: torch.optim.AdamW(p, lr=.1),
                     lambda p: torch.optim.RMSprop(p, lr=1e-3)):
            self.same(make, program)

    def test_edits_of_a_state_dict_are_edits_of_it(self):
        def program(model, optimizer):
            step(model, optimizer, 0)
            kept = optimizer.state_dict()
            for state in kept["state"].values():
                for name in state:
                    state[name] = torch.zeros_like(state[name]) + 1
            found = [step(model, optimizer, 1)]
            kept["state"][0]["more"] = torch.ones(2)
            found += [dict(optimizer.state[model[0].weight]), step(model, optimizer, 2)]
            del kept["state"][0]["more"]
            optimizer.state_dict()["state"][2]["step"] = torch.tensor(7.)
            return found + [optimizer.state_dict()["state"], step(model, optimizer, 3)]
        for make in (lambda p: torch.optim.AdamW(p, lr=.1),
                     lambda p: torch.optim.RMSprop(p, lr=1e-3)):
            self.same(make, program)

    def test_a_state_that_is_no_dict_is_refused(self):
        model = self.model()
        optimizer = torch.optim.AdamW(model.parameters())
        self.offload(model, optimizer, TIGHT)
        with self.assertRaisesRegex(TypeError, "state of parameter '0.weight' .* to a list"):
            optimizer.state[model[0].weight] = [torch.ones(3)]
        self.assertEqual(list(optimizer.state), [])

    def test_a_state_dict_right_after_a_step_has_its_counts(self):
        def program(model, optimizer):
            found = []
            for seed in range(4):
                step(model, optimizer, seed)
                found.append(plain(optimizer.state_dict()))
            return found
        self.for_each(program)

    def test_a_file_of_a_state_dict_has_plain_tensors(self):
        def program(model, optimizer):
            step(model, optimizer, 0)
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            loaded = torch.load(io.BytesIO(file.getvalue()))
            kinds = {type(value) for state in loaded["state"].values() for value in state.values()
                     if isinstance(value, torch.Tensor)}
            return loaded, [kind.__name__ for kind in kinds]
        self.for_each(program)

    def test_hooks_of_a_program_may_wrap_a_state_dict(self):
        def program(model, optimizer):
            seen = []

            def wrap(_, made):
                seen.append(plain(made))
                return {"inside": made}
            optimizer.register_state_dict_post_hook(wrap)
            optimizer.register_load_state_dict_pre_hook(lambda _, given: given["inside"])
            step(model, optimizer, 0)
            early = copy.deepcopy(optimizer.state_dict())
            step(model, optimizer, 1)
            optimizer.load_state_dict(early)
            step(model, optimizer, 2)
            return seen
        self.for_each(program)

    def test_checkpoints_of_torch_distributed_do_not_step(self):
        def program(model, optimizer):
            found = []
            for seed in range(3):
                step(model, optimizer, seed)
                found.append(plain(get_optimizer_state_dict(model, optimizer)))
            return found
        self.same(torch.optim.AdamW, program)

    def test_states_survive_close_and_offload(self):
        for name, make in optimizers().items():
            with self.subTest(name):
                model, twin = self.model(), self.model()
                optimizer, other = make(model.parameters()), make(twin.parameters())
                for round in range(3):
                    self.offload(model, optimizer, TIGHT)
                    held = [value for state in optimizer.state.values()
                            for value in state.values()]
                    self.assertEqual(step(model, optimizer, round), step(twin, other, round))
                    stepwell.torch.offloaded(model).close()
                    self.assertEqual(flat(plain(optimizer.state_dict())),
                                     flat(plain(other.state_dict())))
                    for value in held:  # objects from before close() still have the values
                        if isinstance(value, torch.Tensor):
                            value.sum()
                self.assertEqual(flat(plain(list(model.parameters()))),
                                 flat(plain(list(twin.parameters()))))

    def test_an_offload_after_a_close_warns_of_nothing_that_is_held(self):
        for make in optimizers().values():
            model = self.model()
            optimizer = make(model.parameters())
            self.offload(model, optimizer, TIGHT)
            step(model, optimizer, 0)
            close(model)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.offload(model, optimizer, TIGHT)
            close(model)

    def test_settings_that_the_kernel_was_not_made_for_are_refused(self):
        for make, change, text in (
                (torch.optim.AdamW, {"amsgrad": True}, "was offloaded to be stepped by a kernel"),
                (lambda p: torch.optim.SGD(p, lr=.1), {"momentum": .9}, "without momentum")):
            model = self.model()
            optimizer = make(model.parameters())
            self.offload(model, optimizer, TIGHT)
            step(model, optimizer, 0)
            optimizer.param_groups[0].update(change)
            with self.assertRaisesRegex(RuntimeError, text):
                step(model, optimizer, 1)

    def test_what_was_taken_of_a_parameter_before_a_step_has_its_new_values(self):
        takes = {"data": lambda p: p.data, "view": lambda p: p.detach().view(-1)[3:],
                 "numpy": lambda p: p.detach().numpy()}
        for name, take in takes.items():
            def program(model, optimizer):
                held = [take(p) for p in model.parameters()]
                seen = []
                for seed in range(8):
                    torch.manual_seed(seed)
                    model(torch.randn(4, WIDTH)).square().mean().backward()
                    optimizer.step()  # its updates go on after the call
                    seen.append([float(each.sum()) for each in held])
                    optimizer.zero_grad()
                return seen
            with self.subTest(name):
                self.same(torch.optim.AdamW, program)

    def test_an_optimizer_that_offload_was_not_given_is_warned_of(self):
        model = self.model()
        self.offload(model, None, TIGHT)
        optimizer = torch.optim.AdamW(model.parameters())
        with self.assertWarnsRegex(UserWarning, "AdamW .* plain memory"):
            step(model, optimizer, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(model, optimizer, 1)

    def test_entries_are_in_the_order_of_the_optimizer_and_reset_as_they_are(self):
        def program(model, optimizer):
            found = []
            for seed in range(3):
                step(model, optimizer, seed)
                optimizer.state = collections.defaultdict(dict)  # before anybody looks
                step(model, optimizer, seed + 10)
                found.append(list(optimizer.state_dict()["state"]))
                at = {id(p): n for n, p in enumerate(model.parameters())}
                found.append([at[id(p)] for p in optimizer.state])
                found.append([each["step"].item() for each in optimizer.state.values()])
            return found
        self.same(lambda parameters: torch.optim.AdamW(parameters, 0.01), program)
        for kind in torch.optim.AdamW, torch.optim.RMSprop:
            self.same(lambda parameters: kind(parameters, 0.01), program, update_in_backward=True)

    def test_entries_keep_the_order_of_their_step_when_groups_change(self):
        def program(model, optimizer):
            seen = []
            for seed in range(3):
                for p in model[:2].parameters():  # these come in later
                    p.requires_grad_(seed == 2)
                step(model, optimizer, seed)
                optimizer.param_groups[0]["params"].reverse()
            for key in optimizer.state:
                seen.append([i for i, p in enumerate(model.parameters()) if p is key])
            return [seen, list(optimizer.state_dict()["state"])]
        for options in {}, {"update_in_backward": True}:
            self.same(optimizers()["AdamW"], program, **options)

    def test_entries_that_were_there_keep_their_order_and_new_ones_come_after(self):
        def program(model, optimizer):
            first, second, third = list(model.parameters())[:3]
            step(model, optimizer, 0)
            self.close_and_offload(model, optimizer)
            optimizer.state.pop(first)
            optimizer.state.pop(third)
            step(model, optimizer, 1)
            return list(optimizer.state_dict()["state"])
        self.same(lambda parameters: torch.optim.RMSprop(parameters, 0.01), program,
                  update_in_backward=True)

    def test_a_state_dict_that_is_loaded_twice_has_been_trained_by_the_first_time(self):
        def program(model, optimizer):  # torch keeps the tensors that it is given
            early = copy.deepcopy(optimizer.state_dict())
            found = []
            for seed in range(4):
                optimizer.load_state_dict(early)
                step(model, optimizer, seed)
                if seed == 1:
                    early = copy.deepcopy(optimizer.state_dict())
                found.append(copy.deepcopy(optimizer.state_dict()["state"]))
            return found
        for kind in torch.optim.Adagrad, torch.optim.AdamW, torch.optim.RMSprop:
            with self.subTest(kind):
                self.same(lambda parameters: kind(parameters, 0.01), program)

    def test_what_was_loaded_has_been_trained_until_other_states_take_its_place(self):
        def program(model, optimizer):
            first = next(model.parameters())
            loaded = [copy.deepcopy(optimizer.state_dict())]
            for seed, replace in enumerate((
                    lambda: optimizer.state.clear(), lambda: optimizer.state[first].clear(),
                    lambda: optimizer.state.pop(first), lambda: None,
                    lambda: optimizer.state[first].update(
                        {name: torch.ones_like(value)
                         for name, value in optimizer.state[first].items()}),
                    lambda: optimizer.state[first].update(dict(optimizer.state[first])))):
                step(model, optimizer, seed)
                loaded.append(copy.deepcopy(optimizer.state_dict()))
                optimizer.load_state_dict(loaded[-1])  # in place of the last
                step(model, optimizer, seed + 10)
                replace()
                step(model, optimizer, seed + 20)
            return [each["state"] for each in loaded[:-1]]
        self.same(lambda parameters: torch.optim.AdamW(parameters, 0.01), program)

    def test_what_the_program_keeps_moves_or_puts_back_has_the_values_of_torch(self):
        empty = functools.partial(collections.defaultdict, dict)

        def of(states, o):
            return [plain(dict(states[p])) for p in o.param_groups[0]["params"]]

        def tasks(o, train, p, q):
            states = [empty(), empty()]
            for turn in range(4):
                o.state = states[turn % 2]
                train()
            return [of(each, o) for each in states]

        def put_back(o, train, p, q):
            kept, o.state = o.state, empty()
            train()
            seen = of(kept, o)
            o.state = kept
            train()
            return seen

        def cleared(o, train, p, q):
            kept = o.state_dict()
            o.state.clear()
            train()
            seen = plain(kept["state"])
            o.load_state_dict(kept)
            return seen

        def dicts_in_turn(o, train, p, q):
            kept = [o.state_dict(), copy.deepcopy(o.state_dict())]
            for turn in range(4):
                o.load_state_dict(kept[turn % 2])
                train()
                kept[turn % 2] = o.state_dict()
            return [plain(each["state"]) for each in kept]

        def tensors(o, train, p, q):
            kept = dict(o.state[p])
            for name, value in kept.items():
                o.state[p][name] = torch.zeros_like(value)
            train()
            seen = plain(dict(kept))
            o.state[p].update(kept)
            return seen

        def swapped(o, train, p, q):
            for name in list(o.state[p]):
                if o.state[p][name].dim():
                    o.state[p][name], o.state[q][name] = o.state[q][name], o.state[p][name]
            train()
            o.state[p], o.state[q] = o.state[q], o.state[p]

        def of_old(o, train, p, q):
            old = o.state[p]
            o.state[p] = {name: torch.ones_like(value) for name, value in old.items()}
            train()
            old["mine"] = 1  # a dict of the program's
            return plain({name: value for name, value in old.items() if name != "mine"})

        def none(o, train, p, q):
            for name in list(o.state[p]):
                if name == "momentum_buffer":
                    o.state[p][name] = None
            train()
            return sorted(map(str, o.state[p]))

        def others(o, train, p, q):
            o.state["mine"] = torch.ones(3)
            train()

        def program(use, model, optimizer):
            steps = iter(range(100))

            def train():
                for _ in range(2):
                    step(model, optimizer, next(steps))
            train()
            seen = use(optimizer, train, model[0].weight, model[2].weight)
            train()
            states = {at: optimizer.state[p] for at, p in enumerate(model.parameters())}
            return [seen, plain({at: dict(each) for at, each in states.items()})]
        for make in (lambda parameters: torch.optim.AdamW(parameters, 0.01),
                     lambda parameters: torch.optim.RMSprop(parameters, 0.01),
                     lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9)):
            for use in support.some((tasks, put_back, cleared, dicts_in_turn, tensors, swapped,
                                     of_old, none, others), 3):
                with self.subTest(make([torch.zeros(1)]), use=use.__name__):
                    self.same(make, functools.partial(program, use))

    def test_an_own_step_replaces_a_state_that_it_has_read(self):
        class Momentum(torch.optim.Optimizer):
            def __init__(self, parameters):
                super().__init__(parameters, {"lr": 0.01})

            @torch.no_grad()
            def step(self):
                for p in self.param_groups[0]["params"]:
                    state = self.state[p]
                    if not state:
                        state["m"] = torch.zeros_like(p)
                    state["m"] = 0.9 * state["m"] + p.grad
                    p.sub_(state["m"], alpha=self.param_groups[0]["lr"])

        self.same(Momentum, lambda model, optimizer: [
            step(model, optimizer, seed) for seed in range(4)])

    def test_states_of_empty_parameters_are_kept_in_generations(self):
        def made(kind, directory, **options):
            model = self.model()
            model[0].empty = nn.Parameter(torch.zeros(0, 4))
            model[0].register_forward_hook(lambda m, _, out: out + m.empty.sum())
            optimizer = kind(model.parameters())
            stepwell.torch.offload(
                model, optimizer, device_bytes=RESIDENT * support.BLOCK, store_name="s",
                block_bytes=support.BLOCK, nvme=stepwell.Nvme(
                    directory, 64 << 20, driver_options="allow_tmpfs=1"), **options)
            self.addCleanup(close, model)
            return model, optimizer

        def found(optimizer):
            return [(key, value.get("step", torch.zeros(())).item(), sorted(value))
                    for key, value in optimizer.state_dict()["state"].items()]
        for kind, count in ((torch.optim.AdamW, 3.0),
                            (functools.partial(torch.optim.SGD, momentum=0.9), 0.0)):
            with self.subTest(kind), tempfile.TemporaryDirectory(
                    prefix="stepwell-offload-", dir=".") as directory:
                model, optimizer = made(kind, directory)
                for seed in range(3):
                    step(model, optimizer, seed)
                before = found(optimizer)
                self.assertEqual([each for _, each, _ in before], [count] * (2 * LAYERS + 1))
                stepwell.torch.offloaded(model).commit()
                close(model)
                model, optimizer = made(kind, directory, resume=True)
                self.assertEqual(found(optimizer), before)
                close(model)


if HAS_TORCH:
    class Counted(torch.optim.Optimizer):
        """Has a count of its own, and one in a group."""

        def __init__(self, params):
            super().__init__(params, {"lr": 1e-2})
            self.t = 0

        @torch.no_grad()
        def step(self, closure=None):
            self.t += 1
            for group in self.param_groups:
                group["seen"] = group.get("seen", 0) + 1
                for p in group["params"]:
                    if p.grad is not None:
                        m = self.state[p].setdefault("m", torch.zeros_like(p))
                        m.lerp_(p.grad, .1)
                        p.sub_(m, alpha=.01 / (1 - .9 ** self.t))

    class Lamb(torch.optim.Optimizer):
        """Divides by the norm of all gradients, and by that of each parameter."""

        def __init__(self, params):
            super().__init__(params, {"lr": 1e-2})

        @torch.no_grad()
        def step(self, closure=None):
            every = [p for group in self.param_groups for p in group["params"]
                     if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in every]).norm()
            for p in every:
                state = self.state[p]
                if not state:
                    buffer = state["m"] = torch.clone(p.grad).detach()
                    state["v"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                else:
                    buffer = state["m"]
                    buffer.mul_(.9).add_(p.grad / norm)
                state["v"].mul_(.99).addcmul_(p.grad, p.grad, value=.01)
                update = buffer / state["v"].sqrt().add_(1e-6)
                p.add_(update, alpha=float(-1e-3 * p.norm() / update.norm()))

    class Lookahead(torch.optim.Optimizer):
        """Steps another optimizer."""

        def __init__(self, params):
            self.base = torch.optim.AdamW(params, lr=1e-2)
            super().__init__(self.base.param_groups, self.base.defaults)
            self.param_groups = self.base.param_groups
            self.steps = 0

        @torch.no_grad()
        def step(self, closure=None):
            self.base.step()
            self.steps += 1
            for p in (p for group in self.param_groups for p in group["params"]):
                if self.steps % 2 == 0:
                    slow = self.state[p].setdefault("slow", p.detach().clone())
                    slow.lerp_(p, .5)
                    p.copy_(slow)

    class Averaged(torch.optim.SGD):
        """Keeps an average, which other methods show; its step has an argument."""

        @torch.no_grad()
        def step(self, closure=None, *, decay=.9):
            super().step()
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("mean", p.detach().clone()).lerp_(p, 1 - decay)

        @torch.no_grad()
        def swap(self):
            for group in self.param_groups:
                for p in group["params"]:
                    mean = self.state[p]["mean"].clone()
                    self.state[p]["mean"].copy_(p)
                    p.copy_(mean)

    class Sam(torch.optim.Optimizer):
        """Calls the closure in the middle of its step."""

        def __init__(self, params):
            super().__init__(params, {"lr": .1})
            self.base = torch.optim.SGD(self.param_groups, lr=.1, momentum=.5)
            self.param_groups = self.base.param_groups

        @torch.no_grad()
        def step(self, closure):
            every = [p for group in self.param_groups for p in group["params"]]
            norm = torch.stack([p.grad.norm() for p in every]).norm()
            for p in every:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (.05 / norm))
            self.zero_grad()
            with torch.enable_grad():
                closure()
            for p in every:
                p.data = self.state[p]["old"]
            self.base.step()


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Masters(Same):
    """The fp32 values of 16-bit parameters survive what saves and resumes."""

    def resumed(self, dtype, resume):
        """The weights of steps that round to nothing in 16 bits, with a resume after each."""
        model, optimizer = self.made(dtype)
        for seed in range(8):
            torch.manual_seed(seed)
            model(torch.randn(4, WIDTH, dtype=dtype)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if resume:
                model, optimizer = resume(model, optimizer, dtype)
        weights = [p.detach().clone() for p in model.parameters()]
        close(model)
        return weights

    def made(self, dtype, blocks=TIGHT):
        model = self.model().to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.offload(model, optimizer, blocks)
        return model, optimizer

    def test_no_resume_rounds(self):
        def closed(model, optimizer, dtype):
            close(model)
            self.offload(model, optimizer, TIGHT)
            return model, optimizer

        def loaded(order):
            def resume(model, optimizer, dtype):
                file = io.BytesIO()
                torch.save([model.state_dict(), optimizer.state_dict()], file)
                close(model)
                saved = dict(zip("mo", torch.load(io.BytesIO(file.getvalue()))))
                made = dict(zip("mo", self.made(dtype)))
                for each in order:
                    made[each].load_state_dict(saved[each])
                return made["m"], made["o"]
            return resume
        for dtype in torch.bfloat16, torch.float16:
            straight = self.resumed(dtype, None)
            for name, resume in support.some((("close", closed), ("model first", loaded("mo")),
                                              ("optimizer first", loaded("om"))), 1):
                with self.subTest(name, dtype=dtype):
                    for ours, expected in zip(self.resumed(dtype, resume), straight):
                        self.assertTrue(torch.equal(ours, expected))

    def test_those_of_an_optimizer_without_states_are_saved_too(self):
        def train(model, optimizer, seeds):
            for seed in seeds:
                step16(model, optimizer, seed)

        def made():
            model = self.model().bfloat16()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
            self.offload(model, optimizer, TIGHT)
            return model, optimizer
        found = []
        for way in "straight", "closed", "saved", "looked at":
            model, optimizer = made()
            train(model, optimizer, range(8))
            self.assertEqual(list(optimizer.state), [])
            if way in ("saved", "looked at"):
                kept = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
                close(model)
                model, optimizer = made()
                if way == "saved":
                    model.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
                self.assertEqual(list(optimizer.state), [])
                if way == "looked at":  # before the weights of the masters are there
                    self.assertTrue(plain(optimizer.state_dict()["state"])
                                    == plain(kept[1]["state"]))
                    model.load_state_dict(kept[0])
            elif way == "closed":
                close(model)
                self.offload(model, optimizer, TIGHT)
            train(model, optimizer, range(8, 16))
            found.append(flat(plain(list(model.parameters()))))
            close(model)
        self.assertEqual(found[1:], found[:1] * 3)

    def test_writes_to_several_weights_of_a_block_are_all_seen(self):
        """A fault shows the first."""
        def arrays(model):
            return [p.detach().view(torch.int16).numpy() for p in model.parameters()]

        for dtype in torch.float16, torch.bfloat16:
            for saved in False, True:
                with self.subTest(dtype=dtype, saved=saved):
                    model = self.model().to(dtype)
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.)
                    self.offload(model, optimizer, RESIDENT, **(
                        {"store_name": "s", "overwrite": True} if saved else {}))
                    step16(model, optimizer, 0)
                    for p in model.parameters():
                        p.data.mul_(0.5)
                    expected = plain(list(model.parameters()))
                    step16(model, optimizer, 1)
                    self.assertTrue(plain(list(model.parameters())) == expected)
                    held = arrays(model)
                    step16(model, optimizer, 2)
                    for array in held:
                        array ^= 1
                    expected = plain(list(model.parameters()))
                    masters = optimizer.state_dict()["state"]
                    self.assertTrue(plain([state["master_param"].to(dtype)
                                           for state in masters.values()]) == expected)
                    step16(model, optimizer, 3)
                    self.assertTrue(plain(list(model.parameters())) == expected)
                    del held
                    close(model)

    def test_weights_that_are_only_read_keep_them_without_faults(self):
        def train(dtype, use):
            model = self.model().to(dtype)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            self.offload(model, optimizer, TIGHT, fault_in=False)
            for seed in range(8):
                step16(model, optimizer, seed)
                for p in model.parameters():
                    use(p.data)
            weights = flat(plain(list(model.parameters())))
            close(model)
            return weights
        for dtype in torch.bfloat16, torch.float16:
            with self.subTest(dtype=dtype):
                expected = train(dtype, lambda data: None)
                self.assertEqual(train(dtype, lambda data: data.sum()), expected)
                self.assertNotEqual(train(dtype, lambda data: data.mul_(1.5)), expected)

    def test_weights_that_were_changed_since_are_trained_as_they_are(self):
        model, optimizer = self.made(torch.bfloat16)
        step16(model, optimizer, 0)
        saved = copy.deepcopy(optimizer.state_dict())
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.5)
        expected = [p.detach().clone() for p in model.parameters()]
        optimizer.load_state_dict(saved)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.param_groups[0]["lr"] = 0.
        optimizer.step()
        for p, value in zip(model.parameters(), expected):
            self.assertTrue(torch.equal(p, value))

    def test_plain_torch_ignores_them(self):
        model, optimizer = self.made(torch.bfloat16)
        step16(model, optimizer, 0)
        saved = copy.deepcopy(optimizer.state_dict())
        self.assertEqual({"master_param"}, set(saved["state"][0]) - {"step", "exp_avg",
                                                                     "exp_avg_sq"})
        twin = self.model().to(torch.bfloat16)
        other = torch.optim.AdamW(twin.parameters(), lr=1e-4)
        other.load_state_dict(saved)
        step16(twin, other, 1)

    def test_a_checkpoint_does_not_change_the_form_in_which_they_are_kept(self):
        model, optimizer = self.made(torch.bfloat16, RESIDENT)
        step16(model, optimizer, 0)
        runtime = stepwell.torch.offloaded(model).runtime
        runtime.drain()
        before = runtime.tier_stats("device").used_bytes
        copy.deepcopy(optimizer.state_dict())
        self.assertEqual(runtime.tier_stats("device").used_bytes, before)

    def test_files_of_safetensors_have_them_by_option(self):
        model, optimizer = self.made(torch.bfloat16)
        for seed in range(3):
            step16(model, optimizer, seed)
        masters = [state["master_param"] for state in optimizer.state_dict()["state"].values()]
        with tempfile.TemporaryDirectory(dir=".") as folder:
            stepwell.torch.save_safetensors(model, folder, masters=True)
            twin = self.model()
            stepwell.torch.load_safetensors(twin, folder)
        for p, ours, master in zip(twin.parameters(), model.parameters(), masters):
            self.assertTrue(torch.equal(p, master))
            self.assertTrue(torch.equal(p.bfloat16(), ours))


def step16(model, optimizer, seed):
    torch.manual_seed(seed)
    model(torch.randn(4, WIDTH, dtype=model[0].weight.dtype)).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class OwnCode(Same):
    """Optimizers without a kernel."""

    def test_their_code_runs_once_a_step(self):
        for make in Counted, Lamb, Lookahead, lambda p: Averaged(p, .1):
            def program(model, optimizer):
                found = [step(model, optimizer, seed) for seed in range(4)]
                return found + [optimizer.state_dict(), vars(optimizer).get("t")]
            with self.subTest(make):
                self.same(make, program)

    def test_step_takes_arguments_and_other_methods_find_the_states(self):
        def program(model, optimizer):
            for seed in range(4):
                torch.manual_seed(seed)
                model(torch.randn(4, WIDTH)).square().mean().backward()
                optimizer.step(decay=.5)
                optimizer.zero_grad()
                optimizer.swap()
            return optimizer.state_dict()
        self.same(lambda p: Averaged(p, .1), program)

    def test_a_closure_may_be_called_in_the_middle(self):
        def program(model, optimizer):
            for seed in range(3):
                torch.manual_seed(seed)
                x = torch.randn(4, WIDTH)

                def loss():
                    found = model(x).square().mean()
                    found.backward()
                    return found
                loss()
                optimizer.step(loss)
                optimizer.zero_grad()
        self.same(Sam, program)

    def test_a_group_added_later_is_stepped(self):
        def program(model, optimizer):
            step(model, optimizer, 0)
            optimizer.add_param_group({"params": list(model[4:].parameters())})
            step(model, optimizer, 1)
            return optimizer.state_dict()
        for make in Counted, lambda p: torch.optim.RMSprop(p, 1e-3):
            self.same(lambda p, make=make: make(list(p)[:8]), program)

    def test_all_at_once_is_refused_with_the_reason(self):
        model = self.model()
        with self.assertRaisesRegex(TypeError, "works on all parameters at once.*foreach=False"):
            self.offload(model, torch.optim.RMSprop(model.parameters(), foreach=True), TIGHT)
        with self.assertRaisesRegex(ValueError, "update_in_backward.*Counted"):
            self.offload(model, Counted(model.parameters()), TIGHT, update_in_backward=True)

    def test_one_parameter_and_its_states_are_pinned_at_a_time(self):
        for make in lambda p: torch.optim.RMSprop(p, 1e-3, momentum=.5), Lamb:
            model = self.model()
            optimizer = make(model.parameters())
            self.offload(model, optimizer, TIGHT)
            step(model, optimizer, 0)
            torch.manual_seed(1)
            model(torch.randn(4, WIDTH)).square().mean().backward()
            runtime = stepwell.torch.offloaded(model).runtime
            most, fetch = 0, type(runtime).fetch

            def watched(self, *args, **kwargs):
                nonlocal most
                view = fetch(self, *args, **kwargs)
                most = max(most, runtime.tier_stats("device").pinned_bytes)
                return view
            with unittest.mock.patch.object(type(runtime), "fetch", watched):
                optimizer.step()
            # A parameter, its gradient and two states; another block while the loop goes on.
            self.assertLessEqual(most, 5 * support.BLOCK)
            self.assertGreater(most, 0)


if __name__ == "__main__":
    unittest.main()
