# SPDX-License-Identifier: Apache-2.0
"""Stepwell: memory tiers for programs whose data does not fit into the memory they compute in.

    with stepwell.Runtime(host_bytes=256 << 20,
                          nvme=stepwell.Nvme(".", 1 << 30)) as runtime:
        w = runtime.create("w", (1024, 1024), "f32", role="param")
        w.fill(1.0)
        with w.fetch() as view:      # resident and pinned
            print(view.numpy().sum())
"""
from . import errors
from ._abi import (
    ABI_MAJOR, STW_BLOCK_2M as BLOCK_2M, STW_BLOCK_64K as BLOCK_64K,
    STW_BLOCK_512K as BLOCK_512K, STW_LABEL_BYTES_MAX as LABEL_BYTES_MAX,
    STW_METADATA_BYTES_MAX as METADATA_BYTES_MAX,
)
from ._dlpack import ByAddress
from ._dtypes import Dtype
from ._enums import (
    Access, Advice, Allow, DeviceFlag, Link, Partition, PlanAdviceKind, Preset, Release, Retain,
    Role, Scope, State, Stream, Tier,
)
from ._generations import GenerationInfo
from ._group import Group
from ._library import lib as _lib
from ._memory import HostMemory
from ._operation import Operation
from ._custom import UpdatePiece
from ._optimizer import Hyper, Optimizer, UpdateChunk, UpdateKernel, UpdateResult
from ._options import Device, DeviceInfo, DriverInfo, LinkStats, Nvme, TierStats, driver_info
from ._phase import Phase, PlanAdvice, PlannedFetch, Step, StepStats
from ._runtime import Runtime
from ._tensor import Policy, Request, Tensor, TensorInfo, TensorSpec
from ._victims import Victim
from ._views import Member, View, Views
from .errors import *  # noqa: F401,F403
from .errors import last_error, status_string

READ, WRITE, READ_WRITE, REDUCE = Access.READ, Access.WRITE, Access.READ_WRITE, Access.REDUCE

#: The library's version, "0.1.0+abc1234".
__version__: str = _lib.stw_version_string().decode()

__all__ = [
    "ABI_MAJOR", "Access", "Advice", "Allow", "BLOCK_2M", "BLOCK_512K", "BLOCK_64K", "ByAddress",
    "Device", "DeviceFlag", "DeviceInfo", "DriverInfo", "Dtype", "GenerationInfo", "Group",
    "HostMemory", "Hyper", "LABEL_BYTES_MAX", "Link", "LinkStats", "METADATA_BYTES_MAX", "Member",
    "Nvme", "Operation", "Optimizer", "Partition", "Phase", "PlanAdvice", "PlanAdviceKind",
    "PlannedFetch", "Policy", "Preset", "READ", "READ_WRITE", "REDUCE", "Release", "Request",
    "Retain", "Role", "Runtime", "Scope", "State", "Step", "StepStats", "Stream", "Tensor",
    "TensorInfo", "TensorSpec", "Tier", "TierStats", "UpdateChunk", "UpdateKernel", "UpdatePiece",
    "UpdateResult",
    "Victim", "View", "Views", "WRITE", "driver_info", "errors", "last_error", "status_string",
    *errors.__all__,
]
