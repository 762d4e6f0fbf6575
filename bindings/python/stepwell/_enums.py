# SPDX-License-Identifier: Apache-2.0
"""The constants of the API as enumerations. Their names as strings are accepted as well."""
from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Type, TypeVar, Union

from . import _abi


class Access(IntEnum):
    """Access of a view. Many readers or one writer; REDUCE views are summed."""

    READ = _abi.STW_READ
    WRITE = _abi.STW_WRITE
    READ_WRITE = _abi.STW_READ_WRITE
    REDUCE = _abi.STW_REDUCE


class Tier(IntEnum):
    DEFAULT = _abi.STW_TIER_DEFAULT
    DEVICE = _abi.STW_TIER_DEVICE
    HOST = _abi.STW_TIER_HOST
    NVME = _abi.STW_TIER_NVME


class Role(IntEnum):
    OTHER = _abi.STW_ROLE_OTHER
    PARAM = _abi.STW_ROLE_PARAM
    GRAD = _abi.STW_ROLE_GRAD
    OPTIMIZER_STATE = _abi.STW_ROLE_OPTIMIZER_STATE
    ACTIVATION = _abi.STW_ROLE_ACTIVATION
    CACHE = _abi.STW_ROLE_CACHE


class Scope(IntEnum):
    """The gathered tensor, or this rank's shard. Without a group they are the same."""

    WHOLE = _abi.STW_WHOLE
    SHARD = _abi.STW_SHARD


class Partition(IntEnum):
    """Partition of a tensor over the ranks of the runtime's group."""

    DEFAULT = _abi.STW_PARTITION_DEFAULT
    SHARDED = _abi.STW_PARTITION_SHARDED
    REPLICATED = _abi.STW_PARTITION_REPLICATED
    LOCAL = _abi.STW_PARTITION_LOCAL


class Preset(IntEnum):
    AUTO = _abi.STW_PRESET_AUTO
    ZERO_INFINITY = _abi.STW_PRESET_ZERO_INFINITY
    ZERO_OFFLOAD = _abi.STW_PRESET_ZERO_OFFLOAD


class Retain(IntEnum):
    DEFAULT = _abi.STW_RETAIN_DEFAULT
    KEEP = _abi.STW_RETAIN_KEEP
    STREAM = _abi.STW_RETAIN_STREAM
    PIN = _abi.STW_RETAIN_PIN


class Advice(IntEnum):
    NORMAL = _abi.STW_ADVICE_NORMAL
    COLD = _abi.STW_ADVICE_COLD
    HOT = _abi.STW_ADVICE_HOT


class State(IntEnum):
    EMPTY = _abi.STW_STATE_EMPTY
    VALID = _abi.STW_STATE_VALID
    FAILED = _abi.STW_STATE_FAILED


class Link(IntEnum):
    NVME_TO_HOST = _abi.STW_LINK_NVME_TO_HOST
    HOST_TO_NVME = _abi.STW_LINK_HOST_TO_NVME
    HOST_TO_DEVICE = _abi.STW_LINK_HOST_TO_DEVICE
    DEVICE_TO_HOST = _abi.STW_LINK_DEVICE_TO_HOST
    NVME_TO_DEVICE = _abi.STW_LINK_NVME_TO_DEVICE
    DEVICE_TO_NVME = _abi.STW_LINK_DEVICE_TO_NVME
    RANKS = _abi.STW_LINK_RANKS


class Allow(IntFlag):
    """Tiers of a policy; also the tiers at which a tensor has a valid replica."""

    DEVICE = _abi.STW_ALLOW_DEVICE
    HOST = _abi.STW_ALLOW_HOST
    NVME = _abi.STW_ALLOW_NVME


class Release(IntFlag):
    """Flags of a release."""

    FAR = _abi.STW_RELEASE_FAR
    NEAR = _abi.STW_RELEASE_NEAR
    DISCARD = _abi.STW_RELEASE_DISCARD
    ABANDON = _abi.STW_RELEASE_ABANDON
    MORE = _abi.STW_RELEASE_MORE


class PlanAdviceKind(IntFlag):
    """The advised change, or both."""

    GROUP_MICRO_BATCHES = _abi.STW_PLAN_ADVICE_GROUP_MICRO_BATCHES
    REVERSE_UPDATE = _abi.STW_PLAN_ADVICE_REVERSE_UPDATE


class Stream(IntEnum):
    """Streams of a GPU, for `stream=` besides a CUstream (torch's `cuda_stream`, if not 0)."""

    LEGACY = _abi.STW_STREAM_LEGACY  # the default stream, 0 in frameworks
    PER_THREAD = _abi.STW_STREAM_PER_THREAD
    SYNCED = _abi.STW_STREAM_SYNCED  # the program has synchronised; nothing is ordered


class DeviceFlag(IntFlag):
    STREAMS = _abi.STW_DEVICE_STREAMS
    UPDATES = _abi.STW_DEVICE_UPDATES
    STABLE_ADDRESS = _abi.STW_DEVICE_STABLE_ADDRESS
    UNIFIED = _abi.STW_DEVICE_UNIFIED


E = TypeVar("E", bound=IntEnum)


def number(kind: Type[E], value: Union[E, int, str]) -> int:
    """The number of a member, given as the member, its number or its name in any case."""
    if isinstance(value, str):
        try:
            return int(kind[value.upper()])
        except KeyError:
            names = ", ".join(member.name.lower() for member in kind)
            raise ValueError(f"no {kind.__name__.lower()} '{value}'; there are {names}") from None
    return int(value)
