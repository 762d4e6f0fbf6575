/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master of a bf16 parameter, which the library keeps as what its parameter lacks until the
 * program asks for it: training has the same bits whether it was asked for before the first step or
 * after the last one, and fewer bytes move until then. Reads and writes of a master leave it in
 * parts.
 */
#include "support.h"

enum { STEPS = 6, PARAMETERS = 3, KEPT = 4 };

static const uint64_t elements_of[PARAMETERS] = {300013, 1001, 70001};
static const char *const kept_names[KEPT] = {NULL, "master", "exp_avg", "exp_avg_sq"};

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameters[PARAMETERS];
    stw_tensor *gradients[PARAMETERS];
    float *scratch;
} trainee;

typedef struct outcome {
    double norms[STEPS];
    uint32_t skipped[STEPS];
    void *bytes[PARAMETERS][KEPT];
    uint64_t sizes[PARAMETERS][KEPT];
} outcome;

static float noise(int which, int step, uint64_t element)
{
    uint64_t at = ((uint64_t)which << 56) ^ ((uint64_t)step << 48) ^ element;
    at = (at ^ (at >> 30)) * UINT64_C(0xbf58476d1ce4e5b9) + UINT64_C(0x9e3779b97f4a7c15);
    at = (at ^ (at >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)(int32_t)(at >> 32) * 0x1p-31F;
}

static void give(trainee *here, stw_tensor *tensor, int which, int step)
{
    stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
    for (uint64_t i = 0; i < elements_of[which]; ++i) here->scratch[i] = noise(which, step, i);
    if (step == 3 && which == 1) here->scratch[7] = INFINITY; /* skipped */
    ok(stw_tensor_write(tensor, here->scratch, &as_f32));
}

static stw_tensor *state_of(const trainee *here, int which, const char *name)
{
    stw_tensor *state = NULL;
    ok(stw_optimizer_state(here->optimizer, here->parameters[which], name, &state));
    return state;
}

static trainee trainee_open(const machine *wanted, uint32_t algorithm, uint32_t state_dtype,
                            int asks_first)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    trainee here;
    memset(&here, 0, sizeof here);
    here.runtime = machine_open(wanted);
    here.scratch = malloc(elements_of[0] * sizeof(float));
    assert_non_null(here.scratch);
    options.algorithm = algorithm, options.state_dtype = state_dtype;
    ok(stw_optimizer_create(here.runtime, &options, &here.optimizer));
    hyper.lr = 0x1p-6; /* a master is a tie often */
    if (algorithm == STW_OPTIMIZER_SGD) hyper.momentum = 0.5;
    ok(stw_optimizer_set_hyper(here.optimizer, 0, &hyper));
    for (int i = 0; i < PARAMETERS; ++i) {
        char name[32];
        stw_tensor_spec spec = spec_f32(name, elements_of[i]);
        snprintf(name, sizeof name, "w%d", i);
        spec.dtype = STW_BF16;
        here.parameters[i] = tensor_make(here.runtime, &spec);
        snprintf(name, sizeof name, "g%d", i);
        spec.role = STW_ROLE_GRAD;
        here.gradients[i] = tensor_make(here.runtime, &spec);
        give(&here, here.parameters[i], i, 0);
        optimizer_add(here.optimizer, here.parameters[i], here.gradients[i]);
        if (asks_first)
            assert_int_equal(info_of(state_of(&here, i, "master")).state, STW_STATE_EMPTY);
    }
    return here;
}

static void trainee_close(trainee *here)
{
    ok(stw_runtime_drain(here->runtime, 0));
    ok(stw_optimizer_destroy(here->optimizer));
    free(here->scratch);
    machine_close(here->runtime);
}

/* All parameters, or the first alone; between steps the program writes one of them. */
static void step_once(trainee *here, int step, outcome *made)
{
    stw_update_options update = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    for (int i = 0; i < PARAMETERS; ++i) give(here, here->gradients[i], i, step);
    update.flags = STW_UPDATE_SKIP_NONFINITE, update.clip_norm = step % 2 ? 0.5 : 0;
    if (step == 4) update.parameters = here->parameters, update.parameter_count = 1;
    const stw_status status = stw_optimizer_step(here->optimizer, &update, &result);
    assert_int_equal(status, step == 3 ? STW_SKIPPED : STW_OK);
    made->norms[step - 1] = result.norm;
    made->skipped[step - 1] = result.skipped;
    if (step == 5) {
        stw_copy_options part = {.struct_size = sizeof part, .dtype = STW_F32};
        part.element_begin = 100, part.element_count = 50;
        ok(stw_tensor_write(here->parameters[2], here->scratch, &part));
    }
}

static void keep(const trainee *here, outcome *made)
{
    for (int i = 0; i < PARAMETERS; ++i) {
        for (int j = 0; j < KEPT; ++j) {
            stw_tensor *tensor = here->parameters[i];
            if (j > 0 && stw_optimizer_state(here->optimizer, here->parameters[i], kept_names[j],
                                             &tensor) == STW_ERROR_NOT_FOUND)
                continue;
            made->sizes[i][j] = info_of(tensor).whole_bytes;
            made->bytes[i][j] = malloc(made->sizes[i][j]);
            assert_non_null(made->bytes[i][j]);
            ok(stw_tensor_read(tensor, made->bytes[i][j], NULL));
        }
    }
}

/* What the tensors of a runtime hold together, states among them. */
static uint64_t bytes_of_tensors(stw_runtime *runtime)
{
    stw_tensor *at = NULL;
    uint64_t bytes = 0;
    for (;;) {
        ok(stw_tensor_next(runtime, at, &at));
        if (!at) return bytes;
        bytes += info_of(at).whole_bytes;
    }
}

/* While updates go on, and changes nothing. */
static void read_and_write_masters(const trainee *here)
{
    const uint64_t before = bytes_of_tensors(here->runtime);
    for (int i = 0; i < PARAMETERS; ++i) {
        ok(stw_optimizer_read_master(here->optimizer, here->parameters[i], here->scratch, NULL));
        ok(stw_optimizer_write_master(here->optimizer, here->parameters[i], here->scratch, NULL));
    }
    assert_int_equal(bytes_of_tensors(here->runtime), before);
}

enum { NOBODY_ASKS, ASKS_FIRST, READS_AND_WRITES };

static void train(const machine *wanted, uint32_t algorithm, uint32_t state_dtype, int manner,
                  outcome *made)
{
    trainee here = trainee_open(wanted, algorithm, state_dtype, manner == ASKS_FIRST);
    memset(made, 0, sizeof *made);
    for (int step = 1; step <= STEPS; ++step) {
        if (manner == READS_AND_WRITES) read_and_write_masters(&here);
        step_once(&here, step, made);
    }
    keep(&here, made);
    /* A master goes on from what was read of it. */
    step_once(&here, 1, made);
    trainee_close(&here);
}

static void forget(outcome *made)
{
    for (int i = 0; i < PARAMETERS; ++i)
        for (int j = 0; j < KEPT; ++j) free(made->bytes[i][j]);
}

static machine machine_of(uint32_t host_blocks, uint32_t threads)
{
    machine made;
    memset(&made, 0, sizeof made);
    made.block_bytes = STW_BLOCK_64K, made.thread_count = threads;
    made.host_blocks = host_blocks, made.nvme_blocks = 400;
    return made;
}

static void expect_same(const outcome *whole, const outcome *parts)
{
    assert_memory_equal(whole->norms, parts->norms, sizeof whole->norms);
    assert_memory_equal(whole->skipped, parts->skipped, sizeof whole->skipped);
    for (int p = 0; p < PARAMETERS; ++p) {
        for (int j = 0; j < KEPT; ++j) {
            assert_int_equal(whole->sizes[p][j], parts->sizes[p][j]);
            if (whole->sizes[p][j] == 0) continue;
            assert_memory_equal(whole->bytes[p][j], parts->bytes[p][j], whole->sizes[p][j]);
        }
    }
}

TEST(training_has_the_same_bits_whenever_the_master_is_asked_for)
{
    static const struct {
        uint32_t algorithm, state_dtype;
    } courses[] = {
        {STW_OPTIMIZER_ADAMW, STW_F32},
        {STW_OPTIMIZER_ADAMW, STW_BF16},
        {STW_OPTIMIZER_LION, STW_F32},
        {STW_OPTIMIZER_SGD, STW_F32},
    };
    for (size_t i = 0; i < COUNT(courses); ++i) {
        const machine tight = machine_of(20, 3), roomy = machine_of(300, 1);
        outcome whole;
        train(&roomy, courses[i].algorithm, courses[i].state_dtype, ASKS_FIRST, &whole);
        assert_int_equal(whole.skipped[2], 1);
        for (int manner = NOBODY_ASKS; manner <= READS_AND_WRITES; ++manner) {
            outcome parts;
            if (manner == ASKS_FIRST) continue;
            train(&tight, courses[i].algorithm, courses[i].state_dtype, manner, &parts);
            expect_same(&whole, &parts);
            forget(&parts);
        }
        forget(&whole);
    }
}

/* Of the drive's links in a step that begins and ends with every byte on it. */
static uint64_t bytes_of_a_step(trainee *here, int step)
{
    for (int i = 0; i < PARAMETERS; ++i) give(here, here->gradients[i], i, step);
    ok(stw_evict(here->runtime, NULL, 0, STW_TIER_HOST, 0, 0));
    const uint64_t before = link_stats(here->runtime, STW_LINK_NVME_TO_HOST).bytes +
                            link_stats(here->runtime, STW_LINK_HOST_TO_NVME).bytes;
    stw_update_options update = STW_UPDATE_OPTIONS_INIT;
    update.flags = STW_UPDATE_WAIT;
    ok(stw_optimizer_step(here->optimizer, &update, NULL));
    ok(stw_evict(here->runtime, NULL, 0, STW_TIER_HOST, 0, 0));
    return link_stats(here->runtime, STW_LINK_NVME_TO_HOST).bytes +
           link_stats(here->runtime, STW_LINK_HOST_TO_NVME).bytes - before;
}

TEST(a_master_in_parts_moves_fewer_bytes)
{
    const machine wanted = machine_of(60, 2);
    uint64_t bytes[2];
    for (int asks_first = 0; asks_first < 2; ++asks_first) {
        trainee here = trainee_open(&wanted, STW_OPTIMIZER_ADAMW, STW_F32, asks_first);
        for (int step = 1; step <= 2; ++step) bytes[asks_first] = bytes_of_a_step(&here, step);
        trainee_close(&here);
    }
    assert_true(bytes[0] < bytes[1]);
}

TEST(a_master_is_found_by_name_and_its_parts_are_no_states)
{
    const machine wanted = machine_of(60, 2);
    trainee here = trainee_open(&wanted, STW_OPTIMIZER_ADAMW, STW_F32, 0);
    outcome made;
    stw_tensor *found = NULL;
    step_once(&here, 1, &made);
    fails(stw_optimizer_state(here.optimizer, here.parameters[0], "master_low", &found),
          STW_ERROR_NOT_FOUND, "'master_low'");
    ok(stw_tensor_find(here.runtime, "optimizer.w0.master", &found));
    assert_ptr_equal(found, state_of(&here, 0, "master"));
    assert_int_equal(info_of(found).dtype, STW_F32);
    ok(stw_tensor_read(found, here.scratch, NULL));
    trainee_close(&here);
}

/* What cannot be kept in parts has a whole master from the beginning. */
TEST(half_precision_and_parts_of_parameters_have_whole_masters)
{
    const machine wanted = machine_of(60, 2);
    stw_runtime *runtime = machine_open(&wanted);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    stw_tensor *found = NULL;
    for (int i = 0; i < 2; ++i) {
        stw_tensor_spec spec = spec_f32(i == 0 ? "half" : "part", 1000);
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        spec.dtype = i == 0 ? STW_F16 : STW_BF16;
        entry.parameter = tensor_make(runtime, &spec);
        spec.name = NULL, spec.role = STW_ROLE_GRAD;
        entry.gradient = tensor_make(runtime, &spec);
        if (i == 1) entry.element_begin = 10, entry.element_count = 100;
        ok(stw_optimizer_add(optimizer, &entry, 1));
        char name[64];
        snprintf(name, sizeof name, "optimizer.%s.master_low", i == 0 ? "half" : "part");
        fails(stw_tensor_find(runtime, name, &found), STW_ERROR_NOT_FOUND, "master_low");
    }
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

/* Every upper half with lower halves around the ties, with a master in parts and a whole one. */
TEST(every_master_that_is_written_is_read_again)
{
    static const uint32_t lows[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    const uint64_t n = COUNT(lows) << 16;
    const machine wanted = machine_of(60, 2);
    stw_runtime *runtime = machine_open(&wanted);
    stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
    uint32_t *masters = malloc(n * 4), *found = malloc(n * 4);
    uint16_t *rounded = malloc(n * 2), *values = malloc(n * 2);
    assert_true(masters && found && rounded && values);
    for (uint64_t i = 0; i < n; ++i)
        masters[i] = (uint32_t)(i / COUNT(lows)) << 16 | lows[i % COUNT(lows)];
    stw_tensor_spec spec = spec_f32("rounded", n);
    spec.dtype = STW_BF16;
    stw_tensor *as_bf16 = tensor_make(runtime, &spec);
    ok(stw_tensor_write(as_bf16, masters, &as_f32));
    ok(stw_tensor_read(as_bf16, rounded, NULL));
    for (int whole = 0; whole < 2; ++whole) {
        stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
        stw_tensor *master = NULL;
        spec.name = whole ? "whole" : "parts", spec.role = STW_ROLE_PARAM;
        stw_tensor *parameter = tensor_make(runtime, &spec);
        spec.name = NULL, spec.role = STW_ROLE_GRAD;
        optimizer_add(optimizer, parameter, tensor_make(runtime, &spec));
        ok(stw_tensor_fill(parameter, 1, NULL));
        if (whole) ok(stw_optimizer_state(optimizer, parameter, "master", &master));
        ok(stw_optimizer_write_master(optimizer, parameter, masters, NULL));
        ok(stw_optimizer_read_master(optimizer, parameter, found, NULL));
        assert_memory_equal(found, masters, n * 4);
        ok(stw_tensor_read(parameter, values, NULL));
        assert_memory_equal(values, rounded, n * 2);
        stw_copy_options part = {.struct_size = sizeof part, .element_count = 70001};
        part.element_begin = 131075;
        ok(stw_optimizer_read_master(optimizer, parameter, found, &part));
        assert_memory_equal(found, masters + part.element_begin, part.element_count * 4);
        ok(stw_optimizer_destroy(optimizer));
    }
    free(masters), free(found), free(rounded), free(values);
    machine_close(runtime);
}

/* The rest is what the next update would begin with. */
TEST(a_part_of_a_master_is_written_beside_what_there_is)
{
    for (int asks_first = 0; asks_first < 2; ++asks_first) {
        const machine wanted = machine_of(60, 2);
        trainee here = trainee_open(&wanted, STW_OPTIMIZER_ADAMW, STW_F32, asks_first);
        stw_copy_options part = {.struct_size = sizeof part};
        const uint64_t n = elements_of[1];
        float expected[1001];
        part.element_begin = 496, part.element_count = n - part.element_begin;
        for (int round = 0; round < 2; ++round) {
            outcome made;
            ok(stw_optimizer_read_master(here.optimizer, here.parameters[1], expected, NULL));
            for (uint64_t i = part.element_begin; i < n; ++i) expected[i] = noise(9, round, i);
            ok(stw_optimizer_write_master(here.optimizer, here.parameters[1],
                                          expected + part.element_begin, &part));
            ok(stw_optimizer_read_master(here.optimizer, here.parameters[1], here.scratch, NULL));
            assert_memory_equal(here.scratch, expected, n * sizeof(float));
            step_once(&here, 1, &made);
        }
        trainee_close(&here);
    }
}

TEST(a_master_is_read_after_the_update_under_way)
{
    const machine wanted = machine_of(20, 2);
    trainee here = trainee_open(&wanted, STW_OPTIMIZER_ADAMW, STW_F32, 0);
    float *later = malloc(elements_of[0] * sizeof(float));
    uint64_t count = 0;
    assert_non_null(later);
    for (int step = 1; step <= 3; ++step) {
        for (int i = 0; i < PARAMETERS; ++i)
            give(&here, here.gradients[i], i, step == 3 ? 4 : step);
        ok(stw_optimizer_step(here.optimizer, NULL, NULL));
        ok(stw_optimizer_read_master(here.optimizer, here.parameters[0], here.scratch, NULL));
        ok(stw_optimizer_get_count(here.optimizer, here.parameters[0], &count));
        assert_int_equal(count, step);
        ok(stw_runtime_drain(here.runtime, 0));
        ok(stw_optimizer_read_master(here.optimizer, here.parameters[0], later, NULL));
        assert_memory_equal(here.scratch, later, elements_of[0] * sizeof(float));
    }
    free(later);
    trainee_close(&here);
}

TEST(copies_of_masters_say_what_is_wrong)
{
    const machine wanted = machine_of(60, 2);
    trainee here = trainee_open(&wanted, STW_OPTIMIZER_ADAMW, STW_F32, 0);
    stw_tensor *w = here.parameters[0];
    stw_copy_options part = {.struct_size = sizeof part, .element_begin = 4, .element_count = 8};
    stw_update_options early = STW_UPDATE_OPTIONS_INIT;
    fails(stw_optimizer_write_master(here.optimizer, w, here.scratch, &part), STW_ERROR_INVALID,
          "a multiple of 8 elements");
    part.element_begin = elements_of[0];
    fails(stw_optimizer_read_master(here.optimizer, w, here.scratch, &part), STW_ERROR_INVALID,
          "elements");
    part.element_begin = 0, part.dtype = STW_BF16;
    fails(stw_optimizer_read_master(here.optimizer, w, here.scratch, &part), STW_ERROR_INVALID,
          "as f32 in host memory");
    fails(stw_optimizer_read_master(here.optimizer, w, NULL, NULL), STW_ERROR_INVALID, "is null");
    fails(stw_optimizer_read_master(here.optimizer, here.gradients[0], here.scratch, NULL),
          STW_ERROR_NOT_FOUND, "'g0'");
    ok(stw_tensor_discard(&w, 1));
    fails(stw_optimizer_read_master(here.optimizer, w, here.scratch, NULL), STW_ERROR_EMPTY, "w0");
    ok(stw_optimizer_write_master(here.optimizer, w, here.scratch, NULL));
    for (int i = 0; i < PARAMETERS; ++i) give(&here, here.gradients[i], i, 1);
    early.flags = STW_UPDATE_SPECULATE;
    ok(stw_optimizer_step(here.optimizer, &early, NULL));
    fails(stw_optimizer_write_master(here.optimizer, w, here.scratch, NULL), STW_ERROR_BUSY,
          "speculatively");
    ok(stw_optimizer_step(here.optimizer, NULL, NULL));
    trainee_close(&here);
}

TEST(a_parameter_of_f32_has_no_master_to_copy)
{
    const machine wanted = machine_of(60, 2);
    stw_runtime *runtime = machine_open(&wanted);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    stw_tensor *parameter = tensor_f32(runtime, "w", 10);
    float values[10];
    optimizer_add(optimizer, parameter, tensor_f32(runtime, "g", 10));
    fails(stw_optimizer_read_master(optimizer, parameter, values, NULL), STW_ERROR_NOT_FOUND,
          "is in f32 itself");
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

RUN_TESTS("masters", NULL, NULL)
