/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first program: a tensor of 16 MiB, used piece by piece through a host tier of 8 MiB; what
 * does not fit rests in a file on nvme. Shows: open, create, fetch, release, and who holds the
 * bytes. usage: fetch_release [DIRECTORY]
 */
#include <stepwell/stepwell.h>

#include <stdio.h>
#include <stdlib.h>

enum { PIECES = 16, PIECE = 1 << 18 }; /* of 2^18 floats: 1 MiB each */

/* Every call returns a status: below 0 it failed, and stw_last_error() has the whole sentence. */
static void check(stw_status status)
{
    if (status >= STW_OK) return;
    fprintf(stderr, "fetch_release: %s\n", stw_last_error());
    exit(1);
}

static void print_tier(stw_runtime *runtime, const char *name, uint32_t tier)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    check(stw_tier_stats_get(runtime, tier, 0, &stats));
    printf("  %-5s %6.1f of %6.1f MiB used, at most %.1f MiB\n", name,
           (double)stats.used_bytes / 1048576, (double)stats.budget_bytes / 1048576,
           (double)stats.peak_bytes / 1048576);
}

int main(int count, char **words)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_runtime *runtime;
    stw_tensor *tensor;
    stw_view view;
    double sum = 0;

    /* Budgets are hard. The file is made in the directory, without a name, and goes with us. */
    nvme.path = count > 1 ? words[1] : ".";
    nvme.budget_bytes = 64u << 20;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 8u << 20;
    options.block_bytes = STW_BLOCK_512K;
    check(stw_runtime_open(&options, &runtime));

    /* A tensor is a handle; it takes room only when something is written. */
    spec.name = "numbers";
    spec.dtype = STW_F32;
    spec.dimensions = 2;
    spec.shape[0] = PIECES;
    spec.shape[1] = PIECE;
    check(stw_tensor_create(runtime, &spec, 1, &tensor));

    /* Write it, one piece after the other. A view is a pointer that stays good until release. */
    request.tensor = tensor;
    request.tier = STW_TIER_HOST;
    request.access = STW_WRITE;
    request.element_count = PIECE;
    for (uint64_t piece = 0; piece < PIECES; ++piece) {
        request.element_begin = piece * PIECE;
        check(stw_fetch(runtime, NULL, &request, 1, &view));
        for (uint64_t i = 0; i < view.element_count; ++i) ((float *)view.pointer)[i] = (float)piece;
        check(stw_release(&view, 1, STW_STREAM_HOST, 0));
    }
    printf("16 MiB written, of which the host tier holds what fits:\n");
    print_tier(runtime, "host", STW_TIER_HOST);
    print_tier(runtime, "nvme", STW_TIER_NVME);

    /* Read it back: pieces that left come from nvme, their checksums verified on the way. */
    request.access = STW_READ;
    for (uint64_t piece = 0; piece < PIECES; ++piece) {
        request.element_begin = piece * PIECE;
        check(stw_fetch(runtime, NULL, &request, 1, &view));
        for (uint64_t i = 0; i < view.element_count; ++i) sum += ((const float *)view.pointer)[i];
        check(stw_release(&view, 1, STW_STREAM_HOST, 0));
    }
    printf("sum of all elements: %.0f, expected %.0f\n", sum,
           (double)PIECE * PIECES * (PIECES - 1) / 2);

    /* What cannot fit is refused, with the arithmetic. */
    request.element_begin = 0;
    request.element_count = (uint64_t)PIECES * PIECE;
    if (stw_fetch(runtime, NULL, &request, 1, &view) != STW_ERROR_BUDGET) return 1;
    printf("all of it at once: %s\n", stw_last_error());

    check(stw_tensor_destroy(&tensor, 1));
    check(stw_runtime_close(runtime, 0, 0));
    return sum == (double)PIECE * PIECES * (PIECES - 1) / 2 ? 0 : 1;
}
