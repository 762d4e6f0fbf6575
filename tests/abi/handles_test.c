/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles that are dead, or of another runtime, are errors and change nothing; two runtimes live in
 * one process without knowing of each other.
 */
#include "support.h"

#include <pthread.h>

TEST(a_destroyed_tensor_is_refused_by_every_function)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *dead = tensor_f32(runtime, "dead", 16);
    stw_fetch_request request = request_of(dead, STW_READ);
    stw_tensor_info info;
    stw_view view;
    uint64_t shape = 1;
    float value = 0;
    info.struct_size = sizeof info;
    ok(stw_tensor_destroy(&dead, 1));
    fails(stw_tensor_destroy(&dead, 1), STW_ERROR_INVALID, "was destroyed");
    fails(stw_tensor_info_get(dead, &info), STW_ERROR_INVALID, "was destroyed");
    fails(stw_tensor_freeze(dead, 1), STW_ERROR_INVALID, "was destroyed");
    fails(stw_tensor_reshape(dead, &shape, 1), STW_ERROR_INVALID, "was destroyed");
    fails(stw_tensor_discard(&dead, 1), STW_ERROR_INVALID, "was destroyed");
    fails(stw_tensor_read(dead, &value, NULL), STW_ERROR_INVALID, "was destroyed");
    fails(stw_tensor_write(dead, &value, NULL), STW_ERROR_INVALID, "was destroyed");
    fails(stw_tensor_fill(dead, 0, NULL), STW_ERROR_INVALID, "was destroyed");
    fails(stw_reduce(dead, &value, NULL), STW_ERROR_INVALID, "was destroyed");
    fails(stw_advise(&dead, 1, 0), STW_ERROR_INVALID, "was destroyed");
    fails(stw_evict(runtime, &dead, 1, STW_TIER_HOST, 0, 0), STW_ERROR_INVALID, "was destroyed");
    fails(stw_tensor_next(runtime, dead, &dead), STW_ERROR_INVALID, "was destroyed");
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "not a live tensor");
    fails(stw_prefetch(runtime, &request, 1), STW_ERROR_INVALID, "not a live tensor");
    fails(stw_fetch_fits(runtime, &request, 1), STW_ERROR_INVALID, "not a live tensor");
    machine_close(runtime);
}

TEST(destroyed_phases_optimizers_and_operations_are_refused)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 16);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    stw_phase *phase = NULL;
    stw_optimizer *optimizer = NULL;
    stw_operation *operation = NULL;
    stw_view view;
    ok(stw_tensor_fill(tensor, 1, NULL));
    ok(stw_phase_create(runtime, "p", &phase));
    ok(stw_phase_destroy(phase));
    fails(stw_phase_destroy(phase), STW_ERROR_INVALID, "phase handle");
    fails(stw_step_begin(phase), STW_ERROR_INVALID, "was destroyed");
    options.algorithm = STW_OPTIMIZER_ADAM;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    ok(stw_optimizer_destroy(optimizer));
    fails(stw_optimizer_destroy(optimizer), STW_ERROR_INVALID, "was destroyed");
    fails(stw_optimizer_set_hyper(optimizer, 0, &hyper), STW_ERROR_INVALID, "was destroyed");
    ok(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    ok(stw_operation_wait(operation, 0));
    ok(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1));
    fails(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1), STW_ERROR_INVALID, "collected");
    ok(stw_operation_free(operation));
    fails(stw_operation_free(operation), STW_ERROR_INVALID, "operation handle");
    fails(stw_operation_poll(operation), STW_ERROR_INVALID, "was destroyed");
    view_put(&view);
    machine_close(runtime);
}

TEST(handles_of_a_closed_runtime_stay_dead_when_another_opens)
{
    machine small = machine_small();
    stw_runtime *first = machine_open(&small);
    stw_runtime *second;
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_tensor *tensor = tensor_f32(first, "t", 16);
    stw_phase *phase = NULL;
    stw_optimizer *optimizer = NULL;
    float value = 0;
    options.algorithm = STW_OPTIMIZER_SGD;
    ok(stw_phase_create(first, "p", &phase));
    ok(stw_optimizer_create(first, &options, &optimizer));
    machine_close(first);
    fails(stw_runtime_close(first, 0, 0), STW_ERROR_CLOSED, "was closed");
    fails(stw_runtime_drain(first, 0), STW_ERROR_CLOSED, "was closed");
    fails(stw_runtime_interrupt(first), STW_ERROR_CLOSED, "was closed");
    /* Handles are used again in time, so that old ones must be dead by themselves. */
    for (int i = 0; i < 80; ++i) {
        second = machine_open(&small);
        if (i < 79) machine_close(second);
    }
    fails(stw_tensor_read(tensor, &value, NULL), STW_ERROR_INVALID, "tensor handle");
    fails(stw_step_begin(phase), STW_ERROR_INVALID, "phase handle");
    fails(stw_optimizer_step(optimizer, NULL, NULL), STW_ERROR_INVALID, "optimizer handle");
    machine_close(second);
}

TEST(things_of_another_runtime_are_refused)
{
    machine small = machine_small();
    stw_runtime *mine = machine_open(&small);
    stw_runtime *other = machine_open(&small);
    stw_tensor *own = tensor_f32(mine, "own", 16);
    stw_tensor *foreign = tensor_f32(other, "foreign", 16);
    stw_tensor *found = NULL;
    stw_tensor *both[2];
    stw_fetch_request request = request_of(foreign, STW_READ);
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_phase *phase = NULL;
    stw_view view;
    both[0] = own, both[1] = foreign;
    ok(stw_tensor_fill(own, 1, NULL));
    ok(stw_tensor_fill(foreign, 1, NULL));
    ok(stw_phase_create(other, "p", &phase));
    fails(stw_fetch(mine, NULL, &request, 1, &view), STW_ERROR_INVALID, "of this runtime");
    fails(stw_prefetch(mine, &request, 1), STW_ERROR_INVALID, "of this runtime");
    request.tensor = own, options.phase = phase;
    fails(stw_fetch(mine, &options, &request, 1, &view), STW_ERROR_INVALID, "another runtime");
    fails(stw_tensor_destroy(both, 2), STW_ERROR_INVALID, "another runtime");
    fails(stw_tensor_discard(both, 2), STW_ERROR_INVALID, "another runtime");
    fails(stw_advise(both, 2, 0), STW_ERROR_INVALID, "another runtime");
    fails(stw_evict(mine, both, 2, STW_TIER_HOST, 0, 0), STW_ERROR_INVALID, "another runtime");
    fails(stw_tensor_next(mine, foreign, &found), STW_ERROR_INVALID, "another runtime");
    fails(stw_tensor_find(mine, "foreign", &found), STW_ERROR_NOT_FOUND, "'foreign'");
    ok(stw_phase_destroy(phase));
    machine_close(mine);
    machine_close(other);
}

TEST(optimizers_refuse_tensors_of_another_runtime)
{
    machine small = machine_small();
    stw_runtime *mine = machine_open(&small);
    stw_runtime *other = machine_open(&small);
    stw_tensor *own = tensor_f32(mine, "own", 16);
    stw_tensor *gradient = tensor_f32(mine, "own.grad", 16);
    stw_tensor *foreign = tensor_f32(other, "foreign", 16);
    stw_tensor *found = NULL;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_update_options update = STW_UPDATE_OPTIONS_INIT;
    uint64_t count = 0;
    stw_optimizer *optimizer = optimizer_make(mine, STW_OPTIMIZER_ADAM);
    entry.parameter = foreign, entry.gradient = gradient;
    fails(stw_optimizer_add(optimizer, &entry, 1), STW_ERROR_INVALID, "another runtime");
    entry.parameter = own, entry.gradient = gradient;
    ok(stw_optimizer_add(optimizer, &entry, 1));
    update.parameters = &foreign, update.parameter_count = 1;
    fails(stw_optimizer_step(optimizer, &update, NULL), STW_ERROR_INVALID, "another runtime");
    fails(stw_optimizer_get_count(optimizer, foreign, &count), STW_ERROR_INVALID,
          "another runtime");
    fails(stw_optimizer_set_count(optimizer, foreign, 1), STW_ERROR_INVALID, "another runtime");
    fails(stw_optimizer_state(optimizer, foreign, "exp_avg", &found), STW_ERROR_INVALID,
          "'foreign'");
    ok(stw_optimizer_destroy(optimizer));
    machine_close(mine);
    machine_close(other);
}

TEST(views_of_two_runtimes_end_in_one_call)
{
    machine small = machine_small();
    stw_runtime *mine = machine_open(&small);
    stw_runtime *other = machine_open(&small);
    stw_tensor *own = tensor_f32(mine, "own", 16);
    stw_tensor *foreign = tensor_f32(other, "foreign", 16);
    stw_tensor *second = tensor_f32(other, "second", 16);
    stw_view views[3];
    ok(stw_tensor_fill(own, 1, NULL));
    ok(stw_tensor_fill(foreign, 2, NULL));
    ok(stw_tensor_fill(second, 2, NULL));
    stw_view kept = view_get(mine, own, STW_READ);
    views[0] = view_get(mine, own, STW_READ);
    views[1] = view_get(other, foreign, STW_READ);
    views[2] = view_get(other, second, STW_READ);
    ok(stw_release(views, 3, STW_STREAM_HOST, 0));
    /* The one that was not named is open still, the others are not. */
    fails(stw_runtime_close(mine, 0, 0), STW_ERROR_BUSY, "1 open views");
    view_put(&kept);
    machine_close(mine);
    machine_close(other);
}

enum { FOUND = 300 };
typedef struct finder {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    int wrong;
} finder;

/* Takes each tensor as soon as its name is there, and makes states beside those that are created
 * meanwhile. */
static void *find_and_train(void *argument)
{
    finder *here = argument;
    for (int i = 0; i < FOUND; ++i) {
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        stw_tensor_info info = {.struct_size = sizeof info};
        char name[2][32];
        sprintf(name[0], "weight %d", i);
        sprintf(name[1], "gradient %d", i);
        while (stw_tensor_find(here->runtime, name[0], &entry.parameter) != STW_OK) {}
        here->wrong += stw_tensor_info_get(entry.parameter, &info) != STW_OK;
        here->wrong += info.elements != (uint64_t)(i + 1) || info.shape[0] != info.elements ||
                       strcmp(info.name, name[0]) != 0 || info.role != STW_ROLE_PARAM;
        while (stw_tensor_find(here->runtime, name[1], &entry.gradient) != STW_OK) {}
        here->wrong += stw_optimizer_add(here->optimizer, &entry, 1) != STW_OK;
    }
    return NULL;
}

TEST(a_tensor_is_complete_when_another_thread_finds_it)
{
    machine small = machine_small();
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    finder here = {NULL, NULL, 0};
    pthread_t thread;
    small.nvme_blocks = 2048;
    stw_runtime *runtime = machine_open(&small);
    here.runtime = runtime;
    options.algorithm = STW_OPTIMIZER_ADAMW;
    ok(stw_optimizer_create(runtime, &options, &here.optimizer));
    assert_int_equal(pthread_create(&thread, NULL, find_and_train, &here), 0);
    for (int i = 0; i < FOUND; ++i) {
        stw_tensor_spec specs[2];
        stw_tensor *made[2];
        char name[2][32];
        sprintf(name[0], "weight %d", i);
        sprintf(name[1], "gradient %d", i);
        specs[0] = spec_f32(name[0], (uint64_t)i + 1);
        specs[1] = spec_f32(name[1], (uint64_t)i + 1), specs[1].role = STW_ROLE_GRAD;
        ok(stw_tensor_create(runtime, specs, 2, made));
    }
    pthread_join(thread, NULL);
    assert_int_equal(here.wrong, 0);
    ok(stw_optimizer_destroy(here.optimizer));
    machine_close(runtime);
}

enum { PAIRS = 16, ROUNDS = 100 };
typedef struct trainer {
    stw_runtime *runtime;
    stw_tensor *pairs[2 * PAIRS]; /* a parameter, its gradient, and so on */
    int wrong;
} trainer;

static void *train_and_leave(void *argument)
{
    trainer *here = argument;
    for (int round = 0; round < ROUNDS; ++round) {
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        stw_optimizer *optimizer;
        options.algorithm = STW_OPTIMIZER_SGD;
        if (stw_optimizer_create(here->runtime, &options, &optimizer) != STW_OK) return argument;
        for (int i = 0; i < PAIRS; ++i) {
            stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
            entry.parameter = here->pairs[2 * i], entry.gradient = here->pairs[2 * i + 1];
            here->wrong += stw_optimizer_add(optimizer, &entry, 1) != STW_OK;
        }
        here->wrong += stw_optimizer_destroy(optimizer) != STW_OK;
    }
    return NULL;
}

/* The end of one looks at what the others hold. */
TEST(optimizers_grow_while_another_thread_destroys_others)
{
    trainer trainers[2];
    pthread_t threads[2];
    stw_runtime *runtime = machine_open_as(machine_small());
    for (int each = 0; each < 2; ++each) {
        trainers[each].runtime = runtime, trainers[each].wrong = 0;
        for (int i = 0; i < 2 * PAIRS; ++i) {
            char name[32];
            sprintf(name, "tensor %d of %d", i, each);
            stw_tensor_spec spec = spec_f32(name, 16);
            if (i % 2 != 0) spec.role = STW_ROLE_GRAD;
            trainers[each].pairs[i] = tensor_make(runtime, &spec);
        }
    }
    for (int each = 0; each < 2; ++each)
        assert_int_equal(pthread_create(&threads[each], NULL, train_and_leave, &trainers[each]), 0);
    for (int each = 0; each < 2; ++each) {
        void *stopped = NULL;
        pthread_join(threads[each], &stopped);
        assert_true(stopped == NULL);
        assert_int_equal(trainers[each].wrong, 0);
    }
    machine_close(runtime);
}

RUN_TESTS("handles", NULL, NULL)
