# SPDX-License-Identifier: Apache-2.0
"""What budget_sentence.h is for C: the arithmetic of a BUDGET sentence, which has to add up.

"5.8 MiB needed; budget 10.0 MiB = 4.0 MiB pinned by open views + 6.0 MiB free": the sum of the
parts is the total, as far as sizes are rounded, and what is needed is more than the last part,
which can be had.
"""
import re

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
SUM = re.compile(rf"{SIZE} = ({SIZE}[^+;,(]*(?:\+ {SIZE}[^+;,(]*)*)")


class Size:
    """As a sentence has it: its bytes, and how far from them rounding may be."""

    def __init__(self, number, unit):
        self.bytes = float(number) * UNITS[unit]
        self.error = 0 if unit == "bytes" else 0.0501 * UNITS[unit]

    def is_about(self, others):
        error = self.error + sum(other.error for other in others)
        return abs(self.bytes - sum(other.bytes for other in others)) <= error


def check(error):
    """(needed, total, parts) in bytes, of a BudgetError; ValueError says what is wrong in it."""
    sentence = error.sentence
    found = SUM.search(sentence)
    if found is None:
        raise ValueError(f"there is no sum in '{sentence}'")
    total = Size(*found.group(1, 2))
    parts = [Size(*part) for part in re.findall(SIZE, found.group(3))]
    if not total.is_about(parts):
        raise ValueError(f"the parts are not the total in '{sentence}'")
    needed = re.search(SIZE + " needed", sentence)
    if needed is None:  # a budget that cannot shrink: what it holds is the total
        needed = total
    else:
        needed = Size(*needed.groups())
        most, left = needed.bytes + needed.error, parts[-1].bytes + parts[-1].error
        if most <= left - 2 * needed.error and "in one piece" not in sentence:
            raise ValueError(f"there is as much as is needed in '{sentence}'")
    return needed.bytes, total.bytes, [part.bytes for part in parts]
