/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous fetches: poll, wait, collect, cancel, free; and the maxima set at open.
 */
#include "support.h"

static stw_operation *ask(stw_runtime *runtime, stw_tensor *tensor, uint32_t access)
{
    stw_fetch_request request = request_of(tensor, access);
    stw_operation *operation = NULL;
    ok(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    assert_non_null(operation);
    return operation;
}

TEST(an_operation_is_waited_for_collected_once_and_freed)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 5 * BLOCK / 4);
    stw_view views[2];
    tensor_fill_sequence(tensor, 5 * BLOCK / 4, 0);
    ok(stw_evict(runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
    ok(stw_evict(runtime, NULL, 0, STW_TIER_HOST, 0, 0));
    stw_operation *operation = ask(runtime, tensor, STW_READ);
    ok(status_of(operation));
    ok(stw_operation_poll(operation));
    fails(stw_fetch_collect(operation, STW_STREAM_HOST, views, 2), STW_ERROR_INVALID,
          "2 views asked of a fetch of 1 requests");
    fails(stw_fetch_collect(operation, STW_STREAM_HOST, NULL, 1), STW_ERROR_INVALID, "null");
    fails(stw_fetch_collect(operation, STW_STREAM_LEGACY, views, 1), STW_ERROR_INVALID, "stream");
    ok(stw_fetch_collect(operation, STW_STREAM_HOST, views, 1));
    fails(stw_fetch_collect(operation, STW_STREAM_HOST, views, 1), STW_ERROR_INVALID, "collected");
    assert_float(((float *)views[0].pointer)[1234], 1234);
    /* The views live on without the operation. */
    ok(stw_operation_free(operation));
    assert_float(((float *)views[0].pointer)[5 * BLOCK / 4 - 1], (float)(5 * BLOCK / 4 - 1));
    view_put(&views[0]);
    machine_close(runtime);
}

TEST(freeing_what_was_not_collected_gives_its_pins_back)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 6 * BLOCK / 4);
    stw_tier_stats stats;
    for (uint32_t access = STW_READ; access <= STW_REDUCE; ++access) {
        tensor_fill_sequence(tensor, 6 * BLOCK / 4, 0);
        stw_operation *operation = ask(runtime, tensor, access);
        if (access != STW_REDUCE) {
            ok(status_of(operation));
            fails(stw_tensor_destroy(&tensor, 1), STW_ERROR_BUSY, "'t'");
        }
        ok(stw_operation_free(operation));
        ok(stw_runtime_drain(runtime, 0));
        stats = tier_stats(runtime, STW_TIER_DEVICE);
        assert_int_equal(stats.pinned_bytes, 0);
        if (access != STW_WRITE) tensor_expect_sequence(tensor, 6 * BLOCK / 4, 0);
        stw_view view = view_get(runtime, tensor, STW_WRITE);
        view_put(&view);
    }
    ok(stw_tensor_destroy(&tensor, 1));
    stats = tier_stats(runtime, STW_TIER_DEVICE);
    assert_int_equal(stats.tensors, 0);
    machine_close(runtime);
}

TEST(a_waiting_operation_can_be_cancelled)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *held = tensor_f32(runtime, "held", 6 * BLOCK / 4);
    stw_tensor *wanted = tensor_f32(runtime, "wanted", 6 * BLOCK / 4);
    stw_fetch_request request = request_of(wanted, STW_READ);
    stw_operation *operation = NULL;
    stw_view none;
    tensor_fill_sequence(held, 6 * BLOCK / 4, 0);
    tensor_fill_sequence(wanted, 6 * BLOCK / 4, 0);
    stw_view view = view_get(runtime, held, STW_READ);
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_WAIT_ROOM};
    ok(stw_fetch_async(runtime, &options, &request, 1, &operation));
    /* Who comes back by himself may release meanwhile; who waits for the answer alone cannot. */
    assert_int_equal(stw_operation_wait(operation, MILLISECOND_NS), STW_PENDING);
    fails(stw_operation_wait(operation, 0), STW_ERROR_BUDGET, "gives way");
    ok(stw_operation_free(operation));
    view_put(&view);
    operation = ask(runtime, wanted, STW_READ);
    ok(stw_operation_cancel(operation));
    assert_true(status_of(operation) == STW_OK || status_of(operation) == STW_ERROR_CANCELLED);
    if (status_of(operation) == STW_ERROR_CANCELLED) {
        fails(stw_fetch_collect(operation, STW_STREAM_HOST, &none, 1), STW_ERROR_CANCELLED,
              "cancelled");
    }
    ok(stw_operation_cancel(operation)); /* too late is no mistake */
    ok(stw_operation_free(operation));
    tensor_expect_sequence(wanted, 6 * BLOCK / 4, 0);
    machine_close(runtime);
}

TEST(a_sum_into_contents_gets_its_buffer_before_anybody_asks)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *gradient = tensor_f32(runtime, "gradient", BLOCK / 4);
    tensor_fill_sequence(gradient, BLOCK / 4, 0);
    stw_operation *operation = ask(runtime, gradient, STW_REDUCE);
    ok(stw_runtime_drain(runtime, 0));
    stw_tier_stats stats = tier_stats(runtime, STW_TIER_DEVICE);
    assert_int_equal(stats.pinned_bytes, BLOCK);
    ok(stw_operation_poll(operation));
    ok(stw_operation_free(operation));
    tensor_expect_sequence(gradient, BLOCK / 4, 0);
    machine_close(runtime);
}

TEST(a_failed_fetch_says_why_when_asked)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *blank = tensor_f32(runtime, "blank", 100);
    stw_operation *operation = ask(runtime, blank, STW_READ);
    stw_view view;
    fails(status_of(operation), STW_ERROR_EMPTY, "'blank'");
    fails(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1), STW_ERROR_EMPTY, "'blank'");
    ok(stw_operation_free(operation));
    machine_close(runtime);
}

TEST(operations_max_is_a_limit_and_open_ones_keep_the_runtime)
{
    machine small = machine_small();
    stw_operation *operations[3], *more = NULL;
    small.operations_max = 3;
    stw_runtime *runtime = machine_open(&small);
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    tensor_fill_sequence(tensor, 100, 0);
    for (int round = 0; round < 5; ++round) {
        for (int i = 0; i < 3; ++i) operations[i] = ask(runtime, tensor, STW_READ);
        stw_fetch_request request = request_of(tensor, STW_READ);
        fails(stw_fetch_async(runtime, NULL, &request, 1, &more), STW_ERROR_LIMIT, "3 operations");
        assert_null(more);
        fails(stw_runtime_close(runtime, 0, 0), STW_ERROR_BUSY, "3 operations");
        fails(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0), STW_ERROR_BUSY, "3 operations");
        for (int i = 0; i < 3; ++i) ok(stw_operation_free(operations[i]));
    }
    machine_close(runtime);
}

TEST(views_max_is_a_limit_with_its_number)
{
    machine small = machine_small();
    stw_fetch_request requests[5];
    stw_view views[5], more;
    small.views_max = 4;
    stw_runtime *runtime = machine_open(&small);
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    tensor_fill_sequence(tensor, 100, 0);
    for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < 4; ++i) views[i] = view_get(runtime, tensor, STW_READ);
        requests[0] = request_of(tensor, STW_READ);
        fails(stw_fetch(runtime, NULL, requests, 1, &more), STW_ERROR_LIMIT, "4 views are open");
        fails(stw_view_share(&views[0], &more), STW_ERROR_LIMIT, "4 views are open");
        ok(stw_release(views, 4, STW_STREAM_HOST, 0));
        for (int i = 0; i < 5; ++i) requests[i] = request_of(tensor, STW_READ);
        fails(stw_fetch(runtime, NULL, requests, 5, views), STW_ERROR_LIMIT, "views_max");
        ok(stw_fetch(runtime, NULL, requests, 4, views));
        ok(stw_release(views, 4, STW_STREAM_HOST, 0));
    }
    machine_close(runtime);
}

RUN_TESTS("operations", NULL, NULL)
