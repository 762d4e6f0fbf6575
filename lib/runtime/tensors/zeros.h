// SPDX-License-Identifier: Apache-2.0
// Empty tensors that read as zeros: the zeros are written when the bytes are needed.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"

#include <atomic>
#include <set>

namespace stepwell {

class OwedZeros final : Grounded {
public:
    OwedZeros(const Ground &ground) : Grounded(ground) {}

    void note_zeros(residency::TensorId tensor) STW_REQUIRES(runtime_lock);
    Status write_zeros(const stw_tensor *tensor);
    Status write_all_zeros();

    [[nodiscard]] bool owes(residency::TensorId tensor) const STW_REQUIRES(runtime_lock)
    {
        return owed_.count(tensor) > 0;
    }
    // When the tensor is destroyed.
    void forget(residency::TensorId tensor) STW_REQUIRES(runtime_lock);

private:
    std::set<residency::TensorId> owed_ STW_GUARDED_BY(runtime_lock);  // empty, but read as zeros
    std::atomic<size_t> count_{0};                                     // size of owed_
};

}  // namespace stepwell
