/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives that the program lends, when one rank's fail: every rank is told, in time, and what
 * lies here is there as before. */
#include "tests/multirank/tensors.h"

#include <string.h>

enum { N = 20000, SECOND_NS = 1000000000 };

static stw_status fetch_whole(stw_runtime *runtime, stw_tensor *tensor)
{
    stw_view view;
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
    const stw_status status = stw_fetch(runtime, NULL, &request, 1, &view);
    HOLDS(status != STW_OK); /* here it never works */
    return status;
}

/* The last rank's engine fails: there it is said as `mine`, elsewhere as PEER, again and again. */
static void expect_end(struct member *member, enum engine_fault fault, stw_status mine,
                       const char *words)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensor = make(runtime, "w", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    const bool spoiled = member->rank == member->size - 1;
    stw_group *again = NULL;
    write_shard(runtime, tensor, 1);
    expect_whole(runtime, tensor, N, 1);
    write_shard(runtime, tensor, 2);
    SUCCEEDS(stw_runtime_drain(runtime, 0));
    meet(member);
    if (spoiled) spoil(member, fault);
    for (int i = 0; i < 3; ++i) {
        HOLDS(fetch_whole(runtime, tensor) == (spoiled ? mine : STW_ERROR_PEER));
        HOLDS(strstr(stw_last_error(), spoiled ? words : "over 'callbacks'") != NULL);
    }
    /* This rank's own part needs nobody. */
    stw_view view = fetch(runtime, tensor, STW_READ, STW_SHARD);
    HOLDS(view.element_count > 0);
    const uint64_t first = view.element_begin;
    for (uint64_t i = 0; i < view.element_count; ++i) {
        HOLDS(((const float *)view.pointer)[i] == value_of(first + i, 2));
    }
    let_go(&view, 0);
    HOLDS(stw_group_split(group, 0, 0, &again) == STW_ERROR_BUSY);
    meet(member);
    SUCCEEDS(stw_tensor_destroy(&tensor, 1));
    end(runtime, group, member);
}

CLAIM_WITHIN(a_collective_that_cannot_be_started_ends_the_group, SECOND_NS)
{
    expect_end(member, ENGINE_STARTS_NOTHING, STW_ERROR_DEVICE, "cannot be started");
}

CLAIM_WITHIN(a_collective_that_fails_ends_the_group, SECOND_NS)
{
    expect_end(member, ENGINE_ENDS_NOTHING, STW_ERROR_IO, "poll callback returned");
}

CLAIM_WITHIN(a_rank_that_falls_silent_is_told_in_time, SECOND_NS)
{
    expect_end(member, ENGINE_IS_SILENT, STW_ERROR_PEER, "over 'callbacks'");
}
