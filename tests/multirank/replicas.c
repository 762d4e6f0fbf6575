/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that hold the same shards as others: four ranks as two groups of two. Ranks 0 and 1 hold
 * shards between them, and so do 2 and 3; 0 and 2 hold the same ones, and so do 1 and 3. */
#include "tests/multirank/tensors.h"
#include "tests/support/budget_sentence.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_BLOCKS = 24, HOST_BLOCKS = 16, SHARDS = 2, GRADIENTS = 40, STEPS = 4 };

struct groups {
    stw_group *shards;
    stw_group *replicas;
};

static struct groups join_both(struct member *member)
{
    struct groups groups;
    HOLDS(member->size == 2 * SHARDS);
    groups.shards = join_part(member, 0, member->rank / SHARDS, member->rank % SHARDS, SHARDS);
    groups.replicas = join_part(member, 1, member->rank % SHARDS, member->rank / SHARDS, 2);
    return groups;
}

static stw_status try_open_within(uint64_t node_host_blocks, stw_group *group, stw_group *replicas,
                                  const struct member *member, uint64_t whole_blocks,
                                  stw_runtime **runtime_out)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_device_options device = {.struct_size = sizeof device,
                                 .budget_bytes = (WHOLE_BLOCKS + 2 * GRADIENTS) * BLOCK};
    stw_nvme_options nvme = {
        .struct_size = sizeof nvme, .path = member->directory, .budget_bytes = 512 * BLOCK};
    options.flags = STW_RUNTIME_NO_PROBE;
    options.name = "replicas";
    options.group = group;
    options.replica_group = replicas;
    options.devices = &device;
    options.device_count = 1;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = HOST_BLOCKS * BLOCK;
    options.node_host_bytes = node_host_blocks * BLOCK;
    options.block_bytes = STW_BLOCK_64K;
    options.whole_bytes = whole_blocks * BLOCK;
    options.thread_count = 1;
    options.timeout_ns = 60ull * 1000000000;
    return stw_runtime_open(&options, runtime_out);
}

static stw_status try_open(stw_group *group, stw_group *replicas, const struct member *member,
                           uint64_t whole_blocks, stw_runtime **runtime_out)
{
    return try_open_within(0, group, replicas, member, whole_blocks, runtime_out);
}

static stw_runtime *open_both(stw_group *group, stw_group *replicas, const struct member *member)
{
    stw_runtime *runtime = NULL;
    SUCCEEDS(try_open(group, replicas, member, WHOLE_BLOCKS, &runtime));
    return runtime;
}

static void leave(struct groups *groups, struct member *member)
{
    meet(member);
    SUCCEEDS(stw_group_destroy(groups->replicas));
    SUCCEEDS(stw_group_destroy(groups->shards));
}

static stw_status try_fetch(stw_runtime *runtime, stw_tensor *tensor, uint32_t scope)
{
    stw_view view;
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor, .scope = scope};
    return stw_fetch(runtime, NULL, &request, 1, &view);
}

CLAIM(sums_go_over_shards_and_replicas)
{
    struct groups groups = join_both(member);
    stw_runtime *runtime = open_both(groups.shards, groups.replicas, member);
    stw_tensor *gradients[GRADIENTS];
    stw_view views[GRADIENTS];
    const float ranks = (float)member->size;
    const float all = ranks * (ranks + 1) / 2;
    stw_link_stats link = STW_LINK_STATS_INIT;
    for (uint32_t i = 0; i < GRADIENTS; ++i) {
        char name[16];
        snprintf(name, sizeof name, "g%u", i);
        /* Some too large to share a collective. */
        const uint64_t elements = i % 10 == 7 ? 100003 : 1 + i * 37 % 701;
        gradients[i] = make(runtime, name, elements, STW_ROLE_GRAD,
                            i % 3 == 1 ? STW_PARTITION_REPLICATED : STW_PARTITION_SHARDED);
        views[i] = fetch(runtime, gradients[i], STW_REDUCE, STW_WHOLE);
        for (uint64_t k = 0; k < views[i].element_count; ++k) {
            ((float *)views[i].pointer)[k] = (float)member->rank + 1 + (float)(k % 3);
        }
    }
    SUCCEEDS(stw_release(views, GRADIENTS, STW_STREAM_HOST, 0));
    for (uint32_t i = 0; i < GRADIENTS; ++i) {
        stw_view view = fetch(runtime, gradients[i], STW_READ, STW_SHARD);
        for (uint64_t k = 0; k < view.element_count; ++k) {
            const float step = ranks * (float)((view.element_begin + k) % 3);
            HOLDS(((const float *)view.pointer)[k] == all + step);
        }
        let_go(&view, 0);
    }
    SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &link));
    HOLDS(link.errors == 0 && link.transfers % 2 == 0); /* each sum over both */
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    leave(&groups, member);
}

enum { N = 60000 };

struct trained {
    double norms[STEPS];
    float values[N];
};

/* Integer gradients, so that sums are exact whatever their order. */
static void train(stw_runtime *runtime, const struct member *member, struct trained *out)
{
    stw_tensor *parameter = make(runtime, "p", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *gradient = make(runtime, "g", N, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    SUCCEEDS(stw_tensor_fill(parameter, 1.0, NULL));
    optimizer_add(optimizer, parameter, gradient);
    for (uint32_t step = 0; step < STEPS; ++step) {
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        stw_view weights = fetch(runtime, parameter, STW_READ, STW_WHOLE);
        stw_view sums = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
        for (uint64_t k = 0; k < N; ++k) {
            const float sign = ((const float *)weights.pointer)[k] > 0.999F ? 1.0F : -1.0F;
            ((float *)sums.pointer)[k] = sign * (float)((k + member->rank * 5 + step) % 7);
        }
        let_go(&weights, 0);
        let_go(&sums, 0);
        stw_update_options update = {.struct_size = sizeof update, .clip_norm = 1.0};
        SUCCEEDS(stw_optimizer_step(optimizer, &update, &result));
        HOLDS(result.nonfinite == 0 && result.clip_coefficient < 1.0);
        out->norms[step] = result.norm;
    }
    SUCCEEDS(stw_tensor_read(parameter, out->values, NULL));
    /* What one rank alone sees is seen by all, and nobody steps. */
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_view sums = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
    if (member->rank == 0) ((float *)sums.pointer)[N - 1] = INFINITY;
    let_go(&sums, 0);
    stw_update_options update = {.struct_size = sizeof update, .flags = STW_UPDATE_SKIP_NONFINITE};
    HOLDS(stw_optimizer_step(optimizer, &update, &result) == STW_SKIPPED);
    HOLDS(result.nonfinite == 1 && result.updated == 0);
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
}

CLAIM(training_has_the_bits_of_one_group)
{
    struct trained *flat = calloc(2, sizeof *flat);
    struct trained *hybrid = flat + 1;
    stw_group *group = join(member);
    train(open_both(group, NULL, member), member, flat);
    meet(member);
    SUCCEEDS(stw_group_destroy(group));
    struct groups groups = join_both(member);
    train(open_both(groups.shards, groups.replicas, member), member, hybrid);
    HOLDS(memcmp(flat->values, hybrid->values, sizeof flat->values) == 0);
    for (uint32_t step = 0; step < STEPS; ++step) HOLDS(flat->norms[step] == hybrid->norms[step]);
    free(flat);
    leave(&groups, member);
}

CLAIM(replicas_are_checked_at_open)
{
    struct groups groups = join_both(member);
    stw_runtime *runtime = NULL;
    HOLDS(try_open(NULL, groups.replicas, member, WHOLE_BLOCKS, &runtime) == STW_ERROR_INVALID);
    HOLDS(try_open(groups.shards, groups.shards, member, WHOLE_BLOCKS, &runtime) ==
          STW_ERROR_INVALID);
    /* Ranks 2 and 3 have less. All four hear of it, whoever their replicas are. */
    const uint64_t blocks = member->rank >= SHARDS ? WHOLE_BLOCKS - 1 : WHOLE_BLOCKS;
    HOLDS(try_open(groups.shards, groups.replicas, member, blocks, &runtime) == STW_ERROR_MISMATCH);
    HOLDS(strstr(stw_last_error(), "1.5 MiB for wholes") != NULL);
    runtime = open_both(groups.shards, groups.replicas, member);
    stw_runtime *second = NULL;
    stw_group *self = NULL;
    stw_group_options alone = STW_GROUP_OPTIONS_INIT;
    HOLDS(stw_group_destroy(groups.replicas) == STW_ERROR_BUSY);
    HOLDS(try_open(groups.shards, groups.replicas, member, WHOLE_BLOCKS, &second) ==
          STW_ERROR_BUSY);
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    meet(member);
    /* Given back, both; and a replica group of this process alone is none. */
    SUCCEEDS(stw_group_create(&alone, &self));
    runtime = open_both(groups.shards, self, member);
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    SUCCEEDS(stw_group_destroy(self));
    leave(&groups, member);
}

/* All four are on one host, whichever group they are in. */
CLAIM(the_budget_of_a_host_is_that_of_all_groups)
{
    struct groups groups = join_both(member);
    stw_runtime *runtime = NULL;
    HOLDS(try_open_within(4 * HOST_BLOCKS - 1, groups.shards, groups.replicas, member, WHOLE_BLOCKS,
                          &runtime) == STW_ERROR_BUDGET);
    HOLDS(strstr(stw_last_error(), "has 4 ranks"));
    HOLDS(budget_sentence_wrong(stw_last_error()) == NULL);
    SUCCEEDS(try_open_within(4 * HOST_BLOCKS, groups.shards, groups.replicas, member, WHOLE_BLOCKS,
                             &runtime));
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    leave(&groups, member);
}

CLAIM(replicas_in_another_order_are_told)
{
    struct groups groups = join_both(member);
    stw_runtime *runtime = open_both(groups.shards, groups.replicas, member);
    stw_tensor *gradients[2] = {
        make(runtime, "first", 1000, STW_ROLE_GRAD, STW_PARTITION_SHARDED),
        make(runtime, "second", 1000, STW_ROLE_GRAD, STW_PARTITION_SHARDED)};
    for (uint32_t i = 0; i < 2; ++i) {
        stw_view view =
            fetch(runtime, gradients[member->rank < SHARDS ? i : 1 - i], STW_REDUCE, STW_WHOLE);
        let_go(&view, 0);
    }
    HOLDS(try_fetch(runtime, gradients[0], STW_SHARD) == STW_ERROR_ORDER);
    HOLDS(strstr(stw_last_error(), "'first'") && strstr(stw_last_error(), "'second'"));
    HOLDS(stw_runtime_close(runtime, 0, 0) == STW_ERROR_ORDER);
    leave(&groups, member);
}

/* Within each group of shards all agree: what differs is found between the replicas. */
CLAIM(replicas_that_step_otherwise_are_told)
{
    struct groups groups = join_both(member);
    stw_runtime *runtime = open_both(groups.shards, groups.replicas, member);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_optimizer *optimizer = NULL;
    const bool odd = member->rank >= SHARDS;
    options.algorithm = STW_OPTIMIZER_SGD;
    SUCCEEDS(stw_optimizer_create(runtime, &options, &optimizer));
    entry.parameter = make(runtime, "p", 1000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    entry.gradient = make(runtime, "g", 1000, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    SUCCEEDS(stw_tensor_fill(entry.parameter, 1.0, NULL));
    SUCCEEDS(stw_optimizer_add(optimizer, &entry, 1));
    for (int attempt = 0; attempt < 3; ++attempt) {
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        stw_hyper hyper = STW_HYPER_INIT;
        stw_view view = fetch(runtime, entry.gradient, STW_REDUCE, STW_WHOLE);
        for (uint64_t k = 0; k < view.element_count; ++k) ((float *)view.pointer)[k] = 1.0F;
        let_go(&view, 0);
        stw_update_options update = {.struct_size = sizeof update,
                                     .clip_norm = attempt == 0 && odd ? 100.0 : 1e9};
        hyper.lr = attempt == 1 && odd ? 0.5 : 0.25;
        SUCCEEDS(stw_optimizer_set_hyper(optimizer, 0, &hyper));
        const stw_status status = stw_optimizer_step(optimizer, &update, &result);
        HOLDS(status == (attempt < 2 ? STW_ERROR_MISMATCH : STW_OK));
        if (attempt == 0) HOLDS(strstr(stw_last_error(), "clip_norm 100"));
        if (attempt == 1) HOLDS(strstr(stw_last_error(), "lr 0.5"));
        if (attempt < 2) SUCCEEDS(stw_tensor_discard(&entry.gradient, 1));
    }
    stw_view weights = fetch(runtime, entry.parameter, STW_READ, STW_WHOLE);
    HOLDS(((const float *)weights.pointer)[999] == 1.0F - 0.25F * (float)member->size);
    let_go(&weights, 0);
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    leave(&groups, member);
}

CLAIM_WITHIN(a_replica_that_does_not_come_is_told_to_all, 4000000000)
{
    struct groups groups = join_both(member);
    stw_runtime *runtime = open_both(groups.shards, groups.replicas, member);
    stw_tensor *gradient = make(runtime, "g", 1000, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    stw_tensor *parameter = make(runtime, "p", 1000, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    SUCCEEDS(stw_tensor_fill(parameter, 1.0, NULL));
    if (member->rank != 3) {
        stw_view view = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
        let_go(&view, 0);
        HOLDS(try_fetch(runtime, gradient, STW_SHARD) == STW_ERROR_PEER);
        /* Neither group is used any more; what is local goes on. */
        HOLDS(try_fetch(runtime, parameter, STW_WHOLE) == STW_ERROR_PEER);
        view = fetch(runtime, parameter, STW_READ, STW_SHARD);
        let_go(&view, 0);
    }
    meet(member);
    HOLDS(stw_runtime_close(runtime, 0, 0) == (member->rank == 3 ? STW_OK : STW_ERROR_PEER));
    leave(&groups, member);
}

static stw_runtime *open_kept(const struct groups *groups, const struct member *member,
                              uint32_t flags)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    stw_nvme_options nvme = {.struct_size = sizeof nvme, .path = member->directory};
    nvme.budget_bytes = flags == STW_RUNTIME_RESUME ? 0 : 256 * BLOCK; /* 0: as it was made */
    options.flags = STW_RUNTIME_NO_PROBE | flags;
    options.group = groups->shards;
    options.replica_group = groups->replicas;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 64 * BLOCK;
    options.block_bytes = STW_BLOCK_64K;
    options.store_name = "replicas";
    SUCCEEDS(stw_runtime_open(&options, &runtime));
    return runtime;
}

static stw_tensor *make_durable(stw_runtime *runtime, uint64_t elements)
{
    stw_tensor_spec spec = spec_of("w", elements, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    spec.flags = STW_TENSOR_DURABLE;
    return make_as(runtime, &spec);
}

/* A generation is one of all groups or of none, and all four find the same. */
CLAIM(generations_are_those_of_all_replicas)
{
    enum { ELEMENTS = 50000 };
    struct groups groups = join_both(member);
    stw_runtime *runtime = open_kept(&groups, member, STW_RUNTIME_OVERWRITE);
    stw_tensor *tensor = make_durable(runtime, ELEMENTS);
    uint64_t generation = 0;
    char path[512];
    stw_view view;
    write_shard(runtime, tensor, 1);
    SUCCEEDS(stw_commit(runtime, NULL, &generation));
    HOLDS(generation == 1);
    write_shard(runtime, tensor, 2);
    /* One rank of one group. */
    if (member->rank == 3) view = fetch(runtime, tensor, STW_READ_WRITE, STW_SHARD);
    HOLDS(stw_commit(runtime, NULL, &generation) == STW_ERROR_BUSY);
    if (member->rank == 3) let_go(&view, 0);
    SUCCEEDS(stw_commit(runtime, NULL, &generation));
    HOLDS(generation == 2);
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    meet(member);
    runtime = open_kept(&groups, member, STW_RUNTIME_RESUME);
    tensor = make_durable(runtime, ELEMENTS);
    expect_whole(runtime, tensor, ELEMENTS, 2);
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    leave(&groups, member);
    snprintf(path, sizeof path, "%s/replicas.%u-of-4.stepwell", member->directory, member->rank);
    HOLDS(remove(path) == 0);
    snprintf(path, sizeof path, "%s/replicas.%u-of-4.generations", member->directory, member->rank);
    HOLDS(remove(path) == 0);
}
