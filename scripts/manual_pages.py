# SPDX-License-Identifier: Apache-2.0
"""Manual pages of section 3: one for each function or group of functions that a header tells of
together, with the structs that they take. Names of a group beyond the first are links to its page.
"""
import re
import textwrap

from headers import SILENT, parts_of


def escaped(text):
    """Text that roff takes for nothing else."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def paragraphs(lines):
    text = re.sub(r"\n\s*\n", "\n.PP\n", "\n".join(lines).strip()).split("\n")
    return [line if line == ".PP" else escaped(line.strip()) for line in text]


def declaration(text):
    """As C is written: arguments that do not fit below the first one."""
    indent = " " * (text.index("(") + 1)
    return textwrap.wrap(text, 72, subsequent_indent=indent if len(indent) < 36 else " " * 8,
                         break_long_words=False)


def first_sentence(lines):
    text = re.sub(r"\s+", " ", " ".join(parts_of(lines)[0])).strip()
    ends = [found.start() for found in re.finditer(r"(?<=[a-z)])[.:;](?: |$)", text)]
    ends = [end for end in ends if text.count("(", 0, end) == text.count(")", 0, end)]
    return text[:ends[0]] if ends else text


def structs_of(entry, structs):
    """Those that the functions take or fill, in the order of their arguments."""
    found = []
    for name in re.findall(r"\bstw_\w+", " ".join(text for _, _, text in entry.declared)):
        if name in structs and structs[name] not in found:
            found.append(structs[name])
    return found


def page_of(entry, header, structs, version):
    names = entry.title.split(", ")
    text, fields = parts_of(entry.comment)
    summary = first_sentence(entry.comment)
    if not summary or entry.comment == [SILENT] or summary == "Any thread":
        summary = f"declared in <stepwell/{header}.h>"
    lines = [
        f'.TH {names[0].upper()} 3 "" "Stepwell {version}" "Stepwell"',
        ".SH NAME", f"{', '.join(names)} \\- {escaped(summary)}",
        ".SH SYNOPSIS", ".nf", f".B #include <stepwell/{header}.h>", ".PP",
    ]
    for _, _, declared in entry.declared:
        lines += [f"\\fB{escaped(line)}\\fR" for line in declaration(f"{declared};")]
    lines += [".fi", ".SH DESCRIPTION", *(paragraphs(text) if text else [])]
    for label, said in fields:
        lines += [".TP", f".B {label}", *[escaped(line) for line in said]]
    needed = structs_of(entry, structs)
    if needed:
        lines.append(".SH STRUCTURES")
    for struct in needed:
        lines += [".nf", escaped(struct.source), ".fi", ".PP"]
    return lines + [".SH SEE ALSO", f".BR stepwell_{header} (3),", ".BR stepwell (3)"]


def write_manual(target, pages, version):
    structs = {entry.title: entry for page in pages for entry in page.entries if entry.source}
    for page in pages:
        for entry in page.entries:
            if entry.kind != "function":
                continue
            names = entry.title.split(", ")
            text = "\n".join(page_of(entry, page.name, structs, version)) + "\n"
            (target / f"{names[0]}.3").write_text(text, encoding="utf-8")
            for name in names[1:]:
                (target / f"{name}.3").write_text(f".so man3/{names[0]}.3\n", encoding="utf-8")
