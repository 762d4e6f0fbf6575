/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every function says to null, unknown and foreign arguments; outputs are left alone.
 */
#include "support.h"

static char never_a_handle[256];

TEST(null_handles_are_refused_everywhere)
{
    stw_view view;
    memset(&view, 0, sizeof view);
    fails(stw_runtime_close(NULL, 0, 0), STW_ERROR_CLOSED, "not open");
    fails(stw_runtime_drain(NULL, 0), STW_ERROR_CLOSED, "not open");
    fails(stw_runtime_error(NULL, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_runtime_clear_error(NULL), STW_ERROR_CLOSED, "not open");
    assert_int_equal(stw_runtime_interrupt(NULL), STW_ERROR_CLOSED);
    fails(stw_device_info_get(NULL, 0, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_tensor_create(NULL, NULL, 0, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_tensor_destroy(NULL, 1), STW_ERROR_INVALID, "no tensors");
    fails(stw_tensor_find(NULL, "x", NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_tensor_next(NULL, NULL, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_tensor_info_get(NULL, NULL), STW_ERROR_INVALID, "tensor handle");
    fails(stw_tensor_set_policy(NULL, NULL), STW_ERROR_INVALID, "tensor handle");
    fails(stw_tensor_freeze(NULL, 1), STW_ERROR_INVALID, "tensor handle");
    fails(stw_tensor_reshape(NULL, NULL, 0), STW_ERROR_INVALID, "tensor handle");
    fails(stw_tensor_discard(NULL, 0), STW_ERROR_INVALID, "no tensors");
    fails(stw_tensor_address(NULL, 0, NULL, NULL), STW_ERROR_INVALID, "tensor handle");
    fails(stw_fetch(NULL, NULL, NULL, 0, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_fetch_async(NULL, NULL, NULL, 0, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_fetch_collect(NULL, NULL, NULL, 0), STW_ERROR_INVALID, "operation handle");
    fails(stw_fetch_fits(NULL, NULL, 0), STW_ERROR_CLOSED, "not open");
    fails(stw_release(NULL, 0, NULL, 0), STW_ERROR_INVALID, "no views");
    fails(stw_release(&view, 1, NULL, 0), STW_ERROR_INVALID, "not open");
    fails(stw_stream_forget(NULL, STW_STREAM_LEGACY), STW_ERROR_CLOSED, "not open");
    fails(stw_view_share(NULL, NULL), STW_ERROR_INVALID, "null");
    fails(stw_view_share(&view, &view), STW_ERROR_INVALID, "tensor handle");
    fails(stw_prefetch(NULL, NULL, 0), STW_ERROR_CLOSED, "not open");
    fails(stw_advise(NULL, 1, 0), STW_ERROR_INVALID, "no tensors");
    fails(stw_evict(NULL, NULL, 0, STW_TIER_HOST, 0, 0), STW_ERROR_CLOSED, "not open");
    fails(stw_tensor_write(NULL, NULL, NULL), STW_ERROR_INVALID, "tensor handle");
    fails(stw_tensor_read(NULL, NULL, NULL), STW_ERROR_INVALID, "tensor handle");
    fails(stw_tensor_fill(NULL, 0, NULL), STW_ERROR_INVALID, "tensor handle");
    fails(stw_reduce(NULL, NULL, NULL), STW_ERROR_INVALID, "tensor handle");
}

TEST(null_objects_of_a_step_are_refused_everywhere)
{
    fails(stw_phase_create(NULL, "x", NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_phase_destroy(NULL), STW_ERROR_INVALID, "phase handle");
    fails(stw_step_begin(NULL), STW_ERROR_INVALID, "phase handle");
    fails(stw_step_end(NULL, NULL), STW_ERROR_INVALID, "phase handle");
    fails(stw_step_abort(NULL, NULL), STW_ERROR_INVALID, "phase handle");
    fails(stw_optimizer_create(NULL, NULL, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_optimizer_destroy(NULL), STW_ERROR_INVALID, "optimizer handle");
    fails(stw_optimizer_add(NULL, NULL, 0), STW_ERROR_INVALID, "optimizer handle");
    fails(stw_optimizer_set_hyper(NULL, 0, NULL), STW_ERROR_INVALID, "optimizer handle");
    fails(stw_optimizer_state(NULL, NULL, NULL, NULL), STW_ERROR_INVALID, "optimizer handle");
    fails(stw_optimizer_get_count(NULL, NULL, NULL), STW_ERROR_INVALID, "optimizer handle");
    fails(stw_optimizer_set_count(NULL, NULL, 0), STW_ERROR_INVALID, "optimizer handle");
    fails(stw_optimizer_step(NULL, NULL, NULL), STW_ERROR_INVALID, "optimizer handle");
    fails(stw_optimizer_result(NULL, NULL), STW_ERROR_INVALID, "optimizer handle");
    fails(stw_operation_poll(NULL), STW_ERROR_INVALID, "operation handle");
    fails(stw_operation_wait(NULL, 0), STW_ERROR_INVALID, "operation handle");
    fails(stw_operation_cancel(NULL), STW_ERROR_INVALID, "operation handle");
    fails(stw_operation_free(NULL), STW_ERROR_INVALID, "operation handle");
    fails(stw_tier_stats_get(NULL, 0, 0, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_link_stats_get(NULL, 0, 0, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_report_write(NULL, NULL), STW_ERROR_CLOSED, "not open");
    fails(stw_timeline_write(NULL, NULL), STW_ERROR_CLOSED, "not open");
}

TEST(memory_that_never_was_a_handle_is_refused)
{
    void *odd = never_a_handle;
    stw_view view;
    stw_fetch_request request = request_of(odd, STW_READ);
    stw_runtime *runtime = *state;
    memset(&view, 0x5a, sizeof view);
    fails(stw_runtime_drain(odd, 0), STW_ERROR_CLOSED, "never was");
    fails(stw_tensor_info_get(odd, NULL), STW_ERROR_INVALID, "never was");
    fails(stw_step_begin(odd), STW_ERROR_INVALID, "never was");
    fails(stw_optimizer_step(odd, NULL, NULL), STW_ERROR_INVALID, "never was");
    fails(stw_operation_poll(odd), STW_ERROR_INVALID, "never was");
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "not a live tensor");
    fails(stw_release(&view, 1, NULL, 0), STW_ERROR_INVALID, "not open");
    /* Inside the right memory, but not where an object begins. */
    odd = (char *)runtime + 1;
    fails(stw_runtime_drain(odd, 0), STW_ERROR_CLOSED, "never was");
}

TEST(null_arguments_of_a_live_runtime_are_refused)
{
    stw_runtime *runtime = *state;
    stw_tensor *tensor = tensor_f32(runtime, "t", 16);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    uint64_t bytes = 0;
    fails(stw_runtime_open(NULL, &runtime), STW_ERROR_INVALID, "options is null");
    runtime = *state;
    fails(stw_tensor_create(runtime, NULL, 1, &tensor), STW_ERROR_INVALID, "null");
    fails(stw_tensor_find(runtime, NULL, &tensor), STW_ERROR_INVALID, "null");
    fails(stw_tensor_find(runtime, "t", NULL), STW_ERROR_INVALID, "null");
    fails(stw_tensor_next(runtime, NULL, NULL), STW_ERROR_INVALID, "next_out is null");
    fails(stw_tensor_info_get(tensor, NULL), STW_ERROR_INVALID, "info_out is null");
    fails(stw_tensor_set_policy(tensor, NULL), STW_ERROR_INVALID, "policy is null");
    fails(stw_tensor_freeze(tensor, 2), STW_ERROR_INVALID, "frozen is 2");
    fails(stw_tensor_reshape(tensor, NULL, 1), STW_ERROR_INVALID, "shape is null");
    fails(stw_tensor_address(tensor, 0, NULL, &bytes), STW_ERROR_INVALID, "null");
    fails(stw_fetch(runtime, NULL, NULL, 1, &view), STW_ERROR_INVALID, "no requests");
    fails(stw_fetch(runtime, NULL, &request, 0, &view), STW_ERROR_INVALID, "no requests");
    fails(stw_fetch(runtime, NULL, &request, 1, NULL), STW_ERROR_INVALID, "views_out is null");
    fails(stw_fetch_async(runtime, NULL, &request, 1, NULL), STW_ERROR_INVALID,
          "operation_out is null");
    fails(stw_fetch_fits(runtime, NULL, 1), STW_ERROR_INVALID, "no requests");
    fails(stw_prefetch(runtime, NULL, 1), STW_ERROR_INVALID, "no requests");
    fails(stw_evict(runtime, NULL, 1, STW_TIER_HOST, 0, 0), STW_ERROR_INVALID, "null");
    fails(stw_tensor_write(tensor, NULL, NULL), STW_ERROR_INVALID, "source is null");
    fails(stw_tensor_read(tensor, NULL, NULL), STW_ERROR_INVALID, "destination is null");
    fails(stw_phase_create(runtime, "x", NULL), STW_ERROR_INVALID, "phase_out is null");
    fails(stw_optimizer_create(runtime, NULL, NULL), STW_ERROR_INVALID, "optimizer_out is null");
    fails(stw_device_info_get(runtime, 0, NULL), STW_ERROR_INVALID, "info_out is null");
    fails(stw_tier_stats_get(runtime, STW_TIER_HOST, 0, NULL), STW_ERROR_INVALID, "stats_out");
    fails(stw_link_stats_get(runtime, 1, 0, NULL), STW_ERROR_INVALID, "stats_out");
    fails(stw_report_write(runtime, NULL), STW_ERROR_INVALID, "path is null");
    fails(stw_timeline_write(runtime, NULL), STW_ERROR_INVALID, "path is null");
    assert_int_equal(stw_last_error_info(NULL), STW_ERROR_INVALID);
    ok(stw_tensor_destroy(&tensor, 1));
}

/* What nothing would honour is not taken in silence. */
TEST(options_without_effect_are_refused)
{
    stw_runtime *runtime = *state, *second = NULL;
    stw_tensor *tensor = tensor_f32(runtime, "sum", 16);
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    const float local[16] = {0};
    stw_reduce_options reduce = {.struct_size = sizeof reduce, .wire_dtype = STW_BF16};
    fails(stw_reduce(tensor, local, &reduce), STW_ERROR_UNSUPPORTED, "wire_dtype 3");
    reduce.wire_dtype = 0, reduce.tier = STW_TIER_DEVICE;
    ok(stw_reduce(tensor, local, &reduce)); /* the CPU is the device */
    reduce.stream = STW_STREAM_LEGACY;
    fails(stw_reduce(tensor, local, &reduce), STW_ERROR_INVALID, "device 0 has no streams");
    reduce.stream = STW_STREAM_HOST;
    reduce.device = 9;
    fails(stw_reduce(tensor, local, &reduce), STW_ERROR_INVALID, "has no such device");
    reduce.tier = STW_TIER_HOST, reduce.device = 9;
    fails(stw_reduce(tensor, local, &reduce), STW_ERROR_UNSUPPORTED, "device 9");
    reduce.device = 0;
    ok(stw_reduce(tensor, local, &reduce));
    float copy[16];
    stw_copy_options options_of_copy = STW_COPY_OPTIONS_INIT;
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
    stw_tensor_spec half = spec_f32("half", 16);
    half.dtype = STW_BF16;
    stw_tensor *parameter = tensor_make(runtime, &half);
    optimizer_add(optimizer, parameter, tensor);
    for (int wrong = 0; wrong < 2; ++wrong) {
        const char *words = wrong ? "device 9" : "tier 1 and device 0";
        options_of_copy.tier = wrong ? STW_TIER_HOST : STW_TIER_DEVICE;
        options_of_copy.device = wrong ? 9 : 0;
        const stw_copy_options *from = &options_of_copy;
        if (wrong) {
            fails(stw_tensor_write(tensor, local, from), STW_ERROR_UNSUPPORTED, words);
            fails(stw_tensor_read(tensor, copy, from), STW_ERROR_UNSUPPORTED, words);
        } else {
            ok(stw_tensor_write(tensor, local, from));
            ok(stw_tensor_read(tensor, copy, from));
        }
        fails(stw_tensor_fill(tensor, 1, from), STW_ERROR_UNSUPPORTED, words);
        fails(stw_optimizer_read_master(optimizer, parameter, copy, from), STW_ERROR_UNSUPPORTED,
              words);
        fails(stw_optimizer_write_master(optimizer, parameter, local, from), STW_ERROR_UNSUPPORTED,
              words);
    }
    options_of_copy.device = 0, options_of_copy.dtype = STW_BF16;
    fails(stw_tensor_fill(tensor, 1, &options_of_copy), STW_ERROR_INVALID, "options.dtype is 3");
    options_of_copy.dtype = 0, options_of_copy.stream = STW_STREAM_SYNCED;
    ok(stw_tensor_write(tensor, local, &options_of_copy));
    ok(stw_optimizer_destroy(optimizer));
    ok(stw_tensor_destroy(&parameter, 1));
    options.devices = &device, options.device_count = 1;
    device.budget_bytes = 8 * MIB, device.staging_bytes = MIB;
    fails(stw_runtime_open(&options, &second), STW_ERROR_UNSUPPORTED, "staging_bytes 1048576");
    device.staging_bytes = 0, device.ordinal = 77;
    fails(stw_runtime_open(&options, &second), STW_ERROR_UNSUPPORTED,
          "cpu driver has one device, 0, and none of ordinal 77");
    assert_null(second);
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(unknown_flags_and_enumerators_are_refused)
{
    stw_runtime *runtime = *state;
    stw_tensor *tensor = tensor_f32(runtime, "flags", 16);
    stw_tensor *made = NULL;
    stw_tensor_spec spec = spec_f32("x", 4);
    stw_policy policy = STW_POLICY_INIT;
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    ok(stw_tensor_fill(tensor, 1, NULL));
    spec.flags = 64;
    fails(stw_tensor_create(runtime, &spec, 1, &made), STW_ERROR_INVALID,
          "spec.flags has bits 0x40");
    spec.flags = 0, spec.role = 99;
    fails(stw_tensor_create(runtime, &spec, 1, &made), STW_ERROR_INVALID, "role 99");
    spec.role = 0, spec.dtype = 77;
    fails(stw_tensor_create(runtime, &spec, 1, &made), STW_ERROR_INVALID, "dtype 77");
    spec.dtype = STW_F32, spec.align_bytes = 48;
    fails(stw_tensor_create(runtime, &spec, 1, &made), STW_ERROR_INVALID, "align_bytes 48");
    spec.align_bytes = 8192;
    fails(stw_tensor_create(runtime, &spec, 1, &made), STW_ERROR_INVALID, "align_bytes 8192");
    spec.align_bytes = 0, spec.policy = &policy, policy.allowed_tiers = 64;
    fails(stw_tensor_create(runtime, &spec, 1, &made), STW_ERROR_INVALID, "allowed_tiers");
    policy.allowed_tiers = 0, policy.retention = 9;
    fails(stw_tensor_create(runtime, &spec, 1, &made), STW_ERROR_INVALID, "retention 9");
    assert_null(made);
    stw_fetch_options options = {.struct_size = sizeof options, .flags = 0x80};
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_INVALID, "0x80");
    options.flags = 0, options.stream = STW_STREAM_LEGACY;
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_INVALID, "STW_STREAM_HOST");
    request.access = 4;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "access 4");
    request.access = 0, request.scope = 2;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "scope 2");
    request.scope = 0, request.dtype = 99;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "dtype 99");
    request.dtype = 0, request.tier = STW_TIER_NVME;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "the nvme tier");
    request.tier = STW_TIER_DEVICE, request.device = 3;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "device 3");
    request = request_of(tensor, STW_READ);
    view = view_get(runtime, tensor, STW_READ);
    fails(stw_release(&view, 1, STW_STREAM_HOST, 64), STW_ERROR_INVALID, "0x40");
    fails(stw_release(&view, 1, STW_STREAM_LEGACY, 0), STW_ERROR_INVALID, "STW_STREAM_HOST");
    view_put(&view);
    fails(stw_advise(&tensor, 1, 3), STW_ERROR_INVALID, "advice 3");
    fails(stw_runtime_close(runtime, 2, 0), STW_ERROR_INVALID, "0x2");
    fails(stw_evict(runtime, &tensor, 1, STW_TIER_NVME, 0, 0), STW_ERROR_INVALID, "tier 3");
    fails(stw_tier_stats_get(runtime, 9, 0, &(stw_tier_stats)STW_TIER_STATS_INIT),
          STW_ERROR_INVALID, "tier 9");
    fails(stw_link_stats_get(runtime, 99, 0, &(stw_link_stats)STW_LINK_STATS_INIT),
          STW_ERROR_INVALID, "link 99");
    fails(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &(stw_link_stats)STW_LINK_STATS_INIT),
          STW_ERROR_UNSUPPORTED, "one rank");
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(options_of_open_are_checked)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    fails(stw_runtime_open(&options, NULL), STW_ERROR_INVALID, "runtime_out is null");
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "has a budget");
    options.flags = 128;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "options.flags has bits 0x80");
    options.flags = 0, options.block_bytes = 12345;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "12345");
    options.block_bytes = STW_BLOCK_64K, options.preset = 7;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "preset 7");
    options.preset = 0, options.log_level = 9;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "log_level 9");
    options.log_level = 0, options.group = (stw_group *)never_a_handle;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "group handle");
    options.group = NULL, options.device_count = 1;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "array is null");
    options.device_count = 100;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_LIMIT, "100 devices");
    options.device_count = 0, options.tensors_max = 1u << 30;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_LIMIT, "tensors_max");
    options.tensors_max = 0, options.host_bytes = MIB, options.nvme = &nvme, options.nvme_count = 1;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "nvme[0].path is empty");
    nvme.path = ".", nvme.budget_bytes = 1000;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "less than a superblock");
    nvme.budget_bytes = 4 * MIB, nvme.request_bytes = 5000;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "request_bytes is 5000");
    nvme.request_bytes = 0, nvme.flags = 1;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "flags");
    nvme.flags = 0, nvme.driver = "floppy";
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_UNSUPPORTED, "'floppy'");
    nvme.driver = "posix", nvme.driver_options = "speed=high";
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "speed");
    assert_null(runtime);
}

TEST(a_status_is_known_by_text_and_number)
{
    assert_string_equal(stw_status_string(STW_OK), "success");
    assert_non_null(strstr(stw_status_string(STW_ERROR_BUDGET), "budget"));
    assert_non_null(strstr(stw_status_string(-12345), "does not know"));
    assert_non_null(strchr(stw_version_string(), '+'));
    assert_int_equal(stw_abi_version(), 0);
    assert_int_equal(stw_dtype_bits(STW_BF16), 16);
    assert_int_equal(stw_dtype_bits(STW_I64), 64);
    assert_int_equal(stw_dtype_bits(STW_BOOL), 8);
    assert_int_equal(stw_dtype_bits(0), 0);
    assert_int_equal(stw_dtype_bits(13), 0);
}

TEST(outputs_are_untouched_by_an_error)
{
    stw_runtime *runtime = *state;
    stw_tensor *hit = tensor_f32(runtime, "resident", 16);
    stw_tensor *empty = tensor_f32(runtime, "empty", 16);
    stw_tensor *marker = (stw_tensor *)never_a_handle;
    stw_tensor *found = marker;
    stw_view views[2], before[2];
    stw_fetch_request requests[2];
    stw_tensor_spec specs[2];
    stw_tensor *made[2];
    stw_tensor *both[2];
    ok(stw_tensor_fill(hit, 1, NULL));
    stw_view warm = view_get(runtime, hit, STW_READ);
    memset(views, 0x77, sizeof views);
    memcpy(before, views, sizeof views);
    requests[0] = request_of(hit, STW_READ);
    requests[1] = request_of(empty, STW_READ);
    fails(stw_fetch(runtime, NULL, requests, 2, views), STW_ERROR_EMPTY, "'empty'");
    assert_memory_equal(views, before, sizeof views);
    view_put(&warm);
    fails(stw_tensor_find(runtime, "nobody", &found), STW_ERROR_NOT_FOUND, "'nobody'");
    assert_ptr_equal(found, marker);
    specs[0] = spec_f32("fine", 16), specs[1] = spec_f32("resident", 16);
    made[0] = made[1] = marker;
    fails(stw_tensor_create(runtime, specs, 2, made), STW_ERROR_EXISTS, "'resident'");
    assert_ptr_equal(made[0], marker);
    assert_ptr_equal(made[1], marker);
    fails(stw_tensor_find(runtime, "fine", &found), STW_ERROR_NOT_FOUND, "'fine'");
    both[0] = hit, both[1] = empty;
    ok(stw_tensor_destroy(both, 2));
}

TEST(the_last_error_is_of_this_thread_and_has_numbers)
{
    stw_runtime *runtime = *state;
    stw_tensor *tensor = tensor_f32(runtime, "named", 16);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_error_info small;
    stw_view view;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'named'");
    stw_error_info info = error_numbers();
    assert_int_equal(info.status, STW_ERROR_EMPTY);
    assert_int_equal(info.struct_size, sizeof info);
    assert_int_equal(info.rank, -1);
    assert_string_equal(info.tensor, "named");
    assert_string_equal(info.sentence, stw_last_error());
    /* An older program's struct is filled as far as it goes. */
    memset(&small, 0x33, sizeof small);
    small.struct_size = 16;
    assert_int_equal(stw_last_error_info(&small), STW_OK);
    assert_int_equal(small.status, STW_ERROR_EMPTY);
    assert_int_equal(small.struct_size, 16);
    assert_int_equal(((unsigned char *)&small)[16], 0x33);
    ok(stw_tensor_destroy(&tensor, 1));
}

RUN_TESTS("arguments", machine_setup, machine_teardown)
