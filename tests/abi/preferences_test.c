/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options that move no byte by themselves but decide what moves: each is seen by who leaves a full
 * tier, who is served first, or where bytes rest. What happens without the option is shown too.
 */
#include "support.h"

#include <pthread.h>

enum { HALF = 4 * 16384 }; /* four blocks: half of the device */

static int on_device(stw_tensor *tensor)
{
    return (info_of(tensor).residence & STW_ALLOW_DEVICE) != 0;
}

/* ------------------------------------------------------------------------- who leaves first -- */

/* Two tensors fill the device: `older` was used before `newer`. A third one needs half of it. */
typedef struct contest {
    stw_runtime *runtime;
    stw_tensor *older;
    stw_tensor *newer;
} contest;

static stw_tensor *tensor_with(stw_runtime *runtime, const char *name, const stw_policy *policy)
{
    stw_tensor_spec spec = spec_f32(name, HALF);
    spec.policy = policy;
    return tensor_make(runtime, &spec);
}

static void use(stw_runtime *runtime, stw_tensor *tensor, uint32_t access)
{
    stw_view view = view_get(runtime, tensor, access);
    if (access == STW_WRITE) memset(view.pointer, 0, view.bytes);
    view_put(&view);
}

static contest contest_open(const stw_policy *older, const stw_policy *newer)
{
    contest here;
    here.runtime = machine_open_as(machine_small());
    here.older = tensor_with(here.runtime, "older", older);
    here.newer = tensor_with(here.runtime, "newer", newer);
    use(here.runtime, here.older, STW_WRITE);
    use(here.runtime, here.newer, STW_WRITE);
    assert_true(on_device(here.older) && on_device(here.newer));
    return here;
}

static void contest_close(contest *here, const stw_tensor *leaves)
{
    stw_tensor *third = tensor_with(here->runtime, "third", NULL);
    /* What is being written home at this moment could not leave. */
    ok(stw_runtime_drain(here->runtime, 0));
    use(here->runtime, third, STW_WRITE);
    assert_int_equal(on_device(here->older), leaves != here->older);
    assert_int_equal(on_device(here->newer), leaves != here->newer);
    machine_close(here->runtime);
}

TEST(without_a_preference_the_least_recently_used_leaves)
{
    contest here = contest_open(NULL, NULL);
    contest_close(&here, here.older);
}

TEST(the_lower_priority_leaves_first)
{
    stw_policy low = STW_POLICY_INIT, high = STW_POLICY_INIT;
    low.priority = -3, high.priority = 7;
    contest here = contest_open(&high, &low);
    contest_close(&here, here.newer);
    here = contest_open(&low, &high);
    contest_close(&here, here.older);
}

TEST(what_is_advised_cold_leaves_first_and_what_is_hot_last)
{
    contest here = contest_open(NULL, NULL);
    ok(stw_advise(&here.newer, 1, STW_ADVICE_COLD));
    contest_close(&here, here.newer);
    here = contest_open(NULL, NULL);
    ok(stw_advise(&here.older, 1, STW_ADVICE_HOT));
    contest_close(&here, here.newer);
    /* Taken back: as if nothing had been said. */
    here = contest_open(NULL, NULL);
    ok(stw_advise(&here.older, 1, STW_ADVICE_HOT));
    ok(stw_advise(&here.older, 1, STW_ADVICE_NORMAL));
    contest_close(&here, here.older);
}

/* Both are brought back, held at once and released with these flags, the older one last. */
static contest give_back(uint32_t access, uint32_t older_flags, uint32_t newer_flags)
{
    contest here = contest_open(NULL, NULL);
    stw_view older, newer;
    ok(stw_evict(here.runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
    older = view_get(here.runtime, here.older, access);
    newer = view_get(here.runtime, here.newer, access);
    ok(stw_release(&newer, 1, STW_STREAM_HOST, newer_flags));
    ok(stw_release(&older, 1, STW_STREAM_HOST, older_flags));
    return here;
}

/* Hits are told to the core later than the release that follows them. */
TEST(what_was_hit_and_then_released_far_leaves_first)
{
    contest here = contest_open(NULL, NULL);
    stw_view newer = view_get(here.runtime, here.newer, STW_READ);
    ok(stw_release(&newer, 1, STW_STREAM_HOST, STW_RELEASE_FAR));
    contest_close(&here, here.newer);
}

TEST(what_was_hit_and_then_released_near_leaves_last)
{
    contest here = contest_open(NULL, NULL);
    stw_view older = view_get(here.runtime, here.older, STW_READ);
    stw_view newer = view_get(here.runtime, here.newer, STW_READ);
    ok(stw_release(&newer, 1, STW_STREAM_HOST, 0));
    ok(stw_release(&older, 1, STW_STREAM_HOST, STW_RELEASE_NEAR));
    contest_close(&here, here.newer);
}

TEST(what_is_released_far_leaves_first_and_what_is_near_last)
{
    const uint32_t accesses[] = {STW_READ, STW_READ_WRITE};
    for (size_t i = 0; i < COUNT(accesses); ++i) {
        contest here = give_back(accesses[i], 0, 0);
        contest_close(&here, here.older);
        here = give_back(accesses[i], 0, STW_RELEASE_FAR);
        contest_close(&here, here.newer);
        here = give_back(accesses[i], STW_RELEASE_NEAR, 0);
        contest_close(&here, here.newer);
    }
}

/* ----------------------------------------------------------------------- who is served first -- */

typedef struct asker {
    stw_runtime *runtime;
    stw_tensor *tensor;
    int32_t priority;
    stw_operation *operation;
    stw_status status;
} asker;

static void *ask_to_write(void *argument)
{
    asker *me = argument;
    stw_fetch_request request = request_of(me->tensor, STW_READ_WRITE);
    stw_fetch_options options = {
        .struct_size = sizeof options, .priority = me->priority, .flags = STW_FETCH_HAND_OVER};
    me->status = stw_fetch_async(me->runtime, &options, &request, 1, &me->operation);
    return NULL;
}

/* By another thread: what this one holds would be in its own way. */
static void ask_elsewhere(asker *who)
{
    pthread_t thread;
    pthread_create(&thread, NULL, ask_to_write, who);
    pthread_join(thread, NULL);
    ok(who->status);
    assert_int_equal(stw_operation_poll(who->operation), STW_PENDING);
}

/* Three wait to write what is being read; `priorities` in the order they came. */
static void served_in_order(const int32_t *priorities, const int *order)
{
    enum { ASKERS = 3 };
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 100);
    asker askers[ASKERS];
    tensor_fill_sequence(tensor, 100, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    for (int i = 0; i < ASKERS; ++i) {
        memset(&askers[i], 0, sizeof askers[i]);
        askers[i].runtime = runtime, askers[i].tensor = tensor;
        askers[i].priority = priorities[i];
        ask_elsewhere(&askers[i]);
    }
    for (int i = 0; i < ASKERS; ++i) {
        view_put(&view);
        ok(stw_operation_wait(askers[order[i]].operation, 0));
        for (int j = i + 1; j < ASKERS; ++j)
            assert_int_equal(stw_operation_poll(askers[order[j]].operation), STW_PENDING);
        ok(stw_fetch_collect(askers[order[i]].operation, STW_STREAM_HOST, &view, 1));
        ok(stw_operation_free(askers[order[i]].operation));
    }
    view_put(&view);
    machine_close(runtime);
}

TEST(the_larger_priority_of_waiting_fetches_is_served_first)
{
    const int32_t equal[] = {0, 0, 0}, mixed[] = {-1, 0, 5};
    const int as_they_came[] = {0, 1, 2}, reversed[] = {2, 1, 0};
    served_in_order(equal, as_they_came);
    served_in_order(mixed, reversed);
}

/* -------------------------------------------------------------------------- where bytes rest -- */

/* One block each, all of `tier`, written there; how many are on nvme without being asked. */
static int written_home(uint32_t preset, uint32_t role, uint32_t tier)
{
    enum { BLOCKS_MAX = 16 };
    machine small = machine_small();
    stw_tensor *tensors[BLOCKS_MAX];
    const int blocks = (int)(tier == STW_TIER_DEVICE ? small.device_blocks : small.host_blocks);
    int stored = 0, i;
    small.preset = preset;
    stw_runtime *runtime = machine_open(&small);
    for (i = 0; i < blocks; ++i) {
        stw_tensor_spec spec = spec_f32(NULL, BLOCK / 4);
        stw_fetch_request request;
        stw_view view;
        spec.role = role;
        tensors[i] = tensor_make(runtime, &spec);
        request = request_of(tensors[i], STW_WRITE), request.tier = tier;
        ok(stw_fetch(runtime, NULL, &request, 1, &view));
        memset(view.pointer, i, view.bytes);
        view_put(&view);
    }
    ok(stw_runtime_drain(runtime, 0));
    for (i = 0; i < blocks; ++i) stored += (info_of(tensors[i]).residence & STW_ALLOW_NVME) != 0;
    machine_close(runtime);
    return stored;
}

/* A tier that is full is written home ahead of need, which only helps where home is farther. */
TEST(a_preset_says_where_each_role_rests)
{
    const uint32_t to_nvme[] = {STW_PRESET_AUTO, STW_PRESET_ZERO_INFINITY};
    for (size_t i = 0; i < COUNT(to_nvme); ++i) {
        assert_true(written_home(to_nvme[i], STW_ROLE_PARAM, STW_TIER_DEVICE) > 0);
        assert_true(written_home(to_nvme[i], STW_ROLE_OPTIMIZER_STATE, STW_TIER_HOST) > 0);
        assert_int_equal(written_home(to_nvme[i], STW_ROLE_GRAD, STW_TIER_HOST), 0);
    }
    assert_int_equal(written_home(STW_PRESET_ZERO_OFFLOAD, STW_ROLE_PARAM, STW_TIER_DEVICE), 0);
    assert_int_equal(written_home(STW_PRESET_ZERO_OFFLOAD, STW_ROLE_OPTIMIZER_STATE, STW_TIER_HOST),
                     0);
    assert_int_equal(written_home(STW_PRESET_ZERO_OFFLOAD, STW_ROLE_GRAD, STW_TIER_HOST), 0);
}

/* What is pinned at home without naming it: the preset's choice is where it never leaves. */
TEST(the_home_of_a_preset_is_where_a_pinned_tensor_stays)
{
    const uint32_t presets[] = {STW_PRESET_ZERO_INFINITY, STW_PRESET_ZERO_OFFLOAD};
    for (size_t i = 0; i < COUNT(presets); ++i) {
        machine small = machine_small();
        small.preset = presets[i];
        stw_runtime *runtime = machine_open(&small);
        stw_policy pin = {.struct_size = sizeof pin, .retention = STW_RETAIN_PIN};
        stw_tensor *tensor = tensor_with(runtime, "pinned", &pin);
        use(runtime, tensor, STW_WRITE);
        if (presets[i] == STW_PRESET_ZERO_OFFLOAD) {
            fails(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0), STW_ERROR_BUSY,
                  "'pinned'");
            assert_true(on_device(tensor));
        } else {
            ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
            assert_false(on_device(tensor));
        }
        machine_close(runtime);
    }
}

/* The states of one parameter after a step, with everything evicted that may leave. */
static void states_after_a_step(const stw_policy *policy, uint32_t *residence_out)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_optimizer *optimizer = NULL;
    stw_tensor *moment = NULL;
    float value = 0;
    stw_copy_options one = STW_COPY_OPTIONS_INIT;
    entry.parameter = tensor_f32(runtime, "w", HALF);
    entry.gradient = tensor_f32(runtime, "w.grad", HALF);
    ok(stw_tensor_fill(entry.parameter, 1, NULL));
    ok(stw_tensor_fill(entry.gradient, 2, NULL));
    options.algorithm = STW_OPTIMIZER_ADAMW, options.state_policy = policy;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper_usual(optimizer);
    ok(stw_optimizer_add(optimizer, &entry, 1));
    stw_update_options update = {.struct_size = sizeof update, .flags = STW_UPDATE_WAIT};
    ok(stw_optimizer_step(optimizer, &update, NULL));
    ok(stw_optimizer_state(optimizer, entry.parameter, "exp_avg", &moment));
    (void)stw_evict(runtime, &moment, 1, STW_TIER_DEVICE, 0, 0);
    (void)stw_evict(runtime, &moment, 1, STW_TIER_HOST, 0, 0);
    *residence_out = info_of(moment).residence;
    one.element_begin = HALF - 1, one.element_count = 1;
    ok(stw_tensor_read(moment, &value, &one));
    assert_true(fabs((double)value - 0.2) < 1e-6);
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

TEST(states_live_where_the_optimizers_policy_lets_them)
{
    uint32_t residence = 0;
    states_after_a_step(NULL, &residence);
    assert_int_equal(residence, STW_ALLOW_NVME);
    stw_policy host = {.struct_size = sizeof host, .allowed_tiers = STW_ALLOW_HOST};
    states_after_a_step(&host, &residence);
    assert_int_equal(residence, STW_ALLOW_HOST);
}

/* ---------------------------------------------------------------------- a policy is replaced -- */

TEST(a_new_policy_decides_where_the_tensor_may_be)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_with(runtime, "t", NULL);
    tensor_fill_sequence(tensor, HALF, 3);
    use(runtime, tensor, STW_READ_WRITE);
    stw_policy policy = {.struct_size = sizeof policy,
                         .allowed_tiers = STW_ALLOW_DEVICE | STW_ALLOW_HOST};
    ok(stw_tensor_set_policy(tensor, &policy));
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    assert_int_equal(info_of(tensor).residence, STW_ALLOW_HOST);
    fails(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0), STW_ERROR_BUSY, "'t'");
    policy.allowed_tiers = STW_ALLOW_DEVICE | STW_ALLOW_NVME;
    ok(stw_tensor_set_policy(tensor, &policy));
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0));
    assert_int_equal(info_of(tensor).residence, STW_ALLOW_NVME);
    use(runtime, tensor, STW_READ_WRITE);
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    assert_int_equal(info_of(tensor).residence, STW_ALLOW_NVME);
    tensor_expect_sequence(tensor, HALF, 3);
    machine_close(runtime);
}

TEST(a_new_policy_decides_who_leaves)
{
    contest here = contest_open(NULL, NULL);
    stw_policy policy = {.struct_size = sizeof policy, .priority = 1};
    ok(stw_tensor_set_policy(here.older, &policy));
    contest_close(&here, here.newer);
    here = contest_open(NULL, NULL);
    policy.priority = 0, policy.retention = STW_RETAIN_STREAM;
    ok(stw_tensor_set_policy(here.newer, &policy));
    contest_close(&here, here.newer);
    here = contest_open(NULL, NULL);
    policy.retention = STW_RETAIN_PIN, policy.home = STW_TIER_DEVICE;
    ok(stw_tensor_set_policy(here.older, &policy));
    contest_close(&here, here.newer);
}

TEST(the_policy_of_a_tensor_in_a_shared_block_cannot_change_alone)
{
    machine small = machine_small();
    stw_runtime *runtime = machine_open(&small);
    stw_tensor *tensor = tensor_f32(runtime, "small", 100);
    tensor_fill_sequence(tensor, 100, 1);
    stw_policy policy = {.struct_size = sizeof policy, .allowed_tiers = STW_ALLOW_HOST};
    /* Alone in its block it may; the next one of the old policy gets another block. */
    ok(stw_tensor_set_policy(tensor, &policy));
    stw_tensor *later = tensor_f32(runtime, "later", 100);
    tensor_fill_sequence(later, 100, 2);
    ok(stw_evict(runtime, &later, 1, STW_TIER_HOST, 0, 0));
    assert_true((info_of(tensor).residence & (STW_ALLOW_DEVICE | STW_ALLOW_HOST)) != 0);
    tensor_expect_sequence(tensor, 100, 1);
    tensor_expect_sequence(later, 100, 2);
    tensor = later;
    stw_tensor *beside = tensor_f32(runtime, "beside", 100);
    tensor_fill_sequence(beside, 100, 3);
    fails(stw_tensor_set_policy(tensor, &policy), STW_ERROR_UNSUPPORTED,
          "tensor 'later' shares its block with others, so its policy cannot change alone");
    /* Nothing changed: it still leaves for nvme. */
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0));
    assert_int_equal(info_of(tensor).residence, STW_ALLOW_NVME);
    tensor_expect_sequence(tensor, 100, 2);
    tensor_expect_sequence(beside, 100, 3);
    machine_close(runtime);
}

RUN_TESTS("preferences", NULL, NULL)
