// SPDX-License-Identifier: Apache-2.0
// Plan: what replays found best for steps that repeat, and what it is expected to cost. Planned: a
// plan followed along a running program, in the core's words.
// Making one takes many replays, so that is for a thread of its own; all else is fast. Pure; one
// thread at a time.
#pragma once

#include "lib/schedule/plan/bound.h"
#include "lib/schedule/plan/choose.h"
#include "lib/schedule/trace/trace.h"

#include <memory>
#include <vector>

namespace stepwell::schedule {

// A copy of all that a plan is made of.
struct PlanQuestion {
    std::vector<residency::TensorSpec> specs;
    Machine machine;
    Step step;  // that repeats, as completed() makes it; of several phases in turn, all
    std::vector<Step> turns;  // of several in it each by itself; one alone is the step
    std::vector<Step> seen;   // instead: steps that differ, the oldest first
    // Of an earlier plan for the same steps, where times have changed since: the best of these are
    // judged anew and the others not, which takes a fifth of the time.
    std::vector<Verdict> judged;

    [[nodiscard]] uint64_t bytes() const;
};

// One of the steps that a plan is for.
struct PlannedTurn {
    uint64_t begin_ns = 0;  // from the begin of them all, as it is expected
    uint64_t least_ns = 0;  // no schedule of it is faster, whatever is where when it begins
    uint64_t compute_ns = 0;
};

class Plan {
public:
    // Refused where the step cannot be replayed, and when told to stop.
    static Result<std::unique_ptr<Plan>> make(PlanQuestion question, Stop stop);

    [[nodiscard]] Policy &policy() { return *policy_; }
    [[nodiscard]] size_t tensors() const { return specs_.size(); }
    [[nodiscard]] const Machine &machine() const { return machine_; }
    // The first is used: the fastest, of those as fast the one that moves least.
    [[nodiscard]] const std::vector<Verdict> &verdicts() const { return verdicts_; }
    [[nodiscard]] bool repeats() const { return seen_ == 0; }
    // Of a step that repeats, else nothing.
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

// What the core asks: next uses are the trace's, and where a plan is followed the order of victims
// is the plan's. What it keeps is as good as needed now: no hint takes its room.
class Planned final : public residency::VictimPolicy {
public:
    explicit Planned(const Trace &trace) : trace_(trace) {}

    // From the begin of a step on; null: none. The core has to be told, by set_victim_policy().
    // `numbers`: of the plan's tensors, by those of the core; kNone or missing: not one of them.
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
