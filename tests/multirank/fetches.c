/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches over ranks beside plain gathers: copies of shards, operations that gather and do more,
 * views of a rank's other threads. */
#include "tests/multirank/tensors.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not on the device, so block by block. A bf16 has the upper half of the f32's bits. */
CLAIM(shards_are_copied_and_converted)
{
    enum { N = 50000 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensor = make(runtime, "w", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor_info info = {.struct_size = sizeof info};
    SUCCEEDS(stw_tensor_info_get(tensor, &info));
    float *copy = malloc((info.shard_elements + 1) * sizeof *copy);
    HOLDS(copy != NULL);
    write_shard(runtime, tensor, 1);
    SUCCEEDS(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    stw_fetch_request requests[2] = {
        {.struct_size = sizeof *requests, .tensor = tensor, .scope = STW_SHARD, .into = copy},
        {.struct_size = sizeof *requests, .tensor = tensor, .scope = STW_SHARD, .dtype = STW_BF16},
    };
    stw_view views[2];
    SUCCEEDS(stw_fetch(runtime, NULL, requests, 2, views));
    const uint16_t *converted = views[1].pointer;
    for (uint64_t k = 0; k < info.shard_elements; ++k) {
        const float value = value_of(info.shard_begin + k, 1);
        uint32_t bits = (uint32_t)converted[k] << 16;
        float rounded = 0;
        memcpy(&rounded, &bits, sizeof rounded);
        HOLDS(copy[k] == value);
        HOLDS(rounded - value <= value / 256 && value - rounded <= value / 256);
    }
    SUCCEEDS(stw_release(views, 2, STW_STREAM_HOST, 0));
    free(copy);
    end(runtime, group, member);
}

/* Two small tensors are gathered together. The shard of the first cannot be read, so nobody asks
 * for that of the second, which is on its way. */
CLAIM(a_gather_that_fails_leaves_no_hints)
{
    enum { PAIR = 2 };
    stw_group *group = join(member);
    /* As often as it is tried again, but not the reads of what opens. */
    char faults[512] = "inner=posix;inner.allow_tmpfs=1;at=read:2:delay:50000000";
    for (int read = 1; read < 16; ++read) {
        const size_t at = strlen(faults);
        if (read != 2) (void)snprintf(faults + at, sizeof faults - at, ";at=read:%d:eio", read);
    }
    stw_runtime *runtime = open_faulty(group, member, 16, faults);
    const uint64_t elements = (uint64_t)member->size * BLOCK / sizeof(float);
    stw_tensor *pair[PAIR];
    stw_fetch_request requests[PAIR];
    stw_view views[PAIR];
    for (int i = 0; i < PAIR; ++i) {
        const char name[] = {'w', (char)('0' + i), '\0'};
        const stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        pair[i] = make(runtime, name, elements, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, pair[i], (uint32_t)i);
        requests[i] = request;
        requests[i].tensor = pair[i];
        requests[i].scope = STW_WHOLE;
    }
    SUCCEEDS(stw_evict(runtime, pair, PAIR, STW_TIER_DEVICE, 0, 0));
    SUCCEEDS(stw_evict(runtime, pair, PAIR, STW_TIER_HOST, 0, 0));
    HOLDS(stw_fetch(runtime, NULL, requests, PAIR, views) == STW_ERROR_IO);
    SUCCEEDS(stw_runtime_drain(runtime, 0));
    expect_whole(runtime, pair[1], elements, 1);
    end(runtime, group, member);
}

/* Of a gathered tensor as of any other: all of it is EMPTY, here and on the other ranks. */
CLAIM(what_is_released_as_dead_is_empty)
{
    enum { N = 50000 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensor = make(runtime, "w", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    for (uint32_t access = STW_READ; access <= STW_READ_WRITE; ++access) {
        stw_tensor_info info = {.struct_size = sizeof info};
        write_shard(runtime, tensor, 1);
        stw_view view = fetch(runtime, tensor, access, STW_WHOLE);
        let_go(&view, STW_RELEASE_DISCARD);
        SUCCEEDS(stw_tensor_info_get(tensor, &info));
        HOLDS(info.state == STW_STATE_EMPTY);
        stw_fetch_request again = {
            .struct_size = sizeof again, .tensor = tensor, .scope = STW_WHOLE};
        HOLDS(stw_fetch(runtime, NULL, &again, 1, &view) == STW_ERROR_EMPTY);
    }
    end(runtime, group, member);
}

/* Freed as soon as it is over, by a thread that did nothing but look. */
CLAIM(an_operation_goes_on_from_what_is_gathered_to_the_rest)
{
    enum { N = 3000, TURNS = 24 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *sharded = make(runtime, "w", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *local = make(runtime, "l", N, STW_ROLE_PARAM, STW_PARTITION_LOCAL);
    float *copy = malloc(N * sizeof *copy);
    HOLDS(copy != NULL);
    for (uint32_t turn = 0; turn < TURNS; ++turn) {
        const bool copies = turn % 2 == 0;
        const bool pins = turn % 3 != 0 || !copies;
        stw_fetch_request requests[3];
        stw_view views[3];
        uint32_t n = 0;
        requests[n++] = (stw_fetch_request){.struct_size = sizeof *requests, .tensor = sharded};
        if (pins)
            requests[n++] = (stw_fetch_request){.struct_size = sizeof *requests, .tensor = local};
        if (copies)
            requests[n++] =
                (stw_fetch_request){.struct_size = sizeof *requests, .tensor = local, .into = copy};
        write_shard(runtime, sharded, turn);
        write_shard(runtime, local, turn + 100);
        stw_operation *operation = NULL;
        SUCCEEDS(stw_fetch_async(runtime, NULL, requests, n, &operation));
        stw_status status = STW_PENDING;
        while (status == STW_PENDING) status = stw_operation_wait(operation, 1);
        SUCCEEDS(status);
        if (turn % 4 != 3) {
            SUCCEEDS(stw_fetch_collect(operation, STW_STREAM_HOST, views, n));
            expect_values(&views[0], N, turn);
            if (pins) expect_values(&views[1], N, turn + 100);
            for (uint64_t k = 0; copies && k < N; ++k) HOLDS(copy[k] == value_of(k, turn + 100));
            SUCCEEDS(stw_release(views, n, STW_STREAM_HOST, 0));
        }
        SUCCEEDS(stw_operation_free(operation));
    }
    free(copy);
    end(runtime, group, member);
}

struct reader {
    stw_runtime *runtime;
    stw_tensor *tensor; /* NULL: it ends */
    uint32_t views;
};

/* Views of buffers: their end asks whether they are of a gathered tensor. */
static void *read_shards(void *user)
{
    struct reader *reader = user;
    stw_fetch_request request = {
        .struct_size = sizeof request, .scope = STW_SHARD, .dtype = STW_BF16};
    while ((request.tensor = __atomic_load_n(&reader->tensor, __ATOMIC_ACQUIRE)) != NULL) {
        stw_view view;
        SUCCEEDS(stw_fetch(reader->runtime, NULL, &request, 1, &view));
        let_go(&view, 0);
        __atomic_add_fetch(&reader->views, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

CLAIM(views_of_shards_end_while_a_tensor_is_gathered_first)
{
    enum { N = 64, TENSORS = 32 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 16);
    stw_tensor *tensors[TENSORS];
    for (uint32_t i = 0; i < TENSORS; ++i) {
        char name[8];
        (void)snprintf(name, sizeof name, "t%u", i);
        tensors[i] = make(runtime, name, N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        write_shard(runtime, tensors[i], i);
    }
    struct reader reader = {.runtime = runtime, .tensor = tensors[0]};
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, read_shards, &reader) == 0);
    for (uint32_t i = 0; i < TENSORS; ++i) {
        const uint32_t seen = __atomic_load_n(&reader.views, __ATOMIC_RELAXED);
        __atomic_store_n(&reader.tensor, tensors[i], __ATOMIC_RELEASE);
        while (__atomic_load_n(&reader.views, __ATOMIC_RELAXED) < seen + 2) sched_yield();
        expect_whole(runtime, tensors[i], N, i);
    }
    __atomic_store_n(&reader.tensor, NULL, __ATOMIC_RELEASE);
    HOLDS(pthread_join(thread, NULL) == 0);
    end(runtime, group, member);
}
