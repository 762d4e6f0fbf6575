// SPDX-License-Identifier: Apache-2.0
// Scores of a policy of the program, and the worth that the plan gives: what was said, and the
// order of a place's packs by it. Both choose among what may leave; they let nothing leave that may
// not.
#include "lib/residency/victim_order.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace stepwell::residency {

VictimOrder::VictimOrder(const Places &places, const TensorTable &tensors, const BlockTable &blocks,
                         PackTable &packs, const Gates &gates)
    : places_(places), tensors_(tensors), blocks_(blocks), packs_(packs), gates_(gates)
{
    spare_.reserve(kSpareRanks);
}

uint64_t VictimOrder::next_use(BlockId block) const
{
    // Thousands may share a block; they are created together and used together.
    constexpr size_t kAskedMax = 32;
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.next_use.asked_at == event_) return pack.next_use.in;
    pack.next_use = {kNever, event_};
    for (size_t i = 0; i < std::min(pack.tensors.size(), kAskedMax); ++i) {
        pack.next_use.in = std::min(pack.next_use.in, policy_->next_use(pack.tensors[i]));
    }
    return pack.next_use.in;
}

// A hint that waits for room would search the same blocks after every transfer. A hint that needs
// its bytes no sooner finds nothing either, until an event other than the end of a transfer.
bool VictimOrder::has_no_victims(PlaceId place, const Fetch &fetch) const
{
    const NoVictims &known = no_victims_[place];
    return known.known && known.until >= event_ && (fetch.asked.flags & kFetchPrefetch) != 0 &&
           fetch.needed_in >= known.needed_in;
}

void VictimOrder::note_no_victims(PlaceId place, const Fetch &fetch)
{
    if ((fetch.asked.flags & kFetchPrefetch) == 0) return;
    // Pins in gates end without an event, so the result holds for this event only.
    no_victims_[place] = {true, fetch.needed_in, gates_.pins_seen() ? event_ : kNever};
}

// The block can be evicted now: the place has a victim again for hints that may take its room.
void VictimOrder::note_movable(BlockId block, PlaceId place)
{
    NoVictims &known = no_victims_[place];
    const uint64_t next = next_use(block);
    known.known = next != kNever && next <= known.needed_in;
}

void VictimOrder::set_policy(const VictimPolicy *policy)
{
    policy_ = policy ? policy : &recency_only_;
    has_plan_ = policy_->plans();
    order_anew();
}

Rank VictimOrder::rank_of(PackId id, PlaceId place) const
{
    const Pack &pack = packs_[id];
    const Policy &policy = pack.key.policy;
    const bool first = policy.retention == Retention::kStream || pack.advice == Advice::kCold;
    const bool last = policy.retention == Retention::kKeep || pack.advice == Advice::kHot;
    return {first ? 0 : last ? 2 : 1, policy.priority, pack.score[place], pack.worth[place], id};
}

// If there is no memory for its node, a pack leaves by recency alone.
void VictimOrder::rank(PackId id, PlaceId place)
{
    if (!scored_ && !has_plan_) return;
    if (places_.is_nvme(place) || packs_[id].agreed || packs_[id].resident[place] == 0) return;
    if (!spare_.empty()) {
        spare_.back().value() = rank_of(id, place);
        ranked_[place].insert(std::move(spare_.back()));
        spare_.pop_back();
        return;
    }
    try {
        ranked_[place].insert(rank_of(id, place));
    } catch (const std::bad_alloc &) {
        return;
    }
}

void VictimOrder::unrank(PackId id, PlaceId place)
{
    if (!scored_ && !has_plan_) return;
    auto left = ranked_[place].extract(rank_of(id, place));
    if (left.empty() || spare_.size() >= kSpareRanks) return;
    spare_.push_back(std::move(left));  // within its capacity: allocates nothing
}

void VictimOrder::count_in(BlockId block, PlaceId place)
{
    const PackId id = blocks_[block].pack;
    uint32_t &end = packs_[id].end[place];
    end = std::max(end, blocks_[block].index + 1);
    if (++packs_[id].resident[place] == 1) rank(id, place);
}

void VictimOrder::count_out(PackId id, PlaceId place)
{
    STW_ASSERT(packs_[id].resident[place] > 0);
    if (--packs_[id].resident[place] == 0) unrank(id, place);
}

// A tensor without a score joins the block, and counts as 0.
void VictimOrder::note_unscored(PackId id)
{
    if (!scored_) return;
    rerank(id, [&] {
        for (double &score : packs_[id].score) score = std::max(score, 0.0);
    });
}

PackId VictimOrder::candidates(PlaceId place, PackId from, uint64_t work_max,
                               std::vector<Candidate> *out) const
{
    uint64_t work = 0;
    for (PackId id = from; id < packs_.size(); ++id) {
        if (work >= work_max) return id;
        ++work;
        const Pack &pack = packs_[id];
        const bool may_be_there = (pack.key.policy.allowed & (1u << place)) != 0;
        if (pack.dead || pack.agreed || (!may_be_there && pack.resident[place] == 0)) continue;
        for (const TensorId at : pack.tensors) {
            const Tensor &tensor = tensors_[at];
            Candidate candidate;
            candidate.tensor = at;
            candidate.next_use = policy_->next_use(at);
            candidate.shares = pack.tensors.size() > 1;
            candidate.pinned = tensors_.door(at, place).gate.pins() > 0;
            ++work;
            if (pack.resident[place] > 0) {
                const BlockRange range = packs_.blocks_of(tensor, 0, tensor.spec.bytes);
                for (uint32_t index = range.first; index < range.second; ++index, ++work) {
                    look_at(pack.first + index, place, tensor, &candidate);
                }
            }
            out->push_back(candidate);
        }
    }
    return kNone;
}

// Adds what the block holds of the tensor.
void VictimOrder::look_at(BlockId block, PlaceId place, const Tensor &tensor,
                          Candidate *candidate) const
{
    const Replica &here = blocks_.replica(block, place);
    if (here.slot == kNoSlot) return;
    candidate->there = true;
    candidate->pinned |= here.pins > 0;
    if (!here.valid || here.doomed || tensor.contents == Contents::kEmpty) return;
    const uint64_t begin = uint64_t{blocks_[block].index} * places_.block_bytes();
    const uint64_t first = std::max(begin, tensor.offset);
    const uint64_t end = std::min(begin + places_.block_bytes(), tensor.offset + tensor.spec.bytes);
    candidate->bytes += end - first;
    if (blocks_.block_state(block, place) == BlockState::kDirty)
        candidate->dirty_bytes += end - first;
}

void VictimOrder::score(PlaceId place, const Score *scores, size_t n)
{
    if (!scored_) {
        scored_ = true;
        order_anew();
    }
    for (size_t i = 0; i < n;) {
        const PackId id = tensors_[scores[i].tensor].pack;
        double highest = -std::numeric_limits<double>::infinity();
        size_t count = 0;
        for (; i < n && tensors_[scores[i].tensor].pack == id; ++i, ++count) {
            STW_ASSERT(scores[i].score == scores[i].score);
            highest = std::max(highest, scores[i].score);
        }
        if (count < packs_[id].tensors.size()) highest = std::max(highest, 0.0);
        if (packs_[id].score[place] == highest) continue;
        unrank(id, place);
        packs_[id].score[place] = highest;
        rank(id, place);
    }
}

void VictimOrder::forget_scores()
{
    for (PackId id = 0; id < packs_.size(); ++id) packs_[id].score = {};
    scored_ = false;
    order_anew();
}

void VictimOrder::replan()
{
    if (has_plan_) order_anew();
}

// Rebuilds the order from scores and plan; without either it is empty.
void VictimOrder::order_anew()
{
    no_victims_ = {};
    for (std::set<Rank> &order : ranked_) order.clear();
    for (PackId id = 0; id < packs_.size(); ++id) {
        for (PlaceId place = 0; place < places_.count(); ++place) {
            packs_[id].worth[place] = has_plan_ ? worth_of(packs_[id], place) : 0;
            rank(id, place);
        }
    }
}

// A shared block is worth as much as its most valuable tensor. Thousands may share it; they are
// created and used together.
double VictimOrder::worth_of(const Pack &pack, PlaceId place) const
{
    constexpr size_t kAskedMax = 32;
    if (pack.tensors.empty()) return 0;
    double most = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < std::min(pack.tensors.size(), kAskedMax); ++i) {
        most = std::max(most, policy_->worth(pack.tensors[i], place));
    }
    STW_ASSERT(most == most);
    return most;
}

// The pack was created or used, so its worth may have changed.
void VictimOrder::look_at_plan(PackId id)
{
    if (!has_plan_) return;
    Pack &pack = packs_[id];
    for (PlaceId place = 0; place < places_.count(); ++place) {
        if (!places_.exists(place) || places_.is_nvme(place)) continue;
        const double worth = worth_of(pack, place);
        if (worth == pack.worth[place]) continue;
        // Its node is reused, so that no allocation can fail.
        auto found = ranked_[place].extract(rank_of(id, place));
        pack.worth[place] = worth;
        if (found.empty()) continue;
        found.value() = rank_of(id, place);
        ranked_[place].insert(std::move(found));
    }
}

// The index after the last block of the pack at the place.
uint32_t VictimOrder::find_end(PackId id, PlaceId place) const
{
    const Pack &pack = packs_[id];
    uint32_t &end = pack.end[place];
    while (end > 0 && blocks_.replica(pack.first + end - 1, place).slot == kNoSlot) --end;
    return end;
}

// Every pack with blocks at a place is in its order once, with its present rank.
std::string VictimOrder::check() const
{
    for (PlaceId place = 0; place < places_.count(); ++place) {
        size_t expected = 0;
        for (PackId id = 0; id < packs_.size(); ++id) {
            if ((!scored_ && !has_plan_) || places_.is_nvme(place)) break;
            if (packs_[id].agreed || packs_[id].resident[place] == 0) continue;
            ++expected;
            if (ranked_[place].count(rank_of(id, place)) == 0) {
                return format_text("pack %u at place %u: not ranked", id, place);
            }
        }
        if (ranked_[place].size() != expected) return format_text("place %u: ranks", place);
    }
    return "";
}

}  // namespace stepwell::residency
