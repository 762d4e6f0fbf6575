/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands before the C library's fcntl in a test's program, so that one directory can refuse what
 * its file system would grant. The kernel's headers alone: <fcntl.h> renames the function.
 */
#include "refuse_direct.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <asm/fcntl.h>
#include <sys/syscall.h>

static const char *refusing_directory;

void refuse_direct_io_in(const char *directory)
{
    refusing_directory = directory;
}

/* Of an unlinked file the kernel says "/its/directory/#12345 (deleted)". */
static int is_refused(int fd)
{
    char link[64], path[4096];
    if (!refusing_directory) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, refusing_directory) != NULL;
}

int fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    if (command == F_SETFL && (argument & O_DIRECT) && is_refused(fd)) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* What <fcntl.h> may call it instead. */
int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));
