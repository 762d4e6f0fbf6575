// SPDX-License-Identifier: Apache-2.0
// Plan: the policy that replays found best for steps that repeat, and its expected cost. Planned:
// a plan followed by a running program, as the core's victim policy.
// Making a plan takes many replays and needs a thread of its own; everything else is fast. Pure;
// one thread at a time.
#pragma once

#include "lib/schedule/plan/bound.h"
#include "lib/schedule/plan/choose.h"
#include "lib/schedule/trace/trace.h"

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

// One of the steps that a plan is for.
struct PlannedTurn {
    uint64_t begin_ns = 0;  // expected, from the begin of the round
    uint64_t least_ns = 0;  // no schedule is faster, whatever its start
    uint64_t compute_ns = 0;
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

// The core's victim policy: next uses come from the trace, and the order of victims from the plan
// if one is followed. Tensors that it keeps count as needed now, so no hint evicts them.
class Planned final : public residency::VictimPolicy {
public:
    explicit Planned(const Trace &trace) : trace_(trace) {}

    // From the begin of a step on; null: none. The caller then calls the core's
    // set_victim_policy(). `numbers`: the plan's tensors by id of the core; kNone or missing: not
    // in the plan.
    void follow(Plan *plan, const std::vector<uint32_t> *numbers);
    [[nodiscard]] const Plan *plan() const { return plan_; }
    void begin_step();
    void access(Lane lane, residency::TensorId tensor);

    [[nodiscard]] uint64_t next_use(residency::TensorId tensor) const override;
    [[nodiscard]] bool plans() const override { return plan_ != nullptr; }
    [[nodiscard]] double worth(residency::TensorId tensor, residency::PlaceId place) const override;
    [[nodiscard]] double write_back_worth() const override;

private:
    [[nodiscard]] residency::TensorId number_of(residency::TensorId tensor) const;

    const Trace &trace_;
    Plan *plan_ = nullptr;                            // not owned
    const std::vector<uint32_t> *numbers_ = nullptr;  // not owned
};

}  // namespace stepwell::schedule
