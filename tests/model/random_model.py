# SPDX-License-Identifier: Apache-2.0
"""Random programs over small tiers beside a model of NumPy arrays: all that is read is compared.

random_model.py [--seed N | --of-the-day] [--seeds COUNT] [--seconds S] [--operations N]. A
failure prints the seed, which with the same tree repeats the program; timing alone differs.
"""
import argparse
import copy
import ctypes
import math
import os
import random
import sys
import tempfile
import time
import traceback

import numpy as np
import stepwell
from stepwell import Hyper, Policy, TensorSpec

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import budget_sentence

BLOCK = stepwell.BLOCK_64K
STORED = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i32": np.int32, "u8": np.uint8}
FLOATS = ("f32", "f16", "bf16")
ALGORITHMS = ("adamw", "adam", "sgd", "adagrad", "lion")


class Difference(Exception):
    """The library and the model do not agree."""


def narrow(values, dtype):
    """fp32 to what a tensor of dtype stores, to nearest even."""
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.asarray(values).astype(STORED[dtype])


def widen(stored, dtype):
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


class ModelTensor:
    """What a tensor holds: None while it is EMPTY."""

    def __init__(self, spec):
        self.spec = spec
        self.name, self.dtype, self.elements = spec.name, spec.dtype, spec.shape
        self.tensor = None  # the library's, of the present runtime
        self.values = None
        self.held = False     # by an optimizer
        self.written = True   # since the optimizer's last update of it

    def __deepcopy__(self, memo):
        made = memo[id(self)] = ModelTensor(self.spec)
        made.values = None if self.values is None else self.values.copy()
        made.written = self.written
        return made

    def set(self, begin, stored):
        if self.values is None:
            self.values = np.zeros(self.elements, STORED[self.dtype])
        self.values[begin:begin + len(stored)] = stored
        self.written = True


class ModelOptimizer:
    """The update rules of docs/optimizers, one rounding to fp32 an operation, as the kernels do."""

    def __init__(self, algorithm, hypers, pairs, durable):
        self.algorithm, self.hypers, self.durable = algorithm, hypers, durable
        self.optimizer = None  # the library's, of the present runtime
        self.pairs = pairs     # (parameter, gradient, group)
        self.states = {}       # by the parameter's name: [fp32 arrays]
        self.masters = {}
        self.counts = {parameter.name: 0 for parameter, _, _ in pairs}

    def __deepcopy__(self, memo):
        made = memo[id(self)] = ModelOptimizer(
            self.algorithm, self.hypers, copy.deepcopy(self.pairs, memo), self.durable)
        made.states, made.masters, made.counts = copy.deepcopy(
            (self.states, self.masters, self.counts), memo)
        return made

    def attach(self, runtime):
        self.optimizer = getattr(runtime, self.algorithm)(self.hypers[0], durable=self.durable)
        self.optimizer.set_hyper(self.hypers[1], 1)
        for parameter, gradient, group in self.pairs:
            self.optimizer.add(parameter.tensor, gradient.tensor, group=group)
            parameter.held = gradient.held = True

    def update(self, parameter, gradient, group, gradient_scale):
        name = parameter.name
        if parameter.written or name not in self.masters:
            self.masters[name] = widen(parameter.values, parameter.dtype)
        self.counts[name] += 1
        rule = getattr(self, self.algorithm)
        states = self.states.setdefault(
            name, [np.zeros(parameter.elements, np.float32) for _ in range(2)])
        hyper, f = self.hypers[group], np.float32
        scale = f(-gradient_scale if hyper.maximize else gradient_scale)
        g = widen(gradient.values, gradient.dtype) * scale
        master = rule(hyper, self.counts[name], self.masters[name], g, states)
        self.masters[name] = master
        parameter.values = narrow(master, parameter.dtype)
        parameter.written = False

    @staticmethod
    def decoupled(hyper, p):
        return p * np.float32(1.0 - hyper.lr * hyper.weight_decay) if hyper.weight_decay else p

    @staticmethod
    def coupled(hyper, p, g):
        return g + p * np.float32(hyper.weight_decay) if hyper.weight_decay else g

    def adamw(self, hyper, step, p, g, states):
        return self.moments(hyper, step, self.decoupled(hyper, p), g, states)

    def adam(self, hyper, step, p, g, states):
        return self.moments(hyper, step, p, self.coupled(hyper, p, g), states)

    @staticmethod
    def moments(hyper, step, p, g, states):
        f = np.float32
        states[0] = states[0] * f(hyper.beta1) + g * f(1.0 - hyper.beta1)
        states[1] = states[1] * f(hyper.beta2) + g * f(1.0 - hyper.beta2) * g
        root = np.sqrt(states[1]) / f(math.sqrt(1.0 - power(hyper.beta2, step)))
        size = f(-(hyper.lr / (1.0 - power(hyper.beta1, step))))
        return p + states[0] * size / (root + f(hyper.eps))

    def sgd(self, hyper, step, p, g, states):
        f = np.float32
        direction = g = self.coupled(hyper, p, g)
        if hyper.momentum:
            states[0] = g if step == 1 else (states[0] * f(hyper.momentum)
                                             + g * f(1.0 - hyper.dampening))
            direction = states[0]
            if hyper.nesterov:
                direction = g + states[0] * f(hyper.momentum)
        return p + direction * f(-hyper.lr)

    def adagrad(self, hyper, step, p, g, states):
        f = np.float32
        g = self.coupled(hyper, p, g)
        states[0] = states[0] + g * g
        size = f(-(hyper.lr / (1.0 + (step - 1.0) * hyper.lr_decay)))
        return p + g * size / (np.sqrt(states[0]) + f(hyper.eps))

    def lion(self, hyper, step, p, g, states):
        f = np.float32
        p = self.decoupled(hyper, p)
        mean = states[0] * f(hyper.beta1) + g * f(1.0 - hyper.beta1)
        states[0] = states[0] * f(hyper.beta2) + g * f(1.0 - hyper.beta2)
        return p + np.sign(mean) * f(-hyper.lr)


def power(base, exponent):
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


class Program:
    """One random program. Room for its tensors is always there, so that no call may be refused."""

    DEVICE, HOST, NVME = 12, 24, 512  # blocks

    def __init__(self, seed, directory):
        self.random = random.Random(seed)
        self.draws = np.random.default_rng(seed)
        self.directory = directory
        self.driver = self.random.choice(["cpu", "cpu-discrete"])
        self.storage = self.random.choice(["aio", "posix"])
        self.fault_in = self.driver == "cpu" and self.random.random() < 0.6
        self.tensors, self.optimizers, self.made = [], [], 0
        self.committed = ([], [])
        self.shrunk = False
        self.runtime = self.open()

    def open(self, **options):
        return stepwell.Runtime(
            devices=stepwell.Device(self.DEVICE * BLOCK, driver=self.driver),
            fault_in=self.fault_in,
            host_bytes=self.HOST * BLOCK, block_bytes=BLOCK, probe=False, timeout=60,
            thread_count=self.random.choice([1, 2]), store_name="model",
            nvme=stepwell.Nvme(self.directory, (1 << 20) + self.NVME * BLOCK,
                               driver=self.storage, driver_options="allow_tmpfs=1"), **options)

    # -- choices --

    def values(self, dtype, count):
        if dtype in FLOATS:
            return narrow(self.draws.standard_normal(count).astype(np.float32), dtype)
        high = 255 if dtype == "u8" else 1 << 30
        return self.draws.integers(0, high, count).astype(STORED[dtype])

    def range_of(self, tensor):
        """A range; all of a tensor that is EMPTY, since the rest of it would be undefined."""
        if tensor.values is None or self.random.random() < 0.5:
            return 0, tensor.elements
        begin = self.random.randrange(tensor.elements)
        return begin, self.random.randint(1, tensor.elements - begin)

    def pick(self, wanted=lambda tensor: True):
        found = [tensor for tensor in self.tensors if wanted(tensor)]
        return self.random.choice(found) if found else None

    # -- operations --

    def create(self, dtype=None, role=None, elements=None):
        if len(self.tensors) >= 24:
            return None
        dtype = dtype or self.random.choice(list(STORED))
        role = role or self.random.choice(["param", "grad", "activation", "other"])
        most = 3 * BLOCK // np.dtype(STORED[dtype]).itemsize
        elements = elements or self.random.choice([self.random.randint(1, 300),
                                                   self.random.randint(1, most)])
        self.made += 1
        policy, durable = None, self.random.random() < 0.4
        if self.random.random() < 0.3:
            policy = Policy(home=self.random.choice(["host", "nvme"]))
        address = self.random.random() if self.fault_in else 1.0
        tensor = ModelTensor(TensorSpec(
            elements, dtype, f"t{self.made}", role, policy=policy, durable=durable,
            neighbour=self.random.choice([0, 0, self.made]),
            own_blocks=address < 0.6, no_address=0.6 <= address < 0.8))
        tensor.tensor, = self.runtime.create_many([tensor.spec])
        self.tensors.append(tensor)
        return tensor

    def destroy(self):
        tensor = self.pick(lambda at: not at.held)
        if tensor and len(self.tensors) > 6:
            self.runtime.drain()  # a sum into it that still runs would make it busy
            tensor.tensor.destroy()
            self.tensors.remove(tensor)

    def write(self):
        tensor = self.pick()
        begin, count = self.range_of(tensor)
        values = self.values(tensor.dtype, count)
        tensor.tensor.write(values, begin, count)
        tensor.set(begin, values)

    def fill(self):
        tensor = self.pick()
        begin, count = self.range_of(tensor)
        value = self.random.choice([0.0, 1.0, 3.0, 7.0])
        tensor.tensor.fill(value, begin, count)
        tensor.set(begin, narrow(np.full(count, value, np.float32), tensor.dtype))

    def read(self):
        self.check(self.pick(lambda at: at.values is not None))

    def view(self):
        wanted = [at for at in self.tensors if at.values is not None]
        wanted = self.random.sample(wanted, min(len(wanted), self.random.randint(1, 2)))
        tier = self.random.choice(["device", "host"])
        modes = [self.random.choice(["read", "read_write"]) for _ in wanted]
        requests, ranges = [], []
        for tensor, mode in zip(wanted, modes):
            ranges.append(self.range_of(tensor))
            requests.append(tensor.tensor.request(mode, *ranges[-1], tier=tier))
        if not requests or not self.runtime.fits(requests):
            return
        with self.runtime.fetch_many(requests) as views:
            for view, tensor, mode, (begin, count) in zip(views, wanted, modes, ranges):
                array = view.numpy().reshape(-1)
                self.compare(tensor, array, begin, count, f"a {mode} view at {tier}")
                if mode == "read_write":
                    array[:] = values = self.values(tensor.dtype, count)
                    tensor.set(begin, values)
                del array

    def touch(self):
        """What is at an address, without a view. It is promised to be no update half done where the
        tensor shares its blocks with nobody."""
        tensor = self.pick(lambda at: self.fault_in and at.values is not None and (
            at.spec.own_blocks or at.values.nbytes >= BLOCK and not at.spec.no_address))
        if tensor is None:
            return
        bytes_there = (ctypes.c_uint8 * tensor.values.nbytes).from_address(
            tensor.tensor.address()[0])
        there = np.frombuffer(bytes_there, tensor.values.dtype)
        begin, count = self.range_of(tensor)
        self.compare(tensor, there[begin:begin + count].copy(), begin, count, "a touch")
        if self.random.random() < 0.4:
            values = self.values(tensor.dtype, count)
            there[begin:begin + count] = values
            tensor.set(begin, values)

    def reduce(self):
        tensor = self.pick(lambda at: at.dtype in FLOATS)
        if not tensor:
            return
        values = self.values(tensor.dtype, tensor.elements)
        if self.random.random() < 0.5 and self.runtime.fits([tensor.tensor.request("reduce")]):
            with tensor.tensor.fetch("reduce") as view:
                added = view.numpy().reshape(-1)
                if tensor.dtype == "bf16":
                    added[:] = values
                else:
                    added[:] += values
                    values = values + STORED[tensor.dtype](0)  # -0.0 beside the view's 0.0 is 0.0
                del added
        else:
            tensor.tensor.reduce(values)
        if tensor.values is None:
            tensor.set(0, values)
        else:
            total = widen(tensor.values, tensor.dtype) + widen(values, tensor.dtype)
            tensor.set(0, narrow(total, tensor.dtype))

    def discard(self):
        tensor = self.pick()
        self.runtime.drain()  # an update or a sum under way would make it busy
        tensor.tensor.discard()
        tensor.values, tensor.written = None, True

    def move(self):
        tensor = self.pick()
        if self.random.random() < 0.5:
            tensor.tensor.evict(self.random.choice(["device", "host"]))
        else:
            tensor.tensor.prefetch()

    def budget(self):
        """Down for a while, and back: what was accepted must go on."""
        self.runtime.drain()
        try:
            if self.shrunk:
                self.runtime.set_budget("device", self.DEVICE * BLOCK)
                self.runtime.set_budget("host", self.HOST * BLOCK)
            else:
                self.runtime.set_budget("device", self.random.randint(8, self.DEVICE) * BLOCK)
                self.runtime.set_budget("host", self.random.randint(20, self.HOST) * BLOCK)
        except stepwell.BudgetError as error:
            budget_sentence.check(error)
        self.shrunk = not self.shrunk

    def hyper(self, algorithm):
        return Hyper(lr=self.random.choice([0.1, 0.01]), eps=1e-6,
                     weight_decay=self.random.choice([0.0, 0.1]),
                     momentum=self.momentum if algorithm == "sgd" else 0.0,
                     maximize=self.random.random() < 0.2)

    def optimizer(self):
        if len(self.optimizers) >= 2:
            return
        algorithm = self.random.choice(ALGORITHMS)
        self.momentum = self.random.choice([0.0, 0.9])
        hypers = {group: self.hyper(algorithm) for group in (0, 1)}
        pairs = []
        for _ in range(self.random.randint(1, 3)):
            parameter = self.create(self.random.choice(FLOATS), "param")
            gradient = parameter and self.create(
                self.random.choice([parameter.dtype, "f32"]), "grad", parameter.elements)
            if gradient:
                pairs.append((parameter, gradient, self.random.choice([0, 1])))
        durable = all(parameter.spec.durable for parameter, _, _ in pairs)
        if pairs:
            self.optimizers.append(ModelOptimizer(algorithm, hypers, pairs, durable))
            self.optimizers[-1].attach(self.runtime)

    def commit(self):
        self.runtime.commit()
        self.committed = copy.deepcopy(self.durable())

    def durable(self):
        tensors = [tensor for tensor in self.tensors if tensor.spec.durable]
        return tensors, [optimizer for optimizer in self.optimizers if optimizer.durable]

    def reopen(self):
        """What was committed last is there again, and nothing else."""
        if not self.committed[0]:
            return
        self.runtime.close()
        self.runtime, self.shrunk = self.open(resume=True), False
        self.tensors, self.optimizers = copy.deepcopy(self.committed)
        for tensor in self.tensors:
            tensor.held = False
            tensor.tensor, = self.runtime.create_many([tensor.spec])
            if tensor.tensor.restored != (tensor.values is not None):
                raise Difference(f"{tensor.tensor!r} restored: {tensor.tensor.restored}")
        for optimizer in self.optimizers:
            for _, gradient, _ in optimizer.pairs:
                if gradient not in self.tensors:
                    gradient.tensor, = self.runtime.create_many([gradient.spec])
                    gradient.values = None
                    self.tensors.append(gradient)
            optimizer.attach(self.runtime)

    def step(self):
        if not self.optimizers:
            return
        model = self.random.choice(self.optimizers)
        pairs = [pair for pair in model.pairs if pair[0].values is not None]
        if not pairs or len(pairs) < len(model.pairs):
            return  # a parameter without contents is refused
        chosen = self.random.sample(pairs, self.random.randint(1, len(pairs)))
        keep = self.random.random() < 0.3
        clip = self.random.choice([0.0, 0.0, 0.5])
        scale = self.random.choice([1.0, 0.25])
        try:
            result = model.optimizer.step([pair[0].tensor for pair in chosen], scale=scale,
                                          clip_norm=clip, keep_gradients=keep)
        except stepwell.BudgetError as error:
            if not self.shrunk:
                raise
            budget_sentence.check(error)
            return  # nothing was changed: reads will tell
        ready = [pair for pair in chosen if pair[1].values is not None]
        if (result.updated, result.without_gradient) != (len(ready), len(chosen) - len(ready)):
            raise Difference(f"{result} of {len(ready)} gradients and {len(chosen)} parameters")
        if clip:
            scaled = [widen(g.values, g.dtype) * np.float32(scale) for _, g, _ in ready]
            norm = math.sqrt(sum(float(np.sum(g.astype(np.float64) ** 2)) for g in scaled))
            if abs(norm - result.norm) > 1e-5 * norm:
                raise Difference(f"a norm of {result.norm}; {norm} is right")
        coefficient = result.clip_coefficient if clip else 1.0
        for parameter, gradient, group in ready:
            model.update(parameter, gradient, group, scale * coefficient)
            if not keep:
                gradient.values = None
            if model.optimizer.count(parameter.tensor) != model.counts[parameter.name]:
                raise Difference(f"the count of {parameter.name} after its step")

    # -- comparing --

    def compare(self, tensor, got, begin, count, how):
        right = tensor.values[begin:begin + count]
        got = np.asarray(got).reshape(-1)
        got, right = got.view(np.uint8), right.view(np.uint8)
        if not np.array_equal(got, right):
            at = int(np.nonzero(got != right)[0][0]) // tensor.values.itemsize
            raise Difference(f"{tensor.tensor!r}: element {begin + at} of {how} differs")

    def check(self, tensor):
        if tensor:
            begin, count = self.range_of(tensor)
            self.compare(tensor, tensor.tensor.read(None, begin, count), begin, count, "a read")

    def abandon(self):
        try:
            self.runtime.close(deferred=True)
        except stepwell.Error:
            pass  # said already

    def run(self, operations):
        weights = {self.create: 2, self.destroy: 1, self.write: 4, self.fill: 2, self.read: 5,
                   self.view: 6, self.touch: 6, self.reduce: 4, self.discard: 1, self.move: 3,
                   self.budget: 0.3, self.optimizer: 0.5, self.step: 5, self.commit: 0.5,
                   self.reopen: 0.2}
        for _ in range(4):
            self.create()
        for operation in self.random.choices(list(weights), list(weights.values()), k=operations):
            self.last = operation.__name__
            operation()
        self.runtime.drain()
        for tensor in self.tensors:
            if tensor.values is not None:
                self.compare(tensor, tensor.tensor.read(), 0, tensor.elements, "the last read")


def run_seed(seed, operations):
    with tempfile.TemporaryDirectory(prefix="stepwell-model-", dir=".") as directory:
        program = Program(seed, directory)
        try:
            program.run(operations)
        except Exception:
            print(f"seed {seed}, in {getattr(program, 'last', 'the beginning')}:")
            traceback.print_exc(file=sys.stdout)
            program.abandon()
            return False
        try:
            program.runtime.close(deferred=True)
        except stepwell.Error as error:
            print(f"seed {seed}, in close: {error}")
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1 << 62)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--operations", type=int, default=300)
    parser.add_argument("--of-the-day", action="store_const", dest="seed",
                        const=10_000 * (int(time.time()) // 86_400))
    options = parser.parse_args()
    end, failed, done = time.monotonic() + options.seconds, 0, 0
    while done < options.seeds and (done == 0 or time.monotonic() < end) and failed < 3:
        failed += not run_seed(options.seed + done, options.operations)
        done += 1
    print(f"{done} programs of {options.operations} operations, from seed {options.seed}: "
          f"{failed} differ from the model or failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
