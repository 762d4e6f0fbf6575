/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tier costs before it is used: addresses. Pages come as they are used, unless the program
 * asks for all of them or they are locked.
 */
#include "support.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BUDGET (1024 * MIB)
/* Tables, threads, and what a sanitizer adds: that of threads four times of what is touched. */
#if defined(__has_feature)
#define SANITIZES_THREADS __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define SANITIZES_THREADS 1
#else
#define SANITIZES_THREADS 0
#endif
#define SMALL (SANITIZES_THREADS ? 448 * MIB : 64 * MIB)

static uint64_t resident(void)
{
    unsigned long all = 0, here = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &here), 2);
    fclose(file);
    return here * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* With one budget, of the device or of the host tier. */
static stw_runtime *open_one(uint64_t device_bytes, uint64_t host_bytes, const char *driver_options)
{
    stw_runtime *runtime;
    stw_device_options device = {.struct_size = sizeof device,
                                 .budget_bytes = device_bytes,
                                 .driver_options = driver_options};
    stw_runtime_options options = {.struct_size = sizeof options,
                                   .devices = &device,
                                   .device_count = device_bytes > 0,
                                   .host_bytes = host_bytes,
                                   .log = log_line};
    ok(stw_runtime_open(&options, &runtime));
    return runtime;
}

static void peak_follows_use(stw_runtime *runtime, uint64_t before)
{
    uint64_t used = 0;
    assert_in_range(resident() - before, 0, SMALL);
    for (int i = 0; i < 3; ++i) {
        char name[8];
        snprintf(name, sizeof name, "t%d", i);
        tensor_fill_sequence(tensor_f32(runtime, name, 16 * MIB / 4), 16 * MIB / 4, 0.0F);
        used += 16 * MIB;
        assert_in_range(resident() - before, used, used + SMALL);
    }
}

TEST(a_device_tier_costs_what_is_used_of_it)
{
    const uint64_t before = resident();
    stw_runtime *runtime = open_one(BUDGET, 0, NULL);
    peak_follows_use(runtime, before);
    machine_close(runtime);
}

TEST(a_device_tier_is_populated_where_that_is_asked)
{
    const uint64_t before = resident();
    stw_runtime *runtime = open_one(BUDGET / 4, 0, "populate=1");
    assert_in_range(resident() - before, BUDGET / 4, BUDGET / 4 + SMALL);
    machine_close(runtime);
}

/* Root may lock all it wants, as long as it has the capability. */
static void stop_locking(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    const struct rlimit limit = {64 * KIB, 64 * KIB};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    assert_int_equal(syscall(SYS_capget, &header, data), 0);
    data[0].effective &= ~(1U << CAP_IPC_LOCK);
    assert_int_equal(syscall(SYS_capset, &header, data), 0);
}

TEST(a_host_tier_that_is_not_locked_costs_what_is_used_of_it)
{
    stop_locking();
    uint64_t before = resident();
    stw_runtime *runtime = open_one(0, BUDGET, NULL);
    assert_int_equal(logged("Not locked"), 1);
    peak_follows_use(runtime, before);
    machine_close(runtime);
    log_reset();
}

RUN_TESTS("resident", NULL, NULL)
