# SPDX-License-Identifier: Apache-2.0
"""offload() of models on a device with streams: the same bits as plain torch there, whatever is on
the device, and no access that is not ordered.

usage: test_offload_device.py MODULE, over the double of CUDA's driver.
"""
import contextlib
import copy
import ctypes
import gc
import os
import sys
import unittest
import warnings
from unittest import mock

import double
import offloading
import stepwell
import stepwell.torch
import torch
import training
from stepwell import _stream_fetching, _views
from stepwell.torch import _gradients, _place
from offloading import fifth
from torch import nn
from torch.utils.checkpoint import checkpoint

MODULE = sys.argv.pop(1)
MIB = 1 << 20
STEPS = 4
WIDTH = 96


def stack(layers=6):
    return nn.Sequential(*[part for _ in range(layers) for part in (
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))])


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.ModuleList(stack(2) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, data):
        data = data.detach().requires_grad_()
        for layer in self.layers:
            data = checkpoint(layer, data, use_reentrant=self.reentrant)
        return data


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.body = stack(4)
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.body(self.table(ids))).flatten(0, 1)


class Adapted(nn.Module):
    """A frozen layer with a trained part of low rank beside it."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)

    def forward(self, data):
        return torch.tanh(self.frozen(data) + self.up(self.down(data)))


def square(out, data):
    return (out.float() - data).square().mean()


VECTORS = training.numbers(8, WIDTH), square
LINEARS = stack, *VECTORS
KINDS = {  # the model, its data and loss, the optimizer, what the loop does
    "adamw": (*LINEARS, "adamw", {}),
    "adamw_single": (*LINEARS, "adamw_single", {}),
    "sgd": (*LINEARS, "sgd", {}),
    "rmsprop": (*LINEARS, "rmsprop", {}),
    "clip": (*LINEARS, "adamw", {"clip": 0.1}),
    "micro": (*LINEARS, "adamw", {"micro": 2}),
    "keep": (*LINEARS, "adamw", {"keep_gradients": True}),
    "in_backward": (*LINEARS, "adamw", {"update_in_backward": True}),
    "rmsprop_in_backward": (*LINEARS, "rmsprop", {"update_in_backward": True}),
    "scaler": (*LINEARS, "adamw", {"scaler": True}),
    "autocast": (*LINEARS, "adamw", {"autocast": True}),
    "checkpoint": (lambda: Checkpointed(False), *VECTORS, "adamw", {}),
    "checkpoint_reentrant": (lambda: Checkpointed(True), *VECTORS, "adamw", {}),
    "frozen": (lambda: nn.Sequential(*[Adapted() for _ in range(6)]), *VECTORS, "adamw", {}),
    "tied": (Tied, training.words, training.MODELS["attention"][2], "adamw", {}),
    "convolutions": (*training.MODELS["convolutions"], "sgd", {}),
    "attention": (*training.MODELS["attention"], "adamw", {}),
}


def make(kind):
    torch.manual_seed(0)
    model_of, _, _, optimizer, _ = KINDS[kind]
    model = copy.deepcopy(model_of()).to("late")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, training.OPTIMIZERS[optimizer](trained)


def trained(kind, model, optimizer):
    """The losses of a loop that knows nothing of tiers."""
    _, data_of, loss_of, _, loop = KINDS[kind]
    scaler = torch.amp.GradScaler("late", init_scale=1024.0, enabled="scaler" in loop)
    losses = []
    for step in range(STEPS):
        parts = loop.get("micro", 1)
        for part in range(parts):
            data = data_of(step * parts + part).to("late")
            with torch.autocast("late", torch.bfloat16, enabled="autocast" in loop):
                out = model(data)
            loss = loss_of(out, data) / parts
            scaler.scale(loss).backward()
            losses.append(loss.detach())
        if "clip" in loop:
            nn.utils.clip_grad_norm_(model.parameters(), loop["clip"])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [loss.item() for loss in losses]


def values(model):
    return {key: value.cpu() for key, value in model.state_dict().items()}


class Case(unittest.TestCase):
    def setUp(self):
        torch.late.synchronize()
        double.violations()
        registered = offloading.registered(MODULE)
        self.directory = registered.__enter__()
        self.addCleanup(registered.__exit__, None, None, None)
        self.module = os.path.join(self.directory, "libstepwell-cuda.so")

    def tearDown(self):
        torch.late.synchronize()
        torch.late.empty_cache()  # the tiers of the next test take it
        self.assertEqual(double.violations(), [])

    def offload(self, model, optimizer=None, **options):
        options = {"device_bytes": 256 * MIB, "host_bytes": 512 * MIB, "probe": False, **options}
        tight = options["device_bytes"] == fifth(model)
        with offloading.apart() if tight else contextlib.nullcontext():
            stepwell.torch.offload(model, optimizer, **options)
        made = stepwell.torch.offloaded(model)
        self.addCleanup(made.close)
        return made

    def drive(self):
        return stepwell.Nvme(self.directory, 512 * MIB, driver="posix",
                             driver_options="allow_tmpfs=1")


def moved(made):
    return [made.runtime.link_stats(link).bytes
            for link in (stepwell.Link.HOST_TO_DEVICE, stepwell.Link.DEVICE_TO_HOST)]


class Training(Case):
    def same(self, kind, options_of):
        loop = KINDS[kind][-1]
        model, optimizer = make(kind)
        losses = trained(kind, model, optimizer)
        self.assertNotEqual(losses[0], losses[-1])
        plain = values(model)
        model, optimizer = make(kind)
        options = options_of(model)
        for name in ("keep_gradients", "update_in_backward"):
            if name in loop:
                options[name] = loop[name]
        made = self.offload(model, optimizer, **options)
        self.assertEqual(trained(kind, model, optimizer), losses)
        torch.late.synchronize()
        bytes_moved = moved(made)
        state = values(model)
        made.close()
        for found in (state, values(model)):
            self.assertEqual(found.keys(), plain.keys())
            for key, value in plain.items():
                self.assertTrue(torch.equal(found[key], value), key)
        for parameter in model.parameters():
            self.assertEqual(type(parameter), nn.Parameter)
            self.assertEqual(parameter.device, double.DEVICE)
        self.assertEqual(double.violations(), [])
        return made, bytes_moved

    def test_all_on_the_device(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                self.same(kind, lambda model: {})

    def test_a_fifth_on_the_device(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                made, (up, down) = self.same(kind, lambda model: {"device_bytes": fifth(model)})
                self.assertFalse(made.resident)
                self.assertGreater(up, sum(record.tensor.nbytes for record in made.records))
                self.assertGreater(down, 0)

    def test_a_drive_behind_both(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                self.same(kind, lambda model: {
                    "device_bytes": fifth(model), "host_bytes": 24 * MIB, "nvme": self.drive()})

    def test_small_parameters_share_blocks(self):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(100)]).to("late")
        nbytes = sum(parameter.nbytes for parameter in model.parameters())
        made = self.offload(model, torch.optim.AdamW(model.parameters()), device_bytes=64 * MIB)
        for step in range(2):
            model(training.numbers(8, 32)(step).to("late")).square().mean().backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
        torch.late.synchronize()
        made.runtime.drain()
        for tier in ("device", "host"):  # parameters, gradients and two states
            self.assertLessEqual(made.runtime.tier_stats(tier).used_bytes, 4 * (nbytes + 2 * MIB))

    def test_updates_of_the_device_have_the_same_bits_in_any_budget(self):
        def run(**options):
            model, optimizer = make("adamw")
            made = self.offload(model, optimizer, **options)
            losses = trained("adamw", model, optimizer)
            torch.late.synchronize()
            made.runtime.drain()
            before = moved(made)
            losses += trained("adamw", model, optimizer)
            made.runtime.drain()
            after = moved(made)
            made.close()
            return losses, [now - was for now, was in zip(after, before)]
        model, optimizer = make("adamw")
        plain = trained("adamw", model, optimizer) + trained("adamw", model, optimizer)
        # Not in torch.optim's order, as on a GPU.
        _place.KINDS["late"] = _place.KINDS["late"]._replace(torch_order=False)
        everything, nothing_moved = run()
        if "STW_CUDA_DOUBLE_KERNELS" in os.environ:
            self.assertEqual(nothing_moved, [0, 0])
        self.assertEqual(run(device_bytes=fifth(model))[0], everything)
        for one, other in zip(everything, plain):
            self.assertAlmostEqual(one, other, places=5)


    def test_gradients_of_several_parts_are_whole(self):
        """Budgets of which an eighth, the most of a part, is no number of whole blocks."""
        def run(device_bytes):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(64, 49152), nn.Tanh(), nn.Linear(49152, 64)).to("late")
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            if device_bytes:
                made = self.offload(model, optimizer, device_bytes=device_bytes)
            losses = []
            for step in range(3):
                for part in range(2):
                    data = training.numbers(16, 64)(2 * step + part).to("late")
                    loss = square(model(data), data)
                    loss.backward()
                    losses.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
            if device_bytes:
                made.close()
            return losses
        plain = run(0)
        for device_bytes in (42 * MIB, 46 * MIB):
            self.assertEqual(run(device_bytes), plain)

    def test_what_fits_moves_nothing(self):
        if "STW_CUDA_DOUBLE_KERNELS" not in os.environ:
            self.skipTest("the double has no kernels of updates (nvcc is not installed)")
        _place.KINDS["late"] = _place.KINDS["late"]._replace(torch_order=False)
        for in_backward, dtype in ((False, None), (True, None), (False, torch.bfloat16)):
            torch.manual_seed(0)
            model = nn.Sequential(*[nn.Linear(500, 500) for _ in range(16)]).to("late", dtype)
            states = (4 if dtype is None else 8) * sum(
                parameter.nbytes for parameter in model.parameters())
            optimizer = torch.optim.AdamW(model.parameters())
            made = self.offload(model, optimizer, device_bytes=int(1.3 * states),
                                update_in_backward=in_backward)
            found = []
            for step in range(6):
                data = training.numbers(8, 500)(step).to("late", dtype)
                square(model(data), data).backward()
                optimizer.step()
                optimizer.zero_grad()
                torch.late.synchronize()
                made.runtime.drain()
                found.append(moved(made))
            self.assertEqual(found[-1], found[2])
            made.close()

    def test_what_has_room_with_its_states_stays_on_the_device(self):
        """Half of the layers; the others move as before, and bits do not depend on it."""
        if "STW_CUDA_DOUBLE_KERNELS" not in os.environ:
            self.skipTest("the double has no kernels of updates (nvcc is not installed)")
        _place.KINDS["late"] = _place.KINDS["late"]._replace(torch_order=False)

        def run(dtype, layers, in_backward=False):
            torch.manual_seed(0)
            model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).to("late", dtype)
            optimizer = torch.optim.AdamW(model.parameters())
            # The host has no room for what stays.
            host = 512 * MIB if layers > 6 else 80 * MIB
            made = self.offload(model, optimizer, device_bytes=(16 * layers + 48) * MIB,
                                host_bytes=host, update_in_backward=in_backward)
            staying = [record for record in made.records if record.stays]
            leaving = sum(record.tensor.nbytes for record in made.records if not record.stays)
            losses, before = [], None
            for step in range(8):
                if step == 4:
                    before = moved(made)
                data = training.numbers(8, 1024)(step).to("late", dtype)
                losses.append(square(model(data), data))
                losses[-1].backward()
                optimizer.step()
                optimizer.zero_grad()
                torch.late.synchronize()
                made.runtime.drain()
            found = [now - was for now, was in zip(moved(made), before)]
            kernel = optimizer._stepwell.kernel
            for record in staying:
                for tensor in (record.tensor, kernel.state(record.tensor, "exp_avg")):
                    self.assertEqual(tensor.info().residence, stepwell.Allow.DEVICE)
            made.close()
            return [loss.item() for loss in losses], len(staying), leaving, found
        for dtype in torch.float32, torch.bfloat16:
            everything, staying, _, found = run(dtype, 7)
            self.assertEqual((staying, found), (0, [0, 0]))  # all is at home there
            for in_backward in False, True:
                losses, staying, leaving, found = run(dtype, 3, in_backward)
                self.assertEqual(losses, everything)
                self.assertIn(staying, (3, 4))
                # And a block of small ones in each of four steps. What is fetched ahead, a weight
                # and that block, may be so before the first one began, or after the last one.
                ahead = 2 * MIB + 1024 * 1024 * dtype.itemsize
                for way in found:
                    self.assertLessEqual(way, 4 * (leaving + 2 * MIB) + ahead)

    def test_a_hook_sees_and_changes_the_sum_of_micro_batches(self):
        def run(tiers):
            torch.manual_seed(0)
            model = stack().to("late")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            if tiers:
                self.offload(model, optimizer)
            seen = []

            def hook(parameter):
                seen.append(parameter.grad.sum().item())
                parameter.grad.mul_(0.5)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(hook)
            for micro in range(3):
                data = training.numbers(8, WIDTH)(micro).to("late")
                square(model(data), data).backward()
            optimizer.step()
            return seen + [parameter.sum().item() for parameter in model.parameters()]
        self.assertEqual(run(True), run(False))

    def test_gradients_are_copied_and_added_many_at_once(self):
        def run(tiers, **options):
            torch.manual_seed(0)
            model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(40)]).to("late")
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            made, fetched, losses = None, [], []
            if tiers:
                made = self.offload(model, optimizer, **options)
                alone, many = made.runtime.fetch, made.runtime.fetch_many
                made.runtime.fetch = lambda *given, **more: fetched.append(1) or alone(
                    *given, **more)
                made.runtime.fetch_many = lambda items, *given, **more: fetched.append(
                    len(items)) or many(items, *given, **more)
            for step in range(6):
                data = training.numbers(8, 256)(step).to("late")
                losses.append(square(model(data), data))
                losses[-1].backward()
                if step % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
            losses = [loss.item() for loss in losses]
            if tiers:
                made.close()
            return losses, fetched
        plain, _ = run(False)
        for options in {}, {"device_bytes": 16 * MIB}:
            losses, fetched = run(True, **options)
            self.assertEqual(losses, plain)
            self.assertNotIn(1, fetched)
            self.assertLessEqual(len(fetched), 6 * 2 if not options else 6 * 28)

    def test_clips_and_scalers_move_no_gradient(self):
        def run(kind, **options):
            model, optimizer = make(kind)
            made = self.offload(model, optimizer, **options)
            fetch, fetched = made.runtime.fetch, []

            def noted(tensor, access=stepwell.Access.READ, *rest, **more):
                if isinstance(tensor, stepwell.Tensor):  # not the request of a gradient's part
                    fetched.append(tensor.name)
                return fetch(tensor, access, *rest, **more)
            made.runtime.fetch = noted
            losses = trained(kind, model, optimizer)
            torch.late.synchronize()
            made.close()
            return losses, [name for name in fetched if name and name.endswith(".grad")]
        _place.KINDS["late"] = _place.KINDS["late"]._replace(torch_order=False)
        for kind in ("clip", "scaler"):
            with self.subTest(kind=kind):
                model, optimizer = make(kind)
                plain = trained(kind, model, optimizer)
                everything, fetched = run(kind)
                self.assertEqual(fetched, [])
                self.assertEqual(run(kind, device_bytes=fifth(model)), (everything, []))
                for one, other in zip(everything, plain):
                    self.assertAlmostEqual(one, other, places=5)


class Counted(nn.Module):
    """A buffer of each kind, and an extra state of the device."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(stack(2), nn.BatchNorm1d(WIDTH))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.total = torch.zeros(2000)

    def forward(self, data):
        self.seen += 1
        self.total = self.total.to(data.device) + data.sum()
        return self.body(data)

    def get_extra_state(self):
        return self.total

    def set_extra_state(self, total):
        self.total = total


class Generations(Case):
    """A generation is resumed on a device and on the CPU, whichever has made it."""

    def begin(self, device, optimizer, **options):
        torch.manual_seed(0)
        model = Counted().to(device)
        options = {"nvme": self.drive(), "store_name": "run", **options}
        if device == "cpu":
            options.update(device_bytes=64 * MIB, host_bytes=0)
        return self.offload(model, optimizer(model.parameters()), **options), model

    def steps(self, made, model, begin, end):
        losses = []
        for step in range(begin, end):
            data = training.numbers(8, WIDTH)(step).to(made.place.device)
            loss = square(model(data), data)
            loss.backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def test_they_go_on_with_the_same_bits(self):
        for optimizer in (lambda parameters: torch.optim.AdamW(parameters, 1e-2),
                          lambda parameters: torch.optim.RMSprop(parameters, 1e-3, foreach=False)):
            made, model = self.begin("late", optimizer, store_name=None)
            expected = self.steps(made, model, 0, 6)
            ends = values(model)
            made.close()
            for before, after in (("late", "late"), ("late", "cpu"), ("cpu", "late")):
                with self.subTest(optimizer=type(made.optimizer), before=before, after=after):
                    made, model = self.begin(before, optimizer, overwrite=True)
                    losses = self.steps(made, model, 0, 2)
                    made.commit({"step": 2})
                    losses += self.steps(made, model, 2, 3)  # lost with the process
                    made.close()
                    made, model = self.begin(after, optimizer, resume=True)
                    self.assertEqual(made.metadata, {"step": 2})
                    losses[2:] = self.steps(made, model, 2, 6)
                    self.assertEqual(losses, expected)
                    found = values(model)
                    for name, value in ends.items():
                        self.assertTrue(torch.equal(found[name], value), name)
                    self.assertEqual(model.body[1].running_mean.device, made.place.device)
                    made.close()
                    for name in os.listdir(self.directory):
                        if name.endswith((".stepwell", ".generations")):
                            os.remove(os.path.join(self.directory, name))


class Programs(Case):
    """What programs do with parameters, gradients and states between the steps."""

    def both(self, use, kind="adamw", **options):
        """Call it with and without tiers; the results are equal."""
        found = []
        for tiers in (False, True):
            model, optimizer = make(kind)
            if tiers:
                made = self.offload(model, optimizer, **{"device_bytes": fifth(model), **options})
            trained(kind, model, optimizer)
            found.append(use(model, optimizer))
            if tiers:
                found.append(values(model))
                made.close()
                for key, value in found.pop().items():
                    self.assertTrue(torch.equal(model.state_dict()[key].cpu(), value), key)
        self.assertTrue(found[0])
        self.assertEqual(len(found[0]), len(found[1]))
        for one, other in zip(*found):
            self.assertTrue(torch.equal(one.detach().cpu(), other.detach().cpu()))

    def test_states_are_read_while_the_program_has_addresses_of_others(self):
        def use(model, optimizer):
            first, *_, last = optimizer.state.values()
            for state in first, last:
                for value in state.values():
                    value.data_ptr()
            saved = copy.deepcopy(optimizer.state_dict())
            return [value for state in saved["state"].values() for value in state.values()]
        self.both(use)
        self.both(use, "rmsprop", device_bytes=64 * MIB)

    def test_gradients_that_the_program_holds_outlive_zero_grad(self):
        def use(model, optimizer):
            self.backward(model)
            held = [parameter.grad for parameter in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            return [each.clone() for each in held]
        for kind in ("adamw", "rmsprop"):
            self.both(use, kind, device_bytes=64 * MIB, keep_gradients=True)

    def test_data_is_set_while_the_program_has_memory_of_others(self):
        def use(model, optimizer):
            held = model[0].bias.data
            for parameter in model[3:].parameters():
                parameter.data = torch.full_like(parameter, 0.5)
            return [*model.parameters(), held.clone()]
        self.both(use, device_bytes=64 * MIB)

    def test_results_in_states_do_not_stay_on_the_device(self):
        model, optimizer = make("rmsprop")
        made = self.offload(model, optimizer, device_bytes=fifth(model))
        trained("rmsprop", model, optimizer)
        with torch.no_grad():
            for parameter in model.parameters():
                optimizer.state[parameter]["square_avg"].copy_(parameter).mul_(0.5)
        self.assertEqual(made.runtime.tier_stats("device").open_views, 0)

    def test_a_tensor_that_outlives_its_access_is_warned_of_once(self):
        model, optimizer = make("adamw")
        made = self.offload(model, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for parameter in model.parameters():
                parameter.data.mul_(0.5)
                parameter.detach().view(-1)[:5].add_(1)
            trained("adamw", model, optimizer)
        held = model[3].weight.data
        with self.assertWarnsRegex(UserWarning, "a tensor over the memory of parameter '3.weight'"):
            self.backward(model)
        again = model[3].weight.detach()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made.optimizer.step()
        del held, again

    def backward(self, model):
        data = training.numbers(8, WIDTH)(99).to("late")
        square(model(data), data).backward()

    def test_gradients_are_used_between_backward_and_step(self):
        def use(model, optimizer):
            self.backward(model)
            parameters = list(model.parameters())
            norms = [parameter.grad.norm() for parameter in parameters]
            parameters[0].grad.mul_(2)
            parameters[1].grad = torch.ones_like(parameters[1])
            kept = parameters[2].grad.clone()
            parameters[3].grad = None
            self.assertEqual(parameters[0].grad.device, double.DEVICE)
            optimizer.step()
            return [*norms, kept, *parameters]
        self.both(use)
        self.both(use, keep_gradients=True)

    def test_parameters_are_used_between_steps(self):
        def use(model, optimizer):
            weight = model[0].weight
            with torch.no_grad():
                weight.mul_(2)
                model[2].weight.data.add_(1)
                model[3].weight.copy_(torch.ones(WIDTH, WIDTH))
            self.backward(model)
            optimizer.step()
            optimizer.zero_grad()
            model[3].weight.data = torch.zeros(WIDTH, WIDTH, device="late")
            return [weight.sum(), weight @ weight, *copy.deepcopy(model).parameters(),
                    *model.parameters()]
        self.both(use)

    def test_states_are_saved_and_loaded(self):
        def use(model, optimizer):
            states = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
            for state in states[1]["state"].values():
                self.assertEqual(state["exp_avg"].device, double.DEVICE)
                self.assertEqual(state["step"].device.type, "cpu")
            trained("adamw", model, optimizer)
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
            trained("adamw", model, optimizer)
            return [*model.parameters(), *[
                value for state in optimizer.state.values() for value in state.values()]]
        self.both(use)

    def test_files_are_written_and_read(self):
        folder = self.directory

        def use(model, optimizer):
            path = os.path.join(folder, "model.safetensors")
            stepwell.torch.save_safetensors(model, path)
            trained("adamw", model, optimizer)
            stepwell.torch.load_safetensors(model, path)
            return list(model.parameters())
        self.both(use)

    def test_a_default_device_is_not_that_of_copies_of_the_host(self):
        folder, data = self.directory, training.numbers(8, WIDTH)(99).to("late")

        def use(model, optimizer):
            path = os.path.join(folder, "model.safetensors")
            with torch.device("late"):
                states = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
                for state in states[1]["state"].values():
                    self.assertEqual(state["step"].device.type, "cpu")
                stepwell.torch.save_safetensors(model, path)
                square(model(data), data).backward()
                optimizer.step()
                optimizer.zero_grad()
                stepwell.torch.load_safetensors(model, path)
                optimizer.load_state_dict(states[1])
                square(model(data), data).backward()
                optimizer.step()
                return [model[0].weight.clone(), *copy.deepcopy(model).parameters()]
        self.both(use)

    def test_loops_are_checked(self):
        torch.manual_seed(0)
        model = nn.Sequential(stack(), nn.Dropout(0.5)).to("late")
        optimizer = training.OPTIMIZERS["adamw_single"](model.parameters())

        def step(model, optimizer, at):
            data = training.numbers(8, WIDTH)(at).to("late")
            loss = square(model(data), data)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss
        found = stepwell.torch.check(step, model, optimizer, device_bytes=fifth(model),
                                     host_bytes=512 * MIB, probe=False)
        self.assertTrue(found, found)

    def test_terms_of_gradients(self):
        def use(model, optimizer):
            data = training.numbers(8, WIDTH)(1).to("late").requires_grad_()
            loss = square(model(data), data)
            slope, = torch.autograd.grad(loss, data, create_graph=True)
            (loss + slope.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            gradients = torch.autograd.grad(square(model(data), data), list(model.parameters()))
            return [slope, *gradients, *model.parameters()]
        self.both(use)

    def test_parameters_are_sent_to_other_processes(self):
        model, _ = make("adamw")
        self.offload(model)
        with mock.patch("stepwell.torch._records.get_spawning_popen", lambda: True):
            made, values = model[0].weight.__reduce_ex__(4)
        sent = made(*values)
        self.assertEqual(sent.device, double.DEVICE)
        self.assertTrue(torch.equal(sent, model[0].weight))

    def test_a_backward_pass_that_fails_is_followed_by_others(self):
        def use(model, optimizer):
            class Failing(torch.autograd.Function):
                @staticmethod
                def forward(_, data):
                    return data.clone()

                @staticmethod
                def backward(_, grad):
                    raise ArithmeticError("no gradient")
            data = training.numbers(8, WIDTH)(7).to("late")
            with self.assertRaisesRegex(ArithmeticError, "no gradient"):
                square(model[3:](Failing.apply(model[:3](data))), data).backward()
            optimizer.zero_grad()
            trained("adamw", model, optimizer)
            return list(model.parameters())
        self.both(use)

    def test_updates_in_backward_are_early(self):
        model, optimizer = make("in_backward")
        made = self.offload(model, optimizer, update_in_backward=True)
        trained("in_backward", model, optimizer)
        before = model[0].weight.clone()
        self.backward(model)
        self.assertTrue(all(made.in_backward.has_changed(record) for record in made.records))
        optimizer.step()
        self.assertFalse(torch.equal(model[0].weight, before))
        made.close()

    def test_weights_larger_than_the_device_are_computed_in_tiles(self):
        def run(tiers):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(64, 32768), nn.Tanh(), nn.Linear(32768, 64)).to("late")
            optimizer = training.OPTIMIZERS["adamw"](model.parameters())
            if tiers:
                made = self.offload(model, optimizer, device_bytes=6 * 2 * MIB, tile_bytes=2 * MIB)
                self.assertTrue(any(record.tiles for record in made.records))
            losses = []
            for step in range(STEPS):
                data = training.numbers(8, 64)(step).to("late")
                loss = square(model(data), data)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses
        for one, other in zip(run(True), run(False)):
            self.assertAlmostEqual(one, other, places=4)


    def test_an_embedding_larger_than_the_device_is_computed_in_tiles(self):
        def run(tiers):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Embedding(32768, 64), nn.Linear(64, 64)).to("late")
            optimizer = training.OPTIMIZERS["adamw"](model.parameters())
            if tiers:
                self.offload(model, optimizer, device_bytes=6 * 2 * MIB, tile_bytes=2 * MIB)
            losses = []
            for step in range(STEPS):
                ids = torch.randint(32768, (4, 8), generator=torch.Generator().manual_seed(step))
                loss = model(ids.to("late")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses
        self.assertEqual(run(True), run(False))


class Sided(nn.Module):
    """A part of it runs on a stream of its own, which is joined."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.side = torch.late.Stream()

    def forward(self, data):
        main = torch.late.current_stream()
        self.side.wait_stream(main)
        with torch.late.stream(self.side):
            part = self.second(data)
        whole = self.first(data)
        main.wait_stream(self.side)
        return torch.tanh(whole + part)


class Traps(Case):
    """What other libraries that move parameters have got wrong."""

    def run_both(self, model_of, loop, options_of=None, optimizer="adamw"):
        """The results of a loop without tiers, and in a budget or two."""
        results = []
        for tiers in (None, {}, {"device_bytes": fifth}):
            torch.manual_seed(0)
            model = model_of().to("late")
            made = training.OPTIMIZERS[optimizer](model.parameters())
            if tiers is not None:
                offload = self.offload(model, made, **{
                    key: value(model) for key, value in (options_of or tiers).items()})
            results.append([*loop(model, made), *values(model).values()])
            if tiers is not None:
                offload.close()
        for found in results[1:]:
            for one, other in zip(found, results[0], strict=True):
                self.assertTrue(torch.equal(torch.as_tensor(one), torch.as_tensor(other)))

    def steps(self, model, optimizer, dtype=torch.float32, count=STEPS):
        losses = []
        for step in range(count):
            data = training.numbers(8, WIDTH)(step).to("late", dtype)
            loss = square(model(data), data)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    def test_gradients_of_a_stream_inside_a_unit(self):
        self.run_both(lambda: nn.Sequential(*[Sided() for _ in range(6)]), self.steps)

    def test_a_first_pass_on_another_stream(self):
        def loop(model, optimizer):
            main, side = torch.late.current_stream(), torch.late.Stream()
            side.wait_stream(main)
            with torch.late.stream(side):
                losses = self.steps(model, optimizer, count=1)
            main.wait_stream(side)
            return losses + self.steps(model, optimizer)
        self.run_both(stack, loop)

    def test_gradients_that_a_hook_of_the_program_reads(self):
        def loop(model, optimizer):
            seen = []
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(
                    lambda parameter: seen.append(parameter.grad.abs().sum().cpu()))
            return [*self.steps(model, optimizer), *seen]
        self.run_both(stack, loop)

    def test_evaluation_and_training_in_one_block_of_autocast(self):
        def loop(model, optimizer):
            data = training.numbers(8, WIDTH)(50).to("late")
            with torch.autocast("late", torch.bfloat16):
                with torch.no_grad():
                    before = model(data).sum().item()
                return [before, *self.steps(model, optimizer, count=1)]
        self.run_both(stack, loop)

    def test_gradients_of_many_blocks(self):
        def model_of():
            return nn.Sequential(nn.Linear(WIDTH, 65536), nn.Tanh(), nn.Linear(65536, WIDTH))
        self.run_both(model_of, lambda *of: self.steps(*of, count=2),
                      {"device_bytes": lambda _: 80 * MIB})

    def test_weights_in_another_order(self):
        def model_of():
            return nn.Sequential(
                nn.Unflatten(1, (6, 4, 4)), nn.Conv2d(6, 6, 3, padding=1), nn.Tanh(),
                nn.Conv2d(6, 6, 3, padding=1), nn.Flatten(),
            ).to(memory_format=torch.channels_last)
        self.run_both(model_of, self.steps)

    def test_weights_of_16_bits_have_the_same_bits_in_any_budget(self):
        found = []
        for options in ({}, {"device_bytes": 20 * MIB}):
            torch.manual_seed(0)
            model = stack().bfloat16().to("late")
            optimizer = training.OPTIMIZERS["adamw"](model.parameters())
            made = self.offload(model, optimizer, **options)
            found.append(self.steps(model, optimizer, torch.bfloat16))
            saved = copy.deepcopy(optimizer.state_dict())
            masters = [state["master_param"] for state in saved["state"].values()]
            self.assertEqual({each.device for each in masters}, {double.DEVICE})
            optimizer.load_state_dict(saved)
            found[-1] += self.steps(model, optimizer, torch.bfloat16)
            made.close()
        self.assertEqual(*found)

    def test_steps_do_not_need_more_and_more_memory(self):
        model, optimizer = make("adamw")
        self.offload(model, optimizer, device_bytes=fifth(model))
        self.steps(model, optimizer)
        gc.collect()  # of models of earlier tests
        torch.late.synchronize()
        reserved, allocated = torch.late.memory_reserved(), torch.late.memory_allocated()
        self.steps(model, optimizer, count=20)
        torch.late.synchronize()
        self.assertEqual(torch.late.memory_allocated(), allocated)
        # One gradient that is kept in each step would be ten times as much.
        self.assertLess(torch.late.memory_reserved() - reserved, 20 * 4 * WIDTH * WIDTH // 10)

    def test_autocast_keeps_no_half_copy_of_the_model(self):
        def peak(tiers):
            torch.manual_seed(0)
            model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)]).to("late")
            optimizer = training.OPTIMIZERS["adamw"](model.parameters())
            if tiers:
                made = self.offload(model, optimizer, device_bytes=32 * MIB)
            data = training.numbers(8, 512)(0).to("late")
            torch.late.synchronize()
            gc.collect()  # what earlier tests have left ends now, and not in the forward pass
            before = torch.late.memory_allocated()
            torch.late.reset_peak_memory_stats()
            with torch.autocast("late", torch.bfloat16):
                loss = square(model(data), data)
            used = torch.late.max_memory_allocated() - before
            loss.backward()
            if tiers:
                made.close()
            return used
        self.assertGreater(peak(False), 12 * 512 * 512 * 2)
        self.assertLess(peak(True), 4 * 512 * 512 * 2)

    def test_a_gradient_that_could_not_be_copied_does_not_prevent_the_end(self):
        model, optimizer = make("adamw")
        made = self.offload(model, optimizer, device_bytes=fifth(model))
        before = values(model)
        data = training.numbers(8, WIDTH)(0).to("late")
        with mock.patch.object(_gradients.Arrived, "_copy_there", side_effect=InterruptedError):
            with self.assertRaises(InterruptedError):
                square(model(data), data).backward()
        made.close()
        for key, value in values(model).items():
            self.assertTrue(torch.equal(value, before[key]), key)

    def test_fetches_of_the_program(self):
        model, _ = make("adamw")
        runtime = self.offload(model).runtime
        tensor = stepwell.torch.offloaded(model).records[0].tensor
        with runtime.fetch(tensor, tier="host") as view, view.share() as more:
            self.assertEqual(bytes(view.bytes), bytes(more.bytes))
        with runtime.fetch(tensor) as view, view.share():
            pass
        with runtime.fetch_many([tensor]) as views:
            self.assertEqual(len(views), 1)


class Refusals(Case):
    def test_what_does_not_work_yet_is_named(self):
        for options, what in (
            ({"fault_in": True}, "fault_in .* leave it out"),
            ({"host_bytes": 0}, "needs host_bytes"),
        ):
            with self.subTest(options=options):
                model, optimizer = make("adamw")
                with self.assertRaisesRegex(ValueError, what):
                    self.offload(model, optimizer, **options)

    def test_a_model_is_on_one_device(self):
        model, _ = make("adamw")
        model[0].to("cpu")
        with self.assertRaisesRegex(TypeError, "'2.weight' is on late:0 and '0.weight' on cpu"):
            self.offload(model)
        with self.assertRaisesRegex(TypeError, "is on meta and has no values"):
            self.offload(nn.Linear(2, 2, device="meta"))

    def test_a_step_with_a_closure_is_refused(self):
        for kind in ("adamw", "rmsprop"):
            model, optimizer = make(kind)
            self.offload(model, optimizer)
            with self.assertRaisesRegex(NotImplementedError, "call closure.. before step"):
                optimizer.step(lambda: None)
            trained(kind, model, optimizer)

    def test_a_backward_pass_inside_a_call_is_refused(self):
        class Inside(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = stack(2)

            def forward(self, data):
                loss = square(self.body(data), data)
                loss.backward()
                return loss
        model = Inside().to("late")
        self.offload(model, training.OPTIMIZERS["adamw"](model.parameters()))
        with self.assertRaisesRegex(NotImplementedError, "call it after the model has returned"):
            model(training.numbers(8, WIDTH)(0).to("late"))

    def test_a_call_in_a_captured_graph_is_refused(self):
        _place.KINDS["late"] = _place.KINDS["late"]._replace(captures=lambda: True)
        model, _ = make("adamw")
        self.offload(model)
        with self.assertRaisesRegex(NotImplementedError, "capture modules inside of it"):
            model(training.numbers(8, WIDTH)(0).to("late"))

    def test_a_trace_of_its_calls_is_refused(self):
        model, _ = make("adamw")
        self.offload(model)
        data = training.numbers(8, WIDTH)(0).to("late")
        with self.assertRaisesRegex(NotImplementedError, "trace copy.deepcopy"):
            torch.jit.trace(model, data)
        traced = torch.jit.trace(copy.deepcopy(model), data)
        self.assertTrue(torch.equal(traced(data), model(data)))


if __name__ == "__main__":
    unittest.main()
