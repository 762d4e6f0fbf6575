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
    uint32_t planned;             /* 1: a plan drove this step, 0: it was only recorded */
    uint64_t step;                /* steps of this phase so far */
    uint64_t wall_ns;
    uint64_t bound_ns;            /* what the bytes that moved, bandwidths and compute force */
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
    uint64_t least_ns;            /* whatever is moved when, no schedule of the step that the plan
                                     knows is faster; 0: no plan of steps that repeat drove it */
} stw_step_stats;
#define STW_STEP_STATS_INIT                                                                        \
    { sizeof(stw_step_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

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

/* A use in a step that is known beforehand: what would be a request of a fetch, and its release. */
typedef struct stw_plan_entry {
    uint32_t struct_size;
    uint32_t fetch;         /* entries side by side with the same number are one fetch */
    stw_tensor *tensor;
    uint32_t access;        /* STW_READ .. STW_REDUCE */
    uint32_t scope;         /* STW_WHOLE, STW_SHARD: the same on one rank */
    uint32_t tier;          /* STW_TIER_DEVICE, STW_TIER_HOST */
    uint32_t device;
    uint32_t release_flags; /* STW_RELEASE_FAR, _NEAR, _DISCARD */
    uint32_t reserved;
    uint64_t element_begin; /* a part, in elements of the flattened tensor; 0, 0: all of it */
    uint64_t element_count;
    uint64_t compute_ns;    /* while the views of the fetch are held: of its entries the largest
                               counts; 0: measured, once a step has gone so */
} stw_plan_entry;
#define STW_PLAN_ENTRY_INIT { sizeof(stw_plan_entry), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Say how the steps of a phase go, in the order of their fetches: then the first one is planned as
 * well. Replaces what was declared before; n = 0 takes it back. It is no promise: a step that goes
 * otherwise is followed as it goes, and learned. Fetches into memory of the caller's, and updates,
 * are not declared.
 *
 * Ownership: entries are read during the call alone. A tensor that is destroyed later is passed by.
 * Threads:   any thread.
 * Blocks:    never.
 * Errors:    INVALID (which entry, and why), BUSY (a step of the phase is open), BUDGET (more
 *            entries than the part of metadata_bytes for learned orders holds); on error what was
 *            declared before stands.
 */
STW_API stw_status stw_phase_declare(stw_phase *phase, const stw_plan_entry *entries, uint32_t n);

enum { /* stw_plan_advice.kind; both: do both */
    STW_PLAN_ADVICE_GROUP_MICRO_BATCHES = 1, /* each layer for all micro-batches, then the next */
    STW_PLAN_ADVICE_REVERSE_UPDATE = 2       /* the optimizer's order of parameters backwards */
};

/* What another order of the program would move; of one step, as it goes after some like it. */
typedef struct stw_plan_advice {
    uint32_t struct_size;
    uint32_t kind;          /* STW_PLAN_ADVICE_* */
    uint32_t micro_batches; /* that would run together; 0: none */
    uint32_t parameters;    /* whose updates would come in another order; 0: none */
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
    char text[512];         /* what to change and what it gives, in English */
} stw_plan_advice;
#define STW_PLAN_ADVICE_INIT                                                                       \
    { sizeof(stw_plan_advice), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } }

/**
 * Say what another order of a phase's steps would save. The way that its steps went last (or were
 * declared to go, as long as none has ended) is replayed as it is and with the micro-batches of
 * each layer together, the update backwards, or both: with the budgets of now, the measured
 * bandwidths, and in each case the policy that is best for it. What moves at least 2 % fewer bytes,
 * no more over nvme, and is not slower by more than 5 % is told, best first; most often there is
 * none. Only orders are looked at in which each fetch finds what it finds now, but for the order of
 * sums into gradients. Views whose release the library does not see are taken to end before the
 * next fetch, and what it does not see at all, as a read that has to come before another one, is
 * for the program to know. Bytes and times are of fetches: what a plan brings ahead for nothing
 * comes on top of both.
 *
 * Ownership: advice_out[0..capacity) is the caller's, of one struct_size; as many are written as
 *            there are and fit. *count_out is how many there are, at most 3; NULL and 0 ask for
 *            that alone.
 * Threads:   any thread.
 * Blocks:    while it replays, in the calling thread and with no lock held: milliseconds for
 *            hundreds of fetches, a few seconds for the largest steps. It takes memory meanwhile,
 *            beside metadata_bytes: some hundred bytes for each fetch, tensor and block.
 * Errors:    INVALID, EMPTY (no step of the phase has ended or was declared, or the runtime plans
 *            nothing), LIMIT (too large to replay), UNSUPPORTED (it cannot be replayed, and why);
 *            on error the outputs are untouched.
 */
STW_API stw_status stw_phase_advice_get(stw_phase *phase, stw_plan_advice *advice_out,
                                        uint32_t capacity, uint32_t *count_out);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_PHASE_H */
