/* SPDX-License-Identifier: Apache-2.0 */
/* Generations over ranks: one is on all of them or on none, and all find the same one again. */
#include "tests/multirank/tensors.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ELEMENTS = 60000, FEW = 100 };

static const char *const kStore = "claims";

struct kept {
    stw_runtime *runtime;
    stw_group *group;
    stw_tensor *sharded;
    stw_tensor *copied;
    stw_tensor *own;
};

static stw_status try_open(stw_group *group, const struct member *member, uint32_t flags,
                           const char *faults, uint64_t generation, stw_runtime **runtime_out)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_nvme_options nvme = {.struct_size = sizeof nvme, .path = member->directory};
    /* A store that is there says itself how large it is, to each rank. */
    nvme.budget_bytes = flags == STW_RUNTIME_RESUME ? 0 : 512 * BLOCK;
    nvme.driver = faults ? "fault" : NULL;
    nvme.driver_options = faults;
    options.flags = STW_RUNTIME_NO_PROBE | flags;
    options.name = "ranks";
    options.group = group;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 64 * BLOCK;
    options.block_bytes = STW_BLOCK_64K;
    options.thread_count = 1;
    options.timeout_ns = 60ull * 1000000000;
    options.store_name = kStore;
    options.resume_generation = generation;
    return stw_runtime_open(&options, runtime_out);
}

static stw_tensor *make_durable(stw_runtime *runtime, const char *name, uint64_t elements,
                                uint32_t partition)
{
    stw_tensor_spec spec = spec_of(name, elements, STW_ROLE_PARAM, partition);
    spec.flags = STW_TENSOR_DURABLE;
    return make_as(runtime, &spec);
}

static struct kept open_kept(struct member *member, uint32_t flags, const char *faults)
{
    struct kept kept;
    kept.group = join(member);
    SUCCEEDS(try_open(kept.group, member, flags, faults, 0, &kept.runtime));
    kept.sharded = make_durable(kept.runtime, "sharded", ELEMENTS, STW_PARTITION_SHARDED);
    kept.copied = make_durable(kept.runtime, "copied", FEW, STW_PARTITION_REPLICATED);
    kept.own = make_durable(kept.runtime, "own", FEW, STW_PARTITION_LOCAL);
    return kept;
}

/* Other values on each rank where the tensor is its own. */
static void write_all(const struct kept *kept, const struct member *member, uint32_t salt)
{
    write_shard(kept->runtime, kept->sharded, salt);
    write_shard(kept->runtime, kept->copied, salt + 1);
    write_shard(kept->runtime, kept->own, salt + 100 + member->rank);
}

static void expect_all(const struct kept *kept, const struct member *member, uint32_t salt)
{
    expect_whole(kept->runtime, kept->sharded, ELEMENTS, salt);
    expect_whole(kept->runtime, kept->copied, FEW, salt + 1);
    stw_view view = fetch(kept->runtime, kept->own, STW_READ, STW_SHARD);
    expect_values(&view, FEW, salt + 100 + member->rank);
    let_go(&view, 0);
}

static uint64_t newest(stw_runtime *runtime)
{
    stw_generation_info info;
    info.struct_size = sizeof info;
    SUCCEEDS(stw_generation_get(runtime, 0, &info));
    return info.generation;
}

static void close_kept(struct kept *kept, struct member *member)
{
    (void)stw_runtime_close(kept->runtime, 0, 0);
    meet(member);
    (void)stw_group_destroy(kept->group);
}

static void remove_files(struct member *member)
{
    static const char *const ends[] = {"stepwell", "generations"};
    char path[512];
    meet(member);
    for (uint32_t i = 0; i < 2; ++i) {
        snprintf(path, sizeof path, "%s/%s.%u-of-%u.%s", member->directory, kStore, member->rank,
                 member->size, ends[i]);
        unlink(path);
    }
    meet(member);
}

CLAIM(what_was_committed_is_found_on_all_ranks)
{
    struct kept kept = open_kept(member, STW_RUNTIME_OVERWRITE, NULL);
    uint64_t generation = 0;
    write_all(&kept, member, 1);
    SUCCEEDS(stw_commit(kept.runtime, NULL, &generation));
    HOLDS(generation == 1);
    write_all(&kept, member, 11);
    SUCCEEDS(stw_commit(kept.runtime, NULL, &generation));
    HOLDS(generation == 2);
    write_all(&kept, member, 21); /* and not committed */
    SUCCEEDS(stw_runtime_drain(kept.runtime, 0));
    close_kept(&kept, member);
    kept = open_kept(member, STW_RUNTIME_RESUME, NULL);
    HOLDS(newest(kept.runtime) == 2);
    expect_all(&kept, member, 11);
    write_all(&kept, member, 31);
    SUCCEEDS(stw_commit(kept.runtime, NULL, &generation));
    HOLDS(generation == 3);
    close_kept(&kept, member);
    kept = open_kept(member, STW_RUNTIME_RESUME, NULL);
    expect_all(&kept, member, 31);
    close_kept(&kept, member);
    remove_files(member);
}

CLAIM(one_rank_that_cannot_keeps_all_from_it)
{
    struct kept kept = open_kept(member, STW_RUNTIME_OVERWRITE, NULL);
    const uint32_t last = member->size - 1;
    stw_view view;
    write_all(&kept, member, 1);
    SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
    write_all(&kept, member, 11);
    if (member->rank == last) view = fetch(kept.runtime, kept.own, STW_READ_WRITE, STW_SHARD);
    HOLDS(stw_commit(kept.runtime, NULL, NULL) == STW_ERROR_BUSY);
    HOLDS(strstr(stw_last_error(), "'own' has an open view") != NULL);
    HOLDS(newest(kept.runtime) == 1);
    if (member->rank == last) let_go(&view, 0);
    SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
    HOLDS(newest(kept.runtime) == 2);
    close_kept(&kept, member);
    kept = open_kept(member, STW_RUNTIME_RESUME, NULL);
    expect_all(&kept, member, 11);
    close_kept(&kept, member);
    remove_files(member);
}

/* A flush that fails on one rank: its part may be on the disk or not, and is no generation. */
CLAIM(a_disk_that_fails_on_one_rank_leaves_all_at_the_one_before)
{
    struct kept kept = open_kept(member, STW_RUNTIME_OVERWRITE, NULL);
    const char *faults = "inner=posix;inner.allow_tmpfs=1;at=flush:0:eio";
    const char *mine = member->rank == 0 ? faults : NULL;
    write_all(&kept, member, 1);
    SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
    close_kept(&kept, member);
    kept = open_kept(member, STW_RUNTIME_RESUME, mine);
    write_all(&kept, member, 11);
    HOLDS(stw_commit(kept.runtime, NULL, NULL) == STW_ERROR_SYNC);
    HOLDS(newest(kept.runtime) == 1);
    HOLDS(stw_commit(kept.runtime, NULL, NULL) == STW_ERROR_SYNC); /* it sticks, for all */
    expect_all(&kept, member, 11);
    close_kept(&kept, member);
    kept = open_kept(member, STW_RUNTIME_RESUME, NULL);
    HOLDS(newest(kept.runtime) == 1);
    expect_all(&kept, member, 1);
    close_kept(&kept, member);
    remove_files(member);
}

CLAIM(ranks_that_ask_for_different_things_are_told)
{
    struct kept kept = open_kept(member, STW_RUNTIME_OVERWRITE, NULL);
    stw_runtime *runtime = NULL;
    write_all(&kept, member, 1);
    SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
    close_kept(&kept, member);
    kept.group = join(member);
    HOLDS(try_open(kept.group, member, STW_RUNTIME_RESUME, NULL, member->rank == 0 ? 1 : 0,
                   &runtime) == STW_ERROR_MISMATCH);
    HOLDS(strstr(stw_last_error(), "resume_generation 1") != NULL);
    /* A store that is there, and one rank that would make another. */
    HOLDS(try_open(kept.group, member, 0, NULL, 0, &runtime) == STW_ERROR_EXISTS);
    HOLDS(try_open(kept.group, member, STW_RUNTIME_RESUME, NULL, 9, &runtime) ==
          STW_ERROR_NOT_FOUND);
    HOLDS(strstr(stw_last_error(), "all ranks have 1") != NULL);
    HOLDS(runtime == NULL);
    meet(member);
    SUCCEEDS(stw_group_destroy(kept.group));
    remove_files(member);
}

/* The files of one rank are gone: none is resumed, and what the others have goes when told so. */
CLAIM(a_rank_without_its_files_is_not_left_behind)
{
    const uint32_t kBoth = STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE;
    struct kept kept = open_kept(member, kBoth, NULL); /* there is nothing yet: it is made */
    stw_runtime *runtime = NULL;
    stw_tensor_info info;
    char path[512];
    write_all(&kept, member, 1);
    SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
    close_kept(&kept, member);
    snprintf(path, sizeof path, "%s/%s.0-of-%u.generations", member->directory, kStore,
             member->size);
    if (member->rank == 0) HOLDS(unlink(path) == 0);
    kept.group = join(member);
    HOLDS(try_open(kept.group, member, STW_RUNTIME_RESUME, NULL, 0, &runtime) ==
          STW_ERROR_NOT_FOUND);
    HOLDS(try_open(kept.group, member, kBoth, NULL, 0, &runtime) == STW_ERROR_NOT_FOUND);
    HOLDS(strstr(stw_last_error(), "rank 0 has none, rank 1 has 1") != NULL);
    meet(member);
    SUCCEEDS(stw_group_destroy(kept.group));
    kept = open_kept(member, STW_RUNTIME_OVERWRITE, NULL);
    info.struct_size = sizeof info;
    SUCCEEDS(stw_tensor_info_get(kept.sharded, &info));
    HOLDS(info.restored == 0 && info.state == STW_STATE_EMPTY);
    write_all(&kept, member, 11);
    SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
    close_kept(&kept, member);
    remove_files(member);
}

/* Moments and step counts go on on each rank with its shard of them. */
CLAIM(updates_over_ranks_go_on_with_their_counts)
{
    static const uint32_t kFlags[] = {STW_RUNTIME_OVERWRITE, STW_RUNTIME_RESUME};
    for (uint32_t run = 0; run < 2; ++run) {
        struct kept kept = open_kept(member, kFlags[run], NULL);
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        stw_optimizer *optimizer = NULL;
        uint64_t count = 0;
        entry.parameter = kept.sharded;
        entry.gradient = make(kept.runtime, "g", ELEMENTS, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
        options.algorithm = STW_OPTIMIZER_ADAMW;
        options.flags = STW_OPTIMIZER_DURABLE;
        SUCCEEDS(stw_optimizer_create(kept.runtime, &options, &optimizer));
        SUCCEEDS(stw_optimizer_set_hyper(optimizer, 0, &(stw_hyper)STW_HYPER_INIT));
        SUCCEEDS(stw_optimizer_add(optimizer, &entry, 1));
        if (run == 0) write_all(&kept, member, 1);
        SUCCEEDS(stw_optimizer_get_count(optimizer, kept.sharded, &count));
        HOLDS(count == 2 * run);
        for (uint32_t step = 0; step < 2; ++step) {
            stw_update_result result = STW_UPDATE_RESULT_INIT;
            stw_update_options update = {.struct_size = sizeof update, .clip_norm = 1.0};
            write_shard(kept.runtime, entry.gradient, 7 + step);
            SUCCEEDS(stw_optimizer_step(optimizer, &update, &result));
        }
        SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
        close_kept(&kept, member);
    }
    remove_files(member);
}

#ifdef TEST_OF_THREADS
/* One rank is as if it had been killed: the others are told within their timeout, keep what they
 * have, and the next job finds the generation before on all ranks. */
CLAIM_WITHIN(a_rank_that_says_nothing_leaves_the_one_before, 2000000000)
{
    struct kept kept = open_kept(member, STW_RUNTIME_OVERWRITE, NULL);
    write_all(&kept, member, 1);
    SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
    write_all(&kept, member, 11);
    SUCCEEDS(stw_runtime_drain(kept.runtime, 0));
    meet(member);
    if (member->rank == 1) spoil(member, ENGINE_IS_SILENT);
    HOLDS(stw_commit(kept.runtime, NULL, NULL) == STW_ERROR_PEER);
    HOLDS(stw_commit(kept.runtime, NULL, NULL) == STW_ERROR_PEER);
    stw_view view = fetch(kept.runtime, kept.own, STW_READ, STW_SHARD);
    expect_values(&view, FEW, 111 + member->rank);
    let_go(&view, 0);
    close_kept(&kept, member);
    kept.group = join_part(member, 0, 0, member->rank, member->size);
    SUCCEEDS(try_open(kept.group, member, STW_RUNTIME_RESUME, NULL, 0, &kept.runtime));
    HOLDS(newest(kept.runtime) == 1);
    close_kept(&kept, member);
    remove_files(member);
}

/* A store of all ranks, opened by fewer of them. */
CLAIM(another_number_of_ranks_is_told_how_many_wrote_it)
{
    struct kept kept = open_kept(member, STW_RUNTIME_OVERWRITE, NULL);
    stw_runtime *runtime = NULL;
    write_all(&kept, member, 1);
    SUCCEEDS(stw_commit(kept.runtime, NULL, NULL));
    close_kept(&kept, member);
    stw_group *alone = join_part(member, 1, member->rank, 0, 1);
    HOLDS(try_open(alone, member, STW_RUNTIME_RESUME, NULL, 0, &runtime) == STW_ERROR_MISMATCH);
    HOLDS(strstr(stw_last_error(), "was written by") != NULL);
    SUCCEEDS(stw_group_destroy(alone));
    remove_files(member);
}
#endif
