/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Victim policies of the program: what they are shown, what they change, and that nobody waits for
 * them.
 */
#include "support.h"

#include <pthread.h>
#include <sched.h>

enum { CYCLE = 12, KEPT = 6, F32S = BLOCK / 4 };

/* A policy whose calls can be held back. */
typedef struct ranker {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int hold;   /* calls stay inside as long as it is set */
    int inside; /* calls that are */
    int calls;
    double score_of_role[6];
    double (*score_of)(const stw_victim *victim);
    stw_tensor *watched;
    stw_victim seen; /* of the watched tensor at the device, at the last call */
    int misplaced;   /* calls for no tier that evicts */
    stw_runtime *set_inside;
    stw_status inside_status;
} ranker;

static void rank(void *user, uint32_t tier, uint32_t device, const stw_victim *victims, uint32_t n,
                 double *scores_out)
{
    ranker *mine = user;
    pthread_mutex_lock(&mine->mutex);
    ++mine->calls, ++mine->inside;
    pthread_cond_broadcast(&mine->changed);
    mine->misplaced += device != 0 || (tier != STW_TIER_DEVICE && tier != STW_TIER_HOST);
    for (uint32_t i = 0; i < n; ++i) {
        if (victims[i].tensor == mine->watched && tier == STW_TIER_DEVICE) mine->seen = victims[i];
        scores_out[i] +=
            mine->score_of ? mine->score_of(&victims[i]) : mine->score_of_role[victims[i].role];
    }
    if (mine->set_inside)
        mine->inside_status = stw_runtime_set_victim_policy(mine->set_inside, NULL, 0);
    while (mine->hold) pthread_cond_wait(&mine->changed, &mine->mutex);
    --mine->inside;
    pthread_mutex_unlock(&mine->mutex);
}

static void ranker_begin(ranker *mine)
{
    memset(mine, 0, sizeof *mine);
    pthread_mutex_init(&mine->mutex, NULL);
    pthread_cond_init(&mine->changed, NULL);
}

static void ranker_hold(ranker *mine, int hold)
{
    pthread_mutex_lock(&mine->mutex);
    mine->hold = hold;
    pthread_cond_broadcast(&mine->changed);
    pthread_mutex_unlock(&mine->mutex);
}

static void ranker_await_inside(ranker *mine)
{
    pthread_mutex_lock(&mine->mutex);
    while (!mine->inside) pthread_cond_wait(&mine->changed, &mine->mutex);
    pthread_mutex_unlock(&mine->mutex);
}

static stw_victim ranker_seen(ranker *mine)
{
    stw_victim seen;
    pthread_mutex_lock(&mine->mutex);
    seen = mine->seen;
    pthread_mutex_unlock(&mine->mutex);
    return seen;
}

static stw_status policy_set(stw_runtime *runtime, ranker *mine)
{
    stw_victim_policy policy = STW_VICTIM_POLICY_INIT;
    policy.rank = rank, policy.user = mine;
    return stw_runtime_set_victim_policy(runtime, &policy, 0);
}

/* Until scores of `calls` calls more were taken at the device; the test's timeout ends it else. */
static void await_scores(stw_runtime *runtime, uint64_t before, uint64_t calls)
{
    while (tier_stats(runtime, STW_TIER_DEVICE).policy_calls < before + calls) sched_yield();
}

static void set_and_await(stw_runtime *runtime, ranker *mine)
{
    const uint64_t before = tier_stats(runtime, STW_TIER_DEVICE).policy_calls;
    ok(policy_set(runtime, mine));
    await_scores(runtime, before, 1);
}

static uint64_t bytes_read(stw_runtime *runtime)
{
    return link_stats(runtime, STW_LINK_NVME_TO_DEVICE).bytes;
}

/* ------------------------------------------------------------------------- what they change -- */

static void read_in_turn(stw_runtime *runtime, stw_tensor *const *tensors, int rounds)
{
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < CYCLE; ++i) {
            stw_view view = view_get(runtime, tensors[i], STW_READ);
            assert_float(((const float *)view.pointer)[F32S - 1], (float)(i + F32S - 1));
            view_put(&view);
        }
    }
}

/* 12 blocks in turn through 8: by recency each is gone when its turn comes again. */
TEST(keeping_half_of_a_cycle_saves_reads_that_recency_does_not)
{
    machine wanted = machine_small();
    ranker mine;
    stw_tensor *tensors[CYCLE];
    wanted.host_blocks = 0;
    stw_runtime *runtime = machine_open(&wanted);
    for (int i = 0; i < CYCLE; ++i) {
        stw_tensor_spec spec = spec_f32(NULL, F32S);
        spec.role = i < KEPT ? STW_ROLE_PARAM : STW_ROLE_OTHER;
        tensors[i] = tensor_make(runtime, &spec);
        tensor_fill_sequence(tensors[i], F32S, (float)i);
    }
    ok(stw_runtime_drain(runtime, 0));
    read_in_turn(runtime, tensors, 1);
    uint64_t begin = bytes_read(runtime);
    read_in_turn(runtime, tensors, 4);
    uint64_t by_recency = bytes_read(runtime) - begin;
    assert_int_equal(by_recency, 4 * CYCLE * BLOCK);

    ranker_begin(&mine);
    mine.score_of_role[STW_ROLE_PARAM] = 1;
    set_and_await(runtime, &mine);
    read_in_turn(runtime, tensors, 1);
    begin = bytes_read(runtime);
    read_in_turn(runtime, tensors, 4);
    assert_int_equal(bytes_read(runtime) - begin, 4 * (CYCLE - KEPT) * BLOCK);

    ok(stw_runtime_set_victim_policy(runtime, NULL, 0));
    read_in_turn(runtime, tensors, 1);
    begin = bytes_read(runtime);
    read_in_turn(runtime, tensors, 4);
    assert_int_equal(bytes_read(runtime) - begin, by_recency);
    machine_close(runtime);
}

static double score_by_number(const stw_victim *victim)
{
    const uint64_t hash = (uint64_t)(uintptr_t)victim->tensor * UINT64_C(0x9e3779b97f4a7c15);
    if (hash >> 60 == 0) return NAN;
    if (hash >> 60 == 1) return -INFINITY;
    return (double)(hash >> 40) - (double)victim->last_use;
}

/* Sums of contributions into tensors that do not fit, and their update: the bits at the end. */
static void train(double (*score_of)(const stw_victim *victim), float *result, uint64_t elements)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_phase *phase;
    stw_tensor *parameters[4], *gradients[4];
    ranker mine;
    float *local = malloc(elements * sizeof *local);
    ranker_begin(&mine);
    mine.score_of = score_of;
    if (score_of) ok(policy_set(runtime, &mine));
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    ok(stw_phase_create(runtime, "train", &phase));
    for (int i = 0; i < 4; ++i) {
        stw_tensor_spec spec = spec_f32(NULL, elements);
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        parameters[i] = entry.parameter = tensor_make(runtime, &spec);
        spec.role = STW_ROLE_GRAD;
        gradients[i] = entry.gradient = tensor_make(runtime, &spec);
        tensor_fill_sequence(parameters[i], elements, (float)i);
        ok(stw_optimizer_add(optimizer, &entry, 1));
    }
    for (int step = 0; step < 4; ++step) {
        ok(stw_step_begin(phase));
        for (int i = 0; i < 4; ++i) {
            for (uint64_t at = 0; at < elements; ++at)
                local[at] = (float)((at * 37 + step) % 11) - 5.0F;
            ok(stw_reduce(gradients[i], local, NULL));
        }
        stw_update_options update = {.struct_size = sizeof update, .clip_norm = 1};
        ok(stw_optimizer_step(optimizer, &update, NULL));
        ok(stw_step_end(phase, NULL));
    }
    for (int i = 0; i < 4; ++i)
        ok(stw_tensor_read(parameters[i], result + (uint64_t)i * elements, NULL));
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
    free(local);
}

TEST(no_policy_changes_a_bit)
{
    const uint64_t elements = 5 * BLOCK / 4 + 11, bytes = 4 * elements * sizeof(float);
    float *plain = malloc(bytes), *scored = malloc(bytes);
    train(NULL, plain, elements);
    train(score_by_number, scored, elements);
    assert_memory_equal(plain, scored, bytes);
    log_reset();
    free(plain), free(scored);
}

/* ----------------------------------------------------------------------- what they are shown -- */

TEST(a_policy_is_shown_what_is_there)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor_spec spec = spec_f32("w", F32S + 100);
    stw_policy rules = STW_POLICY_INIT;
    stw_tensor *small[2];
    ranker mine;
    ranker_begin(&mine);
    spec.role = STW_ROLE_CACHE;
    rules.retention = STW_RETAIN_KEEP, rules.priority = -3;
    spec.policy = &rules;
    mine.watched = tensor_make(runtime, &spec);
    set_and_await(runtime, &mine);
    stw_victim seen = ranker_seen(&mine);
    assert_true(seen.tensor == mine.watched && seen.bytes == 0);
    assert_true(seen.last_use == UINT64_MAX && seen.next_use == UINT64_MAX);
    assert_int_equal(seen.role, STW_ROLE_CACHE);
    assert_int_equal(seen.retention, STW_RETAIN_KEEP);
    assert_int_equal(seen.priority, -3);
    assert_int_equal(seen.flags, 0);
    tensor_fill_sequence(mine.watched, F32S + 100, 0);
    small[0] = tensor_f32(runtime, "a", 10), small[1] = tensor_f32(runtime, "b", 10);
    stw_view view = view_get(runtime, mine.watched, STW_READ);
    set_and_await(runtime, &mine);
    seen = ranker_seen(&mine);
    assert_int_equal(seen.bytes, BLOCK + 400);
    assert_int_equal(seen.flags, STW_VICTIM_PINNED);
    assert_int_equal(seen.last_use, 0);
    view_put(&view);
    ok(stw_runtime_drain(runtime, 0));
    tensor_fill_sequence(small[0], 10, 0);
    mine.watched = small[0];
    set_and_await(runtime, &mine);
    assert_int_equal(ranker_seen(&mine).flags, STW_VICTIM_SHARED);
    assert_int_equal(mine.misplaced, 0);
    assert_true(tier_stats(runtime, STW_TIER_DEVICE).policy_scores >= 5);
    assert_int_equal(tier_stats(runtime, STW_TIER_NVME).policy_calls, 0);
    machine_close(runtime);
}

TEST(steps_tell_the_next_use_and_ask_again)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensors[3];
    stw_phase *phase;
    ranker mine;
    for (int i = 0; i < 3; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, F32S);
        tensor_fill_sequence(tensors[i], F32S, 0);
    }
    ok(stw_phase_create(runtime, "train", &phase));
    ranker_begin(&mine);
    mine.watched = tensors[2];
    set_and_await(runtime, &mine);
    for (int step = 0; step < 2; ++step) {
        uint64_t before = tier_stats(runtime, STW_TIER_DEVICE).policy_calls;
        ok(stw_step_begin(phase));
        await_scores(runtime, before, 1);
        for (int i = 0; step == 0 && i < 3; ++i) {
            stw_view view = view_get(runtime, tensors[i], STW_READ);
            view_put(&view);
        }
        if (step == 1) assert_int_equal(ranker_seen(&mine).next_use, 2);
        before = tier_stats(runtime, STW_TIER_DEVICE).policy_calls;
        ok(stw_step_end(phase, NULL));
        await_scores(runtime, before, 1);
    }
    machine_close(runtime);
}

TEST(evictions_make_scores_old)
{
    machine wanted = machine_small();
    stw_tensor *tensors[CYCLE];
    ranker mine;
    wanted.host_blocks = 0;
    stw_runtime *runtime = machine_open(&wanted);
    for (int i = 0; i < CYCLE; ++i) tensors[i] = tensor_f32(runtime, NULL, F32S);
    ranker_begin(&mine);
    set_and_await(runtime, &mine);
    uint64_t before = tier_stats(runtime, STW_TIER_DEVICE).policy_calls;
    for (int i = 0; i < CYCLE; ++i) tensor_fill_sequence(tensors[i], F32S, (float)i);
    await_scores(runtime, before, 1);
    read_in_turn(runtime, tensors, 1);
    machine_close(runtime);
}

/* --------------------------------------------------------------------- nobody waits for them -- */

TEST(a_policy_that_hangs_stops_nothing)
{
    machine wanted = machine_small();
    stw_tensor *tensors[CYCLE];
    stw_tensor_info info = {0};
    ranker mine;
    wanted.host_blocks = 0;
    stw_runtime *runtime = machine_open(&wanted);
    for (int i = 0; i < CYCLE; ++i) {
        tensors[i] = tensor_f32(runtime, NULL, F32S);
        tensor_fill_sequence(tensors[i], F32S, (float)i);
    }
    stw_tensor *gone = tensor_f32(runtime, "gone", 10);
    ranker_begin(&mine);
    ranker_hold(&mine, 1);
    ok(policy_set(runtime, &mine));
    ranker_await_inside(&mine);
    read_in_turn(runtime, tensors, 2);
    ok(stw_tensor_destroy(&gone, 1)); /* it is in the snapshot */
    info.struct_size = sizeof info;
    fails(stw_tensor_info_get(gone, &info), STW_ERROR_INVALID, "not alive");
    fails(stw_runtime_set_victim_policy(runtime, NULL, MILLISECOND_NS), STW_ERROR_TIMEOUT,
          "has not returned");
    ok(stw_runtime_drain(runtime, 0));
    fails(stw_runtime_close(runtime, 0, MILLISECOND_NS), STW_ERROR_TIMEOUT, "has not returned");
    read_in_turn(runtime, tensors, 1);
    ranker_hold(&mine, 0);
    machine_close(runtime);
    assert_int_equal(mine.inside, 0);
}

TEST(a_policy_that_was_replaced_is_called_no_more)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    ranker first, second;
    stw_phase *phase;
    int calls;
    tensor_fill_sequence(tensor_f32(runtime, NULL, F32S), F32S, 0);
    ranker_begin(&first), ranker_begin(&second);
    ok(stw_phase_create(runtime, "p", &phase));
    set_and_await(runtime, &first);
    set_and_await(runtime, &second);
    calls = first.calls;
    uint64_t before = tier_stats(runtime, STW_TIER_DEVICE).policy_calls;
    ok(stw_step_begin(phase));
    await_scores(runtime, before, 1);
    assert_int_equal(first.calls, calls);
    ok(stw_runtime_set_victim_policy(runtime, NULL, 0));
    calls = second.calls;
    ok(stw_step_end(phase, NULL));
    machine_close(runtime);
    assert_int_equal(second.calls, calls);
}

TEST(a_deferred_close_ends_the_policy)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, NULL, F32S);
    ranker mine;
    int calls;
    tensor_fill_sequence(tensor, F32S, 0);
    ranker_begin(&mine);
    set_and_await(runtime, &mine);
    stw_view view = view_get(runtime, tensor, STW_READ);
    ok(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
    calls = mine.calls;
    fails(stw_runtime_set_victim_policy(runtime, NULL, 0), STW_ERROR_CLOSED, "closed");
    view_put(&view);
    assert_int_equal(mine.calls, calls);
}

TEST(what_is_no_number_is_told_once_and_counts_as_zero)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_phase *phase;
    ranker mine;
    log_reset();
    tensor_fill_sequence(tensor_f32(runtime, NULL, F32S), F32S, 0);
    ranker_begin(&mine);
    mine.score_of_role[STW_ROLE_PARAM] = NAN;
    set_and_await(runtime, &mine);
    ok(stw_phase_create(runtime, "p", &phase));
    uint64_t before = tier_stats(runtime, STW_TIER_DEVICE).policy_calls;
    ok(stw_step_begin(phase));
    await_scores(runtime, before, 1);
    ok(stw_step_end(phase, NULL));
    machine_close(runtime);
    assert_int_equal(times_logged("not a number"), 1);
    log_reset();
}

TEST(what_is_no_policy_is_refused)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_victim_policy policy = STW_VICTIM_POLICY_INIT;
    ranker mine;
    fails(stw_runtime_set_victim_policy(NULL, NULL, 0), STW_ERROR_CLOSED, "not open");
    fails(stw_runtime_set_victim_policy(runtime, &policy, 0), STW_ERROR_INVALID, "rank is null");
    policy.rank = rank, policy.victim_bytes = 24;
    fails(stw_runtime_set_victim_policy(runtime, &policy, 0), STW_ERROR_INVALID,
          "victim_bytes is 24");
    policy.struct_size = 5;
    fails(stw_runtime_set_victim_policy(runtime, &policy, 0), STW_ERROR_INVALID, "struct_size");
    ok(stw_runtime_set_victim_policy(runtime, NULL, 0)); /* there is none */
    tensor_fill_sequence(tensor_f32(runtime, NULL, F32S), F32S, 0);
    ranker_begin(&mine);
    mine.set_inside = runtime;
    set_and_await(runtime, &mine);
    assert_int_equal(mine.inside_status, STW_ERROR_BUSY);
    machine_close(runtime);
}

TEST(snapshots_are_part_of_the_metadata_budget)
{
    machine wanted = machine_small();
    ranker mine;
    wanted.tensors_max = 100, wanted.views_max = 64;
    stw_runtime *runtime = machine_open(&wanted);
    tensor_fill_sequence(tensor_f32(runtime, NULL, F32S), F32S, 0);
    uint64_t without = tier_stats(runtime, STW_TIER_HOST).metadata_bytes;
    ranker_begin(&mine);
    set_and_await(runtime, &mine);
    assert_true(tier_stats(runtime, STW_TIER_HOST).metadata_bytes >= without + sizeof(stw_victim));
    ok(stw_runtime_set_victim_policy(runtime, NULL, 0));
    assert_int_equal(tier_stats(runtime, STW_TIER_HOST).metadata_bytes, without);
    machine_close(runtime);
}

RUN_TESTS("victims", NULL, NULL)
