/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two devices in one runtime: what was written on one is read on the other, also where one
 * of them lies across a bus.
 */
#include "support.h"

enum { BLOCKS = 8, ELEMENTS = 3 * 16384 + 77 }; /* three blocks and a bit */

static stw_runtime *open_two(const char *first, const char *second, uint32_t host_blocks)
{
    stw_device_options devices[2] = {STW_DEVICE_OPTIONS_INIT, STW_DEVICE_OPTIONS_INIT};
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    devices[0].driver = first, devices[1].driver = second;
    devices[0].budget_bytes = devices[1].budget_bytes = BLOCKS * BLOCK;
    options.devices = devices, options.device_count = 2;
    options.host_bytes = host_blocks * BLOCK, options.block_bytes = STW_BLOCK_64K;
    options.thread_count = 2, options.timeout_ns = 60 * SECOND_NS, options.log = log_line;
    log_reset();
    ok(stw_runtime_open(&options, &runtime));
    return runtime;
}

static stw_view view_at(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint32_t device)
{
    stw_fetch_request request = request_of(tensor, access);
    stw_view view;
    request.tier = STW_TIER_DEVICE, request.device = device;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    assert_int_equal(view.device, device);
    assert_int_equal(view.bytes, ELEMENTS * 4);
    return view;
}

static uint64_t used_on(stw_runtime *runtime, uint32_t device)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    ok(stw_tier_stats_get(runtime, STW_TIER_DEVICE, device, &stats));
    return stats.used_bytes;
}

/* Written on device 1, seen and changed on device 0, seen on device 1 again. */
static void there_and_back(const char *first, const char *second, uint32_t host_blocks)
{
    stw_runtime *runtime = open_two(first, second, host_blocks);
    stw_tensor *tensor = tensor_f32(runtime, "travels", ELEMENTS);
    stw_view view = view_at(runtime, tensor, STW_WRITE, 1);
    for (int i = 0; i < ELEMENTS; ++i) ((float *)view.pointer)[i] = (float)i;
    view_put(&view);
    assert_int_equal(used_on(runtime, 0), 0);
    assert_int_equal(used_on(runtime, 1), 4 * BLOCK);
    view = view_at(runtime, tensor, STW_READ_WRITE, 0);
    assert_int_equal(used_on(runtime, 0), 4 * BLOCK);
    for (int i = 0; i < ELEMENTS; ++i) {
        if (((float *)view.pointer)[i] != (float)i) fail_msg("element %d did not arrive", i);
        ((float *)view.pointer)[i] += 1;
    }
    view_put(&view);
    view = view_at(runtime, tensor, STW_READ, 1);
    for (int i = 0; i < ELEMENTS; ++i) {
        if (((float *)view.pointer)[i] != (float)i + 1) fail_msg("element %d did not return", i);
    }
    view_put(&view);
    machine_close(runtime);
}

TEST(bytes_go_from_one_device_to_the_other_and_back)
{
    there_and_back(NULL, NULL, 0);
    there_and_back(NULL, NULL, 16);
    there_and_back(NULL, "cpu-discrete", 16);
    there_and_back("cpu-discrete", NULL, 16);
    there_and_back("cpu-discrete", "cpu-discrete", 16);
}

TEST(each_device_has_a_budget_of_its_own)
{
    stw_runtime *runtime = open_two(NULL, NULL, 2 * BLOCKS);
    stw_tensor *tensors[2];
    stw_view views[2];
    stw_fetch_request request;
    stw_view more;
    for (uint32_t i = 0; i < 2; ++i) {
        stw_tensor_spec spec = spec_f32(NULL, BLOCKS * BLOCK / 4);
        tensors[i] = tensor_make(runtime, &spec);
        request = request_of(tensors[i], STW_WRITE);
        request.tier = STW_TIER_DEVICE, request.device = i;
        ok(stw_fetch(runtime, NULL, &request, 1, &views[i]));
        memset(views[i].pointer, (int)i + 1, views[i].bytes);
    }
    request = request_of(tensors[0], STW_READ), request.tier = STW_TIER_DEVICE, request.device = 2;
    fails(stw_fetch(runtime, NULL, &request, 1, &more), STW_ERROR_INVALID, "");
    assert_int_equal(((unsigned char *)views[0].pointer)[BLOCKS * BLOCK - 1], 1);
    view_put(&views[0]);
    view_put(&views[1]);
    machine_close(runtime);
}

/* With no farther tier each device can still promise its own room. */
TEST(devices_alone_hold_as_much_as_their_budgets_together)
{
    stw_runtime *runtime = open_two(NULL, NULL, 0);
    stw_policy policy = {.struct_size = sizeof policy, .home = STW_TIER_DEVICE};
    for (uint32_t i = 0; i < 2; ++i) {
        stw_tensor_spec spec = spec_f32(NULL, BLOCKS * BLOCK / 4);
        spec.policy = &policy, policy.home_device = i;
        (void)tensor_make(runtime, &spec);
    }
    machine_close(runtime);
}

RUN_TESTS("devices", NULL, NULL)
