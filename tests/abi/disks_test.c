/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of real file systems, met by the real drivers: a disk that is full, that refuses O_DIRECT,
 * that has no O_TMPFILE, that becomes read-only or goes away. Needs root, loop devices and FUSE;
 * each test says what it lacks.
 */
#include "support.h"

#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define DISK "disks-ext4"
#define FUSE "disks-fuse"

enum { ELEMENTS = 4 * 16384 }; /* four blocks */

static disk mounted = DISK_NONE;

static void need(const char *why)
{
    if (!why) return;
    print_message("skipped: %s\n", why);
    skip();
}

static int entries_in(const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    int count = 0;
    assert_non_null(directory);
    while ((entry = readdir(directory)))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(directory);
    return count;
}

static machine machine_on(const char *directory, const char *driver, uint32_t blocks)
{
    machine wanted = machine_small();
    wanted.nvme_path = directory;
    wanted.nvme_driver = driver;
    wanted.nvme_options = "";
    wanted.nvme_blocks = blocks;
    return wanted;
}

static void bytes_come_back(stw_runtime *runtime)
{
    tensor_expect_sequence(tensor_on_disk(runtime, "t", ELEMENTS, 1), ELEMENTS, 1);
}

/* ------------------------------------------------------------------------------- no space -- */

TEST(a_disk_smaller_than_the_store_is_no_space_with_the_numbers)
{
    static const char *const drivers[] = {"aio", "posix", NULL};
    need(disk_mount(&mounted, DISK, 32 * MIB, ""));
    for (size_t i = 0; i < COUNT(drivers); ++i) {
        machine wanted = machine_on(DISK, drivers[i], 1024); /* 64 MiB */
        const uint64_t free_bytes = disk_free_bytes(DISK);
        stw_runtime *runtime = NULL;
        char words[128];
        fails(machine_try_open(&wanted, &runtime), STW_ERROR_NO_SPACE, "'" DISK "' (ext4) has ");
        assert_null(runtime);
        snprintf(words, sizeof words, "(%llu bytes) free and 65.0 MiB (68157440 bytes) are needed",
                 (unsigned long long)free_bytes);
        assert_non_null(strstr(stw_last_error(), words));
        assert_int_equal(error_numbers().needed_bytes, 65 * MIB);
        assert_int_equal(error_numbers().free_bytes, free_bytes);
        assert_int_equal(disk_free_bytes(DISK), free_bytes);
        assert_int_equal(entries_in(DISK), 0);
    }
    disk_unmount(&mounted);
}

TEST(what_one_store_has_taken_the_next_one_cannot_have)
{
    machine wanted = machine_on(DISK, NULL, 256); /* 16 MiB of 32 */
    stw_runtime *first = NULL, *second = NULL;
    need(disk_mount(&mounted, DISK, 32 * MIB, ""));
    first = machine_open(&wanted);
    uint64_t free_bytes = disk_free_bytes(DISK);
    fails(machine_try_open(&wanted, &second), STW_ERROR_NO_SPACE, "free and 17.0 MiB");
    assert_int_equal(error_numbers().free_bytes, free_bytes);
    assert_int_equal(disk_free_bytes(DISK), free_bytes);
    /* Its space is its own: the disk being full is none of its business. */
    bytes_come_back(first);
    machine_close(first);
    second = machine_open(&wanted);
    bytes_come_back(second);
    machine_close(second);
    assert_int_equal(entries_in(DISK), 0);
    disk_unmount(&mounted);
}

TEST(a_file_system_that_copies_on_write_is_named_in_a_remark)
{
    need(disk_mount_type(&mounted, "btrfs", DISK, 256 * MIB, ""));
    stw_runtime *runtime = machine_open_as(machine_on(DISK, NULL, 256));
    assert_int_equal(times_logged("'" DISK "': btrfs copies on write: it cannot promise"), 1);
    report_expect(runtime, DISK, "btrfs copies on write: it cannot promise");
    bytes_come_back(runtime);
    machine_close(runtime);
    disk_unmount(&mounted);
}

/* Not a block is left: what the file system put off is on the disk before the last try. */
static void fill_up(const char *path)
{
    static const char bytes[65536] = {'x'};
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    for (int round = 0; round < 3; ++round) {
        while (write(file, bytes, sizeof bytes) > 0) {}
        while (write(file, bytes, 4096) > 0) {}
        assert_int_equal(fsync(file), 0);
    }
    close(file);
}

TEST(a_report_on_a_full_disk_is_no_space_and_the_old_one_stays)
{
    FILE *file;
    char text[16];
    need(disk_mount(&mounted, DISK, 16 * MIB, ""));
    file = fopen(DISK "/report.json", "w");
    assert_non_null(file);
    assert_true(fputs("old", file) >= 0 && fclose(file) == 0);
    fill_up(DISK "/filler");
    stw_runtime *runtime = machine_open_as(machine_small());
    fails(stw_report_write(runtime, DISK "/report.json"), STW_ERROR_NO_SPACE,
          "'" DISK "/report.json'");
    assert_non_null(strstr(stw_last_error(), "No space left on device"));
    assert_int_equal(error_numbers().os_errno, ENOSPC);
    fails(stw_timeline_write(runtime, DISK "/report.json"), STW_ERROR_NO_SPACE,
          "'" DISK "/report.json'");
    assert_int_equal(entries_in(DISK), 2);
    file = fopen(DISK "/report.json", "r");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, sizeof text, file), 3);
    assert_memory_equal(text, "old", 3);
    fclose(file);
    machine_close(runtime);
    disk_unmount(&mounted);
}

/* ------------------------------------------------------------------------------- fallbacks -- */

/* ext4 that journals its data does no direct I/O. */
TEST(a_file_system_that_refuses_direct_io_gets_posix_by_itself)
{
    machine wanted = machine_on(DISK, NULL, 256);
    stw_runtime *runtime = NULL;
    need(disk_mount(&mounted, DISK, 64 * MIB, "data=journal"));
    wanted.nvme_driver = "aio";
    if (machine_try_open(&wanted, &runtime) == STW_OK) {
        machine_close(runtime);
        disk_unmount(&mounted);
        need("this kernel takes O_DIRECT on ext4 with data=journal, and buffers");
    }
    fails(machine_try_open(&wanted, &runtime), STW_ERROR_UNSUPPORTED,
          "ext4 on '" DISK "' refuses O_DIRECT");
    assert_non_null(strstr(stw_last_error(), "use the posix driver there"));
    wanted.nvme_driver = NULL;
    runtime = machine_open(&wanted);
    assert_int_equal(times_logged("'" DISK "': driver posix is used instead of aio: "), 1);
    assert_true(logged("ext4 refuses O_DIRECT: I/O is buffered"));
    report_expect(runtime, DISK, "\"posix\"");
    report_expect(runtime, DISK, "ext4 on '" DISK "' refuses O_DIRECT");
    bytes_come_back(runtime);
    machine_close(runtime);
    disk_unmount(&mounted);
}

TEST(a_file_system_without_tmpfile_keeps_no_name_of_the_store)
{
    static const char *const drivers[] = {"aio", "posix"};
    for (size_t i = 0; i < COUNT(drivers); ++i) {
        need(fuse_mount(FUSE));
        stw_runtime *runtime = machine_open_as(machine_on(FUSE, drivers[i], 64));
        assert_int_equal(fuse_look().created, 1);
        assert_int_equal(fuse_look().names, 0);
        assert_int_equal(fuse_look().files, 1);
        report_expect(runtime, FUSE, "\"fuse\"");
        bytes_come_back(runtime);
        machine_close(runtime);
        assert_true(fuse_wait_files(0));
        assert_int_equal(fuse_look().names, 0);
        fuse_unmount(FUSE);
    }
}

static void move_for_ever(int ready)
{
    machine wanted = machine_on(FUSE, NULL, 64);
    stw_runtime *runtime = NULL;
    fuse_leave();
    if (machine_try_open(&wanted, &runtime) != STW_OK) _exit(1);
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    for (;;) {
        tensor_fill_sequence(tensor, ELEMENTS, 1);
        if (stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0) != STW_OK) _exit(2);
        if (stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0) != STW_OK) _exit(3);
        if (write(ready, "r", 1) != 1) _exit(4);
    }
}

TEST(without_tmpfile_nothing_is_left_after_sigkill)
{
    need(fuse_mount(FUSE));
    for (int round = 0; round < 4; ++round) {
        int pipes[2], status = 0, i;
        char byte;
        assert_int_equal(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) move_for_ever(pipes[1]);
        close(pipes[1]);
        for (i = 0; i <= round; ++i) assert_int_equal(read(pipes[0], &byte, 1), 1);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        close(pipes[0]);
        assert_int_equal(fuse_look().created, round + 1);
        assert_int_equal(fuse_look().names, 0);
        assert_true(fuse_wait_files(0)); /* the space is back as well */
    }
    fuse_unmount(FUSE);
}

/* ---------------------------------------------------------------------------------- gone -- */

typedef struct three {
    stw_tensor *far; /* on the disk alone */
    stw_tensor *host;
    stw_tensor *device;
} three;

static stw_view view_at(stw_runtime *runtime, stw_tensor *tensor, uint32_t tier)
{
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    request.tier = tier;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    assert_int_equal(view.tier, tier);
    return view;
}

static void expect_served(stw_runtime *runtime, stw_tensor *tensor, uint32_t tier)
{
    stw_view view = view_at(runtime, tensor, tier);
    assert_float(((float *)view.pointer)[ELEMENTS - 1], ELEMENTS);
    view_put(&view);
}

static three one_in_each_tier(stw_runtime *runtime)
{
    three tensors;
    tensors.far = tensor_on_disk(runtime, "far", ELEMENTS, 1);
    tensors.host = tensor_on_disk(runtime, "host", ELEMENTS, 1);
    tensors.device = tensor_on_disk(runtime, "device", ELEMENTS, 1);
    expect_served(runtime, tensors.host, STW_TIER_HOST);
    expect_served(runtime, tensors.device, STW_TIER_DEVICE);
    ok(stw_runtime_drain(runtime, 0));
    return tensors;
}

/* What is on the disk is lost to the program, and said to be; what is elsewhere is not. */
static void expect_gone(stw_runtime *runtime, const three *tensors, const char *path, int cause)
{
    stw_fetch_request requests[2];
    stw_view views[2];
    float values[ELEMENTS];
    requests[0] = request_of(tensors->device, STW_READ);
    requests[1] = request_of(tensors->far, STW_READ);
    fails(stw_fetch(runtime, NULL, requests, 2, views), STW_ERROR_IO,
          "tensor 'far' cannot be fetched: Reading block ");
    assert_non_null(strstr(stw_last_error(), path));
    assert_non_null(strstr(stw_last_error(), strerror(cause)));
    assert_int_equal(error_numbers().os_errno, cause);
    assert_int_equal(error_numbers().tier, STW_TIER_NVME);
    assert_string_equal(error_numbers().tensor, "far");
    fails(stw_tensor_read(tensors->far, values, NULL), STW_ERROR_IO,
          "tensor 'far' cannot be fetched: Reading block ");
    expect_served(runtime, tensors->host, STW_TIER_HOST);
    expect_served(runtime, tensors->device, STW_TIER_DEVICE);
}

/* What was written last stays where it is, and the error sticks to it until it is cleared. */
static void expect_writes_kept(stw_runtime *runtime, stw_tensor *tensor, const char *name,
                               int cause)
{
    char words[128];
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    snprintf(words, sizeof words, "work in the background on tensor '%s' failed: Writing block ",
             name);
    tensor_fill_sequence(tensor, ELEMENTS, 7);
    (void)stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0);
    (void)stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_IO, words);
    assert_non_null(strstr(stw_last_error(), strerror(cause)));
    assert_int_equal(error_numbers().os_errno, cause);
    fails(stw_runtime_drain(runtime, 0), STW_ERROR_IO, words);
    assert_true(logged(words));
    ok(stw_runtime_clear_error(runtime));
    tensor_expect_sequence(tensor, ELEMENTS, 7);
}

static void close_with_errors(stw_runtime *runtime)
{
    ok(stw_runtime_clear_error(runtime));
    ok(stw_runtime_close(runtime, 0, 0));
}

TEST(a_disk_gone_under_an_open_store_is_io_and_memory_keeps_serving)
{
    static const char *const drivers[] = {"aio", "posix"};
    for (size_t i = 0; i < COUNT(drivers); ++i) {
        need(disk_mount(&mounted, DISK, 64 * MIB, ""));
        stw_runtime *other = machine_open_as(machine_small());
        stw_runtime *runtime = machine_open_as(machine_on(DISK, drivers[i], 256));
        three tensors = one_in_each_tier(runtime);
        disk_shut_down(&mounted);
        expect_gone(runtime, &tensors, "'" DISK "'", EIO);
        expect_writes_kept(runtime, tensors.device, "device", EIO);
        bytes_come_back(other);
        close_with_errors(runtime);
        ok(stw_runtime_close(other, 0, 0));
        disk_unmount(&mounted);
    }
}

TEST(a_file_system_whose_server_died_is_io_and_memory_keeps_serving)
{
    need(fuse_mount(FUSE));
    stw_runtime *runtime = machine_open_as(machine_on(FUSE, NULL, 256));
    three tensors = one_in_each_tier(runtime);
    fuse_abort(FUSE);
    expect_gone(runtime, &tensors, "'" FUSE "'", ENOTCONN);
    expect_writes_kept(runtime, tensors.host, "host", ENOTCONN);
    close_with_errors(runtime);
    fuse_unmount(FUSE);
}

TEST(a_file_system_gone_read_only_fails_writes_and_keeps_what_it_has)
{
    const machine wanted = machine_on(DISK, NULL, 256);
    stw_runtime *runtime, *second = NULL;
    need(disk_mount(&mounted, DISK, 64 * MIB, "errors=remount-ro"));
    runtime = machine_open(&wanted);
    three tensors = one_in_each_tier(runtime);
    stw_tensor *late = tensor_f32(runtime, "late", ELEMENTS);
    const char *why = disk_find_error(&mounted);
    if (!why) {
        expect_writes_kept(runtime, late, "late", EROFS);
        tensor_expect_sequence(tensors.far, ELEMENTS, 1); /* it can still be read */
        expect_served(runtime, tensors.host, STW_TIER_HOST);
        expect_served(runtime, tensors.device, STW_TIER_DEVICE);
        fails(machine_try_open(&wanted, &second), STW_ERROR_PERMISSION,
              "'" DISK "' is not writable: its file system is mounted read-only");
    }
    close_with_errors(runtime);
    disk_unmount(&mounted);
    need(why);
}

/* A test that failed leaves its mounts, and its runtime, which must not wait for them. */
static int unmount_all(void **state)
{
    (void)state;
    disk_unmount(&mounted);
    fuse_unmount(FUSE);
    return 0;
}

RUN_TESTS_EACH("disks", NULL, NULL, NULL, unmount_all)
