#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `stepwell report` in a headless Chromium: no error, nothing loaded, and the numbers
in the document are those of the report, at two widths, in both colour schemes, with keys alone.

usage: page_test.py COMMAND; skips with a reason where there is no Chromium. STEPWELL_PICTURES names
a directory for pictures of what was tested.
"""
import decimal
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import chromium

COMMAND = sys.argv.pop(1)
HOSTILE = "</script><img src=x onerror=document.documentElement.dataset.hacked=1>"
MIB, MS = 1 << 20, 1_000_000
CAUSES = ("nvme", "host_device", "collective", "room", "update")
LINKS = ("nvme_to_host", "host_to_nvme", "host_to_device", "device_to_host", "nvme_to_device",
         "device_to_nvme", "ranks")
TABLES = """[...document.querySelectorAll('table')].map((table) => ({
    caption: table.caption.textContent,
    columns: [...table.tHead.rows[0].cells].map((cell) => cell.textContent),
    rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => {
        const data = cell.querySelector('data');
        return data ? Number(data.value) : cell.textContent;
    }))}))"""


def stalls(number, key=""):
    return {cause + key: (number * 7 + i) * MS for i, cause in enumerate(CAUSES)}


def step(number):
    stall = stalls(number)
    wall = 1000 * MS + number * MS
    return {
        "phase": 0, "step": number, "begin_ns": number * 2000 * MS,
        "end_ns": number * 2000 * MS + wall, "planned": number > 1, "wall_ns": wall,
        "bound_ns": 800 * MS, "bound_by": "nvme_to_host", "compute_ns": wall - sum(stall.values()),
        "stall_ns": {"total": sum(stall.values()), **stall},
        "link_bytes": {link: 0 if link == "ranks" else (number + i) * MIB
                       for i, link in enumerate(LINKS)},
    }


def report():
    """As stw_report_write makes it, with a name that wants to be markup."""
    steps = [step(number) for number in range(1, 6)]
    tensors = [{"tensor": name, "waits": 3, "total_ns": sum(stalls(i, "_ns").values()),
                **stalls(i, "_ns")} for i, name in enumerate((HOSTILE, "", "layer1.weight"), 1)]
    spans = [[10_000 * MS + i * 100 * MS, 10_060 * MS + i * 100 * MS, 2 * MIB, 1, i % 2]
             for i in range(9)]
    tier = {"tier": "host", "device": 0, "budget_bytes": 64 * MIB, "used_bytes": 32 * MIB,
            "peak_bytes": 63 * MIB, "within_budget": True, "dirty_bytes": 1, "staging_bytes": 2,
            "scratch_bytes": 3, "evictions": 4567}
    link = {"device": 0, "transfers": 12, "busy_ns": 34 * MS, "busy_share": 0.25,
            "utilisation": None, "measured_bytes_per_s": 2_000_000_000, "errors": 0, "retries": 1}
    candidate = {"nvme_read_bytes": 5 * MIB, "nvme_write_bytes": 4 * MIB,
                 "host_to_device_bytes": 3 * MIB, "device_to_host_bytes": 2 * MIB,
                 "stall_ns": 20 * MS}
    return {
        "format": 1, "runtime": HOSTILE, "version": "0.1.0", "block_bytes": 2 * MIB,
        "elapsed_ns": 12_345 * MS, "threads": 2, "update": {"early": 4321, "undone": 17},
        "tiers": [{**tier, "tier": name} for name in ("device", "host", "nvme")],
        "links": [{**link, "link": name, "bytes": (i + 1) * 123 * MIB}
                  for i, name in enumerate(LINKS[:6])],
        "drivers": [{"used_for": "/data/<b>", "name": "aio", "kind": "storage", "bytes": 99 * MIB,
                     "remark": "slow & <i>steady</i>"}],
        "phases": [{"name": "train", "number": 0, "steps": 5, "aborted": 0,
                    "last": {"planned": True, "wall_ns": 1, "bound_ns": 1,
                             "stall_ns": {"total": 0, **dict.fromkeys(CAUSES, 0)},
                             "bytes": {"nvme_read": 0, "nvme_write": 0}},
                    "last_bound": {"by": "compute", "compute_ns": 1}}],
        "waste": {"bytes": 1234567, "share": 0.125, "roles": [
            {"role": "optimizer_state", "tensors": 7, "tensor_bytes": 10 * MIB,
             "charged_bytes": 12 * MIB}]},
        "errors": {"total": 1, "first": [{"status": -7, "tensor": HOSTILE, "count": 1,
                                          "sentence": "a <b>bad</b> block"}]},
        "history": {
            "steps_total": 105, "steps": steps,
            "stalls": {"tensors": tensors,
                       "others": {"waits": 1, "total_ns": 5, "nvme_ns": 5, "host_device_ns": 0,
                                  "collective_ns": 0, "room_ns": 0, "update_ns": 0}},
            "tiers": [{"tier": "host", "device": 0,
                       "samples": [[i * 100 * MS, (i % 60) * MIB] for i in range(120)]}],
            "window": {"begin_ns": 2000 * MS, "end_ns": steps[-1]["end_ns"], "steps": 5,
                       "whole": True, "tensors": [HOSTILE, "layer1.weight"],
                       "lanes": [
                           {"kind": "link", "lane": "nvme_to_host", "device": 0, "spans": spans},
                           {"kind": "link", "lane": "host_to_nvme", "device": 0, "spans": spans},
                           {"kind": "stall", "lane": "room", "device": 0,
                            "spans": [[10_100 * MS, 10_200 * MS, 0, 1, 1]]},
                           {"kind": "update", "lane": "update", "device": 0,
                            "spans": [[10_000 * MS, 10_050 * MS, 0, 2, 0]]}]},
        },
        "plan": {"phases": [{
            "name": "train", "chosen": "next use", "candidates": [
                {**candidate, "policy": "least recently used", "step_ns": 1500 * MS},
                {**candidate, "policy": "next use", "step_ns": 1100 * MS},
                {**candidate, "policy": "zig-zag", "step_ns": 1700 * MS, "earlier": True}],
            "bound": {"step_ns": 790 * MS, "compute_ns": 700 * MS,
                      "links": [{"link": "nvme_to_host", "bytes": 77 * MIB, "ns": 790 * MS}]},
            "predicted": {"step_ns": 1001 * MS, "spans": [
                {"lane": "nvme_to_host", "start_ns": 0, "end_ns": 500 * MS, "tensor": "x"},
                {"lane": "compute", "start_ns": 10 * MS, "end_ns": 900 * MS, "tensor": ""}]},
        }]},
    }


def three(number):
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return str(decimal.Decimal(number).quantize(decimal.Decimal(1).scaleb(-digits),
                                                decimal.ROUND_HALF_UP))


def in_units(number, units, base):
    at = 0
    while abs(number) >= base and at + 1 < len(units):
        number, at = number / base, at + 1
    return (str(int(number + 0.5)) if at == 0 else three(number)) + " " + units[at]


def words_of(number):
    """Every way in which the page may say a number."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    time = in_units(number, ("ns", "\u00b5s", "ms", "s"), 1000)
    if number >= 120e9:
        time = three(number / 60e9) + " min"
    whole = f"{int(number):,}".replace(",", "\u202f")
    return {in_units(number, units, 1024), time, whole, three(number * 100) + " %", "0 %",
            in_units(number, [unit + "/s" for unit in units[:5]], 1024)}


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="stepwell-page-")
        cls.browser = chromium.Browser(chromium.find())

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.directory.cleanup()

    def load(self, data, **how):
        """Make the page of a report and load it; returns its path."""
        source = pathlib.Path(self.directory.name) / "run.json"
        source.write_text(json.dumps(data), encoding="utf-8")
        subprocess.run([COMMAND, "report", str(source)], check=True, stdout=subprocess.DEVNULL)
        page = source.with_suffix(".html")
        self.browser.show(page, **how)
        return page

    def show(self, data, **how):
        """The same; any error of the page fails the test."""
        page = self.load(data, **how)
        self.assertEqual(self.browser.faults(), [])
        self.assertEqual(self.value("document.documentElement.dataset.errors"), "0")
        self.assertEqual(self.value("document.documentElement.dataset.ready"), "1")
        self.assertEqual(self.browser.requests(), [page.resolve().as_uri()], "it loads only itself")

    def value(self, expression):
        return self.browser.value(expression)

    def tables(self):
        return {table["caption"]: table for table in self.value(TABLES)}

    def test_numbers_in_the_tables_are_those_of_the_report(self):
        data = report()
        history = data["history"]
        history["steps"][3]["least_ns"] = 750 * MS
        self.show(data)
        tables = self.tables()
        self.assertEqual(
            [row[:1] + row[3:5] + row[6:] for row in tables["Steps: times"]["rows"]],
            [[s["step"], s["wall_ns"], s["bound_ns"], s["wall_ns"] - s["bound_ns"],
              s.get("least_ns", ""), s["compute_ns"],
              *(s["stall_ns"][cause] for cause in CAUSES)] for s in history["steps"]])
        shown = ("nvme_to_host", "host_to_device", "nvme_to_device", "host_to_nvme",
                 "device_to_host", "device_to_nvme")
        self.assertEqual([row[2:] for row in tables["Steps: bytes by link"]["rows"]],
                         [[s["link_bytes"][link] for link in shown] for s in history["steps"]])
        links = tables["Links since the run began"]["rows"]
        self.assertEqual([row[1:5] + row[8:] for row in links],
                         [[link["device"], link["bytes"], link["transfers"], link["busy_ns"],
                           link["errors"], link["retries"]] for link in data["links"]])
        self.assertEqual([row[2:5] + row[6:] for row in tables["Tiers at the end"]["rows"]],
                         [[tier[key] for key in ("budget_bytes", "used_bytes", "peak_bytes",
                                                 "dirty_bytes", "staging_bytes", "scratch_bytes",
                                                 "evictions")] for tier in data["tiers"]])
        waits = tables["Waits by tensor"]["rows"]
        self.assertEqual([row[1:] for row in waits],
                         [[entry["waits"], entry["total_ns"],
                           *(entry[cause + "_ns"] for cause in CAUSES)]
                          for entry in (*history["stalls"]["tensors"],
                                        history["stalls"]["others"])])
        causes = {cause: history["stalls"]["others"][cause + "_ns"] + sum(
            entry[cause + "_ns"] for entry in history["stalls"]["tensors"]) for cause in CAUSES}
        self.assertEqual([row[1] for row in tables["Waits by cause"]["rows"]],
                         [causes[cause] for cause in CAUSES])
        plan = data["plan"]["phases"][0]
        self.assertEqual([row[1:7] for row in tables["Candidates, train"]["rows"]],
                         [[c["step_ns"], c["stall_ns"], c["nvme_read_bytes"], c["nvme_write_bytes"],
                           c["host_to_device_bytes"], c["device_to_host_bytes"]]
                          for c in plan["candidates"]])
        self.assertEqual([row[0] for row in tables["Candidates, train"]["rows"]],
                         ["least recently used", "next use (used)", "zig-zag (earlier)"])
        self.assertEqual([row[1:] for row in tables["The bound, train"]["rows"]],
                         [[link["bytes"], link["ns"]] for link in plan["bound"]["links"]])
        self.assertEqual([row[1:] for row in tables["Roles"]["rows"]],
                         [[role["tensors"], role["tensor_bytes"], role["charged_bytes"]]
                          for role in data["waste"]["roles"]])
        moved = {row[0]: row[1:3] for row in tables["All tensors that moved"]["rows"]}
        self.assertEqual(moved, {HOSTILE: [10 * MIB, 10 * MIB],
                                 "layer1.weight": [8 * MIB, 8 * MIB]})
        lanes = [row for row in tables["Lanes of the drawn steps"]["rows"] if row[0] == 5]
        self.assertIn([5, "train", "waiting: room", 1, 100 * MS, 0], lanes)

    def test_every_number_is_said_as_it_is(self):
        self.show(report())
        pairs = self.value("[...document.querySelectorAll('data')].map((d) => [d.value, "
                           "d.textContent])")
        self.assertGreater(len(pairs), 200)
        for exact, words in pairs:
            self.assertIn(words, words_of(float(exact)) | {exact}, exact)

    def test_updates_before_their_verdict_are_said(self):
        self.show(report())
        numbers = self.value("""[...document.querySelectorAll('#facts data')]
                                .map((data) => Number(data.value))""")
        self.assertEqual(numbers[-2:], [4321, 17])
        self.show({**report(), "update": {"early": 0, "undone": 0}})
        self.assertNotIn("verdict", self.value("document.getElementById('facts').textContent"))

    def test_the_summary_is_that_of_the_step_in_the_middle(self):
        data = report()
        self.show(data)
        planned = sorted((s for s in data["history"]["steps"] if s["planned"]),
                         key=lambda s: s["wall_ns"])
        middle = planned[(len(planned) - 1) // 2]
        numbers = self.value("[...document.querySelectorAll('.summary data')].map((d) => "
                             "Number(d.value))")
        gap = middle["wall_ns"] - middle["bound_ns"]
        self.assertEqual([numbers[0], numbers[2]], [middle["wall_ns"], middle["bound_ns"]])
        self.assertAlmostEqual(numbers[1], gap / middle["bound_ns"])
        self.assertEqual(numbers[3:], [middle["stall_ns"]["total"], middle["stall_ns"]["update"]])
        words = self.value("document.querySelector('.summary').textContent")
        self.assertRegex(words, r"train: a step took 1\.00 s, 25\.\d % more than the 800 ms that "
                                "the link nvme \u2192 host needs for it at least; the program "
                                "waited")
        self.assertEqual(words.count(". "), 0)  # one sentence

    def test_names_of_the_run_are_text(self):
        self.show(report())
        self.assertEqual(self.value("document.querySelectorAll('img, b, i').length"), 0)
        self.assertIsNone(self.value("document.documentElement.dataset.hacked ?? null"))
        self.assertEqual(self.value("document.querySelector('h1').textContent"), HOSTILE)
        self.assertIn(HOSTILE, self.value("document.title"))
        self.assertIn("slow & <i>steady</i>", self.value("document.body.textContent"))

    def test_every_picture_has_a_title_words_and_a_table_behind_it(self):
        self.show(report())
        bare = self.value("""[...document.querySelectorAll('svg[role=img]')].filter((svg) =>
            !svg.querySelector('title').textContent || !svg.querySelector('desc').textContent ||
            !svg.closest('figure').querySelector('figcaption').textContent ||
            !svg.closest('section').querySelector('details table')).length""")
        self.assertEqual(bare, 0)
        self.assertGreater(self.value("document.querySelectorAll('svg[role=img]').length"), 12)

    def test_it_fits_at_both_widths_in_both_schemes(self):
        pictures = os.environ.get("STEPWELL_PICTURES")
        grounds = {}
        for width in (1280, 400):
            for scheme in ("light", "dark"):
                with self.subTest(width=width, scheme=scheme):
                    self.show(report(), width=width, scheme=scheme)
                    self.assertLessEqual(self.value("document.documentElement.scrollWidth"), width)
                    small = self.value("""[...document.querySelectorAll('svg[role=img] text')]
                        .filter((text) => text.getBoundingClientRect().height < 8).length""")
                    self.assertEqual(small, 0, "letters keep their size")
                    out = self.value("""[...document.querySelectorAll('svg[role=img]')].filter(
                        (svg) => svg.getBoundingClientRect().right > innerWidth + 1).length""")
                    self.assertEqual(out, 0)
                    grounds[scheme] = self.value(
                        "getComputedStyle(document.body).backgroundColor")
                    if pictures:
                        self.browser.picture(f"{pictures}/page-{width}-{scheme}.png")
        self.assertEqual(len(set(grounds.values())), 2, "dark is another ground than light")

    def test_the_timeline_is_moved_in_by_keys(self):
        self.show(report())
        self.value("""document.querySelector('svg[tabindex]').focus()""")
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):  # past waits and updates
            self.browser.press(key)
        said = self.value("document.querySelector('.readout').textContent")
        self.assertIn("nvme \u2192 host: layer1.weight, 60.0 ms, from", said)
        self.assertIn("2.00 MiB in 1 piece", said)
        before = self.value("document.querySelector('svg[tabindex] path').getAttribute('d')")
        self.browser.press("+")
        after = self.value("document.querySelector('svg[tabindex] path').getAttribute('d')")
        self.assertNotEqual(before, after, "plus zooms")
        self.browser.press("0")
        self.assertEqual(
            self.value("document.querySelector('svg[tabindex] path').getAttribute('d')"), before)
        self.assertGreater(self.value("document.querySelectorAll('svg path.plan').length"), 1,
                           "the prediction lies over the bars")
        unreachable = self.value("""[...document.querySelectorAll(
            'button, select, summary, .scroll')].filter((it) => it.tabIndex < 0).length""")
        self.assertEqual(unreachable, 0)

    def test_of_steps_in_turn_each_has_its_own_part_of_the_prediction(self):
        data = report()
        data["phases"].append({**data["phases"][0], "name": "eval", "number": 1, "steps": 2})
        steps = data["history"]["steps"]
        for number, way in ((1, "a"), (3, "a"), (4, "b")):
            steps[number].update(phase=1, way=way)
        steps[2].update(way="t", least_ns=700 * MS)
        predicted = data["plan"]["phases"][0]["predicted"]
        data["plan"]["phases"][0]["name"] = "train + eval + eval"
        predicted["turns"] = [
            {"phase": 0, "way": "t", "begin_ns": 0, "end_ns": 400 * MS, "least_ns": 700 * MS},
            {"phase": 1, "way": "a", "begin_ns": 400 * MS, "end_ns": 900 * MS, "least_ns": 1},
            {"phase": 1, "way": "b", "begin_ns": 900 * MS, "end_ns": 1001 * MS, "least_ns": 1}]
        self.show(data)
        said = []
        for index in range(5):
            self.value(f"(() => {{ const it = document.querySelector('section select'); "
                       f"it.value = '{index}'; it.dispatchEvent(new Event('change')); }})()")
            said.append((self.value("document.querySelector('.readout').textContent"),
                         self.value("document.querySelectorAll('svg path.plan').length")))
        for (words, _), expected in zip(said, (400, 500, 400, 500, 101)):
            self.assertIn(f"The plan expected {expected} ms for this step; it took ", words)
            self.assertRegex(words, r", (as|[\d.,]+ % (longer|less) than) expected\.$")
        self.assertEqual([count for _, count in said], [2, 2, 2, 2, 0])
        words = self.value("document.querySelector('.least[data-phase=\"0\"]').textContent")
        self.assertIn("With the computing that this step had, no other order of transfers takes "
                      "less than 700 ms; this one took 43.3 % more.", words)
        self.assertIn("for the 3 steps", self.value("document.body.textContent"))

    def test_two_bounds_of_one_value_are_shown_as_one(self):
        data = report()
        tiles = "[...document.querySelectorAll('.tiles dt')].map((d) => d.textContent)"
        steps = [step for step in data["history"]["steps"] if step["planned"]]
        for least, shown in ((0.995, False), (0.9, True)):
            for step in steps:
                step["least_ns"] = int(least * step["bound_ns"])
            self.show(data)
            self.assertEqual("Lower bound" in self.value(tiles), shown)
            words = self.value("document.querySelector('.least').textContent")
            self.assertEqual("That is the bound as well" in words, not shown)

    def test_the_bound_is_that_of_the_last_steps_and_says_what_the_bars_are_of(self):
        data = report()
        bound = data["plan"]["phases"][0]["bound"]
        words = ("[...document.querySelectorAll('section p')].map((p) => p.textContent)"
                 ".find((text) => text.startsWith('The bound of this instance'))")
        self.show(data)
        self.assertIn("The bound of this instance is 790 ms; compute alone needs 700 ms.",
                      self.value(words))
        self.assertNotIn("When this was planned", self.value(words))
        bound.update(now_ns=640 * MS, now_compute_ns=550 * MS)
        self.show(data)
        self.assertIn("The bound of this instance is 640 ms; compute alone needs 550 ms. When this "
                      "was planned, computing took 700 ms a step: the bars above are of that, and "
                      "their bound is 790 ms.", self.value(words))

    def test_a_phase_that_ended_is_drawn_and_the_longest_is_shown_first(self):
        data = report()
        history = data["history"]
        data["phases"].append({**data["phases"][0], "name": "predict", "number": 1})
        for step in history["steps"][-2:]:
            step.update(phase=1, wall_ns=1 * MS)
        train = history["steps"][2]
        last = history["steps"][-2:]
        begin = train["begin_ns"]
        history["older_windows"] = [{
            "begin_ns": begin, "end_ns": train["end_ns"], "steps": 1, "whole": True,
            "tensors": ["of.train"],
            "lanes": [{"kind": "link", "lane": "nvme_to_host", "device": 0,
                       "spans": [[begin, begin + 50 * MS, MIB, 1, 0]]}]}]
        history["window"].update(begin_ns=last[0]["begin_ns"], steps=2)
        self.show(data)
        options = self.value("[...document.querySelectorAll('section select option')].map("
                             "(it) => it.textContent.split(' (')[0])")
        self.assertEqual(options, [f"train, step {train['step']}",
                                   *(f"predict, step {s['step']}" for s in last)])
        self.assertEqual(self.value("document.querySelector('section select').value"), "0")
        drawn = [row[:2] for row in self.tables()["Lanes of the drawn steps"]["rows"]]
        self.assertIn([train["step"], "train"], drawn)
        moved = [row[0] for row in self.tables()["All tensors that moved"]["rows"]]
        self.assertIn("of.train", moved)

    def test_what_was_replayed_for_an_earlier_plan_has_a_chart_of_its_own(self):
        data = report()
        data["plan"]["phases"][0]["candidates"][1]["policy"] = "next use, write-back 0.5"
        data["plan"]["phases"][0]["chosen"] = "next use, write-back 0.5"
        self.show(data)
        charts = self.value("""[...document.querySelectorAll('figure')].map((it) => [
            it.querySelector('figcaption').textContent, it.querySelector('desc').textContent])""")
        shown = {caption: words for caption, words in charts if "by policy" in caption}
        self.assertEqual(sorted(shown.values()), [
            "least recently used: 1.50 s; next use, write-back 0.5: 1.10 s", "zig-zag: 1.70 s"])
        self.assertIn("not to be compared", next(c for c in shown if "earlier" in c))
        does = {row[0]: row[-1] for row in self.tables()["Candidates, train"]["rows"]}
        self.assertEqual(does["zig-zag (earlier)"],
                         "what a step uses first stays from the step before")
        self.assertEqual(does["least recently used"], "", "a name that this page does not know")
        self.assertIn("The policy that is used, next use, write-back 0.5: what is used again last "
                      "leaves first; what would have to be written back counts as used 0.5 of a "
                      "step sooner.", self.value("document.body.textContent"))

    def test_a_prediction_longer_than_the_step_is_drawn_to_its_end(self):
        data = report()
        ends = ("[...document.querySelectorAll('svg[tabindex] path.plan')].map((path) => "
                "path.getBBox()).map((box) => box.x + box.width)")
        marks = "document.querySelectorAll('svg[tabindex] line.budget').length"
        predicted = data["plan"]["phases"][0]["predicted"]
        self.show(data)
        self.assertEqual(self.value(marks), 0)
        predicted["step_ns"] = 2010 * MS
        predicted["spans"][0]["end_ns"] = 2000 * MS
        self.show(data)
        self.assertEqual(self.value(marks), 1, "where the step ended")
        width = self.value("document.querySelector('svg[tabindex]').viewBox.baseVal.width")
        left, right = 150, width - 4
        self.assertAlmostEqual(max(self.value(ends)), left + 2000 / 2010 * (right - left), delta=1)

    def test_spans_of_steps_that_are_not_there_are_left_out(self):
        data = report()
        data["history"]["steps"] = []
        self.show(data)
        heads = self.value("[...document.querySelectorAll('h2')].map((it) => it.textContent)")
        self.assertNotIn("Timeline of links and compute", heads)
        self.assertIn("holds no step", self.value("document.getElementById('main').textContent"))

    def test_what_is_not_there_is_said(self):
        data = report()
        del data["plan"]
        self.show(data)
        text = self.value("document.body.textContent")
        self.assertIn("This report holds no plan", text)
        self.assertIn("holds no prediction of the plan", text)
        del data["history"]
        self.show(data)
        self.assertIn("without a history of steps", self.value("document.body.textContent"))
        data["phases"], data["tiers"], data["links"], data["drivers"] = [], [], [], []
        self.show(data)
        self.assertIn("No step has ended in this run", self.value("document.body.textContent"))

    def test_a_page_that_cannot_be_drawn_to_its_end_says_so(self):
        data = report()
        data["plan"] = {"phases": [{"name": "train"}]}
        self.load(data)
        shown = self.value("document.querySelector('#fault:not([hidden])')?.textContent")
        self.assertRegex(shown, "^This page could not be drawn whole, since the report lacks .*: "
                                ".*TypeError: ")
        self.assertIn("Steps: times", self.tables())

    def test_a_report_of_the_library_is_shown(self):
        import stepwell  # of the tree; needs the library alone

        path = pathlib.Path(self.directory.name) / "own.json"
        with stepwell.Runtime(host_bytes=8 << 20, profile="", probe=False, name="own") as runtime:
            tensor = runtime.create(HOSTILE, (1 << 18,))
            phase = runtime.phase("train")
            for _ in range(3):
                with phase.step():
                    with runtime.fetch(tensor, stepwell.WRITE):
                        pass
            runtime.write_report(str(path))
        data = json.loads(path.read_text())
        self.show(data)
        rows = self.tables()["Steps: times"]["rows"]
        self.assertEqual([[row[0], row[3], row[4]] for row in rows],
                         [[s["step"], s["wall_ns"], s["bound_ns"]]
                          for s in data["history"]["steps"]])
        self.assertEqual(len(rows), 3)


if __name__ == "__main__":
    if chromium.find() is None:
        print("SKIP: no Chromium here (package chromium)")
        sys.exit(77)
    try:  # a sandbox may let it do nothing
        chromium.Browser(chromium.find()).close()
    except (OSError, RuntimeError) as error:
        print(f"SKIP: Chromium does not start here: {error}")
        sys.exit(77)
    unittest.main()
