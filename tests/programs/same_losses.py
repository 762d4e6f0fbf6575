#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training whose states are larger than its near tiers has the losses of the one in memory.

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
MODEL = ["--layers=3", "--width=256", "--heads=4", "--batch=2", "--sequence=32", "--seed=5",
         f"--steps={STEPS}", "--threads=2", "--quiet"]
# In blocks of 2 MiB: what one layer of this model needs at a time, and little more.
DEVICE_BYTES = 14 * MIB
HOST_BYTES = 12 * MIB


def train(program, folder, name, arguments):
    """The losses as bytes, and the report."""
    losses, report = folder / f"{name}.losses", folder / f"{name}.json"
    command = [program, *MODEL, f"--losses={losses}", f"--json={report}", *arguments]
    status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if status != 0:
        sys.exit(f"{' '.join(command)}\nended with status {status}")
    return losses.read_bytes(), json.loads(report.read_text())


def main():
    program = os.path.abspath(sys.argv[1])
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
    lines = memory.split()
    if len(lines) != STEPS or len(set(lines)) != STEPS:
        sys.exit(f"not {STEPS} different losses in memory: {lines}")
    if memory != tiered or memory != early:
        sys.exit(f"losses differ:\nin memory {lines}\ntiered    {tiered.split()}\n"
                 f"updated before the norm {early.split()}")
    print(f"{STEPS} losses are the same: {lines[0].decode()} .. {lines[-1].decode()}")


if __name__ == "__main__":
    main()
