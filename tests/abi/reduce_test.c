/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients: views that sum at release, sums from the caller's memory, micro-batches.
 */
#include "support.h"

enum { ELEMENTS = 20000 }; /* a bit more than one block of 64 KiB */

static stw_tensor *gradient_make(stw_runtime *runtime, const char *name)
{
    stw_tensor_spec spec = spec_f32(name, ELEMENTS);
    spec.role = STW_ROLE_GRAD;
    return tensor_make(runtime, &spec);
}

static void add_to_view(const stw_view *view, float value)
{
    float *values = view->pointer;
    for (uint64_t i = 0; i < view->element_count; ++i) values[i] += value * (float)(i % 7);
}

static void expect_sum(stw_tensor *gradient, float value)
{
    float *values = malloc(ELEMENTS * sizeof *values);
    assert_non_null(values);
    ok(stw_tensor_read(gradient, values, NULL));
    for (int i = 0; i < ELEMENTS; ++i) {
        if (values[i] == value * (float)(i % 7)) continue;
        fail_msg("element %d is %g, not %g", i, values[i], value * (float)(i % 7));
    }
    free(values);
}

TEST(a_view_begins_as_zeros_and_is_summed_at_release)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g");
    for (int i = 0; i < 4; ++i) {
        stw_view view = view_get(runtime, gradient, STW_REDUCE);
        for (int j = 0; j < ELEMENTS; ++j) assert_float(((float *)view.pointer)[j], 0);
        add_to_view(&view, 1);
        ok(stw_release(&view, 1, STW_STREAM_HOST, i < 3 ? STW_RELEASE_MORE : 0));
        expect_sum(gradient, (float)(i + 1));
    }
    machine_close(runtime);
}

TEST(two_views_open_at_once_are_private)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g");
    stw_view first = view_get(runtime, gradient, STW_REDUCE);
    stw_view second = view_get(runtime, gradient, STW_REDUCE);
    assert_ptr_not_equal(first.pointer, second.pointer);
    add_to_view(&first, 1);
    add_to_view(&second, 10);
    view_put(&second);
    view_put(&first);
    expect_sum(gradient, 11);
    machine_close(runtime);
}

TEST(an_abandoned_view_adds_nothing)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g");
    stw_fetch_request request = request_of(gradient, STW_READ);
    stw_view view = view_get(runtime, gradient, STW_REDUCE);
    add_to_view(&view, 5);
    ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_ABANDON));
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'g'");
    view = view_get(runtime, gradient, STW_REDUCE);
    add_to_view(&view, 2);
    view_put(&view);
    view = view_get(runtime, gradient, STW_REDUCE);
    add_to_view(&view, 5);
    ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_ABANDON));
    expect_sum(gradient, 2);
    machine_close(runtime);
}

TEST(a_part_of_a_gradient_is_summed_with_zeros_around_it)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g");
    static float values[ELEMENTS];
    /* Inside a block, over the border of two, to the end, and one that overlaps others. */
    const int begins[] = {10, BLOCK / 4 - 100, ELEMENTS - 3, 0};
    const int counts[] = {20, 300, 3, ELEMENTS / 2};
    stw_view view;
    int i;
    float wanted;
    for (i = 0; i < 4; ++i) {
        stw_fetch_request request =
            request_range(gradient, STW_REDUCE, (uint64_t)begins[i], (uint64_t)counts[i]);
        ok(stw_fetch(runtime, NULL, &request, 1, &view));
        assert_int_equal(view.element_count, counts[i]);
        for (int j = 0; j < counts[i]; ++j) {
            assert_float(((float *)view.pointer)[j], 0);
            ((float *)view.pointer)[j] = (float)(i + 1);
        }
        view_put(&view);
    }
    ok(stw_tensor_read(gradient, values, NULL));
    for (int j = 0; j < ELEMENTS; ++j) {
        for (wanted = 0, i = 0; i < 4; ++i) {
            if (j >= begins[i] && j < begins[i] + counts[i]) wanted += (float)(i + 1);
        }
        if (values[j] != wanted) fail_msg("element %d is %g, not %g", j, values[j], wanted);
    }
    ok(stw_tensor_destroy(&gradient, 1));
    machine_close(runtime);
}

TEST(memory_of_the_callers_is_summed_with_scale_and_dtype)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g");
    stw_reduce_options options = STW_REDUCE_OPTIONS_INIT;
    float *local = malloc(ELEMENTS * sizeof *local);
    uint16_t *half = malloc(ELEMENTS * sizeof *half);
    assert_non_null(local);
    assert_non_null(half);
    for (int i = 0; i < ELEMENTS; ++i) {
        local[i] = (float)(i % 7);
        half[i] = 0;
        if (i % 7) { /* bf16 of 0..6 is exact: the upper half of the float */
            uint32_t bits;
            memcpy(&bits, &local[i], 4);
            half[i] = (uint16_t)(bits >> 16);
        }
    }
    ok(stw_reduce(gradient, NULL, NULL)); /* nothing, and so no gradient */
    fails(stw_tensor_read(gradient, half, NULL), STW_ERROR_EMPTY, "never written");
    ok(stw_reduce(gradient, local, NULL));
    expect_sum(gradient, 1);
    options.scale = 0.5, options.flags = STW_REDUCE_MORE;
    ok(stw_reduce(gradient, local, &options));
    expect_sum(gradient, 1.5F);
    options.scale = 2, options.dtype = STW_BF16, options.flags = 0;
    ok(stw_reduce(gradient, half, &options));
    expect_sum(gradient, 3.5F);
    options.flags = 8;
    fails(stw_reduce(gradient, local, &options), STW_ERROR_INVALID, "0x8");
    options.flags = 0, options.dtype = STW_I32;
    fails(stw_reduce(gradient, local, &options), STW_ERROR_INVALID, "to i32");
    options.dtype = 0, options.stream = STW_STREAM_LEGACY;
    fails(stw_reduce(gradient, local, &options), STW_ERROR_INVALID, "STW_STREAM_HOST");
    expect_sum(gradient, 3.5F);
    free(local);
    free(half);
    machine_close(runtime);
}

/* Refused before anything is added, whichever way it comes; the tensor and its dtype are named. */
TEST(only_three_dtypes_are_summed)
{
    static const struct {
        uint32_t dtype;
        const char *words;
    } refused[] = {
        {STW_F64, "'sums' of dtype f64"},   {STW_I32, "'sums' of dtype i32"},
        {STW_I64, "'sums' of dtype i64"},   {STW_U8, "'sums' of dtype u8"},
        {STW_BOOL, "'sums' of dtype bool"}, {STW_F8_E4M3, "'sums' of dtype f8_e4m3"},
    };
    stw_runtime *runtime = machine_open(*state);
    uint64_t local[10] = {0};
    for (size_t i = 0; i < COUNT(refused); ++i) {
        stw_tensor_spec spec = spec_f32("sums", 10);
        stw_view view;
        spec.dtype = refused[i].dtype, spec.role = STW_ROLE_GRAD;
        stw_tensor *tensor = tensor_make(runtime, &spec);
        stw_fetch_request request = request_of(tensor, STW_REDUCE);
        fails(stw_reduce(tensor, local, NULL), STW_ERROR_INVALID, refused[i].words);
        fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, refused[i].words);
        ok(stw_tensor_destroy(&tensor, 1));
    }
    machine_close(runtime);
}

TEST(one_call_fetches_a_gradient_several_times)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g");
    for (int round = 1; round <= 2; ++round) {
        stw_fetch_request requests[3];
        stw_view views[3];
        for (int i = 0; i < 3; ++i) requests[i] = request_of(gradient, STW_REDUCE);
        ok(stw_fetch(runtime, NULL, requests, 3, views));
        for (int i = 0; i < 3; ++i) add_to_view(&views[i], (float)(i + 1));
        ok(stw_release(views, 3, STW_STREAM_HOST, 0));
        expect_sum(gradient, (float)(6 * round));
    }
    machine_close(runtime);
}

/* A gradient rests in the host tier: it stays off the disk as long as there is room for it. */
TEST(gradients_are_not_written_to_disk_while_there_is_room)
{
    static float local[ELEMENTS];
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g");
    const uint32_t links[] = {STW_LINK_HOST_TO_NVME, STW_LINK_DEVICE_TO_NVME};
    stw_link_stats stats = STW_LINK_STATS_INIT;
    for (int i = 0; i < 3; ++i) ok(stw_reduce(gradient, local, NULL));
    stw_view view = view_get(runtime, gradient, STW_REDUCE);
    view_put(&view);
    view = view_get(runtime, gradient, STW_READ_WRITE);
    ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_FAR));
    ok(stw_advise(&gradient, 1, STW_ADVICE_COLD));
    ok(stw_runtime_drain(runtime, 0));
    for (int i = 0; i < 2; ++i) {
        ok(stw_link_stats_get(runtime, links[i], 0, &stats));
        assert_int_equal(stats.bytes, 0);
    }
    machine_close(runtime);
}

TEST(sums_survive_eviction_between_micro_batches)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradients[6];
    for (int i = 0; i < 6; ++i) gradients[i] = gradient_make(runtime, NULL);
    for (int round = 0; round < 5; ++round) {
        for (int i = 0; i < 6; ++i) {
            stw_view view = view_get(runtime, gradients[i], STW_REDUCE);
            add_to_view(&view, (float)(i + 1));
            ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_MORE | STW_RELEASE_FAR));
        }
        if (((machine *)*state)->nvme_blocks > 0) {
            ok(stw_runtime_drain(runtime, 0));
            ok(stw_evict(runtime, NULL, 0, STW_TIER_DEFAULT, 0, 0));
        }
    }
    for (int i = 0; i < 6; ++i) expect_sum(gradients[i], 5 * (float)(i + 1));
    machine_close(runtime);
}

/* 256 + 0.5 is 256 in bf16: it stays so, and the report says where it can happen. */
TEST(sums_in_half_precision_are_named_in_the_report)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor_spec spec = spec_f32("half.grad", 8);
    stw_tensor *half, *full = tensor_f32(runtime, "full.grad", 8);
    const float large[8] = {256, 256, 256, 256, 256, 256, 256, 256}, small[8] = {0.5F};
    stw_reduce_options options = STW_REDUCE_OPTIONS_INIT;
    stw_copy_options as_f32 = STW_COPY_OPTIONS_INIT;
    static char text[1 << 20];
    float sums[8];
    FILE *file;
    spec.dtype = STW_BF16, spec.role = STW_ROLE_GRAD;
    half = tensor_make(runtime, &spec);
    options.dtype = as_f32.dtype = STW_F32;
    ok(stw_reduce(half, large, &options));
    for (int i = 0; i < 10; ++i) ok(stw_reduce(half, small, &options));
    ok(stw_reduce(full, large, NULL));
    ok(stw_tensor_read(half, sums, &as_f32));
    assert_float(sums[0], 256);
    ok(stw_report_write(runtime, "half-sums.json"));
    file = fopen("half-sums.json", "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    remove("half-sums.json");
    assert_non_null(strstr(text, "\"half_sums\""));
    assert_non_null(strstr(text, "\"half.grad\""));
    assert_non_null(strstr(text, "\"contributions\": 11"));
    assert_null(strstr(strstr(text, "\"half_sums\""), "\"contributions\": 1,"));
    assert_null(strstr(strstr(text, "\"half_sums\""), "\"contributions\": 1}"));
    machine_close(runtime);
}

int main(void)
{
    machine three = machine_small(), across = machine_small(), host = machine_small();
    machine alone = machine_small();
    int failed = tests_run_on("reduce, three tiers", &three);
    across.device_driver = "cpu-discrete", across.host_blocks = 24;
    failed += tests_run_on("reduce, device across a bus", &across);
    host.device_blocks = 0;
    failed += tests_run_on("reduce, host and nvme", &host);
    alone.nvme_blocks = alone.host_blocks = 0, alone.device_blocks = 40;
    failed += tests_run_on("reduce, device alone", &alone);
    return failed;
}
