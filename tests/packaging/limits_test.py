# SPDX-License-Identifier: Apache-2.0
"""The limits of the tests that everyone waits for, and how their time is measured."""
import contextlib
import io
import pathlib
import signal
import subprocess
import sys
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import test_summary as summary  # noqa: E402


def late(**computed):
    """(what fails, what is printed) of tests that computed for so many seconds."""
    entries = [{"name": name.replace("_", "-"), "computed": s} for name, s in computed.items()]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        return list(summary.over_limits(entries)), said.getvalue()


class Limits(unittest.TestCase):
    def test_a_long_test_without_a_reason_fails_on_any_machine_and_is_named_on_a_slow_one(self):
        self.assertEqual(late(some=summary.TEST_CPU_S), ([], ""))
        failed, said = late(some=summary.TEST_CPU_S + 1)
        self.assertEqual(failed, [])
        self.assertIn("some computed for 31 s", said)
        failed, _ = late(some=summary.TEST_CPU_S * summary.MARGIN + 1)
        self.assertRegex(failed[0], "some computed for 61 s; make it shorter")

    def test_a_reason_is_enough_for_one_test_and_not_for_all_of_them(self):
        self.assertEqual(late(python_offload=600), ([], ""))
        failed, _ = late(python_offload=summary.ALL_TESTS_CPU_S * summary.MARGIN + 1)
        self.assertRegex(failed[0], "the tests computed for 1801 s of the 900")


class Timed(unittest.TestCase):
    def run_timed(self, program):
        return subprocess.run([SCRIPTS / "timed-test", sys.executable, "-c", program],
                              capture_output=True, text=True, check=False)

    def test_it_ends_as_the_test_does(self):
        self.assertEqual(self.run_timed("raise SystemExit(77)").returncode, 77)
        for number in (signal.SIGABRT, signal.SIGKILL):
            done = self.run_timed(f"import os; os.kill(os.getpid(), {int(number)})")
            self.assertEqual(done.returncode, -number)

    def test_it_says_how_long_children_computed(self):
        burn = "import time\nwhile time.process_time() < 0.3: pass"
        done = self.run_timed("import subprocess, sys; print('said');"
                              f"subprocess.run([sys.executable, '-c', {burn!r}], check=True)")
        self.assertEqual(done.stdout, "said\n")
        self.assertGreaterEqual(float(summary.COMPUTED.search(done.stderr)[1]), 0.3)


if __name__ == "__main__":
    unittest.main()
