// SPDX-License-Identifier: Apache-2.0
// One pass over the call's tensors, with one open bucket for each kind.
#include "lib/collective/bucket.h"

#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::collective {
namespace {

uint64_t aligned(uint64_t bytes)
{
    return (bytes + kBucketAlignBytes - 1) / kBucketAlignBytes * kBucketAlignBytes;
}

struct Open {
    uint32_t kind;
    size_t bucket;  // in `made`
};

struct Made {
    std::vector<uint32_t> members;
    uint64_t rank_bytes = 0;
};

}  // namespace

Buckets cut_buckets(const std::vector<BucketTensor> &tensors, uint32_t ranks, uint64_t bucket_bytes)
{
    const uint64_t rank_bytes_max = bucket_bytes / std::max(ranks, 1u);
    std::vector<Made> made;
    std::vector<Open> open;
    Buckets buckets;
    buckets.offsets.resize(tensors.size());
    for (uint32_t i = 0; i < tensors.size(); ++i) {
        const uint64_t shard_bytes = tensors[i].shard_bytes;
        if (shard_bytes == 0) continue;
        if (shard_bytes > rank_bytes_max / kSmallShare) {
            made.push_back({{i}, shard_bytes});
            continue;
        }
        auto at = std::find_if(open.begin(), open.end(),
                               [&](const Open &other) { return other.kind == tensors[i].kind; });
        if (at == open.end()) at = open.insert(open.end(), {tensors[i].kind, SIZE_MAX});
        const bool fits =
            at->bucket != SIZE_MAX &&
            aligned(shard_bytes) <=
                rank_bytes_max - std::min(rank_bytes_max, made[at->bucket].rank_bytes);
        if (!fits) {
            at->bucket = made.size();
            made.emplace_back();
        }
        Made &bucket = made[at->bucket];
        bucket.members.push_back(i);
        buckets.offsets[i] = bucket.rank_bytes;
        bucket.rank_bytes += aligned(shard_bytes);
    }
    for (const Made &bucket : made) {
        const auto count = static_cast<uint32_t>(bucket.members.size());
        const bool alone = count == 1;
        buckets.list.push_back(
            {static_cast<uint32_t>(buckets.members.size()), count,
             alone ? tensors[bucket.members[0]].shard_bytes : bucket.rank_bytes});
        buckets.members.insert(buckets.members.end(), bucket.members.begin(), bucket.members.end());
    }
    return buckets;
}

std::vector<BucketCopy> bucket_copies(const Buckets &buckets, const Bucket &bucket,
                                      const std::vector<BucketTensor> &tensors, uint32_t ranks)
{
    std::vector<BucketCopy> copies;
    for (uint32_t i = bucket.first; i < bucket.first + bucket.count; ++i) {
        const uint32_t at = buckets.members[i];
        const BucketTensor &tensor = tensors[at];
        uint64_t whole_offset = 0;
        for (uint32_t rank = 0; rank < ranks && whole_offset < tensor.whole_bytes; ++rank) {
            const uint64_t bytes = std::min(tensor.shard_bytes, tensor.whole_bytes - whole_offset);
            copies.push_back(
                {at, rank * bucket.rank_bytes + buckets.offsets[at], whole_offset, bytes});
            whole_offset += bytes;
        }
        STW_ASSERT(whole_offset == tensor.whole_bytes);
    }
    return copies;
}

}  // namespace stepwell::collective
