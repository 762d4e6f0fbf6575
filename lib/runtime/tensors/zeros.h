// SPDX-License-Identifier: Apache-2.0
// Empty tensors that read as zeros: the zeros are written when the bytes are needed.
#pragma once

#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

namespace stepwell {

class OwedZeros final : Grounded {
public:
    OwedZeros(const Ground &ground) : Grounded(ground) {}

    Status write_zeros(const stw_tensor *tensor);
    Status write_all_zeros();
};

}  // namespace stepwell
