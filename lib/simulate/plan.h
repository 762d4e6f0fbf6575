// SPDX-License-Identifier: Apache-2.0
// The smallest budgets with which a model trains as fast as with the whole machine. Pure.
#pragma once

#include "lib/simulate/simulate.h"

namespace stepwell::simulate {

constexpr uint32_t kPlanShares = 16;  // resolution of the search, in shares of a tier's memory

struct Plan {
    Answer whole;       // with the whole machine
    Answer least;       // with the budgets of the plan
    std::string limit;  // of a step, with any budgets
    // The share of a step in which the GPU waits, with the whole machine; up to 1/50 counts as
    // training without stall with the budgets of the plan.
    double waits = 0;
    bool without_stall = false;
};

// As fast means within 1/100. Tiers are reduced one after the other, the device first, in steps of
// a sixteenth.
Result<Plan> plan(const Model &model, const Machine &machine, const Options &options);

}  // namespace stepwell::simulate
