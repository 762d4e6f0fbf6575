/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/memory.h: pinned scratch memory for the program, within the host tier's budget.
 */
#ifndef STEPWELL_MEMORY_H
#define STEPWELL_MEMORY_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { /* flags of stw_host_alloc */
    STW_HOST_ZERO = 1 /* zeros; else the contents are undefined */
};

/**
 * Allocate a piece of the memory that stw_runtime_options.host_scratch_bytes reserved at open: part
 * of the host tier's memory, locked if that is, and never moved. Tensors neither take it nor wait
 * for it. Pieces are rounded up, and counted so in stw_tier_stats.scratch_used_bytes: to the
 * allocator's slots up to 2 KiB, else to pages. If the process runs jemalloc 5.3 or later an arena
 * of it serves reservations of 16 MiB or more, with its own sizes.
 *
 * align_bytes: a power of two up to the block size (stw_runtime_options.block_bytes); 0: 64.
 *
 * Ownership: *pointer_out is the caller's; stw_host_free(). In a forked child it is not mapped.
 * Threads:   any thread.
 * Blocks:    never.
 * Errors:    INVALID, UNSUPPORTED (host_scratch_bytes was 0), BUDGET (needed, free and allocated
 *            bytes are in the error info), CLOSED, FORKED.
 */
STW_API stw_status stw_host_alloc(stw_runtime *runtime, uint64_t bytes, uint64_t align_bytes,
                                  uint32_t flags, void **pointer_out);
/**
 * Free a piece, once; NULL has no effect. Works after STW_CLOSE_DEFERRED too: the memory is freed
 * with the last piece and view.
 *
 * Ownership: the piece ends.  Threads: any thread.  Blocks: never.
 * Errors:    INVALID (no piece begins there: freed before, or not of this runtime; nothing
 *            changes), CLOSED, FORKED.
 */
STW_API stw_status stw_host_free(stw_runtime *runtime, void *pointer);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_MEMORY_H */
