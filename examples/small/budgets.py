# SPDX-License-Identifier: Apache-2.0
"""Budgets changed while the program runs: a trainer lends its memory to somebody else for a while,
say to an evaluation between two epochs, and takes it back. Nothing is lost meanwhile.

Shows: set_budget down, to nothing, and up again; what is refused, and why. Needs no NumPy.
usage: budgets.py [DIRECTORY]
"""
import sys
import zlib

import stepwell

MIB = 1 << 20
LAYERS, ELEMENTS = 8, 1 << 20  # of 2^20 floats: 4 MiB each


def show(runtime, when):
    stats = runtime.tier_stats("host")
    print(f"{when:14} budget {stats.budget_bytes // MIB:2} MiB, "
          f"used {stats.used_bytes // MIB:2} MiB")


def visit(layers):
    """Reads every layer once; the sums tell whether all bytes are still what they were."""
    sums = []
    for layer in layers:
        with layer.fetch(tier="host") as view:
            sums.append(zlib.crc32(view.bytes))
    return sums


def main(directory):
    nvme = stepwell.Nvme(directory, 64 * MIB)
    # The budget at the opening is the most that the tier can ever have.
    with stepwell.Runtime(host_bytes=40 * MIB, nvme=nvme,
                          block_bytes=stepwell.BLOCK_512K) as runtime:
        layers = [runtime.create(None, ELEMENTS, "f32", role="param") for _ in range(LAYERS)]
        for number, layer in enumerate(layers):
            layer.fill(number + 1)
        before = visit(layers)
        show(runtime, "at the start")

        # Half of it: what is too much goes to the disk first, and when the call returns the memory
        # is the system's. The program goes on as before, with more reads.
        runtime.set_budget("host", 16 * MIB)
        equal = visit(layers) == before
        show(runtime, "with less")

        # Everything out. A fetch has nowhere to go now, and says so.
        runtime.set_budget("host", 0)
        show(runtime, "asleep")
        try:
            visit(layers)
            return 1
        except stepwell.BudgetError as error:
            print("a fetch says:", error)

        runtime.set_budget("host", 40 * MIB)
        equal = equal and visit(layers) == before
        show(runtime, "awake")
    print("the sums are", "equal" if equal else "different")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
