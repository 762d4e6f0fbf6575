// SPDX-License-Identifier: Apache-2.0
// Decides whether another plan is asked for: what existing plans hold for, and how often a phase
// may ask. Pure; time is an argument. Under the runtime's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stepwell {

struct PlanTurn;
struct PlanWork;

// Compares cyclically.
bool is_same_round(std::vector<PlanTurn> one, const std::vector<PlanTurn> &other);

// A plan of these was made, or refused, for the same question: the same steps and room, and
// similar speeds of links, computing and updates.
bool is_answered(const std::vector<std::unique_ptr<PlanWork>> &made, const PlanWork &asked);

// The newest plan of these for the same steps with the same room, at any speeds; only for steps
// that repeat. Null: none.
const PlanWork *find_same_steps(const std::vector<std::unique_ptr<PlanWork>> &made,
                                const PlanWork &asked);

// The plan to drop for room, never the one that is followed: first those that a newer one for the
// same steps replaces, so that many plans of one phase do not drop another phase's. Else the
// oldest; made.size() if there is none.
size_t plan_to_drop(const std::vector<std::unique_ptr<PlanWork>> &made, const PlanWork *followed);

// For one phase.
class PlanAsking {
public:
    // The first questions always; later ones while planning, with the likely time of this one,
    // takes a small share of the time.
    [[nodiscard]] bool may_ask(uint64_t planning_ns, uint64_t open_ns) const
    {
        return asked_ < kAskedAtOnce || !is_costly(planning_ns, open_ns);
    }
    // Planning has used its share of time: the plan then reuses results of an earlier one.
    [[nodiscard]] static bool is_costly(uint64_t planning_ns, uint64_t open_ns)
    {
        return planning_ns > open_ns / kTimeShare;
    }
    void asked() { ++asked_; }
    // There was no memory to plan for this room: not asked again until another room is refused.
    void refuse(uint64_t room) { refused_room_ = room; }
    [[nodiscard]] bool is_refused(uint64_t room) const { return refused_room_ == room; }

    static constexpr uint32_t kAskedAtOnce = 3;
    static constexpr uint64_t kTimeShare = 100;  // 1/100 of the time since open
    static constexpr uint64_t kAnewShare = 5;    // 1/5 of a plan's time, if it reuses another

private:
    uint32_t asked_ = 0;
    std::optional<uint64_t> refused_room_;
};

}  // namespace stepwell
