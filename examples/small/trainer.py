# SPDX-License-Identifier: Apache-2.0
"""A linear model fitted with AdamW: weights, gradient and moments are 16 MiB, the tiers that
compute have 8; the rest is on nvme, and the losses are the same.

Shows: steps, gradients that are summed in place, an optimizer whose updates run behind the call,
what a step cost. Needs NumPy. usage: trainer.py [DIRECTORY]
"""
import sys

try:
    import numpy
except ImportError:
    sys.exit("trainer.py needs NumPy: pip install numpy, or the package python3-numpy")

import stepwell

MIB = 1 << 20
LAYERS, ROWS, COLUMNS = 4, 512, 512  # 1 MiB of weights a layer
STEPS, BATCH = 20, 8


def losses(runtime, steps):
    """Train; the loss of each step."""
    random = numpy.random.default_rng(7)
    shape = (ROWS, COLUMNS)
    layers = []
    optimizer = runtime.adamw(stepwell.Hyper(lr=1e-3))
    for number in range(LAYERS):
        weights = runtime.create(f"w{number}", shape, role="param")
        gradient = runtime.create(f"w{number}.grad", shape, role="grad")
        weights.write(random.standard_normal(shape, numpy.float32) / 32)
        optimizer.add(weights, gradient)
        target = random.standard_normal(shape, numpy.float32) / 32
        layers.append((weights, gradient, target))
    inputs = random.standard_normal((BATCH, ROWS), numpy.float32)
    train = runtime.phase("train")
    for _ in range(steps):
        loss = 0.0
        with train.step() as step:
            for weights, gradient, target in layers:
                # Pinned for this block alone. REDUCE begins as zeros and is added at the release.
                with weights.fetch() as values, gradient.fetch("reduce") as sums:
                    error = inputs @ (values.numpy() - target)
                    numpy.add(sums.numpy(), inputs.T @ error / BATCH, out=sums.numpy())
                loss += float((error * error).sum()) / (2 * BATCH)
            optimizer.step(clip_norm=1.0)  # goes on during the next step
        yield loss, step.stats
    runtime.drain()


def main(directory):
    nvme = stepwell.Nvme(directory, 64 * MIB)
    with stepwell.Runtime(devices=4 * MIB, host_bytes=4 * MIB, nvme=nvme,
                          block_bytes=stepwell.BLOCK_64K) as runtime:
        tiered = []
        for number, (loss, stats) in enumerate(losses(runtime, STEPS)):
            tiered.append(loss)
            if number % 5 == 0:
                print(f"step {number:2}  loss {loss:8.3f}  waited {stats.stall_ns / 1e6:5.1f} of "
                      f"{stats.wall_ns / 1e6:5.1f} ms, {stats.nvme_read_bytes / MIB:.1f} MiB read")
    with stepwell.Runtime(devices=64 * MIB) as runtime:
        in_memory = [loss for loss, _ in losses(runtime, STEPS)]
    print("the same losses as in memory:", tiered == in_memory)
    return 0 if tiered == in_memory and tiered[-1] < tiered[0] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
