// SPDX-License-Identifier: Apache-2.0
// Keeping: which tensors stay at a place from one use to the next, so that a repeating step moves
// few bytes. What stays saves its read, and where it was written and stays until it is written
// again, its write-back; the room it takes meanwhile is the price. Chosen greedily, in several
// ways: which one moves least is for a replay to say. Pure.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/uses.h"

namespace stepwell::schedule {

enum class Stay : uint8_t { kLeaves, kPart, kStays };

struct Keeping {
    std::vector<std::vector<Stay>> stays;  // by tensor and use: until the next use, round the step
    double saved_bytes = 0;                // a step, against keeping nothing
};

constexpr uint32_t kKeepingWays = 10;

Keeping plan_keeping(const Uses &uses, const std::vector<residency::TensorSpec> &specs,
                     const Machine &machine, residency::PlaceId place, uint32_t way = 0);

}  // namespace stepwell::schedule
