/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hundred runtimes, one after the other, each of which moves bytes through all tiers: the
 * number of descriptors and threads is constant, and resident memory does not grow.
 */
#include "program.h"

#include <dirent.h>

static int entries_in(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;
    CHECK(directory);
    while (readdir(directory)) ++count;
    closedir(directory);
    return count;
}

static long resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;
    CHECK(file && fscanf(file, "%ld %ld", &total, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void one_life(void)
{
    static float values[5 * BLOCK / 4];
    stw_runtime *runtime = open_small(".", NULL);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_optimizer *optimizer = NULL;
    stw_phase *phase = NULL;
    int i;
    CHECK(stw_phase_create(runtime, "p", &phase) == STW_OK);
    CHECK(stw_step_begin(phase) == STW_OK);
    for (i = 0; i < 8; ++i) {
        stw_tensor *tensor = make_tensor(runtime, NULL, 5 * BLOCK / 4);
        CHECK(stw_tensor_write(tensor, values, NULL) == STW_OK);
        CHECK(stw_tensor_read(tensor, values, NULL) == STW_OK);
    }
    options.algorithm = STW_OPTIMIZER_ADAM;
    CHECK(stw_optimizer_create(runtime, &options, &optimizer) == STW_OK);
    entry.parameter = make_tensor(runtime, "w", 2 * BLOCK / 4);
    entry.gradient = make_tensor(runtime, "g", 2 * BLOCK / 4);
    CHECK(stw_tensor_fill(entry.parameter, 1, NULL) == STW_OK);
    CHECK(stw_tensor_fill(entry.gradient, 1, NULL) == STW_OK);
    CHECK(stw_optimizer_add(optimizer, &entry, 1) == STW_OK);
    CHECK(stw_optimizer_step(optimizer, NULL, NULL) == STW_OK);
    CHECK(stw_step_end(phase, NULL) == STW_OK);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

int main(void)
{
    int descriptors, threads, i;
    long resident;
    /* Pools that live as long as the process fill in the first rounds. */
    for (i = 0; i < 100; ++i) one_life();
    descriptors = entries_in("/proc/self/fd"), threads = entries_in("/proc/self/task");
    resident = resident_kib();
    for (i = 0; i < 200; ++i) one_life();
    printf("descriptors %d, then %d; threads %d, then %d; resident %ld KiB, then %ld\n",
           descriptors, entries_in("/proc/self/fd"), threads, entries_in("/proc/self/task"),
           resident, resident_kib());
    CHECK(entries_in("/proc/self/fd") == descriptors);
    CHECK(entries_in("/proc/self/task") == threads);
    CHECK(threads == 3); /* this one, "." and ".." */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(resident_kib() - resident < 1024); /* 5 KiB of each life would show */
#endif
    return 0;
}
