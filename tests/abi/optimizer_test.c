/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW, Adam, SGD and a kernel of the caller's against the published formulas in double, on
 * parameters that pass through three small tiers.
 */
#include "support.h"

enum { ELEMENTS = 3 * 16384 + 77, STEPS = 4 }; /* three blocks and a bit */

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameter;
    stw_tensor *gradient;
    double *values; /* the reference */
    double *first;  /* its moments */
    double *second;
    float *scratch;
} trainee;

static float gradient_at(int step, uint64_t element)
{
    return 0.01F * (float)((element * 37 + (uint64_t)step * 101) % 199) - 1;
}

static trainee trainee_open(uint32_t algorithm, uint32_t dtype, const stw_hyper *hyper)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_tensor_spec spec = spec_f32("w", ELEMENTS);
    trainee made;
    made.runtime = machine_open_as(machine_small());
    spec.dtype = dtype;
    made.parameter = tensor_make(made.runtime, &spec);
    spec.name = "w.grad", spec.role = STW_ROLE_GRAD, spec.dtype = STW_F32;
    made.gradient = tensor_make(made.runtime, &spec);
    made.values = calloc(ELEMENTS, sizeof(double));
    made.first = calloc(ELEMENTS, sizeof(double));
    made.second = calloc(ELEMENTS, sizeof(double));
    made.scratch = calloc(ELEMENTS, sizeof(float));
    assert_true(made.values && made.first && made.second && made.scratch);
    for (uint64_t i = 0; i < ELEMENTS; ++i)
        made.scratch[i] = (float)(i % 251) / 64 - 2; /* exact in bf16 */
    for (uint64_t i = 0; i < ELEMENTS; ++i) made.values[i] = (double)made.scratch[i];
    stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
    ok(stw_tensor_write(made.parameter, made.scratch, &as_f32));
    options.algorithm = algorithm, options.name = "opt";
    ok(stw_optimizer_create(made.runtime, &options, &made.optimizer));
    hyper_usual(made.optimizer);
    if (hyper) ok(stw_optimizer_set_hyper(made.optimizer, 0, hyper));
    optimizer_add(made.optimizer, made.parameter, made.gradient);
    return made;
}

static void trainee_close(trainee *here)
{
    ok(stw_runtime_drain(here->runtime, 0));
    ok(stw_optimizer_destroy(here->optimizer));
    free(here->values), free(here->first), free(here->second), free(here->scratch);
    machine_close(here->runtime);
}

static void give_gradient(trainee *here, int step)
{
    stw_view view = view_get(here->runtime, here->gradient, STW_REDUCE);
    for (uint64_t i = 0; i < ELEMENTS; ++i) ((float *)view.pointer)[i] += gradient_at(step, i);
    view_put(&view);
}

/* Relative to the size of the values, which are a few units. */
static void expect_reference(trainee *here, stw_tensor *tensor, const double *wanted, double slack)
{
    ok(stw_tensor_read(tensor, here->scratch, NULL));
    for (uint64_t i = 0; i < ELEMENTS; ++i) {
        const double off = fabs((double)here->scratch[i] - wanted[i]);
        if (off <= slack * (1 + fabs(wanted[i]))) continue;
        fail_msg("element %d is %.9g, the reference %.9g", (int)i, (double)here->scratch[i],
                 wanted[i]);
    }
}

static void adam_reference(trainee *here, int step, const stw_hyper *hyper, int decoupled)
{
    const double correction1 = 1 - pow(hyper->beta1, step);
    const double correction2 = 1 - pow(hyper->beta2, step);
    for (uint64_t i = 0; i < ELEMENTS; ++i) {
        double gradient = (double)gradient_at(step, i);
        if (decoupled)
            here->values[i] -= hyper->lr * hyper->weight_decay * here->values[i];
        else
            gradient += hyper->weight_decay * here->values[i];
        here->first[i] = hyper->beta1 * here->first[i] + (1 - hyper->beta1) * gradient;
        here->second[i] = hyper->beta2 * here->second[i] + (1 - hyper->beta2) * gradient * gradient;
        here->values[i] -= hyper->lr / correction1 * here->first[i] /
                           (sqrt(here->second[i] / correction2) + hyper->eps);
    }
}

static void adam_as(uint32_t algorithm, uint32_t dtype)
{
    stw_hyper hyper = STW_HYPER_INIT;
    stw_tensor *state = NULL;
    uint64_t count = 0;
    /* A large epsilon: where gradient and decay nearly cancel, Adam amplifies rounding. */
    hyper.lr = 0.01, hyper.weight_decay = 0.1, hyper.eps = 1e-3;
    trainee here = trainee_open(algorithm, dtype, &hyper);
    for (int step = 1; step <= STEPS; ++step) {
        give_gradient(&here, step);
        ok(stw_optimizer_step(here.optimizer, NULL, NULL));
        adam_reference(&here, step, &hyper, algorithm == STW_OPTIMIZER_ADAMW);
        /* A read after the step waits for the update and sees it. */
        if (dtype == STW_F32) expect_reference(&here, here.parameter, here.values, 1e-5);
    }
    ok(stw_runtime_drain(here.runtime, 0)); /* a pending update is not counted yet */
    ok(stw_optimizer_get_count(here.optimizer, here.parameter, &count));
    assert_int_equal(count, STEPS);
    ok(stw_optimizer_state(here.optimizer, here.parameter, "exp_avg", &state));
    expect_reference(&here, state, here.first, 1e-5);
    ok(stw_optimizer_state(here.optimizer, here.parameter, "exp_avg_sq", &state));
    expect_reference(&here, state, here.second, 1e-5);
    if (dtype != STW_F32) {
        ok(stw_optimizer_state(here.optimizer, here.parameter, "master", &state));
        expect_reference(&here, state, here.values, 1e-5);
        stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
        ok(stw_tensor_read(here.parameter, here.scratch, &as_f32));
        for (uint64_t i = 0; i < ELEMENTS; ++i) {
            assert_true(fabs((double)here.scratch[i] - here.values[i]) <=
                        fabs(here.values[i]) / 128 + 1e-5);
        }
    } else {
        fails(stw_optimizer_state(here.optimizer, here.parameter, "master", &state),
              STW_ERROR_NOT_FOUND, "'master'");
    }
    trainee_close(&here);
}

TEST(adamw_follows_its_formula)
{
    adam_as(STW_OPTIMIZER_ADAMW, STW_F32);
}

TEST(adam_follows_its_formula)
{
    adam_as(STW_OPTIMIZER_ADAM, STW_F32);
}

TEST(a_bf16_parameter_has_a_master_in_f32)
{
    adam_as(STW_OPTIMIZER_ADAMW, STW_BF16);
}

/* One element's step by the published formula, in double. */
typedef void element_rule(trainee *here, const stw_hyper *hyper, int step, uint64_t i,
                          double gradient);

static void sgd_rule(trainee *here, const stw_hyper *hyper, int step, uint64_t i, double gradient)
{
    if (hyper->flags & STW_HYPER_MAXIMIZE) gradient = -gradient;
    gradient += hyper->weight_decay * here->values[i];
    here->first[i] = step == 1 ? gradient : hyper->momentum * here->first[i] + gradient;
    if (hyper->flags & STW_HYPER_NESTEROV)
        gradient += hyper->momentum * here->first[i];
    else
        gradient = here->first[i];
    here->values[i] -= hyper->lr * gradient;
}

static void adagrad_rule(trainee *here, const stw_hyper *hyper, int step, uint64_t i,
                         double gradient)
{
    gradient += hyper->weight_decay * here->values[i];
    here->first[i] += gradient * gradient;
    here->values[i] -= hyper->lr / (1 + (step - 1) * hyper->lr_decay) * gradient /
                       (sqrt(here->first[i]) + hyper->eps);
}

static void lion_rule(trainee *here, const stw_hyper *hyper, int step, uint64_t i, double gradient)
{
    (void)step;
    here->values[i] -= hyper->lr * hyper->weight_decay * here->values[i];
    here->values[i] -= hyper->lr * ((gradient > 0) - (gradient < 0));
    here->first[i] = hyper->beta2 * here->first[i] + (1 - hyper->beta2) * gradient;
}

/* Steps with the gradients of step 1, 1 + stride, 1 + 2 x stride ...; the one state is `state`. */
static void follows(uint32_t algorithm, const stw_hyper *hyper, element_rule *rule, int stride,
                    const char *state)
{
    trainee here = trainee_open(algorithm, STW_F32, hyper);
    stw_tensor *tensor = NULL;
    for (int step = 1; step <= STEPS; ++step) {
        const int number = 1 + (step - 1) * stride;
        give_gradient(&here, number);
        ok(stw_optimizer_step(here.optimizer, NULL, NULL));
        for (uint64_t i = 0; i < ELEMENTS; ++i)
            rule(&here, hyper, step, i, (double)gradient_at(number, i));
        expect_reference(&here, here.parameter, here.values, 1e-5);
    }
    ok(stw_optimizer_state(here.optimizer, here.parameter, state, &tensor));
    expect_reference(&here, tensor, here.first, 1e-5);
    trainee_close(&here);
}

TEST(sgd_with_momentum_follows_its_formula)
{
    const uint32_t flags[] = {0, STW_HYPER_NESTEROV, STW_HYPER_MAXIMIZE};
    for (size_t variant = 0; variant < COUNT(flags); ++variant) {
        stw_hyper hyper = STW_HYPER_INIT;
        hyper.lr = 0.05, hyper.momentum = 0.9, hyper.weight_decay = 0.01;
        hyper.flags = flags[variant];
        follows(STW_OPTIMIZER_SGD, &hyper, sgd_rule, 1, "momentum");
    }
}

TEST(adagrad_follows_its_formula)
{
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.lr = 0.05, hyper.lr_decay = 0.1, hyper.weight_decay = 0.01, hyper.eps = 1e-3;
    follows(STW_OPTIMIZER_ADAGRAD, &hyper, adagrad_rule, 1, "sum");
}

/* In one direction throughout, so that no sign depends on a rounding. */
TEST(lion_follows_its_formula)
{
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.lr = 0.05, hyper.beta1 = 0.9, hyper.beta2 = 0.99, hyper.weight_decay = 0.1;
    follows(STW_OPTIMIZER_LION, &hyper, lion_rule, 0, "exp_avg");
}

typedef struct kernel_calls {
    stw_tensor *parameter;
    int wrong;
    stw_status answer;
} kernel_calls;

/* Adagrad without epsilon; the caller's own. */
static stw_status own_kernel(void *user, const stw_update_chunk *chunk)
{
    kernel_calls *calls = user;
    const float *gradient = chunk->gradient;
    if (chunk->struct_size < sizeof *chunk || chunk->state_count != 1 ||
        chunk->parameter != calls->parameter || chunk->step == 0 || !chunk->hyper ||
        chunk->element_begin + chunk->element_count > ELEMENTS) {
        calls->wrong = 1;
        return STW_ERROR_INVALID;
    }
    for (uint64_t i = 0; i < chunk->element_count; ++i) {
        const float scaled = gradient[i] * (float)chunk->gradient_scale;
        chunk->states[0][i] += scaled * scaled + 1;
        chunk->master[i] -= (float)chunk->hyper->lr * scaled / sqrtf(chunk->states[0][i]);
    }
    return calls->answer;
}

TEST(a_kernel_of_the_callers_is_streamed_like_ours)
{
    const char *names[] = {"sum"};
    stw_custom_update custom;
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    kernel_calls calls;
    stw_tensor *sum = NULL;
    trainee here;
    memset(&custom, 0, sizeof custom);
    memset(&calls, 0, sizeof calls);
    here.runtime = machine_open_as(machine_small());
    here.parameter = tensor_f32(here.runtime, "w", ELEMENTS);
    here.gradient = tensor_f32(here.runtime, "w.grad", ELEMENTS);
    here.values = calloc(ELEMENTS, sizeof(double)), here.first = calloc(ELEMENTS, sizeof(double));
    here.second = NULL, here.scratch = calloc(ELEMENTS, sizeof(float));
    assert_true(here.values && here.first && here.scratch);
    ok(stw_tensor_fill(here.parameter, 0, NULL));
    calls.parameter = here.parameter;
    custom.struct_size = sizeof custom, custom.state_count = 1, custom.state_names = names;
    custom.update = own_kernel, custom.user = &calls;
    options.algorithm = STW_OPTIMIZER_CUSTOM, options.custom = &custom, options.name = "own";
    ok(stw_optimizer_create(here.runtime, &options, &here.optimizer));
    memset(&custom, 0xff, sizeof custom); /* it was copied */
    optimizer_add(here.optimizer, here.parameter, here.gradient);
    hyper.lr = 0.5;
    ok(stw_optimizer_set_hyper(here.optimizer, 0, &hyper));
    stw_update_options update = {.struct_size = sizeof update, .gradient_scale = 0.25};
    for (int step = 1; step <= STEPS; ++step) {
        give_gradient(&here, step);
        ok(stw_optimizer_step(here.optimizer, &update, NULL));
        for (uint64_t i = 0; i < ELEMENTS; ++i) {
            const double scaled = 0.25 * (double)gradient_at(step, i);
            here.first[i] += scaled * scaled + 1;
            here.values[i] -= 0.5 * scaled / sqrt(here.first[i]);
        }
    }
    expect_reference(&here, here.parameter, here.values, 1e-5);
    ok(stw_tensor_find(here.runtime, "own.w.sum", &sum));
    expect_reference(&here, sum, here.first, 1e-5);
    assert_int_equal(calls.wrong, 0);
    /* The kernel's own failure comes back and names the parameter. */
    calls.answer = STW_ERROR_UNSUPPORTED;
    give_gradient(&here, 9);
    ok(stw_optimizer_step(here.optimizer, NULL, NULL));
    fails(stw_runtime_drain(here.runtime, 0), STW_ERROR_UNSUPPORTED, "'w'");
    ok(stw_runtime_clear_error(here.runtime));
    ok(stw_optimizer_destroy(here.optimizer));
    free(here.values), free(here.first), free(here.scratch);
    ok(stw_runtime_close(here.runtime, 0, 0));
}

/* Zeros are a gradient, also where the block is shared and they have yet to be written: the
 * parameter decays. An EMPTY one would be left alone. */
TEST(a_discarded_gradient_that_reads_as_zeros_is_a_gradient)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *parameter = tensor_f32(runtime, "w", 4), *gradient, *beside;
    stw_tensor_spec spec = spec_f32("g", 4);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    stw_optimizer *optimizer = NULL;
    float values[4];
    spec.role = STW_ROLE_GRAD, spec.flags = STW_TENSOR_ZERO;
    gradient = tensor_make(runtime, &spec);
    spec.name = "beside";
    beside = tensor_make(runtime, &spec);
    tensor_fill_sequence(beside, 4, 5);
    tensor_fill_sequence(gradient, 4, 9);
    ok(stw_tensor_fill(parameter, 1, NULL));
    options.algorithm = STW_OPTIMIZER_SGD;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper.lr = 0.5, hyper.weight_decay = 0.5;
    ok(stw_optimizer_set_hyper(optimizer, 0, &hyper));
    optimizer_add(optimizer, parameter, gradient);
    ok(stw_tensor_discard(&gradient, 1));
    ok(stw_optimizer_step(optimizer, NULL, NULL));
    ok(stw_tensor_read(parameter, values, NULL));
    assert_float(values[3], 0.75F);
    tensor_expect_sequence(beside, 4, 5);
    ok(stw_runtime_drain(runtime, 0));
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

TEST(destroying_with_a_view_of_a_state_is_busy_and_changes_nothing)
{
    trainee here = trainee_open(STW_OPTIMIZER_ADAMW, STW_F32, NULL);
    stw_tensor *moment = NULL;
    ok(stw_optimizer_state(here.optimizer, here.parameter, "exp_avg", &moment));
    stw_view view = view_get(here.runtime, moment, STW_READ);
    fails(stw_optimizer_destroy(here.optimizer), STW_ERROR_BUSY, "open views");
    view_put(&view);
    /* Its own still, and it works. */
    fails(stw_tensor_destroy(&moment, 1), STW_ERROR_BUSY, "belongs to optimizer");
    give_gradient(&here, 1);
    ok(stw_optimizer_step(here.optimizer, NULL, NULL));
    trainee_close(&here);
}

RUN_TESTS("optimizer", NULL, NULL)
