// SPDX-License-Identifier: Apache-2.0
// The smallest budgets with which a model trains as fast as the whole machine lets it. Pure.
#pragma once

#include "lib/simulate/simulate.h"

namespace stepwell::simulate {

constexpr uint32_t kPlanShares = 16;  // of a tier's memory, as fine as it is looked for

struct Plan {
    Answer whole;       // with all the machine has
    Answer least;       // with the budgets of the plan
    std::string limit;  // what limits a step, whatever the budgets
    // Of a step that the GPU waits, with all the machine has; where it is no more than a fiftieth,
    // the budgets of the plan train without stall.
    double waits = 0;
    bool without_stall = false;
};

// As fast: within a hundredth. Tiers are made smaller one after the other, the device first; each
// as far as a sixteenth of it tells a difference.
Result<Plan> plan(const Model &model, const Machine &machine, const Options &options);

}  // namespace stepwell::simulate
