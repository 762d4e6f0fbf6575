// SPDX-License-Identifier: Apache-2.0
// RunPlanner: slots in a row for what a fetch needs in one piece, at places that do not map. Clears
// them where they are not free. Owns the notes of one search.
#pragma once

#include "lib/residency/evictions.h"
#include "lib/residency/room_outlook.h"

#include <vector>

namespace stepwell::residency {

class RunPlanner {
public:
    RunPlanner(Places &places, BlockTable &blocks, PackTable &packs, Gates &gates,
               const RecencyLists &recency, const VictimOrder &order, TransferTable &transfers,
               Occupancy &occupancy, Victims &victims, Evictions &evictions,
               const RoomOutlook &outlook)
        : places_(places),
          blocks_(blocks),
          packs_(packs),
          gates_(gates),
          recency_(recency),
          order_(order),
          transfers_(transfers),
          occupancy_(occupancy),
          victims_(victims),
          evictions_(evictions),
          outlook_(outlook)
    {
    }

    Room plan(Fetch &fetch, const Blocked &blocked, Commands &out);

private:
    class RunCosts;

    Room plan_all(Fetch &fetch, bool tight, const Blocked &blocked, Commands &out);
    Room plan_run(Fetch &fetch, Target *first, uint32_t count, bool tight, Commands &out);
    static Slot choose_run(RunCosts &costs, bool tight);
    bool run_lies(const Target *first, uint32_t count) const;
    Room make_spare_slot(const Fetch &fetch, RunCosts &costs, PlaceId place, uint32_t count,
                         Commands &out);
    [[nodiscard]] bool may_move(BlockId block, PlaceId place) const;
    [[nodiscard]] bool is_in_own_run(BlockId block, PlaceId place, const Fetch &fetch) const;
    [[nodiscard]] bool fits_beside(const Fetch &fetch, PlaceId place) const;
    bool start_move(const Fetch &fetch, BlockId block, PlaceId place, Slot begin, uint32_t count,
                    Commands &out);

    Places &places_;
    BlockTable &blocks_;
    PackTable &packs_;
    Gates &gates_;
    const RecencyLists &recency_;
    const VictimOrder &order_;
    TransferTable &transfers_;
    Occupancy &occupancy_;
    Victims &victims_;
    Evictions &evictions_;
    const RoomOutlook &outlook_;
    std::vector<RunSlot> run_slots_;  // of RunCosts, kept for its memory
};

}  // namespace stepwell::residency
