/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/group.h: groups of ranks, over MPI, NCCL or the program's own collectives.
 */
#ifndef STEPWELL_GROUP_H
#define STEPWELL_GROUP_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { /* driver of a group */
    STW_GROUP_SELF = 0,     /* this process alone, like a NULL group */
    STW_GROUP_MPI = 1,      /* mpi_comm, or MPI_COMM_WORLD when 0; the caller initialises MPI */
    STW_GROUP_NCCL = 2,     /* nccl_comm if given (borrowed), else unique_id + rank + size */
    STW_GROUP_CALLBACKS = 3 /* ops + ops_user: for example a torch.distributed process group */
};

enum { /* stw_group_options.flags */
    /* Call the engine only inside stw_ calls, on the calling thread: for an MPI without
     * MPI_THREAD_MULTIPLE, and process groups that are not safe to use from a second thread.
     * Collectives then do not overlap with the program's own work. */
    STW_GROUP_CALLER_THREAD = 1
};

/* Collectives of the program. Each starts the work, writes a work id and returns; poll returns
 * PENDING, OK or an error, and a result other than PENDING exactly once: it is not called again for
 * the id, which may be reused. Calls are made one at a time, in the same order on all ranks, on one
 * library thread unless STW_GROUP_CALLER_THREAD. Memory is in `tier`/`device`, host memory with
 * device 0 in this release; it is the callee's until poll has returned the result. An error ends
 * the group: every later call fails with it. No exception may leave a callback. */
typedef struct stw_group_ops {
    uint32_t struct_size;
    uint32_t reserved;
    /* The shards of all ranks in rank order; `shard` may be this rank's part of `whole`. */
    stw_status (*all_gather)(void *user, const void *shard, void *whole, uint64_t shard_bytes,
                             uint32_t tier, uint32_t device, void *stream, uint64_t *work_out);
    /* Rank r gets the sum of elements [r, r + 1) x shard_elements of `whole`, which may be
     * overwritten. The order of additions must always be the same, so that runs are
     * reproducible. */
    stw_status (*reduce_scatter)(void *user, const void *whole, void *shard,
                                 uint64_t shard_elements, uint32_t dtype, uint32_t tier,
                                 uint32_t device, void *stream, uint64_t *work_out);
    /* The sum on every rank, in place. */
    stw_status (*all_reduce)(void *user, void *data, uint64_t elements, uint32_t dtype,
                             uint32_t tier, uint32_t device, void *stream, uint64_t *work_out);
    stw_status (*poll)(void *user, uint64_t work);
    /* Everything in flight ends soon with an error. NULL: not supported. */
    stw_status (*abort)(void *user);
} stw_group_ops;

typedef struct stw_group_options {
    uint32_t struct_size;
    uint32_t driver;  /* STW_GROUP_* */
    uint32_t flags;   /* STW_GROUP_CALLER_THREAD */
    uint32_t rank;    /* NCCL by id, callbacks; with nccl_comm its own values, or 0 and 0 */
    uint32_t size;
    int32_t mpi_comm; /* MPI_Comm_c2f(comm) */
    void *nccl_comm;
    const void *unique_id;
    uint64_t unique_id_bytes;
    const stw_group_ops *ops; /* copied */
    void *ops_user;
    uint64_t timeout_ns; /* of each wait for the other ranks; 0: 300 s */
    const char *module;  /* MPI, NCCL: absolute path of the module that has the driver, or the name
                            of one; NULL: "mpi" or "nccl", see docs/drivers.md */
    int32_t device_ordinal; /* NCCL by id: the device of this rank, as CUDA counts those visible to
                               this process; the runtime's nearest must be the same. With nccl_comm
                               that of the communicator, or 0 */
    uint32_t reserved;
} stw_group_options;
#define STW_GROUP_OPTIONS_INIT \
    { sizeof(stw_group_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Join a set of ranks. COLLECTIVE. A NULL stw_group * elsewhere means: this process alone.
 *
 * Ownership: *group_out is the caller's; stw_group_destroy() after the runtime that uses it.
 *            Objects lent by the options (a communicator, `ops_user`) must outlive it.
 * Threads:   any thread.
 * Blocks:    until all ranks joined, or the timeout passes.
 * Errors:    INVALID, UNSUPPORTED (the driver's module is absent, or MPI was initialised without
 *            threads: reason in the text), BUSY (`ops` with `ops_user`, or the communicator, are
 *            used by another group of this process; or the unique id was used before), MISMATCH
 *            (ranks have different sizes, or the same rank), PEER, TIMEOUT.
 */
STW_API stw_status stw_group_create(const stw_group_options *options, stw_group **group_out);
/* COLLECTIVE. Ranks of one colour make a group, in order of key, then of rank; those with colour -1
 * get NULL. UNSUPPORTED for callbacks: split the process group, and create. Else as create. */
STW_API stw_status stw_group_split(stw_group *group, int32_t colour, uint32_t key,
                                   stw_group **group_out);
/* BUSY while a runtime uses it. Later collectives of other ranks in it fail there. */
STW_API stw_status stw_group_destroy(stw_group *group);
/* Any thread. Blocks: never. NULL group: 0 and 1. */
STW_API stw_status stw_group_rank(const stw_group *group, uint32_t *rank_out, uint32_t *size_out);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_GROUP_H */
