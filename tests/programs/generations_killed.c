/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL at any moment, of a program that commits as fast as it can: the next one finds the newest
 * generation that was reported, or the one that was under way, whole, and goes on with it.
 */
#include "program.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { LARGE = 20 * BLOCK / 4 + 3, SMALL = 50, ROUNDS = 24 };

static const char *const kDirectory = "killed-directory";

struct steps {
    stw_runtime *runtime;
    stw_tensor *large;
    stw_tensor *small;
    uint64_t step;
};

static float value_of(uint64_t step, uint64_t element)
{
    return (float)((step * 31 + element) % 65521);
}

static stw_tensor *durable(stw_runtime *runtime, const char *name, uint64_t elements)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor = NULL;
    spec.flags = STW_TENSOR_DURABLE;
    spec.name = name;
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = elements;
    CHECK(stw_tensor_create(runtime, &spec, 1, &tensor) == STW_OK);
    return tensor;
}

static void write_values(stw_tensor *tensor, uint64_t elements, uint64_t step)
{
    static float values[LARGE];
    for (uint64_t i = 0; i < elements; ++i) values[i] = value_of(step, i);
    CHECK(stw_tensor_write(tensor, values, NULL) == STW_OK);
}

static void expect_values(stw_tensor *tensor, uint64_t elements, uint64_t step)
{
    static float values[LARGE];
    CHECK(stw_tensor_read(tensor, values, NULL) == STW_OK);
    for (uint64_t i = 0; i < elements; ++i) CHECK(values[i] == value_of(step, i));
}

static void open_steps(struct steps *steps, uint64_t reported)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_generation_info info;
    uint64_t bytes = 0;
    stw_nvme_options nvme = {.struct_size = sizeof nvme,
                             .path = kDirectory,
                             .budget_bytes = 128 * BLOCK + (8u << 20),
                             .driver_options = "allow_tmpfs=1"};
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 16 * BLOCK;
    options.block_bytes = STW_BLOCK_64K;
    options.store_name = "steps";
    options.flags = STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE | STW_RUNTIME_NO_PROBE;
    CHECK(stw_runtime_open(&options, &steps->runtime) == STW_OK);
    steps->large = durable(steps->runtime, "large", LARGE);
    steps->small = durable(steps->runtime, "small", SMALL);
    info.struct_size = sizeof info;
    steps->step = 0;
    stw_status found = stw_generation_get(steps->runtime, 0, &info);
    CHECK(found == STW_OK || (found == STW_ERROR_NOT_FOUND && reported == 0));
    if (found != STW_OK) return;
    if (info.generation != reported && info.generation != reported + 1) {
        fprintf(stderr, "found generation %llu; %llu was reported\n",
                (unsigned long long)info.generation, (unsigned long long)reported);
        exit(1);
    }
    CHECK(stw_generation_metadata(steps->runtime, 0, &steps->step, sizeof steps->step, &bytes) ==
          STW_OK);
    CHECK(bytes == sizeof steps->step && steps->step == info.generation);
    expect_values(steps->large, LARGE, steps->step);
    expect_values(steps->small, SMALL, steps->step);
}

/* Ends the process, so long from now. */
static void *end_it(void *microseconds)
{
    const long wait_us = (long)(intptr_t)microseconds;
    const struct timespec wait = {wait_us / 1000000, wait_us % 1000000 * 1000};
    nanosleep(&wait, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Reports each committed generation to the parent, and first the one that was found at open: its
 * process may have been killed between the commit and its report. */
static void commit_for_ever(int told, uint64_t reported, long wait_us)
{
    struct steps steps;
    pthread_t thread;
    open_steps(&steps, reported);
    if (steps.step > 0) CHECK(write(told, &steps.step, sizeof steps.step) == sizeof steps.step);
    CHECK(pthread_create(&thread, NULL, end_it, (void *)(intptr_t)wait_us) == 0);
    for (;;) {
        uint64_t generation = 0;
        ++steps.step;
        write_values(steps.large, LARGE, steps.step);
        write_values(steps.small, SMALL, steps.step);
        stw_commit_options options = {.struct_size = sizeof options,
                                      .metadata = &steps.step,
                                      .metadata_bytes = sizeof steps.step};
        CHECK(stw_commit(steps.runtime, &options, &generation) == STW_OK);
        CHECK(generation == steps.step);
        CHECK(write(told, &generation, sizeof generation) == sizeof generation);
    }
}

static void remove_directory(void)
{
    char path[512];
    struct dirent *entry;
    DIR *entries = opendir(kDirectory);
    while (entries && (entry = readdir(entries))) {
        snprintf(path, sizeof path, "%s/%s", kDirectory, entry->d_name);
        if (entry->d_name[0] != '.') CHECK(unlink(path) == 0);
    }
    if (entries) closedir(entries);
    CHECK(rmdir(kDirectory) == 0 || errno == ENOENT);
}

int main(void)
{
    struct steps steps;
    uint64_t reported = 0;
    remove_directory();
    CHECK(mkdir(kDirectory, 0700) == 0);
    for (int round = 0; round < ROUNDS; ++round) {
        int pipes[2], status;
        uint64_t generation = 0;
        CHECK(pipe(pipes) == 0);
        pid_t pid = fork();
        /* From the very beginning to some commits later. */
        if (pid == 0) commit_for_ever(pipes[1], reported, 1000 + (long)round * round * 500);
        close(pipes[1]);
        while (read(pipes[0], &generation, sizeof generation) == sizeof generation)
            reported = generation;
        close(pipes[0]);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        CHECK(WTERMSIG(status) == SIGKILL);
        printf("round %d: %llu reported\n", round, (unsigned long long)reported);
    }
    CHECK(reported > 3);
    open_steps(&steps, reported);
    CHECK(stw_runtime_close(steps.runtime, 0, 0) == STW_OK);
    remove_directory();
    return 0;
}
