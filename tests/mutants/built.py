# SPDX-License-Identifier: Apache-2.0
"""Programs and libraries of a build folder, linked again with one text of a source replaced."""
import functools
import json
import os
import re
import shlex
import subprocess

# These follow the build's own flags: an object that is less optimized is compiled sooner and shows
# the same bug.
FLAGS = ["-O1", "-g0", "-w"]


class Built:
    """A build folder, of whose commands those of the objects that have a mutant run again, and
    those that link them. What is made lies in `work`; the tree and the build are never written
    to."""

    def __init__(self, folder, root, work):
        self.folder, self.root, self.work = folder, root, work
        entries = json.loads((folder / "compile_commands.json").read_text())
        self.commands = {entry["output"]: shlex.split(entry["command"]) for entry in entries}
        self.compiled = {entry["output"]: (folder / entry["file"]).resolve() for entry in entries}

    def ninja(self, *arguments):
        return subprocess.run(["ninja", "-C", str(self.folder), *arguments], capture_output=True,
                              text=True, check=True).stdout

    @functools.cached_property
    def headers(self):
        """What each object was compiled from, as the compiler listed it."""
        found = {}
        for line in self.ninja("-t", "deps").splitlines():
            if line.startswith("    "):
                found[output].add(os.path.normpath(self.folder / line.strip()))
            elif ":" in line:
                output = line.split(":")[0]
                found[output] = set()
        return found

    def link(self, target):
        *_, last = self.ninja("-t", "commands", "-s", target).strip().splitlines()
        return shlex.split(last)

    def objects(self, part):
        """Those that a word of a link command brings: one, or what an archive of the build has."""
        if part.endswith(".a"):
            return [output for output in self.compiled if output.startswith(f"{part}.p/")]
        return [part] if part in self.compiled else []

    def place(self, source):
        """Where a file that includes others has this one."""
        return re.compile(rf"#include ?<[^>]*/{re.escape(str(source.relative_to(self.root)))}>")

    def has(self, output, source):
        if source.suffix == ".h":
            return str(source) in self.headers.get(output, ())
        compiled = self.compiled[output]
        return compiled == source or (compiled.is_relative_to(self.folder) and
                                      self.place(source).search(compiled.read_text()) is not None)

    def compile(self, output, source, shadow, folder):
        """The object with the shadow in the place of the source."""
        compiled, target = self.compiled[output], folder / output
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".h":
            made = compiled
        elif compiled == source:
            made = shadow
        else:
            made = target.with_suffix("")
            made.write_text(self.place(source).sub(f'#include "{shadow}"', compiled.read_text()))
        command = [*self.commands[output], *FLAGS]
        command[1:1] = [f"-I{folder}"]  # where a header is looked for first
        for flag, path in ("-o", target), ("-c", made), ("-MF", f"{target}.d"), ("-MQ", target):
            command[command.index(flag) + 1] = str(path)
        self.run(command, "compile")
        return str(target)

    def run(self, command, what):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"it does not {what}: {done.stderr[:2000]}")

    def planted(self, name, target, file, pairs):
        """`target` with the texts of `file` replaced; None where no object of it has the file."""
        source, folder = self.root / file, self.work / name
        text = source.read_text()
        for find, replace in pairs:
            if text.count(find) != 1:
                raise RuntimeError(f"{find!r} occurs {text.count(find)} times in {file}")
            text = text.replace(find, replace)
        shadow = folder / file
        shadow.parent.mkdir(parents=True, exist_ok=True)
        shadow.write_text(text)
        link, swapped = self.link(target), {}
        for at, part in enumerate(link):
            objects = self.objects(part)
            here = {output: swapped.get(output) or self.compile(output, source, shadow, folder)
                    for output in objects if self.has(output, source)}
            swapped.update(here)
            if here and part.endswith(".a"):
                link[at] = str(folder / part)
                self.run(["ar", "csrDT", link[at],
                          *(here.get(output, str(self.folder / output)) for output in objects)],
                         "make an archive")
            elif here:
                link[at] = here[part]
        if not swapped:
            return None
        made = folder / os.path.basename(target)
        link[link.index("-o") + 1] = str(made)
        self.run(link, "link")
        return made
