/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice of another order: a trainer that takes it moves as many bytes fewer as it was told. Where
 * nothing was seen, or the step is the best already, it is told so.
 */
#include "support.h"

enum { LAYERS = 8, BATCHES = 4, WEIGHT_BLOCKS = 9, WARM = 3, MEASURED = 4 };

enum { AWAITED = 10 }; /* measurements: beside other work a plan of the new order comes late */

static machine now;

/* Weights of several blocks, activations and gradients of one. */
typedef struct trainer {
    stw_runtime *runtime;
    stw_phase *phase;
    stw_tensor *weights[LAYERS];
    stw_tensor *gradients[LAYERS];
    stw_tensor *activations[BATCHES][LAYERS];
} trainer;

static stw_tensor *make(stw_runtime *runtime, uint32_t role, uint64_t blocks)
{
    stw_tensor_spec spec = spec_f32(NULL, blocks * BLOCK / 4);
    spec.role = role;
    return tensor_make(runtime, &spec);
}

static void trainer_open(trainer *t)
{
    t->runtime = machine_open(&now);
    t->phase = NULL;
    for (int i = 0; i < LAYERS; ++i) {
        t->weights[i] = make(t->runtime, STW_ROLE_PARAM, WEIGHT_BLOCKS);
        tensor_fill_sequence(t->weights[i], WEIGHT_BLOCKS * BLOCK / 4, (float)i);
        t->gradients[i] = make(t->runtime, STW_ROLE_GRAD, 1);
        for (int batch = 0; batch < BATCHES; ++batch) {
            t->activations[batch][i] = make(t->runtime, STW_ROLE_ACTIVATION, 1);
        }
    }
    ok(stw_phase_create(t->runtime, "train", &t->phase));
}

static void trainer_close(trainer *t)
{
    ok(stw_phase_destroy(t->phase));
    machine_close(t->runtime);
}

static void forward(trainer *t, int layer, int batch)
{
    stw_fetch_request requests[3];
    stw_view views[3];
    uint32_t n = 0;
    requests[n++] = request_of(t->weights[layer], STW_READ);
    if (layer > 0) requests[n++] = request_of(t->activations[batch][layer - 1], STW_READ);
    requests[n++] = request_of(t->activations[batch][layer], STW_WRITE);
    ok(stw_fetch(t->runtime, NULL, requests, n, views));
    ((float *)views[n - 1].pointer)[0] = ((const float *)views[0].pointer)[0];
    ok(stw_release(views, n, STW_STREAM_HOST, 0));
}

static void backward(trainer *t, int layer, int batch)
{
    stw_fetch_request requests[3];
    stw_view views[3];
    requests[0] = request_of(t->weights[layer], STW_READ);
    requests[1] = request_of(t->activations[batch][layer], STW_READ);
    requests[2] = request_of(t->gradients[layer], batch == 0 ? STW_WRITE : STW_READ_WRITE);
    ok(stw_fetch(t->runtime, NULL, requests, 3, views));
    assert_float(((const float *)views[1].pointer)[0], (float)layer);
    ok(stw_release(views, 3, STW_STREAM_HOST, 0));
    ok(stw_tensor_discard(&t->activations[batch][layer], 1));
}

/* Returns what the step moved over nvme. */
static uint64_t step(trainer *t, int grouped)
{
    stw_step_stats stats = STW_STEP_STATS_INIT;
    ok(stw_step_begin(t->phase));
    if (grouped) {
        for (int i = 0; i < LAYERS; ++i) {
            for (int j = 0; j < BATCHES; ++j) forward(t, i, j);
        }
        for (int i = LAYERS - 1; i >= 0; --i) {
            for (int j = 0; j < BATCHES; ++j) backward(t, i, j);
        }
    } else {
        for (int j = 0; j < BATCHES; ++j) {
            for (int direction = 0; direction < 2; ++direction) {
                for (int i = 0; i < LAYERS; ++i) {
                    if (direction == 0) forward(t, i, j);
                    if (direction == 1) backward(t, LAYERS - 1 - i, j);
                }
            }
        }
    }
    ok(stw_tensor_discard(t->gradients, LAYERS));
    ok(stw_step_end(t->phase, &stats));
    return stats.nvme_read_bytes + stats.nvme_write_bytes;
}

/* A step in the middle of many. */
static double nvme_bytes_of_a_step(trainer *t, int grouped)
{
    uint64_t bytes = 0;
    for (int i = 0; i < WARM; ++i) (void)step(t, grouped);
    for (int i = 0; i < MEASURED; ++i) bytes += step(t, grouped);
    return (double)bytes / MEASURED;
}

/*
 * What makes a step slower is not advised, and how fast a link was in a few steps depends on what
 * else the machine did: a few more are taken until there is advice, and that is all that time may
 * decide.
 */
static void await_advice(trainer *t)
{
    uint32_t count = 0;
    for (int more = 0; more < 40 && count == 0; ++more) {
        (void)step(t, 0);
        ok(stw_runtime_drain(t->runtime, 0));
        ok(stw_phase_advice_get(t->phase, NULL, 0, &count));
    }
}

/* Over nvme, in a step. */
static double promised_of(const stw_plan_advice *advice)
{
    return (double)(advice->now_nvme_read_bytes + advice->now_nvme_write_bytes) -
           (double)(advice->then_nvme_read_bytes + advice->then_nvme_write_bytes);
}

TEST(a_trainer_is_told_what_to_do_and_saves_it)
{
    trainer t;
    stw_plan_advice advice[3] = {STW_PLAN_ADVICE_INIT, STW_PLAN_ADVICE_INIT, STW_PLAN_ADVICE_INIT};
    uint32_t count = 77;
    trainer_open(&t);
    double before = nvme_bytes_of_a_step(&t, 0);
    await_advice(&t);
    ok(stw_phase_advice_get(t.phase, NULL, 0, &count));
    assert_int_equal(count, 1);
    ok(stw_phase_advice_get(t.phase, advice, 3, &count));
    assert_int_equal(count, 1);
    assert_int_equal(advice[0].kind, STW_PLAN_ADVICE_GROUP_MICRO_BATCHES);
    assert_int_equal(advice[0].micro_batches, BATCHES);
    assert_int_equal(advice[0].parameters, 0);
    assert_int_equal(advice[0].struct_size, sizeof advice[0]);
    assert_int_equal(advice[1].kind, 0);
    assert_non_null(strstr(advice[0].text, "for all 4 micro-batches"));
    assert_true(advice[0].then_nvme_read_bytes < advice[0].now_nvme_read_bytes);
    double promised = promised_of(&advice[0]);
    double saved = 0;
    for (int more = 0; more < AWAITED && saved < 0.8 * promised; ++more) {
        saved = before - nvme_bytes_of_a_step(&t, 1);
    }
    /* What is brought ahead and goes unused comes on top of both orders. */
    if (saved < 0.8 * promised) {
        fail_msg("saved %.0f blocks of %.0f: %s", saved / BLOCK, promised / BLOCK, advice[0].text);
    }
    ok(stw_phase_advice_get(t.phase, advice, 3, &count));
    assert_int_equal(count, 0);
    trainer_close(&t);
}

/* Nothing is brought ahead in the runtime that is measured, as in a replay. */
TEST(bytes_of_fetches_alone_fall_as_advised_within_a_tenth)
{
    trainer t;
    stw_plan_advice advice = STW_PLAN_ADVICE_INIT;
    uint32_t count = 0;
    trainer_open(&t);
    (void)nvme_bytes_of_a_step(&t, 0);
    await_advice(&t);
    ok(stw_phase_advice_get(t.phase, &advice, 1, &count));
    assert_int_equal(count, 1);
    double promised = promised_of(&advice);
    trainer_close(&t);
    now.flags |= STW_RUNTIME_NO_PLAN;
    trainer_open(&t);
    double before = nvme_bytes_of_a_step(&t, 0);
    double saved = before - nvme_bytes_of_a_step(&t, 1);
    trainer_close(&t);
    now.flags &= ~(uint32_t)STW_RUNTIME_NO_PLAN;
    if (saved < 0.9 * promised || saved > 1.1 * promised) {
        fail_msg("saved %.0f blocks of %.0f: %s", saved / BLOCK, promised / BLOCK, advice.text);
    }
}

/* Sums, the library's own updates beside the program, a clip that reads all gradients before, and
 * a read into the program's memory: all of it is replayed. */
TEST(what_an_optimizer_does_is_replayed)
{
    enum { PARAMETERS = 6, BLOCKS = 3 };
    static float copied[BLOCKS * BLOCK / 4];
    stw_runtime *runtime = machine_open(&now);
    stw_update_options update = STW_UPDATE_OPTIONS_INIT;
    stw_plan_advice advice[3] = {STW_PLAN_ADVICE_INIT, STW_PLAN_ADVICE_INIT, STW_PLAN_ADVICE_INIT};
    stw_tensor *weights[PARAMETERS], *gradients[PARAMETERS];
    stw_phase *phase = NULL;
    uint32_t count = 77, i, j;
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    for (i = 0; i < PARAMETERS; ++i) {
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        weights[i] = entry.parameter = make(runtime, STW_ROLE_PARAM, BLOCKS);
        gradients[i] = entry.gradient = make(runtime, STW_ROLE_GRAD, BLOCKS);
        tensor_fill_sequence(weights[i], BLOCKS * BLOCK / 4, 1);
        ok(stw_optimizer_add(optimizer, &entry, 1));
    }
    ok(stw_phase_create(runtime, "train", &phase));
    for (int steps = 0; steps < 4 || (steps < 40 && count == 0); ++steps) {
        ok(stw_step_begin(phase));
        for (j = 0; j < 3; ++j) {
            for (i = 0; i < PARAMETERS; ++i) {
                stw_view view = view_get(runtime, weights[i], STW_READ);
                view_put(&view);
            }
            for (i = PARAMETERS; i-- > 0;) {
                stw_view sum, view = view_get(runtime, weights[i], STW_READ);
                sum = view_get(runtime, gradients[i], STW_REDUCE);
                ((float *)sum.pointer)[0] += 1;
                view_put(&sum);
                view_put(&view);
            }
        }
        {
            stw_fetch_request request = request_of(weights[0], STW_READ);
            stw_view view;
            request.into = copied;
            ok(stw_fetch(runtime, NULL, &request, 1, &view));
        }
        update.clip_norm = 1;
        ok(stw_optimizer_step(optimizer, &update, NULL));
        ok(stw_runtime_drain(runtime, 0)); /* so that all of the update is in this step */
        ok(stw_step_end(phase, NULL));
        ok(stw_phase_advice_get(phase, advice, 3, &count));
    }
    assert_true(count >= 1);
    assert_true((advice[0].kind & STW_PLAN_ADVICE_GROUP_MICRO_BATCHES) != 0);
    assert_int_equal(advice[0].micro_batches, 3);
    ok(stw_runtime_drain(runtime, 0));
    ok(stw_optimizer_destroy(optimizer));
    ok(stw_phase_destroy(phase));
    machine_close(runtime);
}

enum { UPDATED = 5 };

/* A backward that reads each layer twice, as it computes it anew, and an update of the program's
 * own behind it. */
typedef struct updater {
    stw_runtime *runtime;
    stw_phase *phase;
    stw_tensor *weights[UPDATED];
    stw_tensor *activation;
} updater;

static void updater_open(updater *u)
{
    const uint64_t near_blocks = now.device_blocks + now.host_blocks;
    u->runtime = machine_open(&now);
    for (int i = 0; i < UPDATED; ++i) { /* so three of them fit */
        u->weights[i] = make(u->runtime, STW_ROLE_PARAM, near_blocks / 3);
        tensor_fill_sequence(u->weights[i], near_blocks / 3 * BLOCK / 4, 0);
    }
    u->activation = make(u->runtime, STW_ROLE_ACTIVATION, 1);
    ok(stw_phase_create(u->runtime, "train", &u->phase));
}

static void updater_close(updater *u)
{
    ok(stw_phase_destroy(u->phase));
    machine_close(u->runtime);
}

/* Returns what the step moved over nvme. */
static uint64_t updated_step(updater *u, int first_to_last)
{
    stw_step_stats stats = STW_STEP_STATS_INIT;
    stw_view view;
    ok(stw_step_begin(u->phase));
    for (int i = UPDATED; i-- > 0;) {
        view = view_get(u->runtime, u->weights[i], STW_READ);
        view_put(&view);
        view = view_get(u->runtime, u->activation, STW_WRITE);
        view_put(&view);
        view = view_get(u->runtime, u->weights[i], STW_READ);
        view_put(&view);
    }
    for (int i = 0; i < UPDATED; ++i) {
        view =
            view_get(u->runtime, u->weights[first_to_last ? i : UPDATED - 1 - i], STW_READ_WRITE);
        ((float *)view.pointer)[0] += 1;
        view_put(&view);
    }
    ok(stw_step_end(u->phase, &stats));
    return stats.nvme_read_bytes + stats.nvme_write_bytes;
}

static double nvme_bytes_of_an_updated_step(updater *u, int first_to_last)
{
    uint64_t bytes = 0;
    for (int i = 0; i < WARM; ++i) (void)updated_step(u, first_to_last);
    for (int i = 0; i < MEASURED; ++i) bytes += updated_step(u, first_to_last);
    return (double)bytes / MEASURED;
}

/* It begins with what the backward left long ago, and is told to begin with what is near. */
TEST(an_update_is_told_to_begin_with_what_is_near_and_saves_it)
{
    updater u;
    stw_plan_advice advice[3] = {STW_PLAN_ADVICE_INIT, STW_PLAN_ADVICE_INIT, STW_PLAN_ADVICE_INIT};
    uint32_t count = 0;
    updater_open(&u);
    double before = nvme_bytes_of_an_updated_step(&u, 0);
    for (int more = 0; more < 40 && count == 0; ++more) { /* as in await_advice() */
        (void)updated_step(&u, 0);
        ok(stw_runtime_drain(u.runtime, 0));
        ok(stw_phase_advice_get(u.phase, advice, 3, &count));
    }
    assert_int_equal(count, 1);
    assert_int_equal(advice[0].kind, STW_PLAN_ADVICE_REVERSE_UPDATE);
    assert_int_equal(advice[0].parameters, UPDATED);
    assert_int_equal(advice[0].micro_batches, 0);
    assert_non_null(strstr(advice[0].text, "in the reverse of their order now"));
    double promised = promised_of(&advice[0]);
    assert_true(promised > 0);
    double saved = 0;
    for (int more = 0; more < AWAITED && saved < 0.8 * promised; ++more) {
        saved = before - nvme_bytes_of_an_updated_step(&u, 1);
    }
    if (saved < 0.8 * promised) {
        fail_msg("saved %.0f blocks of %.0f: %s", saved / BLOCK, promised / BLOCK, advice[0].text);
    }
    ok(stw_phase_advice_get(u.phase, advice, 3, &count));
    assert_int_equal(count, 0);
    updater_close(&u);
}

TEST(there_is_no_advice_before_a_step_has_ended)
{
    trainer t;
    stw_plan_advice advice = STW_PLAN_ADVICE_INIT;
    stw_plan_entry entries[2 * LAYERS];
    uint32_t count = 77, i;
    trainer_open(&t);
    fails(stw_phase_advice_get(t.phase, &advice, 1, &count), STW_ERROR_EMPTY,
          "steps of phase 'train': none has ended, or was declared");
    ok(stw_step_begin(t.phase));
    forward(&t, 0, 0);
    ok(stw_step_abort(t.phase, STW_STREAM_HOST));
    fails(stw_phase_advice_get(t.phase, &advice, 1, &count), STW_ERROR_EMPTY, "none has ended");
    assert_int_equal(count, 77);
    for (i = 0; i < 2 * LAYERS; ++i) {
        entries[i] = (stw_plan_entry)STW_PLAN_ENTRY_INIT;
        entries[i].tensor = t.weights[i % LAYERS];
        entries[i].fetch = i;
    }
    ok(stw_phase_declare(t.phase, entries, 2 * LAYERS));
    ok(stw_phase_advice_get(t.phase, &advice, 1, &count));
    assert_int_equal(count, 1);
    assert_int_equal(advice.micro_batches, 2);
    (void)step(&t, 1); /* goes before what was declared */
    ok(stw_phase_advice_get(t.phase, &advice, 1, &count));
    assert_int_equal(count, 0);
    trainer_close(&t);
}

TEST(what_fits_is_left_as_it_is_and_what_is_pinned_takes_its_room)
{
    machine large = now;
    stw_tensor_spec spec = spec_f32("pinned", 54 * BLOCK / 4);
    stw_phase *phase = NULL;
    stw_tensor *tensors[4];
    uint32_t count = 77;
    if (large.device_blocks > 0) large.device_blocks = 64;
    if (large.device_blocks == 0) large.host_blocks = 64;
    stw_runtime *runtime = machine_open(&large);
    for (int i = 0; i < 4; ++i) tensors[i] = tensor_f32(runtime, NULL, 4 * BLOCK / 4);
    for (int i = 0; i < 4; ++i) tensor_fill_sequence(tensors[i], 4 * BLOCK / 4, 0);
    ok(stw_phase_create(runtime, "train", &phase));
    ok(stw_step_begin(phase));
    for (int turn = 0; turn < 3; ++turn) {
        for (int i = 0; i < 4; ++i) {
            stw_view view = view_get(runtime, tensors[i], STW_READ);
            view_put(&view);
        }
    }
    ok(stw_step_end(phase, NULL));
    ok(stw_phase_advice_get(phase, NULL, 0, &count));
    assert_int_equal(count, 0);
    stw_policy policy = {.struct_size = sizeof policy,
                         .retention = STW_RETAIN_PIN,
                         .home = large.device_blocks > 0 ? STW_TIER_DEVICE : STW_TIER_HOST};
    spec.policy = &policy;
    tensor_fill_sequence(tensor_make(runtime, &spec), 54 * BLOCK / 4, 0);
    ok(stw_phase_advice_get(phase, NULL, 0, &count));
    assert_int_equal(count, 1);
    ok(stw_phase_destroy(phase));
    machine_close(runtime);
}

TEST(a_tensor_that_is_gone_still_counts_in_the_step_that_used_it)
{
    trainer t;
    stw_plan_advice before = STW_PLAN_ADVICE_INIT, after = STW_PLAN_ADVICE_INIT;
    uint32_t count = 77, again = 78;
    trainer_open(&t);
    (void)nvme_bytes_of_a_step(&t, 0);
    await_advice(&t); /* at rest then, so that both see the same bandwidths */
    ok(stw_phase_advice_get(t.phase, &before, 1, &count));
    for (int j = 0; j < BATCHES; ++j) ok(stw_tensor_destroy(t.activations[j], LAYERS));
    ok(stw_phase_advice_get(t.phase, &after, 1, &again));
    assert_int_equal(count, 1);
    assert_int_equal(again, count);
    assert_int_equal(after.kind, before.kind);
    trainer_close(&t);
}

TEST(a_runtime_without_plans_has_no_advice)
{
    trainer t;
    uint32_t count = 77;
    now.flags |= STW_RUNTIME_NO_PLAN;
    trainer_open(&t);
    (void)step(&t, 0);
    fails(stw_phase_advice_get(t.phase, NULL, 0, &count), STW_ERROR_EMPTY, "STW_RUNTIME_NO_PLAN");
    trainer_close(&t);
    now.flags &= ~(uint32_t)STW_RUNTIME_NO_PLAN;
}

TEST(what_is_wrong_is_refused_and_an_old_struct_is_filled_as_far_as_it_goes)
{
    trainer t;
    stw_plan_advice advice[2] = {STW_PLAN_ADVICE_INIT, STW_PLAN_ADVICE_INIT};
    stw_phase *gone = NULL;
    uint32_t count = 77;
    trainer_open(&t);
    (void)step(&t, 0);
    await_advice(&t);
    fails(stw_phase_advice_get(NULL, advice, 2, &count), STW_ERROR_INVALID,
          "phase handle is not alive");
    fails(stw_phase_advice_get(t.phase, advice, 2, NULL), STW_ERROR_INVALID, "count_out is null");
    fails(stw_phase_advice_get(t.phase, NULL, 2, &count), STW_ERROR_INVALID, "advice_out is null");
    fails(stw_phase_advice_get(t.phase, advice, UINT32_MAX, &count), STW_ERROR_INVALID,
          "3 is enough");
    advice[1].struct_size = 16;
    fails(stw_phase_advice_get(t.phase, advice, 2, &count), STW_ERROR_INVALID,
          "advice_out[1].struct_size differs");
    advice[0].struct_size = 4;
    fails(stw_phase_advice_get(t.phase, advice, 1, &count), STW_ERROR_INVALID, "struct_size is 4");
    assert_int_equal(count, 77);
    assert_int_equal(advice[0].kind, 0);
    advice[0].struct_size = 16;
    ok(stw_phase_advice_get(t.phase, advice, 1, &count));
    assert_int_equal(advice[0].struct_size, 16);
    assert_int_equal(advice[0].micro_batches, BATCHES);
    assert_int_equal(advice[0].now_nvme_read_bytes, 0); /* behind the end */
    ok(stw_phase_create(t.runtime, "gone", &gone));
    ok(stw_phase_destroy(gone));
    fails(stw_phase_advice_get(gone, advice, 1, &count), STW_ERROR_INVALID, "not alive");
    trainer_close(&t);
}

RUN_TESTS_ON_EACH_MACHINE("advice", &now)
