// SPDX-License-Identifier: Apache-2.0
// What keeps room from a fetch. Where only views of the program are in the way, that is said with
// the arithmetic; what else is in the way is waited for.
#include "lib/residency/room_outlook.h"

#include <algorithm>

namespace stepwell::residency {

Status RoomOutlook::shrink_refusal(PlaceId place, uint32_t blocks) const
{
    const uint64_t block = places_.block_bytes();
    const uint64_t pinned = pinned_blocks(place, false, nullptr);
    const uint64_t wholes = places_.arena(place).whole_slots();
    const uint64_t others = places_.arena(place).used_ordinary() - pinned;
    const uint64_t aside = places_[place].aside_bytes;
    Status status = Status::error(
        STW_ERROR_BUDGET, "%s cannot shrink to %s: it holds %s; %s", places_.name(place).c_str(),
        bytes_text(aside + blocks * block).c_str(),
        sum_text({{aside, "for staging and scratch"},
                  {wholes * block, "for gathered wholes"},
                  {pinned * block, "pinned by open views"},
                  {others * block, "that no other tier takes"}})
            .c_str(),
        pinned + wholes > blocks ? "release views" : "make room in the tiers behind it");
    ErrorDetail &detail = status.mutable_detail();
    detail.tier = static_cast<uint32_t>(places_[place].tier);
    detail.device = places_[place].device;
    detail.needed_bytes = places_.arena(place).used() * block;
    detail.free_bytes = blocks * block;
    detail.pinned_bytes = pinned * block;
    return status;
}

// The fetch needs more than the new budget of a place that shrinks, but no more than the old one:
// it waits until the change is decided.
bool RoomOutlook::awaits_budget(const Fetch &fetch) const
{
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (!places_.is_shrinking(place)) continue;
        const uint32_t wanted = targets_at(fetch, place);
        if (wanted > places_.arena(place).budget() && wanted <= places_.budget_before(place))
            return true;
    }
    return false;
}

Status RoomOutlook::fits(const std::vector<Request> &requests,
                         const std::vector<Request> &buffers) const
{
    Fetch fetch;
    fetch.asked.requests = requests;
    fetch.asked.requests.insert(fetch.asked.requests.end(), buffers.begin(), buffers.end());
    for (PlaceId place = 0; place < places_.count(); ++place) {
        std::vector<BlockId> blocks;
        for (const Request &request : requests) {
            if (request.place != place) continue;
            const Tensor &tensor = tensors_[request.tensor];
            const BlockRange range =
                packs_.blocks_of(tensor, request.byte_begin, request.byte_count);
            for (uint32_t index = range.first; index < range.second; ++index) {
                blocks.push_back(packs_[tensor.pack].first + index);
            }
        }
        std::sort(blocks.begin(), blocks.end());
        blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
        uint64_t needed = blocks.size();
        for (const Request &buffer : buffers) {
            if (buffer.place != place) continue;
            needed += (buffer.byte_count + places_.block_bytes() - 1) / places_.block_bytes();
        }
        if (needed <= places_.arena(place).budget()) continue;
        return budget_refusal(fetch, place,
                              static_cast<uint32_t>(std::min<uint64_t>(needed, UINT32_MAX)));
    }
    return {};
}

// Notes what is missing. The sentence is made only if the fetch is refused: most wait instead.
Room RoomOutlook::fall_short(Fetch &fetch, PlaceId place, Room room)
{
    fetch.short_place = place;
    fetch.short_blocks = targets_at(fetch, place);
    return room;
}

// Only views of the program end by themselves; waiting for anything else that stays would not end.
// Pins in gates end without an event: one that was seen may have ended by now, so it counts.
Room RoomOutlook::stuck_or_never() const
{
    if (gates_.pins_seen()) return Room::kStuck;
    for (PlaceId place = 0; place < places_.count(); ++place) {
        for (BlockId block = recency_.coldest(place); block != kNone;
             block = blocks_.replica(block, place).hotter) {
            if (gates_.is_pinned(block, place)) return Room::kStuck;
        }
    }
    return Room::kNever;
}

// Counts ordinary blocks, or those of gathered tensors, which have room of their own.
uint32_t RoomOutlook::pinned_blocks(PlaceId place, bool whole, const Fetch *except) const
{
    uint32_t count = 0;
    for (BlockId block = recency_.coldest(place); block != kNone;
         block = blocks_.replica(block, place).hotter) {
        if (except && blocks_.is_own(block, place, *except)) continue;
        const Pack &pack = packs_[blocks_[block].pack];
        if (pack.agreed != whole) continue;
        count += gates_.is_pinned(block, place) || packs_.never_leaves(block, place);
    }
    return count;
}

// Whether more than `most` blocks of that kind are pinned, without the fetch's own. Starts at the
// cold end, where few are pinned, so that few have to be looked at.
bool RoomOutlook::are_more_pinned(PlaceId place, bool whole, const Fetch &fetch,
                                  uint32_t most) const
{
    uint32_t pinned = 0;
    uint32_t unseen = recency_.listed()[place][whole];
    for (BlockId block = recency_.coldest(place); block != kNone;
         block = blocks_.replica(block, place).hotter) {
        if (pinned > most || pinned + unseen <= most) break;
        const Pack &pack = packs_[blocks_[block].pack];
        if (pack.agreed != whole) continue;
        --unseen;
        if (blocks_.is_own(block, place, fetch)) continue;
        pinned += gates_.is_pinned(block, place) || packs_.never_leaves(block, place);
    }
    return pinned > most;
}

// Transfers under way and the library's own views end by themselves, and change what may leave or
// move. A fetch that looks for room holds nothing yet: holds on its blocks belong to others.
bool RoomOutlook::room_will_come(PlaceId place) const
{
    return !transfers_.empty() || blocks_.holds(place) > 0;
}

// Says what takes the budget of a place, of which the fetch needs so many blocks. A place that
// shrinks may hold more than its budget; then the sentence gives what it holds.
Status RoomOutlook::budget_refusal(const Fetch &fetch, PlaceId place, uint32_t needed) const
{
    const uint64_t block = places_.block_bytes();
    const Arena &arena = places_.arena(place);
    const bool whole = asks_for_wholes(fetch, place);
    uint64_t pinned = 0;
    uint64_t at_home = 0;
    uint64_t others = 0;
    bool failed = false;
    for (BlockId at = recency_.coldest(place); at != kNone;
         at = blocks_.replica(at, place).hotter) {
        const Pack &pack = packs_[blocks_[at].pack];
        failed |= blocks_[at].write_failed;
        if (pack.agreed != whole || blocks_.is_own(at, place, fetch)) continue;
        ++(gates_.is_pinned(at, place)      ? pinned
           : packs_.never_leaves(at, place) ? at_home
                                            : others);
    }
    const uint64_t budget = whole ? arena.whole_slots() : arena.budget();
    const uint64_t kept = whole ? 0 : arena.whole_slots();
    const uint64_t taken = kept + pinned + at_home + others;
    const uint64_t left = budget > taken ? budget - taken : 0;
    const uint64_t aside = whole || budget == 0 ? 0 : places_[place].aside_bytes;
    const std::string &name = tensors_[fetch.asked.requests.front().tensor].spec.name;
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%s cannot hold the fetch of %s (%zu request%s): %s needed; %s %s%s; "
        "%sfetch a smaller range, or raise the budget",
        places_.name(place).c_str(), tensor_text(name).c_str(), fetch.asked.requests.size(),
        plural(fetch.asked.requests.size()), bytes_text(needed * block).c_str(),
        whole            ? "whole_bytes"
        : taken > budget ? "it shrinks and holds"
                         : "budget",
        sum_text({{aside, "for staging and scratch"},
                  {kept * block, "for gathered wholes"},
                  {pinned * block, "pinned by open views"},
                  {at_home * block, "of tensors that have their room here alone"},
                  {others * block, "of other tensors"},
                  {left * block, "free or its own"}})
            .c_str(),
        failed ? " (some blocks stay because their write-back failed)" : "",
        pinned > 0 ? "release views, " : "");
    ErrorDetail &detail = status.mutable_detail();
    detail.tensor = name;
    detail.tier = static_cast<uint32_t>(places_[place].tier);
    detail.device = places_[place].device;
    detail.needed_bytes = needed * block;
    detail.free_bytes = arena.free(whole) * block;
    detail.pinned_bytes = pinned * block;
    return status;
}

// Gathered tensors have room of their own, and are fetched separately from others.
bool RoomOutlook::asks_for_wholes(const Fetch &fetch, PlaceId place) const
{
    for (const Request &request : fetch.asked.requests) {
        const Pack &pack = packs_[tensors_[request.tensor].pack];
        if (request.place == place || request.place >= places_.count()) return pack.agreed;
    }
    return false;
}

}  // namespace stepwell::residency
