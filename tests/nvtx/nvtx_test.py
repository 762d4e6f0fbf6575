#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranges for profilers: who listens hears of every fetch that waited, every transfer and every
chunk of an update, and of the end of each. usage: nvtx_test.py LISTENER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LISTENER = sys.argv.pop(1)
PROGRAM = """
import sys
import stepwell
with stepwell.Runtime(host_bytes=48 << 20, nvme=stepwell.Nvme(sys.argv[1], 64 << 20), profile="",
                      probe=False, thread_count=2) as runtime:
    large = [runtime.create(f"t{i}", (4 << 20,), role="param") for i in range(2)]
    for tensor in large:
        tensor.fill(1.0)
    runtime.evict(large, tier=stepwell.Tier.HOST)
    for tensor in large:
        runtime.fetch(tensor).release()
    moved = runtime.link_stats("nvme_to_host").transfers
    gradient = runtime.create("g", (4 << 20,), role="grad")
    gradient.fill(1.0)
    optimizer = runtime.sgd(stepwell.Hyper(lr=0.1))
    optimizer.add(large[0], gradient)
    optimizer.step()
    runtime.drain()
    print(moved)
"""


class Ranges(unittest.TestCase):
    def run_with(self, **environment):
        with tempfile.TemporaryDirectory(dir=".", prefix="nvtx-") as scratch:
            output = pathlib.Path(scratch) / "heard.json"
            done = subprocess.run([sys.executable, "-B", "-c", PROGRAM, scratch],
                                  stdout=subprocess.PIPE, text=True, check=True, timeout=100,
                                  env={**os.environ, "NVTX_LISTENER_OUTPUT": str(output),
                                       **environment})
            heard = json.loads(output.read_text()) if output.exists() else None
            return int(done.stdout), heard

    def test_a_listener_hears_of_fetches_transfers_and_updates(self):
        moved, heard = self.run_with(NVTX_INJECTION64_PATH=LISTENER)
        self.assertGreaterEqual(moved, 16, "two tensors of eight blocks")
        self.assertGreaterEqual(heard["fetch"]["begun"], 2)
        self.assertGreaterEqual(heard["transfer"]["begun"], moved)
        self.assertGreaterEqual(heard["transfer"]["bytes"], 32 << 20)
        self.assertGreater(heard["update"]["begun"], 0)
        begun = sum(heard[kind]["begun"] for kind in ("fetch", "transfer", "update"))
        self.assertEqual(heard["ended"], begun, "each range has its end")
        self.assertEqual(heard["other"], 0)

    def test_without_a_listener_nothing_happens(self):
        _, heard = self.run_with()
        self.assertIsNone(heard)


if __name__ == "__main__":
    unittest.main()
