/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of MPI that commit as fast as they can, of which one is killed at any moment: the next job
 * finds on all of them the same generation, whole, none that was reported is lost, and goes on.
 * usage: killed MODULE DIRECTORY RANK_TO_KILL MICROSECONDS; a rank of -1: finds, and ends. */
#include <stepwell/stepwell.h>

#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 65536, SHARDED = 50000, OWN = 40 };

static int rank;

static void check(int holds, const char *text, int line)
{
    if (holds) return;
    fprintf(stderr, "rank %d, line %d: does not hold: %s\nthe library says: %s\n", rank, line, text,
            stw_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define HOLDS(condition) check((condition) != 0, #condition, __LINE__)

static float value_of(uint64_t step, uint64_t element)
{
    return (float)((step * 17 + element) % 65521);
}

static stw_runtime *open_on(stw_group *group, const char *directory)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    stw_nvme_options nvme = {.struct_size = sizeof nvme,
                             .path = directory,
                             .budget_bytes = 128 * BLOCK + (8u << 20),
                             .driver_options = "allow_tmpfs=1"};
    options.flags = STW_RUNTIME_NO_PROBE | STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE;
    options.group = group;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 64 * BLOCK;
    options.block_bytes = STW_BLOCK_64K;
    options.thread_count = 1;
    options.store_name = "ranks";
    HOLDS(stw_runtime_open(&options, &runtime) == STW_OK);
    return runtime;
}

static stw_tensor *durable(stw_runtime *runtime, const char *name, uint64_t elements,
                           uint32_t partition)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor = NULL;
    spec.flags = STW_TENSOR_DURABLE;
    spec.name = name;
    spec.dtype = STW_F32;
    spec.partition = partition;
    spec.dimensions = 1;
    spec.shape[0] = elements;
    HOLDS(stw_tensor_create(runtime, &spec, 1, &tensor) == STW_OK);
    return tensor;
}

/* This rank's elements: written with the values of the step, or compared with them. */
static void shard(stw_runtime *runtime, stw_tensor *tensor, uint64_t step, uint32_t access)
{
    stw_view view;
    stw_fetch_request request = {
        .struct_size = sizeof request, .tensor = tensor, .access = access, .scope = STW_SHARD};
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_OK);
    for (uint64_t i = 0; i < view.element_count; ++i) {
        const float value = value_of(step, view.element_begin + i);
        if (access == STW_WRITE) ((float *)view.pointer)[i] = value;
        if (access == STW_READ) HOLDS(((const float *)view.pointer)[i] == value);
    }
    HOLDS(stw_release(&view, 1, STW_STREAM_HOST, 0) == STW_OK);
}

static void *end_it(void *microseconds)
{
    const long wait_us = (long)(intptr_t)microseconds;
    const struct timespec wait = {wait_us / 1000000, wait_us % 1000000 * 1000};
    nanosleep(&wait, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* What this rank has reported, in a file that outlives it. */
static int open_report(const char *directory, uint64_t *reported_out)
{
    char path[512];
    snprintf(path, sizeof path, "%s/reported.%d", directory, rank);
    const int file = open(path, O_RDWR | O_CREAT, 0600);
    HOLDS(file >= 0);
    if (pread(file, reported_out, sizeof *reported_out, 0) != sizeof *reported_out)
        *reported_out = 0;
    return file;
}

static uint64_t find(stw_runtime *runtime, stw_tensor *sharded, stw_tensor *own, uint64_t reported)
{
    stw_generation_info info;
    uint64_t step = 0, bytes = 0, least = 0, most = 0;
    info.struct_size = sizeof info;
    const stw_status found = stw_generation_get(runtime, 0, &info);
    HOLDS(found == STW_OK || found == STW_ERROR_NOT_FOUND);
    if (found == STW_OK) {
        HOLDS(stw_generation_metadata(runtime, 0, &step, sizeof step, &bytes) == STW_OK);
        HOLDS(bytes == sizeof step && step == info.generation);
        shard(runtime, sharded, step, STW_READ);
        shard(runtime, own, step, STW_READ);
    }
    MPI_Allreduce(&step, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&step, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    HOLDS(least == most);
    HOLDS(step >= reported);
    if (rank == 0) printf("# all ranks find generation %llu\n", (unsigned long long)step);
    fflush(stdout);
    return step;
}

int main(int argc, char **argv)
{
    int level = 0;
    uint64_t reported = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    HOLDS(argc == 5);
    const int victim = atoi(argv[3]);
    const int report = open_report(argv[2], &reported);
    stw_group *group = NULL;
    stw_group_options options = {
        .struct_size = sizeof options, .driver = STW_GROUP_MPI, .module = argv[1]};
    HOLDS(stw_group_create(&options, &group) == STW_OK);
    stw_runtime *runtime = open_on(group, argv[2]);
    stw_tensor *sharded = durable(runtime, "sharded", SHARDED, STW_PARTITION_SHARDED);
    stw_tensor *own = durable(runtime, "own", OWN, STW_PARTITION_LOCAL);
    uint64_t step = find(runtime, sharded, own, reported);
    pthread_t thread;
    if (victim == rank)
        HOLDS(pthread_create(&thread, NULL, end_it, (void *)(intptr_t)atol(argv[4])) == 0);
    while (victim >= 0) {
        uint64_t generation = 0;
        ++step;
        shard(runtime, sharded, step, STW_WRITE);
        shard(runtime, own, step, STW_WRITE);
        stw_commit_options commit = {
            .struct_size = sizeof commit, .metadata = &step, .metadata_bytes = sizeof step};
        HOLDS(stw_commit(runtime, &commit, &generation) == STW_OK && generation == step);
        HOLDS(pwrite(report, &generation, sizeof generation, 0) == sizeof generation);
    }
    HOLDS(stw_runtime_close(runtime, 0, 0) == STW_OK);
    HOLDS(stw_group_destroy(group) == STW_OK);
    MPI_Finalize();
    if (rank == 0) printf("# all ranks came to the end\n");
    return step > 0 ? 0 : 1;
}
