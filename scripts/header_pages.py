# SPDX-License-Identifier: Apache-2.0
"""The public headers with their comments: what scripts/gen-api-docs writes pages of.

A comment belongs to the declaration it stands before or, on its line, behind. One that has neither
is text of the page. Functions that follow another one without a comment are told together with it.
"""
import pathlib
import re
import sys

HEADERS = pathlib.Path(__file__).resolve().parent.parent / "include" / "stepwell"
COMMENT = re.compile(r"/\*.*?\*/", re.S)
# What stepwell.h says of functions whose comment is silent.
SILENT = "Any thread. Blocks: never. Errors: INVALID, CLOSED, FORKED."
LABELS = "Ownership|Threads|Blocks|Errors"
LABEL = re.compile(rf"({LABELS}):\s+")


def fail(text):
    sys.exit(f"gen-api-docs: {text}")


def comment_lines(text):
    """The lines of a comment without its stars, indented as there."""
    lines = re.sub(r"^/\*+|\*/$", "", text).split("\n")
    lines = [lines[0].strip()] + [re.sub(r"^\s*\* ?", "", line) for line in lines[1:]]
    while lines and not lines[-1].strip():
        lines.pop()
    while lines and not lines[0].strip():
        lines.pop(0)
    return [line.rstrip() for line in lines]


def parts_of(lines):
    """The text of a comment, and what its labels say: lines, and (label, lines) of each."""
    text, fields, current = [], [], None
    if lines and LABEL.match(lines[0]) and not any(line.startswith("  ") for line in lines):
        # Labels alone, one behind the other.
        lines = [re.sub(rf"\.\s+(?=(?:{LABELS}):)", ".  ", " ".join(lines))]
    for line in lines:
        if LABEL.match(line):
            for part in re.split(rf"\s{{2,}}(?=(?:{LABELS}):)", line):
                label = LABEL.match(part)
                current = [part[label.end():]]
                fields.append((label[1], current))
        elif current is not None and line.startswith("  "):
            current.append(line.strip())
        else:
            current = None
            text.append(line)
    return text, fields


def ruler(lines):
    """A comment that only draws a line: '---- storage --'."""
    return len(lines) == 1 and re.search(r"-{8}|-- *$", lines[0])


class Entry:
    """A heading of a page: what is declared there, in C and as directives, and what is said."""

    def __init__(self, kind, title, comment):
        self.kind, self.title, self.comment = kind, title, comment
        self.signatures, self.members, self.source = [], [], ""


class Page:
    """One header."""

    def __init__(self, name):
        self.name, self.entries, self.statuses = name, [], []
        text = (HEADERS / f"{name}.h").read_text(encoding="utf-8")
        about = re.search(rf"/\*\n \* (?:stepwell/)?{name}\.h: (.*?)\*/", text, re.S)
        if not about:
            fail(f"{name}.h does not begin by saying what it is")
        self.about = comment_lines(f"/*{about[1]}*/")
        for status, value, words in re.findall(r'X\((\w+), (-?\d+),\s+"([^"]*)"\)', text):
            self.statuses.append((f"STW_{status}", value, words))
        self.scan(text[about.end():])
        for entry in self.entries:
            initial = f"STW_{entry.title[4:].upper()}_INIT"
            if entry.kind == "struct" and f"#define {initial}" in text:
                entry.comment.append(f"Begin with {initial}.")

    def scan(self, text):
        comment, at = [], 0
        while at < len(text):
            blank = re.compile(r"\s+").match(text, at)
            if blank:
                if blank[0].count("\n") > 1:
                    self.standing(comment)
                    comment = []
                at = blank.end()
                continue
            found = COMMENT.match(text, at)
            if found:
                self.standing(comment)
                comment, at = comment_lines(found[0]), found.end()
                continue
            if text[at] == "#":
                at = self.directive(text, at)
            else:
                at = self.declaration(text, at, comment)
            comment = []

    def standing(self, lines):
        """A comment that belongs to no declaration is text of the page."""
        if lines and not ruler(lines):
            self.entries.append(Entry("text", "", lines))

    def directive(self, text, at):
        line = re.compile(r"#(?:.*\\\n)*.*\n").match(text, at)
        constant = re.match(r"#define (STW_\w+) (\S.*?)\s*(/\*.*\*/)?\n", line[0])
        if constant and re.match(r"\(\(|\d", constant[2]):
            said = comment_lines(constant[3]) if constant[3] else []
            last = self.entries[-1] if self.entries else None
            if not last or last.kind != "macros":
                last = Entry("macros", "", [])
                self.entries.append(last)
            last.members.append([[f".. c:macro:: {constant[1]}"], [f"`{constant[2]}`", *said]])
        return line.end()

    def declaration(self, text, at, comment):
        ends = {
            "function": r"STW_(?:API|\w+_EXPORT)\s+([^;]*?);",
            "enum": r"enum \{(.*?)\};",
            "opaque": r"typedef struct (\w+) \1;",
            "foreign": r"struct (\w+);",
            "struct": r"typedef struct (\w+) \{(.*?)\} \1;",
            "type": r"typedef ([^;{]*);",
            "end": r"extern \"C\" \{|\}",
        }
        for kind, pattern in ends.items():
            found = re.compile(pattern, re.S).match(text, at)
            if not found:
                continue
            trailing = re.compile(r"[ ]*(/\*.*?\*/)", re.S).match(text, found.end())
            if trailing and kind == "function":
                comment = self.told_behind(found[1], comment, comment_lines(trailing[1]))
            elif trailing:
                comment = comment_lines(trailing[1])
            getattr(self, f"read_{kind}")(found, comment)
            return trailing.end() if trailing else found.end()
        return fail(f"{self.name}.h: not understood: {text[at:at + 80]!r}")

    def told_behind(self, declared, comment, behind):
        """A remark behind a function is of the comment before it, or of the one before that."""
        last = self.entries[-1] if self.entries else None
        if comment or not last or last.kind != "function":
            return comment + behind
        name = re.search(r"(stw_\w+)\s*\(", declared)[1]
        last.comment += [f"{name}: {behind[0]}", *behind[1:]]
        return []

    def read_end(self, _found, _comment):
        pass

    def read_function(self, found, comment):
        signature = " ".join(found[1].split())
        name = re.search(r"(stw_\w+)\s*\(", signature)[1]
        last = self.entries[-1] if self.entries else None
        if not comment and last and last.kind == "function":
            last.title += f", {name}"  # told together with the one before
        else:
            last = Entry("function", name, comment or [SILENT])
            self.entries.append(last)
        last.signatures.append(f".. c:function:: {signature}")

    def read_opaque(self, found, comment):
        entry = Entry("opaque", found[1], comment or ["Opaque."])
        entry.signatures.append(f".. c:struct:: {found[1]}")
        self.entries.append(entry)

    def read_foreign(self, found, comment):
        self.read_opaque(found, comment or ["Declared by a header that is not ours."])

    def read_type(self, found, comment):
        name = re.search(r"\(\*(\w+)\)|(\w+)$", found[1])
        entry = Entry("type", name[1] or name[2], comment)
        entry.signatures.append(f".. c:type:: {' '.join(found[1].split())}")
        self.entries.append(entry)

    def read_struct(self, found, comment):
        entry = Entry("struct", found[1], comment)
        entry.signatures.append(f".. c:struct:: {found[1]}")
        entry.members = members(found[2], ";", lambda text: f".. c:member:: {text}")
        entry.source = found[0]
        self.entries.append(entry)

    def read_enum(self, found, comment):
        body = found[1]
        if "STW_STATUS_MAP" in body:
            entry = Entry("enum", "Status codes", [])
            entry.members = [[[f".. c:enumerator:: {name} = {value}"], [words]]
                             for name, value, words in self.statuses]
            self.entries.append(entry)
            return
        title = re.match(r"[ ]*(/\*.*?\*/)", body, re.S)
        if title:
            comment, body = comment_lines(title[1]) + comment, body[title.end():]
        entry = Entry("enum", "", comment)
        entry.members = members(body, ",", lambda text: f".. c:enumerator:: {text}")
        names = re.findall(r"\bSTW_\w+(?= = )", body)
        common = prefix(names)
        entry.title = ", ".join(names) if common == "STW_" or len(names) == 1 else f"{common}*"
        if comment and not found[0].startswith("enum { STW"):
            entry.title, _, rest = re.match(r"(.*?)([;:] |$)(.*)", " ".join(comment)).groups()
            entry.comment = [rest] if rest else []
        self.entries.append(entry)


def prefix(names):
    """What the names have in common, up to an underscore."""
    common = names[0]
    for name in names:
        while not name.startswith(common):
            common = common[:-1]
    return common[:common.rindex("_") + 1]


def members(body, separator, directive):
    """[directives, comment] of each member. One comment that runs over two lines of members, as its
    brackets show, is of both."""
    pieces = re.compile(r"(/\*.*?\*/)|((?:\([^()]*\)|[^;,(/]|(?<=[^/*])/(?!\*))+)([;,]?)", re.S)
    before, made, ended = [], [], True
    for found in pieces.finditer(body):
        if found[1]:
            lines = comment_lines(found[1])
            line = body[body.rfind("\n", 0, found.start()) + 1:found.start()]
            if line.strip() and made:
                made[-1][1] += lines
            elif not ruler(lines):
                before += lines
            continue
        text = " ".join(found[2].split())
        if not text:
            continue
        made.append([[directive(text)], before])
        before, ended = [], found[3] == separator
    if not ended and separator == ";":
        fail(f"members were not understood: {body!r}")
    joined = []
    for directives, lines in made:
        said = " ".join(joined[-1][1]) if joined else ""
        if said.count("(") > said.count(")"):
            joined[-1][0].extend(directives)
            joined[-1][1].extend(lines)
        else:
            joined.append([directives, lines])
    return joined
