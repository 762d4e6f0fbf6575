// SPDX-License-Identifier: Apache-2.0
// planning: what stays resident in a round of steps, and what is prefetched.
#pragma once

#include "lib/runtime/planning/models.h"
#include "lib/runtime/planning/plans.h"
#include "lib/runtime/planning/prefetcher.h"

namespace stepwell {

struct PlanningRoom {
    StepModels models;
    PlanStore plans;
    Prefetcher prefetcher;
};

}  // namespace stepwell
