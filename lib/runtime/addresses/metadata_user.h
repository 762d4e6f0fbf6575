// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lib/runtime/handles/lock.h"

#include <cstdint>

namespace stepwell {

// A higher room whose tables count towards the budget.
class MetadataUser {
public:
    virtual ~MetadataUser() = default;
    [[nodiscard]] virtual uint64_t metadata_bytes() const STW_REQUIRES(runtime_lock) = 0;
    // Growth for that many more tensors; with `at_most` the largest that the program can cause.
    [[nodiscard]] virtual uint64_t tensor_bytes(uint64_t /*tensors*/, bool /*at_most*/) const
        STW_REQUIRES(runtime_lock)
    {
        return 0;
    }
};

}  // namespace stepwell
