#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: every one must be found by its judge, and the code as it is must pass.

Each mutant is one file of the library with one text replaced. Of a judge's program only the
objects that have this file are compiled again (built.py). Judges are the simulations, unit tests,
ranks that commit and crash, and for rules of the library as a whole the programs of tests/abi,
with a mutant in place of their library.

With --turn only some are planted: BY_TURN others each day, until each had its turn, and a few in
files that differ from upstream (tests/of_the_day.py). --turn DAY repeats a day's.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from of_the_day import TODAY, changed_files, turn  # noqa: E402
from built import Built  # noqa: E402
from calls import CALLS  # noqa: E402
from core import CORE  # noqa: E402
from parts import PARTS  # noqa: E402

MUTANTS = CORE + PARTS + CALLS
BY_TURN = 5
CHANGED_MAX = 3  # more mutants of changed files than these take turns too
PROGRAM_SEEDS = 2000
RANKS_SEEDS = 100
MANY_SEEDS = (1561, 300)  # the first and how many: a knot with an update comes once in 3000
SEED = r"failed by (seed \d+(?: after \d+ events)?: .*)"


class Judge:
    """A program of the build, and what it says of a catch when it ends with status 1."""

    def __init__(self, target, arguments, found, timeout_s=60):
        self.target, self.arguments, self.timeout_s = target, arguments, timeout_s
        self.found = re.compile(found, re.M)
        self.linked = target  # what has the mutant

    def environment(self, _linked):
        return dict(os.environ)

    def program(self, _build, linked):
        return linked


class OfCalls(Judge):
    """A program of tests/abi, which runs with another library."""

    def __init__(self, name):
        super().__init__(f"tests/abi/abi-{name}", [], r"^\[  FAILED  \] (\w+)$")
        self.linked = "libstepwell.so.0"

    def environment(self, linked):
        return {**os.environ, "LD_PRELOAD": str(linked)}

    def program(self, build, _linked):
        return build.folder / self.target


def unit(folder, tests, timeout_s=60):
    return Judge(f"unit-{folder}",
                 ["--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={tests}"],
                 r"\[  FAILED  \] (\S+)", timeout_s)


def simulation(mode, seeds):
    return Judge("tests/simulation/simulation-explore", [mode, "1", str(seeds)], SEED)


JUDGES = {
    "program": simulation("program", PROGRAM_SEEDS),
    "ranks": simulation("ranks", RANKS_SEEDS),
    "troubled": simulation("many", 100),
    # Many ranks with plans, faults and budgets that change: what the other two do not see.
    "many": Judge("tests/ranks/ranks-simulation",
                  ["--first", str(MANY_SEEDS[0]), "--seeds", str(MANY_SEEDS[1])], SEED),
    "engine": unit("transfer", "EngineFaults.*"),
    # Lost wake-ups are runs without end, and the code as it is takes less than a second.
    "dispatcher": unit("runtime", "DispatcherTest.*:StuckTest.*:*DispatcherStress.*", timeout_s=8),
    "bound": unit("schedule", "Bound.*"),
    # Claims that touches pass or see, and homes nearer than the farthest tier.
    "claims": unit("residency", "CoreTest.*:HomesTest.*:TouchesTest.*"),
    "policies": unit("residency", "CoreTest.WhatCouldNotLeave*"),
    "early": unit("optimizer", "EarlyTrial.*:EarlyUpdate.*"),
    "generations": Judge("tests/generations/generations-simulation",
                         ["--ranks", "1", "8", "--seeds", "600"], SEED),
    "masters": unit("optimizer", "MasterParts.*"),
    "splits": unit("update", "Split.*-*LosesNothingOfAnyMaster"),
    **{judge: OfCalls(judge.removeprefix("abi-")) for _, judge, *_ in CALLS},
}


def ask(build, judge, linked):
    """(found, what was said): a crash and a run without end count as found."""
    program = judge.program(build, linked)
    with subprocess.Popen([str(program), *judge.arguments], env=judge.environment(linked),
                          cwd=(build.folder / judge.target).parent, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as running:
        try:
            said, _ = running.communicate(timeout=judge.timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # with the processes that it has started
            return True, f"did not end within {judge.timeout_s} s"
    if running.returncode == 0:
        return False, (said.strip().splitlines() or ["passed"])[-1]
    match = judge.found.search(said)
    if match:
        return True, f"caught by {match[1]}"
    if running.returncode < 0:
        return True, f"ended by signal {-running.returncode}"
    raise RuntimeError(f"{program}: status {running.returncode}: {said[-2000:]}")


def chosen(mutants, changed, day):
    """A header's are neighbours in the lists and take longest, so a day has some of each list."""
    turns = -(-len(mutants) // BY_TURN)
    due = mutants[day % turns::turns]
    in_changed = [each for each in mutants if each[2] in changed and each not in due]
    first = turn(in_changed, day, CHANGED_MAX)
    print(f"{len(due)} of {len(mutants)} mutants by turn, {len(first)} of the {len(in_changed)} "
          f"others in changed files; again with --turn {day}", flush=True)
    return due + first


def plant(build, mutant):
    name, mode, file, find, replace, why = mutant
    judge = JUDGES[mode]
    pairs = [(find, replace)] if isinstance(find, str) else list(zip(find, replace))
    try:
        linked = build.planted(name, judge.linked, file, pairs)
        if linked is None:
            raise RuntimeError(f"no object of {judge.linked} has {file}")
        found, said = ask(build, judge, linked)
    except RuntimeError as error:
        found, said = False, str(error)
    return found, f"{name} ({why}): {said}"


def leave_out(build, mode):
    found, said = ask(build, JUDGES[mode], build.folder / JUDGES[mode].linked)
    return not found, f"no mutant, {mode}: {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="with the judges in it")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turn", type=int, nargs="?", metavar="DAY", const=TODAY)
    parser.add_argument("names", nargs="*", help="of mutants; without any all of them")
    arguments = parser.parse_args()
    mutants = [each for each in MUTANTS if not arguments.names or each[0] in arguments.names]
    if arguments.turn is not None:
        mutants = chosen(mutants, changed_files(arguments.source), arguments.turn)
    build = Built(arguments.build.resolve(), arguments.source.resolve(), arguments.work.resolve())
    good = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(leave_out, build, mode)
                for mode in dict.fromkeys(each[1] for each in mutants)]
        runs += [pool.submit(plant, build, each) for each in mutants]
        for run in runs:
            passed, said = run.result()
            good.append(passed)
            print(f"{'ok' if passed else 'FAIL'}   {said}", flush=True)
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
