// SPDX-License-Identifier: Apache-2.0
// A step: its claims, its verdict, its end, and the calls that wait for these. The calls run on the
// caller's threads, the verdict on the update thread that scans the last gradient.
#include "lib/support/assert.h"
#include "lib/update/kernels/float_environment.h"
#include "lib/update/optimizer_parts.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <limits>
#include <utility>

namespace stepwell::update {
namespace {

constexpr uint32_t kKnownFlags =
    STW_UPDATE_SKIP_NONFINITE | STW_UPDATE_KEEP_GRADIENTS | STW_UPDATE_WAIT | STW_UPDATE_MEASURE;

struct Norm {
    double norm;
    double clip_coefficient;
    double scale;  // with the clip
};

// Not inlined, see float_environment.h.
[[gnu::noinline]] Norm finish_norm(double raw, bool squared, double scale, double clip_norm)
{
    const double norm = scale * (squared ? std::sqrt(raw) : raw);
    constexpr double kSoftening = 1e-6;  // as PyTorch has it
    const double ratio = clip_norm / (norm + kSoftening);
    const double coefficient = clip_norm > 0.0 && ratio < 1.0 ? ratio : 1.0;
    return {norm, coefficient, scale * coefficient};
}

}  // namespace

bool has_verdict(const StepOptions &options)
{
    return options.wants_verdict || options.clip_norm > 0.0 ||
           (options.flags & (STW_UPDATE_MEASURE | STW_UPDATE_SKIP_NONFINITE)) != 0;
}

// ------------------------------------------------------------------------------ the beginning ----

Status Optimizer::Parts::check_options(const StepOptions &options) const
{
    if ((options.flags & ~kKnownFlags) != 0) {
        return Status::error(STW_ERROR_INVALID, "Update flags 0x%x: this build knows 0x%x.",
                             options.flags, kKnownFlags);
    }
    if (!std::isfinite(options.gradient_scale) || options.gradient_scale < 0.0 ||
        std::isnan(options.clip_norm) || options.clip_norm < 0.0) {
        return Status::error(STW_ERROR_INVALID,
                             "A step takes a finite gradient scale and a clip norm of 0 or more, "
                             "not %g and %g.",
                             options.gradient_scale, options.clip_norm);
    }
    if (options.norm_type != 0.0 && options.norm_type != 2.0 && options.norm_type != kInfinity) {
        return Status::error(STW_ERROR_INVALID, "A norm of type %g: 2 and infinity there are.",
                             options.norm_type);
    }
    return {};
}

void Optimizer::Parts::unselect()
{
    for (ParameterJob *job : chosen) job->selected = false;
    chosen.clear();
}

// In the order of entries, whatever the order of the call is.
Status Optimizer::Parts::select(const StepOptions &options)
{
    unselect();
    if (options.parameters == nullptr) {
        for (ParameterJob &job : jobs) chosen.push_back(&job);
        return {};
    }
    for (uint32_t i = 0; i < options.parameter_count; ++i) {
        ParameterJob *job = find(options.parameters[i]);
        if (job == nullptr || job->selected) {
            unselect();
            if (job == nullptr) {
                return Status::error(STW_ERROR_NOT_FOUND,
                                     "tensor %u is no parameter of this optimizer",
                                     options.parameters[i]);
            }
            return Status::error(STW_ERROR_INVALID, "%s is given twice in one step",
                                 parameter_text(job->name).c_str());
        }
        job->selected = true;
        chosen.push_back(job);
    }
    std::sort(chosen.begin(), chosen.end(),
              [](const ParameterJob *a, const ParameterJob *b) { return a->index < b->index; });
    return {};
}

// Nobody trains by values that nobody gave.
Status Optimizer::Parts::check_groups() const
{
    for (const ParameterJob *job : chosen) {
        for (const Part *part : job->parts) {
            if (hypers.count(part->group) > 0) continue;
            return Status::error(STW_ERROR_INVALID,
                                 "%s is in group %u, which was never given "
                                 "hyper-parameters: call stw_optimizer_set_hyper for it before the "
                                 "step, after a resume as well, since a generation has none",
                                 parameter_text(job->name).c_str(), part->group);
        }
    }
    return {};
}

// What a step may go on beside: others without a verdict that have none of its parameters. So an
// optimizer has as many of them under way as it has parameters, at most.
bool Optimizer::Parts::may_begin(const StepOptions &options) const
{
    if (active_steps == 0) return true;
    if (has_verdict(options) || options.parameters == nullptr) return false;
    if (last->active && last->scans) return false;
    for (uint32_t i = 0; i < options.parameter_count; ++i) {
        const ParameterJob *job = find(options.parameters[i]);
        if (job != nullptr && job->step != nullptr) return false;
    }
    return true;
}

// Of the last one only the result is left, once it is through.
Step &Optimizer::Parts::new_step()
{
    if (last->active) {
        STW_ASSERT(!idle_steps.empty());
        last = idle_steps.back();
        idle_steps.pop_back();
    }
    *last = Step();
    return *last;
}

void Optimizer::Parts::prepare(const StepOptions &options)
{
    Step &step = new_step();
    step.asked = true;
    step.flags = options.flags;
    step.scans = has_verdict(options);
    step.agreement = step.scans ? options.agreement : nullptr;
    if (step.agreement != nullptr) step.agreement->adopted = true;
    step.active = !chosen.empty() || step.agreement != nullptr;
    active_steps += step.active ? 1 : 0;
    step.scale = options.gradient_scale == 0.0 ? 1.0 : options.gradient_scale;
    step.clip_norm = options.clip_norm;
    step.infinity_norm = options.norm_type == kInfinity;
    const auto count = static_cast<uint32_t>(chosen.size());
    step.jobs_left = count + (step.agreement != nullptr ? 1 : 0);
    step.scans_left = step.scans ? count : 0;
    step.result.updated = count;
    step.result.norm = std::numeric_limits<double>::quiet_NaN();
    for (ParameterJob *job : chosen) {
        job->step = &step;
        job->begin(step.scans ? StepPhase::kScan : StepPhase::kUpdate);
        for (Part *part : job->parts) {
            part->hyper = hyper_of(part->group);
            part->states_used = states_needed(part->hyper);
        }
        pipeline.enqueue(*job);
        job->urgent = options.wants_verdict && step.scans;
    }
    if (!chosen.empty()) return;
    if (step.scans) {
        decide(step);
    } else {
        step.known = true;
    }
}

// One claim for all tensors of the step, so that a fetch after this call sees all or nothing of it.
Status Optimizer::Parts::begin(const StepOptions &options)
{
    tensors.clear();
    gradients.clear();
    for (const ParameterJob *job : chosen) {
        for (uint32_t i = 0; i < job->turn_count; ++i) tensors.push_back(job->turns[i].tensor);
        gradients.push_back(job->shape.layouts[ParameterJob::kGradient].tensor);
    }
    versions.assign(gradients.size(), 0);
    places.assign(chosen.size(), kAnyCpuPlace);
    const Step *gives_back = nullptr;
    {
        MutexLock claiming(pipeline.claiming);
        {
            MutexLock lock(pipeline.mutex);
            if (pipeline.closing) {
                return Status::error(STW_ERROR_CLOSED, "The runtime closes: no more steps.");
            }
            prepare(options);
        }
        if (chosen.empty()) return {};
        const ClaimId claim =
            pipeline.tiers.claim(tensors.data(), static_cast<uint32_t>(tensors.size()));
        if (pipeline.measures.load(std::memory_order_relaxed) > 0) {
            pipeline.tiers.versions(claim, gradients.data(),
                                    static_cast<uint32_t>(gradients.size()), versions.data());
        }
        // With the claim: a device whose room goes now waits for those that were told it is there.
        for (size_t i = 0; pipeline.options.devices != nullptr && i < chosen.size(); ++i) {
            places[i] = chosen[i]->find_place();
        }
        MutexLock lock(pipeline.mutex);
        if (activate(claim)) gives_back = last;
        for (ParameterJob *job : chosen) pipeline.ask_measure(job->measure, options.wants_verdict);
    }
    if (gives_back != nullptr) give_back(*gives_back);
    pipeline.pump(1);
    return {};
}

// What was measured by its writers is not scanned. True when the verdict is known with that, and
// nothing is updated.
bool Optimizer::Parts::activate(ClaimId claim)
{
    Step &step = *last;
    uint32_t measured = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
        ParameterJob &job = *chosen[i];
        pipeline.place_job(job, places[i]);
        job.claim = claim;
        job.claimed = true;
        if (step.scans && job.take_measure(versions[i])) {
            ++measured;
        } else if (job.blocked == 0) {
            pipeline.make_ready(job);
        }
    }
    step.scans_left -= measured;
    return measured > 0 && step.scans_left == 0 && !decide(step);
}

// -------------------------------------------------------------------------------- the verdict ----

// Parts in the order of entries, each the sum of its own blocks in their order: the same bits
// whatever was scanned first.
Verdict Optimizer::Parts::measure(const Step &step) const
{
    Verdict mine;
    mine.status = step.verdict;
    kernels::ScanResult all;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (part_jobs[i]->phase != StepPhase::kVerdict || !parts[i].counted) continue;
        mine.sum = kernels::combine_block_sums(mine.sum, &parts[i].sum, 1);
    }
    for (const ParameterJob *job : chosen) {
        if (job->parts[0]->counted) all = kernels::join(all, job->scanned);
    }
    mine.maximum = static_cast<double>(all.maximum);
    mine.nonfinite = all.nonfinite;
    return mine;
}

bool Optimizer::Parts::decide(Step &step)
{
    uint32_t with_gradient = 0;
    for (ParameterJob *job : chosen) {
        if (job->phase != StepPhase::kVerdict) continue;
        ++with_gradient;
        job->next_undecided = step.undecided;
        step.undecided = job;
    }
    step.result.updated = with_gradient;
    const Verdict mine = measure(step);
    if (step.agreement == nullptr) return conclude(step, mine);
    step.agreement->publish(mine);
    return true;
}

// Of all ranks, or of the one that there is. False: nothing is updated.
bool Optimizer::Parts::conclude(Step &step, const Verdict &all)
{
    step.gives_back = !go_ahead(step, all);
    step.known = true;
    pipeline.changed.notify_all();
    return !step.gives_back;
}

bool Optimizer::Parts::go_ahead(Step &step, const Verdict &all)
{
    const uint64_t with_gradient = std::exchange(step.result.updated, 0);
    if (step.verdict.ok()) step.verdict = all.status;
    if (!step.verdict.ok()) return false;
    const kernels::FloatEnvironment environment;
    double raw = step.infinity_norm ? all.maximum : all.sum;
    if (all.nonfinite > 0) raw = kInfinity;
    const Norm norm = finish_norm(raw, !step.infinity_norm, step.scale, step.clip_norm);
    step.result.nonfinite = all.nonfinite;
    step.result.norm = norm.norm;
    step.result.clip_coefficient = norm.clip_coefficient;
    step.scale = norm.scale;
    step.result.without_gradient = chosen.size() - with_gradient;
    if ((step.flags & STW_UPDATE_MEASURE) != 0) return false;
    if ((step.flags & STW_UPDATE_SKIP_NONFINITE) != 0 && step.result.nonfinite > 0) {
        step.result.skipped = true;
        step.verdict = Status::remark(STW_SKIPPED);
        return false;
    }
    step.result.updated = with_gradient;
    start_updates();
    return with_gradient > 0;
}

void Optimizer::Parts::start_updates()
{
    for (ParameterJob *job : chosen) {
        if (job->phase != StepPhase::kVerdict) continue;
        job->begin(StepPhase::kUpdate);
        pipeline.set_rank(*job, job->preference);
        pipeline.make_ready(*job);
    }
}

// Nothing is updated: measured only, skipped, or a gradient that could not be read.
void Optimizer::Parts::give_back(const Step &step)
{
    const bool empties = step.result.skipped && (step.flags & STW_UPDATE_KEEP_GRADIENTS) == 0;
    // The step ends with the last one to leave, and the next may begin: nothing is read after.
    for (ParameterJob *job = step.undecided; job != nullptr;) {
        ParameterJob *next = job->next_undecided;
        job->leave(empties);
        job = next;
    }
}

// A job of it, or the ranks' agreement.
void Optimizer::Parts::left(Step &step)
{
    STW_ASSERT(step.jobs_left > 0);
    if (--step.jobs_left == 0) {
        step.active = false;
        step.known = true;
        --active_steps;
        if (&step != last) idle_steps.push_back(&step);
    }
    pipeline.changed.notify_all();  // a call may wait for the step, or for that parameter
}

Status Optimizer::Parts::answer(StepResult *result_out) const
{
    if (!last->verdict.ok()) return last->verdict;
    if (result_out != nullptr) *result_out = last->result;
    return last->verdict;
}

// ---------------------------------------------------------------------------------- the calls ----

Status Optimizer::step(const StepOptions &options, StepResult *result_out)
{
    STW_TRY(parts_->check_options(options));
    Waiter waiter;
    {
        MutexLock lock(parts_->pipeline.mutex);
        waiter = parts_->pipeline.waiter(options.timeout_ns);
        while (!parts_->may_begin(options)) STW_TRY(parts_->pipeline.sleep(waiter));
    }
    STW_TRY(parts_->select(options));
    if ((options.flags & STW_UPDATE_MEASURE) == 0) STW_TRY(parts_->check_groups());
    STW_TRY(parts_->begin(options));
    MutexLock lock(parts_->pipeline.mutex);
    const Step &step = *parts_->last;
    if (options.returns) return {};
    const bool waits = (options.flags & STW_UPDATE_WAIT) != 0;
    while (waits && step.active) STW_TRY(parts_->pipeline.sleep(waiter));
    if (!options.wants_verdict && !waits) return {};
    while (!step.known) STW_TRY(parts_->pipeline.sleep(waiter));
    // What is not updated is free when the call returns; that takes no time of its own.
    while (step.gives_back && step.active) STW_TRY(parts_->pipeline.sleep(waiter));
    STW_TRY(parts_->answer(nullptr));
    if (waits && !step.failure.ok()) return step.failure;
    return parts_->answer(result_out);
}

Status Optimizer::result(StepResult *result_out) const
{
    MutexLock lock(parts_->pipeline.mutex);
    if (!parts_->last->asked) {
        return Status::error(STW_ERROR_NOT_FOUND, "There was no step of this optimizer yet.");
    }
    if (!parts_->last->known) return Status::remark(STW_PENDING);
    return parts_->answer(result_out);
}

Status Optimizer::wait(uint64_t timeout_ns)
{
    MutexLock lock(parts_->pipeline.mutex);
    const Waiter waiter = parts_->pipeline.waiter(timeout_ns);
    while (parts_->active_steps > 0) STW_TRY(parts_->pipeline.sleep(waiter));
    return {};
}

// Whoever waits for the end of the step may destroy the optimizer as soon as it is told: from then
// on only the pipeline is here.
void Optimizer::agreed(const Verdict &all)
{
    Pipeline::Parts &pipeline = parts_->pipeline;
    Step *step = nullptr;
    bool goes_ahead = false;
    {
        MutexLock lock(parts_->pipeline.mutex);
        step = parts_->last;
        goes_ahead = parts_->conclude(*step, all);
    }
    if (!goes_ahead) Parts::give_back(*step);
    {
        MutexLock lock(parts_->pipeline.mutex);
        step->agreement = nullptr;
        parts_->left(*step);
    }
    pipeline.pump();
}

bool Optimizer::pending() const
{
    MutexLock lock(parts_->pipeline.mutex);
    return parts_->active_steps > 0;
}

bool Optimizer::may_begin(const StepOptions &options) const
{
    MutexLock lock(parts_->pipeline.mutex);
    return parts_->may_begin(options);
}

}  // namespace stepwell::update
