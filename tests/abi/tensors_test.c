/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creating, finding, reshaping, discarding and destroying tensors; what their contents are then.
 */
#include "support.h"

TEST(shapes_that_overflow_are_refused)
{
    stw_runtime *runtime = *state;
    stw_tensor_spec spec = spec_f32("huge", UINT64_C(1) << 40);
    stw_tensor *tensor = NULL;
    spec.dimensions = 2, spec.shape[1] = UINT64_C(1) << 40;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID,
          "'huge': the product of its shape overflows 64 bits");
    /* 2^62 elements of 4 bytes overflow in bytes only. */
    spec.dimensions = 1, spec.shape[0] = UINT64_C(1) << 62;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "'huge'");
    spec.shape[0] = UINT64_C(1) << 50;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "more than");
    spec.dimensions = 9;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "9 dimensions");
    /* An overflow that a later zero would hide is one all the same. */
    spec.dimensions = 3, spec.shape[0] = spec.shape[1] = UINT64_C(1) << 40, spec.shape[2] = 0;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "overflows");
    assert_null(tensor);
}

TEST(a_budget_too_small_is_refused_at_create_with_the_arithmetic)
{
    stw_runtime *runtime = *state;
    /* 256 blocks of nvme: 200 promised, 100 asked. */
    stw_tensor *first = tensor_f32(runtime, "first", 200 * BLOCK / 4);
    stw_tensor_spec spec = spec_f32("second", 100 * BLOCK / 4);
    stw_tensor *tensor = NULL;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_BUDGET, "'second'");
    assert_non_null(strstr(stw_last_error(), "nvme"));
    assert_non_null(strstr(stw_last_error(), "6.2 MiB needed"));
    assert_non_null(strstr(stw_last_error(), "budget 16.0 MiB = 12.5 MiB promised"));
    stw_error_info info = error_numbers();
    assert_int_equal(info.tier, STW_TIER_NVME);
    assert_int_equal(info.needed_bytes, 100 * BLOCK);
    assert_int_equal(info.free_bytes, 56 * BLOCK);
    assert_string_equal(info.tensor, "second");
    ok(stw_tensor_destroy(&first, 1));
    ok(stw_tensor_create(runtime, &spec, 1, &tensor));
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(creation_is_all_or_none)
{
    stw_runtime *runtime = *state;
    stw_tensor_spec specs[3];
    stw_tensor *tensors[3] = {NULL, NULL, NULL};
    stw_tensor *found = NULL;
    specs[0] = spec_f32("one", BLOCK);
    specs[1] = spec_f32("two", BLOCK);
    specs[2] = spec_f32("three", 300 * BLOCK / 4);
    fails(stw_tensor_create(runtime, specs, 3, tensors), STW_ERROR_BUDGET, "'three'");
    assert_null(tensors[0]);
    fails(stw_tensor_find(runtime, "one", &found), STW_ERROR_NOT_FOUND, "'one'");
    fails(stw_tensor_find(runtime, "two", &found), STW_ERROR_NOT_FOUND, "'two'");
    specs[2].shape[0] = 4;
    specs[1].name = "one";
    fails(stw_tensor_create(runtime, specs, 3, tensors), STW_ERROR_EXISTS, "'one' exists");
    specs[1].name = "two";
    ok(stw_tensor_create(runtime, specs, 3, tensors));
    ok(stw_tensor_destroy(tensors, 3));
}

TEST(names_are_unique_and_at_most_255_bytes)
{
    stw_runtime *runtime = *state;
    char name[300] = "";
    stw_tensor_spec spec = spec_f32(name, 4);
    stw_tensor *tensor = NULL, *second = NULL;
    memset(name, 'n', sizeof name);
    name[256] = 0;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "longer than 255");
    name[255] = 0;
    ok(stw_tensor_create(runtime, &spec, 1, &tensor));
    fails(stw_tensor_create(runtime, &spec, 1, &second), STW_ERROR_EXISTS, "nnnn");
    assert_string_equal(info_of(tensor).name, name);
    ok(stw_tensor_destroy(&tensor, 1));
    ok(stw_tensor_create(runtime, &spec, 1, &tensor));
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(tensors_without_a_name_are_many)
{
    stw_runtime *runtime = *state;
    stw_tensor *a = tensor_f32(runtime, NULL, 4);
    stw_tensor *b = tensor_f32(runtime, NULL, 4);
    stw_tensor *found = NULL;
    assert_string_equal(info_of(a).name, "");
    fails(stw_tensor_find(runtime, "", &found), STW_ERROR_NOT_FOUND, "''");
    ok(stw_tensor_destroy(&a, 1));
    ok(stw_tensor_destroy(&b, 1));
}

TEST(a_sentence_says_that_a_tensor_has_no_name)
{
    stw_runtime *runtime = *state;
    stw_tensor *tensor = tensor_f32(runtime, NULL, 10), *twice[2];
    float values[10];
    fails(stw_tensor_read(tensor, values, NULL), STW_ERROR_EMPTY,
          "a tensor without a name is empty");
    twice[0] = twice[1] = tensor;
    fails(stw_tensor_destroy(twice, 2), STW_ERROR_INVALID, "a tensor without a name is given");
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(find_and_next_follow_creation)
{
    stw_runtime *runtime = *state;
    stw_tensor *made[4], *at = NULL;
    const char *names[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; ++i) made[i] = tensor_f32(runtime, names[i], 4);
    for (int i = 0; i < 4; ++i) {
        ok(stw_tensor_next(runtime, at, &at));
        assert_ptr_equal(at, made[i]);
        ok(stw_tensor_find(runtime, names[i], &at));
        assert_ptr_equal(at, made[i]);
    }
    ok(stw_tensor_next(runtime, at, &at));
    assert_null(at);
    ok(stw_tensor_destroy(&made[1], 1));
    ok(stw_tensor_next(runtime, made[0], &at));
    assert_ptr_equal(at, made[2]);
    made[1] = made[3];
    ok(stw_tensor_destroy(made, 3));
    ok(stw_tensor_next(runtime, NULL, &at));
    assert_null(at);
}

TEST(destroying_is_all_or_none_while_a_view_is_open)
{
    stw_runtime *runtime = *state;
    stw_tensor *tensors[2];
    tensors[0] = tensor_f32(runtime, "free", 16);
    tensors[1] = tensor_f32(runtime, "held", 16);
    ok(stw_tensor_fill(tensors[1], 1, NULL));
    stw_view view = view_get(runtime, tensors[1], STW_READ);
    fails(stw_tensor_destroy(tensors, 2), STW_ERROR_BUSY, "'held' has open views");
    assert_int_equal(info_of(tensors[0]).elements, 16);
    fails(stw_tensor_discard(&tensors[1], 1), STW_ERROR_BUSY, "'held'");
    view_put(&view);
    ok(stw_tensor_destroy(tensors, 2));
}

TEST(the_same_tensor_twice_in_one_destroy_is_refused)
{
    stw_runtime *runtime = *state;
    stw_tensor *twice[2];
    twice[0] = twice[1] = tensor_f32(runtime, "twice", 16);
    fails(stw_tensor_destroy(twice, 2), STW_ERROR_INVALID, "'twice'");
    ok(stw_tensor_destroy(twice, 1));
}

TEST(info_tells_shape_size_state_and_version)
{
    stw_runtime *runtime = *state;
    stw_tensor_spec spec = spec_f32("cube", 3);
    spec.dimensions = 3, spec.shape[1] = 5, spec.shape[2] = 7, spec.dtype = STW_BF16;
    spec.role = STW_ROLE_CACHE;
    stw_tensor *tensor = tensor_make(runtime, &spec);
    stw_tensor_info info = info_of(tensor);
    assert_int_equal(info.state, STW_STATE_EMPTY);
    assert_int_equal(info.dimensions, 3);
    assert_int_equal(info.shape[1], 5);
    assert_int_equal(info.elements, 105);
    assert_int_equal(info.shard_elements, 105);
    assert_int_equal(info.whole_bytes, 210);
    assert_int_equal(info.role, STW_ROLE_CACHE);
    assert_int_equal(info.dtype, STW_BF16);
    assert_int_equal(info.residence, 0);
    ok(stw_tensor_fill(tensor, 3, NULL));
    stw_view view = view_get(runtime, tensor, STW_READ);
    assert_int_equal(info_of(tensor).state, STW_STATE_VALID);
    assert_int_equal(info_of(tensor).open_views, 1);
    assert_true(info_of(tensor).version > info.version);
    assert_true((info_of(tensor).residence & STW_ALLOW_DEVICE) != 0);
    view_put(&view);
    ok(stw_tensor_discard(&tensor, 1));
    info = info_of(tensor);
    assert_int_equal(info.state, STW_STATE_EMPTY);
    assert_int_equal(info.open_views, 0);
    assert_int_equal(info.residence, 0);
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(reshape_keeps_to_the_created_size_and_empties)
{
    stw_runtime *runtime = *state;
    stw_tensor *tensor = tensor_f32(runtime, "sequence", 1000);
    const uint64_t smaller[2] = {10, 50}, larger[1] = {1001}, original[1] = {1000};
    const uint64_t overflowing[2] = {UINT64_C(1) << 40, UINT64_C(1) << 40};
    float values[500];
    tensor_fill_sequence(tensor, 1000, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    fails(stw_tensor_reshape(tensor, smaller, 2), STW_ERROR_BUSY, "'sequence'");
    view_put(&view);
    fails(stw_tensor_reshape(tensor, larger, 1), STW_ERROR_INVALID, "cannot be reshaped");
    fails(stw_tensor_reshape(tensor, overflowing, 2), STW_ERROR_INVALID, "overflows");
    fails(stw_tensor_reshape(tensor, smaller, 9), STW_ERROR_INVALID, "9 dimensions");
    tensor_expect_sequence(tensor, 1000, 0);
    ok(stw_tensor_reshape(tensor, smaller, 2));
    fails(stw_tensor_read(tensor, values, NULL), STW_ERROR_EMPTY, "'sequence'");
    assert_int_equal(info_of(tensor).elements, 500);
    assert_int_equal(info_of(tensor).shape[1], 50);
    tensor_fill_sequence(tensor, 500, 9);
    tensor_expect_sequence(tensor, 500, 9);
    ok(stw_tensor_reshape(tensor, original, 1));
    tensor_fill_sequence(tensor, 1000, 3);
    tensor_expect_sequence(tensor, 1000, 3);
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(reading_what_was_never_written_is_refused)
{
    stw_runtime *runtime = *state;
    stw_tensor *tensor = tensor_f32(runtime, "blank", 100);
    stw_fetch_request request = request_of(tensor, STW_READ);
    float values[100];
    stw_view view;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'blank' is empty");
    fails(stw_tensor_read(tensor, values, NULL), STW_ERROR_EMPTY, "'blank' is empty");
    tensor_fill_sequence(tensor, 100, 0);
    tensor_expect_sequence(tensor, 100, 0);
    ok(stw_tensor_discard(&tensor, 1));
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_EMPTY, "'blank' is empty");
    ok(stw_tensor_destroy(&tensor, 1));
}

static void expect_zeros(stw_runtime *runtime, stw_tensor *tensor, uint64_t elements)
{
    stw_view view = view_get(runtime, tensor, STW_READ);
    const float *values = view.pointer;
    for (uint64_t i = 0; i < elements; ++i) assert_float(values[i], 0);
    view_put(&view);
}

TEST(zero_tensors_read_as_zeros_alone_and_in_shared_blocks)
{
    stw_runtime *runtime = *state;
    stw_tensor_spec spec = spec_f32(NULL, 100);
    stw_tensor *small[6];
    for (int i = 0; i < 6; ++i) {
        spec.flags = i % 2 ? STW_TENSOR_ZERO : 0;
        small[i] = tensor_make(runtime, &spec);
    }
    spec.flags = STW_TENSOR_ZERO, spec.shape[0] = 3 * BLOCK / 4;
    stw_tensor *large = tensor_make(runtime, &spec);
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 6; i += 2)
            tensor_fill_sequence(small[i], 100, 100.0F * (float)(i + round));
        for (int i = 1; i < 6; i += 2) expect_zeros(runtime, small[i], 100);
        expect_zeros(runtime, large, 3 * BLOCK / 4);
        for (int i = 1; i < 6; i += 2) tensor_fill_sequence(small[i], 100, 7);
        tensor_fill_sequence(large, 3 * BLOCK / 4, 1);
        ok(stw_evict(runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
        for (int i = 1; i < 6; i += 2) tensor_expect_sequence(small[i], 100, 7);
        /* Some dead, some live in the same block. */
        ok(stw_tensor_discard(&small[1], 1));
        ok(stw_tensor_discard(&large, 1));
        expect_zeros(runtime, small[1], 100);
        expect_zeros(runtime, large, 3 * BLOCK / 4);
        tensor_expect_sequence(small[3], 100, 7);
        ok(stw_tensor_discard(&small[3], 1));
        ok(stw_tensor_discard(&small[5], 1));
        for (int i = 1; i < 6; i += 2) expect_zeros(runtime, small[i], 100);
        for (int i = 0; i < 6; i += 2)
            tensor_expect_sequence(small[i], 100, 100.0F * (float)(i + round));
    }
    ok(stw_tensor_destroy(small, 6));
    ok(stw_tensor_destroy(&large, 1));
}

/* The tensor shares its block, and each way to empty it is tried. */
TEST(zeros_come_back_in_every_way_to_empty_a_tensor)
{
    stw_runtime *runtime = *state;
    stw_tensor_spec spec = spec_f32(NULL, 100);
    stw_tensor *beside = tensor_f32(runtime, NULL, 100), *parameter = tensor_f32(runtime, "w", 100);
    spec.flags = STW_TENSOR_ZERO, spec.role = STW_ROLE_GRAD;
    stw_tensor *gradient = tensor_make(runtime, &spec);
    spec.role = STW_ROLE_PARAM;
    stw_tensor *zero = tensor_make(runtime, &spec);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
    optimizer_add(optimizer, parameter, gradient);
    const struct {
        uint32_t access, flags;
    } ways[] = {
        {STW_READ, STW_RELEASE_DISCARD},
        {STW_READ, STW_RELEASE_DISCARD | STW_RELEASE_FAR},
        {STW_READ, STW_RELEASE_DISCARD | STW_RELEASE_NEAR},
        {STW_READ_WRITE, STW_RELEASE_DISCARD},
        {STW_READ_WRITE, STW_RELEASE_ABANDON},
        {STW_WRITE, STW_RELEASE_DISCARD},
    };
    tensor_fill_sequence(beside, 100, 5);
    for (size_t way = 0; way < 2 * COUNT(ways); ++way) {
        tensor_fill_sequence(zero, 100, 3);
        stw_view view = view_get(runtime, zero, STW_READ);
        view_put(&view);
        if (way % 2) ok(stw_evict(runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
        view = view_get(runtime, zero, ways[way / 2].access);
        ok(stw_release(&view, 1, STW_STREAM_HOST, ways[way / 2].flags));
        assert_int_equal(info_of(zero).state, STW_STATE_VALID);
        expect_zeros(runtime, zero, 100);
    }
    /* A fetch whose views are not collected. */
    tensor_fill_sequence(zero, 100, 3);
    stw_fetch_request request = request_of(zero, STW_WRITE);
    stw_operation *operation = NULL;
    ok(stw_fetch_async(runtime, NULL, &request, 1, &operation));
    ok(stw_operation_wait(operation, 0));
    ok(stw_operation_free(operation));
    expect_zeros(runtime, zero, 100);
    /* The gradient of an update. */
    tensor_fill_sequence(parameter, 100, 1);
    tensor_fill_sequence(gradient, 100, 1);
    ok(stw_optimizer_step(optimizer, NULL, NULL));
    expect_zeros(runtime, gradient, 100);
    tensor_expect_sequence(beside, 100, 5);
    ok(stw_optimizer_destroy(optimizer));
    ok(stw_tensor_destroy(&gradient, 1));
    ok(stw_tensor_destroy(&parameter, 1));
    ok(stw_tensor_destroy(&zero, 1));
    ok(stw_tensor_destroy(&beside, 1));
}

/* Without elements there is nothing to write, and using it must end all the same. */
TEST(an_empty_shape_that_reads_as_zeros_may_be_discarded)
{
    stw_runtime *runtime = *state;
    stw_tensor_spec spec = spec_f32(NULL, 0);
    stw_tensor *beside = tensor_f32(runtime, NULL, 100), *none;
    spec.flags = STW_TENSOR_ZERO;
    none = tensor_make(runtime, &spec);
    tensor_fill_sequence(beside, 100, 1);
    ok(stw_tensor_discard(&none, 1));
    stw_view view = view_get(runtime, none, STW_READ);
    assert_int_equal(view.bytes, 0);
    view_put(&view);
    ok(stw_tensor_read(none, NULL, NULL));
    ok(stw_runtime_drain(runtime, 0));
    tensor_expect_sequence(beside, 100, 1);
    ok(stw_tensor_destroy(&none, 1));
    ok(stw_tensor_destroy(&beside, 1));
}

/* The block it shares lies on a disk that does not answer: the zeros come when somebody asks. */
TEST(discarding_never_waits_for_the_block)
{
    machine wanted = machine_small();
    stw_tensor_spec spec = spec_f32(NULL, 100);
    float value;
    stw_copy_options options = STW_COPY_OPTIONS_INIT;
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;at=read:1:hang;at=read:2:hang";
    wanted.host_blocks = 0;
    stw_runtime *runtime = machine_open(&wanted);
    spec.flags = STW_TENSOR_ZERO;
    stw_tensor *zero = tensor_make(runtime, &spec);
    stw_tensor *other = tensor_f32(runtime, NULL, 100);
    tensor_fill_sequence(zero, 100, 1);
    tensor_fill_sequence(other, 100, 1);
    ok(stw_evict(runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
    ok(stw_tensor_discard(&zero, 1));
    ok(stw_tensor_discard(&zero, 1));
    stw_tensor_info info = info_of(zero);
    assert_int_equal(info.state, STW_STATE_VALID);
    options.element_count = 1, options.timeout_ns = 50 * MILLISECOND_NS;
    fails(stw_tensor_read(zero, &value, &options), STW_ERROR_TIMEOUT, "");
    (void)stw_runtime_close(runtime, 0, MILLISECOND_NS);
}

TEST(read_only_tensors_are_written_by_write_alone)
{
    stw_runtime *runtime = *state;
    stw_tensor_spec spec = spec_f32("frozen", 64);
    stw_view view;
    spec.flags = STW_TENSOR_READ_ONLY;
    stw_tensor *tensor = tensor_make(runtime, &spec);
    stw_fetch_request request = request_of(tensor, STW_WRITE);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "'frozen' is read-only");
    request.access = STW_READ_WRITE;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "read-only");
    request.access = STW_REDUCE;
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "read-only");
    fails(stw_reduce(tensor, NULL, NULL), STW_ERROR_INVALID, "read-only");
    fails(stw_tensor_fill(tensor, 1, NULL), STW_ERROR_INVALID, "read-only");
    tensor_fill_sequence(tensor, 64, 5);
    tensor_expect_sequence(tensor, 64, 5);
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(tensors_max_is_a_limit_with_its_number)
{
    machine small = machine_small();
    stw_tensor *tensors[8], *more = NULL;
    stw_tensor_spec spec = spec_f32(NULL, 4);
    small.tensors_max = 8;
    stw_runtime *runtime = machine_open(&small);
    for (int i = 0; i < 8; ++i) tensors[i] = tensor_f32(runtime, NULL, 4);
    fails(stw_tensor_create(runtime, &spec, 1, &more), STW_ERROR_LIMIT, "8 tensors exist");
    ok(stw_tensor_destroy(tensors, 1));
    ok(stw_tensor_create(runtime, &spec, 1, &tensors[0]));
    ok(stw_tensor_destroy(tensors, 8));
    machine_close(runtime);
}

enum { ROOM_BLOCKS = 256 };

typedef struct {
    stw_tensor *tensors[ROOM_BLOCKS];
    uint64_t blocks[ROOM_BLOCKS];
    uint32_t count;
} crowd;

/* As many of that size as room is promised for: what ends it is the budget. */
static void crowd_grow(crowd *all, stw_runtime *runtime, uint64_t blocks)
{
    stw_tensor_spec spec = spec_f32(NULL, blocks * BLOCK / 4);
    stw_tensor *made = NULL;
    while (all->count < ROOM_BLOCKS && stw_tensor_create(runtime, &spec, 1, &made) == STW_OK) {
        all->tensors[all->count] = made;
        all->blocks[all->count++] = blocks;
    }
    if (all->count == ROOM_BLOCKS) return;
    fails(stw_tensor_create(runtime, &spec, 1, &made), STW_ERROR_BUDGET, "promise");
}

/* What lies across a multiple of `blocks` stays, and leaves no hole of that size beside it. */
static void crowd_thin(crowd *all, const char *base, uint64_t blocks)
{
    uint32_t kept = 0, i;
    for (i = 0; i < all->count; ++i) {
        void *address = NULL;
        uint64_t bytes = 0, begin;
        ok(stw_tensor_address(all->tensors[i], 0, &address, &bytes));
        begin = (uint64_t)((const char *)address - base) / BLOCK;
        if ((begin + blocks - 1) / blocks * blocks < begin + all->blocks[i]) {
            all->tensors[kept] = all->tensors[i];
            all->blocks[kept++] = all->blocks[i];
        } else {
            ok(stw_tensor_destroy(&all->tensors[i], 1));
        }
    }
    all->count = kept;
}

/* As many as the tables have room for: the next one is refused with the arithmetic, and room comes
 * back with what is destroyed. */
TEST(tensors_past_the_budget_of_the_tables_are_refused)
{
    enum { TENSORS_MAX = 20000 };
    static stw_tensor *tensors[TENSORS_MAX];
    machine wanted = machine_small();
    stw_tensor_spec spec = spec_f32(NULL, 4);
    uint32_t count = 0, again;
    wanted.views_max = 64;
    wanted.metadata_bytes = 8 * MIB;
    stw_runtime *runtime = machine_open(&wanted);
    while (count < TENSORS_MAX && stw_tensor_create(runtime, &spec, 1, &tensors[count]) == STW_OK) {
        ++count;
        stw_tier_stats stats = tier_stats(runtime, STW_TIER_HOST);
        assert_int_equal(stats.metadata_budget_bytes, wanted.metadata_bytes);
        assert_true(stats.metadata_bytes <= wanted.metadata_bytes);
    }
    assert_in_range(count, 500, TENSORS_MAX - 1);
    fails(stw_tensor_create(runtime, &spec, 1, &tensors[count]), STW_ERROR_BUDGET,
          "metadata_bytes 8.0 MiB = ");
    assert_true(error_numbers().needed_bytes > error_numbers().free_bytes);
    ok(stw_tensor_destroy(tensors, count));
    /* All but what the next growth of a table takes: the first of them brings it, as tables are
     * made ready for one number more, whether one is free or not. */
    for (again = 0; again < count - count / 100; ++again) {
        ok(stw_tensor_create(runtime, &spec, 1, &tensors[again]));
    }
    machine_close(runtime);
}

TEST(addresses_last_as_long_as_the_room_does)
{
    stw_runtime *runtime = *state;
    void *base = NULL;
    uint64_t bytes = 0, blocks;
    crowd all;
    all.count = 0;
    crowd_grow(&all, runtime, 1);
    ok(stw_tensor_address(all.tensors[0], 0, &base, &bytes));
    for (blocks = 2; blocks < ROOM_BLOCKS; blocks *= 2) {
        crowd_thin(&all, base, blocks);
        crowd_grow(&all, runtime, blocks);
    }
    ok(stw_tensor_destroy(all.tensors, all.count));
}

RUN_TESTS("tensors", machine_setup, machine_teardown)
