/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program may do to an optimizer's tensors and numbers between steps: what it writes counts,
 * what makes no sense is refused by name and value.
 */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

enum { ELEMENTS = 16384 + 77 }; /* a bit more than one block of 64 KiB in f32 */

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameter, *gradient;
} trainee;

/* SGD with a rate of 1 and gradients of 0 or more: what it does is seen at once. */
static trainee trainee_make(stw_runtime *runtime, uint32_t dtype, uint32_t flags)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    stw_tensor_spec spec = spec_f32("w", ELEMENTS);
    trainee made;
    made.runtime = runtime;
    spec.dtype = dtype;
    spec.flags = (flags & STW_OPTIMIZER_DURABLE) ? STW_TENSOR_DURABLE : 0;
    made.parameter = tensor_make(runtime, &spec);
    spec = spec_f32("w.grad", ELEMENTS), spec.role = STW_ROLE_GRAD;
    made.gradient = tensor_make(runtime, &spec);
    options.algorithm = STW_OPTIMIZER_SGD, options.name = "opt", options.flags = flags;
    ok(stw_optimizer_create(runtime, &options, &made.optimizer));
    hyper.lr = 1;
    ok(stw_optimizer_set_hyper(made.optimizer, 0, &hyper));
    optimizer_add(made.optimizer, made.parameter, made.gradient);
    return made;
}

static void step_by(trainee *here, double gradient)
{
    ok(stw_tensor_fill(here->gradient, gradient, NULL));
    ok(stw_optimizer_step(here->optimizer, NULL, NULL));
}

static void expect_all(stw_tensor *tensor, float wanted)
{
    static float values[ELEMENTS];
    stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
    ok(stw_tensor_read(tensor, values, &as_f32));
    for (int i = 0; i < ELEMENTS; ++i) {
        if (values[i] != wanted) fail_msg("element %d is %g, not %g", i, values[i], wanted);
    }
}

static stw_tensor *master_of(trainee *here)
{
    stw_tensor *master = NULL;
    ok(stw_optimizer_state(here->optimizer, here->parameter, "master", &master));
    return master;
}

static void write_half(trainee *here, uint16_t bits)
{
    static uint16_t values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) values[i] = bits;
    ok(stw_tensor_write(here->parameter, values, NULL));
}

static void write_view(trainee *here, uint32_t access, uint16_t bits)
{
    stw_view view = view_get(here->runtime, here->parameter, access);
    for (int i = 0; i < ELEMENTS; ++i) ((uint16_t *)view.pointer)[i] = bits;
    view_put(&view);
}

/* Its fp32 master is made anew from what was written, whichever way that was. */
TEST(what_is_written_to_a_parameter_is_updated_next)
{
    static const struct {
        uint32_t dtype;
        uint16_t five;
    } halves[] = {
        {STW_BF16, 0x40a0},
        {STW_F16, 0x4500},
    };
    for (size_t i = 0; i < COUNT(halves); ++i) {
        stw_runtime *runtime = machine_open(*state);
        trainee here = trainee_make(runtime, halves[i].dtype, 0);
        ok(stw_tensor_fill(here.parameter, 1, NULL));
        step_by(&here, 0);
        expect_all(here.parameter, 1);
        write_half(&here, halves[i].five);
        step_by(&here, 0);
        expect_all(here.parameter, 5);
        ok(stw_tensor_fill(here.parameter, 7, NULL));
        step_by(&here, 1);
        expect_all(here.parameter, 6);
        write_view(&here, STW_WRITE, halves[i].five);
        step_by(&here, 1);
        expect_all(here.parameter, 4);
        write_view(&here, STW_READ_WRITE, halves[i].five);
        step_by(&here, 2);
        expect_all(here.parameter, 3);
        ok(stw_runtime_drain(runtime, 0));
        ok(stw_tensor_discard(&here.parameter, 1));
        ok(stw_tensor_fill(here.parameter, 8, NULL));
        step_by(&here, 0);
        expect_all(here.parameter, 8);
        expect_all(master_of(&here), 8);
        machine_close(runtime);
    }
}

/* Small steps add up in the master, whose lower bits a bf16 parameter does not have. */
TEST(steps_without_a_write_keep_the_masters_bits)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_BF16, 0);
    ok(stw_tensor_fill(here.parameter, 256, NULL));
    for (int i = 0; i < 8; ++i) step_by(&here, 0.25);
    expect_all(master_of(&here), 254);
    expect_all(here.parameter, 254);
    machine_close(runtime);
}

/* As a program does that loads a checkpoint of its own. */
TEST(a_master_that_was_written_as_well_counts)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_BF16, 0);
    ok(stw_tensor_fill(here.parameter, 1, NULL));
    step_by(&here, 0);
    ok(stw_tensor_fill(here.parameter, 3, NULL));
    ok(stw_tensor_fill(master_of(&here), 3.0009765625, NULL));
    step_by(&here, 0);
    expect_all(master_of(&here), 3.0009765625F);
    machine_close(runtime);
}

/* A write before the commit, and one after the resume: each is what the next update begins with. */
TEST(writes_around_a_commit_are_not_undone)
{
    machine stored = *(machine *)*state;
    float wanted = 5;
    if (stored.nvme_blocks == 0) return; /* nothing to commit to */
    stored.store_name = "inputs";
    for (int round = 0; round < 3; ++round) {
        stored.flags = round > 0 ? STW_RUNTIME_RESUME : STW_RUNTIME_OVERWRITE;
        stw_runtime *runtime = machine_open(&stored);
        trainee here = trainee_make(runtime, STW_BF16, STW_OPTIMIZER_DURABLE);
        if (round == 0) {
            ok(stw_tensor_fill(here.parameter, 1, NULL));
            step_by(&here, 0);
            ok(stw_tensor_fill(here.parameter, 5, NULL));
        } else if (round == 2) {
            ok(stw_tensor_fill(here.parameter, 7, NULL)), wanted = 7;
        }
        if (round > 0) {
            step_by(&here, 0);
            expect_all(here.parameter, wanted);
        }
        ok(stw_commit(runtime, NULL, NULL));
        machine_close(runtime);
    }
}

/* 0.25 is lost in a bf16 of 256 each time; the master has it, also after a resume. */
TEST(a_resume_without_a_write_keeps_the_masters_bits)
{
    machine stored = *(machine *)*state;
    if (stored.nvme_blocks == 0) return; /* nothing to commit to */
    stored.store_name = "masters";
    for (int round = 0; round < 8; ++round) {
        stored.flags = round > 0 ? STW_RUNTIME_RESUME : STW_RUNTIME_OVERWRITE;
        stw_runtime *runtime = machine_open(&stored);
        trainee here = trainee_make(runtime, STW_BF16, STW_OPTIMIZER_DURABLE);
        if (round == 0) ok(stw_tensor_fill(here.parameter, 256, NULL));
        step_by(&here, 0.25);
        expect_all(master_of(&here), 256 - 0.25F * (float)(round + 1));
        ok(stw_commit(runtime, NULL, NULL));
        if (round == 7) expect_all(here.parameter, 254);
        machine_close(runtime);
    }
}

TEST(a_group_without_hyper_parameters_is_not_trained)
{
    stw_runtime *runtime = machine_open(*state);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_update_options step = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    stw_optimizer *optimizer;
    stw_tensor *parameter = tensor_f32(runtime, "layer.w", 100);
    stw_tensor *gradient = tensor_f32(runtime, "layer.g", 100);
    options.algorithm = STW_OPTIMIZER_ADAMW;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    ok(stw_optimizer_set_hyper(optimizer, 0, &hyper));
    entry.parameter = parameter, entry.gradient = gradient, entry.parameter_group = 7;
    ok(stw_optimizer_add(optimizer, &entry, 1));
    ok(stw_tensor_fill(parameter, 1, NULL));
    ok(stw_tensor_fill(gradient, 1, NULL));
    fails(stw_optimizer_step(optimizer, NULL, &result), STW_ERROR_INVALID,
          "parameter 'layer.w' is in group 7");
    step.flags = STW_UPDATE_MEASURE; /* needs none */
    ok(stw_optimizer_step(optimizer, &step, &result));
    assert_float(result.norm, 10);
    ok(stw_optimizer_set_hyper(optimizer, 7, &hyper));
    ok(stw_optimizer_step(optimizer, NULL, &result));
    assert_int_equal(result.updated, 1);
    machine_close(runtime);
}

TEST(numbers_that_make_no_sense_are_refused_with_their_value)
{
    static const struct {
        uint32_t algorithm;
        size_t at;
        double value;
        const char *words;
    } cases[] = {
        {STW_OPTIMIZER_ADAMW, offsetof(stw_hyper, lr), -0.5, "lr is -0.5"},
        {STW_OPTIMIZER_ADAMW, offsetof(stw_hyper, lr), (double)NAN, "lr is"},
        {STW_OPTIMIZER_ADAMW, offsetof(stw_hyper, eps), -1, "eps is -1"},
        {STW_OPTIMIZER_ADAM, offsetof(stw_hyper, weight_decay), -2, "weight_decay is -2"},
        {STW_OPTIMIZER_ADAM, offsetof(stw_hyper, beta1), 1, "beta1 is 1"},
        {STW_OPTIMIZER_LION, offsetof(stw_hyper, beta2), -0.1, "beta2 is -0.1"},
        {STW_OPTIMIZER_LION, offsetof(stw_hyper, beta2), (double)INFINITY, "beta2 is inf"},
        {STW_OPTIMIZER_ADAMW, offsetof(stw_hyper, momentum), 0.9, "momentum is 0.9"},
        {STW_OPTIMIZER_SGD, offsetof(stw_hyper, momentum), -0.9, "momentum is -0.9"},
        {STW_OPTIMIZER_ADAGRAD, offsetof(stw_hyper, lr_decay), -1, "lr_decay is -1"},
        {STW_OPTIMIZER_SGD, offsetof(stw_hyper, lr_decay), 1, "lr_decay is 1"},
    };
    stw_runtime *runtime = machine_open(*state);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer;
    stw_hyper hyper = STW_HYPER_INIT;
    for (size_t i = 0; i < COUNT(cases); ++i) {
        stw_hyper wrong = STW_HYPER_INIT;
        options.algorithm = cases[i].algorithm;
        memcpy((char *)&wrong + cases[i].at, &cases[i].value, sizeof cases[i].value);
        ok(stw_optimizer_create(runtime, &options, &optimizer));
        fails(stw_optimizer_set_hyper(optimizer, 0, &wrong), STW_ERROR_INVALID, cases[i].words);
        ok(stw_optimizer_destroy(optimizer));
    }
    options.algorithm = STW_OPTIMIZER_ADAMW, hyper.flags = STW_HYPER_NESTEROV;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    fails(stw_optimizer_set_hyper(optimizer, 0, &hyper), STW_ERROR_INVALID, "NESTEROV");
    machine_close(runtime);
}

TEST(steps_look_at_their_numbers)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_F32, 0);
    static const double wrong[] = {NAN, -1};
    ok(stw_tensor_fill(here.parameter, 8, NULL));
    ok(stw_tensor_fill(here.gradient, 1, NULL));
    for (size_t i = 0; i < COUNT(wrong); ++i) {
        stw_update_options clip = STW_UPDATE_OPTIONS_INIT, norm = clip, scale = clip;
        clip.clip_norm = norm.norm_type = scale.gradient_scale = wrong[i];
        fails(stw_optimizer_step(here.optimizer, &clip, NULL), STW_ERROR_INVALID, "");
        fails(stw_optimizer_step(here.optimizer, &norm, NULL), STW_ERROR_INVALID, "");
        fails(stw_optimizer_step(here.optimizer, &scale, NULL), STW_ERROR_INVALID, "");
    }
    ok(stw_runtime_drain(runtime, 0));
    expect_all(here.parameter, 8);
    ok(stw_optimizer_step(here.optimizer, NULL, NULL));
    expect_all(here.parameter, 7);
    machine_close(runtime);
}

TEST(counts_are_those_of_the_steps_that_were_called)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_F32, 0);
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    uint64_t count = 0, i;
    ok(stw_tensor_fill(here.parameter, 1, NULL));
    for (i = 1; i <= 20; ++i) {
        ok(stw_tensor_fill(here.gradient, 0.5, NULL));
        ok(stw_optimizer_step(here.optimizer, NULL, &result));
        ok(stw_optimizer_get_count(here.optimizer, here.parameter, &count));
        assert_int_equal(count, i);
    }
    ok(stw_optimizer_step(here.optimizer, NULL, &result)); /* the gradient is empty */
    ok(stw_optimizer_get_count(here.optimizer, here.parameter, &count));
    assert_int_equal(count, 20);
    ok(stw_runtime_drain(runtime, 0));
    fails(stw_optimizer_set_count(here.optimizer, here.parameter, UINT64_MAX), STW_ERROR_INVALID,
          "18446744073709551615");
    machine_close(runtime);
}

TEST(what_an_optimizer_holds_is_not_reshaped)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_BF16, 0);
    stw_tensor *held[3];
    const uint64_t fewer = ELEMENTS / 2;
    held[0] = here.parameter, held[1] = here.gradient, held[2] = master_of(&here);
    for (int i = 0; i < 3; ++i) {
        fails(stw_tensor_reshape(held[i], &fewer, 1), STW_ERROR_BUSY, "belongs to optimizer 'opt'");
    }
    ok(stw_optimizer_destroy(here.optimizer));
    ok(stw_tensor_reshape(here.gradient, &fewer, 1));
    machine_close(runtime);
}

/* A view that is open keeps its update waiting, and with it a drain and a step. */
TEST(a_wait_for_an_update_says_who_is_in_the_way)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_F32, 0);
    stw_update_options waits = STW_UPDATE_OPTIONS_INIT;
    ok(stw_tensor_fill(here.parameter, 8, NULL));
    stw_view view = view_handed_over(runtime, here.parameter);
    step_by(&here, 1);
    fails(stw_runtime_drain(runtime, 50 * MILLISECOND_NS), STW_ERROR_TIMEOUT,
          "tensor 'w': 1 views to read it are open");
    assert_non_null(strstr(stw_last_error(), "open views: tensor 'w' to read, of thread"));
    waits.flags = STW_UPDATE_WAIT, waits.timeout_ns = 50 * MILLISECOND_NS;
    fails(stw_optimizer_step(here.optimizer, &waits, NULL), STW_ERROR_TIMEOUT,
          "tensor 'w': 1 views to read it are open");
    ok(stw_release(&view, 1, STW_STREAM_HOST, 0));
    ok(stw_runtime_drain(runtime, 0));
    expect_all(here.parameter, 7);
    machine_close(runtime);
}

/* Layers are frozen and let go again while their optimizer stays. */
TEST(steps_leave_what_is_frozen_as_it_is)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_BF16, 0);
    stw_fetch_request writes = request_of(here.parameter, STW_READ_WRITE);
    stw_update_options only = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_view view;
    uint64_t count = 0;
    ok(stw_tensor_fill(here.parameter, 8, NULL));
    step_by(&here, 1);
    ok(stw_tensor_freeze(here.parameter, 1)); /* the step that was called goes on */
    step_by(&here, 1);
    ok(stw_optimizer_step(here.optimizer, NULL, &result));
    assert_int_equal(result.updated, 0);
    expect_all(here.parameter, 7);
    stw_tensor_info info = info_of(here.parameter);
    assert_int_equal(info.frozen, 1);
    ok(stw_optimizer_get_count(here.optimizer, here.parameter, &count));
    assert_int_equal(count, 1);
    only.parameters = &here.parameter, only.parameter_count = 1;
    fails(stw_optimizer_step(here.optimizer, &only, NULL), STW_ERROR_INVALID, "'w' is frozen");
    fails(stw_fetch(runtime, NULL, &writes, 1, &view), STW_ERROR_INVALID, "'w' is read-only");
    fails(stw_tensor_fill(here.parameter, 1, NULL), STW_ERROR_INVALID, "'w' is read-only");
    fails(stw_tensor_freeze(master_of(&here), 1), STW_ERROR_INVALID, "a state of optimizer 'opt'");
    ok(stw_tensor_freeze(here.parameter, 0));
    ok(stw_optimizer_step(here.optimizer, &only, &result)); /* of the gradient that was there */
    assert_int_equal(result.updated, 1);
    expect_all(here.parameter, 6);
    info = info_of(here.parameter);
    assert_int_equal(info.frozen, 0);
    machine_close(runtime);
}

typedef struct freezer {
    stw_tensor *state;
    atomic_int stops, tries, let;
} freezer;

static void *freeze_until_told(void *arg)
{
    freezer *mine = arg;
    do {
        if (stw_tensor_freeze(mine->state, 1) != STW_ERROR_INVALID) atomic_store(&mine->let, 1);
        atomic_fetch_add(&mine->tries, 1);
    } while (!atomic_load(&mine->stops));
    return NULL;
}

/* Not even for a moment, while its optimizer tries to end and cannot. */
TEST(a_state_is_its_optimizers_until_that_has_ended)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_BF16, 0);
    freezer beside = {master_of(&here), 0, 0, 0};
    stw_view view;
    pthread_t thread;
    int i;
    ok(stw_tensor_fill(here.parameter, 8, NULL));
    step_by(&here, 1);
    ok(stw_runtime_drain(runtime, 0));
    view = view_get(runtime, beside.state, STW_READ);
    assert_int_equal(pthread_create(&thread, NULL, freeze_until_told, &beside), 0);
    for (i = 0; i < 100 || atomic_load(&beside.tries) < 100; ++i) {
        fails(stw_optimizer_destroy(here.optimizer), STW_ERROR_BUSY, "open view");
    }
    atomic_store(&beside.stops, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&beside.let), 0);
    view_put(&view);
    ok(stw_optimizer_destroy(here.optimizer));
    machine_close(runtime);
}

/* As on many ranks, some of which have nothing of a small tensor. */
TEST(an_empty_tensor_is_fetched_and_trained)
{
    stw_runtime *runtime = machine_open(*state);
    trainee here = trainee_make(runtime, STW_F32, 0);
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_update_options only = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_tensor_spec spec = spec_f32("nothing", 8);
    stw_view view;
    uint64_t count = 1;
    spec.dimensions = 2, spec.shape[1] = 0;
    entry.parameter = tensor_make(runtime, &spec);
    spec.name = "nothing.grad", spec.role = STW_ROLE_GRAD;
    entry.gradient = tensor_make(runtime, &spec);
    stw_fetch_request request = request_of(entry.parameter, STW_READ);
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    assert_int_equal(view.element_count, 0);
    view_put(&view);
    ok(stw_tensor_fill(entry.parameter, 1, NULL));
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    view_put(&view);
    ok(stw_optimizer_add(here.optimizer, &entry, 1));
    ok(stw_tensor_fill(here.parameter, 1, NULL));
    step_by(&here, 0.5);
    expect_all(here.parameter, 0.5F);
    only.parameters = &entry.parameter, only.parameter_count = 1;
    ok(stw_optimizer_step(here.optimizer, &only, &result));
    only.parameters = &here.gradient;
    fails(stw_optimizer_step(here.optimizer, &only, &result), STW_ERROR_NOT_FOUND, "no parameter");
    ok(stw_optimizer_set_count(here.optimizer, entry.parameter, 7));
    ok(stw_optimizer_get_count(here.optimizer, entry.parameter, &count));
    assert_int_equal(count, 0);
    only.parameters = &entry.gradient; /* it is in the optimizer, but as a gradient */
    fails(stw_optimizer_step(here.optimizer, &only, &result), STW_ERROR_NOT_FOUND,
          "tensor 'nothing.grad' is no parameter");
    fails(stw_optimizer_get_count(here.optimizer, entry.gradient, &count), STW_ERROR_NOT_FOUND,
          "tensor 'nothing.grad' is no parameter");
    machine_close(runtime);
}

/* Of the thread that calls it; as MKL_Set_Num_Threads_Local(), it begins with 0, "not set". */
static __thread int32_t threads_of_roots;
static atomic_int roots_in_many;

static int32_t set_threads(int32_t count)
{
    const int32_t before = threads_of_roots;
    threads_of_roots = count;
    return before;
}

static void all_are_two(int32_t n, const float *values, float *roots, int64_t mode)
{
    (void)values;
    if (threads_of_roots != 1) atomic_fetch_add(&roots_in_many, 1);
    for (int32_t i = 0; i < n; ++i) roots[i] = mode == 22 ? 2.0F : 0.0F;
}

static stw_status update_nothing(void *user, const stw_update_chunk *chunk)
{
    (void)user, (void)chunk;
    return STW_OK;
}

TEST(torch_order_is_refused_where_torch_has_none)
{
    stw_runtime *runtime = machine_open(*state);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer = NULL;
    stw_custom_update custom;
    memset(&custom, 0, sizeof custom);
    custom.struct_size = sizeof custom, custom.update = update_nothing;
    options.flags = STW_OPTIMIZER_TORCH_ORDER;
    options.algorithm = STW_OPTIMIZER_LION;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID, "for Lion;");
    options.algorithm = STW_OPTIMIZER_CUSTOM, options.custom = &custom;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID, "custom update;");
    options.algorithm = STW_OPTIMIZER_ADAM, options.custom = NULL, options.state_dtype = STW_BF16;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID, "states of");
    options.state_dtype = 0, options.flags = 0, options.square_root = all_are_two;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID, "square_root");
    options.square_root = NULL, options.square_root_threads = set_threads;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID, "_threads");
    options.square_root_threads = NULL, options.square_root_mode = 1;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID, "square_root");
    assert_null(optimizer);
    machine_close(runtime);
}

TEST(torch_order_takes_the_roots_that_are_given)
{
    stw_runtime *runtime = machine_open(*state);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    trainee here;
    here.runtime = runtime;
    options.algorithm = STW_OPTIMIZER_ADAGRAD, options.flags = STW_OPTIMIZER_TORCH_ORDER;
    options.square_root = all_are_two, options.square_root_mode = 22;
    options.square_root_threads = set_threads;
    ok(stw_optimizer_create(runtime, &options, &here.optimizer));
    hyper.lr = 1, hyper.eps = 0;
    ok(stw_optimizer_set_hyper(here.optimizer, 0, &hyper));
    here.parameter = entry.parameter = tensor_f32(runtime, "w", ELEMENTS);
    here.gradient = entry.gradient = tensor_f32(runtime, "w.grad", ELEMENTS);
    ok(stw_optimizer_add(here.optimizer, &entry, 1));
    ok(stw_tensor_fill(here.parameter, 1, NULL));
    step_by(&here, 0.5);
    expect_all(here.parameter, 0.75F); /* 1 - 0.5 / 2 */
    assert_int_equal(atomic_load(&roots_in_many), 0);
    machine_close(runtime);
}

TEST(sums_and_fetches_look_at_their_numbers)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *tensor = tensor_f32(runtime, "g", 10);
    stw_fetch_request request;
    stw_view view;
    float local[10] = {0};
    ok(stw_tensor_fill(tensor, 1, NULL));
    stw_reduce_options sum = {.struct_size = sizeof sum, .scale = (double)NAN};
    fails(stw_reduce(tensor, local, &sum), STW_ERROR_INVALID, "options.scale is");
    request = request_of(tensor, STW_READ), request.tier = STW_TIER_DEFAULT, request.device = 99;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "device 99");
    request.tier = STW_TIER_HOST;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "device 99");
    machine_close(runtime);
}

RUN_TESTS_ON_EACH_MACHINE("optimizer inputs", NULL)
