# SPDX-License-Identifier: Apache-2.0
"""Generations: what was committed is back in another runtime, and in another process."""
import array
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import stepwell
import support
from support import BLOCK

COUNT = 3 * BLOCK // 4 + 5  # four blocks of f32, the last in part

# Commits, says so, changes everything and waits to be killed.
KILLED = """
import sys, time
import stepwell, support
runtime = support.open_small(sys.argv[1], store_name="run", overwrite=True)
tensor = runtime.create("w", int(sys.argv[2]), durable=True)
tensor.fill(1.5)
number = runtime.commit("before", b"step 7")
tensor.fill(2.5)
tensor.evict("device")
tensor.evict("host")
print("committed", number, flush=True)
time.sleep(600)
"""


def floats_of(tensor):
    """Its bytes, with NumPy or without."""
    return memoryview(tensor.read(bytearray(tensor.nbytes))).cast("f").tolist()


class Stored(unittest.TestCase):
    """Each test has a directory of its own, and opens the store in it as often as it likes."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-python-", dir=".")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def open(self, **options):
        return support.open_small(self.directory, **{"store_name": "run", **options})

    def committed(self, *values, **options):
        """A generation for each value, of a tensor "w" that is filled with it."""
        with self.open(**options) as runtime:
            tensor = runtime.create("w", COUNT, durable=True)
            self.assertFalse(tensor.restored)
            for value in values:
                tensor.fill(value)
                runtime.commit(f"value {value}", str(value).encode())

    def refused(self, kind, words, call):
        with self.assertRaises(kind) as caught:
            call()
        self.assertIn(words, str(caught.exception))


class RoundTrips(Stored):
    def test_contents_label_and_metadata_are_back(self):
        before = time.time_ns()
        self.committed(0.5)
        with self.open(resume=True) as runtime:
            info = runtime.generation()
            self.assertEqual((info.generation, info.label, info.metadata, info.tensors, info.ranks),
                             (1, "value 0.5", b"0.5", 1, 1))
            self.assertEqual(info.tensor_bytes, 4 * COUNT)
            self.assertTrue(before <= info.time_unix_ns <= time.time_ns())
            self.assertEqual(runtime.generation(1), info)
            tensor = runtime.create("w", COUNT, durable=True)
            other = runtime.create("v", 4, durable=True)
            self.assertEqual((tensor.restored, tensor.info().restored), (True, True))
            self.assertFalse(other.restored)
            self.assertEqual(tensor.info().state, stepwell.State.VALID)
            self.assertEqual(floats_of(tensor), [0.5] * COUNT)

    def test_a_commit_is_complete_or_says_what_it_leaves_out(self):
        self.committed(0.5)
        logger = logging.getLogger("stepwell-generations")
        with self.open(resume=True, log=logger) as runtime:
            runtime.create("v", 4, durable=True).fill(1)
            with self.assertLogs(logger, "WARNING") as lines:
                self.refused(stepwell.NotFoundError, "'w'", lambda: runtime.commit(complete=True))
            self.assertIn("'w' of generation 1", "".join(lines.output))
            self.assertEqual(runtime.generation().generation, 1)
            runtime.commit()
            self.assertEqual(runtime.generation().left_out, 1)
            runtime.commit(complete=True)
            self.assertEqual(runtime.generation().left_out, 0)

    def test_what_is_frozen_is_written_before_a_generation_has_it(self):
        with self.open() as runtime:
            base = runtime.create("base", COUNT, durable=True, read_only=True)
            self.assertTrue(base.info().frozen)
            base.write(array.array("f", [2.5] * COUNT))
            runtime.commit()
            self.refused(stepwell.InvalidError, "frozen",
                         lambda: base.write(array.array("f", [3.0] * COUNT)))
            self.refused(stepwell.InvalidError, "frozen", base.discard)
            base.freeze(False)
            self.assertFalse(base.info().frozen)
            base.fill(3.0)
            base.freeze()
            self.refused(stepwell.InvalidError, "read-only", lambda: base.fill(4.0))
            self.assertEqual(floats_of(base), [3.0] * COUNT)

    def test_one_may_be_resumed_by_its_number(self):
        self.committed(1.0, 2.0, 3.0, generations_kept=3)
        with self.open(resume=2, generations_kept=3) as runtime:
            self.assertEqual(runtime.generation().metadata, b"2.0")
            tensor = runtime.create("w", COUNT, durable=True)
            self.assertEqual(floats_of(tensor), [2.0] * COUNT)

    def test_the_last_two_are_kept(self):
        with self.open() as runtime:
            self.refused(stepwell.NotFoundError, "no generation yet", runtime.generation)
            tensor = runtime.create("w", COUNT, durable=True)
            for value in range(4):
                tensor.fill(value)
                self.assertEqual(runtime.commit(metadata=bytes([value])), value + 1)
            self.assertEqual([runtime.generation(number).metadata for number in (0, 3, 4)],
                             [b"\3", b"\2", b"\3"])
            self.assertEqual(runtime.generation().label, "")
            self.refused(stepwell.NotFoundError, "it has 4, 3", lambda: runtime.generation(2))

    def test_metadata_is_any_bytes(self):
        with self.open() as runtime:
            for metadata in (b"", b"\0" * 5, bytearray(b"a\0b"), memoryview(b"xyz")[::2],
                             os.urandom(stepwell.METADATA_BYTES_MAX)):
                runtime.commit(metadata=metadata)
                self.assertEqual(runtime.generation().metadata, bytes(metadata))
            label = "\u00e9" * (stepwell.LABEL_BYTES_MAX // 2)
            runtime.commit(label)
            self.assertEqual(runtime.generation().label, label)

    def test_states_and_counts_of_a_durable_optimizer_are_back(self):
        def made(runtime):
            tensor = runtime.create("w", COUNT, role="param", durable=True)
            gradient = runtime.create("g", COUNT, role="grad")
            return tensor, gradient, runtime.adam(durable=True, name="adam")

        with self.open() as runtime:
            tensor, gradient, optimizer = made(runtime)
            tensor.fill(1)
            optimizer.add(tensor, gradient)
            for _ in range(3):
                gradient.fill(0.25)
                optimizer.step()
            runtime.commit()
            values, moments = floats_of(tensor), floats_of(optimizer.state(tensor, "exp_avg"))
        with self.open(resume=True) as runtime:
            tensor, gradient, optimizer = made(runtime)
            optimizer.add(tensor, gradient)
            self.assertEqual(optimizer.count(tensor), 3)
            self.assertTrue(optimizer.state(tensor, "exp_avg").restored)
            self.assertEqual(floats_of(optimizer.state(tensor, "exp_avg")), moments)
            self.assertEqual(floats_of(tensor), values)
            self.assertNotEqual(values[0], 1)

    def test_what_a_killed_process_has_committed_is_there(self):
        child = subprocess.Popen(
            [sys.executable, "-B", "-c", KILLED, self.directory, str(COUNT)],
            stdout=subprocess.PIPE, text=True, env=support.environment())
        with child:
            try:
                self.assertEqual(child.stdout.readline(), "committed 1\n")
                self.refused(stepwell.LockedError, "run", lambda: self.open(resume=True))
            finally:
                child.send_signal(signal.SIGKILL)
        self.assertEqual(child.returncode, -signal.SIGKILL)
        with self.open(resume=True) as runtime:
            info = runtime.generation()
            self.assertEqual((info.generation, info.label, info.metadata), (1, "before", b"step 7"))
            tensor = runtime.create("w", COUNT, durable=True)
            self.assertEqual(floats_of(tensor), [1.5] * COUNT)
            tensor.fill(3)
            self.assertEqual(runtime.commit(), 2)


class Opens(Stored):
    def test_a_store_is_resumed_or_overwritten_by_name_alone(self):
        self.refused(stepwell.NotFoundError, "run", lambda: self.open(resume=True))
        self.committed(1.0)
        self.refused(stepwell.ExistsError, "run", self.open)
        self.refused(stepwell.NotFoundError, "run", lambda: self.open(resume=9))
        self.committed(2.0, overwrite=True)
        with self.open(resume=True, overwrite=True) as runtime:
            self.assertEqual(runtime.generation().metadata, b"2.0")

    def test_without_a_store_to_resume_overwrite_makes_one(self):
        with self.open(resume=True, overwrite=True) as runtime:
            self.assertFalse(runtime.create("w", COUNT, durable=True).restored)
            self.assertEqual(runtime.commit(), 1)

    def test_what_makes_no_sense_is_refused(self):
        self.refused(ValueError, "numbered from 1", lambda: self.open(resume=0))
        self.refused(ValueError, "numbered from 1", lambda: self.open(resume=-1))
        self.refused(stepwell.InvalidError, "store_name", lambda: self.open(store_name="a/b"))
        self.refused(stepwell.LimitError, "at most 7", lambda: self.open(generations_kept=8))
        for alone in ({"resume": True}, {"overwrite": True}, {"generations_kept": 3}):
            self.refused(stepwell.InvalidError, "store_name",
                         lambda alone=alone: self.open(store_name=None, **alone))
        self.assertEqual(os.listdir(self.directory), [])

    def test_without_a_budget_it_has_that_which_it_was_made_with(self):
        as_made = stepwell.Nvme(self.directory, driver_options="allow_tmpfs=1")
        self.refused(stepwell.NotFoundError, "nvme[0] has no budget",
                     lambda: self.open(resume=True, nvme=as_made))
        self.committed(1.0)
        with self.open(resume=True, nvme=as_made) as runtime:
            self.assertTrue(runtime.create("w", COUNT, "f32", durable=True).restored)

    def test_another_store_than_was_made_is_a_mismatch(self):
        self.committed(1.0)
        with self.assertRaises(stepwell.MismatchError):
            self.open(resume=True, generations_kept=3)
        with self.open(resume=True) as runtime:
            self.refused(stepwell.MismatchError, "'w'",
                         lambda: runtime.create("w", COUNT, "f16", durable=True))


class Refusals(Stored):
    def test_nothing_durable_without_a_store(self):
        with self.open(store_name=None) as runtime:
            for call in (runtime.commit, lambda: runtime.create("w", 4, durable=True),
                         lambda: runtime.adam(durable=True)):
                self.refused(stepwell.InvalidError, "store_name", call)
            self.refused(stepwell.InvalidError, "store_name", runtime.generation)

    def test_a_durable_tensor_has_a_name_and_may_live_at_nvme(self):
        with self.open() as runtime:
            self.refused(stepwell.InvalidError, "name", lambda: runtime.create(durable=True))
            near = stepwell.Policy(allowed_tiers=stepwell.Allow.HOST)
            self.refused(stepwell.InvalidError, "nvme",
                         lambda: runtime.create("w", 4, durable=True, policy=near))

    def test_open_views_that_may_write_durable_tensors_are_in_the_way(self):
        with self.open() as runtime:
            tensor = runtime.create("w", COUNT, durable=True)
            tensor.fill(1)
            with tensor.fetch("read_write"):
                self.refused(stepwell.BusyError, "'w'", runtime.commit)
            with tensor.fetch():
                self.assertEqual(runtime.commit(), 1)

    def test_label_and_metadata_have_limits(self):
        with self.open() as runtime:
            self.refused(stepwell.InvalidError, "label",
                         lambda: runtime.commit("a" * (stepwell.LABEL_BYTES_MAX + 1)))
            self.refused(stepwell.LimitError, "metadata_bytes", lambda: runtime.commit(
                metadata=bytes(stepwell.METADATA_BYTES_MAX + 1)))
            for wrong in (5, "text", None):
                with self.assertRaises(TypeError):
                    runtime.commit(metadata=wrong)
        with self.assertRaises(stepwell.ClosedError):
            runtime.commit()


if __name__ == "__main__":
    support.main()
