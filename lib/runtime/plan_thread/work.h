// SPDX-License-Identifier: Apache-2.0
// A question to the planner, and the plan that answers it.
#pragma once

#include "lib/observe/step_stats.h"
#include "lib/runtime/plan_thread/model.h"
#include "lib/schedule/plan/plan.h"

#include <memory>
#include <vector>

namespace stepwell {

struct PlanTurn {
    uint32_t phase = schedule::kNoPhase;
    uint64_t way = 0;  // key of the access pattern
};

// A plan and what it holds for, filled from when it is asked for.
struct PlanWork {
    std::vector<PlanTurn> round;  // of repeating steps
    bool varies = false;          // instead of a round: steps of one phase that differ
    uint64_t steps_seen = 0;      // of such steps, when it was asked for
    uint64_t room = 0;            // identifies budgets and policies
    std::vector<double> speeds;
    uint64_t compute_ns = 0;
    uint64_t update_bytes = 0;
    std::vector<uint32_t> numbers;  // of its tensors, by id of the core

    schedule::PlanQuestion question;  // empty once answered
    std::unique_ptr<schedule::Plan> plan;
    Status status;              // why there is no plan
    uint64_t cpu_ns = 0;        // of making it
    uint64_t whole_cpu_ns = 0;  // of making one for these steps from scratch
    uint64_t steps = 0;         // for which it was followed
    uint64_t bytes = 0;         // its total size, once made

    // The part of the question that the planner's thread prepares.
    StepModel model;
    std::vector<size_t> lengths;  // of its steps, in events
    std::vector<observe::LinkTotal> totals;
};

}  // namespace stepwell
