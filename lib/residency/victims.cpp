// SPDX-License-Identifier: Apache-2.0
// The choice of victims. Nothing leaves that is pinned, held, or the last that knows its bytes.
#include "lib/residency/victims.h"

#include "lib/support/status.h"

#include <algorithm>

namespace stepwell::residency {
namespace {

constexpr int64_t kRecencyVisitsMax = 4096;  // of the list of recency, per choice
constexpr uint32_t kVisitedMax = 4096;       // blocks looked at in an order, per choice

}  // namespace

// No farther than where its room is promised: others have what is there. The nvme place stores only
// packs that it is promised to.
bool Victims::may_rest(const Pack &pack, PlaceId place) const
{
    if (!places_.is_open(place) || !(pack.key.policy.allowed & (1u << place))) return false;
    if (places_.is_nvme(place)) return pack.promised == place;
    return pack.promised == kNoPlace || places_[place].tier <= places_[pack.promised].tier;
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
    if (here.doomed || here.evicting || pack.agreed || packs_.never_leaves(block, place))
        return false;
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
    Search &search = searches_[place];
    const bool anew = is_over(search, place, fetch);
    if (anew) begin(search, place, fetch);
    BlockId best = first_of(search, place, fetch);
    if (best == kNone && !anew) {
        begin(search, place, fetch);
        best = first_of(search, place, fetch);
    }
    const bool nobody_waits = (fetch.asked.flags & kFetchPrefetch) != 0;
    if (best == kNone && search.next == kNone) return kNone;  // it has seen them all
    if (best == kNone && !nobody_waits) best = pick_behind(search.next, place, fetch);
    return order_.is_scored() && !order_.has_plan() ? pick_ranked(place, fetch, best) : best;
}

void Victims::begin(Search &search, PlaceId place, const Fetch &fetch)
{
    search.event = order_.event();
    search.fetch = fetch.id;
    search.moves = recency_.moves(place);
    search.next = recency_.coldest_awake(place);
    search.visited = search.taken = 0;
    search.count = 0;
}

bool Victims::is_over(const Search &search, PlaceId place, const Fetch &fetch) const
{
    if (search.event != order_.event() || search.fetch != fetch.id) return true;
    if (search.moves != recency_.moves(place)) return true;
    return search.next != kNone && !blocks_.replica(search.next, place).listed;
}

void Victims::fill(Search &search, PlaceId place, const Fetch &fetch)
{
    const int64_t visits_max = search.visited + kRecencyVisitsMax;
    while (search.next != kNone && search.count < kCandidatesMax && search.visited < visits_max) {
        const BlockId block = search.next;
        search.next = blocks_.replica(block, place).hotter;
        ++search.visited;
        if (!is_movable(block, place, &fetch)) {
            if (rests(block, place)) recency_.rest(block, place);
            continue;
        }
        const Rank rank = order_.rank_of(blocks_[block].pack, place);
        const Score score{-rank.stays, -int64_t{rank.priority}, -rank.score, order_.next_use(block),
                          -search.taken};
        search.heap[search.count] = {score, block};
        std::push_heap(search.heap.begin(), search.heap.begin() + ++search.count);
        ++search.taken;
    }
    if (search.visited > search.taken + kCandidatesMax) {
        recency_.heat_colder(search.next, place, [&](BlockId at) { return stays(at, place); });
        search.visited = search.taken;
    }
    search.moves = recency_.moves(place);
}

// The candidate that leaves first. It stays one until it has left: another call returns it again.
BlockId Victims::first_of(Search &search, PlaceId place, const Fetch &fetch)
{
    fill(search, place, fetch);
    while (search.count > 0) {
        const BlockId first = search.heap.front().block;
        // Gates last: a block that many tensors share has many.
        if (is_movable(first, place, &fetch) && !gates_.is_pinned(first, place)) return first;
        std::pop_heap(search.heap.begin(), search.heap.begin() + search.count--);
        fill(search, place, fetch);
    }
    return kNone;
}

// The block may be able to leave now.
void Victims::note_evictable(BlockId block, PlaceId place)
{
    if (order_.has_no_victims(place) && is_movable(block, place, nullptr)) {
        order_.note_movable(block, place);
    }
}

// Whatever there is room for, it cannot leave before it has another copy, or loses its contents, or
// its policy or the budget of a place changes. RecencyLists::wake() says so.
bool Victims::rests(BlockId block, PlaceId place) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.agreed || packs_.never_leaves(block, place)) return true;
    if (pack.with_contents == 0 || (pack.promised != place && pack.promised != kNoPlace))
        return false;
    return !can_drain(block, pack, place) && !packs_.is_duplicate(block, place);
}

std::string Victims::check() const
{
    for (PlaceId place = 0; place < places_.count(); ++place) {
        for (BlockId at = recency_.coldest(place); at != recency_.coldest_awake(place);
             at = blocks_.replica(at, place).hotter) {
            if (at == kNone || !blocks_.replica(at, place).rests || !rests(at, place))
                return format_text("block %u at place %u: rests", at, place);
        }
        for (BlockId at = recency_.coldest_awake(place); at != kNone;
             at = blocks_.replica(at, place).hotter) {
            if (blocks_.replica(at, place).rests)
                return format_text("block %u at place %u: awake", at, place);
        }
    }
    return "";
}

// It holds the only copy of its bytes and the policy allows no farther tier: it will not leave
// until it is used.
bool Victims::stays(BlockId block, PlaceId place) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.agreed || packs_.never_leaves(block, place)) return true;
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
