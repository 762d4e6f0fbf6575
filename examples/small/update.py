# SPDX-License-Identifier: Apache-2.0
"""An optimizer: weights of 4 MiB learn the number 3 by AdamW. Weights, gradient and the two moments
are 16 MiB together, in a host tier of 12 MiB.

Shows: gradients that are summed, updates that run behind the call, the norm of a step, a learning
rate of its own each step. Needs NumPy. usage: update.py [DIRECTORY]
"""
import sys

try:
    import numpy
except ImportError:
    sys.exit("update.py needs NumPy: pip install numpy, or the package python3-numpy")

import stepwell

MIB = 1 << 20
ELEMENTS, STEPS = 1 << 20, 60


def forward_backward(weights, gradient):
    """Mean squared distance to 3; its gradient is added to the second array."""
    distance = weights - numpy.float32(3)
    gradient += 2 * distance
    return float(numpy.square(distance, dtype=numpy.float64).mean())


def main(directory):
    nvme = stepwell.Nvme(directory, 64 * MIB)
    with stepwell.Runtime(host_bytes=12 * MIB, nvme=nvme,
                          block_bytes=stepwell.BLOCK_512K) as runtime:
        weights = runtime.create("w", ELEMENTS, "f32", role="param")
        gradient = runtime.create("w.grad", ELEMENTS, "f32", role="grad")
        weights.fill(0)
        # It makes a tensor of its own for each moment.
        optimizer = runtime.adamw()
        optimizer.add(weights, gradient)
        # Made once, fetched often. REDUCE: zeros to add to, added to the gradient at the release.
        wants = [weights.request("read"), gradient.request("reduce")]

        for step in range(STEPS):
            # Waits for the pending update of the weights, and for nothing else.
            with runtime.fetch_many(wants) as views:
                loss = forward_backward(*views.arrays())
            # Warm up. Hyper-parameters are used exactly as given.
            optimizer.set_hyper(stepwell.Hyper(lr=min(0.01 * (step + 1), 0.1)))
            # Returns when the norm is known; the update goes on during the next step.
            result = optimizer.step(clip_norm=1e6)
            if step % 10 == 0 or step == STEPS - 1:
                print(f"step {step:2}  loss {loss:.5f}  norm of the gradient {result.norm:.1f}")
        runtime.drain()  # the last update still runs
        print("updates done:", optimizer.count(weights))
    print("learned" if loss < 0.1 else "did not learn")
    return 0 if loss < 0.1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
