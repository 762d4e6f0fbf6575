/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of operations that are told by eventfds.
 */
#include "crowd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int is_readable(int fd, int timeout_ms)
{
    struct pollfd waits;
    waits.fd = fd, waits.events = POLLIN, waits.revents = 0;
    return poll(&waits, 1, timeout_ms) == 1;
}

static uint64_t count_of(int fd)
{
    uint64_t count = 0;
    if (read(fd, &count, sizeof count) != (ssize_t)sizeof count) return 0;
    return count;
}

TEST(one_eventfd_counts_the_ends_of_many)
{
    crowd here = crowd_open();
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    stw_operation *operations[3];
    uint64_t ends = 0;
    for (int i = 0; i < 3; ++i) {
        operations[i] = ask_for_room(&here);
        ok(stw_operation_notify_fd(operations[i], fd));
    }
    assert_false(is_readable(fd, 0));
    ok(stw_operation_cancel(operations[0]));
    assert_int_equal(count_of(fd), 1);
    view_put(&here.view);
    while (ends < 2) {
        assert_true(is_readable(fd, -1));
        ends += count_of(fd);
    }
    for (int i = 1; i < 3; ++i) ok(stw_operation_poll(operations[i]));
    assert_int_equal(count_of(fd), 0);
    /* What is over says so at once, each time it is asked. */
    ok(stw_operation_notify_fd(operations[0], fd));
    ok(stw_operation_notify_fd(operations[1], fd));
    assert_int_equal(count_of(fd), 2);
    for (int i = 0; i < 3; ++i) ok(stw_operation_free(operations[i]));
    assert_int_equal(count_of(fd), 0);
    machine_close(here.runtime);
    close(fd);
}

TEST(an_eventfd_is_replaced_withdrawn_and_told_of_a_free)
{
    crowd here = crowd_open();
    const int first = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    const int second = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    stw_operation *operation = ask_for_room(&here);
    ok(stw_operation_notify_fd(operation, first));
    ok(stw_operation_notify_fd(operation, second));
    ok(stw_operation_cancel(operation));
    assert_int_equal(count_of(first), 0);
    assert_int_equal(count_of(second), 1);
    ok(stw_operation_free(operation));
    operation = ask_for_room(&here);
    ok(stw_operation_notify_fd(operation, first));
    ok(stw_operation_notify_fd(operation, -1));
    ok(stw_operation_cancel(operation));
    ok(stw_operation_notify_fd(operation, -1));
    ok(stw_operation_free(operation));
    operation = ask_for_room(&here);
    ok(stw_operation_notify_fd(operation, second));
    ok(stw_operation_free(operation));
    assert_int_equal(count_of(first), 0);
    assert_int_equal(count_of(second), 1);
    view_put(&here.view);
    machine_close(here.runtime);
    close(first);
    close(second);
}

TEST(what_is_no_eventfd_is_refused)
{
    crowd here = crowd_open();
    stw_operation *operation = ask_for_room(&here);
    const int blocking = eventfd(0, EFD_CLOEXEC);
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    FILE *file = tmpfile();
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(fcntl(fileno(file), F_SETFL, O_NONBLOCK), 0);
    fails(stw_operation_notify_fd(operation, blocking), STW_ERROR_INVALID, "may block");
    fails(stw_operation_notify_fd(operation, ends[1]), STW_ERROR_INVALID, "not an eventfd");
    fails(stw_operation_notify_fd(operation, fileno(file)), STW_ERROR_INVALID, "not an eventfd");
    fails(stw_operation_notify_fd(operation, 1000), STW_ERROR_INVALID, "descriptor 1000");
    assert_int_equal(error_numbers().os_errno, EBADF);
    fails(stw_operation_notify_fd(operation, -2), STW_ERROR_INVALID, "descriptor -2");
    assert_int_equal(read(ends[0], &byte, 1), -1);
    /* Closed too early: nobody is harmed, and it is said. */
    ok(stw_operation_notify_fd(operation, fd));
    close(fd);
    ok(stw_operation_cancel(operation));
    assert_true(logged("nobody is told"));
    assert_int_equal(stw_operation_poll(operation), STW_ERROR_CANCELLED);
    ok(stw_operation_free(operation));
    view_put(&here.view);
    machine_close(here.runtime);
    fclose(file);
    close(blocking);
    close(ends[0]);
    close(ends[1]);
}

RUN_TESTS("eventfds", NULL, NULL)
