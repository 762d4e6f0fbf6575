# SPDX-License-Identifier: Apache-2.0
"""Sixteen tensors of 4 MiB in a host tier of 16 MiB: the rest is on nvme, and comes when asked.

Shows: open, create, fetch and release, arrays that share memory, ranges, a refusal with its
arithmetic. usage: fetch_release.py [DIRECTORY]
"""
import sys

import stepwell

MIB = 1 << 20
LAYERS, ELEMENTS = 16, 1 << 20  # of 2^20 floats: 4 MiB each


def mean(view):
    """Without NumPy the bytes are a memoryview."""
    values = view.bytes.cast("f")
    return sum(values[:1000]) / 1000


def main(directory):
    nvme = stepwell.Nvme(directory, 80 * MIB)
    with stepwell.Runtime(host_bytes=16 * MIB, nvme=nvme) as runtime:
        layers = [runtime.create(f"layer{number}", ELEMENTS, "f32", role="param")
                  for number in range(LAYERS)]
        for number, layer in enumerate(layers):
            layer.fill(number)  # converted to f32, block by block, wherever the blocks are

        # Each is here while its block lasts, and may leave afterwards.
        total = 0.0
        for layer in layers:
            with layer.fetch() as view:
                total += mean(view)
        print(f"sum of means: {total:.1f}")

        # Several at once: room for all is reserved before anything moves.
        with runtime.fetch_many(layers[:3]) as views:
            print("three together:", [mean(view) for view in views])

        # A range, to be written; other elements are left alone.
        with layers[0].fetch("read_write", begin=ELEMENTS // 2, count=1000) as view:
            view.bytes.cast("f")[0] = 42.0
        changed = layers[0].read(bytearray(8), ELEMENTS // 2, 2)
        print("after the write:", list(memoryview(changed).cast("f")))

        # Five do not fit together, and the refusal says so in numbers.
        print("five fit:", runtime.fits(layers[:5]))
        try:
            runtime.fetch_many(layers[:5])
        except stepwell.BudgetError as error:
            print(f"refused: {error.needed_bytes // MIB} MiB needed")
            print(error)
        stats = runtime.tier_stats("host")
        print(f"host tier: at most {stats.peak_bytes // MIB} of {stats.budget_bytes // MIB} MiB")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
