// SPDX-License-Identifier: Apache-2.0
// What leaves a place, and where its bytes go: the choice of victims, eviction, early write-back.
// Nothing leaves that is pinned, held, or the last that knows its bytes.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::residency {
namespace {

constexpr uint32_t kRecencyVisitsMax = 4096;  // of the list of recency, per choice
constexpr uint32_t kReserveShare = 8;         // of a place: less free than that is little room
constexpr uint32_t kCandidatesMax = 64;       // compared by their next use

}  // namespace

// The nvme place has room for what it is promised to and for nothing else.
bool Core::may_rest(const Pack &pack, PlaceId place) const
{
    if (!is_open(place) || !(pack.key.policy.allowed & (1u << place))) return false;
    return !is_nvme(place) || pack.promised == place;
}

// The policy knows a tier behind this one.
bool Core::can_drain(const Pack &pack, PlaceId place) const
{
    for (PlaceId to = static_cast<PlaceId>(place + 1); to < places(); ++to) {
        const bool behind = config_.places[to].tier > config_.places[place].tier;
        if (behind && may_rest(pack, to)) return true;
    }
    return false;
}

bool Core::may_leave(BlockId block, PlaceId place, const Fetch *fetch) const
{
    return is_movable(block, place, fetch) && !is_pinned(block, place);
}

bool Core::is_movable(BlockId block, PlaceId place, const Fetch *fetch) const
{
    const Replica &here = replica(block, place);
    const Block &at = blocks_[block];
    const Pack &pack = packs_[at.pack];
    if (here.slot == kNoSlot || here.pins || here.holds || here.reads || here.filling) return false;
    if (here.doomed || here.evicting || pack.agreed || pack.pinned_home == place) return false;
    if (fetch && is_own(block, place, *fetch)) return false;
    if (fetch && here.fresh && is_blind_hint(*fetch)) return false;
    if (!is_duplicate(block, place) && (at.write_failed || !can_drain(pack, place))) return false;
    return !fetch || !is_needed_before(block, *fetch);
}

// Nobody knows when its bytes are needed: it leaves what other hints have brought alone.
bool Core::is_blind_hint(const Fetch &fetch)
{
    return (fetch.asked.flags & kFetchPrefetch) != 0 && fetch.needed_in == kNever;
}

uint64_t Core::next_use(BlockId block) const
{
    // Thousands may share a block; they are created together and used together.
    constexpr size_t kAskedMax = 32;
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.asked_at == event_) return pack.next_use;
    pack.asked_at = event_;
    pack.next_use = kNever;
    for (size_t i = 0; i < std::min(pack.tensors.size(), kAskedMax); ++i) {
        pack.next_use = std::min(pack.next_use, victims_->next_use(pack.tensors[i]));
    }
    return pack.next_use;
}

BlockId Core::pick_victim(PlaceId place, const Fetch &fetch)
{
    if (has_plan_) {
        const BlockId planned = pick_planned(place, fetch);
        if (planned != kNone) return planned;
    }
    BlockId best = kNone;
    std::tuple<int, int64_t, double, uint64_t> best_score{};
    uint32_t visited = 0;
    uint32_t candidates = 0;
    BlockId block = coldest_[place];
    for (; block != kNone && visited < kRecencyVisitsMax;
         block = replica(block, place).hotter, ++visited) {
        if (!is_movable(block, place, &fetch)) continue;
        const Rank rank = rank_of(blocks_[block].pack, place);
        const std::tuple<int, int64_t, double, uint64_t> score{
            -rank.stays, -static_cast<int64_t>(rank.priority), -rank.score, next_use(block)};
        // Gates last: of a block that many tensors share they are many.
        if ((best == kNone || score > best_score) && !is_pinned(block, place)) {
            best = block;
            best_score = score;
        }
        if (++candidates >= kCandidatesMax) break;
    }
    if (visited > candidates + kCandidatesMax) {
        heat_colder(block, place, [&](BlockId at) { return stays(at, place); });
    }
    const bool nobody_waits = (fetch.asked.flags & kFetchPrefetch) != 0;
    if (best == kNone && !nobody_waits) best = pick_behind(block, place, fetch);
    return scored_ && !has_plan_ ? pick_ranked(place, fetch, best) : best;
}

// A hint that waits for room would look through the same blocks after each transfer. What is
// needed no sooner finds nothing either, until something changes that is no transfer's end.
bool Core::is_barren(PlaceId place, const Fetch &fetch) const
{
    const Barren &known = barren_[place];
    return known.known && known.until >= event_ && (fetch.asked.flags & kFetchPrefetch) != 0 &&
           fetch.needed_in >= known.needed_in;
}

void Core::note_barren(PlaceId place, const Fetch &fetch)
{
    if ((fetch.asked.flags & kFetchPrefetch) == 0) return;
    // Pins in gates end without us.
    barren_[place] = {true, fetch.needed_in, pins_seen_ ? event_ : kNever};
}

// The block may be free to leave now.
void Core::stir(BlockId block, PlaceId place)
{
    Barren &known = barren_[place];
    if (!known.known || !is_movable(block, place, nullptr)) return;
    const uint64_t next = next_use(block);
    known.known = next != kNever && next <= known.needed_in;
}

// The last that knows its bytes, where the policy knows no tier behind this one: until it is used.
bool Core::stays(BlockId block, PlaceId place) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.agreed || pack.pinned_home == place) return true;
    return !can_drain(pack, place) && !is_duplicate(block, place);
}

// The first from `block` on that may leave. All colder ones that cannot are in use now.
BlockId Core::pick_behind(BlockId block, PlaceId place, const Fetch &fetch)
{
    while (block != kNone && !may_leave(block, place, &fetch)) block = replica(block, place).hotter;
    if (block == kNone) return kNone;
    heat_colder(block, place, [&](BlockId at) { return !may_leave(at, place, nullptr); });
    return block;
}

// Of two that rest at the place, by what the program scored or the plan knows.
bool Core::leaves_before(BlockId block, BlockId other, PlaceId place) const
{
    const Pack &mine = packs_[blocks_[block].pack];
    const Pack &others = packs_[blocks_[other].pack];
    if (mine.score[place] != others.score[place]) return mine.score[place] < others.score[place];
    if (has_plan_) return mine.worth[place] <= others.worth[place];
    return next_use(block) >= next_use(other);
}

// Where the newest bytes go when they leave `place`; kNoPlace when room must be made there first.
PlaceId Core::drain_place(BlockId block, PlaceId place, Commands &out)
{
    const Pack &pack = packs_[blocks_[block].pack];
    const Policy &policy = pack.key.policy;
    const PlaceId last = static_cast<PlaceId>(places() - 1);
    const bool to_nvme = is_nvme(last) && may_rest(pack, last) && last != place;
    for (PlaceId to = static_cast<PlaceId>(place + 1); to < places(); ++to) {
        if (config_.places[to].tier != Tier::kHost || !may_rest(pack, to)) continue;
        const Replica &there = replica(block, to);
        if (there.doomed || there.filling) continue;
        if (to_nvme && policy.retention == Retention::kStream) continue;
        if (there.slot != kNoSlot || arenas_[to].free() > 0) return to;
        const Fetch nobody;
        const BlockId colder = pick_victim(to, nobody);
        if (colder != kNone && (!to_nvme || leaves_before(colder, block, to))) {
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
    // From the arena: an update that comes meanwhile must be able to hide it.
    if (!packs_[blocks_[block].pack].shared) hide(block, from);
    Replica &there = replica(block, to);
    if (there.slot == kNoSlot) {
        there.slot = arenas_[to].take(block, false, neighbour_slot(block, to));
        count_in(block, to);
    }
    there.filling = true;
    hide(block, to);
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
    may_write_back_ = true;
    clean_queue_.push_back(block);
}

// What rests elsewhere stays off the disk as long as there is room for it: a gradient may be summed
// into many times before it is used up.
void Core::clean_soon(BlockId block, PlaceId place)
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.advice == Advice::kHot) return;
    const bool rests_below = is_nvme(pack.key.policy.home);
    const Arena &arena = arenas_[place];
    if (rests_below || arena.free() + coming_[place] < arena.budget() / kReserveShare) {
        queue_clean(block);
    }
}

// Unasked, so nothing of what is hot: it would be written again, or is gone soon.
bool Core::clean_early(BlockId block, PlaceId place, Commands &out)
{
    return packs_[blocks_[block].pack].advice != Advice::kHot && clean(block, place, out);
}

// Starts the write-back of a block that stays; false where there is nothing to write, or not now.
bool Core::clean(BlockId block, PlaceId place, Commands &out)
{
    const PlaceId last = static_cast<PlaceId>(places() - 1);
    if (!may_rest(packs_[blocks_[block].pack], last)) return false;
    if (!replica(block, place).valid || is_duplicate(block, place)) return false;
    if (blocks_[block].writers || !may_leave(block, place, nullptr)) return false;
    if (replica(block, last).doomed || replica(block, last).filling) return false;
    const bool seen = replica(block, place).mapped && guards(block, place);
    if (seen && !packs_[blocks_[block].pack].shared && !close_gates(block, place)) return false;
    start_write_back(block, place, last, false, out);
    return true;
}

// Early write-back, so that what leaves later is a duplicate and leaves at once: first what the
// program said it does not need for long, then the coldest of a place that has little room.
void Core::pump_write_back(Commands &out)
{
    const PlaceId last = static_cast<PlaceId>(places() - 1);
    if (!may_write_back_ || !is_nvme(last) || !exists(last)) return;
    may_write_back_ = false;
    while (write_backs_ < config_.writebacks_max && !clean_queue_.empty()) {
        const BlockId block = clean_queue_.front();
        clean_queue_.pop_front();
        blocks_[block].queued_clean = false;
        if (packs_[blocks_[block].pack].dead || packs_[blocks_[block].pack].blocks == 0) continue;
        for (PlaceId place = 0; place < last; ++place) {
            if (replica(block, place).valid && clean(block, place, out)) break;
        }
    }
    for (PlaceId place = 0; place < last; ++place) {
        const uint32_t reserve = arenas_[place].budget() / kReserveShare;
        if (has_plan_) {
            clean_planned(place, reserve, out);
        } else {
            clean_coldest(place, reserve, out);
        }
    }
}

// Unasked only what rests there: other blocks may be written many times before they go.
void Core::clean_coldest(PlaceId place, uint32_t reserve, Commands &out)
{
    uint32_t ready = arenas_[place].free() + coming_[place];
    uint32_t visited = 0;
    for (BlockId block = coldest_[place];
         block != kNone && ready < reserve && write_backs_ < config_.writebacks_max &&
         visited < kCandidatesMax;
         block = replica(block, place).hotter, ++visited) {
        const bool rests = packs_[blocks_[block].pack].key.policy.home == places() - 1;
        if ((rests && clean_early(block, place, out)) || may_leave(block, place, nullptr)) ++ready;
    }
}

// What the plan lets leave next, whether it is cold or not. Some at a time: who looks after each
// write-back that ends looks at the same blocks again and again.
void Core::clean_planned(PlaceId place, uint32_t reserve, Commands &out)
{
    if (write_backs_ > config_.writebacks_max / 2) return;
    uint32_t ready = arenas_[place].free() + coming_[place];
    uint32_t visited = 0;
    for (const Rank &rank : ranked_[place]) {
        if (rank.worth > 0) return;
        const BlockId first = packs_[rank.pack].first;
        const bool rests = packs_[rank.pack].key.policy.home == places() - 1;
        if (is_pinned_by_gates(packs_[rank.pack], place)) continue;
        for (uint32_t index = find_end(rank.pack, place); index > 0; --index) {
            if (ready >= reserve || write_backs_ >= config_.writebacks_max) return;
            if (++visited > kCandidatesMax) return;
            const BlockId block = first + index - 1;
            if (!is_movable(block, place, nullptr)) continue;
            ++ready;
            if (rests && !is_duplicate(block, place)) clean_early(block, place, out);
        }
    }
}

uint64_t Core::evict(TensorId id, PlaceId place, Commands &out)
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    uint64_t left = 0;
    ++event_;
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
        for (BlockId block = coldest_[place]; block != kNone;
             block = replica(block, place).hotter) {
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
    for (TensorId id = 0; id < tensors_.size(); ++id) {
        Tensor &tensor = tensors_[id];
        if (tensor.contents == Contents::kValid) tensor.cause = Status();
    }
    may_write_back_ = true;
}

}  // namespace stepwell::residency
