// SPDX-License-Identifier: Apache-2.0
// Held while a thread waits until nothing moves: plans start nothing meanwhile. Any thread.
#pragma once

namespace stepwell {

class Prefetcher;
struct PlanPause {
    explicit PlanPause(Prefetcher &prefetcher);
    ~PlanPause();
    PlanPause(const PlanPause &) = delete;
    PlanPause &operator=(const PlanPause &) = delete;

private:
    Prefetcher &prefetcher_;
};

}  // namespace stepwell
