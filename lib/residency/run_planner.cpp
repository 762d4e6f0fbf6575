// SPDX-License-Identifier: Apache-2.0
// Runs: views at a place that does not map need contiguous slots. Which slots a run gets, and what
// leaves or moves aside for it; the blocks of a pack are kept side by side where that is free.
#include "lib/residency/run_planner.h"

#include <algorithm>

namespace stepwell::residency {

Room RunPlanner::plan(Fetch &fetch, const Blocked &blocked, Commands &out)
{
    if (!fetch.moved) {
        const Room cheap = plan_all(fetch, false, blocked, out);
        if (cheap != Room::kStuck && cheap != Room::kNever) return cheap;
    }
    // The cheapest slots for one run may leave no gap for the next; packed tightly, both may fit.
    // And costs change with every block that moves, so the search for the cheapest need not end.
    return plan_all(fetch, true, blocked, out);
}

Room RunPlanner::plan_all(Fetch &fetch, bool tight, const Blocked &blocked, Commands &out)
{
    for (Target &target : fetch.targets) target.wanted_slot = kNoSlot;
    for (size_t i = 0; i < fetch.targets.size();) {
        Target *first = &fetch.targets[i];
        size_t end = i + 1;
        while (end < fetch.targets.size() && fetch.targets[end].place == first->place &&
               fetch.targets[end].block == fetch.targets[end - 1].block + 1 &&
               fetch.targets[end].home == first->home &&
               blocks_[fetch.targets[end].block].pack == blocks_[first->block].pack) {
            ++end;
        }
        const uint32_t count = static_cast<uint32_t>(end - i);
        i = end;
        // There are no views of nvme, nor of slots that are kept: they need no run.
        const bool anywhere =
            places_[first->place].maps || places_.is_nvme(first->place) || first->home;
        if (anywhere || count == 1) continue;
        if (run_lies(first, count)) continue;
        if (blocked.is_behind(fetch, first->place) || transfers_.is_rearranging(first->place))
            return Room::kComing;
        const Room room = plan_run(fetch, first, count, tight, out);
        if (room != Room::kTaken) return room;
    }
    return Room::kTaken;
}

bool RunPlanner::run_lies(const Target *first, uint32_t count) const
{
    const Slot begin = blocks_.replica(first->block, first->place).slot;
    if (begin == kNoSlot) return false;
    for (uint32_t i = 1; i < count; ++i) {
        if (blocks_.replica(first[i].block, first->place).slot != begin + i) return false;
    }
    return true;
}

// The cost of clearing slots for a run of the fetch's blocks, for one candidate run after another:
// each slot is looked at once for all the runs that it may be part of.
class RunPlanner::RunCosts {
public:
    RunCosts(RunPlanner &planner, const Fetch &fetch, const Target *first, uint32_t count)
        : planner_(planner),
          arena_(planner.places_.arena(first->place)),
          fetch_(fetch),
          first_(first),
          place_(first->place),
          count_(count),
          slots_(planner.run_slots_)
    {
        slots_.clear();
        for (const Target &planned : fetch.targets) {
            if (planned.place != place_ || planned.wanted_slot == kNoSlot) continue;
            at(planned.wanted_slot).look = Look::kPlanned;
            promised_ += arena_.is_free(planned.wanted_slot);
        }
        for (uint32_t i = 0; i < count; ++i) fix(i);
    }

    // The candidate runs, one after another.
    [[nodiscard]] Slot first() const { return fixed_ ? begin_ : 0; }
    [[nodiscard]] Slot next() const { return fixed_ ? kNoSlot : next_; }
    [[nodiscard]] bool is_run(Slot begin) const
    {
        return uint64_t{begin} + count_ <= arena_.slots();
    }
    // There is room around it for the rest of the pack.
    [[nodiscard]] bool suits_pack(Slot begin) const
    {
        const Pack &pack = planner_.packs_[planner_.blocks_[first_->block].pack];
        const uint32_t index = planner_.blocks_[first_->block].index;
        if (pack.run[place_] != kNoSlot) return pack.run[place_] + index == begin;
        return begin >= index && uint64_t{begin} - index + pack.blocks <= arena_.slots();
    }
    // UINT64_MAX if something in the run cannot leave.
    [[nodiscard]] uint64_t of(Slot begin, bool may_evict);

private:
    using Look = RunSlot::Look;

    RunSlot &at(Slot slot)
    {
        if (slot >= slots_.size()) grow(slot);
        return slots_[slot];
    }
    void grow(Slot slot)
    {
        constexpr size_t kFirst = 64;
        const size_t more = std::max({slot + size_t{1}, 2 * slots_.size(), kFirst});
        slots_.resize(std::min<size_t>(more, arena_.slots()));
    }
    // A block that cannot move determines where the run begins, if it is possible at all.
    void fix(uint32_t index)
    {
        const BlockId block = first_[index].block;
        const Replica &mine = planner_.blocks_.replica(block, place_);
        if (mine.slot == kNoSlot) return;
        if (mine.holds == 0 && !planner_.gates_.is_pinned(block, place_)) return;
        const Slot begin = mine.slot >= index ? mine.slot - index : kNoSlot;
        begin_ = fixed_ && begin_ != begin ? kNoSlot : begin;
        fixed_ = true;
    }
    [[nodiscard]] RunSlot look_at(Slot slot) const;

    const RunPlanner &planner_;
    const Arena &arena_;
    const Fetch &fetch_;
    const Target *first_;
    const PlaceId place_;
    const uint32_t count_;
    std::vector<RunSlot> &slots_;  // grows with the search: often the first run is free
    uint32_t promised_ = 0;        // free slots that runs planned before will take
    bool fixed_ = false;
    Slot begin_ = 0;  // where it is fixed; kNoSlot: nowhere
    Slot next_ = 0;
};

RunSlot RunPlanner::RunCosts::look_at(Slot slot) const
{
    const BlockId owner = arena_.owner(slot);
    if (owner == kNone) return {Look::kFree, arena_.is_bare(slot) ? 1u : 0u};
    if (planner_.order_.is_needed_before(owner, fetch_)) return {Look::kStays, 0};
    if (planner_.blocks_.replica(owner, place_).evicting) return {Look::kLeaves, 1};
    if (!planner_.victims_.may_leave(owner, place_, nullptr)) {
        const bool moves =
            planner_.may_move(owner, place_) && !planner_.is_in_own_run(owner, place_, fetch_);
        return {moves ? Look::kMoves : Look::kStays, 4};
    }
    // The fetch needs this block itself: it is evicted only if there is no other run.
    if (planner_.blocks_.is_own(owner, place_, fetch_)) return {Look::kLeaves, 1024};
    return {Look::kLeaves, planner_.packs_.is_duplicate(owner, place_) ? 2u : 8u};
}

uint64_t RunPlanner::RunCosts::of(Slot begin, bool may_evict)
{
    next_ = begin + 1;
    uint64_t cost = 0;
    uint32_t moving = 0;
    uint32_t free_inside = 0;
    for (uint32_t i = count_; i-- > 0;) {
        const Slot slot = begin + i;
        RunSlot &found = at(slot);
        if (found.look == Look::kNone) found = look_at(slot);
        const bool stays = found.look == Look::kStays || found.look == Look::kPlanned;
        const BlockId owner = arena_.owner(slot);
        if (owner == first_[i].block && found.look != Look::kPlanned) continue;
        if (stays) {
            // Skips the runs that contain it, except those where it would be in its own place.
            const bool own = owner != kNone && planner_.blocks_.is_own(owner, place_, fetch_);
            if (!own) next_ = slot + 1;
            return UINT64_MAX;
        }
        cost += found.cost;
        moving += found.look == Look::kMoves;
        free_inside += found.look == Look::kFree;
    }
    const bool crowded = moving > 0 && arena_.free() < promised_ + free_inside + moving;
    return crowded && !may_evict ? UINT64_MAX : cost;
}

// The fetch wants it there in one run with others of its pack: another slot would not do.
bool RunPlanner::is_in_own_run(BlockId block, PlaceId place, const Fetch &fetch) const
{
    if (!blocks_.is_own(block, place, fetch)) return false;
    const PackId pack = blocks_[block].pack;
    return std::any_of(fetch.targets.begin(), fetch.targets.end(), [&](const Target &target) {
        const bool beside = target.block == block + 1 || target.block + 1 == block;
        return target.place == place && beside && blocks_[target.block].pack == pack;
    });
}

// It may change its slot, even if it cannot leave the place.
bool RunPlanner::may_move(BlockId block, PlaceId place) const
{
    const Replica &here = blocks_.replica(block, place);
    if (here.slot == kNoSlot || here.pins || here.holds || here.reads || here.filling) return false;
    if (here.doomed || here.evicting || packs_[blocks_[block].pack].agreed) return false;
    return (here.valid || packs_.awaits_bytes(block, place)) && !gates_.is_pinned(block, place);
}

// The fetch fits beside all that cannot leave the place; otherwise blocks would change slots
// without end.
bool RunPlanner::fits_beside(const Fetch &fetch, PlaceId place) const
{
    uint32_t count = targets_at(fetch, place);
    for (BlockId block = recency_.coldest(place); block != kNone;
         block = blocks_.replica(block, place).hotter) {
        if (blocks_.is_own(block, place, fetch) || blocks_.replica(block, place).evicting) continue;
        count += !victims_.may_leave(block, place, nullptr);
    }
    return count <= places_.arena(place).budget();
}

// Moves a block out of the slots [begin, begin + count): a fetch that fits by the numbers must find
// its run.
bool RunPlanner::start_move(const Fetch &fetch, BlockId block, PlaceId place, Slot begin,
                            uint32_t count, Commands &out)
{
    if (!may_move(block, place) || !fits_beside(fetch, place)) return false;
    const Arena &arena = places_.arena(place);
    const auto wanted = [&](Slot slot) {
        return std::any_of(fetch.targets.begin(), fetch.targets.end(), [&](const Target &target) {
            return target.place == place && target.wanted_slot == slot;
        });
    };
    Slot to = kNoSlot;
    for (Slot slot = 0; slot < arena.slots() && (to == kNoSlot || arena.is_bare(to)); ++slot) {
        const bool inside = slot >= begin && slot < begin + count;
        const bool better = to == kNoSlot || !arena.is_bare(slot);
        if (better && arena.is_free(slot) && !inside && !wanted(slot)) to = slot;
    }
    if (to == kNoSlot || arena.free() == 0 || !gates_.try_close_all(block, place)) return false;
    Replica &here = blocks_.replica(block, place);
    if (!here.valid) {  // nothing is in it
        places_.arena(place).give(here.slot, false);
        occupancy_.take_slot(place, block, false, to, out);
        here.slot = to;
        return true;
    }
    Transfer transfer;
    transfer.block = block;
    transfer.kind = TransferKind::kRelocate;
    transfer.urgency = fetch.asked.urgency;
    transfer.from = transfer.to = place;
    transfer.from_slot = here.slot;
    occupancy_.take_slot(place, block, false, to, out);
    here.slot = to;
    here.filling = true;
    transfers_.start(transfer, false, false, out);
    return true;
}

// The cheapest run, or the first possible one if `tight`. Of free runs, one with room for the rest
// of the pack.
Slot RunPlanner::choose_run(RunCosts &costs, bool tight)
{
    Slot best = kNoSlot;
    uint64_t best_cost = UINT64_MAX;
    for (Slot begin = costs.first(); costs.is_run(begin) && best_cost > 0; begin = costs.next()) {
        const uint64_t cost = costs.of(begin, false);
        if (cost >= best_cost) continue;
        best = begin;
        best_cost = tight ? 0 : cost;
    }
    if (tight || best_cost != 0) return best;
    for (Slot begin = best; costs.is_run(begin); begin = costs.next()) {
        if (costs.of(begin, false) == 0 && costs.suits_pack(begin)) return begin;
    }
    return best;
}

// A block could move if there were a free slot: another block is evicted for it, or one that the
// fetch needs itself, outside the run.
Room RunPlanner::make_spare_slot(const Fetch &fetch, RunCosts &costs, PlaceId place, uint32_t count,
                                 Commands &out)
{
    Slot possible = kNoSlot;
    for (Slot begin = costs.first(); costs.is_run(begin) && possible == kNoSlot;
         begin = costs.next()) {
        if (costs.of(begin, true) != UINT64_MAX) possible = begin;
    }
    if (possible == kNoSlot) return Room::kStuck;
    const auto leaves = [&](const Target &target) {
        const Slot slot = blocks_.replica(target.block, place).slot;
        const bool inside = slot >= possible && slot < possible + count;
        return target.place == place && !inside && victims_.may_leave(target.block, place, nullptr);
    };
    BlockId victim = victims_.pick(place, fetch);
    const auto own = std::find_if(fetch.targets.begin(), fetch.targets.end(), leaves);
    if (victim == kNone && own != fetch.targets.end()) victim = own->block;
    if (victim == kNone || !evictions_.start(victim, place, out)) return Room::kStuck;
    return blocks_.replica(victim, place).slot == kNoSlot ? Room::kAgain : Room::kComing;
}

Room RunPlanner::plan_run(Fetch &fetch, Target *first, uint32_t count, bool tight, Commands &out)
{
    const PlaceId place = first->place;
    for (uint32_t i = 0; i < count; ++i) {
        const Replica &here = blocks_.replica(first[i].block, place);
        if (here.filling || here.reads > 0) return Room::kComing;
    }
    const uint32_t slots = places_.arena(place).budget();
    RunCosts costs(*this, fetch, first, count);
    const Slot best = choose_run(costs, tight);
    if (best == kNoSlot) {
        const Room room = make_spare_slot(fetch, costs, place, count, out);
        if (room != Room::kStuck) return room;
        const uint32_t all = targets_at(fetch, place);
        if (all > slots) return outlook_.fall_short(fetch, place, Room::kNever);
        if (outlook_.room_will_come(place)) return Room::kComing;
        return outlook_.fall_short(fetch, place, outlook_.stuck_or_never());
    }
    bool clear = true;
    bool own = false;
    for (uint32_t i = 0; i < count; ++i) {
        const BlockId owner = places_.arena(place).owner(best + i);
        if (owner == kNone || owner == first[i].block) continue;
        own |= blocks_.is_own(owner, place, fetch);
        if (!blocks_.replica(owner, place).evicting && !evictions_.start(owner, place, out) &&
            !is_in_own_run(owner, place, fetch)) {
            fetch.moved |= start_move(fetch, owner, place, best, count, out);
        }
        clear &= places_.arena(place).is_free(best + i);
    }
    if (!clear) {
        if (outlook_.room_will_come(place)) return Room::kComing;
        return outlook_.fall_short(fetch, place, outlook_.stuck_or_never());
    }
    if (own) return Room::kAgain;  // it may be part of a run that was planned before
    for (uint32_t i = 0; i < count; ++i) first[i].wanted_slot = best + i;
    Pack &pack = packs_[blocks_[first->block].pack];
    if (count == pack.blocks) occupancy_.set_run(pack, place, best);
    return Room::kTaken;
}

}  // namespace stepwell::residency
