/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that fails when it is read: errors, short counts, wrong bytes, silence. The faults are
 * injected by the storage driver "fault"; request 0 of each direction is the superblock's.
 */
#include "support.h"

enum { ELEMENTS = 4 * 16384 }; /* four blocks, so four requests */

/* A machine whose disk meets `script`. */
static machine machine_with(const char *script)
{
    static char options[4096];
    machine wanted = machine_small();
    snprintf(options, sizeof options, "inner=posix;inner.allow_tmpfs=1;%s", script);
    wanted.nvme_driver = "fault";
    wanted.nvme_options = options;
    return wanted;
}

/* "at=read:1:eio;at=read:2:eio;..." */
static const char *each(const char *direction, int first, int count, const char *kind)
{
    static char text[3800];
    size_t length = 0;
    for (int i = first; i < first + count; ++i) {
        length += (size_t)snprintf(text + length, sizeof text - length, "at=%s:%d:%s;", direction,
                                   i, kind);
    }
    text[length - 1] = 0;
    return text;
}

static void close_with_errors(stw_runtime *runtime)
{
    ok(stw_runtime_clear_error(runtime));
    ok(stw_runtime_close(runtime, 0, 0));
}

TEST(a_read_error_is_retried_and_not_seen)
{
    machine wanted = machine_with("at=read:1:eio;at=read:3:eio");
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *tensor = tensor_on_disk(runtime, "t", ELEMENTS, 0);
    uint64_t retries = 0;
    tensor_expect_sequence(tensor, ELEMENTS, 0);
    for (uint32_t link = STW_LINK_NVME_TO_HOST; link <= STW_LINK_DEVICE_TO_NVME; ++link) {
        stw_link_stats stats = link_stats(runtime, link);
        retries += stats.retries;
    }
    assert_int_equal(retries, 2);
    machine_close(runtime);
}

TEST(a_lasting_read_error_names_path_offset_and_errno)
{
    stw_runtime *runtime = machine_open_as(machine_with(each("read", 1, 60, "eio")));
    stw_tensor *other = tensor_f32(runtime, "other", ELEMENTS);
    stw_tensor *tensor = tensor_on_disk(runtime, "lost", ELEMENTS, 0);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    float value;
    tensor_fill_sequence(other, ELEMENTS, 7);
    memset(&view, 0x66, sizeof view);
    stw_view before = view;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_IO, "'.'");
    assert_non_null(strstr(stw_last_error(), "offset"));
    assert_non_null(strstr(stw_last_error(), "Input/output error"));
    assert_non_null(strstr(stw_last_error(), "lost"));
    assert_int_equal(error_numbers().os_errno, 5);
    assert_int_equal(error_numbers().tier, STW_TIER_NVME);
    assert_memory_equal(&view, &before, sizeof view);
    stw_tier_stats stats = tier_stats(runtime, STW_TIER_DEVICE);
    assert_int_equal(stats.pinned_bytes, 0);
    fails(stw_tensor_read(tensor, &value, NULL), STW_ERROR_IO, "'.'");
    /* Others are served. */
    tensor_expect_sequence(other, ELEMENTS, 7);
    close_with_errors(runtime);
}

/* Whole blocks: their own on the disk, read in the order of their creation. */
static void expect_second_named(const char *kind, stw_status code, const char *words)
{
    stw_runtime *runtime = machine_open_as(machine_with(each("read", 2, 60, kind)));
    stw_tensor *tensors[2];
    stw_fetch_request requests[2];
    stw_view views[2];
    tensors[0] = tensor_f32(runtime, "first", BLOCK / 4);
    tensors[1] = tensor_f32(runtime, "second", BLOCK / 4);
    for (int i = 0; i < 2; ++i) {
        tensor_fill_sequence(tensors[i], BLOCK / 4, 1);
        tensor_to_disk(runtime, tensors[i]);
        requests[i] = request_of(tensors[i], STW_READ);
    }
    fails(stw_fetch(runtime, NULL, requests, 2, views), code,
          "tensor 'second' cannot be fetched: ");
    assert_non_null(strstr(stw_last_error(), words));
    assert_null(strstr(stw_last_error(), "first"));
    assert_string_equal(error_numbers().tensor, "second");
    close_with_errors(runtime);
}

TEST(a_fetch_of_several_names_the_one_that_was_hurt)
{
    expect_second_named("eio", STW_ERROR_IO, "Input/output error");
    expect_second_named("flip", STW_ERROR_CHECKSUM, "checksum");
}

/* Small ones share a block: it is named after what was asked for, and so is a read. */
static void expect_shared_named(const char *kind, stw_status code)
{
    stw_runtime *runtime = machine_open_as(machine_with(each("read", 1, 60, kind)));
    stw_tensor *beside = tensor_f32(runtime, "beside", 100);
    stw_tensor *asked = tensor_f32(runtime, "asked", 100);
    stw_tensor *large = tensor_f32(runtime, "large", BLOCK / 4);
    stw_fetch_request requests[2];
    stw_view views[2];
    float values[100];
    tensor_fill_sequence(beside, 100, 1);
    tensor_fill_sequence(asked, 100, 1);
    tensor_fill_sequence(large, BLOCK / 4, 1);
    tensor_to_disk(runtime, asked);
    requests[0] = request_of(large, STW_READ);
    requests[1] = request_of(asked, STW_READ);
    fails(stw_fetch(runtime, NULL, requests, 2, views), code, "tensor 'asked' cannot be fetched: ");
    assert_string_equal(error_numbers().tensor, "asked");
    fails(stw_tensor_read(asked, values, NULL), code, "tensor 'asked' cannot be fetched: ");
    assert_string_equal(error_numbers().tensor, "asked");
    /* The one it was read with is served. */
    tensor_expect_sequence(large, BLOCK / 4, 1);
    close_with_errors(runtime);
}

TEST(a_tensor_in_a_shared_block_is_named_as_it_was_asked_for)
{
    expect_shared_named("eio", STW_ERROR_IO);
    expect_shared_named("flip", STW_ERROR_CHECKSUM);
}

TEST(a_disk_that_recovers_is_read_again)
{
    /* The first block's request and its two retries. */
    stw_runtime *runtime = machine_open_as(machine_with(each("read", 1, 3, "eio")));
    stw_tensor *tensor = tensor_on_disk(runtime, "t", 100, 0);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_IO, "Input/output error");
    ok(stw_runtime_clear_error(runtime));
    tensor_expect_sequence(tensor, 100, 0);
    close_with_errors(runtime);
}

TEST(short_counts_are_not_seen)
{
    machine wanted = machine_with("seed=11;read_short=0.4;write_short=0.4");
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *tensors[6];
    for (int i = 0; i < 6; ++i) tensors[i] = tensor_on_disk(runtime, NULL, ELEMENTS, 0);
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 6; ++i) tensor_expect_sequence(tensors[i], ELEMENTS, (float)round);
        for (int i = 0; i < 6; ++i) tensor_fill_sequence(tensors[i], ELEMENTS, (float)round + 1);
    }
    machine_close(runtime);
}

TEST(one_flip_on_the_way_is_healed)
{
    stw_runtime *runtime = machine_open_as(machine_with("at=read:2:flip"));
    stw_tensor *tensor = tensor_on_disk(runtime, "t", ELEMENTS, 0);
    tensor_expect_sequence(tensor, ELEMENTS, 0);
    machine_close(runtime);
}

static void expect_checksum(const char *script)
{
    stw_runtime *runtime = machine_open_as(machine_with(script));
    /* All of a block, without zeros: a cut would not show in what is zero anyway. */
    stw_tensor *tensor = tensor_on_disk(runtime, "rotten", BLOCK / 4, 1);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_CHECKSUM, "'.'");
    assert_non_null(strstr(stw_last_error(), "offset"));
    assert_non_null(strstr(stw_last_error(), "checksum"));
    assert_non_null(strstr(stw_last_error(), "rotten"));
    stw_error_info info = error_numbers();
    assert_string_equal(info.tensor, "rotten");
    assert_int_equal(info.status, STW_ERROR_CHECKSUM);
    close_with_errors(runtime);
}

TEST(wrong_bytes_are_never_handed_out)
{
    expect_checksum("at=read:1:flip;at=read:2:flip;at=read:3:flip;at=read:4:flip");
    expect_checksum("at=write:1:torn");
    expect_checksum("at=write:1:lost");
    expect_checksum("at=write:1:misdirect");
}

static void expect_first(stw_tensor *tensor, int changed)
{
    float first[4] = {0, 0, 0, 0};
    stw_copy_options four = {.struct_size = sizeof four, .element_count = 4};
    ok(stw_tensor_read(tensor, first, &four));
    assert_int_equal(first[0] != 2, changed);
}

/* The gradient is no good, so nothing of the parameter changes, and nobody takes that for the step
 * that was asked for: not who fetches it next, nor a later step, until somebody says so. */
TEST(an_update_that_cannot_read_its_gradient_is_told_and_loses_nothing)
{
    machine wanted =
        machine_with("at=read:1:flip;at=read:2:flip;at=read:3:flip;at=read:4:flip;at=read:5:flip;"
                     "at=read:6:flip;at=read:7:flip;at=read:8:flip");
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *gradient = tensor_on_disk(runtime, "weights.grad", BLOCK / 4, 1);
    stw_tensor_spec spec = spec_f32("weights", BLOCK / 4);
    stw_tensor *parameter = tensor_make(runtime, &spec);
    stw_fetch_request request = request_of(parameter, STW_READ);
    stw_view view;
    ok(stw_tensor_fill(parameter, 2, NULL));
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
    optimizer_add(optimizer, parameter, gradient);
    ok(stw_optimizer_step(optimizer, NULL, NULL));
    fails(stw_runtime_drain(runtime, 0), STW_ERROR_CHECKSUM,
          "update of parameter 'weights' did not begin");
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_CHECKSUM, "did not begin");
    stw_tensor_info info = info_of(parameter);
    assert_int_equal(info.state, STW_STATE_VALID);
    ok(stw_runtime_clear_error(runtime));
    expect_first(parameter, 0);
    do {
        ok(stw_optimizer_step(optimizer, NULL, NULL));
        if (stw_runtime_drain(runtime, 0) == STW_OK) break;
    } while (stw_runtime_clear_error(runtime) == STW_OK);
    expect_first(parameter, 1);
    ok(stw_optimizer_destroy(optimizer));
    close_with_errors(runtime);
}

enum { WHOLE = 1, NARROW = 2, AVERAGES = 4, TRAINED = 5 * 16384 }; /* how a parameter is trained */

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameter, *gradient;
} trainee;

static stw_tensor *state_of(const trainee *here, const char *name)
{
    stw_tensor *state = NULL;
    ok(stw_optimizer_state(here->optimizer, here->parameter, name, &state));
    return state;
}

static trainee trainee_open(int how, int first_fault)
{
    trainee made;
    machine wanted = machine_with(each("read", first_fault, 4, "eio"));
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    stw_tensor_spec spec = spec_f32("w", TRAINED);
    wanted.thread_count = 1;
    made.runtime = machine_open(&wanted);
    made.gradient = tensor_f32(made.runtime, "w.grad", TRAINED);
    spec.dtype = STW_BF16;
    made.parameter = tensor_make(made.runtime, &spec);
    options.algorithm = STW_OPTIMIZER_ADAMW;
    options.state_dtype = how & NARROW ? STW_BF16 : 0;
    options.ema_decay = how & AVERAGES ? 0.5 : 0;
    hyper.lr = 0.01, hyper.weight_decay = 0;
    ok(stw_optimizer_create(made.runtime, &options, &made.optimizer));
    ok(stw_optimizer_set_hyper(made.optimizer, 0, &hyper));
    optimizer_add(made.optimizer, made.parameter, made.gradient);
    if (how & WHOLE) state_of(&made, "master");
    return made;
}

/* True: an update of it failed half way. */
static int fails_half_way(const trainee *here)
{
    for (int step = 0; step < 3; ++step) {
        if (stw_tensor_fill(here->parameter, 1, NULL) != STW_OK && step == 0) return 0;
        if (stw_tensor_fill(here->gradient, 0.5, NULL) != STW_OK) return 0;
        (void)stw_optimizer_step(here->optimizer, NULL, NULL);
        if (stw_runtime_drain(here->runtime, 0) != STW_OK) break;
        ok(stw_evict(here->runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
        ok(stw_evict(here->runtime, NULL, 0, STW_TIER_HOST, 0, 0));
    }
    return info_of(here->parameter).state == STW_STATE_FAILED;
}

/* The program writes the parameter and the moments: master and average are made of these, in
 * whatever form they are kept. */
static void expect_trains_again(const trainee *here, int how)
{
    stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32, .element_count = 1};
    stw_update_options waits = STW_UPDATE_OPTIONS_INIT;
    float value = 0;
    ok(stw_runtime_clear_error(here->runtime));
    ok(stw_tensor_fill(here->parameter, 1, NULL));
    ok(stw_tensor_fill(state_of(here, "exp_avg"), 0, NULL));
    stw_tensor *second = state_of(here, "exp_avg_sq");
    ok(stw_tensor_discard(&second, 1)); /* zeros too */
    ok(stw_optimizer_set_count(here->optimizer, here->parameter, 0));
    ok(stw_tensor_fill(here->gradient, 0.5, NULL));
    waits.flags = STW_UPDATE_WAIT;
    ok(stw_optimizer_step(here->optimizer, &waits, NULL));
    as_f32.element_begin = TRAINED / 2;
    ok(stw_tensor_read(here->parameter, &value, &as_f32));
    assert_true(value > 0.98F && value < 1);
    ok(stw_optimizer_read_master(here->optimizer, here->parameter, &value, &as_f32));
    assert_true(fabsf(value - 0.99F) < 1e-5F);
    if ((how & AVERAGES) == 0) return;
    ok(stw_tensor_read(state_of(here, "ema"), &value, &as_f32));
    assert_true(fabsf(value - 0.995F) < 1e-5F);
}

TEST(a_parameter_that_is_written_again_trains_whatever_its_update_left)
{
    for (int how = 0; how < 8; ++how) {
        int found = 0;
        for (int at = 1; at < 180 && found < 2; ++at) {
            const trainee here = trainee_open(how, at);
            if (fails_half_way(&here)) {
                ++found;
                expect_trains_again(&here, how);
            }
            (void)stw_runtime_clear_error(here.runtime);
            ok(stw_optimizer_destroy(here.optimizer));
            close_with_errors(here.runtime);
        }
        assert_true(found > 0); /* which read is in the middle of the update varies */
    }
}

TEST(a_lost_overwrite_is_not_taken_for_the_new_bytes)
{
    stw_runtime *runtime = machine_open_as(machine_with("at=write:2:lost"));
    stw_tensor *tensor = tensor_f32(runtime, "stale", 100);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    for (int round = 0; round < 2; ++round) {
        tensor_fill_sequence(tensor, 100, (float)round * 50);
        tensor_to_disk(runtime, tensor);
    }
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_CHECKSUM, "not what was written");
    close_with_errors(runtime);
}

TEST(a_hung_read_ends_at_the_timeout_and_close_can_be_called_again)
{
    stw_runtime *runtime = machine_open_as(machine_with("at=read:1:delay:1500000000"));
    stw_tensor *tensor = tensor_on_disk(runtime, "slow", ELEMENTS, 0);
    stw_fetch_request request = request_of(tensor, STW_READ);
    const int descriptors = descriptors_open();
    uint64_t begin = clock_ns();
    stw_view view;
    stw_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 300 * MILLISECOND_NS};
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_TIMEOUT, "'slow'");
    assert_true(clock_ns() - begin >= 300 * MILLISECOND_NS);
    assert_true(clock_ns() - begin < 1000 * MILLISECOND_NS);
    assert_non_null(strstr(stw_last_error(), "in flight"));
    assert_int_equal(times_logged("the fetch of tensor 'slow' (1 request) timed out"), 1);
    assert_true(logged("In flight: "));
    begin = clock_ns();
    fails(stw_runtime_close(runtime, 0, 100 * MILLISECOND_NS), STW_ERROR_TIMEOUT, "under way");
    assert_true(clock_ns() - begin < 800 * MILLISECOND_NS);
    /* Nothing changed: it is used further, and closes once the disk has answered. */
    tensor_expect_sequence(tensor, ELEMENTS, 0);
    machine_close(runtime);
    assert_true(descriptors_open() < descriptors);
}

/* The clock of a loaded machine may be late once, not always. */
TEST(a_wait_ends_no_more_than_a_tenth_after_its_timeout)
{
    enum { TRIES = 3 };
    /* Each answer comes long after the timeout. Each tensor is one block and so one request. */
    stw_runtime *runtime =
        machine_open_as(machine_with(each("read", 1, TRIES, "delay:4500000000")));
    stw_tensor *tensors[TRIES];
    uint64_t waited_ns = UINT64_MAX;
    stw_view view;
    int i;
    for (i = 0; i < TRIES; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, BLOCK / 4);
        tensor_fill_sequence(tensors[i], BLOCK / 4, (float)i);
    }
    ok(stw_evict(runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
    ok(stw_evict(runtime, NULL, 0, STW_TIER_HOST, 0, 0));
    stw_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 2 * SECOND_NS};
    for (i = 0; i < TRIES && waited_ns >= 2200 * MILLISECOND_NS; ++i) {
        stw_fetch_request request = request_of(tensors[i], STW_READ);
        const uint64_t begin = clock_ns();
        fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_TIMEOUT, "in flight");
        waited_ns = clock_ns() - begin;
        assert_true(waited_ns >= 2 * SECOND_NS);
        assert_true(waited_ns < 4 * SECOND_NS);
    }
    assert_true(waited_ns < 2200 * MILLISECOND_NS);
    while (i-- > 0) tensor_expect_sequence(tensors[i], BLOCK / 4, (float)i);
    machine_close(runtime);
}

/* The first block is written when the third cannot be read. */
TEST(a_write_that_fails_half_way_is_told_to_readers)
{
    stw_runtime *runtime = machine_open_as(machine_with(each("read", 2, 8, "eio")));
    stw_tensor *tensor = tensor_on_disk(runtime, "torn", ELEMENTS, 0);
    stw_fetch_request request = request_of(tensor, STW_READ);
    static float values[ELEMENTS];
    stw_view view;
    stw_copy_options options = {
        .struct_size = sizeof options, .element_begin = 100, .element_count = ELEMENTS / 2};
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_IO, "Input/output error");
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_IO,
          "tensor 'torn' was left half written by a call that failed");
    fails(stw_tensor_read(tensor, values, NULL), STW_ERROR_IO, "half written");
    stw_tensor_info info = info_of(tensor);
    assert_int_equal(info.state, STW_STATE_FAILED);
    /* All of it heals it. */
    tensor_fill_sequence(tensor, ELEMENTS, 3);
    tensor_expect_sequence(tensor, ELEMENTS, 3);
    close_with_errors(runtime);
}

/* A reader that repeats its call after a TIMEOUT would do so for good. */
TEST(a_write_that_times_out_half_way_leaves_an_error_of_its_contents)
{
    stw_runtime *runtime = machine_open_as(machine_with(each("read", 2, 8, "delay:1000000000")));
    stw_tensor *tensor = tensor_on_disk(runtime, "torn", ELEMENTS, 0);
    static float values[ELEMENTS];
    stw_copy_options options = {.struct_size = sizeof options,
                                .element_begin = 100,
                                .element_count = ELEMENTS / 2,
                                .timeout_ns = 300 * MILLISECOND_NS};
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_TIMEOUT, "timed out");
    fails(stw_tensor_read(tensor, values, NULL), STW_ERROR_IO, "half written");
    fails(stw_tensor_read(tensor, values, NULL), STW_ERROR_IO, "timed out");
    tensor_fill_sequence(tensor, ELEMENTS, 3);
    tensor_expect_sequence(tensor, ELEMENTS, 3);
    machine_close(runtime);
}

TEST(a_throttled_disk_shows_as_stall)
{
    stw_runtime *runtime = machine_open_as(machine_with("throttle_bytes_per_s=4194304"));
    stw_tensor *tensor = tensor_on_disk(runtime, "t", ELEMENTS, 0);
    stw_phase *phase = NULL;
    stw_step_stats stats = {.struct_size = sizeof stats};
    ok(stw_phase_create(runtime, "p", &phase));
    ok(stw_step_begin(phase));
    stw_view view = view_get(runtime, tensor, STW_READ);
    view_put(&view);
    ok(stw_step_end(phase, &stats));
    /* 256 KiB at 4 MiB/s are 62 ms. */
    assert_true(stats.stall_nvme_ns > 30 * MILLISECOND_NS);
    assert_int_equal(stats.nvme_read_bytes, 4 * BLOCK);
    machine_close(runtime);
}

RUN_TESTS("faults of reading", NULL, NULL)
