# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs when everything is resident. One JSON line a round and figure.

python.fetch_hit: fetch and release of one tensor. python.fetch_many: of 1,000 tensors together.
python.add_many: 20,000 parameters of bf16 that an AdamW gets in one call, with 80,000 states.
Processor time of the thread: a hit waits for nothing, and so other programs do not count.
usage: python_bench.py [ROUNDS]
"""
import json
import sys
import time

import stepwell

TENSORS = 1000
HITS, SETS = 20_000, 50
PARAMETERS = 20_000


def nanoseconds(function, times):
    begin = time.thread_time_ns()
    for _ in range(times):
        function()
    return (time.thread_time_ns() - begin) / times


def added(runtime, pairs):
    optimizer = runtime.adamw(stepwell.Hyper())
    taken = nanoseconds(lambda: optimizer.add_many(pairs), 1)
    optimizer.destroy()
    return taken


def adding(rounds):
    with stepwell.Runtime(host_bytes=256 << 20, block_bytes=stepwell.BLOCK_64K, probe=False,
                          tensors_max=8 * PARAMETERS) as runtime:
        parameters, gradients = (
            runtime.create_many([stepwell.TensorSpec(40, dtype, f"{role}{i}", role)
                                 for i in range(PARAMETERS)])
            for role, dtype in (("param", "bf16"), ("grad", "f32"))
        )
        pairs = list(zip(parameters, gradients))
        for _ in range(rounds):
            print(json.dumps({"name": "python.add_many", "ns": added(runtime, pairs)}), flush=True)


def main(rounds):
    adding(rounds)
    with stepwell.Runtime(devices=64 << 20, block_bytes=stepwell.BLOCK_64K) as runtime:
        tensors = runtime.create_many([stepwell.TensorSpec(shape=256) for _ in range(TENSORS)])
        for tensor in tensors:
            tensor.fill(1)
        first = tensors[0]
        for _ in range(rounds):
            for name, function, times in (
                ("python.fetch_hit", lambda: runtime.fetch(first).release(), HITS),
                ("python.fetch_many", lambda: runtime.fetch_many(tensors).release(), SETS),
            ):
                print(json.dumps({"name": name, "ns": nanoseconds(function, times)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
