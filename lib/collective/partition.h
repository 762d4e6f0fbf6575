// SPDX-License-Identifier: Apache-2.0
// How a tensor lies over the ranks of its group: flattened, padded and cut into equal shards, or
// the same on every rank, or each rank's own. Pure arithmetic, the same on all ranks: it depends on
// the tensor's spec and the number of ranks alone. Any thread. Knows no engine and no memory.
#pragma once

#include "lib/support/status.h"

#include <cstdint>
#include <vector>

namespace stepwell::collective {

enum class Mode : uint8_t {
    kSharded,     // each rank has an equal part
    kReplicated,  // each rank has all of it, and all have the same
    kLocal,       // each rank has a tensor of its own; the others know nothing of it
};

// Up to so many elements a tensor is replicated. It is what norms and most biases have: 32 KiB in
// bf16, which a link of 10 GB/s carries in 3 us, less than any engine needs to begin a collective.
// A rank pays 288 KiB for the largest, its gradient and its optimizer states in f32 included. In
// elements and not in bytes: a parameter, its gradient and its states are of different dtypes and
// have to lie alike, since an update goes over their shards side by side.
constexpr uint64_t kReplicatedElementsMax = 16'384;

// role: STW_ROLE_*.
Mode default_mode(uint32_t role, uint64_t elements);

// A norm is the sum over blocks of so many elements of a tensor, taken in their order. Where shards
// end between two of them each rank sums whole blocks, and the norm has the same bits whatever the
// number of ranks.
constexpr uint64_t kCutElements = 4096;
// Shards are cut there as long as the padding is at most one part in so many of the tensor. That
// is so from 32,768 elements a rank on, and the padding only shrinks from there, while ten thousand
// small tensors would be mostly padding: 16 KiB a rank and tensor in f32.
constexpr uint64_t kPaddingShare = 8;

struct PartitionSpec {
    uint64_t elements = 0;
    uint32_t element_bits = 0;
    uint32_t ranks = 1;
    Mode mode = Mode::kSharded;
    uint64_t multiple = 0;     // shards are multiples of so many elements (a row); 0: no matter
    uint64_t align_bytes = 0;  // shards are multiples of so many bytes; 0: of one
};

struct Range {
    uint64_t begin = 0;
    uint64_t count = 0;

    bool operator==(const Range &) const = default;
};

struct Partition {
    uint64_t elements = 0;
    uint64_t shard_elements = 0;  // with padding, the same on all ranks
    uint32_t element_bits = 0;
    uint32_t ranks = 1;
    Mode mode = Mode::kSharded;

    [[nodiscard]] uint64_t shard_bytes() const { return shard_elements * element_bits / 8; }
    // Of the gathered whole: the shards of all ranks one behind the other, all padding at the end.
    [[nodiscard]] uint64_t whole_bytes() const;
    // What rank `rank` has without padding, in elements of the tensor; the count may be 0.
    [[nodiscard]] Range shard(uint32_t rank) const;
    // The rank that an element of a sharded tensor lies on; else each has it, and it is 0.
    [[nodiscard]] uint32_t rank_of(uint64_t element) const;
    // What rank `rank` has of a range, in elements of the tensor. Nothing: a count of 0.
    [[nodiscard]] Range part(uint32_t rank, Range range) const;
};

// Padded bytes of all shards are below this; more is refused.
constexpr uint64_t kTensorBytesMax = uint64_t{1} << 60;

// INVALID: no ranks or no bits. LIMIT: the padded tensor does not fit in kTensorBytesMax. Tensors
// of the same elements, ranks, multiple and alignment have the same shard_elements if their
// elements are whole bytes, whatever the dtype.
Result<Partition> make_partition(const PartitionSpec &spec);

// `count` elements from element `from_offset` of the shard of rank `from_rank` of the one
// partition to element `to_offset` of the shard of rank `to_rank` of the other.
struct ShardCopy {
    uint32_t from_rank = 0;
    uint32_t to_rank = 0;
    uint64_t from_offset = 0;
    uint64_t to_offset = 0;
    uint64_t count = 0;

    bool operator==(const ShardCopy &) const = default;
};

// What fills rank `to_rank` of `to` from the shards of `from`, in order of elements: each element
// that it has exactly once. MISMATCH: the tensors differ, or are local and their ranks do not
// correspond.
Result<std::vector<ShardCopy>> copies_to(const Partition &from, const Partition &to,
                                         uint32_t to_rank);
// The same for all ranks of `to`, in order of rank.
Result<std::vector<ShardCopy>> copies(const Partition &from, const Partition &to);

}  // namespace stepwell::collective
