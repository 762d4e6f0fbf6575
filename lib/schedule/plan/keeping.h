// SPDX-License-Identifier: Apache-2.0
// Keeping: which tensors stay at a place from one use to the next, so that a repeating step moves
// few bytes. A stay saves the read and, if the tensor was written and stays until it is written
// again, the write-back; it costs room in between. Chosen greedily, in several ways; replays find
// the best one. Pure.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/uses.h"

namespace stepwell::schedule {

enum class Stay : uint8_t { kLeaves, kPart, kStays };

struct Keeping {
    std::vector<std::vector<Stay>> stays;  // by tensor and use: until the next use, cyclic
    double saved_bytes = 0;                // in a step, compared with keeping nothing
};

constexpr uint32_t kKeepingWays = 10;

Keeping plan_keeping(const Uses &uses, const std::vector<residency::TensorSpec> &specs,
                     const Machine &machine, residency::PlaceId place, uint32_t way = 0);

}  // namespace stepwell::schedule
