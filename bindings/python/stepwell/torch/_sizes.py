# SPDX-License-Identifier: Apache-2.0
"""Sizes and directories, from the arguments of offload() and init()."""
from __future__ import annotations

import os
import re
from typing import Any, List, Mapping, Union

from .._options import Nvme

Size = Union[int, str]
Places = Union[None, str, "os.PathLike[str]", Nvme, Mapping[str, Any], List[Any]]
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_of(value: Size) -> int:
    """Bytes: a number, or a string such as "512MiB", "1.5 GiB", "2g"."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(?:i?b)?\s*", value.lower())
        if not found:
            raise ValueError(f"no size: {value!r}; give bytes, or a text such as '512MiB'")
        return int(float(found[1]) * _UNITS[found[2]])
    if isinstance(value, bool) or int(value) != value or value < 0:
        raise ValueError(f"no size: {value!r}")
    return int(value)


def text_of(nbytes: int) -> str:
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"


def places_of(nvme: Places) -> List[Any]:
    return [] if nvme is None else list(nvme) if isinstance(nvme, (list, tuple)) else [nvme]


def nvme_of(nvme: Places, need: int, block: int) -> List[Nvme]:
    """need: 0: the size that a store was made with."""
    places = places_of(nvme)
    each = (-(-need // max(len(places), 1) // block) + 1) * block if need else 0
    return [place if isinstance(place, Nvme) else Nvme(**place) if isinstance(place, Mapping)
            else Nvme(place, each) for place in places]
