// SPDX-License-Identifier: Apache-2.0
// Occupancy: which replica has which slot. Takes slots and frees them, applies the ends of
// transfers to replicas, and owns the counts of what that means for a place: evictions under way
// and done, and what became of the blocks that plans have brought.
#pragma once

#include "lib/residency/recency.h"
#include "lib/residency/victim_order.h"

#include <array>

namespace stepwell::residency {

class Occupancy {
public:
    Occupancy(Places &places, const TensorTable &tensors, BlockTable &blocks, PackTable &packs,
              Addresses &addresses, Gates &gates, RecencyLists &recency, VictimOrder &order)
        : places_(places),
          tensors_(tensors),
          blocks_(blocks),
          packs_(packs),
          addresses_(addresses),
          gates_(gates),
          recency_(recency),
          order_(order)
    {
    }

    // Evictions under way.
    [[nodiscard]] uint32_t coming(PlaceId place) const { return coming_[place]; }
    [[nodiscard]] uint64_t evictions(PlaceId place) const { return evictions_[place]; }
    [[nodiscard]] const PlannedBlocks &brought(PlaceId place) const { return brought_[place]; }

    [[nodiscard]] Slot neighbour_slot(BlockId block, PlaceId place);
    void set_run(Pack &pack, PlaceId place, Slot begin);
    void take_slot(PlaceId place, BlockId block, bool whole, Slot slot, Commands &out);
    void hold(BlockId block, PlaceId place);
    void note_leaving(BlockId block, PlaceId place);
    void drop(BlockId block, PlaceId place, Commands &out);
    void drop_all(BlockId block, Commands &out);
    void free_kept(PackId pack, Commands &out);
    void evict(BlockId block, PlaceId place, Commands &out);  // drops, and counts it
    void keep_older(BlockId block, Commands &out);

    void settle_target(const Flight &flight, bool ok, Commands &out);
    void unsettle_target(const Flight &flight, const Status &status, Commands &out);
    void settle_source(const Flight &flight, bool ok, Commands &out);

    void note_brought(BlockId block, PlaceId place);
    void note_use(BlockId block, PlaceId place);

private:
    void note_waste(BlockId block, PlaceId place);
    void free_slot(BlockId block, PlaceId place, Commands &out);

    Places &places_;
    const TensorTable &tensors_;
    BlockTable &blocks_;
    PackTable &packs_;
    Addresses &addresses_;
    Gates &gates_;
    RecencyLists &recency_;
    VictimOrder &order_;
    std::array<uint32_t, kPlacesMax> coming_{};
    std::array<uint64_t, kPlacesMax> evictions_{};
    std::array<PlannedBlocks, kPlacesMax> brought_{};
};

}  // namespace stepwell::residency
