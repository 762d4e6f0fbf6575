// SPDX-License-Identifier: Apache-2.0
// Which parameters copy their older contents before they are updated ahead of the verdict, where
// the free room holds the copies of a part of them: a share, as large as the last round of updates
// would have had room for, and spread over all of them by error diffusion. What is left to the
// verdict then lies between what is not, and the next forward pass waits little for each; first
// come would leave it the layers that it begins with. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stepwell::update {

class CopyShare {
public:
    // Of the free room, what is not for the next one to have: what copies under way will take, and
    // all of it where it is not its turn.
    [[nodiscard]] uint64_t taken() const { return due_ >= 0.0 ? under_way_ : UINT64_MAX; }

    // One that would copy that many bytes does so, or had no room or turn; of the free room it had
    // found `free_bytes` beside the taken ones.
    void note(uint64_t bytes, bool copies, uint64_t taken, uint64_t free_bytes)
    {
        asked_ += bytes;
        due_ += share_ * static_cast<double>(bytes);
        if (copies) {
            copied_ += bytes;
            under_way_ += bytes;
            due_ -= static_cast<double>(bytes);
            free_bytes -= bytes;
        }
        if (taken != UINT64_MAX) left_ = std::min(left_, free_bytes);
    }
    // They are copied, or will not be.
    void end_copies(uint64_t bytes) { under_way_ -= bytes; }

    void end_round()
    {
        if (asked_ == 0) return;
        const double left = left_ == UINT64_MAX ? 0.0 : static_cast<double>(left_);
        share_ = std::min(1.0, (static_cast<double>(copied_) + left) / static_cast<double>(asked_));
        asked_ = copied_ = 0;
        left_ = UINT64_MAX;
        due_ = 0.0;
    }

private:
    double share_ = 1.0;
    double due_ = 0.0;  // bytes: what the share would have copied so far, less what was
    uint64_t asked_ = 0;
    uint64_t copied_ = 0;
    uint64_t left_ = UINT64_MAX;  // the least that was free beside them
    uint64_t under_way_ = 0;
};

}  // namespace stepwell::update
