/* SPDX-License-Identifier: Apache-2.0 */
/* STW_FETCH_ABSENT: a rank that needs no bytes serves the others, and takes no room for them. */
#include "tests/multirank/tensors.h"

#include <string.h>

/* Of wholes: in one collective with others, alone in a bucket, and too large for one. */
static const uint64_t sizes[] = {100, 100003, 2500000};
enum { SIZES = sizeof sizes / sizeof sizes[0], WHOLE_BLOCKS = 160 };

static stw_status ask(stw_runtime *runtime, stw_tensor *tensor, uint32_t flags, stw_view *view)
{
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
    stw_fetch_options options = {.struct_size = sizeof options, .flags = flags};
    memset(view, 0, sizeof *view);
    return stw_fetch(runtime, &options, &request, 1, view);
}

/* The bytes where they are wanted, and a view of nothing where they are not. */
static void expect_served(stw_runtime *runtime, stw_tensor *tensor, uint64_t elements,
                          uint32_t salt, bool absent)
{
    stw_view view;
    SUCCEEDS(ask(runtime, tensor, absent ? STW_FETCH_ABSENT : 0, &view));
    if (absent) {
        HOLDS(view.pointer == NULL && view.bytes == 0 && view.element_count == 0);
        HOLDS(view.tensor == tensor);
    } else {
        expect_values(&view, elements, salt);
    }
    let_go(&view, 0);
}

static uint64_t used_by_device(stw_runtime *runtime)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    SUCCEEDS(stw_tier_stats_get(runtime, STW_TIER_DEVICE, 0, &stats));
    return stats.used_bytes;
}

CLAIM(whoever_is_absent_the_others_get_the_bytes)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, WHOLE_BLOCKS);
    for (uint32_t i = 0; i < SIZES; ++i) {
        const char name[] = {(char)('a' + i), '\0'};
        stw_tensor *tensor = make(runtime, name, sizes[i], STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, tensor, i);
        for (uint32_t turn = 0; turn < member->size; ++turn) {
            expect_served(runtime, tensor, sizes[i], i, member->rank == turn);
            expect_served(runtime, tensor, sizes[i], i, member->rank != turn);
            expect_served(runtime, tensor, sizes[i], i, false);
        }
        SUCCEEDS(stw_tensor_destroy(&tensor, 1));
    }
    end(runtime, group, member);
}

CLAIM(an_absent_rank_takes_no_room)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, WHOLE_BLOCKS);
    stw_tensor *tensor = make(runtime, "w", sizes[2], STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    write_shard(runtime, tensor, 1);
    SUCCEEDS(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    const uint64_t before = used_by_device(runtime);
    const bool absent = member->rank != 0;
    stw_view view;
    SUCCEEDS(ask(runtime, tensor, absent ? STW_FETCH_ABSENT : 0, &view));
    /* The staged shard may pass through the device, a few blocks at a time. */
    if (absent) HOLDS(used_by_device(runtime) <= before + 24 * BLOCK);
    if (!absent) HOLDS(used_by_device(runtime) >= sizes[2] * sizeof(float));
    let_go(&view, 0);
    end(runtime, group, member);
}

CLAIM(where_all_are_absent_nothing_is_sent)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, WHOLE_BLOCKS);
    stw_tensor *tensor = make(runtime, "w", sizes[2], STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    write_shard(runtime, tensor, 1);
    const uint64_t before = collectives(runtime);
    expect_served(runtime, tensor, sizes[2], 1, true);
    HOLDS(collectives(runtime) == before);
    expect_whole(runtime, tensor, sizes[2], 1);
    HOLDS(collectives(runtime) == before + 1);
    end(runtime, group, member);
}

/* Experts of a layer: in each call some are needed by some ranks, in another pattern each time. */
CLAIM(experts_are_served_in_any_pattern)
{
    enum { EXPERTS = 6, ELEMENTS = 30000 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 12);
    stw_tensor *experts[EXPERTS];
    for (uint32_t i = 0; i < EXPERTS; ++i) {
        const char name[] = {'e', (char)('0' + i), '\0'};
        experts[i] = make(runtime, name, ELEMENTS, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, experts[i], i);
    }
    uint32_t pattern = 12345;
    for (uint32_t step = 0; step < 20; ++step) {
        for (uint32_t i = 0; i < EXPERTS; ++i) {
            pattern = pattern * 1664525 + 1013904223;
            expect_served(runtime, experts[i], ELEMENTS, i + 100 * step,
                          (pattern >> (16 + member->rank) & 1) != 0);
        }
        for (uint32_t i = 0; i < EXPERTS; ++i)
            write_shard(runtime, experts[i], i + 100 * (step + 1));
    }
    end(runtime, group, member);
}

/* Its bytes were not asked for, and nobody sends them now: this rank alone is told. */
CLAIM(bytes_asked_for_while_absent_are_refused_here)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, WHOLE_BLOCKS);
    stw_tensor *tensor = make(runtime, "w", sizes[1], STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    write_shard(runtime, tensor, 1);
    stw_view first;
    stw_view second;
    const bool absent = member->rank == 0;
    SUCCEEDS(ask(runtime, tensor, absent ? STW_FETCH_ABSENT : 0, &first));
    const stw_status again = ask(runtime, tensor, 0, &second);
    HOLDS(again == (absent ? STW_ERROR_INVALID : STW_OK));
    if (absent) HOLDS(strstr(stw_last_error(), "without its bytes") != NULL);
    if (!absent) let_go(&second, 0);
    let_go(&first, 0);
    expect_whole(runtime, tensor, sizes[1], 1);
    end(runtime, group, member);
}

/* Of a large whole it is told at the end of the collective, of others before it. */
CLAIM(an_absent_rank_that_cannot_read_is_named_on_all)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, WHOLE_BLOCKS);
    for (uint32_t i = 1; i < SIZES; ++i) {
        const char name[] = {(char)('a' + i), '\0'};
        stw_tensor *tensor = make(runtime, name, sizes[i], STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        stw_view view;
        const uint32_t flags = member->rank == 0 ? STW_FETCH_ABSENT : 0;
        if (member->rank != 0) write_shard(runtime, tensor, 1);
        HOLDS(ask(runtime, tensor, flags, &view) == STW_ERROR_EMPTY);
        HOLDS(strstr(stw_last_error(), "rank 0") != NULL);
        if (member->rank == 0) write_shard(runtime, tensor, 1);
        expect_served(runtime, tensor, sizes[i], 1, member->rank == 0);
        expect_whole(runtime, tensor, sizes[i], 1);
    }
    end(runtime, group, member);
}

CLAIM(operations_may_be_absent)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, WHOLE_BLOCKS);
    stw_tensor *tensor = make(runtime, "w", sizes[2], STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    write_shard(runtime, tensor, 1);
    for (uint32_t turn = 0; turn < 4; ++turn) {
        const bool absent = (member->rank + turn) % 2 == 0;
        stw_operation *operation = NULL;
        stw_view view;
        stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
        stw_fetch_options options = {.struct_size = sizeof options,
                                     .flags = absent ? STW_FETCH_ABSENT : 0};
        SUCCEEDS(stw_fetch_async(runtime, &options, &request, 1, &operation));
        HOLDS(stw_operation_wait(operation, 60ull * 1000000000) == STW_OK);
        SUCCEEDS(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1));
        if (!absent) expect_values(&view, sizes[2], 1);
        if (absent) HOLDS(view.pointer == NULL && view.element_count == 0);
        let_go(&view, 0);
        SUCCEEDS(stw_operation_free(operation));
    }
    end(runtime, group, member);
}

CLAIM(what_has_no_whole_is_simply_not_there)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, WHOLE_BLOCKS);
    stw_tensor *sharded = make(runtime, "s", 50000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *local = make(runtime, "l", 50000, STW_ROLE_PARAM, STW_PARTITION_LOCAL);
    stw_view view;
    char memory[16];
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_ABSENT};
    stw_fetch_request request = {
        .struct_size = sizeof request, .tensor = sharded, .scope = STW_SHARD};
    for (uint32_t i = 0; i < 2; ++i) {
        SUCCEEDS(stw_fetch(runtime, &options, &request, 1, &view)); /* though it is EMPTY */
        HOLDS(view.pointer == NULL && view.element_count == 0 && view.bytes == 0);
        let_go(&view, 0);
        request.tensor = local;
    }
    request.access = STW_WRITE;
    HOLDS(stw_fetch(runtime, &options, &request, 1, &view) == STW_ERROR_INVALID);
    HOLDS(strstr(stw_last_error(), "STW_FETCH_ABSENT") != NULL);
    request.access = STW_READ;
    request.into = memory;
    HOLDS(stw_fetch(runtime, &options, &request, 1, &view) == STW_ERROR_INVALID);
    end(runtime, group, member);
}
