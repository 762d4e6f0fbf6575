/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drivers from modules: tiers behind them keep their bytes, and what cannot be loaded is told.
 */
#include "module_file.h"
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

enum { ELEMENTS = 20 * 16384 };

/* Copies of the modules in a directory of our own: the build's may be others' to write. */
static char directory[] = "/tmp/stepwell-modules-XXXXXX";
static char module[64];
static char collective[64];
static char older[64]; /* its tables end with the operations that every driver has */

static int copy_modules(void **state)
{
    (void)state;
    if (!mkdtemp(directory)) return 1;
    snprintf(module, sizeof module, "%s/any_name.so", directory);
    snprintf(collective, sizeof collective, "%s/collective.so", directory);
    snprintf(older, sizeof older, "%s/older.so", directory);
    return copy_module("ram", module) || copy_module("older", older) ||
           copy_module("alone", collective);
}

static int remove_modules(void **state)
{
    (void)state;
    return unlink(module) || unlink(older) || unlink(collective) || rmdir(directory);
}

static void bytes_come_back(stw_runtime *runtime)
{
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    tensor_fill_sequence(tensor, ELEMENTS, 5);
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0));
    tensor_expect_sequence(tensor, ELEMENTS, 5);
}

TEST(an_nvme_tier_of_a_module_keeps_its_bytes)
{
    machine wanted = machine_small();
    wanted.nvme_driver = module, wanted.nvme_options = "", wanted.nvme_path = "no directory";
    stw_runtime *runtime = machine_open(&wanted);
    bytes_come_back(runtime);
    report_expect(runtime, "no directory", "\"ram\"");
    machine_close(runtime);
}

TEST(a_device_tier_of_a_module_keeps_its_bytes)
{
    machine wanted = machine_small();
    stw_device_info info = {sizeof info, 0, 0, 0, {0}, {0}};
    stw_view view;
    wanted.device_driver = module;
    stw_runtime *runtime = machine_open(&wanted);
    ok(stw_device_info_get(runtime, 0, &info));
    assert_string_equal(info.driver, "ram");
    /* It says that storage and kernels reach it, and not that it moves blocks. */
    assert_int_equal(info.flags, STW_DEVICE_UNIFIED);
    stw_tensor *tensor = tensor_on_disk(runtime, "on disk", 16384, 3);
    stw_fetch_request request = request_of(tensor, STW_READ);
    request.tier = STW_TIER_DEVICE;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    assert_float(((const float *)view.pointer)[16383], 3 + 16383);
    view_put(&view);
    machine_close(runtime);
}

/* The arena says nothing of its device, so that it is another one shows in what is refused. */
TEST(a_module_is_asked_for_the_ordinal_of_the_options)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_device_options devices[2] = {STW_DEVICE_OPTIONS_INIT, STW_DEVICE_OPTIONS_INIT};
    stw_device_info info = {sizeof info, 0, 0, 0, {0}, {0}};
    stw_runtime *runtime = NULL;
    options.devices = devices, options.device_count = 2;
    for (uint32_t i = 0; i < 2; ++i) {
        devices[i].driver = module, devices[i].budget_bytes = 8 * MIB;
        devices[i].ordinal = (int32_t)(1 - i);
    }
    ok(stw_runtime_open(&options, &runtime));
    for (uint32_t i = 0; i < 2; ++i) {
        ok(stw_device_info_get(runtime, i, &info));
        assert_int_equal(info.ordinal, 1 - i);
    }
    ok(stw_runtime_close(runtime, 0, 0));
    devices[1].ordinal = 2, runtime = NULL;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_UNSUPPORTED,
          "The ram driver has 2 devices and none of ordinal 2.");
    devices[1].ordinal = -1;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_UNSUPPORTED, "ordinal -1");
    assert_null(runtime);
}

TEST(tiers_of_an_older_module_keep_their_bytes_and_their_budgets)
{
    machine wanted = machine_small();
    wanted.device_driver = older;
    wanted.nvme_driver = older, wanted.nvme_options = "", wanted.nvme_path = "no directory";
    stw_runtime *runtime = machine_open(&wanted);
    fails(stw_tier_set_budget(runtime, STW_TIER_DEVICE, 0, UINT64_C(1) << 20, 0),
          STW_ERROR_UNSUPPORTED, "the driver 'older' of device 0 cannot give memory back");
    fails(stw_tier_set_budget(runtime, STW_TIER_NVME, 0, UINT64_C(8) << 20, 0),
          STW_ERROR_UNSUPPORTED, "driver 'older') cannot give back space");
    bytes_come_back(runtime);
    machine_close(runtime);
}

TEST(drivers_are_looked_up_without_a_runtime)
{
    stw_driver_info info = {sizeof info, 0, 0, 0, {0}};
    ok(stw_driver_info_get(module, &info));
    assert_int_equal(info.kinds, STW_DRIVER_MEMORY | STW_DRIVER_STORAGE);
    assert_int_equal(info.built_in, 0);
    assert_string_equal(info.name, "ram");
    ok(stw_driver_info_get("cpu", &info));
    assert_int_equal(info.kinds, STW_DRIVER_MEMORY);
    assert_int_equal(info.built_in, 1);
    ok(stw_driver_info_get(collective, &info));
    assert_int_equal(info.kinds, STW_DRIVER_COLLECTIVE);
    assert_string_equal(info.name, "alone");
    ok(stw_driver_info_get("cpu", &info));
    fails(stw_driver_info_get("tape", &info), STW_ERROR_UNSUPPORTED, "'tape'");
    fails(stw_driver_info_get("./ram.so", &info), STW_ERROR_INVALID, "absolute path");
    fails(stw_driver_info_get("/missing.so", &info), STW_ERROR_NOT_FOUND, "is not there");
    fails(stw_driver_info_get(NULL, &info), STW_ERROR_INVALID, "driver is null");
    fails(stw_driver_info_get("cpu", NULL), STW_ERROR_INVALID, "info_out");
    assert_string_equal(info.name, "cpu");
}

TEST(the_fault_driver_wraps_a_module)
{
    machine wanted = machine_small();
    char options[128];
    snprintf(options, sizeof options, "inner=%s;at=read:1:eio", module);
    wanted.nvme_driver = "fault", wanted.nvme_options = options, wanted.errors_expected = 1;
    stw_runtime *runtime = machine_open(&wanted);
    bytes_come_back(runtime);
    machine_close(runtime);
}

TEST(a_module_that_cannot_be_loaded_leaves_nothing_open)
{
    const int descriptors = descriptors_open();
    machine wanted = machine_small();
    stw_runtime *runtime = NULL;
    wanted.nvme_driver = "./any_name.so";
    fails(machine_try_open(&wanted, &runtime), STW_ERROR_INVALID, "nvme[0].driver: ");
    wanted.nvme_driver = "tape";
    fails(machine_try_open(&wanted, &runtime), STW_ERROR_UNSUPPORTED, "libstepwell-tape.so");
    wanted.nvme_driver = "/missing/module.so";
    fails(machine_try_open(&wanted, &runtime), STW_ERROR_NOT_FOUND, "'/missing' is not there");
    assert_int_equal(error_numbers().os_errno, 2);
    wanted.nvme_driver = module;
    assert_int_equal(chmod(module, 0666), 0);
    fails(machine_try_open(&wanted, &runtime), STW_ERROR_PERMISSION, "chmod go-w");
    wanted.nvme_driver = NULL, wanted.device_driver = module;
    fails(machine_try_open(&wanted, &runtime), STW_ERROR_PERMISSION, "devices[0].driver: ");
    assert_int_equal(chmod(module, 0644), 0);
    assert_null(runtime);
    assert_int_equal(descriptors_open(), descriptors);
}

RUN_TESTS("modules", copy_modules, remove_modules)
