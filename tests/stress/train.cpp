// SPDX-License-Identifier: Apache-2.0
// Gradients of one actor's parameters and their updates: plain, early, rejected, aborted.
#include "actor.h"

namespace stress {

bool Actor::reduce_view(stw_tensor *gradient, uint64_t elements, uint64_t amount)
{
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = gradient;
    request.access = STW_REDUCE;
    request.tier = a_tier();
    const stw_fetch_options with = options(STW_FETCH_WAIT_ROOM);
    stw_view view;
    if (!accept("fetch to reduce", stw_fetch(world_.runtime, &with, &request, 1, &view), false)) {
        return false;
    }
    auto *values = static_cast<float *>(view.pointer);
    for (uint64_t i = 0; i < elements; ++i) {
        if (values[i] != 0) world_.fail("actor %u: a reduce view has %g", number_, values[i]);
        values[i] += static_cast<float>(amount);
    }
    const bool drops = chance(10);
    const uint32_t flags = drops ? STW_RELEASE_ABANDON : chance(50) ? STW_RELEASE_MORE : 0;
    accept("release of a reduce", stw_release(&view, 1, STW_STREAM_HOST, flags), false);
    return !drops;
}

void Actor::reduce_into(uint32_t parameter, uint64_t amount)
{
    stw_tensor *gradient = mine_.gradients[parameter];
    const uint64_t elements = mine_.parameters[parameter]->elements;
    if (world_.features.aborts || chance(60)) {
        if (!reduce_view(gradient, elements, amount)) return;
        mine_.summed[parameter] += amount;
        touched_ |= 1u << parameter;
        return;
    }
    stw_reduce_options with = STW_REDUCE_OPTIONS_INIT;
    with.flags = chance(50) ? STW_REDUCE_MORE : 0;
    if (chance(50)) {  // the memory goes with it
        auto *given = new std::vector<float>(elements, static_cast<float>(amount));
        const auto end = [](void *user) { delete static_cast<std::vector<float> *>(user); };
        if (accept("reduce", stw_reduce_adopt(gradient, given->data(), &with, end, given), false)) {
            mine_.summed[parameter] += amount;
        } else {
            delete given;
        }
        return;
    }
    scratch_.assign(elements, static_cast<float>(amount));
    if (accept("reduce", stw_reduce(gradient, scratch_.data(), &with), false)) {
        mine_.summed[parameter] += amount;
    }
}

// A failure behind a call left sums and parameters that nobody knows.
void Actor::restart_parameters()
{
    for (size_t i = 0; i < mine_.parameters.size(); ++i) {
        Owned &parameter = *mine_.parameters[i];
        if (parameter.trusted.load() == world_.distrust.load()) continue;
        stw_tensor *gradient = mine_.gradients[i];
        if (!accept("fill", stw_tensor_fill(gradient, 0.0, nullptr), false)) continue;
        mine_.summed[i] = 0;
        write_own(parameter);
    }
}

stw_status Actor::step_early(uint32_t parameter)
{
    stw_update_options early = STW_UPDATE_OPTIONS_INIT;
    early.flags = STW_UPDATE_SPECULATE;
    early.parameters = &mine_.parameters[parameter]->tensor;
    early.parameter_count = 1;
    return stw_optimizer_step(mine_.optimizer, &early, nullptr);
}

void Actor::train()
{
    if (world_.setup.errors_allowed) restart_parameters();
    const bool aborts = world_.features.aborts && !step_open_ && chance(20);
    touched_ = 0;
    if (aborts) accept("step begin", stw_step_begin(mine_.phase), false);
    for (uint32_t i = 0; i < mine_.parameters.size(); ++i) {
        if (chance(70)) reduce_into(i, 1 + random(3));
    }
    if (aborts) {
        // What the step summed into goes whole, what lay there before included.
        for (uint32_t i = 0; i < mine_.gradients.size(); ++i) {
            if (chance(50)) reduce_into(i, 1);
            if (touched_ & (1u << i)) mine_.summed[i] = 0;
        }
        // Set back by the abort.
        if (chance(50)) accept("early step", step_early(static_cast<uint32_t>(random(2))), false);
        accept("step abort", stw_step_abort(mine_.phase, STW_STREAM_HOST), false);
        return;
    }
    if (chance(30)) return;
    stw_update_options with = STW_UPDATE_OPTIONS_INIT;
    const bool keeps = chance(20);
    if (keeps) with.flags |= STW_UPDATE_KEEP_GRADIENTS;
    if (chance(20)) with.flags |= STW_UPDATE_WAIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    uint64_t after[2] = {};
    for (size_t i = 0; i < 2; ++i) {
        Owned &parameter = *mine_.parameters[i];
        after[i] = parameter.ceiling.load() + mine_.summed[i];
        if (after[i] > kValueMax) return;
        parameter.ceiling.store(after[i]);
    }
    stw_update_result *const verdict = chance(50) ? &result : nullptr;
    stw_status status = STW_OK;
    const bool speculates = chance(40);
    bool early[2] = {};
    for (uint32_t i = 0; i < 2 && speculates && status >= 0; ++i) {
        early[i] = chance(70);
        if (early[i]) status = step_early(i);
    }
    const bool rejects = speculates && status >= 0 && chance(30);
    if (rejects) with.flags |= STW_UPDATE_REJECT;
    if (!speculates && chance(50)) {  // each parameter in a step of its own
        for (size_t i = 0; i < 2 && status >= 0; ++i) {
            with.parameters = &mine_.parameters[i]->tensor;
            with.parameter_count = 1;
            status = stw_optimizer_step(mine_.optimizer, &with, verdict);
        }
    } else if (status >= 0) {
        status = stw_optimizer_step(mine_.optimizer, &with, verdict);
    }
    world_.counters.updates.fetch_add(1);
    if (!accept("optimizer step", status, false)) {
        for (Owned *parameter : mine_.parameters) parameter->trusted.store(UINT64_MAX);
        return;
    }
    for (size_t i = 0; i < 2; ++i) {
        if (!rejects) mine_.parameters[i]->floor.store(after[i]);
        if (rejects) mine_.parameters[i]->ceiling.store(after[i] - mine_.summed[i]);
        if (!keeps && (!rejects || early[i])) mine_.summed[i] = 0;
    }
}

// Sums of everybody: each contribution is in it once, whole, or not yet.
void Actor::sum_operation()
{
    Owned &sum = *world_.sums[random(world_.sums.size())];
    const uint64_t amount = 1 + random(3);
    if (sum.ceiling.load() > kValueMax) return;
    sum.ceiling.fetch_add(amount);
    if (!reduce_view(sum.tensor, sum.elements, amount)) return;
    if (!world_.setup.errors_allowed) sum.floor.fetch_add(amount);
}

}  // namespace stress
