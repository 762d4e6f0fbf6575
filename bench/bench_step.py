# SPDX-License-Identifier: Apache-2.0
"""bench step: training steps whose layers compute by sleeping, beside what bounds them."""
from contextlib import ExitStack
from statistics import median

from bench_tools import GB, MIB, Fio, Program, in_turn, need_space, result, say

FIO_GRID = [(block, depth) for block in ("1m", "2m") for depth in (4, 16)]
LAYERS, ELEMENTS = 24, 4 << 20
# Of a parameter, by its dtype: with its gradient and without. Its moments are in fp32, as is the
# master of one in bf16, which shares its upper half.
STATE_BYTES = {"f32": (16, 12), "bf16": (14, 12)}
BUDGETS = 4            # of the device's, that the states take
# The share of the time of computing that the drive needs for the bytes that have to move:
# parameters and moments beyond the budget, read and written.
DRIVE_SHARE = 0.5
# Of each what it does, the program's mode, in one step of how many the clip is reached, and the
# dtype of parameters and gradients.
MODES = {
    "pending": ("one step after backward, no norm", "pending", 0, "f32"),
    "backward": ("each parameter's step as its gradient is there", "backward", 0, "f32"),
    "clipped": ("one step after backward, with its norm", "clipped", 0, "f32"),
    "speculated": ("each parameter's step before the norm, which is never reached", "speculated",
                   0, "f32"),
    "clipped_tenth": ("one step after backward; every tenth reaches its norm", "clipped", 10,
                      "f32"),
    "speculated_tenth": ("each parameter's step before the norm; every tenth reaches it",
                         "speculated", 10, "f32"),
    "backward_bf16": ("as backward, in bf16", "backward", 0, "bf16"),
    "clipped_bf16": ("as clipped, in bf16", "clipped", 0, "bf16"),
    "speculated_bf16": ("as speculated, in bf16", "speculated", 0, "bf16"),
}
STEPS, WARM_UP = 10, 10


def bench_step(options):
    parameters = LAYERS * ELEMENTS
    need_space(options.nvme, options.bytes + 3 * len(MODES) * STATE_BYTES["f32"][0] * parameters)
    least = {dtype: 2 * (kept - whole / BUDGETS) * parameters
             for dtype, (whole, kept) in STATE_BYTES.items()}
    command = [options.build / "bench/bench-paced", "--dir", options.nvme, "--layers", LAYERS,
               "--elements", ELEMENTS, "--mode"]
    pairs = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        fio = stack.enter_context(Fio(options.nvme, options.bytes))
        best = fio.best_setting("rw", FIO_GRID)
        rates = [fio.run("rw", *best)]
        programs = {name: stack.enter_context(Program([*command, mode, "--clips", clips,
                                                      "--dtype", dtype]))
                    for name, (_, mode, clips, dtype) in MODES.items()}
        for number in range(options.pairs):
            # A drive that has written for a while may be slower than a rested one.
            drive_rate = median(rates)
            rates = []
            for mode, program in programs.items():
                compute = least[MODES[mode][-1]] / drive_rate / DRIVE_SHARE
                program.ask(f"pace {compute / (3 * LAYERS) * 1e6:.0f}")
                program.ask(f"step {WARM_UP}")
                rate, step = in_turn(number, lambda: fio.run("rw", *best),
                                     lambda: program.ask(f"step {STEPS}"))
                rates.append(rate)
                moved = step["read_bytes"] + step["written_bytes"]
                pairs[mode].append({**step, "moved": moved, "drive": moved / rate})
                say(f"  {mode} {number + 1}/{options.pairs}: {step['seconds']:.3f} s; bounds: "
                    f"compute {step['compute_seconds']:.3f}, drive {moved / rate:.3f} "
                    f"({moved / MIB:.0f} MiB)")
    return [step_result(mode, found, least[MODES[mode][-1]], fio.named(*best))
            for mode, found in pairs.items()]


def step_result(mode, found, least, drive):
    bounds = [max(one["compute_seconds"], one["drive"]) for one in found]
    return result(
        f"step.paced.{mode}",
        median(one["seconds"] for one in found),
        "s a step",
        f"the larger of computing and fio, {drive}; {MODES[mode][0]}",
        [bound / one["seconds"] for bound, one in zip(bounds, found)],
        reference_value=median(bounds),
        call_us=median(one["call_us"] for one in found),
        bytes_per_step=median(one["moved"] for one in found),
        bytes_moved_over_least=median(one["moved"] for one in found) / least,
        drive_gb_per_s=median(one["moved"] / one["drive"] for one in found) / GB,
    )
