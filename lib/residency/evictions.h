// SPDX-License-Identifier: Apache-2.0
// Evictions: starts the eviction of a block: it is dropped where its newest bytes are elsewhere
// too, else written back to the place where they go next. Owns nothing.
#pragma once

#include "lib/residency/occupancy.h"
#include "lib/residency/transfer_table.h"
#include "lib/residency/victims.h"

namespace stepwell::residency {

class Evictions {
public:
    Evictions(Places &places, BlockTable &blocks, const PackTable &packs, Addresses &addresses,
              Gates &gates, VictimOrder &order, TransferTable &transfers, Occupancy &occupancy,
              Victims &victims)
        : places_(places),
          blocks_(blocks),
          packs_(packs),
          addresses_(addresses),
          gates_(gates),
          order_(order),
          transfers_(transfers),
          occupancy_(occupancy),
          victims_(victims)
    {
    }

    bool start(BlockId block, PlaceId place, Commands &out);
    void start_write_back(BlockId block, PlaceId from, PlaceId to, bool evicts, Commands &out);

private:
    PlaceId drain_place(BlockId block, PlaceId place, Commands &out);

    Places &places_;
    BlockTable &blocks_;
    const PackTable &packs_;
    Addresses &addresses_;
    Gates &gates_;
    VictimOrder &order_;
    TransferTable &transfers_;
    Occupancy &occupancy_;
    Victims &victims_;
};

}  // namespace stepwell::residency
