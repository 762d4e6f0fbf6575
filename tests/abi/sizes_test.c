/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of older and newer programs: smaller ones mean default, larger ones are taken when the
 * rest is zero, arrays have the stride of their first element.
 */
#include "support.h"

/* A struct of a program built against a later header. */
typedef struct newer_spec {
    stw_tensor_spec known;
    uint64_t later[4];
} newer_spec;
typedef struct newer_request {
    stw_fetch_request known;
    uint64_t later;
} newer_request;
typedef struct newer_fetch_options {
    stw_fetch_options known;
    uint64_t later;
} newer_fetch_options;
typedef struct newer_copy_options {
    stw_copy_options known;
    uint64_t later;
} newer_copy_options;
typedef struct newer_info {
    stw_tensor_info known;
    uint64_t later;
} newer_info;

TEST(an_array_of_newer_specs_has_their_stride)
{
    stw_runtime *runtime = *state;
    newer_spec specs[3];
    stw_tensor *tensors[3];
    char names[3][8];
    memset(specs, 0, sizeof specs);
    for (int i = 0; i < 3; ++i) {
        snprintf(names[i], sizeof names[i], "wide%d", i);
        specs[i].known = spec_f32(names[i], 10 + (uint64_t)i);
        specs[i].known.struct_size = sizeof specs[i];
    }
    ok(stw_tensor_create(runtime, &specs[0].known, 3, tensors));
    for (int i = 0; i < 3; ++i) {
        stw_tensor_info info = info_of(tensors[i]);
        assert_string_equal(info.name, names[i]);
        assert_int_equal(info.elements, 10 + i);
    }
    ok(stw_tensor_destroy(tensors, 3));
    specs[2].later[3] = 1;
    fails(stw_tensor_create(runtime, &specs[0].known, 3, tensors), STW_ERROR_INVALID,
          "non-zero byte at offset");
}

TEST(an_older_spec_means_default_for_what_it_lacks)
{
    stw_runtime *runtime = *state;
    /* All but the last two fields. */
    unsigned char old[sizeof(stw_tensor_spec)];
    stw_tensor_spec spec = spec_f32("older", 4);
    stw_tensor *tensor = NULL;
    const uint32_t size = offsetof(stw_tensor_spec, group);
    spec.struct_size = size;
    memset(old, 0xff, sizeof old);
    memcpy(old, &spec, size);
    ok(stw_tensor_create(runtime, (const stw_tensor_spec *)(void *)old, 1, &tensor));
    ok(stw_tensor_destroy(&tensor, 1));
}

TEST(sizes_that_no_version_has_are_refused)
{
    stw_runtime *runtime = *state;
    stw_tensor_spec spec = spec_f32("sizes", 4);
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_runtime_options opening = STW_RUNTIME_OPTIONS_INIT;
    stw_tensor *tensor = NULL;
    stw_view view;
    stw_runtime *other = NULL;
    const uint32_t sizes[] = {0, 1, 4, 13, 5000, UINT32_MAX};
    stw_tensor *live = tensor_f32(runtime, "live", 4);
    ok(stw_tensor_fill(live, 0, NULL));
    for (size_t i = 0; i < COUNT(sizes); ++i) {
        spec.struct_size = options.struct_size = opening.struct_size = sizes[i];
        stw_fetch_request request = request_of(live, STW_READ);
        fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "struct_size");
        fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_INVALID, "struct_size");
        fails(stw_runtime_open(&opening, &other), STW_ERROR_INVALID, "struct_size");
        request.struct_size = sizes[i];
        fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "struct_size");
    }
    ok(stw_tensor_destroy(&live, 1));
}

TEST(newer_requests_and_options_are_taken_when_the_rest_is_zero)
{
    stw_runtime *runtime = *state;
    stw_tensor *a = tensor_f32(runtime, "a", 100);
    stw_tensor *b = tensor_f32(runtime, "b", 100);
    stw_tensor *both[2];
    newer_request requests[2];
    newer_fetch_options options;
    newer_copy_options copy;
    stw_view views[2];
    memset(requests, 0, sizeof requests);
    memset(&options, 0, sizeof options);
    memset(&copy, 0, sizeof copy);
    tensor_fill_sequence(a, 100, 0);
    tensor_fill_sequence(b, 100, 500);
    requests[0].known = request_of(a, STW_READ);
    requests[1].known = request_of(b, STW_READ);
    requests[0].known.struct_size = requests[1].known.struct_size = sizeof requests[0];
    options.known.struct_size = sizeof options;
    ok(stw_fetch(runtime, &options.known, &requests[0].known, 2, views));
    assert_float(((float *)views[0].pointer)[7], 7);
    assert_float(((float *)views[1].pointer)[7], 507);
    ok(stw_release(views, 2, STW_STREAM_HOST, 0));
    options.later = 1;
    fails(stw_fetch(runtime, &options.known, &requests[0].known, 2, views), STW_ERROR_INVALID,
          "newer one");
    options.later = 0, requests[1].later = 7;
    fails(stw_fetch(runtime, &options.known, &requests[0].known, 2, views), STW_ERROR_INVALID,
          "newer one");
    copy.known.struct_size = sizeof copy, copy.later = 1;
    fails(stw_tensor_fill(a, 0, &copy.known), STW_ERROR_INVALID, "newer one");
    both[0] = a, both[1] = b;
    ok(stw_tensor_destroy(both, 2));
}

TEST(elements_of_one_array_say_one_size)
{
    stw_runtime *runtime = *state;
    stw_tensor *a = tensor_f32(runtime, NULL, 4);
    stw_fetch_request requests[2];
    stw_tensor_spec specs[2];
    stw_tensor *made[2];
    stw_view views[2];
    requests[0] = requests[1] = request_of(a, STW_WRITE);
    requests[1].struct_size = sizeof requests[1] + 8;
    fails(stw_fetch(runtime, NULL, requests, 2, views), STW_ERROR_INVALID, "requests[1]");
    specs[0] = spec_f32("s0", 4), specs[1] = spec_f32("s1", 4);
    specs[1].struct_size = offsetof(stw_tensor_spec, group);
    fails(stw_tensor_create(runtime, specs, 2, made), STW_ERROR_INVALID, "specs[1].struct_size");
    ok(stw_tensor_destroy(&a, 1));
}

TEST(filled_structs_say_how_much_was_filled)
{
    stw_runtime *runtime = *state;
    stw_tensor *a = tensor_f32(runtime, "a", 4);
    newer_info info;
    stw_tier_stats stats;
    stw_tensor_info small;
    memset(&info, 0x44, sizeof info);
    info.known.struct_size = sizeof info;
    ok(stw_tensor_info_get(a, &info.known));
    assert_int_equal(info.known.struct_size, sizeof info.known);
    assert_int_equal(info.later, UINT64_C(0x4444444444444444));
    memset(&small, 0x44, sizeof small);
    small.struct_size = 16;
    ok(stw_tensor_info_get(a, &small));
    assert_int_equal(small.struct_size, 16);
    assert_int_equal(small.dtype, STW_F32);
    assert_int_equal(small.role, 0x44444444);
    memset(&stats, 0x44, sizeof stats);
    stats.struct_size = 16;
    ok(stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &stats));
    assert_int_equal(stats.struct_size, 16);
    assert_int_equal(stats.budget_bytes, 16 * BLOCK);
    assert_int_equal(stats.used_bytes, UINT64_C(0x4444444444444444));
    small.struct_size = 4;
    fails(stw_tensor_info_get(a, &small), STW_ERROR_INVALID, "struct_size is 4");
    ok(stw_tensor_destroy(&a, 1));
}

TEST(a_newer_custom_update_and_hyper_are_checked)
{
    stw_runtime *runtime = *state;
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_custom_update custom;
    stw_optimizer *optimizer = NULL;
    struct {
        stw_hyper known;
        double later;
    } hyper;
    memset(&custom, 0, sizeof custom);
    custom.struct_size = 8;
    options.algorithm = STW_OPTIMIZER_CUSTOM;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID,
          "update function");
    options.custom = &custom;
    fails(stw_optimizer_create(runtime, &options, &optimizer), STW_ERROR_INVALID,
          "update function");
    options.custom = NULL, options.algorithm = STW_OPTIMIZER_SGD;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    memset(&hyper, 0, sizeof hyper);
    hyper.known = (stw_hyper)STW_HYPER_INIT;
    hyper.known.struct_size = sizeof hyper;
    ok(stw_optimizer_set_hyper(optimizer, 0, &hyper.known));
    hyper.later = 0.5;
    fails(stw_optimizer_set_hyper(optimizer, 0, &hyper.known), STW_ERROR_INVALID, "newer one");
    hyper.later = 0, hyper.known.flags = 4;
    fails(stw_optimizer_set_hyper(optimizer, 0, &hyper.known), STW_ERROR_INVALID, "0x4");
    ok(stw_optimizer_destroy(optimizer));
}

RUN_TESTS("sizes", machine_setup, machine_teardown)
