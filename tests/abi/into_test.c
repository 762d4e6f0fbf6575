/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetches by copy into memory of the caller's: bytes, ranges, all or nothing, one moment, timeouts,
 * operations. Nothing of them is pinned or takes room.
 */
#include "support.h"

#include <pthread.h>

static machine machine_now;

enum { GUARD = 64 };

/* Memory for so many elements of `size` bytes, with a guard before and behind. */
typedef struct buffer {
    unsigned char *base;
    unsigned char *memory;
    uint64_t bytes;
} buffer;

static buffer buffer_make(uint64_t elements, uint64_t size)
{
    buffer made;
    made.bytes = elements * size;
    made.base = malloc(made.bytes + 2 * GUARD);
    assert_non_null(made.base);
    made.memory = made.base + GUARD;
    memset(made.base, 0xA5, made.bytes + 2 * GUARD);
    return made;
}

/* Nobody wrote outside it. */
static void buffer_free(buffer *used)
{
    for (int i = 0; i < GUARD; ++i) {
        assert_int_equal(used->base[i], 0xA5);
        assert_int_equal(used->memory[used->bytes + (uint64_t)i], 0xA5);
    }
    free(used->base);
}

static int buffer_is_untouched(const buffer *memory)
{
    for (uint64_t i = 0; i < memory->bytes; ++i) {
        if (memory->memory[i] != 0xA5) return 0;
    }
    return 1;
}

static stw_fetch_request request_into(stw_tensor *tensor, uint64_t begin, uint64_t count,
                                      void *memory)
{
    stw_fetch_request request = request_range(tensor, STW_READ, begin, count);
    request.tier = STW_TIER_DEFAULT;
    request.into = memory;
    return request;
}

static void expect_sequence(const void *memory, uint64_t count, float first)
{
    const float *values = memory;
    for (uint64_t i = 0; i < count; ++i) {
        if (values[i] == first + (float)i) continue;
        fail_msg("element %d is %g, not %g", (int)i, values[i], first + (float)i);
    }
}

static void expect_nothing_pinned(stw_runtime *runtime)
{
    for (uint32_t tier = STW_TIER_DEVICE; tier <= STW_TIER_HOST; ++tier) {
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        if (stw_tier_stats_get(runtime, tier, 0, &stats) < STW_OK) continue;
        assert_int_equal(stats.pinned_bytes, 0);
        assert_int_equal(stats.open_views, 0);
        assert_true(stats.peak_bytes <= stats.budget_bytes);
    }
}

TEST(a_tensor_larger_than_every_near_tier_is_copied_out)
{
    const uint64_t elements = 40 * BLOCK / 4 + 123;
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *tensor = tensor_f32(runtime, "long", elements);
    buffer all = buffer_make(elements, 4);
    stw_fetch_request request = request_into(tensor, 0, 0, all.memory);
    stw_view view;
    tensor_fill_sequence(tensor, elements, 0);
    ok(stw_fetch_fits(runtime, &request, 1));
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    assert_ptr_equal(view.pointer, all.memory);
    assert_int_equal(view.bytes, elements * 4);
    assert_int_equal(view.element_count, elements);
    assert_int_equal(view.access, STW_READ);
    assert_int_equal(view.tier, STW_TIER_HOST);
    assert_ptr_equal(view.tensor, tensor);
    expect_sequence(all.memory, elements, 0);
    expect_nothing_pinned(runtime);
    /* A snapshot: what is written later does not show, and nobody waits for the view. */
    tensor_fill_sequence(tensor, elements, 9);
    expect_sequence(all.memory, elements, 0);
    view_put(&view);
    fails(stw_release(&view, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
    buffer_free(&all);
    ok(stw_tensor_destroy(&tensor, 1));
    machine_close(runtime);
}

/* On disk, in the host tier, on the device: wherever, and with neighbours in the block. */
TEST(several_ranges_come_together_from_wherever_they_are)
{
    enum { N = 24 };
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *tensors[N];
    stw_fetch_request requests[N];
    stw_view views[N];
    buffer memories[N];
    uint64_t counts[N];
    for (int i = 0; i < N; ++i) {
        counts[i] = i % 3 == 0 ? 2 * BLOCK / 4 + 77 : 100 + (uint64_t)i;
        tensors[i] = tensor_f32(runtime, NULL, counts[i]);
        tensor_fill_sequence(tensors[i], counts[i], (float)i * 1000);
    }
    for (int round = 0; round < 4; ++round) {
        if (machine_now.device_blocks) ok(stw_evict(runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
        for (int i = 0; i < N; ++i) {
            const uint64_t begin = round > 1 ? counts[i] / 3 : 0;
            const uint64_t count = round > 1 ? counts[i] / 2 : counts[i];
            memories[i] = buffer_make(count, 4);
            requests[i] = request_into(tensors[i], begin, count, memories[i].memory);
        }
        if (round == 2) ok(stw_prefetch(runtime, requests, N));
        ok(stw_fetch(runtime, NULL, requests, N, views));
        for (int i = 0; i < N; ++i) {
            assert_ptr_equal(views[i].pointer, memories[i].memory);
            assert_int_equal(views[i].element_begin, requests[i].element_begin);
            expect_sequence(views[i].pointer, requests[i].element_count,
                            (float)i * 1000 + (float)requests[i].element_begin);
            buffer_free(&memories[i]);
        }
        ok(stw_release(views, N, STW_STREAM_HOST, 0));
        expect_nothing_pinned(runtime);
    }
    ok(stw_tensor_destroy(tensors, N));
    machine_close(runtime);
}

TEST(copies_and_pins_keep_the_order_of_the_call)
{
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *a = tensor_f32(runtime, "a", 300);
    stw_tensor *b = tensor_f32(runtime, "b", BLOCK / 4 + 9);
    buffer memory = buffer_make(200, 4);
    stw_fetch_request requests[3];
    stw_view views[3];
    tensor_fill_sequence(a, 300, 5);
    tensor_fill_sequence(b, BLOCK / 4 + 9, 70);
    requests[0] = request_range(b, STW_READ, 0, 0);
    requests[1] = request_into(a, 100, 200, memory.memory);
    requests[2] = request_range(a, STW_READ, 0, 0);
    ok(stw_fetch(runtime, NULL, requests, 3, views));
    expect_sequence(views[0].pointer, BLOCK / 4 + 9, 70);
    assert_ptr_equal(views[1].pointer, memory.memory);
    expect_sequence(views[1].pointer, 200, 105);
    expect_sequence(views[2].pointer, 300, 5);
    fails(stw_tensor_destroy(&a, 1), STW_ERROR_BUSY, "'a'");
    /* The copy is over: its view keeps nothing, the pins do. */
    ok(stw_release(&views[2], 1, STW_STREAM_HOST, 0));
    tensor_fill_sequence(a, 300, 0);
    expect_sequence(memory.memory, 200, 105);
    ok(stw_release(views, 2, STW_STREAM_HOST, 0));
    expect_nothing_pinned(runtime);
    buffer_free(&memory);
    machine_close(runtime);
}

TEST(what_cannot_be_copied_is_refused_with_a_sentence)
{
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    stw_tensor *empty = tensor_f32(runtime, "nothing", 100);
    buffer memory = buffer_make(100, 4);
    stw_fetch_request requests[2];
    stw_view views[2], before[2], more;
    memset(views, 0x77, sizeof views);
    memcpy(before, views, sizeof views);
    for (uint32_t access = STW_WRITE; access <= STW_REDUCE; ++access) {
        requests[0] = request_into(tensor, 0, 0, memory.memory);
        requests[0].access = access;
        fails(stw_fetch(runtime, NULL, requests, 1, views), STW_ERROR_INVALID,
              "memory of the caller's");
    }
    requests[0] = request_into(tensor, 0, 0, memory.memory);
    requests[0].tier = STW_TIER_DEVICE;
    fails(stw_fetch(runtime, NULL, requests, 1, views), STW_ERROR_INVALID, "tier 1");
    requests[0].tier = STW_TIER_HOST;
    fails(stw_fetch(runtime, NULL, requests, 1, views), STW_ERROR_EMPTY, "'t'");
    tensor_fill_sequence(tensor, 100, 0);
    requests[1] = request_into(empty, 0, 0, memory.memory);
    fails(stw_fetch(runtime, NULL, requests, 2, views), STW_ERROR_EMPTY, "'nothing'");
    requests[1] = request_into(tensor, 99, 2, memory.memory);
    fails(stw_fetch(runtime, NULL, requests, 2, views), STW_ERROR_INVALID, "not inside");
    assert_memory_equal(views, before, sizeof views);
    ok(stw_fetch(runtime, NULL, requests, 1, views));
    fails(stw_view_share(views, &more), STW_ERROR_INVALID, "memory of the caller's");
    ok(stw_release(views, 1, STW_STREAM_HOST, STW_RELEASE_DISCARD));
    fails(stw_fetch(runtime, NULL, requests, 1, views), STW_ERROR_EMPTY, "'t'");
    expect_nothing_pinned(runtime);
    buffer_free(&memory);
    machine_close(runtime);
}

TEST(an_older_request_has_no_such_memory)
{
    /* Two requests of a program that does not know `into`: the next one begins there. */
    const uint32_t size = offsetof(stw_fetch_request, into);
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    unsigned char requests[2 * sizeof(stw_fetch_request)];
    stw_fetch_request request = request_range(tensor, STW_READ, 0, 0);
    stw_view views[2];
    tensor_fill_sequence(tensor, 100, 3);
    request.struct_size = size;
    memset(requests, 0xff, sizeof requests);
    memcpy(requests, &request, size);
    memcpy(requests + size, &request, size);
    /* The second round is a hit. */
    for (int round = 0; round < 2; ++round) {
        ok(stw_fetch(runtime, NULL, (const stw_fetch_request *)(void *)requests, 2, views));
        assert_ptr_equal(views[0].pointer, views[1].pointer);
        expect_sequence(views[1].pointer, 100, 3);
        ok(stw_release(views, 2, STW_STREAM_HOST, 0));
    }
    machine_close(runtime);
}

TEST(tensors_without_elements_are_copied_too)
{
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *tensor = tensor_f32(runtime, "none", 0);
    buffer memory = buffer_make(1, 4);
    stw_fetch_request request = request_into(tensor, 0, 0, memory.memory);
    stw_view view;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    assert_null(view.pointer);
    assert_int_equal(view.bytes, 0);
    view_put(&view);
    assert_true(buffer_is_untouched(&memory));
    buffer_free(&memory);
    machine_close(runtime);
}

/* A view to write it that no thread is said to hold, so that others may wait for it. */
static stw_view write_by_nobody(stw_runtime *runtime, stw_tensor *tensor)
{
    stw_fetch_request request = request_range(tensor, STW_READ_WRITE, 0, 0);
    stw_view view;
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_HAND_OVER};
    ok(stw_fetch(runtime, &options, &request, 1, &view));
    return view;
}

TEST(after_a_timeout_the_memory_is_left_alone)
{
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *tensor = tensor_f32(runtime, "t", 3 * BLOCK / 4);
    buffer memory = buffer_make(3 * BLOCK / 4, 4);
    stw_fetch_request request = request_into(tensor, 0, 0, memory.memory);
    stw_view view;
    tensor_fill_sequence(tensor, 3 * BLOCK / 4, 0);
    stw_view held = write_by_nobody(runtime, tensor);
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_TRY};
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_BUSY, "'t'");
    options.flags = 0, options.timeout_ns = 5 * MILLISECOND_NS;
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_TIMEOUT, "'t'");
    view_put(&held);
    ok(stw_runtime_drain(runtime, 0));
    assert_true(buffer_is_untouched(&memory));
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    expect_sequence(memory.memory, 3 * BLOCK / 4, 0);
    expect_nothing_pinned(runtime);
    /* Its own view to write it would never go. */
    held = view_get(runtime, tensor, STW_READ_WRITE);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_BUSY, "'t'");
    view_put(&held);
    buffer_free(&memory);
    machine_close(runtime);
}

TEST(operations_copy_behind_the_call)
{
    const uint64_t elements = 40 * BLOCK / 4 + 5;
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *tensor = tensor_f32(runtime, "long", elements);
    stw_tensor *pinned = tensor_f32(runtime, "pinned", 100);
    buffer memory = buffer_make(elements, 4);
    stw_fetch_request requests[2];
    stw_operation *operation = NULL;
    stw_view views[2];
    tensor_fill_sequence(tensor, elements, 0);
    tensor_fill_sequence(pinned, 100, 8);
    requests[0] = request_into(tensor, 0, 0, memory.memory);
    requests[1] = request_range(pinned, STW_READ, 0, 0);
    ok(stw_fetch_async(runtime, NULL, requests, 2, &operation));
    ok(status_of(operation));
    ok(stw_fetch_collect(operation, STW_STREAM_HOST, views, 2));
    ok(stw_operation_free(operation));
    assert_ptr_equal(views[0].pointer, memory.memory);
    expect_sequence(memory.memory, elements, 0);
    expect_sequence(views[1].pointer, 100, 8);
    ok(stw_release(views, 2, STW_STREAM_HOST, 0));
    /* Freed at once: whatever was copied, nothing comes later. */
    ok(stw_fetch_async(runtime, NULL, requests, 2, &operation));
    ok(stw_operation_free(operation));
    buffer_free(&memory);
    expect_nothing_pinned(runtime);
    ok(stw_tensor_destroy(&tensor, 1));
    machine_close(runtime);
}

TEST(a_waiting_copy_keeps_no_other_and_can_be_cancelled)
{
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *held = tensor_f32(runtime, "held", 2 * BLOCK / 4);
    stw_tensor *free_one = tensor_f32(runtime, "free", 2 * BLOCK / 4);
    buffer first = buffer_make(2 * BLOCK / 4, 4), second = buffer_make(2 * BLOCK / 4, 4);
    stw_fetch_request waits = request_into(held, 0, 0, first.memory);
    stw_fetch_request goes = request_into(free_one, 0, 0, second.memory);
    stw_operation *waiting = NULL, *going = NULL;
    stw_view none;
    tensor_fill_sequence(held, 2 * BLOCK / 4, 1);
    tensor_fill_sequence(free_one, 2 * BLOCK / 4, 2);
    stw_view view = write_by_nobody(runtime, held);
    ok(stw_fetch_async(runtime, NULL, &waits, 1, &waiting));
    ok(stw_fetch_async(runtime, NULL, &goes, 1, &going));
    ok(status_of(going));
    expect_sequence(second.memory, 2 * BLOCK / 4, 2);
    assert_int_equal(stw_operation_poll(waiting), STW_PENDING);
    fails(stw_fetch_collect(going, STW_STREAM_HOST, &none, 2), STW_ERROR_INVALID, "of 1 requests");
    ok(stw_operation_free(going));
    fails(stw_tensor_destroy(&held, 1), STW_ERROR_BUSY, "'held'");
    ok(stw_operation_cancel(waiting));
    fails(status_of(waiting), STW_ERROR_CANCELLED, "cancelled");
    fails(stw_fetch_collect(waiting, STW_STREAM_HOST, &none, 1), STW_ERROR_CANCELLED, "cancelled");
    ok(stw_operation_free(waiting));
    /* At its timeout it ends by itself; one that is freed while it waits ends there. */
    stw_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 5 * MILLISECOND_NS};
    ok(stw_fetch_async(runtime, &options, &waits, 1, &waiting));
    fails(status_of(waiting), STW_ERROR_TIMEOUT, "'held'");
    ok(stw_operation_free(waiting));
    ok(stw_fetch_async(runtime, NULL, &waits, 1, &waiting));
    ok(stw_operation_free(waiting));
    assert_true(buffer_is_untouched(&first));
    view_put(&view);
    ok(stw_fetch_async(runtime, NULL, &waits, 1, &waiting));
    ok(stw_operation_wait(waiting, 0));
    expect_sequence(first.memory, 2 * BLOCK / 4, 1);
    ok(stw_operation_free(waiting));
    buffer_free(&first), buffer_free(&second);
    expect_nothing_pinned(runtime);
    machine_close(runtime);
}

/* While `late` cannot be read `early` is overwritten: neither is handed out as it was before. */
TEST(all_of_one_call_is_of_one_moment)
{
    stw_runtime *runtime = machine_open(&machine_now);
    stw_tensor *early = tensor_f32(runtime, "early", 2 * BLOCK / 4);
    stw_tensor *late = tensor_f32(runtime, "late", 2 * BLOCK / 4);
    buffer first = buffer_make(2 * BLOCK / 4, 4), second = buffer_make(2 * BLOCK / 4, 4);
    stw_fetch_request requests[2];
    stw_operation *operation = NULL;
    tensor_fill_sequence(early, 2 * BLOCK / 4, 0);
    tensor_fill_sequence(late, 2 * BLOCK / 4, 0);
    requests[0] = request_into(early, 0, 0, first.memory);
    requests[1] = request_into(late, 0, 0, second.memory);
    for (int round = 1; round < 20; ++round) {
        stw_view view = write_by_nobody(runtime, late);
        ok(stw_fetch_async(runtime, NULL, requests, 2, &operation));
        /* Gives it time to have read the first; both outcomes are right. */
        assert_int_equal(stw_operation_wait(operation, MILLISECOND_NS), STW_PENDING);
        tensor_fill_sequence(early, 2 * BLOCK / 4, (float)round);
        for (uint64_t i = 0; i < 2 * BLOCK / 4; ++i)
            ((float *)view.pointer)[i] = (float)(i + round);
        view_put(&view);
        ok(status_of(operation));
        expect_sequence(first.memory, 2 * BLOCK / 4, (float)round);
        expect_sequence(second.memory, 2 * BLOCK / 4, (float)round);
        ok(stw_operation_free(operation));
    }
    buffer_free(&first), buffer_free(&second);
    machine_close(runtime);
}

typedef struct writer {
    stw_runtime *runtime;
    stw_tensor *tensors[2];
    pthread_barrier_t barrier;
    stw_status worst;
    int rounds;
} writer;

enum { WRITTEN = 12 * 16384 + 31 }; /* more blocks than are near together */

/* Both tensors get one number throughout, by turns through views and by copies. */
static void *write_both(void *argument)
{
    writer *mine = argument;
    pthread_barrier_wait(&mine->barrier);
    for (int round = 1; round <= mine->rounds && mine->worst == STW_OK; ++round) {
        stw_status status = STW_OK;
        for (int i = 0; i < 2 && status == STW_OK; ++i) {
            status = stw_tensor_fill(mine->tensors[i], round, NULL);
        }
        if (status != STW_OK) mine->worst = status;
    }
    return NULL;
}

/* In one copy all numbers are equal, and the second tensor, written later, has the same or the one
 * before. */
TEST(no_copy_is_half_old_and_half_new)
{
    writer other;
    pthread_t thread;
    buffer memories[3];
    stw_fetch_request requests[3];
    stw_view views[3];
    float last = 0;
    memset(&other, 0, sizeof other);
    other.runtime = machine_open(&machine_now);
    other.rounds = 60;
    for (int i = 0; i < 2; ++i) {
        other.tensors[i] = tensor_f32(other.runtime, i ? "second" : "first", WRITTEN);
        ok(stw_tensor_fill(other.tensors[i], 0, NULL));
        memories[i] = buffer_make(WRITTEN, 4);
        requests[i] = request_into(other.tensors[i], 0, 0, memories[i].memory);
    }
    /* A view of its own keeps a copy from nothing. */
    stw_tensor *still = tensor_f32(other.runtime, "still", 100);
    tensor_fill_sequence(still, 100, 4);
    stw_view held = view_get(other.runtime, still, STW_READ);
    memories[2] = buffer_make(100, 4);
    requests[2] = request_into(still, 0, 0, memories[2].memory);
    pthread_barrier_init(&other.barrier, NULL, 2);
    pthread_create(&thread, NULL, write_both, &other);
    pthread_barrier_wait(&other.barrier);
    while (last < (float)other.rounds) {
        const float *first = (const float *)memories[0].memory;
        const float *second = (const float *)memories[1].memory;
        ok(stw_fetch(other.runtime, NULL, requests, 3, views));
        for (int i = 0; i < WRITTEN; ++i) {
            if (first[i] == first[0] && second[i] == second[0]) continue;
            fail_msg("element %d is %g and %g beside %g and %g", i, first[i], second[i], first[0],
                     second[0]);
        }
        assert_true(first[0] >= last);
        assert_true(second[0] == first[0] || second[0] == first[0] - 1);
        last = second[0];
    }
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&other.barrier);
    assert_int_equal(other.worst, STW_OK);
    expect_sequence(memories[2].memory, 100, 4);
    view_put(&held);
    buffer_free(&memories[0]), buffer_free(&memories[1]), buffer_free(&memories[2]);
    expect_nothing_pinned(other.runtime);
    machine_close(other.runtime);
}

RUN_TESTS_ON_EACH_MACHINE("into", &machine_now)
