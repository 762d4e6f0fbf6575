// SPDX-License-Identifier: Apache-2.0
// Steps of an optimizer: what a call names, the room that an update needs, the verdict over ranks,
// and what the program is told.
#include "lib/runtime/optimizers/table.h"

#include "lib/residency/core.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/sums.h"
#include "lib/runtime/ranks/wholes.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/updates/body.h"
#include "lib/runtime/views/sleepers.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stepwell {

using residency::PlaceId;

namespace {

void fill_result(const update::StepResult &from, stw_update_result *result_out)
{
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    result.skipped = from.skipped;
    result.norm = from.norm;
    result.clip_coefficient = from.clip_coefficient;
    result.nonfinite = from.nonfinite;
    result.updated = from.updated;
    result.without_gradient = from.without_gradient;
    result.early = from.early;
    result.undone = from.undone;
    result.struct_size = std::min<uint32_t>(result_out->struct_size, sizeof result);
    std::memcpy(result_out, &result, result.struct_size);
}

bool is_frozen(const stw_tensor *tensor)
{
    return (tensor->flags & STW_TENSOR_READ_ONLY) != 0;
}

Status check_none_frozen(const std::vector<stw_tensor *> &parameters)
{
    const auto frozen = std::find_if(parameters.begin(), parameters.end(), is_frozen);
    if (frozen == parameters.end()) return {};
    return Status::error(STW_ERROR_INVALID,
                         "%s is frozen; leave it out of the step, or let it be written "
                         "again with stw_tensor_freeze",
                         parameter_text((*frozen)->name).c_str());
}

}  // namespace

// True if the step is limited to some parameters: those that the program names, or all but the
// frozen ones.
bool OptimizerTable::name_parameters(const OptimizerBody &body, const stw_update_options &options,
                                     std::vector<stw_tensor *> *named)
{
    if (options.parameters) {
        named->assign(options.parameters, options.parameters + options.parameter_count);
        return true;
    }
    if ((options.flags & STW_UPDATE_REJECT) != 0) return false;  // all that steps have begun
    MutexLock lock(dispatch_.mutex());
    const std::vector<stw_tensor *> &held = body.held;
    if (std::none_of(held.begin(), held.end(), is_frozen)) return false;
    std::set<const stw_tensor *> seen;  // a parameter may have several entries
    for (size_t i = 0; i < held.size(); i += 2) {
        stw_tensor *parameter = held[i];
        if (!is_frozen(parameter) && seen.insert(parameter).second) named->push_back(parameter);
    }
    return true;
}

Status OptimizerTable::optimizer_step(stw_optimizer *optimizer, const stw_update_options &options,
                                      stw_update_result *result_out)
{
    STW_TRY(placement_.check_cpu_room());
    STW_TRY(zeros_.write_all_zeros());
    OptimizerBody &body = body_of(optimizer);
    std::vector<stw_tensor *> named;
    const bool some = name_parameters(body, options, &named);
    std::vector<residency::TensorId> parameters;
    parameters.reserve(named.size() + 1);  // not null, which would mean all parameters
    std::vector<const void *> gradients;
    for (size_t i = 0; i < named.size(); ++i) {
        bool updated_here = false;
        STW_TRY(find_parameter(body, named[i], &updated_here));
        if (!updated_here) continue;
        parameters.push_back(named[i]->id);
        gradients.push_back(options.gradients ? options.gradients[i] : nullptr);
    }
    if (options.parameters) STW_TRY(check_none_frozen(named));
    if (options.gradients && machine_.ranks) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "A step over ranks has its gradients in tensors, where they are "
                             "summed: options.gradients is not null.");
    }
    const std::vector<stw_tensor *> tensors = some ? std::move(named) : held_by(body);
    STW_TRY(check_update_room(body, tensors));
    update::StepOptions step;
    step.flags = options.flags;
    step.wants_verdict = result_out != nullptr;
    step.parameters = some ? parameters.data() : nullptr;
    step.parameter_count = static_cast<uint32_t>(parameters.size());
    step.gradients = options.gradients ? gradients.data() : nullptr;
    step.gradient_scale = options.gradient_scale;
    step.clip_norm = options.clip_norm;
    step.norm_type = options.norm_type;
    step.timeout_ns = dispatch_.timeout(options.timeout_ns);
    step.thread = recorder_.owner_number();
    STW_TRY(check_own_views(body, step));
    const bool speculates = (step.flags & STW_UPDATE_SPECULATE) != 0;
    update::StepOptions waiting = step;
    waiting.flags |= STW_UPDATE_WAIT;
    const bool conceals = machine_.touches && !speculates;
    const bool waits_for_others = conceals && check_own_views(body, waiting).ok();
    update::StepResult result;
    const residency::Instant begin = dispatch_.now();
    Status status = machine_.ranks ? step_on_ranks(body, tensors, some, step, &result)
                                   : body.optimizer->step(step, &result);
    if (result_out) {
        MutexLock lock(dispatch_.mutex());
        recorder_.add_stall_of(recorder_.current_step(), observe::Stall::kUpdate, residency::kNone,
                               begin, dispatch_.now());
    }
    if (conceals) {
        Status concealed = await_concealed(changed_by(body, tensors, some), waits_for_others,
                                           dispatch_.deadline(begin, options.timeout_ns));
        if (status.ok()) status = std::move(concealed);
    }
    if (speculates) tell_early(body);
    sleepers_.log_timeout(status);
    if (!status.ok()) return sleepers_.tell_waiting(std::move(status));
    if (result_out) fill_result(result, result_out);
    MutexLock lock(dispatch_.mutex());
    updates.steps += 1;
    updates.skipped += result.skipped;
    updates.parameters += result.updated;
    return status;
}

// BUSY if the call would wait for a view that its own thread holds.
Status OptimizerTable::check_own_views(const OptimizerBody &body,
                                       const update::StepOptions &step) const
{
    for (const stw_tensor *tensor : sleepers_.viewed_by(step.thread)) {
        bool claimed = false;
        {
            MutexLock lock(dispatch_.mutex());
            claimed = dispatch_.core.claimed_by(tensor->id) != 0;
        }
        if (!body.optimizer->waits_for_views(step, tensor->id, claimed)) continue;
        return Status::error(STW_ERROR_BUSY,
                             "the step of optimizer '%s' would wait for a view of %s that this "
                             "thread holds; release that view first",
                             body.name.c_str(), tensor_text(tensor->name).c_str());
    }
    return {};
}

std::vector<OptimizerBody *> OptimizerTable::live() const
{
    std::vector<OptimizerBody *> found;
    MutexLock lock(dispatch_.mutex());
    for (const std::unique_ptr<OptimizerBody> &body : bodies) {
        if (body->handle) found.push_back(body.get());
    }
    return found;
}

Status OptimizerTable::reject_early()
{
    for (OptimizerBody *body : live()) {
        if (body->optimizer->awaits_verdict() == nullptr) continue;
        stw_update_options options = STW_UPDATE_OPTIONS_INIT;
        options.flags = STW_UPDATE_REJECT | STW_UPDATE_KEEP_GRADIENTS;
        STW_TRY(optimizer_step(body->handle, options, nullptr));
    }
    return {};
}

Status OptimizerTable::create_tensors(const stw_tensor_spec *specs, uint32_t n,
                                      stw_tensor **tensors_out, OptimizerBody *changed)
{
    Status status = registry_.create_tensors(specs, n, tensors_out);
    if (status.code() != STW_ERROR_BUDGET && status.code() != STW_ERROR_NO_SPACE) return status;
    bool given = changed != nullptr && changed->optimizer->give_older_back();
    for (OptimizerBody *body : live()) {
        // One that changes now is left as it is: this thread may hold another one's lock.
        if (body == changed || !body->changes.try_lock()) continue;
        if (body->optimizer) given |= body->optimizer->give_older_back();
        body->changes.unlock();
    }
    return given ? registry_.create_tensors(specs, n, tensors_out) : status;
}

void OptimizerTable::tell_early(OptimizerBody &body)
{
    const update::EarlyState state = body.optimizer->early_state();
    if (std::exchange(body.early, state) == state) return;
    const char *const name = body.name.c_str();
    switch (state) {
    case update::EarlyState::kGoes:
        dispatch_.log.print(STW_LOG_INFO, "update",
                            "Optimizer '%s' updates before the verdict again.", name);
        return;
    case update::EarlyState::kMisses:
        dispatch_.log.print(STW_LOG_WARNING, "update",
                            "Optimizer '%s' updates after the verdict for a while: too many of the "
                            "last verdicts were others than expected, as the clip was reached or "
                            "values were not finite.",
                            name);
        return;
    case update::EarlyState::kDoesNotPay:
        dispatch_.log.print(
            STW_LOG_INFO, "update",
            "Optimizer '%s' updates after the verdict for its next %u steps: with "
            "updates before it, each of %u steps took longer than any of %u without.",
            name, update::kEarlyTrialBetween, update::kEarlyTrialRounds, update::kEarlyTrialRounds);
    }
}

// All that a step changes, whether it has elements on this rank or not: parameters, their gradients
// and states.
std::vector<stw_tensor *> OptimizerTable::changed_by(const OptimizerBody &body,
                                                     std::vector<stw_tensor *> named,
                                                     bool some) const
{
    std::vector<stw_tensor *> changed;
    std::sort(named.begin(), named.end());
    const auto add = [&](const stw_tensor *parameter, stw_tensor *tensor) {
        const bool is_named = !some || std::binary_search(named.begin(), named.end(), parameter);
        if (is_named && (tensor->sharding || !machine_.ranks)) changed.push_back(tensor);
    };
    for (const auto &[key, state] : body.states) add(state.parameter, state.tensor);
    MutexLock lock(dispatch_.mutex());
    for (size_t i = 0; i < body.held.size(); ++i) add(body.held[i / 2 * 2], body.held[i]);
    return changed;
}

// with_shared: none of the updates waits for a view of this thread. Small tensors are updated
// first, as the step waits for them.
Status OptimizerTable::await_concealed(const std::vector<stw_tensor *> &changed, bool with_shared,
                                       residency::Instant deadline)
{
    std::vector<residency::TensorId> ids;
    {
        MutexLock lock(dispatch_.mutex());
        for (const stw_tensor *tensor : changed) {
            ids.push_back(tensor->id);
            if (with_shared && dispatch_.core.shares_blocks(tensor->id))
                machine_.pipeline->prefer(tensor->id);
        }
    }
    return machine_.touches->await_concealed(views_, ids, with_shared, deadline);
}

// A step whose verdict is that of all ranks. If collectives run on the callers' threads, this one
// executes them until the verdict is known.
Status OptimizerTable::step_on_ranks(OptimizerBody &body, const std::vector<stw_tensor *> &tensors,
                                     bool some, update::StepOptions step,
                                     update::StepResult *result)
{
    const residency::Instant begin = dispatch_.now();
    const residency::Instant deadline = begin + step.timeout_ns;
    const bool here = collectives_.works_here();
    STW_TRY(Status(machine_.ranks->group.broken()));
    const auto work_until = [&](const std::function<bool()> &done) -> Status {
        MutexLock lock(dispatch_.mutex());
        if (collectives_.wait_ranks(begin, deadline, done)) return {};
        STW_TRY(dispatch_.interrupted_since(begin));
        return Status::error(STW_ERROR_TIMEOUT,
                             "the ranks had not agreed on the step of optimizer "
                             "'%s' when the timeout passed",
                             body.name.c_str());
    };
    const bool has_verdict = update::has_verdict(step);
    if (here) {
        STW_TRY(work_until([&]() STW_REQUIRES(runtime_lock) {
            return (!has_verdict || collectives_.is_idle()) && body.optimizer->may_begin(step);
        }));
    }
    const std::vector<stw_tensor *> changed = changed_by(body, tensors, some);
    const bool early = (step.flags & STW_UPDATE_SPECULATE) != 0;
    // A gathered view that writes is copied to the shards when it is released. That may be queued
    // before the verdict, for which it would wait, so this step has no effect.
    if (early && wholes_.written_gathered(changed)) return {};
    const std::shared_ptr<LocalVerdict> verdict = sums_.queue_verdict(body, tensors, changed, step);
    step.agreement = verdict.get();
    step.returns = here && verdict;
    Status status = body.optimizer->step(step, result);
    const bool begun = verdict ? verdict->adopted : status.ok();
    if (begun && (step.flags & STW_UPDATE_MEASURE) == 0) wholes_.set_undecided(changed, early);
    if (!verdict) return status;
    if (!verdict->adopted) verdict->retract(status);
    if (!here || !status.ok()) return status;
    const bool waits = (step.flags & STW_UPDATE_WAIT) != 0;
    STW_TRY(work_until([&] {
        status = body.optimizer->result(result);
        return status.code() != STW_PENDING && (!waits || !body.optimizer->pending());
    }));
    return status;
}

Status OptimizerTable::optimizer_result(stw_optimizer *optimizer, stw_update_result *result_out)
{
    update::StepResult result;
    Status status = body_of(optimizer).optimizer->result(&result);
    if (status.ok() && status.code() != STW_PENDING) fill_result(result, result_out);
    return status;
}

// An update of a parameter needs a block of each of its tensors at one place at a time. A shared
// block counts once.
Status OptimizerTable::check_update_room(const OptimizerBody &body,
                                         const std::vector<stw_tensor *> &parameters) const
{
    MutexLock lock(dispatch_.mutex());
    uint64_t room = 0;
    for (PlaceId place = 0; place <= machine_.tiers.host(); ++place) {
        const memory::Tier &at = machine_.tiers[place];
        if (at.memory && at.computes) return {};  // has a check of its own where it is chosen
        if (at.memory && at.cpu_access) room = std::max(room, dispatch_.core.passing_blocks(place));
    }
    if (room >= update::kPiecesNeeded) return {};
    for (const stw_tensor *parameter : parameters) {
        std::set<residency::BlockId> blocks;
        for (const residency::TensorId tensor : body.optimizer->tensors(parameter->id)) {
            blocks.insert(dispatch_.core.blocks_of(tensor).first);
        }
        if (blocks.size() <= room) continue;
        const uint64_t needed = blocks.size() * machine_.block_bytes;
        Status status = Status::error(
            STW_ERROR_BUDGET,
            "an update of %s works on %zu blocks at once, of it, its gradient and "
            "states: %s needed; budget %s; raise it with stw_tier_set_budget, or open with more",
            parameter_text(parameter->name).c_str(), blocks.size(), bytes_text(needed).c_str(),
            sum_text({{room * machine_.block_bytes,
                       "of the largest tier that the CPU works in, without tensors at home there"}})
                .c_str());
        status.mutable_detail().tensor = parameter->name;
        status.mutable_detail().needed_bytes = needed;
        status.mutable_detail().free_bytes = room * machine_.block_bytes;
        return status;
    }
    return {};
}

}  // namespace stepwell
