/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy of one's own: twelve tensors are read in turn through a device that holds eight. By
 * recency each one has left when its turn comes again, so every read is one of the disk. This
 * program knows its own order and says: of half of them let the device keep what it has. usage:
 * own_policy [DIRECTORY]
 */
#include <stepwell/stepwell.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { TENSORS = 12, KEPT = 6, FLOATS = 1 << 17, ROUNDS = 10 }; /* of 2^17 floats: one block */

static void check(stw_status status)
{
    if (status >= STW_OK) return;
    fprintf(stderr, "own_policy: %s\n", stw_last_error());
    exit(1);
}

/*
 * Called on a thread of the library, which does not wait for it: while this runs, the last
 * scores count. Lower is evicted first; 0, the initial value, keeps the default order.
 */
static void keep_parameters(void *user, uint32_t tier, uint32_t device, const stw_victim *victims,
                            uint32_t n, double *scores_out)
{
    (void)user, (void)tier, (void)device;
    for (uint32_t i = 0; i < n; ++i) {
        if (victims[i].role == STW_ROLE_PARAM) scores_out[i] = 1;
    }
}

/* Reads all tensors in turn; returns how much of that came from the disk. */
static uint64_t read_in_turn(stw_runtime *runtime, stw_tensor *const *tensors, int rounds)
{
    stw_link_stats before = STW_LINK_STATS_INIT;
    stw_link_stats after = STW_LINK_STATS_INIT;
    check(stw_link_stats_get(runtime, STW_LINK_NVME_TO_DEVICE, 0, &before));
    for (int i = 0; i < rounds * TENSORS; ++i) {
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        stw_view view;
        request.tensor = tensors[i % TENSORS];
        request.access = STW_READ;
        check(stw_fetch(runtime, NULL, &request, 1, &view));
        if (((const float *)view.pointer)[FLOATS - 1] != (float)(i % TENSORS)) exit(1);
        check(stw_release(&view, 1, STW_STREAM_HOST, 0));
    }
    check(stw_link_stats_get(runtime, STW_LINK_NVME_TO_DEVICE, 0, &after));
    return after.bytes - before.bytes;
}

int main(int count, char **words)
{
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_victim_policy policy = STW_VICTIM_POLICY_INIT;
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    stw_runtime *runtime;
    stw_tensor *tensors[TENSORS];
    uint64_t by_recency, by_policy;

    device.budget_bytes = 4u << 20; /* eight blocks */
    nvme.path = count > 1 ? words[1] : ".";
    nvme.budget_bytes = 32u << 20;
    options.devices = &device, options.device_count = 1;
    options.nvme = &nvme, options.nvme_count = 1;
    options.block_bytes = STW_BLOCK_512K;
    check(stw_runtime_open(&options, &runtime));
    for (int i = 0; i < TENSORS; ++i) {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.role = i < KEPT ? STW_ROLE_PARAM : STW_ROLE_OTHER;
        spec.dtype = STW_F32;
        spec.dimensions = 1;
        spec.shape[0] = FLOATS;
        check(stw_tensor_create(runtime, &spec, 1, &tensors[i]));
        check(stw_tensor_fill(tensors[i], i, NULL));
    }
    (void)read_in_turn(runtime, tensors, 1);
    by_recency = read_in_turn(runtime, tensors, ROUNDS);

    /* It may be set, replaced and removed (NULL) at any time. */
    policy.rank = keep_parameters;
    check(stw_runtime_set_victim_policy(runtime, &policy, 0));
    /* Nobody has to wait for its first scores. This program compares figures, so it does. */
    while (stats.policy_calls == 0) {
        sched_yield();
        check(stw_tier_stats_get(runtime, STW_TIER_DEVICE, 0, &stats));
    }
    (void)read_in_turn(runtime, tensors, 1);
    by_policy = read_in_turn(runtime, tensors, ROUNDS);

    printf("%d rounds over %d tensors of 0.5 MiB, of which the device holds 8\n", ROUNDS, TENSORS);
    printf("  by recency    %5.1f MiB read from the disk\n", (double)by_recency / 1048576);
    printf("  by own policy %5.1f MiB\n", (double)by_policy / 1048576);
    check(stw_runtime_close(runtime, 0, 0));
    return by_policy < by_recency ? 0 : 1;
}
