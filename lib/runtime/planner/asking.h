// SPDX-License-Identifier: Apache-2.0
// Whether another plan is asked for: what the ones there are hold for, and what a phase may ask.
// Pure; time comes in as a number. Under the runtime's lock.
#pragma once

#include "lib/runtime/planner/planner.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stepwell {

// Wherever it begins.
bool is_same_round(std::vector<PlanWork::Turn> one, const std::vector<PlanWork::Turn> &other);

// One of these was made, or refused, for just this: the same steps with the same room, where links,
// computing and updates take about as long.
bool is_answered(const std::vector<std::unique_ptr<PlanWork>> &made, const PlanWork &asked);

// The newest of these that is a plan for the same steps with the same room, whatever they took; of
// steps that repeat. Null: none.
const PlanWork *find_same_steps(const std::vector<std::unique_ptr<PlanWork>> &made,
                                const PlanWork &asked);

// Which of these goes for room: not the one that is followed; first those that a newer one for the
// same steps took the place of, so that many plans of one phase leave that of another. Else the
// oldest; made.size() where there is none.
size_t plan_to_drop(const std::vector<std::unique_ptr<PlanWork>> &made, const PlanWork *followed);

// Of one phase.
class PlanAsking {
public:
    // The first ones at once, then as long as planning takes a small share of the time, with what
    // this one is likely to take.
    [[nodiscard]] bool may_ask(uint64_t planning_ns, uint64_t open_ns) const
    {
        return asked_ < kAskedAtOnce || !is_costly(planning_ns, open_ns);
    }
    // Planning has had its share of the time: what can be taken over of an earlier plan is.
    [[nodiscard]] static bool is_costly(uint64_t planning_ns, uint64_t open_ns)
    {
        return planning_ns > open_ns / kTimeShare;
    }
    void asked() { ++asked_; }
    // There is no memory to plan for this room: not asked for again until another one is refused.
    void refuse(uint64_t room) { refused_room_ = room; }
    [[nodiscard]] bool is_refused(uint64_t room) const { return refused_room_ == room; }

    static constexpr uint32_t kAskedAtOnce = 3;
    static constexpr uint64_t kTimeShare = 100;  // of the time since open
    static constexpr uint64_t kAnewShare = 5;    // of what a plan takes, where one is taken over

private:
    uint32_t asked_ = 0;
    std::optional<uint64_t> refused_room_;
};

}  // namespace stepwell
