# SPDX-License-Identifier: Apache-2.0
"""The defaults of device_bytes and host_bytes. One log line gives each of them and its reason."""
from __future__ import annotations

import logging
import os
import re
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from ..errors import BudgetError
from ._place import Place
from ._sizes import Size, size_of, text_of

_STEP = 64 << 20
_NO_LIMIT = 1 << 60  # version 1 of cgroups has such a number where there is no limit
# By the version of cgroups: where they are, limits, what is used, and what of it can be dropped.
_CGROUPS = {
    1: ("/sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes",
        "total_inactive_file"),
    2: ("/sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "inactive_file"),
}
_log = logging.getLogger("stepwell.torch")


def budgets(place: Place, device_bytes: Optional[Size], host_bytes: Optional[Size],
            need: Callable[[], int], nvme: bool, options: Dict[str, Any]) -> Tuple[int, int]:
    """device_bytes and host_bytes, of which None is the default. need: asked for the bytes of all
    parameters, gradients and states."""
    if device_bytes == "auto":
        raise ValueError("device_bytes='auto' is not known yet: leave it out, for half of what is "
                         "free on the device, or give a size")
    if place.is_host:
        if device_bytes is None:
            raise TypeError(
                f"a model on {place.device} needs device_bytes, the memory in which it computes, "
                "such as '4GiB': stepwell.torch.estimate(model, optimizer) tells how much is "
                "enough")
        return size_of(device_bytes), 0 if host_bytes is None else size_of(host_bytes)
    if None in (device_bytes, host_bytes) and place.is_unified():
        raise ValueError(
            f"{place.device} and the CPU have one memory, so that device_bytes and host_bytes are "
            "parts of one budget, which has no default: give both")
    device = _of_device(place, options) if device_bytes is None else size_of(device_bytes)
    return device, (_of_host(need(), device, nvme, options) if host_bytes is None
                    else size_of(host_bytes))


def _of_device(place: Place, options: Dict[str, Any]) -> int:
    device, free = place.device, place.free()
    found = free // 2 // _STEP * _STEP
    if not found:
        raise BudgetError(
            f"{free} bytes are free on {device}, and half of them, the default of device_bytes, "
            f"must be {_STEP} or more: free memory there, or give device_bytes")
    _tell(options, f"device_bytes is {text_of(found)}: half of the {text_of(free)} that are free "
          f"on {device}, whose other half is for what the program computes")
    return found


def _of_host(need: int, device: int, nvme: bool, options: Dict[str, Any]) -> int:
    room = available()
    most = room * 3 // 4
    if need <= most:
        _tell(options, f"host_bytes is {text_of(need)}: what all parameters, gradients and states "
              f"take, of the {text_of(room)} of memory that are left")
        return need
    if not nvme and need > most + device:
        raise BudgetError(
            "without nvme all parameters, gradients and states must fit into device_bytes and "
            f"host_bytes, and take up to {need} bytes, while device_bytes is {device}, and three "
            f"quarters of the memory that is left to this process are {most}: give nvme=, a "
            "directory on a drive, or host_bytes")
    found = most // _STEP * _STEP
    if not found:
        raise BudgetError(
            f"{room} bytes of memory are left to this process, and three quarters of them, the "
            f"default of host_bytes, must be {_STEP} or more: free memory, or give host_bytes")
    _tell(options, f"host_bytes is {text_of(found)}: three quarters of the {text_of(room)} of "
          f"memory that are left; all parameters, gradients and states take {text_of(need)}")
    return found


def available(root: str = "") -> int:
    """Bytes of memory that are left to this process: those of the machine, or fewer by a limit of
    its cgroups. root: where /proc and /sys are."""
    meminfo = _read(root + "/proc/meminfo")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.M)
    return min([int(found[1]) << 10 if found else 0, *_left(root)])


def _left(root: str) -> Iterator[int]:
    """Of each limit of the own cgroup and of those above it, what is not used."""
    for line in _read(root + "/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, limits, used, inactive = _CGROUPS[1 if controllers else 2]
        while True:
            folder = f"{root}{top}{path.rstrip('/')}/"
            at_most = [int(text) for text in (_read(folder + name).strip() for name in limits)
                       if text.isdigit() and int(text) < _NO_LIMIT]
            if at_most:
                dropped = re.search(rf"^{inactive} (\d+)", _read(folder + "memory.stat"), re.M)
                kept = int(_read(folder + used) or 0) - (int(dropped[1]) if dropped else 0)
                yield max(0, min(at_most) - max(0, kept))
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _tell(options: Dict[str, Any], line: str) -> None:
    """To the log of the runtime that will be opened, else to that of the package."""
    log, level = options.get("log"), options.get("log_level")
    if log is None or isinstance(log, logging.Logger):
        (log or _log).info("%s: %s", "budgets", line)
    elif level is not None and level <= logging.INFO:
        log(logging.INFO, "budgets", line)
