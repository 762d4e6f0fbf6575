/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/phase.h: phases and steps: what repeats, and what one run of it cost.
 */
#ifndef STEPWELL_PHASE_H
#define STEPWELL_PHASE_H

#include <stepwell/fetch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A repeating unit with a trace of its own: "train", "eval", "decode". */
STW_API stw_status stw_phase_create(stw_runtime *runtime, const char *name, stw_phase **phase_out);
STW_API stw_status stw_phase_destroy(stw_phase *phase);

typedef struct stw_step_stats {
    uint32_t struct_size;
    uint32_t planned;             /* 1: a plan drove this step, 0: it was recorded */
    uint64_t step;                /* steps of this phase so far */
    uint64_t wall_ns;
    uint64_t bound_ns;            /* what bytes, bandwidths and compute force */
    uint64_t stall_ns;            /* the consumer waited, by cause: */
    uint64_t stall_nvme_ns;
    uint64_t stall_host_device_ns;
    uint64_t stall_collective_ns;
    uint64_t stall_room_ns;
    uint64_t stall_update_ns;
    uint64_t nvme_read_bytes;
    uint64_t nvme_write_bytes;
    uint64_t host_to_device_bytes;
    uint64_t device_to_host_bytes;
    uint64_t collective_bytes;
} stw_step_stats;
#define STW_STEP_STATS_INIT                                                                        \
    { sizeof(stw_step_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Mark the beginning and end of one step. One open step per phase; different phases may overlap (a
 * server's prefill and decode). Fetches outside every step work and are not learned.
 *
 * Threads: any thread (backward runs on others).  Blocks: never; end does not wait for the update.
 * Errors:  INVALID, BUSY (already open), and from end the first background error.
 */
STW_API stw_status stw_step_begin(stw_phase *phase);
STW_API stw_status stw_step_end(stw_phase *phase, stw_step_stats *stats_out); /* or NULL */
/**
 * The step failed half way (an exception, out of memory): give back every view fetched in it and
 * not exported, as STW_RELEASE_ABANDON on `stream`; drop the gradients summed in it. The trace is
 * not learned.
 *
 * Ownership: those views end; releasing one later is INVALID and harmless.
 * Threads:   any thread, when no other one uses the step's views.  Blocks: never.
 * Errors:    INVALID (no open step).
 */
STW_API stw_status stw_step_abort(stw_phase *phase, void *stream);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_PHASE_H */
