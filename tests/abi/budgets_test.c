/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Budgets that change while the program runs: a shrink is in force when the call returns, or
 * changes nothing; the bytes of every tensor are the same before and after.
 */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TENSORS = 12, ELEMENTS = 4 * 16384 }; /* four blocks each */

static machine machine_large(void)
{
    machine large = machine_small();
    large.device_blocks = 32;
    large.host_blocks = 32;
    return large;
}

static void fill_all(stw_runtime *runtime, stw_tensor **tensors)
{
    char name[16];
    for (int i = 0; i < TENSORS; ++i) {
        snprintf(name, sizeof name, "t%d", i);
        tensors[i] = tensor_f32(runtime, name, ELEMENTS);
        tensor_fill_sequence(tensors[i], ELEMENTS, (float)(i * 1000));
    }
}

static void expect_all(stw_tensor **tensors)
{
    for (int i = 0; i < TENSORS; ++i)
        tensor_expect_sequence(tensors[i], ELEMENTS, (float)(i * 1000));
}

static stw_status set_blocks(stw_runtime *runtime, uint32_t tier, uint64_t blocks)
{
    return stw_tier_set_budget(runtime, tier, 0, blocks * BLOCK, 0);
}

static void visit_all(stw_runtime *runtime, stw_tensor **tensors)
{
    for (int i = 0; i < TENSORS; ++i) {
        stw_view view = view_get(runtime, tensors[i], STW_READ);
        assert_float(((const float *)view.pointer)[ELEMENTS - 1], (float)(i * 1000 + ELEMENTS - 1));
        view_put(&view);
        assert_true(tier_stats(runtime, STW_TIER_DEVICE).used_bytes <=
                    tier_stats(runtime, STW_TIER_DEVICE).budget_bytes);
    }
}

TEST(a_shrink_is_in_force_when_it_returns)
{
    stw_runtime *runtime = machine_open_as(machine_large());
    stw_tensor *tensors[TENSORS];
    fill_all(runtime, tensors);
    visit_all(runtime, tensors);
    assert_int_equal(tier_stats(runtime, STW_TIER_DEVICE).used_bytes, 32 * BLOCK);
    ok(set_blocks(runtime, STW_TIER_DEVICE, 10));
    assert_int_equal(tier_stats(runtime, STW_TIER_DEVICE).budget_bytes, 10 * BLOCK);
    assert_true(tier_stats(runtime, STW_TIER_DEVICE).used_bytes <= 10 * BLOCK);
    visit_all(runtime, tensors);
    ok(set_blocks(runtime, STW_TIER_DEVICE, 32));
    visit_all(runtime, tensors);
    assert_int_equal(tier_stats(runtime, STW_TIER_DEVICE).used_bytes, 32 * BLOCK);
    expect_all(tensors);
    machine_close(runtime);
}

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu %llu", &size, &resident), 2);
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Sleep and wake up: nothing is in memory, nothing is lost, and the addresses are the same. */
TEST(everything_goes_out_and_comes_back)
{
    machine wanted = machine_large();
    stw_tensor *tensors[TENSORS];
    void *before = NULL, *after = NULL;
    uint64_t bytes;
    stw_view view;
    wanted.block_bytes = (uint32_t)(2 * MIB);
    stw_runtime *runtime = machine_open(&wanted);
    fill_all(runtime, tensors);
    stw_tensor *bulk = tensor_f32(runtime, "bulk", 112 * MIB / 4);
    ok(stw_tensor_fill(bulk, 3.0, NULL));
    stw_fetch_request request = request_range(bulk, STW_READ, 0, 48 * MIB / 4);
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    view_put(&view);
    ok(stw_tensor_address(tensors[0], 0, &before, &bytes));
    visit_all(runtime, tensors);
    uint64_t awake = resident_bytes();
    ok(stw_tier_set_budget(runtime, STW_TIER_DEVICE, 0, 0, 0));
    ok(stw_tier_set_budget(runtime, STW_TIER_HOST, 0, 0, 0));
    uint64_t asleep = resident_bytes();
    assert_int_equal(tier_stats(runtime, STW_TIER_DEVICE).used_bytes, 0);
    assert_int_equal(tier_stats(runtime, STW_TIER_HOST).used_bytes, 0);
    /* Both tiers together were nearly full; the program may have taken a few MiB meanwhile. */
    assert_true(awake - asleep > 96 * MIB);
    request = request_of(tensors[0], STW_READ);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_BUDGET, "budget 0 bytes");
    fails(stw_tensor_fill(tensors[0], 1.0, NULL), STW_ERROR_BUDGET, "stw_tier_set_budget");
    ok(stw_tier_set_budget(runtime, STW_TIER_HOST, 0, 64 * MIB, 0));
    ok(stw_tier_set_budget(runtime, STW_TIER_DEVICE, 0, 64 * MIB, 0));
    visit_all(runtime, tensors);
    expect_all(tensors);
    ok(stw_tensor_address(tensors[0], 0, &after, &bytes));
    assert_ptr_equal(before, after);
    machine_close(runtime);
}

TEST(open_views_refuse_a_shrink_and_nothing_changes)
{
    stw_runtime *runtime = machine_open_as(machine_large());
    stw_tensor *tensors[TENSORS];
    stw_view views[5];
    fill_all(runtime, tensors);
    for (int i = 0; i < 5; ++i) views[i] = view_get(runtime, tensors[i], STW_READ);
    fails(set_blocks(runtime, STW_TIER_DEVICE, 19), STW_ERROR_BUDGET, "pinned by open views");
    assert_int_equal(error_numbers().pinned_bytes, 20 * BLOCK);
    assert_int_equal(error_numbers().tier, STW_TIER_DEVICE);
    assert_int_equal(tier_stats(runtime, STW_TIER_DEVICE).budget_bytes, 32 * BLOCK);
    ok(set_blocks(runtime, STW_TIER_DEVICE, 20));
    for (int i = 0; i < 5; ++i) {
        assert_float(((const float *)views[i].pointer)[7], (float)(i * 1000 + 7));
        view_put(&views[i]);
    }
    visit_all(runtime, tensors);
    machine_close(runtime);
}

TEST(what_can_go_nowhere_else_refuses_a_shrink)
{
    machine wanted = machine_large();
    stw_tensor *tensors[TENSORS];
    wanted.nvme_blocks = 0;
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor_spec spec = spec_f32("rests", 20 * 16384);
    tensor_fill_sequence(tensors[0] = tensor_make(runtime, &spec), 20 * 16384, 5);
    fails(set_blocks(runtime, STW_TIER_HOST, 19), STW_ERROR_BUDGET, "may rest nowhere farther");
    assert_int_equal(error_numbers().needed_bytes, 20 * BLOCK);
    ok(set_blocks(runtime, STW_TIER_HOST, 20));
    spec = spec_f32("more", 16384);
    fails(stw_tensor_create(runtime, &spec, 1, &tensors[1]), STW_ERROR_BUDGET, "promise");
    ok(set_blocks(runtime, STW_TIER_DEVICE, 0));
    fails(set_blocks(runtime, STW_TIER_HOST, 15), STW_ERROR_BUDGET, "");
    tensor_expect_sequence(tensors[0], 20 * 16384, 5);
    ok(stw_tensor_destroy(tensors, 1));
    fails(set_blocks(runtime, STW_TIER_HOST, 15), STW_ERROR_BUDGET, "an update works on up to 16");
    ok(set_blocks(runtime, STW_TIER_HOST, 0));
    /* Made while nothing has room, it is refused; with room again it is not. */
    fails(stw_tensor_create(runtime, &spec, 1, &tensors[1]), STW_ERROR_BUDGET, "promise");
    ok(set_blocks(runtime, STW_TIER_HOST, 32));
    ok(stw_tensor_create(runtime, &spec, 1, &tensors[1]));
    machine_close(runtime);
}

TEST(senseless_budgets_are_refused)
{
    stw_runtime *runtime = machine_open_as(machine_large());
    fails(set_blocks(runtime, STW_TIER_DEVICE, 33), STW_ERROR_LIMIT, "was opened with 2.0 MiB");
    fails(set_blocks(runtime, STW_TIER_HOST, 1000000), STW_ERROR_LIMIT, "the host tier");
    fails(set_blocks(runtime, 9, 1), STW_ERROR_INVALID, "tier 9");
    fails(stw_tier_set_budget(runtime, STW_TIER_DEVICE, 1, 0, 0), STW_ERROR_INVALID, "device 1");
    fails(stw_tier_set_budget(NULL, STW_TIER_DEVICE, 0, 0, 0), STW_ERROR_CLOSED, "not open");
    ok(set_blocks(runtime, STW_TIER_DEVICE, 32));
    assert_int_equal(tier_stats(runtime, STW_TIER_DEVICE).budget_bytes, 32 * BLOCK);
    machine_close(runtime);
}

/* Space of files that nobody can see by name. */
static uint64_t file_bytes(void)
{
    uint64_t bytes = 0;
    for (int fd = 3; fd < 256; ++fd) {
        struct stat about;
        if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_nlink != 0) continue;
        bytes += (uint64_t)about.st_blocks * 512;
    }
    return bytes;
}

TEST(the_disk_gets_its_space_back)
{
    stw_runtime *runtime = machine_open_as(machine_large());
    stw_tensor *tensors[TENSORS];
    const uint64_t before = file_bytes();
    fill_all(runtime, tensors);
    ok(set_blocks(runtime, STW_TIER_DEVICE, 0));
    fails(set_blocks(runtime, STW_TIER_NVME, 4 * TENSORS - 1), STW_ERROR_BUDGET, "promised");
    ok(set_blocks(runtime, STW_TIER_NVME, 4 * TENSORS));
    /* The map of what is left may take a few blocks of the file system. */
    assert_in_range(before - file_bytes(), (256 - 4 * TENSORS - 1) * BLOCK,
                    (256 - 4 * TENSORS) * BLOCK);
    expect_all(tensors);
    ok(set_blocks(runtime, STW_TIER_NVME, 256));
    assert_in_range(file_bytes(), before, before + BLOCK);
    ok(set_blocks(runtime, STW_TIER_DEVICE, 32));
    expect_all(tensors);
    machine_close(runtime);
}

TEST(a_shrink_that_takes_too_long_changes_nothing)
{
    machine wanted = machine_large();
    wanted.host_blocks = 0;
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;delay_write=1:400000000";
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *tensor = tensor_f32(runtime, "t", 32 * 16384);
    tensor_fill_sequence(tensor, 32 * 16384, 0);
    fails(stw_tier_set_budget(runtime, STW_TIER_DEVICE, 0, 16 * BLOCK, 50 * MILLISECOND_NS),
          STW_ERROR_TIMEOUT, "its budget is what it was");
    assert_int_equal(tier_stats(runtime, STW_TIER_DEVICE).budget_bytes, 32 * BLOCK);
    tensor_expect_sequence(tensor, 32 * 16384, 0);
    ok(set_blocks(runtime, STW_TIER_DEVICE, 16));
    tensor_expect_sequence(tensor, 32 * 16384, 0);
    machine_close(runtime);
}

/* What fits by arithmetic fits, wherever the slots lie that have lost their memory. */
TEST(a_view_of_all_that_is_left_fits)
{
    machine wanted = machine_large();
    stw_tensor *small[8];
    stw_view views[8];
    wanted.device_blocks = 0;
    stw_runtime *runtime = machine_open(&wanted);
    for (int i = 0; i < 8; ++i) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        small[i] = tensor_f32(runtime, name, 16384);
        tensor_fill_sequence(small[i], 16384, (float)i);
    }
    stw_tensor *large = tensor_f32(runtime, "large", 16 * 16384);
    tensor_fill_sequence(large, 16 * 16384, 3);
    for (int i = 0; i < 8; ++i) views[i] = view_get(runtime, small[i], STW_READ);
    ok(set_blocks(runtime, STW_TIER_HOST, 16));
    for (int i = 0; i < 8; ++i) view_put(&views[i]);
    stw_view view = view_get(runtime, large, STW_READ);
    for (int i = 0; i < 16 * 16384; ++i) {
        if (((const float *)view.pointer)[i] != (float)(i + 3)) fail_msg("element %d", i);
    }
    assert_int_equal(tier_stats(runtime, STW_TIER_HOST).used_bytes, 16 * BLOCK);
    view_put(&view);
    for (int i = 0; i < 8; ++i) tensor_expect_sequence(small[i], 16384, (float)i);
    machine_close(runtime);
}

typedef struct crowd {
    stw_runtime *runtime;
    stw_tensor **tensors;
    atomic_int stop;
    atomic_int wrong;
    atomic_int served;
} crowd;

static void *fetch_for_ever(void *argument)
{
    crowd *here = argument;
    int i = 0;
    while (!atomic_load(&here->stop)) {
        const int at = i++ % TENSORS;
        stw_fetch_request request = request_of(here->tensors[at], STW_READ);
        stw_view view;
        stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_WAIT_ROOM};
        if (stw_fetch(here->runtime, &options, &request, 1, &view) != STW_OK) {
            atomic_fetch_add(&here->wrong, 1);
            continue;
        }
        if (((const float *)view.pointer)[ELEMENTS - 1] != (float)(at * 1000 + ELEMENTS - 1)) {
            atomic_fetch_add(&here->wrong, 1);
        }
        if (stw_release(&view, 1, STW_STREAM_HOST, 0) != STW_OK) atomic_fetch_add(&here->wrong, 1);
        atomic_fetch_add(&here->served, 1);
    }
    return NULL;
}

TEST(budgets_change_under_threads_that_fetch)
{
    stw_runtime *runtime = machine_open_as(machine_large());
    stw_tensor *tensors[TENSORS];
    pthread_t threads[2];
    crowd here;
    int round, shrunk = 0;
    fill_all(runtime, tensors);
    memset(&here, 0, sizeof here);
    here.runtime = runtime;
    here.tensors = tensors;
    for (round = 0; round < 2; ++round) {
        assert_int_equal(pthread_create(&threads[round], NULL, fetch_for_ever, &here), 0);
    }
    for (round = 0; round < 60 || atomic_load(&here.served) < 200; ++round) {
        const uint64_t blocks = 8 + (uint64_t)(round * 7 % 25);
        const uint32_t tier = round % 3 == 0 ? STW_TIER_HOST : STW_TIER_DEVICE;
        const stw_status status = set_blocks(runtime, tier, tier == STW_TIER_HOST ? 16 : blocks);
        if (status == STW_OK) ++shrunk;
        if (status != STW_OK) assert_int_equal(status, STW_ERROR_BUDGET);
        assert_true(tier_stats(runtime, STW_TIER_DEVICE).used_bytes <= 32 * BLOCK);
        if (round % 3 == 0) ok(set_blocks(runtime, STW_TIER_HOST, 32));
    }
    atomic_store(&here.stop, 1);
    for (round = 0; round < 2; ++round) pthread_join(threads[round], NULL);
    assert_int_equal(atomic_load(&here.wrong), 0);
    assert_true(shrunk > 40);
    expect_all(tensors);
    machine_close(runtime);
}

/* An update that was accepted ends before the last room goes; a new one is refused at once. */
TEST(updates_end_before_the_last_room_goes)
{
    machine wanted = machine_large();
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    stw_optimizer *optimizer = NULL;
    stw_tensor_spec spec = spec_f32("gradient", ELEMENTS);
    float values[4];
    wanted.device_blocks = 0;
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *parameter = tensor_f32(runtime, "parameter", ELEMENTS);
    spec.role = STW_ROLE_GRAD;
    stw_tensor *gradient = tensor_make(runtime, &spec);
    ok(stw_tensor_fill(parameter, 1.0, NULL));
    ok(stw_tensor_fill(gradient, 2.0, NULL));
    options.algorithm = STW_OPTIMIZER_SGD;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper.lr = 0.25;
    hyper.momentum = 0;
    optimizer_add(optimizer, parameter, gradient);
    ok(stw_optimizer_set_hyper(optimizer, 0, &hyper));
    ok(stw_optimizer_step(optimizer, NULL, NULL));
    ok(set_blocks(runtime, STW_TIER_HOST, 0));
    fails(stw_optimizer_step(optimizer, NULL, NULL), STW_ERROR_BUDGET, "stw_tier_set_budget");
    ok(set_blocks(runtime, STW_TIER_HOST, 16));
    stw_copy_options few = {
        .struct_size = sizeof few, .element_begin = ELEMENTS - 4, .element_count = 4};
    ok(stw_tensor_read(parameter, values, &few));
    assert_float(values[0], 0.5F);
    assert_float(values[3], 0.5F);
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

/* AdamW of one parameter: it, its gradient and two moments, of three blocks each. */
static stw_optimizer *four_tensors(stw_runtime *runtime, uint32_t dtype, stw_tensor **parameter,
                                   stw_tensor **gradient)
{
    stw_tensor_spec spec = spec_f32("weights", 3 * BLOCK / 4);
    spec.dtype = dtype;
    *parameter = tensor_make(runtime, &spec);
    spec = spec_f32("weights.grad", 3 * BLOCK / 4), spec.role = STW_ROLE_GRAD;
    *gradient = tensor_make(runtime, &spec);
    ok(stw_tensor_fill(*parameter, 1, NULL));
    ok(stw_tensor_fill(*gradient, 0.5, NULL));
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    optimizer_add(optimizer, *parameter, *gradient);
    return optimizer;
}

static void expect_weights(stw_tensor *parameter, int changed)
{
    static float values[3 * BLOCK / 4];
    stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
    ok(stw_tensor_read(parameter, values, &as_f32));
    assert_int_equal(values[0] != 1, changed);
    assert_float(values[0], values[3 * BLOCK / 4 - 1]);
}

/* Two shrinks that were accepted one by one, together below what an update works on. */
TEST(a_step_that_has_no_room_is_refused_and_changes_nothing)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *parameter, *gradient;
    stw_optimizer *optimizer = four_tensors(runtime, STW_F32, &parameter, &gradient);
    uint64_t count = 7;
    ok(set_blocks(runtime, STW_TIER_DEVICE, 2));
    ok(set_blocks(runtime, STW_TIER_HOST, 0));
    fails(stw_optimizer_step(optimizer, NULL, NULL), STW_ERROR_BUDGET,
          "'weights' works on 4 blocks at once");
    assert_int_equal(error_numbers().needed_bytes, 4 * BLOCK);
    assert_int_equal(error_numbers().free_bytes, 2 * BLOCK);
    ok(stw_runtime_drain(runtime, 0));
    stw_tensor_info info = info_of(gradient);
    assert_int_equal(info.state, STW_STATE_VALID);
    ok(stw_optimizer_get_count(optimizer, parameter, &count));
    assert_int_equal(count, 0);
    ok(set_blocks(runtime, STW_TIER_DEVICE, 8));
    expect_weights(parameter, 0);
    ok(stw_optimizer_step(optimizer, NULL, NULL));
    expect_weights(parameter, 1);
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

/* The same where budgets were too small at open: four blocks beside staging, six at once. */
TEST(an_update_that_never_fits_is_refused_at_its_step)
{
    machine wanted = machine_small();
    stw_tensor *parameter, *gradient;
    wanted.device_driver = "cpu-discrete", wanted.host_blocks = 12;
    stw_runtime *runtime = machine_open(&wanted);
    stw_optimizer *optimizer = four_tensors(runtime, STW_BF16, &parameter, &gradient);
    fails(stw_optimizer_step(optimizer, NULL, NULL), STW_ERROR_BUDGET,
          "'weights' works on 6 blocks at once");
    ok(stw_runtime_drain(runtime, 0));
    expect_weights(parameter, 0);
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

RUN_TESTS("budgets", NULL, NULL)
