# SPDX-License-Identifier: Apache-2.0
"""What programs for any device ask of one: random numbers, mixed precision, memory, streams."""
import contextlib
import io
import os
import threading
import unittest

import double
import torch
import training
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20


class Case(unittest.TestCase):
    def setUp(self):
        torch.late.synchronize()
        double.violations()
        double.take_counts()

    def tearDown(self):
        torch.late.synchronize()
        self.assertEqual(double.violations(), [])

    def equal(self, one, other):
        self.assertTrue(torch.equal(one.cpu(), other.cpu()))


class RandomNumbers(Case):
    def test_a_seed_gives_the_same_numbers(self):
        for draw in (lambda: torch.randn(64, device="late"), lambda: torch.rand(64, device="late"),
                     lambda: torch.randint(99, (64,), device="late"),
                     lambda: torch.randperm(64, device="late"),
                     lambda: functional.dropout(torch.ones(64, device="late"))):
            torch.manual_seed(5)
            first, second = draw(), draw()
            self.assertFalse(torch.equal(first, second))
            torch.late.manual_seed_all(5)
            self.equal(draw(), first)
            self.equal(draw(), second)
        self.assertNotIn("aten::normal_", double.take_counts()[1])

    def test_generators_are_of_the_device_and_have_a_state(self):
        generator = torch.Generator("late").manual_seed(3)
        self.assertEqual(generator.device, double.DEVICE)
        torch.randn(4, device="late", generator=generator)
        state = generator.get_state()
        drawn = torch.randn(4, device="late", generator=generator)
        other = torch.Generator("late")
        other.set_state(state)
        self.equal(torch.randn(4, device="late", generator=other), drawn)
        with self.assertRaisesRegex(RuntimeError, "Expected a 'late' device type for generator"):
            torch.randn(4, device="late", generator=torch.Generator())

    def test_a_state_is_kept_beside_the_cpus(self):
        torch.manual_seed(1)
        here, there = torch.get_rng_state(), torch.late.get_rng_state()
        with torch.random.fork_rng(device_type="late", devices=[0]):
            first = torch.rand(8, device="late")
        self.equal(torch.late.get_rng_state(), there)
        self.equal(torch.rand(8, device="late"), first)
        self.equal(torch.get_rng_state(), here)

    def test_dropout_draws_once_for_both_passes_and_for_a_checkpoint(self):
        torch.manual_seed(0)
        data = torch.ones(1000, device="late", requires_grad=True)
        out = functional.dropout(data, 0.25)
        out.sum().backward()
        self.equal(data.grad, out.detach())
        self.assertAlmostEqual((out == 0).float().mean().item(), 0.25, delta=0.05)
        for reentrant in (False, True):
            data.grad = None
            out = checkpoint(lambda x: functional.dropout(x, 0.25) * x, data,
                             use_reentrant=reentrant)
            out.sum().backward()
            self.equal(data.grad, 2 * out.detach())


class MixedPrecision(Case):
    def test_autocast_casts_as_on_cuda(self):
        low = torch.ones(4, 4, device="late", dtype=torch.bfloat16)
        full = torch.ones(4, 4, device="late")
        with torch.autocast("late", dtype=torch.bfloat16):
            self.assertEqual((full @ full).dtype, torch.bfloat16)
            self.assertEqual(torch.softmax(low, -1).dtype, torch.float32)
            self.assertEqual(functional.layer_norm(low, (4,)).dtype, torch.float32)
            self.assertEqual(low.sum().dtype, torch.float32)
            self.assertEqual(torch.addcmul(full, low, low).dtype, torch.float32)
            self.assertEqual((low + low).dtype, torch.bfloat16)
            with self.assertRaisesRegex(RuntimeError, "unsafe to autocast"):
                functional.binary_cross_entropy(full, full)

    def test_a_model_in_autocast_is_one_with_casts(self):
        model = training.linears()
        first, _, norm, last = model
        data = training.numbers(16, 48)(0)

        def linear(layer, inputs):
            return functional.linear(*(each.bfloat16() for each in
                                       (inputs, layer.weight, layer.bias)))

        out = linear(last, norm(functional.gelu(linear(first, data)).float()))
        out.float().square().mean().backward()
        gradients = [each.grad.clone() for each in model.parameters()]
        model.zero_grad()
        model.to("late")
        with torch.autocast("late", dtype=torch.bfloat16):
            found = model(data.to("late"))
        self.equal(found, out)
        found.float().square().mean().backward()
        for one, other in zip(model.parameters(), gradients, strict=True):
            self.equal(one.grad, other)

    def scaled(self, device, factors):
        torch.manual_seed(0)
        model = training.linears().to(device)
        optimizer = training.OPTIMIZERS["sgd"](model.parameters())
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        scales = []
        for step, factor in enumerate(factors):
            data = training.numbers(16, 48)(step).to(device)
            loss = (model(data) - data).square().mean() * factor
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return scales, [each.detach().cpu() for each in model.parameters()]

    def test_a_scaler_skips_what_is_not_finite_as_on_the_cpu(self):
        factors = (1, 1, 1e38, 1)
        scales, parameters = self.scaled("cpu", factors)
        found, after = self.scaled("late", factors)
        self.assertEqual(scales, [1024, 2048, 1024, 1024])
        self.assertEqual(found, scales)
        for one, other in zip(after, parameters, strict=True):
            self.equal(one, other)
        self.assertEqual(double.take_counts()[1], [])


class Attention(Case):
    def attend(self, device, **options):
        torch.manual_seed(0)
        inputs = [torch.randn(2, 4, 16, 8).to(device).requires_grad_() for _ in range(3)]
        if "attn_mask" in options:
            options["attn_mask"] = torch.ones(16, 16, dtype=torch.bool).tril().to(device)
        out = functional.scaled_dot_product_attention(*inputs, **options)
        out.square().sum().backward()
        return [out.detach(), *(each.grad for each in inputs)], type(out.grad_fn).__name__

    def test_the_fused_form_has_the_bits_of_the_cpus(self):
        for options in ({}, {"is_causal": True}, {"attn_mask": True}, {"scale": 0.5}):
            found, name = self.attend("late", **options)
            self.assertIn("FusedAttention", name)
            for one, other in zip(found, self.attend("cpu", **options)[0], strict=True):
                self.equal(one, other)

    def test_dropout_and_the_plain_form_need_no_fused_one(self):
        self.assertNotIn("FusedAttention", self.attend("late", dropout_p=0.5)[1])
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            found, name = self.attend("late")
            self.assertNotIn("FusedAttention", name)
            for one, other in zip(found, self.attend("cpu")[0], strict=True):
                self.equal(one, other)


class Memory(Case):
    def test_figures_follow_what_is_allocated(self):
        torch.late.empty_cache()
        before = torch.late.memory_allocated()
        torch.late.reset_peak_memory_stats()
        block = torch.empty(8 * MIB, dtype=torch.uint8, device="late")
        self.assertEqual(torch.late.memory_allocated(), before + 8 * MIB)
        free = torch.late.mem_get_info()[0]
        del block
        self.assertEqual(torch.late.memory_allocated(), before)
        self.assertEqual(torch.late.max_memory_allocated(), before + 8 * MIB)
        self.assertEqual(torch.late.memory_reserved() - before, 8 * MIB)
        torch.late.empty_cache()
        self.assertEqual(torch.late.mem_get_info()[0], free + 8 * MIB)

    def test_memory_that_is_cached_is_freed_for_what_does_not_fit(self):
        total = torch.late.mem_get_info()[1]
        for size in (total // 2, total // 2 + 2 * MIB):
            torch.empty(size, dtype=torch.uint8, device="late")
        with self.assertRaisesRegex(torch.OutOfMemoryError, "late: out of memory"):
            torch.empty(2 * total, dtype=torch.uint8, device="late")

    def test_steps_do_not_need_more_and_more(self):
        training.train("attention", "adamw", "late")
        reserved = torch.late.memory_reserved()
        for _ in range(3):
            training.train("attention", "adamw", "late")
        self.assertEqual(torch.late.memory_reserved(), reserved)


class VirtualTime(Case):
    def elapsed(self, *works):
        """Of these works, each on a stream of its own, and of the engines."""
        start, before = double.settle(), double.busy_ns()
        for work in works:
            with torch.late.Stream():
                work()
        end = double.settle()
        return end - start, [now - was for now, was in zip(double.busy_ns(), before)]

    def test_products_take_their_time_and_hide_copies(self):
        side, flops_per_s = 128, 1e10
        factor = torch.ones(side, side, device="late")
        data = torch.ones(MIB).pin_memory()
        torch.late.synchronize()
        double.set_rate(flops_per_s)
        self.addCleanup(double.set_rate, 0)
        product_ns = int(2 * side ** 3 / flops_per_s * 1e9)
        alone, (_, _, computed) = self.elapsed(lambda: factor @ factor)
        self.assertGreaterEqual(computed, product_ns)
        self.assertGreaterEqual(alone, product_ns)
        both, (up, _, _) = self.elapsed(lambda: factor @ factor,
                                        lambda: data.to("late", non_blocking=True))
        self.assertGreater(up, 0)
        self.assertLess(both, alone + up)


class Programs(Case):
    def test_hooks_run_on_the_devices_thread_and_on_the_stream_of_the_call(self):
        seen = []
        side = torch.late.Stream()
        weight = torch.ones(8, 8, device="late", requires_grad=True)
        side.wait_stream(torch.late.current_stream())
        with torch.late.stream(side):
            product = weight @ weight
            product.register_hook(lambda _: seen.append(
                (threading.get_ident(), torch.late.current_stream().stream_id)))
        torch.late.current_stream().wait_stream(side)
        product.sum().backward()
        self.assertEqual([stream for _, stream in seen], [side.stream_id])
        self.assertNotEqual(seen[0][0], threading.get_ident())

    def test_tensors_are_saved_and_loaded(self):
        model = training.linears().to("late")
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        for place, device in ((None, "late"), ("cpu", "cpu")):
            file.seek(0)
            for key, value in torch.load(file, map_location=place).items():
                self.assertEqual(value.device.type, device)
                self.equal(value, model.state_dict()[key])

    def test_the_module_is_that_of_an_accelerator(self):
        self.assertEqual(torch.accelerator.current_accelerator().type, "late")
        self.assertIs(torch.get_device_module("late"), torch.late)
        self.assertEqual(torch.late.current_stream(), torch.late.default_stream())
        with torch.device("late"):
            self.assertTrue(torch.nn.Linear(2, 2).weight.is_late)
        start, end = torch.late.Event(enable_timing=True), torch.late.Event(enable_timing=True)
        start.record()
        torch.ones(512, 512, device="late") @ torch.ones(512, 512, device="late")
        end.record()
        end.synchronize()
        self.assertGreater(start.elapsed_time(end), 0)

    def test_what_goes_wrong_late_is_told_by_a_later_call(self):
        table, beyond = torch.nn.Embedding(4, 2).to("late"), torch.tensor([9], device="late")
        with double.held(torch.late.current_stream()):
            table(beyond)
        with self.assertRaisesRegex(RuntimeError, "aten::index_select: index out of range"):
            torch.late.synchronize()
        torch.late.synchronize()

    def test_a_process_that_was_forked_computes_on_the_cpu_alone(self):
        there = torch.ones(4, device="late")
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                torch.manual_seed(0)
                self.assertEqual(torch.randn(4).add_(1).shape, there.shape)
                self.assertTrue(torch.late._is_in_bad_fork())
                with self.assertRaisesRegex(RuntimeError, "forked cannot use the device"):
                    there + 1
                del there
                status = 0
            os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertFalse(torch.late._is_in_bad_fork())
        self.equal(there + 1, torch.full((4,), 2.0))

    def test_there_is_one_device(self):
        self.assertEqual(torch.late.device_count(), 1)
        with self.assertRaisesRegex(RuntimeError, "invalid device ordinal 1"):
            torch.empty(1, device="late:1")

    def test_views_and_complex_numbers(self):
        data = torch.arange(24.0).view(2, 3, 4)
        numbers = torch.complex(data, -data)
        for use in (lambda x: x.unfold(2, 2, 1), lambda x: x.permute(2, 0, 1)[1:, :, ::2],
                    lambda x: x[:, 1].T.reshape(-1), lambda x: x.to(torch.float16),
                    lambda x: x.to(memory_format=torch.contiguous_format, dtype=torch.int64)):
            self.equal(use(data.to("late")), use(data))
        for use in (lambda x: x.conj(), lambda x: x.imag, torch.view_as_real,
                    lambda x: (x.conj() * x).real):
            self.equal(use(numbers.to("late")), use(numbers))

    def test_what_the_cpu_has_no_kernel_of_is_refused_by_name(self):
        with self.assertRaisesRegex(NotImplementedError, "CPU has no kernel of aten::_thnn_fused"):
            torch.nn.LSTM(4, 4).to("late")(torch.ones(1, 1, 4, device="late"))


if __name__ == "__main__":
    unittest.main()
