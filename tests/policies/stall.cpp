// SPDX-License-Identifier: Apache-2.0
// A step is given so much computing that its bytes could move meanwhile.
#include "tests/policies/stall.h"

#include <algorithm>
#include <cmath>

namespace stepwell::schedule {
namespace {

// All of it times the factor.
Step computing(Step step, double factor)
{
    for (Event &event : step) {
        const double ns = static_cast<double>(event.compute_ns) * factor;
        event.compute_ns = static_cast<uint64_t>(std::ceil(ns));
    }
    return step;
}

double longest_ns(const Machine &machine, const std::vector<LinkUse> &links)
{
    double longest = 0;
    for (size_t i = 0; i < links.size(); ++i) {
        const double ns = static_cast<double>(links[i].bytes) * 1e9 / machine.links[i].bytes_per_s;
        longest = std::max(longest, ns);
    }
    return longest;
}

}  // namespace

Result<Stall> compare_stall(const Workload &trace, uint32_t percent, double ratio)
{
    const Machine machine = trace_machine(trace, percent);
    const auto bound = [&](const Step &step) {
        return bound_of(step, trace.tensors, machine, Start::kAny, kStallSteps);
    };
    const Step &recorded = trace.steps.front();
    Stall stall;
    stall.moves_ns = bound(computing(recorded, 0)).step_ns;
    const double factor = ratio * static_cast<double>(stall.moves_ns);
    const auto computed_ns = static_cast<double>(bound(recorded).compute_ns);
    const Step step = computing(recorded, factor / computed_ns);
    const Bound least = bound(step);
    stall.bound_ns = least.step_ns;
    stall.compute_ns = least.compute_ns;
    stall.overlaps = least.limit == Limit::kCompute;
    Result<std::vector<Verdict>> verdicts = choose(machine, trace.tensors, step, Asking::kAhead);
    if (!verdicts.ok()) return std::move(verdicts.status());
    // Over as many steps as ours: a choice looks at fewer.
    const auto judge_long = [&](const Candidate &candidate) {
        return judge(candidate, machine, trace.tensors, step, Asking::kAhead, nullptr, kStallSteps);
    };
    const Candidate &frugal = verdicts.value().front().candidate;
    const Candidate &best = fastest(verdicts.value()).candidate;
    Result<Verdict> judged_frugal = judge_long(frugal);
    if (!judged_frugal.ok()) return std::move(judged_frugal.status());
    stall.frugal = frugal.name();
    stall.frugal_ns = judged_frugal.value().step_ns / judged_frugal.value().steps;
    Result<Verdict> judged = judge_long(best);
    if (!judged.ok()) return std::move(judged.status());
    const Verdict &ours = judged.value();
    stall.ours = best.name();
    stall.step_ns = ours.step_ns / ours.steps;
    stall.stall_ns = ours.stall_ns / ours.steps;
    stall.busy_ns = longest_ns(machine, ours.links) / ours.steps;
    return stall;
}

}  // namespace stepwell::schedule
