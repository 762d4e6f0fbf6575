/* SPDX-License-Identifier: Apache-2.0 */
/* A runtime that is closed while views of it are open: their memory stays, collectives do not. */
#include "tests/multirank/tensors.h"

enum { ELEMENTS = 50000 };

/* Views of a rank whose program goes on without the others, and ends its engine. */
CLAIM(views_released_after_the_close_start_nothing)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *gradient = make(runtime, "g", ELEMENTS, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    stw_tensor *weights = make(runtime, "w", ELEMENTS, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_view views[2];
    views[0] = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
    views[1] = fetch(runtime, weights, STW_WRITE, STW_WHOLE);
    for (uint64_t i = 0; i < views[1].element_count; ++i) ((float *)views[1].pointer)[i] = 1;
    SUCCEEDS(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
    /* One rank alone: a collective would wait for the others, and the group's end for it. */
    if (member->rank == 0) SUCCEEDS(stw_release(views, 2, STW_STREAM_HOST, 0));
    if (member->rank == 0) SUCCEEDS(stw_group_destroy(group));
    meet(member);
    if (member->rank != 0) SUCCEEDS(stw_release(views, 2, STW_STREAM_HOST, 0));
    if (member->rank != 0) SUCCEEDS(stw_group_destroy(group));
    meet(member);
}

/* What was called for before the close is done: the others wait for it. */
CLAIM(sums_released_before_the_close_reach_all)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *gradient = make(runtime, "g", ELEMENTS, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    stw_tensor *weights = make(runtime, "w", ELEMENTS, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_view sum = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
    for (uint64_t i = 0; i < sum.element_count; ++i) ((float *)sum.pointer)[i] = 1;
    let_go(&sum, 0);
    if (member->rank != 0) {
        stw_view shard = fetch(runtime, gradient, STW_READ, STW_SHARD);
        for (uint64_t i = 0; i < shard.element_count; ++i) {
            HOLDS(((const float *)shard.pointer)[i] == (float)member->size);
        }
        let_go(&shard, 0);
        end(runtime, group, member);
        return;
    }
    stw_view kept = fetch(runtime, weights, STW_WRITE, STW_SHARD);
    SUCCEEDS(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
    let_go(&kept, 0);
    meet(member);
    SUCCEEDS(stw_group_destroy(group));
}
