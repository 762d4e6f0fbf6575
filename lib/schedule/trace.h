// SPDX-License-Identifier: Apache-2.0
// Trace: the order in which a repeating phase touches tensors, learned from its last step, and from
// it the distance to each tensor's next use. What deviates costs nothing but its own distance: the
// cursor stays where it was until an access fits again.
// Pure; one thread at a time, under the shell's lock.
#pragma once

#include "lib/residency/policy.h"

#include <cstdint>
#include <vector>

namespace stepwell::schedule {

class Trace final : public residency::VictimPolicy {
public:
    // A step of the phase begins: what its last one recorded is the forecast of this one. False
    // when there is none yet.
    bool begin_step(uint32_t phase);
    // The accesses since begin_step become the forecast; a step that failed teaches nothing.
    void end_step(uint32_t phase, bool learn);
    void access(residency::TensorId tensor);
    // Accesses from now until the tensor is used, through the end of this step into the next one;
    // kNever when the phase's last step did not use it, or none was recorded.
    [[nodiscard]] uint64_t next_use(residency::TensorId tensor) const override;

    // What a step does beyond the limit is not learned.
    static constexpr uint64_t kBytesMax = 32ull << 20;
    void set_limit(uint64_t bytes) { limit_ = bytes; }
    [[nodiscard]] uint64_t limit() const { return limit_; }
    // Including what the step under way may grow to when it is learned.
    [[nodiscard]] uint64_t metadata_bytes() const;

private:
    struct Phase {
        std::vector<residency::TensorId> order;
        std::vector<std::vector<uint32_t>> uses;  // per tensor, ascending positions
        [[nodiscard]] uint64_t bytes() const;
    };
    [[nodiscard]] const std::vector<residency::TensorId> &forecast() const
    {
        return phases_[phase_].order;
    }

    std::vector<Phase> phases_;
    std::vector<residency::TensorId> recorded_;
    uint64_t limit_ = kBytesMax;
    uint64_t learned_bytes_ = 0;  // of all phases
    uint32_t phase_ = UINT32_MAX;
    uint64_t cursor_ = 0;  // in the forecast, of the next access expected
};

}  // namespace stepwell::schedule
