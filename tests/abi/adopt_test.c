/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients that become the library's: the same bits as by stw_reduce, in the order of the calls,
 * and each memory given back once, on another thread.
 */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

enum { ELEMENTS = 2 * 16384 + 77 };

static atomic_int given_back;
static atomic_ulong giver; /* a pthread_t: several threads give back */

static void give_back(void *user)
{
    giver = pthread_self();
    free(user);
    atomic_fetch_add(&given_back, 1);
}

static float *numbers(float first)
{
    float *made = malloc(ELEMENTS * sizeof(float));
    assert_non_null(made);
    for (int i = 0; i < ELEMENTS; ++i) made[i] = first + 0.37F * (float)(i % 1013);
    return made;
}

/* Of 16 bits the upper halves of those: bf16. */
static uint16_t *halves(float first)
{
    uint16_t *made = malloc(ELEMENTS * sizeof(uint16_t));
    float *wide = numbers(first);
    assert_non_null(made);
    for (int i = 0; i < ELEMENTS; ++i) memcpy(&made[i], (char *)&wide[i] + 2, 2);
    free(wide);
    return made;
}

static uint64_t held_bytes(stw_runtime *runtime)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    uint64_t held = 0;
    if (stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &stats) == STW_OK) held = stats.adopted_bytes;
    return held;
}

static stw_tensor *gradient_make(stw_runtime *runtime, const char *name, uint32_t dtype)
{
    stw_tensor_spec spec = spec_f32(name, ELEMENTS);
    spec.role = STW_ROLE_GRAD, spec.dtype = dtype;
    return tensor_make(runtime, &spec);
}

static void expect_alike(stw_tensor *one, stw_tensor *other, uint64_t bytes)
{
    char *first = malloc(bytes), *second = malloc(bytes);
    assert_true(first && second);
    ok(stw_tensor_read(one, first, NULL));
    ok(stw_tensor_read(other, second, NULL));
    assert_memory_equal(first, second, bytes);
    free(first), free(second);
}

TEST(sums_have_the_bits_of_those_that_are_waited_for)
{
    static const uint32_t dtypes[] = {STW_F32, STW_BF16, STW_F16};
    stw_runtime *runtime = machine_open(*state);
    for (size_t at = 0; at < COUNT(dtypes); ++at) {
        stw_tensor *waited = gradient_make(runtime, NULL, dtypes[at]);
        stw_tensor *adopted = gradient_make(runtime, NULL, dtypes[at]);
        stw_reduce_options options = STW_REDUCE_OPTIONS_INIT;
        atomic_store(&given_back, 0);
        for (int batch = 0; batch < 4; ++batch) {
            const int wide = batch % 2 == 0;
            void *mine = wide ? (void *)numbers((float)batch) : (void *)halves((float)batch);
            options.dtype = wide ? STW_F32 : STW_BF16, options.scale = batch == 3 ? 0.25 : 0;
            ok(stw_reduce(waited, mine, &options));
            ok(stw_reduce_adopt(adopted, mine, &options, give_back, mine));
        }
        expect_alike(waited, adopted, ELEMENTS * (dtypes[at] == STW_F32 ? 4 : 2));
        ok(stw_runtime_drain(runtime, 0));
        assert_int_equal(atomic_load(&given_back), 4);
        assert_false(pthread_equal(giver, pthread_self()));
        assert_int_equal(held_bytes(runtime), 0);
    }
    machine_close(runtime);
}

/* A view of the gradient keeps the sum waiting, and whatever is called after it. */
TEST(a_call_returns_before_its_sum_and_others_wait_for_it)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g", STW_F32);
    stw_fetch_request reads = request_of(gradient, STW_READ);
    stw_view held, view;
    float *mine = numbers(1), first;
    ok(stw_tensor_fill(gradient, 1, NULL));
    ok(stw_fetch(runtime, NULL, &reads, 1, &held));
    atomic_store(&given_back, 0);
    ok(stw_reduce_adopt(gradient, mine, NULL, give_back, mine));
    assert_int_equal(atomic_load(&given_back), 0);
    assert_float(((const float *)held.pointer)[0], 1);
    stw_fetch_options tries = {.struct_size = sizeof tries, .flags = STW_FETCH_TRY};
    fails(stw_fetch(runtime, &tries, &reads, 1, &view), STW_ERROR_BUSY, "");
    view_put(&held);
    ok(stw_tensor_read(
        gradient, &first,
        &(stw_copy_options){.struct_size = sizeof(stw_copy_options), .element_count = 1}));
    assert_float(first, 2);
    ok(stw_runtime_drain(runtime, 0));
    assert_int_equal(atomic_load(&given_back), 1);
    machine_close(runtime);
}

TEST(what_is_held_is_bounded_and_a_call_waits_for_more)
{
    const machine *here = *state;
    stw_runtime *runtime = machine_open(here);
    stw_tensor *gradient = gradient_make(runtime, "g", STW_F32);
    stw_status status = STW_OK;
    int taken;
    stw_reduce_options options = {.struct_size = sizeof options, .timeout_ns = MILLISECOND_NS};
    ok(stw_tensor_fill(gradient, 0, NULL));
    stw_view held = view_get(runtime, gradient, STW_READ);
    atomic_store(&given_back, 0);
    for (taken = 0; taken < 1000; ++taken) {
        float *mine = numbers(0);
        status = stw_reduce_adopt(gradient, mine, &options, give_back, mine);
        if (status == STW_OK) continue;
        free(mine); /* it stayed ours */
        break;
    }
    assert_int_equal(status, STW_ERROR_TIMEOUT);
    assert_non_null(strstr(stw_last_error(), "gradient 'g'"));
    assert_non_null(strstr(stw_last_error(), here->host_blocks ? "half of the host tier's budget"
                                                               : "half of the device tier's"));
    assert_true(taken > 0);
    assert_int_equal(atomic_load(&given_back), 0);
    view_put(&held);
    options.timeout_ns = 0;
    float *more = numbers(0);
    ok(stw_reduce_adopt(gradient, more, &options, give_back, more));
    ok(stw_runtime_drain(runtime, 0));
    assert_int_equal(atomic_load(&given_back), taken + 1);
    assert_int_equal(held_bytes(runtime), 0);
    machine_close(runtime);
}

TEST(an_update_takes_what_was_adopted_before_it)
{
    stw_runtime *runtime = machine_open(*state);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_optimizer *optimizer = NULL;
    stw_hyper hyper = STW_HYPER_INIT;
    float *mine = numbers(2), *values = malloc(ELEMENTS * sizeof(float));
    entry.parameter = tensor_f32(runtime, "w", ELEMENTS);
    entry.gradient = gradient_make(runtime, "g", STW_F32);
    ok(stw_tensor_fill(entry.parameter, 1, NULL));
    options.algorithm = STW_OPTIMIZER_SGD, hyper.lr = 1;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    ok(stw_optimizer_set_hyper(optimizer, 0, &hyper));
    ok(stw_optimizer_add(optimizer, &entry, 1));
    ok(stw_reduce_adopt(entry.gradient, mine, NULL, give_back, mine));
    ok(stw_optimizer_step(optimizer, NULL, NULL));
    ok(stw_tensor_read(entry.parameter, values, NULL));
    for (int i = 0; i < ELEMENTS; ++i) assert_float(values[i], 1 - (2 + 0.37F * (float)(i % 1013)));
    free(values);
    machine_close(runtime);
}

/* Memory of a sum that fails, or that a close finds, is given back all the same. */
TEST(memory_is_given_back_whatever_comes_of_its_sum)
{
    machine wanted = machine_small();
    float *mine = numbers(2);
    float value;
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;"
                          "at=read:1:eio;at=read:2:eio;at=read:3:eio;at=read:4:eio;at=read:5:eio;"
                          "at=read:6:eio;at=read:7:eio;at=read:8:eio;at=read:9:eio;at=read:10:eio";
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *gradient = tensor_on_disk(runtime, "g", ELEMENTS, 0);
    atomic_store(&given_back, 0);
    ok(stw_reduce_adopt(gradient, mine, NULL, give_back, mine));
    assert_int_equal(stw_runtime_drain(runtime, 0), STW_ERROR_IO);
    assert_int_equal(atomic_load(&given_back), 1);
    fails(stw_tensor_read(gradient, &value, NULL), STW_ERROR_IO, "'g'");
    mine = numbers(2);
    fails(stw_reduce_adopt(gradient, mine, NULL, give_back, mine), STW_ERROR_IO, "");
    ok(stw_runtime_clear_error(runtime));
    ok(stw_tensor_fill(gradient, 0, NULL));
    ok(stw_reduce_adopt(gradient, mine, NULL, give_back, mine));
    ok(stw_runtime_close(runtime, 0, 0));
    assert_int_equal(atomic_load(&given_back), 2);
}

TEST(what_is_refused_stays_the_callers)
{
    stw_runtime *runtime = machine_open(*state);
    stw_tensor *gradient = gradient_make(runtime, "g", STW_F32);
    stw_tensor *empty = tensor_f32(runtime, "empty", 0);
    float mine[4] = {0};
    atomic_store(&given_back, 0);
    fails(stw_reduce_adopt(NULL, mine, NULL, give_back, mine), STW_ERROR_INVALID, "");
    fails(stw_reduce_adopt(gradient, NULL, NULL, give_back, NULL), STW_ERROR_INVALID, "no memory");
    stw_reduce_options odd = {.struct_size = sizeof odd, .scale = INFINITY};
    fails(stw_reduce_adopt(gradient, mine, &odd, give_back, mine), STW_ERROR_INVALID, "scale");
    odd.scale = 0, odd.dtype = STW_I32;
    fails(stw_reduce_adopt(gradient, mine, &odd, give_back, mine), STW_ERROR_INVALID, "dtype");
    assert_int_equal(atomic_load(&given_back), 0);
    ok(stw_reduce_adopt(empty, NULL, NULL, give_back, malloc(1)));
    assert_int_equal(atomic_load(&given_back), 1);
    ok(stw_reduce_adopt(empty, NULL, NULL, NULL, NULL));
    machine_close(runtime);
}

RUN_TESTS_ON_EACH_MACHINE("adopted gradients", NULL)
