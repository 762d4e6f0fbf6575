// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lib/runtime/handles/lock.h"

#include <cstdint>

namespace stepwell {

// A higher room with tables that count.
class MetadataUser {
public:
    virtual ~MetadataUser() = default;
    [[nodiscard]] virtual uint64_t metadata_bytes() const STW_REQUIRES(runtime_lock) = 0;
    // Of these, what as many more tensors add; at most: whatever the program will ask for.
    [[nodiscard]] virtual uint64_t tensor_bytes(uint64_t /*tensors*/, bool /*at_most*/) const
        STW_REQUIRES(runtime_lock)
    {
        return 0;
    }
};

}  // namespace stepwell
