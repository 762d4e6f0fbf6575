/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moments in bf16: half the room, the published formula in the mean, and no difference between a
 * run and the same run again.
 */
#include "support.h"

enum { ELEMENTS = 3 * 16384 + 77, STEPS = 40 }; /* three blocks of fp32 and a bit */

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameter, *gradient;
} trainee;

static stw_hyper some_hyper(void)
{
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.lr = 0.01, hyper.weight_decay = 0.1, hyper.eps = 1e-3;
    return hyper;
}

static trainee trainee_open(void)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = some_hyper();
    trainee made;
    made.runtime = machine_open_as(machine_small());
    made.parameter = tensor_f32(made.runtime, "w", ELEMENTS);
    made.gradient = tensor_f32(made.runtime, "w.grad", ELEMENTS);
    ok(stw_tensor_fill(made.parameter, 0.5, NULL));
    options.algorithm = STW_OPTIMIZER_ADAMW, options.state_dtype = STW_BF16;
    ok(stw_optimizer_create(made.runtime, &options, &made.optimizer));
    ok(stw_optimizer_set_hyper(made.optimizer, 0, &hyper));
    optimizer_add(made.optimizer, made.parameter, made.gradient);
    return made;
}

static void trainee_close(trainee *here)
{
    ok(stw_runtime_drain(here->runtime, 0));
    ok(stw_optimizer_destroy(here->optimizer));
    machine_close(here->runtime);
}

/* The same for all elements, so that their mean shows what a draw hides. */
static double gradient_at(int step)
{
    return step % 3 == 0 ? -0.75 : 0.5;
}

static void step(trainee *here, int number)
{
    ok(stw_tensor_fill(here->gradient, gradient_at(number), NULL));
    ok(stw_optimizer_step(here->optimizer, NULL, NULL));
}

static stw_tensor *state_of(trainee *here, const char *name)
{
    stw_tensor *state = NULL;
    ok(stw_optimizer_state(here->optimizer, here->parameter, name, &state));
    return state;
}

static float *as_f32(stw_tensor *tensor)
{
    float *values = malloc(ELEMENTS * sizeof *values);
    assert_non_null(values);
    stw_copy_options options = {.struct_size = sizeof options, .dtype = STW_F32};
    ok(stw_tensor_read(tensor, values, &options));
    return values;
}

/* The mean comes close; no element is further off than a few draws can bring it. */
static void expect_mean(stw_tensor *tensor, double wanted, double mean_slack, double slack)
{
    float *values = as_f32(tensor);
    double sum = 0;
    for (uint64_t i = 0; i < ELEMENTS; ++i) {
        assert_true(fabs((double)values[i] - wanted) <= slack * fabs(wanted));
        sum += (double)values[i];
    }
    if (fabs(sum / ELEMENTS - wanted) > mean_slack * fabs(wanted))
        fail_msg("the mean is %.9g, the reference %.9g", sum / ELEMENTS, wanted);
    free(values);
}

TEST(moments_in_bf16_follow_their_formula_in_the_mean)
{
    const stw_hyper hyper = some_hyper();
    double value = 0.5, first = 0, second = 0;
    trainee here = trainee_open();
    stw_tensor_info info = info_of(state_of(&here, "exp_avg_sq"));
    assert_int_equal(info.dtype, STW_BF16);
    assert_int_equal(info.whole_bytes, 2 * ELEMENTS);
    for (int number = 1; number <= STEPS; ++number) {
        const double gradient = gradient_at(number);
        step(&here, number);
        first = hyper.beta1 * first + (1 - hyper.beta1) * gradient;
        second = hyper.beta2 * second + (1 - hyper.beta2) * gradient * gradient;
        value -= hyper.lr * hyper.weight_decay * value;
        value -= hyper.lr / (1 - pow(hyper.beta1, number)) * first /
                 (sqrt(second / (1 - pow(hyper.beta2, number))) + hyper.eps);
        if (number == STEPS / 2) tensor_to_disk(here.runtime, state_of(&here, "exp_avg"));
    }
    expect_mean(state_of(&here, "exp_avg"), first, 1e-3, 0.25);
    expect_mean(state_of(&here, "exp_avg_sq"), second, 1e-3, 0.1);
    expect_mean(here.parameter, value, 1e-3, 0.05);
    trainee_close(&here);
}

TEST(a_run_again_has_the_same_bits)
{
    float *first[3], *again[3];
    for (int run = 0; run < 2; ++run) {
        trainee here = trainee_open();
        float **kept = run == 0 ? first : again;
        for (int number = 1; number <= 5; ++number) step(&here, number);
        kept[0] = as_f32(here.parameter);
        kept[1] = as_f32(state_of(&here, "exp_avg"));
        kept[2] = as_f32(state_of(&here, "exp_avg_sq"));
        trainee_close(&here);
    }
    for (int i = 0; i < 3; ++i) {
        assert_memory_equal(first[i], again[i], ELEMENTS * sizeof(float));
        free(first[i]), free(again[i]);
    }
}

static stw_status never(void *user, const stw_update_chunk *chunk)
{
    (void)user, (void)chunk;
    return STW_ERROR_INTERNAL;
}

TEST(moments_in_bf16_take_half_the_room)
{
    machine small = machine_small();
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_custom_update custom;
    stw_optimizer *optimizer = NULL;
    small.nvme_blocks = 0, small.host_blocks = 24;
    stw_runtime *runtime = machine_open(&small);
    entry.parameter = tensor_f32(runtime, "w", 8 * BLOCK / 4);
    entry.gradient = tensor_f32(runtime, "w.grad", 8 * BLOCK / 4);
    options.algorithm = STW_OPTIMIZER_ADAM;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper_usual(optimizer);
    fails(stw_optimizer_add(optimizer, &entry, 1), STW_ERROR_BUDGET, "room");
    ok(stw_optimizer_destroy(optimizer));
    options.state_dtype = STW_BF16;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper_usual(optimizer);
    ok(stw_optimizer_add(optimizer, &entry, 1));
    ok(stw_optimizer_destroy(optimizer));
    /* A kernel of the caller's sees fp32. */
    memset(&custom, 0, sizeof custom);
    custom.struct_size = sizeof custom;
    custom.update = never;
    options.algorithm = STW_OPTIMIZER_CUSTOM, options.custom = &custom;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_UNSUPPORTED,
          "a custom update in f32");
    machine_close(runtime);
}

RUN_TESTS("moments", NULL, NULL)
