# SPDX-License-Identifier: Apache-2.0
"""Options of a runtime, and statistics of its tiers."""
from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping, NamedTuple, Optional, Union

from . import _abi
from ._enums import DeviceFlag
from ._library import lib
from .errors import check

Log = Union[None, logging.Logger, Callable[[int, str, str], Any]]

LEVELS = {
    _abi.STW_LOG_ERROR: logging.ERROR,
    _abi.STW_LOG_WARNING: logging.WARNING,
    _abi.STW_LOG_INFO: logging.INFO,
    _abi.STW_LOG_DEBUG: logging.DEBUG,
}


@dataclass(frozen=True)
class Device:
    """A device tier. driver: "cpu", "cpu-discrete" (like a device across a bus), or a module by its
    name or absolute path."""

    budget_bytes: int
    driver: Optional[str] = None
    ordinal: int = 0
    staging_bytes: int = 0
    driver_options: Optional[str] = None


@dataclass(frozen=True)
class Nvme:
    """A directory of the nvme tier. driver: "aio", "posix", or a module by its name or absolute
    path; None: from the machine profile, if it works there. A budget of 0, for a resumed store: its
    original budget."""

    path: Union[str, "os.PathLike[str]"]
    budget_bytes: int = 0
    driver: Optional[str] = None
    driver_options: Optional[str] = None
    queue_depth: int = 0
    request_bytes: int = 0


class DeviceInfo(NamedTuple):
    driver: str
    name: str
    ordinal: int
    flags: DeviceFlag
    granule_bytes: int

    @classmethod
    def _of(cls, info: _abi.stw_device_info) -> "DeviceInfo":
        return cls(info.driver.decode(), info.name.decode(), info.ordinal, DeviceFlag(info.flags),
                   info.granule_bytes)


class DriverInfo(NamedTuple):
    """The kinds of a driver: for a device tier (memory), an nvme tier (storage) or a group."""

    name: str
    memory: bool
    storage: bool
    built_in: bool
    collective: bool


def driver_info(driver: Union[str, "os.PathLike[str]"]) -> DriverInfo:
    """Look a driver up: by its name, or a module's by its absolute path."""
    info = _abi.stw_driver_info.initial()
    check(lib.stw_driver_info_get(os.fsencode(driver), info))
    return DriverInfo(info.name.decode(), bool(info.kinds & _abi.STW_DRIVER_MEMORY),
                      bool(info.kinds & _abi.STW_DRIVER_STORAGE), bool(info.built_in),
                      bool(info.kinds & _abi.STW_DRIVER_COLLECTIVE))


class TierStats(NamedTuple):
    """Totals of a tier since open."""

    open_views: int
    budget_bytes: int
    used_bytes: int
    peak_bytes: int
    pinned_bytes: int
    dirty_bytes: int
    staging_bytes: int
    metadata_bytes: int
    tensors: int
    exports: int
    evictions: int
    metadata_budget_bytes: int
    policy_calls: int
    policy_scores: int
    scratch_bytes: int
    scratch_used_bytes: int
    planned_bytes: int
    planned_used_bytes: int
    planned_wasted_bytes: int
    registered_bytes: int
    registering_bytes: int
    registered_ns: int
    refused_slabs: int
    remapped_bytes: int
    remapped_ns: int
    adopted_bytes: int


class LinkStats(NamedTuple):
    """Totals of a link since open."""

    bytes: int
    transfers: int
    busy_ns: int
    measured_bytes_per_s: int
    errors: int
    retries: int


def _encoded(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode()


def device_of(value: Union[int, Device, Mapping[str, Any]]) -> _abi.stw_device_options:
    if hasattr(value, "__index__"):  # NumPy's integers too
        value = Device(value)  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        value = Device(**value)
    if not isinstance(value, Device):
        raise TypeError(f"{value!r} is no device: give its budget in bytes, or a Device")
    return _abi.stw_device_options.initial(
        ordinal=value.ordinal, driver=_encoded(value.driver), budget_bytes=value.budget_bytes,
        staging_bytes=value.staging_bytes, driver_options=_encoded(value.driver_options),
    )


def nvme_of(value: Union[Nvme, Mapping[str, Any]]) -> _abi.stw_nvme_options:
    if isinstance(value, Mapping):
        value = Nvme(**value)
    if not isinstance(value, Nvme):
        raise TypeError(f"{value!r} is no nvme tier: give Nvme(path, budget_bytes)")
    return _abi.stw_nvme_options.initial(
        path=os.fsencode(value.path), budget_bytes=value.budget_bytes,
        driver=_encoded(value.driver), driver_options=_encoded(value.driver_options),
        queue_depth=value.queue_depth, request_bytes=value.request_bytes,
    )


def log_function(log: Log) -> Any:
    """The log callback for the library. ctypes prints its exceptions; they do not propagate."""
    if log is None:
        return _abi.stw_log_fn()

    def line(_user: Any, level: int, topic: bytes, text: bytes) -> None:
        at = LEVELS.get(level, logging.DEBUG)
        words = topic.decode("utf-8", "replace"), text.decode("utf-8", "replace")
        if isinstance(log, logging.Logger):
            log.log(at, "%s: %s", *words)
        else:
            log(at, *words)

    return _abi.stw_log_fn(line)


def levels_of(log: Log, level: Optional[int]) -> int:
    """The library's level for one of the logging module; by default the logger's own."""
    if level is None:
        if not isinstance(log, logging.Logger):
            return 0
        level = log.getEffectiveLevel()
    if level <= logging.DEBUG:
        return _abi.STW_LOG_DEBUG
    if level <= logging.INFO:
        return _abi.STW_LOG_INFO
    return _abi.STW_LOG_WARNING if level <= logging.WARNING else _abi.STW_LOG_ERROR
