# SPDX-License-Identifier: Apache-2.0
"""bench ranks: tensors over the ranks of an MPI job on this machine, beside plain MPI."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from statistics import median

from bench_tools import GB, MIB, BenchError, need_space, result, say

RUN_MPI = Path(__file__).resolve().parent.parent / "tests/multirank/run_mpi.sh"
MODULE = "drivers/mpi/libstepwell-mpi.so"
STORE_RATE = 200_000_000  # bytes/s of each rank's store
STORE_BYTES = 256 * MIB  # of each rank
SECONDS_MAX = 900  # of one job: past it, it hangs


def run_ranks(options, ranks, mode, **arguments):
    """One job; what its first rank printed."""
    words = [RUN_MPI, ranks, options.build / "bench/bench-ranks", "--mode", mode]
    words += ["--module", options.build.resolve() / MODULE, "--dir", options.nvme]
    for name, value in arguments.items():
        words += ["--" + name.replace("_", "-"), value]
    say(f"  {mode}, {ranks} ranks")
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        env=dict(os.environ, STW_MPI_SECONDS=str(SECONDS_MAX)),
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"bench-ranks --mode {mode}: " + done.stderr.strip()[-500:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def worst_case(name, value, unit, against, cases, **details):
    """The headline is the case with the least median; the spread is that of all pairs."""
    ratios = [ratio for of_case in cases.values() for ratio in of_case]
    medians = {case: round(median(of_case), 3) for case, of_case in cases.items()}
    return {
        **result(name, value, unit, against, ratios, cases=medians, **details),
        "ratio": min(medians.values()),
    }


def bench_ranks(options):
    if not (options.build / "bench/bench-ranks").exists() or not shutil.which("mpirun"):
        raise BenchError("the ranks need MPI: libopenmpi-dev at the build and openmpi-bin now")
    need_space(options.nvme, 8 * (STORE_BYTES + STORE_BYTES // 16 + 64 * MIB))
    return [
        fetch_whole(options),
        in_memory(options, "all_gather", "MPI_Allgather"),
        in_memory(options, "reduce_scatter", "MPI_Reduce_scatter_block"),
        peak(options),
        fairness(options),
        small(options, "small", "call"),
        small(options, "small_reduce", "release"),
    ]


def fetch_whole(options):
    cases, rates = {}, {}
    ways = ("seconds", "broadcast_seconds", "broadcast_ahead_seconds")
    for ranks in (1, 2, 4):
        lines = run_ranks(
            options, ranks, "fetch_whole", rounds=options.pairs, rate=STORE_RATE,
            disk_bytes=STORE_BYTES,
        )
        cases[str(ranks)] = [
            line["bytes"] / line["seconds"] / (ranks * STORE_RATE) for line in lines
        ]
        rates[str(ranks)] = [
            round(median(line["bytes"] / line[way] for line in lines) / GB, 3) for way in ways
        ]
    return worst_case(
        "ranks.fetch_whole",
        rates["4"][0],
        "GB/s of 4 ranks",
        f"ranks x {STORE_RATE / 1e6:.0f} MB/s, the worst of 1, 2 and 4",
        cases,
        reference_value=4 * STORE_RATE / GB,
        whole_broadcast_ahead_gb_per_s=rates,
    )


def in_memory(options, mode, theirs):
    cases, lines_of = {}, {}
    for ranks in (2, 4):
        for line in run_ranks(options, ranks, mode, rounds=3 * options.pairs):
            case = f"{ranks} x {line['bytes'] // MIB} MiB"
            cases.setdefault(case, []).append(line["mpi_seconds"] / line["seconds"])
            lines_of.setdefault(case, []).append(line)
    largest = lines_of["4 x 64 MiB"]
    return worst_case(
        f"ranks.{mode}",
        median(line["seconds"] for line in largest) * 1e3,
        "ms, 64 MiB, 4 ranks",
        f"{theirs}, the worst of 2 and 4 ranks, 16 to 64 MiB",
        cases,
        reference_value=median(line["mpi_seconds"] for line in largest) * 1e3,
        milliseconds={
            case: [
                round(median(line[which] for line in lines) * 1e3, 2)
                for which in ("seconds", "mpi_seconds")
            ]
            for case, lines in lines_of.items()
        },
    )


def peak(options):
    lines = [
        line
        for ranks in (2, 4)
        for line in run_ranks(options, ranks, "peak", rate=0, tensor_bytes=32 * MIB)
    ]
    return worst_case(
        "ranks.peak",
        max(line["peak_bytes"] for line in lines) / MIB,
        "MiB peak",
        "the whole and a block, in the least budget that takes it",
        {str(line["ranks"]): [line["allowed_bytes"] / line["peak_bytes"]] for line in lines},
        reference_value=lines[0]["allowed_bytes"] / MIB,
        least_budget_mib={str(line["ranks"]): line["budget_bytes"] / MIB for line in lines},
        with_room={
            str(line["ranks"]): round(line["allowed_bytes"] / line["roomy_peak_bytes"], 3)
            for line in lines
        },
    )


def fairness(options):
    """Times of the slowest over the fastest, so that a ratio of 1 is even and less is not."""
    shared, alone, lines_of = {}, {}, {}
    for eager, case in ((1, "alike"), (4, "one asks 4 x")):
        lines_of[case] = run_ranks(
            options, 4, "fairness", rounds=options.pairs, eager=eager, ahead=12,
            tensor_bytes=4 * MIB, disk_bytes=STORE_BYTES, window_ms=2000,
        )
        shared[case] = [line["fastest_s"] / line["slowest_s"] for line in lines_of[case]]
        alone[case] = [
            line["alone_fastest_s"] / line["alone_slowest_s"] for line in lines_of[case]
        ]
    alike = lines_of["alike"]
    return worst_case(
        "ranks.fairness",
        median(line["slowest_s"] for line in alike) * 1e3,
        "ms of the slowest of 4",
        "the fastest",
        shared,
        reference_value=median(line["fastest_s"] for line in alike) * 1e3,
        without_sharing={case: round(median(ratios), 3) for case, ratios in alone.items()},
        without_sharing_ms=median(line["alone_slowest_s"] for line in alike) * 1e3,
    )


def small(options, mode, call):
    lines = [line for ranks in (2, 4) for line in run_ranks(options, ranks, mode, call=100)]
    return worst_case(
        f"ranks.{mode}",
        lines[-1]["collectives"],
        "collectives",
        f"{lines[-1]['tensors']} tensors, 100 in a {call}",
        {str(line["ranks"]): [line["tensors"] / line["collectives"]] for line in lines},
        reference_value=lines[-1]["tensors"],
        seconds={str(line["ranks"]): round(line["seconds"], 3) for line in lines},
    )
