/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system of one directory that this process serves, speaking the kernel's protocol: one
 * thread, files in memory, and no O_TMPFILE, as on many a network file system. What it is not asked
 * here, it does not know.
 */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <linux/fuse.h>

enum { FILES_MAX = 16, FIRST_NODE = 2, WRITE_MAX = 1 << 17, WAIT_SECONDS = 60, BLOCK_BYTES = 4096 };

typedef struct node {
    int memory;     /* its bytes; -1: the node is free */
    char name[256]; /* "": it has none any more */
    uint64_t bytes;
} node;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int device;
    node nodes[FILES_MAX];
    fuse_counts counts;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .device = -1};

static void answer(uint64_t unique, int error, const void *body, size_t bytes)
{
    static char reply[sizeof(struct fuse_out_header) + WRITE_MAX];
    struct fuse_out_header header;
    memset(&header, 0, sizeof header);
    header.len = (uint32_t)(sizeof header + bytes);
    header.error = -error;
    header.unique = unique;
    memcpy(reply, &header, sizeof header);
    if (bytes > 0) memcpy(reply + sizeof header, body, bytes);
    (void)!write(server.device, reply, header.len); /* the asker may be dead */
}

static node *node_of(uint64_t id)
{
    if (id < FIRST_NODE || id >= FIRST_NODE + FILES_MAX) return NULL;
    node *found = &server.nodes[id - FIRST_NODE];
    return found->memory >= 0 ? found : NULL;
}

static node *node_named(const char *name)
{
    for (int i = 0; i < FILES_MAX; ++i)
        if (server.nodes[i].memory >= 0 && strcmp(server.nodes[i].name, name) == 0)
            return &server.nodes[i];
    return NULL;
}

static struct fuse_attr attributes_of(const node *file)
{
    struct fuse_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.ino = file ? (uint64_t)(file - server.nodes) + FIRST_NODE : FUSE_ROOT_ID;
    attributes.mode = file ? S_IFREG | 0600 : S_IFDIR | 0700;
    attributes.nlink = file && !file->name[0] ? 0 : 1;
    attributes.size = file ? file->bytes : 0;
    attributes.blksize = BLOCK_BYTES;
    return attributes;
}

static struct fuse_entry_out entry_of(const node *file)
{
    struct fuse_entry_out entry;
    memset(&entry, 0, sizeof entry);
    entry.attr = attributes_of(file);
    entry.nodeid = entry.attr.ino;
    return entry;
}

static void create(uint64_t unique, const char *name)
{
    struct {
        struct fuse_entry_out entry;
        struct fuse_open_out open;
    } body;
    node *file = NULL;
    for (int i = 0; i < FILES_MAX && !file; ++i)
        if (server.nodes[i].memory < 0) file = &server.nodes[i];
    if (!file || node_named(name)) {
        answer(unique, file ? EEXIST : ENOSPC, NULL, 0);
        return;
    }
    file->memory = memfd_create("file", MFD_CLOEXEC);
    file->bytes = 0;
    snprintf(file->name, sizeof file->name, "%s", name);
    ++server.counts.created, ++server.counts.names, ++server.counts.files;
    memset(&body, 0, sizeof body);
    body.entry = entry_of(file);
    answer(unique, 0, &body, sizeof body);
}

static void remove_name(uint64_t unique, const char *name)
{
    node *file = node_named(name);
    if (file) {
        file->name[0] = 0;
        --server.counts.names;
    }
    answer(unique, file ? 0 : ENOENT, NULL, 0);
}

static void let_go(node *file)
{
    if (!file || file->name[0]) return;
    close(file->memory);
    file->memory = -1;
    --server.counts.files;
    pthread_cond_broadcast(&server.changed);
}

static void read_file(uint64_t unique, const node *file, const struct fuse_read_in *asked)
{
    static char bytes[WRITE_MAX];
    const size_t most = asked->size < WRITE_MAX ? asked->size : WRITE_MAX;
    const ssize_t n = file ? pread(file->memory, bytes, most, (off_t)asked->offset) : -1;
    answer(unique, n < 0 ? EIO : 0, bytes, n < 0 ? 0 : (size_t)n);
}

static void write_file(uint64_t unique, node *file, const struct fuse_write_in *asked)
{
    struct fuse_write_out body;
    ssize_t n = -1;
    memset(&body, 0, sizeof body);
    if (file) n = pwrite(file->memory, asked + 1, asked->size, (off_t)asked->offset);
    body.size = n < 0 ? 0 : (uint32_t)n;
    if (file && n > 0 && asked->offset + body.size > file->bytes)
        file->bytes = asked->offset + body.size;
    answer(unique, n < 0 ? EIO : 0, &body, n < 0 ? 0 : sizeof body);
}

static void reserve(uint64_t unique, node *file, const struct fuse_fallocate_in *asked)
{
    const uint64_t end = asked->offset + asked->length;
    if (file && asked->mode == 0 && end > file->bytes && ftruncate(file->memory, (off_t)end) == 0)
        file->bytes = end;
    answer(unique, file && file->bytes >= end ? 0 : EIO, NULL, 0);
}

static void begin(uint64_t unique, const struct fuse_init_in *asked)
{
    struct fuse_init_out body;
    memset(&body, 0, sizeof body);
    body.major = FUSE_KERNEL_VERSION;
    body.minor = asked->minor < 31 ? asked->minor : 31;
    body.max_write = WRITE_MAX;
    body.max_background = 16;
    answer(unique, 0, &body, sizeof body);
}

static void say_attributes(uint64_t unique, const node *file)
{
    struct fuse_attr_out body;
    memset(&body, 0, sizeof body);
    body.attr = attributes_of(file);
    answer(unique, 0, &body, sizeof body);
}

static void say_space(uint64_t unique)
{
    struct fuse_statfs_out body;
    memset(&body, 0, sizeof body);
    body.st.bsize = body.st.frsize = BLOCK_BYTES;
    body.st.blocks = body.st.bfree = body.st.bavail = 1 << 20;
    body.st.namelen = 255;
    answer(unique, 0, &body, sizeof body);
}

static void serve(const struct fuse_in_header *asked)
{
    const void *body = asked + 1;
    node *file = node_of(asked->nodeid);
    struct fuse_entry_out entry;
    switch (asked->opcode) {
    case FUSE_INIT: begin(asked->unique, body); break;
    case FUSE_LOOKUP:
        file = node_named(body);
        if (file) entry = entry_of(file);
        answer(asked->unique, file ? 0 : ENOENT, &entry, file ? sizeof entry : 0);
        break;
    case FUSE_GETATTR:
    case FUSE_SETATTR: say_attributes(asked->unique, file); break;
    case FUSE_CREATE:
        create(asked->unique, (const char *)body + sizeof(struct fuse_create_in));
        break;
    case FUSE_UNLINK: remove_name(asked->unique, body); break;
    case FUSE_FALLOCATE: reserve(asked->unique, file, body); break;
    case FUSE_READ: read_file(asked->unique, file, body); break;
    case FUSE_WRITE: write_file(asked->unique, file, body); break;
    case FUSE_STATFS: say_space(asked->unique); break;
    case FUSE_RELEASE:
        let_go(file);
        answer(asked->unique, 0, NULL, 0);
        break;
    case FUSE_FLUSH:
    case FUSE_FSYNC: answer(asked->unique, 0, NULL, 0); break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: break; /* these have no answer */
    default: answer(asked->unique, ENOSYS, NULL, 0); break;
    }
}

static void *run(void *unused)
{
    static union {
        struct fuse_in_header header;
        char bytes[WRITE_MAX + 8192];
    } request;
    (void)unused;
    for (;;) {
        const ssize_t n = read(server.device, &request, sizeof request);
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
        if (n < (ssize_t)sizeof request.header) return NULL; /* unmounted, or aborted */
        pthread_mutex_lock(&server.lock);
        serve(&request.header);
        pthread_mutex_unlock(&server.lock);
    }
}

const char *fuse_mount(const char *directory)
{
    char options[96];
    const char *why = disk_own_mounts();
    if (why) return why;
    server.device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (server.device < 0) return "/dev/fuse cannot be opened";
    memset(&server.counts, 0, sizeof server.counts);
    for (int i = 0; i < FILES_MAX; ++i) server.nodes[i].memory = -1;
    (void)mkdir(directory, 0700);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", server.device);
    if (mount("test", directory, "fuse", MS_NOSUID | MS_NODEV, options) != 0 ||
        pthread_create(&server.thread, NULL, run, NULL) != 0) {
        close(server.device);
        server.device = -1;
        rmdir(directory);
        return "a FUSE file system cannot be mounted";
    }
    return NULL;
}

void fuse_abort(const char *directory)
{
    (void)umount2(directory, MNT_FORCE); /* fails, since it is in use, and ends the connection */
}

void fuse_leave(void)
{
    close(server.device);
}

void fuse_unmount(const char *directory)
{
    if (server.device < 0) return;
    (void)umount2(directory, MNT_FORCE);
    (void)umount2(directory, MNT_DETACH);
    pthread_join(server.thread, NULL);
    close(server.device);
    server.device = -1;
    for (int i = 0; i < FILES_MAX; ++i)
        if (server.nodes[i].memory >= 0) close(server.nodes[i].memory);
    (void)rmdir(directory);
}

fuse_counts fuse_look(void)
{
    fuse_counts counts;
    pthread_mutex_lock(&server.lock);
    counts = server.counts;
    pthread_mutex_unlock(&server.lock);
    return counts;
}

int fuse_wait_files(int files)
{
    struct timespec end;
    int waited = 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_SECONDS;
    pthread_mutex_lock(&server.lock);
    while (server.counts.files != files && waited == 0)
        waited = pthread_cond_timedwait(&server.changed, &server.lock, &end);
    pthread_mutex_unlock(&server.lock);
    return waited == 0;
}
