/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views in another dtype than the tensor's: bytes against a model, room that is counted and comes
 * back, sums in another dtype, and what goes wrong on the way.
 */
#include "support.h"

static machine machine_now;

static stw_runtime *open_now(void)
{
    return machine_open(&machine_now);
}

static stw_tensor *tensor_of(stw_runtime *runtime, const char *name, uint64_t elements,
                             uint32_t dtype, uint32_t role)
{
    stw_tensor_spec spec = spec_f32(name, elements);
    spec.dtype = dtype;
    spec.role = role;
    return tensor_make(runtime, &spec);
}

static stw_fetch_request request_as(stw_tensor *tensor, uint32_t access, uint32_t dtype)
{
    stw_fetch_request request = request_of(tensor, access);
    request.dtype = dtype;
    return request;
}

static stw_view view_as(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint32_t dtype)
{
    stw_fetch_request request = request_as(tensor, access, dtype);
    stw_view view;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    return view;
}

/* To nearest, ties to even; written out here so that nothing of ours is the judge. */
static uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits += 0x7fff + ((bits >> 16) & 1);
    return (uint16_t)(bits >> 16);
}

static uint16_t f16_of(float value)
{
    const uint16_t sign = (uint16_t)(signbit(value) ? 0x8000 : 0);
    const float size = fabsf(value);
    int exponent;
    if (size >= 65520) return (uint16_t)(sign | 0x7c00);
    if (size == 0) return sign;
    (void)frexpf(size, &exponent); /* size = 0.5.. x 2^exponent */
    if (exponent < -13) exponent = -13;
    double scaled = nearbyint(ldexp((double)size, 11 - exponent)); /* an 11-bit significand */
    if (scaled == 2048) scaled = 1024, ++exponent;
    if (scaled < 1024) return (uint16_t)(sign | (uint16_t)scaled);
    return (uint16_t)(sign | (uint16_t)((exponent + 13) * 1024 + (int)scaled));
}

/* Small and large ones, ties, and some that f16 cannot hold. */
static float value_at(uint64_t i)
{
    const float odd[] = {0,      -0.0F, 1.00390625F, 1.01171875F, 1.00048828125F, 1.00146484375F,
                         65519,  65520, -1e6F,       3e-8F,       6e-5F,          2.9802322e-8F,
                         1e-20F, -1.5F, 3.14159265F, 65504};
    if (i % 5 == 0) return odd[i / 5 % COUNT(odd)];
    return ((float)(i % 4099) - 2000) * 0.37F;
}

static float *values_make(uint64_t elements)
{
    float *values = malloc(elements * sizeof *values);
    assert_non_null(values);
    for (uint64_t i = 0; i < elements; ++i) values[i] = value_at(i);
    return values;
}

static void expect_halves(const void *memory, uint32_t dtype, uint64_t begin, uint64_t count)
{
    const uint16_t *halves = memory;
    for (uint64_t i = 0; i < count; ++i) {
        const float value = value_at(begin + i);
        const uint16_t expected = dtype == STW_BF16 ? bf16_of(value) : f16_of(value);
        if (halves[i] == expected) continue;
        fail_msg("element %d, %.9g, is 0x%04x as dtype %u, not 0x%04x", (int)(begin + i), value,
                 halves[i], dtype, expected);
    }
}

static stw_tier_stats stats_of(stw_runtime *runtime, uint32_t tier)
{
    const stw_tier_stats none = STW_TIER_STATS_INIT;
    const int there =
        tier == STW_TIER_DEVICE ? machine_now.device_blocks > 0 : machine_now.host_blocks > 0;
    return there ? tier_stats(runtime, tier) : none;
}

static uint64_t pinned_bytes(stw_runtime *runtime)
{
    return stats_of(runtime, STW_TIER_DEVICE).pinned_bytes +
           stats_of(runtime, STW_TIER_HOST).pinned_bytes;
}

static uint64_t used_bytes(stw_runtime *runtime)
{
    ok(stw_runtime_drain(runtime, 0));
    return stats_of(runtime, STW_TIER_DEVICE).used_bytes +
           stats_of(runtime, STW_TIER_HOST).used_bytes;
}

/* Out of the tiers that this machine has. */
static void to_disk(stw_runtime *runtime, stw_tensor *tensor)
{
    if (machine_now.device_blocks) ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    if (machine_now.host_blocks) ok(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0));
}

TEST(a_range_is_converted_to_nearest_wherever_it_lies)
{
    enum { ELEMENTS = 7 * 16384 + 99 };
    const uint64_t begins[] = {0, 1, 16383, 20001, 5 * 16384};
    const uint64_t counts[] = {ELEMENTS, 16384, 2, 3 * 16384 + 7, ELEMENTS - 5 * 16384};
    const uint32_t dtypes[] = {STW_BF16, STW_F16};
    stw_runtime *runtime = open_now();
    stw_tensor *tensor = tensor_f32(runtime, "wide", ELEMENTS);
    float *values = values_make(ELEMENTS);
    stw_view view;
    ok(stw_tensor_write(tensor, values, NULL));
    for (int place = 0; place < 2; ++place) {
        for (size_t d = 0; d < COUNT(dtypes); ++d) {
            for (size_t i = 0; i < COUNT(begins); ++i) {
                stw_fetch_request request = request_as(tensor, STW_READ, dtypes[d]);
                request.element_begin = begins[i], request.element_count = counts[i];
                if (place == 1) to_disk(runtime, tensor);
                ok(stw_fetch_fits(runtime, &request, 1));
                ok(stw_prefetch(runtime, &request, 1));
                ok(stw_fetch(runtime, NULL, &request, 1, &view));
                assert_int_equal(view.bytes, counts[i] * 2);
                assert_int_equal(view.element_begin, begins[i]);
                assert_int_equal(view.element_count, counts[i]);
                expect_halves(view.pointer, dtypes[d], begins[i], counts[i]);
                view_put(&view);
                fails(stw_release(&view, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
            }
        }
    }
    assert_int_equal(pinned_bytes(runtime), 0);
    free(values);
    machine_close(runtime);
}

TEST(widening_is_exact_and_neighbours_stay_theirs)
{
    enum { N = 12, ELEMENTS = 1000 };
    stw_runtime *runtime = open_now();
    stw_tensor *tensors[N];
    stw_fetch_request requests[N];
    stw_view views[N];
    float *values = values_make(ELEMENTS);
    for (uint64_t k = 0; k < N; ++k) {
        stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
        tensors[k] = tensor_of(runtime, NULL, ELEMENTS, k % 2 ? STW_BF16 : STW_F16, 0);
        ok(stw_tensor_write(tensors[k], values, &as_f32));
        requests[k] = request_as(tensors[k], STW_READ, STW_F32);
    }
    ok(stw_fetch(runtime, NULL, requests, N, views));
    for (uint64_t k = 0; k < N; ++k) {
        const float *wide = views[k].pointer;
        assert_int_equal(views[k].bytes, ELEMENTS * 4);
        for (uint64_t i = 0; i < ELEMENTS; ++i) {
            if (k % 2) assert_int_equal(bf16_of(wide[i]), bf16_of(value_at(i)));
            if (k % 2 == 0) assert_int_equal(f16_of(wide[i]), f16_of(value_at(i)));
        }
    }
    ok(stw_release(views, N, STW_STREAM_HOST, 0));
    free(values);
    machine_close(runtime);
}

TEST(memory_of_the_callers_is_converted_to)
{
    enum { ELEMENTS = 40 * 16384 + 17 };
    stw_runtime *runtime = open_now();
    stw_tensor *tensor = tensor_f32(runtime, "large", ELEMENTS);
    float *values = values_make(ELEMENTS);
    uint16_t *halves = malloc(ELEMENTS * sizeof *halves);
    stw_fetch_request request = request_as(tensor, STW_READ, STW_BF16);
    stw_operation *operation = NULL;
    stw_view view;
    assert_non_null(halves);
    ok(stw_tensor_write(tensor, values, NULL));
    request.into = halves;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    assert_ptr_equal(view.pointer, halves);
    assert_int_equal(view.bytes, ELEMENTS * 2);
    expect_halves(halves, STW_BF16, 0, ELEMENTS);
    request.dtype = STW_F16, request.element_begin = 11, request.element_count = ELEMENTS - 11;
    ok(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    ok(stw_operation_wait(operation, 0));
    expect_halves(halves, STW_F16, 11, ELEMENTS - 11);
    ok(stw_operation_free(operation));
    /* Its own dtype is no other one: a pin like any other. */
    request = request_as(tensor, STW_READ_WRITE, STW_F32);
    request.element_count = 100;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    view_put(&view);
    free(values), free(halves);
    machine_close(runtime);
}

TEST(a_converted_view_takes_room_and_gives_it_back)
{
    enum { ELEMENTS = 4 * 16384 };
    stw_runtime *runtime = open_now();
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    stw_tensor *half = tensor_of(runtime, "half", 14 * 16384, STW_BF16, 0);
    float *values = values_make(ELEMENTS);
    stw_fetch_request request = request_as(half, STW_READ, STW_F32);
    uint64_t tensors;
    ok(stw_tensor_write(tensor, values, NULL));
    ok(stw_tensor_fill(half, 2, NULL));
    stw_view own = view_get(runtime, tensor, STW_READ);
    uint64_t before = pinned_bytes(runtime);
    uint64_t used = used_bytes(runtime);
    tensors = stats_of(runtime, own.tier).tensors;
    stw_view narrow = view_as(runtime, tensor, STW_READ, STW_BF16);
    assert_ptr_not_equal(narrow.pointer, own.pointer);
    assert_int_equal(pinned_bytes(runtime), before + 2 * BLOCK);
    view_put(&own);
    /* A copy: the tensor may be written while it is looked at. */
    ok(stw_tensor_fill(tensor, -1, NULL));
    expect_halves(narrow.pointer, STW_BF16, 0, ELEMENTS);
    assert_int_equal(pinned_bytes(runtime), 2 * BLOCK);
    fails(stw_view_share(&narrow, &own), STW_ERROR_INVALID, "cannot be shared");
    view_put(&narrow);
    assert_int_equal(pinned_bytes(runtime), 0);
    assert_true(used_bytes(runtime) <= used);
    assert_int_equal(stats_of(runtime, narrow.tier).tensors, tensors);
    /* 14 blocks of f32 where there are 12. */
    request.element_count = 14 * 16384;
    fails(stw_fetch_fits(runtime, &request, 1), STW_ERROR_BUDGET, "'half'");
    fails(stw_fetch(runtime, NULL, &request, 1, &narrow), STW_ERROR_BUDGET, "'half'");
    assert_int_equal(error_numbers().needed_bytes, 14 * BLOCK);
    /* 7 of 12 blocks are pinned, 8 are wanted. */
    own = view_get(runtime, half, STW_READ);
    request.element_count = 8 * 16384;
    fails(stw_fetch(runtime, NULL, &request, 1, &narrow), STW_ERROR_BUDGET, "pinned by open views");
    assert_int_equal(error_numbers().pinned_bytes, 7 * BLOCK);
    assert_int_equal(pinned_bytes(runtime), 7 * BLOCK);
    view_put(&own);
    ok(stw_fetch(runtime, NULL, &request, 1, &narrow));
    view_put(&narrow);
    assert_int_equal(pinned_bytes(runtime), 0);
    free(values);
    machine_close(runtime);
}

TEST(writing_in_another_dtype_is_refused)
{
    stw_runtime *runtime = open_now();
    stw_tensor *tensor = tensor_f32(runtime, "weights", 64);
    stw_tensor *whole = tensor_of(runtime, "counts", 64, STW_I32, 0);
    stw_view view;
    ok(stw_tensor_fill(tensor, 1, NULL));
    ok(stw_tensor_fill(whole, 1, NULL));
    stw_fetch_request request = request_as(tensor, STW_WRITE, STW_BF16);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID,
          "tensor 'weights' of dtype f32 cannot be fetched for writing as bf16");
    request.access = STW_READ_WRITE;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "for writing");
    request = request_as(tensor, STW_READ, STW_I32);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID,
          "'weights' has dtype f32 and cannot be converted from or to i32");
    request = request_as(whole, STW_READ, STW_F32);
    fails(stw_prefetch(runtime, &request, 1), STW_ERROR_INVALID, "'counts' has dtype i32");
    request = request_as(tensor, STW_READ, 55);
    fails(stw_fetch_fits(runtime, &request, 1), STW_ERROR_INVALID, "dtype 55");
    machine_close(runtime);
}

TEST(sums_in_another_dtype_are_rounded_to_the_tensors)
{
    enum { ELEMENTS = 2 * 16384 + 5 };
    stw_runtime *runtime = open_now();
    stw_tensor *wide = tensor_of(runtime, "wide", ELEMENTS, STW_F32, STW_ROLE_GRAD);
    stw_tensor *narrow = tensor_of(runtime, "narrow", ELEMENTS, STW_BF16, STW_ROLE_GRAD);
    float *sums = malloc(ELEMENTS * sizeof *sums);
    uint16_t *halves = malloc(ELEMENTS * sizeof *halves);
    stw_view view;
    assert_non_null(sums);
    assert_non_null(halves);
    for (int round = 0; round < 3; ++round) {
        view = view_as(runtime, wide, STW_REDUCE, STW_BF16);
        assert_int_equal(view.bytes, ELEMENTS * 2);
        for (int i = 0; i < ELEMENTS; ++i) {
            assert_int_equal(((uint16_t *)view.pointer)[i], 0);
            ((uint16_t *)view.pointer)[i] = bf16_of((float)(i % 97));
        }
        view_put(&view);
        view = view_as(runtime, narrow, STW_REDUCE, STW_F32);
        assert_int_equal(view.bytes, ELEMENTS * 4);
        for (int i = 0; i < ELEMENTS; ++i) ((float *)view.pointer)[i] += 1.0F + (float)i / 1024;
        view_put(&view);
    }
    /* A range, of which the rest stays; and one that is given up. */
    {
        stw_fetch_request request = request_as(wide, STW_REDUCE, STW_F16);
        request.element_begin = 16380, request.element_count = 10;
        ok(stw_fetch(runtime, NULL, &request, 1, &view));
        for (int i = 0; i < 10; ++i) ((uint16_t *)view.pointer)[i] = f16_of(0.5F);
        view_put(&view);
        ok(stw_fetch(runtime, NULL, &request, 1, &view));
        for (int i = 0; i < 10; ++i) ((uint16_t *)view.pointer)[i] = f16_of(100);
        ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_ABANDON));
    }
    ok(stw_tensor_read(wide, sums, NULL));
    ok(stw_tensor_read(narrow, halves, NULL));
    for (int i = 0; i < ELEMENTS; ++i) {
        const float each = 1.0F + (float)i / 1024;
        float sum = 0, expected = 3 * (float)(i % 97);
        uint16_t half = 0;
        if (i >= 16380 && i < 16390) expected += 0.5F;
        for (int round = 0; round < 3; ++round) {
            half = bf16_of(sum + each);
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&sum, &bits, 4);
        }
        assert_float(sums[i], expected);
        if (halves[i] != half) fail_msg("element %d is 0x%04x, not 0x%04x", i, halves[i], half);
    }
    ok(stw_runtime_drain(runtime, 0));
    assert_int_equal(pinned_bytes(runtime), 0);
    free(sums), free(halves);
    machine_close(runtime);
}

TEST(what_ends_early_leaves_nothing_behind)
{
    stw_runtime *runtime = open_now();
    stw_tensor *tensor = tensor_f32(runtime, "t", 3 * 16384);
    stw_fetch_request request = request_as(tensor, STW_READ, STW_BF16);
    stw_fetch_request write = request_of(tensor, STW_READ_WRITE);
    stw_operation *operation = NULL;
    stw_view held, view;
    uint64_t tensors;
    uint32_t tier;
    float *values = values_make(3 * 16384);
    ok(stw_tensor_write(tensor, values, NULL));
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_HAND_OVER};
    ok(stw_fetch(runtime, &options, &write, 1, &held));
    tier = held.tier;
    tensors = stats_of(runtime, tier).tensors;
    options.flags = STW_FETCH_TRY;
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_BUSY, "'t'");
    options.flags = 0, options.timeout_ns = 5 * MILLISECOND_NS;
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_TIMEOUT, "'t'");
    ok(stw_fetch_async(runtime, &options, &request, 1, &operation));
    fails(stw_operation_wait(operation, 0), STW_ERROR_TIMEOUT, "'t'");
    ok(stw_operation_free(operation));
    ok(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    ok(stw_operation_cancel(operation));
    fails(stw_operation_wait(operation, 0), STW_ERROR_CANCELLED, "cancelled");
    fails(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1), STW_ERROR_CANCELLED,
          "cancelled");
    ok(stw_operation_free(operation));
    view_put(&held);
    /* Granted, and freed without being collected. */
    ok(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    ok(stw_operation_wait(operation, 0));
    ok(stw_operation_free(operation));
    assert_int_equal(pinned_bytes(runtime), 0);
    ok(stw_runtime_drain(runtime, 0));
    assert_int_equal(stats_of(runtime, tier).tensors, tensors);
    ok(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    ok(stw_operation_wait(operation, 0));
    ok(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1));
    ok(stw_operation_free(operation));
    expect_halves(view.pointer, STW_BF16, 0, 3 * 16384);
    ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_DISCARD));
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'t'");
    ok(stw_tensor_destroy(&tensor, 1));
    free(values);
    machine_close(runtime);
}

/* The blocks are lost on the way from the disk: no view, no room taken; the others are served. */
TEST(a_source_that_cannot_be_read_promises_nothing)
{
    const char *kinds[] = {"eio", "flip"};
    const stw_status codes[] = {STW_ERROR_IO, STW_ERROR_CHECKSUM};
    for (size_t k = 0; k < COUNT(kinds); ++k) {
        static char script[4096];
        machine wanted = machine_now;
        stw_fetch_request requests[3];
        stw_view views[3], before[3];
        uint16_t halves[64];
        size_t length = (size_t)snprintf(script, sizeof script, "inner=posix;inner.allow_tmpfs=1");
        for (int i = 1; i < 60; ++i) {
            length += (size_t)snprintf(script + length, sizeof script - length, ";at=read:%d:%s", i,
                                       kinds[k]);
        }
        wanted.nvme_driver = "fault", wanted.nvme_options = script;
        stw_runtime *runtime = machine_open(&wanted);
        stw_tensor *good = tensor_f32(runtime, "good", 2 * 16384);
        stw_tensor *lost = tensor_f32(runtime, "lost", 2 * 16384);
        tensor_fill_sequence(lost, 2 * 16384, 1);
        to_disk(runtime, lost);
        tensor_fill_sequence(good, 2 * 16384, 1);
        requests[0] = request_as(good, STW_READ, STW_BF16);
        requests[1] = request_as(lost, STW_READ, STW_BF16);
        requests[2] = request_as(lost, STW_READ, STW_F16);
        requests[2].element_count = 64, requests[2].into = halves;
        memset(views, 0x31, sizeof views);
        memcpy(before, views, sizeof views);
        fails(stw_fetch(runtime, NULL, requests, 3, views), codes[k], "'lost'");
        assert_memory_equal(views, before, sizeof views);
        fails(stw_fetch(runtime, NULL, requests, 2, views), codes[k], "'lost'");
        assert_string_equal(error_numbers().tensor, "lost");
        assert_int_equal(pinned_bytes(runtime), 0);
        ok(stw_runtime_clear_error(runtime));
        ok(stw_fetch(runtime, NULL, requests, 1, views));
        view_put(&views[0]);
        assert_int_equal(pinned_bytes(runtime), 0);
        ok(stw_runtime_clear_error(runtime));
        ok(stw_runtime_close(runtime, 0, 0));
    }
}

RUN_TESTS_ON_EACH_MACHINE("converted", &machine_now)
