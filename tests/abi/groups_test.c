/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups at the boundary: what stw_group_create refuses, handles that are gone or another
 * process's, engines that fail, a runtime on a group of one rank. Several ranks: tests/multirank.
 */
#include "support.h"

#include <sys/wait.h>
#include <unistd.h>

/* An engine of one rank, whose collectives end where they begin, until it is told to fail. */
typedef struct engine {
    stw_status start;  /* said when a collective is started */
    stw_status answer; /* and by poll */
    uint64_t started;
    uint64_t aborted;
} engine;

static stw_status begin(engine *self, uint64_t *work_out)
{
    *work_out = ++self->started;
    return self->start;
}

static stw_status all_gather(void *user, const void *shard, void *whole, uint64_t shard_bytes,
                             uint32_t tier, uint32_t device, void *stream, uint64_t *work_out)
{
    assert_true(tier == STW_TIER_HOST && device == 0 && stream == NULL);
    if (shard != whole) memcpy(whole, shard, (size_t)shard_bytes);
    return begin(user, work_out);
}

static stw_status reduce_scatter(void *user, const void *whole, void *shard,
                                 uint64_t shard_elements, uint32_t dtype, uint32_t tier,
                                 uint32_t device, void *stream, uint64_t *work_out)
{
    assert_true(tier == STW_TIER_HOST && device == 0 && stream == NULL);
    if (shard != whole) memmove(shard, whole, (size_t)(shard_elements * stw_dtype_bits(dtype) / 8));
    return begin(user, work_out);
}

static stw_status all_reduce(void *user, void *data, uint64_t elements, uint32_t dtype,
                             uint32_t tier, uint32_t device, void *stream, uint64_t *work_out)
{
    assert_true(data != NULL && elements > 0 && dtype != 0);
    assert_true(tier == STW_TIER_HOST && device == 0 && stream == NULL);
    return begin(user, work_out);
}

static stw_status poll(void *user, uint64_t work)
{
    engine *self = user;
    assert_int_equal(work, self->started);
    return self->answer;
}

static stw_status stop(void *user)
{
    engine *self = user;
    ++self->aborted;
    return STW_OK;
}

static const stw_group_ops all_ops = {
    sizeof(stw_group_ops), 0, all_gather, reduce_scatter, all_reduce, poll, stop,
};

static stw_group_options options_of(engine *self)
{
    stw_group_options options = {.struct_size = sizeof options,
                                 .driver = STW_GROUP_CALLBACKS,
                                 .ops = &all_ops,
                                 .ops_user = self,
                                 .size = 1};
    return options;
}

static stw_group *group_of(engine *self)
{
    const stw_group_options options = options_of(self);
    stw_group *group = NULL;
    ok(stw_group_create(&options, &group));
    assert_non_null(group);
    return group;
}

/* Nothing is written where a group is refused. */
static void refused(const stw_group_options *options, stw_status code, const char *words)
{
    stw_group *const untouched = (stw_group *)(void *)&code;
    stw_group *group = untouched;
    fails(stw_group_create(options, &group), code, words);
    assert_ptr_equal(group, untouched);
}

static stw_runtime_options runtime_options(stw_group *group)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.group = group;
    options.host_bytes = 32 * BLOCK;
    options.block_bytes = BLOCK;
    options.thread_count = 1;
    options.log = log_line;
    return options;
}

static stw_runtime *runtime_on(stw_group *group)
{
    const stw_runtime_options options = runtime_options(group);
    stw_runtime *runtime = NULL;
    log_reset();
    ok(stw_runtime_open(&options, &runtime));
    return runtime;
}

/* ----------------------------------------------------------------------- what create refuses -- */

TEST(sizes_flags_and_drivers_are_checked)
{
    engine self = {0};
    stw_group_options options = options_of(&self);
    stw_group *group = NULL;
    char newer[sizeof options + 8] = {0};
    fails(stw_group_create(&options, NULL), STW_ERROR_INVALID, "group_out is null");
    refused(NULL, STW_ERROR_INVALID, "options");
    options.struct_size = 2;
    refused(&options, STW_ERROR_INVALID, "options");
    options = options_of(&self), options.flags = STW_GROUP_CALLER_THREAD | 2;
    refused(&options, STW_ERROR_INVALID, "options.flags");
    options = options_of(&self), options.driver = STW_GROUP_CALLBACKS + 1;
    refused(&options, STW_ERROR_INVALID, "options.driver 4");
    /* A newer program's: what this library does not know must be zero. */
    options = options_of(&self), options.struct_size = sizeof newer;
    memcpy(newer, &options, sizeof options);
    ok(stw_group_create((const stw_group_options *)(const void *)newer, &group));
    ok(stw_group_destroy(group));
    newer[sizeof options] = 1;
    refused((const stw_group_options *)(const void *)newer, STW_ERROR_INVALID, "options");
}

TEST(a_rank_is_below_the_size)
{
    engine self = {0};
    stw_group_options options = options_of(&self);
    options.size = 0;
    refused(&options, STW_ERROR_INVALID, "options.rank 0 of options.size 0");
    options.size = 3, options.rank = 3;
    refused(&options, STW_ERROR_INVALID, "options.rank 3 of options.size 3");
    options.driver = STW_GROUP_NCCL;
    refused(&options, STW_ERROR_INVALID, "options.rank 3");
    options.rank = 2;
    refused(&options, STW_ERROR_INVALID, "unique_id");
    options.size = 70000;
    options.driver = STW_GROUP_CALLBACKS;
    refused(&options, STW_ERROR_INVALID, "at most 65536");
}

TEST(a_device_is_one_of_nccl)
{
    engine self = {0};
    stw_group_options options = options_of(&self);
    stw_group *group = NULL;
    options.device_ordinal = 1;
    refused(&options, STW_ERROR_INVALID, "options.device_ordinal 1 is for a group over NCCL");
    options.driver = STW_GROUP_NCCL, options.device_ordinal = -1;
    options.unique_id = &options, options.unique_id_bytes = 128;
    refused(&options, STW_ERROR_INVALID, "options.device_ordinal -1");
    options = options_of(&self), options.reserved = 1;
    refused(&options, STW_ERROR_INVALID, "options.reserved");
    /* Of a program from before there was one: what lies behind is not read. */
    options.device_ordinal = -1;
    options.struct_size = offsetof(stw_group_options, device_ordinal);
    ok(stw_group_create(&options, &group));
    ok(stw_group_destroy(group));
}

TEST(callbacks_are_all_there)
{
    engine self = {0};
    stw_group_options options = options_of(&self);
    stw_group_ops ops = all_ops;
    stw_group *group = NULL;
    options.ops = NULL;
    refused(&options, STW_ERROR_INVALID, "options.ops");
    options.ops = &ops;
    ops.struct_size = 0;
    refused(&options, STW_ERROR_INVALID, "options.ops");
    for (int i = 0; i < 4; ++i) {
        ops = all_ops;
        if (i == 0) ops.all_gather = NULL;
        if (i == 1) ops.reduce_scatter = NULL;
        if (i == 2) ops.all_reduce = NULL;
        if (i == 3) ops.poll = NULL;
        refused(&options, STW_ERROR_INVALID, "lacks a callback");
    }
    /* Of a program from before there was an abort. */
    ops = all_ops, ops.struct_size = offsetof(stw_group_ops, abort);
    ok(stw_group_create(&options, &group));
    ok(stw_group_destroy(group));
}

TEST(a_module_that_is_absent_is_unsupported)
{
    stw_group_options options = {
        .struct_size = sizeof options, .driver = STW_GROUP_MPI, .module = "absent"};
    refused(&options, STW_ERROR_UNSUPPORTED, "'absent'");
    options.driver = STW_GROUP_NCCL, options.size = 2;
    options.unique_id = &options, options.unique_id_bytes = 128;
    refused(&options, STW_ERROR_UNSUPPORTED, "'absent'");
}

/* ----------------------------------------------------------------------------------- handles -- */

static void expect_rank(const stw_group *group, uint32_t rank, uint32_t size)
{
    uint32_t found_rank = 99, found_size = 99;
    ok(stw_group_rank(group, &found_rank, &found_size));
    assert_int_equal(found_rank, rank);
    assert_int_equal(found_size, size);
    ok(stw_group_rank(group, NULL, NULL));
}

TEST(this_process_alone_is_a_group_too)
{
    const stw_group_options options = STW_GROUP_OPTIONS_INIT;
    stw_group *group = NULL, *part = NULL;
    expect_rank(NULL, 0, 1);
    ok(stw_group_create(&options, &group));
    expect_rank(group, 0, 1);
    stw_runtime *runtime = runtime_on(group);
    machine_close(runtime);
    ok(stw_group_split(group, 7, 7, &part));
    expect_rank(part, 0, 1);
    ok(stw_group_destroy(part));
    ok(stw_group_split(group, -1, 0, &part));
    assert_null(part);
    ok(stw_group_destroy(group));
}

TEST(handles_that_are_gone_are_found_out)
{
    engine self = {0};
    stw_group *group = group_of(&self), *part = NULL;
    uint32_t rank = 99;
    stw_runtime *runtime = NULL;
    ok(stw_group_destroy(group));
    fails(stw_group_destroy(group), STW_ERROR_INVALID, "not alive");
    fails(stw_group_destroy(NULL), STW_ERROR_INVALID, "null");
    fails(stw_group_rank(group, &rank, NULL), STW_ERROR_INVALID, "not alive");
    assert_int_equal(rank, 99);
    fails(stw_group_split(group, 0, 0, &part), STW_ERROR_INVALID, "not alive");
    fails(stw_group_split(NULL, 0, 0, &part), STW_ERROR_INVALID, "null");
    stw_runtime_options options = runtime_options(group);
    fails(stw_runtime_open(&options, &runtime), STW_ERROR_INVALID, "group");
    group = group_of(&self);
    fails(stw_group_split(group, 0, 0, NULL), STW_ERROR_INVALID, "group_out is null");
    fails(stw_group_split(group, 0, 0, &part), STW_ERROR_UNSUPPORTED, "cannot be split");
    assert_null(part);
    ok(stw_group_destroy(group));
}

TEST(a_group_has_one_runtime)
{
    engine self = {0};
    stw_group *group = group_of(&self), *part = NULL;
    stw_runtime *runtime = runtime_on(group), *second = NULL;
    const stw_runtime_options options = runtime_options(group);
    fails(stw_runtime_open(&options, &second), STW_ERROR_BUSY, "group");
    fails(stw_group_destroy(group), STW_ERROR_BUSY, "close the runtime first");
    fails(stw_group_split(group, 0, 0, &part), STW_ERROR_BUSY, "used by a runtime");
    expect_rank(group, 0, 1);
    machine_close(runtime);
    runtime = runtime_on(group);
    machine_close(runtime);
    ok(stw_group_destroy(group));
}

/* Two groups of one thing would take each other's bytes. */
TEST(an_engine_has_one_group_of_each_rank)
{
    engine self = {0};
    engine other = {0};
    stw_group_options options = options_of(&self);
    stw_group *group = group_of(&self);
    stw_group *second = NULL;
    refused(&options, STW_ERROR_BUSY, "already serve a group of this process as rank 0");
    second = group_of(&other);
    ok(stw_group_destroy(second));
    ok(stw_group_destroy(group));
    /* One that could not be made leaves nothing taken. */
    self.answer = STW_ERROR_PEER;
    refused(&options, STW_ERROR_PEER, "poll");
    self.answer = STW_OK;
    group = group_of(&self);
    ok(stw_group_destroy(group));
}

TEST(a_forked_child_is_told)
{
    engine self = {0};
    stw_group *group = group_of(&self);
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        const stw_runtime_options options = runtime_options(group);
        stw_group *own = NULL;
        stw_runtime *runtime = NULL;
        uint32_t rank;
        stw_group_options again = options_of(&self);
        int good = stw_group_rank(group, &rank, NULL) == STW_ERROR_FORKED &&
                   strstr(stw_last_error(), "fork") && stw_group_destroy(group) != STW_OK &&
                   stw_group_split(group, 0, 0, &own) == STW_ERROR_FORKED &&
                   stw_runtime_open(&options, &runtime) == STW_ERROR_FORKED &&
                   stw_group_create(&again, &own) == STW_OK && stw_group_destroy(own) == STW_OK;
        _exit(good ? 0 : 1);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect_rank(group, 0, 1);
    ok(stw_group_destroy(group));
}

/* ------------------------------------------------------------------------ one rank, and work -- */

typedef struct trained {
    float values[5000];
    double norm;
} trained;

static void train(stw_runtime *runtime, trained *out)
{
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    entry.parameter = tensor_f32(runtime, "w", COUNT(out->values));
    entry.gradient = tensor_f32(runtime, "g", COUNT(out->values));
    tensor_fill_sequence(entry.parameter, COUNT(out->values), 1);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    ok(stw_optimizer_add(optimizer, &entry, 1));
    stw_view view = view_get(runtime, entry.gradient, STW_REDUCE);
    assert_int_equal(view.element_count, COUNT(out->values));
    for (uint64_t i = 0; i < view.element_count; ++i)
        ((float *)view.pointer)[i] += (float)(i % 7) - 3;
    view_put(&view);
    ok(stw_reduce(entry.gradient, NULL, NULL));
    stw_update_options update = {.struct_size = sizeof update, .clip_norm = 0.5};
    ok(stw_optimizer_step(optimizer, &update, &result));
    out->norm = result.norm;
    ok(stw_tensor_read(entry.parameter, out->values, NULL));
    ok(stw_runtime_drain(runtime, 0)); /* the parameter is given back before the states are */
    ok(stw_optimizer_destroy(optimizer));
}

TEST(a_runtime_on_a_group_of_one_behaves_as_alone)
{
    engine self = {0};
    stw_group *group = group_of(&self);
    trained alone, together;
    stw_runtime *runtime = runtime_on(NULL);
    train(runtime, &alone);
    machine_close(runtime);
    runtime = runtime_on(group);
    train(runtime, &together);
    machine_close(runtime);
    assert_float(alone.norm, together.norm);
    assert_memory_equal(alone.values, together.values, sizeof alone.values);
    /* Nobody else is there to be asked or told. */
    assert_int_equal(self.started, 1);
    assert_int_equal(self.aborted, 0);
    ok(stw_group_destroy(group));
}

TEST(a_rank_of_a_group_says_how_its_tensors_lie)
{
    engine self = {0};
    stw_group *group = group_of(&self);
    stw_runtime *runtime = runtime_on(group);
    stw_tensor_spec spec = spec_f32("w", 20000);
    stw_tensor_info info = {0};
    stw_tensor *tensor = NULL;
    info.struct_size = sizeof info;
    spec.partition_multiple = 48;
    tensor = tensor_make(runtime, &spec);
    ok(stw_tensor_info_get(tensor, &info));
    assert_int_equal(info.shard_begin, 0);
    assert_int_equal(info.shard_elements, 20000);
    assert_int_equal(info.elements, 20000);
    spec.name = "other", spec.partition = STW_PARTITION_LOCAL + 1;
    fails(stw_tensor_create(runtime, &spec, 1, &tensor), STW_ERROR_INVALID, "partition");
    machine_close(runtime);
    ok(stw_group_destroy(group));
}

/* ------------------------------------------------------------------------- engines that fail -- */

TEST(an_engine_that_fails_fails_the_group)
{
    engine self = {0};
    stw_group_options options = options_of(&self);
    self.answer = STW_ERROR_PEER;
    refused(&options, STW_ERROR_PEER, "poll");
    self.answer = STW_OK, self.start = STW_ERROR_DEVICE;
    refused(&options, STW_ERROR_DEVICE, "cannot be started");
    /* Neither a failure nor a success. */
    self.start = STW_PENDING;
    refused(&options, STW_ERROR_INTERNAL, "cannot be started");
    self.start = STW_OK, self.answer = STW_SKIPPED;
    refused(&options, STW_ERROR_INTERNAL, "poll callback returned 2");
    self.answer = -12345;
    refused(&options, -12345, "-12345");
}

TEST(a_wait_without_end_ends_with_the_timeout)
{
    engine self = {0};
    stw_group_options options = options_of(&self);
    options.timeout_ns = MILLISECOND_NS;
    self.answer = STW_PENDING;
    refused(&options, STW_ERROR_PEER, "was not done after");
    assert_int_equal(self.aborted, 1);
}

RUN_TESTS("groups", NULL, NULL)
