# SPDX-License-Identifier: Apache-2.0
"""The orders between a program's streams and the copies of offload(): each that is forgotten shows
as an access that is not ordered, and none is forgotten.

usage: test_offload_orders.py MODULE, over the double of CUDA's driver.
"""
import contextlib
import ctypes
import unittest
from unittest import mock

import double
import stepwell
import stepwell.torch
import torch
import training
from stepwell import _stream_fetching, _views
from stepwell.torch import _accesses, _gradients, _lazy, _place, _records, _spill, _tiles
from test_offload_device import (
    KINDS, MIB, STEPS, WIDTH, Case, Checkpointed, fifth, make, square, stack, trained,
)
from torch import nn


class TwoStreams(nn.Module):
    """Memory that one stream has made is used on another one last."""

    def __init__(self, rows):
        super().__init__()
        self.first, self.second = stack(1), stack(3)
        self.side, self.rows = torch.late.Stream(), rows

    def forward(self, data):
        here = torch.accelerator.current_stream()
        self.side.wait_stream(here)
        with self.side:
            data = self.first(data)
        here.wait_stream(self.side)
        data = self.second(data)
        with self.side:  # what was made there, and left from here, is free for it
            [torch.ones(self.rows, WIDTH, device="late") for _ in range(8)]
        return data


class SavedTensors(Case):
    """What autograd saves beyond activation_bytes is in the host tier, or behind it, until backward
    needs it."""

    ROWS = 8192  # of a batch: 3 MiB in each saved tensor

    def steps(self, model, optimizer, rows=ROWS, again=False):
        losses = []
        for step in range(3):
            data = training.numbers(rows, WIDTH)(step).to("late")
            loss = square(model(data), data)
            loss.backward(retain_graph=again)
            if again:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def peak(self, run):
        torch.late.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        found = run()
        return found, torch.accelerator.max_memory_allocated() - before

    def made(self, how, kind="adamw"):
        torch.manual_seed(0)
        model = (stack(4) if how is None else Checkpointed(how)).to("late")
        return model, training.OPTIMIZERS[kind](model.parameters())

    def test_they_have_the_same_bits_wherever_they_were(self):
        for how in (None, False, True):
            for options in ({}, {"host_bytes": 24 * MIB, "nvme": self.drive()},
                            {"device_bytes": 24 * MIB}):
                with self.subTest(how=how, options=[*options]):
                    model, optimizer = self.made(how)
                    plain, most = self.peak(lambda: self.steps(model, optimizer))
                    model, optimizer = self.made(how)
                    made = self.offload(model, optimizer, activation_bytes=6 * MIB, **options)
                    found, least = self.peak(lambda: self.steps(model, optimizer))
                    self.assertEqual(found, plain)
                    self.assertGreater(made.spill.left, 30 * MIB if how is None else 6 * MIB)
                    # A checkpoint that is reentrant has the tensors of its arguments meanwhile.
                    held = 3 if how else 1
                    self.assertLessEqual(made.spill.peak, 6 * MIB + held * 4 * self.ROWS * WIDTH)
                    if how is None:  # a checkpoint saves little
                        self.assertLess(least, 0.7 * most)
                    made.close()
                    self.assertEqual(double.violations(), [])

    def test_a_second_pass_over_the_same_graph_finds_them(self):
        model, optimizer = self.made(None)
        plain = self.steps(model, optimizer, again=True)
        model, optimizer = self.made(None)
        self.offload(model, optimizer, activation_bytes=0)
        self.assertEqual(self.steps(model, optimizer, again=True), plain)

    def test_for_the_calls_of_a_block_alone(self):
        model, optimizer = self.made(None)
        plain = self.steps(model, optimizer)
        model, optimizer = self.made(None)
        self.offload(model, optimizer)
        with stepwell.torch.save_on_tiers(model, 0) as spill:
            self.assertEqual(self.steps(model, optimizer), plain)
        self.assertGreater(spill.left, 30 * MIB)

    def test_a_saved_tensor_that_is_written_is_an_error(self):
        class Writes(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(WIDTH, WIDTH)

            def forward(self, data):
                out = self.layer(data).exp()
                out.mul_(2)
                return out
        model = Writes().to("late")
        self.offload(model, activation_bytes=MIB)
        data = training.numbers(self.ROWS, WIDTH)(0).to("late")
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            model(data).sum().backward()

    def test_memory_that_another_stream_made_is_not_given_out_too_early(self):
        rows = self.ROWS

        def steps(model, optimizer):
            losses = []
            for step in range(3):
                data = training.numbers(rows, WIDTH)(step).to("late")
                loss = square(model(data), data)
                loss.backward()
                with model.side:  # the same of gradients
                    [torch.ones(WIDTH, WIDTH, device="late") for _ in range(8)]
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses
        torch.manual_seed(0)
        plain, model = TwoStreams(rows).to("late"), TwoStreams(rows).to("late")
        model.load_state_dict(plain.state_dict())
        losses = steps(plain, torch.optim.AdamW(plain.parameters()))
        self.assertEqual(double.violations(), [])
        optimizer = torch.optim.AdamW(model.parameters())
        self.offload(model, optimizer, activation_bytes=0)
        self.assertEqual(steps(model, optimizer), losses)
        self.assertEqual(double.violations(), [])

    def test_without_room_for_them_the_budget_is_named(self):
        model, optimizer = self.made(None)
        self.offload(model, optimizer, activation_bytes=0, host_bytes=24 * MIB,
                     device_bytes=32 * MIB)
        with self.assertRaisesRegex(stepwell.BudgetError, "host"):
            self.steps(model, optimizer, rows=16 * self.ROWS)


class Orders(Case):
    """What the package forgets to order is found, and what the program orders is enough."""

    def loop(self, kind):
        model, optimizer = make(kind)
        self.made = self.offload(model, optimizer, device_bytes=fifth(model))
        yield
        trained(kind, model, optimizer)

    def large(self, **options):
        """Weights of four blocks, which are in tiles, or of which saved tensors leave."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32768), *[nn.Tanh() for _ in range(3)],
                              nn.Linear(32768, 64)).to("late")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        self.made = self.offload(model, optimizer, device_bytes=32 * MIB, **options)
        yield
        for step in range(STEPS):
            data = training.numbers(64, 64)(step).to("late")
            square(model(data), data).backward()
            optimizer.step()
            optimizer.zero_grad()

    def edits(self):
        """What programs do with gradients and parameters between the calls."""
        model, optimizer = make("adamw")
        self.made = self.offload(model, optimizer, device_bytes=fifth(model))
        yield
        for step in range(STEPS):
            data = training.numbers(8, WIDTH)(step).to("late")
            square(model(data), data).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            self.made.runtime.evict()  # so that each of them comes for its edit
            for parameter in model.parameters():
                parameter.grad.add_(1e-4)
                with torch.no_grad():
                    parameter.mul_(0.999)
            optimizer.step()
            optimizer.zero_grad()

    def writes(self):
        """A forward pass that changes its weights."""
        class Decays(nn.Linear):
            def forward(self, data):
                with torch.no_grad():
                    self.weight.mul_(0.999)
                return super().forward(data)
        model = nn.Sequential(*[Decays(WIDTH, WIDTH) for _ in range(6)]).to("late")
        self.made = self.offload(model, device_bytes=fifth(model))
        yield
        for step in range(STEPS):
            model(training.numbers(8, WIDTH)(step).to("late"))

    def two_streams(self):
        model = TwoStreams(8192).to("late")
        self.made = self.offload(model, torch.optim.AdamW(model.parameters()), activation_bytes=0)
        yield
        data = training.numbers(8192, WIDTH)(0).to("late")
        model(data).sum().backward()

    def branches(self, tiers=True):
        """Layers on two streams, whose gradients arrive on these: too many to be copied at once."""
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(20)])
                               for _ in range(2)]).to("late")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        if tiers:
            self.made = self.offload(model, optimizer)
        yield
        main, side = torch.late.current_stream(), torch.late.Stream()
        for step in range(STEPS):
            data = training.numbers(4096, WIDTH)(step).to("late")
            side.wait_stream(main)
            with torch.late.stream(side):
                beside = model[0](data)
            here = model[1](data)
            main.wait_stream(side)
            self.loss = square(here, beside)
            self.loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_gradients_of_two_streams_have_plain_bits(self):
        found = []
        for tiers in (True, False):
            for _ in self.branches(tiers):
                pass
            found.append(self.loss.item())
        self.assertEqual(*found)

    def test_each_order_that_is_forgotten_is_found(self):
        side = torch.late.Stream()
        with side:
            handle = ctypes.c_void_p(double.current_handle())
        release = _views._Pins.release
        fetch_options = _stream_fetching.StreamRuntime._fetch_options

        def on_side(owner, name):
            """It runs on another stream than the one whose work it is for."""
            function = getattr(owner, name)

            def forgetful(*args, **options):
                with side:
                    return function(*args, **options)
            return owner, name, forgetful

        def releases_for_nobody(self, flags=0):
            self._stream = ctypes.c_void_p(stepwell.Stream.SYNCED)
            release(self, flags)

        def units_released_on_side(self, flags=0):
            if type(self) is _stream_fetching.StreamPrepared:
                self._stream = handle
            release(self, flags)

        def fetches_for_nobody(self, views, **options):
            return fetch_options(self, views, **{**options, "stream": stepwell.Stream.SYNCED})

        def exports_for_nobody(exporter):
            return double.take(exporter.__dlpack__(
                max_version=(1, 1), stream=stepwell.Stream.SYNCED))

        pins, runtime = _views._Pins, _stream_fetching.StreamRuntime
        adamw, rmsprop = lambda: self.loop("adamw"), lambda: self.loop("rmsprop")
        saved = lambda: self.large(activation_bytes=0)  # noqa: E731
        for what, program, fault in (
            ("views end before the work on them", adamw, (pins, "release", releases_for_nobody)),
            ("units end on another stream", adamw, (pins, "release", units_released_on_side)),
            ("fetches are for no stream", adamw, (runtime, "_fetch_options", fetches_for_nobody)),
            ("units come for another stream", adamw,
             on_side(_stream_fetching.StreamPrepared, "fetch")),
            ("gradients are taken before they are there", adamw,
             on_side(_gradients.Arrived, "_copy_there")),
            ("a large gradient is taken before it is there", lambda: self.large(),
             on_side(_gradients.Gradients, "_copy")),
            ("an edit of a gradient comes too early", self.edits, on_side(_lazy.Source, "fetch")),
            ("what a forward pass has written is read too early", self.writes,
             on_side(_records, "write")),
            ("a parameter is fetched for another stream", self.edits,
             on_side(_accesses.Accesses, "_touch")),
            ("states come for another stream", rmsprop, on_side(_lazy.Window, "fetch")),
            ("a tile's gradient is added too early", lambda: self.large(tile_bytes=2 * MIB),
             on_side(_tiles.Tile, "add_gradient")),
            ("a tile comes for another stream", lambda: self.large(tile_bytes=2 * MIB),
             on_side(_stream_fetching.StreamPrepared, "fetch")),
            ("a saved tensor leaves before it is there", saved, on_side(_spill.Spill, "_copied")),
            ("a saved tensor comes for another stream", saved, on_side(_spill.Spill, "brought")),
            ("memory of another stream is freed before its copy", self.two_streams,
             (_place.Place, "used_here", lambda self, tensor: None)),
            ("exports are for no stream", self.edits, (self, "exports", exports_for_nobody)),
            ("gradients of two streams are copied on one", self.branches,
             (_gradients.Arrived, "_follow", lambda self: None)),
        ):
            with self.subTest(what):
                found = []
                for _ in range(3):  # what has run by then is in order, on a busy machine
                    double.register(self.module)
                    if fault[1] == "exports":
                        _place.KINDS["late"] = _place.KINDS["late"]._replace(tensor_of=fault[2])
                    steps = program()
                    next(steps)
                    with (mock.patch.object(*fault) if hasattr(*fault[:2])
                          else contextlib.nullcontext()):
                        self.assertIsNone(next(steps, None))
                        torch.late.synchronize()
                    self.made.close()
                    found += double.violations()
                    if any("is not ordered after" in each for each in found):
                        break
                self.assertTrue(any("is not ordered after" in each for each in found), found[:3])

    def test_a_stream_of_the_program_that_is_joined_is_as_good(self):
        def run(tiers):
            model, optimizer = make("adamw")
            if tiers:
                self.offload(model, optimizer, device_bytes=fifth(model))
            main, side = torch.late.current_stream(), torch.late.Stream()
            for step in range(STEPS):
                data = KINDS["adamw"][1](step).to("late")
                side.wait_stream(main)
                with torch.late.stream(side):
                    loss = square(model(data), data)
                    loss.backward()
                main.wait_stream(side)
                optimizer.step()
                optimizer.zero_grad()
            return loss.item()
        self.assertEqual(run(True), run(False))

    def test_a_stream_that_is_not_joined_is_named(self):
        model, _ = make("adamw")
        self.offload(model)
        data = training.numbers(8, WIDTH)(0).to("late")
        side = torch.late.Stream()
        with double.held(side):
            with side:
                twice = data * 2
            model(twice)
        torch.late.synchronize()
        self.assertRegex(double.violations()[0], "aten::addmm.* not ordered after aten::mul")

    def test_fetches_that_hit_order_nothing_anew(self):
        model, _ = make("adamw")
        unit = self.offload(model).units[0]
        unit.enter()
        unit.leave()
        ordering = "cuEventRecord", "cuStreamWaitEvent"  # threads of the library call others
        before = [double.calls(entry) for entry in ordering]
        for _ in range(100):
            unit.enter()
            unit.leave()
        self.assertEqual([double.calls(entry) for entry in ordering], before)


if __name__ == "__main__":
    unittest.main()
