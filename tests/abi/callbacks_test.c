/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of operations that are told by a callback, which may free what it is called for, beside
 * cancels, frees and a close of others. Threads meet at gates; nothing sleeps.
 */
#include "crowd.h"

#include <pthread.h>
#include <signal.h>

/* What a callback does and what became of it. */
typedef struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int times;
    int returned;
    int gate_open; /* where `waits`, the callback stays until it is */
    int waits, polls, collects, frees, closes;
    stw_status status;
    stw_status polled, collected, freed, closed;
    char sentence[768];
    stw_view view;
    stw_operation *operation;
    stw_runtime *runtime;
    pthread_t thread;
    sigset_t signals;
} told;

static void told_begin(told *here, stw_runtime *runtime)
{
    memset(here, 0, sizeof *here);
    pthread_mutex_init(&here->lock, NULL);
    pthread_cond_init(&here->changed, NULL);
    here->runtime = runtime;
}

static void told_end(told *here)
{
    pthread_cond_destroy(&here->changed);
    pthread_mutex_destroy(&here->lock);
}

static void note(void *user, stw_operation *operation, stw_status status)
{
    told *here = user;
    if (here->frees) here->freed = stw_operation_free(operation);
    pthread_mutex_lock(&here->lock);
    ++here->times;
    here->status = status;
    here->operation = operation;
    here->thread = pthread_self();
    pthread_sigmask(SIG_SETMASK, NULL, &here->signals);
    pthread_cond_broadcast(&here->changed);
    while (here->waits && !here->gate_open) pthread_cond_wait(&here->changed, &here->lock);
    pthread_mutex_unlock(&here->lock);
    if (here->polls) here->polled = stw_operation_poll(operation);
    if (here->closes) here->closed = stw_runtime_close(here->runtime, 0, 0);
    if (here->polls || here->closes)
        snprintf(here->sentence, sizeof here->sentence, "%s", stw_last_error());
    if (here->collects)
        here->collected = stw_fetch_collect(operation, STW_STREAM_HOST, &here->view, 1);
    pthread_mutex_lock(&here->lock);
    ++here->returned;
    pthread_cond_broadcast(&here->changed);
    pthread_mutex_unlock(&here->lock);
}

static void told_await(told *here, const int *count, int wanted)
{
    pthread_mutex_lock(&here->lock);
    while (*count < wanted) pthread_cond_wait(&here->changed, &here->lock);
    pthread_mutex_unlock(&here->lock);
}

static void told_let_go(told *here)
{
    pthread_mutex_lock(&here->lock);
    here->gate_open = 1;
    pthread_cond_broadcast(&here->changed);
    pthread_mutex_unlock(&here->lock);
}

static int told_times(told *here)
{
    int times;
    pthread_mutex_lock(&here->lock);
    times = here->times;
    pthread_mutex_unlock(&here->lock);
    return times;
}

TEST(a_callback_comes_once_on_another_thread_and_may_collect)
{
    crowd here = crowd_open();
    stw_operation *operation = ask_for_room(&here);
    told heard;
    told_begin(&heard, here.runtime);
    heard.polls = heard.collects = 1;
    fails(stw_operation_on_done(operation, NULL, &heard), STW_ERROR_INVALID, "done is null");
    ok(stw_operation_on_done(operation, note, &heard));
    fails(stw_operation_on_done(operation, note, &heard), STW_ERROR_EXISTS, "only one");
    assert_int_equal(told_times(&heard), 0);
    view_put(&here.view);
    told_await(&heard, &heard.returned, 1);
    assert_int_equal(heard.status, STW_OK);
    assert_int_equal(heard.polled, STW_OK);
    assert_int_equal(heard.collected, STW_OK);
    assert_ptr_equal(heard.operation, operation);
    assert_false(pthread_equal(heard.thread, pthread_self()));
    assert_int_equal(sigismember(&heard.signals, SIGINT), 1);
    assert_int_equal(sigismember(&heard.signals, SIGUSR1), 1);
    assert_float(((float *)heard.view.pointer)[1234], 1234);
    fails(stw_operation_on_done(operation, note, &heard), STW_ERROR_EXISTS, "only one");
    ok(stw_operation_free(operation));
    view_put(&heard.view);
    assert_int_equal(told_times(&heard), 1);
    machine_close(here.runtime);
    told_end(&heard);
}

TEST(what_is_over_calls_back_at_once_on_this_thread)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    stw_tensor *blank = tensor_f32(runtime, "blank", 100);
    told heard;
    tensor_fill_sequence(tensor, 100, 0);
    told_begin(&heard, runtime);
    stw_operation *operation = ask(runtime, tensor, STW_READ, 0);
    until_over(operation);
    heard.frees = 1;
    ok(stw_operation_on_done(operation, note, &heard));
    assert_int_equal(heard.times, 1);
    assert_int_equal(heard.status, STW_OK);
    assert_int_equal(heard.freed, STW_OK);
    assert_true(pthread_equal(heard.thread, pthread_self()));
    operation = ask(runtime, blank, STW_READ, 0);
    until_over(operation);
    heard.frees = 0;
    ok(stw_operation_on_done(operation, note, &heard));
    assert_int_equal(heard.times, 2);
    assert_int_equal(heard.status, STW_ERROR_EMPTY);
    fails(stw_operation_on_done(operation, note, &heard), STW_ERROR_EXISTS, "only one");
    ok(stw_operation_free(operation));
    machine_close(runtime);
    assert_int_equal(heard.times, 2);
    told_end(&heard);
}

TEST(cancels_timeouts_and_frees_are_told_once)
{
    crowd here = crowd_open();
    stw_operation *operation = ask_for_room(&here);
    told heard;
    told_begin(&heard, here.runtime);
    heard.polls = 1;
    ok(stw_operation_on_done(operation, note, &heard));
    ok(stw_operation_cancel(operation));
    told_await(&heard, &heard.returned, 1);
    assert_int_equal(heard.status, STW_ERROR_CANCELLED);
    assert_int_equal(heard.polled, STW_ERROR_CANCELLED);
    assert_non_null(strstr(heard.sentence, "was cancelled"));
    ok(stw_operation_free(operation));
    here.timeout_ns = 20 * MILLISECOND_NS;
    operation = ask_for_room(&here);
    ok(stw_operation_on_done(operation, note, &heard));
    told_await(&heard, &heard.returned, 2);
    assert_int_equal(heard.status, STW_ERROR_TIMEOUT);
    assert_non_null(strstr(heard.sentence, "'wanted'"));
    ok(stw_operation_free(operation));
    /* Freed under way: the callback comes nevertheless, for a handle that is not alive. */
    here.timeout_ns = 0;
    operation = ask_for_room(&here);
    ok(stw_operation_on_done(operation, note, &heard));
    ok(stw_operation_free(operation));
    told_await(&heard, &heard.returned, 3);
    assert_int_equal(heard.status, STW_ERROR_CANCELLED);
    assert_int_equal(heard.polled, STW_ERROR_INVALID);
    assert_ptr_equal(heard.operation, operation);
    view_put(&here.view);
    machine_close(here.runtime);
    assert_int_equal(heard.times, 3);
    told_end(&heard);
}

TEST(an_interrupt_ends_waits_and_not_operations)
{
    crowd here = crowd_open();
    stw_operation *operation = ask_for_room(&here);
    told heard;
    told_begin(&heard, here.runtime);
    ok(stw_operation_on_done(operation, note, &heard));
    ok(stw_runtime_interrupt(here.runtime));
    assert_int_equal(stw_operation_poll(operation), STW_PENDING);
    assert_int_equal(told_times(&heard), 0);
    view_put(&here.view);
    told_await(&heard, &heard.returned, 1);
    assert_int_equal(heard.status, STW_OK);
    ok(stw_operation_free(operation));
    machine_close(here.runtime);
    told_end(&heard);
}

TEST(a_slow_callback_stops_neither_bytes_nor_deadlines)
{
    crowd here = crowd_open();
    stw_operation *first = ask_for_room(&here), *second, *late;
    stw_tensor *other = tensor_f32(here.runtime, "other", 2 * BLOCK / 4);
    told slow, next;
    told_begin(&slow, here.runtime);
    told_begin(&next, here.runtime);
    slow.waits = 1;
    ok(stw_operation_on_done(first, note, &slow));
    ok(stw_operation_cancel(first));
    told_await(&slow, &slow.times, 1);
    second = ask_for_room(&here);
    ok(stw_operation_on_done(second, note, &next));
    ok(stw_operation_cancel(second));
    /* To the disk and back, and a deadline. */
    tensor_fill_sequence(other, 2 * BLOCK / 4, 5);
    tensor_to_disk(here.runtime, other);
    tensor_expect_sequence(other, 2 * BLOCK / 4, 5);
    late = ask(here.runtime, here.wanted, STW_READ, 20 * MILLISECOND_NS);
    until_over(late);
    fails(stw_operation_poll(late), STW_ERROR_TIMEOUT, "'wanted'");
    assert_int_equal(told_times(&next), 0);
    told_let_go(&slow);
    told_await(&next, &next.returned, 1);
    ok(stw_operation_free(first));
    ok(stw_operation_free(second));
    ok(stw_operation_free(late));
    view_put(&here.view);
    machine_close(here.runtime);
    told_end(&slow);
    told_end(&next);
}

TEST(another_thread_may_free_while_the_callback_runs)
{
    crowd here = crowd_open();
    stw_operation *operation = ask_for_room(&here);
    told heard;
    told_begin(&heard, here.runtime);
    heard.waits = heard.polls = heard.collects = 1;
    ok(stw_operation_on_done(operation, note, &heard));
    view_put(&here.view);
    told_await(&heard, &heard.times, 1);
    ok(stw_operation_free(operation));
    fails(stw_operation_free(operation), STW_ERROR_INVALID, "not alive");
    told_let_go(&heard);
    told_await(&heard, &heard.returned, 1);
    assert_int_equal(heard.status, STW_OK);
    assert_int_equal(heard.polled, STW_ERROR_INVALID);
    assert_int_equal(heard.collected, STW_ERROR_INVALID);
    machine_close(here.runtime);
    told_end(&heard);
}

TEST(a_close_waits_for_the_callbacks_of_freed_operations)
{
    for (uint32_t flags = 0; flags <= STW_CLOSE_DEFERRED; ++flags) {
        crowd here = crowd_open();
        stw_operation *operation = ask_for_room(&here);
        stw_view kept;
        told heard;
        told_begin(&heard, here.runtime);
        heard.waits = heard.frees = heard.closes = 1;
        ok(stw_operation_on_done(operation, note, &heard));
        fails(stw_runtime_close(here.runtime, STW_CLOSE_DEFERRED, 0), STW_ERROR_BUSY,
              "1 operations");
        view_put(&here.view);
        told_await(&heard, &heard.times, 1);
        assert_int_equal(heard.freed, STW_OK);
        if (flags) kept = view_get(here.runtime, here.held, STW_READ);
        fails(stw_runtime_close(here.runtime, flags, 20 * MILLISECOND_NS), STW_ERROR_TIMEOUT,
              "callbacks of 1 operations");
        told_let_go(&heard);
        told_await(&heard, &heard.returned, 1);
        assert_int_equal(heard.closed, STW_ERROR_BUSY);
        if (flags) {
            ok(stw_runtime_close(here.runtime, flags, 0));
            assert_float(((float *)kept.pointer)[77], 77);
            view_put(&kept);
            fails(stw_runtime_drain(here.runtime, 0), STW_ERROR_CLOSED, "not open");
        } else {
            assert_non_null(strstr(heard.sentence, "callback of its own"));
            machine_close(here.runtime);
        }
        assert_int_equal(heard.times, 1);
        told_end(&heard);
    }
}

TEST(a_sum_into_contents_is_told_when_its_own_buffer_is_there)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor_spec spec = spec_f32("gradient", 100);
    float back[100];
    told heard;
    spec.role = STW_ROLE_GRAD;
    stw_tensor *gradient = tensor_make(runtime, &spec);
    tensor_fill_sequence(gradient, 100, 0);
    told_begin(&heard, runtime);
    heard.collects = 1;
    stw_operation *operation = ask(runtime, gradient, STW_REDUCE, 0);
    ok(stw_operation_on_done(operation, note, &heard));
    told_await(&heard, &heard.returned, 1);
    assert_int_equal(heard.status, STW_OK);
    assert_int_equal(heard.collected, STW_OK);
    for (int i = 0; i < 100; ++i) ((float *)heard.view.pointer)[i] += 1;
    view_put(&heard.view);
    ok(stw_tensor_read(gradient, back, NULL));
    for (int i = 0; i < 100; ++i) assert_float(back[i], (float)i + 1);
    ok(stw_operation_free(operation));
    machine_close(runtime);
    told_end(&heard);
}

enum { RACERS = 3, ROUNDS = 100 };

typedef struct racer {
    crowd *here;
    told *heard;
    int number;
    stw_status status;
} racer;

/* Each asks, wants to be told, and at once cancels, frees or waits. */
static void *race(void *argument)
{
    racer *me = argument;
    for (int round = 0; round < ROUNDS && me->status == STW_OK; ++round) {
        stw_fetch_request request = request_of(me->here->wanted, STW_READ);
        stw_operation *operation = NULL;
        stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_WAIT_ROOM};
        me->status = stw_fetch_async(me->here->runtime, &options, &request, 1, &operation);
        if (me->status != STW_OK) break;
        me->status = stw_operation_on_done(operation, note, me->heard);
        if ((round + me->number) % 3 != 0) (void)stw_operation_cancel(operation);
        if ((round + me->number) % 3 == 1) (void)stw_operation_wait(operation, SECOND_NS);
        if (me->status == STW_OK) me->status = stw_operation_free(operation);
    }
    return NULL;
}

TEST(each_of_many_is_told_once)
{
    crowd here = crowd_open();
    pthread_t threads[RACERS];
    racer racers[RACERS];
    told heard;
    told_begin(&heard, here.runtime);
    heard.polls = 1;
    for (int i = 0; i < RACERS; ++i) {
        racers[i].here = &here, racers[i].heard = &heard;
        racers[i].number = i, racers[i].status = STW_OK;
        pthread_create(&threads[i], NULL, race, &racers[i]);
    }
    for (int i = 0; i < RACERS; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i < RACERS; ++i) assert_int_equal(racers[i].status, STW_OK);
    view_put(&here.view);
    machine_close(here.runtime); /* after the last callback */
    assert_int_equal(heard.times, RACERS * ROUNDS);
    assert_int_equal(heard.returned, RACERS * ROUNDS);
    told_end(&heard);
}

RUN_TESTS("callbacks", NULL, NULL)
