// SPDX-License-Identifier: Apache-2.0
// Victims: what may leave a place, and which of it leaves first. Nothing may leave that is pinned,
// held, or the last that knows its bytes. Owns nothing: the orders are below it.
#pragma once

#include "lib/residency/recency.h"
#include "lib/residency/victim_order.h"

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

private:
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
};

}  // namespace stepwell::residency
