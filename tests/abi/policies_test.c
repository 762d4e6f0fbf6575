/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies, addresses for life and eviction; machines that have one tier alone.
 */
#include "support.h"

TEST(policies_name_tiers_that_exist)
{
    machine wanted = machine_small();
    stw_tensor_spec spec = spec_f32("t", 16);
    stw_policy policy = STW_POLICY_INIT;
    stw_tensor *tensor = NULL;
    wanted.host_blocks = 0;
    stw_runtime *runtime = machine_open(&wanted);
    spec.policy = &policy, policy.allowed_tiers = STW_ALLOW_HOST;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "allowed_tiers 0x2");
    policy.allowed_tiers = 0, policy.home = STW_TIER_HOST;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "policy.home 2");
    policy.home = STW_TIER_DEVICE, policy.home_device = 1;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "policy.home 1");
    policy.home_device = 0, policy.allowed_tiers = STW_ALLOW_NVME;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "leaves out");
    policy.home = 9;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "policy.home 9");
    assert_null(tensor);
    machine_close(runtime);
}

TEST(a_tensor_stays_out_of_tiers_it_is_not_allowed_in)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor_spec spec = spec_f32("device only", 4 * BLOCK / 4);
    stw_policy policy = STW_POLICY_INIT;
    stw_tensor *stays, *tensor = NULL, *others[4];
    stw_fetch_request request;
    spec.policy = &policy, policy.allowed_tiers = STW_ALLOW_DEVICE;
    stays = tensor_make(runtime, &spec);
    tensor_fill_sequence(stays, 4 * BLOCK / 4, 0);
    stw_view view = view_get(runtime, stays, STW_READ);
    view_put(&view);
    for (int i = 0; i < 4; ++i) {
        others[i] = tensor_f32(runtime, NULL, 3 * BLOCK / 4);
        tensor_fill_sequence(others[i], 3 * BLOCK / 4, (float)i);
        view = view_get(runtime, others[i], STW_READ);
        view_put(&view);
    }
    assert_int_equal(info_of(stays).residence, STW_ALLOW_DEVICE);
    tensor_expect_sequence(stays, 4 * BLOCK / 4, 0);
    /* Room of a tier where bytes stay is promised: 4 of 8 blocks are left. */
    spec.name = "too much", spec.shape[0] = 5 * BLOCK / 4;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_BUDGET, "device");
    assert_int_equal(error_numbers().tier, STW_TIER_DEVICE);
    assert_int_equal(error_numbers().needed_bytes, 5 * BLOCK);
    assert_int_equal(error_numbers().free_bytes, 4 * BLOCK);
    request = request_of(stays, STW_READ), request.tier = STW_TIER_HOST;
    assert_true(stw_fetch(runtime, NULL, &request, 1, &view) < 0);
    assert_true(strlen(stw_last_error()) > 10);
    fails(stw_evict(runtime, &stays, 1, STW_TIER_DEVICE, 0, 0), STW_ERROR_BUSY, "'device only'");
    machine_close(runtime);
}

TEST(a_pinned_tensor_never_leaves_home_and_is_counted_at_create)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor_spec spec = spec_f32("pinned", 6 * BLOCK / 4);
    stw_policy policy = STW_POLICY_INIT;
    stw_tensor *pinned, *more = NULL, *passing;
    spec.policy = &policy, policy.home = STW_TIER_DEVICE, policy.retention = STW_RETAIN_PIN;
    pinned = tensor_make(runtime, &spec);
    tensor_fill_sequence(pinned, 6 * BLOCK / 4, 0);
    stw_view view = view_get(runtime, pinned, STW_READ);
    view_put(&view);
    spec.name = "also pinned", spec.shape[0] = 3 * BLOCK / 4;
    fails(stw_tensor_create(runtime, &spec, 1, &more), STW_ERROR_BUDGET, "'also pinned'");
    for (int i = 0; i < 8; ++i) {
        passing = tensor_f32(runtime, NULL, 2 * BLOCK / 4);
        tensor_fill_sequence(passing, 2 * BLOCK / 4, 1);
        view = view_get(runtime, passing, STW_READ);
        view_put(&view);
        assert_true((info_of(pinned).residence & STW_ALLOW_DEVICE) != 0);
    }
    tensor_expect_sequence(pinned, 6 * BLOCK / 4, 0);
    machine_close(runtime);
}

TEST(a_policy_can_be_replaced)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 2 * BLOCK / 4);
    stw_policy policy = {.struct_size = sizeof policy, .allowed_tiers = 16};
    fails(stw_tensor_set_policy(tensor, &policy), STW_ERROR_INVALID, "allowed_tiers");
    policy.allowed_tiers = 0, policy.retention = STW_RETAIN_STREAM;
    ok(stw_tensor_set_policy(tensor, &policy));
    policy.allowed_tiers = STW_ALLOW_HOST | STW_ALLOW_DEVICE, policy.home = STW_TIER_HOST;
    ok(stw_tensor_set_policy(tensor, &policy));
    tensor_fill_sequence(tensor, 2 * BLOCK / 4, 0);
    tensor_expect_sequence(tensor, 2 * BLOCK / 4, 0);
    machine_close(runtime);
}

TEST(the_address_on_the_cpu_device_is_for_life)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensors[6];
    void *addresses[6], *address = NULL;
    uint64_t bytes = 0;
    for (int i = 0; i < 6; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, 3 * BLOCK / 4 + 10);
        tensor_fill_sequence(tensors[i], 3 * BLOCK / 4 + 10, (float)i);
        ok(stw_tensor_address(tensors[i], 0, &addresses[i], &bytes));
        assert_int_equal(bytes, 3 * BLOCK + 40);
    }
    fails(stw_tensor_address(tensors[0], 1, &address, &bytes), STW_ERROR_UNSUPPORTED, "device 1");
    for (int round = 0; round < 5; ++round) {
        for (int i = 0; i < 6; ++i) {
            stw_view view = view_get(runtime, tensors[(i + round) % 6], STW_READ_WRITE);
            assert_ptr_equal(view.pointer, addresses[(i + round) % 6]);
            assert_float(((float *)view.pointer)[100], (float)((i + round) % 6) + 100);
            view_put(&view);
        }
        ok(stw_evict(runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
        for (int i = 0; i < 6; ++i)
            assert_true((info_of(tensors[i]).residence & STW_ALLOW_DEVICE) == 0);
    }
    machine_close(runtime);
}

TEST(a_device_across_a_bus_has_no_address_for_life)
{
    machine wanted = machine_small();
    void *address = NULL;
    uint64_t bytes = 0;
    wanted.device_driver = "cpu-discrete";
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *tensor = tensor_f32(runtime, "t", 16);
    fails(stw_tensor_address(tensor, 0, &address, &bytes), STW_ERROR_UNSUPPORTED, "device 0");
    stw_device_info info = {.struct_size = sizeof info};
    ok(stw_device_info_get(runtime, 0, &info));
    assert_int_equal(info.flags, 0);
    assert_string_equal(info.driver, "cpu-discrete");
    assert_int_equal(info.granule_bytes, BLOCK);
    fails(stw_device_info_get(runtime, 1, &info), STW_ERROR_INVALID, "no device 1");
    machine_close(runtime);
}

TEST(evict_names_the_view_that_is_in_the_way)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "held", 2 * BLOCK / 4);
    tensor_fill_sequence(tensor, 2 * BLOCK / 4, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    fails(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0), STW_ERROR_BUSY, "'held'");
    view_put(&view);
    tensor_to_disk(runtime, tensor);
    assert_int_equal(info_of(tensor).residence, STW_ALLOW_NVME);
    tensor_expect_sequence(tensor, 2 * BLOCK / 4, 0);
    machine_close(runtime);
}

TEST(one_tier_alone_works_and_refuses_what_it_cannot_hold)
{
    const uint32_t device[] = {8, 0, 8}, host[] = {0, 8, 0};
    const char *drivers[] = {NULL, NULL, "cpu-discrete"};
    for (size_t i = 0; i < COUNT(device); ++i) {
        machine wanted;
        stw_tensor *tensor, *more = NULL;
        stw_tensor_spec spec = spec_f32("more", 3 * BLOCK / 4);
        memset(&wanted, 0, sizeof wanted);
        wanted.device_blocks = device[i], wanted.host_blocks = host[i];
        wanted.device_driver = drivers[i];
        stw_runtime *runtime = machine_open(&wanted);
        tensor = tensor_f32(runtime, "t", 6 * BLOCK / 4);
        fails(stw_tensor_create(runtime, &spec, 1, &more), STW_ERROR_BUDGET, "'more'");
        if (!drivers[i]) {
            tensor_fill_sequence(tensor, 6 * BLOCK / 4, 0);
            tensor_expect_sequence(tensor, 6 * BLOCK / 4, 0);
        }
        stw_view view = view_get(runtime, tensor, STW_WRITE);
        memset(view.pointer, 0, view.bytes);
        view_put(&view);
        view = view_get(runtime, tensor, STW_READ);
        assert_float(((float *)view.pointer)[1000], 0);
        view_put(&view);
        machine_close(runtime);
    }
}

TEST(tensors_larger_than_the_near_tiers_are_used_by_ranges)
{
    machine wanted = machine_small();
    const uint64_t elements = 60 * BLOCK / 4; /* device 8 blocks, host 16 */
    const char *drivers[] = {NULL, "cpu-discrete"};
    stw_view view;
    for (size_t driver = 0; driver < COUNT(drivers); ++driver) {
        wanted.device_driver = drivers[driver];
        stw_runtime *runtime = machine_open(&wanted);
        stw_tensor *tensor = tensor_f32(runtime, "large", elements);
        tensor_fill_sequence(tensor, elements, 0);
        for (uint64_t i = 0; i + 5 * BLOCK / 4 <= elements; i += 4 * BLOCK / 4 + 77) {
            stw_fetch_request request = request_range(tensor, STW_READ_WRITE, i, 5 * BLOCK / 4);
            ok(stw_fetch(runtime, NULL, &request, 1, &view));
            assert_float(((float *)view.pointer)[0], (float)i);
            assert_float(((float *)view.pointer)[5 * BLOCK / 4 - 1],
                         (float)(i + 5 * BLOCK / 4 - 1));
            view_put(&view);
        }
        tensor_expect_sequence(tensor, elements, 0);
        machine_close(runtime);
    }
}

/* Room is the sum of the tiers, less what moving needs: tensors of 1 MiB until one is refused. All
 * of them are written at each tier in turn, so that most change places. */
static void expect_room(machine wanted, uint32_t home, uint32_t least)
{
    enum { MOST = 200, ELEMENTS = MIB / 4 };
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *tensors[MOST];
    char name[16];
    uint32_t made = 0;
    for (; made < MOST; ++made) {
        snprintf(name, sizeof name, "t%u", made);
        stw_tensor_spec spec = spec_f32(name, ELEMENTS);
        stw_policy policy = STW_POLICY_INIT;
        policy.home = home, spec.policy = home ? &policy : NULL;
        if (stw_tensor_create(runtime, &spec, 1, &tensors[made]) != STW_OK) break;
        tensor_fill_sequence(tensors[made], ELEMENTS, (float)made);
    }
    assert_non_null(strstr(stw_last_error(), "cannot promise room"));
    assert_in_range(made, least, MOST);
    for (uint32_t round = 0; round < 4; ++round) {
        for (uint32_t i = 0; i < made; ++i) {
            const uint32_t at = round % 2 == 0 ? made - 1 - i : i;
            stw_fetch_request request = request_of(tensors[at], STW_READ_WRITE);
            request.tier = round % 2 == 0 ? STW_TIER_DEVICE : STW_TIER_HOST;
            stw_view view;
            ok(stw_fetch(runtime, NULL, &request, 1, &view));
            float *values = view.pointer;
            assert_float(values[ELEMENTS - 1], (float)(at + round + ELEMENTS - 1));
            for (uint32_t k = 0; k < ELEMENTS; ++k) values[k] += 1.0f;
            view_put(&view);
        }
    }
    for (uint32_t i = 0; i < made; ++i) tensor_expect_sequence(tensors[i], ELEMENTS, (float)i + 4);
    machine_close(runtime);
}

TEST(room_is_the_sum_of_the_tiers)
{
    enum { PER_MIB = MIB / BLOCK };
    machine wanted = {.device_blocks = 64 * PER_MIB, .host_blocks = 64 * PER_MIB};
    wanted.nvme_blocks = 32 * PER_MIB;
    const uint32_t homes[] = {0, STW_TIER_DEVICE, STW_TIER_HOST, STW_TIER_NVME};
    for (size_t i = 0; i < sizeof homes / sizeof *homes; ++i) expect_room(wanted, homes[i], 150);
    wanted.host_blocks = 16 * PER_MIB, wanted.nvme_blocks = 0;
    for (size_t i = 0; i < 3; ++i) expect_room(wanted, homes[i], 72);
    wanted.device_driver = "cpu-discrete"; /* whose staging is a part of the host tier's budget */
    expect_room(wanted, 0, 72);
}

/* The states of an optimizer find room at any tier, and each tier keeps what an update works on. */
TEST(updates_work_in_tiers_that_are_full)
{
    enum { ELEMENTS = BLOCK / 4, MOST = 64 };
    machine wanted = {.device_blocks = 48, .host_blocks = 64, .nvme_blocks = 32};
    for (int discrete = 0; discrete < 2; ++discrete) {
        wanted.device_driver = discrete ? "cpu-discrete" : NULL;
        stw_runtime *runtime = machine_open(&wanted);
        stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
        stw_tensor *tensors[2 * MOST];
        char name[16];
        int made = 0;
        for (; made < MOST; ++made) {
            stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
            stw_tensor_spec specs[2];
            snprintf(name, sizeof name, "p%d", made);
            specs[0] = spec_f32(name, ELEMENTS), specs[0].role = STW_ROLE_PARAM;
            specs[1] = spec_f32(NULL, ELEMENTS), specs[1].role = STW_ROLE_GRAD;
            if (stw_tensor_create(runtime, specs, 2, &tensors[2 * made]) != STW_OK) break;
            tensor_fill_sequence(tensors[2 * made], ELEMENTS, 1);
            ok(stw_tensor_fill(tensors[2 * made + 1], 1.0, NULL));
            entry.parameter = tensors[2 * made], entry.gradient = tensors[2 * made + 1];
            if (stw_optimizer_add(optimizer, &entry, 1) != STW_OK) break;
        }
        assert_true(made >= 24);
        for (int step = 0; step < 3; ++step) ok(stw_optimizer_step(optimizer, NULL, NULL));
        ok(stw_runtime_drain(runtime, 0));
        /* All began alike and had the same gradient. */
        static float first[ELEMENTS], each[ELEMENTS];
        ok(stw_tensor_read(tensors[0], first, NULL));
        assert_true(first[0] < 1 && first[0] > 0.5f);
        for (int i = 1; i < made; ++i) {
            ok(stw_tensor_read(tensors[2 * i], each, NULL));
            assert_memory_equal(each, first, sizeof each);
        }
        machine_close(runtime);
    }
}

RUN_TESTS("policies", NULL, NULL)
