# SPDX-License-Identifier: Apache-2.0
"""What bench/bench.py measures with: programs that answer commands, fio, and pairs in turn."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from statistics import median

GRID_ROUNDS = 3
GB = 1e9
MIB = 1 << 20


class BenchError(Exception):
    pass


def say(text):
    print(text, flush=True)


def three_digits(ratio):
    """What pairs that differ by a tenth can tell."""
    digits = 2 - math.floor(math.log10(abs(ratio))) if ratio else 2
    return f"{ratio:.{max(digits, 0)}f}"


def result(name, value, unit, against, ratios, **details):
    """One line of the table. ratios: of the pairs; the headline is their median."""
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "against": against,
        "ratio": float(three_digits(median(ratios))),
        "spread": [float(three_digits(min(ratios))), float(three_digits(max(ratios)))],
        "pairs": len(ratios),
        **details,
    }


def run_text(command, env=None):
    """Run a program to its end; what it printed."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, text=True, env=env, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"{command[0]} ended with status {done.returncode}")
    return done.stdout


def run_lines(command, env=None):
    """The same of a program that prints a JSON object a line."""
    return [json.loads(line) for line in run_text(command, env).splitlines()]


class Program:
    """A bench program that answers commands, so that its store lives while fio has its turn."""

    def __init__(self, command, env=None):
        self.name = str(command[0])
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def ask(self, command):
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchError(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.process.stdin.close()
            if self.process.wait() != 0:
                raise BenchError(f"{self.name} ended with status {self.process.returncode}")
        else:
            self.process.kill()
            self.process.wait()


# ---------------------------------------------------------------------------------------- fio --


class HugePages:
    """Huge pages for fio's buffers: those that are free, else reserved here and given back.

    fio with buffers of small pages reads at a third of the speed of some drives, so it is no
    reference there. Where the pages cannot be had, results say that fio had small ones.
    """

    POOL = Path("/proc/sys/vm/nr_hugepages")

    def __init__(self, needed_bytes):
        self.needed_bytes = needed_bytes
        self.before = None  # size of the pool to go back to

    @staticmethod
    def _meminfo(field):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        return 0

    def __enter__(self):
        page_bytes = self._meminfo("Hugepagesize") * 1024
        missing = math.inf
        if page_bytes:
            missing = math.ceil(self.needed_bytes / page_bytes) - self._meminfo("HugePages_Free")
        if 0 < missing < math.inf and os.access(self.POOL, os.W_OK):
            self.before = int(self.POOL.read_text(encoding="ascii"))
            self.POOL.write_text(str(self.before + missing), encoding="ascii")
            missing = math.ceil(self.needed_bytes / page_bytes) - self._meminfo("HugePages_Free")
        self.enough = missing <= 0
        if not self.enough:
            say(
                f"  fio gets buffers of small pages: {self.needed_bytes // MIB} MiB of huge pages "
                f"are not free; as root: sysctl vm.nr_hugepages={self.needed_bytes // (2 * MIB)}"
            )
        return self

    def __exit__(self, *_):
        if self.before is not None:
            self.POOL.write_text(str(self.before), encoding="ascii")


class Fio:
    """fio on one file of the directory under test, made once and overwritten after that."""

    BUFFER_BYTES = 544 * MIB  # of the deepest queue, and fio's own

    def __init__(self, directory, file_bytes, mix_read_percent=50):
        self.path = Path(directory) / "stepwell-bench-fio"
        self.huge_pages = HugePages(self.BUFFER_BYTES)
        self.file_bytes = file_bytes
        self.mix_read_percent = mix_read_percent  # of the bytes of pattern "rw"
        self.first_write = None  # bytes/s of the pass into reserved space

    def __enter__(self):
        self.huge_pages.__enter__()
        try:
            self.path.unlink(missing_ok=True)
            self.first_write = self.run("write", "1m", 16)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.huge_pages.__exit__()
        self.path.unlink(missing_ok=True)

    def named(self, block, depth):
        """A setting as results name it."""
        pages = "huge" if self.huge_pages.enough else "small"
        return f"{block} x {depth}, {pages} pages"

    def run(self, pattern, block, depth):
        """Bytes per second, reads and writes together."""
        job = [f"--filename={self.path}", f"--size={self.file_bytes}", f"--rw={pattern}"]
        if pattern == "rw":
            job.append(f"--rwmixread={self.mix_read_percent}")
        moved, seconds = self.timed(block, depth, job)
        return moved / seconds

    def new_file_seconds(self, read_bytes, write_bytes, block, depth):
        """Reads its file while it writes another one, which it makes."""
        new = self.path.with_name(self.path.name + "-new")
        try:
            return self.timed(
                block, depth,
                [f"--filename={self.path}", f"--size={self.file_bytes}", "--rw=read",
                 f"--io_size={read_bytes}"],
                [f"--filename={new}", f"--size={write_bytes}", "--rw=write"])[1]
        finally:
            new.unlink(missing_ok=True)

    def timed(self, block, depth, *jobs):
        """The bytes that jobs move at once, and the seconds."""
        command = ["fio", "--name=global", f"--bs={block}", f"--iodepth={depth}",
                   "--ioengine=libaio", "--direct=1", "--output-format=json"]
        if self.huge_pages.enough:
            command.append("--mem=shmhuge")
        for number, job in enumerate(jobs):
            command += [f"--name=stepwell{number}", *job]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        start = done.stdout.find("{")
        if done.returncode != 0 or start < 0:
            raise BenchError("fio failed: " + (done.stderr or done.stdout).strip()[-500:])
        found = json.loads(done.stdout[start:])["jobs"]
        ways = [job[way] for job in found for way in ("read", "write")]
        moved = sum(way["io_bytes"] for way in ways)
        milliseconds = max(way["runtime"] for way in ways)
        if any(job["error"] for job in found) or not moved or not milliseconds:
            raise BenchError(f"fio measured nothing in {self.path.parent}")
        return moved, milliseconds / 1000

    def best_setting(self, pattern, grid):
        """The setting with the best median, all settings taking turns."""
        rates = {setting: [] for setting in grid}
        for number in range(GRID_ROUNDS):
            say(f"  fio {pattern}: round {number + 1}/{GRID_ROUNDS} of {len(grid)} settings")
            for setting in grid:
                rates[setting].append(self.run(pattern, *setting))
        best = max(rates, key=lambda setting: median(rates[setting]))
        say(f"  fio {pattern}: best is {self.named(*best)}, {median(rates[best]) / GB:.2f} GB/s")
        return best


def need_space(directory, needed):
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise BenchError(
            f"{directory} has {free / MIB:.0f} MiB free and this needs {needed / MIB:.0f}; "
            "choose another directory with --nvme, or less with --bytes"
        )


def in_turn(number, first, second):
    """Run both, the other one first every second time; (first's result, second's result)."""
    if number % 2 == 0:
        one = first()
        return one, second()
    two = second()
    return first(), two
