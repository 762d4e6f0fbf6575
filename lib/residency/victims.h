// SPDX-License-Identifier: Apache-2.0
// Victims: what may leave a place, and which of it leaves first. Nothing may leave that is pinned,
// held, or the last that knows its bytes. The orders are below it; it keeps only what the search of
// one fetch in one event has found.
#pragma once

#include "lib/residency/recency.h"
#include "lib/residency/victim_order.h"

#include <array>
#include <string>
#include <tuple>

namespace stepwell::residency {

class Victims {
public:
    Victims(const Places &places, const BlockTable &blocks, const PackTable &packs,
            const Gates &gates, RecencyLists &recency, VictimOrder &order)
        : places_(places),
          blocks_(blocks),
          packs_(packs),
          gates_(gates),
          recency_(recency),
          order_(order)
    {
    }

    BlockId pick(PlaceId place, const Fetch &fetch);
    [[nodiscard]] bool leaves_before(BlockId block, BlockId other, PlaceId place) const;
    [[nodiscard]] bool may_leave(BlockId block, PlaceId place, const Fetch *fetch) const;
    [[nodiscard]] bool is_movable(BlockId block, PlaceId place, const Fetch *fetch) const;
    [[nodiscard]] bool may_rest(const Pack &pack, PlaceId place) const;
    [[nodiscard]] bool returns(BlockId block, PlaceId place) const;
    void note_evictable(BlockId block, PlaceId place);
    [[nodiscard]] std::string check() const;

private:
    static constexpr uint32_t kCandidatesMax = 64;  // compared by their next use

    // What leaves first has the greatest score: rank, next use, and how early it was found.
    using Score = std::tuple<int, int64_t, double, uint64_t, int64_t>;
    struct Candidate {
        Score score;
        BlockId block;
        bool operator<(const Candidate &other) const { return score < other.score; }
    };
    // The coldest blocks of a place that a fetch may move, and where the search of them goes on: a
    // fetch that needs many slots asks for one victim after the other. Valid for one fetch, in one
    // event, while no block of the list becomes colder or hotter.
    struct Search {
        uint64_t event = 0;
        FetchId fetch = 0;
        uint64_t moves = UINT64_MAX;  // of the list of recency
        BlockId next = kNone;
        int64_t visited = 0;  // blocks passed, of which so many were taken
        int64_t taken = 0;
        uint32_t count = 0;
        std::array<Candidate, kCandidatesMax> heap{};
    };

    void begin(Search &search, PlaceId place, const Fetch &fetch);
    bool is_over(const Search &search, PlaceId place, const Fetch &fetch) const;
    void fill(Search &search, PlaceId place, const Fetch &fetch);
    BlockId first_of(Search &search, PlaceId place, const Fetch &fetch);
    [[nodiscard]] bool rests(BlockId block, PlaceId place) const;
    [[nodiscard]] bool stays(BlockId block, PlaceId place) const;
    [[nodiscard]] bool can_drain(BlockId block, const Pack &pack, PlaceId place) const;
    BlockId pick_behind(BlockId block, PlaceId place, const Fetch &fetch);
    [[nodiscard]] BlockId pick_planned(PlaceId place, const Fetch &fetch) const;
    [[nodiscard]] BlockId pick_ranked(PlaceId place, const Fetch &fetch, BlockId best) const;

    const Places &places_;
    const BlockTable &blocks_;
    const PackTable &packs_;
    const Gates &gates_;
    RecencyLists &recency_;
    VictimOrder &order_;
    std::array<Search, kPlacesMax> searches_;
};

}  // namespace stepwell::residency
