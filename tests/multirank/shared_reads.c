/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of one host read of tensors that each of them holds a copy of. */
#include "tests/multirank/tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 16, ELEMENTS = BLOCKS * BLOCK / 4, ROUNDS = 4 };

static stw_runtime *open_storing(stw_group *group, const struct member *member,
                                 uint64_t node_host_bytes)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    nvme.path = member->directory;
    nvme.budget_bytes = 64 * BLOCK;
    options.flags = STW_RUNTIME_NO_PROBE;
    options.name = "ranks";
    options.group = group;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 32 * BLOCK;
    options.node_host_bytes = node_host_bytes;
    options.block_bytes = STW_BLOCK_64K;
    options.whole_bytes = 4 * BLOCK;
    options.thread_count = 1;
    options.timeout_ns = 60ull * 1000000000;
    options.log_level = STW_LOG_ERROR;
    SUCCEEDS(stw_runtime_open(&options, &runtime));
    return runtime;
}

static stw_tensor *make_copy(stw_runtime *runtime, const char *name, uint64_t elements,
                             uint32_t role)
{
    return make(runtime, name, elements, role, STW_PARTITION_REPLICATED);
}

static stw_view fetch_here(stw_runtime *runtime, stw_tensor *tensor, uint32_t access)
{
    return fetch(runtime, tensor, access, STW_SHARD);
}

/* The tensor with these values, on nvme alone. */
static void store(stw_runtime *runtime, stw_tensor *tensor, uint64_t elements, uint32_t salt)
{
    stw_view view = fetch_here(runtime, tensor, STW_WRITE);
    HOLDS(view.element_count == elements);
    for (uint64_t i = 0; i < elements; ++i) ((float *)view.pointer)[i] = value_of(i, salt);
    SUCCEEDS(stw_release(&view, 1, STW_STREAM_HOST, 0));
    SUCCEEDS(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0));
}

static void expect(stw_runtime *runtime, stw_tensor *tensor, uint64_t elements, uint32_t salt)
{
    stw_view view = fetch_here(runtime, tensor, STW_READ);
    HOLDS(view.element_count == elements);
    for (uint64_t i = 0; i < elements; ++i) {
        HOLDS(((const float *)view.pointer)[i] == value_of(i, salt));
    }
    SUCCEEDS(stw_release(&view, 1, STW_STREAM_HOST, 0));
}

static stw_link_stats reads(stw_runtime *runtime)
{
    stw_link_stats stats = STW_LINK_STATS_INIT;
    SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_NVME_TO_HOST, 0, &stats));
    return stats;
}

/* Over all ranks; each is told the same. */
static uint64_t sum(stw_runtime *runtime, uint64_t mine)
{
    stw_tensor *tensor = make_copy(runtime, "sum", 1, STW_ROLE_GRAD);
    const float value = (float)mine;
    SUCCEEDS(stw_reduce(tensor, &value, NULL));
    stw_view view = fetch_here(runtime, tensor, STW_READ);
    const float all = *(const float *)view.pointer;
    SUCCEEDS(stw_release(&view, 1, STW_STREAM_HOST, 0));
    SUCCEEDS(stw_tensor_destroy(&tensor, 1));
    return (uint64_t)lrintf(all);
}

/* Blocks that all ranks together read from their disks to have the tensor; each sees `salt`. */
static uint64_t blocks_read(stw_runtime *runtime, stw_tensor *tensor, struct member *member,
                            uint32_t salt, uint64_t *shared_out)
{
    store(runtime, tensor, ELEMENTS, salt);
    const stw_link_stats before = reads(runtime);
    meet(member);
    expect(runtime, tensor, ELEMENTS, salt);
    const stw_link_stats after = reads(runtime);
    const uint64_t own = after.bytes - before.bytes;
    const uint64_t shared = after.shared_bytes - before.shared_bytes;
    HOLDS(own + shared == (uint64_t)BLOCKS * BLOCK);
    *shared_out = sum(runtime, shared / BLOCK);
    return sum(runtime, own / BLOCK);
}

/* ------------------------------------------------------------------------------------------------
 */

/* A rank that the machine lets wait for long is not waited for, so not every round is the best. */
static void what_all_hold_is_read_once_on_a_host(struct member *member)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_storing(group, member, 0);
    stw_tensor *tensor = make_copy(runtime, "w", ELEMENTS, STW_ROLE_PARAM);
    uint64_t least = UINT64_MAX;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        uint64_t shared = 0;
        const uint64_t own = blocks_read(runtime, tensor, member, round, &shared);
        HOLDS(own >= BLOCKS && own + shared == (uint64_t)BLOCKS * member->size);
        if (own < least) least = own;
    }
    HOLDS(least < BLOCKS + BLOCKS / 4);
    end(runtime, group, member);
}

/* Nobody promised the library that it is so: what differs is each rank's own. */
static void what_differs_on_a_rank_is_its_own(struct member *member)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_storing(group, member, 0);
    stw_tensor *tensor = make_copy(runtime, "w", ELEMENTS, STW_ROLE_PARAM);
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        uint64_t shared = 0;
        const uint32_t salt = round * 100 + member->rank;
        HOLDS(blocks_read(runtime, tensor, member, salt, &shared) == BLOCKS * member->size);
        HOLDS(shared == 0);
    }
    end(runtime, group, member);
}

static void small_ones_that_share_a_block_are_read_together(struct member *member)
{
    enum { SMALL = 6, N = 2000 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_storing(group, member, 0);
    stw_tensor *small[SMALL];
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < SMALL; ++i) {
        const char name[] = {(char)('a' + i), '\0'};
        small[i] = make_copy(runtime, name, N, STW_ROLE_PARAM);
    }
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        for (uint32_t i = 0; i < SMALL; ++i) store(runtime, small[i], N, i + 10 * round);
        const uint64_t before = reads(runtime).bytes;
        meet(member);
        for (uint32_t i = 0; i < SMALL; ++i) expect(runtime, small[i], N, i + 10 * round);
        const uint64_t own = sum(runtime, reads(runtime).bytes - before > 0);
        if (own < least) least = own;
    }
    HOLDS(least == 1);
    end(runtime, group, member);
}

/* Equal or not: nobody says that a local tensor is the same on all ranks. */
static void a_block_with_a_ranks_own_tensor_is_its_own(struct member *member)
{
    enum { N = 2000 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_storing(group, member, 0);
    stw_tensor *all = make_copy(runtime, "a", N, STW_ROLE_PARAM);
    stw_tensor *own = make(runtime, "b", N, STW_ROLE_PARAM, STW_PARTITION_LOCAL);
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        store(runtime, all, N, round);
        store(runtime, own, N, round);
        meet(member);
        expect(runtime, all, N, round);
        expect(runtime, own, N, round);
    }
    HOLDS(sum(runtime, reads(runtime).shared_bytes) == 0);
    end(runtime, group, member);
}

static void without_room_on_the_host_each_reads_its_own(struct member *member)
{
    stw_group *group = join(member);
    /* As much as the host tiers take, and nothing more. */
    stw_runtime *runtime = open_storing(group, member, member->size * 32ull * BLOCK);
    stw_tensor *tensor = make_copy(runtime, "w", ELEMENTS, STW_ROLE_PARAM);
    uint64_t shared = 0;
    HOLDS(blocks_read(runtime, tensor, member, 1, &shared) == BLOCKS * member->size);
    HOLDS(shared == 0);
    end(runtime, group, member);
}

int main(int argc, char **argv)
{
    static const struct claim claims[] = {
        CLAIM(what_all_hold_is_read_once_on_a_host),
        CLAIM(what_differs_on_a_rank_is_its_own),
        CLAIM(small_ones_that_share_a_block_are_read_together),
        CLAIM(a_block_with_a_ranks_own_tensor_is_its_own),
        CLAIM(without_room_on_the_host_each_reads_its_own),
    };
    return run_claims(argc, argv, claims, sizeof claims / sizeof claims[0]);
}
