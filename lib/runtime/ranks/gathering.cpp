// SPDX-License-Identifier: Apache-2.0
// The collective that gathers tensors: the memory it reads and writes on this rank, and what ranks
// must know of each other before bytes move.
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/ranks/wholes.h"

#include "lib/collective/bucket.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/addresses/sink.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/memory.h"
#include "lib/runtime/ranks/shards.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/tensors/zeros.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

namespace stepwell {

using residency::Access;

// Layout of the tensors of one gather in each rank's contribution.
struct GatherLayout {
    std::vector<collective::BucketTensor> members;
    collective::Buckets buckets;  // one; none if nothing has bytes
    uint64_t rank_bytes = 0;
};

namespace {

using collective::kBucketBytes;

GatherLayout layout_of(const std::vector<stw_tensor *> &tensors, uint32_t ranks)
{
    GatherLayout layout;
    for (const stw_tensor *tensor : tensors) {
        const collective::Partition &partition = tensor->sharding->partition;
        layout.members.push_back(
            {partition.elements * (tensor->element_bits / 8), partition.shard_bytes(), 0});
    }
    layout.buckets = collective::cut_buckets(layout.members, ranks, UINT64_MAX);
    if (tensors.size() == 1) {
        layout.rank_bytes = layout.members[0].shard_bytes;
    } else if (!layout.buckets.list.empty()) {
        layout.rank_bytes = layout.buckets.list[0].rank_bytes;
    }
    return layout;
}

}  // namespace

// From the bucket to each gathered tensor.
Status Wholes::empty_bucket(const Collective &work, const GatherLayout &layout, char *gathered)
{
    Status status;
    std::vector<char *> wholes;
    for (size_t i = 0; i < work.tensors.size(); ++i) {
        wholes.push_back(
            addresses_.bytes_at(work.tensors[i]->sharding->whole, work.start.grants[i]));
    }
    for (const collective::Bucket &bucket : layout.buckets.list) {
        for (const collective::BucketCopy &copy : collective::bucket_copies(
                 layout.buckets, bucket, layout.members, machine_.ranks->group.size())) {
            if (!status.ok()) break;
            status = group_memory_.move_bytes(wholes[copy.tensor] + copy.whole_offset,
                                              gathered + copy.bucket_offset, copy.bytes);
        }
    }
    return status;
}

void Wholes::run_gather(Collective &work)
{
    const gathering::StartGather &start = work.start;
    const collective::Group &group = machine_.ranks->group;
    const GatherLayout layout = layout_of(work.tensors, group.size());
    const uint64_t rank_bytes = layout.rank_bytes;
    const bool alone = work.tensors.size() == 1;
    const bool in_bucket = rank_bytes * group.size() <= kBucketBytes;
    Status status = start.status;
    char *gathered = nullptr;  // null: a large tensor for which this rank has no room
    if (status.ok() && alone && !start.absent) {
        gathered = addresses_.bytes_at(work.tensors[0]->sharding->whole, start.grants[0]);
    } else if (status.ok() && (!alone || in_bucket)) {
        status = make_bucket(rank_bytes * group.size());
        gathered = machine_.ranks->bucket_data();
    }
    char *mine = status.ok() && gathered ? gathered + group.rank() * rank_bytes : nullptr;
    const char *shard = mine;  // sent from its part of the gathered tensor, or where it lies
    Waiter pinned;
    residency::FetchAsked pin;
    const bool lies = status.ok() && alone && pin_shard(work, pinned, pin);
    if (lies) shard = addresses_.bytes_at(work.tensors[0]->id, pinned.grants[0]);
    for (size_t i = 0; status.ok() && mine && !lies && i < work.tensors.size(); ++i) {
        char *to = mine + (alone ? 0 : layout.buckets.offsets[i]);
        status =
            shards_.read_shard(*work.tensors[i], work.claim, 0, layout.members[i].shard_bytes, to);
    }
    if (status.ok() && gathered)
        status = group_memory_.order_group(gathered, rank_bytes * group.size(), true);
    std::vector<collective::Record> ranks;
    collective::Record record =
        collectives_.record_of(collective::Kind::kGather, work.tensors, status);
    record.counts[0] = start.absent;
    status = machine_.ranks->group.agree(record, ranks);
    const residency::Instant begin = dispatch_.now();
    const uint64_t before = meters_.rank_totals().bytes;
    const auto absent = std::count_if(ranks.begin(), ranks.end(),
                                      [](const auto &rank) { return rank.counts[0] != 0; });
    if (!status.ok() || absent == static_cast<ptrdiff_t>(ranks.size())) {
        // no rank wants the bytes
    } else if (absent > 0 && alone && !in_bucket) {
        status = gather_in_parts(work, shard, gathered, rank_bytes);
    } else {
        status = machine_.ranks->group.all_gather(shard, gathered, rank_bytes);
    }
    meters_.record_ranks(work.tensors[0]->id, begin, before);
    if (status.ok() && !alone && !start.absent) status = empty_bucket(work, layout, gathered);
    // The engine may still write to the memory.
    if (machine_.ranks->group.holds_memory()) return lose_gather(work, status);
    if (lies) shards_.give_pieces(pinned, pin, false);
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        shards_.cancel_hints(work.claim, out);
        machine_.ranks->queue.gathers.gather_done(start.gather, status, absent > 0, out);
    });
}

// Gathers a large tensor for which some ranks have no room, through a buffer on every rank: the
// engine gathers a part of each shard at a time, and ranks that want the tensor copy the parts
// out. `shard` null: it is read as it is sent; `whole` null: not wanted here. Ranks have agreed on
// this before.
Status Wholes::gather_in_parts(const Collective &work, const char *shard, char *whole,
                               uint64_t rank_bytes)
{
    collective::Group &group = machine_.ranks->group;
    constexpr uint64_t kAlign = collective::kBucketAlignBytes;
    const uint64_t part = std::max(kBucketBytes / group.size() / kAlign, uint64_t{1}) * kAlign;
    std::vector<collective::Record> ranks;
    Status status = make_bucket(part * group.size());
    STW_TRY(group.agree(collectives_.record_of(collective::Kind::kGather, work.tensors, status),
                        ranks));
    char *buffer = machine_.ranks->bucket_data();
    for (uint64_t at = 0; at < rank_bytes; at += part) {
        const uint64_t count = std::min(part, rank_bytes - at);
        char *mine = buffer + group.rank() * count;
        if (shard && status.ok()) status = group_memory_.move_bytes(mine, shard + at, count);
        // If the shard cannot be read, this is reported at the end, since other ranks wait for the
        // rest.
        if (!shard && status.ok()) {
            status = shards_.read_shard(*work.tensors[0], work.claim, at, count, mine);
        }
        STW_TRY(group.all_gather(mine, buffer, count));
        for (uint32_t rank = 0; whole && rank < group.size(); ++rank) {
            if (!status.ok()) break;
            status = group_memory_.move_bytes(whole + rank * rank_bytes + at, buffer + rank * count,
                                              count);
        }
    }
    return group.agree(collectives_.record_of(collective::Kind::kGather, work.tensors, status),
                       ranks);
}

// If the shard lies in one piece at the place of gathered tensors, pins it and returns true: the
// engine then reads it there, and gathers this rank's part like the others.
bool Wholes::pin_shard(const Collective &work, Waiter &waiter, residency::FetchAsked &pin)
{
    const stw_tensor &tensor = *work.tensors[0];
    if (!machine_.tiers[machine_.ranks->place].maps || tensor.bytes == 0 ||
        tensor.bytes != tensor.sharding->partition.shard_bytes()) {
        return false;
    }
    pin.claim = work.claim;
    pin.flags = residency::kFetchTry;
    pin.requests.push_back({tensor.id, Access::kRead, machine_.ranks->place, 0, tensor.bytes});
    return shards_.take_pieces(waiter, pin).ok();
}

// The engine never gives the memory back, so it stays pinned; waiters get the error.
void Wholes::lose_gather(const Collective &work, const Status &status)
{
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        machine_.ranks->queue.gathers.lose(work.start.gather, status);
    });
}

Status Wholes::make_bucket(uint64_t bytes)
try {
    if (machine_.ranks->on_device && bytes <= machine_.ranks->device_bucket_bytes) return {};
    if (machine_.ranks->on_device) throw std::bad_alloc();
    if (machine_.ranks->bucket.size() < bytes) machine_.ranks->bucket.resize(bytes);
    return {};
} catch (const std::bad_alloc &) {
    return Status::error(STW_ERROR_MEMORY,
                         "no memory for a bucket of %s to gather small tensors in",
                         bytes_text(bytes).c_str());
}

}  // namespace stepwell
