# SPDX-License-Identifier: Apache-2.0
"""The example of torch.distributed on one rank and on two: the same losses, each with its half.

usage: ranks_example.py RANKS.PY, with a Python that has PyTorch.
"""
import re
import subprocess
import sys
import tempfile

STEPS = 5
DIGITS = 1e-4  # of a loss as it is printed; norms have a digit less
HELD = re.compile(r"rank (\d+) of (\d+) holds elements \[(\d+), (\d+)\) of (\d+)")
STEP = re.compile(r"step (\d+)  loss ([0-9.]+)  norm ([0-9.]+)")


def run(example, ranks):
    """What each rank holds, by its number, and (loss, norm) of each step."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone",
             "--nproc-per-node", str(ranks), example, folder],
            stdout=subprocess.PIPE, encoding="utf-8", timeout=110, check=False)
    if done.returncode != 0:
        sys.exit(f"{ranks} ranks ended with status {done.returncode}:\n{done.stdout}")
    held = {int(rank): tuple(map(int, rest)) for rank, *rest in HELD.findall(done.stdout)}
    steps = [(float(loss), float(norm)) for _, loss, norm in STEP.findall(done.stdout)]
    return held, steps


def main():
    (one, alone), (two, together) = (run(sys.argv[1], ranks) for ranks in (1, 2))
    elements = one[0][3]
    if one != {0: (1, 0, elements, elements)}:
        sys.exit(f"one rank holds {one}")
    if two != {0: (2, 0, elements // 2, elements), 1: (2, elements // 2, elements, elements)}:
        sys.exit(f"two ranks hold {two}")
    if len(alone) != STEPS or len(together) != STEPS or len(set(alone)) != STEPS:
        sys.exit(f"not {STEPS} different steps: {alone}, {together}")
    for (loss, norm), (others_loss, others_norm) in zip(alone, together):
        if abs(loss - others_loss) > 1.5 * DIGITS or abs(norm - others_norm) > 15 * DIGITS:
            sys.exit(f"one rank: {alone}\ntwo ranks: {together}")
    if alone[-1][0] >= alone[0][0]:
        sys.exit(f"nothing is learned: {alone}")
    print(f"{STEPS} steps, losses {alone[0][0]} to {alone[-1][0]} on one rank and on two")


if __name__ == "__main__":
    main()
