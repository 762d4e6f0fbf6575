/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest drivers that pass the conformance suite: bytes in plain memory, moved in submit.
 * Both kinds in one module, for the tests that load one. examples/drivers has one worth copying.
 */
#include <stepwell/driver.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if !defined(NAME)
#define NAME "ram"
#endif

/*
 * OLDER: as if built with headers that end at `close`. NEWER: with headers that have one group more
 * than the library's. What lies behind the end of a table would be a lie, if the library read it.
 */
#define NO_UPDATES NULL, NULL, NULL, NULL, NULL, NULL
#define NO_ALIAS   NULL, NULL, NULL
#define NO_LATER   NULL, NULL, NULL, NULL
#define NO_STREAMS                                                                                 \
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NO_UPDATES, NULL, NO_ALIAS, NO_LATER
#if defined(OLDER)
#define STORAGE_BYTES  offsetof(stw_storage_ops, give_back)
#define MEMORY_BYTES   offsetof(stw_memory_ops, reserve_address)
#define MODULE_BYTES   offsetof(stw_driver_module, collective)
#define BEHIND_MODULE  ((const stw_collective_ops *)(uintptr_t)1)
#define BEHIND_STORAGE not_there_storage, NULL
#define BEHIND_MEMORY                                                                              \
    NULL, NULL, NULL, not_there_block, not_there_memory, NULL, NO_STREAMS, NULL, NULL
#define LATER_GROUP 0
#else
#if defined(NEWER)
#define STORAGE_BYTES sizeof(storage_table)
#define MEMORY_BYTES  sizeof(memory_table)
#define MODULE_BYTES  sizeof(module_table)
#define LATER_GROUP   (UINT64_C(1) << 40)
#else
#define STORAGE_BYTES sizeof(stw_storage_ops)
#define MEMORY_BYTES  sizeof(stw_memory_ops)
#define MODULE_BYTES  sizeof(stw_driver_module)
#define LATER_GROUP   0
#endif
#define BEHIND_MODULE  NULL
#define BEHIND_STORAGE NULL, NULL
#define BEHIND_MEMORY  NULL, NULL, NULL, NULL, NULL, NULL, NO_STREAMS, NULL, NULL
#endif

enum { ALIGNMENT = 512, QUEUE_DEPTH_DEFAULT = 32, QUEUE_DEPTH_MAX = 1 << 16 };

static stw_status refuse(stw_driver_error *error_out, stw_status status, const char *format, ...)
{
    va_list words;
    if (!error_out || error_out->struct_size < sizeof *error_out) return status;
    va_start(words, format);
    vsnprintf(error_out->sentence, sizeof error_out->sentence, format, words);
    va_end(words);
    return status;
}

/* Options of a newer caller may ask for what is not known here: bytes behind ours must be 0. */
static int is_known(const void *options, size_t known)
{
    const unsigned char *bytes = options;
    uint32_t size;
    if (!options) return 0;
    memcpy(&size, options, sizeof size);
    for (uint32_t i = (uint32_t)known; i < size; ++i)
        if (bytes[i]) return 0;
    return size >= known;
}

/* ------------------------------------------------------------------------------- storage -- */

struct stw_storage {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    uint8_t *bytes;
    stw_io_done *done; /* a ring of `depth` */
    uint64_t size;
    uint32_t depth, first, count;
    int woken;
};

static void storage_free(stw_storage *storage)
{
    pthread_cond_destroy(&storage->ended);
    pthread_mutex_destroy(&storage->mutex);
    free(storage->bytes);
    free(storage->done);
    free(storage);
}

static stw_status storage_open(const stw_services *services, const stw_storage_options *options,
                               stw_storage **storage_out, stw_driver_error *error_out)
{
    pthread_condattr_t monotonic;
    stw_storage *storage;
    (void)services;
    if (!storage_out || !is_known(options, sizeof *options))
        return refuse(error_out, STW_ERROR_INVALID, "The " NAME " driver takes no such options.");
    if (options->options && strspn(options->options, ";") != strlen(options->options))
        return refuse(error_out, STW_ERROR_INVALID, "The " NAME " driver has no option '%s'.",
                      options->options);
    if (options->queue_depth > QUEUE_DEPTH_MAX || options->bytes == 0)
        return refuse(error_out, STW_ERROR_INVALID, "The " NAME " driver cannot have that size.");
    storage = calloc(1, sizeof *storage);
    if (!storage)
        return refuse(error_out, STW_ERROR_MEMORY, "The " NAME " driver found no memory.");
    pthread_mutex_init(&storage->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&storage->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    storage->depth = options->queue_depth ? options->queue_depth : QUEUE_DEPTH_DEFAULT;
    storage->size = options->bytes;
    storage->bytes = calloc(1, options->bytes);
    storage->done = calloc(storage->depth, sizeof *storage->done);
    if (!storage->bytes || !storage->done) {
        storage_free(storage);
        return refuse(error_out, STW_ERROR_MEMORY, "The " NAME " driver found no memory.");
    }
    *storage_out = storage;
    return STW_OK;
}

static void storage_info(stw_storage *storage, stw_storage_info *info_out)
{
    stw_storage_info info = {0};
    info.struct_size = info_out->struct_size;
    info.alignment_bytes = ALIGNMENT, info.queue_depth = storage->depth;
    info.bytes = storage->size;
    strcpy(info.file_system, "memory");
    memcpy(info_out, &info, info.struct_size < sizeof info ? info.struct_size : sizeof info);
}

static int is_valid(const stw_storage *storage, const stw_io *io)
{
    if (!io->data || io->bytes == 0 || io->reserved) return 0;
    if (((uintptr_t)io->data | io->offset_bytes | io->bytes) % ALIGNMENT) return 0;
    if (io->bytes > INT64_MAX || io->offset_bytes > INT64_MAX - io->bytes) return 0;
    if (io->kind == STW_IO_READ) return 1;
    return io->kind == STW_IO_WRITE && io->offset_bytes + io->bytes <= storage->size;
}

static int64_t move(stw_storage *storage, const stw_io *io)
{
    uint64_t bytes = io->bytes;
    if (io->kind == STW_IO_WRITE) {
        memcpy(storage->bytes + io->offset_bytes, io->data, bytes);
        return (int64_t)bytes;
    }
    if (io->offset_bytes >= storage->size) return 0;
    if (bytes > storage->size - io->offset_bytes) bytes = storage->size - io->offset_bytes;
    memcpy(io->data, storage->bytes + io->offset_bytes, bytes);
    return (int64_t)bytes;
}

static stw_status storage_submit(stw_storage *storage, const stw_io *ios, uint32_t n,
                                 uint32_t *accepted_out)
{
    stw_status status = STW_OK;
    uint32_t i = 0;
    pthread_mutex_lock(&storage->mutex);
    for (; i < n && storage->count < storage->depth && status == STW_OK; ++i) {
        stw_io_done *done = &storage->done[(storage->first + storage->count) % storage->depth];
        if (!is_valid(storage, &ios[i])) {
            status = STW_ERROR_INVALID;
            break;
        }
        done->tag = ios[i].tag, done->result = move(storage, &ios[i]);
        ++storage->count;
    }
    pthread_cond_broadcast(&storage->ended);
    pthread_mutex_unlock(&storage->mutex);
    *accepted_out = i;
    return status;
}

static uint32_t storage_poll(stw_storage *storage, stw_io_done *done, uint32_t capacity,
                             uint64_t wait_ns)
{
    struct timespec until;
    uint32_t n = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(wait_ns / 1000000000 > 1000000 ? 1000000 : wait_ns / 1000000000);
    until.tv_nsec += (long)(wait_ns % 1000000000);
    if (until.tv_nsec >= 1000000000) ++until.tv_sec, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&storage->mutex);
    while (capacity && wait_ns && !storage->count && !storage->woken)
        if (pthread_cond_timedwait(&storage->ended, &storage->mutex, &until) == ETIMEDOUT) break;
    if (!storage->count) storage->woken = 0;
    for (; n < capacity && storage->count; ++n) {
        done[n] = storage->done[storage->first];
        storage->first = (storage->first + 1) % storage->depth;
        --storage->count;
    }
    pthread_mutex_unlock(&storage->mutex);
    return n;
}

static void storage_wake(stw_storage *storage)
{
    pthread_mutex_lock(&storage->mutex);
    storage->woken = 1;
    pthread_cond_broadcast(&storage->ended);
    pthread_mutex_unlock(&storage->mutex);
}

static stw_status storage_flush(stw_storage *storage)
{
    (void)storage;
    return STW_OK;
}

static stw_status storage_close(stw_storage *storage, uint64_t wait_ns)
{
    (void)wait_ns;
    storage_free(storage);
    return STW_OK;
}

#if defined(OLDER)
static stw_status not_there_storage(stw_storage *storage, uint64_t offset_bytes, uint64_t bytes)
{
    (void)storage, (void)offset_bytes, (void)bytes;
    abort();
}
#endif
static void not_there(void)
{
    abort();
}

typedef struct storage_table {
    stw_storage_ops ops;
    void (*later[2])(void);
} storage_table;

static const storage_table storage_driver = {
    {
        STORAGE_BYTES,
        STW_DRIVER_ABI,
        NAME,
        STW_STORAGE_IN_MEMORY | LATER_GROUP,
        storage_open,
        storage_info,
        storage_submit,
        storage_poll,
        storage_wake,
        storage_flush,
        storage_close,
        BEHIND_STORAGE,
    },
    {not_there, not_there},
};

/* -------------------------------------------------------------------------------- memory -- */

struct stw_memory {
    void *mapped;
    void *base; /* in it, aligned */
    uint64_t mapped_bytes, bytes;
};

enum { ARENA_ALIGNMENT = 2 << 20, DEVICES = 2 };
#define ARENA_BYTES_MAX (UINT64_C(1) << 30) /* so that nothing looks at what the machine has */

static stw_status memory_open(const stw_services *services, const stw_memory_options *options,
                              stw_memory **memory_out, stw_driver_error *error_out)
{
    stw_memory *memory;
    (void)services;
    if (!memory_out || !is_known(options, sizeof *options))
        return refuse(error_out, STW_ERROR_INVALID, "The " NAME " driver takes no such options.");
    if (options->ordinal < 0 || options->ordinal >= DEVICES)
        return refuse(error_out, STW_ERROR_UNSUPPORTED,
                      "The " NAME " driver has %d devices and none of ordinal %d.", DEVICES,
                      options->ordinal);
    uint32_t block = options->block_bytes;
    if (block < 65536 || (block & (block - 1)) || !options->bytes || options->bytes % block)
        return refuse(error_out, STW_ERROR_INVALID,
                      "The " NAME " driver's blocks are a power of two, not %u bytes.", block);
    if (options->bytes > ARENA_BYTES_MAX) {
        if (error_out) error_out->needed_bytes = options->bytes;
        if (error_out) error_out->free_bytes = ARENA_BYTES_MAX;
        return refuse(error_out, STW_ERROR_MEMORY, "The " NAME " driver has no %llu bytes.",
                      (unsigned long long)options->bytes);
    }
    memory = calloc(1, sizeof *memory);
    if (!memory) return refuse(error_out, STW_ERROR_MEMORY, "The " NAME " driver found no memory.");
    memory->bytes = options->bytes;
    memory->mapped_bytes = options->bytes + ARENA_ALIGNMENT;
    memory->mapped = mmap(NULL, memory->mapped_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory->mapped == MAP_FAILED) {
        free(memory);
        return refuse(error_out, STW_ERROR_MEMORY, "The " NAME " driver found no memory.");
    }
    memory->base =
        (char *)memory->mapped + ARENA_ALIGNMENT - (uintptr_t)memory->mapped % ARENA_ALIGNMENT;
    *memory_out = memory;
    return STW_OK;
}

static void memory_info(stw_memory *memory, stw_memory_info *info_out)
{
    stw_memory_info info = {0};
    info.struct_size = info_out->struct_size;
    info.base = memory->base, info.bytes = memory->bytes, info.numa_node = -1;
    memcpy(info_out, &info, info.struct_size < sizeof info ? info.struct_size : sizeof info);
}

static stw_status memory_copy(stw_memory *memory, void *destination, const void *source,
                              uint64_t bytes)
{
    (void)memory;
    memmove(destination, source, bytes);
    return STW_OK;
}

static stw_status memory_zero(stw_memory *memory, void *destination, uint64_t bytes)
{
    (void)memory;
    memset(destination, 0, bytes);
    return STW_OK;
}

static stw_status memory_close(stw_memory *memory)
{
    munmap(memory->mapped, memory->mapped_bytes);
    free(memory);
    return STW_OK;
}

#if defined(OLDER)
static stw_status not_there_block(stw_memory *memory, uint32_t block)
{
    (void)memory, (void)block;
    abort();
}
static stw_status not_there_memory(stw_memory *memory, uint32_t first_block, uint32_t count)
{
    (void)memory, (void)first_block, (void)count;
    abort();
}
#endif

typedef struct memory_table {
    stw_memory_ops ops;
    void (*later[2])(void);
} memory_table;

static const memory_table memory_driver = {
    {
        MEMORY_BYTES,
        STW_DRIVER_ABI,
        NAME,
        STW_MEMORY_HOST_ACCESS | LATER_GROUP,
        memory_open,
        memory_info,
        memory_copy,
        memory_zero,
        memory_close,
        BEHIND_MEMORY,
    },
    {not_there, not_there},
};

typedef struct module_table {
    stw_driver_module module;
    void (*later)(void);
} module_table;

const stw_driver_module *stw_driver_module_get(void)
{
    static const module_table table = {
        {MODULE_BYTES, STW_DRIVER_ABI, &storage_driver.ops, &memory_driver.ops, BEHIND_MODULE},
        not_there,
    };
    return &table.module;
}
