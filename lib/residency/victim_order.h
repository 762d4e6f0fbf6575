// SPDX-License-Identifier: Apache-2.0
// VictimOrder: for each place the packs there in the order in which the program's scores or the
// plan let them leave, and the policy that knows the next uses. Without scores and without a plan
// the order is empty, and recency decides.
#pragma once

#include "lib/residency/gates.h"
#include "lib/residency/policy.h"

#include <array>
#include <set>
#include <vector>

namespace stepwell::residency {

class VictimOrder {
public:
    VictimOrder(const Places &places, const TensorTable &tensors, const BlockTable &blocks,
                PackTable &packs, const Gates &gates);
    VictimOrder(const VictimOrder &) = delete;
    VictimOrder &operator=(const VictimOrder &) = delete;

    void set_policy(const VictimPolicy *policy);
    [[nodiscard]] const VictimPolicy &policy() const { return *policy_; }
    [[nodiscard]] bool has_plan() const { return has_plan_; }
    [[nodiscard]] bool is_scored() const { return scored_; }
    void replan();
    PackId candidates(PlaceId place, PackId from, uint64_t work_max,
                      std::vector<Candidate> *out) const;
    void score(PlaceId place, const Score *scores, size_t n);
    void forget_scores();

    // What the policy said of a next use holds all through one event.
    void begin_event() { ++event_; }
    [[nodiscard]] uint64_t event() const { return event_; }
    [[nodiscard]] uint64_t next_use(BlockId block) const;
    // A hint takes no room of what is known to be needed sooner than its own bytes.
    [[nodiscard]] bool is_needed_before(BlockId block, const Fetch &fetch) const
    {
        if ((fetch.asked.flags & kFetchPrefetch) == 0) return false;
        const uint64_t next = next_use(block);
        return next != kNever && next <= fetch.needed_in;
    }

    [[nodiscard]] bool has_no_victims(PlaceId place, const Fetch &fetch) const;
    void note_no_victims(PlaceId place, const Fetch &fetch);
    [[nodiscard]] bool has_no_victims(PlaceId place) const { return no_victims_[place].known; }
    void note_movable(BlockId block, PlaceId place);
    void forget_no_victims() { no_victims_ = {}; }

    // Lowest first: the order in which packs leave.
    [[nodiscard]] const std::set<Rank> &ranked(PlaceId place) const { return ranked_[place]; }
    [[nodiscard]] Rank rank_of(PackId pack, PlaceId place) const;
    [[nodiscard]] uint32_t find_end(PackId pack, PlaceId place) const;
    void count_in(BlockId block, PlaceId place);
    void count_out(PackId pack, PlaceId place);
    void look_at_plan(PackId pack);
    void note_unscored(PackId pack);
    // Around a change of what a pack is ranked by.
    template <class Change> void rerank(PackId id, Change &&change)
    {
        for (PlaceId place = 0; place < places_.count(); ++place) unrank(id, place);
        change();
        for (PlaceId place = 0; place < places_.count(); ++place) rank(id, place);
    }
    [[nodiscard]] std::string check() const;

private:
    // Of a place: no hint whose bytes are needed then, or later, finds a block that may leave.
    struct NoVictims {
        bool known = false;
        uint64_t needed_in = 0;
        uint64_t until = 0;  // the event in which it was found, or kNever
    };
    static constexpr size_t kSpareRanks = 16;

    void rank(PackId pack, PlaceId place);
    void unrank(PackId pack, PlaceId place);
    void order_anew();
    [[nodiscard]] double worth_of(const Pack &pack, PlaceId place) const;
    void look_at(BlockId block, PlaceId place, const Tensor &tensor, Candidate *candidate) const;

    const Places &places_;
    const TensorTable &tensors_;
    const BlockTable &blocks_;
    PackTable &packs_;
    const Gates &gates_;
    LeastRecentlyUsed recency_only_;
    const VictimPolicy *policy_ = &recency_only_;
    std::array<std::set<Rank>, kPlacesMax> ranked_;  // scored or planned: packs with blocks there
    std::vector<std::set<Rank>::node_type> spare_;   // of packs that left
    std::array<NoVictims, kPlacesMax> no_victims_{};
    bool scored_ = false;
    bool has_plan_ = false;
    uint64_t event_ = 0;  // see NextUse
};

}  // namespace stepwell::residency
