// SPDX-License-Identifier: Apache-2.0
// Room: all-or-nothing reservation. Where only views of the program are in the way, that is said
// with the arithmetic; what else is in the way is waited for.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

namespace stepwell::residency {

// It needs room where an earlier fetch waits for some, and wants nothing at another place.
bool Core::is_behind(const Fetch &fetch, const Blocked &blocked) const
{
    const std::vector<Target> &targets = fetch.targets;
    const PlaceId place = targets.front().place;
    if (!blocked[place] || targets.back().place != place) return false;
    return std::any_of(targets.begin(), targets.end(), [&](const Target &target) {
        return replica(target.block, place).slot == kNoSlot;
    });
}

Core::Room Core::reserve(Fetch &fetch, Blocked &blocked, Commands &out)
{
    if (is_behind(fetch, blocked)) return Room::kComing;  // what most hints do that wait
    for (const Target &target : fetch.targets) {
        if (replica(target.block, target.place).doomed) return Room::kComing;
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
            fetch.needed_in = std::min(fetch.needed_in, next_use(target.block));
        }
    }
    pins_seen_ = false;
    Room result = try_reserve(fetch, blocked, out);
    // Each time one block fewer has to move.
    while (result == Room::kAgain) result = try_reserve(fetch, blocked, out);
    return result;
}

Core::Room Core::try_reserve(Fetch &fetch, Blocked &blocked, Commands &out)
{
    if (awaits_budget(fetch)) return Room::kComing;
    Room result = plan_runs(fetch, blocked, out);
    std::array<uint32_t, kPlacesMax> needed{};
    std::array<uint32_t, kPlacesMax> needed_whole{};
    for (const Target &target : fetch.targets) {
        const Replica &here = replica(target.block, target.place);
        const bool moves = target.wanted_slot != kNoSlot && here.slot != target.wanted_slot;
        if (here.slot != kNoSlot && !moves) continue;
        const bool whole = packs_[blocks_[target.block].pack].agreed;
        ++(whole ? needed_whole : needed)[target.place];
    }
    for (PlaceId place = 0; place < places() && result == Room::kTaken; ++place) {
        if (needed[place] + needed_whole[place] == 0) continue;
        if (blocked[place]) {
            result = Room::kComing;
            break;
        }
        result = make_room(fetch, place, needed_whole[place], true, out);
        if (result == Room::kTaken) result = make_room(fetch, place, needed[place], false, out);
    }
    if (result == Room::kTaken) take_room(fetch, out);
    if (result == Room::kTaken || result == Room::kAgain) return result;
    if ((fetch.asked.flags & kFetchPrefetch) != 0) return result;  // nobody waits for a hint
    for (PlaceId place = 0; place < places(); ++place) {
        if (needed[place] + needed_whole[place] > 0) blocked[place] = true;
    }
    return result;
}

// Runs first: their slots are known and must not go to single blocks. A block that has to move into
// its run keeps its old slot until start_fill relocates it.
void Core::take_room(Fetch &fetch, Commands &out)
{
    for (const Target &target : fetch.targets) {
        Replica &here = replica(target.block, target.place);
        if (target.wanted_slot == kNoSlot || here.slot == target.wanted_slot) continue;
        const bool whole = packs_[blocks_[target.block].pack].agreed;
        take_slot(target.place, target.block, whole, target.wanted_slot, out);
        if (here.slot != kNoSlot) continue;
        here.slot = target.wanted_slot;
        count_in(target.block, target.place);
    }
    for (const Target &target : fetch.targets) {
        Replica &here = replica(target.block, target.place);
        if (here.slot == kNoSlot) {
            const bool whole = packs_[blocks_[target.block].pack].agreed;
            const Slot near = neighbour_slot(target.block, target.place);
            here.slot = arenas_[target.place].take(target.block, whole, near);
            count_in(target.block, target.place);
            clear_address(target.block, target.place);
            // Not moved since it was last used, and by nobody else.
            here.mapped = here.slot == here.last_slot &&
                          arenas_[target.place].is_mapped(here.slot, target.block);
        }
        hold(target.block, target.place);
    }
}

void Core::take_slot(PlaceId place, BlockId block, bool whole, Slot slot, Commands &out)
{
    const Slot bare = arenas_[place].take_at(block, whole, slot);
    if (bare != kNoSlot) out.swaps.push_back({place, slot, bare});
}

void Core::hold(BlockId block, PlaceId place)
{
    Replica &here = replica(block, place);
    ++here.holds;
    if (!here.evicting) return;
    here.evicting = false;
    --coming_[place];
}

Core::Room Core::make_room(Fetch &fetch, PlaceId place, uint32_t needed, bool whole, Commands &out)
{
    Arena &arena = arenas_[place];
    const uint32_t budget = whole ? arena.whole_slots() : arena.budget() - arena.whole_slots();
    if (needed > budget) {
        return fall_short(fetch, place, Room::kNever);
    }
    if (arena.free(whole) >= needed) return Room::kTaken;
    while (!whole && arena.free() + coming_[place] < needed) {
        if (is_barren(place, fetch)) break;
        const BlockId victim = pick_victim(place, fetch);
        if (victim == kNone) note_barren(place, fetch);
        if (victim == kNone || !start_eviction(victim, place, out)) break;
    }
    if (arena.free(whole) >= needed) return Room::kTaken;
    if (!whole && arena.free() + coming_[place] >= needed) return Room::kComing;
    if (const Room moved = let_mover_leave(fetch, place, out); moved != Room::kStuck) return moved;
    uint32_t own = 0;
    for (const Target &target : fetch.targets) {
        const Replica &here = replica(target.block, target.place);
        const bool counts = packs_[blocks_[target.block].pack].agreed == whole;
        const bool moves = target.wanted_slot != kNoSlot && here.slot != target.wanted_slot;
        own += counts && target.place == place && here.slot != kNoSlot && !moves;  // else needed
    }
    const bool fits = own + needed <= budget;
    if (!room_will_come(place)) {
        static_cast<void>(pinned_blocks(place, whole, &fetch));  // sees those in gates
    } else if (fits && !are_more_pinned(place, whole, fetch, budget - own - needed)) {
        hasten_write_backs(fetch, place, out);
        return Room::kComing;
    }
    return fall_short(fetch, place, stuck_or_never());
}

// The sentence is made when the fetch is refused: most of those that are stuck wait.
Core::Room Core::fall_short(Fetch &fetch, PlaceId place, Room room)
{
    fetch.short_place = place;
    fetch.short_blocks = targets_at(fetch, place);
    return room;
}

// Early write-backs have time, but whoever waits for the blocks they read has none.
void Core::hasten_write_backs(const Fetch &fetch, PlaceId place, Commands &out)
{
    if (fetch.asked.urgency != Class::kDemand) return;
    for (auto &[id, flight] : flights_) {
        Transfer &transfer = flight.transfer;
        if (transfer.from != place || transfer.urgency != Class::kIdle) continue;
        transfer.urgency = Class::kDemand;
        out.promotes.push_back(id);
    }
}

// A block that moves into its run takes two slots for a while. Where there is no second one it
// leaves instead, and comes back.
Core::Room Core::let_mover_leave(const Fetch &fetch, PlaceId place, Commands &out)
{
    for (const Target &target : fetch.targets) {
        if (target.place != place || target.wanted_slot == kNoSlot) continue;
        const Replica &here = replica(target.block, place);
        if (here.slot == kNoSlot || here.slot == target.wanted_slot) continue;
        if (here.evicting) return Room::kComing;
        if (!start_eviction(target.block, place, out)) continue;
        return here.slot == kNoSlot ? Room::kAgain : Room::kComing;
    }
    return Room::kStuck;
}

// Only the program's views end by themselves; waiting for anything else that stays is for ever.
// Pins in gates end without us: those seen in the way may be gone by now.
Core::Room Core::stuck_or_never() const
{
    if (pins_seen_) return Room::kStuck;
    for (PlaceId place = 0; place < places(); ++place) {
        for (BlockId block = coldest_[place]; block != kNone;
             block = replica(block, place).hotter) {
            if (is_pinned(block, place)) return Room::kStuck;
        }
    }
    return Room::kNever;
}

bool Core::is_pinned(BlockId block, PlaceId place) const
{
    const Replica &here = replica(block, place);
    if (here.pins > 0) return true;
    if (is_nvme(place)) return false;
    return is_pinned_by_gates(packs_[blocks_[block].pack], place);
}

bool Core::has_pins(const Pack &pack, PlaceId place) const
{
    const bool pinned =
        std::any_of(pack.tensors.begin(), pack.tensors.end(),
                    [&](const TensorId at) { return door(at, place).gate.pins() > 0; });
    pins_seen_ |= pinned;
    return pinned;
}

// Of ordinary blocks, or of gathered wholes, which have room of their own.
uint32_t Core::pinned_blocks(PlaceId place, bool whole, const Fetch *except) const
{
    uint32_t count = 0;
    for (BlockId block = coldest_[place]; block != kNone; block = replica(block, place).hotter) {
        if (except && is_own(block, place, *except)) continue;
        const Pack &pack = packs_[blocks_[block].pack];
        if (pack.agreed != whole) continue;
        count += is_pinned(block, place) || pack.pinned_home == place;
    }
    return count;
}

// Whether of the ordinary blocks, or of the wholes, more than `most` are pinned beside the fetch's
// own. Cold ones seldom are, so that few have to be looked at.
bool Core::are_more_pinned(PlaceId place, bool whole, const Fetch &fetch, uint32_t most) const
{
    uint32_t pinned = 0;
    uint32_t unseen = listed_[place][whole];
    for (BlockId block = coldest_[place]; block != kNone; block = replica(block, place).hotter) {
        if (pinned > most || pinned + unseen <= most) break;
        const Pack &pack = packs_[blocks_[block].pack];
        if (pack.agreed != whole) continue;
        --unseen;
        if (is_own(block, place, fetch)) continue;
        pinned += is_pinned(block, place) || pack.pinned_home == place;
    }
    return pinned > most;
}

// Transfers under way and the library's own views end by themselves, and change what may leave or
// move. A fetch that looks for room holds nothing yet: what is held of its own blocks is others'.
bool Core::room_will_come(PlaceId place) const
{
    if (!flights_.empty()) return true;
    for (BlockId block = coldest_[place]; block != kNone; block = replica(block, place).hotter) {
        if (replica(block, place).holds > 0) return true;
    }
    return false;
}

// What the budget of a place is taken by, of which a fetch needs so much. A place that shrinks may
// hold more than its budget: then that is what it holds.
Status Core::budget_refusal(const Fetch &fetch, PlaceId place, uint32_t needed) const
{
    const uint64_t block = config_.block_bytes;
    const Arena &arena = arenas_[place];
    const bool whole = asks_for_wholes(fetch, place);
    uint64_t pinned = 0;
    uint64_t others = 0;
    bool failed = false;
    for (BlockId at = coldest_[place]; at != kNone; at = replica(at, place).hotter) {
        const Pack &pack = packs_[blocks_[at].pack];
        failed |= blocks_[at].write_failed;
        if (pack.agreed != whole || is_own(at, place, fetch)) continue;
        ++(is_pinned(at, place) || pack.pinned_home == place ? pinned : others);
    }
    const uint64_t budget = whole ? arena.whole_slots() : arena.budget();
    const uint64_t kept = whole ? 0 : arena.whole_slots();
    const uint64_t taken = kept + pinned + others;
    const uint64_t left = budget > taken ? budget - taken : 0;
    const uint64_t aside = whole || budget == 0 ? 0 : config_.places[place].aside_bytes;
    const std::string &name = tensors_[fetch.asked.requests.front().tensor].spec.name;
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%s cannot hold the fetch of %s (%zu request%s): %s needed; %s %s%s; "
        "%sfetch a smaller range, or raise the budget",
        place_name(place).c_str(), tensor_text(name).c_str(), fetch.asked.requests.size(),
        plural(fetch.asked.requests.size()), bytes_text(needed * block).c_str(),
        whole            ? "whole_bytes"
        : taken > budget ? "it shrinks and holds"
                         : "budget",
        sum_text({{aside, "for staging and scratch"},
                  {kept * block, "for gathered wholes"},
                  {pinned * block, "pinned by open views"},
                  {others * block, "of other tensors"},
                  {left * block, "free or its own"}})
            .c_str(),
        failed ? " (some blocks stay because their write-back failed)" : "",
        pinned > 0 ? "release views, " : "");
    ErrorDetail &detail = status.mutable_detail();
    detail.tensor = name;
    detail.tier = static_cast<uint32_t>(config_.places[place].tier);
    detail.device = config_.places[place].device;
    detail.needed_bytes = needed * block;
    detail.free_bytes = arena.free(whole) * block;
    detail.pinned_bytes = pinned * block;
    return status;
}

// Gathered wholes have room of their own, and are asked for by themselves.
bool Core::asks_for_wholes(const Fetch &fetch, PlaceId place) const
{
    for (const Request &request : fetch.asked.requests) {
        const Pack &pack = packs_[tensors_[request.tensor].pack];
        if (request.place == place || request.place >= places()) return pack.agreed;
    }
    return false;
}

}  // namespace stepwell::residency
