/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machine profiles, as an opening runtime finds and uses them: what is derived is in the report,
 * what the program says itself wins, and only a profile that the program named can fail an open.
 */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#define HOME  "profile-home"
#define USUAL HOME "/stepwell/profile.json"
#define NAMED "profile-named.json"

static char kernel[64], processor[128], cores[32], device[64], file_system[64], file_system_id[64];

/* The text behind the first `"key": ` of the report, without quotes. */
static void take_value(const char *text, const char *key, char *to, size_t size)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"%s\": ", key);
    const char *at = strstr(text, wanted);
    assert_non_null(at);
    at += strlen(wanted);
    at += *at == '"';
    size_t length = strcspn(at, "\",\n");
    assert_true(length > 0 && length < size);
    memcpy(to, at, length);
    to[length] = 0;
}

/* What this machine and this directory are called. */
static int learn_names(void **state)
{
    machine wanted = machine_small();
    char absolute[4096];
    (void)state;
    assert_non_null(getcwd(absolute, sizeof absolute - sizeof HOME));
    strcat(absolute, "/" HOME);
    (void)mkdir(HOME, 0700);
    (void)mkdir(HOME "/stepwell", 0700);
    setenv("XDG_CONFIG_HOME", absolute, 1);
    setenv("XDG_CACHE_HOME", absolute, 1);
    wanted.profile_path = "";
    stw_runtime *runtime = machine_open(&wanted);
    const char *text = strstr(report_text(runtime), "\"profile\"");
    assert_non_null(text);
    take_value(text, "kernel", kernel, sizeof kernel);
    take_value(text, "processor", processor, sizeof processor);
    take_value(text, "cores", cores, sizeof cores);
    take_value(text, "device", device, sizeof device);
    take_value(text, "file_system", file_system, sizeof file_system);
    take_value(text, "file_system_id", file_system_id, sizeof file_system_id);
    machine_close(runtime);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    remove(USUAL);
    remove(NAMED);
    return 0;
}

/* Reads 32 KiB x 7 at 2 GB/s, writes 16 KiB x 3 at 1 GB/s. */
static void profile_write(const char *path, const char *of_processor, const char *of_device,
                          const char *driver)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"kind\": \"stepwell machine profile\", \"format\": 1, \"created\": \"some day\","
            " \"by\": \"tune\", \"machine\": {\"kernel\": \"%s\", \"processor\": \"%s\","
            " \"cores\": %s}, \"host_copy_bytes_per_s\": 5000000000, \"directories\": ["
            "{\"path\": \".\", \"device\": \"%s\", \"file_system\": \"%s\","
            " \"file_system_id\": \"%s\", \"driver\": \"%s\","
            " \"read\": {\"bytes_per_s\": 2000000000, \"request_bytes\": 32768,"
            " \"queue_depth\": 7},"
            " \"write\": {\"bytes_per_s\": 1000000000, \"request_bytes\": 16384,"
            " \"queue_depth\": 3}}]}\n",
            kernel, of_processor, cores, of_device, file_system, file_system_id, driver);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

static void text_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

/* The report's section on profiles holds these words. */
static void profile_expect(stw_runtime *runtime, const char *words)
{
    const char *text = strstr(report_text(runtime), "\"profile\"");
    const char *end = strstr(text, "\"phases\"");
    const char *at = strstr(text, words);
    if (!at || at > end) fail_msg("no '%s' in the report's\n%.*s", words, (int)(end - text), text);
}

static void as_profiled(stw_runtime *runtime, const char *source)
{
    profile_expect(runtime, source);
    profile_expect(runtime, "\"created\": \"some day\"");
    profile_expect(runtime, "\"read_request_bytes\": 32768");
    profile_expect(runtime, "\"read_queue_depth\": 7");
    profile_expect(runtime, "\"write_request_bytes\": 16384");
    profile_expect(runtime, "\"write_queue_depth\": 3");
    profile_expect(runtime, "\"remark\": \"\"");
    stw_link_stats stats = link_stats(runtime, STW_LINK_NVME_TO_HOST);
    assert_int_equal(stats.measured_bytes_per_s, 2000000000);
    stats = link_stats(runtime, STW_LINK_DEVICE_TO_NVME);
    assert_int_equal(stats.measured_bytes_per_s, 1000000000);
    stats = link_stats(runtime, STW_LINK_HOST_TO_DEVICE);
    assert_int_equal(stats.measured_bytes_per_s, 0); /* a cpu device: nothing is copied */
}

static void as_usual(stw_runtime *runtime)
{
    profile_expect(runtime, "\"source\": \"none\"");
    profile_expect(runtime, "\"read_request_bytes\": 65536"); /* a block */
    profile_expect(runtime, "\"write_queue_depth\": 32");
}

static void bytes_come_back(stw_runtime *runtime)
{
    tensor_expect_sequence(tensor_on_disk(runtime, "t", 4 * 16384, 1), 4 * 16384, 1);
}

TEST(a_named_profile_decides_what_the_program_leaves_open)
{
    machine wanted = machine_small();
    profile_write(NAMED, processor, device, "posix");
    wanted.profile_path = NAMED;
    stw_runtime *runtime = machine_open(&wanted);
    as_profiled(runtime, "\"source\": \"profile\"");
    profile_expect(runtime, "\"file\": \"" NAMED "\"");
    report_expect(runtime, ".", "\"name\": \"posix\"");
    report_expect(runtime, ".", "\"queue_depth\": 7");
    assert_int_equal(times_logged("profile"), 0);
    bytes_come_back(runtime);
    machine_close(runtime);
}

TEST(copies_to_a_device_across_a_bus_start_from_the_hosts_own)
{
    machine wanted = machine_small();
    profile_write(NAMED, processor, device, "aio");
    wanted.profile_path = NAMED;
    wanted.device_driver = "cpu-discrete";
    stw_runtime *runtime = machine_open(&wanted);
    stw_link_stats stats = link_stats(runtime, STW_LINK_HOST_TO_DEVICE);
    assert_int_equal(stats.measured_bytes_per_s, 5000000000);
    stats = link_stats(runtime, STW_LINK_NVME_TO_DEVICE);
    assert_int_equal(stats.measured_bytes_per_s, 0); /* bytes pass through the host */
    machine_close(runtime);
}

TEST(what_the_program_says_wins_over_the_profile)
{
    machine wanted = machine_small();
    profile_write(NAMED, processor, device, "aio");
    wanted.profile_path = NAMED;
    wanted.nvme_depth = 5;
    stw_runtime *runtime = machine_open(&wanted);
    profile_expect(runtime, "\"read_queue_depth\": 5");
    profile_expect(runtime, "\"write_queue_depth\": 5");
    profile_expect(runtime, "\"read_request_bytes\": 32768");
    machine_close(runtime);
    wanted.nvme_depth = 0;
    wanted.nvme_request_bytes = 8192;
    runtime = machine_open(&wanted);
    profile_expect(runtime, "\"read_request_bytes\": 8192");
    profile_expect(runtime, "\"write_request_bytes\": 8192");
    profile_expect(runtime, "\"write_queue_depth\": 3");
    bytes_come_back(runtime);
    machine_close(runtime);
    wanted.nvme_request_bytes = 0;
    wanted.nvme_driver = "posix"; /* what aio does best says nothing of it */
    runtime = machine_open(&wanted);
    report_expect(runtime, ".", "\"name\": \"posix\"");
    profile_expect(runtime, "\"write_queue_depth\": 32");
    profile_expect(runtime, "Measured with the driver aio, not posix");
    profile_expect(runtime, "\"write_bytes_per_s\": 1000000000");
    machine_close(runtime);
}

static void refused(const machine *wanted, stw_status code, const char *words)
{
    const int descriptors = descriptors_open();
    stw_runtime *runtime = NULL;
    fails(machine_try_open(wanted, &runtime), code, words);
    assert_null(runtime);
    assert_int_equal(descriptors_open(), descriptors);
}

TEST(a_named_profile_that_is_no_good_is_an_error)
{
    machine wanted = machine_small();
    wanted.profile_path = NAMED;
    refused(&wanted, STW_ERROR_NOT_FOUND, "'" NAMED "' cannot be read");
    text_write(NAMED, "{\"kind\": \"stepwell machine profile\", \"format\": 99}");
    refused(&wanted, STW_ERROR_FORMAT, "format 99, of a newer release");
    text_write(NAMED, "not at all");
    refused(&wanted, STW_ERROR_FORMAT, "no JSON");
    profile_write(NAMED, processor, device, "aio");
    assert_int_equal(chmod(NAMED, 0666), 0);
    refused(&wanted, STW_ERROR_PERMISSION, "mode 0666");
    wanted.nvme_blocks = 0; /* also where nothing would be derived from it */
    refused(&wanted, STW_ERROR_PERMISSION, "mode 0666");
}

TEST(a_named_profile_of_another_machine_is_used_with_a_warning)
{
    machine wanted = machine_small();
    profile_write(NAMED, "some other processor", device, "aio");
    wanted.profile_path = NAMED;
    stw_runtime *runtime = machine_open(&wanted);
    assert_int_equal(times_logged("measured on another machine or kernel (some other processor"),
                     1);
    as_profiled(runtime, "\"source\": \"profile\"");
    machine_close(runtime);
}

TEST(a_named_profile_without_the_directory_is_a_warning)
{
    machine wanted = machine_small();
    profile_write(NAMED, processor, "0:0", "aio");
    wanted.profile_path = NAMED;
    stw_runtime *runtime = machine_open(&wanted);
    assert_int_equal(times_logged("knows nothing of '.'"), 1);
    as_usual(runtime);
    machine_close(runtime);
}

TEST(the_users_profile_is_found)
{
    machine wanted = machine_small();
    profile_write(USUAL, processor, device, "aio");
    stw_runtime *runtime = machine_open(&wanted);
    as_profiled(runtime, "\"source\": \"profile\"");
    profile_expect(runtime, HOME "/stepwell/profile.json\"");
    assert_int_equal(times_logged("profile"), 0);
    machine_close(runtime);
    wanted.profile_path = "";
    runtime = machine_open(&wanted);
    as_usual(runtime);
    machine_close(runtime);
}

TEST(a_users_profile_that_is_no_good_is_one_warning)
{
    machine wanted = machine_small();
    text_write(USUAL, "{\"kind\": \"stepwell machine profile\"}");
    stw_runtime *runtime = machine_open(&wanted);
    assert_int_equal(times_logged("'format' is missing"), 1);
    assert_int_equal(times_logged("profile: "), 1);
    as_usual(runtime);
    bytes_come_back(runtime);
    machine_close(runtime);
    profile_write(USUAL, "some other processor", device, "aio");
    runtime = machine_open(&wanted);
    assert_int_equal(times_logged("and is left out; 'stepwell tune' measures this one"), 1);
    assert_int_equal(times_logged("profile: "), 1);
    as_usual(runtime);
    machine_close(runtime);
    profile_write(USUAL, processor, device, "aio");
    assert_int_equal(chmod(USUAL, 0602), 0);
    runtime = machine_open(&wanted);
    assert_int_equal(times_logged("mode 0602"), 1);
    as_usual(runtime);
    machine_close(runtime);
}

TEST(small_budgets_are_not_probed)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    as_usual(runtime);
    assert_int_equal(access(HOME "/stepwell/probe.json", F_OK), -1);
    machine_close(runtime);
}

RUN_TESTS_EACH("profile", learn_names, remove_files, NULL, remove_files)
