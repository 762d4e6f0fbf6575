// SPDX-License-Identifier: Apache-2.0
// A step: its claims, its verdict, its end, and the calls that wait for these. The calls run on the
// caller's threads, the verdict on the update thread that scans the last gradient.
#include "lib/support/assert.h"
#include "lib/update/kernels/float_environment.h"
#include "lib/update/optimizer_parts.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <limits>
#include <utility>

namespace stepwell::update {
namespace {

constexpr uint32_t kKnownFlags = STW_UPDATE_SKIP_NONFINITE | STW_UPDATE_KEEP_GRADIENTS |
                                 STW_UPDATE_WAIT | STW_UPDATE_MEASURE | STW_UPDATE_SPECULATE |
                                 STW_UPDATE_REJECT;
constexpr int kMissesMax = 6;  // of the last 64 verdicts: with more, early updates do not pay

bool is_early(const StepOptions &options)
{
    return (options.flags & STW_UPDATE_SPECULATE) != 0;
}

bool is_rejection(uint32_t flags)
{
    return (flags & STW_UPDATE_REJECT) != 0;
}

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
    if (is_early(options) || is_rejection(options.flags)) return false;
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
    const bool waits = (options.flags & (STW_UPDATE_WAIT | STW_UPDATE_MEASURE)) != 0;
    if (is_early(options) && (options.wants_verdict || waits)) {
        return Status::error(STW_ERROR_INVALID,
                             "A speculative step has its verdict from the next step that is none: "
                             "it takes no result_out, STW_UPDATE_WAIT or STW_UPDATE_MEASURE.");
    }
    if (options.gradients != nullptr && (is_early(options) || has_verdict(options))) {
        return Status::error(STW_ERROR_INVALID,
                             "A step with gradients of the caller's has no verdict: it takes no "
                             "result_out, clip, skip, measuring or speculation.");
    }
    constexpr uint32_t kOfRejections =
        STW_UPDATE_REJECT | STW_UPDATE_KEEP_GRADIENTS | STW_UPDATE_WAIT;
    if (is_rejection(options.flags) &&
        ((options.flags & ~kOfRejections) != 0 || options.parameters != nullptr ||
         options.gradients != nullptr || options.clip_norm != 0.0)) {
        return Status::error(STW_ERROR_INVALID,
                             "A step with STW_UPDATE_REJECT sets back what speculative steps have "
                             "updated and does nothing else: it takes no parameters, gradients or "
                             "clip, and no flags but STW_UPDATE_KEEP_GRADIENTS and "
                             "STW_UPDATE_WAIT.");
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
    if (is_rejection(options.flags)) return {};  // see select_early()
    if (options.parameters == nullptr) {
        for (ParameterJob &job : jobs) {
            job.asked = nullptr;
            chosen.push_back(&job);
        }
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
        job->asked = options.gradients != nullptr ? options.gradients[i] : nullptr;
        chosen.push_back(job);
    }
    std::sort(chosen.begin(), chosen.end(),
              [](const ParameterJob *a, const ParameterJob *b) { return a->index < b->index; });
    return {};
}

// A job may leave until the mutex is taken, since its gradient is empty.
void Optimizer::Parts::select_early()
{
    for (ParameterJob &job : jobs) {
        if (job.step != nullptr && job.step->early) chosen.push_back(&job);
    }
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

// What early steps have begun the next one decides about, all of it; no wait would change that.
Status Optimizer::Parts::check_early(const StepOptions &options) const
{
    if (early_steps == 0 || is_rejection(options.flags)) return {};
    if ((options.flags & STW_UPDATE_MEASURE) != 0) {
        return Status::error(STW_ERROR_INVALID,
                             "Parameters of this optimizer were updated speculatively: the next "
                             "step is their verdict, and cannot be one that only measures.");
    }
    const ParameterJob *const wrong = wrongly_named(options);
    if (wrong == nullptr) return {};
    const char *what = is_early(options) ? "waits for its verdict, the next step without "
                                           "STW_UPDATE_SPECULATE"
                                         : "is not named by this step, and the next one is the "
                                           "verdict of all such parameters";
    return Status::error(STW_ERROR_INVALID, "%s was updated speculatively and %s",
                         parameter_text(wrong->name).c_str(), what);
}

// Of what awaits a verdict: one that an early step names, or one that another step does not. There
// are many early steps, each of a few parameters: it looks at these alone.
const ParameterJob *Optimizer::Parts::wrongly_named(const StepOptions &options) const
{
    const auto waits = [](const ParameterJob &job) {
        return job.step != nullptr && job.step->early;
    };
    const bool all = options.parameters == nullptr;
    if (is_early(options) && !all) {
        for (uint32_t i = 0; i < options.parameter_count; ++i) {
            const ParameterJob *const job = find(options.parameters[i]);
            if (job != nullptr && waits(*job)) return job;
        }
        return nullptr;
    }
    if (all && !is_early(options)) return nullptr;
    std::vector<TensorId> named;
    if (!all) named.assign(options.parameters, options.parameters + options.parameter_count);
    std::sort(named.begin(), named.end());
    for (const ParameterJob &job : jobs) {
        const TensorId id = job.turns[ParameterJob::kParameter].tensor;
        if (waits(job) && !std::binary_search(named.begin(), named.end(), id)) return &job;
    }
    return nullptr;
}

// What a step may go on beside: others without a verdict that have none of its parameters. So an
// optimizer has as many of them under way as it has parameters, at most. An early one goes on
// beside the verdict of those before it, once that is known.
bool Optimizer::Parts::may_begin(const StepOptions &options) const
{
    if (active_steps == 0) return true;
    if (!is_early(options)) {
        if (early_steps > 0) return active_steps == early_steps;
        if (has_verdict(options) || options.parameters == nullptr) return false;
    }
    if (last->active && last->scans && !(is_early(options) && last->known)) return false;
    if (options.parameters == nullptr) return false;
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

// Results are those of the last one that is not early.
Step &Optimizer::Parts::early_step()
{
    STW_ASSERT(!idle_steps.empty());
    Step &step = *idle_steps.back();
    idle_steps.pop_back();
    step = Step();
    return step;
}

Step &Optimizer::Parts::prepare(const StepOptions &options)
{
    const bool early = is_early(options);
    if (is_rejection(options.flags)) select_early();
    if (!early || verdict_thread == 0) verdict_thread = options.thread;
    Step &step = early ? early_step() : new_step();
    step.early = early;
    step.call = pipeline.number_call();
    step.asked = true;
    asks_early |= early;
    step.flags = options.flags;
    // A step that others left parameters to is their verdict, whatever else is asked of it.
    step.judges = has_verdict(options);
    step.scans = early || step.judges || early_steps > 0;
    step.agreement = step.scans ? options.agreement : nullptr;
    if (step.agreement != nullptr) step.agreement->adopted = true;
    step.active = !chosen.empty() || step.agreement != nullptr;
    active_steps += step.active ? 1 : 0;
    early_steps += early && step.active ? 1 : 0;
    step.scale = options.gradient_scale == 0.0 ? 1.0 : options.gradient_scale;
    step.clip_norm = options.clip_norm;
    step.infinity_norm = options.norm_type == kInfinity;
    const auto count = static_cast<uint32_t>(chosen.size());
    step.jobs_left = count + (step.agreement != nullptr ? 1 : 0);
    step.result.updated = count;
    step.result.norm = std::numeric_limits<double>::quiet_NaN();
    entering.clear();
    for (ParameterJob *job : chosen) {
        if (job->step != nullptr) {
            judged.emplace_back(job->claim, job->shape.layouts[ParameterJob::kParameter].tensor);
            take_over(*job, step);
        } else {
            enter(*job, step);
            entering.push_back(job);
        }
        job->urgent = options.wants_verdict && job->phase == StepPhase::kScan;
    }
    // A call may wait for one of them since before its verdict was asked for.
    for (ParameterJob *job : chosen) {
        if (job->preference != kNotPreferred) job->on_preferred();
    }
    if (!chosen.empty()) return step;
    if (step.scans) {
        decide(step);
    } else {
        step.known = true;
    }
    return step;
}

void Optimizer::Parts::enter(ParameterJob &job, Step &step)
{
    job.step = &step;
    job.undoes = false;
    job.given = job.asked;
    job.begin(step.scans ? StepPhase::kScan : StepPhase::kUpdate);
    step.scans_left += step.scans ? 1 : 0;
    for (Part *part : job.parts) {
        part->hyper = hyper_of(part->group);
        part->judged_hyper = part->hyper;
        part->states_used = states_needed(part->hyper);
        part->early_states = 0;
    }
    pipeline.enqueue(job, step.call);
    job.claims_older = step.early && job.has_older;
}

// From an early step, whatever it has come to.
void Optimizer::Parts::take_over(ParameterJob &job, Step &step)
{
    for (Part *part : job.parts) part->judged_hyper = hyper_of(part->group);
    const bool left_to_it = job.phase == StepPhase::kScan && job.is_parked();
    // A rejection needs no norm.
    if (left_to_it && is_rejection(step.flags)) job.phase = StepPhase::kVerdict;
    const bool scans = job.phase == StepPhase::kScan;
    step.scans_left += scans ? 1 : 0;
    if (!job.error.ok() && step.verdict.ok()) step.verdict = job.error;
    pipeline.unpark(job);
    if (left_to_it && scans) pipeline.make_ready(job);
    left(*std::exchange(job.step, &step));
}

// Until the verdict's step takes it over, nothing waits for it but that.
void Optimizer::Parts::park(ParameterJob &job)
{
    job.open = job.phase == StepPhase::kUpdated;
    pipeline.park(job);
}

bool Optimizer::Parts::misses_many() const
{
    return std::popcount(misses) > kMissesMax;
}

bool Optimizer::Parts::goes_early() const
{
    return !misses_many() && early_trial.goes();
}

// One claim for all tensors of the step, so that a fetch after this call sees all or nothing of it.
Status Optimizer::Parts::begin(const StepOptions &options)
{
    const bool early = is_early(options);
    if (early && chosen.empty()) return {};
    bool decided = false;
    Step *step = nullptr;
    {
        MutexLock claiming(pipeline.claiming);
        {
            MutexLock lock(pipeline.mutex);
            if (pipeline.closing) {
                return Status::error(STW_ERROR_CLOSED, "The runtime closes: no more steps.");
            }
            judged.clear();
            step = &prepare(options);
        }
        if (!judged.empty()) pipeline.tiers.judge(judged);
        if (chosen.empty()) return {};
        const ClaimId claim = entering.empty() ? 0 : claim_entering();
        MutexLock lock(pipeline.mutex);
        if (!early) waits_for_verdict = options.wants_verdict;
        // Early updates read the gradients soon, on threads that the writers do not wait for.
        const bool goes = early && goes_early();
        const bool measures = waits_for_verdict && !goes;
        decided = activate(*step, claim, early && !goes);
        for (ParameterJob *job : entering) pipeline.ask_measure(job->measure, measures);
    }
    if (decided) let_go(*step);
    // Measured by those who wrote their gradients: nothing is left to wait for.
    for (ParameterJob *job : keeping) job->start_early();
    keeping.clear();
    pipeline.ask_to_pump();
    return {};
}

ClaimId Optimizer::Parts::claim_entering()
{
    tensors.clear();
    gradients.clear();
    for (const ParameterJob *job : entering) {
        for (uint32_t i = 0; i < job->turn_count; ++i) {
            tensors.push_back(job->turns[i].tensor);
            if (job->claims_older && i != ParameterJob::kGradient) tensors.push_back(job->older[i]);
        }
        gradients.push_back(job->shape.layouts[ParameterJob::kGradient].tensor);
    }
    versions.assign(gradients.size(), 0);
    places.assign(entering.size(), kAnyCpuPlace);
    const ClaimId claim =
        pipeline.tiers.claim(tensors.data(), static_cast<uint32_t>(tensors.size()));
    if (pipeline.measures.load(std::memory_order_relaxed) > 0) {
        pipeline.tiers.versions(claim, gradients.data(), static_cast<uint32_t>(gradients.size()),
                                versions.data());
    }
    // With the claim: a device whose room goes now waits for those that were told it is there.
    for (size_t i = 0; pipeline.options.devices != nullptr && i < entering.size(); ++i) {
        places[i] = entering[i]->find_place();
    }
    return claim;
}

// What was measured by its writers is not scanned. waits: a speculative step of which nothing will
// be early leaves the scans to its verdict, but for gradients that are still being summed. True if
// the verdict is known with that, and parameters leave.
bool Optimizer::Parts::activate(Step &step, ClaimId claim, bool waits)
{
    for (size_t i = 0; i < entering.size(); ++i) {
        ParameterJob &job = *entering[i];
        pipeline.place_job(job, places[i]);
        job.claim = claim;
        job.claimed = true;
        if (!step.scans || !job.take_measure(versions[i])) {
            if (job.blocked == 0 && !waits) pipeline.make_ready(job);
            if (job.blocked == 0 && waits) park(job);
            continue;
        }
        --step.scans_left;
        if (!step.early) continue;
        if (job.may_be_early() && !waits) {
            job.phase = StepPhase::kKeep;
            keeping.push_back(&job);
        } else {
            park(job);
        }
    }
    const bool last = step.scans && !step.early && step.scans_left == 0;
    return last && !step.decided && decide(step);
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
        if (!is_measured(part_jobs[i]->phase) || !parts[i].counted) continue;
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
    step.decided = true;
    uint32_t with_gradient = 0;
    for (const ParameterJob *job : chosen) with_gradient += is_measured(job->phase) ? 1 : 0;
    step.result.updated = with_gradient;
    const Verdict mine = measure(step);
    if (step.agreement == nullptr) return conclude(step, mine);
    step.agreement->publish(mine);
    return false;
}

// Of all ranks, or of the one that there is.
bool Optimizer::Parts::conclude(Step &step, const Verdict &all)
{
    step.gives_back = !go_ahead(step, all);
    step.known = true;
    const bool rejects = is_rejection(step.flags);
    const bool missed = !rejects && (step.gives_back || step.result.clip_coefficient != 1.0);
    if ((step.flags & STW_UPDATE_MEASURE) == 0) end_round(missed);
    for (ParameterJob *job : chosen) {
        if (job->step != &step || !apply(*job, step)) continue;
        job->next_leaving = step.leaving;
        step.leaving = job;
    }
    pipeline.changed.notify_all();
    return step.leaving != nullptr;
}

// What the next early updates go by: before those of this round are judged.
void Optimizer::Parts::end_round(bool missed)
{
    misses = misses << 1 | (missed ? 1 : 0);
    copy_share.end_round();
    const bool early = std::any_of(chosen.begin(), chosen.end(), [](const ParameterJob *job) {
        return is_measured(job->phase) && job->phase != StepPhase::kVerdict;
    });
    early_trial.end_round(wait_clock_ns(), std::exchange(asks_early, false), early);
}

bool Optimizer::Parts::apply(ParameterJob &job, Step &step)
{
    const bool was_early = job.phase == StepPhase::kUpdated;
    if (!was_early && job.phase != StepPhase::kVerdict) return false;
    if (step.gives_back && !was_early) return true;
    if (!step.gives_back && was_early && job.judged_alike()) {
        ++step.result.early;
        ++pipeline.totals.early;
        return true;
    }
    for (Part *part : job.parts) {
        part->hyper = part->judged_hyper;
        part->states_used = states_needed(part->hyper);
    }
    job.undoes = was_early;
    job.error = Status();
    step.result.undone += was_early ? 1 : 0;
    pipeline.totals.undone += was_early ? 1 : 0;
    job.begin(step.gives_back ? StepPhase::kRestore : StepPhase::kUpdate);
    pipeline.set_rank(job, job.preference);
    pipeline.make_ready(job);
    pipeline.changed.notify_all();  // see waits_for_others()
    return false;
}

bool Optimizer::Parts::go_ahead(Step &step, const Verdict &all)
{
    const uint64_t with_gradient = std::exchange(step.result.updated, 0);
    if (is_rejection(step.flags)) {
        step.result.skipped = true;
        step.verdict = Status::remark(STW_SKIPPED);
        return false;
    }
    if (step.verdict.ok()) step.verdict = all.status;
    // Without a verdict a gradient that cannot be read is its own parameter's affair.
    if (!step.judges) step.verdict = Status();
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
    return with_gradient > 0;
}

// Those that leave with the verdict: measured only, skipped, a gradient that could not be read, or
// an early update that the verdict accepts.
void Optimizer::Parts::let_go(const Step &step)
{
    // The step ends with the last one to leave, and the next may begin: nothing is read after.
    for (ParameterJob *job = step.leaving; job != nullptr;) {
        ParameterJob *next = job->next_leaving;
        job->leave_decided();
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
        early_steps -= step.early ? 1 : 0;
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

// What is not updated is free when the call returns, which takes no time of its own. What is set
// back goes on: it may wait for views of the caller's.
bool Optimizer::Parts::waits_for_others() const
{
    const auto leaves = [this](const ParameterJob *job) {
        return job->step == last && !job->undoes;
    };
    return last->gives_back && std::any_of(chosen.begin(), chosen.end(), leaves);
}

Status Optimizer::step(const StepOptions &options, StepResult *result_out)
{
    STW_TRY(parts_->check_options(options));
    Waiter waiter;
    {
        MutexLock lock(parts_->pipeline.mutex);
        waiter = parts_->pipeline.waiter(options.timeout_ns);
        STW_TRY(parts_->check_early(options));
        if (is_rejection(options.flags) && parts_->early_steps == 0) {
            if (result_out != nullptr) *result_out = StepResult{.skipped = true};
            return Status::remark(STW_SKIPPED);
        }
        while (!parts_->may_begin(options)) STW_TRY(parts_->pipeline.sleep(waiter));
    }
    STW_TRY(parts_->select(options));
    if ((options.flags & STW_UPDATE_MEASURE) == 0) STW_TRY(parts_->check_groups());
    if (is_early(options)) {
        MutexLock claiming(parts_->pipeline.claiming);  // as give_older_back()
        for (ParameterJob *job : parts_->chosen) job->make_older();
    }
    if (is_early(options)) {
        return parts_->begin(options);
    }
    STW_TRY(parts_->begin(options));
    MutexLock lock(parts_->pipeline.mutex);
    const Step &step = *parts_->last;
    if (options.returns) return {};
    const bool waits = (options.flags & STW_UPDATE_WAIT) != 0;
    while (waits && step.active) STW_TRY(parts_->pipeline.sleep(waiter));
    if (!options.wants_verdict && !waits)
        return is_rejection(options.flags) ? Status::remark(STW_SKIPPED) : Status();
    while (!step.known) STW_TRY(parts_->pipeline.sleep(waiter));
    while (parts_->waits_for_others()) STW_TRY(parts_->pipeline.sleep(waiter));
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
    const auto works = [](const ParameterJob &job) {
        return job.step != nullptr && !job.is_parked();
    };
    while (std::any_of(parts_->jobs.begin(), parts_->jobs.end(), works))
        STW_TRY(parts_->pipeline.sleep(waiter));
    return {};
}

// Whoever waits for the end of the step may destroy the optimizer as soon as it is told: from then
// on only the pipeline is here.
void Optimizer::agreed(const Verdict &all)
{
    Pipeline::Parts &pipeline = parts_->pipeline;
    Step *step = nullptr;
    bool decided = false;
    {
        MutexLock lock(parts_->pipeline.mutex);
        step = parts_->last;
        decided = parts_->conclude(*step, all);
    }
    if (decided) Parts::let_go(*step);
    {
        MutexLock lock(parts_->pipeline.mutex);
        step->agreement = nullptr;
        parts_->left(*step);
    }
    pipeline.ask_to_pump();
}

bool Optimizer::pending() const
{
    MutexLock lock(parts_->pipeline.mutex);
    return parts_->active_steps > 0;
}

EarlyState Optimizer::early_state() const
{
    MutexLock lock(parts_->pipeline.mutex);
    if (parts_->misses_many()) return EarlyState::kMisses;
    return parts_->early_trial.pays() ? EarlyState::kGoes : EarlyState::kDoesNotPay;
}

const char *Optimizer::awaits_verdict() const
{
    MutexLock lock(parts_->pipeline.mutex);
    for (const ParameterJob &job : parts_->jobs) {
        if (job.step != nullptr && job.step->early) return job.name;
    }
    return nullptr;
}

bool Optimizer::give_older_back()
{
    std::vector<TensorId> given;
    MutexLock claiming(parts_->pipeline.claiming);
    {
        MutexLock lock(parts_->pipeline.mutex);
        for (ParameterJob &job : parts_->jobs) {
            if (job.step != nullptr) continue;
            for (TensorId &older : job.older) {
                if (older != kNone) given.push_back(std::exchange(older, kNone));
            }
            job.has_older = job.asked_older = false;
        }
    }
    for (const TensorId older : given) parts_->pipeline.tiers.drop_older(older);
    return !given.empty();
}

bool Optimizer::waits_for_views(const StepOptions &options, TensorId tensor, bool claimed) const
{
    const auto found = parts_->by_tensor.find(tensor);
    if (found == parts_->by_tensor.end()) return false;
    const ParameterJob &job = *found->second;
    const TensorId parameter = job.turns[ParameterJob::kParameter].tensor;
    const TensorId *const end = options.parameters + options.parameter_count;
    MutexLock lock(parts_->pipeline.mutex);
    const bool rejects = is_rejection(options.flags);
    const bool all = options.parameters == nullptr;
    const bool named = rejects ? job.step != nullptr && job.step->early
                               : all || std::find(options.parameters, end, parameter) != end;
    const bool stays = claimed && job.step != nullptr && !job.is_parked();
    if (stays && (named || has_verdict(options)) && !parts_->may_begin(options)) return true;
    if (!named) return false;
    const bool gradient = tensor == job.turns[ParameterJob::kGradient].tensor;
    return (options.flags & STW_UPDATE_WAIT) != 0 ||
           (options.wants_verdict && gradient && !rejects);
}

bool Optimizer::may_begin(const StepOptions &options) const
{
    MutexLock lock(parts_->pipeline.mutex);
    return !parts_->check_early(options).ok() || parts_->may_begin(options);
}

}  // namespace stepwell::update
