// SPDX-License-Identifier: Apache-2.0
// The choice of victims. Nothing leaves that is pinned, held, or the last that knows its bytes.
#include "lib/residency/victims.h"

#include <tuple>

namespace stepwell::residency {
namespace {

constexpr uint32_t kRecencyVisitsMax = 4096;  // of the list of recency, per choice
constexpr uint32_t kCandidatesMax = 64;       // compared by their next use
constexpr uint32_t kVisitedMax = 4096;        // blocks looked at in an order, per choice

}  // namespace

// The nvme place stores only packs that it is promised to.
bool Victims::may_rest(const Pack &pack, PlaceId place) const
{
    if (!places_.is_open(place) || !(pack.key.policy.allowed & (1u << place))) return false;
    return !places_.is_nvme(place) || pack.promised == place;
}

// To the nearer tier, or the other device, where its room is promised and free now.
bool Victims::returns(BlockId block, PlaceId place) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    const PlaceId to = pack.promised;
    if (to == place || to == kNoPlace) return false;
    if (places_[to].tier > places_[place].tier || !may_rest(pack, to)) return false;
    const Replica &there = blocks_.replica(block, to);
    return !there.doomed && !there.filling &&
           (there.slot != kNoSlot || places_.arena(to).free() > 0);
}

// The policy allows a farther tier, or it has its room elsewhere.
bool Victims::can_drain(BlockId block, const Pack &pack, PlaceId place) const
{
    for (PlaceId to = static_cast<PlaceId>(place + 1); to < places_.count(); ++to) {
        const bool behind = places_[to].tier > places_[place].tier;
        if (behind && may_rest(pack, to)) return true;
    }
    return returns(block, place);
}

bool Victims::may_leave(BlockId block, PlaceId place, const Fetch *fetch) const
{
    return is_movable(block, place, fetch) && !gates_.is_pinned(block, place);
}

bool Victims::is_movable(BlockId block, PlaceId place, const Fetch *fetch) const
{
    const Replica &here = blocks_.replica(block, place);
    const Block &at = blocks_[block];
    const Pack &pack = packs_[at.pack];
    if (here.slot == kNoSlot || here.pins || here.holds || here.reads || here.filling) return false;
    if (here.doomed || here.evicting || pack.agreed || pack.pinned_home == place) return false;
    if (fetch && blocks_.is_own(block, place, *fetch)) return false;
    if (fetch && here.fresh && is_blind_hint(*fetch)) return false;
    const bool drains = !at.write_failed && can_drain(block, pack, place);
    if (!drains && !packs_.is_duplicate(block, place)) return false;
    return !fetch || !order_.is_needed_before(block, *fetch);
}

BlockId Victims::pick(PlaceId place, const Fetch &fetch)
{
    if (order_.has_plan()) {
        const BlockId planned = pick_planned(place, fetch);
        if (planned != kNone) return planned;
    }
    BlockId best = kNone;
    std::tuple<int, int64_t, double, uint64_t> best_score{};
    uint32_t visited = 0;
    uint32_t candidates = 0;
    BlockId block = recency_.coldest(place);
    for (; block != kNone && visited < kRecencyVisitsMax;
         block = blocks_.replica(block, place).hotter, ++visited) {
        if (!is_movable(block, place, &fetch)) continue;
        const Rank rank = order_.rank_of(blocks_[block].pack, place);
        const std::tuple<int, int64_t, double, uint64_t> score{
            -rank.stays, -static_cast<int64_t>(rank.priority), -rank.score, order_.next_use(block)};
        // Gates last: a block that many tensors share has many.
        if ((best == kNone || score > best_score) && !gates_.is_pinned(block, place)) {
            best = block;
            best_score = score;
        }
        if (++candidates >= kCandidatesMax) break;
    }
    if (visited > candidates + kCandidatesMax) {
        recency_.heat_colder(block, place, [&](BlockId at) { return stays(at, place); });
    }
    const bool nobody_waits = (fetch.asked.flags & kFetchPrefetch) != 0;
    if (best == kNone && !nobody_waits) best = pick_behind(block, place, fetch);
    return order_.is_scored() && !order_.has_plan() ? pick_ranked(place, fetch, best) : best;
}

// The block may be able to leave now.
void Victims::note_evictable(BlockId block, PlaceId place)
{
    if (order_.has_no_victims(place) && is_movable(block, place, nullptr)) {
        order_.note_movable(block, place);
    }
}

// It holds the only copy of its bytes and the policy allows no farther tier: it will not leave
// until it is used.
bool Victims::stays(BlockId block, PlaceId place) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.agreed || pack.pinned_home == place) return true;
    return !can_drain(block, pack, place) && !packs_.is_duplicate(block, place);
}

// The first from `block` on that may leave. Colder ones that may not are in use now.
BlockId Victims::pick_behind(BlockId block, PlaceId place, const Fetch &fetch)
{
    while (block != kNone && !may_leave(block, place, &fetch))
        block = blocks_.replica(block, place).hotter;
    if (block == kNone) return kNone;
    recency_.heat_colder(block, place, [&](BlockId at) { return !may_leave(at, place, nullptr); });
    return block;
}

// Which of two blocks at the place leaves first, by score, plan or next use.
bool Victims::leaves_before(BlockId block, BlockId other, PlaceId place) const
{
    const Pack &mine = packs_[blocks_[block].pack];
    const Pack &others = packs_[blocks_[other].pack];
    if (mine.score[place] != others.score[place]) return mine.score[place] < others.score[place];
    if (order_.has_plan()) return mine.worth[place] <= others.worth[place];
    return order_.next_use(block) >= order_.next_use(other);
}

// The last block that may leave of the pack that is worth least; a clean one instead of a dirty one
// if it is worth little more.
BlockId Victims::pick_planned(PlaceId place, const Fetch &fetch) const
{
    const double write_back_worth = order_.policy().write_back_worth();
    BlockId best = kNone;
    Rank found;
    uint32_t visited = 0;
    for (const Rank &rank : order_.ranked(place)) {
        const bool worth_more = rank.worth > found.worth + write_back_worth;
        if (best != kNone && (rank.rules() != found.rules() || worth_more)) break;
        const BlockId first = packs_[rank.pack].first;
        if (gates_.is_pinned_by_gates(packs_[rank.pack], place)) continue;  // none of it may leave
        for (uint32_t index = order_.find_end(rank.pack, place); index > 0; --index) {
            if (++visited > kVisitedMax) return best;
            const BlockId block = first + index - 1;
            if (!may_leave(block, place, &fetch)) continue;
            if (write_back_worth <= 0 || packs_.is_duplicate(block, place)) return block;
            if (best == kNone) found = rank;
            if (best == kNone) best = block;
        }
    }
    return best;
}

// `best` was chosen by next use and recency. A block of a lower rank is taken instead; among equals
// `best` stays the choice. The end of a pack leaves first, so that the next read from its beginning
// finds blocks there.
BlockId Victims::pick_ranked(PlaceId place, const Fetch &fetch, BlockId best) const
{
    const Rank found = best == kNone ? Rank{} : order_.rank_of(blocks_[best].pack, place);
    uint32_t visited = 0;
    for (const Rank &rank : order_.ranked(place)) {
        if (best != kNone && !(rank.reasons() < found.reasons())) break;
        const BlockId first = packs_[rank.pack].first;
        if (gates_.is_pinned_by_gates(packs_[rank.pack], place)) continue;  // none of it may leave
        for (uint32_t index = order_.find_end(rank.pack, place); index > 0; --index) {
            if (++visited > kVisitedMax) return best;
            if (may_leave(first + index - 1, place, &fetch)) return first + index - 1;
        }
    }
    return best;
}

}  // namespace stepwell::residency
