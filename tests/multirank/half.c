/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and wholes in half precision: what is rounded when, to the bit. */
#include "tests/multirank/half.h"
#include "tests/multirank/tensors.h"

#include <stdio.h>

enum { N = 1003, BATCHES = 3 };

static const uint32_t halves[] = {STW_BF16, STW_F16};

static stw_tensor *make_of(stw_runtime *runtime, uint32_t role, uint32_t dtype, uint32_t partition)
{
    char name[40];
    snprintf(name, sizeof name, "role %u dtype %u partition %u", role, dtype, partition);
    stw_tensor_spec spec = spec_of(name, N, role, partition);
    spec.dtype = dtype;
    return make_as(runtime, &spec);
}

static stw_view fetch_as(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint32_t scope,
                         uint32_t dtype)
{
    stw_view view;
    stw_fetch_request request = {.struct_size = sizeof request,
                                 .tensor = tensor,
                                 .access = access,
                                 .scope = scope,
                                 .dtype = dtype};
    SUCCEEDS(stw_fetch(runtime, NULL, &request, 1, &view));
    return view;
}

/* What a rank adds in one micro-batch, as it is in that precision: its sums are not exact. */
static float part_of(uint64_t element, uint32_t rank, uint32_t batch, uint32_t dtype)
{
    const uint64_t mixed = (element * 7919 + rank * 104729 + batch * 1299709) % 9973;
    const float value = (float)mixed / 512.0F - 7.0F;
    return dtype == STW_F32 ? value : of_half(half_of(value, dtype), dtype);
}

static void add_parts(stw_runtime *runtime, stw_tensor *gradient, uint32_t rank, uint32_t dtype)
{
    for (uint32_t batch = 0; batch < BATCHES; ++batch) {
        stw_view view = fetch_as(runtime, gradient, STW_REDUCE, STW_WHOLE, dtype);
        HOLDS(view.element_count == N);
        for (uint64_t i = 0; i < N; ++i) {
            HOLDS(value_in(view.pointer, i, dtype) == 0.0F);
            put_value(view.pointer, i, dtype, part_of(i, rank, batch, dtype));
        }
        let_go(&view, batch + 1 < BATCHES ? STW_RELEASE_MORE : 0);
    }
}

static float rounded_to(float value, uint32_t dtype)
{
    return dtype == STW_F32 ? value : of_half(half_of(value, dtype), dtype);
}

/* Each micro-batch is added to what the rank has, which is rounded to the tensor's precision; over
 * ranks there is one rounding. */
static float sum_of(uint64_t element, uint32_t ranks, uint32_t part_dtype, uint32_t dtype)
{
    float all = 0.0F;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        float mine = 0.0F;
        for (uint32_t batch = 0; batch < BATCHES; ++batch) {
            mine = rounded_to(mine + part_of(element, rank, batch, part_dtype), dtype);
        }
        all += mine;
    }
    return rounded_to(all, dtype);
}

/* How many differ from what `other_dtype` would have kept. */
static uint64_t expect_sums(stw_runtime *runtime, stw_tensor *gradient, const struct member *member,
                            uint32_t part_dtype, uint32_t dtype, uint32_t other_dtype)
{
    uint64_t differ = 0;
    stw_view view = fetch_as(runtime, gradient, STW_READ, STW_SHARD, 0);
    for (uint64_t i = 0; i < view.element_count; ++i) {
        const uint64_t element = view.element_begin + i;
        const float sum = value_in(view.pointer, i, dtype);
        HOLDS(sum == sum_of(element, member->size, part_dtype, dtype));
        differ += sum != sum_of(element, member->size, part_dtype, other_dtype);
    }
    HOLDS(view.element_count == 0 || differ > view.element_count / 2);
    let_go(&view, 0);
    return differ;
}

CLAIM(sums_in_half_precision_are_rounded_for_each_part_and_once_over_ranks)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 8);
    for (uint32_t i = 0; i < 2; ++i) {
        for (uint32_t partition = STW_PARTITION_SHARDED; partition <= STW_PARTITION_REPLICATED;
             ++partition) {
            stw_tensor *gradient = make_of(runtime, STW_ROLE_GRAD, halves[i], partition);
            add_parts(runtime, gradient, member->rank, halves[i]);
            expect_sums(runtime, gradient, member, halves[i], halves[i], STW_F32);
        }
    }
    end(runtime, group, member);
}

CLAIM(sums_in_single_precision_take_parts_in_half_precision)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 8);
    for (uint32_t i = 0; i < 2; ++i) {
        for (uint32_t partition = STW_PARTITION_SHARDED; partition <= STW_PARTITION_REPLICATED;
             ++partition) {
            stw_tensor *gradient = make_of(runtime, STW_ROLE_GRAD, STW_F32, partition);
            add_parts(runtime, gradient, member->rank, halves[i]);
            expect_sums(runtime, gradient, member, halves[i], STW_F32, halves[i]);
            SUCCEEDS(stw_runtime_drain(runtime, 0));
            SUCCEEDS(stw_tensor_destroy(&gradient, 1));
        }
    }
    end(runtime, group, member);
}

/* What every rank has whole is converted for each; what has to be gathered is shown as it is. */
CLAIM(a_replicated_whole_is_seen_in_half_precision)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 8);
    stw_tensor *weights = make_of(runtime, STW_ROLE_PARAM, STW_F32, STW_PARTITION_REPLICATED);
    stw_tensor *sharded = make_of(runtime, STW_ROLE_PARAM, STW_F32, STW_PARTITION_SHARDED);
    stw_view all = fetch_as(runtime, weights, STW_WRITE, STW_WHOLE, 0);
    for (uint64_t i = 0; i < N; ++i) put_value(all.pointer, i, STW_F32, part_of(i, 0, 0, STW_F32));
    let_go(&all, 0);
    SUCCEEDS(stw_tensor_fill(sharded, 1.0, NULL));
    for (uint32_t k = 0; k < 2; ++k) {
        stw_view view = fetch_as(runtime, weights, STW_READ, STW_WHOLE, halves[k]);
        HOLDS(view.element_count == N);
        for (uint64_t i = 0; i < N; ++i) {
            HOLDS(value_in(view.pointer, i, halves[k]) == part_of(i, 0, 0, halves[k]));
        }
        let_go(&view, 0);
        stw_fetch_request request = {
            .struct_size = sizeof request, .tensor = sharded, .dtype = halves[k]};
        HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_UNSUPPORTED);
        HOLDS(strstr(stw_last_error(), "'role 1 dtype 1 partition 1' is sharded") != NULL);
    }
    end(runtime, group, member);
}
