/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generations of one rank: what was committed is found again by another runtime, what was not is
 * gone; what does not fit the store is refused with the reason; disks that fail lose nothing.
 */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

enum { LARGE = 3 * 16384 + 5, SMALL = 100 };

static char directory[64];
static const char *const files[] = {"test.0-of-1.stepwell", "test.0-of-1.generations"};

static machine machine_kept(uint32_t flags)
{
    machine wanted = machine_small();
    wanted.nvme_path = directory;
    wanted.store_name = "test";
    wanted.flags = flags | STW_RUNTIME_NO_PROBE;
    return wanted;
}

static int make_directory(void **state)
{
    (void)state;
    snprintf(directory, sizeof directory, "generations-XXXXXX");
    return mkdtemp(directory) == NULL;
}

static int remove_directory(void **state)
{
    char path[128];
    (void)state;
    for (size_t i = 0; i < COUNT(files); ++i) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        unlink(path);
    }
    return rmdir(directory);
}

static stw_tensor *durable(stw_runtime *runtime, const char *name, uint64_t elements)
{
    stw_tensor_spec spec = spec_f32(name, elements);
    spec.flags = STW_TENSOR_DURABLE;
    return tensor_make(runtime, &spec);
}

static uint64_t commit(stw_runtime *runtime)
{
    uint64_t generation = 0;
    ok(stw_commit(runtime, NULL, &generation));
    return generation;
}

static uint32_t restored(stw_tensor *tensor)
{
    return info_of(tensor).restored;
}

static stw_runtime *resume(void)
{
    return machine_open_as(machine_kept(STW_RUNTIME_RESUME));
}

static stw_runtime *make(void)
{
    return machine_open_as(machine_kept(STW_RUNTIME_OVERWRITE));
}

static void refuse_open(const machine *wanted, stw_status code, const char *words)
{
    stw_runtime *runtime = NULL;
    fails(machine_try_open(wanted, &runtime), code, words);
    assert_null(runtime);
}

TEST(what_was_committed_is_found_again)
{
    stw_runtime *runtime = make();
    stw_tensor *large = durable(runtime, "large", LARGE);
    stw_tensor *first = durable(runtime, "first", SMALL);
    stw_tensor *second = durable(runtime, "second", SMALL);
    tensor_fill_sequence(large, LARGE, 1);
    tensor_fill_sequence(first, SMALL, 1000);
    tensor_fill_sequence(second, SMALL, 2000);
    assert_int_equal(restored(large), 0);
    assert_int_equal(commit(runtime), 1);
    tensor_fill_sequence(large, LARGE, 5);
    tensor_fill_sequence(second, SMALL, 3000);
    assert_int_equal(commit(runtime), 2);
    /* Not committed: gone. */
    tensor_fill_sequence(large, LARGE, 9);
    tensor_fill_sequence(first, SMALL, 4000);
    machine_close(runtime);

    runtime = resume();
    /* In another order, which decides who shares a block with whom where nothing is restored. */
    second = durable(runtime, "second", SMALL);
    large = durable(runtime, "large", LARGE);
    first = durable(runtime, "first", SMALL);
    assert_int_equal(restored(large), 1);
    assert_int_equal(restored(first), 1);
    tensor_expect_sequence(large, LARGE, 5);
    tensor_expect_sequence(first, SMALL, 1000);
    tensor_expect_sequence(second, SMALL, 3000);
    machine_close(runtime);
}

static stw_generation_info newest(stw_runtime *runtime)
{
    stw_generation_info info = {.struct_size = sizeof info};
    ok(stw_generation_get(runtime, 0, &info));
    return info;
}

/* A program that forgets one loses it with the generations that are kept: not without a word. */
TEST(what_is_not_created_again_is_left_out_with_a_warning_or_not_at_all)
{
    stw_runtime *runtime = make();
    uint64_t generation = 0;
    stw_commit_options complete = {.struct_size = sizeof complete, .flags = STW_COMMIT_COMPLETE};
    tensor_fill_sequence(durable(runtime, "kept", SMALL), SMALL, 1);
    tensor_fill_sequence(durable(runtime, "forgotten", LARGE), LARGE, 2);
    tensor_fill_sequence(durable(runtime, "dropped", SMALL), SMALL, 3);
    durable(runtime, "never written", SMALL);
    ok(stw_commit(runtime, &complete, &generation));
    assert_int_equal(newest(runtime).left_out, 0);
    machine_close(runtime);

    runtime = resume();
    log_reset();
    tensor_expect_sequence(durable(runtime, "kept", SMALL), SMALL, 1);
    stw_tensor *gone = durable(runtime, "dropped", SMALL);
    ok(stw_tensor_destroy(&gone, 1)); /* as the program wants it */
    fails(stw_commit(runtime, &complete, &generation), STW_ERROR_NOT_FOUND, "'forgotten'");
    assert_string_equal(error_numbers().tensor, "forgotten");
    assert_int_equal(newest(runtime).generation, 1);
    assert_int_equal(times_logged("'forgotten' of generation 1"), 1);
    assert_int_equal(times_logged("leaves it out"), 1);
    ok(stw_commit(runtime, NULL, &generation));
    assert_int_equal(times_logged("leaves it out"), 1);
    assert_int_equal(newest(runtime).left_out, 1);
    ok(stw_commit(runtime, &complete, &generation)); /* its generation has no such tensor */
    assert_int_equal(newest(runtime).left_out, 0);
    machine_close(runtime);

    runtime = resume();
    stw_generation_info info = {.struct_size = sizeof info};
    ok(stw_generation_get(runtime, 2, &info));
    assert_int_equal(info.left_out, 1); /* it stays known */
    durable(runtime, "kept", SMALL);
    ok(stw_commit(runtime, &complete, &generation));
    machine_close(runtime);
}

TEST(a_generation_can_be_gone_on_with)
{
    stw_runtime *runtime = make();
    stw_tensor *large = durable(runtime, "large", LARGE);
    stw_tensor *small = durable(runtime, "small", SMALL);
    tensor_fill_sequence(large, LARGE, 0);
    tensor_fill_sequence(small, SMALL, 0);
    commit(runtime);
    for (int round = 1; round < 6; ++round) {
        machine_close(runtime);
        runtime = resume();
        small = durable(runtime, "small", SMALL);
        large = durable(runtime, "large", LARGE);
        tensor_expect_sequence(large, LARGE, (float)(round - 1));
        tensor_expect_sequence(small, SMALL, (float)(round - 1));
        tensor_fill_sequence(large, LARGE, (float)round);
        tensor_fill_sequence(small, SMALL, (float)round);
        assert_int_equal(commit(runtime), round + 1);
    }
    machine_close(runtime);
}

TEST(an_older_generation_is_resumed_by_its_number)
{
    machine wanted = machine_kept(STW_RUNTIME_RESUME);
    stw_runtime *runtime = make();
    stw_tensor *large = durable(runtime, "large", LARGE);
    for (uint64_t i = 1; i <= 4; ++i) {
        tensor_fill_sequence(large, LARGE, (float)i);
        assert_int_equal(commit(runtime), i);
    }
    machine_close(runtime);
    wanted.resume_generation = 2; /* two are kept */
    refuse_open(&wanted, STW_ERROR_NOT_FOUND, "generation 2");
    wanted.resume_generation = 3;
    runtime = machine_open(&wanted);
    large = durable(runtime, "large", LARGE);
    tensor_expect_sequence(large, LARGE, 3);
    tensor_fill_sequence(large, LARGE, 30);
    assert_int_equal(commit(runtime), 4);
    machine_close(runtime);
    runtime = resume();
    large = durable(runtime, "large", LARGE);
    tensor_expect_sequence(large, LARGE, 30);
    machine_close(runtime);
}

TEST(updates_go_on_as_if_nothing_had_happened)
{
    static float run[2][SMALL];
    for (int stopped = 0; stopped < 2; ++stopped) {
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        stw_optimizer *optimizer = NULL;
        stw_runtime *runtime = make();
        options.algorithm = STW_OPTIMIZER_ADAMW;
        options.flags = STW_OPTIMIZER_DURABLE;
        for (int step = 0; step < 6; ++step) {
            uint64_t count = 0;
            if (step == 0 || (stopped && step == 3)) {
                if (step > 0) machine_close(runtime), runtime = resume();
                entry.parameter = durable(runtime, "p", SMALL);
                entry.gradient = tensor_f32(runtime, "g", SMALL);
                ok(stw_optimizer_create(runtime, &options, &optimizer));
                hyper_usual(optimizer);
                ok(stw_optimizer_add(optimizer, &entry, 1));
                if (step == 0) tensor_fill_sequence(entry.parameter, SMALL, 1);
                ok(stw_optimizer_get_count(optimizer, entry.parameter, &count));
                assert_int_equal(count, step);
            }
            tensor_fill_sequence(entry.gradient, SMALL, (float)step);
            ok(stw_optimizer_step(optimizer, NULL, NULL));
            if (step == 2) commit(runtime); /* without a drain: what was asked for is in it */
        }
        ok(stw_tensor_read(entry.parameter, run[stopped], NULL));
        machine_close(runtime);
    }
    assert_memory_equal(run[0], run[1], sizeof run[0]);
}

TEST(label_and_metadata_come_back)
{
    stw_generation_info info;
    char metadata[16] = {0};
    uint64_t bytes = 0;
    stw_runtime *runtime = make();
    info.struct_size = sizeof info;
    fails(stw_generation_get(runtime, 0, &info), STW_ERROR_NOT_FOUND, "no generation yet");
    tensor_fill_sequence(durable(runtime, "t", SMALL), SMALL, 0);
    stw_commit_options options = {.struct_size = sizeof options,
                                  .label = "epoch 3",
                                  .metadata = "seed 42",
                                  .metadata_bytes = 8};
    ok(stw_commit(runtime, &options, NULL));
    machine_close(runtime);
    runtime = resume();
    ok(stw_generation_get(runtime, 0, &info));
    assert_int_equal(info.generation, 1);
    assert_int_equal(info.tensors, 1);
    assert_int_equal(info.ranks, 1);
    assert_int_equal(info.bytes, SMALL * 4);
    assert_true(info.time_unix_ns > 0);
    assert_string_equal(info.label, "epoch 3");
    ok(stw_generation_metadata(runtime, 1, NULL, 0, &bytes));
    assert_int_equal(bytes, 8);
    ok(stw_generation_metadata(runtime, 0, metadata, sizeof metadata, &bytes));
    assert_string_equal(metadata, "seed 42");
    fails(stw_generation_metadata(runtime, 7, NULL, 0, &bytes), STW_ERROR_NOT_FOUND, "it has 1");
    machine_close(runtime);
}

TEST(zeros_and_what_is_empty_come_back_as_that)
{
    stw_tensor_spec spec = spec_f32("zeros", LARGE);
    stw_view view;
    stw_runtime *runtime = make();
    float *values;
    spec.flags = STW_TENSOR_DURABLE | STW_TENSOR_ZERO;
    stw_tensor *zeros = tensor_make(runtime, &spec);
    durable(runtime, "empty", LARGE);
    spec.name = "few";
    spec.shape[0] = SMALL;
    tensor_make(runtime, &spec);
    /* Its second block alone. */
    stw_fetch_request request = request_range(zeros, STW_READ_WRITE, 20000, 100);
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    ((float *)view.pointer)[0] = 7;
    view_put(&view);
    commit(runtime);
    machine_close(runtime);

    runtime = resume();
    spec.name = "zeros";
    spec.shape[0] = LARGE;
    zeros = tensor_make(runtime, &spec);
    values = calloc(LARGE, sizeof *values);
    ok(stw_tensor_read(zeros, values, NULL));
    assert_float(values[20000], 7);
    assert_float(values[0], 0);
    assert_float(values[LARGE - 1], 0);
    free(values);
    stw_tensor_info info = info_of(durable(runtime, "empty", LARGE));
    assert_int_equal(info.state, STW_STATE_EMPTY);
    assert_int_equal(info.restored, 0);
    machine_close(runtime);
}

TEST(an_open_view_of_a_durable_tensor_is_busy)
{
    stw_runtime *runtime = make();
    stw_tensor *tensor = durable(runtime, "held", LARGE);
    tensor_fill_sequence(tensor, LARGE, 0);
    stw_view view = view_get(runtime, tensor, STW_READ_WRITE);
    fails(stw_commit(runtime, NULL, NULL), STW_ERROR_BUSY, "may write it");
    view_put(&view);
    assert_int_equal(commit(runtime), 1);
    machine_close(runtime);
}

/* A fetch that has its bytes, and whose views nobody has collected yet, may still write them. */
TEST(a_commit_waits_for_a_fetch_that_is_not_collected)
{
    stw_runtime *runtime = make();
    stw_tensor *tensor = durable(runtime, "t", SMALL);
    stw_fetch_request request = request_of(tensor, STW_WRITE);
    stw_operation *operation = NULL;
    stw_view view;
    ok(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    ok(stw_operation_wait(operation, 0));
    stw_commit_options options = {.struct_size = sizeof options, .timeout_ns = 50 * MILLISECOND_NS};
    fails(stw_commit(runtime, &options, NULL), STW_ERROR_TIMEOUT, "not collected");
    ok(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1));
    ok(stw_operation_free(operation));
    for (int i = 0; i < SMALL; ++i) ((float *)view.pointer)[i] = (float)(3 + i);
    view_put(&view);
    assert_int_equal(commit(runtime), 1);
    machine_close(runtime);
    runtime = resume();
    tensor_expect_sequence(durable(runtime, "t", SMALL), SMALL, 3);
    machine_close(runtime);
}

/* One that shared a block alone, and has another policy now, leaves no door open behind it. */
TEST(a_policy_that_changes_takes_the_tensor_out_of_its_kind)
{
    stw_runtime *runtime = make();
    stw_tensor *first = durable(runtime, "first", SMALL);
    stw_policy policy = {.struct_size = sizeof policy, .priority = 5};
    ok(stw_tensor_set_policy(first, &policy));
    ok(stw_tensor_destroy(&first, 1));
    tensor_fill_sequence(durable(runtime, "second", SMALL), SMALL, 8);
    commit(runtime);
    machine_close(runtime);
    runtime = resume();
    tensor_expect_sequence(durable(runtime, "second", SMALL), SMALL, 8);
    machine_close(runtime);
}

/* Nothing is made anew over what may have been committed. */
TEST(a_file_that_is_missing_is_no_reason_to_begin_anew)
{
    machine wanted = machine_kept(STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE);
    char path[2][128], other[128];
    stw_runtime *runtime = machine_open(&wanted);
    tensor_fill_sequence(durable(runtime, "t", SMALL), SMALL, 1);
    commit(runtime);
    machine_close(runtime);
    snprintf(other, sizeof other, "%s/other", directory);
    for (int i = 0; i < 2; ++i) {
        snprintf(path[i], sizeof path[i], "%s/%s", directory, files[i]);
        assert_int_equal(rename(path[i], other), 0);
        refuse_open(&wanted, STW_ERROR_NOT_FOUND, files[i]);
        assert_int_equal(rename(other, path[i]), 0);
    }
    runtime = machine_open(&wanted);
    tensor_expect_sequence(durable(runtime, "t", SMALL), SMALL, 1);
    machine_close(runtime);
}

/* What an older generation has of a tensor is in the promise of the tensor. */
TEST(what_was_empty_when_it_was_committed_has_its_room)
{
    enum { ELEMENTS = 100 * BLOCK / 4 };
    stw_runtime *runtime = make();
    stw_tensor *tensor = durable(runtime, "t", ELEMENTS);
    tensor_fill_sequence(tensor, ELEMENTS, 1);
    commit(runtime);
    ok(stw_tensor_discard(&tensor, 1));
    commit(runtime);
    machine_close(runtime);
    runtime = resume();
    tensor = durable(runtime, "t", ELEMENTS);
    assert_int_equal(restored(tensor), 0);
    tensor_fill_sequence(tensor, ELEMENTS, 2);
    commit(runtime);
    machine_close(runtime);
}

TEST(a_store_is_made_once_and_overwritten_when_told)
{
    machine wanted = machine_kept(0);
    stw_runtime *runtime = machine_open(&wanted);
    tensor_fill_sequence(durable(runtime, "t", SMALL), SMALL, 1);
    commit(runtime);
    refuse_open(&wanted, STW_ERROR_EXISTS, files[0]);
    wanted.flags |= STW_RUNTIME_OVERWRITE;
    refuse_open(&wanted, STW_ERROR_LOCKED, files[0]);
    wanted.flags = STW_RUNTIME_RESUME | STW_RUNTIME_NO_PROBE;
    refuse_open(&wanted, STW_ERROR_LOCKED, files[0]);
    machine_close(runtime);
    refuse_open(
        &(machine){
            .host_blocks = 16, .nvme_blocks = 256, .nvme_path = directory, .store_name = "test"},
        STW_ERROR_EXISTS, files[0]);
    runtime = make();
    stw_tensor *tensor = durable(runtime, "t", SMALL);
    assert_int_equal(restored(tensor), 0);
    machine_close(runtime);
    refuse_open(&wanted, STW_ERROR_NOT_FOUND, "rank 0 has none");
    wanted.flags |= STW_RUNTIME_OVERWRITE; /* resumed if it can be, else made anew */
    wanted.timeout_ns = UINT64_MAX;        /* more than a clock has */
    runtime = machine_open(&wanted);
    tensor_fill_sequence(durable(runtime, "t", SMALL), SMALL, 2);
    commit(runtime);
    machine_close(runtime);
    runtime = machine_open(&wanted);
    assert_int_equal(restored(durable(runtime, "t", SMALL)), 1);
    machine_close(runtime);
}

/* A file of generations whose blocks are gone is not ours to remove. */
TEST(an_open_that_fails_removes_nothing_that_was_there)
{
    machine wanted = machine_kept(0);
    char blocks[128], generations[128];
    stw_runtime *runtime = make();
    snprintf(blocks, sizeof blocks, "%s/%s", directory, files[0]);
    snprintf(generations, sizeof generations, "%s/%s", directory, files[1]);
    tensor_fill_sequence(durable(runtime, "t", SMALL), SMALL, 1);
    commit(runtime);
    machine_close(runtime);
    assert_int_equal(unlink(blocks), 0);
    refuse_open(&wanted, STW_ERROR_EXISTS, files[1]);
    assert_int_equal(access(generations, F_OK), 0);
    assert_int_equal(access(blocks, F_OK), -1);
}

TEST(a_commit_into_files_that_were_removed_says_which)
{
    for (size_t i = 0; i < COUNT(files); ++i) {
        char path[128];
        uint64_t generation = 7;
        machine wanted = machine_kept(STW_RUNTIME_OVERWRITE);
        wanted.errors_expected = 1;
        stw_runtime *runtime = machine_open(&wanted);
        stw_tensor *tensor = durable(runtime, "t", SMALL);
        tensor_fill_sequence(tensor, SMALL, 1);
        assert_int_equal(commit(runtime), 1);
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        assert_int_equal(unlink(path), 0);
        tensor_fill_sequence(tensor, SMALL, 2);
        fails(stw_commit(runtime, NULL, &generation), STW_ERROR_SYNC, path);
        fails(stw_commit(runtime, NULL, &generation), STW_ERROR_SYNC, "was removed");
        assert_int_equal(generation, 7);
        machine_close(runtime);
    }
}

TEST(fixed_addresses_are_found_again_with_faults_and_without)
{
    const uint32_t flags[] = {0, STW_RUNTIME_FAULT_IN};
    for (size_t i = 0; i < COUNT(flags); ++i) {
        stw_tensor_spec spec = spec_f32("a", SMALL);
        stw_tensor *tensors[2];
        stw_runtime *runtime = machine_open_as(machine_kept(STW_RUNTIME_OVERWRITE | flags[i]));
        for (size_t round = 0; round < 2; ++round) {
            for (size_t at = 0; at < COUNT(tensors); ++at) {
                spec.name = at == 0 ? "a" : "b";
                spec.flags = STW_TENSOR_DURABLE | STW_TENSOR_FIXED_ADDRESS;
                tensors[at] = tensor_make(runtime, &spec);
                if (round == 0) tensor_fill_sequence(tensors[at], SMALL, (float)at);
                tensor_expect_sequence(tensors[at], SMALL, (float)at);
            }
            if (round == 0) commit(runtime);
            machine_close(runtime);
            if (round == 0)
                runtime = machine_open_as(machine_kept(STW_RUNTIME_RESUME | flags[1 - i]));
        }
    }
}

TEST(a_tensor_in_a_shared_block_may_get_a_fixed_address_and_no_own_blocks)
{
    stw_tensor_spec spec = spec_f32("b", SMALL);
    stw_tensor *tensor = NULL;
    stw_runtime *runtime = make();
    tensor_fill_sequence(durable(runtime, "a", SMALL), SMALL, 1);
    tensor_fill_sequence(durable(runtime, "b", SMALL), SMALL, 2);
    commit(runtime);
    machine_close(runtime);
    runtime = machine_open_as(machine_kept(STW_RUNTIME_RESUME | STW_RUNTIME_FAULT_IN));
    spec.flags = STW_TENSOR_DURABLE | STW_TENSOR_OWN_BLOCKS;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_MISMATCH, "'b' shared a block");
    spec.flags = STW_TENSOR_DURABLE | STW_TENSOR_FIXED_ADDRESS;
    tensor_expect_sequence(tensor_make(runtime, &spec), SMALL, 2);
    tensor_expect_sequence(durable(runtime, "a", SMALL), SMALL, 1);
    machine_close(runtime);
}

TEST(what_differs_from_the_store_is_refused_with_both)
{
    stw_runtime *runtime = make();
    stw_tensor_spec spec = spec_f32("t", LARGE);
    stw_tensor *tensor = NULL;
    tensor_fill_sequence(durable(runtime, "t", LARGE), LARGE, 1);
    commit(runtime);
    machine_close(runtime);
    machine wanted = machine_kept(STW_RUNTIME_RESUME);
    wanted.nvme_blocks = 128;
    refuse_open(&wanted, STW_ERROR_MISMATCH, "budget");
    wanted = machine_kept(STW_RUNTIME_RESUME);
    wanted.generations_kept = 3;
    refuse_open(&wanted, STW_ERROR_MISMATCH, "generations_kept");
    wanted = machine_kept(STW_RUNTIME_RESUME);
    wanted.store_name = "other";
    refuse_open(&wanted, STW_ERROR_NOT_FOUND, "other.0-of-1.stepwell");
    runtime = resume();
    spec.flags = STW_TENSOR_DURABLE;
    spec.dtype = STW_F16;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_MISMATCH, "f16");
    spec.dtype = STW_F32;
    spec.shape[0] = LARGE + 1;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_MISMATCH, "49157");
    spec.shape[0] = LARGE;
    ok(stw_tensor_create(runtime, &spec, 1, &tensor));
    tensor_expect_sequence(tensor, LARGE, 1);
    machine_close(runtime);
}

/* Over `directory` and a folder of it. */
static stw_status open_two(const uint64_t *budgets, const machine *wanted, stw_runtime **runtime)
{
    char second[128];
    stw_nvme_options nvme[2] = {STW_NVME_OPTIONS_INIT, STW_NVME_OPTIONS_INIT};
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    snprintf(second, sizeof second, "%s/second", directory);
    for (uint32_t i = 0; i < 2; ++i) {
        nvme[i].path = i == 0 ? directory : second;
        nvme[i].budget_bytes = budgets[i];
        nvme[i].driver_options = "allow_tmpfs=1";
    }
    options.nvme = nvme, options.nvme_count = 2;
    options.host_bytes = 8 * MIB;
    options.block_bytes = wanted->block_bytes;
    options.flags = wanted->flags;
    options.store_name = wanted->store_name;
    options.generations_kept = wanted->generations_kept;
    return stw_runtime_open(&options, runtime);
}

static uint64_t nvme_budget(stw_runtime *runtime)
{
    return tier_stats(runtime, STW_TIER_NVME).budget_bytes;
}

static void a_store_of_this_size_is_found_without_it(const uint64_t *budgets, uint32_t block_bytes)
{
    static const uint64_t none[2] = {0, 0};
    machine wanted = machine_kept(STW_RUNTIME_OVERWRITE);
    stw_runtime *runtime = NULL;
    uint64_t made, mixed[2] = {0, 0};
    wanted.block_bytes = block_bytes;
    ok(open_two(budgets, &wanted, &runtime));
    tensor_fill_sequence(durable(runtime, "t", LARGE), LARGE, 1);
    commit(runtime);
    made = nvme_budget(runtime);
    machine_close(runtime);
    wanted.flags = STW_RUNTIME_RESUME | STW_RUNTIME_NO_PROBE;
    mixed[1] = budgets[1];
    ok(open_two(mixed, &wanted, &runtime));
    machine_close(runtime);
    ok(open_two(none, &wanted, &runtime));
    assert_int_equal(nvme_budget(runtime), made);
    tensor_expect_sequence(durable(runtime, "t", LARGE), LARGE, 1);
    machine_close(runtime);
    wanted.generations_kept = 3;
    fails(open_two(none, &wanted, &runtime), STW_ERROR_MISMATCH, "generations_kept");
}

TEST(without_a_budget_a_store_has_that_which_it_was_made_with)
{
    static const uint64_t none[2] = {0, 0};
    static const uint64_t budgets[][2] = {{20 * MIB, 3 * MIB}, {19 * MIB + 4095, 40 * MIB + 1}};
    machine wanted = machine_kept(STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE);
    stw_runtime *runtime = NULL;
    char second[128], path[160];
    FILE *file;
    snprintf(second, sizeof second, "%s/second", directory);
    snprintf(path, sizeof path, "%s/%s", second, files[0]);
    assert_int_equal(mkdir(second, 0700), 0);
    fails(open_two(none, &wanted, &runtime), STW_ERROR_NOT_FOUND, "nvme[0] has no budget");
    for (size_t i = 0; i < COUNT(budgets); ++i) {
        a_store_of_this_size_is_found_without_it(budgets[i], STW_BLOCK_64K);
        a_store_of_this_size_is_found_without_it(budgets[i], STW_BLOCK_512K);
    }
    wanted.flags = STW_RUNTIME_OVERWRITE;
    fails(open_two(none, &wanted, &runtime), STW_ERROR_INVALID, "a budget of 0 bytes");
    wanted.flags = STW_RUNTIME_RESUME;
    wanted.block_bytes = STW_BLOCK_512K;
    file = fopen(path, "r+");
    assert_non_null(file);
    assert_int_equal(fputc('?', file), '?');
    assert_int_equal(fclose(file), 0);
    fails(open_two(none, &wanted, &runtime), STW_ERROR_FORMAT, second);
    assert_int_equal(unlink(path), 0);
    fails(open_two(none, &wanted, &runtime), STW_ERROR_NOT_FOUND, "nvme[1] has no budget");
    assert_int_equal(rmdir(second), 0);
}

TEST(creation_that_is_undone_leaves_what_is_stored)
{
    stw_runtime *runtime = make();
    stw_tensor_spec specs[2];
    stw_tensor *tensors[2] = {NULL, NULL};
    tensor_fill_sequence(durable(runtime, "a", LARGE), LARGE, 1);
    tensor_fill_sequence(durable(runtime, "b", SMALL), SMALL, 2);
    commit(runtime);
    machine_close(runtime);
    runtime = resume();
    specs[0] = spec_f32("a", LARGE);
    specs[0].flags = STW_TENSOR_DURABLE;
    specs[1] = spec_f32("b", SMALL + 1);
    specs[1].flags = STW_TENSOR_DURABLE;
    fails(stw_tensor_create(runtime, specs, 2, tensors), STW_ERROR_MISMATCH, "'b'");
    specs[1].shape[0] = SMALL;
    ok(stw_tensor_create(runtime, specs, 2, tensors));
    tensor_expect_sequence(tensors[0], LARGE, 1);
    tensor_expect_sequence(tensors[1], SMALL, 2);
    /* What the program gives up itself is not found a second time. */
    ok(stw_tensor_destroy(tensors, 1));
    ok(stw_tensor_create(runtime, specs, 1, tensors));
    assert_int_equal(restored(tensors[0]), 0);
    machine_close(runtime);
}

TEST(options_that_make_no_sense_are_refused)
{
    machine wanted = machine_kept(0);
    stw_tensor_spec spec = spec_f32(NULL, SMALL);
    stw_optimizer_options optimizer_options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer = NULL;
    stw_tensor *tensor = NULL;
    char label[300];
    wanted.store_name = "../test";
    refuse_open(&wanted, STW_ERROR_INVALID, "store_name");
    wanted.store_name = "";
    refuse_open(&wanted, STW_ERROR_INVALID, "store_name");
    wanted.store_name = NULL;
    wanted.flags = STW_RUNTIME_RESUME;
    refuse_open(&wanted, STW_ERROR_INVALID, "store_name is null");
    wanted = machine_kept(0);
    wanted.generations_kept = 8;
    refuse_open(&wanted, STW_ERROR_LIMIT, "at most 7");
    wanted = machine_kept(0);
    wanted.resume_generation = 3;
    refuse_open(&wanted, STW_ERROR_INVALID, "STW_RUNTIME_RESUME");
    wanted = machine_kept(0);
    wanted.nvme_blocks = 0;
    refuse_open(&wanted, STW_ERROR_INVALID, "no nvme tier");

    wanted = machine_small();
    stw_runtime *runtime = machine_open(&wanted);
    spec.flags = STW_TENSOR_DURABLE;
    spec.name = "t";
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "store_name");
    fails(stw_commit(runtime, NULL, NULL), STW_ERROR_INVALID, "store_name");
    optimizer_options.algorithm = STW_OPTIMIZER_SGD;
    optimizer_options.flags = STW_OPTIMIZER_DURABLE;
    fails(stw_optimizer_create(runtime, &optimizer_options, &optimizer), STW_ERROR_INVALID,
          "store_name");
    machine_close(runtime);

    runtime = make();
    spec.name = NULL;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "found again by");
    spec.name = "t";
    stw_policy policy = {.struct_size = sizeof policy, .allowed_tiers = STW_ALLOW_HOST};
    spec.policy = &policy;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "nvme");
    memset(label, 'x', sizeof label - 1);
    label[sizeof label - 1] = 0;
    stw_commit_options options = {.struct_size = sizeof options, .label = label};
    fails(stw_commit(runtime, &options, NULL), STW_ERROR_INVALID, "label");
    options.label = NULL;
    options.metadata_bytes = 1;
    fails(stw_commit(runtime, &options, NULL), STW_ERROR_INVALID, "metadata is null");
    options.metadata = label;
    options.metadata_bytes = STW_METADATA_BYTES_MAX + 1;
    fails(stw_commit(runtime, &options, NULL), STW_ERROR_LIMIT, "at most 1048576");
    fails(stw_tier_set_budget(runtime, STW_TIER_NVME, 0, 64 * BLOCK, 0), STW_ERROR_UNSUPPORTED,
          "size that");
    machine_close(runtime);
}

/* Blocks that a tensor which is made now may have. */
static uint32_t room_left(stw_runtime *runtime)
{
    uint32_t blocks;
    for (blocks = 512; blocks > 0; --blocks) {
        stw_tensor_spec spec = spec_f32(NULL, (uint64_t)blocks * BLOCK / 4);
        stw_tensor *tensor = NULL;
        if (stw_tensor_create(runtime, &spec, 1, &tensor) < 0) continue;
        ok(stw_tensor_destroy(&tensor, 1));
        break;
    }
    return blocks;
}

/* A base model of 110 blocks: three copies of it do not fit, one does. */
TEST(of_what_is_frozen_one_copy_is_kept)
{
    enum { BASE = 110 * 16384 };
    stw_tensor_spec spec = spec_f32("base", BASE);
    stw_tensor *base = NULL;
    stw_runtime *runtime = make();
    const uint32_t all = room_left(runtime);
    float value = 0;
    assert_in_range(all, 256, 329);
    spec.flags = STW_TENSOR_DURABLE;
    fails(stw_tensor_create(runtime, &spec, 1, &base), STW_ERROR_BUDGET, "promise");
    spec.flags |= STW_TENSOR_READ_ONLY;
    ok(stw_tensor_create(runtime, &spec, 1, &base));
    stw_tensor *adapter = durable(runtime, "adapter", LARGE);
    assert_int_equal(room_left(runtime), all - 110 - 3 * 4);
    commit(runtime); /* as it was not written, it can be afterwards */
    tensor_fill_sequence(base, BASE, 1);
    tensor_fill_sequence(base, BASE, 7);
    for (int i = 0; i < 5; ++i) {
        tensor_fill_sequence(adapter, LARGE, (float)i);
        commit(runtime);
        fails(stw_tensor_write(base, &value, NULL), STW_ERROR_INVALID, "stw_tensor_freeze");
        fails(stw_tensor_discard(&base, 1), STW_ERROR_INVALID, "'base' is frozen");
    }
    fails(stw_tensor_freeze(base, 0), STW_ERROR_BUDGET, "promise");
    tensor_to_disk(runtime, base);
    tensor_expect_sequence(base, BASE, 7);
    machine_close(runtime);

    runtime = resume();
    ok(stw_tensor_create(runtime, &spec, 1, &base));
    assert_int_equal(restored(base), 1);
    adapter = durable(runtime, "adapter", LARGE);
    assert_int_equal(room_left(runtime), all - 110 - 3 * 4);
    fails(stw_tensor_write(base, &value, NULL), STW_ERROR_INVALID, "stw_tensor_freeze");
    tensor_expect_sequence(base, BASE, 7);
    tensor_expect_sequence(adapter, LARGE, 4);
    commit(runtime);
    tensor_expect_sequence(base, BASE, 7);
    machine_close(runtime);
}

/* A view of it, a converted one, one that was moved to, and a copy. */
TEST(no_release_discards_what_is_frozen_and_kept)
{
    stw_tensor_spec spec = spec_f32("base", LARGE);
    stw_runtime *runtime = make();
    float copy[100];
    spec.flags = STW_TENSOR_DURABLE | STW_TENSOR_READ_ONLY;
    stw_tensor *base = tensor_make(runtime, &spec);
    tensor_fill_sequence(base, LARGE, 7);
    commit(runtime);
    for (int way = 0; way < 4; ++way) {
        stw_fetch_request request = request_range(base, STW_READ, 0, 100);
        stw_view view;
        if (way == 1) request.dtype = STW_BF16;
        if (way == 2) tensor_to_disk(runtime, base);
        if (way == 3) request.into = copy;
        ok(stw_fetch(runtime, NULL, &request, 1, &view));
        fails(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_FAR | STW_RELEASE_DISCARD),
              STW_ERROR_INVALID,
              "the view has ended, but its tensor was not discarded: tensor 'base' is frozen");
        assert_int_equal(view.cookie, 0);
        assert_int_equal(info_of(base).state, STW_STATE_VALID);
        tensor_to_disk(runtime, base); /* BUSY if a view were open */
    }
    tensor_expect_sequence(base, LARGE, 7);
    stw_tensor *other = durable(runtime, "other", 100);
    tensor_fill_sequence(other, 100, 1);
    commit(runtime);
    machine_close(runtime);

    runtime = resume();
    ok(stw_tensor_create(runtime, &spec, 1, &base));
    assert_int_equal(restored(base), 1);
    tensor_expect_sequence(base, LARGE, 7);
    machine_close(runtime);
}

/* What was committed before it was frozen keeps its room until the generations are dropped. */
TEST(what_is_frozen_later_gives_its_copies_back_behind_their_generations)
{
    enum { LAYER = 60 * 16384, REST = 150 * 16384 };
    stw_runtime *runtime = make();
    const uint32_t all = room_left(runtime);
    stw_tensor_spec spec = spec_f32("rest", REST);
    stw_tensor *layer = durable(runtime, "layer", LAYER);
    stw_tensor *rest = NULL;
    for (int round = 1; round <= 2; ++round) {
        tensor_fill_sequence(layer, LAYER, (float)round);
        commit(runtime);
    }
    tensor_fill_sequence(layer, LAYER, 3);
    fails(stw_tensor_create(runtime, &spec, 1, &rest), STW_ERROR_BUDGET, "promise");
    ok(stw_tensor_freeze(layer, 1));
    ok(stw_tensor_freeze(layer, 1));
    assert_int_equal(room_left(runtime), all - 3 * 60);
    fails(stw_tensor_create(runtime, &spec, 1, &rest), STW_ERROR_BUDGET, "for generations");
    ok(stw_tensor_freeze(layer, 0)); /* its copies are its own again, so this needs no more */
    assert_int_equal(room_left(runtime), all - 3 * 60);
    tensor_fill_sequence(layer, LAYER, 4);
    ok(stw_tensor_freeze(layer, 1));
    for (int round = 0; round < 2; ++round) {
        fails(stw_tensor_create(runtime, &spec, 1, &rest), STW_ERROR_BUDGET, "for generations");
        commit(runtime);
    }
    ok(stw_tensor_create(runtime, &spec, 1, &rest));
    tensor_fill_sequence(rest, REST, 0);
    fails(stw_tensor_freeze(layer, 0), STW_ERROR_BUDGET, "promise");
    tensor_to_disk(runtime, rest);
    tensor_expect_sequence(layer, LAYER, 4);
    machine_close(runtime);

    runtime = resume(); /* as one that is written again, which now has room: rest was scratch */
    layer = durable(runtime, "layer", LAYER);
    tensor_expect_sequence(layer, LAYER, 4);
    tensor_fill_sequence(layer, LAYER, 5);
    commit(runtime);
    machine_close(runtime);
    runtime = resume(); /* and frozen with two copies in generations */
    spec = spec_f32("layer", LAYER), spec.flags = STW_TENSOR_DURABLE | STW_TENSOR_READ_ONLY;
    ok(stw_tensor_create(runtime, &spec, 1, &layer));
    assert_int_equal(room_left(runtime), all - 2 * 60);
    spec = spec_f32("rest", 200 * 16384);
    fails(stw_tensor_create(runtime, &spec, 1, &rest), STW_ERROR_BUDGET, "for generations");
    commit(runtime);
    commit(runtime);
    ok(stw_tensor_create(runtime, &spec, 1, &rest));
    tensor_expect_sequence(layer, LAYER, 5);
    machine_close(runtime);
}

/* Kept generations are promised room for when a tensor is made, so that no write finds none. */
TEST(room_is_promised_for_all_that_is_kept)
{
    stw_tensor_spec spec = spec_f32("t", 110 * BLOCK / 4);
    stw_tensor *tensor = NULL;
    stw_runtime *runtime = make();
    spec.flags = STW_TENSOR_DURABLE;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_BUDGET, "promise");
    spec.shape[0] = 80 * BLOCK / 4;
    ok(stw_tensor_create(runtime, &spec, 1, &tensor));
    for (int i = 0; i < 5; ++i) {
        tensor_fill_sequence(tensor, spec.shape[0], (float)i);
        commit(runtime);
    }
    tensor_fill_sequence(tensor, spec.shape[0], 9);
    tensor_to_disk(runtime, tensor);
    tensor_expect_sequence(tensor, spec.shape[0], 9);
    machine_close(runtime);
}

/* Of tensors that the next process does not make, or destroys, generations keep slots. */
TEST(slots_of_what_is_gone_are_promised_to_nobody)
{
    enum { LARGE_ELEMENTS = 60 * BLOCK / 4, OTHER_ELEMENTS = 90 * BLOCK / 4 };
    stw_tensor_spec spec = spec_f32("other", OTHER_ELEMENTS);
    stw_runtime *runtime = make();
    stw_tensor *other = NULL;
    spec.flags = STW_TENSOR_DURABLE;
    tensor_fill_sequence(durable(runtime, "large", LARGE_ELEMENTS), LARGE_ELEMENTS, 1);
    commit(runtime);
    machine_close(runtime);
    for (int destroys = 0; destroys < 2; ++destroys) {
        stw_tensor_spec scratch = spec_f32(NULL, OTHER_ELEMENTS);
        runtime = resume();
        if (destroys) {
            stw_tensor *large = durable(runtime, "large", LARGE_ELEMENTS);
            ok(stw_tensor_destroy(&large, 1));
        }
        fails(stw_tensor_create(runtime, &spec, 1, &other), STW_ERROR_BUDGET, "that are gone");
        /* Scratch takes what can be had, and finds a slot for each block. */
        while (stw_tensor_create(runtime, &scratch, 1, &other) == STW_OK) {
            tensor_fill_sequence(other, OTHER_ELEMENTS, 7);
            tensor_to_disk(runtime, other);
            tensor_expect_sequence(other, OTHER_ELEMENTS, 7);
        }
        assert_non_null(other);
        /* Two generations later nothing is kept of it. */
        if (destroys) commit(runtime), commit(runtime);
        machine_close(runtime);
    }
    runtime = resume();
    ok(stw_tensor_create(runtime, &spec, 1, &other));
    machine_close(runtime);
}

TEST(a_commit_writes_only_what_has_changed)
{
    stw_link_stats before, after;
    stw_runtime *runtime = make();
    stw_tensor *large = durable(runtime, "large", 20 * BLOCK / 4);
    stw_tensor *other = durable(runtime, "other", 20 * BLOCK / 4);
    tensor_fill_sequence(large, 20 * BLOCK / 4, 1);
    tensor_fill_sequence(other, 20 * BLOCK / 4, 2);
    commit(runtime);
    before.struct_size = after.struct_size = sizeof before;
    ok(stw_link_stats_get(runtime, STW_LINK_HOST_TO_NVME, 0, &before));
    commit(runtime);
    ok(stw_link_stats_get(runtime, STW_LINK_HOST_TO_NVME, 0, &after));
    assert_int_equal(after.bytes, before.bytes);
    machine_close(runtime);
}

/* Reads until no write-back marks the tensor any more: one that is not the commit's own may fail
 * after the commit has. Each failure uses up three faults. */
static void expect_kept(stw_runtime *runtime, stw_tensor *tensor, uint64_t elements, float first)
{
    float *values = malloc(elements * sizeof *values);
    assert_non_null(values);
    int failures = 0;
    do {
        assert_true(failures++ < 5);
        ok(stw_runtime_clear_error(runtime));
    } while (stw_tensor_read(tensor, values, NULL) == STW_ERROR_IO);
    for (uint64_t i = 0; i < elements; ++i) assert_true(values[i] == first + (float)i);
    free(values);
}

/* Of a disk that fails: the generation before stays the newest, and the next one can be taken. */
TEST(a_write_that_fails_is_no_generation_and_loses_none)
{
    machine wanted = machine_kept(STW_RUNTIME_OVERWRITE);
    stw_runtime *runtime = make();
    stw_tensor *tensor = durable(runtime, "t", LARGE);
    tensor_fill_sequence(tensor, LARGE, 1);
    commit(runtime);
    machine_close(runtime);
    wanted.flags = STW_RUNTIME_RESUME | STW_RUNTIME_NO_PROBE;
    wanted.errors_expected = 1;
    wanted.nvme_driver = "fault";
    /* Each block is tried three times; then the disk is well again. */
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;at=write:0:eio;at=write:1:eio;"
                          "at=write:2:eio;at=write:3:eio;at=write:4:eio;at=write:5:eio;"
                          "at=write:6:eio;at=write:7:eio;at=write:8:eio;at=write:9:eio;"
                          "at=write:10:eio;at=write:11:eio";
    runtime = machine_open(&wanted);
    tensor = durable(runtime, "t", LARGE);
    tensor_fill_sequence(tensor, LARGE, 2);
    fails(stw_commit(runtime, NULL, NULL), STW_ERROR_IO, "");
    expect_kept(runtime, tensor, LARGE, 2);
    (void)stw_runtime_close(runtime, 0, 0);
    runtime = resume();
    tensor_expect_sequence(durable(runtime, "t", LARGE), LARGE, 1);
    machine_close(runtime);
}

TEST(a_flush_that_fails_sticks)
{
    machine wanted = machine_kept(STW_RUNTIME_RESUME);
    stw_runtime *runtime = make();
    stw_tensor *tensor = durable(runtime, "t", LARGE);
    tensor_fill_sequence(tensor, LARGE, 1);
    commit(runtime);
    machine_close(runtime);
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;at=flush:0:eio";
    wanted.errors_expected = 1;
    runtime = machine_open(&wanted);
    tensor = durable(runtime, "t", LARGE);
    tensor_fill_sequence(tensor, LARGE, 2);
    fails(stw_commit(runtime, NULL, NULL), STW_ERROR_SYNC, "flushed");
    fails(stw_commit(runtime, NULL, NULL), STW_ERROR_SYNC, "opened again");
    tensor_expect_sequence(tensor, LARGE, 2);
    machine_close(runtime);
    runtime = resume();
    tensor_expect_sequence(durable(runtime, "t", LARGE), LARGE, 1);
    machine_close(runtime);
}

/* One byte of a block that a generation has. */
TEST(rot_is_found_when_the_block_is_used)
{
    char path[128];
    char byte = 0;
    FILE *file;
    stw_runtime *runtime = make();
    stw_tensor *tensor = durable(runtime, "t", LARGE);
    float *values = calloc(LARGE, sizeof *values);
    tensor_fill_sequence(tensor, LARGE, 1);
    commit(runtime);
    machine_close(runtime);
    snprintf(path, sizeof path, "%s/%s", directory, files[0]);
    file = fopen(path, "r+b");
    assert_non_null(file);
    /* Slots begin at 1 MiB; all of them are hit, as nobody knows here which one it is. */
    for (long at = (long)MIB + 100; at < (long)(MIB + 16 * BLOCK); at += (long)BLOCK) {
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        assert_int_equal(fread(&byte, 1, 1, file), 1);
        byte ^= 1;
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        assert_int_equal(fwrite(&byte, 1, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
    runtime = resume();
    tensor = durable(runtime, "t", LARGE);
    fails(stw_tensor_read(tensor, values, NULL), STW_ERROR_CHECKSUM, "'t'");
    free(values);
    (void)stw_runtime_close(runtime, 0, 0);
}

RUN_TESTS_EACH("generations", NULL, NULL, make_directory, remove_directory)
