// SPDX-License-Identifier: Apache-2.0
// Early write-back, so that what leaves later is a duplicate and leaves at once.
#include "lib/residency/write_back.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {
namespace {

constexpr uint32_t kReserveShare = 8;  // of a place: with less free than that, room is low
constexpr uint32_t kCleanVisitsMax = 64;
constexpr uint32_t kCleanedMax = 4;  // in flight at once, so that a read waits for few of them
constexpr uint32_t kLookedAtMax = 256;
constexpr uint32_t kPlannedLookedAtMax = 2048;

}  // namespace

uint32_t WriteBack::clean_ahead(PlaceId place, uint64_t beyond, Commands &out)
{
    const PlaceId last = places_.last();
    if (!places_.is_nvme(last) || !places_.is_open(last) || place == last) return 0;
    if (transfers_.is_wanted(last)) return 0;
    order_.begin_event();
    const uint32_t most = std::min(kCleanedMax, places_.config().writebacks_max);
    if (order_.has_plan()) return clean_planned_beyond(place, beyond, most, out);
    uint32_t started = 0;
    uint32_t looked_at = 0;
    for (BlockId block = recency_.coldest_awake(place);
         block != kNone && transfers_.write_backs() < most;
         block = blocks_.replica(block, place).hotter) {
        if (++looked_at > kLookedAtMax) break;
        // Cheap tests first: most of the list is clean.
        if (!blocks_.replica(block, place).valid || packs_.is_duplicate(block, place)) continue;
        if (order_.next_use(block) <= beyond) continue;
        started += clean_early(block, place, out);
    }
    return started;
}

// In the order in which the plan lets them leave, whatever their recency.
uint32_t WriteBack::clean_planned_beyond(PlaceId place, uint64_t beyond, uint32_t most,
                                         Commands &out)
{
    uint32_t started = 0;
    uint32_t looked_at = 0;
    for (const Rank &rank : order_.ranked(place)) {
        if (transfers_.write_backs() >= most || ++looked_at > kPlannedLookedAtMax) break;
        if (rank.worth > 0) continue;
        const Pack &pack = packs_[rank.pack];
        if (order_.next_use(pack.first) <= beyond) continue;
        if (gates_.is_pinned_by_gates(pack, place)) continue;
        for (uint32_t index = order_.find_end(rank.pack, place); index > 0; --index) {
            if (transfers_.write_backs() >= most) return started;
            ++looked_at;
            started += clean_early(pack.first + index - 1, place, out);
        }
    }
    return started;
}

void WriteBack::queue_clean(BlockId block)
{
    if (blocks_[block].queued_clean) return;
    blocks_[block].queued_clean = true;
    may_start_ = true;
    queue_.push_back(block);
}

// A block whose home is not nvme is kept off the disk while there is room for it: a gradient may be
// added to many times before it is used.
void WriteBack::clean_soon(BlockId block, PlaceId place)
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.advice == Advice::kHot) return;
    const bool rests_below = places_.is_nvme(pack.key.policy.home);
    const Arena &arena = places_.arena(place);
    if (rests_below || arena.free() + occupancy_.coming(place) < arena.budget() / kReserveShare) {
        queue_clean(block);
    }
}

// Not of hot tensors: they would be written again, or discarded soon.
bool WriteBack::clean_early(BlockId block, PlaceId place, Commands &out)
{
    return packs_[blocks_[block].pack].advice != Advice::kHot && clean(block, place, out);
}

// Starts the write-back of a block that stays; false if there is nothing to write, or not now.
bool WriteBack::clean(BlockId block, PlaceId place, Commands &out)
{
    const PlaceId last = places_.last();
    if (!victims_.may_rest(packs_[blocks_[block].pack], last)) return false;
    if (!blocks_.replica(block, place).valid || packs_.is_duplicate(block, place)) return false;
    if (blocks_[block].writers || !victims_.may_leave(block, place, nullptr)) return false;
    if (blocks_.replica(block, last).doomed || blocks_.replica(block, last).filling) return false;
    const bool seen = blocks_.replica(block, place).is_mapped() && addresses_.guards(block, place);
    if (seen && !packs_[blocks_[block].pack].shared && !gates_.try_close_all(block, place))
        return false;
    evictions_.start_write_back(block, place, last, false, out);
    return true;
}

// First the blocks that the program said it does not need for long, then the next victims of places
// where room is low.
void WriteBack::pump(Commands &out)
{
    const PlaceId last = places_.last();
    if (!may_start_ || !places_.is_nvme(last) || !places_.exists(last)) return;
    may_start_ = false;
    while (transfers_.write_backs() < places_.config().writebacks_max && !queue_.empty()) {
        const BlockId block = queue_.front();
        queue_.pop_front();
        blocks_[block].queued_clean = false;
        if (packs_[blocks_[block].pack].dead || packs_[blocks_[block].pack].blocks == 0) continue;
        for (PlaceId place = 0; place < last; ++place) {
            if (blocks_.replica(block, place).valid && clean(block, place, out)) break;
        }
    }
    for (PlaceId place = 0; place < last; ++place) {
        const uint32_t reserve = places_.arena(place).budget() / kReserveShare;
        if (order_.has_plan()) {
            clean_planned(place, reserve, out);
        } else {
            clean_coldest(place, reserve, out);
        }
    }
}

// Only blocks whose home is nvme: others may be written many times before they are evicted.
void WriteBack::clean_coldest(PlaceId place, uint32_t reserve, Commands &out)
{
    uint32_t ready = places_.arena(place).free() + occupancy_.coming(place);
    uint32_t visited = 0;
    for (BlockId block = recency_.coldest_awake(place);
         block != kNone && ready < reserve &&
         transfers_.write_backs() < places_.config().writebacks_max && visited < kCleanVisitsMax;
         block = blocks_.replica(block, place).hotter, ++visited) {
        const bool rests = packs_[blocks_[block].pack].key.policy.home == places_.last();
        if ((rests && clean_early(block, place, out)) || victims_.may_leave(block, place, nullptr))
            ++ready;
    }
}

// The blocks that the plan lets leave next, whatever their recency: those whose home is nvme, and
// those under a claim, as of a gradient that waits for its verdict, to which nobody adds. Several
// at a time: a search after the end of each write-back would look at the same blocks again.
void WriteBack::clean_planned(PlaceId place, uint32_t reserve, Commands &out)
{
    if (transfers_.write_backs() > places_.config().writebacks_max / 2) return;
    uint32_t ready = places_.arena(place).free() + occupancy_.coming(place);
    uint32_t visited = 0;
    for (const Rank &rank : order_.ranked(place)) {
        if (rank.worth > 0) return;
        const Pack &pack = packs_[rank.pack];
        const BlockId first = pack.first;
        const bool settled = pack.key.policy.home == places_.last() || pack.claimed > 0;
        if (gates_.is_pinned_by_gates(pack, place)) continue;
        for (uint32_t index = order_.find_end(rank.pack, place); index > 0; --index) {
            if (ready >= reserve || transfers_.write_backs() >= places_.config().writebacks_max)
                return;
            if (++visited > kCleanVisitsMax) return;
            const BlockId block = first + index - 1;
            if (!victims_.is_movable(block, place, nullptr)) continue;
            ++ready;
            if (settled && !packs_.is_duplicate(block, place)) clean_early(block, place, out);
        }
    }
}

void WriteBack::end_claims(Pack &pack)
{
    STW_ASSERT(pack.claimed > 0);
    if (--pack.claimed > 0 || !std::exchange(pack.clean_late, false)) return;
    for (BlockId block = pack.first; block < pack.first + pack.blocks; ++block) {
        for (PlaceId place = 0; place < places_.count(); ++place) {
            if (!places_.is_nvme(place) && blocks_.replica(block, place).valid)
                clean_soon(block, place);
        }
    }
    may_start_ = true;
}

// Queues every block whose newest bytes are only in memory; returns how many.
uint64_t WriteBack::queue_all()
{
    uint64_t left = 0;
    for (PlaceId place = 0; place < places_.last(); ++place) {
        for (BlockId block = recency_.coldest(place); block != kNone;
             block = blocks_.replica(block, place).hotter) {
            if (!blocks_.replica(block, place).valid || packs_.is_duplicate(block, place)) continue;
            if (blocks_[block].write_failed) continue;
            ++left;
            queue_clean(block);
        }
    }
    return left;
}

}  // namespace stepwell::residency
