// SPDX-License-Identifier: Apache-2.0
// Small sums that go out together. Nothing waits for a bucket to fill: when a sum is executed,
// ranks agree on how many of the next ones in all their queues go with it.
#include "lib/residency/core.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/ranks/sums.h"

#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/memory.h"
#include "lib/runtime/ranks/shards.h"
#include "lib/runtime/ranks/small_sums.h"
#include "lib/runtime/ranks/wholes.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/updates/tiers.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stepwell {

using residency::Access;

namespace {

constexpr uint64_t kHashFactor = 0x100000001b3ull;
// A source that is not available by then goes later: it may get room only after the first is
// summed.
constexpr uint64_t kAtHandNs = 10'000'000;

uint64_t mixed(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * kHashFactor;
}

uint64_t aligned(uint64_t bytes)
{
    return (bytes + collective::kBucketAlignBytes - 1) / collective::kBucketAlignBytes *
           collective::kBucketAlignBytes;
}

uint64_t element_bytes(const Collective &sum)
{
    return sum.tensors[0]->element_bits / 8;
}

// Of a buffer that every rank has, including padding.
uint64_t source_bytes(const Collective &sum)
{
    return sum.tensors[0]->sharding->padded_elements() * element_bytes(sum);
}

}  // namespace

// ------------------------------------------------------------------------------- the bucket ----

bool SmallSums::is_small(const Collective &sum)
{
    return sum.kind == Collective::Kind::kReduce && sum.cause.ok() && sum.gives &&
           source_bytes(sum) <= collective::kBucketBytes / collective::kSmallShare;
}

uint64_t SmallSums::bytes_of(const Collective &sum)
{
    return std::max(aligned(source_bytes(sum)), collective::kBucketAlignBytes);
}

SmallSums::SmallSums(std::vector<Collective *> members, uint32_t ranks)
    : members_(std::move(members)), ranks_(ranks)
{
    lay();
}

void SmallSums::lay()
{
    tensors_.clear();
    for (const Collective *member : members_) {
        const Sharding &sharding = *member->tensors[0]->sharding;
        const uint64_t bytes = source_bytes(*member);
        const uint32_t kind = member->tensors[0]->dtype * 2 + (sharding.is_sharded() ? 1 : 0);
        tensors_.push_back({bytes, sharding.is_sharded() ? bytes / ranks_ : bytes, kind});
    }
    const collective::Buckets buckets = collective::cut_buckets(tensors_, 1, UINT64_MAX);
    offsets_ = buckets.offsets;
    part_of_.assign(members_.size(), 0);
    parts_.clear();
    bytes_ = 0;
    for (const collective::Bucket &bucket : buckets.list) {
        const Collective &first = *members_[buckets.members[bucket.first]];
        Part part;
        part.sharded = first.tensors[0]->sharding->is_sharded();
        part.dtype = first.tensors[0]->dtype;
        part.rank_bytes = bucket.rank_bytes;
        part.begin = bytes_;
        part.sums = bytes_;
        if (part.sharded) part.sums += aligned(part.rank_bytes * ranks_);
        bytes_ = part.sums + aligned(part.rank_bytes);
        for (uint32_t i = bucket.first; i < bucket.first + bucket.count; ++i) {
            part_of_[buckets.members[i]] = static_cast<uint32_t>(parts_.size());
        }
        parts_.push_back(part);
    }
}

uint64_t SmallSums::hash(uint64_t n) const
{
    uint64_t hash = n;
    for (uint64_t i = 0; i < n; ++i) {
        const stw_tensor &tensor = *members_[i]->tensors[0];
        hash = mixed(collective::hash_name(hash, tensor.name), tensor.sharding->spec);
    }
    return hash;
}

Status SmallSums::put(size_t member, const char *source, char *bucket, const Move &move) const
{
    const collective::BucketTensor &tensor = tensors_[member];
    if (tensor.whole_bytes == 0) return {};
    const Part &part = parts_[part_of_[member]];
    char *to = bucket + part.begin + offsets_[member];
    for (uint64_t at = 0; at < tensor.whole_bytes; at += tensor.shard_bytes) {
        STW_TRY(move(to, source + at, tensor.shard_bytes));
        to += part.rank_bytes;
    }
    return {};
}

Status SmallSums::get(size_t member, const char *bucket, char *sums, const Move &move) const
{
    if (tensors_[member].whole_bytes == 0) return {};
    const char *from = bucket + parts_[part_of_[member]].sums + offsets_[member];
    return move(sums, from, tensors_[member].shard_bytes);
}

// Through a buffer, as a slice may overlap its destination.
Status SmallSums::leave_first(char *bucket, const Move &move)
{
    const collective::BucketTensor first = tensors_[0];
    const uint64_t stride = parts_.empty() ? 0 : parts_[0].rank_bytes;
    members_.resize(1);
    lay();
    std::vector<char> slice(first.shard_bytes);
    for (uint64_t i = 1; i * first.shard_bytes < first.whole_bytes; ++i) {
        STW_TRY(move(slice.data(), bucket + i * stride, first.shard_bytes));
        STW_TRY(move(bucket + i * first.shard_bytes, slice.data(), first.shard_bytes));
    }
    return {};
}

Status SmallSums::reduce(char *bucket, const Sum &sum) const
{
    for (const Part &part : parts_) {
        const uint64_t elements = part.rank_bytes / (stw_dtype_bits(part.dtype) / 8);
        STW_TRY(sum(bucket + part.begin, bucket + part.sums, elements, part.dtype));
    }
    return {};
}

// --------------------------------------------------------------------------------- execution ----

// The sums that could go with `front`, which is the first of them, if there is memory for their
// bucket.
std::vector<Collective *> Sums::small_sums(Collective &front)
{
    std::vector<Collective *> members{&front};
    if (!SmallSums::is_small(front)) return members;
    uint64_t bytes = SmallSums::bytes_of(front);
    {
        MutexLock lock(dispatch_.mutex());
        for (const std::unique_ptr<Collective> &next : machine_.ranks->queue.collectives) {
            // One that the pipeline still adds to may depend on the sum of the front, into its
            // shard.
            if (!SmallSums::is_small(*next)) break;
            if (dispatch_.core.claimed_by(next->source) != next->claim) break;
            bytes += SmallSums::bytes_of(*next);
            if (bytes > collective::kBucketBytes) break;
            members.push_back(next.get());
        }
    }
    const bool room =
        members.size() == 1 ||
        wholes_.make_bucket(SmallSums(members, machine_.ranks->group.size()).bytes()).ok();
    if (!room) members.resize(1);
    return members;
}

// Puts further members into the bucket while they are available. Returns how many are in it, with
// the first.
uint64_t Sums::fill_sums(const SmallSums &sums)
{
    for (size_t i = 1; i < sums.members().size(); ++i) {
        const Collective &member = *sums.members()[i];
        residency::FetchAsked asked;
        asked.claim = member.claim;
        asked.deadline = dispatch_.now() + kAtHandNs;
        asked.requests.push_back(
            {member.source, Access::kRead, machine_.ranks->place, 0, source_bytes(member)});
        Waiter waiter;
        if (!shards_.take_pieces(waiter, asked).ok()) return i;
        const Status put = sums.put(i, addresses_.bytes_at(member.source, waiter.grants[0]),
                                    machine_.ranks->bucket_data(), group_memory_.mover());
        shards_.give_pieces(waiter, asked, false);
        if (!put.ok()) return i;
    }
    return sums.members().size();
}

// From the bucket to the destination of a member's sum.
Status Sums::take_sum(const SmallSums &sums, size_t i)
{
    const Collective &member = *sums.members()[i];
    const collective::Partition &partition = member.tensors[0]->sharding->partition;
    const bool sharded = member.sums != residency::kNone;
    const residency::TensorId to = sharded ? member.sums : member.source;
    residency::FetchAsked asked;
    asked.claim = member.claim;
    asked.requests.push_back({to, Access::kWrite, machine_.ranks->place, 0,
                              sharded ? partition.shard_bytes() : source_bytes(member)});
    Waiter waiter;
    STW_TRY(shards_.take_pieces(waiter, asked));
    const Status got = sums.get(i, machine_.ranks->bucket_data(),
                                addresses_.bytes_at(to, waiter.grants[0]), group_memory_.mover());
    shards_.give_pieces(waiter, asked, false);
    return got;
}

// So far ranks agree on the first sum, and that this many follow it on each. Those that differ, or
// are not available, stay in the queue.
void Sums::run_sums(SmallSums sums, const Status &put)
{
    Collective &front = *sums.members()[0];
    const bool sharded = front.sums != residency::kNone;
    const auto kind = sharded ? collective::Kind::kReduce : collective::Kind::kSum;
    collective::Record mine = collectives_.record_of(kind, front.tensors, put);
    mine.counts[0] = fill_sums(sums);
    mine.counts[1] = sums.hash(sums.members().size());
    SumAgreed agreed;
    Status status = agree_sum(mine, &agreed);
    const uint64_t count = status.ok() && agreed.alike ? agreed.count : 1;
    STW_ASSERT(count >= 1 && count <= sums.members().size());
    std::vector<std::unique_ptr<Collective>> taken;
    if (count == 1) {
        Status left = sums.leave_first(machine_.ranks->bucket_data(), group_memory_.mover());
        if (status.ok()) status = std::move(left);
    } else {
        MutexLock lock(dispatch_.mutex());
        for (uint64_t i = 1; i < count; ++i) {
            taken.push_back(std::move(machine_.ranks->queue.collectives.front()));
            machine_.ranks->queue.collectives.pop_front();
            STW_ASSERT(taken.back().get() == sums.members()[i]);
        }
    }
    if (status.ok()) {
        const residency::TensorId first = front.tensors[0]->id;
        status = sums.reduce(machine_.ranks->bucket_data(),
                             [&](char *from, char *to, uint64_t elements, uint32_t dtype) {
                                 return sum_over_ranks(first, from, to, elements, dtype);
                             });
    }
    for (uint64_t i = 0; i < count; ++i) {
        const Status ended = status.ok() ? take_sum(sums, i) : status;
        end_reduce(*sums.members()[i], ended);
    }
}

}  // namespace stepwell
