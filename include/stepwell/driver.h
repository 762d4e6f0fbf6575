/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/driver.h: what a driver implements. A driver is one const table of functions, size and
 * ABI tagged: mandatory operations first, then groups under the capability bit that announces them.
 * An inconsistent table (a bit without its functions, or the reverse) is refused when it is loaded.
 *
 * The core provides clock and log to the driver, so a driver does not link to the library. Three
 * kinds: STORAGE for the nvme tier, MEMORY for the device and host tiers, COLLECTIVE for a group of
 * ranks. Drivers outside of the library are modules: the end of this file, and
 * docs/driver-authors.md.
 *
 * RELEASES of one ABI add operations at the end of a table, as a group with its own bit. In a table
 * that ends earlier, as in its headers, the operations after its end are NULL to the library. It
 * has at least all up to `close`. In one that is longer than the library's own, unknown bits and
 * operations are ignored. A bit that must not be ignored, or one more operation that every driver
 * must have, needs another ABI.
 *
 * THREADS. Unless a comment says otherwise, one thread at a time per object. Drivers never print,
 * abort or throw. A failed open leaves nothing behind and gives the reason in stw_driver_error.
 */
#ifndef STEPWELL_DRIVER_H
#define STEPWELL_DRIVER_H

#include <stepwell/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STW_DRIVER_ABI 0

typedef struct stw_services {
    uint32_t struct_size;
    uint32_t abi;
    void *user;
    uint64_t (*now_ns)(void *user);                          /* monotonic. Any thread */
    void (*log)(void *user, uint32_t level, const char *topic, const char *line); /* any thread */
} stw_services;

/* The reason of a failed open: one full sentence with path, numbers and what to do. */
typedef struct stw_driver_error {
    uint32_t struct_size;
    int32_t os_errno;
    uint64_t needed_bytes;
    uint64_t free_bytes;
    char sentence[768];
} stw_driver_error;
#define STW_DRIVER_ERROR_INIT { sizeof(stw_driver_error), 0, 0, 0, { 0 } }

/* ------------------------------------------------------------------------------- storage -- */

typedef struct stw_storage stw_storage;

enum { /* stw_storage_options.name_access */
    STW_STORAGE_NAME_CREATE = 1, /* EXISTS if the name is taken; a new file gets it last, when all
                                    its bytes are reserved */
    STW_STORAGE_NAME_OPEN = 2,   /* NOT_FOUND if there is none; MISMATCH if it has another size */
    STW_STORAGE_NAME_REPLACE = 3 /* an existing file is deleted, unless it is open elsewhere:
                                    LOCKED */
};

typedef struct stw_storage_options {
    uint32_t struct_size;
    uint32_t queue_depth; /* requests in flight at most */
    const char *path;     /* an existing directory; the file is made in it */
    uint64_t bytes;       /* reserved at open, never grown, never zero-filled; 0 with NAME_OPEN: the
                             size of the file */
    const char *options;  /* the driver's own text, may be NULL */
    const char *name;     /* NULL: an unlinked file, removed when it is closed. Else
                             STW_STORAGE_CAN_KEEP: it persists, in `path`, private to this user,
                             locked while it is open until the last I/O is over (LOCKED) */
    uint32_t name_access; /* STW_STORAGE_NAME_*, with a name */
    uint32_t reserved;
} stw_storage_options;

typedef struct stw_storage_info {
    uint32_t struct_size;
    uint32_t alignment_bytes; /* of memory, offset and length of each request; 1: none */
    uint32_t queue_depth;     /* what submit accepts at most before poll is needed */
    uint32_t reserved;
    uint64_t bytes;
    char file_system[32];     /* "ext4", "xfs", "0x..." */
    char remark[256];         /* why this driver is slower than it could be here; "" if not */
} stw_storage_info;

enum { STW_IO_READ = 1, STW_IO_WRITE = 2 };

/* One request. Its memory is the driver's from acceptance until poll returns its tag. */
typedef struct stw_io {
    uint64_t tag;
    void *data;
    uint64_t offset_bytes;
    uint64_t bytes;
    uint32_t kind; /* STW_IO_* */
    uint32_t reserved;
} stw_io;

/* Its result. Fewer bytes than requested are not an error: the core, in one place for all drivers,
 * requests the rest. 0 bytes are an end of file, which the core treats as an error. */
typedef struct stw_io_done {
    uint64_t tag;
    int64_t result; /* bytes moved, or a negative errno */
} stw_io_done;

enum { /* stw_storage_ops.capabilities */
    STW_STORAGE_CAN_WRAP = 1, /* open takes options->options "inner=<name>" and wraps that driver */
    STW_STORAGE_IN_MEMORY = 2, /* keeps its bytes in memory: options->path is a label, and no
                                 directory is needed or touched */
    STW_STORAGE_CAN_SHRINK = 4, /* space can be given back to the file system: give_back,
                                   take_back */
    STW_STORAGE_CAN_KEEP = 8 /* open takes a name, for persistent files; flushed bytes survive a
                                loss of power. flush then works concurrently with submit and poll of
                                other threads */
};

typedef struct stw_storage_ops {
    uint32_t struct_size;
    uint32_t abi;
    const char *name;
    uint64_t capabilities;
    /* All descriptors, memory and threads are allocated here. Blocks. */
    stw_status (*open)(const stw_services *services, const stw_storage_options *options,
                       stw_storage **storage_out, stw_driver_error *error_out);
    void (*info)(stw_storage *storage, stw_storage_info *info_out);
    /* Accept the first *accepted_out of n requests. Fewer than n means a full queue, not an error.
     * A write past the end is refused as INVALID, a read past it is short. One thread at a time.
     * Never blocks on the device, never allocates. An error concerns ios[accepted], which was not
     * accepted; the caller fails it. */
    stw_status (*submit)(stw_storage *storage, const stw_io *ios, uint32_t n,
                         uint32_t *accepted_out);
    /* Up to `capacity` completions; waits at most wait_ns for the first (0: not at all). Each
     * accepted tag is returned exactly once. May run concurrently with submit on another thread. */
    uint32_t (*poll)(stw_storage *storage, stw_io_done *done, uint32_t capacity, uint64_t wait_ns);
    /* Make a waiting poll, or the next one, return early: sticky until one poll has returned. A
     * poll may also return early for an earlier wake. Any thread. Never blocks. */
    void (*wake)(stw_storage *storage);
    /* Everything completed before the call is on stable storage. NOT_FOUND: the file was opened
     * with a name and has been removed since, so that it ends with this process. Blocks. */
    stw_status (*flush)(stw_storage *storage);
    /* Waits for work in flight, at most wait_ns; TIMEOUT leaves the object open. */
    stw_status (*close)(stw_storage *storage, uint64_t wait_ns);
    /* STW_STORAGE_CAN_SHRINK. Any thread, beside everything else. ---------------------------- */
    /* For a range that nothing reads or writes, like take_back. Its space is given back to the file
     * system, its contents are lost. UNSUPPORTED if that is not possible; nothing has changed then.
     * Blocks. */
    stw_status (*give_back)(stw_storage *storage, uint64_t offset_bytes, uint64_t bytes);
    /* Reserves it again, as at open. After NO_SPACE the part that is not reserved can be given back
     * again. Blocks. */
    stw_status (*take_back)(stw_storage *storage, uint64_t offset_bytes, uint64_t bytes,
                            stw_driver_error *error_out);
} stw_storage_ops;

/* -------------------------------------------------------------------------------- memory -- */

typedef struct stw_memory stw_memory;

typedef struct stw_memory_options {
    uint32_t struct_size;
    int32_t ordinal;        /* which of the driver's devices, from 0; UNSUPPORTED for one that it
                               does not have */
    uint64_t bytes;         /* of the arena; a multiple of block_bytes */
    uint32_t block_bytes;   /* a power of two from 64 KiB */
    uint32_t near_node;     /* of host memory: the NUMA node to prefer, and 1; 0: the calling
                               thread's */
    uint64_t address_bytes; /* of addresses to reserve for tensors (CAN_MAP) */
    const char *options;    /* the driver's own text, may be NULL. A driver without options, or an
                               older one, refuses it */
} stw_memory_options;

typedef struct stw_memory_info {
    uint32_t struct_size;
    uint32_t locked;       /* 1: pages are locked or registered */
    void *base;            /* of the arena: block i is at base + i x block_bytes while unmapped */
    uint64_t bytes;
    int32_t numa_node;     /* -1: not bound. Of a device across a bus: the nearest node of the host,
                              -1: not known */
    uint32_t huge_pages;   /* 1: the kernel was asked for them and did not refuse */
    char remark[256];      /* a refused limit and the command that lifts it; "" if none */
    uint32_t flags;        /* below */
    uint32_t reserved;
} stw_memory_info;

enum { /* stw_memory_info.flags */
    STW_MEMORY_STAYS = 1,     /* nothing is given back: give_back is UNSUPPORTED, and registrations
                                 of the memory may be kept */
    STW_MEMORY_ALIASES_RUNS = 2, /* all blocks mapped in one reserved range are one run, in the
                                    order of the arena: see map_alias */
    STW_MEMORY_ONE_HANDLE = 4 /* with STAYS: the options ask for an arena of one allocation that a
                                 group of ranks may register */
};

enum { /* stw_memory_ops.capabilities */
    STW_MEMORY_HOST_ACCESS = 1, /* the CPU and storage may read and write it directly */
    STW_MEMORY_CAN_MAP = 2,     /* blocks can be moved to an address of a tensor's own: map, home,
                                   reserve_address, release_address */
    STW_MEMORY_STREAMS = 4,     /* consumers have streams: check_stream, mark, copies_after,
                                   stream_after, pin_host, unpin_host, copy_start, wait */
    STW_MEMORY_CAN_SHRINK = 8,  /* memory can be given back to the system: give_back, take_back */
    STW_MEMORY_UPDATES = 16,    /* the device computes updates, only together with STREAMS:
                                   update_stream, update_start, scan_start, scan_end,
                                   accumulate_start, zero_start */
    STW_MEMORY_CAN_BATCH = 32,  /* with STREAMS; copies cost less together: copies_start */
    STW_MEMORY_CAN_ALIAS = 64,  /* blocks can be mapped at an address of a tensor's own as well:
                                   reserve_alias, map_alias, release_alias */
    STW_MEMORY_MAY_SHARE = 128, /* with STREAMS; HOST_ACCESS as well with some of its devices:
                                   shares_host */
    STW_MEMORY_CAN_FORGET = 256, /* with STREAMS; is notified of streams that end: forget_stream */
    STW_MEMORY_SAYS_WHY = 512,   /* names failed calls of the device: why, next_failure */
    STW_MEMORY_CAN_PROTECT = 1024, /* with CAN_MAP and HOST_ACCESS; access of the CPU to an address
                                     can be limited: map_as */
    STW_MEMORY_COPIES_OTHERS = 2048 /* with STREAMS; copy and copy_start take memory of the device
                                     that is not this: check_memory */
};

enum { /* of copies_after */
    STW_COPIES_IN = 1, /* into this memory or inside of it, and zeros */
    STW_COPIES_OUT = 2 /* out of it */
};

/*
 * Results of a device under STW_MEMORY_UPDATES have the bits of the library's own kernels, as a
 * tensor may be updated on either side: + - x / and sqrt in f32 (sums of squares in f64), each
 * rounded to nearest even, nothing fused, denormals kept, a NaN that arithmetic produces stored as
 * 0x7FC00000 (or that rounded to 16 bits). Arrays need the alignment of their elements.
 * docs/driver-authors.md says where the formulas are.
 */
enum { STW_DECAY_NONE = 0, STW_DECAY_DECOUPLED = 1, STW_DECAY_COUPLED = 2 };
enum { /* stw_update_coefficients.flags */
    STW_MOMENTUM_FIRST = 1, /* it starts as the gradient itself, undampened */
    STW_MOMENTUM_NESTEROV = 2
};

/* Computed by the library in double, once for each parameter and step. */
typedef struct stw_update_coefficients {
    float gradient_scale;     /* negative when the objective is maximized */
    float decay_factor;       /* decoupled: parameter x this; coupled: gradient + it x this */
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float eps;
    float correction2_sqrt;   /* sqrt(1 - beta2^step) */
    float negative_step_size; /* Adam: -lr / (1 - beta1^step); Adagrad: decayed; else -lr */
    float momentum;
    float one_minus_dampening;
    uint32_t decay;           /* STW_DECAY_* */
    uint32_t flags;           /* STW_MOMENTUM_* */
    uint32_t reserved;
} stw_update_coefficients;

enum { /* stw_update_work.fresh: tensors without contents, initialised before the update */
    STW_FRESH_MASTER = 1,  /* from the values */
    STW_FRESH_AVERAGE = 2, /* from the master as it was before the update */
    STW_FRESH_STATE_0 = 4, /* zeros */
    STW_FRESH_STATE_1 = 8
};

/* A run of elements of one parameter. Arrays do not overlap, except values and master of f32. */
typedef struct stw_update_work {
    uint32_t struct_size;
    uint32_t algorithm;      /* STW_OPTIMIZER_*, never CUSTOM */
    void *values;            /* in values_dtype; gets the rounded master where that is not f32 */
    void *master;            /* f32; the values themselves where these are f32 */
    const void *gradient;    /* in gradient_dtype; left as it is */
    void *states[2];         /* in states_dtype; as many as the algorithm has, then NULL */
    void *average;           /* f32: += (master - average) x average_weight; NULL: none */
    uint64_t count;
    uint64_t first_element;  /* number in the tensor, */
    uint64_t step;           /* and step from 1 on: of the draws that round states in BF16 */
    uint32_t values_dtype;   /* STW_F32, STW_F16, STW_BF16 */
    uint32_t gradient_dtype; /* the same */
    uint32_t states_dtype;   /* STW_F32, STW_BF16 */
    uint32_t fresh;          /* STW_FRESH_* */
    float average_weight;
    uint32_t reserved;
    stw_update_coefficients coefficients;
} stw_update_work;

enum { STW_SCAN_ELEMENTS = 4096, STW_SCANS_MAX = 64 };

/* A gradient from a multiple of STW_SCAN_ELEMENTS of its part on. */
typedef struct stw_scan_work {
    uint32_t struct_size;
    uint32_t dtype;
    const void *gradient;
    uint64_t count;
    const void *rest; /* NULL, or its continuation: both together are one run of the scan */
    uint64_t rest_count;
} stw_scan_work;

typedef struct stw_scan_result {
    uint32_t struct_size;
    float maximum;      /* largest magnitude of the finite elements */
    uint64_t nonfinite; /* the others */
} stw_scan_result;

/* destination = source x scale, or destination + source x scale: in f32, rounded at each step. */
typedef struct stw_accumulate_work {
    uint32_t struct_size;
    uint32_t adds; /* 0: the first contribution */
    void *destination;
    const void *source;
    uint64_t count;
    uint32_t destination_dtype;
    uint32_t source_dtype;
    float scale;
    uint32_t reserved;
} stw_accumulate_work;

/* One of several copies. */
typedef struct stw_memory_copy {
    void *destination;
    const void *source;
    uint64_t bytes;
} stw_memory_copy;

typedef struct stw_memory_ops {
    uint32_t struct_size;
    uint32_t abi;
    const char *name;
    uint64_t capabilities;
    /* Allocates and touches the whole arena, so that nothing large is allocated later. Blocks. */
    stw_status (*open)(const stw_services *services, const stw_memory_options *options,
                       stw_memory **memory_out, stw_driver_error *error_out);
    void (*info)(stw_memory *memory, stw_memory_info *info_out);
    /* Copy inside, into or out of this memory; the other side is host memory or this memory. Any
     * thread, several at once. Blocks until done. */
    stw_status (*copy)(stw_memory *memory, void *destination, const void *source, uint64_t bytes);
    stw_status (*zero)(stw_memory *memory, void *destination, uint64_t bytes);
    stw_status (*close)(stw_memory *memory);
    /* STW_MEMORY_CAN_MAP. Any thread, several at once. --------------------------------------- */
    /* A range of addresses for one tensor, aligned to block_bytes; touching it faults until blocks
     * are mapped. LIMIT when addresses or mappings run out. */
    stw_status (*reserve_address)(stw_memory *memory, uint64_t bytes, void **address_out);
    /* Every block mapped in it goes home first. */
    stw_status (*release_address)(stw_memory *memory, void *address, uint64_t bytes);
    /* Move arena block `block` to `address` (block aligned, inside a reserved range), from wherever
     * it is now. A block that is at `address` already goes home first. Contents move along. Neither
     * block has I/O in flight. */
    stw_status (*map)(stw_memory *memory, uint32_t block, void *address);
    /* Back to its place in the arena. */
    stw_status (*home)(stw_memory *memory, uint32_t block);
    /* STW_MEMORY_CAN_SHRINK. Any thread, beside calls for other blocks. ----------------------- */
    /* Gives the memory of empty arena blocks back to the system; a mapped block goes home first.
     * UNSUPPORTED if that is not possible; nothing has changed then. With STW_MEMORY_STREAMS it
     * waits for started copies and for all marks that copies are ordered after: TIMEOUT, and
     * nothing has changed, if they take more than a second. */
    stw_status (*give_back)(stw_memory *memory, uint32_t first_block, uint32_t count);
    /* Takes it again, populated and locked if it was at open. After MEMORY nothing has changed.
     * Blocks. */
    stw_status (*take_back)(stw_memory *memory, uint32_t first_block, uint32_t count,
                            stw_driver_error *error_out);
    /* STW_MEMORY_STREAMS. Any thread, several at once. Nothing here waits for work on streams. - */
    /* INVALID, with the reason: no stream of this device. STW_STREAM_LEGACY and _PER_THREAD are
     * valid. A destroyed stream is detected if the driver can. */
    stw_status (*check_stream)(stw_memory *memory, void *stream, stw_driver_error *error_out);
    /* A point on a stream: after all work that was enqueued on it before the call, for
     * STW_STREAM_PER_THREAD on that of the calling thread. A number chosen by the driver, which it
     * may forget when newer marks of the same stream exist: they come after it, and stand for it.
     * DEVICE: the device is lost. BUSY, or INVALID: the stream records a graph; a driver may return
     * a mark all the same, and return BUSY when something is to be ordered after it before that is
     * over. */
    stw_status (*mark)(stw_memory *memory, void *stream, uint64_t *mark_out);
    /* Later work of copy, zero and copy_start, in these directions (STW_COPIES_*), is ordered after
     * the mark on the device. The other direction must not wait for it. BUSY: its stream still
     * records a graph; call again. */
    stw_status (*copies_after)(stw_memory *memory, uint64_t mark, uint32_t copies);
    /* Work that is enqueued on the stream from now on is ordered after the mark. INVALID: the
     * stream records a graph; BUSY: that of the mark does. */
    stw_status (*stream_after)(stw_memory *memory, void *stream, uint64_t mark);
    /* Registers host memory for copies: they need no intermediate buffer of the driver, and run at
     * the speed of the link. Whole pages, until unpin_host with the same range; for all devices of
     * the driver, whichever of them is called. May run concurrently with copies from and to there.
     * Blocks. */
    stw_status (*pin_host)(stw_memory *memory, void *base, uint64_t bytes,
                           stw_driver_error *error_out);
    /* No started copy uses this range any more. */
    void (*unpin_host)(stw_memory *memory, void *base, uint64_t bytes);
    /* As copy, but returns when it is enqueued, with a mark after it. Copies into this memory run
     * one after the other, and so do those out of it. */
    stw_status (*copy_start)(stw_memory *memory, void *destination, const void *source,
                             uint64_t bytes, uint64_t *mark_out);
    /* Blocks until the device has passed the mark. DEVICE: it never will. BUSY: a second has
     * passed, and its stream records a graph still. */
    stw_status (*wait)(stw_memory *memory, uint64_t mark);
    /* STW_MEMORY_UPDATES. Any thread, several at once. Work on arrays in this memory, one after the
     * other on a stream of the driver; nothing but the first and scan_end waits. ----- */
    /* That stream, until close: the library orders it like a consumer's. Loads the kernels.
     * UNSUPPORTED, with the reason: there are none here. Blocks. */
    stw_status (*update_stream)(stw_memory *memory, void **stream_out,
                                stw_driver_error *error_out);
    /* UNSUPPORTED: an algorithm that it does not know, asked for with a count of 0 as well. */
    stw_status (*update_start)(stw_memory *memory, const stw_update_work *work);
    /* A pass over a gradient; at most STW_SCANS_MAX have begun and not ended. */
    stw_status (*scan_start)(stw_memory *memory, const stw_scan_work *work, uint64_t *scan_out);
    /* Its results, for each STW_SCAN_ELEMENTS the sum of the squares of the finite ones: element i
     * of a run is added to lane i mod 16, in order; then lane j += lane j + 8, j + 4, j + 2, j + 1.
     * Blocks until they are there. Called once per scan, even if it fails. */
    stw_status (*scan_end)(stw_memory *memory, uint64_t scan, double *sums_out,
                           stw_scan_result *result_out);
    stw_status (*accumulate_start)(stw_memory *memory, const stw_accumulate_work *work);
    stw_status (*zero_start)(stw_memory *memory, void *destination, uint64_t bytes);
    /* STW_MEMORY_CAN_BATCH. Any thread, several at once. --------------------------------------- */
    /* As copy_start of each, with one mark after all of them. All go into this memory from the
     * host's, or all out of it; none touches what another one writes, and they may run in any
     * order. After an error none of them is running any more. */
    stw_status (*copies_start)(stw_memory *memory, const stw_memory_copy *copies, uint32_t n,
                               uint64_t *mark_out);
    /* STW_MEMORY_CAN_ALIAS. Any thread, several at once for different addresses. -------------- */
    /* A range of addresses for one tensor, aligned to block_bytes; an access to it faults until
     * blocks are mapped there. UNSUPPORTED if this device has none; LIMIT if addresses run out. */
    stw_status (*reserve_alias)(stw_memory *memory, uint64_t bytes, void **address_out);
    /* Maps `count` arena blocks from `first_block` on at `address` (block aligned, inside a
     * reserved range) as well, until other blocks are mapped there. Blocks mapped there before are
     * unmapped after the device has passed the n marks: the call waits for the marks, unless the
     * same blocks are mapped there already. give_back unmaps a block everywhere. INVALID, MEMORY:
     * blocks that were mapped there before the call still are, the others may be or not.
     * With STW_MEMORY_ALIASES_RUNS, calls for one range come one at a time, and a call also unmaps,
     * after the marks, blocks of the range at another distance between address and block.
     * reserve_alias leaves room around the range for the blocks of a handle that extend beyond. */
    stw_status (*map_alias)(stw_memory *memory, uint32_t first_block, uint32_t count, void *address,
                            const uint64_t *marks, uint32_t n);
    /* The range ends after the device has passed the n marks. Does not wait for it. */
    stw_status (*release_alias)(stw_memory *memory, void *address, uint64_t bytes,
                                const uint64_t *marks, uint32_t n);
    /* STW_MEMORY_MAY_SHARE. Any thread. ------------------------------------------------------- */
    /* *shares_out is 1 where what open takes with these options the CPU and storage read and write
     * directly; 0 where not. Takes nothing, and answers the same each time. An error is that of
     * open, which has the sentence. The library waits for the marks of what is released in such
     * memory before storage touches it. May block. */
    stw_status (*shares_host)(const stw_memory_options *options, uint32_t *shares_out);
    /* STW_MEMORY_CAN_FORGET. Any thread. ------------------------------------------------------ */
    /* The stream, which check_stream has seen, is about to be destroyed: all marks of it are made,
     * and its handle is another stream's when it comes again. BUSY: it records a graph. */
    stw_status (*forget_stream)(stw_memory *memory, void *stream);
    /* STW_MEMORY_SAYS_WHY. Any thread. ------------------------------------------------------- */
    /* One sentence, without its full stop, about the last failed operation of the calling thread on
     * this memory without an error_out: the failed call of the device, and its error by name. */
    void (*why)(stw_memory *memory, stw_driver_error *error_out);
    /* The same of any thread, for the log: the first of each call and error. 0: nothing new, which
     * must be cheap. */
    uint32_t (*next_failure)(stw_memory *memory, stw_driver_error *error_out);
    /* STW_MEMORY_CAN_PROTECT. Any thread. ---------------------------------------------------- */
    /* As map, for reading alone or for both; for a block that is there already the access changes.
     * A write to a read-only block faults, and so does any access to an address without a block. */
    stw_status (*map_as)(stw_memory *memory, uint32_t block, void *address, uint32_t writable);
    /* STW_MEMORY_COPIES_OTHERS. Any thread. -------------------------------------------------- */
    /* copy and copy_start also take memory of this device that the program has, from or to the
     * host's. INVALID, with the reason: not all of these bytes are such memory. */
    stw_status (*check_memory)(stw_memory *memory, const void *pointer, uint64_t bytes,
                               stw_driver_error *error_out);
} stw_memory_ops;

/* ---------------------------------------------------------------------------- collective -- */

/* This process in a group of ranks. */
typedef struct stw_collective stw_collective;

typedef struct stw_collective_options {
    uint32_t struct_size;
    uint32_t rank;            /* of this process; unused where the engine knows its ranks (MPI) */
    uint32_t size;            /* ranks in all; as rank. Both 0 or as it has with a communicator */
    int32_t mpi_comm;         /* MPI_Comm_c2f(comm); 0: MPI_COMM_WORLD */
    void *communicator;       /* of the engine, borrowed (ncclComm_t); NULL: none */
    const void *unique_id;    /* the same bytes on all ranks (ncclUniqueId); NULL: none */
    uint64_t unique_id_bytes;
    int32_t device_ordinal;   /* whose memory collectives touch, where that is a device's */
    uint32_t reserved;
    uint64_t timeout_ns;      /* of open */
} stw_collective_options;

typedef struct stw_collective_info {
    uint32_t struct_size;
    uint32_t rank;
    uint32_t size;
    uint32_t caller_thread; /* 1: calls may come only from threads that call the library */
    char remark[256];       /* "" if nothing */
    /* STW_COLLECTIVE_DEVICE: the stream on which collectives without a stream are enqueued, until
     * close. The library orders it like a consumer's: a collective is ordered after the work on
     * this stream when it is started. NULL: not known. */
    void *stream;
} stw_collective_info;

enum { STW_EXCHANGE_BYTES_MAX = 4096 };

enum { /* stw_collective_ops.capabilities */
    STW_COLLECTIVE_HOST = 1,   /* all_gather, reduce_scatter, all_reduce take host memory */
    STW_COLLECTIVE_DEVICE = 2, /* ... take memory of a device that has streams */
    STW_COLLECTIVE_CAN_SPLIT = 4,
    STW_COLLECTIVE_NAMES_MISSING = 8, /* missing */
    STW_COLLECTIVE_CAN_ABORT = 16,    /* abort ends what is in flight */
    STW_COLLECTIVE_CAN_REGISTER = 32  /* memory that collectives then reach with fewer copies */
};

/*
 * A collective begins when it is started and ends when poll returns its result; its memory is the
 * engine's until then. It is started in the same order with the same sizes on all ranks: the
 * library ensures that by an exchange before it. Calls come one at a time, from one thread unless
 * info says caller_thread. Nothing but open, split and close blocks.
 *
 * Sums are taken in rank order, 0 first, in f32 (f64 for STW_F64), and rounded to nearest once; an
 * engine that cannot must say so in info's remark, and still give the same bits each time.
 */
typedef struct stw_collective_ops {
    uint32_t struct_size;
    uint32_t abi;
    const char *name;
    uint64_t capabilities;
    /* Blocks until all ranks have joined. UNSUPPORTED: the engine cannot be used as it was set up
     * (an MPI without threads). PEER, TIMEOUT. */
    stw_status (*open)(const stw_services *services, const stw_collective_options *options,
                       stw_collective **collective_out, stw_driver_error *error_out);
    void (*info)(stw_collective *collective, stw_collective_info *info_out);
    /* `bytes` (at most STW_EXCHANGE_BYTES_MAX) of each rank to all, in host memory, in rank order:
     * records has size x bytes. Both are the engine's until poll. */
    stw_status (*exchange)(stw_collective *collective, const void *record, void *records,
                           uint32_t bytes, uint64_t *work_out);
    /* The shards of all ranks in rank order. `shard` may be this rank's part of `whole`. */
    stw_status (*all_gather)(stw_collective *collective, const void *shard, void *whole,
                             uint64_t shard_bytes, void *stream, uint64_t *work_out);
    /* Rank r gets the sum over ranks of elements [r, r + 1) x shard_elements of `whole`. dtype:
     * STW_F32, STW_F16, STW_BF16, STW_F64. The two do not overlap. */
    stw_status (*reduce_scatter)(stw_collective *collective, const void *whole, void *shard,
                                 uint64_t shard_elements, uint32_t dtype, void *stream,
                                 uint64_t *work_out);
    /* The sum over ranks on every rank, in place. */
    stw_status (*all_reduce)(stw_collective *collective, void *data, uint64_t elements,
                             uint32_t dtype, void *stream, uint64_t *work_out);
    /* OK or an error once, PENDING before; never called again after that. Collectives progress in
     * this call. A rank that is known to have ended: PEER. */
    stw_status (*poll)(stw_collective *collective, uint64_t work, stw_driver_error *error_out);
    /* Waits for work in flight, at most wait_ns; TIMEOUT leaves the object open. What the
     * program lent (communicators, MPI itself) stays as it was. */
    stw_status (*close)(stw_collective *collective, uint64_t wait_ns);
    /* STW_COLLECTIVE_CAN_SPLIT. Collective. Ranks of one colour make a group, in order of key and
     * rank; colour -1: in none, *collective_out is NULL. Blocks as open. */
    stw_status (*split)(stw_collective *collective, int32_t colour, uint32_t key,
                        uint64_t timeout_ns, stw_collective **collective_out,
                        stw_driver_error *error_out);
    /* STW_COLLECTIVE_NAMES_MISSING. For an exchange in flight: the ranks, at most `capacity`, from
     * which nothing has arrived; returns their number. */
    uint32_t (*missing)(stw_collective *collective, uint64_t work, uint32_t *ranks_out,
                        uint32_t capacity);
    /* STW_COLLECTIVE_CAN_ABORT. Collectives in flight end soon with an error, and none can be
     * started any more. */
    stw_status (*abort)(stw_collective *collective);
    /* STW_COLLECTIVE_CAN_REGISTER. No collective is in flight; no call waits for others. ------- */
    /* The range is one allocation and stays mapped until it is unregistered. UNSUPPORTED, with the
     * reason: this engine has no registration; collectives there work without. The library
     * unregisters it before a collective uses the range if any rank of the group has no
     * registration. */
    stw_status (*register_memory)(stw_collective *collective, void *base, uint64_t bytes,
                                  stw_driver_error *error_out);
    /* For the same range. Also after abort. */
    void (*unregister_memory)(stw_collective *collective, void *base);
} stw_collective_ops;

/* -------------------------------------------------------------------------------- module -- */

/*
 * Drivers that the library loads at run time. A module is a shared library, not linked to Stepwell,
 * with at most one driver of each kind. It is used by the name <name> if it is
 * libstepwell-<name>.so in the library's module directory (pkg-config --variable=moduledir
 * stepwell-driver), or from anywhere by its absolute path; never by a relative path, and never in
 * place of a driver that is built in. Nobody but root and the user of the process may have been
 * able to write it: its file and each directory of its path are checked before it is loaded.
 */
typedef struct stw_driver_module {
    uint32_t struct_size;
    uint32_t abi;                   /* STW_DRIVER_ABI: others are refused, and not read further */
    const stw_storage_ops *storage; /* for the nvme tier; NULL: none */
    const stw_memory_ops *memory;   /* for the device tier; NULL: none */
    const stw_collective_ops *collective; /* for a group of ranks; NULL: none */
} stw_driver_module;

#if defined(__GNUC__)
#define STW_DRIVER_EXPORT __attribute__((visibility("default")))
#else
#define STW_DRIVER_EXPORT
#endif

/**
 * The one function that a module defines and exports. NULL: no driver for this machine.
 *
 * Ownership: the tables are the module's, constant, and valid as long as the process lives: a used
 *            module is never unloaded, a refused one at once.
 * Threads:   any thread, several at once, any number of times, always with the same result.
 * Blocks:    never; slow work belongs into open.
 * Errors:    none. A module whose own libraries are absent does not load, with an error; one whose
 *            device is absent loads, and its open returns STW_ERROR_UNSUPPORTED.
 */
STW_DRIVER_EXPORT const stw_driver_module *stw_driver_module_get(void);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_DRIVER_H */
