# SPDX-License-Identifier: Apache-2.0
"""bench/torch_gpu_check.py runs to its end on small models: its figures are there, whatever they
are, and no budget changes a bit.

usage: test_gpu_check.py DEVICE [MODULE]: `cpu`, a few cases; `late`, all of them, over the double
of CUDA's driver.
"""
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

DEVICE, MODULE = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
sys.argv[1:] = []
CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/torch_gpu_check.py")
FIELDS = {"name", "value", "unit", "against", "reference", "ratio", "spread", "pairs", "goal",
          "at_most", "reached", "device", "versions"}
# Why a case may be skipped here.
SKIPS = {"fsdp2": "FSDP2 does not know", "deepspeed": "deepspeed is not here",
         "torchao": "torchao.optim is not here"}
HAS_TORCH = importlib.util.find_spec("torch") is not None


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Checks(unittest.TestCase):
    def setUp(self):
        # A module is loaded from where nobody else can write.
        self.directory = tempfile.mkdtemp(prefix="stepwell-check-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.directory)
        self.out = os.path.join(self.directory, "out")

    def run_of(self, *words, status=0):
        """Lines of the program by what they tell: figures, absent ones, and ends of cases."""
        command = [sys.executable, "-B", CHECK, "--tiny", "--device", DEVICE, "--out", self.out]
        if MODULE is not None:
            module = os.path.join(self.directory, "libstepwell-cuda.so")
            shutil.copyfile(MODULE, module)
            os.chmod(module, 0o644)
            command += ["--module", module]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        with open(os.path.join(self.out, "log.txt"), encoding="utf-8") as log:
            said = done.stdout + done.stderr + log.read()[-3000:]
        self.assertEqual(done.returncode, status, said)
        with open(os.path.join(self.out, "figures.jsonl"), encoding="utf-8") as file:
            self.assertEqual(file.read(), done.stdout)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines:
            if "value" in line:
                self.assertLessEqual(FIELDS, set(line))
                for number in (line["value"], line["ratio"], line["reference"]):
                    self.assertTrue(number is None or math.isfinite(number), line)
        return ({line["name"]: line for line in lines if "value" in line},
                {line["case"]: line for line in lines if "ended" in line}, lines)

    @unittest.skipUnless(DEVICE == "late", "of the device late")
    def test_all_cases_give_their_figures(self):
        listed = subprocess.run([sys.executable, CHECK], capture_output=True, text=True, check=True)
        cases = [line.split()[0] for line in listed.stdout.splitlines()]
        if importlib.util.find_spec("peft") is None or \
                importlib.util.find_spec("transformers") is None:
            cases = [case for case in cases
                     if case not in ("bits", "accelerate", "llama8b", "lora", "largest")]
        figures, ends, lines = self.run_of(*cases, "--nvme", self.directory)
        why = {line["case"]: line["skipped"] for line in lines if "skipped" in line}
        for case in cases:
            if case in SKIPS:
                self.assertEqual(ends[case]["ended"], "skipped")
                self.assertIn(SKIPS[case], why[case])
            else:
                self.assertEqual(ends[case]["ended"], "passed", case)
                self.assertTrue(any(case in name for name in figures), case)
        self.assertEqual([line for line in lines if "absent" in line], [])
        for name, figure in figures.items():
            if name.startswith("bits."):
                self.assertNotEqual(figure["reached"], False, name)
            if name.startswith("bits.") and name.endswith("eighth"):
                self.assertGreater(figure["moved"]["up"], 0, name)
        if "STW_CUDA_DOUBLE_KERNELS" in os.environ:  # else updates are the host's
            self.assertEqual(figures["resident_bytes"]["value"], 0)

    @unittest.skipUnless(DEVICE == "cpu", "of the device cpu")
    def test_a_ratio_has_its_reference_and_verdict(self):
        figure = self.run_of("gpt")[0]["gpt.quarter"]
        self.assertEqual(figure["reached"], figure["ratio"] >= figure["goal"])
        self.assertEqual(figure["pairs"], 5)
        self.assertLessEqual(figure["spread"][0], figure["ratio"])
        self.assertLessEqual(figure["ratio"], figure["spread"][1])
        self.assertGreater(figure["reference"], 0)

    @unittest.skipUnless(DEVICE == "cpu", "of the device cpu")
    def test_a_case_that_fails_is_told_and_the_next_one_runs(self):
        missing = os.path.join(self.directory, "missing")
        _, ends, lines = self.run_of("machine", "deepspeed", "--nvme", missing, status=1)
        self.assertEqual(ends["machine"]["ended"], "failed")
        self.assertIn({"case": "machine", "failed": "FileNotFoundError: [Errno 2] No such file or "
                       f"directory: '{missing}'"}, lines)
        self.assertEqual(ends["deepspeed"]["ended"], "skipped")

    @unittest.skipUnless(DEVICE == "cpu", "of the device cpu")
    def test_a_case_that_takes_too_long_is_killed_and_named(self):
        _, ends, _ = self.run_of("bounds", "--limit", "0.01", status=1)
        self.assertEqual(ends["bounds"]["ended"], "killed")
        self.assertEqual(ends["bounds"]["why"], "it was not done in 0.01 s")

    @unittest.skipUnless(DEVICE == "cpu", "of the device cpu")
    def test_what_there_is_no_time_for_is_named(self):
        self.assertEqual(self.run_of("gpt", "--seconds", "5")[1]["gpt"]["ended"], "not begun")


if __name__ == "__main__":
    unittest.main()
