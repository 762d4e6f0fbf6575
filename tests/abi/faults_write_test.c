/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that fails when it is written: the error sticks to the tensor it hurts, the bytes stay
 * where they were, and clearing the error gives them back.
 */
#include "support.h"

#include <semaphore.h>

enum { ELEMENTS = 2 * 16384 };

/* From the first write after the superblock's on, `count` of them fail. */
static machine machine_failing(int count)
{
    static char options[8192];
    machine wanted = machine_small();
    size_t length = (size_t)snprintf(options, sizeof options, "inner=posix;inner.allow_tmpfs=1");
    for (int i = 1; i <= count; ++i) {
        length +=
            (size_t)snprintf(options + length, sizeof options - length, ";at=write:%d:eio", i);
    }
    wanted.nvme_driver = "fault";
    wanted.nvme_options = options;
    return wanted;
}

/* Until the disk's refusal has come back. */
static void push_out(stw_runtime *runtime, stw_tensor *tensor)
{
    (void)stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 10 * SECOND_NS);
    (void)stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 10 * SECOND_NS);
    (void)stw_runtime_drain(runtime, 10 * SECOND_NS);
}

TEST(one_write_error_is_retried_and_not_seen)
{
    stw_runtime *runtime = machine_open_as(machine_failing(1));
    stw_tensor *tensor = tensor_on_disk(runtime, "t", ELEMENTS, 0);
    ok(stw_runtime_drain(runtime, 0));
    tensor_expect_sequence(tensor, ELEMENTS, 0);
    machine_close(runtime);
}

TEST(a_lasting_write_error_sticks_until_cleared_and_loses_nothing)
{
    /* Two blocks, three attempts each; from then on the disk is well again. */
    stw_runtime *runtime = machine_open_as(machine_failing(6));
    stw_tensor *hurt = tensor_f32(runtime, "hurt", ELEMENTS);
    stw_tensor *fine = tensor_f32(runtime, "fine", 100);
    stw_fetch_request request = request_of(hurt, STW_READ);
    stw_error_info info;
    stw_phase *phase = NULL;
    stw_view view;
    float value = 0;
    ok(stw_runtime_error(runtime, NULL));
    tensor_fill_sequence(hurt, ELEMENTS, 3);
    push_out(runtime, hurt);
    /* The same first cause from everything that names the tensor, and from what ends work. */
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_IO, "tensor 'hurt'");
    assert_non_null(strstr(stw_last_error(), "Input/output error"));
    assert_non_null(strstr(stw_last_error(), "'.'"));
    assert_int_equal(error_numbers().os_errno, 5);
    assert_string_equal(error_numbers().tensor, "hurt");
    fails(stw_tensor_read(hurt, &value, NULL), STW_ERROR_IO, "tensor 'hurt'");
    fails(stw_runtime_drain(runtime, 0), STW_ERROR_IO, "tensor 'hurt'");
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    fails(stw_runtime_error(runtime, &info), STW_ERROR_IO, "tensor 'hurt'");
    assert_int_equal(info.status, STW_ERROR_IO);
    assert_non_null(strstr(info.sentence, "'hurt'"));
    ok(stw_phase_create(runtime, "p", &phase));
    ok(stw_step_begin(phase));
    fails(stw_step_end(phase, NULL), STW_ERROR_IO, "tensor 'hurt'");
    ok(stw_phase_destroy(phase));
    assert_true(logged("tensor 'hurt'"));
    /* Tensors that were not hurt are served. */
    tensor_fill_sequence(fine, 100, 0);
    tensor_expect_sequence(fine, 100, 0);
    ok(stw_runtime_clear_error(runtime));
    ok(stw_runtime_error(runtime, NULL));
    tensor_expect_sequence(hurt, ELEMENTS, 3);
    view = view_get(runtime, hurt, STW_READ);
    assert_float(((float *)view.pointer)[9], 12);
    (void)stw_release(&view, 1, STW_STREAM_HOST, 0);
    (void)stw_runtime_clear_error(runtime);
    (void)stw_runtime_close(runtime, 0, 0);
}

TEST(all_tensors_of_a_block_are_hurt_by_its_failure)
{
    stw_runtime *runtime = machine_open_as(machine_failing(3));
    stw_tensor *first = tensor_f32(runtime, "first", 100);
    stw_tensor *second = tensor_f32(runtime, "second", 100);
    stw_tensor *unwritten = tensor_f32(runtime, "unwritten", 100);
    float value[100] = {0};
    /* While one of them is written, the block stays. */
    stw_view view = view_get(runtime, unwritten, STW_WRITE);
    tensor_fill_sequence(first, 100, 1);
    tensor_fill_sequence(second, 100, 2);
    ok(stw_release(&view, 1, STW_STREAM_HOST, STW_RELEASE_ABANDON));
    push_out(runtime, first);
    fails(stw_tensor_read(first, value, NULL), STW_ERROR_IO, "tensor 'first'");
    fails(stw_tensor_read(second, value, NULL), STW_ERROR_IO, "tensor 'second'");
    ok(stw_tensor_write(unwritten, value, NULL));
    ok(stw_runtime_clear_error(runtime));
    tensor_expect_sequence(first, 100, 1);
    tensor_expect_sequence(second, 100, 2);
    ok(stw_runtime_close(runtime, 0, 0));
}

/* A file system that copies on write cannot promise the space it reserved. */
TEST(a_disk_that_becomes_full_is_said_with_the_tensor)
{
    machine wanted = machine_failing(0);
    /* Two blocks, three attempts each; the superblock was written. */
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;at=write:1:enospc;at=write:2:enospc;"
                          "at=write:3:enospc;at=write:4:enospc;at=write:5:enospc;at=write:6:enospc";
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *hurt = tensor_f32(runtime, "hurt", ELEMENTS);
    tensor_fill_sequence(hurt, ELEMENTS, 3);
    push_out(runtime, hurt);
    fails(stw_runtime_drain(runtime, 0), STW_ERROR_NO_SPACE, "tensor 'hurt'");
    assert_non_null(strstr(stw_last_error(), "No space left on device"));
    assert_int_equal(error_numbers().os_errno, 28);
    /* The newest bytes are where they were. */
    ok(stw_runtime_clear_error(runtime));
    tensor_expect_sequence(hurt, ELEMENTS, 3);
    (void)stw_runtime_close(runtime, 0, 0);
}

TEST(a_hurt_view_is_released_and_says_so)
{
    stw_runtime *runtime = machine_open_as(machine_failing(100));
    stw_tensor *hurt = tensor_f32(runtime, "hurt", 100);
    stw_tensor *neighbour = tensor_f32(runtime, "beside", 2 * ELEMENTS);
    /* Being written, the neighbour cannot be written back: the first failure is the other one's. */
    stw_view view = view_get(runtime, neighbour, STW_WRITE);
    tensor_fill_sequence(hurt, 100, 0);
    push_out(runtime, hurt);
    assert_true(stw_runtime_error(runtime, NULL) == STW_ERROR_IO);
    (void)stw_release(&view, 1, STW_STREAM_HOST, 0);
    assert_int_equal(view.cookie, 0);
    /* Close says the unreported error once, and closes. */
    fails(stw_runtime_close(runtime, 0, 0), STW_ERROR_IO, "'hurt'");
    fails(stw_runtime_drain(runtime, 0), STW_ERROR_CLOSED, "closed");
}

static stw_runtime *heard_from;
static stw_status heard;
static sem_t was_heard;

static void ask_back(const char *topic)
{
    stw_error_info info = {.struct_size = sizeof info};
    if (strcmp(topic, "background") != 0) return;
    heard = stw_runtime_error(heard_from, &info);
    sem_post(&was_heard);
}

/* With a lock held across the callback this would never end. */
TEST(a_log_callback_may_ask_the_runtime_back)
{
    stw_runtime *runtime = machine_open_as(machine_failing(6));
    stw_tensor *hurt = tensor_f32(runtime, "hurt", ELEMENTS);
    heard_from = runtime;
    heard = STW_OK;
    sem_init(&was_heard, 0, 0);
    log_hook = ask_back;
    tensor_fill_sequence(hurt, ELEMENTS, 0);
    push_out(runtime, hurt);
    /* The line is said when no lock is held, that is after others may know of the failure. */
    sem_wait(&was_heard);
    assert_int_equal(heard, STW_ERROR_IO);
    ok(stw_runtime_clear_error(runtime));
    ok(stw_runtime_close(runtime, 0, 0));
    log_hook = NULL;
    assert_true(logged("background: "));
    sem_destroy(&was_heard);
}

TEST(a_hung_write_does_not_hold_evict_beyond_its_timeout)
{
    machine wanted = machine_small();
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;at=write:1:delay:1200000000";
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *tensor = tensor_f32(runtime, "t", ELEMENTS);
    tensor_fill_sequence(tensor, ELEMENTS, 0);
    uint64_t begin = clock_ns();
    (void)stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0);
    fails(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 200 * MILLISECOND_NS), STW_ERROR_TIMEOUT,
          "still in the tier");
    assert_true(clock_ns() - begin < SECOND_NS);
    begin = clock_ns();
    fails(stw_runtime_drain(runtime, 100 * MILLISECOND_NS), STW_ERROR_TIMEOUT, "under way");
    assert_true(clock_ns() - begin < 700 * MILLISECOND_NS);
    ok(stw_runtime_drain(runtime, 0));
    tensor_expect_sequence(tensor, ELEMENTS, 0);
    machine_close(runtime);
}

RUN_TESTS("faults of writing", NULL, NULL)
