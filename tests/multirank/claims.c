/* SPDX-License-Identifier: Apache-2.0 */
/* What tensors over several ranks do: each claim is run by every rank of a group. */
#include "tests/multirank/tensors.h"
#include "tests/support/budget_sentence.h"

#include <stdlib.h>
#include <string.h>

static stw_tensor_info info_of(stw_tensor *tensor)
{
    stw_tensor_info info = {0};
    info.struct_size = sizeof info;
    SUCCEEDS(stw_tensor_info_get(tensor, &info));
    return info;
}

static const uint64_t sizes[] = {1, 2, 7, 1000, 16384, 16385, 100003, 200000};

/* ------------------------------------------------------------------------------------------------
 */

CLAIM(shards_cover_the_tensor_and_are_gathered)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 40);
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        char name[32];
        name[0] = (char)('a' + i);
        name[1] = '\0';
        stw_tensor *tensor = make(runtime, name, sizes[i], STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        const stw_tensor_info info = info_of(tensor);
        HOLDS(info.partition == STW_PARTITION_SHARDED && info.elements == sizes[i]);
        HOLDS(info.whole_bytes == sizes[i] * 4);
        HOLDS(info.shard_bytes * member->size >= info.whole_bytes);
        HOLDS(info.shard_begin + info.shard_elements <= sizes[i]);
        if (member->rank + 1 == member->size) {
            HOLDS(info.shard_begin + info.shard_elements == sizes[i] || info.shard_elements == 0);
        }
        write_shard(runtime, tensor, i);
        expect_whole(runtime, tensor, sizes[i], i);
        /* Changed, so gathered again. */
        write_shard(runtime, tensor, i + 100);
        SUCCEEDS(stw_tensor_discard(&tensor, 1));
        write_shard(runtime, tensor, i + 200);
        expect_whole(runtime, tensor, sizes[i], i + 200);
    }
    end(runtime, group, member);
}

CLAIM(what_is_gathered_stays_until_room_or_a_write_needs_it)
{
    stw_group *group = join(member);
    /* A shard is a block. */
    const uint64_t n = (uint64_t)member->size * BLOCK / 4;
    stw_runtime *runtime = open_on(group, member, 2 * member->size);
    stw_tensor *a = make(runtime, "a", n, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *b = make(runtime, "b", n, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *c = make(runtime, "c", n, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *big = make(runtime, "big", 3 * n, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_link_stats link = STW_LINK_STATS_INIT;
    stw_view view;
    write_shard(runtime, a, 1);
    write_shard(runtime, b, 2);
    write_shard(runtime, c, 3);
    write_shard(runtime, big, 4);
    for (int round = 0; round < 3; ++round) {
        expect_whole(runtime, a, n, 1);
        expect_whole(runtime, b, n, 2);
    }
    SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &link));
    HOLDS(link.transfers == 2);
    expect_whole(runtime, c, n, 3);
    expect_whole(runtime, b, n, 2);
    expect_whole(runtime, a, n, 1);
    SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &link));
    HOLDS(link.transfers == 4);
    /* Larger than the room for wholes: refused on all ranks, with nothing sent. */
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = big};
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_BUDGET);
    HOLDS(budget_sentence_wrong(stw_last_error()) == NULL);
    HOLDS(strstr(stw_last_error(), "cannot be gathered") != NULL);
    HOLDS(stw_fetch_fits(runtime, &request, 1) == STW_ERROR_BUDGET);
    HOLDS(budget_sentence_wrong(stw_last_error()) == NULL);
    HOLDS(strstr(stw_last_error(), "cannot be gathered at once") != NULL);
    request.tensor = a;
    SUCCEEDS(stw_fetch_fits(runtime, &request, 1));
    expect_whole(runtime, a, n, 1);
    HOLDS(stw_tier_set_budget(runtime, STW_TIER_DEVICE, 0, 8 * BLOCK, 0) == STW_ERROR_UNSUPPORTED);
    view = fetch(runtime, a, STW_READ, STW_WHOLE);
    stw_view second;
    HOLDS(stw_view_share(&view, &second) == STW_ERROR_INVALID);
    HOLDS(strstr(stw_last_error(), "gathered") != NULL);
    let_go(&view, 0);
    end(runtime, group, member);
}

CLAIM(each_rank_keeps_its_part_of_what_all_write)
{
    enum { N = 50001 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensor = make(runtime, "w", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    float *values = malloc(N * sizeof *values);
    for (uint64_t i = 0; i < N; ++i) values[i] = value_of(i, 5);
    SUCCEEDS(stw_tensor_write(tensor, values, NULL));
    expect_whole(runtime, tensor, N, 5);
    memset(values, 0, N * sizeof *values);
    SUCCEEDS(stw_tensor_read(tensor, values, NULL));
    for (uint64_t i = 0; i < N; ++i) HOLDS(values[i] == value_of(i, 5));
    /* A view of the whole to write. */
    stw_view view = fetch(runtime, tensor, STW_WRITE, STW_WHOLE);
    for (uint64_t i = 0; i < N; ++i) ((float *)view.pointer)[i] = value_of(i, 6);
    let_go(&view, 0);
    expect_whole(runtime, tensor, N, 6);
    view = fetch(runtime, tensor, STW_READ, STW_SHARD);
    for (uint64_t i = 0; i < view.element_count; ++i) {
        HOLDS(((const float *)view.pointer)[i] == value_of(view.element_begin + i, 6));
    }
    let_go(&view, 0);
    /* What is abandoned changes no shard. */
    view = fetch(runtime, tensor, STW_WRITE, STW_WHOLE);
    memset(view.pointer, 0, N * sizeof *values);
    let_go(&view, STW_RELEASE_ABANDON);
    expect_whole(runtime, tensor, N, 6);
    /* A range of it. */
    stw_copy_options part = {
        .struct_size = sizeof part, .element_begin = 20000, .element_count = 10000};
    for (uint64_t i = 0; i < 10000; ++i) values[i] = -1.0F;
    SUCCEEDS(stw_tensor_write(tensor, values, &part));
    view = fetch(runtime, tensor, STW_READ, STW_WHOLE);
    for (uint64_t i = 0; i < N; ++i) {
        const float expected = i >= 20000 && i < 30000 ? -1.0F : value_of(i, 6);
        HOLDS(((const float *)view.pointer)[i] == expected);
    }
    let_go(&view, 0);
    SUCCEEDS(stw_tensor_fill(tensor, 2.0, NULL));
    view = fetch(runtime, tensor, STW_READ, STW_WHOLE);
    for (uint64_t i = 0; i < N; ++i) HOLDS(((const float *)view.pointer)[i] == 2.0F);
    let_go(&view, 0);
    free(values);
    end(runtime, group, member);
}

static void add_into(stw_runtime *runtime, stw_tensor *gradient, float what, uint32_t flags)
{
    stw_view view = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
    float *values = view.pointer;
    for (uint64_t i = 0; i < view.element_count; ++i) {
        HOLDS(values[i] == 0.0F);
        values[i] = what + (float)(i % 3);
    }
    let_go(&view, flags);
}

static void expect_sum(stw_runtime *runtime, stw_tensor *gradient, float base, float step)
{
    stw_view view = fetch(runtime, gradient, STW_READ, STW_SHARD);
    for (uint64_t i = 0; i < view.element_count; ++i) {
        const uint64_t element = view.element_begin + i;
        HOLDS(((const float *)view.pointer)[i] == base + step * (float)(element % 3));
    }
    let_go(&view, 0);
}

CLAIM(sums_go_to_the_shards)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 8);
    const float ranks = (float)member->size;
    const float all = ranks * (ranks + 1) / 2; /* 1 + 2 + ... */
    const float mine = (float)member->rank + 1;
    for (uint32_t i = 0; i < 7; ++i) {
        const char name[] = {(char)('a' + i), '\0'};
        for (uint32_t partition = STW_PARTITION_SHARDED; partition <= STW_PARTITION_REPLICATED;
             ++partition) {
            stw_tensor *gradient = make(runtime, name, sizes[i], STW_ROLE_GRAD, partition);
            add_into(runtime, gradient, mine, 0);
            expect_sum(runtime, gradient, all, ranks);
            /* Micro-batches: nothing leaves the rank before the last. */
            stw_link_stats before = STW_LINK_STATS_INIT;
            stw_link_stats after = STW_LINK_STATS_INIT;
            SUCCEEDS(stw_tensor_discard(&gradient, 1));
            SUCCEEDS(stw_runtime_drain(runtime, 0));
            SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &before));
            add_into(runtime, gradient, mine, STW_RELEASE_MORE);
            add_into(runtime, gradient, mine, STW_RELEASE_MORE);
            SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &after));
            HOLDS(after.transfers == before.transfers);
            add_into(runtime, gradient, mine, 0);
            expect_sum(runtime, gradient, 3 * all, 3 * ranks);
            /* What was added before the gradient is dropped is not in its next sum. */
            add_into(runtime, gradient, 1000.0F, STW_RELEASE_MORE);
            add_into(runtime, gradient, 1000.0F, STW_RELEASE_MORE);
            SUCCEEDS(stw_tensor_discard(&gradient, 1));
            add_into(runtime, gradient, mine, STW_RELEASE_MORE);
            add_into(runtime, gradient, mine, STW_RELEASE_MORE);
            add_into(runtime, gradient, mine, 0);
            expect_sum(runtime, gradient, 3 * all, 3 * ranks);
            /* Once more into what is there, from the caller's memory, one rank without any. */
            float *local = malloc(sizes[i] * sizeof *local);
            for (uint64_t k = 0; k < sizes[i]; ++k) local[k] = 1.0F;
            SUCCEEDS(stw_reduce(gradient, member->rank == 0 ? NULL : local, NULL));
            expect_sum(runtime, gradient, 3 * all + ranks - 1, 3 * ranks);
            free(local);
            SUCCEEDS(stw_runtime_drain(runtime, 0));
            SUCCEEDS(stw_tensor_destroy(&gradient, 1));
        }
    }
    end(runtime, group, member);
}

/* Tied weights: two places of a graph add to one gradient, and their views are open together. */
CLAIM(two_uses_of_one_gradient_are_in_one_sum)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 8);
    const float ranks = (float)member->size;
    const float all = ranks * (ranks + 1) / 2;
    for (uint32_t partition = STW_PARTITION_SHARDED; partition <= STW_PARTITION_REPLICATED;
         ++partition) {
        const char *name = partition == STW_PARTITION_SHARDED ? "sharded" : "replicated";
        stw_tensor *gradient = make(runtime, name, 40001, STW_ROLE_GRAD, partition);
        for (uint32_t step = 1; step <= 2; ++step) {
            stw_view uses[2];
            for (uint32_t i = 0; i < 2; ++i)
                uses[i] = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
            for (uint64_t k = 0; k < uses[0].element_count; ++k) {
                ((float *)uses[0].pointer)[k] = (float)member->rank + 1;
                ((float *)uses[1].pointer)[k] = (float)(k % 3);
            }
            /* Given back in another order, and the second time as two sums. */
            let_go(&uses[1], step == 1 ? STW_RELEASE_MORE : 0);
            let_go(&uses[0], 0);
            expect_sum(runtime, gradient, (float)step * all, (float)step * ranks);
        }
    }
    end(runtime, group, member);
}

/* ------------------------------------------------------------------------------------------------
 * Many at once, and what goes wrong.
 */

CLAIM(small_tensors_are_gathered_together)
{
    enum { TENSORS = 600, ELEMENTS = 300 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 700);
    static const uint32_t batch = 300;
    stw_tensor **tensors = calloc(TENSORS, sizeof(stw_tensor *));
    stw_fetch_request *requests = calloc(TENSORS, sizeof *requests);
    stw_view *views = calloc(TENSORS, sizeof *views);
    stw_link_stats link = STW_LINK_STATS_INIT;
    for (uint32_t i = 0; i < TENSORS; ++i) {
        const char name[] = {'t', (char)('0' + i / 100), (char)('0' + i / 10 % 10),
                             (char)('0' + i % 10), '\0'};
        const stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        tensors[i] = make(runtime, name, ELEMENTS, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, tensors[i], i);
        requests[i] = request;
        requests[i].tensor = tensors[i];
    }
    for (uint32_t first = 0; first < TENSORS; first += batch) {
        SUCCEEDS(stw_fetch(runtime, NULL, requests + first, batch, views + first));
    }
    for (uint32_t i = 0; i < TENSORS; ++i) {
        for (uint64_t k = 0; k < ELEMENTS; ++k) {
            HOLDS(((const float *)views[i].pointer)[k] == value_of(k, i));
        }
    }
    SUCCEEDS(stw_release(views, TENSORS, STW_STREAM_HOST, 0));
    SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &link));
    HOLDS(link.transfers * 20 <= TENSORS);
    free(views);
    free(requests);
    free(tensors);
    end(runtime, group, member);
}

CLAIM(ranks_that_call_in_another_order_are_told)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *a = make(runtime, "first", 20000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *b = make(runtime, "second", 20000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_view view;
    write_shard(runtime, a, 1);
    write_shard(runtime, b, 2);
    stw_fetch_request request = {.struct_size = sizeof request,
                                 .tensor = member->rank == 1 ? b : a};
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_ORDER);
    HOLDS(strstr(stw_last_error(), "'first'") && strstr(stw_last_error(), "'second'"));
    HOLDS(strstr(stw_last_error(), "rank 0") && strstr(stw_last_error(), "rank 1"));
    /* Nobody can say where the others are now: every collective says so, local work goes on. */
    request.tensor = a;
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_ORDER);
    view = fetch(runtime, a, STW_READ, STW_SHARD);
    let_go(&view, 0);
    end(runtime, group, member);
}

/* Small tensors of one call are gathered together: the second one counts as well. */
CLAIM(ranks_that_name_another_second_tensor_are_told)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    const char *const names[3] = {"first", "second", "third"};
    stw_tensor *tensors[3];
    stw_fetch_request requests[2] = {STW_FETCH_REQUEST_INIT, STW_FETCH_REQUEST_INIT};
    stw_view views[2];
    for (uint32_t i = 0; i < 3; ++i) {
        tensors[i] = make(runtime, names[i], 200, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, tensors[i], i + 1);
    }
    requests[0].tensor = tensors[0];
    requests[1].tensor = tensors[member->rank == 1 ? 2 : 1];
    HOLDS(stw_fetch(runtime, NULL, requests, 2, views) == STW_ERROR_ORDER);
    HOLDS(strstr(stw_last_error(), "'second'") && strstr(stw_last_error(), "'third'"));
    HOLDS(strstr(stw_last_error(), "rank 0") && strstr(stw_last_error(), "rank 1"));
    end(runtime, group, member);
}

CLAIM(a_tensor_that_differs_is_named)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    const uint64_t elements = member->rank == 1 ? 20001 : 20000;
    stw_tensor *tensor = make(runtime, "w", elements, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *good = make(runtime, "good", 20000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_view view;
    write_shard(runtime, tensor, 1);
    write_shard(runtime, good, 1);
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_MISMATCH);
    HOLDS(strstr(stw_last_error(), "[20000]") && strstr(stw_last_error(), "[20001]"));
    expect_whole(runtime, good, 20000, 1);
    end(runtime, group, member);
}

/* As many bytes of another dtype; and what one rank has for itself where the others share it. */
CLAIM(a_tensor_of_another_dtype_or_partition_is_named)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    const int odd = member->rank == 1;
    stw_view view;
    stw_tensor_spec spec = spec_of("w", 20000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    spec.dtype = odd ? STW_F16 : STW_BF16;
    stw_tensor *tensor = make_as(runtime, &spec);
    SUCCEEDS(stw_tensor_fill(tensor, 1.0, NULL));
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_MISMATCH);
    HOLDS(strstr(stw_last_error(), "'w'") && strstr(stw_last_error(), "rank 1"));
    HOLDS(strstr(stw_last_error(), "bf16") && strstr(stw_last_error(), " f16"));
    stw_tensor *gradient = make(runtime, "g", 20000, STW_ROLE_GRAD,
                                odd ? STW_PARTITION_REPLICATED : STW_PARTITION_SHARDED);
    view = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
    let_go(&view, 0);
    request.tensor = gradient;
    request.scope = STW_SHARD;
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_ORDER);
    HOLDS(strstr(stw_last_error(), "reduces 'g'"));
    HOLDS(strstr(stw_last_error(), "sums the replicated tensor 'g'"));
    HOLDS(stw_runtime_close(runtime, 0, 0) == STW_ERROR_ORDER);
    meet(member);
    SUCCEEDS(stw_group_destroy(group));
}

CLAIM(a_rank_that_cannot_read_is_named_on_all)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensor = make(runtime, "w", 20000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_view view;
    /* Never written on rank 0. */
    if (member->rank != 0) write_shard(runtime, tensor, 1);
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_EMPTY);
    HOLDS(strstr(stw_last_error(), "rank 0") && strstr(stw_last_error(), "'w'"));
    /* The same of an operation, and of one that another fetch comes before the end of. */
    stw_operation *operation = NULL;
    SUCCEEDS(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    HOLDS(stw_operation_wait(operation, 60ull * 1000000000) == STW_ERROR_EMPTY);
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_EMPTY);
    SUCCEEDS(stw_operation_free(operation));
    if (member->rank == 0) write_shard(runtime, tensor, 1);
    expect_whole(runtime, tensor, 20000, 1);
    end(runtime, group, member);
}

CLAIM_WITHIN(a_rank_that_does_not_come_is_a_typed_error_in_time, 1000000000)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensor = make(runtime, "w", 20000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_view view;
    write_shard(runtime, tensor, 1);
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
    if (member->rank != 1) {
        HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_PEER);
        view = fetch(runtime, tensor, STW_READ, STW_SHARD);
        let_go(&view, 0);
    }
    meet(member);
    end(runtime, group, member);
}

CLAIM(a_group_has_runtimes_one_after_the_other)
{
    enum { N = 200000 };
    stw_group *group = join(member);
    for (uint32_t i = 0; i < 4; ++i) {
        stw_runtime *runtime = open_on(group, member, 40);
        stw_tensor *tensor = make(runtime, "w", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, tensor, i);
        expect_whole(runtime, tensor, N, i);
        SUCCEEDS(stw_runtime_close(runtime, 0, 0));
        meet(member);
    }
    SUCCEEDS(stw_group_destroy(group));
}

CLAIM(a_group_has_one_runtime)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 8);
    stw_runtime *second = NULL;
    uint32_t rank = 99;
    uint32_t size = 99;
    stw_runtime_options options = {.struct_size = sizeof options,
                                   .group = group,
                                   .host_bytes = 16 * BLOCK,
                                   .block_bytes = STW_BLOCK_64K};
    HOLDS(stw_runtime_open(&options, &second) == STW_ERROR_BUSY);
    HOLDS(stw_group_destroy(group) == STW_ERROR_BUSY);
    SUCCEEDS(stw_group_rank(group, &rank, &size));
    HOLDS(rank == member->rank && size == member->size);
    end(runtime, group, member);
    HOLDS(stw_group_destroy(group) == STW_ERROR_INVALID);
}

CLAIM(operations_gather_in_the_order_of_calls)
{
    enum { N = 30000 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensors[4];
    stw_operation *operations[4];
    for (uint32_t i = 0; i < 4; ++i) {
        const char name[] = {(char)('a' + i), '\0'};
        tensors[i] = make(runtime, name, N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, tensors[i], i);
    }
    for (uint32_t i = 0; i < 4; ++i) {
        stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensors[i]};
        SUCCEEDS(stw_fetch_async(runtime, NULL, &request, 1, &operations[i]));
    }
    for (uint32_t i = 4; i-- > 0;) {
        stw_view view;
        /* One that nobody collects takes part all the same. */
        if (i == 2 && member->rank == 0) {
            SUCCEEDS(stw_operation_free(operations[i]));
            continue;
        }
        HOLDS(stw_operation_wait(operations[i], 60ull * 1000000000) == STW_OK);
        SUCCEEDS(stw_fetch_collect(operations[i], STW_STREAM_HOST, &view, 1));
        for (uint64_t k = 0; k < N; ++k) HOLDS(((const float *)view.pointer)[k] == value_of(k, i));
        let_go(&view, 0);
        SUCCEEDS(stw_operation_free(operations[i]));
    }
    SUCCEEDS(stw_runtime_drain(runtime, 0));
    end(runtime, group, member);
}

/* The next whole is there before the other ranks have asked for it: it was gathered ahead. */
CLAIM(what_followed_before_is_gathered_ahead)
{
    const uint64_t n = (uint64_t)member->size * BLOCK / 4;
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 3 * member->size);
    stw_tensor *layers[5];
    for (uint32_t i = 0; i < 5; ++i) {
        const char name[] = {(char)('a' + i), '\0'};
        layers[i] = make(runtime, name, n, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, layers[i], i);
    }
    for (uint32_t i = 0; i < 15; ++i) expect_whole(runtime, layers[i % 5], n, i % 5);
    for (uint32_t turn = 0; turn < 5; ++turn) {
        expect_whole(runtime, layers[turn], n, turn);
        SUCCEEDS(stw_runtime_drain(runtime, 0));
        meet(member);
        const uint32_t next = (turn + 1) % 5;
        if (member->rank == 0) expect_whole(runtime, layers[next], n, next);
        meet(member);
        if (member->rank != 0) expect_whole(runtime, layers[next], n, next);
    }
    /* Changed between its gather and its fetch: the new bytes are seen. */
    for (uint32_t round = 1; round < 4; ++round) {
        for (uint32_t i = 0; i < 5; ++i) {
            expect_whole(runtime, layers[i], n, i + 10 * (round - 1));
        }
        for (uint32_t i = 0; i < 5; ++i) write_shard(runtime, layers[i], i + 10 * round);
    }
    SUCCEEDS(stw_tensor_destroy(layers, 5));
    end(runtime, group, member);
}
