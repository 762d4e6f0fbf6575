/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Phases and steps: which order of calls is refused, what a step says it cost, what abort undoes.
 */
#include "support.h"

static stw_step_stats stats_empty(void)
{
    stw_step_stats stats = {.struct_size = sizeof stats};
    return stats;
}

TEST(begin_and_end_come_in_pairs)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_phase *phase = NULL, *other = NULL;
    ok(stw_phase_create(runtime, "train", &phase));
    ok(stw_phase_create(runtime, NULL, &other));
    fails(stw_step_end(phase, NULL), STW_ERROR_INVALID, "'train' has no open step");
    fails(stw_step_abort(phase, NULL), STW_ERROR_INVALID, "'train' has no open step");
    ok(stw_step_begin(phase));
    fails(stw_step_begin(phase), STW_ERROR_BUSY, "'train' has an open step");
    fails(stw_phase_destroy(phase), STW_ERROR_BUSY, "'train' has an open step");
    ok(stw_step_begin(other));
    ok(stw_step_end(phase, NULL));
    ok(stw_step_end(other, NULL));
    fails(stw_step_end(phase, NULL), STW_ERROR_INVALID, "no open step");
    ok(stw_phase_destroy(phase));
    ok(stw_phase_destroy(other));
    machine_close(runtime);
}

TEST(a_step_counts_the_bytes_that_it_moved)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensors[10];
    stw_phase *phase = NULL;
    stw_step_stats stats;
    for (int i = 0; i < 10; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, 5 * BLOCK / 4);
        tensor_fill_sequence(tensors[i], 5 * BLOCK / 4, 0);
    }
    ok(stw_runtime_drain(runtime, 0));
    ok(stw_phase_create(runtime, "p", &phase));
    for (int step = 1; step <= 3; ++step) {
        stats = stats_empty();
        uint64_t begin = clock_ns();
        ok(stw_step_begin(phase));
        for (int i = 0; i < 10; ++i) {
            stw_view view = view_get(runtime, tensors[i], STW_READ_WRITE);
            ((float *)view.pointer)[0] += 1;
            view_put(&view);
        }
        ok(stw_step_end(phase, &stats));
        begin = clock_ns() - begin;
        assert_int_equal(stats.struct_size, sizeof stats);
        assert_int_equal(stats.step, step);
        assert_true(stats.wall_ns > 0 && stats.wall_ns <= begin);
        assert_true(stats.stall_ns <= stats.wall_ns);
        assert_int_equal(stats.stall_ns, stats.stall_nvme_ns + stats.stall_host_device_ns +
                                             stats.stall_collective_ns + stats.stall_room_ns +
                                             stats.stall_update_ns);
        /* 50 blocks through a device of 8 and a host tier of 16: 26 at least came from nvme. */
        assert_true(stats.nvme_read_bytes >= 26 * BLOCK);
        assert_true(stats.nvme_write_bytes >= 20 * BLOCK);
        assert_int_equal(stats.collective_bytes, 0);
    }
    ok(stw_step_begin(phase));
    ok(stw_step_end(phase, &stats));
    assert_int_equal(stats.nvme_read_bytes, 0);
    ok(stw_phase_destroy(phase));
    machine_close(runtime);
}

TEST(without_nvme_nothing_waits_for_it)
{
    machine memory = machine_small();
    stw_phase *phase = NULL;
    stw_step_stats stats = stats_empty();
    memory.device_blocks = 40, memory.host_blocks = memory.nvme_blocks = 0;
    stw_runtime *runtime = machine_open(&memory);
    ok(stw_phase_create(runtime, "p", &phase));
    ok(stw_step_begin(phase));
    for (int i = 0; i < 8; ++i) { /* zeros are made, for which the fetch waits */
        stw_view view = view_get(runtime, tensor_f32(runtime, NULL, 4 * BLOCK / 4), STW_REDUCE);
        view_put(&view);
    }
    ok(stw_step_end(phase, &stats));
    assert_int_equal(stats.stall_nvme_ns, 0);
    machine_close(runtime);
}

TEST(abort_gives_views_back_as_abandoned)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *read = tensor_f32(runtime, "read", 100);
    stw_tensor *fresh = tensor_f32(runtime, "fresh", 100);
    stw_fetch_request request = request_of(fresh, STW_READ);
    stw_phase *phase = NULL;
    stw_view views[2], other;
    tensor_fill_sequence(read, 100, 0);
    ok(stw_phase_create(runtime, "p", &phase));
    stw_view outside = view_get(runtime, read, STW_READ); /* of no step: stays */
    ok(stw_step_begin(phase));
    views[0] = view_get(runtime, read, STW_READ);
    views[1] = view_get(runtime, fresh, STW_WRITE);
    memset(views[1].pointer, 0x33, 400);
    ok(stw_step_abort(phase, STW_STREAM_HOST));
    fails(stw_release(&views[0], 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "ended step");
    fails(stw_release(&views[1], 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "ended step");
    fails(stw_fetch(runtime, NULL, &request, 1, &other), STW_ERROR_EMPTY, "'fresh'");
    stw_tier_stats tier = tier_stats(runtime, STW_TIER_DEFAULT);
    assert_int_equal(tier.open_views, 1);
    assert_float(((float *)outside.pointer)[42], 42);
    view_put(&outside);
    fails(stw_step_abort(phase, STW_STREAM_HOST), STW_ERROR_INVALID, "no open step");
    ok(stw_phase_destroy(phase));
    machine_close(runtime);
}

TEST(abort_drops_the_gradients_summed_in_the_step)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *view_summed = tensor_f32(runtime, "view", 20000);
    stw_tensor *memory_summed = tensor_f32(runtime, "memory", 20000);
    stw_tensor *before = tensor_f32(runtime, "before", 20000);
    float *local = calloc(20000, sizeof *local);
    stw_phase *phase = NULL;
    assert_non_null(local);
    ok(stw_phase_create(runtime, "p", &phase));
    ok(stw_reduce(before, local, NULL));
    ok(stw_step_begin(phase));
    stw_view view = view_get(runtime, view_summed, STW_REDUCE);
    view_put(&view);
    view = view_get(runtime, view_summed, STW_REDUCE); /* the second is a private buffer */
    view_put(&view);
    ok(stw_reduce(memory_summed, local, NULL));
    ok(stw_step_abort(phase, STW_STREAM_HOST));
    ok(stw_runtime_drain(runtime, 0));
    fails(stw_tensor_read(view_summed, local, NULL), STW_ERROR_EMPTY, "'view'");
    fails(stw_tensor_read(memory_summed, local, NULL), STW_ERROR_EMPTY, "'memory'");
    ok(stw_tensor_read(before, local, NULL));
    free(local);
    ok(stw_phase_destroy(phase));
    machine_close(runtime);
}

/* It is emptied by the thread that has read it. */
TEST(a_drain_waits_for_what_an_aborted_step_empties)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    float *local = calloc(20000, sizeof *local);
    stw_phase *phase = NULL;
    assert_non_null(local);
    ok(stw_phase_create(runtime, "p", &phase));
    for (int round = 0; round < 300; ++round) {
        stw_tensor *gradient = tensor_f32(runtime, "gradient", 20000);
        ok(stw_step_begin(phase));
        ok(stw_reduce(gradient, local, NULL));
        ok(stw_evict(runtime, &gradient, 1, STW_TIER_HOST, 0, 0));
        ok(stw_step_abort(phase, STW_STREAM_HOST));
        ok(stw_runtime_drain(runtime, 0));
        ok(stw_tensor_destroy(&gradient, 1));
    }
    free(local);
    ok(stw_phase_destroy(phase));
    machine_close(runtime);
}

TEST(a_fetch_names_its_phase_or_belongs_to_the_step_begun_last)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_phase *first = NULL, *second = NULL;
    stw_view of_first, of_second;
    tensor_fill_sequence(tensor, 100, 0);
    ok(stw_phase_create(runtime, "prefill", &first));
    ok(stw_phase_create(runtime, "decode", &second));
    ok(stw_step_begin(first));
    ok(stw_step_begin(second));
    stw_fetch_options options = {.struct_size = sizeof options, .phase = first};
    ok(stw_fetch(runtime, &options, &request, 1, &of_first));
    ok(stw_fetch(runtime, NULL, &request, 1, &of_second));
    ok(stw_step_abort(second, STW_STREAM_HOST));
    fails(stw_release(&of_second, 1, STW_STREAM_HOST, 0), STW_ERROR_INVALID, "not open");
    view_put(&of_first);
    ok(stw_step_end(first, NULL));
    ok(stw_phase_destroy(first));
    ok(stw_phase_destroy(second));
    machine_close(runtime);
}

static int count_in(const char *path, const char *words)
{
    char buffer[4096];
    FILE *file = fopen(path, "r");
    int found = 0;
    assert_non_null(file);
    while (fgets(buffer, sizeof buffer, file)) found += strstr(buffer, words) != NULL;
    fclose(file);
    return found;
}

TEST(report_and_timeline_are_files_or_an_error_with_the_path)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_phase *phase = NULL;
    ok(stw_phase_create(runtime, "train", &phase));
    ok(stw_step_begin(phase));
    ok(stw_step_end(phase, NULL));
    ok(stw_report_write(runtime, "abi-report.json"));
    ok(stw_timeline_write(runtime, "abi-timeline.json"));
    assert_true(count_in("abi-report.json", "train") > 0);
    assert_true(count_in("abi-timeline.json", "train") > 0);
    fails(stw_report_write(runtime, "no/such/directory/report.json"), STW_ERROR_NOT_FOUND,
          "no/such/directory");
    fails(stw_timeline_write(runtime, "no/such/directory/t.json"), STW_ERROR_NOT_FOUND,
          "no/such/directory");
    remove("abi-report.json");
    remove("abi-timeline.json");
    machine_close(runtime);
}

RUN_TESTS("phases", NULL, NULL)
