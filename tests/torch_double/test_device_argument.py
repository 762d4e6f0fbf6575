# SPDX-License-Identifier: Apache-2.0
"""offload() and init() with device=, and the budgets that they choose there.

usage: test_device_argument.py MODULE, over the double of CUDA's driver.
"""
import contextlib
import io
import logging
import os
import tempfile
import unittest
from unittest import mock

import double
import stepwell
import stepwell.torch
import torch
import training
from stepwell.torch import _budgets, _offload, _place
from test_offload_device import (
    KINDS, MIB, WIDTH, Case, fifth, square, stack, trained, values,
)
from torch import nn

STEP = 64 * MIB
OPTIMIZERS = {  # without forms, which training.py asks for on the CPU
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    "adamw_single": training.OPTIMIZERS["adamw_single"],
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
}


def make(kind):
    """A model on the CPU."""
    torch.manual_seed(0)
    model_of, _, _, optimizer, _ = KINDS[kind]
    model = model_of()
    return model, OPTIMIZERS[optimizer](
        [parameter for parameter in model.parameters() if parameter.requires_grad])


def move(model, optimizer):
    """As programs do it: the model, and states by what load_state_dict() does with them."""
    model.to("late")
    optimizer.load_state_dict(optimizer.state_dict())


def loop_options(kind):
    return {name: value for name, value in KINDS[kind][-1].items()
            if name in ("keep_gradients", "update_in_backward")}


class Moves(Case):
    def both(self, kind, before=lambda *of: None, **options):
        """The losses, tensors of the model and states, of a model that is moved as a whole and of
        one that offload() moves."""
        found = []
        for as_a_whole in (True, False):
            model, optimizer = make(kind)
            before(model, optimizer)
            if as_a_whole:
                move(model, optimizer)
            places = [(id(parameter), parameter.dtype, parameter.requires_grad)
                      for parameter in model.parameters()]
            made = self.offload(model, optimizer, **{
                "device": None if as_a_whole else "late", "device_bytes": fifth(model),
                **loop_options(kind), **options})
            self.assertEqual([(id(parameter), parameter.dtype, parameter.requires_grad)
                              for parameter in model.parameters()], places)
            losses = trained(kind, model, optimizer)
            made.close()
            for each in [*model.parameters(), *model.buffers()]:
                self.assertEqual(each.device, double.DEVICE)
            states = {(at, name): value for at, state in optimizer.state_dict()["state"].items()
                      for name, value in state.items()}
            for (_, name), value in states.items():
                self.assertEqual(value.device.type, "cpu" if name == "step" else "late")
            found.append((losses, values(model), states))
        (losses, model, states), (other_losses, other_model, other_states) = found
        self.assertEqual(losses, other_losses)
        self.assertNotEqual(losses[0], losses[-1])
        for one, other in ((model, other_model), (states, other_states)):
            self.assertEqual(one.keys(), other.keys())
            for key, value in one.items():
                self.assertTrue(torch.equal(value.cpu(), other[key].cpu()), key)
        self.assertEqual(double.violations(), [])

    def test_losses_are_those_of_a_model_that_is_moved_as_a_whole(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                self.both(kind)

    def test_all_on_the_device_and_a_drive_behind_it(self):
        for kind in ("adamw", "rmsprop", "convolutions"):
            with self.subTest(kind=kind):
                self.both(kind, device_bytes=256 * MIB)
                self.both(kind, host_bytes=24 * MIB, nvme=self.drive())

    def test_gradients_and_states_that_are_there_before(self):
        def begun(model, optimizer):
            for step in range(3):
                optimizer.zero_grad()
                data = training.numbers(8, WIDTH)(step)
                square(model(data), data).backward()
                if step < 2:
                    optimizer.step()
        for kind in ("adamw", "sgd", "rmsprop"):
            with self.subTest(kind=kind):
                self.both(kind, begun)

    def test_states_that_the_program_holds_are_not_needed(self):
        def begun(model, optimizer):
            data = training.numbers(8, WIDTH)(0)
            square(model(data), data).backward()
            optimizer.step()
            held.extend(value for state in optimizer.state.values() for value in state.values())
        for kind in ("adamw", "rmsprop"):
            held = []
            with self.subTest(kind=kind):
                self.both(kind, begun)
            self.assertEqual({each.device.type for each in held}, {"cpu"})

    def test_weights_of_16_bits(self):
        found = []
        for device in (None, "late"):
            torch.manual_seed(0)
            model = stack().bfloat16()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            if device is None:
                model.to("late")
            made = self.offload(model, optimizer, device=device, device_bytes=20 * MIB)
            for step in range(3):
                data = training.numbers(8, WIDTH)(step).to("late", torch.bfloat16)
                loss = square(model(data), data.float())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            made.close()
            found.append([loss.item(), *values(model).values()])
            self.assertEqual(model[0].weight.dtype, torch.bfloat16)
        for one, other in zip(*found):
            self.assertTrue(torch.equal(torch.as_tensor(one), torch.as_tensor(other)))

    def test_parameters_of_all_forms(self):
        torch.manual_seed(0)
        model = nn.ParameterDict({
            "bytes": nn.Parameter(torch.arange(-9, 9, dtype=torch.int8), requires_grad=False),
            "empty": nn.Parameter(torch.empty(0, 3)),
            "one": nn.Parameter(torch.tensor(2.0)),
            "order": nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)),
            "frozen": nn.Parameter(torch.randn(600000).half(), requires_grad=False),
        })
        before = {name: (value, value.detach().clone(), value.stride(), value.requires_grad)
                  for name, value in model.items()}
        made = self.offload(model, device="late")
        for is_closed in (False, True):
            for name, (same, values_before, stride, trained_) in before.items():
                self.assertIs(model[name], same)
                self.assertEqual(same.device, double.DEVICE)
                self.assertEqual((same.dtype, same.stride(), same.requires_grad),
                                 (values_before.dtype, stride, trained_))
                self.assertTrue(torch.equal(same.cpu(), values_before), name)
            if not is_closed:
                made.close()

    def test_it_is_never_on_the_device_as_a_whole(self):
        model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(24)])
        optimizer = torch.optim.AdamW(model.parameters())
        torch.late.empty_cache()
        torch.late.reset_peak_memory_stats()
        before = torch.late.memory_allocated()
        self.offload(model, optimizer, device="late", device_bytes=STEP)
        self.assertLess(torch.late.max_memory_allocated() - before, MIB)

    def test_buffers_are_moved_once_each(self):
        shared, there = torch.arange(5.0), torch.ones(3, device="late")
        model = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4)])
        model[0].register_buffer("first", shared, persistent=False)
        model[1].register_buffer("second", shared)
        model[1].register_buffer("there", there)
        model[1].register_buffer("none", None)
        self.offload(model, device="late")
        self.assertIs(model[0].first, model[1].second)
        self.assertIs(model[1].there, there)
        self.assertIsNone(model[1].none)
        for buffer in model.buffers():
            self.assertEqual(buffer.device, double.DEVICE)
        self.assertTrue(torch.equal(model[0].first.cpu(), shared))
        self.assertEqual(list(model.state_dict())[-2:], ["1.second", "1.there"])

    def test_the_device_where_the_model_is(self):
        for device in ("late", "late:0", double.DEVICE, torch.device("late")):
            model, optimizer = make("adamw")
            move(model, optimizer)
            made = self.offload(model, optimizer, device=device)
            self.assertEqual(made.place.device, double.DEVICE)
            made.close()
        model, optimizer = make("adamw")
        made = self.offload(model, optimizer, device="cpu", host_bytes=0)
        self.assertTrue(made.place.is_host)
        self.assertTrue(model[0].weight.is_cpu)

    def test_a_model_is_back_on_the_CPU_after_an_error(self):
        for fault in (None, mock.patch.object(_offload, "move_buffers", side_effect=MemoryError)):
            model, optimizer = make("adamw")
            model.register_buffer("table", torch.ones(3))
            data = training.numbers(8, WIDTH)(0)
            for _ in range(2):
                square(model(data), data).backward()
                optimizer.step()
            objects = list(model.parameters())
            plain = {key: value.clone() for key, value in model.state_dict().items()}
            before = [each.clone() for each in (
                *[parameter.grad for parameter in objects],
                *[value for state in optimizer.state.values() for value in state.values()])]
            with fault or contextlib.nullcontext():
                with self.assertRaises(stepwell.BudgetError if fault is None else MemoryError):
                    self.offload(model, optimizer, device="late",
                                 device_bytes=STEP,
                                 host_bytes=(4 if fault is None else 512) * MIB)
            for one, other in zip(model.parameters(), objects, strict=True):
                self.assertIs(one, other)
                self.assertIs(type(one), nn.Parameter)
            after = [*[parameter.grad for parameter in objects],
                     *[value for state in optimizer.state.values() for value in state.values()]]
            for one, other in [*zip(after, before, strict=True), *[
                    (value, plain[key]) for key, value in model.state_dict().items()]]:
                self.assertTrue(one.is_cpu)
                self.assertTrue(torch.equal(one, other))
            optimizer.step()

    def test_loops_are_checked(self):
        def step(model, optimizer, at):
            data = training.numbers(8, WIDTH)(at).to("late")
            loss = square(model(data), data)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss
        model = stack()
        optimizer = training.OPTIMIZERS["adamw_single"](model.parameters())
        found = stepwell.torch.check(step, model, optimizer, device="late", device_bytes=STEP,
                                     host_bytes=512 * MIB, probe=False)
        self.assertTrue(found, found)
        self.assertTrue(model[0].weight.is_cpu)


class Budgets(Case):
    def begin(self, model, optimizer=None, **options):
        """offload() with its defaults, and what it tells."""
        printed = io.StringIO()
        with self.assertLogs("stepwell.torch", logging.INFO) as log, \
                contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            stepwell.torch.offload(model, optimizer, probe=False, **options)
        self.assertEqual(printed.getvalue(), "")
        made = stepwell.torch.offloaded(model)
        self.addCleanup(made.close)
        told = sorted(each.getMessage() for each in log.records)
        return told, *[made.runtime.tier_stats(tier).budget_bytes for tier in ("device", "host")]

    def left(self, nbytes):
        """What is left of the machine's memory."""
        return mock.patch.object(_budgets, "available", lambda: nbytes)

    def test_no_budget_is_needed(self):
        found = []
        for options in ({"device_bytes": 256 * MIB, "host_bytes": 512 * MIB}, None):
            model, optimizer = make("adamw")
            if options is not None:
                self.offload(model, optimizer, device="late", **options)
            else:
                cached = torch.empty(128 * MIB, dtype=torch.uint8, device="late")
                del cached
                torch.late.empty_cache()
                free = torch.late.mem_get_info()[0]
                cached = torch.empty(128 * MIB, dtype=torch.uint8, device="late")
                del cached  # the allocator has it, and returns it
                told, device, host = self.begin(model, optimizer, device="late")
                self.assertEqual(device, free // 2 // STEP * STEP)
                self.assertGreater(host, len(list(model.parameters())) * 2 * MIB)
                self.assertRegex(told[0], r"device_bytes is \d+ MiB: half of the .* on late:0")
                self.assertRegex(told[1], "host_bytes is .*: what all parameters, gradients and "
                                          "states take")
                self.assertEqual(len(told), 2)
            found.append(trained("adamw", model, optimizer))
            stepwell.torch.offloaded(model).close()
        self.assertEqual(*found)

    def test_a_drive_has_what_memory_has_not(self):
        model, optimizer = make("adamw")
        with self.left(128 * MIB):
            told, _, host = self.begin(model, optimizer, device="late", nvme=self.drive(),
                                       device_bytes=STEP)
        self.assertEqual(host, STEP)
        self.assertEqual(len(told), 1)
        self.assertRegex(told[0], "host_bytes is 64 MiB: three quarters of the 128 MiB")
        trained("adamw", model, optimizer)

    def test_what_fits_nowhere_is_refused_with_the_sum(self):
        model, optimizer = make("adamw")
        with self.left(40 * MIB):
            with self.assertRaisesRegex(stepwell.BudgetError, "without nvme .* take up to \\d{9} "
                                        f"bytes, while device_bytes is {STEP}, .* left to this "
                                        f"process are {30 * MIB}: give nvme="):
                stepwell.torch.offload(model, optimizer, device="late", device_bytes=STEP)
        with self.left(60 * MIB):
            with self.assertRaisesRegex(stepwell.BudgetError, f"{60 * MIB} bytes of memory are "
                                        "left .* give host_bytes"):
                stepwell.torch.offload(model, optimizer, device="late", device_bytes=STEP,
                                       nvme=self.drive())
        self.assertTrue(model[0].weight.is_cpu)
        with self.assertRaisesRegex(stepwell.BudgetError, "must fit into host_bytes and what "
                                    "device_bytes has beside what is worked in, and take"):
            self.offload(model, optimizer, device="late", host_bytes=4 * MIB)

    def test_a_device_without_room_is_refused(self):
        model, optimizer = make("adamw")
        _place.KINDS["late"] = _place.KINDS["late"]._replace(free=lambda index: 2 * STEP - 1)
        with self.assertRaisesRegex(stepwell.BudgetError, f"{2 * STEP - 1} bytes are free on "
                                    "late:0, and half .* give device_bytes"):
            stepwell.torch.offload(model, optimizer, device="late")

    def test_one_memory_has_one_budget(self):
        _place.KINDS["late"] = _place.KINDS["late"]._replace(is_unified=lambda index: True)
        model, optimizer = make("adamw")
        for options in ({}, {"device_bytes": STEP}, {"host_bytes": STEP}):
            with self.assertRaisesRegex(ValueError, "late:0 and the CPU have one memory, .* one "
                                        "budget, which has no default: give both"):
                stepwell.torch.offload(model, optimizer, device="late", **options)
        self.offload(model, optimizer, device="late")

    def test_lines_go_to_the_log_of_the_runtime(self):
        for level, count in ((logging.INFO, 2), (None, 0)):
            lines = []
            model, optimizer = make("adamw")
            stepwell.torch.offload(model, optimizer, device="late", probe=False, log_level=level,
                                   log=lambda level, topic, line: lines.append((topic, line)))
            stepwell.torch.offloaded(model).close()
            self.assertEqual([topic for topic, _ in lines].count("budgets"), count)
        logger = logging.getLogger("test")
        with self.assertLogs(logger, logging.INFO) as log:
            stepwell.torch.offload(model, optimizer, probe=False, log=logger)
        stepwell.torch.offloaded(model).close()
        self.assertIn("device_bytes", " ".join(log.output))

    def test_memory_that_is_left(self):
        with tempfile.TemporaryDirectory(dir=self.directory) as root:
            def write(path, text):
                os.makedirs(os.path.dirname(root + path), exist_ok=True)
                with open(root + path, "w", encoding="ascii") as file:
                    file.write(text)
            write("/proc/meminfo", "MemTotal: 900 kB\nMemAvailable:     500 kB\n")
            self.assertEqual(_budgets.available(root), 500 << 10)
            write("/proc/self/cgroup", "0::/a/b\n")
            self.assertEqual(_budgets.available(root), 500 << 10)
            write("/sys/fs/cgroup/a/b/memory.max", "max\n")
            write("/sys/fs/cgroup/a/b/memory.current", "5000\n")
            self.assertEqual(_budgets.available(root), 500 << 10)
            write("/sys/fs/cgroup/a/memory.max", "300000\n")
            write("/sys/fs/cgroup/a/memory.high", "200000\n")
            write("/sys/fs/cgroup/a/memory.current", "90000\n")
            write("/sys/fs/cgroup/a/memory.stat", "file 7\ninactive_file 40000\n")
            self.assertEqual(_budgets.available(root), 150000)
            write("/proc/self/cgroup", "5:cpu:/x\n4:memory,hugetlb:/c\n0::/none\n")
            write("/sys/fs/cgroup/memory/memory.limit_in_bytes", f"{(1 << 63) - 4096}\n")
            write("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "100000\n")
            write("/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "120000\n")
            self.assertEqual(_budgets.available(root), 0)
            write("/sys/fs/cgroup/memory/c/memory.stat", "total_inactive_file 110000\n")
            self.assertEqual(_budgets.available(root), 90000)
        self.assertGreater(_budgets.available(), 0)


class Init(Case):
    def tiers(self, **options):
        return stepwell.torch.init(**{"device": "late", "device_bytes": STEP,
                                      "host_bytes": 512 * MIB, "probe": False, **options})

    def test_a_model_is_made_on_the_device_and_goes_down_at_once(self):
        def model_of():
            torch.manual_seed(0)
            return nn.Sequential(*[nn.Linear(512, 512) for _ in range(24)])
        torch.late.synchronize()
        torch.late.empty_cache()
        torch.late.reset_peak_memory_stats()
        before = torch.late.memory_allocated(), torch.late.memory_reserved()
        with self.tiers(device_bytes=32 * MIB) as tiers:
            model = model_of()
        for found, was in zip((torch.late.max_memory_allocated(), torch.late.max_memory_reserved()),
                              before):
            # The weight that is being made, and the one that is copied to the tiers.
            self.assertLessEqual(found - was, 2 * 512 * 512 * 4 + MIB)
        self.assertTrue(torch.empty(0).is_cpu)
        with torch.device("late"):
            plain = model_of()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            self.assertEqual(one.device, double.DEVICE)
            self.assertTrue(torch.equal(one, other))
        tiers.close()

    def test_it_is_trained_as_one_that_is_moved_as_a_whole(self):
        for kind in ("adamw", "rmsprop", "tied", "convolutions", "attention", "frozen"):
            with self.subTest(kind=kind):
                found = []
                for tiers in (None, self.tiers(host_bytes=24 * MIB, nvme=self.drive())):
                    torch.manual_seed(0)
                    with tiers or torch.device("late"):
                        model = KINDS[kind][0]()
                    optimizer = OPTIMIZERS[KINDS[kind][3]](
                        [each for each in model.parameters() if each.requires_grad])
                    if tiers is None:
                        made = self.offload(model, optimizer)
                    else:
                        tiers.offload(model, optimizer)
                        made = stepwell.torch.offloaded(model)
                    losses = trained(kind, model, optimizer)
                    made.close()
                    self.assertEqual({each.device for each in model.parameters()},
                                     {double.DEVICE})
                    found.append((losses, values(model)))
                self.assertEqual(found[0][0], found[1][0])
                for key, value in found[0][1].items():
                    self.assertTrue(torch.equal(value, found[1][1][key]), key)

    def test_what_the_body_makes_elsewhere(self):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.there = nn.Linear(WIDTH, WIDTH)
                self.loaded = nn.Parameter(torch.full((WIDTH,), 2.0, device="cpu"))
                self.register_buffer("table", torch.ones(WIDTH, device="cpu"))
                with torch.device("meta"):
                    self.form = torch.empty(3)

            def forward(self, data):
                return self.there(data) * self.loaded * self.table
        with self.tiers() as tiers:
            model = Mixed()
        self.assertTrue(model.loaded.is_cpu)
        self.assertTrue(model.form.is_meta)
        tiers.offload(model, torch.optim.AdamW(model.parameters()))
        self.assertEqual({each.device for each in [*model.parameters(), *model.buffers()]},
                         {double.DEVICE})
        model(torch.ones(2, WIDTH, device="late")).sum().backward()
        self.assertEqual(model.loaded.sum().item(), 2 * WIDTH)
        tiers.close()

    def test_a_body_that_fails_ends_the_default_device(self):
        with self.assertRaises(ArithmeticError):
            with self.tiers():
                self.assertEqual(torch.empty(0).device, double.DEVICE)
                raise ArithmeticError
        self.assertTrue(torch.empty(0).is_cpu)

    def test_files_are_read_in_the_block(self):
        path = os.path.join(self.directory, "model.safetensors")
        plain = stack()
        stepwell.torch.save_safetensors(plain, path)
        with self.tiers() as tiers:
            model = stack()
            stepwell.torch.load_safetensors(model, path)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            self.assertTrue(torch.equal(one.cpu(), other))
        tiers.close()

    def test_a_generation_of_it_goes_on(self):
        def run(begin, end, **options):
            torch.manual_seed(0)
            with self.tiers(nvme=self.drive(), store_name="run", **options) as tiers:
                model = stack()
            optimizer = torch.optim.AdamW(model.parameters())
            tiers.offload(model, optimizer)
            made, losses = stepwell.torch.offloaded(model), []
            for step in range(begin, end):
                data = training.numbers(8, WIDTH)(step).to("late")
                loss = square(model(data), data)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            made.commit()
            made.close()
            return losses
        whole = run(0, 4, overwrite=True)
        self.assertEqual(run(0, 2, overwrite=True) + run(2, 4, resume=True), whole)

    def test_its_budgets(self):
        with self.assertRaisesRegex(ValueError, "init.device=.*. needs host_bytes"):
            self.tiers(host_bytes=None)
        with self.assertRaisesRegex(ValueError, "needs host_bytes"):
            self.tiers(host_bytes=0)
        with self.assertRaisesRegex(TypeError, "a model on cpu needs device_bytes"):
            stepwell.torch.init()
        with self.assertLogs("stepwell.torch", logging.INFO) as log, \
                self.tiers(device_bytes=None) as tiers:
            model = nn.Linear(4, 4)
        self.assertRegex(log.output[0], "device_bytes is .*half of the")
        self.assertEqual(model.weight.device, double.DEVICE)
        tiers.close()


class Refusals(Case):
    def test_devices(self):
        model, optimizer = make("adamw")
        for device, error, words in (
            ("xpu", ValueError, "device='xpu': a model computes on cpu or cuda or late"),
            ("meta", ValueError, "device='meta': a model computes on"),
            ("late:1", RuntimeError,
             "device='late:1': PyTorch .* cannot use it here: .*invalid device ordinal 1.*count"),
            ("cuda:99", RuntimeError, "device='cuda:99': PyTorch .* cannot use it here: "),
            ("nonsense", RuntimeError, "nonsense"),
            (True, TypeError, "bool"),
        ):
            for call in (lambda device: self.offload(model, optimizer, device=device),
                         lambda device: stepwell.torch.init(device=device, device_bytes=STEP,
                                                            host_bytes=STEP)):
                with self.subTest(device=device), self.assertRaisesRegex(error, words):
                    call(device)
        move(model, optimizer)
        with self.assertRaisesRegex(ValueError, "device='cpu', and parameter '0.weight' is on "
                                    r"late:0: .* model.to\('cpu'\) before, or leave device= out"):
            self.offload(model, optimizer, device="cpu")
        self.assertEqual(model[0].weight.device, double.DEVICE)

    def test_parameters(self):
        model, optimizer = make("adamw")
        model[0].to("late")
        with self.assertRaisesRegex(TypeError, "one offload.. is for one device"):
            self.offload(model, optimizer, device="late")
        with self.assertRaisesRegex(TypeError, "'weight' is on meta and has no values: .*init.*"
                                    r"to_empty\(device='cpu'\)"):
            self.offload(nn.Linear(2, 2, device="meta"), device="late")

    def test_sizes(self):
        model, optimizer = make("adamw")
        for name in ("device_bytes", "host_bytes"):
            for size in (-1, True, False, 1.5, "much", "-1"):
                with self.subTest(name=name, size=size), self.assertRaisesRegex(
                        ValueError, "no size"):
                    self.offload(model, optimizer, device="late", **{name: size})
        with self.assertRaisesRegex(ValueError, "device_bytes='auto' is not known yet"):
            self.offload(model, optimizer, device="late", device_bytes="auto")
        with self.assertRaisesRegex(ValueError, "needs host_bytes"):
            self.offload(model, optimizer, device="late", host_bytes=0)
        with self.assertRaisesRegex(TypeError, "a model on cpu needs device_bytes, .*estimate"):
            stepwell.torch.offload(model, optimizer, host_bytes=STEP)


if __name__ == "__main__":
    unittest.main()
