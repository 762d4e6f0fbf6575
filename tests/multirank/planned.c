/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that are recorded, declared and hinted at: what they name of a whole is a shard here, which
 * ends long before the range that was named. */
#include "tests/multirank/tensors.h"

#include <string.h>

enum { LAYERS = 8, STEPS = 8, SHARD_BLOCKS = 3 };

struct layers {
    stw_runtime *runtime;
    stw_tensor *parameters[LAYERS];
    stw_tensor *gradients[LAYERS];
    stw_tensor *activations[LAYERS]; /* of this rank alone: where a wrong range would lie */
    uint64_t elements;
};

static void make_layers(struct layers *layers, stw_runtime *runtime, uint32_t ranks)
{
    layers->runtime = runtime;
    layers->elements = (uint64_t)ranks * SHARD_BLOCKS * BLOCK / sizeof(float);
    for (uint32_t i = 0; i < LAYERS; ++i) {
        const char parameter[] = {'p', (char)('0' + i), '\0'};
        const char gradient[] = {'g', (char)('0' + i), '\0'};
        const char activation[] = {'a', (char)('0' + i), '\0'};
        layers->parameters[i] =
            make(runtime, parameter, layers->elements, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        layers->gradients[i] =
            make(runtime, gradient, layers->elements, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
        layers->activations[i] = make(runtime, activation, BLOCK / sizeof(float),
                                      STW_ROLE_ACTIVATION, STW_PARTITION_LOCAL);
        write_shard(runtime, layers->parameters[i], i);
    }
}

static stw_view fetch_local(stw_runtime *runtime, stw_tensor *tensor, uint32_t access)
{
    stw_view view;
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor, .access = access};
    SUCCEEDS(stw_fetch(runtime, NULL, &request, 1, &view));
    return view;
}

/* Forward, and backward in the other order; every rank adds one more than its number. */
static void run_step(struct layers *layers, uint32_t rank)
{
    stw_runtime *runtime = layers->runtime;
    for (uint32_t i = 0; i < LAYERS; ++i) {
        expect_whole(runtime, layers->parameters[i], layers->elements, i);
        stw_view activation = fetch_local(runtime, layers->activations[i], STW_WRITE);
        for (uint64_t k = 0; k < activation.element_count; ++k) {
            ((float *)activation.pointer)[k] = value_of(k, i + 50);
        }
        let_go(&activation, STW_RELEASE_FAR);
    }
    for (uint32_t i = LAYERS; i-- > 0;) {
        stw_view gradient = fetch(runtime, layers->gradients[i], STW_REDUCE, STW_WHOLE);
        for (uint64_t k = 0; k < gradient.element_count; ++k) {
            ((float *)gradient.pointer)[k] = (float)(rank + 1);
        }
        let_go(&gradient, 0);
        stw_view activation = fetch_local(runtime, layers->activations[i], STW_READ);
        expect_values(&activation, BLOCK / sizeof(float), i + 50);
        let_go(&activation, STW_RELEASE_DISCARD);
    }
}

static void expect_sums(struct layers *layers, uint32_t steps, uint32_t ranks)
{
    const float expected = (float)(steps * ranks * (ranks + 1) / 2);
    for (uint32_t i = 0; i < LAYERS; ++i) {
        stw_view shard = fetch(layers->runtime, layers->gradients[i], STW_READ, STW_SHARD);
        for (uint64_t k = 0; k < shard.element_count; ++k) {
            HOLDS(((const float *)shard.pointer)[k] == expected);
        }
        let_go(&shard, 0);
    }
}

static void declare(const struct layers *layers, stw_phase *phase)
{
    stw_plan_entry entries[2 * LAYERS];
    for (uint32_t i = 0; i < 2 * LAYERS; ++i) {
        const stw_plan_entry entry = STW_PLAN_ENTRY_INIT;
        entries[i] = entry;
        entries[i].fetch = i;
        entries[i].tensor =
            i < LAYERS ? layers->parameters[i] : layers->gradients[2 * LAYERS - 1 - i];
        entries[i].access = i < LAYERS ? STW_READ : STW_REDUCE;
    }
    SUCCEEDS(stw_phase_declare(phase, entries, 2 * LAYERS));
}

/* Ends of wholes, which no shard reaches. */
static void hint(const struct layers *layers)
{
    for (uint32_t i = 0; i < LAYERS; ++i) {
        stw_fetch_request hints[2] = {STW_FETCH_REQUEST_INIT, STW_FETCH_REQUEST_INIT};
        for (uint32_t k = 0; k < 2; ++k) {
            hints[k].tensor = layers->parameters[i];
            hints[k].element_begin = k * (layers->elements - 100);
            hints[k].element_count = 100;
        }
        SUCCEEDS(stw_prefetch(layers->runtime, hints, 2));
    }
}

static void train(struct member *member, bool declares, bool hints)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, (uint64_t)member->size * SHARD_BLOCKS);
    struct layers layers;
    stw_phase *phase = NULL;
    make_layers(&layers, runtime, member->size);
    SUCCEEDS(stw_phase_create(runtime, "train", &phase));
    if (declares) declare(&layers, phase);
    for (uint32_t step = 0; step < STEPS; ++step) {
        SUCCEEDS(stw_step_begin(phase));
        if (hints) hint(&layers);
        run_step(&layers, member->rank);
        SUCCEEDS(stw_step_end(phase, NULL));
        SUCCEEDS(stw_runtime_drain(runtime, 0));
    }
    expect_sums(&layers, STEPS, member->size);
    SUCCEEDS(stw_phase_destroy(phase));
    end(runtime, group, member);
}

CLAIM(steps_that_are_learned_move_shards)
{
    train(member, false, false);
}

CLAIM(steps_that_are_declared_move_shards)
{
    train(member, true, false);
}

CLAIM(hints_of_wholes_move_shards)
{
    train(member, false, true);
}
