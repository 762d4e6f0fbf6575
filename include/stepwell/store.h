/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/store.h: generations, the numbered states of all durable tensors, which survive the end
 * of the process and a loss of power. They need a runtime with a store_name.
 */
#ifndef STEPWELL_STORE_H
#define STEPWELL_STORE_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STW_LABEL_BYTES_MAX = 255, STW_METADATA_BYTES_MAX = 1048576 };

enum { /* stw_commit_options.flags */
    STW_COMMIT_COMPLETE = 1 /* NOT_FOUND if a tensor of the resumed generation was not created
                               again, rather than leave it out */
};
typedef struct stw_commit_options {
    uint32_t struct_size;
    uint32_t flags;          /* STW_COMMIT_* */
    const char *label;       /* at most STW_LABEL_BYTES_MAX bytes; NULL: none */
    const void *metadata;    /* of the program: step, random state, position in its data; copied.
                                Each rank has its own */
    uint64_t metadata_bytes; /* at most STW_METADATA_BYTES_MAX */
    uint64_t timeout_ns;     /* 0: the runtime's; of each wait for the other ranks, the group's */
} stw_commit_options;
#define STW_COMMIT_OPTIONS_INIT { sizeof(stw_commit_options), 0, 0, 0, 0, 0 }

/**
 * Make the present contents of all durable tensors a generation: updates, sums and writes requested
 * before the call are in it, later ones are not. Blocks not changed since the last one are not
 * written again. COLLECTIVE: it is one on all ranks or on none. A tensor that was never written is
 * in it as empty. A commit only reads: other threads may hold views of durable tensors to READ, and
 * fetch more of them meanwhile; updates, sums and writes of a durable tensor wait until the call
 * has returned, and a discard of one is BUSY. A tensor of the resumed generation that the program
 * has not created again is not in the new one: the log warns of each, once.
 *
 * Ownership: none.
 * Threads:   any thread; one call at a time (BUSY).
 * Blocks:    until it is on stable storage on all ranks, or timeout_ns.
 * Errors:    INVALID, BUSY (a durable tensor has an open view that may write it: the sentence
 *            names it), NOT_FOUND (only with STW_COMMIT_COMPLETE, which refuses on all ranks if
 *            one leaves out a tensor), LIMIT (metadata and names take more room than the store
 *            has for them), IO, CHECKSUM, NO_SPACE, MEMORY; SYNC (a flush failed, or a file of the
 *            store was removed: no more commits before the store is opened again); PEER, ORDER,
 *            MISMATCH, or the error of another rank; TIMEOUT, INTERRUPTED. After an error the
 *            previous generation is the newest, unless this rank did not get the result (PEER):
 *            then it accepts no more commits, and the next open finds the new one if all ranks have
 *            it. Over ranks a commit goes on after a TIMEOUT or INTERRUPTED of its call.
 */
STW_API stw_status stw_commit(stw_runtime *runtime, const stw_commit_options *options,
                              uint64_t *generation_out);

typedef struct stw_generation_info {
    uint32_t struct_size;
    uint32_t ranks;          /* that have a part of it */
    uint64_t generation;     /* from 1 on */
    uint64_t tensors;
    uint64_t bytes;          /* of them, on this rank */
    uint64_t metadata_bytes;
    uint64_t time_unix_ns;   /* when this rank's part was written */
    char label[STW_LABEL_BYTES_MAX + 1];
    uint64_t left_out;       /* tensors of the resumed generation that this rank had not created
                                again at its first commit after it */
} stw_generation_info;

/**
 * Information about a generation: 0 the newest, else that one. The runtime keeps
 * stw_runtime_options.generations_kept of them.
 *
 * Ownership: none.  Threads: any thread.  Blocks: never.
 * Errors:    INVALID, NOT_FOUND (the sentence lists the existing ones).
 */
STW_API stw_status stw_generation_get(stw_runtime *runtime, uint64_t generation,
                                      stw_generation_info *info_out);
/**
 * The program's own metadata of this rank: up to capacity_bytes of it into `buffer`, which may be
 * NULL with a capacity of 0; *bytes_out is its size.
 *
 * Ownership: buffer is the caller's.  Threads: any thread.  Blocks: never.
 * Errors:    INVALID, NOT_FOUND.
 */
STW_API stw_status stw_generation_metadata(stw_runtime *runtime, uint64_t generation, void *buffer,
                                           uint64_t capacity_bytes, uint64_t *bytes_out);

#ifdef __cplusplus
}
#endif

#endif
