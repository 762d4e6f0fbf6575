/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading ahead: twelve layers of 4 MiB, of which the host tier holds four. Each run computes on
 * the layers in order; in the second, the next layer is asked for while this one is computed on.
 * Shows: prefetch, phases and steps, and where a step's time went.
 * usage: prefetch_overlap [DIRECTORY]
 */
#include <stepwell/stepwell.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 12, ELEMENTS = 1 << 20 }; /* of 2^20 floats: 4 MiB each */

static void check(stw_status status)
{
    if (status >= STW_OK) return;
    fprintf(stderr, "prefetch_overlap: %s\n", stw_last_error());
    exit(1);
}

static stw_fetch_request want(stw_tensor *tensor)
{
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = tensor;
    request.tier = STW_TIER_HOST;
    request.access = STW_READ;
    return request;
}

/* Stands for a layer's arithmetic. */
static double compute(const float *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; ++i) sum += sqrt((double)values[i] + (double)(i & 7));
    return sum;
}

/* One step over all layers. Returns the sum, which does not depend on what was prefetched. */
static double run(stw_runtime *runtime, stw_phase *phase, stw_tensor **layers, int ahead)
{
    stw_step_stats stats = {0};
    double sum = 0;
    stats.struct_size = sizeof stats;
    check(stw_step_begin(phase));
    for (int layer = 0; layer < LAYERS; ++layer) {
        stw_fetch_request request = want(layers[layer]);
        stw_view view;
        check(stw_fetch(runtime, NULL, &request, 1, &view));
        if (ahead && layer + 1 < LAYERS) {
            stw_fetch_request next = want(layers[layer + 1]);
            check(stw_prefetch(runtime, &next, 1)); /* a hint: returns at once, never fails */
        }
        sum += compute(view.pointer, view.element_count);
        /* FAR: not needed again before all others, so let it leave first. */
        check(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_FAR));
    }
    check(stw_step_end(phase, &stats));
    printf("%-18s %6.1f ms, of which waiting %6.1f ms (nvme %.1f); %.1f MiB read\n",
           ahead ? "with prefetch" : "without", (double)stats.wall_ns / 1e6,
           (double)stats.stall_ns / 1e6, (double)stats.stall_nvme_ns / 1e6,
           (double)stats.nvme_read_bytes / 1048576);
    return sum;
}

int main(int count, char **words)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_tensor *layers[LAYERS];
    stw_runtime *runtime;
    stw_phase *plain;
    stw_phase *ahead;
    double first;
    double second;

    nvme.path = count > 1 ? words[1] : ".";
    nvme.budget_bytes = 96u << 20;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 20u << 20;
    options.block_bytes = STW_BLOCK_512K;
    check(stw_runtime_open(&options, &runtime));
    for (int layer = 0; layer < LAYERS; ++layer) {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.dtype = STW_F32;
        spec.dimensions = 1;
        spec.shape[0] = ELEMENTS;
        spec.role = STW_ROLE_PARAM;
        check(stw_tensor_create(runtime, &spec, 1, &layers[layer]));
        check(stw_tensor_fill(layers[layer], layer, NULL));
    }
    check(stw_runtime_drain(runtime, 0)); /* what was written is on nvme before the clock starts */

    /* A phase is a name for what repeats; each of its steps is measured on its own. */
    check(stw_phase_create(runtime, "without", &plain));
    check(stw_phase_create(runtime, "with", &ahead));
    first = run(runtime, plain, layers, 0);
    second = run(runtime, ahead, layers, 1);
    printf("the sums are %s\n", first == second ? "equal" : "different");

    check(stw_phase_destroy(plain));
    check(stw_phase_destroy(ahead));
    check(stw_tensor_destroy(layers, LAYERS));
    check(stw_runtime_close(runtime, 0, 0));
    return first == second ? 0 : 1;
}
