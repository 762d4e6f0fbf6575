/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hit path takes no memory: malloc and its kin are counted here, by definitions that the whole
 * process uses. Run with an argument N it makes N rounds between two calls of getppid and judges
 * nothing, so that strace can show that there are no others. With a second argument the rounds are
 * fetches of many tensors under the lock, since one of them is written.
 */
#include "program.h"

#include <malloc.h>

/* glibc's own entry points; a definition of malloc in the program is used by every library. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

static volatile int counting;
static volatile long allocations;

void *malloc(size_t bytes)
{
    if (counting) ++allocations;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    if (counting) ++allocations;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    if (counting) ++allocations;
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    if (counting) ++allocations;
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    if (counting) ++allocations;
    *memory_out = __libc_memalign(alignment, bytes);
    return *memory_out ? 0 : 12;
}

void free(void *memory)
{
    __libc_free(memory);
}

enum { MANY = 300 }; /* more than a call keeps on its stack */
enum { LOCKED = 900 };

static void fetch_under_the_lock(stw_runtime *runtime, const stw_fetch_request *requests,
                                 long rounds)
{
    static stw_fetch_request many[LOCKED];
    static stw_view all[LOCKED];
    for (int i = 0; i < LOCKED; ++i) many[i] = requests[i % 3];
    many[LOCKED - 1] = requests[3];
    many[LOCKED - 1].access = STW_READ_WRITE;
    CHECK(mallopt(M_TRIM_THRESHOLD, 128 * 1024) == 1); /* the default, and it stays there */
    for (long round = 0; round < rounds + 3; ++round) {
        if (round == 3) (void)getppid(); /* tables have grown by then */
        CHECK(stw_fetch(runtime, NULL, many, LOCKED, all) == STW_OK);
        CHECK(stw_release(all, LOCKED, STW_STREAM_HOST, 0) == STW_OK);
    }
    (void)getppid();
}

int main(int count, char **arguments)
{
    const long rounds = count > 1 ? strtol(arguments[1], NULL, 10) : 500;
    stw_runtime *runtime = open_small(".", NULL);
    static stw_fetch_request many[MANY];
    static stw_view all[MANY];
    stw_fetch_request requests[4];
    stw_view views[4], shared;
    for (int i = 0; i < 4; ++i) {
        stw_tensor *tensor = make_tensor(runtime, NULL, i < 2 ? 100 : BLOCK / 4);
        CHECK(stw_tensor_fill(tensor, i, NULL) == STW_OK);
        requests[i] = (stw_fetch_request)STW_FETCH_REQUEST_INIT;
        requests[i].tensor = tensor;
    }
    CHECK(stw_runtime_drain(runtime, 0) == STW_OK);
    if (count > 2) {
        fetch_under_the_lock(runtime, requests, rounds);
        CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
        return 0;
    }
    /* Residents, slots of this thread and its registration. */
    for (int i = 0; i < 3; ++i) {
        CHECK(stw_fetch(runtime, NULL, requests, 4, views) == STW_OK);
        CHECK(stw_release(views, 4, STW_STREAM_HOST, 0) == STW_OK);
    }
    for (int i = 0; i < MANY; ++i) many[i] = requests[i % 4];
    CHECK(stw_fetch(runtime, NULL, many, MANY, all) == STW_OK);
    CHECK(stw_release(all, MANY, STW_STREAM_HOST, 0) == STW_OK);
    counting = 1;
    void *probe = malloc(1);
    CHECK(allocations == 1); /* the counter counts */
    allocations = 0;
    (void)getppid();
    /* The thread's ring of hits has a maximum, after which the core is told; stay below it. */
    for (long round = 0; round < rounds && round < 100; ++round) {
        CHECK(stw_fetch(runtime, NULL, requests, 4, views) == STW_OK);
        CHECK(stw_view_share(&views[0], &shared) == STW_OK);
        CHECK(stw_release(&shared, 1, STW_STREAM_HOST, 0) == STW_OK);
        CHECK(stw_release(views, 4, STW_STREAM_HOST, 0) == STW_OK);
    }
    CHECK(stw_fetch(runtime, NULL, many, MANY, all) == STW_OK);
    CHECK(stw_release(all, MANY, STW_STREAM_HOST, 0) == STW_OK);
    for (long round = 0; round < rounds; ++round) {
        CHECK(stw_fetch(runtime, NULL, requests, 1, views) == STW_OK);
        CHECK(stw_release(views, 1, STW_STREAM_HOST, 0) == STW_OK);
    }
    (void)getppid();
    counting = 0;
    free(probe);
    if (count == 1) printf("%ld rounds, %ld allocations\n", rounds, allocations);
    if (count == 1) CHECK(allocations == 0);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
    return 0;
}
