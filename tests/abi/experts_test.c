/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of which each needs other tensors, as data asks for experts: what is often needed stays,
 * and nothing is brought ahead that is not likely to be used.
 */
#include "support.h"

enum {
    LAYERS = 12,
    EXPERTS = 16, /* of each, a block each */
    WANTED = 3,   /* of each, in a step */
    ROOM = LAYERS * EXPERTS / 4,
    LEARNED = 40,
    MEASURED = 60,
    STEPS_MOST = 4000
};

static machine now;

typedef struct model {
    stw_runtime *runtime;
    stw_phase *phase;
    stw_tensor *experts[LAYERS][EXPERTS]; /* the most wanted ones first */
    double weights[EXPERTS];
    uint64_t draws;
} model;

/* splitmix64 */
static uint64_t draw(model *m)
{
    uint64_t z = (m->draws += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void swap(stw_tensor **one, stw_tensor **other)
{
    stw_tensor *kept = *one;
    *one = *other;
    *other = kept;
}

static void model_open(model *m, uint32_t flags)
{
    machine sized = now;
    if (sized.device_blocks > 0) {
        sized.device_blocks = ROOM;
    } else {
        sized.host_blocks = ROOM;
    }
    sized.nvme_blocks = 2 * LAYERS * EXPERTS;
    sized.flags |= flags;
    memset(m, 0, sizeof *m);
    m->runtime = machine_open(&sized);
    for (int i = 0; i < EXPERTS; ++i) m->weights[i] = pow(i + 1, -1.15);
    for (int layer = 0; layer < LAYERS; ++layer) {
        stw_tensor **experts = m->experts[layer];
        for (int i = 0; i < EXPERTS; ++i) {
            char name[32];
            snprintf(name, sizeof name, "%d.%d", layer, i);
            experts[i] = tensor_f32(m->runtime, name, BLOCK / 4);
            tensor_fill_sequence(experts[i], BLOCK / 4, 0);
        }
        for (int i = EXPERTS; i > 1; --i) swap(&experts[i - 1], &experts[draw(m) % (uint64_t)i]);
    }
    if (sized.device_blocks > 0) ok(stw_evict(m->runtime, NULL, 0, STW_TIER_DEVICE, 0, 0));
    if (sized.host_blocks > 0) ok(stw_evict(m->runtime, NULL, 0, STW_TIER_HOST, 0, 0));
    ok(stw_phase_create(m->runtime, "experts", &m->phase));
}

static void model_close(model *m)
{
    ok(stw_phase_destroy(m->phase));
    machine_close(m->runtime);
}

static int drawn(model *m, double *left)
{
    double sum = 0, at;
    int i;
    for (i = 0; i < EXPERTS; ++i) sum += left[i];
    at = (double)(draw(m) >> 11) * 0x1p-53 * sum;
    for (i = 0; i + 1 < EXPERTS && at >= left[i]; ++i) at -= left[i];
    left[i] = 0;
    return i;
}

/* What is wanted drifts slowly. */
static void model_step(model *m)
{
    ok(stw_step_begin(m->phase));
    for (int layer = 0; layer < LAYERS; ++layer) {
        stw_tensor **experts = m->experts[layer];
        double left[EXPERTS];
        if (draw(m) % 10 == 0) {
            const uint64_t at = draw(m) % (EXPERTS - 1);
            swap(&experts[at], &experts[at + 1]);
        }
        memcpy(left, m->weights, sizeof left);
        for (int i = 0; i < WANTED; ++i) {
            stw_view view = view_get(m->runtime, experts[drawn(m, left)], STW_READ);
            view_put(&view);
        }
    }
    ok(stw_step_end(m->phase, NULL));
}

/* Of the bytes that steps fetch, the part that no disk was asked for, ahead or not. */
static double hit_rate(model *m)
{
    uint64_t before = bytes_from_disk(m->runtime) / BLOCK;
    for (int step = 0; step < MEASURED; ++step) model_step(m);
    return 1 -
           (double)(bytes_from_disk(m->runtime) / BLOCK - before) / (MEASURED * LAYERS * WANTED);
}

TEST(what_is_drawn_is_kept_by_how_often_it_was)
{
    model m;
    int step;
    model_open(&m, STW_RUNTIME_NO_PLAN);
    for (step = 0; step < LEARNED; ++step) model_step(&m);
    double recency = hit_rate(&m);
    model_close(&m);

    model_open(&m, 0);
    for (step = 0; step < LEARNED; ++step) model_step(&m);
    while (!strstr(report_text(m.runtime), "\"chosen\": \"often used") && step < STEPS_MOST) {
        model_step(&m);
        ++step;
    }
    assert_true(step < STEPS_MOST);
    double planned = hit_rate(&m);
    stw_tier_stats stats = tier_stats(m.runtime, STW_TIER_DEFAULT);
    if (planned < 0.5 || planned < recency + 0.1) {
        fail_msg("%.3f of the bytes were there, and %.3f without a plan", planned, recency);
    }
    /* What was drawn for one step is not brought for the next. */
    assert_true(stats.planned_wasted_bytes / BLOCK < (uint64_t)step * LAYERS * WANTED / 10);
    model_close(&m);
}

RUN_TESTS_ON_EACH_MACHINE("experts", &now)
