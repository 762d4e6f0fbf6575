// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/ranks/shards.h"

#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/ranks/memory.h"
#include "lib/runtime/recording/grounds.h"

namespace stepwell {

using residency::PlaceId;

// Blocks until the pieces are granted or the deadline passes, at most for the group's timeout; not
// at all with kFetchTry.
Status Shards::take_pieces(Waiter &waiter, residency::FetchAsked &asked)
{
    asked.flags |= residency::kFetchInternal | residency::kFetchWaitRoom;
    asked.deadline =
        std::min(asked.deadline, dispatch_.deadline(machine_.ranks->group.timeout_ns()));
    return dispatch_.fetch_pieces(waiter, asked);
}

void Shards::give_pieces(const Waiter &waiter, const residency::FetchAsked &asked, bool abandon)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (size_t i = 0; i < asked.requests.size(); ++i) {
            const residency::Request &request = asked.requests[i];
            residency::Release release;
            release.tensor = request.tensor;
            release.access = request.access;
            release.place = waiter.grants[i].place;
            release.byte_begin = request.byte_begin;
            release.byte_count = request.byte_count;
            release.internal = true;
            release.claim = asked.claim;
            release.abandon = abandon && request.access != residency::Access::kRead;
            core.release(release, out);
        }
    });
}

// Copies bytes [begin, begin + bytes) of the shard, a block at a time, to or from memory of the
// group.
Status Shards::copy_shard(const stw_tensor &tensor, residency::ClaimId claim, uint64_t begin,
                          uint64_t bytes, char *memory, bool writes)
{
    const uint64_t offset = addresses_.pack_offset(tensor.id);
    for (uint64_t at = begin; at < begin + bytes;) {
        const uint64_t count = std::min(machine_.block_bytes - (offset + at) % machine_.block_bytes,
                                        begin + bytes - at);
        if (!writes) hint_shards();
        residency::FetchAsked asked;
        asked.claim = claim;
        asked.requests.push_back({tensor.id,
                                  writes ? residency::Access::kWrite : residency::Access::kRead,
                                  residency::kAnyCpuPlace, at, count});
        Waiter waiter;
        residency::FetchAsked taken;
        STW_TRY(piece_of_shard(tensor, std::move(asked), waiter, &taken));
        char *shard = nullptr;
        {
            update::Piece piece;
            piece.tensor = tensor.id;
            piece.byte_begin = at;
            MutexLock lock(dispatch_.mutex());
            shard = static_cast<char *>(addresses_.piece_pointer(waiter.grants[0], piece));
        }
        char *other = memory + (at - begin);
        Status moved =
            group_memory_.move_bytes(writes ? shard : other, writes ? other : shard, count);
        give_pieces(waiter, taken, false);
        STW_TRY(std::move(moved));
        at += count;
    }
    return {};
}

// Hints the shards of queued gathers in order, a few blocks ahead of their copies, so that disks
// keep reading while bytes go between ranks.
void Shards::hint_shards()
{
    constexpr size_t kAhead = 8;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        std::deque<RankQueue::Hint> &hints = machine_.ranks->queue.hints;
        while (!hints.empty() && !core.is_waiting(hints.front().fetch)) hints.pop_front();
        const auto hint = [&](Collective &gather) STW_REQUIRES(runtime_lock) {
            uint64_t before = 0;
            for (const stw_tensor *tensor : gather.tensors) {
                const bool there = machine_.ranks->on_device &&
                                   core.spec(tensor->id).policy.home == machine_.ranks->place;
                if (there) gather.hinted = std::max(gather.hinted, before + tensor->bytes);
                const uint64_t offset = core.pack_offset(tensor->id);
                while (gather.hinted < before + tensor->bytes && hints.size() < kAhead) {
                    const uint64_t at = gather.hinted - before;
                    const uint64_t count =
                        std::min(machine_.block_bytes - (offset + at) % machine_.block_bytes,
                                 tensor->bytes - at);
                    residency::FetchAsked asked;
                    asked.claim = gather.claim;
                    asked.flags = residency::kFetchPrefetch;
                    asked.urgency = residency::Class::kPlanned;
                    asked.requests.push_back(
                        {tensor->id, residency::Access::kRead, residency::kAnyCpuPlace, at, count});
                    hints.push_back({gather.claim, core.fetch(asked, out)});
                    gather.hinted += count;
                }
                before += tensor->bytes;
            }
        };
        if (machine_.ranks->queue.working) hint(*machine_.ranks->queue.working);
        for (const std::unique_ptr<Collective> &next : machine_.ranks->queue.collectives) {
            if (hints.size() >= kAhead) break;
            if (next->kind == Collective::Kind::kGather) hint(*next);
        }
    });
}

// A gather may end without having read its shards, and its claim ends with it.
void Shards::cancel_hints(residency::ClaimId claim, Commands &out)
{
    std::deque<RankQueue::Hint> &hints = machine_.ranks->queue.hints;
    for (const RankQueue::Hint &hint : hints) {
        if (hint.claim == claim) dispatch_.core.cancel(hint.fetch, cancelled(), out);
    }
    std::erase_if(hints, [claim](const RankQueue::Hint &hint) { return hint.claim == claim; });
}

// A shard whose home is the collectives' device is read there if that needs no waiting; else where
// the CPU can access it.
Status Shards::piece_of_shard(const stw_tensor &tensor, residency::FetchAsked asked, Waiter &waiter,
                              residency::FetchAsked *asked_out)
{
    const bool reads = asked.requests[0].access == residency::Access::kRead;
    bool here = machine_.ranks->on_device && reads;
    if (here) {
        MutexLock lock(dispatch_.mutex());
        here = dispatch_.core.spec(tensor.id).policy.home == machine_.ranks->place;
    }
    if (here) {
        *asked_out = asked;
        asked_out->flags = residency::kFetchTry;
        asked_out->requests[0].place = machine_.ranks->place;
        if (take_pieces(waiter, *asked_out).ok()) return {};
    }
    *asked_out = std::move(asked);
    return take_pieces(waiter, *asked_out);
}

// Reads bytes [begin, begin + count) of the shard, with zeros for its padding.
Status Shards::read_shard(const stw_tensor &tensor, residency::ClaimId claim, uint64_t begin,
                          uint64_t count, char *memory)
{
    const uint64_t end = std::min(begin + count, tensor.bytes);
    const uint64_t there = end > begin ? end - begin : 0;
    STW_TRY(copy_shard(tensor, claim, begin, there, memory, false));
    return group_memory_.zero_bytes(memory + there, count - there);
}

}  // namespace stepwell
