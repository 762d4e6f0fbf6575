# SPDX-License-Identifier: Apache-2.0
"""bench torch: stepwell.torch beside plain PyTorch, what it must move, and what else offloads.

Each run is a process of bench/torch_bench.py. The reference is plain PyTorch with AdamW's fastest
form on this machine.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench_tools import MIB, BenchError, Fio, Program, in_turn, need_space, result, say

ROOT = Path(__file__).resolve().parent.parent
FORMS = ("fused", "foreach", "loop")
FIO_GRID = [(block, depth) for block in ("1m", "2m") for depth in (4, 16)]
HOOKS_LIMIT_US = 30
HOOK_ROUNDS = 20
LIMIT_MARGIN = 1.1  # over the peak of ours: it is not the same in each run
MEMORY_MARGIN = 1.05
INIT_LIMIT = 512 * MIB  # beyond the interpreter: budget and activations
INIT_ROUNDS = 3         # of saving and loading
INIT_SPACE = 19 << 30   # of the drive: parameters, gradients, files, fio's
# By itself glibc's heap keeps most of the gradients that were freed, in pieces that fit no other
# request, in plain torch as in ours. Where memory is measured they are maps of their own: that
# costs 0.4 s of system time in a step of plain torch, so not where time is.
LEAN = {"MALLOC_MMAP_THRESHOLD_": str(256 << 10)}
LORA_LIMIT = 1126 * MIB  # the interpreter among it
LORA_PAIRS = 2          # at most: one of 1.1e9 parameters takes a minute or two
# Rows, by the runs that they are made of. --only takes the names. DeepSpeed's is not taken
# otherwise: it compiles for minutes when it is first started.
ROWS = ("resident", "nvme", "memory", "hooks", "equal", "peers", "init", "lora", "deepspeed")
SECONDS_MAX = 900  # of one process: DeepSpeed's first one compiles
# Peers that read by the page cache, what of ours each is beside, and what it is. Both have the
# memory that ours takes: without a limit the page cache holds all of their files.
LIMITED = {
    "mapped": ("nvme", "parameters and moments in torch.from_file maps"),
    "accelerate": ("forward", "accelerate.disk_offload, a forward pass"),
}
DEEPSPEED = {"nvme": ("nvme", "deepspeed-nvme"), "host": ("resident", "deepspeed-host")}


# Of memory, and which of its files has the limit: of version 1, of version 2.
MEMORY_GROUPS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
                 (Path("/sys/fs/cgroup"), "memory.max"))


@contextlib.contextmanager
def memory_limited(limit):
    """A control group with a limit of resident memory, page cache included."""
    for root, name in MEMORY_GROUPS:
        group = root / f"stepwell-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            refused = error
            continue
        try:
            if (group / name).exists():
                (group / name).write_text(str(limit), encoding="ascii")
                yield group
                return
            refused = FileNotFoundError(f"{group / name} is absent")
        finally:
            group.rmdir()
    raise BenchError(f"no control group limits memory here: {refused}")


class Runs:
    """Starts torch_bench.py in the environment that has PyTorch."""

    def __init__(self, options):
        self.options = options
        build = options.build.resolve()
        self.python = options.torch_python or build.parent / "torch/bin/python3"
        self.env = dict(
            os.environ,
            PYTHONPATH=str(ROOT / "bindings/python"),
            STEPWELL_LIBRARY=str(next(build.glob("libstepwell.so.?"))),
        )

    def lacks(self, module):
        done = subprocess.run([str(self.python), "-c", f"import {module}"], capture_output=True,
                              env=self.env, check=False) if Path(self.python).exists() else None
        return done is None or done.returncode != 0

    def command(self, what, steps):
        command = [self.python, "-B", ROOT / "bench/torch_bench.py", what,
                   "--dir", self.options.nvme.resolve(), "--steps", steps]
        return command + (["--small"] if self.options.torch_small else [])

    def lines(self, what, steps, env=(), group=None):
        command = self.command(what, steps)
        if group:
            command[:0] = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', group / "cgroup.procs"]
        try:
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                                  env={**self.env, **dict(env)}, timeout=SECONDS_MAX, check=False)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"torch_bench.py {what} did not end in {SECONDS_MAX} s") from error
        if done.returncode != 0:
            raise BenchError(f"torch_bench.py {what}: {done.stderr.strip()[-800:]}")
        # Peers print lines of their own.
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def step(self, what, group=None):
        return self.lines(what, self.options.torch_steps, group=group)[-1]

    def lean(self, what):
        return self.lines(what, 1, LEAN)[-1]


def bench_torch(options):
    runs = Runs(options)
    if runs.lacks("torch"):
        say(f"  skipped: {runs.python} has no PyTorch (./dev setup --torch)")
        return []
    wanted = set(options.only or set(ROWS) - {"deepspeed"})
    results = []
    if wanted & {"resident", "nvme", "memory", "peers"}:
        results += training_results(runs, wanted)
    results += [measure(runs) for row, measure in (("hooks", hooks_result), ("equal", equal_result))
                if row in wanted]
    for row, measure in (("init", init_results), ("lora", lora_results),
                         ("deepspeed", deepspeed_results)):
        results += measure(runs) if row in wanted else []
    return results


def training_results(runs, wanted):
    need_space(runs.options.nvme, runs.options.bytes + 3 * 1024 * MIB)
    forms = {form: runs.step(f"plain-{form}") for form in FORMS}
    fastest = min(forms, key=lambda form: forms[form]["step_seconds"])
    say("  plain AdamW: " + ", ".join(
        f"{form} {found['step_seconds']:.3f} s a step" for form, found in forms.items()))
    plains, residents, offloads = rounds(runs, fastest)
    nvmes = [run for run, _ in offloads["nvme"]]
    results = {
        "resident": [resident_result(plains, residents, fastest)],
        "nvme": [nvme_result(what, found, plains) for what, found in offloads.items()],
    }
    if "memory" in wanted:
        results["memory"] = [memory_result(
            [runs.lean("nvme") for _ in range(min(runs.options.torch_pairs, 3))],
            plains, runs.lean("activations")["bytes"], nvmes)]
    peers = peer_results(runs, residents) if "peers" in wanted else []
    return [one for row, found in results.items() if row in wanted for one in found] + peers


def drive_seconds(fio, setting, read, written):
    """What fio needs for as many bytes, read and written at once."""
    fio.mix_read_percent = min(99, max(1, round(100 * read / max(read + written, 1))))
    return (read + written) / fio.run("rw", *setting)


def new_file_seconds(fio, setting, read, written):
    """The same if a new file is written, as a save does."""
    return fio.new_file_seconds(read, written, *setting)


def rounds(runs, form):
    """Plain, resident and offloaded in turn, with fio after each of the last: a list of each, of
    these with their bounds."""
    options = runs.options
    plains, residents, offloads = [], [], {"nvme": [], "nvme-in-backward": []}
    with Fio(options.nvme, options.bytes) as fio:
        best = fio.best_setting("rw", FIO_GRID)
        for number in range(options.torch_pairs):
            plain, resident = in_turn(number, lambda: runs.step(f"plain-{form}"),
                                      lambda: runs.step("resident"))
            compute = plain["step_seconds"]
            say(f"  {number + 1}/{options.torch_pairs}: plain {compute:.3f} s a step, resident "
                f"{resident['step_seconds']:.3f}")
            plains.append(plain)
            residents.append(resident)
            for what, found in offloads.items():
                run = runs.step(what)
                read, written = run["read_bytes_per_step"], run["write_bytes_per_step"]
                drive = drive_seconds(fio, best, read, written)
                found.append((run, {"compute": compute, "drive": drive, "moved": read + written}))
                say(f"  {what} {run['step_seconds']:.3f} s; bounds: compute {compute:.3f}, drive "
                    f"{drive:.3f} ({(read + written) / MIB:.0f} MiB)")
    return plains, residents, offloads


def seconds_of(found):
    return median(one["step_seconds"] for one in found)


def resident_result(plains, residents, form):
    return result(
        "torch.resident",
        seconds_of(residents),
        "s a step",
        f"plain torch, AdamW {form}",
        [plain["step_seconds"] / ours["step_seconds"] for plain, ours in zip(plains, residents)],
        reference_value=seconds_of(plains),
        parameters=plains[0]["parameters"],
    )


def nvme_result(what, found, plains):
    nvmes, bounds = zip(*found)
    by = ["compute" if bound["compute"] > bound["drive"] else "drive" for bound in bounds]
    states, budget = plains[0]["state_bytes"], nvmes[0]["budget_bytes"]
    # Gradients need not move. Of parameters and moments what the budget does not hold is read and
    # written in every step at least.
    least = 2 * max(0, 3 * states // 4 - budget)
    return result(
        f"torch.{what.replace('-', '_')}",
        seconds_of(nvmes),
        "s a step",
        f"bound by {max(set(by), key=by.count)}",
        [max(bound["compute"], bound["drive"]) / ours["step_seconds"]
         for bound, ours in zip(bounds, nvmes)],
        reference_value=median(max(bound["compute"], bound["drive"]) for bound in bounds),
        compute_seconds=median(bound["compute"] for bound in bounds),
        drive_seconds=median(bound["drive"] for bound in bounds),
        bytes_per_step=median(bound["moved"] for bound in bounds),
        bytes_moved_over_least=median(bound["moved"] for bound in bounds) / max(least, 1),
        states_over_budget=states / budget,
        units=nvmes[0]["units"],
    )


def memory_result(nvmes, plains, activations, timed):
    """timed: ours with the heap as it is. The interpreter and PyTorch itself are in the
    activations, as they are in ours."""
    allowed = MEMORY_MARGIN * (nvmes[0]["budget_bytes"] + activations)
    return result(
        "torch.memory",
        max(ours["peak_bytes"] for ours in nvmes) / MIB,
        "MiB peak",
        "budget + activations + 5 %",
        [allowed / ours["peak_bytes"] for ours in nvmes],
        reference_value=allowed / MIB,
        budget_mib=nvmes[0]["budget_bytes"] / MIB,
        activations_mib=activations / MIB,
        peak_of_steps_mib=max(ours["steps_peak_bytes"] for ours in nvmes) / MIB,
        plain_peak_mib=median(plain["peak_bytes"] for plain in plains) / MIB,
        peak_as_timed_mib=max(ours["peak_bytes"] for ours in timed) / MIB,
    )


def hooks_result(runs):
    lines = runs.lines("hooks", HOOK_ROUNDS)
    return result(
        "torch.hooks",
        median(line["us_per_unit"] for line in lines),
        "us a unit and step",
        f"the limit, {HOOKS_LIMIT_US} us",
        [HOOKS_LIMIT_US / line["us_per_unit"] for line in lines],
        reference_value=HOOKS_LIMIT_US,
        plain_us=median(line["plain_us_per_unit"] for line in lines),
    )


def equal_result(runs):
    lines = runs.lines("equal", 1)
    for line in lines:
        say(f"  {line['model']}: {line['equal']} of {line['steps']} losses are equal, the largest "
            f"relative difference is {line['relative_difference']:.1e}")
    return result(
        "torch.equal",
        sum(line["equal"] for line in lines),
        "steps with equal losses",
        "plain torch, bit for bit, 20 steps of each model",
        [line["equal"] / line["steps"] for line in lines],
        reference_value=sum(line["steps"] for line in lines),
        models={line["model"]: line["equal"] for line in lines},
        relative_difference=max(line["relative_difference"] for line in lines),
    )


def limited_result(runs, peer):
    beside, text = LIMITED[peer]
    limit = int(LIMIT_MARGIN * runs.step(beside)["peak_bytes"])
    try:
        with memory_limited(limit) as group:
            ours, theirs = zip(*(
                in_turn(number, lambda: runs.step(beside, group), lambda: runs.step(peer, group))
                for number in range(runs.options.torch_pairs)))
    except BenchError as error:
        say(f"  {peer}: skipped; {error}")
        return []
    return [result(
        f"torch.peers.{peer}",
        seconds_of(ours),
        "s a step",
        f"{text}; ours {beside}; both in as much memory",
        [their["step_seconds"] / our["step_seconds"] for our, their in zip(ours, theirs)],
        reference_value=seconds_of(theirs),
        limit_mib=limit / MIB,
    )]


def init_results(runs):
    """A model of 4 GB under 192 MiB: its memory, and files of safetensors beside the drive."""
    options = runs.options
    need_space(options.nvme, options.bytes + (INIT_SPACE if not options.torch_small else 0))
    ratios = {"save": [], "load": []}
    found = {"save": [], "load": []}
    seconds = {"save": new_file_seconds, "load": drive_seconds}
    with Fio(options.nvme, options.bytes) as fio:
        best = {"load": fio.best_setting("rw", FIO_GRID)}
        with Program(runs.command("init", 1), {**runs.env, **LEAN}) as program:
            made, step = program.ask("make"), program.ask("step")
            saved = 4 * made["parameters"]
            best["save"] = min(FIO_GRID,
                               key=lambda each: fio.new_file_seconds(saved, saved, *each))
            say(f"  made {made['parameters'] / 1e9:.2f} G parameters in {made['seconds']:.1f} s, "
                f"a step took {step['seconds']:.1f} s")
            for number in range(INIT_ROUNDS):
                for what, answers in found.items():
                    ours = program.ask(what)
                    moved = ours["read_bytes"] + ours["write_bytes"]
                    drive = seconds[what](fio, best[what], ours["read_bytes"], ours["write_bytes"])
                    answers.append({**ours, "moved": moved, "drive": drive})
                    ratios[what].append(drive / ours["seconds"])
                    say(f"  {what} {number + 1}/{INIT_ROUNDS}: {ours['seconds']:.2f} s, drive "
                        f"{drive:.2f} s ({moved / MIB:.0f} MiB), {ours['grown_bytes'] / MIB:.0f} "
                        "MiB beyond the interpreter's")
    each = {"make": [made], "step": [step], **found}
    grown = {what: max(one["grown_bytes"] for one in answers) / MIB
             for what, answers in each.items()}
    results = [result(
        "torch.init", max(grown.values()), "MiB peak", "the limit, beyond the interpreter's",
        [INIT_LIMIT / MIB / max(grown.values())], reference_value=INIT_LIMIT / MIB,
        peaks_mib=grown, budget_mib=made["budget_bytes"] / MIB, parameters=made["parameters"],
        make_seconds=made["seconds"], make_bytes=made["read_bytes"] + made["write_bytes"],
        train_seconds=step["seconds"], train_bytes=step["read_bytes"] + step["write_bytes"])]
    return results + [result(
        f"torch.{what}", median(one["seconds"] for one in answers), "s",
        f"fio for the bytes of drive and file, {fio.named(*best[what])}", ratios[what],
        reference_value=median(one["drive"] for one in answers),
        bytes_moved=median(one["moved"] for one in answers)) for what, answers in found.items()]


def lora_results(runs):
    """Adapters of a frozen base on the drive, beside the same in plain torch."""
    options = runs.options
    missing = [module for module in ("transformers", "peft") if runs.lacks(module)]
    if missing:
        say(f"  lora: skipped; {' and '.join(missing)} not installed "
            f"({runs.python} -m pip install {' '.join(missing)})")
        return []
    need_space(options.nvme, options.bytes + 4096 * MIB)
    plains, ours, bounds = [], [], []
    pairs = min(options.torch_pairs, LORA_PAIRS)
    with Fio(options.nvme, options.bytes) as fio:
        best = fio.best_setting("rw", FIO_GRID)
        for number in range(pairs):
            plain, mine = in_turn(number, lambda: runs.step("lora-plain"),
                                  lambda: runs.step("lora"))
            drive = drive_seconds(fio, best, mine["read_bytes_per_step"],
                                  mine["write_bytes_per_step"])
            say(f"  lora {number + 1}/{pairs}: plain {plain['step_seconds']:.2f} s a step and "
                f"{plain['peak_bytes'] / MIB:.0f} MiB, ours {mine['step_seconds']:.2f} s and "
                f"{mine['peak_bytes'] / MIB:.0f} MiB, drive {drive:.2f} s")
            plains.append(plain)
            ours.append(mine)
            bounds.append(max(plain["step_seconds"], drive))
    peaks = [one["peak_bytes"] for one in ours]
    return [
        result("torch.lora", seconds_of(ours), "s a step", "the larger of plain torch and fio",
               [bound / one["step_seconds"] for bound, one in zip(bounds, ours)],
               reference_value=median(bounds), compute_seconds=seconds_of(plains),
               equal_loss=all(one["loss"] == plain["loss"] for one, plain in zip(ours, plains)),
               **{name: ours[0][name] for name in (
                   "read_bytes_per_step", "write_bytes_per_step", "base_bytes", "nvme_bytes",
                   "parameters", "adapter_parameters")}),
        result("torch.lora.memory", max(peaks) / MIB, "MiB peak", "the limit",
               [LORA_LIMIT / peak for peak in peaks], reference_value=LORA_LIMIT / MIB,
               peak_of_steps_mib=max(one["steps_peak_bytes"] for one in ours) / MIB,
               budget_mib=ours[0]["budget_bytes"] / MIB,
               plain_peak_mib=max(one["peak_bytes"] for one in plains) / MIB),
    ]


def deepspeed_results(runs):
    """Ours and ZeRO-3 in turn, on the drive and in memory."""
    if runs.lacks("deepspeed"):
        say(f"  deepspeed: skipped; it is not installed (DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "
            f"{runs.python} -m pip install deepspeed ninja)")
        return []
    need_space(runs.options.nvme, 4096 * MIB)
    results = []
    for place, sides in DEEPSPEED.items():
        pairs = [in_turn(number, *(lambda side=side: runs.step(side) for side in sides))
                 for number in range(runs.options.torch_pairs)]
        ours, theirs = zip(*pairs)
        apart = max(abs(one["loss"] - other["loss"]) / abs(one["loss"]) for one, other in pairs)
        peaks = [max(one["peak_bytes"] for one in side) / MIB for side in (ours, theirs)]
        say(f"  {place}: ours {seconds_of(ours):.3f} s a step and {peaks[0]:.0f} MiB, DeepSpeed "
            f"{seconds_of(theirs):.3f} s and {peaks[1]:.0f} MiB; losses differ by {apart:.1e}")
        results.append(result(
            f"torch.peers.deepspeed-{place}",
            seconds_of(ours),
            "s a step",
            f"DeepSpeed ZeRO-3, {place}; ours {sides[0]}",
            [their["step_seconds"] / our["step_seconds"] for our, their in pairs],
            reference_value=seconds_of(theirs),
            peak_mib=peaks[0],
            reference_peak_mib=peaks[1],
            relative_difference=apart,
        ))
    return results


def peer_results(runs, residents):
    theirs = runs.step("fsdp")
    found = [result(
        "torch.peers.fsdp",
        seconds_of(residents),
        "s a step",
        "FSDP2, CPUOffloadPolicy; ours resident",
        [theirs["step_seconds"] / one["step_seconds"] for one in residents],
        reference_value=theirs["step_seconds"],
        peak_mib=max(one["peak_bytes"] for one in residents) / MIB,
        reference_peak_mib=theirs["peak_bytes"] / MIB,
    )]
    for peer in LIMITED:
        if peer == "accelerate" and runs.lacks(peer):
            say(f"  {peer}: skipped; it is not installed ({runs.python} -m pip install {peer})")
            continue
        found += limited_result(runs, peer)
    return found


if __name__ == "__main__":
    sys.exit("this is a part of bench/bench.py: ./dev bench torch")
