/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/victim.h: a victim policy of the program: what is evicted first from a tier.
 */
#ifndef STEPWELL_VICTIM_H
#define STEPWELL_VICTIM_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { /* stw_victim.flags */
    STW_VICTIM_PINNED = 1, /* views of it are open there: not evicted, whatever its score */
    STW_VICTIM_SHARED = 2  /* shares its block with others: they are evicted together, by the
                              highest of their scores */
};

/* A tensor that may live at a tier, as it was a moment ago. */
typedef struct stw_victim {
    stw_tensor *tensor;   /* may be destroyed meanwhile: functions of tensors that say "Blocks:
                             never" then return INVALID */
    uint64_t bytes;       /* of it there now; 0: the score counts once it is there */
    uint64_t dirty_bytes; /* of these, in no farther tier: they are written at eviction */
    uint64_t last_use;    /* this many accesses of tensors ago; UINT64_MAX: never used */
    uint64_t next_use;    /* this many from now, by the learned order; UINT64_MAX: not known */
    uint32_t role;        /* STW_ROLE_* */
    uint32_t retention;   /* STW_RETAIN_* */
    int32_t priority;
    uint32_t flags;       /* STW_VICTIM_* */
} stw_victim;

typedef struct stw_victim_policy {
    uint32_t struct_size;
    uint32_t victim_bytes; /* sizeof(stw_victim) in the caller's build; 0: as in this version */
    /* Scores victims[0..n) of one tier: scores_out[i] is 0 before; lower is evicted first. */
    void (*rank)(void *user, uint32_t tier, uint32_t device, const stw_victim *victims, uint32_t n,
                 double *scores_out);
    void *user;
} stw_victim_policy;
#define STW_VICTIM_POLICY_INIT { sizeof(stw_victim_policy), sizeof(stw_victim), 0, 0 }

/**
 * Let the program decide what is evicted first from device and host tiers, from now on; NULL: the
 * library alone again. May be called at any time, and replaces the previous policy.
 *
 * `rank` gets a snapshot of all tensors that may live at a tier, and its scores count until the
 * next ones do: among equals in retention and priority the lower score is evicted first, and among
 * equal scores next use and recency decide. A tensor that it has not seen yet, and a score that is
 * NaN, count as 0. Scores choose among evictable blocks: those that are pinned, held or RETAIN_PIN
 * stay. `rank` is called when the policy is set, when a step begins and ends, and each time an
 * eighth of a tier's blocks (at least one) was evicted since; never so often that snapshots take
 * more than an eighth of the time. Nothing waits for `rank`: while it is slow, old scores count.
 * Calls and scored tensors are counted in stw_tier_stats and in the report.
 *
 * Ownership: policy is copied; `user` is the caller's, and not used after it was replaced or the
 *            runtime closed. The arrays are valid during the call.
 * Threads:   any thread; not from within `rank`. `rank` runs on one thread of the library, which
 *            takes no signals and holds no lock; it may call functions that say "Blocks: never".
 * Blocks:    until a running call of the previous policy has returned, or timeout_ns.
 * Errors:    INVALID, TIMEOUT (it has not returned: nothing changes), BUSY (called from within
 *            `rank`), BUDGET (metadata_bytes has no room for the snapshots), LIMIT (no thread),
 *            INTERRUPTED.
 */
STW_API stw_status stw_runtime_set_victim_policy(stw_runtime *runtime,
                                                 const stw_victim_policy *policy,
                                                 uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_VICTIM_H */
