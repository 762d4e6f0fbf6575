// SPDX-License-Identifier: Apache-2.0
// Where shards begin and end, and what lies where when the number of ranks changes.
#include "lib/collective/partition.h"

#include <stepwell/types.h>

#include "lib/support/assert.h"

#include <algorithm>
#include <cinttypes>
#include <numeric>

namespace stepwell::collective {
namespace {

constexpr uint64_t kElementsMax = kTensorBytesMax;  // of any width: counts stay clear of overflow

// 0: too large to matter.
uint64_t common_multiple(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    if (a == 0 || b == 0 || __builtin_mul_overflow(a / std::gcd(a, b), b, &product)) return 0;
    return product <= kElementsMax ? product : 0;
}

// The least number of elements that a shard is a multiple of. As many as there are bytes in the
// alignment, though wider elements could do with fewer: so f32 and bf16 are cut alike.
uint64_t unit_of(const PartitionSpec &spec)
{
    const uint64_t align_bytes = std::max<uint64_t>(spec.align_bytes, 1);
    if (align_bytes > kTensorBytesMax) return 0;
    const uint64_t align_bits = align_bytes * 8;
    const uint64_t aligned = common_multiple(
        align_bytes, align_bits / std::gcd<uint64_t>(align_bits, spec.element_bits));
    return common_multiple(std::max<uint64_t>(spec.multiple, 1), aligned);
}

uint64_t rounded_up(uint64_t value, uint64_t unit)
{
    return (value / unit + (value % unit != 0 ? 1 : 0)) * unit;
}

// The shard of one of `parts` equal ones.
uint64_t shard_of(const PartitionSpec &spec, uint32_t parts, uint64_t unit)
{
    const uint64_t least = spec.elements / parts + (spec.elements % parts != 0 ? 1 : 0);
    const uint64_t cut = parts > 1 ? common_multiple(unit, kCutElements) : 0;
    if (cut != 0) {
        uint64_t padded = 0;
        const bool fits = !__builtin_mul_overflow(rounded_up(least, cut), parts, &padded);
        if (fits && padded - spec.elements <= spec.elements / kPaddingShare) return padded / parts;
    }
    return rounded_up(least, unit);
}

Status too_large(const PartitionSpec &spec)
{
    return Status::error(STW_ERROR_LIMIT,
                         "A tensor of %" PRIu64 " elements of %u bits on %u ranks, in shards of "
                         "multiples of %" PRIu64 " elements and %" PRIu64 " bytes, is larger than "
                         "%" PRIu64 " bytes with its padding.",
                         spec.elements, spec.element_bits, spec.ranks, spec.multiple,
                         spec.align_bytes, kTensorBytesMax);
}

Status differs(const Partition &from, const Partition &to, const char *why)
{
    return Status::error(STW_ERROR_MISMATCH,
                         "%" PRIu64 " elements of %u bits on %u ranks cannot become %" PRIu64
                         " elements of %u bits on %u ranks: %s.",
                         from.elements, from.element_bits, from.ranks, to.elements, to.element_bits,
                         to.ranks, why);
}

Status check_pair(const Partition &from, const Partition &to)
{
    if (from.elements != to.elements || from.element_bits != to.element_bits) {
        return differs(from, to, "they are different tensors");
    }
    const bool local = from.mode == Mode::kLocal || to.mode == Mode::kLocal;
    if (local && (from.mode != to.mode || from.ranks != to.ranks)) {
        return differs(from, to, "each rank has a tensor of its own, so ranks must be the same");
    }
    return {};
}

void append_copies(const Partition &from, const Partition &to, uint32_t to_rank,
                   std::vector<ShardCopy> &list)
{
    const Range mine = to.shard(to_rank);
    if (mine.count == 0) return;
    if (from.mode != Mode::kSharded) {
        // All have it: spread over them who is read.
        list.push_back({to_rank % from.ranks, to_rank, mine.begin, 0, mine.count});
        return;
    }
    const uint64_t end = mine.begin + mine.count;
    for (uint64_t at = mine.begin; at < end;) {
        const uint32_t rank = from.rank_of(at);
        const Range part = from.part(rank, {at, end - at});
        list.push_back({rank, to_rank, at - from.shard(rank).begin, at - mine.begin, part.count});
        at += part.count;
    }
}

}  // namespace

Mode default_mode(uint32_t role, uint64_t elements)
{
    if (role == STW_ROLE_ACTIVATION || role == STW_ROLE_CACHE) return Mode::kLocal;
    return elements <= kReplicatedElementsMax ? Mode::kReplicated : Mode::kSharded;
}

uint64_t Partition::whole_bytes() const
{
    return mode == Mode::kSharded ? shard_bytes() * ranks : shard_bytes();
}

Range Partition::shard(uint32_t rank) const
{
    STW_ASSERT(rank < ranks);
    if (mode != Mode::kSharded) return {0, elements};
    const uint64_t begin = std::min(rank * shard_elements, elements);
    return {begin, std::min(shard_elements, elements - begin)};
}

uint32_t Partition::rank_of(uint64_t element) const
{
    STW_ASSERT(element < elements);
    return mode == Mode::kSharded ? static_cast<uint32_t>(element / shard_elements) : 0;
}

Range Partition::part(uint32_t rank, Range range) const
{
    const Range mine = shard(rank);
    const uint64_t begin = std::max(mine.begin, range.begin);
    const uint64_t end = std::min(mine.begin + mine.count, range.begin + range.count);
    return begin < end ? Range{begin, end - begin} : Range{};
}

Result<Partition> make_partition(const PartitionSpec &spec)
{
    if (spec.ranks == 0 || spec.element_bits == 0) {
        return Status::error(STW_ERROR_INVALID,
                             "A tensor of elements of %u bits cannot be cut over %u ranks.",
                             spec.element_bits, spec.ranks);
    }
    const uint64_t unit = unit_of(spec);
    if (unit == 0 || spec.elements > kElementsMax) return too_large(spec);
    const uint32_t parts = spec.mode == Mode::kSharded ? spec.ranks : 1;
    Partition made;
    made.elements = spec.elements;
    made.shard_elements = shard_of(spec, parts, unit);
    made.element_bits = spec.element_bits;
    made.ranks = spec.ranks;
    made.mode = spec.mode;
    uint64_t padded = 0;
    uint64_t bits = 0;
    if (__builtin_mul_overflow(made.shard_elements, parts, &padded) ||
        __builtin_mul_overflow(padded, spec.element_bits, &bits) || bits / 8 > kTensorBytesMax) {
        return too_large(spec);
    }
    return made;
}

Result<std::vector<ShardCopy>> copies_to(const Partition &from, const Partition &to,
                                         uint32_t to_rank)
{
    STW_TRY(check_pair(from, to));
    std::vector<ShardCopy> list;
    append_copies(from, to, to_rank, list);
    return list;
}

Result<std::vector<ShardCopy>> copies(const Partition &from, const Partition &to)
{
    STW_TRY(check_pair(from, to));
    std::vector<ShardCopy> list;
    for (uint32_t rank = 0; rank < to.ranks; ++rank) append_copies(from, to, rank, list);
    return list;
}

}  // namespace stepwell::collective
