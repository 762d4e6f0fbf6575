// SPDX-License-Identifier: Apache-2.0
// Held by whoever waits until nothing moves: no plan starts anything meanwhile. Any thread.
#pragma once

#include "lib/runtime/runtime.h"

namespace stepwell {

struct Runtime::PlanPause {
    explicit PlanPause(Runtime &runtime);
    ~PlanPause();
    PlanPause(const PlanPause &) = delete;
    PlanPause &operator=(const PlanPause &) = delete;

private:
    Runtime &runtime_;
};

}  // namespace stepwell
