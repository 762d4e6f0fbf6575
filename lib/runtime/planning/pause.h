// SPDX-License-Identifier: Apache-2.0
// Held by whoever waits until nothing moves: no plan starts anything meanwhile. Any thread.
#pragma once

#include "lib/runtime/planning/prefetcher.h"

namespace stepwell {

struct PlanPause {
    explicit PlanPause(Prefetcher &prefetcher);
    ~PlanPause();
    PlanPause(const PlanPause &) = delete;
    PlanPause &operator=(const PlanPause &) = delete;

private:
    Prefetcher &prefetcher_;
};

}  // namespace stepwell
