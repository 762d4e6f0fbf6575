// SPDX-License-Identifier: Apache-2.0
// Scores of a policy of the program, and the worth that the plan gives: what is told, and the order
// of a place's packs by what was answered. Both choose among what may leave; they let nothing leave
// that may not.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <limits>
#include <new>

namespace stepwell::residency {
namespace {

constexpr uint32_t kVisitedMax = 4096;  // blocks looked at, per choice

}  // namespace

Rank Core::rank_of(PackId id, PlaceId place) const
{
    const Pack &pack = packs_[id];
    const Policy &policy = pack.key.policy;
    const bool first = policy.retention == Retention::kStream || pack.advice == Advice::kCold;
    const bool last = policy.retention == Retention::kKeep || pack.advice == Advice::kHot;
    return {first ? 0 : last ? 2 : 1, policy.priority, pack.score[place], pack.worth[place], id};
}

// Without memory for its place in the order a pack leaves by recency alone.
void Core::rank(PackId id, PlaceId place)
{
    if (!scored_ && !has_plan_) return;
    if (is_nvme(place) || packs_[id].agreed || packs_[id].resident[place] == 0) return;
    if (!spare_ranks_.empty()) {
        spare_ranks_.back().value() = rank_of(id, place);
        ranked_[place].insert(std::move(spare_ranks_.back()));
        spare_ranks_.pop_back();
        return;
    }
    try {
        ranked_[place].insert(rank_of(id, place));
    } catch (const std::bad_alloc &) {
        return;
    }
}

void Core::unrank(PackId id, PlaceId place)
{
    if (!scored_ && !has_plan_) return;
    auto left = ranked_[place].extract(rank_of(id, place));
    if (left.empty() || spare_ranks_.size() >= kSpareRanks) return;
    spare_ranks_.push_back(std::move(left));  // has room: nothing here can be refused
}

void Core::count_in(BlockId block, PlaceId place)
{
    const PackId id = blocks_[block].pack;
    uint32_t &end = packs_[id].end[place];
    end = std::max(end, blocks_[block].index + 1);
    if (++packs_[id].resident[place] == 1) rank(id, place);
}

void Core::count_out(PackId id, PlaceId place)
{
    STW_ASSERT(packs_[id].resident[place] > 0);
    if (--packs_[id].resident[place] == 0) unrank(id, place);
}

// A tensor nobody scored comes into the block, and counts as 0.
void Core::note_unscored(PackId id)
{
    if (!scored_) return;
    rerank(id, [&] {
        for (double &score : packs_[id].score) score = std::max(score, 0.0);
    });
}

PackId Core::candidates(PlaceId place, PackId from, uint64_t work_max,
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
            candidate.next_use = victims_->next_use(at);
            candidate.shares = pack.tensors.size() > 1;
            candidate.pinned = door(at, place).gate.pins() > 0;
            ++work;
            if (pack.resident[place] > 0) {
                const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
                for (uint32_t index = range.first; index < range.second; ++index, ++work) {
                    look_at(pack.first + index, place, tensor, &candidate);
                }
            }
            out->push_back(candidate);
        }
    }
    return kNone;
}

// Adds what a block holds of the tensor.
void Core::look_at(BlockId block, PlaceId place, const Tensor &tensor, Candidate *candidate) const
{
    const Replica &here = replica(block, place);
    if (here.slot == kNoSlot) return;
    candidate->there = true;
    candidate->pinned |= here.pins > 0;
    if (!here.valid || here.doomed || tensor.contents == Contents::kEmpty) return;
    const uint64_t begin = uint64_t{blocks_[block].index} * config_.block_bytes;
    const uint64_t first = std::max(begin, tensor.offset);
    const uint64_t end = std::min(begin + config_.block_bytes, tensor.offset + tensor.spec.bytes);
    candidate->bytes += end - first;
    if (block_state(block, place) == BlockState::kDirty) candidate->dirty_bytes += end - first;
}

void Core::score(PlaceId place, const Score *scores, size_t n)
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

void Core::forget_scores()
{
    for (PackId id = 0; id < packs_.size(); ++id) packs_[id].score = {};
    scored_ = false;
    order_anew();
}

void Core::replan()
{
    if (has_plan_) order_anew();
}

// As scores and plan are now; without either there is no order.
void Core::order_anew()
{
    barren_ = {};
    for (std::set<Rank> &order : ranked_) order.clear();
    for (PackId id = 0; id < packs_.size(); ++id) {
        for (PlaceId place = 0; place < places(); ++place) {
            packs_[id].worth[place] = has_plan_ ? worth_of(packs_[id], place) : 0;
            rank(id, place);
        }
    }
}

// Of a shared block what is worth most; thousands may share it, which are made and used together.
double Core::worth_of(const Pack &pack, PlaceId place) const
{
    constexpr size_t kAskedMax = 32;
    if (pack.tensors.empty()) return 0;
    double most = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < std::min(pack.tensors.size(), kAskedMax); ++i) {
        most = std::max(most, victims_->worth(pack.tensors[i], place));
    }
    STW_ASSERT(most == most);
    return most;
}

// The pack was made or used, so it may be worth something else now.
void Core::look_at_plan(PackId id)
{
    if (!has_plan_) return;
    Pack &pack = packs_[id];
    for (PlaceId place = 0; place < places(); ++place) {
        if (!exists(place) || is_nvme(place)) continue;
        const double worth = worth_of(pack, place);
        if (worth == pack.worth[place]) continue;
        // Its place in the order moves along: no memory is needed that could be refused.
        auto found = ranked_[place].extract(rank_of(id, place));
        pack.worth[place] = worth;
        if (found.empty()) continue;
        found.value() = rank_of(id, place);
        ranked_[place].insert(std::move(found));
    }
}

// One behind the last block there.
uint32_t Core::find_end(PackId id, PlaceId place) const
{
    const Pack &pack = packs_[id];
    uint32_t &end = pack.end[place];
    while (end > 0 && replica(pack.first + end - 1, place).slot == kNoSlot) --end;
    return end;
}

// Of what is worth least the last that may leave; a clean one instead of a dirty one where it is
// worth little more.
BlockId Core::pick_planned(PlaceId place, const Fetch &fetch) const
{
    const double write_back_worth = victims_->write_back_worth();
    BlockId best = kNone;
    Rank found;
    uint32_t visited = 0;
    for (const Rank &rank : ranked_[place]) {
        const bool worth_more = rank.worth > found.worth + write_back_worth;
        if (best != kNone && (rank.rules() != found.rules() || worth_more)) break;
        const BlockId first = packs_[rank.pack].first;
        if (is_pinned_by_gates(packs_[rank.pack], place)) continue;  // none of it may leave
        for (uint32_t index = find_end(rank.pack, place); index > 0; --index) {
            if (++visited > kVisitedMax) return best;
            const BlockId block = first + index - 1;
            if (!may_leave(block, place, &fetch)) continue;
            if (write_back_worth <= 0 || is_duplicate(block, place)) return block;
            if (best == kNone) found = rank;
            if (best == kNone) best = block;
        }
    }
    return best;
}

// `best` is the first of the coldest. What scores let leave before it is taken instead; among
// equals it stays the choice, as next use and recency found it. Of a pack its end goes first, so
// that what is read again from its beginning finds that.
BlockId Core::pick_ranked(PlaceId place, const Fetch &fetch, BlockId best) const
{
    const Rank found = best == kNone ? Rank{} : rank_of(blocks_[best].pack, place);
    uint32_t visited = 0;
    for (const Rank &rank : ranked_[place]) {
        if (best != kNone && !(rank.reasons() < found.reasons())) break;
        const BlockId first = packs_[rank.pack].first;
        if (is_pinned_by_gates(packs_[rank.pack], place)) continue;  // none of it may leave
        for (uint32_t index = find_end(rank.pack, place); index > 0; --index) {
            if (++visited > kVisitedMax) return best;
            if (may_leave(first + index - 1, place, &fetch)) return first + index - 1;
        }
    }
    return best;
}

// Every pack with blocks at a place stands in its order once, by what it is ranked by now.
std::string Core::check_ranks() const
{
    for (PlaceId place = 0; place < places(); ++place) {
        size_t expected = 0;
        for (PackId id = 0; id < packs_.size(); ++id) {
            if ((!scored_ && !has_plan_) || is_nvme(place)) break;
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
