// SPDX-License-Identifier: Apache-2.0
// What the runtime keeps of a phase. Under the runtime's lock.
#pragma once

#include "lib/runtime/planner/asking.h"
#include "lib/schedule/lookahead/lookahead.h"

#include <memory>

namespace stepwell {

struct Phase {
    std::string name;
    stw_phase *handle = nullptr;  // null once destroyed
    uint64_t step = 0;            // the open one, 0: none
    uint32_t count = 0;
    uint64_t aborted = 0;
    bool planned = false;
    uint64_t way = 0;            // of the open step, by the plan that drives it; 0: none does
    schedule::PlannedTurn turn;  // what that says of it; where steps differ, nothing
    residency::Instant begin_ns = 0;
    observe::StepAccount account;
    observe::PhaseAccount totals;
    std::vector<residency::TensorId> reduced;  // gradients summed into by the open step
    uint64_t evictions = 0;                    // of all places, when a plan was thought of last
    PlanAsking plans;
    std::unique_ptr<schedule::Lookahead> lookahead;  // null until it has something to go by
};

}  // namespace stepwell
