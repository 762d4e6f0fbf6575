// SPDX-License-Identifier: Apache-2.0
// Reservation: room for all that a fetch needs, at once, or for nothing of it. Evicts what it has
// to. Owns nothing.
#pragma once

#include "lib/residency/promises.h"
#include "lib/residency/run_planner.h"

namespace stepwell::residency {

class Reservation {
public:
    Reservation(Places &places, BlockTable &blocks, const PackTable &packs, Promises &promises,
                Addresses &addresses, Gates &gates, VictimOrder &order, TransferTable &transfers,
                Occupancy &occupancy, Victims &victims, Evictions &evictions,
                const RoomOutlook &outlook, RunPlanner &runs)
        : places_(places),
          blocks_(blocks),
          packs_(packs),
          promises_(promises),
          addresses_(addresses),
          gates_(gates),
          order_(order),
          transfers_(transfers),
          occupancy_(occupancy),
          victims_(victims),
          evictions_(evictions),
          outlook_(outlook),
          runs_(runs)
    {
    }

    Room reserve(Fetch &fetch, Blocked &blocked, Commands &out);

private:
    [[nodiscard]] bool is_behind(const Fetch &fetch, const Blocked &blocked) const;
    Room try_reserve(Fetch &fetch, Blocked &blocked, Commands &out);
    Room admit_guests(Fetch &fetch, PlaceId place, Commands &out);
    Room make_room(Fetch &fetch, PlaceId place, uint32_t needed, bool whole, Commands &out);
    void take_room(Fetch &fetch, Commands &out);
    Room let_mover_leave(const Fetch &fetch, PlaceId place, Commands &out);

    Places &places_;
    BlockTable &blocks_;
    const PackTable &packs_;
    Promises &promises_;
    Addresses &addresses_;
    Gates &gates_;
    VictimOrder &order_;
    TransferTable &transfers_;
    Occupancy &occupancy_;
    Victims &victims_;
    Evictions &evictions_;
    const RoomOutlook &outlook_;
    RunPlanner &runs_;
};

}  // namespace stepwell::residency
