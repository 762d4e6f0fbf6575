#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure Stepwell beside its references, interleaved, in one run.

usage: bench/bench.py --build DIR [nvme] [fetch] [update] [train] [python] [tune] [policy]
                      [predict] [simulate] [ranks] [commit] [step] [torch] [--nvme DIR]
                      [--json FILE] [--pairs N] [--bytes N]
                      [--train-pairs N] [--train-steps N]
                      [--torch-pairs N] [--torch-steps N] [--torch-small]
                      [--only ROW ...]

Without a group all of them are measured, in one run and into one JSON file.

Every ratio is ours over the reference, higher is better, and is the median of the ratios of pairs
measured one right after the other, because disks and virtual machines change speed by the minute.
The spread is the smallest and the largest of those pair ratios. Nothing here passes or fails.
"""

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from bench_commit import bench_commit
from bench_predict import bench_predict
from bench_ranks import bench_ranks
from bench_step import bench_step
from blas import use_widest_kernels
from bench_tools import (
    GB,
    MIB,
    BenchError,
    Fio,
    Program,
    in_turn,
    need_space,
    result,
    run_lines,
    run_text,
    say,
    three_digits,
)
from bench_torch import ROWS as TORCH_ROWS
from bench_torch import bench_torch
from bench_tune import bench_tune

GROUPS = (
    "nvme", "fetch", "update", "train", "python", "tune", "policy", "predict", "simulate",
    "ranks", "commit", "step", "torch",
)
# For reads, writes and both mixed: a reference that was not allowed its best is none.
FIO_GRID = [(block, depth) for block in ("256k", "1m", "2m", "4m") for depth in (4, 16, 32)]
# An AdamW step with everything on the drive reads 16 and writes 12 bytes a parameter.
UPDATE_READ, UPDATE_WRITE = 16, 12
MIX_READ_PERCENT = round(100 * UPDATE_READ / (UPDATE_READ + UPDATE_WRITE))
FETCH_HIT_LIMIT_NS = 100
HOST_BYTES = 512 * MIB  # of the host tier that nvme streams through
# Of traces. Constants of policies were tuned on seeds below 10, and what a step waits was looked
# into on 101 and 102: those are not measured.
POLICY_SEEDS = (101, 104)
STALL_SEEDS = (201, 202)
STALL_LIMIT = 0.03  # of the bound, where overlap is possible
MOE_HIT_LIMIT = 0.5
REPLAY_LIMIT = 1e6  # events of the core, by processor time
SIMULATE_LIMIT_S = 60
OVERFLOW_LAYERS = (600, 1200, 2400)
PYTHON_LIMITS_NS = {
    "python.fetch_hit": 3_000,
    "python.fetch_many": 300_000,
    "python.add_many": 200_000_000,
}


# --------------------------------------------------------------------------------------- nvme --


@contextmanager
def nvme_pair(options, size, number):
    """Ours and fio with their files; which is made last, and is a little faster here, changes."""
    program = [options.build / "bench/bench-nvme", "--dir", options.nvme, "--bytes", size]
    with ExitStack() as stack:
        if number % 2 == 0:
            fio = stack.enter_context(Fio(options.nvme, size))
            ours = stack.enter_context(Program(program))
        else:
            ours = stack.enter_context(Program(program))
            fio = stack.enter_context(Fio(options.nvme, size))
        yield ours, fio


def bench_nvme(options):
    size = options.bytes
    need_space(options.nvme, 2 * size + size // 16 + 128 * MIB)
    with Fio(options.nvme, size) as fio:
        best = {what: fio.best_setting(what, FIO_GRID) for what in ("write", "read")}
        named = {what: fio.named(*best[what]) for what in best}
    # In as many buffers as our host tier has: a few that stay in the processor's cache are filled
    # faster than memory is, and no program that wants all of the bytes can have that.
    spread = ("2m", HOST_BYTES // (2 * MIB))
    rates = {"read": [], "write": []}
    into_memory = {"read": [], "write": []}
    first_writes = []
    for number in range(options.pairs):
        with nvme_pair(options, size, number) as (ours, fio):

            def our_rate(what, ours=ours):
                answer = ours.ask(what)
                return answer["bytes"] / answer["seconds"]

            first_writes.append((our_rate("write"), fio.first_write))
            for what in ("write", "read"):
                theirs, mine = in_turn(
                    number // 2, lambda w=what: fio.run(w, *best[w]), lambda w=what: our_rate(w)
                )
                rates[what].append((mine, theirs))
                into_memory[what].append((mine, fio.run(what, *spread)))
                say(
                    f"  {what} {number + 1}/{options.pairs}: "
                    f"{mine / GB:.2f} GB/s, fio {theirs / GB:.2f}, "
                    f"through {HOST_BYTES // MIB} MiB {into_memory[what][-1][1] / GB:.2f}"
                )
    results = []
    for what in ("read", "write"):
        details = {
            "reference_value": median(theirs for _, theirs in rates[what]) / GB,
            "reference_in_memory": median(theirs for _, theirs in into_memory[what]) / GB,
            "ratio_in_memory": median(mine / theirs for mine, theirs in into_memory[what]),
        }
        if what == "write":
            details["first_pass"] = median(mine for mine, _ in first_writes) / GB
            details["reference_first_pass"] = median(theirs for _, theirs in first_writes) / GB
        results.append(
            result(
                f"nvme.{what}",
                median(mine for mine, _ in rates[what]) / GB,
                "GB/s",
                f"fio libaio {named[what]}",
                [mine / theirs for mine, theirs in rates[what]],
                **details,
            )
        )
    return results


# -------------------------------------------------------------------------------------- fetch --


def starpu_rounds(options):
    """A function that measures StarPU once, or None where it is not built."""
    program = options.build / "bench/starpu-acquire"
    if not program.exists():
        return None
    home = options.build.resolve() / "bench/starpu-home"
    home.mkdir(exist_ok=True)
    env = dict(
        os.environ,
        STARPU_HOME=str(home),
        STARPU_NCPU="1",
        STARPU_NCUDA="0",
        STARPU_NOPENCL="0",
        STARPU_SILENT="1",
    )
    run_lines([program, 1], env)  # it calibrates the machine once
    return lambda: run_lines([program, 1], env)[0]["ns"]


def bench_fetch(options):
    program = [options.build / "bench/bench-fetch", "--mode"]
    starpu = starpu_rounds(options)
    hits = []
    for number in range(options.pairs):
        ours = run_lines([*program, "hit", "--rounds", 1])[0]["ns"]
        hits.append((ours, starpu() if starpu else FETCH_HIT_LIMIT_NS))
        say(f"  hit {number + 1}/{options.pairs}: {ours:.1f} ns, reference {hits[-1][1]:.0f} ns")
    results = [
        result(
            "fetch.hit",
            median(ours for ours, _ in hits),
            "ns",
            "StarPU acquire + release" if starpu else f"the limit, {FETCH_HIT_LIMIT_NS} ns",
            [theirs / ours for ours, theirs in hits],
            reference_value=median(theirs for _, theirs in hits),
        )
    ]
    say("  threads")
    threads = run_lines([*program, "threads", "--rounds", options.pairs])
    results.append(
        result(
            "fetch.threads",
            median(line["two_per_s"] for line in threads) / 1e6,
            "M/s by two threads",
            "one thread",
            [line["two_per_s"] / line["one_per_s"] for line in threads],
            reference_value=median(line["one_per_s"] for line in threads) / 1e6,
        )
    )
    results.append(processes_result(program, options.pairs))
    say("  scale")
    results.append(scale_result(run_lines([*program, "scale", "--rounds", options.pairs])))
    return results


def processes_result(program, pairs):
    """What the machine gives to two processes that share nothing: the limit of fetch.threads."""
    def rate(count):
        command = [str(part) for part in (*program, "hit", "--rounds", 1)]
        running = [
            subprocess.Popen(["taskset", "-c", str(core), *command], stdout=subprocess.PIPE)
            for core in range(count)
        ]
        texts = [process.communicate()[0] for process in running]
        if any(process.returncode != 0 for process in running):
            raise BenchError("bench-fetch failed beside another one")
        return sum(1e3 / json.loads(text.splitlines()[0])["ns"] for text in texts)

    pairs_measured = [(rate(1), rate(2)) for _ in range(pairs)]
    return result(
        "fetch.processes",
        median(two for _, two in pairs_measured),
        "M/s by two processes",
        "one process",
        [two / one for one, two in pairs_measured],
        reference_value=median(one for one, _ in pairs_measured),
    )


def scale_result(lines):
    parts = ("create_ns", "first_ns", "hit_ns", "destroy_ns")
    life = [sum(line[part] for part in parts) for line in lines]
    few, many = lines[0::2], lines[1::2]
    return result(
        "fetch.scale",
        median(life[1::2]),
        "ns a tensor's life of 100,000",
        "1,000 tensors",
        [one / other for one, other in zip(life[0::2], life[1::2])],
        reference_value=median(life[0::2]),
        parts={part: median(line[part] for line in many) for part in parts},
        reference_parts={part: median(line[part] for line in few) for part in parts},
    )


# ------------------------------------------------------------------------------------- update --


def usual(words):
    return Counter(words).most_common(1)[0][0]


def bench_update(options):
    program = [options.build / "bench/bench-update", "--mode"]
    say("  memory")
    lines = run_lines([*program, "memory", "--rounds", options.pairs])
    moved = (UPDATE_READ + UPDATE_WRITE) * lines[0]["parameters"]
    results = [
        result(
            "update.memory",
            median(moved / line["step_seconds"] for line in lines) / GB,
            "GB/s",
            f"plain loop, {lines[0]['threads']} threads",
            [line["plain_seconds"] / line["step_seconds"] for line in lines],
            reference_value=median(moved / line["plain_seconds"] for line in lines) / GB,
        )
    ]
    host_bytes = options.bytes // 8
    need_space(options.nvme, options.bytes + 7 * host_bytes + 256 * MIB)
    pairs = []
    command = [*program, "nvme", "--dir", options.nvme, "--host-bytes", host_bytes]
    with Fio(options.nvme, options.bytes, MIX_READ_PERCENT) as fio, Program(command) as ours:
        ours.ask("step")  # the first one also makes the states
        best = fio.best_setting("rw", FIO_GRID)
        for number in range(options.pairs):
            rate, step = in_turn(number, lambda: fio.run("rw", *best), lambda: ours.ask("step"))
            disk_seconds = (UPDATE_READ + UPDATE_WRITE) * step["parameters"] / rate
            bound = max(disk_seconds, step["memory_seconds"])
            pairs.append((step, bound, "disk" if bound == disk_seconds else "memory"))
            say(
                f"  nvme {number + 1}/{options.pairs}: {step['seconds']:.2f} s, "
                f"bound {bound:.2f} s by {pairs[-1][2]}"
            )
    necessary = (UPDATE_READ + UPDATE_WRITE) * pairs[0][0]["parameters"]
    results.append(
        result(
            "update.nvme",
            median(necessary / step["seconds"] for step, _, _ in pairs) / GB,
            "GB/s",
            f"bound by {usual(by for _, _, by in pairs)}, fio mixed {fio.named(*best)}",
            [bound / step["seconds"] for step, bound, _ in pairs],
            reference_value=median(necessary / bound for _, bound, _ in pairs) / GB,
            bytes_moved_over_necessary=median(
                (step["read_bytes"] + step["written_bytes"]) / necessary for step, _, _ in pairs
            ),
        )
    )
    results.append(bench_split(program, options))
    return results


def bench_split(program, options):
    """Bytes that a step of bf16 parameters writes, counted by the library."""
    (line,) = run_lines([*program, "split", "--dir", options.nvme])
    if not line["same"]:
        raise BenchError("masters in parts have other bits than whole ones")
    whole, parts = (line[name] / line["parameters"] for name in ("whole_bytes", "parts_bytes"))
    return result(
        "update.split",
        parts,
        "bytes a parameter",
        "whole masters",
        [whole / parts],
        reference_value=whole,
    )


# -------------------------------------------------------------------------------------- train --


def train_once(options, folder, arguments):
    """Run the trainer; its JSON, with the kernel's figure for the most memory it had."""
    out = Path(folder) / "train.json"
    command = [str(options.build / "examples/train_gpt/train_gpt"), "--quiet", "--json", str(out)]
    # Not subprocess.run: the peak is to be this child's own.
    with subprocess.Popen(command + arguments, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise BenchError(f"train_gpt ended with status {process.returncode}")
    report = json.loads(out.read_text())
    report["kernel_peak_bytes"] = usage.ru_maxrss * 1024
    return report


def link_bound_seconds(report, disk_rate):
    """Seconds a step its slowest link needs: the drive's by fio, others by their own measure."""
    disk_bytes = sum(l["bytes_per_step"] for n, l in report["links"].items() if "nvme" in n)
    others = [l["seconds_per_step"] for n, l in report["links"].items() if "nvme" not in n]
    return max([disk_bytes / disk_rate, *others])


def bench_train(options):
    steps = ["--steps", "200", "--stop-after", str(options.train_steps)]
    tiered_arguments = [*steps, "--nvme", str(options.nvme)]
    need_space(options.nvme, options.bytes + 1024 * MIB)
    pairs = []
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        with Fio(options.nvme, options.bytes) as fio:
            best = fio.best_setting("rw", FIO_GRID)
            for number in range(options.train_pairs):
                memory, tiered = in_turn(
                    number,
                    lambda: train_once(options, folder, [*steps, "--in-memory"]),
                    lambda: train_once(options, folder, tiered_arguments),
                )
                bound = max(
                    memory["step_seconds"], link_bound_seconds(tiered, fio.run("rw", *best))
                )
                by = "compute" if bound == memory["step_seconds"] else "links"
                pairs.append((memory, tiered, bound, by))
                say(
                    f"  train {number + 1}/{options.train_pairs}: "
                    f"{tiered['step_seconds']:.2f} s a step, bound {bound:.2f} s by {by}"
                )
    return [
        result(
            "train.overlap",
            median(tiered["step_seconds"] for _, tiered, _, _ in pairs),
            "s a step",
            f"bound by {usual(by for _, _, _, by in pairs)}",
            [bound / tiered["step_seconds"] for _, tiered, bound, _ in pairs],
            reference_value=median(bound for _, _, bound, _ in pairs),
            in_memory_seconds=median(memory["step_seconds"] for memory, _, _, _ in pairs),
        ),
        result(
            "train.budget",
            max(tiered["kernel_peak_bytes"] for _, tiered, _, _ in pairs) / MIB,
            "MiB peak",
            "budgets + activations + 48 MiB",
            [t["resident_limit_bytes"] / t["kernel_peak_bytes"] for _, t, _, _ in pairs],
            reference_value=pairs[0][1]["resident_limit_bytes"] / MIB,
        ),
    ]


# ------------------------------------------------------------------------------------- python --


def bench_python(options):
    """The package of this tree over the library of this build; Debian's python3."""
    root = Path(__file__).resolve().parent.parent
    env = dict(
        os.environ,
        PYTHONPATH=str(root / "bindings/python"),
        STEPWELL_LIBRARY=str(next(options.build.resolve().glob("libstepwell.so.?"))),
    )
    command = [sys.executable, "-B", root / "bench/python_bench.py", options.pairs]
    lines = run_lines(command, env)
    results = []
    for name, limit in PYTHON_LIMITS_NS.items():
        taken = [line["ns"] for line in lines if line["name"] == name]
        results.append(
            result(
                name,
                median(taken),
                "ns",
                f"the limit, {limit} ns",
                [limit / ns for ns in taken],
                reference_value=limit,
            )
        )
    return results


# ----------------------------------------------------------------------------------- simulate --


def simulated_s(options, model, ranks, machine="data/machines/dgx-2-v100.json", exposed=True):
    """Processor time of one simulation; it has one thread."""
    before = os.times()
    command = [options.build / "bindings/cli/stepwell", "simulate", model, machine]
    run_text([*command, "--ranks", ranks, *["--exposed-update"] * exposed, "--json"])
    after = os.times()
    return after.children_user + after.children_system - before.children_user \
        - before.children_system


def n_log_n(factor, n):
    """What an input `factor` times as large may cost."""
    return factor * math.log(factor * n) / math.log(n)


def overflow_growth(options, folder):
    """Of states that overflow the host: layers, and the host's memory with them, doubled twice."""
    model = json.loads(Path("data/models/gpt-13b.json").read_text(encoding="utf-8"))
    node = json.loads(Path("data/machines/dgx-a100.json").read_text(encoding="utf-8"))
    times = []
    for layers in OVERFLOW_LAYERS:
        model["transformer"]["layers"] = layers
        node["host"]["memory"] = f"{2 * layers // 600} TB"
        node["nvme"]["capacity"] = f"{30 * layers // 600} TB"
        files = Path(folder) / f"model-{layers}.json", Path(folder) / f"machine-{layers}.json"
        for file, content in zip(files, (model, node)):
            file.write_text(json.dumps(content), encoding="utf-8")
        times.append(simulated_s(options, files[0], 8, files[1], exposed=False))
    return times


def bench_simulate(options):
    whole = json.loads(Path("data/models/paper-10t.json").read_text(encoding="utf-8"))
    layers = whole["transformer"]["layers"]
    half = {**whole, "transformer": {**whole["transformer"], "layers": layers // 2}}
    # Of tensors x ranks: twice the layers and twice the ranks, and twice the layers alone.
    allowed = n_log_n(4, layers // 2 * 12 * 7 * 256)
    allowed_over = n_log_n(2, OVERFLOW_LAYERS[-2] * 12 * 8)
    times, growths, over = [], [], []
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        model = Path(folder) / "half.json"
        model.write_text(json.dumps(half), encoding="utf-8")
        for number in range(min(options.pairs, 3)):
            small = simulated_s(options, model, 256)
            times.append(simulated_s(options, "data/models/paper-10t.json", 512))
            growths.append(times[-1] / small)
            say(f"  {number + 1}: {times[-1]:.1f} s, {growths[-1]:.2f} times a quarter of it")
            *_, quarter_s, half_s, whole_s = overflow_growth(options, folder)
            over.append(whole_s / half_s)
            say(f"     over the host: {whole_s:.1f} s, {over[-1]:.2f} times half of it, "
                f"which is {half_s / quarter_s:.2f} times a quarter")
    return [
        result(
            "simulate.10t_512",
            median(times),
            "s",
            f"the limit, {SIMULATE_LIMIT_S} s",
            [SIMULATE_LIMIT_S / time for time in times],
            reference_value=SIMULATE_LIMIT_S,
        ),
        result(
            "simulate.growth",
            median(growths),
            "x",
            "n log n in tensors x ranks, four times as many",
            [allowed / growth for growth in growths],
            reference_value=allowed,
        ),
        result(
            "simulate.overflow",
            median(over),
            "x",
            "n log n in tensors, the last doubling, beyond the host's memory",
            [allowed_over / growth for growth in over],
            reference_value=allowed_over,
        ),
    ]


# ------------------------------------------------------------------------------------- policy --


def bench_policy(options):
    """In virtual time: bytes and hits are counted, so every run says the same of them."""
    program = [options.build / "tests/policies/bench-policy", *POLICY_SEEDS]
    say(f"  traces of seeds {POLICY_SEEDS[0]} to {POLICY_SEEDS[1]}; none is below 10, as those were"
        " tuned on")
    lines = run_lines(program)
    repeated = [line for line in lines if "our_bytes" in line]
    drawn = [line for line in lines if "hit" in line]
    speed = next(line for line in lines if "events" in line)
    for line in repeated:
        links = " ".join(
            f"{what} {ours / GB:.2f} of {best / GB:.2f} GB,"
            for what, ours, best in zip(("in", "out"), line["our_bytes"], line["best_bytes"])
        )
        say(
            f"  {line['trace']} {line['seed']} at {line['percent']} %: {links} "
            f"{line['ours']} of {line['best']}, last use {line['last_use_bytes'] / GB:.2f} GB"
        )
    for line in drawn:
        say(
            f"  {line['trace']} {line['seed']} at {line['percent']} %: hit {line['hit']:.3f}, "
            f"clairvoyant {line['clairvoyant']:.3f}, last use {line['last_use']:.3f}, "
            f"{line['ours']} of {line['best']}"
        )
    followed = [sum(line["followed_bytes"]) for line in repeated]
    our_bytes = sum(sum(line["our_bytes"]) for line in repeated)
    best_bytes = sum(sum(line["best_bytes"]) for line in repeated)
    return [
        policy_result("policy.bytes", our_bytes / GB, "GB over all links",
                      "the best single policy, over each link",
                      [line["ratio"] for line in repeated], reference_value=best_bytes / GB,
                      last_use=sum(line["last_use_bytes"] for line in repeated) / GB,
                      bound=sum(sum(line["bound_bytes"]) for line in repeated) / GB),
        policy_result("policy.followed", sum(followed) / GB, "GB over all links",
                      "the best single policy on demand, in all",
                      [sum(line["best_bytes"]) / mine for line, mine in zip(repeated, followed)],
                      reference_value=best_bytes / GB),
        policy_result("policy.online", len(drawn), "traces", "the best online policy",
                      [line["ratio"] for line in drawn], reference_value=len(drawn)),
        policy_result("policy.moe_hit", min(line["hit"] for line in drawn), "of bytes",
                      f"the limit, {MOE_HIT_LIMIT}",
                      [line["hit"] / MOE_HIT_LIMIT for line in drawn],
                      reference_value=MOE_HIT_LIMIT,
                      clairvoyant=median(line["clairvoyant"] for line in drawn),
                      last_use=median(line["last_use"] for line in drawn)),
        policy_result("policy.replay", speed["events"] / speed["seconds"] / 1e6, "M events/s",
                      f"the limit, {REPLAY_LIMIT / 1e6:.0f} M",
                      [speed["events"] / speed["seconds"] / REPLAY_LIMIT],
                      reference_value=REPLAY_LIMIT / 1e6),
        policy_stall(options),
    ]


def policy_stall(options):
    """Steps with what comes next brought ahead, where the bound is that of computing alone."""
    lines = run_lines([options.build / "tests/policies/bench-policy", "stall", *STALL_SEEDS])
    for line in lines:
        what = "of the bound" if line["overlaps"] else "of the bound, which is that of a link"
        say(
            f"  {line['trace']} {line['seed']} at {line['percent']} %, computing "
            f"{line['computing']:g} x: {100 * line['over']:.1f} % over {what}, {line['ours']}; "
            f"{100 * line['frugal_over']:.1f} % by bytes, {line['frugal']}"
        )
    possible = [line for line in lines if line["overlaps"]]
    stalls = [line["over"] for line in possible]
    return policy_result("policy.stall", 100 * max(stalls), "% over the bound, at worst",
                         f"the limit, {100 * STALL_LIMIT:g} %",
                         [(1 + STALL_LIMIT) / (1 + stall) for stall in stalls],
                         reference_value=100 * STALL_LIMIT,
                         median_percent=100 * median(stalls),
                         beyond=sum(stall > STALL_LIMIT for stall in stalls), of=len(stalls),
                         frugal_median_percent=100 * median(
                             line["frugal_over"] for line in possible),
                         frugal_beyond=sum(
                             line["frugal_over"] > STALL_LIMIT for line in possible))


def policy_result(name, value, unit, against, ratios, **details):
    """The headline is the smallest: it must hold on every trace."""
    return {**result(name, value, unit, against, ratios, **details), "ratio": min(ratios)}


# --------------------------------------------------------------------------------------- main --


def machine(directory):
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=False
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "file_system": kind.stdout.strip(),
    }


def print_table(results):
    rows = [
        (
            r["name"],
            f"{r['value']:.4g} {r['unit']}",
            f"{r['reference_value']:.4g}",
            r["against"],
            three_digits(r["ratio"]),
            f"{three_digits(r['spread'][0])}..{three_digits(r['spread'][1])}",
        )
        for r in results
    ]
    rows.insert(0, ("bench", "value", "reference", "against", "ratio", "spread of pairs"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    say("")
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    for r in results:
        if "cases" in r:
            cases = ", ".join(f"{case}: {ratio}" for case, ratio in r["cases"].items())
            say(f"{r['name']}, medians: {cases}")
        if "first_pass" in r:
            say(
                f"first-pass writes, into reserved space: {r['first_pass']:.2f} GB/s, "
                f"fio {r['reference_first_pass']:.2f} GB/s"
            )
        if "beside_itself" in r:
            least, most = r["beside_itself"][1:]
            say(
                f"{r['name']}: the reference beside itself, measured between the pairs: "
                f"{r['beside_itself'][0]:.3f}, {least:.3f}..{most:.3f}"
            )


def parse(arguments):
    parser = argparse.ArgumentParser(prog="dev bench", description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--build", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--nvme", type=Path, help="an existing directory on the drive to measure")
    parser.add_argument("--json", type=Path, help="write the results there too")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs (7)")
    parser.add_argument("--bytes", type=int, default=2 << 30, help="working set on the drive")
    parser.add_argument("--train-pairs", type=int, default=7, help="of runs of train_gpt (7)")
    parser.add_argument("--train-steps", type=int, default=16, help="of each of these runs (16)")
    parser.add_argument("--torch-pairs", type=int, default=5, help="rounds of training (5)")
    parser.add_argument("--torch-steps", type=int, default=4, help="of each of these runs (4)")
    parser.add_argument("--torch-small", action="store_true", help="tiny: whether it works")
    parser.add_argument("--only", action="append", choices=TORCH_ROWS, metavar="ROW",
                        help=f"of torch, again for another: {', '.join(TORCH_ROWS)}")
    parser.add_argument("--torch-python", type=Path,
                        help="a Python with PyTorch (build/torch/bin/python3)")
    options = parser.parse_args(arguments)
    for group in options.groups:
        if group not in GROUPS:
            parser.error(f"no bench {group}; there are {', '.join(GROUPS)}")
    least = min(options.pairs, options.train_pairs, options.torch_pairs, options.torch_steps)
    if least < 1 or options.train_steps < 5:
        parser.error("at least one pair, and five steps of training, of which two warm up")
    if options.nvme and not options.nvme.is_dir():
        parser.error(f"{options.nvme} is not a directory")
    return options


def main(arguments):
    options = parse(arguments)
    use_widest_kernels()
    own = None
    if options.nvme is None:
        own = options.nvme = options.build.resolve() / "bench-nvme"
        own.mkdir(exist_ok=True)
    functions = {
        "nvme": bench_nvme,
        "fetch": bench_fetch,
        "update": bench_update,
        "train": bench_train,
        "python": bench_python,
        "tune": bench_tune,
        "policy": bench_policy,
        "predict": bench_predict,
        "simulate": bench_simulate,
        "ranks": bench_ranks,
        "commit": bench_commit,
        "step": bench_step,
        "torch": bench_torch,
    }
    results = []
    try:
        for group in options.groups or GROUPS:
            say(f"== bench {group}")
            results += functions[group](options)
        about = machine(options.nvme)
    except BenchError as error:
        say(f"bench: {error}")
        return 1
    finally:
        if own:
            shutil.rmtree(own, ignore_errors=True)
    print_table(results)
    say("ratio: ours over the reference, median of the pairs; of policy.* the least, of ranks.* "
        "that of the worst case")
    if options.json:
        taken = {name: getattr(options, name) for name in (
            "pairs", "train_pairs", "train_steps", "torch_pairs", "torch_steps", "torch_small",
            "only")}
        taken |= {"groups": options.groups or list(GROUPS), "bytes": options.bytes}
        text = json.dumps({"results": results, "taken": taken, "machine": about}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
