# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload() in training programs drawn at random: plain torch's bits, or a refusal.

STEPWELL_DRAWS: how many; STEPWELL_SEED: the number of the first, for the draws of an earlier run.
Skipped where PyTorch is not installed.
"""
import collections
import importlib.util
import os
import unittest
from unittest import mock

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch

    import offload_programs as programs
    from stepwell.torch import _kinds

DRAWS = int(os.environ.get("STEPWELL_DRAWS", "200"))
SEED = int(os.environ.get("STEPWELL_SEED", "1"))
REPORTED = 3  # failing draws after which a run ends


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Property(unittest.TestCase):
    def test_a_drawn_program_gives_the_bits_of_plain_torch_or_is_refused_by_name(self):
        torch.set_num_threads(1)
        counts, failed = collections.Counter(), []
        print(f"STEPWELL_DRAWS={DRAWS} STEPWELL_SEED={SEED}", flush=True)
        for seed in range(SEED, SEED + DRAWS):
            draw = programs.drawn(seed)
            print(seed, end=" ", flush=True)  # the last one, if the process ends
            verdict, _ = programs.judge(draw)
            counts[verdict] += 1
            if verdict == "differs":
                least = programs.shrunk(draw)
                failed.append(f"draw {seed} ({least!r})\n{programs.judge(least)[1]}\n"
                              f"{programs.BUDGETS[least.budget]}\n{least.text()}")
                print("\n" + failed[-1], flush=True)  # a long run may be ended before its end
                if len(failed) >= REPORTED:
                    break
        print(dict(counts))
        self.assertEqual(len(failed), 0, "they are printed above")
        self.assertGreater(counts["equal"], DRAWS // 2, counts)

    def test_programs_that_have_differed_are_equal(self):
        torch.set_num_threads(1)
        for model, optimizer, budget, steps in (
                ("frozen", "Adagrad", "resident", [["commit and resume"]]),
                ("stack", "AdamW", "resident", [
                    [], ["freeze", "close and offload", "commit and resume"], ["average"]]),
                ("stack", "RMSprop", "update_in_backward", [
                    [], ["close and offload", "drop a state"], ["load a part"], []]),
                ("scalars", "RMSprop", "resident", [[], ["commit and resume"]]),
                ("stack", "Adafactor", "resident", [["commit and resume"]]),
                ("scalars", "SGD with momentum", "resident", [
                    [], ["commit and resume", "see the optimizer"]]),
                ("stack", "Adagrad", "resident", [
                    ["load an early state"], ["load an early state"], []]),
                ("stack", "Adagrad", "resident", [
                    ["load an early state", "close and offload"], ["load an early state"]]),
                ("stack", "Adagrad", "resident", [
                    ["load an early state"], ["clear the state", "load an early state"],
                    ["read weights"]]),
                ("stack", "SGD", "resident", [["write data", "write a row"], [], [], []]),
                ("stack", "RMSprop", "update_in_backward", [
                    ["freeze"], ["commit and resume"], ["load a part"]]),
                ("stack", "AdamW", "resident", [
                    ["freeze"], ["commit and resume"], ["commit and resume"], ["load a part"]]),
                ("checkpointed", "RMSprop", "update_in_backward", [
                    ["commit and resume"], ["freeze"]])):
            draw = programs.Draw(model, optimizer, budget, steps)
            with self.subTest(repr(draw)):
                self.assertEqual(programs.judge(draw), ("equal", ""))

    def test_a_planted_fault_is_found_and_its_program_reduced(self):
        kind = _kinds.KINDS[torch.optim.AdamW]
        right = kind.hyper
        draw = programs.Draw("frozen", "AdamW", "tight", [
            ["average", "clip values"], ["learning rate", "scale gradients"], []])
        self.assertEqual(programs.judge(draw), ("equal", ""))
        with mock.patch.object(kind, "hyper",  # as it was at first
                               lambda group: right({**group, "lr": 0.01})):
            least = programs.shrunk(draw)
            self.assertRegex(programs.judge(least)[1], "^(loss|model) .* in plain torch")
        self.assertEqual(sum(least.steps, []), ["learning rate"])
        self.assertEqual((least.model, least.budget), ("stack", "resident"))
        self.assertIn('group["lr"] *= 0.5', least.text())

    def test_every_thing_that_a_loop_does_runs_in_plain_torch(self):
        for name in programs.THINGS:
            once = programs.THINGS[name][0] == "once"
            draw = programs.Draw("stack", "Modes", "resident", [[name], [] if once else [name]])
            with self.subTest(name=name):
                _, error = programs.run(draw.text(), None)
                self.assertIsNone(error, draw.text())

if __name__ == "__main__":
    support.main()
