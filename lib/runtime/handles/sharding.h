// SPDX-License-Identifier: Apache-2.0
// What a tensor of several ranks has beside its shard. The core's tensor behind the handle is the
// shard; the handle's elements and bytes are the shard's, without padding.
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
    uint64_t spec = 0;        // what must be equal on all ranks: hash, and in words
    std::string words;
    uint64_t multiple = 0;  // as the caller wanted shards cut
    // Of the gathered whole, made when it is first asked for; kNone before. The end of any view of
    // the tensor looks at it, without the lock.
    std::atomic<residency::TensorId> whole{residency::kNone};
    uint32_t whole_id = 0;  // in the ledger
    // This rank's sum, released with MORE: it goes out with the next release without.
    residency::TensorId partial = residency::kNone;

    [[nodiscard]] bool is_sharded() const { return partition.mode == collective::Mode::kSharded; }
    // Of all ranks together, without padding.
    [[nodiscard]] uint64_t elements() const { return partition.elements; }
    // Of a buffer that is summed over the ranks: each rank's part of it is as long.
    [[nodiscard]] uint64_t padded_elements() const
    {
        return is_sharded() ? partition.shard_elements * partition.ranks : partition.elements;
    }
};

}  // namespace stepwell
