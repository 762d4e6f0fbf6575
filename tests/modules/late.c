/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device behind a bus with streams, on which nothing happens before it must: work and copies
 * wait until somebody who comes behind them is waited for. So bytes are wrong wherever the library
 * forgot to say what comes behind what, each time and not now and then.
 */
#include "late.h"

#include <stepwell/driver.h>
#include <stepwell/types.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { QUEUED_MAX = 4096, COPIES = LATE_STREAMS + 2, STREAMS };

/* An entry of a stream: work, or another stream up to so many of its entries. */
typedef struct entry {
    late_work work;
    void *arg;
    int other;
    uint64_t other_count;
} entry;

typedef struct stream {
    entry queued[QUEUED_MAX];
    uint64_t count, done;
} stream;

struct stw_memory {
    void *mapped;
    void *base;
    uint64_t mapped_bytes, bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static stream streams[STREAMS];
/* Which entries of which stream a mark is behind. */
static struct {
    int stream;
    uint64_t count;
} marks[QUEUED_MAX];
static uint64_t marks_made;
static late_calls calls;
static void *lost;

static int index_of(void *handle)
{
    const uintptr_t value = (uintptr_t)handle;
    if (handle == STW_STREAM_LEGACY) return LATE_STREAMS;
    if (handle == STW_STREAM_PER_THREAD) return LATE_STREAMS + 1;
    if (value == 0 || value % 0x100 || value / 0x100 > LATE_STREAMS) return -1;
    return (int)(value / 0x100) - 1;
}

static void run(int index, uint64_t count)
{
    stream *at = &streams[index];
    while (at->done < count) {
        entry *next = &at->queued[at->done++];
        if (next->work) next->work(next->arg);
        if (!next->work) run(next->other, next->other_count);
    }
}

static int append(int index, entry what)
{
    stream *at = &streams[index];
    if (index < 0 || at->count == QUEUED_MAX) return 0;
    at->queued[at->count++] = what;
    return 1;
}

/* ------------------------------------------------------------------------------ the test's -- */

STW_DRIVER_EXPORT late_enqueue_fn late_enqueue;
STW_DRIVER_EXPORT late_synchronise_fn late_synchronise;
STW_DRIVER_EXPORT late_counted_fn late_counted;
STW_DRIVER_EXPORT late_lose_fn late_lose;

int late_enqueue(void *handle, late_work work, void *arg)
{
    const entry what = {work, arg, 0, 0};
    pthread_mutex_lock(&mutex);
    int done = append(index_of(handle), what);
    pthread_mutex_unlock(&mutex);
    return done;
}

void late_synchronise(void *handle)
{
    const int index = index_of(handle);
    pthread_mutex_lock(&mutex);
    if (index >= 0) run(index, streams[index].count);
    pthread_mutex_unlock(&mutex);
}

late_calls late_counted(void)
{
    pthread_mutex_lock(&mutex);
    late_calls now = calls;
    pthread_mutex_unlock(&mutex);
    return now;
}

void late_lose(void *handle)
{
    pthread_mutex_lock(&mutex);
    lost = handle;
    pthread_mutex_unlock(&mutex);
}

/* ---------------------------------------------------------------------------- the library's -- */

static stw_status memory_open(const stw_services *services, const stw_memory_options *options,
                              stw_memory **memory_out, stw_driver_error *error_out)
{
    stw_memory *memory = calloc(1, sizeof *memory);
    const uint64_t alignment = 2 << 20;
    (void)services, (void)error_out;
    if (!memory) return STW_ERROR_MEMORY;
    memory->bytes = options->bytes, memory->mapped_bytes = options->bytes + alignment;
    memory->mapped = mmap(NULL, memory->mapped_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory->mapped == MAP_FAILED) {
        free(memory);
        return STW_ERROR_MEMORY;
    }
    memory->base = (char *)memory->mapped + alignment - (uintptr_t)memory->mapped % alignment;
    pthread_mutex_lock(&mutex);
    memset(streams, 0, sizeof streams);
    memset(&calls, 0, sizeof calls);
    marks_made = 0, lost = NULL;
    pthread_mutex_unlock(&mutex);
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
    pthread_mutex_lock(&mutex);
    run(COPIES, streams[COPIES].count);
    memmove(destination, source, bytes);
    pthread_mutex_unlock(&mutex);
    return STW_OK;
}

static stw_status memory_zero(stw_memory *memory, void *destination, uint64_t bytes)
{
    (void)memory;
    pthread_mutex_lock(&mutex);
    run(COPIES, streams[COPIES].count);
    memset(destination, 0, bytes);
    pthread_mutex_unlock(&mutex);
    return STW_OK;
}

typedef struct copy {
    void *destination;
    const void *source;
    uint64_t bytes;
} copy;

static void do_copy(void *arg)
{
    copy *what = arg;
    memmove(what->destination, what->source, what->bytes);
    free(what);
}

static stw_status memory_close(stw_memory *memory)
{
    munmap(memory->mapped, memory->mapped_bytes);
    free(memory);
    return STW_OK;
}

static stw_status check_stream(stw_memory *memory, void *handle, stw_driver_error *error_out)
{
    static const char words[] = "it is no stream of the device 'late'";
    (void)memory;
    pthread_mutex_lock(&mutex);
    ++calls.checks;
    pthread_mutex_unlock(&mutex);
    if (index_of(handle) >= 0) return STW_OK;
    memcpy(error_out->sentence, words, sizeof words);
    return STW_ERROR_INVALID;
}

static stw_status mark_at(int index, uint64_t *mark_out)
{
    if (marks_made == QUEUED_MAX) return STW_ERROR_DEVICE;
    marks[marks_made].stream = index, marks[marks_made].count = streams[index].count;
    *mark_out = ++marks_made;
    return STW_OK;
}

static stw_status mark(stw_memory *memory, void *handle, uint64_t *mark_out)
{
    stw_status status = STW_ERROR_DEVICE;
    (void)memory;
    pthread_mutex_lock(&mutex);
    ++calls.marks;
    if (handle != lost) status = mark_at(index_of(handle), mark_out);
    pthread_mutex_unlock(&mutex);
    return status;
}

/* What is enqueued on a stream from now on is done behind the mark. */
static stw_status behind(int index, uint64_t number, uint64_t *counter)
{
    entry other = {NULL, NULL, 0, 0};
    pthread_mutex_lock(&mutex);
    ++*counter;
    other.other = marks[number - 1].stream, other.other_count = marks[number - 1].count;
    int done = append(index, other);
    pthread_mutex_unlock(&mutex);
    return done ? STW_OK : STW_ERROR_DEVICE;
}

/* It has one stream for all copies, so those of the other direction wait as well. */
static stw_status copies_after(stw_memory *memory, uint64_t number, uint32_t copies)
{
    (void)memory, (void)copies;
    return behind(COPIES, number, &calls.copies_after);
}

static stw_status stream_after(stw_memory *memory, void *handle, uint64_t number)
{
    (void)memory;
    return behind(index_of(handle), number, &calls.streams_after);
}

static stw_status copy_start(stw_memory *memory, void *destination, const void *source,
                             uint64_t bytes, uint64_t *mark_out)
{
    copy *what = malloc(sizeof *what);
    entry enqueued = {do_copy, NULL, 0, 0};
    stw_status status = STW_ERROR_DEVICE;
    (void)memory;
    if (!what) return STW_ERROR_MEMORY;
    what->destination = destination, what->source = source, what->bytes = bytes;
    enqueued.arg = what;
    pthread_mutex_lock(&mutex);
    if (append(COPIES, enqueued)) status = mark_at(COPIES, mark_out);
    pthread_mutex_unlock(&mutex);
    return status;
}

static stw_status wait_for(stw_memory *memory, uint64_t number)
{
    (void)memory;
    pthread_mutex_lock(&mutex);
    run(marks[number - 1].stream, marks[number - 1].count);
    pthread_mutex_unlock(&mutex);
    return STW_OK;
}

static stw_status pin_host(stw_memory *memory, void *base, uint64_t bytes,
                           stw_driver_error *error_out)
{
    (void)memory, (void)base, (void)error_out;
    pthread_mutex_lock(&mutex);
    calls.pinned_bytes += bytes;
    pthread_mutex_unlock(&mutex);
    return STW_OK;
}

static void unpin_host(stw_memory *memory, void *base, uint64_t bytes)
{
    (void)memory, (void)base;
    pthread_mutex_lock(&mutex);
    calls.pinned_bytes -= bytes;
    pthread_mutex_unlock(&mutex);
}

static const stw_memory_ops memory_driver = {
    sizeof(stw_memory_ops),
    STW_DRIVER_ABI,
    "late",
    STW_MEMORY_STREAMS,
    memory_open,
    memory_info,
    memory_copy,
    memory_zero,
    memory_close,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    check_stream,
    mark,
    copies_after,
    stream_after,
    pin_host,
    unpin_host,
    copy_start,
    wait_for,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
};

const stw_driver_module *stw_driver_module_get(void)
{
    static const stw_driver_module module = {
        sizeof(stw_driver_module), STW_DRIVER_ABI, NULL, &memory_driver, NULL,
    };
    return &module;
}
