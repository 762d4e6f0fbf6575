/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stw_commit beside the work of other threads: what was asked for before it goes first, and an
 * interrupt ends its wait.
 */
#include "support.h"

#include <pthread.h>

enum { ELEMENTS = 16384, FILLERS = 12, KEPT = 14 };

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameters[FILLERS + KEPT], *gradients[FILLERS + KEPT];
} trainee;

typedef struct committer {
    stw_runtime *runtime;
    stw_status status;
    char sentence[768];
    int over;
} committer;

static void *commit(void *argument)
{
    committer *mine = argument;
    do { /* BUSY: the other thread looks at a durable tensor */
        mine->status = stw_commit(mine->runtime, NULL, NULL);
    } while (mine->status == STW_ERROR_BUSY);
    snprintf(mine->sentence, sizeof mine->sentence, "%s", stw_last_error());
    __atomic_store_n(&mine->over, 1, __ATOMIC_RELEASE);
    return NULL;
}

static trainee train(void)
{
    machine wanted = machine_small();
    wanted.store_name = "commits";
    wanted.flags = STW_RUNTIME_OVERWRITE;
    wanted.timeout_ns = 20 * SECOND_NS;
    wanted.device_blocks = 32; /* all views of gradients; updates have half of the host tier */
    trainee here = {.runtime = machine_open_as(wanted)};
    here.optimizer = optimizer_make(here.runtime, STW_OPTIMIZER_SGD);
    for (int i = 0; i < FILLERS + KEPT; ++i) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        stw_tensor_spec spec = spec_f32(name, ELEMENTS);
        spec.flags = i < FILLERS ? 0 : STW_TENSOR_DURABLE;
        here.parameters[i] = tensor_make(here.runtime, &spec);
        snprintf(name, sizeof name, "g%d", i);
        here.gradients[i] = tensor_f32(here.runtime, name, ELEMENTS);
        ok(stw_tensor_fill(here.parameters[i], 1.0, NULL));
        ok(stw_tensor_fill(here.gradients[i], 1.0, NULL));
        optimizer_add(here.optimizer, here.parameters[i], here.gradients[i]);
    }
    return here;
}

static void step(const trainee *here, int parameter)
{
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.parameters = &here->parameters[parameter];
    options.parameter_count = 1;
    ok(stw_optimizer_step(here->optimizer, &options, NULL));
}

/* By another thread, which has the last parameter when this returns, or is through. */
static pthread_t commit_elsewhere(const trainee *here, committer *mine)
{
    pthread_t thread;
    stw_view view;
    const stw_fetch_request request =
        request_of(here->parameters[FILLERS + KEPT - 1], STW_READ_WRITE);
    const stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_TRY};
    mine->runtime = here->runtime;
    mine->over = 0;
    assert_int_equal(pthread_create(&thread, NULL, commit, mine), 0);
    for (int has_it = 0; !has_it && !__atomic_load_n(&mine->over, __ATOMIC_ACQUIRE);) {
        const stw_status status = stw_fetch(here->runtime, &options, &request, 1, &view);
        if (status == STW_OK) view_put(&view);
        has_it = status != STW_OK && strstr(stw_last_error(), "an update is in the way") != NULL;
    }
    return thread;
}

static void leave(const trainee *here)
{
    ok(stw_runtime_drain(here->runtime, 0));
    ok(stw_optimizer_destroy(here->optimizer));
    machine_close(here->runtime);
}

/* Later updates of the latest steps would come first, and wait for the commit with all the room
 * that updates have. */
TEST(updates_before_a_commit_go_before_those_behind_it)
{
    const trainee here = train();
    stw_view views[FILLERS];
    committer other;
    for (int i = 0; i < FILLERS; ++i)
        views[i] = view_get(here.runtime, here.gradients[i], STW_READ);
    for (int i = 0; i < FILLERS; ++i) step(&here, i);
    /* Who waits for updates has them asked for what there is room for. */
    for (int i = 0; i < 20; ++i)
        assert_int_equal(stw_runtime_drain(here.runtime, 5 * MILLISECOND_NS), STW_ERROR_TIMEOUT);
    step(&here, FILLERS);
    const pthread_t thread = commit_elsewhere(&here, &other);
    for (int i = FILLERS + 1; i < FILLERS + KEPT; ++i) step(&here, i);
    for (int i = 0; i < FILLERS; ++i) view_put(&views[i]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (other.status != STW_OK) fail_msg("%s", other.sentence);
    leave(&here);
}

/* It waits for an update, which waits for a view of this thread, which waits for an update behind
 * it. */
TEST(who_waits_for_a_commit_that_waits_for_its_view_gives_way)
{
    const trainee here = train();
    committer other;
    stw_view view = view_get(here.runtime, here.gradients[FILLERS], STW_READ), none;
    step(&here, FILLERS);
    const pthread_t thread = commit_elsewhere(&here, &other);
    step(&here, FILLERS + 1);
    const uint64_t begin_ns = clock_ns();
    const stw_fetch_request request = request_of(here.parameters[FILLERS + 1], STW_READ);
    fails(stw_fetch(here.runtime, NULL, &request, 1, &none), STW_ERROR_BUSY, "gives way");
    assert_true(clock_ns() - begin_ns < 10 * SECOND_NS);
    view_put(&view);
    assert_int_equal(pthread_join(thread, NULL), 0);
    ok(other.status);
    leave(&here);
}

TEST(an_interrupt_ends_the_wait_of_a_commit)
{
    const trainee here = train();
    committer other;
    stw_view view = view_get(here.runtime, here.gradients[FILLERS], STW_READ);
    step(&here, FILLERS);
    const pthread_t thread = commit_elsewhere(&here, &other);
    ok(stw_runtime_interrupt(here.runtime));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(other.status, STW_ERROR_INTERRUPTED);
    view_put(&view);
    ok(stw_commit(here.runtime, NULL, NULL));
    leave(&here);
}

RUN_TESTS("waits of commits", NULL, NULL)
