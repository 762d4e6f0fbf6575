# SPDX-License-Identifier: Apache-2.0
"""The public headers: what they declare, as pycparser reads it, and the comments of each.

No compiler is asked: the headers' directives are few, and are blanked out, so that each declaration
stays where its comments are. What is not understood is an error, never left out. A comment belongs
to the declaration it stands before or, on its line, behind; one that has neither is text of the
page. A function without a comment is documented together with the one before it.
"""
import pathlib
import re
import sys

from pycparser import c_ast, c_generator, c_parser

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "include" / "stepwell"
ORDER = ("status", "types", "group", "runtime", "tensor", "fetch", "copy", "operation",
         "optimizer", "phase", "observe", "interop", "victim", "memory", "store", "driver")
COMMENT = re.compile(r"/\*.*?\*/", re.S)
DIRECTIVE = re.compile(r"^#(?:.*\\\n)*.*\n", re.M)
# Nothing of these is for a C parser that was given the integers.
BLANK = re.compile(r"/\*.*?\*/|^#ifdef __cplusplus\n.*?^#endif$|^#(?:[^\n]*\\\n)*[^\n]*$"
                   r"|\bSTW_API\b|\bSTW_\w+_EXPORT\b|STW_STATUS_MAP\(\w+\)", re.M | re.S)
INTEGERS = "typedef int " + ", ".join(f"{sign}int{bits}_t" for sign in ("", "u")
                                      for bits in (8, 16, 32, 64)) + ";"
# What stepwell.h says of functions whose comment is silent.
SILENT = "Any thread. Blocks: never. Errors: INVALID, CLOSED, FORKED."
LABELS = "Ownership|Threads|Blocks|Errors"
LABEL = re.compile(rf"({LABELS}):\s+")


def fail(text):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {text}")


def code_of(path):
    """A C or C++ file without comments and texts."""
    pattern = r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'"""
    return re.sub(pattern, " ", path.read_text(encoding="utf-8"), flags=re.S)


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


def spans(code, begin, end, separator):
    """Where the parts of code[begin:end] are, between separators outside of brackets."""
    depth, first = 0, begin
    for at in range(begin, end):
        depth += (code[at] in "({[") - (code[at] in ")}]")
        if at == end - 1 or (code[at] == separator and depth == 0):
            last = at if code[at] == separator else at + 1
            part = code[first:last]
            if part.strip():
                yield first + len(part) - len(part.lstrip()), first + len(part.rstrip())
            first = at + 1


class Entry:
    """What a comment tells of: C declarations as (role, name, text), members as ([the same],
    comment), and for a struct its source."""

    def __init__(self, kind, title, comment, declared=()):
        self.kind, self.title, self.comment = kind, title, comment
        self.declared, self.members, self.source = list(declared), [], ""


class Header:
    def __init__(self, name):
        self.name, self.entries, self.nodes = name, [], []
        self.text = (FOLDER / f"{name}.h").read_text(encoding="utf-8")
        self.code = BLANK.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), self.text)
        self.statuses = [(status, int(value), words) for status, value, words in
                         re.findall(r'X\((\w+), (-?\d+),\s+"([^"]*)"\)', self.text)]
        self.macros = dict(re.findall(r"^#define (STW_\w+)\s+((?:\(\(|\d|\{).*?)\s*(?:/\*.*)?$",
                                      re.sub(r"\\\n", " ", self.text), re.M))
        about = re.search(rf"/\*\n \* (?:stepwell/)?{name}\.h: (.*?)\*/", self.text, re.S)
        if not about:
            fail(f"{name}.h does not begin by saying what it is")
        self.about, self.about_end = comment_lines(f"/*{about[1]}*/"), about.end()
        self.declarations = list(spans(self.code, 0, len(self.code), ";"))

    # ------------------------------------------------------------------------ the comments --

    def tell(self):
        """The entries, once the nodes of the declarations are known."""
        inside = [(at.start(), at.end()) for at in COMMENT.finditer(self.text)]
        outside = [at for at in inside if at[0] >= self.about_end and not any(
            begin < at[0] < end for begin, end in self.declarations)]
        items = [(*at, None) for at in outside]
        items += [(at.start(), at.end(), "#") for at in DIRECTIVE.finditer(self.text)
                  if at.start() >= self.about_end]
        items += [(*at, node) for at, node in zip(self.declarations, self.nodes)]
        comment, last = [], self.about_end
        for begin, end, node in sorted(items, key=lambda item: item[0]):
            if begin < last:
                continue  # on the line of a directive, or behind a declaration
            if self.text.count("\n", last, begin) > 1:
                self.stands(comment)
                comment = []
            last = end
            if node is None:
                self.stands(comment)
                comment = comment_lines(self.text[begin:end])
                continue
            if node == "#":
                self.read_macro(self.text[begin:end])
            else:
                behind = re.compile(r";[ ]*(/\*.*?\*/)", re.S).match(self.text, end)
                last = behind.end() if behind else end + 1
                self.declare(node, begin, end, comment, comment_lines(behind[1]) if behind else [])
            comment = []

    def stands(self, lines):
        """A comment that belongs to no declaration is text of the page."""
        if lines and not ruler(lines):
            self.entries.append(Entry("text", "", lines))

    def read_macro(self, line):
        name = [*line.split(), ""][1]
        value = self.macros.get(name, "{")
        if not value.startswith("{"):
            if not self.entries or self.entries[-1].kind != "macros":
                self.entries.append(Entry("macros", "", []))
            said = [text for found in COMMENT.findall(line) for text in comment_lines(found)]
            self.entries[-1].members.append(([("macro", name, name)], [f"`{value}`", *said]))

    def declare(self, node, begin, end, comment, behind):
        text = " ".join(self.code[begin:end].split())
        if is_function(node):
            last = self.entries[-1] if self.entries else None
            together = last and last.kind == "function" and not comment
            if together:
                last.title += f", {node.name}"
                # A remark behind a function is of the comment before the group as well.
                last.comment += [f"{node.name}: {behind[0]}", *behind[1:]] if behind else []
            else:
                last = Entry("function", node.name, comment + behind or [SILENT])
                self.entries.append(last)
            last.declared.append(("function", node.name, text))
            return
        comment = behind or comment
        if is_enum(node):
            self.entries.append(self.enum(node, begin, end, comment))
            return
        struct = struct_of(node)
        name = node.name or struct.name
        role, said = ("struct", ["Opaque."]) if struct else ("type", [])
        if isinstance(node, c_ast.Decl):
            said = ["Declared by a header that is not ours."]
        entry = Entry(role if struct and struct.decls else "other", name, comment or said)
        entry.declared.append((role, name, name if struct else text[len("typedef "):]))
        if struct and struct.decls:
            entry.comment = list(comment)
            entry.source = self.text[begin:end + 1]
            entry.members = self.members(self.code.index("{", begin) + 1, end, ";", "member",
                                         struct.decls)
            if f"STW_{name[4:].upper()}_INIT" in self.macros:
                entry.comment.append(f"Begin with STW_{name[4:].upper()}_INIT.")
        self.entries.append(entry)

    def enum(self, node, begin, end, comment):
        names = [member.name for member in node.type.values.enumerators]
        if names == ["STW_STATUS_END_"]:
            entry = Entry("enum", "Status codes", [])
            entry.members = [([("enumerator", f"STW_{name}", f"STW_{name} = {value}")], [words])
                             for name, value, words in self.statuses]
            return entry
        title = re.compile(r"enum \{[ ]*(/\*.*?\*/)", re.S).match(self.text, begin)
        if title:
            comment = comment_lines(title[1]) + comment
        entry = Entry("enum", "", comment)
        entry.members = self.members(title.end() if title else begin + len("enum {"), end, ",",
                                     "enumerator", node.type.values.enumerators)
        common = prefix(names)
        entry.title = ", ".join(names) if common == "STW_" or len(names) == 1 else f"{common}*"
        if comment and not self.text.startswith("enum { STW", begin):
            entry.title, _, rest = re.match(r"(.*?)([;:] |$)(.*)", " ".join(comment)).groups()
            entry.comment = [rest] if rest else []
        return entry

    def members(self, first, end, separator, role, nodes):
        """One comment that runs over two lines of members, as its brackets show, is of both."""
        last = self.code.rindex("}", first, end)
        made = [(*at, []) for at in spans(self.code, first, last, separator)]
        for found in COMMENT.finditer(self.text, first, last):
            lines = comment_lines(found[0])
            line = max(self.text.rfind("\n", 0, found.start()) + 1, first)
            behind = [member for member in made if member[0] < found.start()]
            if self.text[line:found.start()].strip() and behind:
                behind[-1][2].extend(lines)
            elif not ruler(lines):
                made[len(behind)][2].extend(lines)
        if len(made) != len(nodes):
            fail(f"members were not understood: {self.text[first:last]}")
        joined = []
        for (start, stop, lines), node in zip(made, nodes):
            declared = (role, node.name, " ".join(self.code[start:stop].split()))
            said = " ".join(joined[-1][1]) if joined else ""
            if said.count("(") > said.count(")"):
                joined[-1][0].append(declared)
                joined[-1][1].extend(lines)
            else:
                joined.append(([declared], lines))
        return joined


def prefix(names):
    """What the names have in common, up to an underscore."""
    common = names[0]
    for name in names:
        while not name.startswith(common):
            common = common[:-1]
    return common[:common.rindex("_") + 1]


# --------------------------------------------------------------------------------- the types --

def is_function(node):
    return isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl)


def is_enum(node):
    return isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Enum)


def struct_of(node):
    """The struct that a declaration names or defines; else none."""
    kind = node.type.type if isinstance(node.type, c_ast.TypeDecl) else node.type
    return kind if isinstance(kind, c_ast.Struct) else None


class Api:
    """All headers, or all but driver.h, which is for authors of drivers: they write C tables."""

    def __init__(self, driver=False):
        known = {path.stem for path in FOLDER.glob("*.h")} - {"stepwell"}
        if known != set(ORDER):
            fail(f"headers that scripts/headers.py does not know: {sorted(known ^ set(ORDER))}")
        self.headers = [Header(name) for name in ORDER if driver or name != "driver"]
        self.constants, self.initials = {}, {}
        self.functions, self.structs, self.callbacks, self.opaque = {}, {}, {}, set()
        source = [INTEGERS] + [f'# 1 "{header.name}.h"\n{header.code}' for header in self.headers]
        inits = [(name, value) for header in self.headers for name, value in header.macros.items()
                 if value.startswith("{")]
        source += [f"int {name}[] = {value};" for name, value in inits]
        try:
            nodes = c_parser.CParser().parse("\n".join(source)).ext[INTEGERS.count(",") + 1:]
        except c_parser.ParseError as error:
            fail(f"the headers are not C: {error}")
        for header in self.headers:
            count = len(header.declarations)
            header.nodes, nodes = nodes[:count], nodes[count:]
            self.collect(header)
            header.tell()
        if [node.name for node in nodes] != [name for name, _ in inits]:
            fail("a declaration of the headers is none, or several")
        self.initials = {node.name: node.init.exprs for node in nodes}
        self.statuses = [status for header in self.headers for status in header.statuses]

    def collect(self, header):
        self.constants.update((f"STW_{name}", value) for name, value, _ in header.statuses)
        for name, value in header.macros.items():
            pointer = re.fullmatch(r"\(\(void \*\)(-?\d+)\)", value)
            if pointer:
                self.constants[name] = int(pointer[1]) % 2**64
        for node in header.nodes:
            if is_function(node):
                self.functions[node.name] = node.type
            elif is_enum(node):
                self.constants.update((one.name, number(one))
                                      for one in node.type.values.enumerators
                                      if one.name != "STW_STATUS_END_")
            elif isinstance(node.type, c_ast.PtrDecl):
                self.callbacks[node.name] = node.type.type
            elif struct_of(node):
                name = struct_of(node).name
                if struct_of(node).decls:
                    self.structs[name] = struct_of(node).decls
                else:
                    self.opaque.add(name)


def number(enumerator):
    try:
        return int(c_text(enumerator.value))
    except (AttributeError, ValueError):
        return fail(f"an enumerator was not understood: {enumerator.name}")


def c_text(node):
    return c_generator.CGenerator().visit(node)
