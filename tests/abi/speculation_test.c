/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates before their verdict, on three real tiers: the same bits as without, however often the
 * verdict is another one; no more bytes to the disk where it is not; and nothing else may be done
 * with such parameters meanwhile.
 */
#include "support.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ELEMENTS = 5 * 16384 + 77, /* five blocks of fp32 and a bit */
    PARAMETERS = 6,
    STEPS = 40
};

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameters[PARAMETERS], *gradients[PARAMETERS];
} trainee;

/* All states together are six budgets. */
static machine small_host(void)
{
    machine now = machine_small();
    now.nvme_blocks = 640;
    return now;
}

static trainee trainee_in(stw_runtime *runtime, uint32_t dtype)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    trainee made = {.runtime = runtime};
    options.algorithm = STW_OPTIMIZER_ADAMW;
    ok(stw_optimizer_create(runtime, &options, &made.optimizer));
    hyper_usual(made.optimizer);
    for (int i = 0; i < PARAMETERS; ++i) {
        stw_tensor_spec spec = spec_f32(NULL, ELEMENTS);
        spec.dtype = dtype;
        made.parameters[i] = tensor_make(runtime, &spec);
        spec.role = STW_ROLE_GRAD;
        made.gradients[i] = tensor_make(runtime, &spec);
        ok(stw_tensor_fill(made.parameters[i], 0.25 * (i + 1), NULL));
        optimizer_add(made.optimizer, made.parameters[i], made.gradients[i]);
    }
    return made;
}

static void trainee_leave(trainee *here)
{
    ok(stw_runtime_drain(here->runtime, 0));
    ok(stw_optimizer_destroy(here->optimizer));
    ok(stw_tensor_destroy(here->parameters, PARAMETERS));
    ok(stw_tensor_destroy(here->gradients, PARAMETERS));
}

static void give_gradients(trainee *here, int step, int infinite)
{
    for (int i = 0; i < PARAMETERS; ++i) {
        const int broken = infinite && i == step % PARAMETERS;
        ok(stw_tensor_fill(here->gradients[i], broken ? (double)INFINITY : 0.001 * (step + i + 1),
                           NULL));
    }
}

static void early_step(trainee *here, int i)
{
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.flags = STW_UPDATE_SPECULATE;
    options.parameters = &here->parameters[i], options.parameter_count = 1;
    ok(stw_optimizer_step(here->optimizer, &options, NULL));
}

static stw_update_result verdict(trainee *here, double clip_norm)
{
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    options.clip_norm = clip_norm, options.flags = STW_UPDATE_SKIP_NONFINITE;
    assert_true(stw_optimizer_step(here->optimizer, &options, &result) >= STW_OK);
    return result;
}

static void expect_same_bits(stw_tensor *one, stw_tensor *other)
{
    const uint64_t bytes = info_of(one).whole_bytes;
    void *first = malloc(bytes), *second = malloc(bytes);
    assert_non_null(first), assert_non_null(second);
    ok(stw_tensor_read(one, first, NULL));
    ok(stw_tensor_read(other, second, NULL));
    assert_memory_equal(first, second, bytes);
    free(first), free(second);
}

static void expect_same(trainee *one, trainee *other, uint32_t dtype)
{
    const char *const states[] = {"exp_avg", "exp_avg_sq", "master"};
    for (int i = 0; i < PARAMETERS; ++i) {
        expect_same_bits(one->parameters[i], other->parameters[i]);
        for (size_t state = 0; state < (dtype == STW_F32 ? 2 : 3); ++state) {
            stw_tensor *mine = NULL, *its = NULL;
            ok(stw_optimizer_state(one->optimizer, one->parameters[i], states[state], &mine));
            ok(stw_optimizer_state(other->optimizer, other->parameters[i], states[state], &its));
            expect_same_bits(mine, its);
        }
    }
}

static void train_beside(uint32_t dtype)
{
    stw_runtime *runtime = machine_open_as(small_host());
    trainee plain = trainee_in(runtime, dtype), early = trainee_in(runtime, dtype);
    uint64_t stood = 0, undone = 0, skipped = 0;
    for (int step = 0; step < STEPS; ++step) {
        const double clip_norm = step % 11 == 3 ? 0.01 : 1e6;
        const int infinite = step % 17 == 5;
        give_gradients(&plain, step, infinite), give_gradients(&early, step, infinite);
        for (int i = 0; i < PARAMETERS; ++i) {
            if ((step + i) % 5 != 4) early_step(&early, i);
        }
        if (step % 2 == 0) ok(stw_runtime_drain(runtime, 0));
        const stw_update_result expected = verdict(&plain, clip_norm);
        const stw_update_result found = verdict(&early, clip_norm);
        assert_true(found.norm == expected.norm);
        assert_int_equal(found.skipped, expected.skipped);
        stood += found.early, undone += found.undone, skipped += found.skipped;
        assert_int_equal(expected.early + expected.undone, 0);
    }
    expect_same(&plain, &early, dtype);
    assert_true(stood > 0 && undone > 0 && skipped > 0);
    stw_tensor *count_of = early.parameters[0];
    uint64_t count = 0;
    ok(stw_optimizer_get_count(early.optimizer, count_of, &count));
    assert_int_equal(count, STEPS - skipped);
    trainee_leave(&plain), trainee_leave(&early);
    machine_close(runtime);
}

TEST(an_early_update_has_the_bits_of_one_that_waits)
{
    train_beside(STW_F32);
    train_beside(STW_BF16);
}

/* What a step writes to the disk, in the mean of some, with everything settled in between. */
static uint64_t written_by_steps(int speculates)
{
    stw_runtime *runtime = machine_open_as(small_host());
    trainee here = trainee_in(runtime, STW_F32);
    uint64_t before = 0;
    for (int step = 0; step < 8; ++step) {
        if (step == 4) before = link_stats(runtime, STW_LINK_HOST_TO_NVME).bytes;
        give_gradients(&here, step, 0);
        for (int i = 0; i < PARAMETERS && speculates; ++i) {
            early_step(&here, i);
            ok(stw_runtime_drain(runtime, 0));
        }
        const stw_update_result result = verdict(&here, 1e6);
        if (speculates && step > 0) assert_int_equal(result.early, PARAMETERS);
        ok(stw_runtime_drain(runtime, 0));
        for (int i = 0; i < PARAMETERS; ++i) {
            stw_tensor *state = NULL;
            ok(stw_optimizer_state(here.optimizer, here.parameters[i], "exp_avg", &state));
            tensor_to_disk(runtime, state);
            ok(stw_optimizer_state(here.optimizer, here.parameters[i], "exp_avg_sq", &state));
            tensor_to_disk(runtime, state);
            tensor_to_disk(runtime, here.parameters[i]);
        }
    }
    const uint64_t written = link_stats(runtime, STW_LINK_HOST_TO_NVME).bytes - before;
    trainee_leave(&here);
    machine_close(runtime);
    return written;
}

TEST(older_contents_at_nvme_cost_no_bytes)
{
    const uint64_t without = written_by_steps(0), with = written_by_steps(1);
    if (with > without + without / 20)
        fail_msg("%llu bytes were written, and %llu without speculation", (unsigned long long)with,
                 (unsigned long long)without);
}

TEST(what_waits_for_its_verdict_is_left_alone)
{
    stw_runtime *runtime = machine_open_as(small_host());
    trainee here = trainee_in(runtime, STW_F32);
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_fetch_options fetch = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = request_of(here.parameters[0], STW_READ);
    stw_view view;
    give_gradients(&here, 1, 0);
    options.flags = STW_UPDATE_SPECULATE;
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID,
          "no result_out");
    options.flags = STW_UPDATE_SPECULATE | STW_UPDATE_WAIT;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID, "STW_UPDATE_WAIT");
    early_step(&here, 0);
    ok(stw_prefetch(runtime, &request, 1)); /* a hint, which nobody waits for */
    ok(stw_runtime_drain(runtime, 0));
    options.flags = STW_UPDATE_SPECULATE;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID,
          "waits for its verdict");
    options.flags = 0;
    options.parameters = &here.parameters[1], options.parameter_count = 1;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID, "is not named");
    fails(stw_optimizer_destroy(here.optimizer), STW_ERROR_BUSY, "its verdict");
    fails(stw_tensor_destroy(here.parameters, 1), STW_ERROR_BUSY, "belongs to optimizer");
    fails(stw_fetch(runtime, &fetch, &request, 1, &view), STW_ERROR_BUSY, "STW_UPDATE_REJECT");
    result = verdict(&here, 1e6);
    assert_int_equal(result.updated, PARAMETERS);
    view = view_get(runtime, here.parameters[0], STW_READ);
    view_put(&view);
    /* A close needs no verdict. */
    early_step(&here, 2);
    machine_close(runtime);
}

/* Its parameters' new contents, by the flag; and a verdict that is another one waits for the views
 * of them, as an update does for any view. */
TEST(what_was_speculated_is_read_before_its_verdict)
{
    stw_runtime *runtime = machine_open_as(small_host());
    trainee here = trainee_in(runtime, STW_F32), plain = trainee_in(runtime, STW_F32);
    stw_fetch_options speculated = STW_FETCH_OPTIONS_INIT, others = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = request_of(here.parameters[0], STW_READ);
    stw_view view, again;
    float copy = 0.0f;
    give_gradients(&here, 1, 0), give_gradients(&plain, 1, 0);
    speculated.flags = STW_FETCH_SPECULATED;
    early_step(&here, 0); /* which is not early, as the moments have no contents to keep */
    ok(stw_runtime_drain(runtime, 0));
    fails(stw_fetch(runtime, &speculated, &request, 1, &view), STW_ERROR_BUSY, "the verdict");
    assert_int_equal(verdict(&here, 1e6).early, 0);
    (void)verdict(&plain, 1e6);
    for (int undone = 0; undone < 2; ++undone) {
        const double clip_norm = undone ? 1e-3 : 1e6;
        give_gradients(&here, undone, 0), give_gradients(&plain, undone, 0);
        early_step(&here, 0);
        ok(stw_runtime_drain(runtime, 0));
        fails(stw_fetch(runtime, &others, &request, 1, &view), STW_ERROR_BUSY, "the verdict");
        ok(stw_fetch(runtime, &speculated, &request, 1, &view));
        request.into = &copy, request.element_count = 1;
        ok(stw_fetch(runtime, &speculated, &request, 1, &again));
        request.into = NULL, request.element_count = 0;
        assert_true(copy == *(const float *)view.pointer);
        early_step(&here, 1);
        ok(stw_runtime_drain(runtime, 0));
        request.tensor = here.gradients[0]; /* no parameter */
        fails(stw_fetch(runtime, &speculated, &request, 1, &again), STW_ERROR_BUSY, "the verdict");
        request.tensor = here.parameters[0];
        request.access = STW_WRITE;
        fails(stw_fetch(runtime, &speculated, &request, 1, &again), STW_ERROR_INVALID,
              "STW_FETCH_SPECULATED");
        request.access = STW_READ;
        const stw_update_result result = verdict(&here, clip_norm);
        assert_int_equal(undone ? result.undone : result.early, 2);
        assert_true(copy == *(const float *)view.pointer);
        if (undone)
            fails(stw_fetch(runtime, &speculated, &request, 1, &again), STW_ERROR_BUSY, "view");
        view_put(&view);
        (void)verdict(&plain, clip_norm);
        view = view_get(runtime, here.parameters[0], STW_READ);
        assert_int_equal(copy == *(const float *)view.pointer, !undone);
        view_put(&view);
    }
    expect_same(&here, &plain, STW_F32);
    trainee_leave(&here), trainee_leave(&plain);
    machine_close(runtime);
}

static stw_status reject(trainee *here, uint32_t flags, stw_update_result *result)
{
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.flags = STW_UPDATE_REJECT | flags;
    return stw_optimizer_step(here->optimizer, &options, result);
}

/* Whatever early steps have come to: nothing, a norm, or an update. */
TEST(a_rejected_step_leaves_no_trace)
{
    stw_runtime *runtime = machine_open_as(small_host());
    trainee plain = trainee_in(runtime, STW_BF16), here = trainee_in(runtime, STW_BF16);
    uint64_t undone = 0;
    for (int step = 0; step < 24; ++step) {
        const int keeps = step % 3 == 1;
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        give_gradients(&here, 100 + step, step % 5 == 4);
        for (int i = 0; i < 1 + step % PARAMETERS; ++i) early_step(&here, i);
        if (step % 2 == 0) ok(stw_runtime_drain(runtime, 0));
        const uint32_t flags = keeps ? STW_UPDATE_KEEP_GRADIENTS : 0;
        assert_int_equal(reject(&here, flags, step % 4 == 3 ? NULL : &result), STW_SKIPPED);
        assert_int_equal(result.skipped, step % 4 != 3);
        assert_int_equal(result.updated + result.early, 0);
        undone += result.undone;
        ok(stw_runtime_drain(runtime, 0));
        /* Gradients of others are as they were. */
        for (int i = 0; i < PARAMETERS; ++i) {
            const int emptied = !keeps && i <= step % PARAMETERS;
            assert_int_equal(info_of(here.gradients[i]).state == STW_STATE_EMPTY, emptied);
        }
        give_gradients(&plain, step, 0), give_gradients(&here, step, 0);
        for (int i = 0; i < PARAMETERS; ++i) early_step(&here, i);
        (void)verdict(&plain, 1e6), (void)verdict(&here, 1e6);
    }
    assert_true(undone > 0);
    expect_same(&plain, &here, STW_BF16);
    /* With nothing to reject it does nothing, and it takes nothing else. */
    give_gradients(&here, 0, 0);
    assert_int_equal(reject(&here, STW_UPDATE_WAIT, NULL), STW_SKIPPED);
    assert_int_equal(info_of(here.gradients[0]).state, STW_STATE_VALID);
    fails(reject(&here, STW_UPDATE_MEASURE, NULL), STW_ERROR_INVALID, "does nothing else");
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.flags = STW_UPDATE_REJECT, options.clip_norm = 1.0;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID, "clip");
    options.clip_norm = 0.0, options.parameters = here.parameters, options.parameter_count = 1;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID, "parameters");
    trainee_leave(&plain), trainee_leave(&here);
    machine_close(runtime);
}

/* Early steps after many that were set back read no gradient: nothing has waited for who does. */
TEST(a_rejection_empties_a_gradient_behind_who_reads_it)
{
    machine wanted = small_host();
    wanted.device_blocks = 256;
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;delay_read=1:20000000";
    stw_runtime *runtime = machine_open_as(wanted);
    trainee here = trainee_in(runtime, STW_F32);
    for (int step = 0; step < 10; ++step) {
        give_gradients(&here, step, 0);
        for (int i = 0; i < PARAMETERS; ++i) early_step(&here, i);
        (void)verdict(&here, 1e-3);
    }
    for (int viewed = 0; viewed < 2; ++viewed) {
        stw_tensor *gradient = here.gradients[0];
        const stw_fetch_request request = request_of(gradient, STW_READ);
        stw_view view;
        ok(stw_tensor_fill(gradient, 3.0, NULL));
        ok(stw_evict(runtime, &gradient, 1, STW_TIER_DEVICE, 0, 0));
        ok(stw_evict(runtime, &gradient, 1, STW_TIER_HOST, 0, 0));
        if (viewed)
            view = view_get(runtime, gradient, STW_READ);
        else
            ok(stw_prefetch(runtime, &request, 1)); /* takes a while */
        early_step(&here, 0);
        assert_int_equal(reject(&here, 0, NULL), STW_SKIPPED);
        if (viewed) {
            assert_int_equal(info_of(gradient).state, STW_STATE_VALID);
            assert_float(((const float *)view.pointer)[ELEMENTS - 1], 3.0F);
            view_put(&view);
        }
        ok(stw_runtime_drain(runtime, 0));
        assert_int_equal(info_of(gradient).state, STW_STATE_EMPTY);
    }
    trainee_leave(&here);
    machine_close(runtime);
}

/* The batch after one that was given up is not trained on top of it. */
TEST(an_aborted_phase_rejects_what_was_speculated_in_it)
{
    stw_runtime *runtime = machine_open_as(small_host());
    trainee plain = trainee_in(runtime, STW_F32), here = trainee_in(runtime, STW_F32);
    stw_phase *phase = NULL;
    ok(stw_phase_create(runtime, "train", &phase));
    for (int step = 0; step < 6; ++step) {
        give_gradients(&plain, step, 0), give_gradients(&here, step, 0);
        (void)verdict(&plain, 1e6);
        ok(stw_step_begin(phase));
        for (int i = 0; i < 3; ++i) early_step(&here, i);
        if (step % 2 == 1) ok(stw_runtime_drain(runtime, 0));
        ok(stw_step_abort(phase, NULL));
        ok(stw_step_begin(phase));
        for (int i = 0; i < PARAMETERS; ++i) early_step(&here, i); /* gradients are kept */
        (void)verdict(&here, 1e6);
        ok(stw_step_end(phase, NULL));
    }
    expect_same(&plain, &here, STW_F32);
    trainee_leave(&plain), trainee_leave(&here);
    machine_close(runtime);
}

/* A step without parameters is one of all that are not frozen, and a rejection names none. */
TEST(frozen_parameters_hinder_no_rejection)
{
    stw_runtime *runtime = machine_open_as(small_host());
    trainee plain = trainee_in(runtime, STW_F32), here = trainee_in(runtime, STW_F32);
    stw_phase *phase = NULL;
    ok(stw_phase_create(runtime, "train", &phase));
    for (int step = 0; step < 4; ++step) {
        give_gradients(&plain, step, 0), give_gradients(&here, step, 0);
        (void)verdict(&plain, 1e6);
        ok(stw_tensor_freeze(here.parameters[PARAMETERS - 1], 1));
        ok(stw_step_begin(phase));
        for (int i = 0; i < 3; ++i) early_step(&here, i);
        if (step % 2 == 0) {
            assert_int_equal(reject(&here, STW_UPDATE_KEEP_GRADIENTS, NULL), STW_SKIPPED);
            ok(stw_step_end(phase, NULL));
        } else {
            ok(stw_step_abort(phase, NULL));
        }
        ok(stw_tensor_freeze(here.parameters[PARAMETERS - 1], 0));
        for (int i = 0; i < PARAMETERS; ++i) early_step(&here, i);
        (void)verdict(&here, 1e6);
    }
    expect_same(&plain, &here, STW_F32);
    trainee_leave(&plain), trainee_leave(&here);
    machine_close(runtime);
}

typedef struct reading {
    stw_tensor *tensor;
    float value;
    stw_status status;
} reading;

static void *read_first(void *argument)
{
    reading *here = argument;
    stw_copy_options options = STW_COPY_OPTIONS_INIT;
    options.element_count = 1;
    here->status = stw_tensor_read(here->tensor, &here->value, &options);
    return NULL;
}

static void give_back(void *user)
{
    free(user);
}

/* The thread that gives verdicts never waits for one; others do, up to it. */
TEST(a_wait_for_the_own_verdict_is_refused_at_once)
{
    enum { SUMS = 64 };
    stw_runtime *runtime = machine_open_as(small_host());
    trainee here = trainee_in(runtime, STW_F32);
    stw_fetch_request request = request_of(here.parameters[0], STW_READ);
    stw_fetch_options fetch = STW_FETCH_OPTIONS_INIT;
    stw_operation *operation = NULL;
    stw_view view, gradient;
    reading other = {.tensor = here.parameters[0]};
    pthread_t thread;
    float value = 0.0f;
    stw_copy_options one = STW_COPY_OPTIONS_INIT;
    one.element_count = 1;
    give_gradients(&here, 1, 0);
    early_step(&here, 0);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_BUSY, "STW_UPDATE_REJECT");
    fails(stw_tensor_read(here.parameters[0], &value, &one), STW_ERROR_BUSY, "the verdict");
    fails(stw_tensor_write(here.gradients[0], &value, &one), STW_ERROR_BUSY, "the verdict");
    fails(stw_tensor_freeze(here.parameters[0], 1), STW_ERROR_BUSY, "its verdict writes it");
    ok(stw_fetch_async(runtime, &fetch, &request, 1, &operation));
    assert_int_equal(stw_operation_poll(operation), STW_PENDING);
    fails(stw_operation_wait(operation, UINT64_MAX), STW_ERROR_BUSY, "the verdict");
    assert_int_equal(pthread_create(&thread, NULL, read_first, &other), 0);
    /* Sums behind the gradient hold memory of the caller's, and there is a limit. */
    stw_status status = STW_OK;
    for (int i = 0; i < SUMS && status == STW_OK; ++i) {
        float *mine = calloc(ELEMENTS, sizeof *mine);
        status = stw_reduce_adopt(here.gradients[0], mine, NULL, give_back, mine);
        if (status != STW_OK) free(mine);
    }
    assert_int_equal(status, STW_ERROR_BUSY);
    assert_non_null(strstr(stw_last_error(), "the verdict"));
    (void)verdict(&here, 1e6);
    assert_int_equal(pthread_join(thread, NULL), 0);
    ok(other.status);
    ok(stw_operation_wait(operation, UINT64_MAX));
    ok(stw_fetch_collect(operation, NULL, &view, 1));
    assert_true(*(const float *)view.pointer == other.value);
    ok(stw_operation_free(operation));
    /* Nor for a view of its own: of a parameter that is to be updated, of a gradient to be read. */
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    give_gradients(&here, 2, 0);
    options.flags = STW_UPDATE_WAIT;
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_BUSY, "release that view");
    view_put(&view);
    gradient = view_get(runtime, here.gradients[2], STW_READ);
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_BUSY,
          "release that view");
    view_put(&gradient);
    ok(stw_optimizer_step(here.optimizer, &options, &result));
    trainee_leave(&here);
    machine_close(runtime);
}

/* Setting back waits for the view; what the verdict is does not. */
TEST(a_skipped_verdict_is_known_beside_a_speculated_view)
{
    stw_runtime *runtime = machine_open_as(small_host());
    trainee here = trainee_in(runtime, STW_F32), plain = trainee_in(runtime, STW_F32);
    stw_fetch_options speculated = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = request_of(here.parameters[0], STW_READ);
    stw_view view;
    speculated.flags = STW_FETCH_SPECULATED;
    give_gradients(&here, 1, 0), give_gradients(&plain, 1, 0);
    (void)verdict(&here, 1e6), (void)verdict(&plain, 1e6);
    give_gradients(&here, 1, 1);
    early_step(&here, 0);
    ok(stw_fetch(runtime, &speculated, &request, 1, &view));
    const stw_update_result result = verdict(&here, 1e6);
    assert_int_equal(result.skipped, 1);
    assert_int_equal(result.undone, 1);
    view_put(&view);
    expect_same(&here, &plain, STW_F32);
    trainee_leave(&here), trainee_leave(&plain);
    machine_close(runtime);
}

TEST(what_is_not_speculated_is_said)
{
    machine now = machine_small();
    uint64_t undone = 0;
    stw_runtime *runtime = machine_open_as(small_host());
    trainee here = trainee_in(runtime, STW_F32);
    log_reset();
    for (int step = 0; step < 12; ++step) {
        give_gradients(&here, step, 0);
        early_step(&here, 0);
        ok(stw_runtime_drain(runtime, 0));
        const stw_update_result result = verdict(&here, 1e-3);
        undone += result.undone;
        if (step >= 7) assert_int_equal(result.undone, 0);
    }
    assert_true(undone > 0);
    assert_int_equal(times_logged("updates after the verdict for a while"), 1);
    trainee_leave(&here);
    machine_close(runtime);
    /* Room for all, and not twice. */
    now.nvme_blocks = PARAMETERS * 4 * 6 + 8;
    runtime = machine_open_as(now);
    here = trainee_in(runtime, STW_F32);
    log_reset();
    give_gradients(&here, 0, 0);
    for (int i = 0; i < PARAMETERS; ++i) early_step(&here, i);
    ok(stw_runtime_drain(runtime, 0));
    const stw_update_result result = verdict(&here, 1e6);
    assert_int_equal(result.updated, PARAMETERS);
    assert_true(result.early < PARAMETERS);
    assert_true(logged("no room for its older contents"));
    trainee_leave(&here);
    machine_close(runtime);
}

/* What was updated early can be set back, whatever budgets are asked for meanwhile. */
TEST(a_budget_stays_as_large_as_a_verdict_needs)
{
    machine now = small_host();
    now.device_blocks = 20, now.host_blocks = 24; /* either is enough for an update */
    stw_runtime *runtime = machine_open_as(now);
    trainee plain = trainee_in(runtime, STW_BF16), here = trainee_in(runtime, STW_BF16);
    uint64_t undone = 0, refused = 0;
    for (int step = 0; step < 12; ++step) {
        const uint64_t blocks = 1 + (uint64_t)step;
        const double clip_norm = step % 3 == 2 ? 1e-3 : 1e6;
        give_gradients(&plain, step, 0), give_gradients(&here, step, 0);
        for (int i = 0; i < PARAMETERS; ++i) early_step(&here, i);
        if (step % 2 == 0) ok(stw_runtime_drain(runtime, 0));
        const stw_status status = stw_tier_set_budget(runtime, STW_TIER_HOST, 0, blocks * BLOCK, 0);
        assert_true(status == STW_OK || status == STW_ERROR_BUSY || status == STW_ERROR_BUDGET ||
                    status == STW_ERROR_INVALID);
        refused += status == STW_ERROR_BUSY;
        (void)verdict(&plain, clip_norm);
        undone += verdict(&here, clip_norm).undone;
        ok(stw_runtime_drain(runtime, 0));
        ok(stw_tier_set_budget(runtime, STW_TIER_HOST, 0, (uint64_t)now.host_blocks * BLOCK, 0));
    }
    assert_true(undone > 0 && refused > 0);
    expect_same(&plain, &here, STW_BF16);
    trainee_leave(&plain), trainee_leave(&here);
    machine_close(runtime);
}

/* A view keeps the tier from it, and an update that waits for its verdict ends no view. */
TEST(a_budget_does_not_wait_for_a_verdict)
{
    machine now = small_host();
    now.device_blocks = 20, now.host_blocks = 24;
    stw_runtime *runtime = machine_open_as(now);
    trainee here = trainee_in(runtime, STW_F32);
    stw_tensor *viewed = tensor_f32(runtime, "viewed", 12 * BLOCK / 4);
    stw_fetch_request request = request_of(viewed, STW_WRITE);
    stw_view view;
    request.tier = STW_TIER_HOST;
    give_gradients(&here, 0, 0);
    early_step(&here, 0);
    ok(stw_runtime_drain(runtime, 0));
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    fails(stw_tier_set_budget(runtime, STW_TIER_HOST, 0, 9 * BLOCK, 200 * MILLISECOND_NS),
          STW_ERROR_BUDGET, "pinned by open views");
    view_put(&view);
    assert_int_equal(reject(&here, 0, NULL), STW_SKIPPED);
    ok(stw_tier_set_budget(runtime, STW_TIER_HOST, 0, 9 * BLOCK, 0));
    ok(stw_tensor_destroy(&viewed, 1));
    trainee_leave(&here);
    machine_close(runtime);
}

/* A program that has room without speculation has it with, and speculates again afterwards. */
TEST(room_for_older_contents_is_given_to_who_needs_it)
{
    machine now = machine_small();
    now.nvme_blocks = PARAMETERS * 4 * 6 + 3 * 18; /* of older contents for three parameters */
    stw_runtime *runtime = machine_open_as(now);
    trainee here = trainee_in(runtime, STW_F32);
    uint64_t early[2] = {0, 0};
    stw_tensor *later = NULL;
    for (int round = 0; round < 2; ++round) {
        for (int step = 0; step < 2; ++step) {
            give_gradients(&here, step, 0);
            for (int i = 0; i < PARAMETERS; ++i) early_step(&here, i);
            ok(stw_runtime_drain(runtime, 0));
            early[round] += verdict(&here, 1e6).early;
            ok(stw_runtime_drain(runtime, 0));
        }
        if (round == 0) later = tensor_f32(runtime, "later", 30 * 16384);
        ok(stw_tensor_fill(later, 1.0, NULL));
        if (round == 0) continue;
        ok(stw_tensor_destroy(&later, 1));
    }
    assert_true(early[0] > 0 && early[1] > 0);
    trainee_leave(&here);
    machine_close(runtime);
}

/* To undo an update takes more blocks at once than to do it. */
TEST(a_budget_that_holds_an_update_holds_a_verdict)
{
    for (uint32_t blocks = 4; blocks <= 7; ++blocks) {
        machine now = small_host();
        now.device_blocks = 0, now.host_blocks = blocks;
        stw_runtime *runtime = machine_open_as(now);
        trainee here = trainee_in(runtime, STW_F32);
        uint64_t undone = 0;
        for (int step = 0; step < 4; ++step) {
            give_gradients(&here, step, 0);
            for (int i = 0; i < PARAMETERS; ++i) early_step(&here, i);
            ok(stw_runtime_drain(runtime, 0));
            undone += verdict(&here, 1e-3).undone;
            ok(stw_runtime_drain(runtime, 0));
        }
        assert_int_equal(undone > 0, blocks == 7);
        trainee_leave(&here);
        machine_close(runtime);
    }
}

static char directory[64];

static machine kept_in_directory(uint32_t flags)
{
    machine wanted = small_host();
    wanted.nvme_path = directory;
    wanted.store_name = "test";
    wanted.flags = flags | STW_RUNTIME_NO_PROBE;
    return wanted;
}

/* One durable parameter and its optimizer, restored where they are there. */
static trainee durable_trainee(stw_runtime *runtime)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_tensor_spec spec = spec_f32("p", ELEMENTS);
    trainee made = {.runtime = runtime};
    options.algorithm = STW_OPTIMIZER_ADAMW;
    options.name = "adam", options.flags = STW_OPTIMIZER_DURABLE;
    ok(stw_optimizer_create(runtime, &options, &made.optimizer));
    hyper_usual(made.optimizer);
    spec.flags = STW_TENSOR_DURABLE;
    made.parameters[0] = tensor_make(runtime, &spec);
    spec = spec_f32(NULL, ELEMENTS), spec.role = STW_ROLE_GRAD;
    made.gradients[0] = tensor_make(runtime, &spec);
    optimizer_add(made.optimizer, made.parameters[0], made.gradients[0]);
    return made;
}

/* To the end of a step `last`; the gradient of each step is its number's. */
static void train_to(trainee *here, int first, int last, int commits)
{
    for (int step = first; step <= last; ++step) {
        ok(stw_tensor_fill(here->gradients[0], 0.01 * step, NULL));
        early_step(here, 0);
        if (step % 2 == 0) ok(stw_runtime_drain(here->runtime, 0));
        (void)verdict(here, step % 3 == 0 ? 0.5 : 1e6);
        if (commits) ok(stw_commit(here->runtime, NULL, NULL));
    }
}

/* Killed with an update before its verdict written to the disk, in the slots of no generation. */
static void train_and_be_killed(void)
{
    stw_runtime *runtime = machine_open_as(kept_in_directory(STW_RUNTIME_OVERWRITE));
    trainee here = durable_trainee(runtime);
    ok(stw_tensor_fill(here.parameters[0], 0.5, NULL));
    train_to(&here, 1, 4, 1);
    ok(stw_tensor_fill(here.gradients[0], 77.0, NULL));
    early_step(&here, 0);
    ok(stw_runtime_drain(runtime, 0));
    fails(stw_commit(runtime, NULL, NULL), STW_ERROR_BUSY, "updated speculatively");
    /* What the updates were released as written goes to the disk now, as room is needed there. */
    for (int i = 0; i < 8; ++i) {
        stw_tensor *other = tensor_f32(runtime, NULL, ELEMENTS);
        ok(stw_tensor_fill(other, 1.0, NULL));
    }
    raise(SIGKILL);
}

TEST(a_kill_before_the_verdict_leaves_the_last_generation)
{
    char path[128];
    int status = 0;
    snprintf(directory, sizeof directory, "speculation-XXXXXX");
    assert_non_null(mkdtemp(directory));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) train_and_be_killed();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    stw_runtime *runtime = machine_open_as(kept_in_directory(STW_RUNTIME_RESUME));
    stw_runtime *other = machine_open_as(small_host());
    trainee resumed = durable_trainee(runtime), plain = trainee_in(other, STW_F32);
    assert_true(info_of(resumed.parameters[0]).restored);
    /* The same four steps and two more, elsewhere and in one go. */
    ok(stw_tensor_fill(plain.parameters[0], 0.5, NULL));
    for (int step = 1; step <= 6; ++step) {
        ok(stw_tensor_fill(plain.gradients[0], 0.01 * step, NULL));
        (void)verdict(&plain, step % 3 == 0 ? 0.5 : 1e6);
        if (step == 4) expect_same_bits(resumed.parameters[0], plain.parameters[0]);
    }
    train_to(&resumed, 5, 6, 0);
    expect_same_bits(resumed.parameters[0], plain.parameters[0]);
    trainee_leave(&plain);
    machine_close(other);
    machine_close(runtime);
    for (int i = 0; i < 2; ++i) {
        snprintf(path, sizeof path, "%s/test.0-of-1.%s", directory,
                 i == 0 ? "stepwell" : "generations");
        unlink(path);
    }
    assert_int_equal(rmdir(directory), 0);
}

RUN_TESTS("speculation", NULL, NULL)
