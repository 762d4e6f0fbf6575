# SPDX-License-Identifier: Apache-2.0
"""The pages of the tree, and what is in them: code blocks, links, headings."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pages():
    """Every page that people read, by its path in the tree."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md",
                                      "bindings/python/README.md")]
    found += sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "examples").glob("*/README.md"))
    return found


class Block:
    """A fenced block: its language, its text, and what the comments above say about it."""

    def __init__(self, page, line, language):
        self.page, self.line, self.language = page, line, language
        self.lines, self.notes = [], {}

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"

    @property
    def name(self):
        return f"{self.page.relative_to(ROOT)}:{self.line} {self.language}"


def blocks_of(page, text):
    """The blocks of a page. A comment stands alone on its line, right above the fence or with other
    comments between: <!-- word: what about it -->."""
    notes, inside, found, before = {}, None, [], ""
    for number, line in enumerate(text.splitlines(), 1):
        if not inside and not before and re.match(r" {4}\S", line):
            raise ValueError(f"{page}:{number}: a block by its margin: use a fence")
        before = line
        fence = re.fullmatch(r"(```+)(\S*)", line)
        note = re.fullmatch(r"<!-- ([a-z ]+): (.*) -->", line)
        if inside and line == "```":
            inside = None
        elif inside:
            inside.lines.append(line)
        elif fence:
            inside = Block(page, number, fence[2])
            inside.notes, notes = notes, {}
            found.append(inside)
        elif note:
            notes.setdefault(note[1], []).append(note[2])
        else:
            notes = {}
    if inside:
        raise ValueError(f"{page}:{inside.line}: this block does not end")
    return found


def prose_of(text):
    """The page without its blocks and without code in a line."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "``", text)


def links_of(text):
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose_of(text))


def slug(heading):
    """The anchor that a forge makes of a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def anchors_of(text):
    seen, anchors = {}, set()
    text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for heading in re.findall(r"^#{1,6} (.*)$", text, flags=re.M):
        anchor = slug(heading)
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors
