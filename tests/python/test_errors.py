# SPDX-License-Identifier: Apache-2.0
"""Failures: their class, the library's sentence, its numbers; and the log."""
import logging
import os
import pathlib
import subprocess
import sys
import unittest

import stepwell
import support
from support import BLOCK, MIB, budget_sentence

F32 = BLOCK // 4
# All but the superblock's, more often than anybody tries again.
READS_FAIL = ";".join(f"at=read:{at}:eio" for at in range(1, 200))


class Errors(support.Machine):
    def test_a_refused_fetch_carries_the_arithmetic(self):
        held = self.floats(6 * F32, "held", 1.0)
        wanted = self.floats(4 * F32, "wanted", 1.0)
        with held.fetch():
            with self.assertRaises(MemoryError) as caught:
                wanted.fetch()
            self.assertEqual(self.pinned(), 1)
        error = caught.exception
        self.assertIsInstance(error, stepwell.BudgetError)
        self.assertEqual((error.status, error.code), (-4, "ERROR_BUDGET"))
        self.assertGreater(error.needed_bytes, error.free_bytes)
        self.assertEqual((error.pinned_bytes, error.pinned_views), (6 * BLOCK, 1))
        self.assertIn("384.0 KiB pinned", str(error))
        self.assertEqual(budget_sentence.check(error),
                         (error.needed_bytes, 8 * BLOCK, [error.pinned_bytes, error.free_bytes]))
        self.assertEqual(str(error), error.sentence)

    def test_classes_are_those_a_program_would_catch(self):
        with self.assertRaises(stepwell.EmptyError) as caught:
            self.floats(10, "blank").fetch()
        self.assertEqual(caught.exception.tensor, "blank")
        with self.assertRaises(stepwell.ExistsError):
            self.floats(10, "blank")
        with self.assertRaises(KeyError) as caught:
            self.runtime.find("nobody")
        self.assertIn("'nobody'", str(caught.exception))
        with self.assertRaises(ValueError):
            self.runtime.create(None, 4).fetch(begin=3, count=2)
        with self.assertRaises(stepwell.NotFoundError):
            support.open_small(os.path.join(self.directory, "none"))

    def test_a_wait_ends_at_its_timeout(self):
        tensor = self.floats(10, "t", 1.0)
        with tensor.fetch(hand_over=True):
            result = support.in_thread(lambda: tensor.fetch("write", timeout=0.05))
            self.assertIsInstance(result, TimeoutError)
            self.assertIsInstance(result, stepwell.TimedOutError)
            self.assertEqual(result.tensor, "t")
        with self.assertRaises(ValueError):
            tensor.fetch(timeout=-1)

    def test_closing_with_views_is_busy(self):
        with self.floats(10, "t", 1.0).fetch():
            with self.assertRaises(stepwell.BusyError) as caught:
                self.runtime.close()
        self.assertIn("1 open views", str(caught.exception))
        self.assertFalse(self.runtime.closed)

    def test_where_no_device_has_streams_none_is_to_be_forgotten(self):
        self.runtime.forget_stream(1)
        with self.assertRaises(TypeError):
            self.runtime.forget_stream("1")

    def test_unknown_words_are_refused(self):
        tensor = self.floats(10, "t", 1.0)
        for wrong in (lambda: tensor.fetch(tier="moon"), lambda: tensor.fetch("look"),
                      lambda: tensor.advise("lukewarm"), lambda: self.runtime.link_stats("x"),
                      lambda: self.runtime.evict(tier="x")):
            with self.assertRaises(ValueError):
                wrong()
        with self.assertRaises(TypeError):
            tensor.fetch(colour=1)
        with self.assertRaises(TypeError):
            self.runtime.create(None, 4, "complex64")
        for wrong, right in ((lambda: stepwell.Runtime(nvme="/data"), "'/data'.*Nvme"),
                             (lambda: stepwell.Runtime(devices="8g"), "'8g'.*Device"),
                             (lambda: self.runtime.adamw(0.1), "0.1.*Hyper")):
            with self.assertRaisesRegex(TypeError, right):
                wrong()
        self.assertEqual(self.pinned(), 0)

    def test_the_sentence_of_a_status_can_be_asked_for(self):
        self.assertEqual(stepwell.status_string(-4), "the tier's budget cannot hold the request")
        with self.assertRaises(stepwell.NotFoundError) as caught:
            self.runtime.find("nobody")
        self.assertEqual(stepwell.last_error(), str(caught.exception))


class Background(unittest.TestCase):
    """A drive whose reads fail."""

    def test_errors_and_log_lines_arrive(self):
        lines = []
        for log in (lambda *line: lines.append(line), self.logger(lines)):
            lines.clear()
            nvme = {"path": ".", "budget_bytes": 8 * MIB, "driver": "fault",
                    "driver_options": "inner=posix;inner.allow_tmpfs=1;" + READS_FAIL}
            with stepwell.Runtime(host_bytes=MIB, nvme=nvme, block_bytes=BLOCK, log=log,
                                  log_level=logging.DEBUG) as runtime:
                tensor = runtime.create("t", 30 * F32)
                tensor.fill(1)
                with self.assertRaises(OSError) as caught:
                    tensor.read()
                self.assertIsInstance(caught.exception, stepwell.StorageError)
                self.assertEqual(caught.exception.errno, 5)
                runtime.background_error()
                runtime.clear_error()
                self.assertIsNone(runtime.background_error())
            self.assertTrue(lines)
            levels = {line[0] for line in lines}
            self.assertLessEqual(levels, {10, 20, 30, 40})

    @staticmethod
    def logger(lines):
        class Keep(logging.Handler):
            def emit(self, record):
                lines.append((record.levelno, record.getMessage()))

        logger = logging.Logger("stepwell-test", logging.DEBUG)
        logger.addHandler(Keep())
        return logger


class Examples(unittest.TestCase):
    def test_ranks_without_torch_says_what_to_install(self):
        example = pathlib.Path(__file__).resolve().parents[2] / "examples/small/ranks.py"
        script = ("import runpy, sys; sys.modules['torch'] = None; "
                  f"runpy.run_path({str(example)!r}, run_name='__main__')")
        done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "ranks.py needs PyTorch: pip install torch\n")


if __name__ == "__main__":
    support.main()
