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
    int32_t ordinal;        /* which of the driver's devices. Those that are built in have one, 0;
                               what a driver does not have it refuses as STW_ERROR_UNSUPPORTED */
    const char *driver;     /* NULL: "cpu". "cpu-discrete" behaves like a device across a bus:
                               storage and update kernels never touch its memory directly. Or a
                               module: its name, or its absolute path (docs/drivers.md) */
    uint64_t budget_bytes;  /* a block at least, or 0: no device tier, compute reads the host tier.
                               The most that stw_tier_set_budget can give it later */
    uint64_t staging_bytes; /* 0: derived, from the host tier; anything else is refused yet */
    const char *driver_options; /* the driver's own text, NULL: none. "populate=1" of "cpu": all
                                   pages at open, not as they are used. See docs/drivers.md */
} stw_device_options;
#define STW_DEVICE_OPTIONS_INIT { sizeof(stw_device_options), 0, 0, 0, 0, 0 }

typedef struct stw_nvme_options {
    uint32_t struct_size;
    uint32_t flags;
    const char *path;           /* an existing directory */
    uint64_t budget_bytes;      /* reserved at open; 0 with STW_RUNTIME_RESUME: what the store was
                                   made with */
    const char *driver;         /* NULL: by the profile, else "aio"; "posix" where that one cannot
                                   work (said in the log and in the report); "fault" wraps one for
                                   tests. Or a module: its name, or its absolute path
                                   (docs/drivers.md) */
    const char *driver_options; /* the driver's own text, NULL: none. See docs/drivers.md */
    uint32_t queue_depth;       /* requests in flight; 0: by the profile, else 32 */
    uint32_t request_bytes;     /* of one request at most, a multiple of 4 KiB; 0: by the profile,
                                   else 1 MiB. None is larger than a block */
} stw_nvme_options;
#define STW_NVME_OPTIONS_INIT { sizeof(stw_nvme_options), 0, 0, 0, 0, 0, 0, 0 }

enum { STW_BLOCK_2M = 2097152, STW_BLOCK_512K = 524288, STW_BLOCK_64K = 65536 };

enum { /* stw_runtime_options.flags */
    STW_RUNTIME_RESUME = 1, /* with store_name: the newest generation that all ranks have, or
                               resume_generation; NOT_FOUND if there is none */
    STW_RUNTIME_OVERWRITE = 2, /* with store_name: a store that is there goes; without this and
                                  RESUME it is EXISTS. With both it is resumed, and made anew only
                                  where nothing can ever have been committed to it */
    STW_RUNTIME_NO_PROBE = 4, /* measure no directory; use nothing an earlier open measured */
    STW_RUNTIME_NO_PLAN = 16, /* what steps did before says nothing of the next: no prefetch and no
                                early write-back by it, the least recently used leaves first;
                                stw_step_stats.planned stays 0. To measure what the plan gives */
    STW_RUNTIME_FAULT_IN = 32 /* with a device of driver "cpu", without a group: a touch of
                                 stw_tensor_address() without a view is a fetch, by a handler of
                                 SIGSEGV; see there. Log lines come on a thread of their own */
};
typedef struct stw_runtime_options {
    uint32_t struct_size;
    uint32_t flags;                    /* STW_RUNTIME_* */
    const char *name;                  /* in errors and reports; NULL: the program's */
    stw_group *group;                  /* ranks that tensors lie over; NULL: this process alone */
    const stw_device_options *devices; /* devices[i] is `device` i in every other struct */
    const stw_nvme_options *nvme;      /* one entry per directory; blocks are striped over them */
    uint32_t device_count;             /* at most 4 */
    uint32_t nvme_count;               /* at most 8 */
    uint64_t host_bytes;               /* budget of the host tier of this process: a block at least,
                                          or 0: no host tier. Beside a device of driver "cpu" none
                                          is needed: that tier is the same memory */
    uint32_t preset;                   /* STW_PRESET_* */
    uint32_t thread_count;             /* update kernels; 0: this rank's part of the processors it
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
    uint64_t metadata_bytes;           /* budget of the library's own tables, beside the tiers'; 0:
                                          what the other limits can need. What is used of it: host
                                          tier's stw_tier_stats */
    const char *profile_path;          /* of `stepwell tune`, used alone; "": none; NULL: the user's
                                          or the machine's, and a probe of at most 2 s, kept for the
                                          next open, of what neither knows. See docs/tuning.md */
    uint64_t host_scratch_bytes;       /* of host_bytes, kept for stw_host_alloc: whole blocks, up;
                                          0: none. Used: stw_tier_stats.scratch_used_bytes */
    uint64_t whole_bytes;              /* with a group: of the nearest tier's budget, kept for the
                                          gathered wholes of sharded tensors. The least over ranks
                                          counts; 0: half of it */
    uint64_t node_host_bytes;          /* with a group: what the host_bytes of all ranks of one host
                                          may come to; BUDGET on all ranks otherwise. The least over
                                          ranks counts; 0: not added up */
    stw_group *replica_group;          /* with a group of several ranks: those that hold the same
                                          shards in other groups, at the same place in each. Sums
                                          go over both, gathers over `group` alone. NULL: none */
    const char *store_name;            /* NULL: scratch alone, gone with the process. Else durable
                                          tensors stay, in files of this name in each directory of
                                          `nvme`, NAME.RANK-of-RANKS.stepwell, and beside the first
                                          of them .generations. Letters, digits, '-', '_' and '.',
                                          no '.' in front, at most 100 bytes. docs/generations.md */
    uint64_t resume_generation;        /* with RESUME; 0: the newest */
    uint32_t generations_kept;         /* at most 7; 0: 2. A durable tensor takes 1 + so many times
                                          its blocks at nvme */
    uint32_t reserved2;
} stw_runtime_options;
#define STW_RUNTIME_OPTIONS_INIT                                                                   \
    { sizeof(stw_runtime_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,                                \
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Open tiers, stores and threads. COLLECTIVE over options->group and options->replica_group, each
 * of which has one runtime at a time; MISMATCH where replicas differ in place or room for wholes.
 * At least one budget is not 0. All large memory, descriptors and I/O slots are taken here.
 *
 * Ownership: *runtime_out is the caller's; stw_runtime_close().
 * Threads:   any thread.
 * Blocks:    until everything stands, or options->timeout_ns.
 * Errors:    INVALID, MEMORY, NO_SPACE, NOT_FOUND, PERMISSION, IO, DEVICE, LIMIT, UNSUPPORTED,
 *            and of the profile that profile_path names NOT_FOUND, PERMISSION, FORMAT; of a store
 *            with a name EXISTS, NOT_FOUND, LOCKED (another process has it), MISMATCH (made with
 *            other budgets, directories, kept generations or ranks), FORMAT, SYNC, the same on all
 *            ranks. On error nothing is half open and no new file is left.
 */
STW_API stw_status stw_runtime_open(const stw_runtime_options *options, stw_runtime **runtime_out);

enum { STW_CLOSE_DEFERRED = 1 };
/**
 * Close. Without flags, views, operations or pieces of stw_host_alloc() still open are
 * STW_ERROR_BUSY and nothing changes. With STW_CLOSE_DEFERRED every call but stw_release() and
 * stw_host_free() says CLOSED from now on, and the memory goes with the last view and piece
 * (exported arrays outlive an interpreter's runtime this way). The log callback is not called after
 * a close, deferred or not, so what it needs may go; nor is the engine of a group: collectives that
 * were called for are done first, and what a view released later wrote of a whole, or summed, goes.
 *
 * Ownership: the handle is dead after OK; using it later is STW_ERROR_CLOSED, not a crash.
 * Threads:   any thread, with no other call under way but stw_runtime_interrupt(); after a deferred
 *            close, releases on many.
 * Blocks:    until I/O in flight is done and callbacks have returned, or timeout_ns.
 * Errors:    BUSY (in a callback of an operation too), TIMEOUT, INTERRUPTED (the runtime is still
 *            open after these), FORKED, and the first unreported background error.
 */
STW_API stw_status stw_runtime_close(stw_runtime *runtime, uint32_t flags, uint64_t timeout_ns);
/* End every wait in this runtime with INTERRUPTED: fetches, copies, drains, evictions, waits for
 * operations and updates, a close. Operations and updates themselves go on. Async-signal-safe, also
 * beside a close. Blocks: never. */
STW_API stw_status stw_runtime_interrupt(stw_runtime *runtime);
/* Wait until no background work is left (updates, reduces, write-back); timing, suspend, tests. */
STW_API stw_status stw_runtime_drain(stw_runtime *runtime, uint64_t timeout_ns);
/* The first background error since the last clear: OK when none. Any thread. Blocks: never. */
STW_API stw_status stw_runtime_error(stw_runtime *runtime, stw_error_info *info_out);
STW_API stw_status stw_runtime_clear_error(stw_runtime *runtime);

/**
 * Change a tier's budget while running. A shrink evicts first and then returns; to 0 is "everything
 * out" (sleep), back up is "everything may come in again". The memory goes back to the system, the
 * space of files to their file system, and comes from there. Addresses of tensors stay. No more
 * than the budget at open; counted in bytes as stw_tier_stats counts, in whole blocks. The last
 * tier that the CPU works in keeps room for an update, 16 blocks, or goes to 0; staging and scratch
 * memory stay.
 *
 * Ownership: none.  Threads: any thread; one change at a time.
 * Blocks:    until the tier is within `bytes` (evictions, and with 0 also updates), or timeout_ns.
 * Errors:    INVALID, LIMIT (more than at open), BUDGET (open views, tensors that may rest nowhere
 *            farther, or full tiers behind it), BUSY (a view to be summed), MEMORY and NO_SPACE (of
 *            a grown budget), UNSUPPORTED (driver or file system), TIMEOUT, INTERRUPTED; on error
 *            the old budget holds.
 */
STW_API stw_status stw_tier_set_budget(stw_runtime *runtime, uint32_t tier, uint32_t device,
                                       uint64_t bytes, uint64_t timeout_ns);

enum { /* stw_device_info.flags */
    STW_DEVICE_STREAMS = 1,        /* NULL streams are refused */
    STW_DEVICE_STABLE_ADDRESS = 2, /* stw_tensor_address works */
    STW_DEVICE_UNIFIED = 4,        /* storage reaches its memory: no host tier in between */
    STW_DEVICE_UPDATES = 8         /* it updates the tensors whose states are at home there */
};
typedef struct stw_device_info {
    uint32_t struct_size;
    uint32_t flags; /* STW_DEVICE_* */
    int32_t ordinal;
    uint32_t granule_bytes; /* what mapping is rounded to, charged to the budget */
    char driver[32];
    char name[128];
} stw_device_info;
/* Any thread. Blocks: never. */
STW_API stw_status stw_device_info_get(stw_runtime *runtime, uint32_t device,
                                       stw_device_info *info_out);

enum { /* stw_driver_info.kinds */
    STW_DRIVER_MEMORY = 1, /* stw_device_options.driver takes it */
    STW_DRIVER_STORAGE = 2, /* stw_nvme_options.driver takes it */
    STW_DRIVER_COLLECTIVE = 4 /* groups of ranks use it */
};
typedef struct stw_driver_info {
    uint32_t struct_size;
    uint32_t kinds;    /* STW_DRIVER_* */
    uint32_t built_in; /* 1: part of the library, 0: a module */
    uint32_t reserved;
    char name[32];     /* what it calls itself */
} stw_driver_info;
/**
 * Look a driver up as stw_runtime_open() would: a name, or the absolute path of a module. A module
 * is loaded, and stays so when it can be used; nothing is opened.
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
