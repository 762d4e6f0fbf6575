/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier over two directories: each has the driver that works there, and says why.
 */
#include "support.h"

#include "refuse_direct.h"

#include <errno.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/seccomp.h>

#define PLAIN    "paths-plain"
#define REFUSING "paths-refusing"

enum { ELEMENTS = 20 * 16384 }; /* blocks on both paths */

typedef struct two_paths {
    stw_nvme_options nvme[2];
    stw_runtime_options options;
} two_paths;

static void two_directories(two_paths *paths)
{
    const stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    const stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    const char *const directories[] = {PLAIN, REFUSING};
    paths->options = options;
    for (int i = 0; i < 2; ++i) {
        (void)rmdir(directories[i]);
        assert_int_equal(mkdir(directories[i], 0700), 0);
        paths->nvme[i] = nvme;
        paths->nvme[i].path = directories[i];
        paths->nvme[i].budget_bytes = MIB + 32 * BLOCK;
        paths->nvme[i].driver_options = "allow_tmpfs=1";
    }
    paths->options.nvme = paths->nvme, paths->options.nvme_count = 2;
    paths->options.host_bytes = 16 * BLOCK, paths->options.block_bytes = STW_BLOCK_64K;
    paths->options.log = log_line;
    log_reset();
}

static void remove_directories(void)
{
    refuse_direct_io_in(NULL);
    assert_int_equal(rmdir(PLAIN), 0);
    assert_int_equal(rmdir(REFUSING), 0);
}

/* Where aio works nowhere, there is nothing to tell apart. */
static void skip_without_aio(void)
{
    machine wanted = machine_small();
    stw_runtime *runtime = NULL;
    wanted.nvme_driver = "aio", wanted.device_blocks = 0;
    if (machine_try_open(&wanted, &runtime) == STW_OK) {
        machine_close(runtime);
        return;
    }
    assert_int_equal(error_numbers().status, STW_ERROR_UNSUPPORTED);
    print_message("skipped: aio does not work here: %s\n", stw_last_error());
    skip();
}

static void bytes_come_back(stw_runtime *runtime)
{
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    tensor_fill_sequence(tensor, ELEMENTS, 5);
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0));
    tensor_expect_sequence(tensor, ELEMENTS, 5);
}

static void expect_drivers(stw_runtime *runtime, const char *plain, const char *refusing)
{
    char words[32];
    snprintf(words, sizeof words, "\"%s\"", plain);
    report_expect(runtime, PLAIN, words);
    snprintf(words, sizeof words, "\"%s\"", refusing);
    report_expect(runtime, REFUSING, words);
}

/* Each directory with the driver it has come to works, and nothing is left in it. */
static void use_and_close(stw_runtime *runtime)
{
    bytes_come_back(runtime);
    machine_close(runtime);
    remove_directories();
}

TEST(only_the_directory_that_refuses_direct_io_falls_back_to_posix)
{
    two_paths paths;
    stw_runtime *runtime = NULL;
    skip_without_aio();
    two_directories(&paths);
    refuse_direct_io_in(REFUSING);
    ok(stw_runtime_open(&paths.options, &runtime));
    assert_int_equal(times_logged("is used instead of"), 1);
    assert_true(logged("'" REFUSING "': driver posix is used instead of aio: "));
    assert_true(logged("'" REFUSING "' refuses O_DIRECT"));
    assert_false(logged("'" PLAIN "': driver"));
    expect_drivers(runtime, "aio", "posix");
    report_expect(runtime, REFUSING, "driver posix is used instead of aio: ");
    report_expect(runtime, REFUSING, "I/O is buffered");
    use_and_close(runtime);
}

TEST(every_directory_that_falls_back_says_so_once)
{
    two_paths paths;
    stw_runtime *runtime = NULL;
    skip_without_aio();
    two_directories(&paths);
    refuse_direct_io_in("paths-");
    ok(stw_runtime_open(&paths.options, &runtime));
    assert_int_equal(times_logged("is used instead of"), 2);
    assert_int_equal(times_logged("'" PLAIN "': driver posix is used instead of aio: "), 1);
    assert_int_equal(times_logged("'" REFUSING "': driver posix is used instead of aio: "), 1);
    expect_drivers(runtime, "posix", "posix");
    use_and_close(runtime);
}

TEST(a_driver_that_was_named_is_not_replaced)
{
    two_paths paths;
    stw_runtime *runtime = NULL;
    const int descriptors = descriptors_open();
    skip_without_aio();
    two_directories(&paths);
    refuse_direct_io_in(REFUSING);
    paths.nvme[1].driver = "aio";
    fails(stw_runtime_open(&paths.options, &runtime), STW_ERROR_UNSUPPORTED,
          "'" REFUSING "' refuses O_DIRECT");
    assert_non_null(strstr(stw_last_error(), "use the posix driver there"));
    assert_null(runtime);
    assert_int_equal(times_logged("is used instead of"), 0);
    assert_int_equal(descriptors_open(), descriptors);
    /* What was not named still may, beside it. */
    paths.nvme[0].driver = "aio", paths.nvme[1].driver = NULL;
    ok(stw_runtime_open(&paths.options, &runtime));
    expect_drivers(runtime, "aio", "posix");
    use_and_close(runtime);
}

/* From now on io_setup for that many slots is refused in this process, as when none are left. */
static int refuse_aio_slots(uint32_t slots)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_setup, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, slots, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {COUNT(steps), steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

enum { NO_FILTER = 77, SLOTS = 24 };

/* In a child: a filter of system calls is for good. */
static int open_without_slots(two_paths *paths)
{
    stw_runtime *runtime = NULL;
    if (!refuse_aio_slots(SLOTS)) return NO_FILTER;
    if (stw_runtime_open(&paths->options, &runtime) != STW_OK) return 1;
    if (times_logged("is used instead of") != 1) return 2;
    if (!logged("'" REFUSING "': driver posix is used instead of aio: The kernel has no 24 aio "
                "slots for '" REFUSING "'"))
        return 3;
    if (!logged("sysctl fs.aio-max-nr=")) return 4;
    expect_drivers(runtime, "aio", "posix");
    bytes_come_back(runtime);
    if (stw_runtime_close(runtime, 0, 0) != STW_OK) return 5;
    paths->nvme[1].driver = "aio";
    if (stw_runtime_open(&paths->options, &runtime) != STW_ERROR_UNSUPPORTED) return 6;
    return strstr(stw_last_error(), "sysctl fs.aio-max-nr=") ? 0 : 7;
}

TEST(only_the_path_that_gets_no_aio_slots_falls_back_to_posix)
{
    two_paths paths;
    int status = 0;
    skip_without_aio();
    two_directories(&paths);
    paths.nvme[1].queue_depth = SLOTS;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(open_without_slots(&paths));
    assert_int_equal(waitpid(child, &status, 0), child);
    remove_directories();
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_FILTER) {
        print_message("skipped: this kernel filters no system calls\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(each_path_has_the_queue_that_it_was_given)
{
    two_paths paths;
    stw_runtime *runtime = NULL;
    two_directories(&paths);
    paths.nvme[0].driver = paths.nvme[1].driver = "posix";
    paths.nvme[0].queue_depth = 8;
    ok(stw_runtime_open(&paths.options, &runtime));
    report_expect(runtime, PLAIN, "\"queue_depth\": 8,");
    report_expect(runtime, REFUSING, "\"queue_depth\": 32,");
    use_and_close(runtime);
}

RUN_TESTS("paths", NULL, NULL)
