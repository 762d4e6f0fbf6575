/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as the processes of an MPI job: mpirun -np N multirank-claims-mpi MODULE [claim]. */
#include "tests/multirank/world.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *module;

void check(bool holds, const char *text, const char *file, int line)
{
    if (holds) return;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    printf("# rank %d, %s:%d: does not hold: %s\n# the library says: %s\n", rank, file, line, text,
           stw_last_error());
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

stw_group *join(struct member *member)
{
    stw_group *group = NULL;
    stw_group_options options = {.struct_size = sizeof options,
                                 .driver = STW_GROUP_MPI,
                                 .flags = member->group_flags,
                                 .timeout_ns = member->timeout_ns,
                                 .module = module};
    SUCCEEDS(stw_group_create(&options, &group));
    return group;
}

stw_group *join_part(struct member *member, uint32_t cut, uint32_t colour, uint32_t rank,
                     uint32_t size)
{
    stw_group *all = join(member);
    stw_group *part = NULL;
    uint32_t found_rank = 0;
    uint32_t found_size = 0;
    (void)cut;
    SUCCEEDS(stw_group_split(all, (int32_t)colour, rank, &part));
    SUCCEEDS(stw_group_rank(part, &found_rank, &found_size));
    HOLDS(found_rank == rank && found_size == size);
    SUCCEEDS(stw_group_destroy(all));
    return part;
}

void meet(struct member *member)
{
    (void)member;
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int level = 0;
    int rank = 0;
    int size = 0;
    const char *only = NULL;
    const bool alone = getenv("STW_MPI_FUNNELED") != NULL;
    MPI_Init_thread(&argc, &argv, alone ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    HOLDS(argc >= 2);
    module = argv[1];
    if (argc > 2) only = argv[2];
    char directory[] = "/tmp/stepwell-ranks-XXXXXX";
    HOLDS(mkdtemp(directory) != NULL);
    if (rank == 0) printf("1..%u\n", claims_count);
    for (uint32_t i = 0; i < claims_count; ++i) {
        struct member member = {(uint32_t)rank, (uint32_t)size, 0, 0, directory, NULL};
        member.timeout_ns = claims[i].timeout_ns;
        if (alone) member.group_flags = STW_GROUP_CALLER_THREAD;
        const bool other = only && strcmp(only, claims[i].name) != 0;
        if (!other) claims[i].run(&member);
        if (rank == 0) {
            printf("ok %u - %s%s\n", i + 1, claims[i].name,
                   other ? " # SKIP another one was asked for" : "");
        }
        fflush(stdout);
    }
    rmdir(directory);
    MPI_Finalize();
    return 0;
}
