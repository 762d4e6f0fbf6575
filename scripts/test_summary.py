#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sum up the logs of `meson test`, say where the time went, and close with "N passed, N failed,
N skipped".

A program that tells its cases apart (GoogleTest, TAP, cmocka's and unittest's own output) counts
with each of them; any other counts as one. A program that died counts as one failure more than it
had time to report. Exit status 1 when anything failed, or when nothing ran.
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
SLOWEST = 10  # tests and targets that are listed


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
        return [json.loads(line) for line in log if line.strip()]


def summarise(label, path, failures):
    """Print one line per run of meson and what it skipped; the run's counts."""
    counts = Counter()
    entries = read_log(path) if Path(path).exists() else []
    if not entries:
        failures.append((label, "no test ran", ""))
        counts["failed"] += 1
    for entry in entries:
        program, skips = count_program(entry)
        counts += program
        name = entry["name"].split(" / ")[-1]
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


def show_slowest(what, spent):
    total = sum(seconds for seconds, _ in spent)
    print(f"  {what}: {len(spent)}, {total:.0f} s one after the other; the slowest:")
    for seconds, name in sorted(spent, reverse=True)[:SLOWEST]:
        print(f"    {seconds:6.1f} s  {name}")


def show_times(label, path):
    entries = read_log(path) if Path(path).exists() else []
    tests = [(entry["duration"], entry["name"].split(" / ")[-1]) for entry in entries]
    show_slowest(f"tests of {label}", tests)
    show_slowest(f"targets of {label}", target_seconds(Path(path).parent.parent))


def main(arguments):
    total, failures = Counter(), []
    for argument in arguments:
        label, _, path = argument.partition("=")
        total += summarise(label, path, failures)
        show_times(label, path)
    for label, name, result in failures:
        print(f"  failed: {label}: {name} {result}".rstrip())
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
