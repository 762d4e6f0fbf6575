/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/phase.h: phases, which repeat, and steps, with the cost of each.
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
    uint32_t planned;             /* 1: a plan drove this step, 0: it was only recorded */
    uint64_t step;                /* steps of this phase so far */
    uint64_t wall_ns;
    uint64_t bound_ns;            /* lower bound by the moved bytes, bandwidths and compute */
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
    uint64_t least_ns;            /* no schedule of the step that the plan knows is faster, whatever
                                     it moves; 0: no plan of repeating steps drove it */
} stw_step_stats;
#define STW_STEP_STATS_INIT                                                                        \
    { sizeof(stw_step_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Mark the beginning and end of one step. One open step per phase; different phases may overlap (a
 * server's prefill and decode). Fetches outside of steps work but are not learned.
 *
 * Threads: any thread (backward runs on others).  Blocks: never; end does not wait for the update.
 * Errors:  INVALID, BUSY (already open), and from end the first background error.
 */
STW_API stw_status stw_step_begin(stw_phase *phase);
STW_API stw_status stw_step_end(stw_phase *phase, stw_step_stats *stats_out); /* or NULL */
/**
 * The step failed half way (an exception, out of memory): release every view fetched in it and not
 * exported, as STW_RELEASE_ABANDON on `stream`; set back what steps with STW_UPDATE_SPECULATE have
 * updated, of every optimizer, as STW_UPDATE_REJECT does with STW_UPDATE_KEEP_GRADIENTS; drop the
 * gradients summed in it. The trace is not learned.
 *
 * Ownership: those views end; releasing one later is INVALID and harmless.
 * Threads:   any thread, when no other one uses the step's views, and one at a time with steps of
 *            optimizers.
 * Blocks:    never, but where there is something to set back: until the step before it has ended;
 *            and with STW_RUNTIME_FAULT_IN as stw_release of a REDUCE view.
 * Errors:    INVALID (no open step); of setting back, after the rest is done: TIMEOUT, INTERRUPTED.
 */
STW_API stw_status stw_step_abort(stw_phase *phase, void *stream);

/* A use in a step that is known in advance: a request of a fetch, and its release. */
typedef struct stw_plan_entry {
    uint32_t struct_size;
    uint32_t fetch;         /* adjacent entries with the same number are one fetch */
    stw_tensor *tensor;
    uint32_t access;        /* STW_READ .. STW_REDUCE */
    uint32_t scope;         /* STW_WHOLE, STW_SHARD: the same on one rank */
    uint32_t tier;          /* STW_TIER_DEVICE, STW_TIER_HOST */
    uint32_t device;
    uint32_t release_flags; /* STW_RELEASE_FAR, _NEAR, _DISCARD */
    uint32_t reserved;
    uint64_t element_begin; /* a part, in elements of the flattened tensor; 0, 0: all of it */
    uint64_t element_count;
    uint64_t compute_ns;    /* while the views of the fetch are held: the largest of its entries
                               counts; 0: measured, once a step has followed this order */
} stw_plan_entry;
#define STW_PLAN_ENTRY_INIT { sizeof(stw_plan_entry), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Declare the steps of a phase, in the order of their fetches: then the first one is planned as
 * well. Replaces an earlier declaration; n = 0 removes it. It is not binding: a step that deviates
 * is followed as it runs, and learned. Fetches into memory of the caller, and updates, are not
 * declared.
 *
 * Ownership: entries are read only during the call. A tensor that is destroyed later is skipped.
 * Threads:   any thread.
 * Blocks:    never.
 * Errors:    INVALID (which entry, and why), BUSY (a step of the phase is open), BUDGET (more
 *            entries than the part of metadata_bytes for learned orders holds); on error the
 *            earlier declaration is kept.
 */
STW_API stw_status stw_phase_declare(stw_phase *phase, const stw_plan_entry *entries, uint32_t n);

enum { /* stw_plan_advice.kind; both: do both */
    STW_PLAN_ADVICE_GROUP_MICRO_BATCHES = 1, /* each layer for all micro-batches, then the next */
    STW_PLAN_ADVICE_REVERSE_UPDATE = 2       /* the optimizer's order of parameters backwards */
};

/* Bytes that another order of the program would move, in one step, in steady state. */
typedef struct stw_plan_advice {
    uint32_t struct_size;
    uint32_t kind;          /* STW_PLAN_ADVICE_* */
    uint32_t micro_batches; /* to run together; 0: none */
    uint32_t parameters;    /* to update in another order; 0: none */
    uint64_t now_nvme_read_bytes;
    uint64_t now_nvme_write_bytes;
    uint64_t now_host_to_device_bytes;
    uint64_t now_device_to_host_bytes;
    uint64_t now_step_ns;
    uint64_t then_nvme_read_bytes;
    uint64_t then_nvme_write_bytes;
    uint64_t then_host_to_device_bytes;
    uint64_t then_device_to_host_bytes;
    uint64_t then_step_ns;
    char text[512];         /* the change and its gain, in English */
} stw_plan_advice;
#define STW_PLAN_ADVICE_INIT                                                                       \
    { sizeof(stw_plan_advice), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } }

/**
 * Report what another order of a phase's steps would save. The access pattern of its last steps (or
 * the declared one, as long as none has ended) is replayed unchanged and with the micro-batches of
 * each layer together, the update backwards, or both: with the current budgets, the measured
 * bandwidths, and in each case the policy that is best for it. Advice is returned only if it saves
 * at least 2 % of the bytes, moves no more over nvme, and is not slower by more than 5 %, best
 * first; most often there is none. Only orders are considered in which each fetch reads the same
 * contents, except for the order of sums into gradients. Views whose release the library does not
 * see are assumed to end before the next fetch; dependencies that it cannot see, such as a read
 * that has to come before another one, are for the program to check. Bytes and times are of
 * fetches: wasted prefetches of a plan come on top of both.
 *
 * Ownership: advice_out[0..capacity) is the caller's, of one struct_size; as many are written as
 *            exist and fit. *count_out is the number that exist, at most 3; NULL and 0 return only
 *            that.
 * Threads:   any thread.
 * Blocks:    while it replays, in the calling thread and with no lock held: milliseconds for
 *            hundreds of fetches, a few seconds for the largest steps. It needs memory meanwhile,
 *            not part of metadata_bytes: some hundred bytes for each fetch, tensor and block.
 * Errors:    INVALID, EMPTY (no step of the phase has ended or was declared, or the runtime has no
 *            plans), LIMIT (too large to replay), UNSUPPORTED (it cannot be replayed, with the
 *            reason); on error the outputs are untouched.
 */
STW_API stw_status stw_phase_advice_get(stw_phase *phase, stw_plan_advice *advice_out,
                                        uint32_t capacity, uint32_t *count_out);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_PHASE_H */
