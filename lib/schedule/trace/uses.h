// SPDX-License-Identifier: Apache-2.0
// Uses: what a step does with each tensor, in order; shared by policies, plans and bounds. Pure.
#pragma once

#include "lib/schedule/trace/step.h"

#include <cstdint>
#include <vector>

namespace stepwell::schedule {

// From a fetch to its release, of one tensor. Overlapping ones are one use, and so are consecutive
// ones of a lane, as of a large tensor that is copied piece by piece.
struct Use {
    uint32_t position = 0;  // number of the fetch in the step
    uint32_t fetch = 0;     // index of the event
    uint32_t release = 0;   // likewise
    residency::PlaceId place = 0;
    bool reads = false;    // contents from before
    bool writes = false;   // leaves new contents
    bool dies = false;     // leaves no contents ...
    uint32_t dies_at = 0;  // ... from this event on: its release, or one after it in the round
};

// No contents are left after the event.
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
    [[nodiscard]] bool has_updates() const { return has_updates_; }

private:
    std::vector<std::vector<Use>> uses_;  // by tensor
    uint32_t fetches_ = 0;
    uint32_t events_ = 0;
    bool has_updates_ = false;
};

}  // namespace stepwell::schedule
