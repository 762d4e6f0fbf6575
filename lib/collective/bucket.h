// SPDX-License-Identifier: Apache-2.0
// Which tensors of one call are gathered (or summed) by one collective, and where each lies in it.
// A function of the list, the number of ranks and the bucket size alone, so that all ranks start
// the same collectives in the same order. Pure arithmetic; any thread. Knows no engine, no memory.
#pragma once

#include <cstdint>
#include <vector>

namespace stepwell::collective {

// Of a tensor in a bucket on one rank: no kernel and no copy then meets half a cache line.
constexpr uint64_t kBucketAlignBytes = 64;
// A tensor whose gathered bytes are at most one part in so many of a bucket is small. Of an 8 MiB
// bucket that is 256 KiB, which take about as long to copy out of it as a collective of their own
// takes to begin; and a bucket that no small one fits into any more has at least 31 of them.
constexpr uint64_t kSmallShare = 32;
constexpr uint64_t kBucketBytes = 8ull << 20;

struct BucketTensor {
    uint64_t whole_bytes = 0;  // without padding
    uint64_t shard_bytes = 0;  // of each rank, with padding
    uint32_t kind = 0;         // only equals share a bucket: the dtype of a sum; one for gathers
};

// One collective: of each rank `rank_bytes`, in the gathered bucket in rank order.
struct Bucket {
    uint32_t first = 0;  // in Buckets::members
    uint32_t count = 0;
    uint64_t rank_bytes = 0;

    // The gathered bytes are the whole, padding at its end: nothing has to be copied.
    [[nodiscard]] bool direct() const { return count == 1; }
};

struct Buckets {
    std::vector<Bucket> list;       // in the order in which they are started
    std::vector<uint32_t> members;  // tensors by bucket, in call order within each
    std::vector<uint64_t> offsets;  // by tensor: of its shard within each rank's bytes
};

// Small tensors join the bucket of their kind that is open, in call order, until one does not fit
// in `bucket_bytes` of gathered bytes; a large one is alone and closes none, since matrices and
// vectors alternate in a model. Tensors of no bytes are in none.
Buckets cut_buckets(const std::vector<BucketTensor> &tensors, uint32_t ranks,
                    uint64_t bucket_bytes);

struct BucketCopy {
    uint32_t tensor = 0;
    uint64_t bucket_offset = 0;
    uint64_t whole_offset = 0;
    uint64_t bytes = 0;
};

// What brings a gathered bucket to the wholes, without their padding; the other way round, what
// brings the wholes to a bucket that is summed. Tensor by tensor, within one by rank.
std::vector<BucketCopy> bucket_copies(const Buckets &buckets, const Bucket &bucket,
                                      const std::vector<BucketTensor> &tensors, uint32_t ranks);

}  // namespace stepwell::collective
