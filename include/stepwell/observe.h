/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/observe.h: statistics, report and timeline.
 */
#ifndef STEPWELL_OBSERVE_H
#define STEPWELL_OBSERVE_H

#include <stepwell/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stw_tier_stats {
    uint32_t struct_size;
    uint32_t open_views;
    uint64_t budget_bytes;
    uint64_t used_bytes;
    uint64_t peak_bytes;
    uint64_t pinned_bytes;   /* by views */
    uint64_t dirty_bytes;
    uint64_t staging_bytes;
    uint64_t metadata_bytes; /* host tier: the library's own tables, not part of used_bytes */
    uint64_t tensors;
    uint64_t exports;        /* views that live in DLPack capsules */
    uint64_t evictions;
    uint64_t metadata_budget_bytes; /* host tier: their limit */
    uint64_t policy_calls;       /* calls of a victim policy's rank whose scores were used */
    uint64_t policy_scores;      /* scored tensors in all these calls */
    uint64_t scratch_bytes;      /* host tier: part of used_bytes, reserved for stw_host_alloc */
    uint64_t scratch_used_bytes; /* of these, allocated */
    uint64_t planned_bytes;        /* prefetched here by a plan, in blocks */
    uint64_t planned_used_bytes;   /* of these, fetched since */
    uint64_t planned_wasted_bytes; /* of these, evicted before a fetch */
    uint64_t registered_bytes;  /* host tier: registered with devices that have streams, so that
                                   copies run at full speed; once with each of their drivers */
    uint64_t registering_bytes; /* host tier: pending registration, by a separate thread */
    uint64_t registered_ns;     /* host tier: total time of registering so far */
    uint64_t refused_slabs;     /* host tier: slabs of 64 MiB, all or part of which was refused */
    uint64_t remapped_bytes;    /* device tier: mapped at fixed addresses of tensors so far */
    uint64_t remapped_ns;       /* its time, with waits for work on the blocks mapped there
                                   before */
    uint64_t adopted_bytes;     /* host tier: not part of used_bytes; memory of the program that
                                   stw_reduce_adopt has taken and not freed yet */
} stw_tier_stats;
#define STW_TIER_STATS_INIT                                                                        \
    { sizeof(stw_tier_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,             \
      0, 0, 0, 0, 0, 0, 0 }

/* Moves between two devices of a process are on none of these links. */
enum { /* link */
    STW_LINK_NVME_TO_HOST = 1, STW_LINK_HOST_TO_NVME = 2, STW_LINK_HOST_TO_DEVICE = 3,
    STW_LINK_DEVICE_TO_HOST = 4, STW_LINK_NVME_TO_DEVICE = 5, STW_LINK_DEVICE_TO_NVME = 6,
    STW_LINK_RANKS = 7
};
typedef struct stw_link_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t bytes;
    uint64_t transfers;
    uint64_t busy_ns;
    uint64_t measured_bytes_per_s; /* used by plans */
    uint64_t errors;
    uint64_t retries;
} stw_link_stats;
#define STW_LINK_STATS_INIT { sizeof(stw_link_stats), 0, 0, 0, 0, 0, 0, 0 }

/* Totals since open. Any thread. Blocks: never. */
STW_API stw_status stw_tier_stats_get(stw_runtime *runtime, uint32_t tier, uint32_t device,
                                      stw_tier_stats *stats_out);
STW_API stw_status stw_link_stats_get(stw_runtime *runtime, uint32_t link, uint32_t device,
                                      stw_link_stats *stats_out);
/* JSON report; Chrome trace JSON. Written to a temporary name, then renamed. Blocks: for the
 * file. */
STW_API stw_status stw_report_write(stw_runtime *runtime, const char *path);
STW_API stw_status stw_timeline_write(stw_runtime *runtime, const char *path);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_OBSERVE_H */
