#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training over two ranks has the losses of one, and each rank half of its states; in
micro-batches each order has the same losses.

usage: same_losses_over_ranks.py TRAIN_GPT TRAIN_GPT_MPI MODULE. Exit status 77: no mpirun here.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
RANKS = 2
STEPS = 4
SECONDS = 100
# As in the demo: a gradient is rounded once more for each rank, in each step.
ROUNDING = 2.0**-24
SKIP = 77
# Shards smaller and larger than a block of 512 KiB, and room for few of either.
MODEL = ["--layers=3", "--width=256", "--heads=4", "--batch=4", "--sequence=32", "--seed=5",
         f"--steps={STEPS}", "--threads=1", "--quiet", f"--device-bytes={14 * MIB}",
         f"--host-bytes={4 * MIB}", f"--block-bytes={MIB // 2}"]
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_plm_rsh_agent": "/bin/false",
}


def train(command, folder, name, environment):
    """The losses, and the report of each rank."""
    command = [*command, *MODEL, f"--nvme={folder}", f"--losses={folder / name}.losses",
               f"--json={folder / name}.json"]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with status {done.returncode}")
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}.json*"))]
    return [float.fromhex(x) for x in (folder / f"{name}.losses").read_text().split()], reports


def main():
    if shutil.which("mpirun") is None:
        print("skipped: there is no mpirun here (openmpi-bin)")
        sys.exit(SKIP)
    program, program_mpi, module = (os.path.abspath(path) for path in sys.argv[1:4])
    with tempfile.TemporaryDirectory(dir=".") as name, \
            tempfile.TemporaryDirectory(prefix="stepwell-ranks-", dir="/tmp") as short:
        folder = Path(name).resolve()
        # The build directory may be one that others write to; a module is not loaded from there.
        module = Path(shutil.copy(module, short))
        module.chmod(0o644)
        mpirun = ["timeout", "--kill-after=10", str(SECONDS), "mpirun", "--oversubscribe",
                  "-np", str(RANKS), program_mpi, "--ranks", f"--mpi-module={module}"]
        alone, (one,) = train([program], folder, "alone", {})
        environment = {**ENVIRONMENT, "TMPDIR": short}
        together, ranks = train(mpirun, folder, "ranks", environment)
        early, _ = train([*mpirun, "--speculate"], folder, "early", environment)
        micro = {}
        for order in ("horizontal", "vertical"):
            command = [*mpirun, "--micro-batches=2", f"--order={order}"]
            micro[order], _ = train(command, folder, order, environment)
        refused = subprocess.run(
            [*mpirun, *MODEL, "--micro-batches=4", f"--nvme={folder}"], check=False,
            env={**os.environ, **environment}, capture_output=True, text=True)
    if "2 sequences of --batch 4 on each of 2 ranks are not a multiple of" not in refused.stderr:
        sys.exit(f"a part of a batch that cannot be cut was not refused: {refused.stderr}")
    if len(set(alone)) != STEPS or len(together) != STEPS:
        sys.exit(f"not {STEPS} different losses: {alone}, {together}")
    for step, (before, after) in enumerate(zip(alone, together), start=1):
        if abs(after / before - 1) > step * RANKS * ROUNDING:
            sys.exit(f"step {step}: loss {before} on one rank, {after} on {RANKS}")
    if early != together:
        sys.exit(f"losses differ by updates before the norm: {early}, {together}")
    if micro["horizontal"] != micro["vertical"]:
        sys.exit(f"losses differ by the order of micro-batches: {micro}")
    # A rank rounds the sum of its micro-batches before the sums over ranks.
    for step, (before, after) in enumerate(zip(together, micro["vertical"]), start=1):
        if abs(after / before - 1) > 2 * step * RANKS * ROUNDING:
            sys.exit(f"step {step}: loss {before}, and {after} in micro-batches")
    if [report["rank"] for report in ranks] != list(range(RANKS)):
        sys.exit(f"not a report of each rank: {ranks}")
    for report in ranks:
        share = report["own_state_bytes"] * RANKS / one["own_state_bytes"]
        if not 0.99 < share < 1.05:
            sys.exit(f"rank {report['rank']} has {share} times a part of {RANKS} of the states")
        # Both have more than their near tiers hold, so a rank keeps fewer bytes far away.
        if report["tiers"]["nvme"]["peak_bytes"] >= one["tiers"]["nvme"]["peak_bytes"]:
            sys.exit(f"rank {report['rank']}: {report['tiers']}\nalone: {one['tiers']}")
        if report["links"]["ranks"]["bytes"] == 0:
            sys.exit(f"rank {report['rank']} sent nothing to the other")
    print(f"{STEPS} losses within rounding: {alone[0]} .. {alone[-1]}")


if __name__ == "__main__":
    main()
