// SPDX-License-Identifier: Apache-2.0
#include "lib/simulate/plan.h"

#include <algorithm>
#include <numeric>

namespace stepwell::simulate {
namespace {

constexpr double kAsFast = 1.01;
constexpr double kStallOfStep = 0.02;

// The largest cause of stalls, else the computation.
std::string limit_of(const Answer &answer)
{
    uint32_t most = 0;
    for (uint32_t cause = 0; cause < kCauses; ++cause)
        if (answer.stall_s[cause] > answer.stall_s[most]) most = cause;
    if (answer.stall_s[most] <= kStallOfStep * answer.step_s) return "computation";
    const auto busiest =
        std::max_element(answer.links.begin(), answer.links.end(),
                         [](const LinkLoad &a, const LinkLoad &b) { return a.busy < b.busy; });
    std::string limit = cause_name(static_cast<Cause>(most));
    // Links between tiers do not limit collectives.
    const bool by_links = static_cast<Cause>(most) != Cause::kCollectives;
    if (by_links && busiest != answer.links.end() && busiest->busy > 0.5)
        limit += ", over " + busiest->name;
    return limit;
}

// Finds the smallest number of shares that is as fast, by bisection.
void shrink(const Model &model, const Machine &machine, Options options, uint64_t Budgets::*tier,
            double target_s, Plan *found)
{
    const uint64_t all = found->least.budgets.*tier;
    uint64_t too_few = 0;
    uint64_t enough = kPlanShares;
    while (enough - too_few > 1) {
        const uint64_t shares = too_few + (enough - too_few) / 2;
        options.budgets = found->least.budgets;
        options.budgets.*tier = all / kPlanShares * shares;
        Result<Answer> tried = simulate(model, machine, options);
        if (!tried.ok() || tried.value().step_s > target_s) {
            too_few = shares;
            continue;
        }
        enough = shares;
        found->least = tried.take();
    }
}

}  // namespace

Result<Plan> plan(const Model &model, const Machine &machine, const Options &options)
{
    Plan found;
    Options tried = options;
    Result<Answer> whole = simulate(model, machine, tried);
    if (!whole.ok()) return std::move(whole.status());
    found.whole = whole.take();
    found.least = found.whole;
    found.limit = limit_of(found.whole);
    const auto &stalls = found.whole.stall_s;
    found.waits = std::accumulate(stalls.begin(), stalls.end(), 0.0) / found.whole.step_s;
    found.without_stall = found.waits <= kStallOfStep;
    tried.largest = false;
    tried.has_budgets = true;
    const double target_s = found.whole.step_s * kAsFast;
    for (uint64_t Budgets::*tier : {&Budgets::device_bytes, &Budgets::host_bytes})
        shrink(model, machine, tried, tier, target_s, &found);
    // The farthest tier needs what rests there.
    found.least.budgets.nvme_bytes = found.least.peak_bytes[kNvmePlace];
    return found;
}

}  // namespace stepwell::simulate
