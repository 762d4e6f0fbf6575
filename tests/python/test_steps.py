# SPDX-License-Identifier: Apache-2.0
"""Phases, steps, optimizers, and what is told of them."""
import ctypes
import gc
import json
import os
import pathlib
import shlex
import subprocess
import sys
from array import array

import stepwell
import support
from support import BLOCK, numpy

F32 = BLOCK // 4


class Steps(support.Machine):
    def setUp(self):
        super().setUp()
        self.phase = self.runtime.phase("train")

    def test_a_step_is_measured(self):
        tensor = self.floats(10, "t", 1.0)
        with self.phase.step() as step:
            with tensor.fetch():
                pass
            with self.assertRaises(stepwell.BusyError):
                self.phase.step().begin()
        self.assertFalse(step.aborted)
        self.assertGreater(step.stats.wall_ns, 0)
        step = self.phase.step()
        step.begin()
        self.assertEqual(step.end().step, 2)
        with self.assertRaises(stepwell.InvalidError):
            step.end()
        self.phase.destroy()
        with self.assertRaises(stepwell.ClosedError):
            self.phase.step().begin()

    def test_advice_says_what_another_order_would_save(self):
        weights = [self.floats(4 * F32, f"w{i}", 1.0) for i in range(8)]
        for weight in weights:
            weight.evict("device")
            weight.evict("host")
        with self.assertRaises(stepwell.EmptyError):
            self.phase.advice()
        for _ in range(3):
            with self.phase.step() as step:
                for _ in range(4):
                    for weight in weights:
                        with weight.fetch():
                            pass
        (advice,) = self.phase.advice()
        self.assertEqual(advice.kind, stepwell.PlanAdviceKind.GROUP_MICRO_BATCHES)
        self.assertEqual(advice.micro_batches, 4)
        self.assertLess(advice.then_nvme_read_bytes, advice.now_nvme_read_bytes / 2)
        self.assertIn("for all 4 micro-batches", advice.text)
        self.assertGreater(step.stats.nvme_read_bytes, 0)
        with self.phase.step():
            for weight in weights:
                for _ in range(4):
                    with weight.fetch():
                        pass
        self.assertEqual(self.phase.advice(), [])

    def test_an_exception_aborts_the_step_and_ends_its_views(self):
        tensor, before = self.floats(10, "t", 1.0), self.floats(10, "u", 1.0)
        outside = before.fetch()
        with self.assertRaises(ZeroDivisionError):
            with self.phase.step():
                view = tensor.fetch()
                views = self.runtime.fetch_many([tensor, tensor])
                raise ZeroDivisionError
        self.assertEqual(self.pinned(), 1)
        for use in (lambda: view.bytes, lambda: view.address, lambda: views[0].bytes, view.share):
            with self.assertRaises(stepwell.ClosedError) as caught:
                use()
            self.assertIn("step was aborted", str(caught.exception))
        with self.assertRaises(stepwell.ClosedError):
            view.release()
        self.assertEqual(len(outside.bytes), 40)
        outside.release()
        with self.phase.step():
            self.assertEqual(len(tensor.fetch().bytes), 40)

    def test_a_phase_whose_begin_was_interrupted_begins_again(self):
        phase = self.runtime.phase("train")
        begun = self.runtime._begun

        def interrupted(_step):
            raise KeyboardInterrupt

        self.runtime._begun = interrupted
        with self.assertRaises(KeyboardInterrupt):
            phase.step().begin()
        self.runtime._begun = begun
        with phase.step() as step:
            pass
        self.assertFalse(step.aborted)

    def test_views_that_outlive_a_good_step_go_on(self):
        tensor = self.floats(10, "t", 1.0)
        with self.phase.step():
            view = tensor.fetch()
        self.assertEqual(len(view.bytes), 40)
        view.release()

    @support.needs_numpy
    def test_an_abort_waits_for_the_arrays_of_its_views(self):
        tensor = self.floats(F32, "t", 3.0)
        with self.assertRaises(ZeroDivisionError):
            with self.phase.step():
                array = tensor.fetch().numpy()
                raise ZeroDivisionError
        self.assertEqual((self.pinned(), float(array.sum())), (1, 3.0 * F32))
        with self.assertRaises(stepwell.BusyError) as caught:
            self.phase.step().begin()
        self.assertIn("arrays", str(caught.exception))
        del array
        self.assertEqual(self.pinned(), 0)
        with self.phase.step() as step:
            pass
        self.assertEqual(step.stats.step, 2)

    def test_a_declared_step_is_planned_the_first_time(self):
        layers = [self.floats(F32, f"layer {i}", float(i)) for i in range(3)]
        self.runtime.evict(tier="device")
        self.phase.declare([
            stepwell.PlannedFetch(layers[:2], compute=0.001, release=stepwell.Release.FAR),
            layers[2].request(count=100),
            stepwell.PlannedFetch(layers[0], "read_write"),
        ])
        with self.phase.step() as step:
            with self.assertRaises(stepwell.BusyError):
                self.phase.declare([])
            with self.runtime.fetch_many(layers[:2]):
                pass
            with layers[2].fetch(count=100), layers[0].fetch("read_write"):
                pass
        self.assertEqual(step.stats.planned, 1)
        stats = self.runtime.tier_stats("device")
        self.assertLessEqual(stats.planned_used_bytes + stats.planned_wasted_bytes,
                             stats.planned_bytes)
        with self.assertRaises(stepwell.InvalidError) as caught:
            self.phase.declare([stepwell.PlannedFetch(layers[0], release=64)])
        self.assertIn("entries[0]", str(caught.exception))
        self.phase.declare([])

    def test_without_a_plan_no_step_is_planned(self):
        with support.open_small(self.directory, plan=False) as runtime:
            phase = runtime.phase("train")
            for _ in range(2):
                with phase.step() as step:
                    pass
                self.assertEqual(step.stats.planned, 0)

    def test_steps_of_two_phases_overlap(self):
        tensor = self.floats(10, "t", 1.0)
        other = self.runtime.phase("eval")
        with self.assertRaises(ZeroDivisionError):
            with self.phase.step():
                with other.step():
                    mine = self.runtime.fetch(tensor, phase=self.phase)
                    theirs = tensor.fetch()
                raise ZeroDivisionError
        self.assertEqual((mine.released, theirs.released), (True, False))
        self.assertEqual(len(theirs.bytes), 40)
        theirs.release()


class Optimizers(support.Machine):
    def pair(self, name, count=4 * F32):
        return self.floats(count, name, 1.0), self.floats(count, name + ".grad", 0.5)

    def test_an_update_gives_its_verdict_and_goes_on(self):
        weights, gradient = self.pair("w")
        optimizer = self.runtime.adamw(stepwell.Hyper(lr=0.1), name="opt")
        optimizer.add(weights, gradient)
        result = optimizer.step(clip_norm=1.0, skip_nonfinite=True)
        self.assertAlmostEqual(result.norm, 0.5 * (4 * F32) ** 0.5, places=3)
        self.assertFalse(result.skipped)
        self.assertEqual((result.updated, result.nonfinite), (1, 0))
        self.runtime.drain()
        self.assertEqual(optimizer.result().norm, result.norm)
        self.assertEqual(optimizer.count(weights), 1)
        optimizer.set_count(weights, 7)
        self.assertEqual(optimizer.count(weights), 7)
        state = optimizer.state(weights, "exp_avg")
        self.assertEqual(state.info().role, stepwell.Role.OPTIMIZER_STATE)
        with self.assertRaises(stepwell.BusyError):
            weights.destroy()
        optimizer.destroy()
        with self.assertRaises(stepwell.ClosedError):
            state.info()
        weights.destroy()

    @support.needs_numpy
    def test_sgd_is_the_arithmetic_of_sgd(self):
        weights, gradient = self.pair("w", 8)
        optimizer = self.runtime.sgd(stepwell.Hyper(lr=0.5))
        optimizer.add_many([])
        optimizer.add_many([(weights, gradient)])
        optimizer.step(wait=True, keep_gradients=True, scale=0.5)
        self.assertEqual(weights.read().tolist(), [1 - 0.5 * 0.25] * 8)
        optimizer.set_hyper(stepwell.Hyper(lr=1.0))
        self.assertIsNone(optimizer.step([weights], verdict=False))
        self.runtime.drain()
        self.assertEqual(weights.read().tolist(), [1 - 0.125 - 0.5] * 8)
        with self.assertRaises(ValueError):
            optimizer.step([])

    @support.needs_numpy
    def test_gradients_may_lie_in_memory_of_the_program(self):
        weights, gradient = self.pair("w", 8)
        others, _ = other = self.pair("v", 8)
        optimizer = self.runtime.sgd(stepwell.Hyper(lr=1.0))
        optimizer.add_many([(weights, gradient), other])
        lent = numpy.full(8, 0.25, "f4")
        optimizer.step([weights, others], verdict=False, wait=True, gradients=[lent.ctypes.data, 0])
        self.assertEqual(weights.read().tolist(), [1 - 0.25] * 8)
        self.assertEqual(others.read().tolist(), [1 - 0.5] * 8)  # its tensor's
        self.assertEqual(gradient.read().tolist(), [0.5] * 8)    # neither read nor emptied
        for parameters in None, [weights, others]:
            with self.assertRaisesRegex(ValueError, "1 gradients for the parameters, of which"):
                optimizer.step(parameters, verdict=False, gradients=[lent.ctypes.data])
        with self.assertRaisesRegex(stepwell.InvalidError, "has no verdict"):
            optimizer.step([weights], gradients=[lent.ctypes.data])

    def test_a_step_of_other_parameters_is_not_waited_for(self):
        pairs = [self.pair(name, 8) for name in ("a", "b")]
        optimizer = self.runtime.adamw(stepwell.Hyper(lr=0.5))
        optimizer.add_many(pairs)
        (first, _), (second, _) = pairs
        with optimizer.state(first, "exp_avg").fetch():
            optimizer.step([first], verdict=False)
            optimizer.step([second], verdict=False, wait=True)
            with self.assertRaises(stepwell.BusyError):
                first.fetch(at_once=True)
            with self.assertRaises(stepwell.BusyError):
                optimizer.destroy()
        self.assertEqual(first.read().tolist(), second.read().tolist())
        self.assertEqual((optimizer.count(first), optimizer.count(second)), (1, 1))

    def test_a_speculative_step_stands_or_is_set_back_by_its_verdict(self):
        (early, gradient), (late, other) = [self.pair(name) for name in ("a", "b")]
        optimizers = []
        for weights, gradients in ((early, gradient), (late, other)):
            optimizers.append(self.runtime.sgd(stepwell.Hyper(lr=0.5, momentum=0.5)))
            optimizers[-1].add(weights, gradients)
        for clip_norm, stands in ((1e6, 0), (1e6, 1), (0.5, 0)):
            for gradients in (gradient, other):
                gradients.fill(0.5)
            self.assertIsNone(optimizers[0].step([early], speculate=True))
            self.runtime.drain()
            before = late.read().tolist()
            if stands:
                with self.assertRaisesRegex(stepwell.errors.BusyError, "STW_UPDATE_REJECT"):
                    early.fetch(timeout=10)
                with early.fetch(speculated=True, timeout=10) as view:
                    self.assertNotEqual(view.bytes.cast("f").tolist(), before)
            result = optimizers[0].step(clip_norm=clip_norm)
            expected = optimizers[1].step(clip_norm=clip_norm)
            self.assertEqual(result.norm, expected.norm)
            self.assertEqual(result.updated, 1)
            self.runtime.drain()
            self.assertEqual(bytes(early.read(bytearray(early.nbytes))),
                             bytes(late.read(bytearray(late.nbytes))))
            self.assertEqual(expected.early + expected.undone, 0)
            if stands:
                self.assertEqual((result.early, result.undone), (1, 0))
        self.assertEqual(result.undone, 1)
        before = early.read().tolist()
        gradient.fill(0.5)
        optimizers[0].step([early], speculate=True)
        self.assertTrue(optimizers[0].step(reject=True, keep_gradients=True).skipped)
        self.assertEqual(early.read().tolist(), before)
        self.assertEqual(gradient.read()[0], 0.5)

    def test_every_algorithm_has_its_states(self):
        states = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"),
                  "sgd": ("momentum",), "adagrad": ("sum",), "lion": ("exp_avg",)}
        for name, expected in states.items():
            weights, gradient = self.pair(name, 8)
            hyper = stepwell.Hyper(momentum=0.9 if name == "sgd" else 0,
                                   lr_decay=0.5 if name == "adagrad" else 0)
            optimizer = getattr(self.runtime, name)(hyper, name=name)
            optimizer.add(weights, gradient)
            optimizer.step(wait=True)
            self.assertEqual(optimizer.count(weights), 1)
            for state in expected:
                self.assertEqual(optimizer.state(weights, state).shape, weights.shape)

    def test_what_is_written_after_an_update_is_updated_next(self):
        for dtype, five in (("bf16", b"\xa0\x40"), ("f16", b"\x00\x45")):
            w = self.runtime.create(None, 20000, dtype, role="param")
            g = self.runtime.create(None, 20000, "f32", role="grad")
            optimizer = self.runtime.sgd()
            optimizer.add(w, g)
            w.fill(1)
            for value in (None, 5):
                if value:
                    w.fill(value)
                g.fill(0)
                optimizer.step()
            self.assertEqual(bytes(w.read(bytearray(w.nbytes))), five * 20000)
            self.assertEqual(optimizer.count(w), 2)

    def test_a_group_without_hyper_parameters_is_refused(self):
        weights, gradient = self.pair("w", 8)
        optimizer = self.runtime.adamw()
        optimizer.add(weights, gradient, group=7)
        with self.assertRaisesRegex(stepwell.InvalidError, "'w' is in group 7"):
            optimizer.step()
        optimizer.set_hyper(stepwell.Hyper(), 7)
        self.assertEqual(optimizer.step().updated, 1)

    def test_what_an_optimizer_holds_is_not_reshaped(self):
        weights, gradient = self.pair("w", 8)
        optimizer = self.runtime.adamw(name="opt")
        optimizer.add(weights, gradient)
        for held in (weights, gradient, optimizer.state(weights, "exp_avg")):
            with self.assertRaisesRegex(stepwell.BusyError, "belongs to optimizer 'opt'"):
                held.reshape(4)

    def test_counts_that_cannot_be_are_refused_with_their_value(self):
        weights, gradient = self.pair("w", 8)
        optimizer = self.runtime.adamw()
        optimizer.add(weights, gradient)
        for wrong in (-1, 1 << 53 | 1, 1 << 64, (1 << 64) + 5):
            with self.assertRaisesRegex(ValueError, str(wrong)):
                optimizer.set_count(weights, wrong)
        optimizer.set_count(weights, 1 << 53)
        self.assertEqual(optimizer.count(weights), 1 << 53)

    def test_hyper_parameters_that_make_no_sense_are_refused(self):
        for algorithm, wrong in (("adamw", {"lr": -1.0}), ("adam", {"beta1": 1.0}),
                                 ("lion", {"eps": float("nan")}), ("adamw", {"momentum": 0.5}),
                                 ("sgd", {"nesterov": True}), ("sgd", {"weight_decay": -0.5})):
            with self.assertRaises(stepwell.InvalidError) as caught:
                getattr(self.runtime, algorithm)(stepwell.Hyper(**wrong))
            self.assertIn(next(iter(wrong)), str(caught.exception).lower())

    @support.needs_numpy
    def test_parameters_are_averaged_for_evaluation(self):
        weights, gradient = self.pair("w", 8)
        optimizer = self.runtime.sgd(stepwell.Hyper(lr=1.0), ema_decay=0.5)
        optimizer.add(weights, gradient)
        average = optimizer.state(weights, "ema")
        with self.assertRaises(stepwell.EmptyError):
            average.read()
        expected = 1.0
        for step in (1, 2):
            optimizer.step(wait=True, keep_gradients=True)
            expected = 0.5 * expected + 0.5 * (1 - 0.5 * step)
            self.assertEqual(average.read().tolist(), [expected] * 8)
        with self.assertRaises(stepwell.InvalidError) as caught:
            self.runtime.adam(ema_decay=1.25)
        self.assertIn("1.25", str(caught.exception))

    def test_moments_are_kept_in_bf16(self):
        weights, gradient = self.pair("w")
        optimizer = self.runtime.adamw(state_dtype="bf16")
        optimizer.add(weights, gradient)
        optimizer.step(wait=True)
        self.assertEqual(optimizer.state(weights, "exp_avg").dtype, stepwell.Dtype.BF16)
        with self.assertRaises(stepwell.UnsupportedError):
            self.runtime.adamw(state_dtype="f16")

    def test_masters_are_copied_in_the_form_they_are_kept(self):
        weights = self.runtime.create("w", (3, 10), "bf16", role="param")
        gradient = self.runtime.create("g", (3, 10), "bf16", role="grad")
        optimizer = self.runtime.adamw()
        optimizer.add(weights, gradient)
        names = {tensor.name for tensor in self.runtime}
        masters = array("f", [1 + at * 2.0 ** -20 for at in range(30)])
        optimizer.write_master(weights, masters)
        out = array("f", [0.0]) * 30
        self.assertIs(optimizer.read_master(weights, out), out)
        self.assertEqual(out, masters)
        self.assertEqual(bytes(optimizer.read_master(weights, begin=8, count=16)),
                         masters[8:24].tobytes())
        self.assertEqual(bytes(weights.read()), b"\x80\x3f" * 30)
        optimizer.write_master(weights, masters[:8], 8, 8)
        self.assertEqual(bytes(optimizer.read_master(weights)),
                         (masters[:8] + masters[:8] + masters[16:]).tobytes())
        self.assertEqual({tensor.name for tensor in self.runtime}, names)
        with self.assertRaisesRegex(ValueError, "shape"):
            optimizer.write_master(weights, memoryview(masters).cast("B").cast("f", (10, 3)))
        with self.assertRaisesRegex(ValueError, "30 elements of 4 bytes"):
            optimizer.read_master(weights, array("f", [0.0]))
        with self.assertRaisesRegex(stepwell.NotFoundError, "'g'"):
            optimizer.read_master(gradient)

    @support.needs_numpy
    def test_gradients_that_are_not_finite_skip_the_step(self):
        weights, gradient = self.pair("w", 8)
        optimizer = self.runtime.adam()
        optimizer.add(weights, gradient)
        gradient.write([numpy.nan] + [1.0] * 7)
        self.assertTrue(optimizer.step(skip_nonfinite=True, wait=True).skipped)
        self.assertEqual(weights.read().tolist(), [1.0] * 8)

    @support.needs_numpy
    def test_gradients_of_a_step_are_summed_by_its_views(self):
        weights, gradient = self.pair("w", 8)
        gradient.discard()
        with self.runtime.phase("train").step():
            for _ in range(3):
                with gradient.fetch("reduce") as view:
                    view.numpy()[:] += 1
        self.assertEqual(gradient.read().tolist(), [3.0] * 8)

    def profile_of(self, runtime):
        path = os.path.join(self.directory, "report.json")
        runtime.write_report(path)
        with open(path, encoding="utf-8") as file:
            return json.load(file)["profile"]

    @support.needs_numpy
    def test_one_call_fetches_a_gradient_twice(self):
        g = self.runtime.create("g", 40000, "f32", role="grad")
        for round_ in (1, 2):
            with self.runtime.fetch_many([g, g], "reduce") as views:
                for view, value in zip(views, (1.0, 2.0)):
                    view.numpy()[:] += value
            self.assertTrue((g.read() == 3.0 * round_).all())

    def test_what_cannot_be_summed_is_refused_at_its_fetch(self):
        for dtype in ("f64", "i32", "u8", "bool"):
            tensor = self.runtime.create("sums", 10, dtype, role="grad")
            for call in (lambda: tensor.fetch("reduce"), tensor.reduce):
                with self.assertRaises(stepwell.InvalidError) as caught:
                    call()
                self.assertIn(f"'sums' of dtype {dtype}", str(caught.exception))
            tensor.destroy()

    def test_a_profile_decides_what_the_program_leaves_open(self):
        known = self.profile_of(self.runtime)
        here = known["directories"][0]
        way = {"bytes_per_s": 10**9, "request_bytes": 16384, "queue_depth": 5}
        profile = {
            "kind": "stepwell machine profile", "format": 1, "created": "once", "by": "tune",
            "machine": {name: known[name] for name in ("kernel", "processor", "cores")},
            "directories": [{
                "path": self.directory, "driver": "posix", "read": way, "write": way,
                **{name: here[name] for name in ("device", "file_system", "file_system_id")},
            }],
        }
        path = os.path.join(self.directory, "profile.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(profile, file)
        os.chmod(path, 0o600)
        nvme = {"path": self.directory, "budget_bytes": support.MIB + 8 * BLOCK,
                "driver_options": "", "request_bytes": 8192}
        if here["file_system"] == "tmpfs":
            nvme["driver_options"] = "allow_tmpfs=1"
        with support.open_small(self.directory, profile=path, nvme=nvme) as runtime:
            found = self.profile_of(runtime)["directories"][0]
        self.assertEqual(found["source"], "profile")
        self.assertEqual(found["read_queue_depth"], 5)
        self.assertEqual(found["write_request_bytes"], 8192)
        with support.open_small(self.directory, profile="", probe=False) as runtime:
            self.assertEqual(self.profile_of(runtime)["directories"][0]["source"], "none")
        with self.assertRaises(stepwell.NotFoundError):
            support.open_small(self.directory, profile=path + ".gone")

    def test_everything_can_be_observed(self):
        weights, gradient = self.pair("w")
        optimizer = self.runtime.adamw()
        optimizer.add(weights, gradient)
        with self.runtime.phase("train").step():
            optimizer.step()
        self.runtime.drain()
        stats = self.runtime.tier_stats("host")
        self.assertEqual(stats.budget_bytes, 16 * BLOCK)
        self.assertGreater(stats.metadata_bytes, 0)
        self.assertGreaterEqual(self.runtime.link_stats("nvme_to_device").errors, 0)
        info = self.runtime.device_info()
        self.assertEqual((info.driver, info.ordinal), ("cpu", 0))
        self.assertIn(stepwell.DeviceFlag.STABLE_ADDRESS, info.flags)
        told = stepwell.driver_info("aio")
        self.assertEqual((told.name, told.memory, told.storage, told.built_in, told.collective),
                         ("aio", False, True, True, False))
        with self.assertRaises(stepwell.UnsupportedError):
            stepwell.driver_info("tape")
        for write in (self.runtime.write_report, self.runtime.write_timeline):
            path = os.path.join(self.directory, "told.json")
            write(path)
            with open(path, encoding="utf-8") as file:
                self.assertTrue(json.load(file))


KERNEL = """
#include <stepwell/stepwell.h>

/* Counts steps in its state; user: what to return, at the second step. */
stw_status kernel(void *user, const stw_update_chunk *chunk)
{
    const float *gradient = chunk->gradient;
    for (uint64_t i = 0; i < chunk->element_count; ++i) {
        chunk->states[0][i] += 1;
        chunk->master[i] -= (float)(chunk->hyper->lr * chunk->gradient_scale * gradient[i]);
    }
    return chunk->step > 1 ? *(int32_t *)user : STW_OK;
}
"""


class Kernels(support.Machine):
    """Update kernels of the program's own."""

    def pair(self):
        return self.floats(4 * F32, "w", 2.0), self.floats(4 * F32, "g", 1.0)

    def library(self):
        library = os.path.abspath(os.path.join(self.directory, "libkernel.so"))
        include = pathlib.Path(__file__).resolve().parents[2] / "include"
        subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC", "-I",
                        str(include), "-x", "c", "-", "-o", library],
                       input=KERNEL, text=True, check=True)
        self.addCleanup(os.unlink, library)
        return ctypes.CDLL(library)

    def test_a_c_function_updates_without_python(self):
        weights, gradient = self.pair()
        kernel, answer = self.library().kernel, ctypes.c_int32()
        for name, update in (("pointer", kernel), ("address", ctypes.cast(
                kernel, ctypes.c_void_p).value)):
            optimizer = self.runtime.custom(update, ("steps",), stepwell.Hyper(lr=0.5), name=name,
                                            user=ctypes.addressof(answer))
            weights.fill(2)
            gradient.fill(1)
            optimizer.add(weights, gradient)
            optimizer.step(scale=0.5, wait=True)
            self.assertEqual(bytes(weights.read(bytearray(4), 4 * F32 - 1, 1)), b"\0\0\xe0\x3f")
            state = optimizer.state(weights, "steps")
            self.assertEqual(bytes(state.read(bytearray(4), 7, 1)), b"\0\0\x80\x3f")
            if name == "pointer":
                optimizer.destroy()
        answer.value = -16
        gradient.fill(1)
        optimizer.step()
        with self.assertRaises(stepwell.UnsupportedError) as caught:
            self.runtime.drain()
        self.assertEqual(caught.exception.tensor, "w")
        self.runtime.clear_error()

    @support.needs_numpy
    def test_a_python_function_updates_arrays(self):
        def momentum(piece):
            speed = piece.states["speed"]
            speed *= 0.5
            if piece.step == 1:
                speed += piece.gradient
                piece.values -= numpy.float32(piece.lr) * speed
            else:  # assigned, not changed in place
                piece.states["speed"] = speed + piece.gradient
                piece.values = piece.values - numpy.float32(0.5) * piece.states["speed"]
            numbers.append((piece.begin, len(piece.values)))

        for dtype, gradient_dtype in (("f32", "f32"), ("bf16", "bf16"), ("f16", "f32")):
            with self.subTest(dtype=dtype):
                numbers = []
                w = self.runtime.create(f"w.{dtype}", F32 + 5, dtype)
                g = self.runtime.create(f"g.{dtype}", F32 + 5, gradient_dtype, role="grad")
                optimizer = self.runtime.custom(momentum, ["speed"], stepwell.Hyper(lr=0.25),
                                                name=f"o.{dtype}")
                optimizer.add(w, g)
                w.fill(100)
                for gradient in (8, 4):
                    g.fill(gradient)
                    optimizer.step(scale=0.5, wait=True)
                # 100 - 0.25 * 4, then - 0.5 * (0.5 * 4 + 2)
                values = w.read()
                values = values.view(numpy.uint16).astype(numpy.uint32) << 16 \
                    if dtype == "bf16" else values.astype(numpy.float32).view(numpy.uint32)
                self.assertTrue((values.view(numpy.float32) == 97).all())
                self.assertTrue((optimizer.state(w, "speed").read() == 4).all())
                self.assertEqual(sum(count for _, count in numbers), 2 * (F32 + 5))
                self.assertEqual(optimizer.count(w), 2)

    @support.needs_numpy
    def test_an_update_in_python_rounds_as_the_library_does(self):
        def descent(piece):
            piece.values += piece.gradient * numpy.float32(-piece.lr)

        values = numpy.random.default_rng(7).standard_normal((2, F32 + 5)).astype(numpy.float32)
        for dtype in ("f32", "bf16", "f16"):
            with self.subTest(dtype=dtype):
                results = []
                for name in ("sgd", "custom"):
                    w = self.runtime.create(f"{name}.{dtype}", F32 + 5, dtype)
                    g = self.runtime.create(f"{name}.{dtype}.g", F32 + 5, "f32", role="grad")
                    hyper = stepwell.Hyper(lr=0.3)
                    optimizer = (self.runtime.sgd(hyper, name=f"a.{dtype}") if name == "sgd" else
                                 self.runtime.custom(descent, hyper=hyper, name=f"b.{dtype}"))
                    optimizer.add(w, g)
                    w.fill(0.75)
                    for gradient in values:
                        g.write(gradient)
                        optimizer.step(wait=True)
                    results.append(bytes(w.read()))
                self.assertEqual(results[0], results[1])

    @support.needs_numpy
    def test_what_an_update_in_python_raises_fails_it(self):
        def raises(piece):
            raise ZeroDivisionError(f"of {len(piece.values)}")

        weights, gradient = self.pair()
        optimizer = self.runtime.custom(raises)
        optimizer.add(weights, gradient)
        weights.fill(1)
        gradient.fill(1)
        said = []
        hook, sys.excepthook = sys.excepthook, lambda kind, *_: said.append(kind)
        try:
            optimizer.step()
            with self.assertRaises(stepwell.InvalidError) as caught:
                self.runtime.drain()
        finally:
            sys.excepthook = hook
        self.assertEqual(caught.exception.tensor, "w")
        self.assertIn(ZeroDivisionError, said)
        self.runtime.clear_error()

    def test_a_kernel_of_the_c_api_may_be_pythons(self):
        weights, gradient = self.pair()
        seen = []

        def kernel(_user, chunk):
            seen.append(chunk.contents.element_count)
            chunk.contents.master[0] = 7
            return 0

        with self.assertRaises(TypeError) as caught:
            self.runtime.custom("kernel")
        self.assertIn("'kernel' is no function", str(caught.exception))
        optimizer = self.runtime.custom(stepwell.UpdateKernel(kernel))
        optimizer.add(weights, gradient)
        del kernel  # the runtime has it
        gc.collect()
        optimizer.step(wait=True)
        self.assertEqual(sum(seen), 4 * F32)
        self.assertEqual(bytes(weights.read(bytearray(4), 0, 1)), b"\0\0\xe0\x40")


if __name__ == "__main__":
    support.main()
