// SPDX-License-Identifier: Apache-2.0
// The memory that collectives work on: the host's, or that of a device which the engine accepts.
#pragma once

#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

#include <functional>

namespace stepwell {

class StreamOrder;

class GroupMemory final : Grounded {
public:
    GroupMemory(const Ground &ground, StreamOrder &streams) : Grounded(ground), streams_(streams) {}

    Status open_group_memory();
    void leave_group_memory();
    Status move_bytes(void *to, const void *from, uint64_t bytes);
    Status zero_bytes(void *memory, uint64_t bytes);
    Status order_group(const void *memory, uint64_t bytes, bool writes);

    // As a function object.
    std::function<Status(void *, const void *, uint64_t)> mover();

private:
    Status register_group_memory(bool asked);
    [[nodiscard]] bool is_of_group(const void *memory) const;
    Status order_copy(const void *memory, uint64_t bytes, bool writes, uint32_t copies);

    StreamOrder &streams_;
};

}  // namespace stepwell
