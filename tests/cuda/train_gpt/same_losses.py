#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The GPT trains on a device: with room for a third of its states, and with NVMe below, it has the
losses of the one that fits, to the bit; and those of the processor within rounding. So do
micro-batches, in either order.

usage: same_losses.py TRAIN_GPT TRAIN_GPT_CUDA MODULE DOUBLE_DIRECTORY KERNELS. The device is the
double of CUDA's driver, which ends the program with a status of its own where an access was not
ordered behind the one before it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KIB = 1 << 10
STEPS = 4
MODEL = ["--layers=3", "--width=64", "--heads=4", "--batch=2", "--sequence=32", "--seed=5",
         f"--steps={STEPS}", "--threads=2", "--block-bytes=64KiB", "--quiet"]
# A third of the states, and less than half of them for the host tier.
DEVICE_BYTES = 832 * KIB
HOST_BYTES = 1216 * KIB
VIOLATION = 3
RUNS = {
    "fits": ["--in-memory"],
    "third": [f"--device-bytes={DEVICE_BYTES}", "--host-bytes=8MiB"],
    "nvme": [f"--device-bytes={DEVICE_BYTES}", f"--host-bytes={HOST_BYTES}", "--nvme"],
    "checkpoints-outside": [f"--device-bytes={DEVICE_BYTES}", "--host-bytes=8MiB",
                            "--activations=memory"],
}
MICRO = ["--micro-batches=2", f"--device-bytes={DEVICE_BYTES}"]
MICRO_RUNS = {
    "horizontal": [*MICRO, "--host-bytes=8MiB"],
    "vertical": [*MICRO, "--host-bytes=8MiB", "--order=vertical"],
    "vertical-nvme": [*MICRO, f"--host-bytes={HOST_BYTES}", "--order=vertical", "--nvme"],
    "vertical-outside": [*MICRO, "--host-bytes=8MiB", "--order=vertical", "--activations=memory"],
}
# Of a loss: sums run in other orders, and the processor has an exponential of its own.
TOLERANCE = 1e-5


def train(program, folder, name, arguments, environment=None):
    """(losses as text, report) of a run."""
    losses, report = folder / f"{name}.losses", folder / f"{name}.json"
    command = [program, *MODEL, f"--losses={losses}", f"--json={report}", *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment or os.environ
    )
    if done.returncode != 0:
        sys.exit(f"{name}: {' '.join(command)}\nended with status {done.returncode}\n{done.stderr}")
    if done.stderr:
        sys.exit(f"{name} said what was not expected: {done.stderr}")
    return losses.read_text().split(), json.loads(report.read_text())


def on_device(double, kernels, seed, delay_us):
    options = f"seed={seed},delay_us={delay_us},exit={VIOLATION}"
    return {
        **os.environ,
        "LD_LIBRARY_PATH": double,
        "STW_CUDA_DOUBLE": options,
        "STW_CUDA_DOUBLE_KERNELS": kernels,
    }


def check_near(processor, device):
    for step, (one, other) in enumerate(zip(processor, device)):
        wanted, found = float.fromhex(one), float.fromhex(other)
        if abs(wanted - found) > TOLERANCE * wanted:
            sys.exit(f"step {step + 1}: loss {found} on the device, {wanted} on the processor")


def main():
    processor, program, module, double, kernels = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="stepwell-gpt-", dir="/tmp") as name:
        folder = Path(name)
        # The build directory may be one that others write to; no module is loaded from there.
        safe = folder / Path(module).name
        shutil.copy(module, safe)
        safe.chmod(0o644)
        wanted, _ = train(processor, folder, "processor", ["--in-memory"])
        found = {}
        for number, (run, arguments) in enumerate({**RUNS, **MICRO_RUNS}.items()):
            arguments = [f"--nvme={folder}" if word == "--nvme" else word for word in arguments]
            environment = on_device(double, kernels, seed=number + 1, delay_us=20 * number)
            driver = f"--device-driver={safe}"
            found[run], report = train(program, folder, run, [driver, *arguments], environment)
            tier = report["tiers"]["device"]
            if run != "fits" and tier["budget_bytes"] * 3 > report["state_bytes"]:
                sys.exit(f"{report['state_bytes']} bytes of states: {run} shows nothing")
            if tier["peak_bytes"] > tier["budget_bytes"]:
                sys.exit(f"{run}: the device's budget was exceeded: {tier}")
    if len(wanted) != STEPS or len(set(wanted)) != STEPS:
        sys.exit(f"not {STEPS} different losses: {wanted}")
    for first, others in (("fits", RUNS), ("horizontal", MICRO_RUNS)):
        check_near(wanted, found[first])
        for run in others:
            if found[run] != found[first]:
                sys.exit(f"losses differ:\n{first} {found[first]}\n{run} {found[run]}")
    print(f"{STEPS} losses are the same in {len(found)} runs: {wanted[0]} .. {wanted[-1]}")


if __name__ == "__main__":
    main()
