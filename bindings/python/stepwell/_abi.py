# SPDX-License-Identifier: Apache-2.0
# Written by scripts/gen-python-abi from include/stepwell; do not change it by hand.
"""The C ABI as ctypes sees it: constants, structs, prototypes."""
from __future__ import annotations

import ctypes
import operator
from ctypes import (
    CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_uint32,
    c_uint64, c_void_p,
)
from typing import Any, ClassVar, Dict, List, Tuple, Type, TypeVar

ABI_MAJOR = 0

STATUSES = {
    0: ("OK", "success"),
    1: ("PENDING", "still in flight"),
    2: ("SKIPPED", "the update was skipped: a gradient is not finite"),
    -1: ("ERROR_INVALID", "an argument is wrong"),
    -2: ("ERROR_INTERNAL", "a fault of the library"),
    -3: ("ERROR_MEMORY", "the process or its cgroup cannot have that much memory"),
    -4: ("ERROR_BUDGET", "the tier's budget cannot hold the request"),
    -5: ("ERROR_IO", "a read or write failed"),
    -6: ("ERROR_CHECKSUM", "stored bytes are not the bytes that were written"),
    -7: ("ERROR_SYNC", "a flush failed; the store takes no commit until it is reopened"),
    -8: ("ERROR_NO_SPACE", "the file system cannot promise the space"),
    -9: ("ERROR_TIMEOUT", "the timeout passed; what is in flight is in the log"),
    -10: ("ERROR_LOCKED", "the store belongs to a living process, or its I/O is draining"),
    -11: ("ERROR_PEER", "a rank is gone, stopped or cut off"),
    -12: ("ERROR_DEVICE", "the device is lost"),
    -13: ("ERROR_CLOSED", "the runtime, or the handle, was closed"),
    -14: ("ERROR_FORKED", "this process is a fork of the one that opened the runtime"),
    -15: ("ERROR_ORDER", "ranks called in different order, or with different tensors"),
    -16: ("ERROR_UNSUPPORTED", "not available here, or not in this build"),
    -17: ("ERROR_BUSY", "views, a writer or background work are in the way"),
    -18: ("ERROR_EMPTY", "the tensor was never written, or was discarded"),
    -19: ("ERROR_NOT_FOUND", "no such tensor, file, label or generation"),
    -20: ("ERROR_EXISTS", "the name is taken, or a store is already there"),
    -21: ("ERROR_MISMATCH", "dtype, shape, partition or group differ from the other side's"),
    -22: ("ERROR_CANCELLED", "the operation was cancelled"),
    -23: ("ERROR_INTERRUPTED", "stw_runtime_interrupt was called"),
    -24: ("ERROR_LIMIT", "a maximum that was set at open is reached"),
    -25: ("ERROR_FORMAT", "a file is damaged, foreign or of a newer format"),
    -26: ("ERROR_PERMISSION", "access refused, or a path or module is not safe"),
    -27: ("ERROR_WEAR", "the day's write budget of a device is spent"),
}

STW_OK = 0
STW_PENDING = 1
STW_SKIPPED = 2
STW_ERROR_INVALID = -1
STW_ERROR_INTERNAL = -2
STW_ERROR_MEMORY = -3
STW_ERROR_BUDGET = -4
STW_ERROR_IO = -5
STW_ERROR_CHECKSUM = -6
STW_ERROR_SYNC = -7
STW_ERROR_NO_SPACE = -8
STW_ERROR_TIMEOUT = -9
STW_ERROR_LOCKED = -10
STW_ERROR_PEER = -11
STW_ERROR_DEVICE = -12
STW_ERROR_CLOSED = -13
STW_ERROR_FORKED = -14
STW_ERROR_ORDER = -15
STW_ERROR_UNSUPPORTED = -16
STW_ERROR_BUSY = -17
STW_ERROR_EMPTY = -18
STW_ERROR_NOT_FOUND = -19
STW_ERROR_EXISTS = -20
STW_ERROR_MISMATCH = -21
STW_ERROR_CANCELLED = -22
STW_ERROR_INTERRUPTED = -23
STW_ERROR_LIMIT = -24
STW_ERROR_FORMAT = -25
STW_ERROR_PERMISSION = -26
STW_ERROR_WEAR = -27
STW_STREAM_HOST = 0
STW_STREAM_LEGACY = 1
STW_STREAM_PER_THREAD = 2
STW_STREAM_SYNCED = 18446744073709551615
STW_F32 = 1
STW_F16 = 2
STW_BF16 = 3
STW_F64 = 4
STW_F8_E4M3 = 5
STW_F8_E5M2 = 6
STW_I64 = 7
STW_I32 = 8
STW_I16 = 9
STW_I8 = 10
STW_U8 = 11
STW_BOOL = 12
STW_TIER_DEFAULT = 0
STW_TIER_DEVICE = 1
STW_TIER_HOST = 2
STW_TIER_NVME = 3
STW_ROLE_OTHER = 0
STW_ROLE_PARAM = 1
STW_ROLE_GRAD = 2
STW_ROLE_OPTIMIZER_STATE = 3
STW_ROLE_ACTIVATION = 4
STW_ROLE_CACHE = 5
STW_GROUP_SELF = 0
STW_GROUP_MPI = 1
STW_GROUP_NCCL = 2
STW_GROUP_CALLBACKS = 3
STW_GROUP_CALLER_THREAD = 1
STW_PRESET_AUTO = 0
STW_PRESET_ZERO_INFINITY = 1
STW_PRESET_ZERO_OFFLOAD = 2
STW_LOG_ERROR = 1
STW_LOG_WARNING = 2
STW_LOG_INFO = 3
STW_LOG_DEBUG = 4
STW_BLOCK_2M = 2097152
STW_BLOCK_512K = 524288
STW_BLOCK_64K = 65536
STW_RUNTIME_RESUME = 1
STW_RUNTIME_OVERWRITE = 2
STW_RUNTIME_NO_PROBE = 4
STW_RUNTIME_NO_PLAN = 16
STW_RUNTIME_FAULT_IN = 32
STW_RUNTIME_ROOM_FARTHEST = 64
STW_CLOSE_DEFERRED = 1
STW_DEVICE_STREAMS = 1
STW_DEVICE_STABLE_ADDRESS = 2
STW_DEVICE_UNIFIED = 4
STW_DEVICE_UPDATES = 8
STW_DRIVER_MEMORY = 1
STW_DRIVER_STORAGE = 2
STW_DRIVER_COLLECTIVE = 4
STW_DIMENSIONS_MAX = 8
STW_RETAIN_DEFAULT = 0
STW_RETAIN_KEEP = 1
STW_RETAIN_STREAM = 2
STW_RETAIN_PIN = 3
STW_PARTITION_DEFAULT = 0
STW_PARTITION_SHARDED = 1
STW_PARTITION_REPLICATED = 2
STW_PARTITION_LOCAL = 3
STW_ALLOW_DEVICE = 1
STW_ALLOW_HOST = 2
STW_ALLOW_NVME = 4
STW_TENSOR_DURABLE = 1
STW_TENSOR_ZERO = 2
STW_TENSOR_READ_ONLY = 4
STW_TENSOR_FIXED_ADDRESS = 8
STW_TENSOR_NO_ADDRESS = 16
STW_TENSOR_OWN_BLOCKS = 32
STW_STATE_EMPTY = 0
STW_STATE_VALID = 1
STW_STATE_FAILED = 2
STW_READ = 0
STW_WRITE = 1
STW_READ_WRITE = 2
STW_REDUCE = 3
STW_WHOLE = 0
STW_SHARD = 1
STW_FETCH_TRY = 1
STW_FETCH_WAIT_ROOM = 2
STW_FETCH_HAND_OVER = 4
STW_FETCH_ABSENT = 8
STW_FETCH_SPECULATED = 16
STW_RELEASE_FAR = 1
STW_RELEASE_NEAR = 2
STW_RELEASE_DISCARD = 4
STW_RELEASE_MORE = 16
STW_RELEASE_ABANDON = 8
STW_ADVICE_NORMAL = 0
STW_ADVICE_COLD = 1
STW_ADVICE_HOT = 2
STW_REDUCE_MORE = 1
STW_OPTIMIZER_ADAMW = 1
STW_OPTIMIZER_ADAM = 2
STW_OPTIMIZER_SGD = 3
STW_OPTIMIZER_ADAGRAD = 4
STW_OPTIMIZER_LION = 5
STW_OPTIMIZER_CUSTOM = 6
STW_HYPER_NESTEROV = 1
STW_HYPER_MAXIMIZE = 2
STW_OPTIMIZER_DURABLE = 1
STW_OPTIMIZER_TORCH_ORDER = 2
STW_UPDATE_SKIP_NONFINITE = 1
STW_UPDATE_KEEP_GRADIENTS = 2
STW_UPDATE_WAIT = 4
STW_UPDATE_MEASURE = 8
STW_UPDATE_SPECULATE = 16
STW_UPDATE_REJECT = 32
STW_PLAN_ADVICE_GROUP_MICRO_BATCHES = 1
STW_PLAN_ADVICE_REVERSE_UPDATE = 2
STW_LINK_NVME_TO_HOST = 1
STW_LINK_HOST_TO_NVME = 2
STW_LINK_HOST_TO_DEVICE = 3
STW_LINK_DEVICE_TO_HOST = 4
STW_LINK_NVME_TO_DEVICE = 5
STW_LINK_DEVICE_TO_NVME = 6
STW_LINK_RANKS = 7
STW_VICTIM_PINNED = 1
STW_VICTIM_SHARED = 2
STW_HOST_ZERO = 1
STW_LABEL_BYTES_MAX = 255
STW_METADATA_BYTES_MAX = 1048576
STW_COMMIT_COMPLETE = 1

S = TypeVar("S", bound="Struct")


class Struct(ctypes.Structure):
    """A struct of the ABI. initial() is what its INIT macro is in C."""

    _initial_: ClassVar[Dict[str, float]] = {}
    _kinds_: ClassVar[Dict[str, Any]]

    @classmethod
    def initial(cls: Type[S], **values: Any) -> S:
        made = cls()
        if hasattr(made, "struct_size"):
            made.struct_size = ctypes.sizeof(cls)
        for name, value in {**cls._initial_, **values}.items():
            setattr(made, name, value)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        """ctypes would take integers modulo 2^n, and end texts at a NUL."""
        kinds = type(self).__dict__.get("_kinds_")
        if kinds is None:
            kinds = type(self)._kinds_ = dict(self._fields_)
        kind = kinds.get(name)
        if kind in LIMITS:
            value = checked(name, value, kind)
        elif kind is c_char_p and isinstance(value, bytes) and 0 in value:
            raise ValueError(f"{name} is {value!r}, and a NUL would end it")
        super().__setattr__(name, value)


LIMITS = {c_int32: (-2**31, 2**31), c_int64: (-2**63, 2**63), c_uint32: (0, 2**32),
          c_uint64: (0, 2**64)}


def checked(name: str, value: Any, kind: Any = c_uint64) -> int:
    """An integer of any type, NumPy's as well, where the ABI can hold it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, and no integer") from None
    low, end = LIMITS[kind]
    if not low <= number < end:
        raise ValueError(f"{name} is {number}; it can be {low} to {end - 1}")
    return number


stw_log_fn = CFUNCTYPE(None, c_void_p, c_uint32, c_char_p, c_char_p)


stw_deleter_fn = CFUNCTYPE(None, c_void_p)


stw_done_fn = CFUNCTYPE(None, c_void_p, c_void_p, c_int32)


class stw_error_info(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("status", c_int32),
        ("os_errno", c_int32),
        ("rank", c_int32),
        ("tier", c_uint32),
        ("device", c_uint32),
        ("needed_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("pinned_bytes", c_uint64),
        ("offset_bytes", c_uint64),
        ("pinned_views", c_uint64),
        ("tensor", c_char * 128),
        ("sentence", c_char * 768),
    ]


class stw_group_ops(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("all_gather", CFUNCTYPE(
            c_int32, c_void_p, c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, c_void_p,
            POINTER(c_uint64))),
        ("reduce_scatter", CFUNCTYPE(
            c_int32, c_void_p, c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, c_uint32, c_void_p,
            POINTER(c_uint64))),
        ("all_reduce", CFUNCTYPE(
            c_int32, c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, c_uint32, c_void_p,
            POINTER(c_uint64))),
        ("poll", CFUNCTYPE(c_int32, c_void_p, c_uint64)),
        ("abort", CFUNCTYPE(c_int32, c_void_p)),
    ]


class stw_group_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("driver", c_uint32),
        ("flags", c_uint32),
        ("rank", c_uint32),
        ("size", c_uint32),
        ("mpi_comm", c_int32),
        ("nccl_comm", c_void_p),
        ("unique_id", c_void_p),
        ("unique_id_bytes", c_uint64),
        ("ops", POINTER(stw_group_ops)),
        ("ops_user", c_void_p),
        ("timeout_ns", c_uint64),
        ("module", c_char_p),
        ("device_ordinal", c_int32),
        ("reserved", c_uint32),
    ]


class stw_device_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("ordinal", c_int32),
        ("driver", c_char_p),
        ("budget_bytes", c_uint64),
        ("staging_bytes", c_uint64),
        ("driver_options", c_char_p),
    ]


class stw_nvme_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("path", c_char_p),
        ("budget_bytes", c_uint64),
        ("driver", c_char_p),
        ("driver_options", c_char_p),
        ("queue_depth", c_uint32),
        ("request_bytes", c_uint32),
    ]


class stw_runtime_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("group", c_void_p),
        ("devices", POINTER(stw_device_options)),
        ("nvme", POINTER(stw_nvme_options)),
        ("device_count", c_uint32),
        ("nvme_count", c_uint32),
        ("host_bytes", c_uint64),
        ("preset", c_uint32),
        ("thread_count", c_uint32),
        ("timeout_ns", c_uint64),
        ("tensors_max", c_uint32),
        ("views_max", c_uint32),
        ("operations_max", c_uint32),
        ("block_bytes", c_uint32),
        ("log", stw_log_fn),
        ("log_user", c_void_p),
        ("log_level", c_uint32),
        ("reserved", c_uint32),
        ("metadata_bytes", c_uint64),
        ("profile_path", c_char_p),
        ("host_scratch_bytes", c_uint64),
        ("whole_bytes", c_uint64),
        ("node_host_bytes", c_uint64),
        ("replica_group", c_void_p),
        ("store_name", c_char_p),
        ("resume_generation", c_uint64),
        ("generations_kept", c_uint32),
        ("reserved2", c_uint32),
    ]


class stw_device_info(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("ordinal", c_int32),
        ("granule_bytes", c_uint32),
        ("driver", c_char * 32),
        ("name", c_char * 128),
    ]


class stw_driver_info(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kinds", c_uint32),
        ("built_in", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char * 32),
    ]


class stw_policy(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("home", c_uint32),
        ("allowed_tiers", c_uint32),
        ("retention", c_uint32),
        ("priority", c_int32),
        ("home_device", c_uint32),
    ]


class stw_tensor_spec(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("role", c_uint32),
        ("dtype", c_uint32),
        ("partition", c_uint32),
        ("dimensions", c_uint32),
        ("shape", c_uint64 * 8),
        ("align_bytes", c_uint64),
        ("neighbour", c_uint64),
        ("group", c_void_p),
        ("policy", POINTER(stw_policy)),
        ("partition_multiple", c_uint64),
    ]


class stw_tensor_info(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("state", c_uint32),
        ("restored", c_uint32),
        ("dtype", c_uint32),
        ("role", c_uint32),
        ("partition", c_uint32),
        ("dimensions", c_uint32),
        ("residence", c_uint32),
        ("shape", c_uint64 * 8),
        ("elements", c_uint64),
        ("shard_begin", c_uint64),
        ("shard_elements", c_uint64),
        ("shard_bytes", c_uint64),
        ("whole_bytes", c_uint64),
        ("version", c_uint64),
        ("open_views", c_uint64),
        ("name", c_char_p),
        ("frozen", c_uint64),
    ]


class stw_fetch_request(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("access", c_uint32),
        ("tensor", c_void_p),
        ("scope", c_uint32),
        ("tier", c_uint32),
        ("device", c_uint32),
        ("dtype", c_uint32),
        ("element_begin", c_uint64),
        ("element_count", c_uint64),
        ("into", c_void_p),
    ]


class stw_fetch_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("stream", c_void_p),
        ("phase", c_void_p),
        ("timeout_ns", c_uint64),
        ("priority", c_int32),
        ("reserved", c_uint32),
    ]


class stw_view(Struct):
    _fields_ = [
        ("pointer", c_void_p),
        ("bytes", c_uint64),
        ("element_begin", c_uint64),
        ("element_count", c_uint64),
        ("tensor", c_void_p),
        ("cookie", c_uint64),
        ("access", c_uint32),
        ("scope", c_uint32),
        ("tier", c_uint32),
        ("device", c_uint32),
    ]


class stw_copy_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("scope", c_uint32),
        ("dtype", c_uint32),
        ("tier", c_uint32),
        ("device", c_uint32),
        ("reserved", c_uint32),
        ("element_begin", c_uint64),
        ("element_count", c_uint64),
        ("stream", c_void_p),
        ("timeout_ns", c_uint64),
    ]


class stw_reduce_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("dtype", c_uint32),
        ("wire_dtype", c_uint32),
        ("tier", c_uint32),
        ("device", c_uint32),
        ("stream", c_void_p),
        ("scale", c_double),
        ("timeout_ns", c_uint64),
    ]


class stw_hyper(Struct):
    _initial_ = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("lr", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("eps", c_double),
        ("weight_decay", c_double),
        ("momentum", c_double),
        ("dampening", c_double),
        ("lr_decay", c_double),
    ]


class stw_update_chunk(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("state_count", c_uint32),
        ("parameter", c_void_p),
        ("values", c_void_p),
        ("master", POINTER(c_float)),
        ("gradient", c_void_p),
        ("states", POINTER(POINTER(c_float))),
        ("element_begin", c_uint64),
        ("element_count", c_uint64),
        ("step", c_uint64),
        ("gradient_scale", c_double),
        ("hyper", POINTER(stw_hyper)),
    ]


class stw_custom_update(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("state_count", c_uint32),
        ("state_names", POINTER(c_char_p)),
        ("update", CFUNCTYPE(c_int32, c_void_p, POINTER(stw_update_chunk))),
        ("user", c_void_p),
    ]


class stw_optimizer_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("algorithm", c_uint32),
        ("name", c_char_p),
        ("state_dtype", c_uint32),
        ("flags", c_uint32),
        ("custom", POINTER(stw_custom_update)),
        ("state_policy", POINTER(stw_policy)),
        ("ema_decay", c_double),
        ("square_root", CFUNCTYPE(None, c_int32, POINTER(c_float), POINTER(c_float), c_int64)),
        ("square_root_mode", c_int64),
        ("square_root_threads", CFUNCTYPE(c_int32, c_int32)),
    ]


class stw_optimizer_entry(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("parameter_group", c_uint32),
        ("parameter", c_void_p),
        ("gradient", c_void_p),
        ("element_begin", c_uint64),
        ("element_count", c_uint64),
    ]


class stw_update_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("parameters", POINTER(c_void_p)),
        ("parameter_count", c_uint32),
        ("reserved", c_uint32),
        ("gradient_scale", c_double),
        ("clip_norm", c_double),
        ("norm_type", c_double),
        ("timeout_ns", c_uint64),
        ("gradients", POINTER(c_void_p)),
    ]


class stw_update_result(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("skipped", c_uint32),
        ("norm", c_double),
        ("clip_coefficient", c_double),
        ("nonfinite", c_uint64),
        ("updated", c_uint64),
        ("without_gradient", c_uint64),
        ("early", c_uint64),
        ("undone", c_uint64),
    ]


class stw_step_stats(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("planned", c_uint32),
        ("step", c_uint64),
        ("wall_ns", c_uint64),
        ("bound_ns", c_uint64),
        ("stall_ns", c_uint64),
        ("stall_nvme_ns", c_uint64),
        ("stall_host_device_ns", c_uint64),
        ("stall_collective_ns", c_uint64),
        ("stall_room_ns", c_uint64),
        ("stall_update_ns", c_uint64),
        ("nvme_read_bytes", c_uint64),
        ("nvme_write_bytes", c_uint64),
        ("host_to_device_bytes", c_uint64),
        ("device_to_host_bytes", c_uint64),
        ("collective_bytes", c_uint64),
        ("least_ns", c_uint64),
    ]


class stw_plan_entry(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("fetch", c_uint32),
        ("tensor", c_void_p),
        ("access", c_uint32),
        ("scope", c_uint32),
        ("tier", c_uint32),
        ("device", c_uint32),
        ("release_flags", c_uint32),
        ("reserved", c_uint32),
        ("element_begin", c_uint64),
        ("element_count", c_uint64),
        ("compute_ns", c_uint64),
    ]


class stw_plan_advice(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("micro_batches", c_uint32),
        ("parameters", c_uint32),
        ("now_nvme_read_bytes", c_uint64),
        ("now_nvme_write_bytes", c_uint64),
        ("now_host_to_device_bytes", c_uint64),
        ("now_device_to_host_bytes", c_uint64),
        ("now_step_ns", c_uint64),
        ("then_nvme_read_bytes", c_uint64),
        ("then_nvme_write_bytes", c_uint64),
        ("then_host_to_device_bytes", c_uint64),
        ("then_device_to_host_bytes", c_uint64),
        ("then_step_ns", c_uint64),
        ("text", c_char * 512),
    ]


class stw_tier_stats(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("open_views", c_uint32),
        ("budget_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("pinned_bytes", c_uint64),
        ("dirty_bytes", c_uint64),
        ("staging_bytes", c_uint64),
        ("metadata_bytes", c_uint64),
        ("tensors", c_uint64),
        ("exports", c_uint64),
        ("evictions", c_uint64),
        ("metadata_budget_bytes", c_uint64),
        ("policy_calls", c_uint64),
        ("policy_scores", c_uint64),
        ("scratch_bytes", c_uint64),
        ("scratch_used_bytes", c_uint64),
        ("planned_bytes", c_uint64),
        ("planned_used_bytes", c_uint64),
        ("planned_wasted_bytes", c_uint64),
        ("registered_bytes", c_uint64),
        ("registering_bytes", c_uint64),
        ("registered_ns", c_uint64),
        ("refused_slabs", c_uint64),
        ("remapped_bytes", c_uint64),
        ("remapped_ns", c_uint64),
        ("adopted_bytes", c_uint64),
    ]


class stw_link_stats(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("bytes", c_uint64),
        ("transfers", c_uint64),
        ("busy_ns", c_uint64),
        ("measured_bytes_per_s", c_uint64),
        ("errors", c_uint64),
        ("retries", c_uint64),
    ]


class stw_victim(Struct):
    _fields_ = [
        ("tensor", c_void_p),
        ("bytes", c_uint64),
        ("dirty_bytes", c_uint64),
        ("last_use", c_uint64),
        ("next_use", c_uint64),
        ("role", c_uint32),
        ("retention", c_uint32),
        ("priority", c_int32),
        ("flags", c_uint32),
    ]


class stw_victim_policy(Struct):
    _initial_ = {"victim_bytes": ctypes.sizeof(stw_victim)}
    _fields_ = [
        ("struct_size", c_uint32),
        ("victim_bytes", c_uint32),
        ("rank", CFUNCTYPE(
            None, c_void_p, c_uint32, c_uint32, POINTER(stw_victim), c_uint32, POINTER(c_double))),
        ("user", c_void_p),
    ]


class stw_commit_options(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("label", c_char_p),
        ("metadata", c_void_p),
        ("metadata_bytes", c_uint64),
        ("timeout_ns", c_uint64),
    ]


class stw_generation_info(Struct):
    _fields_ = [
        ("struct_size", c_uint32),
        ("ranks", c_uint32),
        ("generation", c_uint64),
        ("tensors", c_uint64),
        ("bytes", c_uint64),
        ("metadata_bytes", c_uint64),
        ("time_unix_ns", c_uint64),
        ("label", c_char * (STW_LABEL_BYTES_MAX + 1)),
        ("left_out", c_uint64),
    ]


STRUCTS: List[Type[Struct]] = [
    stw_error_info,
    stw_group_ops,
    stw_group_options,
    stw_device_options,
    stw_nvme_options,
    stw_runtime_options,
    stw_device_info,
    stw_driver_info,
    stw_policy,
    stw_tensor_spec,
    stw_tensor_info,
    stw_fetch_request,
    stw_fetch_options,
    stw_view,
    stw_copy_options,
    stw_reduce_options,
    stw_hyper,
    stw_update_chunk,
    stw_custom_update,
    stw_optimizer_options,
    stw_optimizer_entry,
    stw_update_options,
    stw_update_result,
    stw_step_stats,
    stw_plan_entry,
    stw_plan_advice,
    stw_tier_stats,
    stw_link_stats,
    stw_victim,
    stw_victim_policy,
    stw_commit_options,
    stw_generation_info,
]

# Name: result, arguments.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "stw_status_string": (c_char_p, [
        c_int32
    ]),
    "stw_last_error": (c_char_p, [
    ]),
    "stw_last_error_info": (c_int32, [
        POINTER(stw_error_info)
    ]),
    "stw_version_string": (c_char_p, [
    ]),
    "stw_abi_version": (c_uint32, [
    ]),
    "stw_dtype_bits": (c_uint32, [
        c_uint32
    ]),
    "stw_group_create": (c_int32, [
        POINTER(stw_group_options), POINTER(c_void_p)
    ]),
    "stw_group_split": (c_int32, [
        c_void_p, c_int32, c_uint32, POINTER(c_void_p)
    ]),
    "stw_group_destroy": (c_int32, [
        c_void_p
    ]),
    "stw_group_rank": (c_int32, [
        c_void_p, POINTER(c_uint32), POINTER(c_uint32)
    ]),
    "stw_runtime_open": (c_int32, [
        POINTER(stw_runtime_options), POINTER(c_void_p)
    ]),
    "stw_runtime_close": (c_int32, [
        c_void_p, c_uint32, c_uint64
    ]),
    "stw_runtime_interrupt": (c_int32, [
        c_void_p
    ]),
    "stw_runtime_drain": (c_int32, [
        c_void_p, c_uint64
    ]),
    "stw_runtime_error": (c_int32, [
        c_void_p, POINTER(stw_error_info)
    ]),
    "stw_runtime_clear_error": (c_int32, [
        c_void_p
    ]),
    "stw_tier_set_budget": (c_int32, [
        c_void_p, c_uint32, c_uint32, c_uint64, c_uint64
    ]),
    "stw_device_info_get": (c_int32, [
        c_void_p, c_uint32, POINTER(stw_device_info)
    ]),
    "stw_driver_info_get": (c_int32, [
        c_char_p, POINTER(stw_driver_info)
    ]),
    "stw_tensor_create": (c_int32, [
        c_void_p, POINTER(stw_tensor_spec), c_uint32, POINTER(c_void_p)
    ]),
    "stw_tensor_destroy": (c_int32, [
        POINTER(c_void_p), c_uint32
    ]),
    "stw_tensor_find": (c_int32, [
        c_void_p, c_char_p, POINTER(c_void_p)
    ]),
    "stw_tensor_next": (c_int32, [
        c_void_p, c_void_p, POINTER(c_void_p)
    ]),
    "stw_tensor_info_get": (c_int32, [
        c_void_p, POINTER(stw_tensor_info)
    ]),
    "stw_tensor_set_policy": (c_int32, [
        c_void_p, POINTER(stw_policy)
    ]),
    "stw_tensor_freeze": (c_int32, [
        c_void_p, c_uint32
    ]),
    "stw_tensor_reshape": (c_int32, [
        c_void_p, POINTER(c_uint64), c_uint32
    ]),
    "stw_tensor_discard": (c_int32, [
        POINTER(c_void_p), c_uint32
    ]),
    "stw_tensor_address": (c_int32, [
        c_void_p, c_uint32, POINTER(c_void_p), POINTER(c_uint64)
    ]),
    "stw_fetch": (c_int32, [
        c_void_p, POINTER(stw_fetch_options), POINTER(stw_fetch_request), c_uint32,
        POINTER(stw_view)
    ]),
    "stw_fetch_async": (c_int32, [
        c_void_p, POINTER(stw_fetch_options), POINTER(stw_fetch_request), c_uint32,
        POINTER(c_void_p)
    ]),
    "stw_fetch_collect": (c_int32, [
        c_void_p, c_void_p, POINTER(stw_view), c_uint32
    ]),
    "stw_fetch_fits": (c_int32, [
        c_void_p, POINTER(stw_fetch_request), c_uint32
    ]),
    "stw_release": (c_int32, [
        POINTER(stw_view), c_uint32, c_void_p, c_uint32
    ]),
    "stw_stream_forget": (c_int32, [
        c_void_p, c_void_p
    ]),
    "stw_view_share": (c_int32, [
        POINTER(stw_view), POINTER(stw_view)
    ]),
    "stw_prefetch": (c_int32, [
        c_void_p, POINTER(stw_fetch_request), c_uint32
    ]),
    "stw_advise": (c_int32, [
        POINTER(c_void_p), c_uint32, c_uint32
    ]),
    "stw_evict": (c_int32, [
        c_void_p, POINTER(c_void_p), c_uint32, c_uint32, c_uint32, c_uint64
    ]),
    "stw_tensor_write": (c_int32, [
        c_void_p, c_void_p, POINTER(stw_copy_options)
    ]),
    "stw_tensor_read": (c_int32, [
        c_void_p, c_void_p, POINTER(stw_copy_options)
    ]),
    "stw_tensor_fill": (c_int32, [
        c_void_p, c_double, POINTER(stw_copy_options)
    ]),
    "stw_reduce": (c_int32, [
        c_void_p, c_void_p, POINTER(stw_reduce_options)
    ]),
    "stw_reduce_adopt": (c_int32, [
        c_void_p, c_void_p, POINTER(stw_reduce_options), stw_deleter_fn, c_void_p
    ]),
    "stw_operation_poll": (c_int32, [
        c_void_p
    ]),
    "stw_operation_wait": (c_int32, [
        c_void_p, c_uint64
    ]),
    "stw_operation_on_done": (c_int32, [
        c_void_p, stw_done_fn, c_void_p
    ]),
    "stw_operation_notify_fd": (c_int32, [
        c_void_p, c_int32
    ]),
    "stw_operation_cancel": (c_int32, [
        c_void_p
    ]),
    "stw_operation_free": (c_int32, [
        c_void_p
    ]),
    "stw_optimizer_create": (c_int32, [
        c_void_p, POINTER(stw_optimizer_options), POINTER(c_void_p)
    ]),
    "stw_optimizer_destroy": (c_int32, [
        c_void_p
    ]),
    "stw_optimizer_add": (c_int32, [
        c_void_p, POINTER(stw_optimizer_entry), c_uint32
    ]),
    "stw_optimizer_set_hyper": (c_int32, [
        c_void_p, c_uint32, POINTER(stw_hyper)
    ]),
    "stw_optimizer_state": (c_int32, [
        c_void_p, c_void_p, c_char_p, POINTER(c_void_p)
    ]),
    "stw_optimizer_read_master": (c_int32, [
        c_void_p, c_void_p, c_void_p, POINTER(stw_copy_options)
    ]),
    "stw_optimizer_write_master": (c_int32, [
        c_void_p, c_void_p, c_void_p, POINTER(stw_copy_options)
    ]),
    "stw_optimizer_get_count": (c_int32, [
        c_void_p, c_void_p, POINTER(c_uint64)
    ]),
    "stw_optimizer_set_count": (c_int32, [
        c_void_p, c_void_p, c_uint64
    ]),
    "stw_optimizer_step": (c_int32, [
        c_void_p, POINTER(stw_update_options), POINTER(stw_update_result)
    ]),
    "stw_optimizer_result": (c_int32, [
        c_void_p, POINTER(stw_update_result)
    ]),
    "stw_phase_create": (c_int32, [
        c_void_p, c_char_p, POINTER(c_void_p)
    ]),
    "stw_phase_destroy": (c_int32, [
        c_void_p
    ]),
    "stw_step_begin": (c_int32, [
        c_void_p
    ]),
    "stw_step_end": (c_int32, [
        c_void_p, POINTER(stw_step_stats)
    ]),
    "stw_step_abort": (c_int32, [
        c_void_p, c_void_p
    ]),
    "stw_phase_declare": (c_int32, [
        c_void_p, POINTER(stw_plan_entry), c_uint32
    ]),
    "stw_phase_advice_get": (c_int32, [
        c_void_p, POINTER(stw_plan_advice), c_uint32, POINTER(c_uint32)
    ]),
    "stw_tier_stats_get": (c_int32, [
        c_void_p, c_uint32, c_uint32, POINTER(stw_tier_stats)
    ]),
    "stw_link_stats_get": (c_int32, [
        c_void_p, c_uint32, c_uint32, POINTER(stw_link_stats)
    ]),
    "stw_report_write": (c_int32, [
        c_void_p, c_char_p
    ]),
    "stw_timeline_write": (c_int32, [
        c_void_p, c_char_p
    ]),
    "stw_view_to_dlpack": (c_int32, [
        POINTER(stw_view), c_void_p, POINTER(c_void_p)
    ]),
    "stw_view_to_dlpack_legacy": (c_int32, [
        POINTER(stw_view), c_void_p, POINTER(c_void_p)
    ]),
    "stw_tensor_to_dlpack": (c_int32, [
        c_void_p, c_uint32, POINTER(c_void_p)
    ]),
    "stw_tensor_to_dlpack_legacy": (c_int32, [
        c_void_p, c_uint32, POINTER(c_void_p)
    ]),
    "stw_dlpack_capsule_destroy": (None, [
        c_void_p
    ]),
    "stw_runtime_set_victim_policy": (c_int32, [
        c_void_p, POINTER(stw_victim_policy), c_uint64
    ]),
    "stw_host_alloc": (c_int32, [
        c_void_p, c_uint64, c_uint64, c_uint32, POINTER(c_void_p)
    ]),
    "stw_host_free": (c_int32, [
        c_void_p, c_void_p
    ]),
    "stw_commit": (c_int32, [
        c_void_p, POINTER(stw_commit_options), POINTER(c_uint64)
    ]),
    "stw_generation_get": (c_int32, [
        c_void_p, c_uint64, POINTER(stw_generation_info)
    ]),
    "stw_generation_metadata": (c_int32, [
        c_void_p, c_uint64, c_void_p, c_uint64, POINTER(c_uint64)
    ]),
}
