// SPDX-License-Identifier: Apache-2.0
// The runtime's state of a phase. Under the runtime's lock.
#pragma once

#include "lib/observe/step_stats.h"
#include "lib/runtime/plan_thread/asking.h"
#include "lib/schedule/plan/planned.h"

#include <memory>

struct stw_phase;

namespace stepwell::schedule {
class Lookahead;
}  // namespace stepwell::schedule

namespace stepwell {

struct Phase {
    std::string name;
    stw_phase *handle = nullptr;  // null once destroyed
    uint64_t step = 0;            // the open step; 0: none
    uint32_t owner = 0;           // the thread that began its last step
    uint32_t count = 0;
    uint64_t aborted = 0;
    bool planned = false;
    uint64_t way = 0;            // the open step's access pattern in its plan; 0: no plan
    schedule::PlannedTurn turn;  // the plan's part for it; empty if steps differ
    residency::Instant begin_ns = 0;
    observe::StepAccount account;
    observe::PhaseAccount totals;
    std::vector<residency::TensorId> reduced;  // gradients summed into by the open step
    uint64_t evictions = 0;                    // of all places, when a plan was last considered
    PlanAsking plans;
    std::unique_ptr<schedule::Lookahead> lookahead;  // null until there is a forecast
};

}  // namespace stepwell
