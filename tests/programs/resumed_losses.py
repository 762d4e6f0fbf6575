#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training that is killed and started again has the losses of one that ran through.

usage: resumed_losses.py TRAIN_GPT. The losses are hex floats and compared byte for byte. The first
run is killed after a line that says that a step is over, somewhere in the steps behind it.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
STEPS = 12
MODEL = ["--layers=3", "--width=256", "--heads=4", "--batch=2", "--sequence=32", "--seed=5",
         f"--steps={STEPS}", "--threads=2"]
TIERS = [f"--device-bytes={14 * MIB}", f"--host-bytes={12 * MIB}"]
KILLED_AFTER = 5  # lines of steps


def command(program, folder, name, more):
    return [program, *MODEL, *TIERS, f"--nvme={folder}", f"--losses={folder / name}", *more]


def kill_in_the_middle(arguments):
    """The program is gone by SIGKILL, some steps after its first commits."""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        steps = 0
        for line in process.stdout:
            steps += line.startswith("step")
            if steps == KILLED_AFTER:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.read()
        if process.wait() != -signal.SIGKILL:
            sys.exit(f"{' '.join(arguments)}\nended by itself, with {process.returncode}")


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        subprocess.run(command(program, folder, "through", []), check=True,
                       stdout=subprocess.DEVNULL)
        kept = ["--store=run", "--commit-every=2"]
        kill_in_the_middle(command(program, folder, "killed", kept))
        again = subprocess.run(command(program, folder, "resumed", kept), check=True, text=True,
                               stdout=subprocess.PIPE).stdout
        through = (folder / "through").read_text().split()
        resumed = (folder / "resumed").read_text().split()
        killed = (folder / "killed").read_text().split()
        if len(killed) < KILLED_AFTER or killed != through[:len(killed)]:
            sys.exit(f"the run that was killed left {killed} of {through}")
        if "resumed      at step" not in again:
            sys.exit(f"the second run began anew:\n{again}")
        first = STEPS - len(resumed)
        if first < 2 or first % 2 != 0:
            sys.exit(f"resumed at step {first}, and each second one was kept")
        if len(through) != STEPS or len(set(through)) != STEPS or through[first:] != resumed:
            sys.exit(f"losses differ from step {first} on:\n{through}\n{resumed}")
        over = subprocess.run(command(program, folder, "over", kept), check=False, text=True,
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        if over.returncode == 0 or "is at step 12 and the run ends there" not in over.stderr:
            sys.exit(f"a run that is over was not told so: {over.stderr}")
        differs = {"--layers=3": "--layers=5", "--width=256": "--width=320"}
        other = subprocess.run(
            [differs.get(word, word) for word in command(program, folder, "other", kept)],
            check=False, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        said = ("the store 'run' has a model of --layers 3 --width 256, and this run is of "
                "--layers 5 --width 320; give what it has, or another --store")
        if other.returncode == 0 or said not in other.stderr:
            sys.exit(f"a run of another model was not told so: {other.stderr}")
        nowhere = subprocess.run(
            command(program, folder, "nowhere", [f"--json={folder}/no/where.json"]), check=False,
            text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        said = f"cannot write {folder}/no/where.json: No such file or directory"
        if nowhere.returncode == 0 or said not in nowhere.stderr or "step" in nowhere.stdout:
            sys.exit(f"a report that cannot be written: {nowhere.stdout}{nowhere.stderr}")
    print(f"resumed at step {first}: {len(resumed)} losses are those of the run through")


if __name__ == "__main__":
    main()
