/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/store.h: generations, the numbered states of all durable tensors that a process, its end
 * and the loss of power leave as they are. They need a runtime with a store_name.
 */
#ifndef STEPWELL_STORE_H
#define STEPWELL_STORE_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STW_LABEL_BYTES_MAX = 255, STW_METADATA_BYTES_MAX = 1048576 };

enum { /* stw_commit_options.flags */
    STW_COMMIT_COMPLETE = 1 /* NOT_FOUND where a tensor of the resumed generation was not created
                               again, rather than leave it out */
};
typedef struct stw_commit_options {
    uint32_t struct_size;
    uint32_t flags;          /* STW_COMMIT_* */
    const char *label;       /* at most STW_LABEL_BYTES_MAX bytes; NULL: none */
    const void *metadata;    /* the program's own: step, random state, place in its data; copied.
                                Each rank has its own, and finds that again */
    uint64_t metadata_bytes; /* at most STW_METADATA_BYTES_MAX */
    uint64_t timeout_ns;     /* 0: the runtime's; of each wait for the other ranks, the group's */
} stw_commit_options;
#define STW_COMMIT_OPTIONS_INIT { sizeof(stw_commit_options), 0, 0, 0, 0, 0 }

/**
 * Make the present contents of all durable tensors a generation: updates, sums and writes asked for
 * before the call are in it, later ones are not. What was not written since the last one is not
 * written again. COLLECTIVE: it is one on all ranks or on none. A tensor that was never written is
 * in it as empty. Uses of a durable tensor wait until the call has returned. A tensor of the
 * resumed generation that the program has not created again is not in the new one: the log warns
 * of each, once.
 *
 * Ownership: none.
 * Threads:   any thread; one call at a time (BUSY).
 * Blocks:    until it is on stable storage on all ranks, or timeout_ns.
 * Errors:    INVALID, BUSY (a durable tensor has an open view: the sentence names it), NOT_FOUND
 *            (only with STW_COMMIT_COMPLETE, which refuses on all ranks what one leaves out), LIMIT
 *            (metadata and names take more than the store has for them), IO, CHECKSUM, NO_SPACE,
 *            MEMORY; SYNC (a flush failed: no more are taken before the store is opened again);
 *            PEER, ORDER, MISMATCH, or what kept another rank from it; TIMEOUT, INTERRUPTED. After
 *            an error the generation before it is the newest, but where this rank was not told what
 *            became of it (PEER): then it takes no more, and the next open finds it if all ranks
 *            have it. Over ranks a commit goes on behind a TIMEOUT or INTERRUPTED of its call.
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
                                again when it committed the first one behind it */
} stw_generation_info;

/**
 * What is known of a generation: 0 the newest, else that one. The runtime keeps
 * stw_runtime_options.generations_kept of them.
 *
 * Ownership: none.  Threads: any thread.  Blocks: never.
 * Errors:    INVALID, NOT_FOUND (the sentence says which there are).
 */
STW_API stw_status stw_generation_get(stw_runtime *runtime, uint64_t generation,
                                      stw_generation_info *info_out);
/**
 * The program's own metadata of this rank: min(capacity_bytes, what there is) of it into `buffer`,
 * which may be NULL with a capacity of 0; *bytes_out is what there is.
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
