# SPDX-License-Identifier: Apache-2.0
"""Updates in torch's order have the bits of torch.optim. Skipped where PyTorch is not installed."""
import importlib.util
import os
import subprocess
import sys
import unittest
import warnings

import stepwell
import support

STEPS = 20
# Of a vector's length and beside it, of a thread's share of torch's, of several blocks.
SIZES = (1, 7, 15, 16, 31, 33, 1000, 32767, 32769, 65537, 100003)
STATES = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"),
          "sgd": ("momentum",), "adagrad": ("sum",)}
TORCH_NAMES = {"momentum": "momentum_buffer"}
CASES = [
    ("adamw", {"weight_decay": 0.01}),
    ("adamw", {"weight_decay": 0.0, "lr": 3e-4, "beta1": 0.95, "beta2": 0.98, "maximize": True}),
    ("adamw", {"weight_decay": 0.1, "beta1": 0.3, "beta2": 0.9, "eps": 1e-6}),
    ("adam", {}),
    ("adam", {"weight_decay": 0.1, "maximize": True}),
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.1, "weight_decay": 0.01, "maximize": True}),
    ("sgd", {"lr": 0.1, "momentum": 0.9}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("adagrad", {"lr": 0.01, "eps": 1e-10}),
    ("adagrad", {"lr": 0.01, "eps": 1e-10, "lr_decay": 0.05, "weight_decay": 0.1}),
]


def torch_optimizer(algorithm, parameters, **hyper):
    import torch
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD,
            "adagrad": torch.optim.Adagrad}[algorithm]
    if "adam" in algorithm:
        hyper["betas"] = (hyper.pop("beta1", 0.9), hyper.pop("beta2", 0.999))
        hyper.setdefault("weight_decay", 0.0)
    hyper.setdefault("lr", 1e-3)
    return kind(parameters, foreach=False, **hyper)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch is not installed")
class TorchOrder(unittest.TestCase):
    def setUp(self):
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        import torch
        self.torch = torch
        threads = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, threads)
        self.runtime = stepwell.Runtime(host_bytes=512 * support.BLOCK, block_bytes=support.BLOCK,
                                        thread_count=2, timeout=60)
        self.addCleanup(self.runtime.close)

    def tensors(self, numbers, dtype="f32"):
        """A parameter and a gradient for each of the torch tensors."""
        pairs = []
        for at, whole in enumerate(numbers):
            weights = self.runtime.create(f"w{at}", whole.numel(), dtype, role="param")
            gradient = self.runtime.create(f"g{at}", whole.numel(), "f32", role="grad")
            self.write(weights, whole)
            pairs.append((weights, gradient))
        return pairs

    def write(self, tensor, whole):
        flat = whole.detach().contiguous().flatten()
        with tensor.fetch("write") as view:
            self.torch.frombuffer(view.bytes, dtype=flat.dtype).copy_(flat)

    def read(self, tensor, dtype=None):
        with tensor.fetch() as view:
            return self.torch.frombuffer(bytearray(view.bytes), dtype=dtype or self.torch.float32)

    def different(self, ours, theirs):
        bits = self.torch.int32
        return int((self.read(ours).view(bits)
                    != theirs.detach().contiguous().flatten().view(bits)).sum())

    def random(self, size, seed):
        return self.torch.randn(size, generator=self.torch.Generator().manual_seed(seed))

    def run_beside(self, algorithm, hyper, torch_order=True):
        """Elements that differ after the steps, by what they are in."""
        torch = self.torch
        theirs = [self.random(size, size) for size in SIZES]
        pairs = self.tensors(theirs)
        optimizer = getattr(self.runtime, algorithm)(stepwell.Hyper(**hyper),
                                                     torch_order=torch_order)
        optimizer.add_many(pairs)
        beside = torch_optimizer(algorithm, theirs, **hyper)
        for step in range(STEPS):
            for at, parameter in enumerate(theirs):
                parameter.grad = self.random(parameter.numel(), 1000 * step + at) * 10.0 ** -at
                self.write(pairs[at][1], parameter.grad)
            beside.step()
            optimizer.step(wait=True)
        differing = {}
        for (weights, _), parameter in zip(pairs, theirs):
            named = {"parameter": (weights, parameter)}
            for name in STATES[algorithm] if hyper.get("momentum", 1) else ():
                state = beside.state[parameter].get(TORCH_NAMES.get(name, name))
                if state is not None:
                    named[name] = (optimizer.state(weights, name), state)
            for name, both in named.items():
                differing[name] = differing.get(name, 0) + self.different(*both)
        optimizer.destroy()
        for pair in pairs:
            for tensor in pair:
                tensor.destroy()
        return differing

    def test_updates_have_the_bits_of_torch(self):
        for threads in (1, 2):
            self.torch.set_num_threads(threads)
            for algorithm, hyper in CASES:
                with self.subTest(algorithm=algorithm, threads=threads, **hyper):
                    differing = self.run_beside(algorithm, hyper)
                    self.assertEqual(set(differing.values()), {0}, differing)
                    states = algorithm != "sgd" or "momentum" in hyper
                    self.assertEqual(len(differing), 1 + states * len(STATES[algorithm]))

    def test_update_threads_start_no_threads(self):
        """MKL's roots would each start a team of OpenMP in each update thread, named as that is."""
        torch = self.torch
        if not torch.backends.mkl.is_available():
            self.skipTest("this PyTorch has no MKL")
        torch.set_num_threads(2)
        pairs = self.tensors([self.random(size, size) for size in SIZES])
        for algorithm in ("adamw", "adagrad"):
            optimizer = getattr(self.runtime, algorithm)(torch_order=True)
            optimizer.add_many(pairs)
            for _ in range(3):
                for weights, gradient in pairs:
                    gradient.fill(0.5)
                optimizer.step(wait=True)
            self.assertEqual(support.threads_named("stw-update"), 2)
            optimizer.destroy()
        self.assertEqual(torch.get_num_threads(), 2)

    def test_the_library_rounds_otherwise_by_itself(self):
        differing = self.run_beside("adamw", {"weight_decay": 0.01}, torch_order=False)
        self.assertGreater(min(differing.values()), 1000, differing)

    def test_layouts_in_memory_do_not_matter(self):
        """torch goes through memory, Stepwell through the flattened tensor."""
        torch = self.torch
        shape = (3, 5, 33, 67)
        strided = self.random(shape[:-1] + (2 * shape[-1],), 3)[..., ::2]
        theirs = [self.random(shape, 1).to(memory_format=torch.channels_last),
                  self.random(shape[::-1], 2).permute(3, 2, 1, 0), strided]
        pairs = self.tensors(theirs)
        optimizer = self.runtime.adamw(torch_order=True)
        optimizer.add_many(pairs)
        beside = torch_optimizer("adamw", theirs, weight_decay=0.01)
        for step in range(3):
            for at, parameter in enumerate(theirs):
                parameter.grad = self.random(shape, 10 * step + at)
                self.write(pairs[at][1], parameter.grad)
            beside.step()
            optimizer.step(wait=True)
        for (weights, _), parameter in zip(pairs, theirs):
            self.assertEqual(self.different(weights, parameter), 0)

    def test_a_scale_comes_before_as_one_rounding(self):
        theirs = [self.random(5000, 1)]
        pairs = self.tensors(theirs)
        optimizer = self.runtime.adam(torch_order=True)
        optimizer.add_many(pairs)
        beside = torch_optimizer("adam", theirs)
        for step in range(3):
            gradient = self.random(5000, step)
            self.write(pairs[0][1], gradient)
            theirs[0].grad = gradient * 0.3
            beside.step()
            optimizer.step(scale=0.3, wait=True)
        self.assertEqual(self.different(pairs[0][0], theirs[0]), 0)

    def test_a_parameter_of_bf16_has_the_order_on_its_master(self):
        torch = self.torch
        rounded = self.random(5000, 1).bfloat16()
        theirs = [rounded.float()]
        pairs = self.tensors([rounded], "bf16")
        optimizer = self.runtime.adamw(torch_order=True)
        optimizer.add_many(pairs)
        beside = torch_optimizer("adamw", theirs, weight_decay=0.01)
        for step in range(3):
            theirs[0].grad = self.random(5000, step)
            self.write(pairs[0][1], theirs[0].grad)
            beside.step()
            optimizer.step(wait=True)
        weights = pairs[0][0]
        self.assertEqual(self.different(optimizer.state(weights, "master"), theirs[0]), 0)
        self.assertTrue(torch.equal(self.read(weights, torch.bfloat16), theirs[0].bfloat16()))

    def test_a_torch_that_leaves_instructions_alone_is_refused(self):
        program = ("import stepwell\n"
                   "with stepwell.Runtime(host_bytes=1 << 24) as runtime:\n"
                   "    try:\n"
                   "        runtime.adamw(torch_order=True)\n"
                   "    except stepwell.UnsupportedError as error:\n"
                   "        print(error)\n")
        done = subprocess.run([sys.executable, "-B", "-c", program], text=True, check=True,
                              stdout=subprocess.PIPE, timeout=100,
                              env=dict(os.environ, ATEN_CPU_CAPABILITY="default"))
        self.assertIn("ATEN_CPU_CAPABILITY", done.stdout)


if __name__ == "__main__":
    support.main()
