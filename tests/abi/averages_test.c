/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The moving average of parameters beside every algorithm: against its formula in double on what
 * the update made of the parameters, through three small tiers. That the updates are right is
 * optimizer_test.c's.
 */
#include "support.h"

enum { ELEMENTS = 3 * 16384 + 77, STEPS = 5 }; /* three blocks and a bit */

static const double decay = 0.75;

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameter, *gradient;
    float *seen;
    double *average; /* the reference */
} trainee;

/* A caller's: plain descent. */
static stw_status descend(void *user, const stw_update_chunk *chunk)
{
    const float *gradient = chunk->gradient;
    (void)user;
    for (uint64_t i = 0; i < chunk->element_count; ++i)
        chunk->master[i] -= (float)chunk->hyper->lr * gradient[i];
    return STW_OK;
}

static trainee trainee_open(uint32_t algorithm, uint32_t dtype)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_tensor_spec spec = spec_f32("w", ELEMENTS);
    stw_hyper hyper = STW_HYPER_INIT;
    stw_custom_update custom;
    trainee made;
    memset(&custom, 0, sizeof custom);
    made.runtime = machine_open_as(machine_small());
    spec.dtype = dtype;
    made.parameter = tensor_make(made.runtime, &spec);
    spec.name = "w.grad", spec.role = STW_ROLE_GRAD, spec.dtype = STW_F32;
    made.gradient = tensor_make(made.runtime, &spec);
    made.seen = calloc(ELEMENTS, sizeof(float));
    made.average = calloc(ELEMENTS, sizeof(double));
    assert_true(made.seen && made.average);
    for (uint64_t i = 0; i < ELEMENTS; ++i)
        made.seen[i] = (float)(i % 251) / 64 - 2; /* exact in bf16 */
    for (uint64_t i = 0; i < ELEMENTS; ++i) made.average[i] = (double)made.seen[i];
    stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
    ok(stw_tensor_write(made.parameter, made.seen, &as_f32));
    options.algorithm = algorithm, options.ema_decay = decay;
    custom.struct_size = sizeof custom, custom.update = descend;
    if (algorithm == STW_OPTIMIZER_CUSTOM) options.custom = &custom;
    ok(stw_optimizer_create(made.runtime, &options, &made.optimizer));
    hyper.lr = 0.05, hyper.weight_decay = 0.01;
    hyper.momentum = algorithm == STW_OPTIMIZER_SGD ? 0.9 : 0;
    ok(stw_optimizer_set_hyper(made.optimizer, 0, &hyper));
    return made;
}

static void trainee_add(trainee *here, uint64_t begin, uint64_t count)
{
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    entry.parameter = here->parameter, entry.gradient = here->gradient;
    entry.element_begin = begin, entry.element_count = count;
    ok(stw_optimizer_add(here->optimizer, &entry, 1));
}

static void trainee_close(trainee *here)
{
    ok(stw_runtime_drain(here->runtime, 0));
    ok(stw_optimizer_destroy(here->optimizer));
    free(here->seen), free(here->average);
    machine_close(here->runtime);
}

static void step(trainee *here, int number)
{
    stw_view view = view_get(here->runtime, here->gradient, STW_WRITE);
    for (uint64_t i = 0; i < ELEMENTS; ++i)
        ((float *)view.pointer)[i] = 0.01F * (float)((i * 37 + (uint64_t)number * 101) % 199) - 1;
    view_put(&view);
    ok(stw_optimizer_step(here->optimizer, NULL, NULL));
}

static stw_tensor *state_of(trainee *here, const char *name)
{
    stw_tensor *state = NULL;
    ok(stw_optimizer_state(here->optimizer, here->parameter, name, &state));
    return state;
}

/* What the master is now goes into the reference; elements [begin, end). */
static void follow(trainee *here, uint32_t dtype, uint64_t begin, uint64_t end)
{
    ok(stw_tensor_read(dtype == STW_F32 ? here->parameter : state_of(here, "master"), here->seen,
                       NULL));
    for (uint64_t i = begin; i < end; ++i)
        here->average[i] = decay * here->average[i] + (1 - decay) * (double)here->seen[i];
}

static void expect_average(trainee *here, uint64_t begin, uint64_t end)
{
    ok(stw_tensor_read(state_of(here, "ema"), here->seen, NULL));
    for (uint64_t i = begin; i < end; ++i) {
        if (fabs((double)here->seen[i] - here->average[i]) <= 1e-6) continue;
        fail_msg("element %d is %.9g, the reference %.9g", (int)i, (double)here->seen[i],
                 here->average[i]);
    }
}

TEST(an_average_follows_its_formula_beside_every_algorithm)
{
    const uint32_t algorithms[] = {STW_OPTIMIZER_ADAMW,   STW_OPTIMIZER_ADAM, STW_OPTIMIZER_SGD,
                                   STW_OPTIMIZER_ADAGRAD, STW_OPTIMIZER_LION, STW_OPTIMIZER_CUSTOM};
    const uint32_t dtypes[] = {STW_F32, STW_BF16};
    for (size_t i = 0; i < COUNT(algorithms); ++i) {
        for (size_t j = 0; j < COUNT(dtypes); ++j) {
            trainee here = trainee_open(algorithms[i], dtypes[j]);
            float byte;
            trainee_add(&here, 0, 0);
            fails(stw_tensor_read(state_of(&here, "ema"), &byte, NULL), STW_ERROR_EMPTY, "ema");
            for (int number = 1; number <= STEPS; ++number) {
                step(&here, number);
                follow(&here, dtypes[j], 0, ELEMENTS);
                if (number == 2) tensor_to_disk(here.runtime, state_of(&here, "ema"));
            }
            expect_average(&here, 0, ELEMENTS);
            trainee_close(&here);
        }
    }
}

TEST(what_is_written_into_an_average_is_averaged_on_from)
{
    trainee here = trainee_open(STW_OPTIMIZER_SGD, STW_F32);
    trainee_add(&here, 0, 0);
    ok(stw_tensor_fill(state_of(&here, "ema"), 3, NULL));
    for (uint64_t i = 0; i < ELEMENTS; ++i) here.average[i] = 3;
    step(&here, 1);
    follow(&here, STW_F32, 0, ELEMENTS);
    expect_average(&here, 0, ELEMENTS);
    trainee_close(&here);
}

TEST(parts_of_a_parameter_are_averaged_as_they_come)
{
    const uint64_t first = 20000;
    trainee here = trainee_open(STW_OPTIMIZER_ADAMW, STW_BF16);
    trainee_add(&here, 0, first);
    step(&here, 1);
    follow(&here, STW_BF16, 0, first);
    ok(stw_runtime_drain(here.runtime, 0));
    trainee_add(&here, first, ELEMENTS - first);
    step(&here, 2);
    follow(&here, STW_BF16, 0, ELEMENTS);
    expect_average(&here, 0, ELEMENTS);
    trainee_close(&here);
}

TEST(an_average_belongs_to_its_optimizer_and_its_budget)
{
    machine small = machine_small();
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_tier_stats before = STW_TIER_STATS_INIT, after = STW_TIER_STATS_INIT;
    stw_tensor *found = NULL;
    stw_optimizer *optimizer = NULL;
    small.nvme_blocks = 0, small.host_blocks = 32;
    stw_runtime *runtime = machine_open(&small);
    entry.parameter = tensor_f32(runtime, "w", 8 * BLOCK / 4);
    entry.gradient = tensor_f32(runtime, "w.grad", 8 * BLOCK / 4);
    options.algorithm = STW_OPTIMIZER_LION, options.ema_decay = 0.5;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper_usual(optimizer);
    ok(stw_optimizer_add(optimizer, &entry, 1));
    ok(stw_optimizer_state(optimizer, entry.parameter, "ema", &found));
    fails(stw_tensor_destroy(&found, 1), STW_ERROR_BUSY, "belongs to optimizer");
    stw_view view = view_get(runtime, found, STW_WRITE);
    fails(stw_optimizer_destroy(optimizer), STW_ERROR_BUSY, "open views");
    view_put(&view);
    ok(stw_optimizer_destroy(optimizer));
    fails(stw_tensor_find(runtime, "optimizer.w.ema", &found), STW_ERROR_NOT_FOUND, "ema");
    /* Adam's two moments have room, an average beside them has not: none of them stays. */
    options.algorithm = STW_OPTIMIZER_ADAM;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper_usual(optimizer);
    ok(stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &before));
    fails(stw_optimizer_add(optimizer, &entry, 1), STW_ERROR_BUDGET, "room");
    ok(stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &after));
    assert_int_equal(before.tensors, after.tensors);
    ok(stw_optimizer_destroy(optimizer));
    options.ema_decay = 0;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper_usual(optimizer);
    ok(stw_optimizer_add(optimizer, &entry, 1));
    fails(stw_optimizer_state(optimizer, entry.parameter, "ema", &found), STW_ERROR_NOT_FOUND,
          "'ema'");
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

TEST(a_decay_that_is_none_is_refused_with_its_value)
{
    const double wrong[] = {1, -0.25, 1.5, (double)INFINITY};
    const char *const words[] = {"is 1;", "is -0.25;", "is 1.5;", "is inf;"};
    const char *names[] = {"moment", "ema"};
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer = NULL;
    stw_custom_update custom;
    options.algorithm = STW_OPTIMIZER_SGD;
    for (size_t i = 0; i < COUNT(wrong); ++i) {
        options.ema_decay = wrong[i];
        fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID, words[i]);
    }
    options.ema_decay = (double)NAN;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID, "ema_decay");
    assert_null(optimizer);
    memset(&custom, 0, sizeof custom);
    custom.struct_size = sizeof custom, custom.update = descend;
    custom.state_count = 2, custom.state_names = names;
    options.algorithm = STW_OPTIMIZER_CUSTOM, options.custom = &custom, options.ema_decay = 0.5;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID,
          "state_names[1] is \"ema\"");
    options.ema_decay = 0;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    ok(stw_optimizer_destroy(optimizer));
    /* From before there were averages. */
    options = (stw_optimizer_options)STW_OPTIMIZER_OPTIONS_INIT;
    options.algorithm = STW_OPTIMIZER_SGD;
    options.struct_size = offsetof(stw_optimizer_options, ema_decay);
    options.ema_decay = 7;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

RUN_TESTS("averages", NULL, NULL)
