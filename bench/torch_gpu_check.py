#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch models in tiers on a GPU: bounds of the machine, bits, speed beside references and peers.

usage: torch_gpu_check.py [CASE ...] [--seconds S] [--limit S] [--out DIR] [--nvme DIR]
                          [--device cuda|cpu|late] [--tiny] [--module FILE]

One JSON object a line: a figure with its reference, goal and whether that is reached; what is
absent and why; how a case ended. Each case is a process with its own limit, in seconds; without a
CASE they are listed. With --out the lines are in figures.jsonl there too, and what the cases write
to stderr is in log.txt. --tiny: models that any machine trains; their figures mean nothing.
--module: the module `cuda` under the device `late`, which is tests/torch_double.

Exit status: 0 each case passed or was skipped, 1 one did not, 77 all were skipped. A figure below
its goal is no failure; bits that differ are.
"""
import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMITS = {
    "machine": 20, "bounds": 80, "bits": 100, "hooks": 40, "remap": 30, "resident_bytes": 30,
    "torch_memory": 30, "gpt": 140, "gpt_nvme": 100, "fsdp2": 90, "accelerate": 60,
    "deepspeed": 130, "torchao": 90, "llama8b": 220, "lora": 250, "largest": 300,
}
SKIPPED = 77


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=[[], *LIMITS])
    parser.add_argument("--seconds", type=float, default=480, help="for all cases together (480)")
    parser.add_argument("--limit", type=float, default=1e9, help="of each case, if it is lower")
    parser.add_argument("--out", type=Path, help="where figures.jsonl and log.txt go")
    parser.add_argument("--nvme", type=Path, help="a directory on a drive")
    parser.add_argument("--device", choices=["cuda", "cpu", "late"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models")
    parser.add_argument("--module", type=Path, help="of the device late")
    return parser.parse_args()


def write(options, line):
    text = json.dumps(line)
    print(text, flush=True)
    if options.out:
        with open(options.out / "figures.jsonl", "a", encoding="utf-8") as file:
            file.write(text + "\n")


def run(options, case, limit, log):
    """A case as a process of its own: how it ended."""
    words = [sys.executable, "-u", str(HERE / "torch_gpu_cases.py"), case, "--limit", str(limit)]
    for name in ("out", "nvme", "device", "module"):
        value = getattr(options, name)
        words += [f"--{name}", str(value)] if value else []
    # In a bundle the package is beside this folder.
    found = [str(HERE.parent / "python"), os.environ.get("PYTHONPATH", "")]
    # A group of its own, as a peer may start compilers.
    process = subprocess.Popen(words + ["--tiny"] * options.tiny, stderr=log,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(found)},
                               start_new_session=True)
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        return {"ended": "killed", "why": f"it was not done in {limit:.3g} s"}
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status < 0:
        return {"ended": "failed", "why": f"signal {-status} ended it"}
    return {"ended": {0: "passed", SKIPPED: "skipped"}.get(status, "failed")}  # it said why


def main(options):
    if not options.cases:
        print("\n".join(f"{case:15} {limit:3} s" for case, limit in LIMITS.items()))
        return 0
    if importlib.util.find_spec("torch") is None:
        print(f"{sys.executable} has no PyTorch", file=sys.stderr)
        return SKIPPED
    log = None
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        log = open(options.out / "log.txt", "ab", buffering=0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the case too
    begin, ends = time.monotonic(), set()
    for case in options.cases:
        started = time.monotonic()
        left = options.seconds - (started - begin)
        if left < min(20, LIMITS[case]):
            why = f"{left:.0f} of {options.seconds:.0f} s are left"
            write(options, {"case": case, "ended": "not begun", "why": why})
            continue
        if log:
            log.write(f"== {case}\n".encode())
        end = run(options, case, min(LIMITS[case], options.limit, left), log)
        ends.add(end["ended"])
        write(options, {"case": case, **end, "seconds": round(time.monotonic() - started, 1)})
    if log:
        log.close()
    return SKIPPED if ends == {"skipped"} else int(not ends <= {"passed", "skipped"})


if __name__ == "__main__":
    sys.exit(main(arguments()))
