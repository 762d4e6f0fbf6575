# SPDX-License-Identifier: Apache-2.0
"""Reading ahead: twelve layers of 4 MiB, of which the host tier holds four. Each run computes on
the layers in order; in the second, the next layer is asked for while this one is computed on.

Shows: prefetch, phases and steps, where a step's time went. Needs no NumPy.
usage: prefetch_overlap.py [DIRECTORY]
"""
import sys
import zlib

import stepwell

MIB = 1 << 20
LAYERS, ELEMENTS = 12, 1 << 20  # of 2^20 floats: 4 MiB each


def compute(view):
    """Stands for a layer's arithmetic, which lets other threads run."""
    return zlib.crc32(view.bytes)


def run(runtime, layers, name, ahead):
    """One step over all layers. The result does not depend on what was prefetched."""
    phase = runtime.phase(name)
    result = 0
    with phase.step() as step:
        for layer, tensor in enumerate(layers):
            # The end of the block gives the view back.
            with tensor.fetch(tier="host") as view:
                if ahead and layer + 1 < len(layers):
                    # A hint: returns at once, and never fails for lack of room.
                    runtime.prefetch([layers[layer + 1].request(tier="host")])
                result ^= compute(view)
                # FAR: not needed again before all others, so let it leave first.
                view.release(stepwell.Release.FAR)
    stats = step.stats
    print(f"{name:8} {stats.wall_ns / 1e6:6.1f} ms, waited {stats.stall_ns / 1e6:6.1f} ms of it "
          f"(nvme {stats.stall_nvme_ns / 1e6:.1f}); {stats.nvme_read_bytes / MIB:.1f} MiB read")
    phase.destroy()
    return result


def main(directory):
    nvme = stepwell.Nvme(directory, 96 * MIB)
    with stepwell.Runtime(host_bytes=20 * MIB, nvme=nvme,
                          block_bytes=stepwell.BLOCK_512K) as runtime:
        layers = [runtime.create(None, ELEMENTS, "f32", role="param") for _ in range(LAYERS)]
        for number, layer in enumerate(layers):
            layer.fill(number)
        runtime.drain()  # what was written is on nvme before the clock starts
        first = run(runtime, layers, "without", False)
        second = run(runtime, layers, "with", True)
    print("the results are", "equal" if first == second else "different")
    return 0 if first == second else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
