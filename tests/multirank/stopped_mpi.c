/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that stands still, or is gone: the others are told in time, who it is and what it does.
 * usage, on 3 ranks of MPI: stopped MODULE stop|kill */
#include <stepwell/stepwell.h>

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 65536, ELEMENTS = 60000, VICTIM = 1 };

static int rank;

static void check(int holds, const char *text, int line)
{
    if (holds) return;
    fprintf(stderr, "rank %d, line %d: does not hold: %s\nthe library says: %s\n", rank, line, text,
            stw_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define HOLDS(condition) check((condition) != 0, #condition, __LINE__)

static stw_runtime *open_on(stw_group *group)
{
    stw_runtime *runtime = NULL;
    stw_runtime_options options = {.struct_size = sizeof options,
                                   .flags = STW_RUNTIME_NO_PROBE,
                                   .group = group,
                                   .host_bytes = 64 * BLOCK,
                                   .block_bytes = STW_BLOCK_64K};
    HOLDS(stw_runtime_open(&options, &runtime) == STW_OK);
    return runtime;
}

static stw_status fetch_whole(stw_runtime *runtime, stw_tensor *tensor)
{
    stw_view view;
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
    const stw_status status = stw_fetch(runtime, NULL, &request, 1, &view);
    if (status == STW_OK) HOLDS(stw_release(&view, 1, STW_STREAM_HOST, 0) == STW_OK);
    return status;
}

/* The victim, or a signal to it from outside, cannot say when it stopped: its state is read. */
static int is_stopped(long pid)
{
    char path[64];
    char text[256] = "";
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    const size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *name_end = length > 0 ? strrchr(text, ')') : NULL;
    return name_end != NULL && name_end[2] == 'T';
}

int main(int argc, char **argv)
{
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    HOLDS(argc == 3);
    const int kills = strcmp(argv[2], "kill") == 0;
    stw_group *group = NULL;
    stw_group_options options = {.struct_size = sizeof options,
                                 .driver = STW_GROUP_MPI,
                                 .module = argv[1],
                                 .timeout_ns = 2000000000};
    HOLDS(stw_group_create(&options, &group) == STW_OK);
    stw_runtime *runtime = open_on(group);
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor = NULL;
    spec.name = "weights";
    spec.dtype = STW_F32;
    spec.partition = STW_PARTITION_SHARDED;
    spec.dimensions = 1;
    spec.shape[0] = ELEMENTS;
    HOLDS(stw_tensor_create(runtime, &spec, 1, &tensor) == STW_OK);
    HOLDS(stw_tensor_fill(tensor, 1.0, NULL) == STW_OK);
    HOLDS(fetch_whole(runtime, tensor) == STW_OK);
    HOLDS(stw_tensor_fill(tensor, 2.0, NULL) == STW_OK);
    long pid = (long)getpid();
    MPI_Bcast(&pid, 1, MPI_LONG, VICTIM, MPI_COMM_WORLD);
    if (rank == VICTIM) raise(kills ? SIGKILL : SIGSTOP);
    if (rank != VICTIM) {
        while (!kills && !is_stopped(pid)) usleep(1000);
        HOLDS(fetch_whole(runtime, tensor) == STW_ERROR_PEER);
        const char *sentence = stw_last_error();
        HOLDS(strstr(sentence, "rank 1") && strstr(sentence, "'weights'"));
        HOLDS(strstr(sentence, "is stopped"));
        stw_error_info info = {0};
        info.struct_size = sizeof info;
        HOLDS(stw_last_error_info(&info) == STW_OK && info.rank == VICTIM);
        /* What this rank has itself it keeps. */
        float *values = malloc(ELEMENTS * sizeof *values);
        stw_copy_options own = {.struct_size = sizeof own, .scope = STW_SHARD};
        HOLDS(stw_tensor_read(tensor, values, &own) == STW_OK && values[0] == 2.0F);
        free(values);
        if (rank == 0) printf("said by rank 0: %s\n", sentence);
        fflush(stdout);
    }
    /* Everybody has seen it, and it may go on: it is too late for the group, and it is told. */
    if (rank == 2) MPI_Send(&rank, 1, MPI_INT, 0, 7, MPI_COMM_WORLD);
    if (rank == 0) {
        int other = 0;
        MPI_Recv(&other, 1, MPI_INT, 2, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        kill((pid_t)pid, SIGCONT);
    }
    if (rank == VICTIM) HOLDS(fetch_whole(runtime, tensor) == STW_ERROR_PEER);
    HOLDS(stw_runtime_close(runtime, 0, 0) == STW_OK);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("all ranks came to the end\n");
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD); /* the first to abort ends the others, said or not */
    /* Requests of the broken group are still there, which MPI_Finalize may wait for. */
    MPI_Abort(MPI_COMM_WORLD, 0);
}
