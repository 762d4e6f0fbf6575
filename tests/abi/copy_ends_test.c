/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of operations, beside all that waits for an end: callbacks, eventfds, cancels, frees,
 * interrupts, drains and budgets. Until an operation is over its memory is the library's.
 */
#include "support.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ELEMENTS = 6 * 16384 + 3 }; /* seven blocks */

/* A tensor that somebody writes, memory to copy it to, and what was told of the end. */
typedef struct scene {
    stw_runtime *runtime;
    stw_tensor *tensor;
    stw_view writer;
    float *memory;
    int fd;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int times;
    int complete; /* the last element was there when the callback came */
    stw_status status;
} scene;

static void scene_open(scene *here, const machine *wanted)
{
    memset(here, 0, sizeof *here);
    here->runtime = machine_open(wanted);
    here->tensor = tensor_f32(here->runtime, "source", ELEMENTS);
    tensor_fill_sequence(here->tensor, ELEMENTS, 1);
    stw_fetch_request request = request_range(here->tensor, STW_READ_WRITE, 0, 0);
    request.tier = STW_TIER_DEFAULT;
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_HAND_OVER};
    ok(stw_fetch(here->runtime, &options, &request, 1, &here->writer));
    here->memory = calloc(ELEMENTS, sizeof *here->memory);
    assert_non_null(here->memory);
    here->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&here->lock, NULL);
    pthread_cond_init(&here->changed, NULL);
}

static void scene_close(scene *here)
{
    machine_close(here->runtime);
    free(here->memory);
    close(here->fd);
    pthread_cond_destroy(&here->changed);
    pthread_mutex_destroy(&here->lock);
}

static void note(void *user, stw_operation *operation, stw_status status)
{
    scene *here = user;
    (void)operation;
    pthread_mutex_lock(&here->lock);
    ++here->times;
    here->status = status;
    here->complete = here->memory[ELEMENTS - 1] == (float)ELEMENTS;
    pthread_cond_broadcast(&here->changed);
    pthread_mutex_unlock(&here->lock);
}

static void await_times(scene *here, int times)
{
    pthread_mutex_lock(&here->lock);
    while (here->times < times) pthread_cond_wait(&here->changed, &here->lock);
    assert_int_equal(here->times, times);
    pthread_mutex_unlock(&here->lock);
}

static int is_told(const scene *here, int timeout_ms)
{
    struct pollfd waits;
    uint64_t count = 0;
    waits.fd = here->fd, waits.events = POLLIN, waits.revents = 0;
    if (poll(&waits, 1, timeout_ms) != 1) return 0;
    assert_int_equal(read(here->fd, &count, sizeof count), sizeof count);
    return (int)count;
}

/* Under way until the writer goes. */
static stw_operation *copy_async(scene *here)
{
    stw_fetch_request request = request_range(here->tensor, STW_READ, 0, 0);
    stw_operation *operation = NULL;
    request.tier = STW_TIER_DEFAULT;
    request.into = here->memory;
    ok(stw_fetch_async(here->runtime, NULL, &request, 1, &operation));
    return operation;
}

TEST(the_end_is_told_when_the_memory_is_the_callers_again)
{
    machine wanted = machine_small();
    scene here;
    stw_view view;
    scene_open(&here, &wanted);
    /* A cancelled one. */
    stw_operation *operation = copy_async(&here);
    ok(stw_operation_on_done(operation, note, &here));
    ok(stw_operation_notify_fd(operation, here.fd));
    assert_int_equal(is_told(&here, 0), 0);
    ok(stw_operation_cancel(operation));
    assert_int_equal(is_told(&here, -1), 1);
    fails(stw_operation_poll(operation), STW_ERROR_CANCELLED, "cancelled");
    await_times(&here, 1);
    assert_int_equal(here.status, STW_ERROR_CANCELLED);
    ok(stw_operation_free(operation));
    /* A freed one. */
    operation = copy_async(&here);
    ok(stw_operation_on_done(operation, note, &here));
    ok(stw_operation_notify_fd(operation, here.fd));
    ok(stw_operation_free(operation));
    assert_int_equal(is_told(&here, 0), 1);
    await_times(&here, 2);
    assert_int_equal(here.status, STW_ERROR_CANCELLED);
    assert_false(here.complete);
    /* One that comes to its end. */
    operation = copy_async(&here);
    ok(stw_operation_on_done(operation, note, &here));
    ok(stw_operation_notify_fd(operation, here.fd));
    view_put(&here.writer);
    assert_int_equal(is_told(&here, -1), 1);
    await_times(&here, 3);
    assert_int_equal(here.status, STW_OK);
    assert_true(here.complete);
    ok(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1));
    assert_ptr_equal(view.pointer, here.memory);
    ok(stw_operation_free(operation));
    scene_close(&here);
}

TEST(copies_are_cancelled_and_freed_while_they_are_made)
{
    machine wanted = machine_small();
    scene here;
    scene_open(&here, &wanted);
    view_put(&here.writer);
    for (int round = 1; round <= 60; ++round) {
        memset(here.memory, 0, ELEMENTS * sizeof *here.memory);
        stw_operation *operation = copy_async(&here);
        ok(stw_operation_on_done(operation, note, &here));
        if (round % 3 == 0) ok(stw_operation_cancel(operation));
        if (round % 3 == 1) {
            ok(stw_operation_free(operation));
            await_times(&here, round);
            if (here.status != STW_OK) assert_int_equal(here.status, STW_ERROR_CANCELLED);
            /* Ours again: nothing comes later. */
            memset(here.memory, 0, ELEMENTS * sizeof *here.memory);
            ok(stw_runtime_drain(here.runtime, 0));
            assert_float(here.memory[0], 0);
            assert_float(here.memory[ELEMENTS - 1], 0);
            continue;
        }
        await_times(&here, round);
        assert_int_equal(stw_operation_poll(operation), here.status);
        if (here.status != STW_OK) assert_int_equal(here.status, STW_ERROR_CANCELLED);
        if (here.status == STW_OK) assert_true(here.complete);
        ok(stw_operation_free(operation));
    }
    scene_close(&here);
}

typedef struct sleeper {
    stw_operation *operation;
    stw_status status;
    atomic_int awake;
} sleeper;

static void *sleep_until_over(void *argument)
{
    sleeper *mine = argument;
    mine->status = stw_operation_wait(mine->operation, 60 * SECOND_NS);
    atomic_store(&mine->awake, 1);
    return NULL;
}

TEST(an_interrupt_ends_the_wait_for_a_copy)
{
    machine wanted = machine_small();
    scene here;
    sleeper other;
    pthread_t thread;
    scene_open(&here, &wanted);
    other.operation = copy_async(&here);
    atomic_init(&other.awake, 0);
    assert_int_equal(pthread_create(&thread, NULL, sleep_until_over, &other), 0);
    /* It ends the waits that have begun. */
    while (!atomic_load(&other.awake)) {
        ok(stw_runtime_interrupt(here.runtime));
        sched_yield();
    }
    pthread_join(thread, NULL);
    assert_int_equal(other.status, STW_ERROR_INTERRUPTED);
    assert_int_equal(stw_operation_poll(other.operation), STW_PENDING);
    view_put(&here.writer);
    while (stw_operation_wait(other.operation, SECOND_NS) == STW_PENDING) continue;
    ok(stw_operation_poll(other.operation));
    assert_float(here.memory[ELEMENTS - 1], (float)ELEMENTS);
    ok(stw_operation_free(other.operation));
    scene_close(&here);
}

TEST(a_drain_waits_for_copies_and_a_close_refuses)
{
    machine wanted = machine_small();
    scene here;
    scene_open(&here, &wanted);
    stw_operation *operation = copy_async(&here);
    fails(stw_runtime_drain(here.runtime, 5 * MILLISECOND_NS), STW_ERROR_TIMEOUT, "1 copies");
    view_put(&here.writer);
    ok(stw_runtime_drain(here.runtime, 0));
    ok(stw_operation_poll(operation));
    assert_float(here.memory[ELEMENTS - 1], (float)ELEMENTS);
    fails(stw_runtime_close(here.runtime, STW_CLOSE_DEFERRED, 0), STW_ERROR_BUSY, "1 operations");
    ok(stw_operation_free(operation));
    /* Between two of its chunks it waits for nothing, and is under way nevertheless. */
    for (int round = 0; round < 50; ++round) {
        operation = copy_async(&here);
        ok(stw_runtime_drain(here.runtime, 0));
        ok(stw_operation_poll(operation));
        ok(stw_operation_free(operation));
    }
    scene_close(&here);
}

TEST(the_last_room_stays_until_copies_are_made)
{
    machine wanted = machine_small();
    scene here;
    stw_view view;
    wanted.device_blocks = 0;
    scene_open(&here, &wanted);
    stw_operation *operation = copy_async(&here);
    fails(stw_tier_set_budget(here.runtime, STW_TIER_HOST, 0, 0, 5 * MILLISECOND_NS),
          STW_ERROR_TIMEOUT, "copies");
    view_put(&here.writer);
    ok(stw_tier_set_budget(here.runtime, STW_TIER_HOST, 0, 0, 0));
    ok(stw_operation_poll(operation));
    assert_float(here.memory[ELEMENTS - 1], (float)ELEMENTS);
    ok(stw_operation_free(operation));
    /* Without any, they are refused before they begin. */
    stw_fetch_request request = request_range(here.tensor, STW_READ, 0, 0);
    request.tier = STW_TIER_DEFAULT;
    request.into = here.memory;
    fails(stw_fetch(here.runtime, NULL, &request, 1, &view), STW_ERROR_BUDGET,
          "stw_tier_set_budget");
    fails(stw_tensor_read(here.tensor, here.memory, NULL), STW_ERROR_BUDGET, "stw_tier_set_budget");
    ok(stw_tier_set_budget(here.runtime, STW_TIER_HOST, 0, 16 * BLOCK, 0));
    ok(stw_fetch(here.runtime, NULL, &request, 1, &view));
    scene_close(&here);
}

/* A sum needs room when its view goes, a converted view only what it has. */
TEST(converted_views_keep_no_other_tier)
{
    machine wanted = machine_small();
    scene here;
    stw_tensor_spec spec = spec_f32("sum", 100);
    stw_view view;
    scene_open(&here, &wanted);
    view_put(&here.writer);
    stw_fetch_request request = request_range(here.tensor, STW_READ, 0, 1000);
    request.dtype = STW_BF16;
    ok(stw_fetch(here.runtime, NULL, &request, 1, &view));
    ok(stw_tier_set_budget(here.runtime, STW_TIER_HOST, 0, 0, 0));
    assert_int_equal(((const uint16_t *)view.pointer)[0], 0x3f80);
    view_put(&view);
    ok(stw_tier_set_budget(here.runtime, STW_TIER_HOST, 0, 16 * BLOCK, 0));
    spec.role = STW_ROLE_GRAD;
    request = request_range(tensor_make(here.runtime, &spec), STW_REDUCE, 0, 0);
    request.dtype = STW_BF16;
    ok(stw_fetch(here.runtime, NULL, &request, 1, &view));
    fails(stw_tier_set_budget(here.runtime, STW_TIER_HOST, 0, 0, 0), STW_ERROR_BUSY, "summed");
    view_put(&view);
    ok(stw_runtime_drain(here.runtime, 0));
    scene_close(&here);
}

/* One sum is asked for in place and finds contents; what else the call made stays what it was. */
TEST(a_sum_asked_again_keeps_what_was_converted)
{
    enum { MANY = 16384 + 9 };
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor_spec spec = spec_f32("full", MANY);
    stw_tensor *weights = tensor_f32(runtime, "weights", MANY), *full, *narrow;
    stw_fetch_request requests[4];
    stw_operation *operation = NULL;
    float *copy = calloc(MANY, sizeof *copy);
    stw_view views[4];
    assert_non_null(copy);
    tensor_fill_sequence(weights, MANY, 0);
    spec.role = STW_ROLE_GRAD;
    full = tensor_make(runtime, &spec);
    tensor_fill_sequence(full, MANY, 5);
    spec.name = "narrow", spec.dtype = STW_BF16;
    narrow = tensor_make(runtime, &spec);
    requests[0] = request_of(full, STW_REDUCE);
    requests[1] = request_of(weights, STW_READ);
    requests[1].into = copy, requests[1].tier = STW_TIER_DEFAULT;
    requests[2] = request_of(narrow, STW_REDUCE);
    requests[2].dtype = STW_F32;
    requests[3] = request_range(weights, STW_READ, 0, 256);
    requests[3].dtype = STW_BF16;
    ok(stw_fetch_async(runtime, NULL, requests, 4, &operation));
    ok(stw_operation_wait(operation, 0));
    ok(stw_fetch_collect(operation, STW_STREAM_HOST, views, 4));
    ok(stw_operation_free(operation));
    assert_int_equal(views[0].bytes, MANY * 4);
    assert_int_equal(views[2].bytes, MANY * 4);
    for (uint64_t i = 0; i < MANY; ++i) {
        assert_float(copy[i], (float)i);
        assert_float(((float *)views[0].pointer)[i], 0);
        assert_float(((float *)views[2].pointer)[i], 0);
        ((float *)views[0].pointer)[i] = 1;
        ((float *)views[2].pointer)[i] = 1.5F;
    }
    assert_int_equal(views[3].bytes, 512);
    assert_int_equal(((const uint16_t *)views[3].pointer)[255], 0x437f);
    ok(stw_release(views, 4, STW_STREAM_HOST, 0));
    tensor_expect_sequence(full, MANY, 6);
    requests[2] = request_range(narrow, STW_READ, MANY - 1, 1);
    ok(stw_fetch(runtime, NULL, &requests[2], 1, views));
    assert_int_equal(*(const uint16_t *)views[0].pointer, 0x3fc0);
    view_put(&views[0]);
    free(copy);
    machine_close(runtime);
}

RUN_TESTS("copy_ends", NULL, NULL)
