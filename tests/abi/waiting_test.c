/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetches that wait for other threads: for a writer, for room, in a cycle, until a timeout or an
 * interrupt. Threads meet at barriers and conditions; nothing sleeps to be lucky.
 */
#include "support.h"

#include <pthread.h>
#include <signal.h>

typedef struct meeting {
    stw_runtime *runtime;
    stw_tensor *first;
    stw_operation *operation;
    pthread_barrier_t barrier;
    stw_status status;
    char sentence[768];
    uint64_t waited_ns;
    uint32_t flags;
    uint64_t timeout_ns;
    stw_view view;
} meeting;

static void *fetch_first(void *argument)
{
    meeting *here = argument;
    stw_fetch_request request = request_of(here->first, STW_READ_WRITE);
    stw_fetch_options options = {
        .struct_size = sizeof options, .flags = here->flags, .timeout_ns = here->timeout_ns};
    pthread_barrier_wait(&here->barrier);
    uint64_t begin = clock_ns();
    here->status = stw_fetch(here->runtime, &options, &request, 1, &here->view);
    snprintf(here->sentence, sizeof here->sentence, "%s", stw_last_error());
    here->waited_ns = clock_ns() - begin;
    return NULL;
}

static void *fetch_first_async(void *argument)
{
    meeting *here = argument;
    stw_fetch_request request = request_of(here->first, STW_READ_WRITE);
    stw_fetch_options options = {
        .struct_size = sizeof options, .flags = here->flags, .timeout_ns = here->timeout_ns};
    here->status = stw_fetch_async(here->runtime, &options, &request, 1, &here->operation);
    return NULL;
}

/* By another thread, to its end. */
static void fetch_elsewhere(meeting *here)
{
    pthread_t thread;
    pthread_barrier_init(&here->barrier, NULL, 2);
    pthread_create(&thread, NULL, fetch_first, here);
    pthread_barrier_wait(&here->barrier);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&here->barrier);
}

/* Asked for by another thread, and certainly waiting when this returns. */
static void ask_elsewhere(meeting *here)
{
    pthread_t thread;
    pthread_create(&thread, NULL, fetch_first_async, here);
    pthread_join(thread, NULL);
    ok(here->status);
    assert_int_equal(stw_operation_poll(here->operation), STW_PENDING);
    assert_int_equal(stw_operation_wait(here->operation, MILLISECOND_NS), STW_PENDING);
}

static void take_and_give_back(meeting *here)
{
    ok(stw_operation_wait(here->operation, 0));
    ok(stw_fetch_collect(here->operation, STW_STREAM_HOST, &here->view, 1));
    ok(stw_operation_free(here->operation));
    assert_float(((float *)here->view.pointer)[7], 7);
    view_put(&here->view);
}

TEST(a_writer_waits_for_the_readers_of_other_threads)
{
    meeting here;
    memset(&here, 0, sizeof here);
    here.runtime = machine_open_as(machine_small());
    here.first = tensor_f32(here.runtime, "shared", 100);
    tensor_fill_sequence(here.first, 100, 0);
    stw_view view = view_get(here.runtime, here.first, STW_READ);
    ask_elsewhere(&here);
    assert_float(((float *)view.pointer)[99], 99);
    view_put(&view);
    take_and_give_back(&here);
    machine_close(here.runtime);
}

/* Now and UINT64_MAX nanoseconds are more than a clock has. */
TEST(the_longest_timeout_does_not_pass)
{
    meeting here;
    memset(&here, 0, sizeof here);
    machine patient = machine_small();
    patient.timeout_ns = UINT64_MAX;
    here.runtime = machine_open_as(patient);
    here.first = tensor_f32(here.runtime, "shared", BLOCK / 4);
    here.timeout_ns = UINT64_MAX;
    tensor_fill_sequence(here.first, BLOCK / 4, 0);
    stw_view view = view_get(here.runtime, here.first, STW_READ);
    ask_elsewhere(&here);
    view_put(&view);
    take_and_give_back(&here);
    fetch_elsewhere(&here);
    ok(here.status);
    view_put(&here.view);
    stw_copy_options copy = {.struct_size = sizeof copy, .timeout_ns = UINT64_MAX};
    float *values = malloc(BLOCK);
    assert_non_null(values);
    ok(stw_tensor_read(here.first, values, &copy));
    ok(stw_tensor_write(here.first, values, &copy));
    free(values);
    ok(stw_evict(here.runtime, NULL, 0, STW_TIER_DEVICE, 0, UINT64_MAX));
    ok(stw_tier_set_budget(here.runtime, STW_TIER_DEVICE, 0, 4 * BLOCK, UINT64_MAX));
    ok(stw_runtime_drain(here.runtime, UINT64_MAX));
    ok(stw_tensor_destroy(&here.first, 1));
    ok(stw_runtime_close(here.runtime, 0, UINT64_MAX));
}

TEST(a_wait_ends_at_its_timeout_with_the_tensor_named)
{
    meeting here;
    memset(&here, 0, sizeof here);
    here.runtime = machine_open_as(machine_small());
    here.first = tensor_f32(here.runtime, "contended", 100);
    here.timeout_ns = 200 * MILLISECOND_NS;
    tensor_fill_sequence(here.first, 100, 0);
    stw_view view = view_get(here.runtime, here.first, STW_READ);
    fetch_elsewhere(&here);
    assert_int_equal(here.status, STW_ERROR_TIMEOUT);
    assert_non_null(strstr(here.sentence, "'contended'"));
    assert_true(here.waited_ns >= 200 * MILLISECOND_NS);
    assert_true(here.waited_ns < 2 * SECOND_NS);
    /* It is undone: the reader can be joined by others and a later writer gets in. */
    view_put(&view);
    view = view_get(here.runtime, here.first, STW_READ_WRITE);
    view_put(&view);
    machine_close(here.runtime);
}

TEST(room_that_another_thread_holds_is_waited_for_when_asked)
{
    meeting here;
    memset(&here, 0, sizeof here);
    here.runtime = machine_open_as(machine_small());
    stw_tensor *held = tensor_f32(here.runtime, "held", 6 * BLOCK / 4);
    here.first = tensor_f32(here.runtime, "wanted", 4 * BLOCK / 4);
    tensor_fill_sequence(held, 6 * BLOCK / 4, 0);
    tensor_fill_sequence(here.first, 4 * BLOCK / 4, 0);
    stw_view view = view_get(here.runtime, held, STW_READ);
    /* Without the flag: at once, with the arithmetic. */
    fetch_elsewhere(&here);
    assert_int_equal(here.status, STW_ERROR_BUDGET);
    assert_non_null(strstr(here.sentence, "384.0 KiB pinned"));
    here.flags = STW_FETCH_WAIT_ROOM;
    ask_elsewhere(&here);
    view_put(&view);
    take_and_give_back(&here);
    /* And it does not wait beyond its timeout. */
    view = view_get(here.runtime, held, STW_READ);
    here.timeout_ns = 100 * MILLISECOND_NS;
    fetch_elsewhere(&here);
    assert_int_equal(here.status, STW_ERROR_TIMEOUT);
    view_put(&view);
    machine_close(here.runtime);
}

typedef struct party {
    stw_runtime *runtime;
    stw_tensor *mine;
    stw_tensor *wanted;
    uint32_t access; /* to what it wants */
    uint32_t flags;
    pthread_barrier_t *all_hold;
    stw_status status;
    char sentence[768];
} party;

static void *hold_then_want(void *argument)
{
    party *me = argument;
    stw_fetch_request request = request_of(me->mine, STW_READ);
    stw_view held, view;
    me->status = stw_fetch(me->runtime, NULL, &request, 1, &held);
    pthread_barrier_wait(me->all_hold);
    if (me->status != STW_OK) return NULL;
    stw_fetch_options options = {.struct_size = sizeof options, .flags = me->flags};
    request = request_of(me->wanted, me->access);
    me->status = stw_fetch(me->runtime, &options, &request, 1, &view);
    snprintf(me->sentence, sizeof me->sentence, "%s", stw_last_error());
    if (me->status == STW_OK) (void)stw_release(&view, 1, STW_STREAM_HOST, 0);
    (void)stw_release(&held, 1, STW_STREAM_HOST, 0);
    return NULL;
}

/* Each in its own thread, to their ends. */
static void hold_then_want_all(party *parties, uint32_t n)
{
    pthread_barrier_t barrier;
    pthread_t threads[4];
    assert_true(n <= COUNT(threads));
    pthread_barrier_init(&barrier, NULL, n);
    for (uint32_t i = 0; i < n; ++i) {
        parties[i].all_hold = &barrier;
        pthread_create(&threads[i], NULL, hold_then_want, &parties[i]);
    }
    for (uint32_t i = 0; i < n; ++i) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
}

TEST(a_cycle_of_waits_for_room_ends_with_the_youngest)
{
    party parties[2];
    stw_tensor *tensors[4];
    stw_runtime *runtime = machine_open_as(machine_small());
    const uint64_t begin = clock_ns();
    int i;
    for (i = 0; i < 4; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, 3 * BLOCK / 4);
        tensor_fill_sequence(tensors[i], 3 * BLOCK / 4, 0);
    }
    memset(parties, 0, sizeof parties);
    for (i = 0; i < 2; ++i) {
        parties[i].runtime = runtime;
        parties[i].mine = tensors[i], parties[i].wanted = tensors[2 + i];
        parties[i].access = STW_READ, parties[i].flags = STW_FETCH_WAIT_ROOM;
    }
    hold_then_want_all(parties, 2);
    /* One gave way, the other was served, and nobody waited for the timeout. */
    assert_true((parties[0].status == STW_OK) != (parties[1].status == STW_OK));
    i = parties[0].status == STW_OK;
    assert_int_equal(parties[i].status, STW_ERROR_BUDGET);
    assert_non_null(strstr(parties[i].sentence, "the youngest of theirs"));
    assert_true(clock_ns() - begin < 30 * SECOND_NS);
    machine_close(runtime);
}

/* Each reads what the next one wants to write: there is room for all of it. */
TEST(a_cycle_of_conflicting_views_ends_with_the_youngest)
{
    enum { kParties = 3 };
    party parties[kParties];
    stw_tensor *tensors[kParties];
    stw_runtime *runtime = machine_open_as(machine_small());
    const uint64_t begin = clock_ns();
    int i, refused = 0;
    for (i = 0; i < kParties; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, 100);
        tensor_fill_sequence(tensors[i], 100, 0);
    }
    memset(parties, 0, sizeof parties);
    for (i = 0; i < kParties; ++i) {
        parties[i].runtime = runtime, parties[i].access = STW_READ_WRITE;
        parties[i].mine = tensors[i], parties[i].wanted = tensors[(i + 1) % kParties];
    }
    hold_then_want_all(parties, kParties);
    for (i = 0; i < kParties; ++i) {
        if (parties[i].status == STW_OK) continue;
        ++refused;
        assert_int_equal(parties[i].status, STW_ERROR_BUSY);
        assert_non_null(strstr(parties[i].sentence, "the youngest of theirs, gives way"));
    }
    assert_int_equal(refused, 1);
    assert_true(clock_ns() - begin < 30 * SECOND_NS);
    machine_close(runtime);
}

static stw_runtime *to_interrupt;

static void on_signal(int number)
{
    (void)number;
    (void)stw_runtime_interrupt(to_interrupt);
}

TEST(an_interrupt_from_a_signal_handler_ends_waits)
{
    struct sigaction action;
    meeting here;
    pthread_t thread;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    memset(&here, 0, sizeof here);
    here.runtime = to_interrupt = machine_open_as(machine_small());
    here.first = tensor_f32(here.runtime, "t", 100);
    tensor_fill_sequence(here.first, 100, 0);
    sigaction(SIGUSR1, &action, NULL);
    stw_view view = view_get(here.runtime, here.first, STW_READ);
    pthread_barrier_init(&here.barrier, NULL, 2);
    pthread_create(&thread, NULL, fetch_first, &here);
    pthread_barrier_wait(&here.barrier);
    /* It may not wait yet: until the interrupt was heard. */
    while (pthread_tryjoin_np(thread, NULL) != 0) raise(SIGUSR1);
    assert_int_equal(here.status, STW_ERROR_INTERRUPTED);
    assert_non_null(strstr(here.sentence, "stw_runtime_interrupt"));
    view_put(&view);
    view = view_get(here.runtime, here.first, STW_READ_WRITE);
    view_put(&view);
    machine_close(here.runtime);
}

static void *drain_it(void *argument)
{
    meeting *me = argument;
    pthread_barrier_wait(&me->barrier);
    me->status = stw_runtime_drain(me->runtime, 0);
    snprintf(me->sentence, sizeof me->sentence, "%s", stw_last_error());
    return NULL;
}

static void *evict_it(void *argument)
{
    meeting *me = argument;
    pthread_barrier_wait(&me->barrier);
    me->status = stw_evict(me->runtime, &me->first, 1, STW_TIER_DEVICE, 0, 0);
    snprintf(me->sentence, sizeof me->sentence, "%s", stw_last_error());
    return NULL;
}

static void *close_it(void *argument)
{
    meeting *me = argument;
    pthread_barrier_wait(&me->barrier);
    me->status = stw_runtime_close(me->runtime, 0, 0);
    snprintf(me->sentence, sizeof me->sentence, "%s", stw_last_error());
    return NULL;
}

static stw_operation *awaited;
static void *wait_for_it(void *argument)
{
    meeting *me = argument;
    pthread_barrier_wait(&me->barrier);
    me->status = stw_operation_wait(awaited, 0);
    snprintf(me->sentence, sizeof me->sentence, "%s", stw_last_error());
    return NULL;
}

static void interrupt_until_it_ends(meeting *here, void *(*wait)(void *))
{
    pthread_t thread;
    pthread_create(&thread, NULL, wait, here);
    pthread_barrier_wait(&here->barrier);
    while (pthread_tryjoin_np(thread, NULL) != 0) ok(stw_runtime_interrupt(here->runtime));
    assert_int_equal(here->status, STW_ERROR_INTERRUPTED);
    assert_non_null(strstr(here->sentence, "stw_runtime_interrupt"));
}

/* The disk hangs until the end: without the interrupt nobody would come back. The asynchronous
 * fetch itself goes on; the wait for it ends. A close that was interrupted has not taken place. */
TEST(an_interrupt_ends_every_wait)
{
    void *(*const waits[])(void *) = {drain_it, evict_it, wait_for_it};
    machine wanted = machine_small();
    meeting here;
    wanted.nvme_driver = "fault";
    /* All but the superblock. */
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;at=write:1:hang;at=write:2:hang;"
                          "at=write:3:hang;at=write:4:hang;at=write:5:hang;at=write:6:hang";
    wanted.host_blocks = 0;
    memset(&here, 0, sizeof here);
    here.runtime = machine_open(&wanted);
    here.first = tensor_f32(here.runtime, "t", 4 * BLOCK / 4);
    stw_tensor *other = tensor_f32(here.runtime, "u", 8 * BLOCK / 4);
    tensor_fill_sequence(here.first, 4 * BLOCK / 4, 0);
    stw_fetch_request request = request_of(other, STW_WRITE);
    /* Its room comes when the first one has left. */
    ok(stw_fetch_async(here.runtime, NULL, &request, 1, &awaited));
    pthread_barrier_init(&here.barrier, NULL, 2);
    for (size_t i = 0; i < COUNT(waits); ++i) {
        interrupt_until_it_ends(&here, waits[i]);
        assert_int_equal(stw_operation_poll(awaited), STW_PENDING);
    }
    ok(stw_operation_free(awaited));
    interrupt_until_it_ends(&here, close_it);
    pthread_barrier_destroy(&here.barrier);
    fails(stw_runtime_close(here.runtime, 0, MILLISECOND_NS), STW_ERROR_TIMEOUT, "");
}

static void *interrupt_until_closed(void *runtime)
{
    stw_status status;
    do status = stw_runtime_interrupt(runtime);
    while (status == STW_OK);
    return status == STW_ERROR_CLOSED ? NULL : runtime;
}

/* Who sends it cannot know that the runtime is closed just now. */
TEST(an_interrupt_may_come_beside_a_close)
{
    machine wanted = machine_small();
    wanted.nvme_blocks = 0;
    for (int round = 0; round < 50; ++round) {
        stw_runtime *runtime = machine_open(&wanted);
        void *wrong = NULL;
        stw_status status;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, interrupt_until_closed, runtime), 0);
        do status = stw_runtime_close(runtime, 0, 0);
        while (status == STW_ERROR_INTERRUPTED);
        ok(status);
        assert_int_equal(pthread_join(thread, &wrong), 0);
        assert_null(wrong);
    }
}

enum { WORKERS = 4, ROUNDS = 300 };

typedef struct worker {
    stw_runtime *runtime;
    stw_tensor **tensors;
    uint32_t seed;
    int failures;
} worker;

static void *increment_at_random(void *argument)
{
    worker *me = argument;
    for (int round = 0; round < ROUNDS; ++round) {
        stw_view view;
        me->seed = me->seed * 1664525 + 1013904223;
        stw_fetch_request request = request_of(me->tensors[(me->seed >> 16) % 8], STW_READ_WRITE);
        if (stw_fetch(me->runtime, NULL, &request, 1, &view) != STW_OK) {
            ++me->failures;
            continue;
        }
        for (uint64_t i = 0; i < view.element_count; ++i) ((float *)view.pointer)[i] += 1;
        me->failures += stw_release(&view, 1, STW_STREAM_HOST, 0) != STW_OK;
    }
    return NULL;
}

TEST(no_increment_of_many_threads_is_lost)
{
    machine small = machine_small();
    pthread_t threads[WORKERS];
    worker workers[WORKERS];
    stw_tensor *tensors[8];
    float *values = malloc(BLOCK + 400);
    double total = 0;
    int i, j, failures = 0;
    assert_non_null(values);
    small.device_blocks = 16; /* two of each thread's at most: 4 x 2 blocks of 8 x 2 */
    small.host_blocks = 2;
    stw_runtime *runtime = machine_open(&small);
    for (i = 0; i < 8; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, BLOCK / 4 + 100);
        ok(stw_tensor_fill(tensors[i], 0, NULL));
    }
    for (i = 0; i < WORKERS; ++i) {
        workers[i].runtime = runtime, workers[i].tensors = tensors;
        workers[i].seed = 77 + (uint32_t)i, workers[i].failures = 0;
        pthread_create(&threads[i], NULL, increment_at_random, &workers[i]);
    }
    for (i = 0; i < WORKERS; ++i) {
        pthread_join(threads[i], NULL);
        failures += workers[i].failures;
    }
    assert_int_equal(failures, 0);
    for (i = 0; i < 8; ++i) {
        ok(stw_tensor_read(tensors[i], values, NULL));
        for (j = 1; j < (int)(BLOCK / 4 + 100); ++j) assert_float(values[j], values[0]);
        total += (double)values[0];
    }
    assert_float(total, (double)WORKERS * ROUNDS);
    free(values);
    machine_close(runtime);
}

RUN_TESTS("waiting", NULL, NULL)
