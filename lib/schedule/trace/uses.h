// SPDX-License-Identifier: Apache-2.0
// Uses: what a step does with each tensor, in its order. The reading of a step that policies, plans
// and bounds share. Pure.
#pragma once

#include "lib/schedule/trace/step.h"

#include <cstdint>
#include <vector>

namespace stepwell::schedule {

// From a fetch to its release, of one tensor. Those that overlap are one, and so are those of a
// lane that nothing else of it stands between: a large tensor that is copied piece by piece.
struct Use {
    uint32_t position = 0;  // of its fetch, among the fetches of the step
    uint32_t fetch = 0;     // event
    uint32_t release = 0;   // event
    residency::PlaceId place = 0;
    bool reads = false;   // what was there before
    bool writes = false;  // what is there after is new
    bool dies = false;    // nothing is there after
};

// Nothing of the tensor is there after it.
[[nodiscard]] inline bool dies(const Event &event)
{
    return event.act == Act::kDiscard || event.hint == Hint::kDiscard;
}

class Uses {
public:
    Uses() = default;
    Uses(const Step &step, size_t tensors);

    [[nodiscard]] const std::vector<Use> &of(residency::TensorId tensor) const
    {
        return uses_[tensor];
    }
    [[nodiscard]] size_t tensors() const { return uses_.size(); }
    [[nodiscard]] uint32_t fetches() const { return fetches_; }
    [[nodiscard]] uint32_t events() const { return events_; }

private:
    std::vector<std::vector<Use>> uses_;  // by tensor
    uint32_t fetches_ = 0;
    uint32_t events_ = 0;
};

}  // namespace stepwell::schedule
