/* SPDX-License-Identifier: Apache-2.0 */
/* Many small gradients: each claim is run by every rank of a group. */
#include "tests/multirank/tensors.h"
#include "tests/support/budget_sentence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 400, WHOLE_BLOCKS = 8 };

static stw_runtime *open_sums(stw_group *group, const struct member *member, uint64_t device_blocks,
                              const stw_runtime_options *wanted)
{
    stw_runtime_options options = *wanted;
    stw_runtime *runtime = NULL;
    stw_device_options device = {.struct_size = sizeof device,
                                 .budget_bytes = device_blocks * BLOCK};
    stw_nvme_options nvme = {.struct_size = sizeof nvme,
                             .path = member->directory,
                             .budget_bytes = (uint64_t)(3 * TENSORS) * BLOCK};
    options.flags = STW_RUNTIME_NO_PROBE;
    options.name = "small sums";
    options.group = group;
    options.devices = &device;
    options.device_count = 1;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 16 * BLOCK;
    options.block_bytes = STW_BLOCK_64K;
    options.whole_bytes = WHOLE_BLOCKS * BLOCK;
    options.thread_count = 1;
    options.timeout_ns = 60ull * 1000000000;
    SUCCEEDS(stw_runtime_open(&options, &runtime));
    return runtime;
}

static stw_runtime *open_plain(stw_group *group, const struct member *member)
{
    const stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    return open_sums(group, member, WHOLE_BLOCKS + 3 * TENSORS, &options);
}

/* `said`: of the tensors that failed, at last. */
static void finish(stw_runtime *runtime, stw_group *group, struct member *member, stw_status said)
{
    HOLDS(stw_runtime_close(runtime, 0, 0) == said);
    meet(member);
    SUCCEEDS(stw_group_destroy(group));
}

static stw_tensor *make_gradient(stw_runtime *runtime, const char *name, uint64_t elements,
                                 uint32_t dtype, uint32_t partition)
{
    stw_tensor_spec spec = spec_of(name, elements, STW_ROLE_GRAD, partition);
    spec.dtype = dtype;
    return make_as(runtime, &spec);
}

/* What holds up the queue of a rank: its part of a whole that was written goes to a shard that is
 * still read. */
struct gate {
    stw_tensor *tensor;
    stw_view view;
};

static struct gate hold(stw_runtime *runtime)
{
    enum { N = 1000 };
    struct gate gate;
    gate.tensor = make(runtime, "held", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    SUCCEEDS(stw_tensor_fill(gate.tensor, 1.0, NULL));
    SUCCEEDS(stw_runtime_drain(runtime, 0));
    gate.view = fetch(runtime, gate.tensor, STW_READ, STW_SHARD);
    stw_view whole = fetch(runtime, gate.tensor, STW_WRITE, STW_WHOLE);
    memset(whole.pointer, 0, N * sizeof(float));
    let_go(&whole, 0);
    return gate;
}

/* Once every rank has called what is to stand in its queue. */
static void let_on(stw_runtime *runtime, struct gate *gate, struct member *member)
{
    meet(member);
    let_go(&gate->view, 0);
    SUCCEEDS(stw_runtime_drain(runtime, 0));
    SUCCEEDS(stw_tensor_destroy(&gate->tensor, 1));
}

static uint64_t elements_of(uint32_t i)
{
    return i % 29 == 0 ? 0 : i * 37 % 701;
}

static bool is_short(uint32_t i)
{
    return i % 3 == 1;
}

static stw_tensor **make_all(stw_runtime *runtime, const char *prefix)
{
    stw_tensor **tensors = calloc(TENSORS, sizeof(stw_tensor *));
    for (uint32_t i = 0; i < TENSORS; ++i) {
        char name[32];
        snprintf(name, sizeof name, "%s%u", prefix, i);
        tensors[i] = make_gradient(runtime, name, elements_of(i), is_short(i) ? STW_BF16 : STW_F32,
                                   i % 5 < 2 ? STW_PARTITION_REPLICATED : STW_PARTITION_SHARDED);
    }
    return tensors;
}

/* Values whose sums depend on the order of additions. */
static void add_into(const stw_view *view, uint32_t i, uint32_t rank)
{
    for (uint64_t k = 0; k < view->element_count; ++k) {
        const float value = (float)((k * 7919 + i * 104729 + rank * 1299709) % 100003) / 77.0F;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (is_short(i)) {
            ((uint16_t *)view->pointer)[k] = (uint16_t)(bits >> 16);
        } else {
            ((float *)view->pointer)[k] = value;
        }
    }
}

static void expect_same(stw_runtime *runtime, stw_tensor *a, stw_tensor *b, uint32_t i)
{
    stw_view one = fetch(runtime, a, STW_READ, STW_SHARD);
    stw_view other = fetch(runtime, b, STW_READ, STW_SHARD);
    HOLDS(one.element_count == other.element_count);
    if (one.element_count > 0) {
        HOLDS(memcmp(one.pointer, other.pointer, one.element_count * (is_short(i) ? 2 : 4)) == 0);
    }
    let_go(&one, 0);
    let_go(&other, 0);
}

CLAIM(small_gradients_are_summed_together_with_the_bits_of_each_alone)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_plain(group, member);
    stw_tensor **alone = make_all(runtime, "alone");
    stw_tensor **together = make_all(runtime, "together");
    stw_view *views = calloc(TENSORS, sizeof *views);
    for (uint32_t i = 0; i < TENSORS; ++i) {
        stw_view view = fetch(runtime, alone[i], STW_REDUCE, STW_WHOLE);
        add_into(&view, i, member->rank);
        let_go(&view, 0);
        SUCCEEDS(stw_runtime_drain(runtime, 0));
    }
    struct gate gate = hold(runtime);
    const uint64_t before = collectives(runtime);
    for (uint32_t i = 0; i < TENSORS; ++i) {
        views[i] = fetch(runtime, together[i], STW_REDUCE, STW_WHOLE);
        add_into(&views[i], i, member->rank);
    }
    SUCCEEDS(stw_release(views, TENSORS, STW_STREAM_HOST, 0));
    let_on(runtime, &gate, member);
    const uint64_t used = collectives(runtime) - before;
    printf("# %d gradients in %d collectives\n", TENSORS, (int)used);
    HOLDS(used * 20 <= TENSORS);
    for (uint32_t i = 0; i < TENSORS; ++i) expect_same(runtime, alone[i], together[i], i);
    free(views);
    free(alone);
    free(together);
    finish(runtime, group, member, STW_OK);
}

CLAIM(a_gradient_that_one_rank_cannot_give_fails_alone)
{
    enum { N = 9, BAD = 4, FILLERS_MAX = 100000 };
    stw_runtime_options options = {.struct_size = sizeof options, .metadata_bytes = 12u << 20};
    stw_group *group = join(member);
    stw_runtime *runtime = open_sums(group, member, WHOLE_BLOCKS + 64, &options);
    stw_tensor *gradients[N];
    stw_view views[N];
    stw_tensor **fillers = calloc(FILLERS_MAX, sizeof *fillers);
    for (uint32_t i = 0; i < N; ++i) {
        const char name[] = {'g', (char)('0' + i), '\0'};
        gradients[i] = make_gradient(runtime, name, 1000 + i, STW_F32, STW_PARTITION_SHARDED);
    }
    struct gate gate = hold(runtime);
    for (uint32_t i = 0; i < N; ++i) {
        views[i] = fetch(runtime, gradients[i], STW_REDUCE, STW_WHOLE);
        for (uint64_t k = 0; k < views[i].element_count; ++k) ((float *)views[i].pointer)[k] = 1.0F;
    }
    for (uint32_t i = 0; i < N; ++i) {
        uint32_t made = 0;
        if (i == BAD && member->rank == 1) {
            /* No room in the tables for a sum: one of these needs less, as it has no name and the
             * sum has its gradient's, so where it is refused the sum is as well. */
            stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
            spec.role = STW_ROLE_GRAD;
            spec.dtype = STW_F32;
            spec.dimensions = 1;
            spec.shape[0] = 1;
            spec.partition = STW_PARTITION_LOCAL;
            do {
                HOLDS(made < FILLERS_MAX);
            } while (stw_tensor_create(runtime, &spec, 1, &fillers[made]) == STW_OK && ++made);
        }
        (void)stw_release(&views[i], 1, STW_STREAM_HOST, 0);
        if (made > 0) SUCCEEDS(stw_tensor_destroy(fillers, made));
    }
    const uint64_t before = collectives(runtime);
    meet(member);
    let_go(&gate.view, 0);
    HOLDS(stw_runtime_drain(runtime, 0) == STW_ERROR_BUDGET);
    HOLDS(collectives(runtime) == before + 2); /* those before it, and those behind */
    for (uint32_t i = 0; i < N; ++i) {
        stw_view view;
        stw_fetch_request request = {
            .struct_size = sizeof request, .tensor = gradients[i], .scope = STW_SHARD};
        const stw_status status = stw_fetch(runtime, NULL, &request, 1, &view);
        if (i == BAD) {
            HOLDS(status == STW_ERROR_BUDGET);
            HOLDS(strstr(stw_last_error(), "rank 1") && strstr(stw_last_error(), "'g4'"));
            HOLDS(budget_sentence_wrong(stw_last_error()) == NULL);
            continue;
        }
        SUCCEEDS(status);
        for (uint64_t k = 0; k < view.element_count; ++k) {
            HOLDS(((const float *)view.pointer)[k] == (float)member->size);
        }
        let_go(&view, 0);
    }
    free(fillers);
    finish(runtime, group, member, STW_ERROR_BUDGET);
}

/* Some of micro-batches, in so little of the nearest tier that most have left it when their turn
 * comes: none waits for room that another one holds. */
CLAIM(sums_that_have_left_the_nearest_tier_are_brought_back)
{
    enum { N = 60 };
    const stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_group *group = join(member);
    stw_runtime *runtime = open_sums(group, member, WHOLE_BLOCKS + 4, &options);
    stw_tensor *gradients[N];
    for (uint32_t i = 0; i < N; ++i) {
        char name[16];
        snprintf(name, sizeof name, "g%u", i);
        gradients[i] = make_gradient(runtime, name, i == 8 ? 0 : 1000, STW_F32,
                                     i % 2 == 0 ? STW_PARTITION_SHARDED : STW_PARTITION_REPLICATED);
    }
    struct gate gate = hold(runtime);
    for (uint32_t i = 0; i < N; ++i) {
        const uint32_t batches = i % 4 == 0 ? 2 : 1;
        for (uint32_t batch = 0; batch < batches; ++batch) {
            stw_view view = fetch(runtime, gradients[i], STW_REDUCE, STW_WHOLE);
            for (uint64_t k = 0; k < view.element_count; ++k) {
                ((float *)view.pointer)[k] = (float)(member->rank + k % 7);
            }
            const bool more = batch + 1 < batches;
            SUCCEEDS(stw_release(&view, 1, STW_STREAM_HOST, more ? STW_RELEASE_MORE : 0));
        }
    }
    let_on(runtime, &gate, member);
    const float ranks = (float)member->size;
    for (uint32_t i = 0; i < N; ++i) {
        stw_view view = fetch(runtime, gradients[i], STW_READ, STW_SHARD);
        for (uint64_t k = 0; k < view.element_count; ++k) {
            const float each = ranks * ((float)((view.element_begin + k) % 7) + (ranks - 1) / 2);
            HOLDS(((const float *)view.pointer)[k] == (i % 4 == 0 ? 2 * each : each));
        }
        let_go(&view, 0);
    }
    finish(runtime, group, member, STW_OK);
}

static uint64_t brought_bytes(stw_runtime *runtime)
{
    const uint32_t links[] = {STW_LINK_NVME_TO_HOST, STW_LINK_NVME_TO_DEVICE,
                              STW_LINK_HOST_TO_DEVICE};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 3; ++i) {
        stw_link_stats link = STW_LINK_STATS_INIT;
        SUCCEEDS(stw_link_stats_get(runtime, links[i], 0, &link));
        bytes += link.bytes;
    }
    return bytes;
}

static void write_all(stw_runtime *runtime, stw_tensor *tensor)
{
    stw_view view = fetch(runtime, tensor, STW_WRITE, STW_SHARD);
    memset(view.pointer, 0, view.element_count * sizeof(float));
    let_go(&view, 0);
}

/* It is as large as the whole, is needed soon and then gone: what has been used since leaves
 * before it. */
CLAIM(a_gradient_that_waits_for_its_sum_leaves_last)
{
    enum { DEVICE = 160, SHARD = 8, HELD = 2 };
    const stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    const uint64_t block = BLOCK / sizeof(float);
    const uint64_t n = (uint64_t)member->size * SHARD * block;
    const uint64_t filled = (DEVICE - WHOLE_BLOCKS - HELD - 1) * block - 2 * n;
    stw_group *group = join(member);
    stw_runtime *runtime = open_sums(group, member, DEVICE, &options);
    stw_tensor *filler = make_gradient(runtime, "filler", filled, STW_F32, STW_PARTITION_LOCAL);
    stw_tensor *later = make_gradient(runtime, "later", n, STW_F32, STW_PARTITION_LOCAL);
    stw_tensor *last = make_gradient(runtime, "last", n, STW_F32, STW_PARTITION_LOCAL);
    stw_tensor *gradient = make_gradient(runtime, "g", n, STW_F32, STW_PARTITION_SHARDED);
    stw_view fills = fetch(runtime, filler, STW_WRITE, STW_SHARD);
    struct gate gate = hold(runtime);
    stw_view view = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
    for (uint64_t k = 0; k < n; ++k) ((float *)view.pointer)[k] = 1.0F;
    let_go(&view, 0);
    write_all(runtime, later);
    write_all(runtime, last); /* there is room for two of the three */
    const uint64_t before = brought_bytes(runtime);
    let_on(runtime, &gate, member);
    HOLDS(brought_bytes(runtime) == before);
    view = fetch(runtime, gradient, STW_READ, STW_SHARD);
    for (uint64_t k = 0; k < view.element_count; ++k) {
        HOLDS(((const float *)view.pointer)[k] == (float)member->size);
    }
    let_go(&view, 0);
    let_go(&fills, STW_RELEASE_ABANDON);
    finish(runtime, group, member, STW_OK);
}

CLAIM(sums_in_another_order_are_told)
{
    enum { N = 6 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_plain(group, member);
    stw_tensor *gradients[N];
    stw_view views[N];
    stw_view view;
    for (uint32_t i = 0; i < N; ++i) {
        const char name[] = {'g', (char)('0' + i), '\0'};
        gradients[i] = make_gradient(runtime, name, 1000, STW_F32, STW_PARTITION_SHARDED);
    }
    struct gate gate = hold(runtime);
    for (uint32_t i = 0; i < N; ++i) {
        views[i] = fetch(runtime, gradients[i], STW_REDUCE, STW_WHOLE);
        for (uint64_t k = 0; k < 1000; ++k) ((float *)views[i].pointer)[k] = 1.0F;
    }
    for (uint32_t i = 0; i < N; ++i) {
        const bool swapped = member->rank == 1 && (i == 2 || i == 3);
        SUCCEEDS(stw_release(&views[swapped ? 5 - i : i], 1, STW_STREAM_HOST, 0));
    }
    meet(member);
    let_go(&gate.view, 0);
    /* What came before is summed; who is where is said by the names of the two. */
    for (uint32_t i = 0; i < 2; ++i) {
        view = fetch(runtime, gradients[i], STW_READ, STW_SHARD);
        for (uint64_t k = 0; k < view.element_count; ++k) {
            HOLDS(((const float *)view.pointer)[k] == (float)member->size);
        }
        let_go(&view, 0);
    }
    stw_fetch_request request = {
        .struct_size = sizeof request, .tensor = gradients[2], .scope = STW_SHARD};
    HOLDS(stw_fetch(runtime, NULL, &request, 1, &view) == STW_ERROR_ORDER);
    HOLDS(strstr(stw_last_error(), "'g2'") && strstr(stw_last_error(), "'g3'"));
    finish(runtime, group, member, STW_ERROR_ORDER);
}
