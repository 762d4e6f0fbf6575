/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices whose consumers have streams: who gets bytes comes behind the work of those who had them,
 * whatever is done when. The device is the module "late", on which nothing is done before it must.
 */
#include "module_file.h"
#include "support.h"

#include "../modules/late.h"

#include <dlfcn.h>
#include <unistd.h>

enum { ELEMENTS = 3 * 16384 + 77, FEW = 100 }; /* three blocks and a bit; of one that is shared */

static char directory[] = "/tmp/stepwell-streams-XXXXXX";
static char module[64];
static late_enqueue_fn *enqueue;
static late_synchronise_fn *synchronise;
static late_counted_fn *counted;
static late_lose_fn *lose;

static int load_module(void **state)
{
    (void)state;
    if (!mkdtemp(directory)) return 1;
    snprintf(module, sizeof module, "%s/libstepwell-late.so", directory);
    if (copy_module("late", module)) return 1;
    void *handle = dlopen(module, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return 1;
    *(void **)&enqueue = dlsym(handle, "late_enqueue");
    *(void **)&synchronise = dlsym(handle, "late_synchronise");
    *(void **)&counted = dlsym(handle, "late_counted");
    *(void **)&lose = dlsym(handle, "late_lose");
    return !enqueue || !synchronise || !counted || !lose;
}

static int remove_module(void **state)
{
    (void)state;
    return unlink(module) || rmdir(directory);
}

static stw_runtime *open_late(uint32_t device_blocks)
{
    machine wanted = machine_small();
    wanted.device_driver = module, wanted.device_blocks = device_blocks;
    wanted.host_blocks = 32;
    return machine_open(&wanted);
}

static stw_view view_on(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, void *stream)
{
    stw_fetch_request request = request_of(tensor, access);
    stw_view view;
    stw_fetch_options options = {.struct_size = sizeof options, .stream = stream};
    ok(stw_fetch(runtime, &options, &request, 1, &view));
    assert_int_equal(view.tier, STW_TIER_DEVICE);
    return view;
}

/* ------------------------------------------------------------------------ work for streams -- */

typedef struct job {
    float *from, *to;
    uint64_t elements;
    float add;
} job;

static void do_job(void *arg)
{
    const job *what = arg;
    for (uint64_t i = 0; i < what->elements; ++i)
        what->to[i] = what->add + (what->from ? what->from[i] : (float)i);
}

/* 0, 1, 2, ... from `first` on into the view, when the stream comes to it. */
static void count_into(job *what, const stw_view *view, void *stream, float first)
{
    const job set = {NULL, view->pointer, view->bytes / sizeof(float), first};
    *what = set;
    assert_true(enqueue(stream, do_job, what));
}

static void copy_out(job *what, const stw_view *view, void *stream, float *to)
{
    const job set = {view->pointer, to, view->bytes / sizeof(float), 0};
    *what = set;
    assert_true(enqueue(stream, do_job, what));
}

static void expect_count(const float *values, uint64_t elements, float first)
{
    for (uint64_t i = 0; i < elements; ++i) {
        if (values[i] != first + (float)i) fail_msg("element %d is %g", (int)i, (double)values[i]);
    }
}

/* -------------------------------------------------------------------------------- the tests -- */

TEST(a_stream_is_named_at_a_device_that_has_some)
{
    stw_runtime *runtime = open_late(8);
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    stw_fetch_request request = request_of(tensor, STW_WRITE);
    stw_device_info info = {sizeof info, 0, 0, 0, {0}, {0}};
    stw_operation *operation = NULL;
    stw_view view;
    ok(stw_device_info_get(runtime, 0, &info));
    assert_int_equal(info.flags, STW_DEVICE_STREAMS);
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_INVALID, "STW_STREAM_LEGACY");
    stw_fetch_options options = {.struct_size = sizeof options, .stream = (void *)(uintptr_t)0x123};
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_INVALID, "no stream of the");
    view = view_on(runtime, tensor, STW_WRITE, STW_STREAM_LEGACY);
    fails(stw_release(&view, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "STW_STREAM_LEGACY");
    fails(stw_release(&view, 1, options.stream, 0), STW_ERROR_INVALID, "no stream of the");
    ok(stw_release(&view, 1, STW_STREAM_PER_THREAD, 0)); /* the view was still open */
    options.stream = LATE_STREAM(0);
    ok(stw_fetch_async(runtime, &options, &request, 1, &operation));
    ok(stw_operation_wait(operation, 0));
    fails(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1), STW_ERROR_INVALID, "no stream");
    ok(stw_fetch_collect(operation, LATE_STREAM(1), &view, 1));
    ok(stw_operation_free(operation));
    ok(stw_release(&view, 1, LATE_STREAM(1), 0));
    /* Copies and sums with memory of the host are in no order with one. */
    const float local[ELEMENTS] = {0};
    const stw_copy_options copy = {.struct_size = sizeof copy, .stream = LATE_STREAM(0)};
    const stw_reduce_options sum = {.struct_size = sizeof sum, .stream = LATE_STREAM(0)};
    fails(stw_tensor_write(tensor, local, &copy), STW_ERROR_UNSUPPORTED, "STW_STREAM_SYNCED");
    fails(stw_reduce(tensor, local, &sum), STW_ERROR_UNSUPPORTED, "STW_STREAM_SYNCED");
    /* At the host tier nobody needs one. */
    request.tier = STW_TIER_HOST;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    ok(stw_release(&view, 1, STW_STREAM_HOST, 0));
    machine_close(runtime);
}

TEST(what_leaves_has_what_was_enqueued_before_its_release)
{
    stw_runtime *runtime = open_late(8);
    stw_tensor *large = tensor_f32(runtime, "large", ELEMENTS);
    stw_tensor *small = tensor_f32(runtime, "small", FEW);
    stw_tensor *tensors[2];
    stw_view views[2];
    job jobs[2];
    tensors[0] = large, tensors[1] = small;
    views[0] = view_on(runtime, large, STW_WRITE, LATE_STREAM(0));
    views[1] = view_on(runtime, small, STW_WRITE, LATE_STREAM(0));
    count_into(&jobs[0], &views[0], LATE_STREAM(0), 5);
    count_into(&jobs[1], &views[1], LATE_STREAM(0), 9);
    ok(stw_release(views, 2, LATE_STREAM(0), 0));
    ok(stw_evict(runtime, tensors, 2, STW_TIER_DEVICE, 0, 0));
    tensor_expect_sequence(large, ELEMENTS, 5);
    tensor_expect_sequence(small, FEW, 9);
    machine_close(runtime);
}

/* The device has room for one of them: what is read late is read before the room is another's. */
TEST(room_is_another_s_behind_the_work_that_reads_there)
{
    static float seen[ELEMENTS], seen_then[ELEMENTS];
    stw_runtime *runtime = open_late(6);
    stw_tensor *first = tensor_on_disk(runtime, "first", ELEMENTS, 1);
    stw_tensor *second = tensor_on_disk(runtime, "second", ELEMENTS, 70000);
    stw_view view = view_on(runtime, first, STW_READ, LATE_STREAM(0));
    job read, then;
    copy_out(&read, &view, LATE_STREAM(0), seen);
    ok(stw_release(&view, 1, LATE_STREAM(0), 0));
    view = view_on(runtime, second, STW_READ, LATE_STREAM(1));
    copy_out(&then, &view, LATE_STREAM(1), seen_then);
    synchronise(LATE_STREAM(1));
    expect_count(seen_then, ELEMENTS, 70000);
    synchronise(LATE_STREAM(0));
    expect_count(seen, ELEMENTS, 1);
    ok(stw_release(&view, 1, LATE_STREAM(1), 0));
    machine_close(runtime);
}

/* Views of both are open at once, on two streams: neither began behind the other. */
TEST(what_shares_a_block_waits_for_all_who_were_in_it)
{
    static float seen[FEW];
    stw_runtime *runtime = open_late(1); /* whoever comes needs the same place */
    stw_tensor *tensors[2];
    stw_tensor *other = tensor_f32(runtime, "other", 16384);
    job jobs[4];
    tensors[0] = tensor_f32(runtime, "first", FEW), tensors[1] = tensor_f32(runtime, "second", FEW);
    stw_view first = view_on(runtime, tensors[0], STW_WRITE, LATE_STREAM(0));
    stw_view second = view_on(runtime, tensors[1], STW_WRITE, LATE_STREAM(1));
    count_into(&jobs[0], &first, LATE_STREAM(0), 2);
    count_into(&jobs[1], &second, LATE_STREAM(1), 7);
    ok(stw_release(&first, 1, LATE_STREAM(0), 0));
    ok(stw_release(&second, 1, LATE_STREAM(1), 0));
    ok(stw_evict(runtime, tensors, 2, STW_TIER_DEVICE, 0, 0));
    tensor_expect_sequence(tensors[0], FEW, 2);
    tensor_expect_sequence(tensors[1], FEW, 7);
    /* One reads late what it has, beside the other who writes. */
    first = view_on(runtime, tensors[0], STW_READ, LATE_STREAM(2));
    second = view_on(runtime, tensors[1], STW_WRITE, LATE_STREAM(3));
    copy_out(&jobs[2], &first, LATE_STREAM(2), seen);
    ok(stw_release(&first, 1, LATE_STREAM(2), 0));
    count_into(&jobs[3], &second, LATE_STREAM(3), 9);
    ok(stw_release(&second, 1, LATE_STREAM(3), 0));
    second = view_on(runtime, other, STW_WRITE, LATE_STREAM(0));
    count_into(&jobs[0], &second, LATE_STREAM(0), 500);
    ok(stw_release(&second, 1, LATE_STREAM(0), 0));
    synchronise(LATE_STREAM(0));
    synchronise(LATE_STREAM(2));
    expect_count(seen, FEW, 2);
    machine_close(runtime);
}

TEST(a_stream_comes_behind_another_that_wrote)
{
    static float seen[ELEMENTS];
    stw_runtime *runtime = open_late(8);
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    stw_view view = view_on(runtime, tensor, STW_WRITE, LATE_STREAM(0));
    job jobs[3];
    count_into(&jobs[0], &view, LATE_STREAM(0), 3);
    ok(stw_release(&view, 1, LATE_STREAM(0), 0));
    view = view_on(runtime, tensor, STW_READ, LATE_STREAM(1));
    copy_out(&jobs[1], &view, LATE_STREAM(1), seen);
    ok(stw_release(&view, 1, LATE_STREAM(1), 0));
    /* And who writes then comes behind who reads. */
    view = view_on(runtime, tensor, STW_WRITE, LATE_STREAM(2));
    count_into(&jobs[2], &view, LATE_STREAM(2), 8);
    ok(stw_release(&view, 1, LATE_STREAM(2), 0));
    synchronise(LATE_STREAM(2));
    expect_count(seen, ELEMENTS, 3);
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    tensor_expect_sequence(tensor, ELEMENTS, 8);
    machine_close(runtime);
}

/* Readers on several streams do not wait for each other; who writes waits for all of them. */
TEST(readers_are_not_ordered_among_each_other)
{
    static float seen[LATE_STREAMS][ELEMENTS];
    stw_runtime *runtime = open_late(8);
    stw_tensor *tensor = tensor_on_disk(runtime, "t", ELEMENTS, 2);
    job jobs[LATE_STREAMS];
    stw_view view;
    /* Behind the copy that brings it, once. */
    for (int i = 0; i < LATE_STREAMS; ++i) {
        view = view_on(runtime, tensor, STW_READ, LATE_STREAM(i));
        ok(stw_release(&view, 1, LATE_STREAM(i), 0));
    }
    late_calls before = counted();
    for (int i = 0; i < LATE_STREAMS; ++i) {
        view = view_on(runtime, tensor, STW_READ, LATE_STREAM(i));
        copy_out(&jobs[i], &view, LATE_STREAM(i), seen[i]);
        ok(stw_release(&view, 1, LATE_STREAM(i), 0));
    }
    late_calls after = counted();
    assert_int_equal(after.streams_after, before.streams_after);
    assert_int_equal(after.marks, before.marks);
    view = view_on(runtime, tensor, STW_WRITE, STW_STREAM_LEGACY);
    synchronise(STW_STREAM_LEGACY);
    for (int i = 0; i < LATE_STREAMS; ++i) expect_count(seen[i], ELEMENTS, 2);
    ok(stw_release(&view, 1, STW_STREAM_LEGACY, STW_RELEASE_ABANDON));
    machine_close(runtime);
}

/* Who has synchronised, or wants to, gets bytes that are there. */
TEST(without_a_stream_the_bytes_are_there)
{
    stw_runtime *runtime = open_late(6);
    stw_tensor *tensors[2];
    tensors[0] = tensor_on_disk(runtime, "first", ELEMENTS, 1);
    tensors[1] = tensor_on_disk(runtime, "second", ELEMENTS, 70000);
    for (int i = 0; i < 20; ++i) {
        stw_view view = view_on(runtime, tensors[i % 2], STW_READ, STW_STREAM_SYNCED);
        expect_count(view.pointer, ELEMENTS, i % 2 ? 70000 : 1);
        ok(stw_release(&view, 1, STW_STREAM_SYNCED, 0));
    }
    machine_close(runtime);
}

TEST(one_stream_alone_asks_the_driver_for_nothing)
{
    stw_runtime *runtime = open_late(8);
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    stw_view view = view_on(runtime, tensor, STW_WRITE, LATE_STREAM(0));
    ok(stw_release(&view, 1, LATE_STREAM(0), 0));
    late_calls before = counted();
    for (int i = 0; i < 10; ++i) {
        view = view_on(runtime, tensor, i % 2 ? STW_READ : STW_READ_WRITE, LATE_STREAM(0));
        ok(stw_release(&view, 1, LATE_STREAM(0), 0));
    }
    late_calls after = counted();
    assert_memory_equal(&before, &after, sizeof before);
    machine_close(runtime);
}

/* Several views of one gradient are summed in buffers of their own, which begin as zeros behind
 * whatever was done there. */
TEST(sums_begin_behind_what_was_there)
{
    stw_runtime *runtime = open_late(16);
    stw_tensor_spec spec = spec_f32("gradient", ELEMENTS);
    stw_view views[2];
    job jobs[2];
    spec.role = STW_ROLE_GRAD;
    stw_tensor *gradient = tensor_make(runtime, &spec);
    for (int round = 0; round < 2; ++round) {
        views[0] = view_on(runtime, gradient, STW_REDUCE, LATE_STREAM(0));
        views[1] = view_on(runtime, gradient, STW_REDUCE, LATE_STREAM(1));
        count_into(&jobs[0], &views[0], LATE_STREAM(0), 1);
        count_into(&jobs[1], &views[1], LATE_STREAM(1), 2);
        ok(stw_release(&views[0], 1, LATE_STREAM(0), 0));
        ok(stw_release(&views[1], 1, LATE_STREAM(1), 0));
    }
    {
        static float sum[ELEMENTS];
        ok(stw_tensor_read(gradient, sum, NULL));
        for (int i = 0; i < ELEMENTS; ++i) {
            if (sum[i] != 4 * (float)i + 6) fail_msg("element %d is %g", i, (double)sum[i]);
        }
    }
    machine_close(runtime);
}

TEST(a_lost_stream_fails_what_would_come_behind_it)
{
    stw_runtime *runtime = open_late(8);
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    stw_tensor *other = tensor_on_disk(runtime, "other", ELEMENTS, 4);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view = view_on(runtime, tensor, STW_WRITE, LATE_STREAM(0));
    ok(stw_release(&view, 1, LATE_STREAM(0), 0));
    lose(LATE_STREAM(0));
    stw_fetch_options options = {.struct_size = sizeof options, .stream = LATE_STREAM(1)};
    fails(stw_fetch(runtime, &options, &request, 1, &view), STW_ERROR_DEVICE, "device 0");
    /* What is farther can still be had. */
    tensor_expect_sequence(other, ELEMENTS, 4);
    lose(NULL);
    view = view_on(runtime, tensor, STW_READ, LATE_STREAM(1));
    ok(stw_release(&view, 1, LATE_STREAM(1), 0));
    machine_close(runtime);
}

/* Nobody else can name the stream of a thread: the release marks it. */
TEST(the_stream_of_a_thread_is_marked_by_that_thread)
{
    stw_runtime *runtime = open_late(8);
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    stw_view view = view_on(runtime, tensor, STW_WRITE, STW_STREAM_PER_THREAD);
    const late_calls before = counted();
    job count;
    count_into(&count, &view, STW_STREAM_PER_THREAD, 6);
    ok(stw_release(&view, 1, STW_STREAM_PER_THREAD, 0));
    late_calls after = counted();
    assert_int_equal(after.marks, before.marks + 1);
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    assert_int_equal(counted().marks, after.marks);
    tensor_expect_sequence(tensor, ELEMENTS, 6);
    machine_close(runtime);
}

TEST(a_stream_that_was_forgotten_is_marked_once_and_is_another_one_then)
{
    stw_runtime *runtime = open_late(8);
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    stw_view view = view_on(runtime, tensor, STW_WRITE, LATE_STREAM(1));
    const late_calls before = counted();
    job count;
    count_into(&count, &view, LATE_STREAM(1), 3);
    ok(stw_release(&view, 1, LATE_STREAM(1), 0));
    assert_int_equal(counted().marks, before.marks);
    ok(stw_stream_forget(runtime, LATE_STREAM(1)));
    late_calls after = counted();
    assert_int_equal(after.marks, before.marks + 1);
    ok(stw_stream_forget(runtime, LATE_STREAM(1))); /* it is known no more */
    ok(stw_stream_forget(runtime, STW_STREAM_HOST));
    ok(stw_stream_forget(runtime, STW_STREAM_SYNCED));
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    assert_int_equal(counted().marks, after.marks);
    tensor_expect_sequence(tensor, ELEMENTS, 3);
    view = view_on(runtime, tensor, STW_READ, LATE_STREAM(1));
    ok(stw_release(&view, 1, LATE_STREAM(1), 0));
    machine_close(runtime);
}

TEST(the_host_tier_is_registered_with_the_device)
{
    stw_runtime *runtime = open_late(8);
    stw_tier_stats stats;
    do {
        stats = tier_stats(runtime, STW_TIER_HOST);
    } while (stats.registering_bytes > 0);
    assert_true(counted().pinned_bytes >= 32 * BLOCK);
    assert_int_equal(stats.registered_bytes, counted().pinned_bytes);
    machine_close(runtime);
    assert_int_equal(counted().pinned_bytes, 0);
}

RUN_TESTS("streams", load_module, remove_module)
