// SPDX-License-Identifier: Apache-2.0
// The copies of a fetch: into the caller's memory, or converted into private buffers. One chunk of
// one range at a time is asked for, copied and given back, so a copy holds very little. All ranges
// together are consistent: if one was written meanwhile the copy starts over, under a claim.
#pragma once

#include "lib/runtime/dispatch/waiter.h"

#include <deque>
#include <vector>

namespace stepwell {

// The cookie of a view of the caller's memory, which has no slot.
constexpr uint64_t kCopyCookie = 1ull << 63;

class Snapshots;
struct ViewSlot;

struct SnapshotPart {
    stw_tensor *tensor = nullptr;
    residency::TensorId scratch = residency::kNone;  // the buffer it is copied to, if not `into`
    residency::PlaceId place = 0;                    // where the buffer is written
    char *into = nullptr;
    const memory::CallerMemory *caller = nullptr;  // of `into`; null: the host's
    uint32_t dtype = 0;                            // of the copy
    uint64_t from_size = 0;                        // bytes of an element
    uint64_t to_size = 0;
    uint64_t begin = 0;  // elements
    uint64_t end = 0;
    uint64_t version = 0;  // of the tensor, when its first chunk was copied
    bool claimed = false;  // by this copy, which keeps writers out
};

// A position in the elements of all parts.
struct SnapshotCursor {
    size_t part = 0;
    uint64_t at = 0;
};

// Guarded by the runtime's lock, except while a chunk is copied.
struct Snapshot {
    Snapshots *owner = nullptr;
    Waiter *whole = nullptr;  // the fetch it is part of
    std::vector<SnapshotPart> parts;
    SnapshotCursor next;  // the current chunk
    uint64_t count = 0;   // elements of the current chunk
    Waiter chunk;
    bool held = false;  // the chunk was granted and not yet given back
    bool torn = false;  // a tensor was written since its first chunk
    uint32_t flags = 0;
    residency::ClaimId claim = 0;  // of the parts that are claimed
    SnapshotCursor hinted;         // hints were given up to here
    std::deque<residency::FetchId> hints;
    Status status;
};

// The range is converted into a private buffer.
bool is_converted(const RequestedRange &range);
// Copies are made before the rest is pinned.
bool needs_copies(const FetchPlan &plan);
// Converts elements of a tensor into `dtype`.
void copy_elements(void *to, uint32_t dtype, const void *from, const stw_tensor &tensor,
                   uint64_t count);
// The same, to memory of the program's; of a device's a chunk. Blocks there. DEVICE, MEMORY.
Status give_elements(const memory::CallerMemory *caller, void *to, uint32_t dtype, const void *from,
                     const stw_tensor &tensor, uint64_t count);
// The access that the core is asked for on a private buffer.
residency::Access buffer_access(uint32_t access);
// Includes the padding of a buffer that is summed over ranks.
uint64_t sum_elements(const stw_tensor &tensor, uint32_t access, uint64_t elements);
// The private buffer of an open view.
uint64_t buffer_bytes(const ViewSlot &view);
// The status of a cancelled operation.
Status cancelled();

}  // namespace stepwell
