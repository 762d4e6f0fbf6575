// SPDX-License-Identifier: Apache-2.0
// The fewest bytes that a step moves into a place, and out of it, when it is run several times in a
// row: found by an optimal choice of what stays, for bytes in and bytes out each by itself.
// What is read at its place has stayed there since its last use or comes again, once for each such
// span; what is written has stayed until it is written anew or is dead, or has left meanwhile. At
// no moment more stays than the place holds beside the views that are open. Any schedule obeys
// that, whatever it brings ahead, so none moves less. All bytes of all spans cost the same, so the
// fewest are lost when, wherever there are too many, the span that ends last is given up.
// Pure.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/step.h"

namespace stepwell::schedule {

struct FewestBytes {
    uint64_t in = 0;  // of all the times together
    uint64_t out = 0;
};

// Cold: nothing is there at first. Else whatever is best is.
FewestBytes fewest_bytes(const Step &step, const std::vector<residency::TensorSpec> &specs,
                         const Machine &machine, residency::PlaceId place, bool cold,
                         uint32_t times);

}  // namespace stepwell::schedule
