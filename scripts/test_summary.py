#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sum up the logs of `meson test`, say where the time went, and close with "N passed, N failed,
N skipped".

usage: test_summary.py [--default] LABEL=LOG ...

A program that tells its cases apart (GoogleTest, TAP, cmocka's and unittest's own output) counts
with each of them; any other counts as one. A program that died counts as one failure more than it
had time to report. Exit status 1 when anything failed, or when nothing ran.

With --default the logs are of the tests that everyone waits for, and these have limits: of a test,
or a reason in SLOW, and of all of them. They are in processor seconds, which scripts/timed-test
measures, since the time on the clock is also that of whatever else a machine does.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path

GTEST_PASSED = re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.M)
GTEST_FAILED = re.compile(r"^\[  FAILED  \] (\d+) tests?, listed below", re.M)
GTEST_SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?, listed below", re.M)
GTEST_SKIP_PLACE = re.compile(r"\.\w+:\d+: Skipped$")
RUN_CASE = re.compile(r"^\[ RUN      \] ")
END_CASE = re.compile(r"^\[ +(?:OK|FAILED) *\] ")
SKIPPED_CASE = re.compile(r"^\[  SKIPPED \] ([\w./]+)(?: \(\d+ ms\))?$")
TAP = re.compile(r"^(ok|not ok)\b(?: \d+)?(.*)$", re.M)
TAP_SKIP = re.compile(r"#\s*skip\b\s*(.*)$", re.I)
CMOCKA_PASSED = re.compile(r"^\[  PASSED  \] (\d+) test\(s\)\.", re.M)
CMOCKA_FAILED = re.compile(r"^\[  FAILED  \] (\d+) test\(s\)", re.M)
CMOCKA_SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) test\(s\)", re.M)
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in [\d.]+s$", re.M)
UNITTEST_COUNT = re.compile(r"^(?:OK|FAILED) \((.+)\)$", re.M)
UNITTEST_SKIP = re.compile(
    r"^(\w+) \([\w.]+\)(?:\n.*)? \.\.\. skipped (['\"])(.*)\2$", re.M)
COMPUTED = re.compile(r"\n?^processor time: ([\d.]+) s$\n?", re.M)
SLOWEST_TESTS, SLOWEST_TARGETS = 20, 10  # listed

# Of the tests of ./dev test. With the quick lint, PyTorch and the build, 700 more, they end in
# about 15 minutes on two cores. A machine that is MARGIN times as slow fails nothing.
TEST_CPU_S = 30
ALL_TESTS_CPU_S = 900
MARGIN = 2
# Why a test may take longer than TEST_CPU_S.
SLOW = {
    "mutants-of-the-day": "each bug is compiled and linked by itself",
    "docs-blocks-of-the-day": "it runs programs of the pages, which train",
    "program-demo": "it trains until a plan pays, and once more in memory",
    "torch-double-offload_device": "each kind of loop trains on the device and in plain torch",
    "python-offload": "each optimizer and option trains twice, the second time in plain torch",
    "python-offload_files": "each form of a file and of a restart trains twice",
    "python-offload_outside": "its ranks are processes that train",
    "python-offload_ranks": "the same",
    "python-offload_states": "each optimizer and edit trains three times, once in plain torch",
    "python-offload_tiles": "each layer and option trains twice",
    "python-offload_updates": "the same",
}


def skipped_cases(text):
    """Yield (case, reason) of every case that GoogleTest or cmocka skipped."""
    said = None  # what the running case printed; None between cases
    for line in text.splitlines():
        if RUN_CASE.match(line):
            said = []
            continue
        case = SKIPPED_CASE.match(line)
        if case and said is not None:
            yield case.group(1), " ".join(said) or "no reason given"
            said = None
        elif END_CASE.match(line):
            said = None
        elif said is not None and line.strip() and not GTEST_SKIP_PLACE.search(line):
            said.append(line.strip())


def count_cases(text):
    """The counts a program printed itself, and its skips; None when it printed none."""
    for passed, failed, skipped in (
        (GTEST_PASSED, GTEST_FAILED, GTEST_SKIPPED),
        (CMOCKA_PASSED, CMOCKA_FAILED, CMOCKA_SKIPPED),
    ):
        if passed.search(text):
            counts = Counter(
                passed=sum(int(n) for n in passed.findall(text)),
                failed=sum(int(n) for n in failed.findall(text)),
                skipped=sum(int(n) for n in skipped.findall(text)),
            )
            return counts, list(skipped_cases(text))
    ran = sum(int(n) for n in UNITTEST_RAN.findall(text))
    if ran:
        said = Counter()
        for counts in UNITTEST_COUNT.findall(text):
            said += Counter({key: int(n) for key, n in re.findall(r"(\w+)=(\d+)", counts)})
        failed = said["failures"] + said["errors"]
        counts = Counter(passed=max(0, ran - failed - said["skipped"]), failed=failed,
                         skipped=said["skipped"])
        return counts, [(name, why) for name, _, why in UNITTEST_SKIP.findall(text)]
    if re.search(r"^(TAP version|1\.\.\d+)", text, re.M):
        counts, skips = Counter(), []
        for verdict, rest in TAP.findall(text):
            skip = TAP_SKIP.search(rest)
            if skip:
                counts["skipped"] += 1
                name = rest[: skip.start()].strip(" -")
                skips.append((name, skip.group(1) or "no reason given"))
            else:
                counts["passed" if verdict == "ok" else "failed"] += 1
        return counts, skips
    return None


def whole_program_skip(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def count_program(entry):
    """Counter and skips of one entry of the log."""
    text = (entry.get("stdout") or "") + "\n" + (entry.get("stderr") or "")
    result = entry["result"]
    if result == "SKIP":
        said = count_cases(text)
        if said and said[0]["skipped"]:
            return said
        return Counter(skipped=1), [("", whole_program_skip(text))]
    good = result in ("OK", "EXPECTEDFAIL")
    said = count_cases(text)
    if said is None:
        return Counter(passed=int(good), failed=int(not good)), []
    counts, skips = said
    if not good and counts["failed"] == 0:
        counts["failed"] = 1
    return counts, skips


def read_log(path):
    with open(path, encoding="utf-8", errors="replace") as log:
        entries = [json.loads(line) for line in log if line.strip()]
    for entry in entries:
        said = entry.get("stderr") or ""
        computed = COMPUTED.search(said)
        entry["computed"] = float(computed[1]) if computed else 0.0
        entry["stderr"] = COMPUTED.sub("", said)
        entry["name"] = entry["name"].split(" / ")[-1]
    return entries


def summarise(label, entries, failures):
    """Print one line per run of meson and what it skipped; the run's counts."""
    counts = Counter()
    if not entries:
        failures.append((label, "no test ran", ""))
        counts["failed"] += 1
    for entry in entries:
        program, skips = count_program(entry)
        counts += program
        name = entry["name"]
        for case, reason in skips:
            print(f"  skipped: {name}{': ' + case if case else ''}: {reason}")
        if program["failed"]:
            failures.append((label, name, entry["result"]))
    print(
        f"  {label}: {counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['skipped']} skipped"
    )
    return counts


def target_seconds(build):
    """(seconds, target) of each target when ninja built it last, by its own log."""
    log = build / ".ninja_log"
    if not log.exists():
        return []
    seconds = {}
    for line in log.read_text().splitlines()[1:]:
        begin, end, _, output, *_ = line.split("\t")
        seconds[output] = (int(end) - int(begin)) / 1000
    return [(spent, output) for output, spent in seconds.items()]


def show_tests(label, entries):
    waited, computed = (sum(entry[key] for entry in entries) for key in ("duration", "computed"))
    print(f"  tests of {label}: {len(entries)}, {waited:.0f} s one after the other, "
          f"{computed:.0f} s of processors; the slowest:")
    for entry in sorted(entries, key=lambda entry: -entry["duration"])[:SLOWEST_TESTS]:
        print(f"    {entry['duration']:6.1f} s, {entry['computed']:6.1f} s of processors  "
              f"{entry['name']}")


def show_targets(label, path):
    spent = target_seconds(Path(path).parent.parent)
    total = sum(seconds for seconds, _ in spent)
    print(f"  targets of {label}: {len(spent)}, {total:.0f} s one after the other; the slowest:")
    for seconds, name in sorted(spent, reverse=True)[:SLOWEST_TARGETS]:
        print(f"    {seconds:6.1f} s  {name}")


def over_limits(entries):
    """What is wrong with the times of the default tests, a sentence each."""
    for entry in entries:
        name, computed = entry["name"], entry["computed"]
        if computed > TEST_CPU_S and name not in SLOW:
            said = (f"{name} computed for {computed:.0f} s; make it shorter, move it to the suite "
                    f"long, or give the reason in SLOW of {Path(__file__).name}")
            if computed > TEST_CPU_S * MARGIN:
                yield said
            else:
                print(f"  near its limit: {said}")
    computed = sum(entry["computed"] for entry in entries)
    said = (f"the tests computed for {computed:.0f} s of the {ALL_TESTS_CPU_S} of ./dev test; "
            "what is not needed every time goes to the suite long")
    if computed > ALL_TESTS_CPU_S * MARGIN:
        yield said
    elif computed > ALL_TESTS_CPU_S:
        print(f"  near its limit: {said}")


def main(arguments):
    total, failures, default = Counter(), [], "--default" in arguments
    for argument in arguments:
        if argument == "--default":
            continue
        label, _, path = argument.partition("=")
        entries = read_log(path) if Path(path).exists() else []
        total += summarise(label, entries, failures)
        show_tests(label, entries)
        show_targets(label, path)
        if default:
            late = [(label, sentence, "") for sentence in over_limits(entries)]
            total["failed"] += len(late)
            failures += late
    for label, name, result in failures:
        print(f"  failed: {label}: {name} {result}".rstrip())
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
