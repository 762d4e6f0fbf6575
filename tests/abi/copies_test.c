/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write, read and fill from memory of the caller's: ranges, conversions, tensors larger than every
 * near tier.
 */
#include "support.h"

static stw_copy_options range_of(uint64_t begin, uint64_t count, uint32_t dtype)
{
    stw_copy_options options = {.struct_size = sizeof options,
                                .element_begin = begin,
                                .element_count = count,
                                .dtype = dtype};
    return options;
}

TEST(ranges_cross_blocks)
{
    const uint64_t elements = 40 * BLOCK / 4 + 123; /* device 8, host 16 blocks */
    stw_tensor *tensor = tensor_f32(*state, "long", elements);
    float *values = malloc(elements * sizeof *values);
    assert_non_null(values);
    tensor_fill_sequence(tensor, elements, 0);
    stw_copy_options options = range_of(BLOCK / 4 - 10, 3 * BLOCK / 4, 0);
    ok(stw_tensor_read(tensor, values, &options));
    for (uint64_t i = 0; i < options.element_count; ++i) {
        assert_float(values[i], (float)(options.element_begin + i));
    }
    ok(stw_tensor_fill(tensor, -2, &options));
    options = range_of(elements - 1, 1, 0);
    ok(stw_tensor_write(tensor, values, &options));
    ok(stw_tensor_read(tensor, values, NULL));
    for (uint64_t i = 0; i < elements; ++i) {
        float expected = (float)i;
        if (i >= BLOCK / 4 - 10 && i < 4 * BLOCK / 4 - 10) expected = -2;
        if (i == elements - 1) expected = (float)(BLOCK / 4 - 10);
        if (values[i] != expected)
            fail_msg("element %d is %g, not %g", (int)i, values[i], expected);
    }
    free(values);
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(ranges_outside_are_refused)
{
    stw_tensor *tensor = tensor_f32(*state, "ten", 10);
    float values[16] = {0};
    stw_copy_options options = range_of(5, 6, 0);
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_INVALID, "tensor 'ten' of 10");
    fails(stw_tensor_fill(tensor, 0, &options), STW_ERROR_INVALID, "not inside");
    options = range_of(UINT64_MAX, 2, 0);
    fails(stw_tensor_read(tensor, values, &options), STW_ERROR_INVALID, "not inside");
    options = range_of(0, 0, 0), options.scope = 3;
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_INVALID, "scope 3");
    options.scope = 0, options.tier = STW_TIER_NVME;
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_INVALID, "tier 3");
    options.tier = 0, options.reserved = 1;
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_INVALID, "known");
    options.reserved = 0, options.stream = STW_STREAM_LEGACY;
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_INVALID, "STW_STREAM_HOST");
    ok(stw_tensor_destroy(&tensor, 1));
}

/* To nearest, ties to even; written out here so that nothing of ours is the judge. */
static uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (isnan(value)) return (uint16_t)((bits >> 16) | 0x40);
    bits += 0x7fff + ((bits >> 16) & 1);
    return (uint16_t)(bits >> 16);
}

TEST(f32_and_bf16_convert_to_nearest_even)
{
    const float values[] = {0,     -0.0F,       1,           -1.5F,         3.14159265F, 1e-40F,
                            65504, 1.00390625F, 1.01171875F, 3.3895314e38F, INFINITY,    -INFINITY};
    uint16_t stored[COUNT(values)];
    float back[COUNT(values)];
    stw_tensor_spec spec = spec_f32("bf16", COUNT(values));
    stw_copy_options as_f32 = range_of(0, 0, STW_F32);
    spec.dtype = STW_BF16;
    stw_tensor *tensor = tensor_make(*state, &spec);
    ok(stw_tensor_write(tensor, values, &as_f32));
    ok(stw_tensor_read(tensor, stored, NULL));
    ok(stw_tensor_read(tensor, back, &as_f32));
    for (size_t i = 0; i < COUNT(values); ++i) {
        uint32_t bits = (uint32_t)bf16_of(values[i]) << 16;
        float expected;
        memcpy(&expected, &bits, 4);
        assert_int_equal(stored[i], bf16_of(values[i]));
        assert_memory_equal(&back[i], &expected, 4);
    }
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(f16_round_trips_every_finite_value)
{
    stw_tensor_spec spec = spec_f32("f16", 65536);
    stw_copy_options as_f32 = range_of(0, 0, STW_F32);
    uint16_t *all = malloc(65536 * sizeof *all), *back = malloc(65536 * sizeof *back);
    float *wide = malloc(65536 * sizeof *wide);
    assert_non_null(all);
    assert_non_null(back);
    assert_non_null(wide);
    for (uint32_t i = 0; i < 65536; ++i) all[i] = (uint16_t)i;
    spec.dtype = STW_F16;
    stw_tensor *tensor = tensor_make(*state, &spec);
    ok(stw_tensor_write(tensor, all, NULL));
    ok(stw_tensor_read(tensor, wide, &as_f32));
    assert_float(wide[0x3c00], 1);
    assert_float(wide[0xc000], -2);
    assert_float(wide[0x0001], 5.9604644775390625e-8F);
    assert_float(wide[0x7bff], 65504);
    ok(stw_tensor_write(tensor, wide, &as_f32));
    ok(stw_tensor_read(tensor, back, NULL));
    for (uint32_t i = 0; i < 65536; ++i) {
        if (isnan(wide[i])) {
            assert_true((back[i] & 0x7c00) == 0x7c00 && (back[i] & 0x3ff) != 0);
        } else if (back[i] != i) {
            fail_msg("0x%04x came back as 0x%04x", i, back[i]);
        }
    }
    free(all), free(back), free(wide);
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(other_dtypes_must_be_equal)
{
    stw_tensor_spec spec = spec_f32("ints", 4);
    stw_copy_options options = range_of(0, 0, STW_F32);
    float values[4] = {0};
    spec.dtype = STW_I32;
    stw_tensor *tensor = tensor_make(*state, &spec);
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_INVALID, "'ints' has dtype i32");
    options.dtype = 55;
    fails(stw_tensor_write(tensor, values, &options), STW_ERROR_INVALID, "dtype 55");
    options.dtype = STW_I32;
    ok(stw_tensor_write(tensor, values, &options));
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(fill_refuses_what_the_dtype_cannot_hold)
{
    const uint32_t dtypes[] = {STW_I64, STW_I32, STW_I16, STW_I8, STW_U8, STW_BOOL};
    const double too_much[] = {1e19, 2147483648.0, 32768, 128, 256, 2};
    const double holds[] = {-12345678901.0, -2147483648.0, -32768, -128, 255, 1};
    stw_tensor_spec spec = spec_f32("filled", 9);
    int64_t wide[9];
    for (size_t i = 0; i < COUNT(dtypes); ++i) {
        spec.dtype = dtypes[i];
        stw_tensor *tensor = tensor_make(*state, &spec);
        fails(stw_tensor_fill(tensor, too_much[i], NULL), STW_ERROR_INVALID, "'filled'");
        fails(stw_tensor_fill(tensor, 0.5, NULL), STW_ERROR_INVALID, "0.5");
        fails(stw_tensor_fill(tensor, NAN, NULL), STW_ERROR_INVALID, "nan");
        ok(stw_tensor_fill(tensor, holds[i], NULL));
        ok(stw_tensor_read(tensor, wide, NULL));
        if (dtypes[i] == STW_I64) assert_true(wide[8] == INT64_C(-12345678901));
        if (dtypes[i] == STW_I8) assert_int_equal(((int8_t *)wide)[8], -128);
        if (dtypes[i] == STW_U8) assert_int_equal(((uint8_t *)wide)[8], 255);
        if (dtypes[i] == STW_I16) assert_int_equal(((int16_t *)wide)[8], -32768);
        ok(stw_tensor_destroy(&tensor, 1));
    }
}

TEST(copies_go_to_where_the_newest_bytes_are)
{
    stw_runtime *runtime = *state;
    const uint64_t elements = 4 * BLOCK / 4;
    stw_tensor *tensor = tensor_f32(runtime, "t", elements);
    tensor_fill_sequence(tensor, elements, 0);
    stw_view view = view_get(runtime, tensor, STW_READ_WRITE); /* newest on the device */
    for (uint64_t i = 0; i < elements; ++i) ((float *)view.pointer)[i] = (float)i + 9;
    view_put(&view);
    tensor_expect_sequence(tensor, elements, 9);
    tensor_fill_sequence(tensor, elements, 4); /* the device's replica is stale now */
    view = view_get(runtime, tensor, STW_READ);
    for (uint64_t i = 0; i < elements; ++i) assert_float(((float *)view.pointer)[i], (float)i + 4);
    view_put(&view);
    ok(stw_tensor_destroy(&tensor, 1));
}

static uint64_t written_to_nvme(stw_runtime *runtime)
{
    return link_stats(runtime, STW_LINK_HOST_TO_NVME).bytes +
           link_stats(runtime, STW_LINK_DEVICE_TO_NVME).bytes;
}

/* Written back as its first piece came, a block would be written twice, and its second piece would
   wait for that. */
TEST(a_block_written_in_pieces_is_written_back_after_the_last_one)
{
    stw_runtime *runtime = *state;
    const uint64_t elements = BLOCK / 4 + BLOCK / 8;
    stw_tensor_spec spec = spec_f32("pieces", elements);
    const stw_policy policy = {.struct_size = sizeof policy, .home = STW_TIER_NVME};
    spec.policy = &policy;
    stw_tensor *tensor = tensor_make(runtime, &spec);
    float *values = calloc(elements, sizeof *values);
    assert_non_null(values);
    ok(stw_runtime_drain(runtime, 0));
    const uint64_t before = written_to_nvme(runtime);
    for (uint64_t at = 0; at < elements; at += BLOCK / 16) {
        stw_copy_options options = range_of(at, BLOCK / 16, 0);
        ok(stw_tensor_write(tensor, values, &options));
        ok(stw_runtime_drain(runtime, 0));
        const uint64_t end = at + BLOCK / 16;
        const uint64_t complete = end == elements ? end * 4 : end * 4 / BLOCK * BLOCK;
        assert_int_equal(written_to_nvme(runtime) - before, complete);
    }
    free(values);
    ok(stw_tensor_destroy(&tensor, 1));
}

static void write_in_a_way(stw_runtime *runtime, stw_tensor *tensor, const float *values, int way)
{
    if (way == 0) ok(stw_tensor_write(tensor, values, NULL));
    if (way == 1) ok(stw_tensor_fill(tensor, 2, NULL));
    for (uint32_t access = STW_WRITE; way == 2 && access != 0;
         access = access == STW_WRITE ? STW_READ : 0) {
        stw_view view = view_get(runtime, tensor, access);
        ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_FAR));
    }
}

/* Each write would be one of the block. */
TEST(tensors_that_share_a_block_are_not_written_back_one_by_one)
{
    enum { SMALL = 384, EACH = 4096 }; /* three blocks */
    stw_tensor *tensors[SMALL];
    const uint64_t bytes = SMALL * EACH * sizeof(float);
    float *values = calloc(EACH, sizeof *values);
    assert_non_null(values);
    for (int way = 0; way < 3; ++way) {
        machine wanted = machine_small();
        wanted.device_blocks = 0, wanted.host_blocks = 16, wanted.nvme_blocks = 16;
        wanted.block_bytes = 2 * MIB;
        stw_runtime *runtime = machine_open(&wanted);
        stw_tensor_spec spec = spec_f32(NULL, EACH);
        const stw_policy policy = {.struct_size = sizeof policy, .home = STW_TIER_NVME};
        spec.policy = &policy;
        for (int i = 0; i < SMALL; ++i) tensors[i] = tensor_make(runtime, &spec);
        for (int i = 0; i < SMALL; ++i) {
            write_in_a_way(runtime, tensors[i], values, way);
            ok(stw_runtime_drain(runtime, 0));
        }
        assert_int_equal(written_to_nvme(runtime), 0); /* there is room */
        ok(stw_evict(runtime, NULL, 0, STW_TIER_HOST, 0, 0));
        assert_int_equal(written_to_nvme(runtime), bytes);
        machine_close(runtime);
    }
    free(values);
}

RUN_TESTS("copies", machine_setup, machine_teardown)
