// SPDX-License-Identifier: Apache-2.0
// What an optimizer is made of: its entries, hyper-parameters and step counts. On the caller's
// threads, between steps.
#include "lib/update/optimizer.h"

#include "lib/support/assert.h"
#include "lib/support/growth.h"
#include "lib/update/optimizer_parts.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <iterator>
#include <limits>
#include <new>

namespace stepwell::update {
namespace {

constexpr uint32_t kKnownHyperFlags = STW_HYPER_NESTEROV | STW_HYPER_MAXIMIZE;

bool is_adam(uint32_t algorithm)
{
    return algorithm == STW_OPTIMIZER_ADAMW || algorithm == STW_OPTIMIZER_ADAM;
}

bool is_ours(uint32_t algorithm)
{
    return is_adam(algorithm) || algorithm == STW_OPTIMIZER_SGD ||
           algorithm == STW_OPTIMIZER_ADAGRAD || algorithm == STW_OPTIMIZER_LION;
}

bool overlap(uint64_t a_begin, uint64_t a_count, uint64_t b_begin, uint64_t b_count)
{
    return a_begin < b_begin + b_count && b_begin < a_begin + a_count;
}

}  // namespace

StateNames state_names(uint32_t algorithm, const stw_hyper &hyper, const stw_custom_update *custom)
{
    StateNames names;
    if (is_adam(algorithm)) {
        names.names[names.count++] = "exp_avg";
        names.names[names.count++] = "exp_avg_sq";
    } else if (algorithm == STW_OPTIMIZER_SGD && hyper.momentum != 0.0) {
        names.names[names.count++] = "momentum";
    } else if (algorithm == STW_OPTIMIZER_ADAGRAD) {
        names.names[names.count++] = "sum";
    } else if (algorithm == STW_OPTIMIZER_LION) {
        names.names[names.count++] = "exp_avg";
    } else if (algorithm == STW_OPTIMIZER_CUSTOM && custom != nullptr) {
        names.count = std::min(custom->state_count, kStatesMax);
        std::copy(custom->state_names, custom->state_names + names.count, names.names);
    }
    return names;
}

Optimizer::Optimizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Optimizer::~Optimizer()
{
    STW_ASSERT(!pending());
    Pipeline::Parts &pipeline = parts_->pipeline;
    for (const ParameterJob &job : parts_->jobs) {
        for (const TensorId older : job.older) {
            if (older != kNone) pipeline.tiers.drop_older(older);
        }
    }
    MutexLock lock(pipeline.mutex);
    for (ParameterJob &job : parts_->jobs) {
        pipeline.forget_measure(job.shape.layouts[ParameterJob::kGradient].tensor, job.measure);
    }
}

Result<std::unique_ptr<Optimizer>> Optimizer::create(Pipeline &pipeline, uint32_t algorithm,
                                                     const stw_custom_update *custom,
                                                     double average_decay, TorchOrder torch_order)
{
    const bool needs_custom = algorithm == STW_OPTIMIZER_CUSTOM;
    if (!is_ours(algorithm) && !needs_custom) {
        return Status::error(STW_ERROR_INVALID, "This build has no optimizer number %u.",
                             algorithm);
    }
    if (needs_custom &&
        (custom == nullptr || custom->update == nullptr || custom->state_count > kStatesMax)) {
        return Status::error(STW_ERROR_INVALID,
                             "A custom optimizer needs its update function and at most %u states.",
                             kStatesMax);
    }
    if (!(average_decay >= 0.0 && average_decay < 1.0)) {
        return Status::error(STW_ERROR_INVALID,
                             "The decay of the moving average is %g; it is above 0 and below 1, or "
                             "0 for none.",
                             average_decay);
    }
    auto parts = std::make_unique<Parts>(pipeline, algorithm);
    if (needs_custom) parts->custom = *custom;
    parts->average_decay = average_decay;
    parts->torch_order = torch_order;
    return std::unique_ptr<Optimizer>(new Optimizer(std::move(parts)));
}

// --------------------------------------------------------------------------------- parameters ----

stw_hyper Optimizer::Parts::hyper_of(uint32_t group) const
{
    const auto found = hypers.find(group);
    return found != hypers.end() ? found->second : stw_hyper STW_HYPER_INIT;
}

uint32_t Optimizer::Parts::states_needed(const stw_hyper &hyper) const
{
    return state_names(algorithm, hyper, custom.update != nullptr ? &custom : nullptr).count;
}

Status Optimizer::Parts::check_entry(const Entry &entry) const
{
    if (element_bytes(entry.parameter_dtype) == 0 || element_bytes(entry.gradient_dtype) == 0) {
        return Status::error(STW_ERROR_INVALID,
                             "%s has dtype %u, its gradient %u; an optimizer takes F32, "
                             "F16 and BF16",
                             parameter_text(entry.name).c_str(), entry.parameter_dtype,
                             entry.gradient_dtype);
    }
    if (entry.element_count == 0 || entry.element_begin > UINT64_MAX - entry.element_count) {
        return Status::error(STW_ERROR_INVALID, "%s has no elements to update",
                             parameter_text(entry.name).c_str());
    }
    const uint32_t needed = states_needed(hyper_of(entry.group));
    const uint32_t given = std::min(entry.state_count, kStatesMax);
    const bool missing =
        std::find(entry.states, entry.states + given, kNone) != entry.states + given;
    const bool has_master = entry.master != kNone || entry.low != kNone;
    if (missing || entry.state_count < needed || entry.state_count > kStatesMax ||
        has_master != (entry.parameter_dtype != STW_F32) || entry.parameter == kNone ||
        entry.gradient == kNone) {
        return Status::error(STW_ERROR_INVALID,
                             "%s has %u states and %s master; its algorithm needs %u "
                             "states, and a master unless the parameter is F32",
                             parameter_text(entry.name).c_str(), entry.state_count,
                             has_master ? "a" : "no", needed);
    }
    const bool narrow = entry.state_dtype == STW_BF16 && custom.update == nullptr;
    if (entry.state_dtype != STW_F32 && !narrow) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s has states of dtype %u; they are F32, or BF16 beside an "
                             "update of this library's",
                             parameter_text(entry.name).c_str(), entry.state_dtype);
    }
    if ((entry.average == kNone) != (average_decay == 0.0)) {
        return Status::error(
            STW_ERROR_INVALID, "%s has %s tensor for its moving average, whose decay is %g",
            parameter_text(entry.name).c_str(), entry.average == kNone ? "no" : "a", average_decay);
    }
    return {};
}

// Parts of one parameter share everything but range and group.
Status Optimizer::Parts::check_part(const Entry &entry, const ParameterJob &job) const
{
    bool same = job.shape.parameter_dtype == entry.parameter_dtype &&
                job.shape.state_dtype == entry.state_dtype &&
                job.shape.gradient_dtype == entry.gradient_dtype &&
                job.shape.layouts[ParameterJob::kGradient].tensor == entry.gradient &&
                job.shape.state_count == entry.state_count &&
                job.shape.has_master == (entry.parameter_dtype != STW_F32) &&
                job.shape.has_average == (entry.average != kNone);
    if (same && job.shape.has_master) {
        same = job.shape.layouts[ParameterJob::kOthers].tensor ==
               (job.shape.is_split ? entry.low : entry.master);
    }
    if (same && job.shape.has_average)
        same = job.shape.layouts[job.shape.average_at()].tensor == entry.average;
    for (uint32_t i = 0; same && i < entry.state_count; ++i) {
        same = job.shape.layouts[job.shape.first_state() + i].tensor == entry.states[i];
    }
    if (!same) {
        return Status::error(STW_ERROR_MISMATCH,
                             "Two parts of parameter %u name different tensors or dtypes.",
                             entry.parameter);
    }
    for (const Part *part : job.parts) {
        if (overlap(part->element_begin, part->element_count, entry.element_begin,
                    entry.element_count)) {
            return Status::error(STW_ERROR_EXISTS,
                                 "Elements %" PRIu64 " to %" PRIu64 " of parameter %u are in this "
                                 "optimizer already, at least in part.",
                                 entry.element_begin, entry.element_begin + entry.element_count,
                                 entry.parameter);
        }
    }
    return {};
}

Status Optimizer::Parts::add_entry(const Entry &entry)
{
    STW_TRY(check_entry(entry));
    ParameterJob *job = find(entry.parameter);
    if (job != nullptr) {
        STW_TRY(check_part(entry, *job));
    } else {
        job = &jobs.emplace_back(*this, entry);
        const uint32_t tensors_of_it = job->turn_count;
        // Counts those that are its own as far as they are: going back takes these out again.
        for (job->turn_count = 0; job->turn_count < tensors_of_it; ++job->turn_count) {
            const TensorId tensor = job->turns[job->turn_count].tensor;
            if (by_tensor.emplace(tensor, job).second) continue;
            return Status::error(STW_ERROR_EXISTS, "tensor %u of %s is in this optimizer already",
                                 tensor, parameter_text(entry.name).c_str());
        }
    }
    grow_to_hold(part_jobs, part_jobs.size() + 1);
    grow_to_hold(job->parts, job->parts.size() + 1);
    Part &part = parts.emplace_back();
    part.element_begin = entry.element_begin;
    part.element_count = entry.element_count;
    part.counted = entry.counted;
    part.group = entry.group;
    part.makes_master = job->made_master;
    part.makes_average = job->made_average;
    part_jobs.push_back(job);
    job->parts.push_back(&part);
    return {};
}

ParameterJob *Optimizer::Parts::find(TensorId parameter) const
{
    const auto found = by_tensor.find(parameter);
    if (found == by_tensor.end()) return nullptr;
    ParameterJob &job = *found->second;
    return job.turns[ParameterJob::kParameter].tensor == parameter ? &job : nullptr;
}

void Optimizer::Parts::forget_last_job()
{
    ParameterJob &job = jobs.back();
    pipeline.forget_measure(job.shape.layouts[ParameterJob::kGradient].tensor, job.measure);
    for (uint32_t i = 0; i < job.turn_count; ++i) by_tensor.erase(job.turns[i].tensor);
    jobs.pop_back();
}

// What came after these goes.
void Optimizer::Parts::keep(size_t jobs_kept, size_t parts_kept)
{
    MutexLock lock(pipeline.mutex);
    while (parts.size() > parts_kept) {
        part_jobs.back()->measure.set_parts({}, 0);  // as long as there is nothing to be measured
        part_jobs.back()->parts.pop_back();
        part_jobs.pop_back();
        parts.pop_back();
    }
    while (jobs.size() > jobs_kept) forget_last_job();
}

// Steps allocate nothing: what they need is taken with the entries.
void Optimizer::Parts::reserve(const Entry *entries, uint32_t n)
{
    grow_to_hold(chosen, jobs.size());
    grow_to_hold(entering, jobs.size());
    grow_to_hold(keeping, jobs.size());
    grow_to_hold(tensors, 2 * by_tensor.size());
    grow_to_hold(judged, jobs.size());
    grow_to_hold(gradients, jobs.size());
    grow_to_hold(versions, jobs.size());
    MutexLock lock(pipeline.mutex);
    pipeline.jobs_max += static_cast<uint32_t>(jobs.size() + 1 - steps.size());
    grow_to_hold(pipeline.parked, pipeline.jobs_max);
    grow_to_hold(idle_steps, jobs.size());
    while (steps.size() <= jobs.size()) idle_steps.push_back(&steps.emplace_back());
    for (uint32_t i = 0; i < n; ++i) {
        ParameterJob &job = *find(entries[i].parameter);
        if (job.measure.parts().size() == job.parts.size()) continue;  // another part of it came
        for (uint32_t turn = 0; turn < job.turn_count; ++turn) {
            pipeline.reserve_tensor(job.turns[turn].tensor);
        }
        pipeline.register_measure(entries[i].gradient, job.measure, job.ranges());
    }
}

Status Optimizer::add(const Entry *entries, uint32_t n)
{
    if (pending()) {
        return Status::error(STW_ERROR_BUSY, "A step of this optimizer is pending; wait for it.");
    }
    const size_t jobs_before = parts_->jobs.size();
    const size_t parts_before = parts_->parts.size();
    Status status;
    try {
        for (uint32_t i = 0; i < n && status.ok(); ++i) status = parts_->add_entry(entries[i]);
        if (status.ok()) parts_->reserve(entries, n);
    } catch (const std::bad_alloc &) {
        parts_->keep(jobs_before, parts_before);
        throw;
    }
    if (!status.ok()) parts_->keep(jobs_before, parts_before);
    return status;
}

// --------------------------------------------------------------------------- hyper-parameters ----

// A custom kernel may read what it likes into them.
Status Optimizer::Parts::check_hyper(const stw_hyper &hyper) const
{
    constexpr double kBelowOne = 1.0 - 0x1p-53;
    const bool ours = algorithm != STW_OPTIMIZER_CUSTOM;
    const bool sgd = algorithm == STW_OPTIMIZER_SGD;
    const bool averages = is_adam(algorithm) || algorithm == STW_OPTIMIZER_LION;
    const struct {
        const char *name;
        double value;
        bool limited;  // from 0 to most
        double most;
    } fields[] = {
        {"lr", hyper.lr, ours, kInfinity},
        {"beta1", hyper.beta1, averages, kBelowOne},
        {"beta2", hyper.beta2, averages, kBelowOne},
        {"eps", hyper.eps, ours, kInfinity},
        {"weight_decay", hyper.weight_decay, ours, kInfinity},
        {"momentum", hyper.momentum, ours, sgd ? kInfinity : 0.0},
        {"dampening", hyper.dampening, ours && !sgd, 0.0},
        {"lr_decay", hyper.lr_decay, ours, algorithm == STW_OPTIMIZER_ADAGRAD ? kInfinity : 0.0},
    };
    for (const auto &field : fields) {
        const bool outside = field.limited && (field.value < 0.0 || field.value > field.most);
        if (std::isfinite(field.value) && !outside) continue;
        const char *takes = !field.limited            ? "a finite value"
                            : field.most == kInfinity ? "a finite value of at least 0"
                            : field.most == 0.0       ? "0 alone, as it has no such term"
                                                      : "a value from 0 to below 1";
        return Status::error(STW_ERROR_INVALID,
                             "hyper-parameter %s is %g, and this algorithm takes %s", field.name,
                             field.value, takes);
    }
    if ((hyper.flags & ~kKnownHyperFlags) != 0) {
        return Status::error(STW_ERROR_INVALID, "hyper-parameter flags 0x%x: this build knows 0x%x",
                             hyper.flags, kKnownHyperFlags);
    }
    if ((hyper.flags & STW_HYPER_NESTEROV) != 0 && ours && hyper.momentum == 0.0) {
        return Status::error(STW_ERROR_INVALID,
                             "STW_HYPER_NESTEROV is set with momentum %g: it is a form of SGD's "
                             "momentum, so give one or leave it out",
                             hyper.momentum);
    }
    return {};
}

Status Optimizer::set_hyper(uint32_t group, const stw_hyper &hyper)
{
    STW_TRY(parts_->check_hyper(hyper));
    const uint32_t needed = parts_->states_needed(hyper);
    for (size_t i = 0; i < parts_->parts.size(); ++i) {
        const ParameterJob &job = *parts_->part_jobs[i];
        if (parts_->parts[i].group != group || job.shape.state_count >= needed) continue;
        return Status::error(STW_ERROR_INVALID,
                             "%s of group %u was added without the %u states that these "
                             "hyper-parameters need; set momentum before adding parameters",
                             parameter_text(job.name).c_str(), group, needed);
    }
    parts_->hypers[group] = hyper;
    return {};
}

stw_hyper Optimizer::hyper(uint32_t group) const
{
    return parts_->hyper_of(group);
}

// -------------------------------------------------------------------------------- step counts ----

Result<uint64_t> Optimizer::completed(TensorId parameter) const
{
    const ParameterJob *job = parts_->find(parameter);
    if (job == nullptr) {
        return Status::error(STW_ERROR_NOT_FOUND, "Tensor %u is no parameter of this optimizer.",
                             parameter);
    }
    MutexLock lock(parts_->pipeline.mutex);
    return job->count;
}

// The tiers are asked with no lock of ours held, so the update may end meanwhile.
Result<uint64_t> Optimizer::count(TensorId parameter) const
{
    Result<uint64_t> before = completed(parameter);
    if (!before.ok()) return before;
    const ParameterJob &job = *parts_->find(parameter);
    Pipeline::Parts &pipeline = parts_->pipeline;
    const TensorId gradient = job.shape.layouts[ParameterJob::kGradient].tensor;
    const bool empty = pipeline.tiers.contents(gradient) == Contents::kEmpty;
    MutexLock lock(pipeline.mutex);
    const bool updates = job.phase == StepPhase::kUpdate && !job.empty && !empty;
    const Step *const step = job.step;
    const bool accepted = step != nullptr && !step->early && step->known && !step->gives_back &&
                          is_measured(job.phase);
    return job.count + ((updates || accepted) && job.count == before.value() ? 1 : 0);
}

std::vector<TensorId> Optimizer::tensors(TensorId parameter) const
{
    std::vector<TensorId> tensors;
    const ParameterJob *job = parts_->find(parameter);
    MutexLock lock(parts_->pipeline.mutex);  // parts of a master may become one
    for (uint32_t i = 0; job != nullptr && i < job->turn_count; ++i) {
        tensors.push_back(job->shape.layouts[i].tensor);
    }
    return tensors;
}

bool Optimizer::has(TensorId parameter) const
{
    return parts_->find(parameter) != nullptr;
}

std::vector<TensorId> Optimizer::stale_masters() const
{
    std::vector<TensorId> stale;
    for (const ParameterJob &job : parts_->jobs) {
        if (job.master_is_stale()) stale.push_back(job.shape.layouts[ParameterJob::kOthers].tensor);
    }
    return stale;
}

Status Optimizer::set_count(TensorId parameter, uint64_t count)
{
    ParameterJob *job = parts_->find(parameter);
    if (job == nullptr) {
        return Status::error(STW_ERROR_NOT_FOUND, "Tensor %u is no parameter of this optimizer.",
                             parameter);
    }
    constexpr uint64_t kCountMax = uint64_t{1} << 53;  // exact as a double
    if (count > kCountMax) {
        return Status::error(STW_ERROR_INVALID,
                             "a count of %" PRIu64 " updates of %s; at most %" PRIu64
                             " can be counted",
                             count, parameter_text(job->name).c_str(), kCountMax);
    }
    MutexLock lock(parts_->pipeline.mutex);
    if (parts_->active_steps > 0) {
        return Status::error(STW_ERROR_BUSY,
                             "A step of this optimizer is pending; its counts change with it.");
    }
    job->count = count;
    return {};
}

}  // namespace stepwell::update
