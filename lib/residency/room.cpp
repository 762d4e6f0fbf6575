// SPDX-License-Identifier: Apache-2.0
// Room: all-or-nothing reservation and the choice of victims. Nothing leaves that is pinned, held or
// the last that knows its bytes; where only views of the program are in the way, that is said with
// the arithmetic.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cinttypes>

namespace stepwell::residency {
namespace {

constexpr uint32_t kVisitedMax = 4096;   // of the list of recency, per choice
constexpr uint32_t kCandidatesMax = 64;  // compared by their next use

}  // namespace

Core::Room Core::reserve(Fetch &fetch, std::array<bool, kPlacesMax> &blocked, Commands &out)
{
    for (const Target &target : fetch.targets) {
        if (replica(target.block, target.place).doomed) return Room::kComing;
        blocks_[target.block].protector = fetch.id;
    }
    Room result = plan_runs(fetch, out);
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
    if (result == Room::kTaken) {
        take_room(fetch);
        return result;
    }
    for (PlaceId place = 0; place < places(); ++place) {
        if (needed[place] + needed_whole[place] > 0) blocked[place] = true;
    }
    return result;
}

// Runs first: their slots are known and must not go to single blocks. A block that has to move into
// its run keeps its old slot until start_fill relocates it.
void Core::take_room(Fetch &fetch)
{
    for (const Target &target : fetch.targets) {
        Replica &here = replica(target.block, target.place);
        if (target.wanted_slot == kNoSlot || here.slot == target.wanted_slot) continue;
        const bool whole = packs_[blocks_[target.block].pack].agreed;
        arenas_[target.place].take_at(target.block, whole, target.wanted_slot);
        if (here.slot == kNoSlot) here.slot = target.wanted_slot;
    }
    Slot near = kNoSlot;
    for (const Target &target : fetch.targets) {
        Replica &here = replica(target.block, target.place);
        if (here.slot == kNoSlot) {
            const bool whole = packs_[blocks_[target.block].pack].agreed;
            here.slot = arenas_[target.place].take(target.block, whole, near);
            here.mapped = false;
        }
        near = here.slot + 1;
        hold(target.block, target.place);
    }
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
    const uint32_t budget = whole ? arena.whole_slots() : arena.slots() - arena.whole_slots();
    if (needed > budget) {
        fetch.error = budget_refusal(fetch, place, needed);
        return Room::kNever;
    }
    if (arena.free(whole) >= needed) return Room::kTaken;
    while (!whole && arena.free() + coming_[place] < needed) {
        const BlockId victim = pick_victim(place, fetch);
        if (victim == kNone || !start_eviction(victim, place, out)) break;
    }
    if (arena.free(whole) >= needed) return Room::kTaken;
    if (!whole && arena.free() + coming_[place] >= needed) return Room::kComing;
    uint32_t own = 0;
    for (const Target &target : fetch.targets) {
        own += target.place == place && replica(target.block, place).slot != kNoSlot;
    }
    const bool pinned = pinned_blocks(place, &fetch) + own + needed > budget;
    if (!pinned && room_will_come(place, &fetch)) return Room::kComing;
    fetch.error = budget_refusal(fetch, place, needed);
    return stuck_or_never();
}

// Only the program's views end by themselves; waiting for anything else that stays is for ever.
Core::Room Core::stuck_or_never() const
{
    for (PlaceId place = 0; place < places(); ++place) {
        for (BlockId block = coldest_[place]; block != kNone;
             block = replica(block, place).hotter) {
            if (is_pinned(block, place)) return Room::kStuck;
        }
    }
    return Room::kNever;
}

// Runs: views at a place that does not map need contiguous slots.
Core::Room Core::plan_runs(Fetch &fetch, Commands &out)
{
    for (Target &target : fetch.targets) target.wanted_slot = kNoSlot;
    for (size_t i = 0; i < fetch.targets.size();) {
        Target *first = &fetch.targets[i];
        size_t end = i + 1;
        while (end < fetch.targets.size() && fetch.targets[end].place == first->place &&
               fetch.targets[end].block == fetch.targets[end - 1].block + 1 &&
               blocks_[fetch.targets[end].block].pack == blocks_[first->block].pack) {
            ++end;
        }
        const uint32_t count = static_cast<uint32_t>(end - i);
        i = end;
        if (config_.places[first->place].maps || count == 1) continue;
        if (fetch.asked.flags & kFetchPrefetch && run_lies(first, count)) continue;
        const Room room = plan_run(fetch, first, count, out);
        if (room != Room::kTaken) return room;
    }
    return Room::kTaken;
}

bool Core::run_lies(const Target *first, uint32_t count) const
{
    const Slot begin = replica(first->block, first->place).slot;
    if (begin == kNoSlot) return false;
    for (uint32_t i = 1; i < count; ++i) {
        if (replica(first[i].block, first->place).slot != begin + i) return false;
    }
    return true;
}

// What it takes to clear the slots from `begin` on; UINT64_MAX when something there cannot leave.
uint64_t Core::run_cost(Slot begin, const Target *first, uint32_t count, const Fetch &fetch) const
{
    const PlaceId place = first->place;
    for (const Target &planned : fetch.targets) {
        if (planned.place != place || planned.wanted_slot == kNoSlot) continue;
        if (planned.wanted_slot >= begin && planned.wanted_slot < begin + count) return UINT64_MAX;
    }
    uint64_t cost = 0;
    for (uint32_t i = 0; i < count; ++i) {
        const Replica &mine = replica(first[i].block, place);
        const bool moves = mine.slot != kNoSlot && mine.slot != begin + i;
        if (moves && (mine.holds > 0 || is_pinned(first[i].block, place))) return UINT64_MAX;
        const BlockId owner = arenas_[place].owner(begin + i);
        if (owner == kNone || owner == first[i].block) continue;
        const Replica &here = replica(owner, place);
        if (here.evicting) {
            cost += 1;
        } else if (!may_leave(owner, place, nullptr)) {
            return UINT64_MAX;
        } else if (blocks_[owner].protector == fetch.id) {
            cost += 1024;  // what this fetch needs itself leaves only when no other run is there
        } else {
            cost += is_duplicate(owner, place) ? 2 : 8;
        }
    }
    return cost;
}

Core::Room Core::plan_run(Fetch &fetch, Target *first, uint32_t count, Commands &out)
{
    const PlaceId place = first->place;
    if (run_lies(first, count)) return Room::kTaken;
    for (uint32_t i = 0; i < count; ++i) {
        const Replica &here = replica(first[i].block, place);
        if (here.filling || here.reads > 0) return Room::kComing;
    }
    Slot best = kNoSlot;
    uint64_t best_cost = UINT64_MAX;
    const uint32_t slots = arenas_[place].slots();
    for (Slot begin = 0; begin + count <= slots && best_cost > 0; ++begin) {
        const uint64_t cost = run_cost(begin, first, count, fetch);
        if (cost >= best_cost) continue;
        best = begin;
        best_cost = cost;
    }
    if (best == kNoSlot) {
        if (count > slots || !room_will_come(place, &fetch)) {
            fetch.error = budget_refusal(fetch, place, count);
            return count > slots ? Room::kNever : stuck_or_never();
        }
        return Room::kComing;
    }
    bool clear = true;
    for (uint32_t i = 0; i < count; ++i) {
        const BlockId owner = arenas_[place].owner(best + i);
        if (owner == kNone || owner == first[i].block) continue;
        if (!replica(owner, place).evicting) start_eviction(owner, place, out);
        clear &= arenas_[place].is_free(best + i);
    }
    if (!clear) {
        if (room_will_come(place, &fetch)) return Room::kComing;
        fetch.error = budget_refusal(fetch, place, count);
        return stuck_or_never();
    }
    for (uint32_t i = 0; i < count; ++i) first[i].wanted_slot = best + i;
    return Room::kTaken;
}

bool Core::is_pinned(BlockId block, PlaceId place) const
{
    const Replica &here = replica(block, place);
    if (here.pins > 0) return true;
    if (is_nvme(place)) return false;
    for (const TensorId at : packs_[blocks_[block].pack].tensors) {
        const size_t index = static_cast<size_t>(at) * config_.places.size() + place;
        if (doors_[index].gate.pins() > 0) return true;
    }
    return false;
}

uint32_t Core::pinned_blocks(PlaceId place, const Fetch *except) const
{
    uint32_t count = 0;
    for (BlockId block = coldest_[place]; block != kNone; block = replica(block, place).hotter) {
        if (except && blocks_[block].protector == except->id) continue;
        const Pack &pack = packs_[blocks_[block].pack];
        count += is_pinned(block, place) || pack.pinned_home == place;
    }
    return count;
}

// Transfers under way and the library's own views end by themselves, and change what may leave.
bool Core::room_will_come(PlaceId place, const Fetch *except) const
{
    if (!flights_.empty()) return true;
    for (BlockId block = coldest_[place]; block != kNone; block = replica(block, place).hotter) {
        if (except && blocks_[block].protector == except->id) continue;
        if (replica(block, place).holds > 0) return true;
    }
    return false;
}

Status Core::budget_refusal(const Fetch &fetch, PlaceId place, uint32_t needed) const
{
    const uint64_t block = config_.block_bytes;
    const Arena &arena = arenas_[place];
    const uint32_t pinned = pinned_blocks(place, &fetch);
    const char *failed = "";
    for (BlockId at = coldest_[place]; at != kNone; at = replica(at, place).hotter) {
        if (blocks_[at].write_failed) failed = " (some blocks stay because their write-back failed)";
    }
    const std::string &name = tensors_[fetch.asked.requests.front().tensor].spec.name;
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%s cannot hold the fetch of tensor '%s' (%zu requests): %s needed, budget %s, of which %s "
        "is free and %s is pinned by open views%s; release views, fetch a smaller range, or raise "
        "the budget",
        place_name(place).c_str(), name.c_str(), fetch.asked.requests.size(),
        bytes_text(needed * block).c_str(), bytes_text(arena.slots() * block).c_str(),
        bytes_text(arena.free() * block).c_str(), bytes_text(pinned * block).c_str(), failed);
    ErrorDetail &detail = status.mutable_detail();
    detail.tensor = name;
    detail.tier = static_cast<uint32_t>(config_.places[place].tier);
    detail.device = config_.places[place].device;
    detail.needed_bytes = needed * block;
    detail.free_bytes = arena.free() * block;
    detail.pinned_bytes = pinned * block;
    return status;
}

// The newest bytes are somewhere else too, or there are none.
bool Core::is_duplicate(BlockId block, PlaceId place) const
{
    if (!replica(block, place).valid) return true;
    for (PlaceId other = 0; other < places(); ++other) {
        const Replica &there = replica(block, other);
        if (other != place && there.valid && !there.doomed) return true;
    }
    return false;
}

// The policy knows a tier behind this one.
bool Core::can_drain(const Pack &pack, PlaceId place) const
{
    for (PlaceId to = static_cast<PlaceId>(place + 1); to < places(); ++to) {
        const bool behind = config_.places[to].tier > config_.places[place].tier;
        if (behind && exists(to) && (pack.key.policy.allowed & (1u << to))) return true;
    }
    return false;
}

bool Core::may_leave(BlockId block, PlaceId place, const Fetch *fetch) const
{
    const Replica &here = replica(block, place);
    const Block &at = blocks_[block];
    const Pack &pack = packs_[at.pack];
    if (here.slot == kNoSlot || here.pins || here.holds || here.reads || here.filling) return false;
    if (here.doomed || here.evicting || pack.agreed || pack.pinned_home == place) return false;
    if (fetch && at.protector == fetch->id) return false;
    if (fetch && here.fresh && (fetch->asked.flags & kFetchPrefetch)) return false;
    if (!is_duplicate(block, place) && (at.write_failed || !can_drain(pack, place))) return false;
    return !is_pinned(block, place);
}

uint64_t Core::next_use(BlockId block) const
{
    uint64_t nearest = kNever;
    for (const TensorId at : packs_[blocks_[block].pack].tensors) {
        nearest = std::min(nearest, victims_->next_use(at));
    }
    return nearest;
}

BlockId Core::pick_victim(PlaceId place, const Fetch &fetch) const
{
    BlockId best = kNone;
    std::tuple<int, int64_t, uint64_t> best_score{};
    uint32_t visited = 0;
    uint32_t candidates = 0;
    for (BlockId block = coldest_[place]; block != kNone && visited < kVisitedMax;
         block = replica(block, place).hotter, ++visited) {
        if (!may_leave(block, place, &fetch)) continue;
        const Pack &pack = packs_[blocks_[block].pack];
        const Policy &policy = pack.key.policy;
        const bool first = policy.retention == Retention::kStream || pack.advice == Advice::kCold;
        const bool last = policy.retention == Retention::kKeep || pack.advice == Advice::kHot;
        const int retention = first ? 2 : last ? 0 : 1;
        const std::tuple<int, int64_t, uint64_t> score{retention,
                                                       -static_cast<int64_t>(policy.priority),
                                                       next_use(block)};
        if (best == kNone || score > best_score) {
            best = block;
            best_score = score;
        }
        if (++candidates >= kCandidatesMax) break;
    }
    return best;
}

// Where the newest bytes go when they leave `place`; kNoPlace when room must be made there first.
PlaceId Core::drain_place(BlockId block, PlaceId place, Commands &out)
{
    const Policy &policy = packs_[blocks_[block].pack].key.policy;
    const PlaceId last = static_cast<PlaceId>(places() - 1);
    const bool to_nvme = is_nvme(last) && exists(last) && (policy.allowed & (1u << last)) &&
                         last != place;
    for (PlaceId to = static_cast<PlaceId>(place + 1); to < places(); ++to) {
        if (config_.places[to].tier != Tier::kHost || !exists(to)) continue;
        const Replica &there = replica(block, to);
        if (!(policy.allowed & (1u << to)) || there.doomed || there.filling) continue;
        if (to_nvme && policy.retention == Retention::kStream) continue;
        if (there.slot != kNoSlot || arenas_[to].free() > 0) return to;
        const Fetch nobody;
        const BlockId colder = pick_victim(to, nobody);
        if (colder != kNone && (!to_nvme || next_use(colder) >= next_use(block))) {
            if (is_duplicate(colder, to)) {
                start_eviction(colder, to, out);
                if (arenas_[to].free() > 0) return to;
            } else if (!to_nvme) {
                if (coming_[to] == 0) start_eviction(colder, to, out);
            }
        }
    }
    const Replica &stored = replica(block, last);
    return to_nvme && !stored.doomed && !stored.filling ? last : kNoPlace;
}

// True when the block has left or is on its way out.
bool Core::start_eviction(BlockId block, PlaceId place, Commands &out)
{
    if (!may_leave(block, place, nullptr)) return false;
    const bool duplicate = is_duplicate(block, place);
    const PlaceId to = duplicate ? kNoPlace : drain_place(block, place, out);
    if (!duplicate && to == kNoPlace) return false;
    if (!close_gates(block, place)) return false;
    if (duplicate) {
        ++evictions_[place];
        drop_replica(block, place, out);
        return true;
    }
    start_write_back(block, place, to, true, out);
    return true;
}

void Core::start_write_back(BlockId block, PlaceId from, PlaceId to, bool evicts, Commands &out)
{
    Replica &there = replica(block, to);
    if (there.slot == kNoSlot) there.slot = arenas_[to].take(block, false);
    there.filling = true;
    there.mapped = false;
    Transfer transfer;
    transfer.block = block;
    transfer.kind = TransferKind::kMove;
    transfer.urgency = evicts ? Class::kDemand : Class::kIdle;
    transfer.from = from;
    transfer.to = to;
    if (evicts) {
        replica(block, from).evicting = true;
        ++coming_[from];
    }
    start_transfer(transfer, evicts, true, out);
}

void Core::queue_clean(BlockId block)
{
    if (blocks_[block].queued_clean) return;
    blocks_[block].queued_clean = true;
    clean_queue_.push_back(block);
}

// Early write-back, so that what leaves later is a duplicate and leaves at once: first what the
// program said it does not need for long, then the coldest of a place that has little room.
void Core::pump_write_back(Commands &out)
{
    const PlaceId last = static_cast<PlaceId>(places() - 1);
    if (!is_nvme(last) || !exists(last)) return;
    const auto clean = [&](BlockId block, PlaceId place) {
        const Policy &policy = packs_[blocks_[block].pack].key.policy;
        if (policy.home != last || !(policy.allowed & (1u << last))) return false;
        if (!replica(block, place).valid || is_duplicate(block, place)) return false;
        if (blocks_[block].writers || !may_leave(block, place, nullptr)) return false;
        if (replica(block, last).doomed || replica(block, last).filling) return false;
        start_write_back(block, place, last, false, out);
        return true;
    };
    while (write_backs_ < config_.writebacks_max && !clean_queue_.empty()) {
        const BlockId block = clean_queue_.front();
        clean_queue_.pop_front();
        blocks_[block].queued_clean = false;
        if (packs_[blocks_[block].pack].dead || packs_[blocks_[block].pack].blocks == 0) continue;
        for (PlaceId place = 0; place < last; ++place) {
            if (replica(block, place).valid && clean(block, place)) break;
        }
    }
    for (PlaceId place = 0; place < last; ++place) {
        const uint32_t reserve = arenas_[place].slots() / 8;
        uint32_t ready = arenas_[place].free() + coming_[place];
        uint32_t visited = 0;
        for (BlockId block = coldest_[place];
             block != kNone && ready < reserve && write_backs_ < config_.writebacks_max &&
             visited < kCandidatesMax;
             block = replica(block, place).hotter, ++visited) {
            if (clean(block, place) || may_leave(block, place, nullptr)) ++ready;
        }
    }
}

uint64_t Core::evict(TensorId id, PlaceId place, Commands &out)
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    uint64_t left = 0;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        if (replica(block, place).slot == kNoSlot) continue;
        start_eviction(block, place, out);
        left += replica(block, place).slot != kNoSlot;
    }
    advance(out);
    return left;
}

uint64_t Core::write_back_all(Commands &out)
{
    uint64_t left = 0;
    const PlaceId last = static_cast<PlaceId>(places() - 1);
    if (!is_nvme(last) || !exists(last)) return 0;
    for (PlaceId place = 0; place < last; ++place) {
        for (BlockId block = coldest_[place]; block != kNone; block = replica(block, place).hotter) {
            if (!replica(block, place).valid || is_duplicate(block, place)) continue;
            if (blocks_[block].write_failed) continue;
            ++left;
            queue_clean(block);
        }
    }
    advance(out);
    return left;
}

void Core::forgive()
{
    for (Block &block : blocks_) block.write_failed = false;
}

}  // namespace stepwell::residency
