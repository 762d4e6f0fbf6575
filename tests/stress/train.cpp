// SPDX-License-Identifier: Apache-2.0
// Gradients of one actor's parameters and their updates: plain, early, rejected, aborted, frozen,
// and what is asked for between an early update and its verdict.
#include "actor.h"

#include <algorithm>

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
    const stw_status status = stw_reduce(gradient, scratch_.data(), &with);
    if (status == STW_ERROR_INTERRUPTED && !empty_gradient(parameter))
        mine_.parameters[parameter]->trusted.store(UINT64_MAX);
    if (accept("reduce", status, false)) mine_.summed[parameter] += amount;
}

// To what is known again.
bool Actor::empty_gradient(uint32_t parameter)
{
    const auto fill = [&] { return stw_tensor_fill(mine_.gradients[parameter], 0.0, nullptr); };
    if (!accept("fill", again(fill), false)) return false;
    mine_.summed[parameter] = 0;
    return true;
}

// A failure behind a call left sums and parameters that nobody knows.
void Actor::restart_parameters()
{
    for (size_t i = 0; i < mine_.parameters.size(); ++i) {
        Owned &parameter = *mine_.parameters[i];
        if (parameter.trusted.load() == world_.distrust.load()) continue;
        stw_tensor *gradient = mine_.gradients[i];
        const auto fill = [&] { return stw_tensor_fill(gradient, 0.0, nullptr); };
        if (!accept("fill", again(fill), false)) continue;
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

// Parameters may be as high as this from now on.
void Actor::raise(uint64_t (&after)[2])
{
    for (size_t i = 0; i < 2; ++i) {
        Owned &parameter = *mine_.parameters[i];
        after[i] = parameter.ceiling.load() + mine_.summed[i];
        parameter.peak.store(std::max(parameter.peak.load(), after[i]));
    }
}

// What only this thread's verdict would end is refused to it at once, and nothing else waits for
// the verdict.
void Actor::ask_before_verdict(uint32_t parameter)
{
    Owned &owned = *mine_.parameters[parameter];
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = owned.tensor;
    stw_status status = STW_OK;
    const char *what = "";
    switch (random(7)) {
    case 0: touch_owned(owned); break;
    case 1:
    case 2: {
        const uint32_t flags = chance(50) ? STW_FETCH_SPECULATED : 0;
        const stw_fetch_options with = options(STW_FETCH_WAIT_ROOM | flags);
        stw_view view;
        what = "fetch before the verdict";
        owned.views.fetch_add(1);
        status = stw_fetch(world_.runtime, &with, &request, 1, &view);
        if (status == STW_OK) accept("release", stw_release(&view, 1, STW_STREAM_HOST, 0), false);
        owned.views.fetch_sub(1);
        break;
    }
    case 3:
        what = "freeze before the verdict";
        status = stw_tensor_freeze(owned.tensor, 1);
        if (status == STW_OK) accept("thaw", stw_tensor_freeze(owned.tensor, 0), false);
        break;
    case 4: evict_operation(); break;
    case 5:
        if (world_.features.budgets) world_.change_budget(next_random(&state_));
        break;
    default: commit_operation(); break;
    }
    if (status != STW_ERROR_BUSY) accept(what, status, false);
}

// What an interrupted step has done is known once it has ended; not after a failure.
void Actor::recover()
{
    uint64_t trusted[2] = {};
    for (uint32_t i = 0; i < 2; ++i) trusted[i] = mine_.parameters[i]->trusted.exchange(UINT64_MAX);
    stw_update_options rejects = STW_UPDATE_OPTIONS_INIT;
    rejects.flags = STW_UPDATE_REJECT;
    const auto reject = [&] { return stw_optimizer_step(mine_.optimizer, &rejects, nullptr); };
    const auto drain = [&] { return stw_runtime_drain(world_.runtime, kWaitNs); };
    if (!accept("reject", again(reject), false) || !accept("drain", again(drain), false)) return;
    for (uint32_t i = 0; i < 2; ++i) {
        Owned &parameter = *mine_.parameters[i];
        if (!empty_gradient(i)) continue;
        scratch_.resize(parameter.elements);
        const auto read = [&] {
            return stw_tensor_read(parameter.tensor, scratch_.data(), nullptr);
        };
        if (!accept("read", again(read), false)) continue;
        parameter.trusted.store(trusted[i]);
        check_owned(parameter, scratch_.data(), parameter.elements, parameter.floor.load(),
                    trusted[i]);
        const auto value = static_cast<uint64_t>(scratch_[0]);
        parameter.ceiling.store(value);
        parameter.floor.store(value);
    }
}

void Actor::abort_step()
{
    // What the step summed into goes whole, what lay there before included.
    uint64_t after[2] = {};
    for (uint32_t i = 0; i < mine_.gradients.size(); ++i) {
        if (chance(50)) reduce_into(i, 1);
    }
    raise(after);
    for (uint32_t i = 0; i < mine_.gradients.size(); ++i) {
        if (touched_ & (1u << i)) mine_.summed[i] = 0;
    }
    const auto alone = locked<std::unique_lock<std::shared_mutex>>(world_.verdicts);
    stw_status status = STW_OK;
    if (chance(50)) {  // set back by the abort
        const auto parameter = static_cast<uint32_t>(random(2));
        status = step_early(parameter);
        accept("early step", status, false);
        if (status >= 0 && chance(30)) ask_before_verdict(parameter);
    }
    const stw_status aborted = stw_step_abort(mine_.phase, STW_STREAM_HOST);
    accept("step abort", aborted, false);
    if (status == STW_ERROR_INTERRUPTED || aborted == STW_ERROR_INTERRUPTED) recover();
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
    if (aborts) return abort_step();
    if (chance(30)) return;
    stw_update_options with = STW_UPDATE_OPTIONS_INIT;
    const bool keeps = chance(20);
    if (keeps) with.flags |= STW_UPDATE_KEEP_GRADIENTS;
    if (chance(20)) with.flags |= STW_UPDATE_WAIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    uint64_t after[2] = {};
    raise(after);
    if (std::max(after[0], after[1]) > kValueMax) return;
    for (size_t i = 0; i < 2; ++i) mine_.parameters[i]->ceiling.store(after[i]);
    stw_update_result *const verdict = chance(50) ? &result : nullptr;
    stw_status status = STW_OK;
    const bool speculates = chance(40);
    const auto together = locked<std::shared_lock<std::shared_mutex>>(world_.verdicts);
    bool early[2] = {};
    for (uint32_t i = 0; i < 2 && speculates && status >= 0; ++i) {
        early[i] = chance(70);
        if (early[i]) status = step_early(i);
        if (early[i] && status >= 0 && chance(20)) ask_before_verdict(i);
    }
    const bool rejects = speculates && status >= 0 && chance(30);
    if (rejects) with.flags |= STW_UPDATE_REJECT;
    bool frozen = false;
    if (!speculates && chance(50)) {  // each parameter in a step of its own
        for (size_t i = 0; i < 2 && status >= 0; ++i) {
            with.parameters = &mine_.parameters[i]->tensor;
            with.parameter_count = 1;
            status = stw_optimizer_step(mine_.optimizer, &with, verdict);
        }
    } else if (status >= 0) {
        frozen = !early[0] && chance(20);
        if (frozen) accept("freeze", stw_tensor_freeze(mine_.parameters[0]->tensor, 1), false);
        status = stw_optimizer_step(mine_.optimizer, &with, verdict);
        if (frozen) accept("thaw", stw_tensor_freeze(mine_.parameters[0]->tensor, 0), false);
    }
    world_.counters.updates.fetch_add(1);
    if (status == STW_ERROR_INTERRUPTED && world_.features.interrupts) return recover();
    if (!accept("optimizer step", status, false)) {
        for (Owned *parameter : mine_.parameters) parameter->trusted.store(UINT64_MAX);
        return;
    }
    for (size_t i = 0; i < 2; ++i) {
        const bool stays = rejects || (frozen && i == 0);
        if (!stays) mine_.parameters[i]->floor.store(after[i]);
        if (stays) mine_.parameters[i]->ceiling.store(after[i] - mine_.summed[i]);
        const bool used = frozen && i == 0 ? false : !rejects || early[i];
        if (!keeps && used) mine_.summed[i] = 0;
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
