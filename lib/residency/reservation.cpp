// SPDX-License-Identifier: Apache-2.0
// Reservation: room for all blocks of a fetch, or for none.
#include "lib/residency/reservation.h"

#include <algorithm>

namespace stepwell::residency {

// It needs room at a place where an earlier fetch waits for some, and wants nothing elsewhere.
bool Reservation::is_behind(const Fetch &fetch, const Blocked &blocked) const
{
    const std::vector<Target> &targets = fetch.targets;
    const PlaceId place = targets.front().place;
    if (!blocked.is_behind(fetch, place) || targets.back().place != place) return false;
    return std::any_of(targets.begin(), targets.end(), [&](const Target &target) {
        return blocks_.replica(target.block, place).slot == kNoSlot;
    });
}

Room Reservation::reserve(Fetch &fetch, Blocked &blocked, Commands &out)
{
    if (is_behind(fetch, blocked)) return Room::kComing;  // the common case of waiting hints
    for (const Target &target : fetch.targets) {
        if (blocks_.replica(target.block, target.place).doomed) return Room::kComing;
        blocks_[target.block].protector = fetch.id;
        blocks_[target.block].protected_places = 0;
    }
    for (const Target &target : fetch.targets) {
        blocks_[target.block].protected_places |= 1u << target.place;
    }
    fetch.needed_in = kNever;
    if ((fetch.asked.flags & kFetchPrefetch) != 0) {
        PackId asked = kNone;
        for (const Target &target : fetch.targets) {
            const PackId pack = blocks_[target.block].pack;
            if (pack == asked) continue;
            asked = pack;
            fetch.needed_in = std::min(fetch.needed_in, order_.next_use(target.block));
        }
    }
    gates_.forget_seen_pins();
    Room result = try_reserve(fetch, blocked, out);
    // This ends: each time one block fewer has to move.
    while (result == Room::kAgain) result = try_reserve(fetch, blocked, out);
    return result;
}

Room Reservation::try_reserve(Fetch &fetch, Blocked &blocked, Commands &out)
{
    if (outlook_.awaits_budget(fetch)) return Room::kComing;
    Room result = runs_.plan(fetch, blocked, out);
    std::array<uint32_t, kPlacesMax> needed{};
    std::array<uint32_t, kPlacesMax> needed_whole{};
    for (const Target &target : fetch.targets) {
        const Replica &here = blocks_.replica(target.block, target.place);
        const bool moves = target.wanted_slot != kNoSlot && here.slot != target.wanted_slot;
        if (here.slot != kNoSlot && !moves) continue;
        const bool whole = packs_[blocks_[target.block].pack].agreed;
        ++(whole ? needed_whole : needed)[target.place];
    }
    for (PlaceId place = 0; place < places_.count() && result == Room::kTaken; ++place)
        result = admit_guests(fetch, place, out);
    for (PlaceId place = 0; place < places_.count() && result == Room::kTaken; ++place) {
        if (needed[place] + needed_whole[place] == 0) continue;
        if (blocked.is_behind(fetch, place)) {
            result = Room::kComing;
            break;
        }
        result = make_room(fetch, place, needed_whole[place], true, out);
        if (result == Room::kTaken) result = make_room(fetch, place, needed[place], false, out);
    }
    if (result == Room::kTaken) take_room(fetch, out);
    if (result == Room::kTaken || result == Room::kAgain) return result;
    if ((fetch.asked.flags & kFetchPrefetch) != 0) return result;  // nobody waits for a hint
    const bool gives_way = beside_readers(fetch) && result == Room::kStuck;
    std::array<bool, kPlacesMax> &to = gives_way ? blocked.to_touches : blocked.to_all;
    for (PlaceId place = 0; place < places_.count(); ++place)
        to[place] |= needed[place] + needed_whole[place] > 0;
    return result;
}

// Runs first: their slots are known and must not go to single blocks. A block that has to move into
// its run keeps its old slot until Fills::start() relocates it.
void Reservation::take_room(Fetch &fetch, Commands &out)
{
    for (const Target &target : fetch.targets) {
        Replica &here = blocks_.replica(target.block, target.place);
        if (target.wanted_slot == kNoSlot || here.slot == target.wanted_slot) continue;
        const bool whole = packs_[blocks_[target.block].pack].agreed;
        occupancy_.take_slot(target.place, target.block, whole, target.wanted_slot, out);
        if (here.slot != kNoSlot) continue;
        here.slot = target.wanted_slot;
        order_.count_in(target.block, target.place);
    }
    std::array<uint32_t, kPlacesMax> visiting{};
    for (const Target &target : fetch.targets) {
        Replica &here = blocks_.replica(target.block, target.place);
        const Pack &pack = packs_[blocks_[target.block].pack];
        visiting[target.place] += pack.promised != target.place && !pack.agreed;
        if (here.slot == kNoSlot) {
            const bool whole = packs_[blocks_[target.block].pack].agreed;
            const Slot near = occupancy_.neighbour_slot(target.block, target.place);
            here.slot = places_.arena(target.place).take(target.block, whole, near);
            order_.count_in(target.block, target.place);
            addresses_.clear(target.block, target.place);
            // The slot was not used by another block since, so it is still at the address.
            const bool mapped = here.slot == here.last_slot &&
                                places_.arena(target.place).is_mapped(here.slot, target.block);
            here.mapped = mapped ? Mapped::kWritable : Mapped::kNot;
        }
        occupancy_.hold(target.block, target.place);
    }
    for (PlaceId place = 0; place < places_.count(); ++place)
        promises_.expect_visits(place, visiting[place]);
}

// Blocks that are at home elsewhere take only room that is promised to no tensor: nothing else
// ensures that what is promised can be stored while they are in use. Others of them make way.
Room Reservation::admit_guests(Fetch &fetch, PlaceId place, Commands &out)
{
    uint32_t coming = 0;
    for (const Target &target : fetch.targets) {
        const Pack &pack = packs_[blocks_[target.block].pack];
        const bool guest = target.place == place && packs_.is_guest(pack, place);
        coming += guest && blocks_.replica(target.block, place).slot == kNoSlot;
    }
    if (coming == 0 || promises_.promised(place) == 0) return Room::kTaken;
    const uint32_t room = promises_.left(place);
    if (coming > room) return outlook_.fall_short(fetch, place, Room::kNever);
    uint32_t there = 0;
    uint32_t leaving = 0;
    std::vector<BlockId> may_leave;
    for (Slot slot = 0; slot < places_.arena(place).slots(); ++slot) {
        const BlockId owner = places_.arena(place).owner(slot);
        if (owner == kNone || !packs_.is_guest(packs_[blocks_[owner].pack], place)) continue;
        ++there;
        leaving += blocks_.replica(owner, place).evicting;
        if (victims_.may_leave(owner, place, &fetch)) may_leave.push_back(owner);
    }
    const bool enough = there - leaving - may_leave.size() + coming <= room;
    for (const BlockId guest : may_leave) {
        if (!enough || there - leaving + coming <= room) break;
        if (!evictions_.start(guest, place, out)) continue;
        const bool gone = blocks_.replica(guest, place).slot == kNoSlot;
        there -= gone;
        leaving += !gone;
    }
    if (there + coming <= room) return Room::kTaken;
    if (leaving > 0 || outlook_.room_will_come(place)) return Room::kComing;
    static_cast<void>(outlook_.pinned_blocks(place, false, &fetch));  // sees those in gates
    return outlook_.fall_short(fetch, place, outlook_.stuck_or_never());
}

Room Reservation::make_room(Fetch &fetch, PlaceId place, uint32_t needed, bool whole, Commands &out)
{
    Arena &arena = places_.arena(place);
    const uint32_t budget = whole ? arena.whole_slots() : arena.budget() - arena.whole_slots();
    if (needed > budget) {
        return outlook_.fall_short(fetch, place, Room::kNever);
    }
    if (arena.free(whole) >= needed) return Room::kTaken;
    while (!whole && arena.free() + occupancy_.coming(place) < needed) {
        if (order_.has_no_victims(place, fetch)) break;
        const BlockId victim = victims_.pick(place, fetch);
        if (victim == kNone) order_.note_no_victims(place, fetch);
        if (victim == kNone || !evictions_.start(victim, place, out)) break;
    }
    if (arena.free(whole) >= needed) return Room::kTaken;
    if (!whole && arena.free() + occupancy_.coming(place) >= needed) return Room::kComing;
    if (const Room moved = let_mover_leave(fetch, place, out); moved != Room::kStuck) return moved;
    uint32_t own = 0;
    for (const Target &target : fetch.targets) {
        const Replica &here = blocks_.replica(target.block, target.place);
        const bool counts = packs_[blocks_[target.block].pack].agreed == whole;
        const bool moves = target.wanted_slot != kNoSlot && here.slot != target.wanted_slot;
        own += counts && target.place == place && here.slot != kNoSlot && !moves;  // else needed
    }
    const bool fits = own + needed <= budget;
    const bool hint = (fetch.asked.flags & kFetchPrefetch) != 0;
    if (!outlook_.room_will_come(place)) {
        if (!hint)
            static_cast<void>(outlook_.pinned_blocks(place, whole, &fetch));  // sees those in gates
    } else if (fits && !outlook_.are_more_pinned(place, whole, fetch, budget - own - needed)) {
        transfers_.hasten_write_backs(fetch, place, out);
        return Room::kComing;
    }
    // A hint is refused whatever keeps it out, and nobody reads why.
    return outlook_.fall_short(fetch, place, hint ? Room::kNever : outlook_.stuck_or_never());
}

// A block that moves into its run takes two slots for a while. If there is no second one, it is
// evicted instead and fetched again.
Room Reservation::let_mover_leave(const Fetch &fetch, PlaceId place, Commands &out)
{
    for (const Target &target : fetch.targets) {
        if (target.place != place || target.wanted_slot == kNoSlot) continue;
        const Replica &here = blocks_.replica(target.block, place);
        if (here.slot == kNoSlot || here.slot == target.wanted_slot) continue;
        if (here.evicting) return Room::kComing;
        if (!evictions_.start(target.block, place, out)) continue;
        return here.slot == kNoSlot ? Room::kAgain : Room::kComing;
    }
    return Room::kStuck;
}

}  // namespace stepwell::residency
