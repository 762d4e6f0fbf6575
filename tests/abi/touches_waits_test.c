/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STW_RUNTIME_FAULT_IN: touches beside what waits: views that they keep end for everybody who waits
 * for them, and no touch waits for what only its own thread would end.
 */
#include "support.h"
#include "touched.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

enum { ELEMENTS = 2 * 16384 };

static stw_tensor *tensor_of(stw_runtime *runtime, const char *name, float value)
{
    stw_tensor *tensor = tensor_f32(runtime, name, ELEMENTS);
    ok(stw_tensor_fill(tensor, value, NULL));
    return tensor;
}

/* What another thread does, to its end. */
typedef struct work {
    stw_runtime *runtime;
    stw_tensor *tensor;
    stw_operation *operation;
    stw_view view;
    volatile float *address;
    stw_status status;
    float seen;
    int ends;
    pthread_t thread;
} work;

static void begin(work *mine, void *(*body)(void *))
{
    assert_int_equal(pthread_create(&mine->thread, NULL, body, mine), 0);
}

static void join(const work *mine)
{
    assert_int_equal(pthread_join(mine->thread, NULL), 0);
    ok(mine->status);
}

static void *fill_with_fives(void *argument)
{
    work *mine = argument;
    mine->status = stw_tensor_fill(mine->tensor, 5.0, NULL);
    return NULL;
}

static void *commit(void *argument)
{
    work *mine = argument;
    mine->status = stw_commit(mine->runtime, NULL, NULL);
    return NULL;
}

static void *ask_to_write(void *argument)
{
    work *mine = argument;
    const stw_fetch_request request = request_of(mine->tensor, STW_READ_WRITE);
    mine->status = stw_fetch_async(mine->runtime, NULL, &request, 1, &mine->operation);
    return NULL;
}

static void *ask_with_room(void *argument)
{
    work *mine = argument;
    const stw_fetch_request request = request_of(mine->tensor, STW_READ);
    const stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_WAIT_ROOM};
    mine->status = stw_fetch_async(mine->runtime, &options, &request, 1, &mine->operation);
    return NULL;
}

static void *touch(void *argument)
{
    work *mine = argument;
    mine->seen = touched_read(mine->address);
    return NULL;
}

static void *touch_to_write(void *argument)
{
    work *mine = argument;
    mine->address[0] = 7.0F;
    return NULL;
}

static void *touch_again_and_again(void *argument)
{
    work *mine = argument;
    while (!__atomic_load_n(&mine->ends, __ATOMIC_ACQUIRE))
        for (int i = 0; i < ELEMENTS; i += 1024) mine->seen = touched_read(mine->address + i);
    return NULL;
}

/* A fetch of it would wait, so somebody else waits for it or has it. */
static void await_busy(stw_runtime *runtime, stw_tensor *tensor)
{
    const stw_fetch_request request = request_of(tensor, STW_READ);
    const stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_TRY};
    stw_view view;
    while (stw_fetch(runtime, &options, &request, 1, &view) == STW_OK) view_put(&view);
}

static void await_touches(stw_runtime *runtime, const char *name, unsigned reads, unsigned writes)
{
    unsigned found[2] = {0, 0};
    do {
        touched_counts(runtime, name, found);
    } while (found[0] < reads || found[1] < writes);
}

TEST(a_write_beside_an_own_view_goes_before_what_waits_for_that_view)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    work other = {.runtime = runtime, .tensor = tensor_of(runtime, "x", 1.0F)};
    volatile float *const address = touched_address(other.tensor);
    stw_view view = view_get(runtime, other.tensor, STW_READ);
    begin(&other, fill_with_fives);
    await_busy(runtime, other.tensor);
    address[5] = 2.0F;
    assert_float(((const volatile float *)view.pointer)[5], 2.0F);
    view_put(&view);
    join(&other);
    assert_float(touched_read(address + 5), 5.0F);
    machine_close(runtime);
}

/* The commit waits for the other thread, and that for the view: each touch has its turn. */
TEST(a_write_beside_an_own_view_goes_before_a_commit_that_waits_for_its_end)
{
    machine wanted = machine_touched();
    wanted.store_name = "touched";
    wanted.flags |= STW_RUNTIME_OVERWRITE;
    stw_runtime *runtime = machine_open_as(wanted);
    stw_tensor_spec spec = spec_f32("x", ELEMENTS);
    spec.flags = STW_TENSOR_DURABLE;
    work fills = {.runtime = runtime, .tensor = tensor_make(runtime, &spec)}, commits = fills;
    ok(stw_tensor_fill(fills.tensor, 1.0, NULL));
    volatile float *const address = touched_address(fills.tensor);
    stw_view view = view_get(runtime, fills.tensor, STW_READ);
    begin(&fills, fill_with_fives);
    await_busy(runtime, fills.tensor);
    begin(&commits, commit);
    for (int i = 0; i < 2000; ++i) {
        address[i] = 2.0F;
        await_busy(runtime, fills.tensor); /* which ends the view that the touch keeps */
    }
    assert_float(((const volatile float *)view.pointer)[1999], 2.0F);
    view_put(&view);
    join(&fills);
    join(&commits);
    assert_float(touched_read(address + 5), 5.0F);
    machine_close(runtime);
}

/* What waits has no use for the room of the touched tensor: the view keeps that. */
TEST(a_write_beside_an_own_view_goes_before_what_waits_for_room)
{
    const machine small = machine_touched();
    stw_runtime *runtime = machine_open_as(small);
    work other = {.runtime = runtime,
                  .tensor = tensor_f32(runtime, "wide", (small.device_blocks - 1) * BLOCK / 4)};
    stw_tensor *mine = tensor_of(runtime, "x", 1.0F);
    volatile float *const address = touched_address(mine);
    ok(stw_tensor_fill(other.tensor, 2.0, NULL));
    stw_view view = view_get(runtime, mine, STW_READ);
    begin(&other, ask_with_room);
    join(&other);
    for (int i = 0; i < ELEMENTS; i += 8) address[i] = 2.0F;
    assert_float(((const volatile float *)view.pointer)[4096], 2.0F);
    unsigned touches[2];
    touched_counts(runtime, "x", touches);
    assert_true(touches[1] > 0 && touches[1] < ELEMENTS / 8 / 4);
    assert_int_equal(stw_operation_poll(other.operation), STW_PENDING);
    view_put(&view);
    ok(stw_operation_wait(other.operation, 60 * SECOND_NS));
    ok(stw_operation_free(other.operation));
    machine_close(runtime);
}

/* There is no call that a refusal could return from. */
TEST(a_touch_waits_for_room_that_views_of_other_threads_take)
{
    const machine small = machine_touched();
    stw_runtime *runtime = machine_open_as(small);
    stw_tensor *wide = tensor_f32(runtime, "wide", (small.device_blocks - 1) * BLOCK / 4);
    work other = {.runtime = runtime, .tensor = tensor_of(runtime, "x", 1.0F)};
    other.address = touched_address(other.tensor);
    ok(stw_tensor_fill(wide, 2.0, NULL));
    for (unsigned round = 0; round < 20; ++round) {
        stw_view view = view_get(runtime, wide, STW_READ);
        unsigned reads[2];
        touched_counts(runtime, "x", reads);
        begin(&other, touch);
        await_touches(runtime, "x", reads[0] + 1, 0);
        for (int i = 0; i < 1000; ++i) sched_yield();
        view_put(&view);
        join(&other);
        assert_float(other.seen, 1.0F);
    }
    machine_close(runtime);
}

static void join_soon(const work *mine)
{
    const uint64_t begin_ns = clock_ns();
    while (pthread_tryjoin_np(mine->thread, NULL) != 0) {
        if (clock_ns() - begin_ns > 20 * SECOND_NS) fail_msg("the access is not made");
        sched_yield();
    }
    ok(mine->status);
}

static stw_view view_of_first_block(stw_runtime *runtime, stw_tensor *tensor, uint32_t access)
{
    stw_fetch_request request = request_of(tensor, access);
    request.element_count = BLOCK / 4;
    stw_view view;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    return view;
}

/*
 * Room for one of the two blocks of x, of which another thread may wait for the last one. What a
 * touch waits for may last for as long as its thread goes on: the view of an array that the thread
 * reads.
 */
TEST(a_touch_is_made_as_soon_as_a_view_of_the_program_shows_its_block)
{
    const machine small = machine_touched();
    for (int each = 0; each < 4; ++each) {
        const int writes = each % 2, behind = each / 2;
        stw_runtime *runtime = machine_open_as(small);
        stw_tensor *wide = tensor_f32(runtime, "wide", (small.device_blocks - 1) * BLOCK / 4);
        stw_tensor *tensor = tensor_of(runtime, "x", 1.0F);
        work first = {.address = touched_address(tensor)}, last = first;
        last.address += BLOCK / 4;
        ok(stw_tensor_fill(wide, 2.0, NULL));
        stw_view rest = view_get(runtime, wide, STW_READ);
        void *(*const body)(void *) = writes ? touch_to_write : touch;
        if (behind) {
            begin(&last, body);
            await_touches(runtime, "x", !writes, (unsigned)writes);
        }
        begin(&first, body);
        await_touches(runtime, "x", writes ? 0 : 1 + behind, writes ? 1 + behind : 0);
        stw_view view = view_of_first_block(runtime, tensor, STW_READ_WRITE);
        join_soon(&first);
        view_put(&view);
        view_put(&rest);
        if (behind) join_soon(&last);
        assert_float(touched_read(first.address), writes ? 7.0F : 1.0F);
        assert_float(touched_read(last.address), writes && behind ? 7.0F : 1.0F);
        machine_close(runtime);
    }
}

TEST(a_touch_to_write_waits_where_its_block_is_shown_for_reading)
{
    const machine small = machine_touched();
    stw_runtime *runtime = machine_open_as(small);
    stw_tensor *wide = tensor_f32(runtime, "wide", (small.device_blocks - 1) * BLOCK / 4);
    work other = {.tensor = tensor_of(runtime, "x", 1.0F)};
    other.address = touched_address(other.tensor);
    ok(stw_tensor_fill(wide, 2.0, NULL));
    stw_view rest = view_get(runtime, wide, STW_READ);
    begin(&other, touch_to_write);
    await_touches(runtime, "x", 0, 1);
    stw_view view = view_of_first_block(runtime, other.tensor, STW_READ);
    for (int i = 0; i < 1000; ++i) sched_yield();
    unsigned counts[2];
    touched_counts(runtime, "x", counts);
    assert_int_equal(counts[1], 1);
    view_put(&rest);
    join_soon(&other);
    assert_float(((const volatile float *)view.pointer)[0], 7.0F);
    view_put(&view);
    machine_close(runtime);
}

TEST(who_waits_for_a_view_gets_on_when_it_ends_beside_a_touch)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    work other = {.runtime = runtime, .tensor = tensor_of(runtime, "x", 1.0F)};
    volatile float *const address = touched_address(other.tensor);
    stw_view view = view_get(runtime, other.tensor, STW_READ), granted;
    begin(&other, ask_to_write);
    join(&other);
    assert_int_equal(stw_operation_poll(other.operation), STW_PENDING);
    address[5] = 2.0F;
    view_put(&view);
    ok(stw_operation_wait(other.operation, 20 * SECOND_NS));
    ok(stw_fetch_collect(other.operation, STW_STREAM_HOST, &granted, 1));
    ok(stw_operation_free(other.operation));
    assert_float(((float *)granted.pointer)[5], 2.0F);
    view_put(&granted);
    machine_close(runtime);
}

/* A parameter that was updated speculatively by this thread. */
typedef struct speculated {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameter, *gradient;
    volatile float *address;
} speculated;

static void step_with(const speculated *here, uint32_t flags)
{
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.flags = flags;
    const stw_status status = stw_optimizer_step(here->optimizer, &options, NULL);
    if (status != STW_SKIPPED) ok(status);
}

static speculated trained_on(machine wanted)
{
    wanted.device_blocks = 24;
    speculated here = {.runtime = machine_open_as(wanted)};
    here.optimizer = optimizer_make(here.runtime, STW_OPTIMIZER_SGD);
    here.parameter = tensor_of(here.runtime, "weights", 1.0F);
    here.gradient = tensor_of(here.runtime, "gradient", 1.0F);
    here.address = touched_address(here.parameter);
    optimizer_add(here.optimizer, here.parameter, here.gradient);
    step_with(&here, STW_UPDATE_WAIT); /* gives the states contents */
    ok(stw_tensor_fill(here.gradient, 1.0, NULL));
    return here;
}

static speculated speculate(void)
{
    const speculated here = trained_on(machine_touched());
    step_with(&here, STW_UPDATE_SPECULATE);
    ok(stw_runtime_drain(here.runtime, 0));
    return here;
}

static void close_speculated(const speculated *here)
{
    ok(stw_optimizer_destroy(here->optimizer));
    machine_close(here->runtime);
}

/* Written blocks of another tensor have to leave first, which takes a while. */
TEST(a_touch_before_its_own_verdict_waits_for_room)
{
    const speculated here = speculate();
    stw_tensor *wide = tensor_f32(here.runtime, "wide", 23 * BLOCK / 4);
    for (int round = 0; round < 20; ++round) {
        stw_view view = view_get(here.runtime, wide, STW_WRITE);
        memset(view.pointer, 0, view.bytes);
        view_put(&view);
        assert_float(touched_read(here.address), 0.999F);
    }
    step_with(&here, STW_UPDATE_REJECT);
    close_speculated(&here);
}

static void *give_back_once_touched(void *argument)
{
    work *mine = argument;
    await_touches(mine->runtime, "small", 1, 0);
    for (int i = 0; i < 1000; ++i) sched_yield();
    mine->status = stw_release(&mine->view, 1, STW_STREAM_HOST, 0);
    return NULL;
}

/* The same of a small one, which shares its block with `neighbour`. */
static speculated speculate_small(machine wanted, stw_tensor **neighbour)
{
    speculated here = {.runtime = machine_open_as(wanted)};
    here.parameter = tensor_f32(here.runtime, "small", 100);
    *neighbour = tensor_f32(here.runtime, "neighbour", 100);
    here.gradient = tensor_f32(here.runtime, "small.grad", 100);
    here.optimizer = optimizer_make(here.runtime, STW_OPTIMIZER_SGD);
    optimizer_add(here.optimizer, here.parameter, here.gradient);
    ok(stw_tensor_fill(here.parameter, 1.0, NULL));
    ok(stw_tensor_fill(*neighbour, 1.0, NULL));
    ok(stw_tensor_fill(here.gradient, 1.0, NULL));
    here.address = touched_address(here.parameter);
    step_with(&here, STW_UPDATE_SPECULATE);
    ok(stw_runtime_drain(here.runtime, 0));
    return here;
}

/* The other tensor of its block is written at another tier, and that view ends by itself. */
TEST(a_touch_before_its_own_verdict_waits_for_its_neighbour)
{
    machine wanted = machine_touched();
    wanted.host_blocks = 16;
    stw_tensor *neighbour;
    const speculated here = speculate_small(wanted, &neighbour);
    stw_fetch_request request = request_of(neighbour, STW_READ_WRITE);
    request.tier = STW_TIER_HOST;
    const stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_HAND_OVER};
    work other = {.runtime = here.runtime};
    ok(stw_fetch(here.runtime, &options, &request, 1, &other.view));
    begin(&other, give_back_once_touched);
    const float seen = touched_read(here.address);
    join(&other);
    assert_true(seen > 0.99F && seen <= 1.0F);
    step_with(&here, STW_UPDATE_REJECT);
    close_speculated(&here);
}

TEST(an_interrupt_does_not_end_a_touch)
{
    const speculated here = speculate();
    work other = {.runtime = here.runtime, .address = here.address};
    begin(&other, touch_to_write);
    await_touches(here.runtime, "weights", 0, 1);
    for (int i = 0; i < 20; ++i) {
        const stw_fetch_request request = request_of(here.gradient, STW_READ);
        stw_operation *operation;
        ok(stw_runtime_interrupt(here.runtime));
        ok(stw_fetch_async(here.runtime, NULL, &request, 1, &operation));
        (void)stw_operation_wait(operation, 5 * MILLISECOND_NS);
        ok(stw_operation_free(operation));
    }
    step_with(&here, STW_UPDATE_REJECT);
    join(&other);
    assert_float(touched_read(here.address), 7.0F);
    close_speculated(&here);
}

/* The other one waits for the verdict of this thread, which itself touches the same. */
TEST(who_gives_a_verdict_does_not_wait_for_the_fault_of_who_waits_for_it)
{
    for (int writes = 0; writes < 2; ++writes) {
        const speculated here = speculate();
        work other = {.runtime = here.runtime, .address = here.address};
        begin(&other, writes ? touch_to_write : touch);
        await_touches(here.runtime, "weights", !writes, (unsigned)writes);
        const uint64_t begin_ns = clock_ns();
        const float seen = touched_read(here.address);
        assert_true(clock_ns() - begin_ns < 20 * SECOND_NS);
        assert_true(seen < 1.0F);
        step_with(&here, STW_UPDATE_REJECT);
        join(&other);
        if (writes) assert_float(touched_read(here.address), 7.0F);
        close_speculated(&here);
    }
}

/* A call that begins nothing has no change to wait for, and this thread has the verdict to give. */
TEST(a_step_that_is_refused_waits_for_no_verdict)
{
    stw_tensor *neighbour;
    const speculated here = speculate_small(machine_touched(), &neighbour);
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.flags = STW_UPDATE_MEASURE;
    options.timeout_ns = 60 * SECOND_NS;
    const uint64_t begin_ns = clock_ns();
    fails(stw_optimizer_step(here.optimizer, &options, NULL), STW_ERROR_INVALID, "only measures");
    assert_true(clock_ns() - begin_ns < 20 * SECOND_NS);
    step_with(&here, STW_UPDATE_REJECT);
    assert_float(touched_read(here.address), 1.0F);
    close_speculated(&here);
}

TEST(steps_and_commits_get_on_beside_touches_of_another_thread)
{
    machine wanted = machine_touched();
    wanted.device_blocks = 24;
    wanted.store_name = "touched";
    wanted.flags |= STW_RUNTIME_OVERWRITE;
    stw_runtime *runtime = machine_open_as(wanted);
    stw_tensor_spec spec = spec_f32("weights", ELEMENTS);
    spec.flags = STW_TENSOR_DURABLE;
    stw_tensor *parameter = tensor_make(runtime, &spec);
    stw_tensor *gradient = tensor_f32(runtime, "gradient", ELEMENTS);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
    ok(stw_tensor_fill(parameter, 1.0, NULL));
    optimizer_add(optimizer, parameter, gradient);
    work once = {.address = touched_address(parameter)}, other = once;
    const speculated here = {runtime, optimizer, parameter, gradient, once.address};
    const uint64_t begin_ns = clock_ns();
    for (int round = 0; round < 3; ++round) {
        begin(&once, round == 1 ? touch_to_write : touch);
        join(&once); /* its view is open */
        ok(stw_commit(runtime, NULL, NULL));
        begin(&once, touch);
        join(&once);
        ok(stw_tensor_fill(gradient, 1.0, NULL));
        step_with(&here, STW_UPDATE_WAIT);
    }
    begin(&other, touch_again_and_again);
    for (int round = 0; round < 20; ++round) {
        ok(stw_commit(runtime, NULL, NULL));
        ok(stw_tensor_fill(gradient, 1.0, NULL));
        step_with(&here, STW_UPDATE_WAIT);
    }
    __atomic_store_n(&other.ends, 1, __ATOMIC_RELEASE);
    join(&other);
    assert_true(clock_ns() - begin_ns < 60 * SECOND_NS);
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

/* A view that a touch leaves open is not the program's. */
TEST(other_calls_get_on_beside_touches_of_another_thread)
{
    machine wanted = machine_touched();
    wanted.device_blocks = 48;
    stw_runtime *runtime = machine_open_as(wanted);
    stw_tensor_spec spec = spec_f32("weights", 2 * ELEMENTS);
    spec.dtype = STW_BF16;
    stw_tensor *parameter = tensor_make(runtime, &spec), *master = NULL;
    stw_tensor *gradient = tensor_f32(runtime, "gradient", 2 * ELEMENTS);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
    ok(stw_tensor_fill(parameter, 1.0, NULL));
    optimizer_add(optimizer, parameter, gradient);
    work others[2] = {{.address = touched_address(parameter)}};
    others[1] = others[0];
    const speculated here = {runtime, optimizer, parameter, gradient, others[0].address};
    for (int i = 0; i < 2; ++i) begin(&others[i], touch_again_and_again);
    const uint64_t begin_ns = clock_ns();
    for (int round = 0; round < 60000; ++round) {
        ok(stw_evict(runtime, round % 2 ? &parameter : NULL, (uint32_t)round % 2, STW_TIER_DEVICE,
                     0, 0));
        if (round % 1000 != 0) continue;
        ok(stw_tier_set_budget(runtime, STW_TIER_DEVICE, 0, 20 * BLOCK, 0));
        ok(stw_tier_set_budget(runtime, STW_TIER_DEVICE, 0, 48 * BLOCK, 0));
        ok(stw_optimizer_state(optimizer, parameter, "master", &master));
        ok(stw_tensor_freeze(parameter, 1));
        ok(stw_tensor_freeze(parameter, 0));
        ok(stw_tensor_fill(gradient, 1.0, NULL));
        step_with(&here, 0);
        ok(stw_runtime_drain(runtime, 0));
    }
    /* One of the program's is in the way as ever, and at once. */
    stw_view view = view_get(runtime, parameter, STW_READ);
    fails(stw_evict(runtime, &parameter, 1, STW_TIER_DEVICE, 0, 0), STW_ERROR_BUSY, "open views");
    view_put(&view);
    assert_true(clock_ns() - begin_ns < 60 * SECOND_NS);
    for (int i = 0; i < 2; ++i) {
        __atomic_store_n(&others[i].ends, 1, __ATOMIC_RELEASE);
        join(&others[i]);
    }
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

/* What only its own views leave no room for is refused, however much other threads touch, and what
 * there is room for is granted. */
TEST(a_fetch_beside_touches_of_other_threads_is_granted_or_refused_at_once)
{
    const machine small = machine_touched();
    stw_runtime *runtime = machine_open_as(small);
    stw_tensor *most = tensor_f32(runtime, "most", (small.device_blocks - 2) * BLOCK / 4);
    stw_tensor *three = tensor_f32(runtime, "three", 3 * BLOCK / 4);
    stw_tensor *wide = tensor_f32(runtime, "wide", 3 * BLOCK / 4);
    work others[3], waits = {.address = touched_address(wide)};
    ok(stw_tensor_fill(most, 2.0, NULL));
    ok(stw_tensor_fill(three, 3.0, NULL));
    ok(stw_tensor_fill(wide, 4.0, NULL));
    for (int i = 0; i < 3; ++i) {
        const char *const names[] = {"x", "y", "z"};
        others[i] = (work){.address = touched_address(tensor_of(runtime, names[i], 1.0F))};
        begin(&others[i], touch_again_and_again);
    }
    const uint64_t begin_ns = clock_ns();
    for (int round = 0; round < 200; ++round) {
        stw_view view = view_get(runtime, most, STW_READ);
        if (round % 20 == 0) {
            const stw_fetch_request request = request_of(three, STW_READ);
            stw_view none;
            unsigned counts[2];
            touched_counts(runtime, "wide", counts);
            begin(&waits, touch);
            await_touches(runtime, "wide", counts[0] + 1, 0);
            fails(stw_fetch(runtime, NULL, &request, 1, &none), STW_ERROR_BUDGET, "three");
            view_put(&view);
            join(&waits);
            continue;
        }
        view_put(&view);
    }
    assert_true(clock_ns() - begin_ns < 60 * SECOND_NS);
    for (int i = 0; i < 3; ++i) {
        __atomic_store_n(&others[i].ends, 1, __ATOMIC_RELEASE);
        join(&others[i]);
    }
    machine_close(runtime);
}

static void *interrupt_again_and_again(void *argument)
{
    work *mine = argument;
    while (mine->status == STW_OK && !__atomic_load_n(&mine->ends, __ATOMIC_ACQUIRE))
        mine->status = stw_runtime_interrupt(mine->runtime);
    return NULL;
}

/* The first half is read at the address, and its block is not free before the other half is there,
 * which takes a while. */
static void show_half(const speculated *here, stw_tensor *tensor)
{
    stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    ok(stw_evict(here->runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    request.element_count = ELEMENTS / 2;
    ok(stw_fetch(here->runtime, NULL, &request, 1, &view));
    view_put(&view);
    request.element_count = 0;
    ok(stw_prefetch(here->runtime, &request, 1));
}

static void add_by_view(const speculated *here, const float *values)
{
    stw_view view = view_get(here->runtime, here->gradient, STW_REDUCE);
    memcpy(view.pointer, values, view.bytes);
    view_put(&view);
}

TEST(what_has_returned_before_the_change_shows_old_bytes_nowhere)
{
    enum { STEPS, STEPS_INTERRUPTED, ADOPTS, RELEASES, ABORTS, CALLS };
    static float ones[ELEMENTS];
    machine wanted = machine_touched();
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;delay_read=1:100000000";
    const speculated here = trained_on(wanted);
    const float *const sum = touched_address(here.gradient);
    stw_phase *phase = NULL;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    ok(stw_phase_create(here.runtime, "aborted", &phase));
    for (int i = 0; i < ELEMENTS; ++i) ones[i] = 1.0F;
    for (int call = 0; call < CALLS; ++call) {
        work other = {.runtime = here.runtime};
        const int steps = call == STEPS || call == STEPS_INTERRUPTED;
        ok(stw_tensor_fill(here.gradient, 1.0, NULL));
        ok(stw_tensor_fill(here.parameter, 3.0, NULL));
        if (call == ABORTS) {
            ok(stw_step_begin(phase));
            ok(stw_reduce(here.gradient, ones, NULL));
        }
        show_half(&here, steps ? here.parameter : here.gradient);
        if (call == STEPS_INTERRUPTED) begin(&other, interrupt_again_and_again);
        if (steps) step_with(&here, 0);
        if (call == ADOPTS) ok(stw_reduce_adopt(here.gradient, ones, NULL, NULL, NULL));
        if (call == RELEASES) add_by_view(&here, ones);
        if (call == ABORTS) ok(stw_step_abort(phase, STW_STREAM_HOST));
        if (call == ABORTS) /* it is empty, and the kernel does not touch */
            assert_int_equal(write(ends[1], sum, sizeof *sum), -1);
        else if (steps)
            assert_true(touched_read(here.address) < 3.0F);
        else
            assert_float(touched_read(sum), 2.0F);
        __atomic_store_n(&other.ends, 1, __ATOMIC_RELEASE);
        if (call == STEPS_INTERRUPTED) join(&other);
        ok(stw_runtime_drain(here.runtime, 0));
    }
    close(ends[0]), close(ends[1]);
    ok(stw_phase_destroy(phase));
    close_speculated(&here);
}

/* Others of its block are seen beside it, so nothing hides it, and the step waits for its update;
 * not if that would wait for a view of this thread. */
TEST(a_step_returns_when_what_shares_its_block_is_updated)
{
    machine wanted = machine_touched();
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;delay_read=1:100000000";
    stw_runtime *runtime = machine_open_as(wanted);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
    stw_tensor *parameter = tensor_f32(runtime, "bias", 100);
    stw_tensor *beside = tensor_f32(runtime, "beside", 100);
    stw_tensor *gradient = tensor_f32(runtime, "gradient", 100);
    const float *const address = touched_address(parameter);
    optimizer_add(optimizer, parameter, gradient);
    ok(stw_tensor_fill(beside, 1.0, NULL));
    const speculated here = {.runtime = runtime, .optimizer = optimizer};
    for (int viewed = 0; viewed < 2; ++viewed) {
        ok(stw_tensor_fill(parameter, 3.0, NULL));
        ok(stw_tensor_fill(gradient, 1.0, NULL));
        ok(stw_evict(runtime, &gradient, 1, STW_TIER_DEVICE, 0, 0));
        assert_float(touched_read(address), 3.0F);
        stw_view view;
        if (viewed) view = view_get(runtime, parameter, STW_READ);
        step_with(&here, 0);
        if (viewed)
            assert_float(touched_read(address), 3.0F);
        else
            assert_true(touched_read(address) < 3.0F);
        if (viewed) view_put(&view);
        ok(stw_runtime_drain(runtime, 0));
        assert_true(touched_read(address) < 3.0F);
    }
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

/* Every second thread that wakes others is not scheduled for a while then, as on a busy machine. */
static int delays;
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
int pthread_cond_broadcast(pthread_cond_t *condition)
{
    static int (*real)(pthread_cond_t *);
    static unsigned threads;
    static __thread unsigned number;
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_broadcast");
    const int status = real(condition);
    const uint64_t begin_ns = clock_ns();
    if (!__atomic_load_n(&delays, __ATOMIC_RELAXED)) return status;
    if (number == 0) number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    while (number % 2 == 0 && clock_ns() - begin_ns < MILLISECOND_NS) sched_yield();
    return status;
}
#endif

typedef struct half {
    volatile float *begin;
    pthread_barrier_t *together;
} half;

static void *write_half(void *argument)
{
    const half *mine = argument;
    pthread_barrier_wait(mine->together);
    for (int i = 0; i < ELEMENTS / 2; i += 256) mine->begin[i] = 1.0F;
    return NULL;
}

TEST(an_empty_tensor_that_two_threads_touch_is_filled_once)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    for (int round = 0; round < 200; ++round) {
        stw_tensor *tensor = tensor_f32(runtime, "empty", ELEMENTS);
        volatile float *const address = touched_address(tensor);
        pthread_barrier_t together;
        half halves[2];
        pthread_t threads[2];
        assert_int_equal(pthread_barrier_init(&together, NULL, 2), 0);
        __atomic_store_n(&delays, 1, __ATOMIC_RELAXED);
        for (int i = 0; i < 2; ++i) {
            halves[i].begin = address + i * ELEMENTS / 2, halves[i].together = &together;
            assert_int_equal(pthread_create(&threads[i], NULL, write_half, &halves[i]), 0);
        }
        for (int i = 0; i < 2; ++i) assert_int_equal(pthread_join(threads[i], NULL), 0);
        __atomic_store_n(&delays, 0, __ATOMIC_RELAXED);
        pthread_barrier_destroy(&together);
        for (int i = 0; i < ELEMENTS; ++i) {
            const float value = touched_read(address + i);
            if (value == (i % 256 == 0 ? 1.0F : 0.0F)) continue;
            fail_msg("round %d: element %d is %g", round, i, (double)value);
        }
        ok(stw_tensor_destroy(&tensor, 1));
    }
    machine_close(runtime);
}

RUN_TESTS("touches-waits", NULL, NULL)
