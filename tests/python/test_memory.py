# SPDX-License-Identifier: Apache-2.0
"""Pieces of host memory: what they show, how long they live, what is refused."""
import gc
import unittest

import stepwell
import support
from support import BLOCK, budget_sentence, numpy


class Pieces(support.Machine):
    options = {"host_bytes": 48 * BLOCK, "host_scratch_bytes": 32 * BLOCK}

    def used(self):
        return self.runtime.tier_stats("host").scratch_used_bytes

    def test_a_piece_is_memory_until_it_is_freed(self):
        with self.runtime.host_alloc(5000, zero=True) as piece:
            self.assertEqual(bytes(piece.bytes), bytes(5000))
            piece.bytes[4999] = 7
            self.assertEqual(piece.bytes[4999], 7)
            self.assertEqual((piece.nbytes, piece.address % 64), (5000, 0))
            self.assertEqual(self.used(), 8192)
        self.assertEqual(self.used(), 0)
        with self.assertRaises(stepwell.ClosedError):
            piece.bytes
        piece.free()
        self.runtime.host_alloc(1)  # dropped
        self.assertEqual(self.used(), 0)

    def test_pieces_are_aligned_as_asked(self):
        pieces = [self.runtime.host_alloc(100, align=1 << bit) for bit in range(17)]
        self.assertEqual([piece.address % (1 << bit) for bit, piece in enumerate(pieces)], [0] * 17)

    def test_a_memoryview_keeps_the_piece(self):
        piece = self.runtime.host_alloc(100)
        part = piece.bytes[10:20]
        piece.free()
        del piece
        gc.collect()
        self.assertGreater(self.used(), 0)
        part[:] = b"0123456789"
        del part
        self.assertEqual(self.used(), 0)

    @support.needs_numpy
    def test_an_array_keeps_the_piece_past_its_runtime(self):
        piece = self.runtime.host_alloc(4 * 1000)
        array = piece.numpy("f32", (10, 100))
        self.assertEqual((array.shape, array.dtype), ((10, 100), numpy.float32))
        self.assertEqual(piece.numpy("f64").shape, (500,))
        array[:] = 3
        tensor = self.runtime.create("t", 1000, "f32")
        tensor.write(array)
        self.assertEqual(float(tensor.read().sum()), 3000)
        piece.free()
        with self.assertRaises(stepwell.BusyError):
            self.runtime.close()
        self.runtime.close(deferred=True)
        array[:] = 4
        self.assertEqual(float(array.sum()), 4000)

    def test_what_cannot_fit_is_refused(self):
        with self.assertRaises(stepwell.BudgetError) as caught:
            self.runtime.host_alloc(33 * BLOCK)
        self.assertIn("host_scratch_bytes", str(caught.exception))
        needed, total, _ = budget_sentence.check(caught.exception)
        self.assertEqual((caught.exception.free_bytes, total), (32 * BLOCK, 32 * BLOCK))
        self.assertGreater(needed, total)
        for wrong in ({"nbytes": 0}, {"nbytes": 1, "align": 3}):
            with self.assertRaises(stepwell.InvalidError):
                self.runtime.host_alloc(**wrong)
        self.assertEqual(self.runtime.tier_stats("host").scratch_bytes, 32 * BLOCK)
        with support.open_small(self.directory) as without:
            with self.assertRaises(stepwell.UnsupportedError):
                without.host_alloc(1)


PROGRAM = """
import os, stepwell
runtime = stepwell.Runtime(host_bytes=4 << 20, host_scratch_bytes=1 << 20,
                           block_bytes=stepwell.BLOCK_64K)
kept = runtime.host_alloc(100).bytes
kept[0] = 1
child = os.fork()
if child == 0:
    kept = None  # not the child's to free
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), kept[0])
"""


class Ends(unittest.TestCase):
    def test_forks_and_the_end_of_the_interpreter_leave_pieces_alone(self):
        self.assertEqual(support.run_program(PROGRAM), (0, "0 1\n"))


if __name__ == "__main__":
    support.main()
