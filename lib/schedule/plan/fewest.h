// SPDX-License-Identifier: Apache-2.0
// The fewest bytes that a step moves into a place, and out of it, over several consecutive runs:
// an optimal choice of what stays, made for bytes in and bytes out separately.
// Bytes that are read at the place have stayed there since their last use, or come again, once for
// each such span; bytes that are written have stayed until they are overwritten or dead, or have
// left. At any time no more can stay than the place holds beside the open views. This is true of
// any schedule, whatever it prefetches, so none moves less. All bytes of all spans cost the same,
// so the fewest are lost if, whenever there are too many, the span that ends last is given up.
// Pure.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/step.h"

namespace stepwell::schedule {

struct FewestBytes {
    uint64_t in = 0;  // for all runs together
    uint64_t out = 0;
};

// `cold`: the place is empty at first; else it starts as well as possible.
FewestBytes fewest_bytes(const Step &step, const std::vector<residency::TensorSpec> &specs,
                         const Machine &machine, residency::PlaceId place, bool cold,
                         uint32_t times);

}  // namespace stepwell::schedule
