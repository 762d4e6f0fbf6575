// SPDX-License-Identifier: Apache-2.0
// The copies of a fetch: into memory of the caller's, or converted into private buffers. One chunk
// of one range at a time is asked for, copied and given back, so a copy holds next to nothing. All
// ranges together are one moment: where somebody wrote meanwhile it starts over, under a claim.
#pragma once

#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/handles/views.h"

#include <deque>
#include <vector>

namespace stepwell {

// The cookie of a view that shows memory of the caller's: no slot has it.
constexpr uint64_t kCopyCookie = 1ull << 63;

class Snapshots;

// One range of it.
struct SnapshotPart {
    stw_tensor *tensor = nullptr;
    residency::TensorId scratch = residency::kNone;  // the buffer it goes to, if not `into`
    residency::PlaceId place = 0;                    // where the buffer is written
    char *into = nullptr;
    uint32_t dtype = 0;      // it becomes
    uint64_t from_size = 0;  // bytes of an element
    uint64_t to_size = 0;
    uint64_t begin = 0;  // elements
    uint64_t end = 0;
    uint64_t version = 0;  // of the tensor, when its first chunk was copied
    bool claimed = false;  // by this copy: nobody else writes
};

// A place in the order of all elements.
struct SnapshotCursor {
    size_t part = 0;
    uint64_t at = 0;
};

// Under the runtime's lock, but for what whoever copies the chunk does to it.
struct Snapshot {
    Snapshots *owner = nullptr;
    Waiter *whole = nullptr;  // the fetch it is part of
    std::vector<SnapshotPart> parts;
    SnapshotCursor next;  // the chunk asked for, or at work
    uint64_t count = 0;   // its elements
    Waiter chunk;
    bool held = false;  // the chunk was granted and not yet given back
    bool torn = false;  // somebody wrote since the first chunk
    uint32_t flags = 0;
    residency::ClaimId claim = 0;  // of the parts that are claimed
    SnapshotCursor hinted;         // up to which hints were given
    std::deque<residency::FetchId> hints;
    Status status;
};

// Its bytes are converted into a private buffer.
bool is_converted(const Range &range);
// Is there anything to be copied before the rest is pinned?
bool needs_copies(const FetchPlan &plan);
// Elements of a tensor into memory of a dtype.
void copy_elements(void *to, uint32_t dtype, const void *from, const stw_tensor &tensor,
                   uint64_t count);
// What the core asks of private buffers of a fetch.
residency::Access buffer_access(uint32_t access);
// With the padding of a buffer that is summed over ranks, where it is one.
uint64_t sum_elements(const stw_tensor &tensor, uint32_t access, uint64_t elements);
// Of the private buffer behind an open view.
uint64_t buffer_bytes(const ViewSlot &view);
// Of an operation.
Status cancelled();

}  // namespace stepwell
