# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a small machine, and programs in a process of their own."""
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import stepwell

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import budget_sentence
from of_the_day import TODAY, turn

try:
    import numpy
except ImportError:
    numpy = None

BLOCK = stepwell.BLOCK_64K
DEVICE = "cpu"  # on which models are made; tests/torch_double has another
DAY = int(os.environ.get("STEPWELL_DAY", TODAY))
MIB = 1 << 20
NO_TRANSFORMERS = "transformers is not installed (./dev test long)"
needs_numpy = unittest.skipIf(numpy is None, "NumPy is not installed (python3-numpy)")


def open_small(directory, **options):
    """Eight blocks of device, 16 of host, 256 of nvme."""
    settings = {
        "devices": 8 * BLOCK,
        "host_bytes": 16 * BLOCK,
        # The build directory may lie on tmpfs.
        "nvme": stepwell.Nvme(directory, MIB + 256 * BLOCK, driver_options="allow_tmpfs=1"),
        "block_bytes": BLOCK,
        "thread_count": 2,
        "timeout": 60,
        "name": "test",
    }
    settings.update(options)
    return stepwell.Runtime(**settings)


def open_slow(directory, **options):
    """The same, with a disk that takes two seconds for a read."""
    return open_small(directory, nvme=stepwell.Nvme(
        directory, MIB + 256 * BLOCK, driver="fault",
        driver_options="inner=posix;inner.allow_tmpfs=1;at=read:1:delay:2000000000"), **options)


def start_slow_read(tensor):
    """The first read after the superblock's goes on when this returns."""
    tensor.evict("device")
    tensor.evict("host")
    tensor.prefetch()


def threads_named(name):
    """Of this process; a thread of OpenMP has the name of the one whose team it is in."""
    found = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/comm") as comm:
            found += comm.read().strip() == name
    return found


class Machine(unittest.TestCase):
    """Each test has a runtime, self.runtime, in a directory of its own."""

    options = {}

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-python-", dir=".")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.runtime = open_small(self.directory, **self.options)
        self.addCleanup(self.end)

    def end(self):
        self.runtime.close(deferred=True)

    def floats(self, count, name=None, value=None):
        tensor = self.runtime.create(name, count, "f32")
        if value is not None:
            tensor.fill(value)
        return tensor

    def pinned(self):
        return self.runtime.tier_stats("device").open_views


def some(items, count):
    """`count` of what a test tries, other ones each day; all of them with STEPWELL_ALL, which the
    suite long sets. A file that has such tests prints how to run its day again."""
    items = list(items)
    return items if "STEPWELL_ALL" in os.environ else turn(items, DAY, count)


def in_thread(function, *arguments):
    """Run it in another thread, to its end; what it returned or raised."""
    result = []

    def body():
        try:
            result.append(function(*arguments))
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return result[0]


def run_program(text, *arguments, timeout=60):
    """A Python program, `text`, in a new process; (status, what it printed)."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", text, *arguments], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False, env=environment(),
    )
    return done.returncode, done.stdout


def environment():
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [here, os.path.dirname(os.path.dirname(os.path.abspath(stepwell.__file__)))]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(paths))


def main():
    print(f"STEPWELL_DAY={DAY}", flush=True)
    unittest.main(verbosity=2)
