#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-waits finds a wait that docs/threads.md does not list.

usage: waits_test.py SOURCE
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1))


def checked(source, rows, place="lib/room/a.cpp"):
    """The exit status and the words about a library of one source."""
    with tempfile.TemporaryDirectory() as tree:
        for name, text in ((place, source), ("docs/threads.md", rows)):
            path = Path(tree, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        result = subprocess.run([sys.executable, "-B", SOURCE / "scripts" / "check-waits", tree],
                                capture_output=True, text=True, check=False)
    return result.returncode, result.stdout


class Waits(unittest.TestCase):
    def test_each_wait_has_a_row_and_each_row_a_wait(self):
        waits = "    while (!done_) changed_.wait(mutex_);\n"
        row = "| `room/a.cpp` | 1 | work | close |\n"
        self.assertEqual(checked(waits, row), (0, "1 waits, each in docs/threads.md\n"))
        for source, rows in ((waits, ""), (2 * waits, row), ("// .wait(mutex)\n", row)):
            status, words = checked(source, rows)
            self.assertEqual(status, 1)
            self.assertIn("room/a.cpp has", words)

    def test_waits_of_all_kinds_are_seen(self):
        waits = ("changed.wait_until(mutex, time)", "thread.join()", "pthread_join(one, 0)",
                     "dispatch_.wait_progress(deadline)", "pipeline.sleep(waiter)",
                     "std::this_thread::sleep_for(kRest)", "futex(&word, FUTEX_WAIT, 0)",
                     "ops->wait(memory, mark)", "sleepers_.sleep_on(waiter, deadline, true)",
                     "ready.wait_for(lock, rest)", "latch.arrive_and_wait()", "wake.acquire()",
                     "pthread_cond_timedwait(&c, &m, &t)", "sem_wait(&s)", "usleep(5)",
                     "::ppoll(&fd, 1, &time, nullptr)", "epoll_wait(fd, &e, 1, -1)",
                     "futex(&word, FUTEX_WAIT_PRIVATE, 0)", "std::this_thread::yield()",
                     "changed.wait(\n        mutex)", "ops.poll(storage, done, n, wait_ns)",
                     "await_others(waiter)", "touches.await_concealed(views, ids, 0, 0)")
        for name in "lib/room/a.cpp", "lib/room/a.h", "drivers/one/a.cpp":
            text = "".join(f"    (void){wait};\n" for wait in waits)
            self.assertIn(f"{name.removeprefix('lib/')} has {len(waits)} waits",
                          checked(text, "", name)[1])

    def test_the_library_is_listed(self):
        result = subprocess.run([SOURCE / "scripts" / "check-waits"], capture_output=True,
                                text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
