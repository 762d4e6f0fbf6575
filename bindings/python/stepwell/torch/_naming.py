# SPDX-License-Identifier: Apache-2.0
"""The names of a generation, matched with those of a model that may be wrapped differently."""
from __future__ import annotations

import os
from typing import Dict, Iterator, List, Tuple

# Modules by which torch.compile, DistributedDataParallel, FSDP, checkpoint wrappers and peft hold
# another one.
_WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
             "base_layer"}


def matched(ours: List[str], theirs: List[str], strict: bool) -> Dict[str, str]:
    """The name in the generation of each name of the model that has one.

    Names match if they are equal without wrappers, and without one prefix that all names of one
    side have (Lightning's "model.", peft's "base_model.model."). strict: raises unless each name
    has one on the other side; else if no name has.
    """
    if set(ours) == set(theirs):
        return {name: name for name in ours}
    best: Dict[str, str] = {}
    for one, other in _pairs(list(_forms(ours)), list(_forms(theirs))):
        found = {name: other[form] for form, name in one.items() if form in other}
        best = found if len(found) > len(best) else best
    if len(best) < len(theirs) or len(best) < len(ours):
        if strict or not best:
            raise ValueError(
                f"the generation has {_some(theirs, set(best.values()))} that the model has not, "
                f"and the model has {_some(ours, set(best))} that the generation has not: make the "
                "model with the names that it was committed with" + (
                    ", or offload with strict=False, which restores what matches and leaves the "
                    "rest of the generation out of the next one" if best else ""))
    return best


_Forms = List[Dict[str, str]]


def _forms(names: List[str]) -> Iterator[Dict[str, str]]:
    """The names without wrappers, then also without 1, 2, ... leading modules that all have. No
    form has two names alike."""
    bare = [[part for part in name.split(".")[:-1] if part not in _WRAPPERS]
            + name.split(".")[-1:] for name in names]
    common: List[str] = os.path.commonprefix([parts[:-1] for parts in bare])
    for n in range(len(common) + 1):
        form = {".".join(parts[n:]): name for parts, name in zip(bare, names)}
        yield form if len(form) == len(names) else {name: name for name in names}


def _pairs(ours: _Forms, theirs: _Forms) -> Iterator[Tuple[Dict[str, str], Dict[str, str]]]:
    """Forms to compare: one of the sides is without a prefix."""
    yield from ((ours[0], form) for form in theirs)
    yield from ((form, theirs[0]) for form in ours[1:])


def _some(names: List[str], known: "set[str]") -> str:
    others = [name for name in names if name not in known]
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"'{others[0]}'{more}" if others else "nothing"
