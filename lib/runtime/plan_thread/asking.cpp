// SPDX-License-Identifier: Apache-2.0
// How similar two questions must be to have the same plan.
#include "lib/runtime/plan_thread/asking.h"

#include "lib/runtime/plan_thread/work.h"

#include <algorithm>

namespace stepwell {
namespace {

constexpr double kChanged = 1.25;  // a plan holds for changes of speeds up to this factor

bool is_near(double one, double other)
{
    return one <= kChanged * other && other <= kChanged * one;
}

bool is_near(uint64_t one, uint64_t other)
{
    return is_near(static_cast<double>(one), static_cast<double>(other));
}

bool are_near(const std::vector<double> &some, const std::vector<double> &others)
{
    return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                      [](double one, double other) { return is_near(one, other); });
}

bool is_same(const PlanTurn &one, const PlanTurn &other)
{
    return one.phase == other.phase && one.way == other.way;
}

}  // namespace

bool is_same_round(std::vector<PlanTurn> one, const std::vector<PlanTurn> &other)
{
    for (size_t i = 0; i < one.size() && one.size() == other.size(); ++i) {
        if (std::equal(one.begin(), one.end(), other.begin(), is_same)) return true;
        std::rotate(one.begin(), one.begin() + 1, one.end());
    }
    return false;
}

bool is_answered(const std::vector<std::unique_ptr<PlanWork>> &made, const PlanWork &asked)
{
    return std::any_of(made.begin(), made.end(), [&](const auto &one) {
        const bool same_round = is_same_round(one->round, asked.round);
        const bool same_costs = are_near(one->speeds, asked.speeds) &&
                                is_near(one->compute_ns, asked.compute_ns) &&
                                is_near(one->update_bytes, asked.update_bytes);
        const bool same_past =
            !asked.varies || !schedule::is_much_more(asked.steps_seen, one->steps_seen);
        return same_round && one->varies == asked.varies && same_past && one->room == asked.room &&
               same_costs;
    });
}

const PlanWork *find_same_steps(const std::vector<std::unique_ptr<PlanWork>> &made,
                                const PlanWork &asked)
{
    if (asked.varies) return nullptr;
    const auto found = std::find_if(made.rbegin(), made.rend(), [&](const auto &one) {
        return one->plan && one->plan->repeats() && one->room == asked.room &&
               is_same_round(one->round, asked.round);
    });
    return found == made.rend() ? nullptr : found->get();
}

size_t plan_to_drop(const std::vector<std::unique_ptr<PlanWork>> &made, const PlanWork *followed)
{
    const auto worth = [&](size_t i) {
        int least = 2;
        for (size_t later = i + 1; later < made.size(); ++later) {
            if (!made[later]->plan || !is_same_round(made[later]->round, made[i]->round)) continue;
            least = std::min(least, made[later]->room == made[i]->room ? 0 : 1);
        }
        return least;
    };
    size_t drop = made.size();
    for (size_t i = 0; i < made.size(); ++i) {
        if (made[i].get() == followed) continue;
        if (drop == made.size() || worth(i) < worth(drop)) drop = i;
    }
    return drop;
}

}  // namespace stepwell
