# SPDX-License-Identifier: Apache-2.0
"""What a generation costs: `./dev bench commit`."""

import json
import subprocess
from statistics import median

from bench_tools import MIB, BenchError, need_space, result, say

BYTES = 1024 * MIB
READ_GOAL_S = 0.020  # the longest that a read beside a commit may wait


def bench_commit(options):
    need_space(options.nvme, 5 * BYTES)
    command = [options.build / "bench/bench-commit", "--dir", options.nvme, "--bytes", str(BYTES)]
    command += ["--rounds", str(options.pairs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"bench-commit ended with status {done.returncode}")
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    ratios = [r["evict_s"] / r["commit_s"] for r in rounds]
    rate, evicted = (median(r["bytes"] / r[key] for r in rounds) for key in ("commit_s", "evict_s"))
    unchanged = [r["unchanged_s"] for r in rounds]
    reads = [r["read_s"] for r in rounds]
    written = [r["bytes"] / max(1, r["commit_bytes"]) for r in rounds]
    say(
        f"  commit of 1 GiB: {rate / 1e9:.2f} GB/s, eviction {evicted / 1e9:.2f} GB/s, ratio "
        f"{median(ratios):.3f}; with nothing changed {1e3 * median(unchanged):.1f} ms; the longest "
        f"read beside it {1e3 * max(reads):.2f} ms"
    )
    return [
        result(
            "commit.rate",
            rate / 1e9,
            "GB/s of what changed",
            "evicting as many bytes of scratch, in the same round",
            ratios,
            reference_value=evicted / 1e9,
            unchanged_ms=[round(1e3 * seconds, 2) for seconds in unchanged],
        ),
        result(
            "commit.bytes",
            median(r["commit_bytes"] for r in rounds) / MIB,
            "MiB written",
            "what had changed; with nothing changed "
            f"{max(r['unchanged_bytes'] for r in rounds)} bytes of blocks",
            written,
            reference_value=BYTES / MIB,
        ),
        result(
            "commit.reader",
            1e3 * max(reads),
            "ms, the longest read of another thread during a commit",
            "20 ms, which no read is to exceed",
            [seconds / READ_GOAL_S for seconds in reads],
            reference_value=1e3 * READ_GOAL_S,
        ),
    ]
