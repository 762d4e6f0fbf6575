/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a runtime: closing with views open, later use, deferred closing, what the log gets.
 */
#include "support.h"

#include <pthread.h>

TEST(closing_with_views_is_busy_and_changes_nothing)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    tensor_fill_sequence(tensor, 100, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    fails(stw_runtime_close(runtime, 0, 0), STW_ERROR_BUSY, "1 open views");
    assert_non_null(strstr(stw_last_error(), "'test'"));
    assert_non_null(strstr(stw_last_error(), "'t'"));
    assert_float(((float *)view.pointer)[99], 99);
    view_put(&view);
    tensor_expect_sequence(tensor, 100, 0);
    machine_close(runtime);
}

TEST(every_use_after_close_is_an_error)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    stw_tensor *found = NULL;
    stw_phase *phase = NULL;
    float value;
    tensor_fill_sequence(tensor, 100, 0);
    stw_view old = view_get(runtime, tensor, STW_READ);
    stw_view view = old;
    view_put(&view);
    machine_close(runtime);
    fails(stw_runtime_close(runtime, 0, 0), STW_ERROR_CLOSED, "was closed");
    fails(stw_fetch(runtime, NULL, &request, 1, &view), STW_ERROR_CLOSED, "was closed");
    fails(stw_tensor_find(runtime, "t", &found), STW_ERROR_CLOSED, "was closed");
    fails(stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &stats), STW_ERROR_CLOSED, "was closed");
    fails(stw_phase_create(runtime, "p", &phase), STW_ERROR_CLOSED, "was closed");
    fails(stw_report_write(runtime, "r.json"), STW_ERROR_CLOSED, "was closed");
    fails(stw_tensor_read(tensor, &value, NULL), STW_ERROR_INVALID, "is not alive");
    fails(stw_release(&old, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
}

TEST(deferred_closing_ends_with_the_last_view)
{
    stw_view views[2], more;
    const int descriptors = descriptors_open();
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 5 * BLOCK / 4);
    stw_fetch_request request = request_of(tensor, STW_READ);
    tensor_fill_sequence(tensor, 5 * BLOCK / 4, 0);
    views[0] = view_get(runtime, tensor, STW_READ);
    views[1] = view_get(runtime, tensor, STW_READ);
    ok(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
    fails(stw_fetch(runtime, NULL, &request, 1, &more), STW_ERROR_CLOSED, "closed");
    fails(stw_runtime_drain(runtime, 0), STW_ERROR_CLOSED, "closed");
    assert_float(((float *)views[0].pointer)[5 * BLOCK / 4 - 1], (float)(5 * BLOCK / 4 - 1));
    ok(stw_release(&views[0], 1, STW_STREAM_HOST, 0));
    assert_float(((float *)views[1].pointer)[77], 77);
    assert_true(descriptors_open() > descriptors);
    ok(stw_release(&views[1], 1, STW_STREAM_HOST, 0));
    assert_int_equal(descriptors_open(), descriptors);
    assert_true(stw_release(&views[1], 1, STW_STREAM_HOST, 0) < 0);
}

static void count_line(void *user, uint32_t level, const char *topic, const char *line)
{
    (void)level, (void)topic, (void)line;
    ++*(int *)user;
}

/* The driver tells at its close what it did: to nobody, where that comes with the last view. */
TEST(the_log_is_silent_after_a_deferred_close)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    int deferred, lines, told = 0;
    nvme.path = ".", nvme.budget_bytes = 4 * MIB;
    nvme.driver = "fault", nvme.driver_options = "inner=posix;inner.allow_tmpfs=1";
    options.nvme = &nvme, options.nvme_count = 1;
    options.host_bytes = 2 * MIB, options.block_bytes = STW_BLOCK_64K;
    options.log = count_line, options.log_user = &told, options.log_level = STW_LOG_INFO;
    for (deferred = 0; deferred < 2; ++deferred) {
        stw_runtime *runtime;
        ok(stw_runtime_open(&options, &runtime));
        stw_tensor *tensor = tensor_f32(runtime, "t", 100);
        stw_view view = view_get(runtime, tensor, STW_WRITE);
        if (!deferred) view_put(&view);
        lines = told;
        ok(stw_runtime_close(runtime, deferred ? STW_CLOSE_DEFERRED : 0, 0));
        if (deferred) view_put(&view);
        assert_int_equal(told - lines, deferred ? 0 : 1);
    }
}

TEST(deferred_closing_without_views_closes_at_once)
{
    const int descriptors = descriptors_open();
    stw_runtime *runtime = machine_open_as(machine_small());
    ok(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
    assert_int_equal(descriptors_open(), descriptors);
    fails(stw_runtime_drain(runtime, 0), STW_ERROR_CLOSED, "closed");
}

static void *release_view(void *argument)
{
    (void)stw_release(argument, 1, STW_STREAM_HOST, 0);
    return NULL;
}

TEST(the_last_views_may_go_on_many_threads_at_once)
{
    const int descriptors = descriptors_open();
    for (int round = 0; round < 10; ++round) {
        stw_runtime *runtime = machine_open_as(machine_small());
        stw_tensor *tensor = tensor_f32(runtime, "t", 100);
        pthread_t threads[4];
        stw_view views[4];
        tensor_fill_sequence(tensor, 100, 0);
        for (int i = 0; i < 4; ++i) views[i] = view_get(runtime, tensor, STW_READ);
        ok(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
        for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, release_view, &views[i]);
        for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
    }
    assert_int_equal(descriptors_open(), descriptors);
}

TEST(runtimes_beside_each_other_share_nothing)
{
    machine small = machine_small();
    stw_runtime *one = machine_open(&small);
    stw_runtime *other = machine_open(&small);
    stw_tensor *a = tensor_f32(one, "same name", 30 * BLOCK / 4);
    stw_tensor *b = tensor_f32(other, "same name", 30 * BLOCK / 4);
    tensor_fill_sequence(a, 30 * BLOCK / 4, 0);
    tensor_fill_sequence(b, 30 * BLOCK / 4, 1000);
    tensor_expect_sequence(a, 30 * BLOCK / 4, 0);
    machine_close(one);
    tensor_expect_sequence(b, 30 * BLOCK / 4, 1000);
    machine_close(other);
}

TEST(closing_while_an_update_is_pending_waits_for_it)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    entry.parameter = tensor_f32(runtime, "w", 30 * BLOCK / 4);
    entry.gradient = tensor_f32(runtime, "g", 30 * BLOCK / 4);
    ok(stw_tensor_fill(entry.parameter, 1, NULL));
    ok(stw_tensor_fill(entry.gradient, 1, NULL));
    ok(stw_optimizer_add(optimizer, &entry, 1));
    ok(stw_optimizer_step(optimizer, NULL, NULL));
    machine_close(runtime);
}

typedef struct heard {
    pthread_mutex_t lock;
    int lines;
    int bad;
} heard;

static void hear(void *user, uint32_t level, const char *topic, const char *line)
{
    heard *here = user;
    pthread_mutex_lock(&here->lock);
    ++here->lines;
    if (level < STW_LOG_ERROR || level > STW_LOG_DEBUG || !topic || !*topic || !line || !*line ||
        strchr(line, '\n')) {
        here->bad = 1;
    }
    pthread_mutex_unlock(&here->lock);
}

TEST(the_log_gets_whole_lines_with_level_and_topic)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    stw_runtime *runtime = NULL;
    heard here;
    memset(&here, 0, sizeof here);
    pthread_mutex_init(&here.lock, NULL);
    nvme.path = ".", nvme.budget_bytes = 8 * MIB, nvme.driver = "fault";
    nvme.driver_options = "inner=posix;inner.allow_tmpfs=1;at=read:1:eio;at=read:2:eio;"
                          "at=read:3:eio;at=read:4:eio;at=read:5:eio;at=read:6:eio";
    options.nvme = &nvme, options.nvme_count = 1, options.host_bytes = MIB;
    options.block_bytes = STW_BLOCK_64K, options.log = hear, options.log_user = &here;
    options.log_level = STW_LOG_DEBUG;
    ok(stw_runtime_open(&options, &runtime));
    stw_tensor *tensor = tensor_f32(runtime, "t", 30 * BLOCK / 4);
    tensor_fill_sequence(tensor, 30 * BLOCK / 4, 0);
    {
        float *values = malloc(30 * BLOCK);
        assert_non_null(values);
        (void)stw_tensor_read(tensor, values, NULL);
        free(values);
    }
    (void)stw_runtime_clear_error(runtime);
    ok(stw_runtime_close(runtime, 0, 0));
    assert_true(here.lines > 0);
    assert_int_equal(here.bad, 0);
}

RUN_TESTS("life", NULL, NULL)
