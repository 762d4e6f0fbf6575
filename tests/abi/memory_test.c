/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stw_host_alloc and stw_host_free: pieces of the host tier's memory, their budget, what is
 * refused, threads, close and fork. Built twice: with the library's own allocator, and in a program
 * that runs jemalloc.
 */
#include "support.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SCRATCH_BLOCKS = 320 }; /* 20 MiB: enough for an arena of jemalloc */

static stw_runtime *scratch_open(uint64_t blocks)
{
    stw_runtime *runtime;
    stw_runtime_options options = {.struct_size = sizeof options,
                                   .block_bytes = BLOCK,
                                   .host_bytes = (blocks + 16) * BLOCK,
                                   .host_scratch_bytes = blocks * BLOCK};
    ok(stw_runtime_open(&options, &runtime));
    return runtime;
}

static void *piece(stw_runtime *runtime, uint64_t bytes)
{
    void *pointer = NULL;
    ok(stw_host_alloc(runtime, bytes, 0, 0, &pointer));
    return pointer;
}

#ifdef WITH_JEMALLOC
#define ALLOCATOR "jemalloc"
#else
#define ALLOCATOR "slabs"
#endif

static void report_expect_allocator(stw_runtime *runtime)
{
    const char *path = "memory-report-" ALLOCATOR ".json";
    char text[16384] = {0};
    FILE *file;
    ok(stw_report_write(runtime, path));
    file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    remove(path);
    assert_non_null(strstr(text, "\"scratch_allocator\": \"" ALLOCATOR "\""));
    assert_non_null(strstr(text, "\"scratch_used_bytes\": 0"));
}

TEST(scratch_is_part_of_the_host_budget)
{
    stw_runtime *runtime = scratch_open(SCRATCH_BLOCKS);
    stw_tensor *tensor = tensor_f32(runtime, "t", 16 * BLOCK / 4);
    stw_tier_stats stats = tier_stats(runtime, STW_TIER_HOST);
    stw_tensor_spec more = spec_f32("more", 1);
    stw_tensor *refused = NULL;
    assert_int_equal(stats.budget_bytes, (SCRATCH_BLOCKS + 16) * BLOCK);
    assert_int_equal(stats.scratch_bytes, SCRATCH_BLOCKS * BLOCK);
    assert_int_equal(stats.scratch_used_bytes, 0);
    assert_int_equal(stats.used_bytes, SCRATCH_BLOCKS * BLOCK);
    void *pointer = piece(runtime, 100000);
    stats = tier_stats(runtime, STW_TIER_HOST);
    assert_in_range(stats.scratch_used_bytes, 100000, 125000);
    assert_int_equal(stats.used_bytes, SCRATCH_BLOCKS * BLOCK);
    /* All other blocks are the tensors'. */
    tensor_fill_sequence(tensor, 16 * BLOCK / 4, 0);
    fails(stw_tensor_create(runtime, &more, 1, &refused), STW_ERROR_BUDGET, "host tier");
    memset(pointer, 0xff, 100000);
    tensor_expect_sequence(tensor, 16 * BLOCK / 4, 0);
    assert_int_equal(tier_stats(runtime, STW_TIER_HOST).peak_bytes, (SCRATCH_BLOCKS + 16) * BLOCK);
    ok(stw_host_free(runtime, pointer));
    assert_int_equal(tier_stats(runtime, STW_TIER_HOST).scratch_used_bytes, 0);
    report_expect_allocator(runtime);
    machine_close(runtime);
}

TEST(pieces_are_aligned_and_zero_where_asked)
{
    stw_runtime *runtime = scratch_open(SCRATCH_BLOCKS);
    for (uint64_t align = 1; align <= BLOCK; align *= 2) {
        unsigned char *pointer = NULL;
        ok(stw_host_alloc(runtime, 777, align, 0, (void **)&pointer));
        assert_int_equal((uintptr_t)pointer % align, 0);
        memset(pointer, 0xff, 777);
        ok(stw_host_free(runtime, pointer));
        ok(stw_host_alloc(runtime, 777, align, STW_HOST_ZERO, (void **)&pointer));
        for (uint64_t at = 0; at < 777; ++at) assert_int_equal(pointer[at], 0);
        ok(stw_host_free(runtime, pointer));
    }
    void *any = piece(runtime, 1);
    assert_int_equal((uintptr_t)any % 64, 0);
    ok(stw_host_free(runtime, any));
    machine_close(runtime);
}

TEST(what_cannot_fit_is_refused_with_the_arithmetic)
{
    stw_runtime *runtime = scratch_open(SCRATCH_BLOCKS);
    void *pointers[SCRATCH_BLOCKS], *pointer = NULL;
    uint64_t given = 0, i, used;
    fails(stw_host_alloc(runtime, SCRATCH_BLOCKS * BLOCK + 1, 0, 0, &pointer), STW_ERROR_BUDGET,
          "20.0 MiB");
    fails(stw_host_alloc(runtime, UINT64_MAX, 0, 0, &pointer), STW_ERROR_BUDGET, "cannot hold");
    while (given < SCRATCH_BLOCKS &&
           stw_host_alloc(runtime, BLOCK, 0, 0, &pointers[given]) == STW_OK)
        memset(pointers[given], (int)given, BLOCK), ++given;
    assert_true(given >= SCRATCH_BLOCKS * 3 / 4);
    used = tier_stats(runtime, STW_TIER_HOST).scratch_used_bytes;
    assert_true(used >= given * BLOCK && used <= SCRATCH_BLOCKS * BLOCK);
    fails(stw_host_alloc(runtime, SCRATCH_BLOCKS * BLOCK / 2, 0, 0, &pointer), STW_ERROR_BUDGET,
          "stw_host_free");
    assert_int_equal(error_numbers().tier, STW_TIER_HOST);
    assert_int_equal(error_numbers().needed_bytes, SCRATCH_BLOCKS * BLOCK / 2);
    assert_int_equal(error_numbers().pinned_bytes, used);
    assert_int_equal(error_numbers().free_bytes, SCRATCH_BLOCKS * BLOCK - used);
    assert_null(pointer);
    for (i = 0; i < given; ++i) {
        assert_int_equal(((unsigned char *)pointers[i])[BLOCK - 1], i & 0xff);
        ok(stw_host_free(runtime, pointers[i]));
    }
    /* What was given back is there again, in one piece. */
    ok(stw_host_free(runtime, piece(runtime, SCRATCH_BLOCKS * BLOCK / 2)));
    machine_close(runtime);
}

TEST(wrong_arguments_are_refused)
{
    stw_runtime *runtime = scratch_open(SCRATCH_BLOCKS), *without;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    char *pointer = piece(runtime, 5000), local[64];
    void *out = NULL;
    fails(stw_host_alloc(runtime, 0, 0, 0, &out), STW_ERROR_INVALID, "bytes is 0");
    fails(stw_host_alloc(runtime, 1, 48, 0, &out), STW_ERROR_INVALID, "align_bytes is 48");
    fails(stw_host_alloc(runtime, 1, 2 * BLOCK, 0, &out), STW_ERROR_INVALID, "block size, 65536");
    fails(stw_host_alloc(runtime, 1, 0, 8, &out), STW_ERROR_INVALID, "bits 0x8");
    fails(stw_host_alloc(runtime, 1, 0, 0, NULL), STW_ERROR_INVALID, "pointer_out");
    fails(stw_host_free(runtime, local), STW_ERROR_INVALID, "outside of the runtime's scratch");
    fails(stw_host_free(runtime, pointer + 64), STW_ERROR_INVALID, "lies inside of one");
    fails(stw_host_free(runtime, pointer + 1), STW_ERROR_INVALID, "lies inside of one");
    ok(stw_host_free(runtime, pointer));
    fails(stw_host_free(runtime, pointer), STW_ERROR_INVALID, "given back before");
    ok(stw_host_free(runtime, NULL));
    without = machine_open_as(machine_small());
    fails(stw_host_alloc(without, 1, 0, 0, &out), STW_ERROR_UNSUPPORTED, "host_scratch_bytes");
    fails(stw_host_free(without, local), STW_ERROR_INVALID, "without scratch");
    machine_close(without);
    machine_close(runtime);
    fails(stw_host_alloc(runtime, 1, 0, 0, &out), STW_ERROR_CLOSED, "not open");
    fails(stw_host_free(runtime, local), STW_ERROR_CLOSED, "not open");
    options.host_bytes = 4 * BLOCK, options.block_bytes = BLOCK;
    options.host_scratch_bytes = 3 * BLOCK + 1;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "host_scratch_bytes keeps");
    options.host_scratch_bytes = UINT64_MAX;
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "host_scratch_bytes keeps");
    assert_null(out);
}

TEST(close_waits_for_the_pieces)
{
    stw_runtime *runtime = scratch_open(SCRATCH_BLOCKS);
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    char *first = piece(runtime, 5000), *second = piece(runtime, 70000);
    void *out = NULL;
    tensor_fill_sequence(tensor, 100, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    fails(stw_runtime_close(runtime, 0, 0), STW_ERROR_BUSY, "2 pieces");
    memset(first, 1, 5000);
    ok(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
    fails(stw_host_alloc(runtime, 1, 0, 0, &out), STW_ERROR_CLOSED, "closed");
    ok(stw_host_free(runtime, first));
    fails(stw_host_free(runtime, first), STW_ERROR_INVALID, "given back before");
    view_put(&view);
    memset(second, 1, 70000); /* still there */
    ok(stw_host_free(runtime, second));
    fails(stw_host_free(runtime, second), STW_ERROR_CLOSED, "not open");
}

/* ---------------------------------------------------------------------------------- threads -- */

enum { THREADS = 4, TURNS = 3000, HELD = 16 };

typedef struct worker {
    stw_runtime *runtime;
    uint64_t seed;
    uint64_t refused;
    uint64_t wrong;
} worker;

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* Each piece holds its own mark at both ends as long as it lives. */
static void *work(void *user)
{
    worker *mine = user;
    unsigned char *held[HELD] = {0}, marks[HELD] = {0};
    uint64_t bytes[HELD] = {0};
    for (int turn = 0; turn < TURNS + HELD; ++turn) {
        const int at = turn < TURNS ? (int)(next_random(&mine->seed) % HELD) : turn - TURNS;
        void *pointer = NULL;
        if (held[at]) {
            mine->wrong += held[at][0] != marks[at] || held[at][bytes[at] - 1] != marks[at];
            mine->wrong += stw_host_free(mine->runtime, held[at]) != STW_OK;
            held[at] = NULL;
            continue;
        }
        if (turn >= TURNS) continue;
        bytes[at] = 1 + next_random(&mine->seed) % (turn % 3 ? 3000 : 300000);
        if (stw_host_alloc(mine->runtime, bytes[at], 0, 0, &pointer) != STW_OK) {
            ++mine->refused;
            continue;
        }
        held[at] = pointer, marks[at] = (unsigned char)next_random(&mine->seed);
        memset(pointer, marks[at], bytes[at]);
    }
    return NULL;
}

TEST(threads_take_and_give_side_by_side)
{
    stw_runtime *runtime = scratch_open(SCRATCH_BLOCKS);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        const worker begin = {runtime, (uint64_t)i + 1, 0, 0};
        workers[i] = begin;
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
        assert_true(workers[i].refused < TURNS / 2);
    }
    assert_int_equal(tier_stats(runtime, STW_TIER_HOST).scratch_used_bytes, 0);
    machine_close(runtime);
}

/* The child can allocate elsewhere and leave; the parent goes on. */
TEST(a_forked_child_leaves_the_pieces_alone)
{
    stw_runtime *runtime = scratch_open(SCRATCH_BLOCKS);
    char *pointer = piece(runtime, 5000);
    int status = 0;
    memset(pointer, 1, 5000);
    pid_t child = fork();
    if (child == 0) {
        void *own = malloc(1 << 20), *out = NULL;
        int good = own != NULL && stw_host_free(runtime, pointer) == STW_ERROR_FORKED &&
                   stw_host_alloc(runtime, 1, 0, 0, &out) == STW_ERROR_FORKED;
        free(own);
        _exit(good ? 0 : 1);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(pointer[4999], 1);
    ok(stw_host_free(runtime, pointer));
    machine_close(runtime);
}

TEST(runtimes_follow_each_other)
{
    for (int i = 0; i < 20; ++i) {
        stw_runtime *runtime = scratch_open(SCRATCH_BLOCKS);
        void *large = piece(runtime, 1 << 20);
        memset(large, i, 1 << 20);
        ok(stw_host_free(runtime, piece(runtime, 100)));
        ok(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
        ok(stw_host_free(runtime, large));
    }
}

RUN_TESTS("memory", NULL, NULL)
