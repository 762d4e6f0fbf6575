/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/status.h: status codes, the last error as a sentence and as numbers, versions.
 */
#ifndef STEPWELL_STATUS_H
#define STEPWELL_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STW_API __attribute__((visibility("default")))
#else
#define STW_API
#endif

#define STW_STATUS_MAP(X)                                                                          \
    X(OK, 0, "success")                                                                            \
    X(PENDING, 1, "still in flight")                                                               \
    X(SKIPPED, 2, "the update was skipped: a gradient is not finite")                              \
    X(ERROR_INVALID, -1, "an argument is wrong")                                                   \
    X(ERROR_INTERNAL, -2, "a fault of the library")                                                \
    X(ERROR_MEMORY, -3, "the process or its cgroup cannot have that much memory")                  \
    X(ERROR_BUDGET, -4, "the tier's budget cannot hold the request")                               \
    X(ERROR_IO, -5, "a read or write failed")                                                      \
    X(ERROR_CHECKSUM, -6, "stored bytes are not the bytes that were written")                      \
    X(ERROR_SYNC, -7, "a flush failed; the store takes no commit until it is reopened")            \
    X(ERROR_NO_SPACE, -8, "the file system cannot promise the space")                              \
    X(ERROR_TIMEOUT, -9, "the timeout passed; what is in flight is in the log")                    \
    X(ERROR_LOCKED, -10, "the store belongs to a living process, or its I/O is draining")          \
    X(ERROR_PEER, -11, "a rank is gone, stopped or cut off")                                       \
    X(ERROR_DEVICE, -12, "the device is lost")                                                     \
    X(ERROR_CLOSED, -13, "the runtime, or the handle, was closed")                                 \
    X(ERROR_FORKED, -14, "this process is a fork of the one that opened the runtime")              \
    X(ERROR_ORDER, -15, "ranks called in different order, or with different tensors")              \
    X(ERROR_UNSUPPORTED, -16, "not available here, or not in this build")                          \
    X(ERROR_BUSY, -17, "views, a writer or background work are in the way")                        \
    X(ERROR_EMPTY, -18, "the tensor was never written, or was discarded")                          \
    X(ERROR_NOT_FOUND, -19, "no such tensor, file, label or generation")                           \
    X(ERROR_EXISTS, -20, "the name is taken, or a store is already there")                         \
    X(ERROR_MISMATCH, -21, "dtype, shape, partition or group differ from the other side's")        \
    X(ERROR_CANCELLED, -22, "the operation was cancelled")                                         \
    X(ERROR_INTERRUPTED, -23, "stw_runtime_interrupt was called")                                  \
    X(ERROR_LIMIT, -24, "a maximum that was set at open is reached")                               \
    X(ERROR_FORMAT, -25, "a file is damaged, foreign or of a newer format")                        \
    X(ERROR_PERMISSION, -26, "access refused, or a path or module is not safe")                    \
    X(ERROR_WEAR, -27, "the day's write budget of a device is spent")

typedef int32_t stw_status;

#define STW_STATUS_ENUM(name, value, text) STW_##name = value,
enum { STW_STATUS_MAP(STW_STATUS_ENUM) STW_STATUS_END_ = 0x7fffffff };
#undef STW_STATUS_ENUM

/* The numbers of an error, so that a program can handle it and not only print it. */
typedef struct stw_error_info {
    uint32_t struct_size;
    stw_status status;
    int32_t os_errno;       /* 0: none */
    int32_t rank;           /* the named peer, -1: none */
    uint32_t tier;          /* STW_TIER_*, 0: none */
    uint32_t device;
    uint64_t needed_bytes;  /* BUDGET, MEMORY, NO_SPACE */
    uint64_t free_bytes;
    uint64_t pinned_bytes;  /* by views of this program */
    uint64_t offset_bytes;  /* IO, CHECKSUM: within the shard */
    uint64_t pinned_views;
    char tensor[128];       /* the first tensor concerned, "" if none */
    char sentence[768];     /* what stw_last_error() says */
} stw_error_info;

/* Never NULL, static text. Any thread. Blocks: never. */
STW_API const char *stw_status_string(stw_status status);
/* The full sentence of this thread's last failed call; valid until its next stw_ call. Never
 * NULL. */
STW_API const char *stw_last_error(void);
/* The same as numbers. info_out->struct_size must be set. Any thread. Blocks: never. */
STW_API stw_status stw_last_error_info(stw_error_info *info_out);
/* "0.3.1+abc1234" and the ABI major (the SONAME's). Any thread. Blocks: never. */
STW_API const char *stw_version_string(void);
STW_API uint32_t stw_abi_version(void);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_STATUS_H */
