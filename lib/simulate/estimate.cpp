// SPDX-License-Identifier: Apache-2.0
#include "lib/simulate/estimate.h"

#include <algorithm>
#include <limits>
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

// Finds the smallest number of shares with which a step takes no longer, by bisection.
void shrink(const Model &model, const Machine &machine, Options options, uint64_t Budgets::*tier,
            double target_s, Answer *found)
{
    const uint64_t all = found->budgets.*tier;
    uint64_t too_few = 0;
    uint64_t enough = kEstimateShares;
    while (enough - too_few > 1) {
        const uint64_t shares = too_few + (enough - too_few) / 2;
        options.budgets = found->budgets;
        options.budgets.*tier = all / kEstimateShares * shares;
        Result<Answer> tried = simulate(model, machine, options);
        if (!tried.ok() || tried.value().step_s > target_s) {
            too_few = shares;
            continue;
        }
        enough = shares;
        *found = tried.take();
    }
}

Answer shrunk(const Model &model, const Machine &machine, Options options, double target_s,
              const Answer &from)
{
    Answer found = from;
    options.largest = false;
    options.has_budgets = true;
    for (uint64_t Budgets::*tier : {&Budgets::device_bytes, &Budgets::host_bytes})
        shrink(model, machine, options, tier, target_s, &found);
    // The farthest tier needs what rests there.
    found.budgets.nvme_bytes = found.peak_bytes[kNvmePlace];
    return found;
}

uint64_t trained_of(const Model &model)
{
    uint64_t trained = 0;
    for (const Layer &layer : model.layers)
        for (const Part &part : layer.parts)
            if (!part.frozen) trained += layer.count * part.parameters;
    return trained;
}

}  // namespace

Result<Estimate> estimate(const Model &model, const Machine &machine, const Options &options)
{
    Estimate found;
    Result<Answer> whole = simulate(model, machine, options);
    if (!whole.ok()) return std::move(whole.status());
    found.whole = whole.take();
    found.limit = limit_of(found.whole);
    const auto &stalls = found.whole.stall_s;
    found.waits = std::accumulate(stalls.begin(), stalls.end(), 0.0) / found.whole.step_s;
    found.without_stall = found.waits <= kStallOfStep;
    found.fast = shrunk(model, machine, options, found.whole.step_s * kAsFast, found.whole);
    found.least =
        shrunk(model, machine, options, std::numeric_limits<double>::infinity(), found.fast);
    const uint64_t trained = trained_of(model);
    found.parameter_bytes = model.parameters() * model.parameter_bytes;
    found.gradient_bytes = trained * model.gradient_bytes;
    found.state_bytes = model.states_of(trained, false);
    return found;
}

}  // namespace stepwell::simulate
