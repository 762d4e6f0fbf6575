// SPDX-License-Identifier: Apache-2.0
// Planned: a plan followed by a running program, as the core's victim policy. Fast and pure; one
// thread at a time.
#pragma once

#include "lib/schedule/trace/trace.h"

#include <vector>

namespace stepwell::schedule {

class Plan;

// One of the steps that a plan is for.
struct PlannedTurn {
    uint64_t begin_ns = 0;  // expected, from the begin of the round
    uint64_t least_ns = 0;  // no schedule is faster, whatever its start
    uint64_t compute_ns = 0;
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
