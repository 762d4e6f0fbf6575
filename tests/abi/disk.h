/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real file systems for a test: ext4 on a loop device, and a file system served by the test itself
 * through FUSE. Both are mounted in a mount namespace of the process's own, so that nothing is left
 * of them, however it ends. Where a machine does not allow that, the answer is a sentence that says
 * why.
 */
#ifndef TESTS_ABI_DISK_H
#define TESTS_ABI_DISK_H

#include <stdint.h>

#define DISK_NONE                                                                                  \
    {                                                                                              \
        0, -1,                                                                                     \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
typedef struct disk {
    const char *directory; /* where it is mounted; made and removed with it */
    int loop;
    char loop_name[32]; /* "loop3" */
} disk;

/* From now on mounts are this process's own: NULL, or why that cannot be. Mounting asks for it. */
const char *disk_own_mounts(void);

/* NULL: mounted. Else why it cannot be, and nothing was done. */
const char *disk_mount(disk *disk, const char *directory, uint64_t bytes, const char *options);
/* The same with another file system than ext4, which mkfs.TYPE makes. */
const char *disk_mount_type(disk *disk, const char *type, const char *directory, uint64_t bytes,
                            const char *options);
/* Whatever still uses it. Nothing to do where it is not mounted. */
void disk_unmount(disk *disk);
uint64_t disk_free_bytes(const char *directory);
/* From now on every read and write fails, as if the device was gone. */
void disk_shut_down(const disk *disk);
/* Makes the file system find an error in itself, upon which it becomes read-only. */
const char *disk_find_error(const disk *disk);

/* One at a time: files without O_TMPFILE, in memory, that no tier knows to be memory. */
const char *fuse_mount(const char *directory);
void fuse_unmount(const char *directory); /* as disk_unmount; what waits for it fails */
/* Every request that waits for it, and every later one, fails. */
void fuse_abort(const char *directory);
/* For a child process, which must not keep the connection open that its parent serves. */
void fuse_leave(void);
typedef struct fuse_counts {
    int created; /* files that were ever made with a name */
    int names;   /* names in the directory now */
    int files;   /* files that take space, with or without a name */
} fuse_counts;
fuse_counts fuse_look(void);
/* Until that many files are left; false after a minute. */
int fuse_wait_files(int files);

#endif
