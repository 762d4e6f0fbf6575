// SPDX-License-Identifier: Apache-2.0
// WriteBack: writes blocks back before they have to leave, so that they can leave at once. Owns the
// queue of blocks that are to be written back early.
#pragma once

#include "lib/residency/evictions.h"

#include <deque>

namespace stepwell::residency {

class WriteBack {
public:
    WriteBack(const Places &places, BlockTable &blocks, const PackTable &packs,
              const Addresses &addresses, Gates &gates, const RecencyLists &recency,
              VictimOrder &order, const TransferTable &transfers, const Occupancy &occupancy,
              const Victims &victims, Evictions &evictions)
        : places_(places),
          blocks_(blocks),
          packs_(packs),
          addresses_(addresses),
          gates_(gates),
          recency_(recency),
          order_(order),
          transfers_(transfers),
          occupancy_(occupancy),
          victims_(victims),
          evictions_(evictions)
    {
    }

    // Something changed: pump() has to look again.
    void wake() { may_start_ = true; }
    void pump(Commands &out);
    uint64_t queue_all();
    void clean_soon(BlockId block, PlaceId place);
    uint32_t clean_ahead(PlaceId place, uint64_t beyond, Commands &out);
    void end_claims(Pack &pack);

private:
    void queue_clean(BlockId block);
    bool clean_early(BlockId block, PlaceId place, Commands &out);
    bool clean(BlockId block, PlaceId place, Commands &out);
    void clean_coldest(PlaceId place, uint32_t reserve, Commands &out);
    void clean_planned(PlaceId place, uint32_t reserve, Commands &out);
    uint32_t clean_planned_beyond(PlaceId place, uint64_t beyond, uint32_t most, Commands &out);

    const Places &places_;
    BlockTable &blocks_;
    const PackTable &packs_;
    const Addresses &addresses_;
    Gates &gates_;
    const RecencyLists &recency_;
    VictimOrder &order_;
    const TransferTable &transfers_;
    const Occupancy &occupancy_;
    const Victims &victims_;
    Evictions &evictions_;
    std::deque<BlockId> queue_;
    bool may_start_ = false;  // something changed since pump() looked last
};

}  // namespace stepwell::residency
