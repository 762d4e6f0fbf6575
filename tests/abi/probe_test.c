/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe at a first open: once for a file system, kept for the next open, never the reason that
 * an open fails. Needs 1 GiB on a disk.
 */
#include "support.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define HOME  "probe-home"
#define CACHE HOME "/stepwell/probe.json"

enum { TMPFS = 0x01021994 };

static char absolute[4096];

static int make_home(void **state)
{
    (void)state;
    assert_non_null(getcwd(absolute, sizeof absolute - sizeof HOME));
    strcat(absolute, "/" HOME);
    (void)mkdir(HOME, 0700);
    return 0;
}

static int clean_home(void **state)
{
    (void)state;
    setenv("XDG_CONFIG_HOME", absolute, 1);
    setenv("XDG_CACHE_HOME", absolute, 1);
    remove(CACHE);
    return 0;
}

static machine large(void)
{
    struct statfs about;
    struct statvfs space;
    machine wanted = machine_small();
    assert_int_equal(statfs(".", &about), 0);
    assert_int_equal(statvfs(".", &space), 0);
    if (about.f_type == TMPFS || (uint64_t)space.f_bavail * space.f_frsize < 1536 * MIB) {
        print_message("skipped: the build directory has no 1.5 GiB on a disk\n");
        skip();
    }
    wanted.block_bytes = STW_BLOCK_2M;
    wanted.device_blocks = wanted.host_blocks = 4;
    wanted.nvme_blocks = 512;
    wanted.nvme_options = "";
    return wanted;
}

static int has(stw_runtime *runtime, const char *words)
{
    return strstr(report_text(runtime), words) != NULL;
}

TEST(a_large_tier_is_probed_once_and_then_known)
{
    machine wanted = large();
    struct stat about;
    stw_runtime *runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"probe\""));
    assert_int_equal(stat(CACHE, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0600);
    stw_link_stats stats = link_stats(runtime, STW_LINK_NVME_TO_HOST);
    assert_true(stats.measured_bytes_per_s > 0);
    assert_int_equal(stats.bytes, 0); /* a probe is no transfer */
    tensor_expect_sequence(tensor_on_disk(runtime, "t", 4 * MIB, 1), 4 * MIB, 1);
    machine_close(runtime);

    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"cache\""));
    assert_true(has(runtime, "stepwell/probe.json\""));
    machine_close(runtime);

    wanted.flags = STW_RUNTIME_NO_PROBE;
    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"none\""));
    machine_close(runtime);
}

TEST(without_the_probe_nothing_is_measured_or_kept)
{
    machine wanted = large();
    wanted.flags = STW_RUNTIME_NO_PROBE;
    stw_runtime *runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"none\""));
    machine_close(runtime);
    wanted.flags = 0;
    wanted.profile_path = "";
    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"none\""));
    machine_close(runtime);
    assert_int_equal(access(CACHE, F_OK), -1);
}

/* Else one program's choice of a driver would be every other one's. */
TEST(a_driver_that_was_named_is_not_measured_for_others)
{
    machine wanted = large();
    wanted.nvme_driver = "posix";
    stw_runtime *runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"none\""));
    machine_close(runtime);
    assert_int_equal(access(CACHE, F_OK), -1);
    wanted.nvme_driver = NULL;
    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"probe\""));
    machine_close(runtime);
    assert_int_equal(access(CACHE, F_OK), 0);
}

/* Through the page cache, or with a script of delays, a disk is not as fast as it is. */
TEST(options_of_a_driver_are_measured_for_themselves)
{
    machine wanted = large();
    wanted.nvme_options = "allow_tmpfs=1"; /* which changes nothing here */
    stw_runtime *runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"probe\""));
    machine_close(runtime);
    wanted.nvme_options = "";
    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"probe\""));
    machine_close(runtime);
    wanted.nvme_options = "allow_tmpfs=1";
    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"cache\""));
    machine_close(runtime);
    wanted.nvme_options = "";
    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"cache\""));
    machine_close(runtime);
}

/* posix may have taken over for one run alone, as where other programs held all aio slots. */
TEST(what_a_probe_ran_with_is_not_the_next_opens_driver)
{
    machine wanted = large();
    char text[8192];
    FILE *file;
    stw_runtime *runtime = machine_open(&wanted);
    if (!has(runtime, "\"name\": \"aio\"")) {
        machine_close(runtime);
        print_message("skipped: aio does not work here\n");
        skip();
    }
    machine_close(runtime);
    file = fopen(CACHE, "r+");
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text - 8, file);
    text[bytes] = '\0';
    char *driver = strstr(text, "\"aio\"");
    assert_non_null(driver);
    memmove(driver + strlen("\"posix\""), driver + strlen("\"aio\""),
            strlen(driver + strlen("\"aio\"")) + 1);
    memcpy(driver, "\"posix\"", strlen("\"posix\""));
    rewind(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"cache\""));
    assert_true(has(runtime, "\"name\": \"aio\""));
    assert_true(has(runtime, "only the bandwidths are used"));
    machine_close(runtime);
}

TEST(a_home_that_cannot_be_written_is_probed_without_a_cache)
{
    machine wanted = large();
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    stw_runtime *runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"probe\""));
    assert_int_equal(times_logged("profile"), 0); /* nothing above a remark */
    machine_close(runtime);
}

TEST(a_damaged_cache_is_measured_anew_in_silence)
{
    machine wanted = large();
    FILE *file;
    (void)mkdir(HOME "/stepwell", 0700);
    file = fopen(CACHE, "w");
    assert_non_null(file);
    fputs("{\"kind\": \"stepwell machine profile\", \"format\": 77}", file);
    fclose(file);
    stw_runtime *runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"probe\""));
    assert_int_equal(times_logged("profile"), 0);
    machine_close(runtime);
    runtime = machine_open(&wanted);
    assert_true(has(runtime, "\"source\": \"cache\""));
    machine_close(runtime);
}

RUN_TESTS_EACH("probe", make_home, clean_home, clean_home, NULL)
