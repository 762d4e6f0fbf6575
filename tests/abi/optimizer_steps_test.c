/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps over some parameters each, one after the other as their gradients are complete: none waits
 * for the parameters of another, and every bit is that of steps that were waited for.
 */
#include "support.h"

#include <time.h>

enum { PARAMETERS = 3, ELEMENTS = 16384 + 77, ROUNDS = 3 };

typedef struct model {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameters[PARAMETERS];
    stw_tensor *gradients[PARAMETERS];
} model;

static model model_make(stw_runtime *runtime)
{
    model made = {.runtime = runtime};
    made.optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    for (int i = 0; i < PARAMETERS; ++i) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        made.parameters[i] = tensor_f32(runtime, name, ELEMENTS);
        snprintf(name, sizeof name, "g%d", i);
        made.gradients[i] = tensor_f32(runtime, name, ELEMENTS);
        tensor_fill_sequence(made.parameters[i], ELEMENTS, (float)i);
        optimizer_add(made.optimizer, made.parameters[i], made.gradients[i]);
    }
    return made;
}

/* The learning rate changes from call to call. */
static void step_one(model *here, int round, int parameter, uint32_t flags)
{
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.lr = 0.01 * (1 + round) * (1 + parameter);
    tensor_fill_sequence(here->gradients[parameter], ELEMENTS, (float)(round + parameter));
    ok(stw_optimizer_set_hyper(here->optimizer, 0, &hyper));
    options.parameters = &here->parameters[parameter], options.parameter_count = 1;
    options.flags = flags;
    ok(stw_optimizer_step(here->optimizer, &options, NULL));
}

static stw_tensor *moment_of(model *here, int parameter)
{
    stw_tensor *state = NULL;
    ok(stw_optimizer_state(here->optimizer, here->parameters[parameter], "exp_avg", &state));
    return state;
}

static void read_all(model *here, float (*values)[ELEMENTS])
{
    for (int i = 0; i < PARAMETERS; ++i) ok(stw_tensor_read(here->parameters[i], values[i], NULL));
}

/* For its own update alone. */
static void tensor_wait(stw_tensor *tensor)
{
    static float values[ELEMENTS];
    ok(stw_tensor_read(tensor, values, NULL));
}

static int is_held(model *here, int parameter)
{
    stw_fetch_request reads = request_of(here->parameters[parameter], STW_READ);
    stw_view view;
    stw_fetch_options tries = {.struct_size = sizeof tries, .flags = STW_FETCH_TRY};
    stw_status status = stw_fetch(here->runtime, &tries, &reads, 1, &view);
    if (status == STW_OK) view_put(&view);
    return status == STW_ERROR_BUSY;
}

/* Each step waited for. */
static void run_serially(const machine *wanted, float (*values)[ELEMENTS])
{
    stw_runtime *runtime = machine_open(wanted);
    model here = model_make(runtime);
    for (int round = 0; round < ROUNDS; ++round)
        for (int i = 0; i < PARAMETERS; ++i) step_one(&here, round, i, STW_UPDATE_WAIT);
    read_all(&here, values);
    machine_close(runtime);
}

/* A view of a state keeps the first one's update under way, whatever the machine is like. */
TEST(a_step_returns_while_that_of_another_parameter_is_under_way)
{
    static float serial[PARAMETERS][ELEMENTS], beside[PARAMETERS][ELEMENTS];
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_runtime *runtime = NULL;
    model here;
    run_serially(*state, serial);
    runtime = machine_open(*state);
    here = model_make(runtime);
    for (int round = 0; round < ROUNDS; ++round) {
        stw_view held = view_get(runtime, moment_of(&here, 0), STW_READ);
        for (int i = 0; i < PARAMETERS; ++i) step_one(&here, round, i, 0);
        tensor_wait(here.parameters[2]);
        assert_true(is_held(&here, 0));
        fails(stw_optimizer_destroy(here.optimizer), STW_ERROR_BUSY, "a step under way");
        fails(stw_optimizer_set_count(here.optimizer, here.parameters[0], 0), STW_ERROR_BUSY, "");
        view_put(&held);
    }
    ok(stw_runtime_drain(runtime, 0));
    ok(stw_optimizer_result(here.optimizer, &result));
    assert_int_equal(result.updated, 1);
    read_all(&here, beside);
    assert_memory_equal(serial, beside, sizeof serial);
    machine_close(runtime);
}

/* Order for each parameter is that of the calls; a verdict is about a step that is alone. */
TEST(a_step_waits_for_what_is_in_its_way)
{
    stw_runtime *runtime = machine_open(*state);
    model here = model_make(runtime);
    stw_view held = view_handed_over(runtime, moment_of(&here, 0));
    stw_update_options again = STW_UPDATE_OPTIONS_INIT, clips = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    uint64_t count = 9;
    step_one(&here, 0, 0, 0);
    step_one(&here, 0, 1, 0);
    tensor_wait(here.parameters[1]);
    again.parameters = &here.parameters[0], again.parameter_count = 1;
    again.timeout_ns = clips.timeout_ns = MILLISECOND_NS;
    fails(stw_optimizer_step(here.optimizer, &again, NULL), STW_ERROR_TIMEOUT, "");
    clips.parameters = &here.parameters[1], clips.parameter_count = 1, clips.clip_norm = 1;
    fails(stw_optimizer_step(here.optimizer, &clips, NULL), STW_ERROR_TIMEOUT, "");
    view_put(&held);
    again.timeout_ns = 0;
    ok(stw_optimizer_step(here.optimizer, &again, &result));
    assert_int_equal(result.without_gradient, 1); /* the step before has used it */
    ok(stw_optimizer_get_count(here.optimizer, here.parameters[0], &count));
    assert_int_equal(count, 1);
    machine_close(runtime);
}

/* The gradients' tensors stay empty, or have what they had. */
TEST(a_step_takes_gradients_of_the_callers_memory)
{
    static float serial[PARAMETERS][ELEMENTS], given[PARAMETERS][ELEMENTS];
    static float gradients[PARAMETERS][ELEMENTS];
    stw_runtime *runtime = NULL;
    model here;
    run_serially(*state, serial);
    runtime = machine_open(*state);
    here = model_make(runtime);
    for (int round = 0; round < ROUNDS; ++round) {
        for (int i = 0; i < PARAMETERS; ++i) {
            const void *lent = gradients[i];
            stw_update_options options = STW_UPDATE_OPTIONS_INIT;
            stw_hyper hyper = STW_HYPER_INIT;
            hyper.lr = 0.01 * (1 + round) * (1 + i);
            ok(stw_optimizer_set_hyper(here.optimizer, 0, &hyper));
            tensor_fill_sequence(here.gradients[i], ELEMENTS, (float)(round + i));
            ok(stw_tensor_read(here.gradients[i], gradients[i], NULL));
            if (i != 1) ok(stw_tensor_discard(&here.gradients[i], 1));
            options.parameters = &here.parameters[i], options.parameter_count = 1;
            options.gradients = &lent;
            ok(stw_optimizer_step(here.optimizer, &options, NULL));
        }
        ok(stw_runtime_drain(runtime, 0));
        for (int i = 0; i < PARAMETERS; ++i)
            assert_int_equal(info_of(here.gradients[i]).state,
                             i == 1 ? STW_STATE_VALID : STW_STATE_EMPTY);
    }
    read_all(&here, given);
    assert_memory_equal(serial, given, sizeof serial);
    machine_close(runtime);
}

TEST(gradients_of_the_callers_memory_are_of_named_parameters_and_without_a_verdict)
{
    static const float zeros[ELEMENTS];
    const void *lent = zeros;
    stw_runtime *runtime = machine_open(*state);
    model here = model_make(runtime);
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    options.gradients = &lent;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID,
          "options.parameters, which is null");
    options.parameters = &here.parameters[0], options.parameter_count = 1;
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID,
          "has no verdict");
    options.clip_norm = 1;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID, "has no verdict");
    options.clip_norm = 0, options.flags = STW_UPDATE_SPECULATE;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID, "has no verdict");
    options.flags = STW_UPDATE_WAIT, lent = NULL; /* the tensor's, which is empty */
    ok(stw_optimizer_step(here.optimizer, &options, NULL));
    machine_close(runtime);
}

TEST(a_close_waits_for_all_of_them)
{
    stw_runtime *runtime = machine_open(*state);
    model here = model_make(runtime);
    stw_view held = view_get(runtime, moment_of(&here, 0), STW_READ);
    step_one(&here, 0, 0, 0);
    step_one(&here, 0, 1, 0);
    tensor_wait(here.parameters[1]);
    fails(stw_runtime_drain(runtime, MILLISECOND_NS), STW_ERROR_TIMEOUT, "");
    view_put(&held);
    step_one(&here, 1, 1, 0);
    step_one(&here, 1, 2, 0);
    ok(stw_runtime_close(runtime, 0, 0));
}

/* Processor time of the calls that add so many parameters of four elements. */
static uint64_t time_to_add(uint32_t count)
{
    machine wanted = machine_small();
    wanted.tensors_max = 8 * count;
    stw_runtime *runtime = machine_open(&wanted);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    stw_tensor **tensors = calloc(2 * (size_t)count, sizeof(stw_tensor *));
    for (uint32_t i = 0; i < 2 * count; ++i) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        tensors[i] = tensor_f32(runtime, name, 4);
    }
    struct timespec begin, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    for (uint32_t i = 0; i < count; ++i)
        optimizer_add(optimizer, tensors[2 * i], tensors[2 * i + 1]);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    free(tensors);
    machine_close(runtime);
    return (uint64_t)(end.tv_sec - begin.tv_sec) * SECOND_NS + (uint64_t)end.tv_nsec -
           (uint64_t)begin.tv_nsec;
}

/* Ten times as many take ten times as long, and not a hundred times. */
TEST(adding_a_parameter_does_not_look_at_all_others)
{
    const uint64_t few = time_to_add(400), many = time_to_add(4000);
    if (many > 30 * few)
        fail_msg("400 parameters took %llu ns, 4000 took %llu", (unsigned long long)few,
                 (unsigned long long)many);
}

RUN_TESTS_ON_EACH_MACHINE("optimizer steps", NULL)
