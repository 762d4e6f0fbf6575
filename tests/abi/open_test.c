/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening where it cannot work: every refusal has its code, path and numbers, and leaves neither a
 * descriptor nor a file nor a thread.
 */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/capability.h>

#define TMPFS 0x01021994

static int entries_in(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;
    assert_non_null(directory);
    while (readdir(directory)) ++count;
    closedir(directory);
    return count - 2;
}

static uint64_t memory_available(void)
{
    return (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The threads of this process; of more than that, once they are gone. A thread that was joined may
 * be listed for a moment. */
static int threads_left(int expected)
{
    const time_t end = time(NULL) + 10;
    int threads;
    while ((threads = entries_in("/proc/self/task")) > expected && time(NULL) < end) sched_yield();
    return threads;
}

static void *note_number(void *number)
{
    *(long *)number = syscall(SYS_gettid);
    return NULL;
}

/* With the first thread of a process the thread sanitizer starts one of its own. */
static void start_and_join_a_thread(void)
{
    const time_t end = time(NULL) + 10;
    pthread_t thread;
    long number = 0;
    char path[64];
    assert_int_equal(pthread_create(&thread, NULL, note_number, &number), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(snprintf(path, sizeof path, "/proc/self/task/%ld", number) > 0);
    while (access(path, F_OK) == 0 && time(NULL) < end) sched_yield();
}

/* Refused, and everything is as before. */
static void refused(const machine *wanted, stw_status code, const char *words)
{
    stw_runtime *runtime = NULL;
    start_and_join_a_thread();
    const int descriptors = descriptors_open();
    const int threads = entries_in("/proc/self/task");
    fails(machine_try_open(wanted, &runtime), code, words);
    assert_null(runtime);
    assert_int_equal(descriptors_open(), descriptors);
    assert_int_equal(threads_left(threads), threads);
}

TEST(a_path_that_is_no_directory_is_refused_by_name)
{
    machine wanted = machine_small();
    FILE *file = fopen("open-a-file", "w");
    assert_non_null(file);
    fclose(file);
    wanted.nvme_path = "open-nowhere/deeper";
    refused(&wanted, STW_ERROR_NOT_FOUND, "open-nowhere/deeper");
    assert_int_equal(error_numbers().os_errno, ENOENT);
    wanted.nvme_path = "open-a-file";
    refused(&wanted, STW_ERROR_INVALID, "open-a-file");
    remove("open-a-link");
    assert_int_equal(symlink(".", "open-a-link"), 0);
    wanted.nvme_path = "open-a-link";
    refused(&wanted, STW_ERROR_INVALID, "open-a-link");
    remove("open-a-link");
    remove("open-a-file");
}

TEST(a_directory_that_may_not_be_written_is_permission)
{
    machine wanted = machine_small();
    int status = 0;
    (void)rmdir("open-closed");
    assert_int_equal(mkdir("open-closed", 0555), 0);
    wanted.nvme_path = "open-closed";
    pid_t child = fork();
    if (child == 0) {
        stw_runtime *runtime = NULL;
        /* Nothing is forbidden to root. */
        if (geteuid() == 0 && seteuid(65534) != 0) _exit(3);
        if (access(".", X_OK) != 0) _exit(4);
        stw_status answer = machine_try_open(&wanted, &runtime);
        _exit(answer == STW_ERROR_PERMISSION && strstr(stw_last_error(), "open-closed") ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    assert_int_equal(entries_in("open-closed"), 0);
    assert_int_equal(rmdir("open-closed"), 0);
    if (WEXITSTATUS(status) >= 3) {
        print_message("the build directory is closed to other users\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(a_tier_in_memory_is_refused_with_the_way_out)
{
    machine wanted = machine_small();
    struct statfs about;
    if (statfs("/dev/shm", &about) != 0 || about.f_type != TMPFS) {
        print_message("/dev/shm is no tmpfs here\n");
        skip();
    }
    wanted.nvme_path = "/dev/shm";
    wanted.nvme_options = "allow_tmpfs=0";
    refused(&wanted, STW_ERROR_UNSUPPORTED, "/dev/shm");
    assert_non_null(strstr(stw_last_error(), "allow_tmpfs=1"));
    wanted.nvme_driver = "posix", wanted.nvme_options = "allow_tmpfs=1";
    stw_runtime *runtime = machine_open(&wanted);
    machine_close(runtime);
}

TEST(a_full_disk_is_found_at_open_with_the_numbers)
{
    machine wanted = machine_small();
    struct statvfs space;
    assert_int_equal(statvfs(".", &space), 0);
    wanted.nvme_blocks =
        (uint32_t)(((uint64_t)space.f_bavail * space.f_frsize + 64 * 1024 * MIB) / BLOCK);
    wanted.nvme_options = "allow_tmpfs=0";
    refused(&wanted, STW_ERROR_NO_SPACE, "'.'");
    stw_error_info info = error_numbers();
    assert_true(info.needed_bytes > info.free_bytes);
    assert_true(info.free_bytes > 0);
    wanted = machine_small();
    wanted.nvme_driver = "fault", wanted.nvme_options = "inner=posix;open_enospc=1";
    refused(&wanted, STW_ERROR_NO_SPACE, "'.'");
}

TEST(a_budget_above_the_machines_memory_is_refused)
{
    machine wanted = machine_small();
    wanted.host_blocks = (uint32_t)(16 * 1024 * 1024 * MIB / BLOCK); /* 16 TiB */
    refused(&wanted, STW_ERROR_MEMORY, "16384.0 GiB");
    stw_error_info info = error_numbers();
    assert_int_equal(info.needed_bytes, 16 * 1024 * 1024 * MIB);
    assert_true(info.free_bytes > 0 && info.free_bytes < info.needed_bytes);
    wanted = machine_small();
    wanted.device_blocks = (uint32_t)(16 * 1024 * 1024 * MIB / BLOCK);
    refused(&wanted, STW_ERROR_MEMORY, "16384.0 GiB");
}

static uint64_t mapped_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    return pages * 4096;
}

/* As in a shell after `ulimit -v`. */
TEST(addresses_that_a_limit_refuses_are_told_with_its_numbers)
{
    machine wanted = machine_small();
    struct rlimit before;
    stw_runtime *runtime = NULL;
    if (mapped_bytes() >> 40) {
        print_message("a sanitizer has mapped terabytes: no limit can be set\n");
        skip();
    }
    wanted.host_blocks = (uint32_t)(512 * MIB / BLOCK);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    struct rlimit small = before;
    small.rlim_cur = mapped_bytes() + 256 * MIB;
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    stw_status status = machine_try_open(&wanted, &runtime);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    fails(status, STW_ERROR_MEMORY, "ulimit -v is ");
    assert_non_null(strstr(stw_last_error(), " in use + "));
    assert_null(runtime);
    assert_true(error_numbers().needed_bytes >= 512 * MIB);
    assert_true(error_numbers().free_bytes <= 256 * MIB);
}

/* -1, SIZE_MAX and their like, for "as much as there is": refused before tables of that size. */
TEST(sizes_that_no_machine_has_are_refused_at_once)
{
    const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 2 * MIB, UINT64_C(1) << 63, INT64_MAX,
                              UINT64_C(1) << 46};
    for (size_t i = 0; i < COUNT(sizes); ++i) {
        stw_runtime *runtime = NULL;
        char words[80];
        stw_runtime_options options = {.struct_size = sizeof options, .host_bytes = sizes[i]};
        sprintf(words, "options.host_bytes is %llu bytes", (unsigned long long)sizes[i]);
        fails(stw_runtime_open(&options, &runtime), STW_ERROR_MEMORY, words);
        options.host_bytes = 64 * MIB;
        stw_device_options device = {.struct_size = sizeof device, .budget_bytes = sizes[i]};
        options.devices = &device, options.device_count = 1;
        sprintf(words, "devices[0].budget_bytes is %llu bytes", (unsigned long long)sizes[i]);
        fails(stw_runtime_open(&options, &runtime), STW_ERROR_MEMORY, words);
        assert_null(runtime);
    }
}

TEST(a_budget_of_less_than_a_block_is_refused)
{
    stw_runtime *runtime = NULL;
    stw_runtime_options options = {
        .struct_size = sizeof options, .block_bytes = BLOCK, .host_bytes = 64};
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID,
          "options.host_bytes is 64 bytes, less than one block of ");
    options.host_bytes = 64 * MIB;
    stw_device_options device = {.struct_size = sizeof device, .budget_bytes = BLOCK - 1};
    options.devices = &device, options.device_count = 1;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID,
          "options.devices[0].budget_bytes is ");
    assert_null(runtime);
}

TEST(more_mappings_than_the_kernel_has_are_a_limit_with_the_sysctl)
{
    machine wanted = machine_small();
    unsigned long most = 65530;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &most), 1);
    fclose(file);
    wanted.device_blocks = (uint32_t)(most / 4);
    if ((uint64_t)wanted.device_blocks * BLOCK > memory_available() / 2) {
        print_message("skipped: vm.max_map_count is %lu, more than memory has blocks\n", most);
        skip();
    }
    refused(&wanted, STW_ERROR_LIMIT, "'sysctl vm.max_map_count=");
}

TEST(tables_that_do_not_fit_their_budget_are_refused)
{
    machine wanted = machine_small();
    wanted.metadata_bytes = 512 * KIB;
    refused(&wanted, STW_ERROR_BUDGET, "metadata_bytes 512.0 KiB = ");
    assert_true(error_numbers().needed_bytes > wanted.metadata_bytes);
    wanted.metadata_bytes = error_numbers().needed_bytes;
    machine_close(machine_open(&wanted));
}

TEST(a_device_across_a_bus_needs_room_for_staging)
{
    machine wanted = machine_small();
    wanted.device_driver = "cpu-discrete", wanted.host_blocks = 8;
    refused(&wanted, STW_ERROR_INVALID, "staging");
    wanted.device_driver = "abacus";
    refused(&wanted, STW_ERROR_UNSUPPORTED, "'abacus'");
}

/* Root may lock all it wants until this bit is gone. */
static int drop_lock_capability(void)
{
    struct __user_cap_header_struct header;
    struct __user_cap_data_struct data[2];
    memset(&header, 0, sizeof header);
    memset(data, 0, sizeof data);
    header.version = _LINUX_CAPABILITY_VERSION_3;
    if (syscall(SYS_capget, &header, data) != 0) return 0;
    data[0].effective &= ~(UINT32_C(1) << CAP_IPC_LOCK);
    return syscall(SYS_capset, &header, data) == 0;
}

enum { CHILD_FINE = 0, CHILD_CANNOT_TRY = 77 };

static int open_and_use_without_locks(void)
{
    const struct rlimit limit = {64 * KIB, 64 * KIB};
    machine wanted = machine_small();
    stw_runtime *runtime = NULL;
    stw_tensor_spec spec = spec_f32("t", 40 * BLOCK / 4);
    stw_tensor *tensor = NULL;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !drop_lock_capability()) return CHILD_CANNOT_TRY;
    log_reset();
    if (machine_try_open(&wanted, &runtime) != STW_OK) return 1;
    if (times_logged("host: ") != 1 || times_logged("Not locked: 1024 KiB asked") != 1) return 2;
    if (!logged("RLIMIT_MEMLOCK is 64 KiB") || !logged("'ulimit -l unlimited'")) return 3;
    /* Use says nothing again, and what is not locked works. */
    if (stw_tensor_create(runtime, &spec, 1, &tensor) != STW_OK) return 4;
    if (stw_tensor_fill(tensor, 1, NULL) != STW_OK) return 5;
    if (stw_evict(runtime, NULL, 0, STW_TIER_HOST, 0, 0) != STW_OK) return 6;
    if (stw_runtime_close(runtime, 0, 0) != STW_OK) return 7;
    return times_logged("Not locked") == 1 ? CHILD_FINE : 8;
}

TEST(pages_that_may_not_be_locked_are_logged_once_with_the_remedy)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(open_and_use_without_locks());
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_CANNOT_TRY) {
        print_message("skipped: this process cannot give up its right to lock memory\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), CHILD_FINE);
}

TEST(the_second_directory_failing_closes_the_first)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_nvme_options nvme[2] = {STW_NVME_OPTIONS_INIT, STW_NVME_OPTIONS_INIT};
    stw_runtime *runtime = NULL;
    const int descriptors = descriptors_open();
    nvme[0].path = ".", nvme[1].path = "open-missing";
    nvme[0].budget_bytes = nvme[1].budget_bytes = 4 * MIB;
    nvme[0].driver_options = nvme[1].driver_options = "allow_tmpfs=1";
    options.nvme = nvme, options.nvme_count = 2, options.host_bytes = MIB;
    options.block_bytes = STW_BLOCK_64K;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_NOT_FOUND, "open-missing");
    assert_int_equal(descriptors_open(), descriptors);
    nvme[1].path = ".";
    ok(stw_runtime_open(&options, &runtime));
    ok(stw_runtime_close(runtime, 0, 0));
    assert_int_equal(descriptors_open(), descriptors);
}

TEST(the_store_has_no_name_in_its_directory)
{
    machine wanted = machine_small();
    (void)rmdir("open-store");
    assert_int_equal(mkdir("open-store", 0700), 0);
    wanted.nvme_path = "open-store";
    stw_runtime *runtime = machine_open(&wanted);
    assert_int_equal(entries_in("open-store"), 0);
    machine_close(runtime);
    assert_int_equal(rmdir("open-store"), 0);
}

static int pages_open(void)
{
    DIR *files = opendir("/proc/self/fd");
    const struct dirent *entry;
    int pages = 0;
    assert_non_null(files);
    while ((entry = readdir(files))) {
        char target[64] = "";
        (void)!readlinkat(dirfd(files), entry->d_name, target, sizeof target - 1);
        pages += strncmp(target, "/memfd:stepwell-stats", 21) == 0;
    }
    closedir(files);
    return pages;
}

TEST(a_page_of_statistics_is_there_while_a_runtime_is_open)
{
    machine wanted = machine_small();
    assert_int_equal(pages_open(), 0);
    stw_runtime *first = machine_open(&wanted);
    stw_runtime *second = machine_open(&wanted);
    assert_int_equal(pages_open(), 2);
    machine_close(second);
    machine_close(first);
    assert_int_equal(pages_open(), 0);
}

/* Nobody pays with the training for a page that cannot be had. */
TEST(a_page_that_cannot_be_made_is_a_warning)
{
    machine wanted = machine_small();
    const struct rlimit none = {1024, RLIM_INFINITY};
    struct rlimit before;
    wanted.nvme_blocks = 0;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN); /* then the file that grows too large is an error of the call */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    log_reset();
    stw_runtime *runtime = machine_open(&wanted);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(times_logged("There is no statistics page for 'stepwell top'"), 1);
    assert_int_equal(pages_open(), 0);
    machine_close(runtime);
    log_reset();
}

RUN_TESTS("open", NULL, NULL)
