# SPDX-License-Identifier: Apache-2.0
"""Every program and command on every page runs as printed there, or says why it does not.

usage: blocks.py --build DIR --library FILE --cc PROGRAM --cxx PROGRAM [--sanitize NAME]
                 [--turn [DAY] | PAGE ...]
With --turn the pages are README.md, a twelfth of the others, other ones each day, and a few that
changed.
Output: TAP. With a sanitizer C and C++ alone run: nothing else starts with its runtime.

A block of text is a picture or a sample. C, C++, Python and shell run, the blocks of one page in
order and in one directory; in it HOME is a directory whose folder stepwell is what ./dev install
would have made. Comments right above the block change that:

  <!-- not run: REASON -->          why nothing here runs it
  <!-- file: NAME -->               it is saved under this name too, for the blocks that follow
  <!-- run in: FILE -->             a fragment: it stands where FILE, in fragments/, says BLOCK
  <!-- smaller: THIS as THAT -->    replaced before it runs
  <!-- needs: MODULE or PROGRAM --> else it is skipped
"""
import argparse
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pages

sys.path.insert(0, str(pages.ROOT / "tests"))
from of_the_day import TODAY, changed_files, turn  # noqa: E402

TURNS = 12
CHANGED_MAX = 3  # more pages that changed than these take turns too
NOTES = {"not run", "file", "run in", "smaller", "needs"}
LANGUAGES = {"c", "cpp", "python", "sh"}
FRAGMENTS = pathlib.Path(__file__).resolve().parent / "fragments"
# Reports, checkpoints, and stores with a name, which are meant to stay.
LEFT_BEHIND = re.compile(
    r"(report|timeline)\.json|checkpoint\.pt|.+-of-\d+\.(stepwell|generations)")
BLOCK_SECONDS = 120


def fault_of(block):
    """What is wrong with how a block is written down."""
    unknown = set(block.notes) - NOTES
    if unknown:
        return f"no such comment: {', '.join(sorted(unknown))}"
    if not block.language:
        return "say its language; a picture or a sample is text"
    if block.language == "text" and block.notes:
        return "text is not run"
    if block.language not in LANGUAGES | {"text"} and "not run" not in block.notes:
        return f"nothing here runs {block.language}: say why, <!-- not run: REASON -->"
    for note in block.notes.get("smaller", []):
        if note.split(" as ")[0] not in block.text:
            return f"there is no '{note.split(' as ')[0]}' to make smaller"
    return None


def content_of(block):
    text = block.text
    for note in block.notes.get("smaller", []):
        this, that = note.split(" as ")
        text = text.replace(this, that)
    for name in block.notes.get("run in", []):
        frame = (FRAGMENTS / name).read_text(encoding="utf-8")
        margin = re.search(r"^( *)BLOCK$", frame, re.M)
        text = "".join(margin[1] + line if line.strip() else line
                       for line in text.splitlines(keepends=True))
        text = frame[:margin.start()] + text.rstrip("\n") + frame[margin.end():]
    return text


def lacking(block):
    """Which program or Python module a block needs that is not there."""
    for name in block.notes.get("needs", []):
        module = block.language == "python"
        if not (importlib.util.find_spec(name) if module else shutil.which(name)):
            return name
    return None


class Runner:
    """Runs blocks in a directory of their page's."""

    def __init__(self, options, home):
        self.options = options
        self.sanitize = [f"-fsanitize={options.sanitize}"] if options.sanitize != "none" else []
        self.environment = {
            **{name: value for name, value in os.environ.items()
               if name in ("PATH", "LANG", "LC_ALL", "TMPDIR") or name.endswith("SAN_OPTIONS")},
            "HOME": str(home),
            "CC": options.cc,
            "PYTHONPATH": str(pages.ROOT / "bindings" / "python"),
            "STEPWELL_LIBRARY": str(options.library),
        }

    def call(self, command, directory):
        try:
            done = subprocess.run(command, cwd=directory, env=self.environment, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=BLOCK_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"did not end in {BLOCK_SECONDS} s"
        return f"ended with {done.returncode}:\n{done.stdout}" if done.returncode else None

    def compiled(self, compiler, standard, source, directory):
        program = directory / "block-program"
        fault = self.call(
            [compiler, standard, *self.sanitize, "-Wall", "-Wextra", "-Wpedantic", "-Werror",
             f"-I{pages.ROOT / 'include'}", str(source), str(self.options.library), "-lm",
             f"-Wl,-rpath,{self.options.library.parent}", "-o", str(program)], directory)
        fault = fault or self.call([str(program)], directory)
        program.unlink(missing_ok=True)
        return fault

    def run(self, block, directory):
        for name in block.notes.get("file", []):
            (directory / name).write_text(content_of(block), encoding="utf-8")
        before = set(os.listdir(directory))
        source = directory / f"block.{block.language}"
        source.write_text(content_of(block), encoding="utf-8")
        if block.language == "c":
            fault = self.compiled(self.options.cc, "-std=c99", source, directory)
        elif block.language == "cpp":
            fault = self.compiled(self.options.cxx, "-std=c++17", source, directory)
        elif block.language == "python":
            fault = self.call([sys.executable, "-B", source.name], directory)
        else:
            fault = self.call(["bash", "-euo", "pipefail", source.name], directory)
        source.unlink()
        left = [name for name in set(os.listdir(directory)) - before
                if not LEFT_BEHIND.fullmatch(name)]
        if not fault and left and block.language != "sh":
            fault = f"left files behind: {', '.join(sorted(left))}"
        return fault


def install(options, home):
    """What ./dev install --prefix "$HOME/stepwell" makes, without building it once more."""
    root, target = home / "root", home / "stepwell"
    done = subprocess.run(
        ["meson", "install", "-C", str(options.build), "--no-rebuild", "--destdir", str(root)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"meson install failed:\n{done.stdout}")
    (library,) = root.rglob("libstepwell.so")
    configs = list(root.rglob("pkgconfig/*.pc"))
    (include,) = root.rglob("include/stepwell")
    shutil.copytree(library.parent, target / "lib", symlinks=True)
    shutil.copytree(include, target / "include" / "stepwell")
    for command in root.rglob("bin/stepwell"):
        (target / "bin").mkdir()
        shutil.copy2(command, target / "bin")
    for data in root.rglob("share/stepwell"):
        shutil.copytree(data, target / "share" / "stepwell")
    # Where the command looks for the library, with the libdir of this build.
    looked_for = target / library.parent.relative_to(include.parent.parent)
    if not looked_for.exists():
        looked_for.symlink_to(target / "lib")
    for config in configs:
        text = config.read_text(encoding="utf-8")
        text = re.sub(r"^prefix=.*", f"prefix={target}", text, flags=re.M)
        text = re.sub(r"^libdir=.*", "libdir=${prefix}/lib", text, flags=re.M)
        (target / "lib" / "pkgconfig" / config.name).write_text(text, encoding="utf-8")
    shutil.rmtree(root)


def pages_of_day(day):
    """README.md, where everyone begins, has its turn every day."""
    every = [page for page in pages.pages() if page != pages.ROOT / "README.md"]
    due = turn(every, day, -(-len(every) // TURNS))
    names = changed_files(pages.ROOT)
    changed = [page for page in every
               if str(page.relative_to(pages.ROOT)) in names and page not in due]
    first = turn(changed, day, CHANGED_MAX)
    print(f"# {len(due)} of {len(every)} pages by turn, {len(first)} of the {len(changed)} others "
          f"that changed; again with --turn {day}")
    return [pages.ROOT / "README.md", *due, *first]


def verdict(block, runner, directory):
    """'', ' # SKIP reason', or None after saying what is wrong."""
    fault = fault_of(block)
    if not fault and "not run" in block.notes:
        return f" (not run: {block.notes['not run'][0]})"
    lack = None if fault else lacking(block)
    if lack:
        return f" # SKIP {lack} is not there"
    if runner.sanitize and block.language not in ("c", "cpp"):
        return f" # SKIP {block.language} does not start with the sanitizer's runtime"
    fault = fault or runner.run(block, directory)
    if not fault:
        return ""
    for line in fault.splitlines():
        print(f"# {line}")
    return None


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--sanitize", default="none")
    parser.add_argument("--turn", type=int, nargs="?", metavar="DAY", const=TODAY)
    parser.add_argument("page", nargs="*", type=pathlib.Path)
    options = parser.parse_args(arguments)
    options.library = options.library.resolve()
    number = 0
    with tempfile.TemporaryDirectory(prefix="docs-blocks-", dir=".") as work:
        home = pathlib.Path(work).resolve()
        if options.sanitize == "none":
            install(options, home)
        runner = Runner(options, home)
        chosen = [path.resolve() for path in options.page] or (
            pages.pages() if options.turn is None else pages_of_day(options.turn))
        for count, page in enumerate(chosen):
            directory = home / f"page-{count}"
            directory.mkdir()
            for block in pages.blocks_of(page, page.read_text(encoding="utf-8")):
                if block.language == "text" and not fault_of(block):
                    continue
                number += 1
                said = verdict(block, runner, directory)
                print(f"{'not ok' if said is None else 'ok'} {number} - {block.name}{said or ''}",
                      flush=True)
    print(f"1..{number}")


if __name__ == "__main__":
    main(sys.argv[1:])
