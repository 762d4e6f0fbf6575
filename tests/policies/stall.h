// SPDX-License-Identifier: Apache-2.0
// What a step waits although everything is known: its time with the policy that is chosen and what
// comes next brought ahead, beside the lower bound. In virtual time, so the same everywhere.
#pragma once

#include "lib/schedule/plan/bound.h"
#include "lib/schedule/plan/choose.h"
#include "tests/policies/traces.h"

namespace stepwell::schedule {

// In a row: those that are measured, and those that the bound is of.
constexpr uint32_t kStallSteps = 16;

struct Stall {
    std::string ours;         // the fastest policy
    uint64_t step_ns = 0;     // of one step of kStallSteps
    uint64_t stall_ns = 0;    // of it
    double busy_ns = 0;       // of the link that its bytes take the longest
    std::string frugal;       // the policy that is chosen by bytes
    uint64_t frugal_ns = 0;   // its step
    uint64_t bound_ns = 0;    // of the step
    uint64_t compute_ns = 0;  // of the step
    uint64_t moves_ns = 0;    // the bound, if nothing were computed
    bool overlaps = false;    // the bound knows of nothing but computing that takes time
    // Of the bound.
    [[nodiscard]] double over() const
    {
        return static_cast<double>(step_ns) / static_cast<double>(bound_ns) - 1;
    }
    [[nodiscard]] double frugal_over() const
    {
        return static_cast<double>(frugal_ns) / static_cast<double>(bound_ns) - 1;
    }
};

// The device holds so many percent; the step computes `ratio` times as long as the bound says that
// its bytes take the links.
Result<Stall> compare_stall(const Workload &trace, uint32_t percent, double ratio);

}  // namespace stepwell::schedule
