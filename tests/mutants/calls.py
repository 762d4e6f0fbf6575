#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted bugs in rules of the library as a whole, each found by a program of tests/abi.

A mutant is one file with one text replaced. Of the built library only the object that has this file
is compiled again, by the commands of the build, and the program runs with the result in place of
its library. A wait without end counts as found. The tree and the build are never touched.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

TIMEOUT_S = 40
FAILED = re.compile(r"^\[  FAILED  \] (\w+)$", re.M)

# name, file, text that occurs once, what stands there instead, the program that finds it, why
MUTANTS = [
    ("rejection-names-parameters", "lib/runtime/optimizers/steps.cpp",
     "    if ((options.flags & STW_UPDATE_REJECT) != 0) return false;", "", "speculation",
     "beside a frozen parameter early updates cannot be rejected"),
    ("frozen-before-its-verdict", "lib/runtime/tensors/registry.cpp",
     "if (frozen && machine_.pipeline->verdict_from(tensor->id)) {", "if (false) {", "speculation",
     "no verdict can name the parameter any more"),
    ("lent-sum-waits-for-the-own-verdict", "lib/runtime/calls/reductions.cpp",
     "if (machine_.pipeline->waits_only_for(recorder_.owner_number())) {", "if (false) {",
     "speculation", "the thread that gives the verdict waits for it"),
    ("verdict-waits-for-what-is-set-back", "lib/update/step.cpp",
     "return job->step == last && !job->undoes;", "return job->step == last;", "speculation",
     "a skipped verdict waits for the speculated view of its own thread"),
    ("budget-before-the-verdict", "lib/runtime/budgets/budgets.cpp",
     "if (tensors == 0) return {};", "return {};", "speculation",
     "what sets an early update back has no room"),
    ("older-contents-for-good", "lib/update/step.cpp",
     "job.has_older = job.asked_older = false;", "job.has_older = false;", "speculation",
     "room that was given back is not asked for again"),
    ("frozen-contents-dropped", "lib/runtime/restored/restored.cpp",
     "if ((tensor.flags & kBoth) != kBoth) return {};", "return {};", "generations",
     "a discarded frozen tensor is gone from the next generation"),
    ("zeros-dropped", "lib/residency/lifetimes.cpp",
     "if (tensor.spec.reads_zero) packs_.set_contents(id, Contents::kValid);", "", "tensors",
     "a tensor that reads as zeros is empty after a discard"),
    ("failed-parts-for-good", "lib/update/parameter_job.cpp",
     "    if (!is_empty && !renew()) return status;", "    if (!is_empty) return status;", "faults",
     "a parameter in parts never trains again after a read error"),
    ("evict-looks-once", "lib/runtime/calls/fetches.cpp",
     "if (!moves && patience.clear_way()) continue;", "", "touches_waits",
     "a view that a touch has left is BUSY"),
    ("commits-wait-unseen", "lib/runtime/durable/commits.cpp",
     "dispatch_.core.note_wait(work.claim, tensor->id);", "", "commit_waits",
     "a thread waits for a commit, and the commit for a view of the thread, until the timeout"),
    ("patience-without-end", "lib/runtime/machine/touches.cpp",
     "if (now >= end_) return false;", "", "touches_waits",
     "what views of the program are in the way of is never refused beside touches"),
    ("touch-gives-way-unused", "lib/runtime/machine/touches.h",
     "kLeastNs = 500'000;", "kLeastNs = 0;", "touches_waits",
     "an access beside a fetch that waits for room faults for ever"),
    ("two-places-of-an-instruction", "lib/runtime/machine/touches.cpp",
     "const bool stuck = at->several &&", "const bool stuck = false && at->several &&", "touches",
     "an instruction over two tensors of which the tier holds either never ends"),
    ("touched-twice-filled-twice", "lib/update/accumulate.cpp",
     "    if (!empty) return {};\n    mode = kernels::Reduce::kFirst;",
     "    mode = kernels::Reduce::kFirst;", "touches_waits",
     "the second of two threads that touch an empty tensor fills it with zeros"),
    ("small-writes-of-whole-blocks", "lib/residency/core.cpp",
     "            if (alone) write_back_.clean_soon(block, release.place);",
     "            write_back_.clean_soon(block, release.place);", "copies",
     "each small tensor that is written takes its block to the drive"),
]


class Build:
    """The commands of a build folder."""

    def __init__(self, folder):
        self.folder = folder
        entries = json.loads((folder / "compile_commands.json").read_text())
        self.objects = {}  # by unity source or source
        for entry in entries:
            output = entry.get("output", "")
            if output.startswith("libstepwell_") and output.endswith(".o"):
                source = (folder / entry["file"]).resolve()
                self.objects[source] = (output, shlex.split(entry["command"]))
        self.link = shlex.split(subprocess.run(
            ["ninja", "-C", str(folder), "-t", "commands", "-s", "libstepwell.so.0"],
            capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1])

    def users(self, source):
        """(object, command, text of what is compiled) of each that has the file."""
        header = source.suffix == ".h"
        for compiled, (output, command) in self.objects.items():
            text = compiled.read_text()
            if header:
                depends = subprocess.run(
                    ["ninja", "-C", str(self.folder), "-t", "deps", output],
                    capture_output=True, text=True, check=True).stdout
                if f"/{source.parent.name}/{source.name}" in depends:
                    yield output, command, compiled, text
            elif compiled == source or re.search(
                    rf'#include ?<[^>]*/{re.escape(str(source.relative_to(self.root)))}>', text):
                yield output, command, compiled, text

    root = pathlib.Path()


def planted(build, root, work, mutant):
    """The library with the mutant; a sentence where it cannot be made."""
    name, file, find, replace, _, _ = mutant
    source = root / file
    text = source.read_text()
    if text.count(find) != 1:
        raise RuntimeError(f"{find!r} occurs {text.count(find)} times in {file}")
    folder = work / name
    shadow = folder / file
    shadow.parent.mkdir(parents=True, exist_ok=True)
    shadow.write_text(text.replace(find, replace))
    swapped = {}
    for output, command, compiled, body in build.users(source):
        target = folder / output.replace("/", "-")
        made = folder / (target.stem + ".cpp")
        if source.suffix == ".h" or compiled != source:
            made.write_text(re.sub(rf"#include ?<[^>]*/{re.escape(file)}>",
                                   f'#include "{shadow}"', body))
        else:
            made = shadow
        command = [*command, "-Wno-error"]
        command[command.index("-o") + 1] = str(target)
        command[command.index("-c") + 1] = str(made)
        command[1:1] = ["-iquote", str(folder)] if source.suffix == ".h" else []
        for flag in "-MF", "-MQ":
            command[command.index(flag) + 1] = str(target) + ".d"
        done = subprocess.run(command, cwd=build.folder, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError(f"does not compile: {done.stderr[:2000]}")
        swapped[output] = str(target)
    if not swapped:
        raise RuntimeError(f"no object of the library has {file}")
    link = []
    for part in build.link:
        archive = pathlib.Path(part).stem if part.endswith(".a") else ""
        own = [output for output in swapped if output.startswith(f"{archive}.a.p/")]
        if archive and own:
            link += [swapped.get(output, output) for output, _ in build.objects.values()
                     if output.startswith(f"{archive}.a.p/")]
        else:
            link.append(part)
    library = folder / "libstepwell.so.0"
    link[link.index("-o") + 1] = str(library)
    done = subprocess.run(link, cwd=build.folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"does not link: {done.stderr[:2000]}")
    return library


def ask(build, program, library):
    environment = {**os.environ, "LD_PRELOAD": str(library)} if library else dict(os.environ)
    path = build.folder / "tests" / "abi" / f"abi-{program}"
    with subprocess.Popen([str(path)], cwd=path.parent, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as running:
        try:
            said, _ = running.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # with the processes that it has started
            return True, f"did not end within {TIMEOUT_S} s"
    if running.returncode == 0:
        return False, "passed"
    found = FAILED.search(said)
    return True, f"caught by {found[1]}" if found else f"ended with status {running.returncode}"


def run(build, root, work, mutant):
    name, _, _, _, program, why = mutant
    try:
        found, said = ask(build, program, planted(build, root, work, mutant))
    except RuntimeError as error:
        return False, f"{name}: {error}"
    return found, f"{name} ({why}): {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="of the library")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    root = Build.root = arguments.source.resolve()
    build = Build(arguments.build.resolve())
    mutants = [each for each in MUTANTS if not arguments.names or each[0] in arguments.names]
    results = []
    for program in sorted({each[4] for each in mutants}):
        found, said = ask(build, program, None)
        results.append(not found)
        print(f"{'FAIL' if found else 'ok'}   no mutant, abi-{program}: {said}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for found, said in pool.map(lambda each: run(build, root, arguments.work.resolve(), each),
                                    mutants):
            results.append(found)
            print(f"{'ok' if found else 'FAIL'}   {said}", flush=True)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
