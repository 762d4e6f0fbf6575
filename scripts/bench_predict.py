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


def run_of(options, folder, budget):
    """The runtime's report of one training run under these budgets."""
    report = Path(folder) / "run.json"
    command = [options.build / "examples/train_gpt/train_gpt", "--quiet", "--steps=200"]
    command += [f"--stop-after={STEPS}", f"--nvme={options.nvme}", f"--report={report}"]
    command += [f"--device-bytes={budget * MIB}", f"--host-bytes={budget * MIB}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise BenchError(f"train_gpt ended with status {done.returncode}")
    return json.loads(report.read_text())


def times_of(report):
    """(predicted, measured) seconds of a step; measured by the median of the run's last quarter."""
    plans = [plan for plan in report["plan"]["phases"] if plan["name"] == "train"]
    if not plans or "predicted" not in plans[0]:
        raise BenchError("the run ended before it had a plan")
    numbers = {phase["name"]: number for number, phase in enumerate(report["phases"])}
    steps = [s for s in report["history"]["steps"] if s["phase"] == numbers["train"]]
    last = steps[-max(STEPS_AFTER, len(steps) // 4) :]
    return plans[0]["predicted"]["step_ns"] / 1e9, median(s["wall_ns"] for s in last) / 1e9


def bench_predict(options):
    need_space(options.nvme, 2 * 1024 * MIB)
    worst = None
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        for budget in BUDGETS_MIB:
            pairs = [times_of(run_of(options, folder, budget)) for _ in range(RUNS)]
            ratios = [min(pair) / max(pair) for pair in pairs]
            expected, measured = (median(pair[i] for pair in pairs) for i in (0, 1))
            say(
                f"  {budget} MiB each: {expected:.2f} s expected, {measured:.2f} s measured, "
                f"min/max {median(ratios):.3f}, {min(ratios):.3f}..{max(ratios):.3f}"
            )
            if worst is None or median(ratios) < median(worst[1]):
                worst = (budget, ratios, expected, measured)
    budget, ratios, expected, measured = worst
    return [
        result(
            "predict.demo",
            expected,
            "s a step",
            f"measured, budgets of {budget} MiB (the worst of {len(BUDGETS_MIB)})",
            ratios,
            reference_value=measured,
        )
    ]
