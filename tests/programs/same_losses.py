#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training whose states are larger than its near tiers has the losses of the one in memory, also
in micro-batches, whose order changes what is read and no loss.

usage: same_losses.py TRAIN_GPT. The losses are hex floats and compared byte for byte.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
STEPS = 4
MODEL = ["--layers=3", "--width=256", "--heads=4", "--batch=4", "--sequence=32", "--seed=5",
         f"--steps={STEPS}", "--threads=2", "--quiet"]
# In blocks of 2 MiB: what one layer of this model needs at a time, and little more.
DEVICE_BYTES = 14 * MIB
HOST_BYTES = 12 * MIB
MICRO_BATCHES = 4
# Less than the parameters, 9.4 MiB: each pass over the layers reads most of them from the disk.
NEAR = [f"--device-bytes={6 * MIB}", f"--host-bytes={3 * MIB}", "--block-bytes=64KiB"]
# Gradients are rounded once more for each micro-batch, in each step.
ROUNDING = 2.0**-24


def train(program, folder, name, arguments):
    """The losses as bytes, and the report."""
    losses, report = folder / f"{name}.losses", folder / f"{name}.json"
    command = [program, *MODEL, f"--losses={losses}", f"--json={report}", *arguments]
    status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if status != 0:
        sys.exit(f"{' '.join(command)}\nended with status {status}")
    return losses.read_bytes(), json.loads(report.read_text())


def bytes_read(report):
    """Per step, from the disk."""
    return sum(report["links"][link]["bytes_per_step"] for link in ("nvme>host", "nvme>device"))


def check_micro_batches(program, folder, whole):
    """Both orders, in memory and tiered: the same losses, near those of the batch in one piece."""
    tiered = [f"--nvme={folder}", *NEAR]
    losses, read = {}, {}
    for order in ("horizontal", "vertical"):
        micro = [f"--micro-batches={MICRO_BATCHES}", f"--order={order}"]
        for name, arguments in {
            "memory": ["--in-memory"],
            "tiered": tiered,
            "early": [*tiered, "--speculate"],
            "activations": [*tiered, "--activations=memory"],
        }.items():
            run = f"{order}-{name}"
            losses[run], report = train(program, folder, run, [*micro, *arguments])
            if name == "tiered":
                read[order] = bytes_read(report)
    if len(set(losses.values())) != 1:
        sys.exit(f"losses differ: { {run: lines.split() for run, lines in losses.items()} }")
    (lines,) = set(losses.values())
    for step, (one, other) in enumerate(zip(whole.split(), lines.split()), start=1):
        ratio = float.fromhex(other.decode()) / float.fromhex(one.decode())
        if abs(ratio - 1) > step * MICRO_BATCHES * ROUNDING:
            sys.exit(f"step {step}: {one} for the batch, {other} in {MICRO_BATCHES} micro-batches")
    if read["vertical"] * 2 > read["horizontal"]:
        sys.exit(f"the vertical order reads {read} bytes per step: not half of the horizontal")
    print(f"and in {MICRO_BATCHES} micro-batches; read per step: {read}")


def check_refusals(program):
    """Numbers that no step can be computed with, each in a sentence that a person can read."""
    for option, text, why in [
        ("--learning-rate", "inf", "'inf' is no finite number above 0"),
        ("--learning-rate", "0", "'0' is no finite number above 0"),
        ("--clip", "nan", "'nan' is no finite number above 0"),
        ("--compute-seconds", "nan", "'nan' is no finite number of seconds, 0 or more"),
        ("--compute-seconds", "-1", "'-1' is no finite number of seconds, 0 or more"),
    ]:
        # The smallest number that there is comes before it, and is none of these.
        fine = "--clip" if option == "--learning-rate" else "--learning-rate"
        done = subprocess.run([program, f"{fine}=5e-324", f"{option}={text}", "--in-memory"],
                              check=False, capture_output=True, text=True)
        if done.returncode == 0 or f"{option}: {why}" not in done.stderr:
            sys.exit(f"{option}={text}: status {done.returncode}, {done.stderr}")


def main():
    program = os.path.abspath(sys.argv[1])
    check_refusals(program)
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        memory, report = train(program, folder, "memory", ["--in-memory"])
        if report["state_bytes"] <= DEVICE_BYTES + HOST_BYTES:
            sys.exit(f"{report['state_bytes']} bytes of states fit the near tiers: nothing shown")
        tiered, _ = train(program, folder, "tiered", [
            f"--nvme={folder}", f"--device-bytes={DEVICE_BYTES}", f"--host-bytes={HOST_BYTES}"])
        early, _ = train(program, folder, "early", [
            f"--nvme={folder}", f"--device-bytes={DEVICE_BYTES}", f"--host-bytes={HOST_BYTES}",
            "--speculate"])
        check_micro_batches(program, folder, memory)
    lines = memory.split()
    if len(lines) != STEPS or len(set(lines)) != STEPS:
        sys.exit(f"not {STEPS} different losses in memory: {lines}")
    if memory != tiered or memory != early:
        sys.exit(f"losses differ:\nin memory {lines}\ntiered    {tiered.split()}\n"
                 f"updated before the norm {early.split()}")
    print(f"{STEPS} losses are the same: {lines[0].decode()} .. {lines[-1].decode()}")


if __name__ == "__main__":
    main()
