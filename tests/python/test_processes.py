# SPDX-License-Identifier: Apache-2.0
"""Threads, signals, forks and the interpreter's exit."""
import signal
import subprocess
import sys
import threading
import time
import unittest

import stepwell
import support
from support import BLOCK

F32 = BLOCK // 4

# A thread holds a view; the main thread waits for it, as argv[1] says, until it is interrupted.
WAITS = """
import os, signal, sys, tempfile, threading
import stepwell, support
how, directory = sys.argv[1], tempfile.mkdtemp(dir=".")
runtime = support.open_slow(directory)
tensor, gradient = runtime.create("t", 100), runtime.create("g", 100)
tensor.fill(1)
gradient.fill(1)
optimizer = runtime.sgd()
optimizer.add(tensor, gradient)
view = support.in_thread(lambda: tensor.fetch(hand_over=True))
calls = {
    "fetch": lambda: tensor.fetch("write"),
    "many": lambda: runtime.fetch_many([tensor], "write"),
    "write": lambda: tensor.write(bytes(400)),
    "fill": lambda: tensor.fill(2),
    "operation": lambda: runtime.fetch_async(tensor, "write").wait(),
    "step": lambda: optimizer.step(wait=True),
    "drain": runtime.drain,
    "close": runtime.close,
}
if how in ("drain", "close"):
    view.release()
    support.start_slow_read(tensor)
if how == "handler":
    heard = []
    def quiet(*_):
        heard.append(1)
        threading.Timer(0.1, view.release).start()
    signal.signal(signal.SIGINT, quiet)
    print("waiting", flush=True)
    tensor.fetch("write").release()
    print("heard", len(heard) > 0, flush=True)
    runtime.close()
else:
    try:
        print("waiting", flush=True)
        calls[how]()
    except KeyboardInterrupt:
        print("interrupted", tensor.info().open_views, flush=True)
    if not view.released:
        view.release()
    runtime.close(deferred=True)
os.rmdir(directory)
"""

# A read of many slow pieces; a signal whose handler only sets a flag comes in the middle of it.
FLAGGED = """
import os, signal, tempfile, threading, time
import stepwell, support
heard, times = [], []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
directory = tempfile.TemporaryDirectory(dir=".")
slow = stepwell.Nvme(directory.name, (1 << 20) + 256 * support.BLOCK, driver="fault",
                     driver_options="inner=posix;inner.allow_tmpfs=1;delay_read=1:30000000")
with support.open_small(directory.name, nvme=slow) as runtime:
    tensor = runtime.create("t", 100 * support.BLOCK // 4)
    tensor.fill(1.0)
    out = bytearray(tensor.nbytes)
    for signals in (0, 1):
        tensor.evict("device")
        tensor.evict("host")
        if signals:
            threading.Timer(times[0] / 2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        begin = time.monotonic()
        tensor.read(out)
        times.append(time.monotonic() - begin)
    print("heard", len(heard), times[1] < 4 * times[0] or times, out[:4] == out[-4:])
"""

# Ctrl-C in a commit, and the one that is made when it was heard.
COMMITS = """
import os, signal, tempfile, threading
import stepwell, support
directory = tempfile.TemporaryDirectory(dir=".")
slow = stepwell.Nvme(directory.name, (1 << 20) + 256 * support.BLOCK, driver="fault",
                     driver_options="inner=posix;inner.allow_tmpfs=1;delay_write=1:300000000")
with support.open_small(directory.name, nvme=slow, store_name="s", probe=False) as runtime:
    tensor = runtime.create("t", 3 * support.BLOCK // 4, durable=True)
    tensor.fill(1.0)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        runtime.commit("interrupted")
    except KeyboardInterrupt:
        tensor.fill(2.0)
        print("committed", runtime.commit("final") > 0, runtime.generation().label)
"""

# Ctrl-C while the other rank of a group does not come.
# The handler of a signal may run in any thread; the main one is not woken by it then.
JOINS = """
import signal, threading
import stepwell
ready = threading.Event()
def signalled():
    ready.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
threading.Thread(target=signalled).start()
class Engine:
    polls = 0
    def all_gather(self, shard, whole): return 1
    def reduce_scatter(self, whole, shard, dtype): return 1
    def all_reduce(self, data, dtype): return 1
    def poll(self, work):
        self.polls += 1
        if self.polls == 100:
            ready.set()
        return False
engine = Engine()
try:
    stepwell.Group.callbacks(engine, 0, 2, timeout=50)
except KeyboardInterrupt:
    print("interrupted", engine.polls >= 100)
"""

FORKS = """
import os, sys, tempfile, traceback, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads is what this is about
import stepwell, support
directory = tempfile.TemporaryDirectory(dir=".")
runtime = support.open_small(directory.name)
tensor = runtime.create("t", 100)
tensor.fill(1)
view, operation = tensor.fetch(), runtime.fetch_async(tensor)
array = tensor.fetch().bytes
child = os.fork()
if child == 0:
    code = 1
    try:
        for use in (tensor.fetch, tensor.read, view.release, operation.poll, runtime.drain,
                    runtime.close, runtime.interrupt, lambda: runtime.create("u", 4),
                    lambda: runtime.fetch_many([tensor]), lambda: runtime.phase("p")):
            try:
                use()
            except stepwell.ForkedError as error:
                assert "fork" in str(error)
            else:
                raise AssertionError(use)
        del view, array, operation, tensor, runtime, use
        own = support.open_small(directory.name)
        mine = own.create("t", 100)
        mine.fill(2)
        with mine.fetch() as view:
            assert view.bytes[3] == 0x40
        own.close()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert runtime.tier_stats("device").open_views == 2
assert bytes(array[:4]) == b"\\0\\0\\x80\\x3f"
operation.free()
del array
view.release()
runtime.close()
print("parent is well")
"""

# As DataLoader's workers are made, in the middle of a read and of an update's write-back.
WORKERS = """
import multiprocessing, tempfile, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import stepwell, support
directory = tempfile.TemporaryDirectory(dir=".")
runtime = support.open_slow(directory.name)
tensor, gradient = runtime.create("t", 100), runtime.create("g", 100)
tensor.fill(1)
gradient.fill(1)
optimizer = runtime.sgd(stepwell.Hyper(lr=0.5))
optimizer.add(tensor, gradient)
support.start_slow_read(tensor)
operation = runtime.fetch_async(tensor)
optimizer.step(verdict=False)

def work(number):
    try:
        tensor.fetch()
    except stepwell.ForkedError:
        own = support.open_small(directory.name)
        with own.create("t", 4, zero=True).fetch("read_write") as view:
            view.bytes[0] = number
        own.close()
        return number
    return -1

assert not operation.poll()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, range(4)))
    pool.close()
    pool.join()
with operation.collect() if operation.wait() else None as view:
    print(bytes(view.bytes[:4]).hex())
operation.free()
with tensor.fetch() as view:
    print(bytes(view.bytes[396:]).hex())
runtime.close()
"""

# Ends with a view, an array, an operation and a waiting daemon thread.
EXITS = """
import atexit, sys, tempfile, threading
import stepwell, support
directory = tempfile.TemporaryDirectory(dir=".")
runtime = support.open_small(directory.name, log=lambda *line: None, log_level=10)
tensor, other = runtime.create("t", 100), runtime.create("u", 100)
tensor.fill(1)
other.fill(1)
view = tensor.fetch(hand_over=True)
array = view.bytes if sys.argv[1] == "buffer" else view.numpy()
operation = runtime.fetch_async(other)
started = threading.Event()
def wait_for_it():
    started.set()
    try:
        tensor.fetch("write")
    except Exception:
        pass
threading.Thread(target=wait_for_it, daemon=True).start()
started.wait()  # Python itself crashes where a thread begins while it ends
stepwell.kept = array  # outlives this module
if sys.argv[1] == "raise":
    raise SystemExit(3)
"""


class Signals(unittest.TestCase):
    def interrupted(self, how):
        """SIGINT, until the child has ended: it may not wait yet when the first one comes."""
        child = subprocess.Popen([sys.executable, "-B", "-c", WAITS, how], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, env=support.environment())
        with child:
            self.assertEqual(child.stdout.readline(), "waiting\n")
            child.send_signal(signal.SIGINT)
            text = child.stdout.read()
        return child.returncode, text

    def test_ctrl_c_ends_every_kind_of_wait(self):
        for how in ("fetch", "many", "write", "fill", "operation", "step"):
            with self.subTest(how):
                self.assertEqual(self.interrupted(how), (0, "interrupted 1\n"))

    def test_ctrl_c_ends_a_wait_for_the_disk_and_leaves_the_runtime_open(self):
        for how in ("drain", "close"):
            with self.subTest(how):
                self.assertEqual(self.interrupted(how), (0, "interrupted 0\n"))

    def test_one_signal_whose_handler_returns_does_not_keep_a_copy_from_its_end(self):
        self.assertEqual(support.run_program(FLAGGED), (0, "heard 1 True True\n"))

    def test_a_call_after_an_interrupted_one_is_not_interrupted(self):
        self.assertEqual(support.run_program(COMMITS), (0, "committed True final\n"))

    def test_ctrl_c_ends_the_wait_for_other_ranks(self):
        self.assertEqual(support.run_program(JOINS, timeout=40), (0, "interrupted True\n"))

    def test_a_timeout_counts_from_the_first_try(self):
        options = stepwell._abi.stw_copy_options.initial(timeout_ns=10**12)
        begun = time.monotonic_ns() - 10**11
        patience = stepwell._waiting.Patience((1, options), begun)
        for _ in range(2):
            self.assertIs(patience.left()[1], options)
            self.assertLessEqual(options.timeout_ns, 9 * 10**11)
        self.assertGreater(options.timeout_ns, 8 * 10**11)
        silent = stepwell._abi.stw_copy_options.initial()
        stepwell._waiting.Patience((1, silent), begun, 10**12).left()
        self.assertLessEqual(silent.timeout_ns, 9 * 10**11)
        nanoseconds = stepwell._waiting.nanoseconds
        patience = stepwell._waiting.Patience((1, nanoseconds(None)), begun, 10**12)
        self.assertLessEqual(patience.left()[1], 9 * 10**11)
        patience = stepwell._waiting.Patience((1, nanoseconds(1000.0)), begun)
        self.assertLessEqual(patience.left()[1], 9 * 10**11)
        self.assertEqual(nanoseconds(float("inf")), 2**63)

    def test_a_handler_that_returns_lets_the_wait_go_on(self):
        self.assertEqual(self.interrupted("handler"), (0, "heard True\n"))


class Forks(unittest.TestCase):
    def test_a_child_is_told_so_and_harms_nobody(self):
        self.assertEqual(support.run_program(FORKS), (0, "parent is well\n"))


    def test_workers_begin_while_transfers_are_under_way(self):
        self.assertEqual(support.run_program(WORKERS),
                         (0, "[0, 1, 2, 3]\n0000803f\n0000003f\n"))


class Exits(unittest.TestCase):
    def test_the_interpreter_ends_with_everything_open(self):
        self.assertEqual(support.run_program(EXITS, "buffer"), (0, ""))

    @support.needs_numpy
    def test_arrays_may_be_there_to_the_end(self):
        self.assertEqual(support.run_program(EXITS, "array"), (0, ""))
        self.assertEqual(support.run_program(EXITS, "raise"), (3, ""))

    def test_a_runtime_that_is_dropped_is_closed_with_a_warning(self):
        text = ("import gc, support, warnings\n"
                "import tempfile\nd = tempfile.TemporaryDirectory(dir='.')\n"
                "with warnings.catch_warnings(record=True) as told:\n"
                "    warnings.simplefilter('always')\n"
                "    runtime = support.open_small(d.name)\n    del runtime\n    gc.collect()\n"
                "    print([str(at.category.__name__) for at in told])\n")
        self.assertEqual(support.run_program(text), (0, "['ResourceWarning']\n"))


class Threads(support.Machine):
    def test_no_increment_of_many_threads_is_lost(self):
        tensors = [self.runtime.create(None, 8, "u8", zero=True) for _ in range(4)]
        failures = []

        def increment(seed):
            try:
                for turn in range(200):
                    with tensors[(turn * seed + turn) % 4].fetch("read_write") as view:
                        view.bytes[0] = (view.bytes[0] + 1) % 256
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=increment, args=(seed,)) for seed in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        total = sum(tensor.read(bytearray(8))[0] for tensor in tensors)
        self.assertEqual(total % 256, 4 * 200 % 256)

    def test_an_interrupt_ends_the_waits_of_other_threads(self):
        tensor = self.floats(10, "t", 1.0)
        results = []
        with tensor.fetch(hand_over=True):
            thread = threading.Thread(target=lambda: results.append(
                support.in_thread(lambda: tensor.fetch("write"))))
            thread.start()
            while not self.runtime._inside:
                pass
            with self.assertRaises(stepwell.BusyError) as caught:
                self.runtime.close()
            self.assertIn("1 other threads wait", str(caught.exception))
            while thread.is_alive():
                self.runtime.interrupt()
                thread.join(0.01)
        self.assertIsInstance(results[0], stepwell.WaitInterruptedError)
        self.assertIsInstance(results[0], InterruptedError)

    def test_a_view_may_be_released_by_another_thread(self):
        view = self.floats(10, "t", 1.0).fetch(hand_over=True)
        self.assertIsNone(support.in_thread(view.release))
        self.assertEqual(self.pinned(), 0)


if __name__ == "__main__":
    support.main()
