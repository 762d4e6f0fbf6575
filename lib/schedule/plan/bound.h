// SPDX-License-Identifier: Apache-2.0
// A lower bound: what no schedule of a step can beat on a machine, whatever it keeps, evicts and
// prefetches. It follows from bytes, capacities, bandwidths and compute time alone.
// A part of the step that reads more than the place holds beside the views that are open when it
// begins must move the difference meanwhile, and what it writes beyond the place must leave;
// consecutive parts add up. The step as a whole moves at least what an optimal choice of what
// stays leaves to be moved (fewest.h). Pure.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/step.h"

#include <algorithm>

namespace stepwell::schedule {

enum class Limit : uint8_t { kCompute, kReads, kWrites, kGroup };

struct Bound {
    uint64_t step_ns = 0;
    Limit limit = Limit::kCompute;                   // what determines it
    residency::PlaceId place = residency::kNoPlace;  // of kReads, kWrites: into or out of it
    uint64_t compute_ns = 0;                         // of the longer lane
    std::vector<uint64_t> in_bytes;                  // by place, over all its links; for one step
    std::vector<uint64_t> out_bytes;
    std::vector<uint64_t> link_bytes;  // by link; 0 if other links could carry the bytes
};

// kCold: at the begin of the step nothing is nearer than the farthest place. kAny: the best
// possible start, so that the bound holds for every step of a run.
enum class Start : uint8_t { kCold, kAny };

// For one of `times` consecutive steps, on average: each starts with what the one before left, so
// together they must move more than each alone.
Bound bound_of(const Step &step, const std::vector<residency::TensorSpec> &specs,
               const Machine &machine, Start start, uint32_t times = 1);

// The bound for a step with another compute time than the bound was made with: if it computed
// less, no schedule gains more than the difference.
constexpr uint64_t bound_with(uint64_t bound_ns, uint64_t compute_ns, uint64_t computed_ns)
{
    const uint64_t less = compute_ns > computed_ns ? compute_ns - computed_ns : 0;
    return std::max(computed_ns, bound_ns - std::min(bound_ns, less));
}

}  // namespace stepwell::schedule
