# SPDX-License-Identifier: Apache-2.0
"""How well a running program's own plan foretells its steps: `./dev bench predict`."""

import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from bench_tools import MIB, BenchError, need_space, result, say

# Device and host budgets. The smallest are the demo's; the largest hold a good half of its states.
BUDGETS_MIB = (64, 96, 144)
RUNS = 5
STEPS = 14
STEPS_AFTER = 4  # at least, that the plan was there for
STEPS_LONG = 60  # of the run whose planning is weighed against its steps
PLAN_SHARE = 0.01  # of the time of steps, that planning may take of a processor


def run_of(options, folder, budget, steps=STEPS):
    """The runtime's report of one training run under these budgets."""
    report = Path(folder) / "run.json"
    command = [options.build / "examples/train_gpt/train_gpt", "--quiet", "--steps=200"]
    command += [f"--stop-after={steps}", f"--nvme={options.nvme}", f"--report={report}"]
    command += [f"--device-bytes={budget * MIB}", f"--host-bytes={budget * MIB}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise BenchError(f"train_gpt ended with status {done.returncode}")
    return json.loads(report.read_text())


def times_of(report):
    """(predicted, measured, least) seconds of a step; the latter two are medians of the run's last
    quarter, and no schedule of its steps is faster than the least."""
    plans = [plan for plan in report["plan"]["phases"] if plan["name"] == "train"]
    if not plans or "predicted" not in plans[0]:
        raise BenchError("the run ended before it had a plan")
    numbers = {phase["name"]: number for number, phase in enumerate(report["phases"])}
    steps = [s for s in report["history"]["steps"] if s["phase"] == numbers["train"]]
    last = [s for s in steps[-max(STEPS_AFTER, len(steps) // 4) :] if "least_ns" in s]
    if not last:
        raise BenchError("no step ended after the planner, which has the lowest priority, was "
                         "through: other work takes the processors")
    nanoseconds = (
        plans[0]["predicted"]["step_ns"],
        median(s["wall_ns"] for s in last),
        median(s["least_ns"] for s in last),
    )
    return tuple(ns / 1e9 for ns in nanoseconds)


def planning_share(report):
    """Processor time of the planner in that of all steps."""
    return report["plan"]["cpu_ns"] / sum(s["wall_ns"] for s in report["history"]["steps"])


def bench_predict(options):
    need_space(options.nvme, 2 * 1024 * MIB)
    worst = closest = None
    shares = []
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        for budget in BUDGETS_MIB:
            reports = [run_of(options, folder, budget) for _ in range(RUNS)]
            runs = [times_of(report) for report in reports]
            shares += [planning_share(report) for report in reports]
            ratios = [min(run[:2]) / max(run[:2]) for run in runs]
            gaps = [measured / bound for _, measured, bound in runs]
            expected, measured, bound = (median(run[i] for run in runs) for i in range(3))
            say(
                f"  {budget} MiB each: {expected:.2f} s expected, {measured:.2f} s measured, "
                f"min/max {median(ratios):.3f}, {min(ratios):.3f}..{max(ratios):.3f}; bound "
                f"{bound:.2f} s, measured over it {median(gaps):.3f}, {min(gaps):.3f}.."
                f"{max(gaps):.3f}"
            )
            if worst is None or median(ratios) < median(worst[1]):
                worst = (budget, ratios, expected, measured)
            if closest is None or median(gaps) < median(closest[1]):
                closest = (budget, gaps, measured, bound)
        long = planning_share(run_of(options, folder, BUDGETS_MIB[0], STEPS_LONG))
    short = 100 * max(shares)
    say(f"  planning: {100 * long:.2f} % of {STEPS_LONG} steps, {short:.2f} % of {STEPS}")
    budget, ratios, expected, measured = worst
    demo = result(
        "predict.demo",
        expected,
        "s a step",
        f"measured, budgets of {budget} MiB (the worst of {len(BUDGETS_MIB)})",
        ratios,
        reference_value=measured,
    )
    budget, gaps, measured, bound = closest
    over = result(
        "predict.bound",
        measured,
        "s a step",
        f"its lower bound, budgets of {budget} MiB (the closest of {len(BUDGETS_MIB)})",
        gaps,
        reference_value=bound,
    )
    cost = result(
        "plan.cost",
        100 * long,
        f"% of a processor over {STEPS_LONG} steps",
        f"the limit, {100 * PLAN_SHARE:g} %",
        [PLAN_SHARE / long],
        reference_value=100 * PLAN_SHARE,
        of_short_runs=[100 * share for share in shares],
    )
    return [demo, over, cost]
