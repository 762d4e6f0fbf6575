// SPDX-License-Identifier: Apache-2.0
// A lower bound: what no schedule of a step can beat on a machine, whatever it keeps, evicts and
// asks ahead. It follows from bytes, capacities, bandwidths and computing alone.
// A part of the step that reads more than the place holds beside the views that are open when it
// begins must move the difference meanwhile, and what it writes beyond the place must leave; parts
// that follow each other add up. All of the step moves at least what the best choice of what stays
// leaves to be moved (fewest.h). Pure.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/step.h"

#include <algorithm>

namespace stepwell::schedule {

enum class Limit : uint8_t { kCompute, kReads, kWrites, kGroup };

struct Bound {
    uint64_t step_ns = 0;
    Limit limit = Limit::kCompute;                   // what it follows from
    residency::PlaceId place = residency::kNoPlace;  // of kReads, kWrites: into it, out of it
    uint64_t compute_ns = 0;                         // of the longer lane
    std::vector<uint64_t> in_bytes;                  // by place, over all links into it; of a step
    std::vector<uint64_t> out_bytes;
    std::vector<uint64_t> link_bytes;  // by link; 0 where other links could carry it instead
};

// kCold: nothing is at any place but the farthest when the step begins. kAny: whatever is best, so
// that the bound holds for every step of a run.
enum class Start : uint8_t { kCold, kAny };

// Of one step of so many in a row, on average: what one of them leaves is what the next one finds,
// so that together they must move more than each alone.
Bound bound_of(const Step &step, const std::vector<residency::TensorSpec> &specs,
               const Machine &machine, Start start, uint32_t times = 1);

// The bound of a step whose computing took another time than that which it was made with: where it
// took less, no schedule is faster by more than that.
constexpr uint64_t bound_with(uint64_t bound_ns, uint64_t compute_ns, uint64_t computed_ns)
{
    const uint64_t less = compute_ns > computed_ns ? compute_ns - computed_ns : 0;
    return std::max(computed_ns, bound_ns - std::min(bound_ns, less));
}

}  // namespace stepwell::schedule
