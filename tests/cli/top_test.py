#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stepwell top` beside processes that use the library: it shows their numbers, leaves them alone,
and says in one sentence why it cannot.

usage: top_test.py COMMAND
"""
import json
import os
import signal
import subprocess
import sys
import unittest

COMMAND = sys.argv.pop(1)
HITS = 5000

# Says a line, waits for one, does what it says. A fetch of two tensors in turn is never a repeat.
CHILD = f"""
import os, sys
import stepwell
runtime = stepwell.Runtime(host_bytes=16 << 20, profile="", probe=False, name="a \\033[31mrun")
a, b = (runtime.create(name, (1 << 18,)) for name in ("a", "b"))
phase = runtime.phase("train")
for tensor in (a, b):
    tensor.fill(1.0)
runtime.fetch(a, stepwell.READ_WRITE).release()  # a writer always asks the core
with phase.step():
    for _ in range({HITS} // 2):
        for tensor in (a, b):
            runtime.fetch(tensor).release()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "fork":
        alive, held = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(held)
            os.read(alive, 1)  # until its parent ends, and nothing of what that is told
            os._exit(0)
        print(child, flush=True)
        continue
    if line.strip() == "close":
        runtime.close()
    print("done", flush=True)
"""


class Child:
    """A process with a runtime, that does what it is told."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True)
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Top(unittest.TestCase):
    def top(self, *words, **how):
        return subprocess.run([COMMAND, "top", *words], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE, check=False, timeout=60, **how)

    def watch(self, process):
        return subprocess.Popen([COMMAND, "top", str(process), "--json"], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def refused(self, *words, **how):
        result = self.top(*words, **how)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, "one sentence")
        return result.stderr

    def test_the_numbers_of_a_running_process_are_shown(self):
        with Child() as child:
            with self.watch(child.process.pid) as watch:
                # A page a second; the one after the hits has them all.
                for line in watch.stdout:
                    page = json.loads(line)
                    if page["hits"] >= HITS and page["phases"][0]["steps"] == 1:
                        break
                watch.kill()
            self.assertEqual(page["hits"], HITS)
            self.assertGreater(page["misses"], 0)
            self.assertEqual(page["process"], child.process.pid)
            self.assertEqual([(tier["tier"], tier["budget_bytes"]) for tier in page["tiers"]],
                             [("host", 16 << 20)])
            self.assertEqual(page["tiers"][0]["used_bytes"], 2 << 20, "both share a block")
            self.assertGreater(page["phases"][0]["last_wall_ns"], 0)
            self.assertNotIn('"a"', json.dumps(page), "no names of tensors")
            text = self.top(str(child.process.pid), "--once")
            self.assertEqual((text.returncode, text.stderr), (0, ""))
            self.assertIn(f"process {child.process.pid}, open for", text.stdout)
            self.assertIn(f"hits {HITS} (", text.stdout)
            self.assertIn("2 MiB  16 MiB", text.stdout)
            self.assertIn("  1 done  ", text.stdout)
            self.assertNotIn("0.00 us", text.stdout)
            self.assertLessEqual(max(map(len, text.stdout.splitlines())), 60, text.stdout)
            self.assertNotIn("\033", text.stdout, "a name moves no cursor")

    def test_a_page_goes_with_the_runtime_and_is_no_childs(self):
        with Child() as child:
            child.process.stdin.write("fork\n")
            child.process.stdin.flush()
            forked = child.process.stdout.readline().strip()
            self.assertIn("has no runtime of Stepwell open", self.refused(forked, "--once"))
            os.kill(int(forked), signal.SIGKILL)
            with self.watch(child.process.pid) as watch:
                self.assertIn("hits", watch.stdout.readline())
                child.tell("close")
                _, said = watch.communicate(timeout=60)
            self.assertEqual(watch.returncode, 0)
            self.assertEqual(said, f"stepwell top: Process {child.process.pid} has closed its "
                                   "runtime.\n")

    def test_a_process_without_the_library_is_one_sentence(self):
        self.assertEqual(self.refused(str(os.getpid()), "--once"),
                         f"stepwell top: Process {os.getpid()} has no runtime of Stepwell open.\n")

    def test_a_process_that_ends_while_it_is_shown_is_one_sentence(self):
        with Child() as child:
            with self.watch(child.process.pid) as watch:
                self.assertIn("hits", watch.stdout.readline())
                child.process.kill()
                child.process.wait()
                _, said = watch.communicate(timeout=60)
            self.assertEqual(watch.returncode, 0)
            self.assertEqual(said, f"stepwell top: Process {child.process.pid} has ended.\n")
            self.assertIn("There is no process", self.refused(str(child.process.pid), "--once"))

    def test_no_such_process(self):
        self.assertEqual(self.refused("4194303"), "stepwell top: There is no process 4194303.\n")

    def test_the_process_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("only root can be another user")
        try:
            subprocess.run([COMMAND, "version"], user=65534, check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError) as error:
            self.skipTest(f"another user cannot run the command where it was built: {error}")
        with Child() as child:
            said = self.refused(str(child.process.pid), "--once", user=65534)
            self.assertIn("belongs to the user with number 0; run stepwell top as that user.", said)

    def test_pages_that_are_not_of_this_stepwell_are_not_shown(self):
        page = os.memfd_create("stepwell-stats")
        me = str(os.getpid())
        self.addCleanup(os.close, page)
        self.assertIn("has no runtime", self.refused(me), "too short")
        os.ftruncate(page, 32768)
        head = (0x3147415453505453).to_bytes(8, "little")
        os.pwrite(page, head + (7).to_bytes(8, "little"), 0)
        self.assertIn("being written each time", self.refused(me))
        with open("/proc/self/stat", encoding="utf-8") as stat:
            start = int(stat.read().rsplit(")", 1)[1].split()[19])
        for told, said in (({"process_start": start + 1}, "has no runtime"),
                           ({"process_start": start, "format": 2}, "its format is newer"),
                           ({"process_start": start, "format": 1}, "lacks what this stepwell")):
            text = json.dumps(told).encode()
            os.pwrite(page, head + (8).to_bytes(8, "little") + len(text).to_bytes(8, "little")
                      + text, 0)
            self.assertIn(said, self.refused(me))


if __name__ == "__main__":
    unittest.main()
