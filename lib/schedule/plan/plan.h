// SPDX-License-Identifier: Apache-2.0
// Plan: the policy that replays found best for steps that repeat, and its expected cost.
// Making a plan takes many replays and needs a thread of its own; everything else is fast. Pure;
// one thread at a time.
#pragma once

#include "lib/schedule/plan/bound.h"
#include "lib/schedule/plan/choose.h"
#include "lib/schedule/plan/planned.h"

#include <memory>
#include <vector>

namespace stepwell::schedule {

// A copy of everything that a plan is made of.
struct PlanQuestion {
    std::vector<residency::TensorSpec> specs;
    Machine machine;
    Step step;  // a repeating step, made by completed(); of a round of phases, all its steps
    std::vector<Step> turns;  // the steps of a round separately; empty for a single step
    std::vector<Step> seen;   // instead of `step`: steps that differ, the oldest first
    // Verdicts of an earlier plan for the same steps at other speeds: only the best are judged
    // again, which takes a fifth of the time.
    std::vector<Verdict> judged;

    [[nodiscard]] uint64_t bytes() const;
};

class Plan {
public:
    // Fails if the step cannot be replayed, and when stopped.
    static Result<std::unique_ptr<Plan>> make(PlanQuestion question, Stop stop);

    [[nodiscard]] Policy &policy() { return *policy_; }
    [[nodiscard]] size_t tensors() const { return specs_.size(); }
    [[nodiscard]] const Machine &machine() const { return machine_; }
    // The first is used: the fastest, and of equally fast ones that with the fewest bytes.
    [[nodiscard]] const std::vector<Verdict> &verdicts() const { return verdicts_; }
    [[nodiscard]] bool repeats() const { return seen_ == 0; }
    // Below: empty unless the step repeats.
    [[nodiscard]] const Bound &bound() const { return bound_; }
    [[nodiscard]] const StepResult &expected() const { return expected_; }
    [[nodiscard]] const std::vector<PlannedTurn> &turns() const { return turns_; }
    [[nodiscard]] const std::vector<Span> &computing() const { return computing_; }  // no link

    [[nodiscard]] uint64_t bytes() const;

private:
    Plan() = default;
    Status make_known(const PlanQuestion &question, Stop stop);
    Status make_online(const std::vector<Step> &seen, Stop stop);
    Status expect(const Step &step, Stop stop);
    void bound_turns(const std::vector<Step> &turns);
    void find_turns(const Step &step, const std::vector<Step> &turns);

    std::vector<residency::TensorSpec> specs_;
    Machine machine_;
    Uses uses_;
    size_t seen_ = 0;
    std::unique_ptr<Policy> policy_;
    std::vector<Verdict> verdicts_;
    Bound bound_;
    std::vector<PlannedTurn> turns_;
    StepResult expected_;
    std::vector<Span> computing_;
};

}  // namespace stepwell::schedule
