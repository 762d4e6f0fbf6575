/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/runtime.h: tiers, budgets, open and close, devices, drain and interrupt.
 */
#ifndef STEPWELL_RUNTIME_H
#define STEPWELL_RUNTIME_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STW_PRESET_AUTO = 0, STW_PRESET_ZERO_INFINITY = 1, STW_PRESET_ZERO_OFFLOAD = 2 };

enum { STW_LOG_ERROR = 1, STW_LOG_WARNING = 2, STW_LOG_INFO = 3, STW_LOG_DEBUG = 4 };
typedef void (*stw_log_fn)(void *user, uint32_t level, const char *topic, const char *line);

typedef struct stw_device_options {
    uint32_t struct_size;
    int32_t ordinal;        /* which of the driver's devices. Built-in drivers have one, 0; an
                               ordinal that a driver does not have is STW_ERROR_UNSUPPORTED */
    const char *driver;     /* NULL: "cpu". "cpu-discrete" behaves like a device across a bus:
                               storage and update kernels never access its memory directly. Or a
                               module: its name, or its absolute path (docs/drivers.md) */
    uint64_t budget_bytes;  /* at least a block, or 0: no device tier, compute reads the host tier.
                               The maximum for stw_tier_set_budget later */
    uint64_t staging_bytes; /* 0: derived, from the host tier; anything else is refused yet */
    const char *driver_options; /* the driver's own text, NULL: none. "populate=1" of "cpu": all
                                   pages at open, not as they are used. See docs/drivers.md */
} stw_device_options;
#define STW_DEVICE_OPTIONS_INIT { sizeof(stw_device_options), 0, 0, 0, 0, 0 }

typedef struct stw_nvme_options {
    uint32_t struct_size;
    uint32_t flags;
    const char *path;           /* an existing directory */
    uint64_t budget_bytes;      /* reserved at open; 0 with STW_RUNTIME_RESUME: the budget that the
                                   store was made with */
    const char *driver;         /* NULL: by the profile, else "aio"; "posix" where aio cannot work
                                   (a remark in the log and in the report); "fault" wraps one for
                                   tests. Or a module: its name, or its absolute path
                                   (docs/drivers.md) */
    const char *driver_options; /* the driver's own text, NULL: none. See docs/drivers.md */
    uint32_t queue_depth;       /* requests in flight; 0: by the profile, else 32 */
    uint32_t request_bytes;     /* maximum of one request, a multiple of 4 KiB; 0: by the profile,
                                   else 1 MiB. Never larger than a block */
} stw_nvme_options;
#define STW_NVME_OPTIONS_INIT { sizeof(stw_nvme_options), 0, 0, 0, 0, 0, 0, 0 }

enum { STW_BLOCK_2M = 2097152, STW_BLOCK_512K = 524288, STW_BLOCK_64K = 65536 };

enum { /* stw_runtime_options.flags */
    STW_RUNTIME_RESUME = 1, /* with store_name: the newest generation that all ranks have, or
                               resume_generation; NOT_FOUND if there is none */
    STW_RUNTIME_OVERWRITE = 2, /* with store_name: an existing store is deleted; without this and
                                  RESUME it is EXISTS. With both it is resumed, and created anew
                                  only if nothing can ever have been committed to it */
    STW_RUNTIME_NO_PROBE = 4, /* measure no directory; use no measurement of an earlier open */
    STW_RUNTIME_NO_PLAN = 16, /* earlier steps are not used to predict the next: no prefetch and no
                                early write-back by a plan, the least recently used is evicted
                                first; stw_step_stats.planned stays 0. To measure the gain of
                                plans */
    STW_RUNTIME_FAULT_IN = 32, /* with a device of driver "cpu", without a group: an access to
                                 stw_tensor_address() without a view is a fetch, by a handler of
                                 SIGSEGV; see there. Log lines are written on a separate thread */
    STW_RUNTIME_ROOM_FARTHEST = 64 /* a tensor is refused if the farthest tier that its policy
                                      allows is full. Without this a nearer one with room takes it,
                                      for good, and has that much less for views */
};
typedef struct stw_runtime_options {
    uint32_t struct_size;
    uint32_t flags;                    /* STW_RUNTIME_* */
    const char *name;                  /* in errors and reports; NULL: the program's */
    stw_group *group;                  /* ranks over which tensors are sharded; NULL: this process
                                          alone */
    const stw_device_options *devices; /* devices[i] is `device` i in every other struct */
    const stw_nvme_options *nvme;      /* one entry per directory; blocks are striped over them */
    uint32_t device_count;             /* at most 4 */
    uint32_t nvme_count;               /* at most 8 */
    uint64_t host_bytes;               /* budget of the host tier of this process: at least a block,
                                          or 0: no host tier. Not needed beside a device of driver
                                          "cpu": that tier is the same memory */
    uint32_t preset;                   /* STW_PRESET_* */
    uint32_t thread_count;             /* update threads; 0: this rank's part of the processors it
                                          may run on, or of its cgroup's quota if that is less */
    uint64_t timeout_ns;               /* default of every wait; 0: 300 s */
    uint32_t tensors_max;              /* 0: 131072 */
    uint32_t views_max;                /* open at once; 0: 65536 */
    uint32_t operations_max;           /* 0: 4096 */
    uint32_t block_bytes;              /* STW_BLOCK_*; 0: 2 MiB */
    stw_log_fn log;                    /* NULL: silent */
    void *log_user;
    uint32_t log_level;                /* 0: STW_LOG_WARNING */
    uint32_t reserved;
    uint64_t metadata_bytes;           /* budget of the library's own tables, separate from the
                                          tiers'. If 0: the worst case that the other limits allow.
                                          Its use is in the host tier's stw_tier_stats */
    const char *profile_path;          /* of `stepwell tune`, used alone; "": none; NULL: the user's
                                          or the machine's, and for directories in neither a probe
                                          of at most 2 s, kept for the next open. See
                                          docs/tuning.md */
    uint64_t host_scratch_bytes;       /* part of host_bytes reserved for stw_host_alloc, rounded up
                                          to blocks; 0: none. Used:
                                          stw_tier_stats.scratch_used_bytes */
    uint64_t whole_bytes;              /* with a group: part of the nearest tier's budget, reserved
                                          for gathered tensors. The least over ranks counts; 0: half
                                          of it */
    uint64_t node_host_bytes;          /* with a group: limit of the sum of host_bytes of all ranks
                                          of one host; BUDGET on all ranks beyond it. The least over
                                          ranks counts; 0: not checked */
    stw_group *replica_group;          /* with a group of several ranks: the ranks with the same
                                          shards in other groups, at the same place in each. Sums go
                                          over both, gathers over `group` alone. NULL: none */
    const char *store_name;            /* NULL: only scratch, which ends with the process. Else
                                          durable tensors persist, in files of this name in each
                                          directory of `nvme`, NAME.RANK-of-RANKS.stepwell, and
                                          beside the first of them .generations. Letters, digits,
                                          '-', '_' and '.', not beginning with '.', at most 100
                                          bytes. docs/generations.md */
    uint64_t resume_generation;        /* with RESUME; 0: the newest */
    uint32_t generations_kept;         /* at most 7; 0: 2. A durable tensor takes (1 + this number)
                                          times its blocks at nvme */
    uint32_t reserved2;
} stw_runtime_options;
#define STW_RUNTIME_OPTIONS_INIT                                                                   \
    { sizeof(stw_runtime_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,                                \
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Open tiers, stores and threads. COLLECTIVE over options->group and options->replica_group, each
 * of which has one runtime at a time; MISMATCH if replicas differ in place or in room for gathered
 * tensors. At least one budget is not 0. All large memory, descriptors and I/O slots are allocated
 * here.
 *
 * Ownership: *runtime_out is the caller's; stw_runtime_close().
 * Threads:   any thread.
 * Blocks:    until all is open, or options->timeout_ns.
 * Errors:    INVALID, MEMORY, NO_SPACE, NOT_FOUND, PERMISSION, IO, DEVICE, LIMIT, UNSUPPORTED,
 *            and of the profile that profile_path names NOT_FOUND, PERMISSION, FORMAT; of a store
 *            with a name EXISTS, NOT_FOUND, LOCKED (another process has it), MISMATCH (made with
 *            other budgets, directories, kept generations or ranks), FORMAT, SYNC, the same on all
 *            ranks. On error nothing stays open and no new file is left.
 */
STW_API stw_status stw_runtime_open(const stw_runtime_options *options, stw_runtime **runtime_out);

enum { STW_CLOSE_DEFERRED = 1 };
/**
 * Close. Without flags, views, operations or pieces of stw_host_alloc() still open are
 * STW_ERROR_BUSY and nothing changes. With STW_CLOSE_DEFERRED every call except stw_release() and
 * stw_host_free() returns CLOSED from now on, and the memory is freed with the last view and piece
 * (exported arrays outlive an interpreter's runtime this way). The log callback is not called after
 * a close, deferred or not, so its data may be freed; nor is the engine of a group: queued
 * collectives are done first, and writes to gathered tensors, or sums, through views released later
 * are dropped.
 *
 * Ownership: the handle is dead after OK; using it later is STW_ERROR_CLOSED, not a crash.
 * Threads:   any thread, with no other call under way except stw_runtime_interrupt(); after a
 *            deferred close, releases on several threads.
 * Blocks:    until I/O in flight is done and callbacks have returned, or timeout_ns.
 * Errors:    BUSY (in a callback of an operation too), TIMEOUT, INTERRUPTED (the runtime is still
 *            open after these), FORKED, and the first unreported background error.
 */
STW_API stw_status stw_runtime_close(stw_runtime *runtime, uint32_t flags, uint64_t timeout_ns);
/* End every wait in this runtime with INTERRUPTED: fetches, copies, drains, evictions, waits for
 * operations and updates, a close. Operations and updates themselves go on. Async-signal-safe, also
 * during a close. Blocks: never. */
STW_API stw_status stw_runtime_interrupt(stw_runtime *runtime);
/* Wait until no background work is left (updates, reduces, write-back); timing, suspend, tests. Not
 * for verdicts of speculative updates; hints that wait for these or for open views are dropped. */
STW_API stw_status stw_runtime_drain(stw_runtime *runtime, uint64_t timeout_ns);
/* The first background error since the last clear: OK when none. Any thread. Blocks: never. */
STW_API stw_status stw_runtime_error(stw_runtime *runtime, stw_error_info *info_out);
STW_API stw_status stw_runtime_clear_error(stw_runtime *runtime);

/**
 * Change a tier's budget while running. A shrink evicts first and then returns; 0 evicts everything
 * (sleep), a later growth lets tensors in again. The memory is given back to the system, the space
 * of files to their file system, and taken from there again. Addresses of tensors stay. At most the
 * budget at open; counted in bytes as in stw_tier_stats, in whole blocks. The last tier that the
 * CPU works in keeps room for an update, 16 blocks, or becomes 0; staging and scratch memory stay.
 *
 * Ownership: none.  Threads: any thread; one change at a time.
 * Blocks:    until the tier is within `bytes` (evictions, and with 0 also updates), or timeout_ns.
 * Errors:    INVALID, LIMIT (more than at open), BUDGET (open views, tensors that no farther tier
 *            may hold, or full farther tiers), BUSY (a view to be summed, or less than it takes to
 *            set a speculative update back before its verdict), MEMORY and NO_SPACE (of a grown
 *            budget), UNSUPPORTED (driver or file system), TIMEOUT, INTERRUPTED; on error the old
 *            budget holds.
 */
STW_API stw_status stw_tier_set_budget(stw_runtime *runtime, uint32_t tier, uint32_t device,
                                       uint64_t bytes, uint64_t timeout_ns);

enum { /* stw_device_info.flags */
    STW_DEVICE_STREAMS = 1,        /* NULL streams are refused */
    STW_DEVICE_STABLE_ADDRESS = 2, /* stw_tensor_address works */
    STW_DEVICE_UNIFIED = 4,        /* storage accesses its memory: no host tier in between */
    STW_DEVICE_UPDATES = 8         /* it updates tensors whose states have their home there */
};
typedef struct stw_device_info {
    uint32_t struct_size;
    uint32_t flags; /* STW_DEVICE_* */
    int32_t ordinal;
    uint32_t granule_bytes; /* granularity of mapping, charged to the budget */
    char driver[32];
    char name[128];
} stw_device_info;
/* Any thread. Blocks: never. */
STW_API stw_status stw_device_info_get(stw_runtime *runtime, uint32_t device,
                                       stw_device_info *info_out);

enum { /* stw_driver_info.kinds */
    STW_DRIVER_MEMORY = 1, /* usable as stw_device_options.driver */
    STW_DRIVER_STORAGE = 2, /* usable as stw_nvme_options.driver */
    STW_DRIVER_COLLECTIVE = 4 /* usable by groups of ranks */
};
typedef struct stw_driver_info {
    uint32_t struct_size;
    uint32_t kinds;    /* STW_DRIVER_* */
    uint32_t built_in; /* 1: part of the library, 0: a module */
    uint32_t reserved;
    char name[32];     /* its own name */
} stw_driver_info;
/**
 * Look a driver up as stw_runtime_open() would: a name, or the absolute path of a module. A module
 * is loaded, and stays loaded if it can be used; nothing is opened.
 *
 * Ownership: none.
 * Threads:   any thread.
 * Blocks:    while a module is loaded.
 * Errors:    INVALID, NOT_FOUND, PERMISSION, UNSUPPORTED (no such driver here, or the module's own
 *            libraries are absent); on error info_out is untouched and no module is left.
 */
STW_API stw_status stw_driver_info_get(const char *driver, stw_driver_info *info_out);
#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_RUNTIME_H */
