/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several directories: blocks are striped over all that are named, each with a budget of its own,
 * so that drives work side by side. Name one per drive; without arguments two are made in the
 * current directory, on one drive, which shows the way and not the speed. Shows: arrays of options,
 * budgets that add up, measured bandwidth, a refusal that names the path.
 * usage: directories [DIRECTORY...]
 */
#include <stepwell/stepwell.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIRECTORIES_MAX = 8, ELEMENTS = 1 << 23 }; /* of 2^23 floats: 32 MiB */

static const char *const made[2] = {"stepwell-one", "stepwell-two"};

static void check(stw_status status)
{
    if (status >= STW_OK) return;
    fprintf(stderr, "directories: %s\n", stw_last_error());
    exit(1);
}

/* Elements of the array begin with their size; STW_NVME_OPTIONS_INIT sets it. */
static stw_status open_over(const char *const *directories, uint32_t count,
                            stw_runtime **runtime_out)
{
    const stw_nvme_options initial = STW_NVME_OPTIONS_INIT;
    stw_nvme_options nvme[DIRECTORIES_MAX];
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    for (uint32_t i = 0; i < count; ++i) {
        nvme[i] = initial;
        nvme[i].path = directories[i];
        nvme[i].budget_bytes = 48u << 20; /* each may have another one */
    }
    options.nvme = nvme;
    options.nvme_count = count;
    options.host_bytes = 8u << 20;
    options.block_bytes = STW_BLOCK_512K;
    return stw_runtime_open(&options, runtime_out);
}

static void print_link(stw_runtime *runtime, const char *name, uint32_t link)
{
    stw_link_stats stats = STW_LINK_STATS_INIT;
    check(stw_link_stats_get(runtime, link, 0, &stats));
    printf("  %-7s %6.1f MiB in %llu transfers, %.0f MB/s over all drives\n", name,
           (double)stats.bytes / 1048576, (unsigned long long)stats.transfers,
           (double)stats.measured_bytes_per_s / 1e6);
}

static int round_trip(const char *const *directories, uint32_t count)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_copy_options range = STW_COPY_OPTIONS_INIT;
    stw_runtime *runtime;
    stw_tensor *tensor;
    static float values[ELEMENTS / 8];
    uint64_t wrong = 0;

    check(open_over(directories, count, &runtime));
    check(stw_tier_stats_get(runtime, STW_TIER_NVME, 0, &stats));
    printf("%u directories, %.1f MiB together\n", count, (double)stats.budget_bytes / 1048576);
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = ELEMENTS;
    check(stw_tensor_create(runtime, &spec, 1, &tensor));
    check(stw_tensor_fill(tensor, 5, NULL));
    check(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0)); /* all of it to the drives */
    range.element_count = ELEMENTS / 8;
    for (int part = 0; part < 8; ++part) {
        range.element_begin = (uint64_t)part * (ELEMENTS / 8);
        check(stw_tensor_read(tensor, values, &range));
        for (int i = 0; i < ELEMENTS / 8; ++i) wrong += values[i] != 5;
    }
    print_link(runtime, "written", STW_LINK_HOST_TO_NVME);
    print_link(runtime, "read", STW_LINK_NVME_TO_HOST);
    printf("%llu elements are wrong\n", (unsigned long long)wrong);
    check(stw_runtime_close(runtime, 0, 0));
    return wrong == 0;
}

int main(int count, char **words)
{
    const char *broken[2] = {".", "no/such/directory"};
    const char *const *directories = made;
    stw_runtime *runtime;
    int good;

    if (count > 1 + DIRECTORIES_MAX) return 1;
    if (count > 1) directories = (const char *const *)(words + 1);
    for (int i = 0; count == 1 && i < 2; ++i) (void)mkdir(made[i], 0700);
    good = round_trip(directories, count > 1 ? (uint32_t)(count - 1) : 2);
    for (int i = 0; count == 1 && i < 2; ++i) (void)rmdir(made[i]); /* nothing is left in them */

    /* All of them, or none: nothing is half open, and the sentence names the one. */
    if (open_over(broken, 2, &runtime) != STW_ERROR_NOT_FOUND) return 1;
    printf("refused: %s\n", stw_last_error());
    return good ? 0 : 1;
}
