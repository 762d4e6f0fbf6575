#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a newcomer waits for: each command of the README in an empty clone, without ccache.

usage: bench/bench_build.py [--json FILE]

Wall time, and processor time of all that a command started. Packages are installed before, so that
no download counts. Takes about 45 minutes on two cores.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST_STEP = b"step    1/"
CHANGED = "lib/runtime/calls/fetches.cpp"


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(clone, *command, until=None):
    """(seconds, processor seconds, seconds until a line that begins with `until`)."""
    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    began, before, seen = time.monotonic(), processor_seconds(), None
    print(f"== {' '.join(command)}", flush=True)
    with subprocess.Popen(
        command, cwd=clone, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        last = b""
        for line in process.stdout:
            last = line
            if until and seen is None and line.startswith(until):
                seen = time.monotonic() - began
        if process.wait() != 0:
            sys.exit(f"{' '.join(command)} ended with {process.returncode}: {last.decode()}")
    return time.monotonic() - began, processor_seconds() - before, seen


def empty_clone(folder, name):
    clone = folder / name
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    return clone


def measure(folder):
    figures = {}
    clone = empty_clone(folder, "demo")
    seconds, _, first = run(clone, "./dev", "demo", until=FIRST_STEP)
    figures["build.first_step"], figures["build.demo"] = first, seconds
    figures["build.install"], _, _ = run(
        clone, "./dev", "install", "--prefix", str(folder / "prefix")
    )
    clone = empty_clone(folder, "test")
    run(clone, "meson", "setup", "build/probe", "-Dlibdir=lib")
    _, figures["build.library_cpu"], _ = run(clone, "ninja", "-C", "build/probe", "installed")
    _, rest, _ = run(clone, "ninja", "-C", "build/probe", "all", "benches")
    figures["build.full_cpu"] = figures["build.library_cpu"] + rest
    shutil.rmtree(clone / "build")
    figures["build.test"], _, _ = run(clone, "./dev", "test")
    with open(clone / CHANGED, "a", encoding="utf-8") as file:
        file.write("// One line more.\n")
    figures["build.quick_after_a_line"], _, _ = run(clone, "./dev", "test", "quick")
    return figures


def main(arguments):
    parser = argparse.ArgumentParser(prog="dev bench build", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args(arguments)
    folder = ROOT / "build" / "bench-build"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    figures = measure(folder)
    shutil.rmtree(folder, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name:28} {value:7.0f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
