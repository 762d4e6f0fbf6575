/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views on one thread: ranges, all or nothing, who excludes whom, budgets, cookies, hints. Every
 * test runs on each kind of machine, since nothing here depends on which tiers there are.
 */
#include "support.h"

static machine machine_now;

static stw_runtime *open_here(void)
{
    return machine_open(&machine_now);
}

TEST(ranges_show_their_elements_alone)
{
    stw_runtime *runtime = open_here();
    /* Three blocks and a bit. */
    const uint64_t elements = 3 * BLOCK / 4 + 100;
    stw_tensor *tensor = tensor_f32(runtime, "rows", elements);
    const uint64_t begins[] = {0, 1, BLOCK / 4 - 3, BLOCK / 4, 2 * BLOCK / 4 - 1, elements - 1};
    const uint64_t counts[] = {1, 5, 10, BLOCK / 4, 100, 1};
    stw_fetch_request request;
    stw_view view;
    tensor_fill_sequence(tensor, elements, 0);
    for (uint64_t i = 0; i < COUNT(begins); ++i) {
        request = request_range(tensor, STW_READ, begins[i], counts[i]);
        ok(stw_fetch(runtime, NULL, &request, 1, &view));
        assert_int_equal(view.bytes, counts[i] * 4);
        assert_int_equal(view.element_begin, begins[i]);
        assert_int_equal(view.element_count, counts[i]);
        assert_ptr_equal(view.tensor, tensor);
        for (uint64_t j = 0; j < counts[i]; ++j) {
            assert_float(((float *)view.pointer)[j], (float)(begins[i] + j));
        }
        view_put(&view);
    }
    request = request_range(tensor, STW_READ, elements, 1);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID,
          "not inside tensor 'rows'");
    request = request_range(tensor, STW_READ, UINT64_MAX, 2);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "not inside");
    request = request_range(tensor, STW_READ, 1, UINT64_MAX);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "not inside");
    ok(stw_tensor_destroy(&tensor, 1));
    machine_close(runtime);
}

TEST(writing_a_range_leaves_the_rest)
{
    stw_runtime *runtime = open_here();
    const uint64_t elements = 4 * BLOCK / 4;
    stw_tensor *tensor = tensor_f32(runtime, "t", elements);
    stw_fetch_request request = request_range(tensor, STW_WRITE, 100, BLOCK / 4);
    float *values = malloc(elements * 4);
    stw_view view;
    assert_non_null(values);
    tensor_fill_sequence(tensor, elements, 0);
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    for (uint64_t i = 0; i < view.element_count; ++i) ((float *)view.pointer)[i] = -1;
    view_put(&view);
    ok(stw_tensor_read(tensor, values, NULL));
    for (uint64_t i = 0; i < elements; ++i) {
        const int inside = i >= 100 && i < 100 + BLOCK / 4;
        if (values[i] != (inside ? -1.0F : (float)i))
            fail_msg("element %d is %g", (int)i, values[i]);
    }
    free(values);
    machine_close(runtime);
}

TEST(read_write_keeps_what_was_there)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "t", BLOCK);
    tensor_fill_sequence(tensor, BLOCK, 0);
    stw_view view = view_get(runtime, tensor, STW_READ_WRITE);
    for (uint64_t i = 0; i < BLOCK; ++i) ((float *)view.pointer)[i] += 5;
    view_put(&view);
    tensor_expect_sequence(tensor, BLOCK, 5);
    machine_close(runtime);
}

TEST(one_impossible_request_pins_nothing)
{
    stw_runtime *runtime = open_here();
    stw_tensor *fine = tensor_f32(runtime, "fine", BLOCK / 4);
    stw_tensor *blank = tensor_f32(runtime, "blank", BLOCK / 4);
    stw_tensor *large = tensor_f32(runtime, "large", 17 * BLOCK / 4);
    stw_fetch_request requests[2];
    stw_view views[2];
    ok(stw_tensor_fill(fine, 1, NULL));
    requests[0] = request_of(fine, STW_READ_WRITE), requests[1] = request_of(blank, STW_READ);
    fails(stw_fetch(runtime, NULL, requests, 2, views), STW_ERROR_EMPTY, "'blank'");
    requests[1] = request_of(large, STW_WRITE);
    fails(stw_fetch(runtime, NULL, requests, 2, views), STW_ERROR_BUDGET, "(2 requests)");
    assert_null(strstr(stw_last_error(), "release views")); /* there are none */
    stw_tier_stats stats = tier_stats(runtime, STW_TIER_DEFAULT);
    assert_int_equal(stats.open_views, 0);
    assert_int_equal(stats.pinned_bytes, 0);
    ok(stw_tensor_destroy(&fine, 1));
    machine_close(runtime);
}

TEST(readers_share_and_have_one_pointer)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "shared", 100);
    stw_view third;
    tensor_fill_sequence(tensor, 100, 0);
    stw_view first = view_get(runtime, tensor, STW_READ);
    stw_view second = view_get(runtime, tensor, STW_READ);
    assert_ptr_equal(first.pointer, second.pointer);
    assert_true(first.cookie != second.cookie);
    ok(stw_view_share(&first, &third));
    assert_ptr_equal(third.pointer, first.pointer);
    assert_int_equal(third.bytes, first.bytes);
    view_put(&first);
    assert_float(((float *)third.pointer)[50], 50);
    fails(stw_view_share(&first, &first), STW_ERROR_INVALID, "not open");
    view_put(&second);
    view_put(&third);
    first = view_get(runtime, tensor, STW_READ_WRITE);
    fails(stw_view_share(&first, &second), STW_ERROR_INVALID, "STW_READ");
    view_put(&first);
    machine_close(runtime);
}

TEST(a_conflict_with_the_own_thread_is_busy_at_once)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "mine", 100);
    stw_fetch_request request = request_of(tensor, STW_WRITE), pair[2];
    stw_view other, two[2];
    const uint64_t begin = clock_ns();
    tensor_fill_sequence(tensor, 100, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    fails(stw_fetch(runtime, NULL, &request, 1, &other), STW_ERROR_BUSY, "'mine'");
    view_put(&view);
    view = view_get(runtime, tensor, STW_READ_WRITE);
    request.access = STW_READ;
    fails(stw_fetch(runtime, NULL, &request, 1, &other), STW_ERROR_BUSY, "'mine'");
    request.access = STW_READ_WRITE;
    fails(stw_fetch(runtime, NULL, &request, 1, &other), STW_ERROR_BUSY, "release that view");
    fails(stw_tensor_fill(tensor, 0, NULL), STW_ERROR_BUSY, "'mine'");
    fails(stw_tensor_read(tensor, &other, NULL), STW_ERROR_BUSY, "'mine'");
    view_put(&view);
    pair[0] = request_of(tensor, STW_READ), pair[1] = request_of(tensor, STW_WRITE);
    fails(stw_fetch(runtime, NULL, pair, 2, two), STW_ERROR_BUSY, "twice in one call");
    /* At once: none of these waited for the timeout. */
    assert_true(clock_ns() - begin < 20 * SECOND_NS);
    machine_close(runtime);
}

TEST(pinned_room_is_a_budget_error_with_the_arithmetic)
{
    stw_runtime *runtime = open_here();
    stw_view other;
    stw_tier_stats stats = tier_stats(runtime, STW_TIER_DEFAULT);
    uint64_t blocks = (stats.budget_bytes - stats.staging_bytes) / BLOCK;
    stw_tensor *held = tensor_f32(runtime, "held", (blocks - 2) * BLOCK / 4);
    stw_tensor *wanted = tensor_f32(runtime, "wanted", 2 * BLOCK / 4);
    ok(stw_tensor_fill(held, 1, NULL));
    stw_view view = view_get(runtime, held, STW_READ);
    stw_fetch_request request = request_of(wanted, STW_WRITE);
    ok(stw_fetch(runtime, NULL, &request, 1, &other));
    view_put(&other);
    ok(stw_tensor_destroy(&wanted, 1));
    if (machine_now.nvme_blocks > 0) {
        wanted = tensor_f32(runtime, "wanted", 3 * BLOCK / 4);
        request = request_of(wanted, STW_WRITE);
        fails(stw_fetch(runtime, NULL, &request, 1, &other), STW_ERROR_BUDGET, "'wanted'");
        assert_non_null(strstr(stw_last_error(), "192.0 KiB needed"));
        assert_non_null(strstr(stw_last_error(), "'wanted' (1 request)"));
        assert_non_null(strstr(stw_last_error(), "pinned by open views"));
        assert_non_null(strstr(stw_last_error(), "release views"));
        stw_error_info info = error_numbers();
        assert_int_equal(info.needed_bytes, 3 * BLOCK);
        assert_int_equal(info.pinned_bytes, (blocks - 2) * BLOCK);
        assert_int_equal(info.pinned_views, 1);
        view_put(&view);
        ok(stw_fetch(runtime, NULL, &request, 1, &other));
        view_put(&other);
    } else {
        view_put(&view);
    }
    machine_close(runtime);
}

TEST(try_never_waits)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    stw_tensor *other = tensor_f32(runtime, "other", 4 * BLOCK / 4);
    stw_fetch_request request = request_of(tensor, STW_WRITE);
    stw_view second;
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_TRY};
    tensor_fill_sequence(tensor, 100, 0);
    tensor_fill_sequence(other, 4 * BLOCK / 4, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    fails(stw_fetch(runtime, &options, &request, 1, &second), STW_ERROR_BUSY, "in the way");
    request.access = STW_READ;
    ok(stw_fetch(runtime, &options, &request, 1, &second));
    view_put(&second);
    view_put(&view);
    if (machine_now.nvme_blocks > 0 && machine_now.device_blocks > 0) {
        ok(stw_evict(runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
        if (machine_now.host_blocks > 0) ok(stw_evict(runtime, NULL, 0, STW_TIER_HOST, 0, 0));
        request = request_of(other, STW_READ);
        fails(stw_fetch(runtime, &options, &request, 1, &second), STW_ERROR_BUSY, "resident");
        view = view_get(runtime, other, STW_READ);
        view_put(&view);
        ok(stw_fetch(runtime, &options, &request, 1, &second));
        view_put(&second);
    }
    machine_close(runtime);
}

/* As many hits as there may be, or none of them: the one that is held is the last, or first. */
TEST(hits_of_a_large_call_are_all_or_nothing)
{
    enum { N = 1000 };
    static stw_fetch_request requests[N];
    static stw_view views[N], before[N];
    static stw_tensor *tensors[N];
    stw_runtime *runtime = open_here();
    for (int i = 0; i < N; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, 40);
        tensor_fill_sequence(tensors[i], 40, (float)i);
        requests[i] = request_range(tensors[i], STW_READ, (uint64_t)i % 7, 1 + (uint64_t)i % 30);
        requests[i].scope = i % 2 ? STW_SHARD : STW_WHOLE;
    }
    memset(before, 0x2f, sizeof before);
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_TRY};
    for (int round = 0; round < 4; ++round) {
        ok(stw_fetch(runtime, NULL, requests, N, views));
        for (int i = 0; i < N; ++i) {
            assert_ptr_equal(views[i].tensor, tensors[i]);
            assert_int_equal(views[i].element_begin, i % 7);
            assert_int_equal(views[i].element_count, 1 + i % 30);
            assert_int_equal(views[i].bytes, 4 * (1 + i % 30));
            assert_int_equal(views[i].scope, requests[i].scope);
            assert_int_equal(views[i].access, STW_READ);
            assert_float(((float *)views[i].pointer)[0], (float)(i + i % 7));
        }
        ok(stw_release(views, N, STW_STREAM_HOST, 0));
        stw_view held = view_get(runtime, tensors[round % 2 ? 0 : N - 1], STW_READ_WRITE);
        memcpy(views, before, sizeof views);
        fails(stw_fetch(runtime, &options, requests, N, views), STW_ERROR_BUSY, "in the way");
        assert_memory_equal(views, before, sizeof views);
        for (int i = 0; i < N; ++i) {
            stw_tensor_info info = info_of(tensors[i]);
            assert_int_equal(info.open_views, tensors[i] == held.tensor);
        }
        view_put(&held);
    }
    ok(stw_tensor_destroy(tensors, N));
    machine_close(runtime);
}

TEST(double_stale_and_torn_views_are_found_out)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    stw_view torn, zeroed;
    tensor_fill_sequence(tensor, 100, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    stw_view copy = view;
    view_put(&view);
    assert_int_equal(view.cookie, 0);
    fails(stw_release(&view, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
    fails(stw_release(&copy, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "released before");
    /* The slot is used again; the old cookie still does not fit. */
    view = view_get(runtime, tensor, STW_READ);
    fails(stw_release(&copy, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
    torn = view, torn.cookie ^= UINT64_C(0x4000000);
    fails(stw_release(&torn, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
    torn = view, torn.cookie = UINT64_MAX;
    fails(stw_release(&torn, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
    memset(&zeroed, 0, sizeof zeroed);
    fails(stw_release(&zeroed, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
    view_put(&view);
    machine_close(runtime);
}

TEST(a_view_with_another_ones_tensor_is_torn)
{
    stw_runtime *runtime = open_here();
    stw_tensor *a = tensor_f32(runtime, "a", 100);
    stw_tensor *b = tensor_f32(runtime, "b", 100);
    stw_view torn;
    tensor_fill_sequence(a, 100, 0);
    stw_view view = view_get(runtime, a, STW_READ);
    torn = view, torn.tensor = b;
    fails(stw_release(&torn, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "overwritten");
    view_put(&view);
    machine_close(runtime);
}

TEST(one_bad_view_does_not_keep_the_good_ones)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    stw_view views[3];
    tensor_fill_sequence(tensor, 100, 0);
    for (int bad = 0; bad < 3; ++bad) {
        for (int i = 0; i < 3; ++i) views[i] = view_get(runtime, tensor, STW_READ);
        view_put(&views[bad]);
        memset(&views[bad], 0, sizeof views[bad]);
        fails(stw_release(views, 3, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
        for (int i = 0; i < 3; ++i) assert_int_equal(views[i].cookie, 0);
        views[0] = view_get(runtime, tensor, STW_WRITE); /* BUSY if one were open */
        memset(views[0].pointer, 0, 400);
        view_put(&views[0]);
    }
    machine_close(runtime);
}

TEST(abandon_and_discard_say_what_became_of_the_bytes)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    stw_fetch_request request = request_of(tensor, STW_READ);
    /* Never written, abandoned: empty as before. */
    stw_view view = view_get(runtime, tensor, STW_WRITE);
    memset(view.pointer, 0x11, 400);
    ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_ABANDON));
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'t'");
    view = view_get(runtime, tensor, STW_WRITE);
    memset(view.pointer, 0, 400);
    ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_DISCARD));
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'t'");
    tensor_fill_sequence(tensor, 100, 0);
    view = view_get(runtime, tensor, STW_READ);
    ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_DISCARD));
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'t'");
    machine_close(runtime);
}

static uint64_t bytes_to_disk(stw_runtime *runtime)
{
    ok(stw_runtime_drain(runtime, 0));
    return link_stats(runtime, STW_LINK_DEVICE_TO_NVME).bytes +
           link_stats(runtime, STW_LINK_HOST_TO_NVME).bytes;
}

TEST(what_is_dead_is_not_written_back_however_far_its_next_use)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "t", BLOCK / 4);
    for (int again = 0; again < 2; ++again) {
        const uint64_t before = bytes_to_disk(runtime);
        stw_view view = view_get(runtime, tensor, STW_WRITE);
        memset(view.pointer, 0, BLOCK);
        view_put(&view);
        view = view_get(runtime, tensor, STW_READ);
        ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_FAR | STW_RELEASE_DISCARD));
        assert_int_equal(bytes_to_disk(runtime), before);
    }
    machine_close(runtime);
}

TEST(an_abandoned_write_leaves_the_tensor_empty_even_where_it_was_valid)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensor = tensor_f32(runtime, "t", BLOCK / 4);
    stw_fetch_request request = request_of(tensor, STW_READ);
    const uint32_t writes[] = {STW_WRITE, STW_READ_WRITE};
    stw_tensor_info info = {.struct_size = sizeof info};
    for (size_t i = 0; i < COUNT(writes); ++i) {
        tensor_fill_sequence(tensor, BLOCK / 4, 3);
        /* Stored, so that there would be an older replica to fall back to. */
        if (machine_now.device_blocks > 0)
            ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
        if (machine_now.host_blocks > 0) ok(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0));
        stw_view view = view_get(runtime, tensor, writes[i]);
        memset(view.pointer, 0x22, BLOCK);
        ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_ABANDON));
        fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'t'");
        ok(stw_tensor_info_get(tensor, &info));
        assert_int_equal(info.state, STW_STATE_EMPTY);
        assert_int_equal(info.residence, 0);
    }
    tensor_fill_sequence(tensor, BLOCK / 4, 5);
    tensor_expect_sequence(tensor, BLOCK / 4, 5);
    machine_close(runtime);
}

TEST(hints_beyond_the_budget_never_fail)
{
    stw_runtime *runtime = open_here();
    stw_tensor *tensors[12];
    stw_fetch_request requests[12];
    const uint32_t advice[] = {STW_ADVICE_COLD, STW_ADVICE_HOT, STW_ADVICE_NORMAL};
    const uint32_t blocks = machine_now.nvme_blocks > 0 ? 3 : 1;
    const uint64_t elements = blocks * BLOCK / 4;
    int n = machine_now.nvme_blocks > 0 ? 12 : 6;
    for (int i = 0; i < n; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, elements);
        tensor_fill_sequence(tensors[i], elements, (float)i);
        requests[i] = request_of(tensors[i], STW_READ);
    }
    for (int round = 0; round < 4; ++round) {
        ok(stw_prefetch(runtime, requests, (uint32_t)n));
        ok(stw_advise(tensors, (uint32_t)n, advice[round % 3]));
        for (int i = 0; i < n; ++i) tensor_expect_sequence(tensors[i], elements, (float)i);
    }
    ok(stw_runtime_drain(runtime, 0));
    machine_close(runtime);
}

TEST(fits_answers_without_moving_anything)
{
    stw_runtime *runtime = open_here();
    stw_tensor *a = tensor_f32(runtime, "a", 4 * BLOCK / 4);
    stw_fetch_request requests[2];
    stw_tier_stats stats = tier_stats(runtime, STW_TIER_DEFAULT);
    uint64_t blocks = (stats.budget_bytes - stats.staging_bytes) / BLOCK;
    requests[0] = request_of(a, STW_READ);
    ok(stw_fetch_fits(runtime, requests, 1));
    if (machine_now.nvme_blocks > 0) {
        stw_tensor *b = tensor_f32(runtime, "b", (blocks - 3) * BLOCK / 4);
        requests[1] = request_of(b, STW_READ);
        fails(stw_fetch_fits(runtime, requests, 2), STW_ERROR_BUDGET, "needed");
        assert_true(error_numbers().needed_bytes > 0);
        requests[1] = request_range(b, STW_READ, 0, BLOCK / 4);
        ok(stw_fetch_fits(runtime, requests, 2));
    }
    stats = tier_stats(runtime, STW_TIER_DEFAULT);
    assert_int_equal(stats.pinned_bytes, 0);
    machine_close(runtime);
}

/* The first sums in place, the second into a buffer of its own. */
TEST(fits_counts_the_buffer_of_a_second_sum)
{
    stw_runtime *runtime = open_here();
    stw_tier_stats stats = tier_stats(runtime, STW_TIER_DEFAULT);
    uint64_t blocks = (stats.budget_bytes - stats.staging_bytes) / BLOCK;
    stw_tensor *gradient = tensor_f32(runtime, "gradient", (blocks / 2 + 1) * BLOCK / 4);
    stw_fetch_request requests[2];
    stw_view views[2];
    requests[0] = requests[1] = request_of(gradient, STW_REDUCE);
    ok(stw_fetch_fits(runtime, requests, 1));
    fails(stw_fetch_fits(runtime, requests, 2), STW_ERROR_BUDGET, "needed");
    fails(stw_fetch(runtime, NULL, requests, 2, views), STW_ERROR_BUDGET, "");
    machine_close(runtime);
}

TEST(empty_tensors_and_scalars_are_views_too)
{
    stw_runtime *runtime = open_here();
    stw_tensor_spec spec = spec_f32("nothing", 0);
    stw_tensor *nothing = tensor_make(runtime, &spec), *scalar;
    float value = 0;
    stw_view view = view_get(runtime, nothing, STW_WRITE);
    assert_int_equal(view.bytes, 0);
    assert_int_equal(view.element_count, 0);
    assert_null(view.pointer);
    view_put(&view);
    ok(stw_tensor_fill(nothing, 1, NULL));
    ok(stw_tensor_read(nothing, NULL, NULL));
    spec = spec_f32("scalar", 0), spec.dimensions = 0;
    scalar = tensor_make(runtime, &spec);
    view = view_get(runtime, scalar, STW_WRITE);
    assert_int_equal(view.bytes, 4);
    *(float *)view.pointer = 42;
    view_put(&view);
    ok(stw_tensor_read(scalar, &value, NULL));
    assert_float(value, 42);
    machine_close(runtime);
}

TEST(every_dtype_and_alignment_survives_a_round_trip)
{
    stw_runtime *runtime = open_here();
    unsigned char bytes[8 * 37], back[8 * 37];
    for (size_t i = 0; i < sizeof bytes; ++i) bytes[i] = (unsigned char)(i * 7 + 1);
    for (uint32_t dtype = STW_F32; dtype <= STW_BOOL; ++dtype) {
        for (uint64_t align = 1; align <= 4096; align *= 4) {
            stw_tensor_spec spec = spec_f32(NULL, 37);
            spec.dtype = dtype, spec.align_bytes = align;
            stw_tensor *tensor = tensor_make(runtime, &spec);
            ok(stw_tensor_write(tensor, bytes, NULL));
            ok(stw_tensor_read(tensor, back, NULL));
            assert_memory_equal(bytes, back, 37 * stw_dtype_bits(dtype) / 8);
            stw_view view = view_get(runtime, tensor, STW_READ);
            assert_int_equal((uintptr_t)view.pointer % align, 0);
            assert_memory_equal(bytes, view.pointer, view.bytes);
            view_put(&view);
            ok(stw_tensor_destroy(&tensor, 1));
        }
    }
    machine_close(runtime);
}

RUN_TESTS_ON_EACH_MACHINE("fetch", &machine_now)
