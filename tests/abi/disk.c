/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system on a loop device. Every failure of the set-up is a sentence; the state it was in is
 * undone.
 */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/loop.h>

#define SHUT_DOWN          _IOR('X', 125, uint32_t) /* FS_IOC_SHUTDOWN, not yet in all headers */
#define SHUT_DOWN_NO_FLUSH 2

enum { LOOP_TRIES_MAX = 64 };

static const char *because(const char *what, int cause)
{
    static char sentence[256];
    snprintf(sentence, sizeof sentence, "%s: %s", what, strerror(cause));
    return sentence;
}

/* Mounts are this process's own from the first one on. */
const char *disk_own_mounts(void)
{
    static int done;
    if (done) return NULL;
    if (geteuid() != 0) return "only root may mount a file system";
    if (unshare(CLONE_NEWNS) != 0) return because("no mount namespace may be made", errno);
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return because("the mount namespace cannot be made private", errno);
    done = 1;
    return NULL;
}

static const char *make_file_system(const char *type, const char *image)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        const char *path = getenv("PATH");
        char longer[4096], make[64];
        snprintf(make, sizeof make, "mkfs.%s", type);
        snprintf(longer, sizeof longer, "%s:/usr/sbin:/sbin", path ? path : "/usr/bin:/bin");
        setenv("PATH", longer, 1);
        if (strcmp(type, "ext4") == 0)
            execlp(make, make, "-q", "-F", "-b", "4096", image, (char *)NULL);
        else
            execlp(make, make, "-q", image, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return because("no process", errno);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return "no mkfs is installed for it (e2fsprogs, btrfs-progs)";
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? NULL : "its mkfs failed";
}

/* Somebody else may take the device that was free a moment ago. */
static const char *attach(disk *disk, int image)
{
    const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) return because("loop devices cannot be had", errno);
    for (int attempt = 0; attempt < LOOP_TRIES_MAX; ++attempt) {
        struct loop_config config;
        char path[64];
        const int number = ioctl(control, LOOP_CTL_GET_FREE);
        snprintf(disk->loop_name, sizeof disk->loop_name, "loop%d", number);
        snprintf(path, sizeof path, "/dev/%s", disk->loop_name);
        disk->loop = number < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
        if (disk->loop < 0) break;
        memset(&config, 0, sizeof config);
        config.fd = (uint32_t)image;
        config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
        if (ioctl(disk->loop, LOOP_CONFIGURE, &config) == 0) {
            close(control);
            return NULL;
        }
        close(disk->loop);
        disk->loop = -1;
        if (errno != EBUSY) break;
    }
    close(control);
    return because("no loop device is free", errno);
}

static const char *make_device(disk *disk, const char *type, uint64_t bytes)
{
    const int image = open("disk-image", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (image < 0) return because("no image can be made", errno);
    const char *why = ftruncate(image, (off_t)bytes) == 0 ? make_file_system(type, "disk-image")
                                                          : because("no image can be made", errno);
    if (!why) why = attach(disk, image);
    close(image);
    unlink("disk-image");
    return why;
}

const char *disk_mount(disk *disk, const char *directory, uint64_t bytes, const char *options)
{
    return disk_mount_type(disk, "ext4", directory, bytes, options);
}

const char *disk_mount_type(disk *disk, const char *type, const char *directory, uint64_t bytes,
                            const char *options)
{
    char device[64];
    const char *why = disk_own_mounts();
    disk->directory = directory;
    disk->loop = -1;
    if (!why) why = make_device(disk, type, bytes);
    if (why) return why;
    snprintf(device, sizeof device, "/dev/%s", disk->loop_name);
    (void)mkdir(directory, 0700);
    if (mount(device, directory, type, 0, options) == 0) {
        char inside[256];
        snprintf(inside, sizeof inside, "%s/lost+found", directory);
        (void)rmdir(inside);
        return NULL;
    }
    why = because("the file system cannot be mounted", errno);
    close(disk->loop);
    disk->loop = -1;
    rmdir(directory);
    return why;
}

void disk_unmount(disk *disk)
{
    if (disk->loop < 0) return;
    (void)umount2(disk->directory, MNT_DETACH);
    close(disk->loop);
    disk->loop = -1;
    (void)rmdir(disk->directory);
}

uint64_t disk_free_bytes(const char *directory)
{
    struct statvfs space;
    memset(&space, 0, sizeof space);
    (void)statvfs(directory, &space);
    return (uint64_t)space.f_bavail * space.f_frsize;
}

void disk_shut_down(const disk *disk)
{
    const int directory = open(disk->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const uint32_t how = SHUT_DOWN_NO_FLUSH;
    if (directory < 0 || ioctl(directory, SHUT_DOWN, &how) != 0) {
        perror("the file system cannot be shut down");
        abort();
    }
    close(directory);
}

const char *disk_find_error(const disk *disk)
{
    char path[128];
    const char *why = NULL;
    snprintf(path, sizeof path, "/sys/fs/ext4/%s/trigger_fs_error", disk->loop_name);
    int trigger = open(path, O_WRONLY | O_CLOEXEC);
    if (trigger < 0) return because("ext4 cannot be told to find an error", errno);
    if (write(trigger, "test", 4) != 4) why = because("ext4 did not take the error", errno);
    close(trigger);
    return why;
}
