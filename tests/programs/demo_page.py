# SPDX-License-Identifier: Apache-2.0
"""The demo from its command to its page: the same bits, both phases, the plan and its prediction.

Few steps and little text; the page itself is tested in a browser elsewhere.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import unittest

DEMO, BUILD = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
MIB = 1 << 20


def run_demo(folder, *arguments):
    page = pathlib.Path(folder) / "page.html"
    command = [sys.executable, "-B", DEMO, "--build", str(BUILD), "--nvme", folder,
               "--report", str(page), *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    # Few steps teach no UTF-8: the sample may have any byte.
    ran = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8",
                         errors="replace", check=False)
    return ran, page


def run_of(page):
    """The report that a page was made of."""
    found = re.search(r'<script[^>]*id="run"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found.group(1))


def was_planned(run):
    return any("least_ns" in step for step in run["history"]["steps"])


class Demo(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="stepwell-demo-")
        self.addCleanup(self.folder.cleanup)

    def test_one_command_trains_beyond_its_memory_and_shows_where_the_time_went(self):
        # Planning runs beside the steps, and has less of a machine that others use.
        for steps in (12, 24, 48):
            ran, page = run_demo(self.folder.name, f"--steps={steps}", "--compare=2",
                                 "--sample=40")
            if ran.returncode != 0 or was_planned(run_of(page)):
                break
        said = ran.stdout
        self.assertEqual(ran.returncode, 0, said + ran.stderr)
        self.assertIn("losses bit-identical: yes (2 steps compared)", said)
        self.assertGreaterEqual(float(re.search(r"budgets 128 MiB = ([\d.]+)", said).group(1)), 3)
        self.assertIn(page.as_uri(), said)

        run = run_of(page)
        self.assertEqual({phase["name"]: phase["steps"] for phase in run["phases"]},
                         {"train": steps, "predict": 40})
        numbers = {phase["name"]: phase["number"] for phase in run["phases"]}
        for tier in run["tiers"]:
            self.assertLessEqual(tier["peak_bytes"], tier["budget_bytes"])
        history = run["history"]
        self.assertEqual(len(history["steps"]), steps + 40)
        links = {link["link"]: link["bytes"] for link in run["links"]}
        self.assertGreater(links["nvme_to_host"] + links["nvme_to_device"], steps * 128 * MIB,
                           "each step reads what does not fit")
        train = [step for step in history["steps"] if step["phase"] == numbers["train"]]
        self.assertTrue(all(step["bound_ns"] > 0 for step in train[1:]))
        self.assertTrue(was_planned(run), "a plan drove some of them")
        drawn = [step["step"] for step in train for window in history["older_windows"]
                 if window["begin_ns"] <= step["begin_ns"] < window["end_ns"]]
        self.assertEqual(drawn[-1], steps, "the training is drawn, not the text alone")
        plan = next(plan for plan in run["plan"]["phases"] if plan["name"] == "train")
        self.assertGreater(len(plan["candidates"]), 3)
        self.assertTrue(all(one["step_ns"] > 0 for one in plan["candidates"]))
        self.assertEqual([turn["phase"] for turn in plan["predicted"]["turns"]],
                         [numbers["train"]])
        self.assertGreater(len(plan["predicted"]["spans"]), 10)
        # Computing was learned in the first steps, beside the planner; this bound is of now.
        walls = [step["wall_ns"] for step in train[1:]]
        self.assertLess(plan["bound"]["now_ns"], 1.05 * max(walls))
        self.assertGreater(plan["bound"]["now_ns"], 0.25 * statistics.median(walls))

    def test_over_ranks_each_has_its_part_and_the_page_is_of_the_first(self):
        if not (BUILD / "examples/train_gpt/train_gpt_mpi").exists():
            self.skipTest("train_gpt_mpi is not built, which needs libopenmpi-dev")
        ran, page = run_demo(self.folder.name, "--ranks=2", "--steps=3", "--compare=2")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("losses within rounding: yes (2 steps compared)", ran.stdout)
        self.assertRegex(ran.stdout, r"states of a rank: 1\.0\d\d of 1/2: yes")
        ranks = next(link for link in run_of(page)["links"] if link["link"] == "ranks")
        self.assertGreater(ranks["bytes"], 0)

    def test_what_it_cannot_do_it_refuses_in_a_sentence(self):
        for arguments, words in (
                (["--nvme", "/nowhere/at/all"], "/nowhere/at/all is not a directory"),
                (["--device-bytes=0", "--host-bytes=0"], "the budgets are 0"),
                (["--compare=9", "--steps=8"], "--compare is 9; it is 1 to --steps, which is 8"),
                ([f"--host-bytes={1 << 30}", "--compare=1"], "lower the budgets")):
            ran, page = run_demo(self.folder.name, *arguments)
            self.assertNotEqual(ran.returncode, 0, words)
            self.assertIn(words, ran.stderr)
            self.assertFalse(page.exists())


if __name__ == "__main__":
    unittest.main()
