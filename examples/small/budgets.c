/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Budgets changed while the program runs: a trainer lends its memory to somebody else for a while,
 * say to an evaluation that runs between two epochs, and takes it back. Nothing is lost meanwhile.
 * Shows: stw_tier_set_budget down, to nothing, and up again; what is refused, and why.
 * usage: budgets [DIRECTORY]
 */
#include <stepwell/stepwell.h>

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 8, ELEMENTS = 1 << 20 }; /* of 2^20 floats: 4 MiB each */

#define MIB (UINT64_C(1) << 20)

static void check(stw_status status)
{
    if (status >= STW_OK) return;
    fprintf(stderr, "budgets: %s\n", stw_last_error());
    exit(1);
}

static void show(stw_runtime *runtime, const char *when)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    check(stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &stats));
    printf("%-22s budget %2llu MiB, used %2llu MiB\n", when,
           (unsigned long long)(stats.budget_bytes / MIB),
           (unsigned long long)(stats.used_bytes / MIB));
}

/* Reads every layer once; the sum tells whether all bytes are still what they were. */
static double visit(stw_runtime *runtime, stw_tensor **layers)
{
    double sum = 0;
    for (int layer = 0; layer < LAYERS; ++layer) {
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        stw_view view;
        request.tensor = layers[layer];
        request.tier = STW_TIER_HOST;
        check(stw_fetch(runtime, NULL, &request, 1, &view));
        for (uint64_t i = 0; i < view.element_count; ++i) sum += ((float *)view.pointer)[i];
        check(stw_release(&view, 1, STW_STREAM_HOST, 0));
    }
    return sum;
}

int main(int count, char **words)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_tensor *layers[LAYERS];
    stw_runtime *runtime;
    stw_view view;
    double before;
    double after;

    nvme.path = count > 1 ? words[1] : ".";
    nvme.budget_bytes = 64 * MIB;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 40 * MIB; /* the most that the tier can ever have */
    options.block_bytes = STW_BLOCK_512K;
    check(stw_runtime_open(&options, &runtime));
    for (int layer = 0; layer < LAYERS; ++layer) {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.dtype = STW_F32;
        spec.dimensions = 1;
        spec.shape[0] = ELEMENTS;
        spec.role = STW_ROLE_PARAM;
        check(stw_tensor_create(runtime, &spec, 1, &layers[layer]));
        check(stw_tensor_fill(layers[layer], layer + 1, NULL));
    }
    before = visit(runtime, layers);
    show(runtime, "at the start");

    /* Half of it: what is too much goes to the disk first, and when the call returns the memory is
     * the system's. The program goes on as before, with more reads. */
    check(stw_tier_set_budget(runtime, STW_TIER_HOST, 0, 16 * MIB, 0));
    after = visit(runtime, layers);
    show(runtime, "with less");

    /* Everything out. A fetch has nowhere to go now, and says so. */
    check(stw_tier_set_budget(runtime, STW_TIER_HOST, 0, 0, 0));
    show(runtime, "asleep");
    request.tensor = layers[0];
    request.tier = STW_TIER_HOST;
    if (stw_fetch(runtime, NULL, &request, 1, &view) != STW_ERROR_BUDGET) return 1;
    printf("a fetch says: %s\n", stw_last_error());

    check(stw_tier_set_budget(runtime, STW_TIER_HOST, 0, 40 * MIB, 0));
    after = after == before ? visit(runtime, layers) : 0;
    show(runtime, "awake");

    /* An open view pins its bytes: the tier cannot become smaller than that, and stays as it is. */
    check(stw_fetch(runtime, NULL, &request, 1, &view));
    if (stw_tier_set_budget(runtime, STW_TIER_HOST, 0, 0, 0) != STW_ERROR_BUDGET) return 1;
    printf("with a view open: %s\n", stw_last_error());
    check(stw_release(&view, 1, STW_STREAM_HOST, 0));

    printf("the sums are %s\n", before == after ? "equal" : "different");
    check(stw_tensor_destroy(layers, LAYERS));
    check(stw_runtime_close(runtime, 0, 0));
    return before == after ? 0 : 1;
}
