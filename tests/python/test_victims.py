# SPDX-License-Identifier: Apache-2.0
"""Victim policies in Python: what they are shown, what they change, and how they end."""
import threading
import time
import unittest

import stepwell
import support
from support import BLOCK

F32 = BLOCK // 4


class Policies(support.Machine):
    options = {"host_bytes": 0}

    def scored(self, rank):
        """Until scores of this policy were taken."""
        before = self.runtime.tier_stats("device").policy_calls
        self.runtime.set_victim_policy(rank)
        deadline = time.monotonic() + 30
        while self.runtime.tier_stats("device").policy_calls == before:
            self.assertLess(time.monotonic(), deadline)

    def resident(self, tensor):
        return bool(tensor.info().residence & stepwell.Allow.DEVICE)

    def test_a_policy_says_what_leaves(self):
        tensors = [self.floats(F32, None, number) for number in range(8)]
        for tensor in tensors:
            tensor.fetch().release()
        self.runtime.drain()
        self.scored(lambda tier, device, victims:
                    [-1 if victim.tensor is tensors[6] else 0 for victim in victims])
        self.floats(F32, None, 8).fetch().release()
        self.assertEqual([self.resident(tensor) for tensor in tensors],
                         [number != 6 for number in range(8)])
        stats = self.runtime.tier_stats("device")
        self.assertGreaterEqual(stats.policy_scores, 8)

    def test_a_policy_sees_tensors_as_they_are(self):
        seen = []
        tensor = self.runtime.create("w", F32, "f32", role="cache",
                                     policy=stepwell.Policy(retention="keep", priority=3))
        self.runtime.create("dropped", F32, "f32")
        tensor.fill(1)

        def rank(tier, device, victims):
            seen.append((tier, device, {victim.tensor: victim for victim in victims}))
            return [0] * len(victims)

        with tensor.fetch():
            self.scored(rank)
        tier, device, victims = seen[-1]
        self.assertEqual((tier, device), (stepwell.Tier.DEVICE, 0))
        victim = victims[tensor]
        self.assertEqual((victim.bytes, victim.role, victim.retention, victim.priority),
                         (BLOCK, stepwell.Role.CACHE, stepwell.Retain.KEEP, 3))
        self.assertEqual((victim.pinned, victim.shared, victim.next_use), (True, False, None))
        self.assertIn(None, victims)  # nobody holds the other

    def test_it_is_called_on_another_thread_and_no_more_once_removed(self):
        threads = []

        def rank(tier, device, victims):
            threads.append(threading.get_ident())
            return [0] * len(victims)

        self.floats(F32, None, 1)
        self.scored(rank)
        self.assertNotIn(threading.get_ident(), threads)
        self.runtime.set_victim_policy(None)
        calls = len(threads)
        with self.runtime.phase("p").step():
            pass
        self.runtime.close()
        self.assertEqual(len(threads), calls)

    def test_a_policy_that_does_not_return_ends_no_other_call(self):
        inside, go_on = threading.Event(), threading.Event()

        def rank(tier, device, victims):
            inside.set()
            go_on.wait()
            return [0] * len(victims)

        tensors = [self.floats(F32, None, number) for number in range(12)]
        self.runtime.set_victim_policy(rank)
        inside.wait()
        for tensor in tensors:
            tensor.fetch().release()
        with self.assertRaises(stepwell.TimedOutError):
            self.runtime.set_victim_policy(None, timeout=0.01)
        with self.assertRaises(stepwell.TimedOutError):
            self.runtime.close(timeout=0.01)
        go_on.set()
        self.runtime.set_victim_policy(None)

    def test_no_function_is_refused(self):
        with self.assertRaises(stepwell.InvalidError):
            stepwell.errors.check(stepwell._runtime.lib.stw_runtime_set_victim_policy(
                self.runtime._handle, stepwell._abi.stw_victim_policy.initial(), 0))


PROGRAM = """
import sys, threading, stepwell
runtime = stepwell.Runtime(host_bytes=1 << 20, block_bytes=stepwell.BLOCK_64K)
tensor = runtime.create("t", 100, "f32")
called = threading.Event()
def rank(tier, device, victims):
    called.set()
    if sys.argv[1] == "raise":
        raise RuntimeError("told to ctypes")
    if sys.argv[1] == "short":
        return []
    return [1.0] * len(victims)
runtime.set_victim_policy(rank)
called.wait()
print("end")
"""


class Ends(unittest.TestCase):
    def test_the_interpreter_ends_with_a_policy_set(self):
        self.assertEqual(support.run_program(PROGRAM, "score"), (0, "end\n"))

    def test_what_a_policy_raises_is_printed(self):
        status, text = support.run_program(PROGRAM, "raise")
        self.assertEqual(status, 0)
        self.assertIn("told to ctypes", text)
        self.assertIn("0 scores for 1 victims", support.run_program(PROGRAM, "short")[1])


if __name__ == "__main__":
    support.main()
