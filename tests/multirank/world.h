/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks for tests: as threads of one process, whose collectives go through callbacks and shared
 * memory, or as the processes of an MPI job. A claim is run by every rank, with a group of all.
 */
#ifndef STEPWELL_TESTS_MULTIRANK_WORLD_H
#define STEPWELL_TESTS_MULTIRANK_WORLD_H

#include <stepwell/stepwell.h>

#include <stdbool.h>
#include <stdint.h>

struct member {
    uint32_t rank;
    uint32_t size;
    uint64_t timeout_ns;   /* of its group */
    uint32_t group_flags;  /* STW_GROUP_CALLER_THREAD, or 0 */
    const char *directory; /* of the nvme tier, its own */
    void *world;
};

/* Ends the test with the line that did not hold, and what the library last said. */
#define HOLDS(condition) check((condition) != 0, #condition, __FILE__, __LINE__)
#define SUCCEEDS(call)   check((call) >= STW_OK, #call, __FILE__, __LINE__)
void check(bool holds, const char *text, const char *file, int line);

/* A group of all ranks of the world. */
stw_group *join(struct member *member);
/* One of several groups that the ranks are cut into, of those of one colour, in order of rank;
 * `cut` 0 or 1 tells one way of cutting from another. COLLECTIVE over the world. */
stw_group *join_part(struct member *member, uint32_t cut, uint32_t colour, uint32_t rank,
                     uint32_t size);
/* Of ranks that are threads: what this one's collectives do from now on. */
enum engine_fault {
    ENGINE_WORKS = 0,
    ENGINE_STARTS_NOTHING, /* STW_ERROR_DEVICE */
    ENGINE_ENDS_NOTHING,   /* STW_ERROR_IO, by poll */
    ENGINE_IS_SILENT       /* the other ranks hear nothing of it, as of a process that was killed */
};
void spoil(struct member *member, enum engine_fault fault);
/* Waits for all ranks, without the library. */
void meet(struct member *member);

typedef void (*claim_fn)(struct member *member);
struct claim {
    const char *name;
    claim_fn run;
    uint64_t timeout_ns;
};

/* A claim: a function of `member`. main() of world.c and of world_mpi.c runs those of a program in
 * the order in which they stand, TAP on stdout. */
#define CLAIM(name) CLAIM_WITHIN(name, 60ull * 1000000000)
#define CLAIM_WITHIN(name, timeout_ns)                                                             \
    static void name(struct member *member);                                                       \
    __attribute__((constructor)) static void name##_is_a_claim(void)                               \
    {                                                                                              \
        claims[claims_count++] = (struct claim){#name, name, timeout_ns};                          \
    }                                                                                              \
    static void name(struct member *member)
extern struct claim claims[32];
extern uint32_t claims_count;

#endif
