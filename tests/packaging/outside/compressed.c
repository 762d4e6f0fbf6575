/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program outside of the tree trains through a tier of somebody's driver: the parameters are
 * those of a run in memory, bit by bit, and the tier took less memory than it kept bytes.
 * usage: compressed DRIVER
 */
#include <stepwell/stepwell.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 8, ELEMENTS = 1 << 18, STEPS = 3, HOST_BYTES = 6 << 20 };

static unsigned long long kept, taken; /* as the driver tells at close */

static void check(stw_status status)
{
    if (status >= STW_OK) return;
    fprintf(stderr, "compressed: %s\n", stw_last_error());
    exit(1);
}

static void read_accounts(void *user, uint32_t level, const char *topic, const char *line)
{
    (void)user, (void)level;
    if (!strcmp(topic, "zstd")) sscanf(line, "%llu bytes were kept in %llu", &kept, &taken);
}

/* driver: NULL trains in memory alone. */
static stw_runtime *open_runtime(const char *driver)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    nvme.path = "compressed memory", nvme.driver = driver, nvme.budget_bytes = 64u << 20;
    options.host_bytes = driver ? HOST_BYTES : 16 * HOST_BYTES;
    options.block_bytes = STW_BLOCK_64K;
    options.nvme = &nvme, options.nvme_count = driver ? 1 : 0;
    options.log = read_accounts, options.log_level = STW_LOG_INFO;
    check(stw_runtime_open(&options, &runtime));
    return runtime;
}

static void make_tensors(stw_runtime *runtime, uint32_t role, stw_tensor **tensors)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    int i;
    spec.dtype = STW_F32, spec.dimensions = 1, spec.shape[0] = ELEMENTS, spec.role = role;
    for (i = 0; i < TENSORS; ++i) check(stw_tensor_create(runtime, &spec, 1, &tensors[i]));
}

/* Rows that repeat, as those of an embedding that is hardly trained. */
static void set_values(stw_tensor *tensor, float scale)
{
    static float values[ELEMENTS];
    int i;
    for (i = 0; i < ELEMENTS; ++i) values[i] = scale * (float)(i % 64);
    check(stw_tensor_write(tensor, values, NULL));
}

static void train(const char *driver, float *result)
{
    stw_runtime *runtime = open_runtime(driver);
    stw_tensor *weights[TENSORS], *gradients[TENSORS];
    stw_optimizer_options adam = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer = NULL;
    int step, i;
    make_tensors(runtime, STW_ROLE_PARAM, weights);
    make_tensors(runtime, STW_ROLE_GRAD, gradients);
    adam.algorithm = STW_OPTIMIZER_ADAMW;
    check(stw_optimizer_create(runtime, &adam, &optimizer));
    check(stw_optimizer_set_hyper(optimizer, 0, &(stw_hyper)STW_HYPER_INIT));
    for (i = 0; i < TENSORS; ++i) {
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter = weights[i], entry.gradient = gradients[i];
        set_values(weights[i], 0.01f * (float)(i + 1));
        check(stw_optimizer_add(optimizer, &entry, 1));
    }
    for (step = 0; step < STEPS; ++step) {
        for (i = 0; i < TENSORS; ++i) set_values(gradients[i], 0.5f - (float)step);
        check(stw_optimizer_step(optimizer, NULL, NULL));
    }
    for (i = 0; i < TENSORS; ++i)
        check(stw_tensor_read(weights[i], result + (size_t)i * ELEMENTS, NULL));
    check(stw_runtime_drain(runtime, 0)); /* the last step may have other tensors to go */
    check(stw_optimizer_destroy(optimizer));
    check(stw_tensor_destroy(weights, TENSORS));
    check(stw_tensor_destroy(gradients, TENSORS));
    check(stw_runtime_close(runtime, 0, 0));
}

int main(int count, char **words)
{
    const size_t bytes = sizeof(float) * TENSORS * ELEMENTS;
    float *expected = malloc(bytes);
    float *found = malloc(bytes);
    if (count != 2 || !expected || !found) return 1;
    train(NULL, expected);
    train(words[1], found);
    if (memcmp(expected, found, bytes)) {
        fprintf(stderr, "compressed: other parameters than in memory\n");
        return 1;
    }
    printf("%llu bytes in %llu\n", kept, taken);
    free(expected), free(found);
    return kept > HOST_BYTES && taken > 0 && taken < kept / 2 ? 0 : 1;
}
