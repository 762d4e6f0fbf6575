/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step decides before it updates: norm, clip, skip, subset; which entries are refused; what
 * happens to gradients and counts.
 */
#include "support.h"

enum { ELEMENTS = 20000 };

typedef struct pair {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameters[2];
    stw_tensor *gradients[2];
} pair;

/* Plain SGD with rate 1: the update is the gradient, so every factor shows. */
static pair pair_open(void)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    pair made;
    made.runtime = machine_open_as(machine_small());
    options.algorithm = STW_OPTIMIZER_SGD;
    ok(stw_optimizer_create(made.runtime, &options, &made.optimizer));
    hyper.lr = 1;
    ok(stw_optimizer_set_hyper(made.optimizer, 0, &hyper));
    for (int i = 0; i < 2; ++i) {
        made.parameters[i] = tensor_f32(made.runtime, i ? "p1" : "p0", ELEMENTS);
        made.gradients[i] = tensor_f32(made.runtime, i ? "g1" : "g0", ELEMENTS);
        ok(stw_tensor_fill(made.parameters[i], 100, NULL));
        optimizer_add(made.optimizer, made.parameters[i], made.gradients[i]);
    }
    return made;
}

static void pair_close(pair *here)
{
    ok(stw_runtime_drain(here->runtime, 0));
    ok(stw_optimizer_destroy(here->optimizer));
    machine_close(here->runtime);
}

static void expect_everywhere(stw_tensor *tensor, double value)
{
    float *values = malloc(ELEMENTS * sizeof *values);
    assert_non_null(values);
    ok(stw_tensor_read(tensor, values, NULL));
    for (int i = 0; i < ELEMENTS; ++i) {
        if (fabs((double)values[i] - value) <= 1e-4) continue;
        fail_msg("element %d is %g, not %g", i, (double)values[i], value);
    }
    free(values);
}

static uint64_t count_of(pair *here, int i)
{
    uint64_t count = 99;
    ok(stw_optimizer_get_count(here->optimizer, here->parameters[i], &count));
    return count;
}

TEST(norm_and_clip_are_of_all_scaled_gradients_together)
{
    pair here = pair_open();
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    const double norm = 0.5 * sqrt(ELEMENTS * (3.0 * 3.0 + 4.0 * 4.0));
    ok(stw_tensor_fill(here.gradients[0], 3, NULL));
    ok(stw_tensor_fill(here.gradients[1], 4, NULL));
    options.gradient_scale = 0.5, options.clip_norm = norm / 10;
    ok(stw_optimizer_step(here.optimizer, &options, &result));
    assert_true(fabs(result.norm / norm - 1) < 1e-9);
    assert_true(fabs(result.clip_coefficient - 0.1) < 1e-6);
    assert_int_equal(result.skipped, 0);
    assert_int_equal(result.updated, 2);
    assert_int_equal(result.nonfinite, 0);
    expect_everywhere(here.parameters[0], 100 - 0.1 * 0.5 * 3);
    expect_everywhere(here.parameters[1], 100 - 0.1 * 0.5 * 4);
    pair_close(&here);
}

/* Written through a view, and then out of memory. */
static void write_gradient(pair *here, int i, float value)
{
    stw_view view = view_get(here->runtime, here->gradients[i], STW_WRITE);
    for (int element = 0; element < ELEMENTS; ++element) ((float *)view.pointer)[element] = value;
    view_put(&view);
    tensor_to_disk(here->runtime, here->gradients[i]);
}

TEST(a_gradient_is_measured_by_who_writes_it)
{
    pair here = pair_open();
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_update_options options = {.struct_size = sizeof options, .flags = STW_UPDATE_MEASURE};
    write_gradient(&here, 0, 3), write_gradient(&here, 1, 4);
    uint64_t before = bytes_from_disk(here.runtime);
    ok(stw_optimizer_step(here.optimizer, &options, &result));
    assert_true(bytes_from_disk(here.runtime) > before); /* nobody knew that it is wanted */
    write_gradient(&here, 0, 6), write_gradient(&here, 1, 8);
    before = bytes_from_disk(here.runtime);
    ok(stw_optimizer_step(here.optimizer, &options, &result));
    assert_int_equal(bytes_from_disk(here.runtime), before);
    assert_true(fabs(result.norm / sqrt(ELEMENTS * (6.0 * 6.0 + 8.0 * 8.0)) - 1) < 1e-9);
    /* What was written since by other means is read. */
    write_gradient(&here, 0, 3), write_gradient(&here, 1, 4);
    ok(stw_tensor_fill(here.gradients[1], 1, NULL));
    ok(stw_optimizer_step(here.optimizer, &options, &result));
    assert_true(fabs(result.norm / sqrt(ELEMENTS * (3.0 * 3.0 + 1.0)) - 1) < 1e-9);
    pair_close(&here);
}

/* Once in some dozens of times the update's threads were not done with it yet. */
TEST(what_was_only_measured_is_free_when_the_call_returns)
{
    pair here = pair_open();
    stw_update_options options = {.struct_size = sizeof options, .flags = STW_UPDATE_MEASURE};
    for (int round = 0; round < 300; ++round) {
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        ok(stw_tensor_fill(here.gradients[0], 1, NULL));
        ok(stw_tensor_fill(here.gradients[1], 1, NULL));
        ok(stw_optimizer_step(here.optimizer, &options, &result));
        ok(stw_tensor_discard(here.gradients, 2));
    }
    pair_close(&here);
}

TEST(a_gradient_in_two_optimizers_is_held_by_the_one_that_stays)
{
    pair here = pair_open();
    stw_optimizer *other = optimizer_make(here.runtime, STW_OPTIMIZER_SGD);
    optimizer_add(other, tensor_f32(here.runtime, "p2", ELEMENTS), here.gradients[0]);
    ok(stw_optimizer_destroy(other));
    fails(stw_tensor_destroy(&here.gradients[0], 1), STW_ERROR_BUSY, "optimizer");
    pair_close(&here);
}

TEST(the_infinity_norm_is_the_largest)
{
    pair here = pair_open();
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    ok(stw_tensor_fill(here.gradients[0], -8, NULL));
    ok(stw_tensor_fill(here.gradients[1], 4, NULL));
    options.norm_type = INFINITY, options.clip_norm = 100;
    ok(stw_optimizer_step(here.optimizer, &options, &result));
    assert_true(result.norm == 8);
    assert_true(result.clip_coefficient == 1);
    expect_everywhere(here.parameters[0], 108);
    options.norm_type = 3;
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID, "type 3");
    pair_close(&here);
}

TEST(a_nan_skips_the_whole_step_and_is_counted)
{
    pair here = pair_open();
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_copy_options two = STW_COPY_OPTIONS_INIT;
    const float bad[2] = {NAN, -INFINITY};
    float value;
    ok(stw_tensor_fill(here.gradients[0], 1, NULL));
    ok(stw_tensor_fill(here.gradients[1], 1, NULL));
    two.element_begin = ELEMENTS - 2, two.element_count = 2;
    ok(stw_tensor_write(here.gradients[1], bad, &two));
    stw_update_options options = {.struct_size = sizeof options,
                                  .flags = STW_UPDATE_SKIP_NONFINITE};
    assert_int_equal(stw_optimizer_step(here.optimizer, &options, &result), STW_SKIPPED);
    assert_int_equal(result.skipped, 1);
    assert_int_equal(result.nonfinite, 2);
    assert_int_equal(result.updated, 0);
    assert_int_equal(stw_optimizer_result(here.optimizer, &result), STW_SKIPPED);
    expect_everywhere(here.parameters[0], 100);
    expect_everywhere(here.parameters[1], 100);
    assert_int_equal(count_of(&here, 0), 0);
    /* The gradients of a skipped step are gone, unless they are kept. */
    two.element_begin = 0, two.element_count = 1;
    fails(stw_tensor_read(here.gradients[0], &value, &two), STW_ERROR_EMPTY, "'g0'");
    pair_close(&here);
}

TEST(gradients_are_emptied_unless_kept)
{
    pair here = pair_open();
    stw_fetch_request request = request_of(here.gradients[0], STW_READ);
    stw_view view;
    ok(stw_tensor_fill(here.gradients[0], 1, NULL));
    stw_update_options options = {.struct_size = sizeof options,
                                  .flags = STW_UPDATE_KEEP_GRADIENTS};
    ok(stw_optimizer_step(here.optimizer, &options, NULL));
    ok(stw_runtime_drain(here.runtime, 0));
    expect_everywhere(here.gradients[0], 1);
    expect_everywhere(here.parameters[0], 99);
    options.flags = STW_UPDATE_WAIT;
    ok(stw_optimizer_step(here.optimizer, &options, NULL));
    fails(stw_fetch(here.runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'g0'");
    expect_everywhere(here.parameters[0], 98);
    /* No gradient, no update, no count. */
    expect_everywhere(here.parameters[1], 100);
    assert_int_equal(count_of(&here, 0), 2);
    assert_int_equal(count_of(&here, 1), 0);
    pair_close(&here);
}

TEST(measure_updates_nothing)
{
    pair here = pair_open();
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    ok(stw_tensor_fill(here.gradients[0], 2, NULL));
    stw_update_options options = {.struct_size = sizeof options, .flags = STW_UPDATE_MEASURE};
    ok(stw_optimizer_step(here.optimizer, &options, &result));
    assert_true(fabs(result.norm - 2 * sqrt(ELEMENTS)) < 1e-9 * result.norm);
    assert_int_equal(result.updated, 0);
    expect_everywhere(here.gradients[0], 2);
    expect_everywhere(here.parameters[0], 100);
    assert_int_equal(count_of(&here, 0), 0);
    pair_close(&here);
}

TEST(a_subset_is_updated_alone)
{
    pair here = pair_open();
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_tensor *twice[2];
    ok(stw_tensor_fill(here.gradients[0], 1, NULL));
    ok(stw_tensor_fill(here.gradients[1], 1, NULL));
    options.parameters = &here.parameters[1], options.parameter_count = 1;
    ok(stw_optimizer_step(here.optimizer, &options, &result));
    assert_int_equal(result.updated, 1);
    expect_everywhere(here.parameters[0], 100);
    expect_everywhere(here.parameters[1], 99);
    twice[0] = twice[1] = here.parameters[0];
    options.parameters = twice, options.parameter_count = 2;
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID, "twice");
    twice[1] = here.gradients[0];
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_NOT_FOUND,
          "no parameter of optimizer");
    pair_close(&here);
}

TEST(a_pending_result_is_known_later)
{
    pair here = pair_open();
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    fails(stw_optimizer_result(here.optimizer, &result), STW_ERROR_NOT_FOUND, "no step");
    ok(stw_tensor_fill(here.gradients[0], 1, NULL));
    ok(stw_optimizer_step(here.optimizer, NULL, NULL));
    ok(stw_runtime_drain(here.runtime, 0));
    ok(stw_optimizer_result(here.optimizer, &result));
    assert_int_equal(result.updated, 1);
    assert_int_equal(result.without_gradient, 1);
    pair_close(&here);
}

TEST(bad_numbers_are_refused)
{
    pair here = pair_open();
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    stw_optimizer_options adam = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer = NULL;
    stw_update_options options = {.struct_size = sizeof options, .clip_norm = -1};
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID, "clip_norm");
    options.clip_norm = NAN;
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID, "clip_norm");
    options.clip_norm = 0, options.gradient_scale = NAN;
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID, "scale");
    options.gradient_scale = 0, options.flags = 256;
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID, "0x100");
    options.flags = 0, options.parameter_count = 3;
    fails(stw_optimizer_step(here.optimizer, &options, &result), STW_ERROR_INVALID, "parameters");
    /* SGD has no betas, Adam has. */
    hyper.beta1 = 1.5;
    ok(stw_optimizer_set_hyper(here.optimizer, 0, &hyper));
    adam.algorithm = STW_OPTIMIZER_ADAM;
    ok(stw_optimizer_create(here.runtime, &adam, &optimizer));
    fails(stw_optimizer_set_hyper(optimizer, 0, &hyper), STW_ERROR_INVALID, "1.5");
    ok(stw_optimizer_destroy(optimizer));
    hyper.lr = INFINITY;
    fails(stw_optimizer_set_hyper(here.optimizer, 0, &hyper), STW_ERROR_INVALID, "inf");
    pair_close(&here);
}

TEST(entries_that_cannot_be_updated_are_refused_all_or_none)
{
    pair here = pair_open();
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entries[2] = {STW_OPTIMIZER_ENTRY_INIT, STW_OPTIMIZER_ENTRY_INIT};
    stw_optimizer *adam = NULL;
    stw_tensor *fresh = tensor_f32(here.runtime, "fresh", ELEMENTS);
    stw_tensor *gradient = tensor_f32(here.runtime, "fresh.grad", ELEMENTS);
    stw_tensor *shorter = tensor_f32(here.runtime, "shorter", ELEMENTS - 1);
    stw_tensor_spec spec = spec_f32("odd", ELEMENTS);
    stw_tensor *integers, *frozen, *found = NULL;
    spec.dtype = STW_I32;
    integers = tensor_make(here.runtime, &spec);
    spec.dtype = STW_F32, spec.name = "frozen", spec.flags = STW_TENSOR_READ_ONLY;
    frozen = tensor_make(here.runtime, &spec);
    options.algorithm = 77;
    fails(stw_optimizer_create(here.runtime, &options, &adam), STW_ERROR_INVALID, "77");
    options.algorithm = STW_OPTIMIZER_ADAM, options.flags = 4;
    fails(stw_optimizer_create(here.runtime, &options, &adam), STW_ERROR_INVALID, "0x4");
    options.flags = 0, options.state_dtype = STW_F16;
    fails(stw_optimizer_create(here.runtime, &options, &adam), STW_ERROR_UNSUPPORTED, "dtype 2");
    options.state_dtype = 0;
    ok(stw_optimizer_create(here.runtime, &options, &adam));
    hyper_usual(adam);
    entries[0].parameter = fresh, entries[0].gradient = gradient;
    entries[1].parameter = here.parameters[0], entries[1].gradient = here.gradients[0];
    fails(stw_optimizer_add(adam, entries, 2), STW_ERROR_EXISTS, "'p0' is in another optimizer");
    fails(stw_tensor_find(here.runtime, "optimizer.fresh.exp_avg", &found), STW_ERROR_NOT_FOUND,
          "exp_avg");
    entries[1].parameter = integers, entries[1].gradient = gradient;
    fails(stw_optimizer_add(adam, entries, 2), STW_ERROR_MISMATCH, "'odd'");
    entries[1].parameter = frozen;
    fails(stw_optimizer_add(adam, entries, 2), STW_ERROR_MISMATCH, "'frozen'");
    entries[1].parameter = shorter;
    fails(stw_optimizer_add(adam, entries, 2), STW_ERROR_MISMATCH, "'shorter'");
    entries[1].parameter = here.parameters[0], entries[1].element_count = ELEMENTS + 1;
    fails(stw_optimizer_add(adam, entries, 2), STW_ERROR_INVALID, "'p0'");
    ok(stw_optimizer_add(adam, entries, 1));
    fails(stw_optimizer_add(adam, entries, 1), STW_ERROR_EXISTS, "already");
    fails(stw_tensor_destroy(&fresh, 1), STW_ERROR_BUSY, "'fresh' belongs to optimizer");
    ok(stw_tensor_find(here.runtime, "optimizer.fresh.exp_avg", &found));
    fails(stw_tensor_destroy(&found, 1), STW_ERROR_BUSY, "belongs to optimizer");
    fails(stw_optimizer_state(adam, fresh, "nonsense", &found), STW_ERROR_NOT_FOUND, "'nonsense'");
    ok(stw_optimizer_set_count(adam, fresh, 41));
    ok(stw_optimizer_destroy(adam));
    ok(stw_tensor_destroy(&fresh, 1));
    fails(stw_tensor_find(here.runtime, "optimizer.fresh.exp_avg", &found), STW_ERROR_NOT_FOUND,
          "exp_avg");
    pair_close(&here);
}

TEST(a_parameter_never_written_fails_its_update_by_name)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
    entry.parameter = tensor_f32(runtime, "unborn", ELEMENTS);
    entry.gradient = tensor_f32(runtime, "unborn.grad", ELEMENTS);
    ok(stw_optimizer_add(optimizer, &entry, 1));
    ok(stw_tensor_fill(entry.gradient, 1, NULL));
    stw_status status = stw_optimizer_step(optimizer, NULL, NULL);
    if (status == STW_OK) status = stw_runtime_drain(runtime, 0);
    fails(status, STW_ERROR_EMPTY, "unborn");
    ok(stw_runtime_clear_error(runtime));
    ok(stw_optimizer_destroy(optimizer));
    ok(stw_runtime_close(runtime, 0, 0));
}

RUN_TESTS("optimizer verdict", NULL, NULL)
