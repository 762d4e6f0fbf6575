/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps over several ranks: the same as on one, decided by all, and alike on all. */
#include "tests/multirank/tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, STEPS = 4 };
static const uint64_t layer_sizes[LAYERS] = {150000, 3, 20000};

struct trained {
    double norms[STEPS];
    float *values[LAYERS];
    uint64_t early;
    uint64_t undone;
};

/* What a step does, as it is going to be. */
static void declare(stw_phase *phase, stw_tensor *const *parameters, stw_tensor *const *gradients)
{
    stw_plan_entry entries[2 * LAYERS];
    for (uint32_t i = 0; i < 2 * LAYERS; ++i) {
        const stw_plan_entry entry = STW_PLAN_ENTRY_INIT;
        entries[i] = entry;
        entries[i].fetch = i;
        entries[i].tensor = i % 2 == 0 ? parameters[i / 2] : gradients[i / 2];
        entries[i].access = i % 2 == 0 ? STW_READ : STW_REDUCE;
    }
    SUCCEEDS(stw_phase_declare(phase, entries, 2 * LAYERS));
}

static void hint(stw_runtime *runtime, stw_tensor *parameter, stw_tensor *gradient)
{
    stw_fetch_request hints[2] = {STW_FETCH_REQUEST_INIT, STW_FETCH_REQUEST_INIT};
    hints[0].tensor = parameter;
    hints[1].tensor = gradient;
    hints[1].access = STW_REDUCE;
    SUCCEEDS(stw_prefetch(runtime, hints, 2));
}

static void add_batch(const float *weights, uint64_t n, uint32_t batch, uint32_t step, float *sums)
{
    for (uint64_t k = 0; k < n; ++k) {
        const float bit = weights[k] > 1.0F ? 1.0F : -1.0F;
        sums[k] += bit * (float)((k + batch + step) % 5);
    }
}

/* Each micro-batch as memory that becomes the library's, and a step that nobody waits for. */
static void train_one(stw_optimizer *optimizer, stw_tensor *parameter, stw_tensor *gradient,
                      const float *weights, uint64_t n, const uint32_t at[3])
{
    const uint32_t rank = at[0], ranks = at[1], step = at[2];
    for (uint32_t batch = rank; batch < 12; batch += ranks) {
        float *values = calloc(n, sizeof *values);
        add_batch(weights, n, batch, step, values);
        stw_reduce_options options = {.struct_size = sizeof options,
                                      .flags = batch + ranks < 12 ? STW_REDUCE_MORE : 0};
        SUCCEEDS(stw_reduce_adopt(gradient, values, &options, free, values));
    }
    stw_update_options own = {
        .struct_size = sizeof own, .parameters = &parameter, .parameter_count = 1};
    SUCCEEDS(stw_optimizer_step(optimizer, &own, NULL));
}

/* When parameters are updated: after backward, each as its gradient is complete, or so before the
 * verdict, others in each step. */
enum order { AFTER, IN_BACKWARD, EARLY };

static void update_early(stw_optimizer *optimizer, stw_tensor *parameter)
{
    stw_update_options early = {.struct_size = sizeof early,
                                .flags = STW_UPDATE_SPECULATE,
                                .parameters = &parameter,
                                .parameter_count = 1};
    SUCCEEDS(stw_optimizer_step(optimizer, &early, NULL));
}

/* Integer gradients, so that sums over ranks are exact whatever their order. */
static void train(stw_runtime *runtime, uint32_t rank, uint32_t ranks, enum order order,
                  struct trained *out)
{
    const bool in_backward = order == IN_BACKWARD;
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer = NULL;
    stw_tensor *parameters[LAYERS];
    stw_tensor *gradients[LAYERS];
    options.algorithm = STW_OPTIMIZER_ADAMW;
    options.name = "adam";
    SUCCEEDS(stw_optimizer_create(runtime, &options, &optimizer));
    SUCCEEDS(stw_optimizer_set_hyper(optimizer, 0, &(stw_hyper)STW_HYPER_INIT));
    for (uint32_t i = 0; i < LAYERS; ++i) {
        const char parameter[] = {'p', (char)('0' + i), '\0'};
        const char gradient[] = {'g', (char)('0' + i), '\0'};
        const uint32_t partition = i == 2 ? STW_PARTITION_REPLICATED : STW_PARTITION_SHARDED;
        parameters[i] = make(runtime, parameter, layer_sizes[i], STW_ROLE_PARAM, partition);
        gradients[i] = make(runtime, gradient, layer_sizes[i], STW_ROLE_GRAD, partition);
        out->values[i] = malloc(layer_sizes[i] * sizeof(float));
        for (uint64_t k = 0; k < layer_sizes[i]; ++k) out->values[i][k] = value_of(k, i) * 1e-4F;
        SUCCEEDS(stw_tensor_write(parameters[i], out->values[i], NULL));
        optimizer_add(optimizer, parameters[i], gradients[i]);
    }
    stw_phase *phase = NULL;
    SUCCEEDS(stw_phase_create(runtime, "train", &phase));
    declare(phase, parameters, gradients);
    for (uint32_t step = 0; step < STEPS; ++step) {
        SUCCEEDS(stw_step_begin(phase));
        for (uint32_t i = 0; i < LAYERS; ++i) {
            hint(runtime, parameters[(i + 1) % LAYERS], gradients[(i + 1) % LAYERS]);
            stw_view weights = fetch(runtime, parameters[i], STW_READ, STW_WHOLE);
            if (in_backward) {
                const uint32_t at[3] = {rank, ranks, step};
                train_one(optimizer, parameters[i], gradients[i], weights.pointer, layer_sizes[i],
                          at);
                let_go(&weights, 0);
                continue;
            }
            stw_view sums = fetch(runtime, gradients[i], STW_REDUCE, STW_WHOLE);
            for (uint32_t batch = rank; batch < 12; batch += ranks) {
                add_batch(weights.pointer, layer_sizes[i], batch, step, sums.pointer);
            }
            let_go(&weights, 0);
            let_go(&sums, 0);
            if (order != EARLY || (i + step) % 3 == 0) continue;
            update_early(optimizer, parameters[i]);
            /* Until it is over, but for the verdict. */
            if (step > 0) SUCCEEDS(stw_runtime_drain(runtime, 0));
        }
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        /* Reached in every other step. */
        stw_update_options update = {.struct_size = sizeof update,
                                     .clip_norm = step % 2 == 0 ? 1.0 : 1e12};
        if (!in_backward) {
            SUCCEEDS(stw_optimizer_step(optimizer, &update, &result));
            out->norms[step] = result.norm;
            HOLDS((result.clip_coefficient < 1.0) == (step % 2 == 0) && result.nonfinite == 0);
            out->early += result.early;
            out->undone += result.undone;
        }
        SUCCEEDS(stw_step_end(phase, NULL));
    }
    for (uint32_t i = 0; i < LAYERS; ++i) {
        SUCCEEDS(stw_tensor_read(parameters[i], out->values[i], NULL));
    }
    SUCCEEDS(stw_runtime_drain(runtime, 0));
    for (uint32_t i = 0; i < LAYERS; ++i) {
        stw_tensor_info info = {.struct_size = sizeof info};
        uint64_t count = 99;
        SUCCEEDS(stw_tensor_info_get(parameters[i], &info));
        SUCCEEDS(stw_optimizer_get_count(optimizer, parameters[i], &count));
        HOLDS(count ==
              (info.shard_elements > 0 ? STEPS : 0)); /* of three elements, a rank has none */
    }
}

static void has_the_bits_of_one_rank(struct member *member, enum order order)
{
    const bool in_backward = order == IN_BACKWARD;
    struct trained alone = {.early = 0};
    struct trained together = {.early = 0};
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(NULL, member, 24);
    train(runtime, 0, 1, in_backward ? IN_BACKWARD : AFTER, &alone);
    SUCCEEDS(stw_runtime_close(runtime, 0, 0));
    runtime = open_on(group, member, 24);
    train(runtime, member->rank, member->size, order, &together);
    for (uint32_t step = 0; !in_backward && step < STEPS; ++step) {
        HOLDS(together.norms[step] == alone.norms[step]);
    }
    for (uint32_t i = 0; i < LAYERS; ++i) {
        HOLDS(memcmp(together.values[i], alone.values[i], layer_sizes[i] * sizeof(float)) == 0);
        free(together.values[i]);
        free(alone.values[i]);
    }
    /* That of 150,000 elements is larger than a block on each rank. */
    HOLDS((together.early > 0 && together.undone > 0) == (order == EARLY));
    end(runtime, group, member);
}

CLAIM(training_has_the_bits_of_one_rank)
{
    has_the_bits_of_one_rank(member, AFTER);
}

CLAIM(updates_in_backward_have_the_bits_of_one_rank)
{
    has_the_bits_of_one_rank(member, IN_BACKWARD);
}

CLAIM(updates_before_the_verdict_have_the_bits_of_one_rank)
{
    has_the_bits_of_one_rank(member, EARLY);
}

/* A runtime that descends, by SGD, with one parameter of ones. */
struct descent {
    stw_group *group;
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    stw_tensor *parameter;
    stw_tensor *gradient;
};
enum { N = 40000 };

static struct descent descend(struct member *member)
{
    struct descent made = {join(member), NULL, NULL, NULL, NULL};
    made.runtime = open_on(made.group, member, 24);
    made.optimizer = optimizer_make(made.runtime, STW_OPTIMIZER_SGD);
    made.parameter = make(made.runtime, "p", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    made.gradient = make(made.runtime, "g", N, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    SUCCEEDS(stw_tensor_fill(made.parameter, 1.0, NULL));
    optimizer_add(made.optimizer, made.parameter, made.gradient);
    return made;
}

CLAIM(an_overflow_of_one_rank_skips_the_step_on_all)
{
    struct descent at = descend(member);
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    /* The last element is the last rank's alone. */
    stw_view view = fetch(at.runtime, at.gradient, STW_REDUCE, STW_WHOLE);
    if (member->rank == 0) ((float *)view.pointer)[N - 1] = INFINITY;
    let_go(&view, 0);
    stw_update_options update = {.struct_size = sizeof update, .flags = STW_UPDATE_SKIP_NONFINITE};
    HOLDS(stw_optimizer_step(at.optimizer, &update, &result) == STW_SKIPPED);
    HOLDS(result.nonfinite == 1 && result.updated == 0);
    stw_view weights = fetch(at.runtime, at.parameter, STW_READ, STW_WHOLE);
    HOLDS(((const float *)weights.pointer)[N - 1] == 1.0F);
    let_go(&weights, 0);
    end(at.runtime, at.group, member);
}

static void add_ones(stw_runtime *runtime, stw_tensor *gradient)
{
    stw_view view = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
    for (uint64_t k = 0; k < N; ++k) ((float *)view.pointer)[k] = 1.0F;
    let_go(&view, 0);
}

/* Copies that were gathered before a step are stale after it, those of states too. */
CLAIM(what_a_step_changes_is_gathered_again)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 48);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    stw_tensor *parameter = make(runtime, "p", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *gradient = make(runtime, "g", N, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    stw_tensor *moment = NULL;
    float before[2] = {0, 0};
    SUCCEEDS(stw_tensor_fill(parameter, 1.0, NULL));
    optimizer_add(optimizer, parameter, gradient);
    SUCCEEDS(stw_optimizer_state(optimizer, parameter, "exp_avg", &moment));
    stw_tensor *const read[2] = {parameter, moment};
    for (int step = 0; step < 3; ++step) {
        stw_update_options named = {
            .struct_size = sizeof named, .parameters = &parameter, .parameter_count = 1};
        add_ones(runtime, gradient);
        SUCCEEDS(stw_optimizer_step(optimizer, step == 1 ? &named : NULL, NULL));
        for (int i = 0; i < 2; ++i) {
            stw_view view = fetch(runtime, read[i], STW_READ, STW_WHOLE);
            const float *values = view.pointer;
            HOLDS(values[0] != before[i] && values[N - 1] == values[0]);
            before[i] = values[0];
            let_go(&view, 0);
        }
    }
    end(runtime, group, member);
}

static stw_status try_fetch(stw_runtime *runtime, stw_tensor *tensor, uint32_t access)
{
    stw_fetch_request request = {
        .struct_size = sizeof request, .tensor = tensor, .access = access, .scope = STW_WHOLE};
    stw_view view;
    const stw_status status = stw_fetch(runtime, NULL, &request, 1, &view);
    if (status >= 0) let_go(&view, 0);
    return status;
}

/* A gather of it would be queued before the verdict and wait for it. It is refused on all ranks,
 * for the gradient too, and whether the tensor was gathered before or not. */
CLAIM(what_awaits_its_verdict_is_not_gathered)
{
    struct descent at = descend(member);
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_update_options clip = {.struct_size = sizeof clip, .clip_norm = 1e12};
    for (int step = 0; step < 3; ++step) {
        add_ones(at.runtime, at.gradient);
        if (step > 0) SUCCEEDS(try_fetch(at.runtime, at.parameter, STW_READ));
        update_early(at.optimizer, at.parameter);
        HOLDS(try_fetch(at.runtime, at.parameter, STW_READ) == STW_ERROR_BUSY);
        HOLDS(strstr(stw_last_error(), "\"p\" was updated speculatively") != NULL);
        HOLDS(try_fetch(at.runtime, at.parameter, STW_WRITE) == STW_ERROR_BUSY);
        HOLDS(try_fetch(at.runtime, at.gradient, STW_READ) == STW_ERROR_BUSY);
        SUCCEEDS(stw_optimizer_step(at.optimizer, &clip, &result));
        HOLDS(result.updated == 1);
        SUCCEEDS(try_fetch(at.runtime, at.parameter, STW_READ));
    }
    end(at.runtime, at.group, member);
}

/* The verdict fails on all ranks, which also sets back what was updated; the next step succeeds. */
CLAIM(ranks_that_speculate_otherwise_are_told)
{
    struct descent at = descend(member);
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_update_options clip = {.struct_size = sizeof clip, .clip_norm = 1e12};
    const stw_hyper hyper = {.struct_size = sizeof hyper, .lr = 0.25};
    SUCCEEDS(stw_optimizer_set_hyper(at.optimizer, 0, &hyper));
    add_ones(at.runtime, at.gradient);
    if (member->rank == 1) {
        update_early(at.optimizer, at.parameter);
        SUCCEEDS(stw_runtime_drain(at.runtime, 0));
    }
    HOLDS(stw_optimizer_step(at.optimizer, &clip, &result) == STW_ERROR_MISMATCH);
    HOLDS(strstr(stw_last_error(), "0 speculated") != NULL);
    HOLDS(strstr(stw_last_error(), "2 speculated") != NULL);
    SUCCEEDS(stw_optimizer_step(at.optimizer, &clip, &result));
    HOLDS(result.updated == 1 && result.early == 0);
    stw_view view = fetch(at.runtime, at.parameter, STW_READ, STW_WHOLE);
    HOLDS(((const float *)view.pointer)[0] == 1.0F - 0.25F * (float)member->size);
    HOLDS(((const float *)view.pointer)[N - 1] == 1.0F - 0.25F * (float)member->size);
    let_go(&view, 0);
    end(at.runtime, at.group, member);
}

/* Its slices are written when the view ends, so it is updated after the verdict. */
CLAIM(what_is_open_to_be_written_gathered_is_not_updated_before_the_verdict)
{
    struct descent at = descend(member);
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_update_options clip = {.struct_size = sizeof clip, .clip_norm = 1e12};
    add_ones(at.runtime, at.gradient);
    stw_view view = fetch(at.runtime, at.parameter, STW_WRITE, STW_WHOLE);
    update_early(at.optimizer, at.parameter);
    for (uint64_t k = 0; k < N; ++k) ((float *)view.pointer)[k] = 2.0F;
    let_go(&view, 0);
    SUCCEEDS(stw_optimizer_step(at.optimizer, &clip, &result));
    HOLDS(result.updated == 1 && result.early == 0);
    view = fetch(at.runtime, at.parameter, STW_READ, STW_WHOLE);
    HOLDS(((const float *)view.pointer)[N - 1] < 2.0F);
    let_go(&view, 0);
    end(at.runtime, at.group, member);
}

/* One rank's shards would drift from the others': no rank updates anything. */
CLAIM(ranks_that_step_otherwise_are_told)
{
    struct descent at = descend(member);
    const int odd = member->rank == 1;
    for (int attempt = 0; attempt < 5; ++attempt) {
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        stw_hyper hyper = STW_HYPER_INIT;
        stw_view view = fetch(at.runtime, at.gradient, STW_REDUCE, STW_WHOLE);
        for (uint64_t k = 0; k < N; ++k) ((float *)view.pointer)[k] = 1.0F;
        let_go(&view, 0);
        stw_update_options update = {.struct_size = sizeof update,
                                     .clip_norm = attempt == 0 && odd ? 100.0 : 1e9,
                                     .flags = attempt == 1 && odd ? STW_UPDATE_SKIP_NONFINITE : 0};
        update.gradient_scale = odd ? 1.0 : 0.0; /* which is the same */
        hyper.lr = attempt == 2 && odd ? 0.5 : 0.25;
        hyper.dampening = attempt == 3 && odd ? 0.125 : 0;
        SUCCEEDS(stw_optimizer_set_hyper(at.optimizer, 0, &hyper));
        if (attempt == 4) break;
        HOLDS(stw_optimizer_step(at.optimizer, &update, &result) == STW_ERROR_MISMATCH);
        HOLDS(strstr(stw_last_error(), "rank 0") && strstr(stw_last_error(), "rank 1"));
        if (attempt == 0) HOLDS(strstr(stw_last_error(), "clip_norm 100"));
        if (attempt == 2) HOLDS(strstr(stw_last_error(), "lr 0.5"));
        SUCCEEDS(stw_tensor_discard(&at.gradient, 1));
    }
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    /* How long it waits is each rank's own. */
    stw_update_options update = {.struct_size = sizeof update,
                                 .flags = member->rank == 0 ? STW_UPDATE_WAIT : 0,
                                 .clip_norm = 1e9};
    SUCCEEDS(stw_optimizer_step(at.optimizer, &update, &result));
    stw_view weights = fetch(at.runtime, at.parameter, STW_READ, STW_WHOLE);
    HOLDS(((const float *)weights.pointer)[N - 1] == 1.0F - 0.25F * (float)member->size);
    let_go(&weights, 0);
    end(at.runtime, at.group, member);
}

static void no_roots(int32_t n, const float *values, float *roots, int64_t mode)
{
    (void)values, (void)mode;
    memset(roots, 0, (uint32_t)n * sizeof *roots);
}

/* Whatever the group and the number: what it means for the shards is not asked. */
CLAIM(hyper_parameters_of_each_group_are_compared)
{
    enum { GROUPS = 2 };
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 24);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    for (uint32_t i = 0; i < GROUPS; ++i) {
        const char parameter[] = {'p', (char)('0' + i), '\0'};
        const char gradient[] = {'g', (char)('0' + i), '\0'};
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter = make(runtime, parameter, N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        entry.gradient = make(runtime, gradient, N, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
        entry.parameter_group = i;
        SUCCEEDS(stw_tensor_fill(entry.parameter, 1.0, NULL));
        SUCCEEDS(stw_tensor_fill(entry.gradient, 1.0, NULL));
        SUCCEEDS(stw_optimizer_add(optimizer, &entry, 1));
    }
    for (uint32_t attempt = 0; attempt < 6; ++attempt) {
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        const bool odd = member->rank == member->size - 1 && attempt < 5;
        for (uint32_t i = 0; i < GROUPS; ++i) {
            const bool other = odd && i == 1; /* never the first, whose words are told */
            stw_hyper hyper = STW_HYPER_INIT;
            if (other && attempt == 0) hyper.beta1 = 0.5;
            if (other && attempt == 1) hyper.beta2 = 0.5;
            if (other && attempt == 2) hyper.eps = 1e-3;
            if (other && attempt == 3) hyper.weight_decay = 0.5;
            if (other && attempt == 4) hyper.lr = 0.5;
            SUCCEEDS(stw_optimizer_set_hyper(optimizer, i, &hyper));
        }
        stw_update_options update = {.struct_size = sizeof update, .clip_norm = 1e9};
        const stw_status status = stw_optimizer_step(optimizer, &update, &result);
        HOLDS(status == (attempt < 5 ? STW_ERROR_MISMATCH : STW_OK));
    }
    end(runtime, group, member);
}

/* The last rank alone rounds as torch does, or has its roots from elsewhere. */
CLAIM(roundings_of_optimizers_are_compared)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 24);
    const bool odd = member->rank == member->size - 1;
    for (uint32_t attempt = 0; attempt < 3; ++attempt) {
        const char name[] = {'p', (char)('0' + attempt), '\0'};
        const char gradient[] = {'g', (char)('0' + attempt), '\0'};
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        stw_optimizer *optimizer = NULL;
        options.algorithm = STW_OPTIMIZER_ADAGRAD, options.name = name;
        if (odd || attempt > 0) options.flags = STW_OPTIMIZER_TORCH_ORDER;
        if (odd && attempt == 1) options.square_root = no_roots;
        SUCCEEDS(stw_optimizer_create(runtime, &options, &optimizer));
        SUCCEEDS(stw_optimizer_set_hyper(optimizer, 0, &(stw_hyper)STW_HYPER_INIT));
        entry.parameter = make(runtime, name, N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
        entry.gradient = make(runtime, gradient, N, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
        SUCCEEDS(stw_tensor_fill(entry.parameter, 1.0, NULL));
        SUCCEEDS(stw_tensor_fill(entry.gradient, 1.0, NULL));
        SUCCEEDS(stw_optimizer_add(optimizer, &entry, 1));
        stw_update_options update = {.struct_size = sizeof update, .clip_norm = 1e9};
        const stw_status status = stw_optimizer_step(optimizer, &update, &result);
        HOLDS(status == (attempt < 2 ? STW_ERROR_MISMATCH : STW_OK));
    }
    end(runtime, group, member);
}

/* It meets what the others do instead. */
CLAIM(a_step_without_a_verdict_beside_one_with_it_is_out_of_order)
{
    struct descent at = descend(member);
    stw_tensor *next = make(at.runtime, "next", N, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_update_options update = STW_UPDATE_OPTIONS_INIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    stw_view view;
    write_shard(at.runtime, next, 1);
    SUCCEEDS(stw_tensor_fill(at.gradient, 1.0, NULL));
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = next};
    if (member->rank == 0) {
        SUCCEEDS(stw_optimizer_step(at.optimizer, NULL, NULL));
        HOLDS(stw_fetch(at.runtime, NULL, &request, 1, &view) == STW_ERROR_ORDER);
        HOLDS(strstr(stw_last_error(), "'next'") != NULL);
    } else {
        update.clip_norm = 1.0;
        HOLDS(stw_optimizer_step(at.optimizer, &update, &result) == STW_ERROR_ORDER);
        HOLDS(strstr(stw_last_error(), "'next'") != NULL);
    }
    meet(member);
    end(at.runtime, at.group, member);
}

/* Each rank has the master of its slice, and each sees what was written to it. */
CLAIM(what_is_written_between_steps_is_updated_next)
{
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 24);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_optimizer *optimizer = NULL;
    stw_hyper hyper = STW_HYPER_INIT;
    const float sum = (float)member->size;
    options.algorithm = STW_OPTIMIZER_SGD;
    hyper.lr = 1;
    SUCCEEDS(stw_optimizer_create(runtime, &options, &optimizer));
    SUCCEEDS(stw_optimizer_set_hyper(optimizer, 0, &hyper));
    spec.name = "p", spec.role = STW_ROLE_PARAM, spec.dtype = STW_BF16;
    spec.partition = STW_PARTITION_SHARDED, spec.dimensions = 1, spec.shape[0] = N;
    SUCCEEDS(stw_tensor_create(runtime, &spec, 1, &entry.parameter));
    entry.gradient = make(runtime, "g", N, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    SUCCEEDS(stw_optimizer_add(optimizer, &entry, 1));
    SUCCEEDS(stw_tensor_fill(entry.parameter, 16.0, NULL));
    for (int round = 0; round < 4; ++round) {
        float wanted = 16.0F - sum;
        stw_view view = fetch(runtime, entry.gradient, STW_REDUCE, STW_WHOLE);
        for (uint64_t k = 0; k < N; ++k) ((float *)view.pointer)[k] = 1.0F;
        let_go(&view, 0);
        if (round == 1) SUCCEEDS(stw_tensor_fill(entry.parameter, 100.0, NULL));
        if (round == 2) {
            view = fetch(runtime, entry.parameter, STW_WRITE, STW_WHOLE); /* each its slice */
            for (uint64_t k = 0; k < N; ++k) ((uint16_t *)view.pointer)[k] = 0x4200; /* 32 */
            let_go(&view, 0);
        }
        if (round == 1) wanted = 100.0F - sum;
        if (round == 2) wanted = 32.0F - sum;
        if (round == 3) wanted = 32.0F - 2 * sum;
        SUCCEEDS(stw_optimizer_step(optimizer, NULL, NULL));
        view = fetch(runtime, entry.parameter, STW_READ, STW_WHOLE);
        for (uint64_t k = 0; k < N; k += N - 1) {
            const uint32_t bits = (uint32_t)((const uint16_t *)view.pointer)[k] << 16;
            float value;
            memcpy(&value, &bits, sizeof value);
            HOLDS(value == wanted);
        }
        let_go(&view, 0);
    }
    end(runtime, group, member);
}

/* Who adds to expert `e` in a step, as nobody's tokens went to some of them. */
enum { NOBODY, ONE, ALL, ONE_BEFORE, NOBODY_TWICE, WAYS };

static void give(stw_tensor *gradient, uint32_t way, uint64_t elements, uint32_t rank)
{
    float *ones = malloc(elements * sizeof *ones);
    for (uint64_t k = 0; k < elements; ++k) ones[k] = 1;
    stw_reduce_options more = {.struct_size = sizeof more, .flags = STW_REDUCE_MORE};
    if (way == ONE_BEFORE) SUCCEEDS(stw_reduce(gradient, rank == 1 ? ones : NULL, &more));
    if (way == NOBODY_TWICE) SUCCEEDS(stw_reduce(gradient, NULL, &more));
    SUCCEEDS(stw_reduce(gradient, way == ALL || (way == ONE && rank == 0) ? ones : NULL, NULL));
    free(ones);
}

/* An expert that nobody used has no gradient: no decay, no count, on one rank as on several. */
CLAIM(what_no_rank_has_a_gradient_for_is_left_alone)
{
    enum { KINDS = 3, EXPERTS = WAYS * KINDS, STEPS_OF_EXPERTS = 2 };
    static const uint64_t sizes[KINDS] = {500, 60000, 700}; /* alone, and together with others */
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 24);
    stw_tensor *parameters[EXPERTS];
    stw_tensor *gradients[EXPERTS];
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_ADAMW);
    for (uint32_t i = 0; i < EXPERTS; ++i) {
        const char parameter[] = {'p', (char)('a' + i), '\0'};
        const char gradient[] = {'g', (char)('a' + i), '\0'};
        const uint32_t partition = i / WAYS == 2 ? STW_PARTITION_REPLICATED : STW_PARTITION_SHARDED;
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        parameters[i] = make(runtime, parameter, sizes[i / WAYS], STW_ROLE_PARAM, partition);
        gradients[i] = make(runtime, gradient, sizes[i / WAYS], STW_ROLE_GRAD, partition);
        SUCCEEDS(stw_tensor_fill(parameters[i], 1.0, NULL));
        entry.parameter = parameters[i], entry.gradient = gradients[i];
        SUCCEEDS(stw_optimizer_add(optimizer, &entry, 1));
    }
    for (uint32_t step = 1; step <= STEPS_OF_EXPERTS; ++step) {
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        for (uint32_t i = 0; i < EXPERTS; ++i) {
            give(gradients[i], i % WAYS, sizes[i / WAYS], member->rank);
        }
        stw_update_options update = {
            .struct_size = sizeof update, .flags = STW_UPDATE_WAIT, .clip_norm = 1.0};
        SUCCEEDS(stw_optimizer_step(optimizer, &update, &result));
        HOLDS(result.without_gradient == 2 * KINDS && result.updated == 3 * KINDS);
        for (uint32_t i = 0; i < EXPERTS; ++i) {
            const bool used = i % WAYS != NOBODY && i % WAYS != NOBODY_TWICE;
            uint64_t count = 9;
            SUCCEEDS(stw_optimizer_get_count(optimizer, parameters[i], &count));
            HOLDS(count == (used ? step : 0));
            stw_view weights = fetch(runtime, parameters[i], STW_READ, STW_WHOLE);
            HOLDS((((const float *)weights.pointer)[sizes[i / WAYS] - 1] != 1.0F) == used);
            let_go(&weights, 0);
        }
    }
    end(runtime, group, member);
}
