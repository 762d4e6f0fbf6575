# SPDX-License-Identifier: Apache-2.0
"""bench tune: what `stepwell tune` chose, beside the best setting of a grid."""

import json
import tempfile
from pathlib import Path
from statistics import geometric_mean, median

from bench_tools import GB, MIB, Program, in_turn, need_space, result, run_text, say

# Through the library, beside what `stepwell tune` chose: all of aio that it tries, and more.
TUNE_GRID = [
    (kib, depth)
    for kib in (128, 256, 512, 1024, 2048)
    for depth in (2, 4, 8, 16, 32, 64)
    if kib * depth <= 64 * 1024
]
TUNE_CANDIDATES = 6  # of the grid's first round are measured again


def tune_program(options, *words):
    program = [options.build / "bench/bench-nvme", "--dir", options.nvme]
    return Program([*program, "--bytes", options.bytes // 2, "--host-bytes", "256m", *words])


def rate_of(program, what):
    answer = program.ask(what)
    return answer["bytes"] / answer["seconds"]


def grid_rounds(options, settings, rounds):
    """Rates of every setting in both directions, each from a runtime of its own."""
    rates = {what: {setting: [] for setting in settings} for what in ("read", "write")}
    for number in range(rounds):
        for kib, depth in settings if number % 2 == 0 else reversed(settings):
            with tune_program(options, "--request-bytes", f"{kib}k", "--queue-depth", depth) as one:
                one.ask("write")  # into reserved space, which is slower
                for what in ("write", "read"):
                    rates[what][kib, depth].append(rate_of(one, what))
    return rates


def best_of_grid(options):
    """The setting that is best of the whole grid, for reads and for writes."""
    first = grid_rounds(options, TUNE_GRID, 1)
    best = {}
    for what, rates in first.items():
        best[what] = sorted(rates, key=lambda s: rates[s][0], reverse=True)[:TUNE_CANDIDATES]
    again = grid_rounds(options, sorted({*best["read"], *best["write"]}), 3)
    for what, rates in again.items():
        best[what] = max(best[what], key=lambda s: median(rates[s]))
        say(f"  best {what} of the grid: {best[what][0]} KiB x {best[what][1]}")
    return best


def bench_tune(options):
    need_space(options.nvme, 2 * options.bytes + 512 * MIB)
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        profile = Path(folder) / "profile.json"
        command = [options.build / "bindings/cli/stepwell", "tune", "--output", profile]
        tuned = json.loads(run_text([*command, "--json", options.nvme]))["directories"][0]
        best = best_of_grid(options)
        return [tune_result(options, what, profile, tuned, best[what]) for what in best]


def both_ways(options, what, ours, theirs):
    """Our rate, theirs and the ratio: of four runs, each program opened first twice and run first
    twice. Which of two was opened last is 5 to 10 % faster on some disks, with the same setting."""
    rates = []
    for opened_first in (ours, theirs):
        opened_last = theirs if opened_first is ours else ours
        with tune_program(options, *opened_first) as one, tune_program(
            options, *opened_last
        ) as other:
            for program in (one, other):
                program.ask("write")
            mine, yours = (one, other) if opened_first is ours else (other, one)
            for number in range(2):
                rates.append(
                    in_turn(number, lambda: rate_of(mine, what), lambda: rate_of(yours, what))
                )
    return (
        geometric_mean(mine for mine, _ in rates),
        geometric_mean(yours for _, yours in rates),
        geometric_mean(mine / yours for mine, yours in rates),
    )


def tune_result(options, what, profile, tuned, best):
    kib, depth = best
    chosen = {key: tuned[what][key] for key in ("request_bytes", "queue_depth")}
    say(f"  tune {what}: {chosen['request_bytes'] >> 10} KiB x {chosen['queue_depth']}")
    ours = ("--profile", profile)
    theirs = ["--request-bytes", f"{kib}k", "--queue-depth", depth]
    pairs, same = [], []
    for number in range(options.pairs):
        pairs.append(both_ways(options, what, ours, theirs))
        same.append(both_ways(options, what, list(theirs), theirs)[2])
        say(
            f"  {what} {number + 1}/{options.pairs}: {pairs[-1][0] / GB:.2f} and "
            f"{pairs[-1][1] / GB:.2f} GB/s, {pairs[-1][2]:.3f}; beside itself {same[-1]:.3f}"
        )
    return result(
        f"tune.{what}",
        median(mine for mine, _, _ in pairs) / GB,
        "GB/s",
        f"best of a grid of {len(TUNE_GRID)}, {kib}k x {depth}",
        [ratio for _, _, ratio in pairs],
        reference_value=median(yours for _, yours, _ in pairs) / GB,
        chosen=chosen,
        driver=tuned["driver"],
        beside_itself=[median(same), min(same), max(same)],
    )
