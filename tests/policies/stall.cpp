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
    const Step &recorded = trace.steps.front();
    const uint64_t computed_ns = bound_of(recorded, trace.tensors, machine, Start::kAny).compute_ns;
    Stall stall;
    stall.moves_ns = bound_of(computing(recorded, 0), trace.tensors, machine, Start::kAny).step_ns;
    const double factor = ratio * static_cast<double>(stall.moves_ns);
    const Step step = computing(recorded, factor / static_cast<double>(computed_ns));
    const Bound bound = bound_of(step, trace.tensors, machine, Start::kAny);
    stall.bound_ns = bound.step_ns;
    stall.compute_ns = bound.compute_ns;
    stall.overlaps = bound.limit == Limit::kCompute;
    Result<std::vector<Verdict>> verdicts = choose(machine, trace.tensors, step, Asking::kAhead);
    if (!verdicts.ok()) return std::move(verdicts.status());
    const Verdict &frugal = verdicts.value().front();
    stall.frugal = frugal.candidate.name();
    stall.frugal_ns = frugal.step_ns / frugal.steps;
    const Verdict &best = fastest(verdicts.value());
    stall.ours = best.candidate.name();
    stall.step_ns = best.step_ns / best.steps;
    stall.stall_ns = best.stall_ns / best.steps;
    stall.busy_ns = longest_ns(machine, best.links) / best.steps;
    return stall;
}

}  // namespace stepwell::schedule
