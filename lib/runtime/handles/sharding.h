// SPDX-License-Identifier: Apache-2.0
// The state of a tensor of several ranks. The core's tensor behind the handle is the shard; the
// handle's elements and bytes are the shard's, without padding.
#pragma once

#include "lib/collective/partition.h"
#include "lib/residency/types.h"

#include <atomic>
#include <cstdint>
#include <string>

namespace stepwell {

struct Sharding {
    collective::Partition partition;
    collective::Range shard;  // of this rank, in elements of the tensor
    uint64_t spec = 0;        // hash of what must be equal on all ranks; `words` is its text
    std::string words;
    uint64_t multiple = 0;  // alignment of shards that the caller asked for
    // The gathered tensor in the core, made when it is first asked for; kNone before. Read without
    // the lock when any view of the tensor ends.
    std::atomic<residency::TensorId> whole{residency::kNone};
    uint32_t whole_id = 0;   // in the ledger
    bool undecided = false;  // updated speculatively, also if that is without effect on this rank
    // This rank's part of a sum, released with MORE; it goes out with the next release without.
    residency::TensorId partial = residency::kNone;

    [[nodiscard]] bool is_sharded() const { return partition.mode == collective::Mode::kSharded; }
    // Of all ranks, without padding.
    [[nodiscard]] uint64_t elements() const { return partition.elements; }
    // Of a buffer that is summed over ranks, whose parts have equal lengths.
    [[nodiscard]] uint64_t padded_elements() const
    {
        return is_sharded() ? partition.shard_elements * partition.ranks : partition.elements;
    }
};

}  // namespace stepwell
