// SPDX-License-Identifier: Apache-2.0
// Tensors that are empty and read as zeros: the zeros are written when somebody needs the bytes.
#pragma once

#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/recording/ground.h"

namespace stepwell {

class OwedZeros final : Ground {
public:
    OwedZeros(const Ground &ground) : Ground(ground) {}
    OwedZeros(const OwedZeros &) = delete;
    OwedZeros &operator=(const OwedZeros &) = delete;

    void note_zeros(residency::TensorId tensor) STW_REQUIRES(runtime_lock);
    Status write_zeros(const stw_tensor *tensor);
    Status write_all_zeros();

    std::set<residency::TensorId> zeros_owed
        STW_GUARDED_BY(runtime_lock);  // empty, but read as zeros
    std::atomic<size_t> zeros_owed_count{0};

private:
};

}  // namespace stepwell
