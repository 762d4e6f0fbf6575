// SPDX-License-Identifier: Apache-2.0
// FetchRunner: takes fetches from question to answer: locks and room for all of a fetch, both at
// once or neither; then its transfers, then pins. Waiting fetches are served in order; one that
// waits for room at a place keeps later ones from taking room there. Owns nothing but the note that
// it runs.
#pragma once

#include "lib/residency/fetch_queue.h"
#include "lib/residency/fills.h"
#include "lib/residency/reservation.h"
#include "lib/residency/write_back.h"

namespace stepwell::residency {

class FetchRunner {
public:
    FetchRunner(const Places &places, TensorTable &tensors, BlockTable &blocks,
                const PackTable &packs, Addresses &addresses, Gates &gates, RecencyLists &recency,
                VictimOrder &order, Occupancy &occupancy, TensorLocks &locks, FetchQueue &fetches,
                Victims &victims, WriteBack &write_back, const RoomOutlook &outlook,
                Reservation &reservation, Fills &fills)
        : places_(places),
          tensors_(tensors),
          blocks_(blocks),
          packs_(packs),
          addresses_(addresses),
          gates_(gates),
          recency_(recency),
          order_(order),
          occupancy_(occupancy),
          locks_(locks),
          fetches_(fetches),
          victims_(victims),
          write_back_(write_back),
          outlook_(outlook),
          reservation_(reservation),
          fills_(fills)
    {
    }

    // After an event: serves waiting fetches, then starts early write-backs. advance() also forgets
    // which places have no victims; after the end of a transfer Victims::note_evictable() has done
    // what is needed.
    void advance(Commands &out);
    void advance_queue(Commands &out);
    void wake_waiters(BlockId block, const Flight *failed, const Status &status, Commands &out);
    void refuse(FetchId id, Status why, Commands &out);

private:
    bool step(Fetch &fetch, Blocked &blocked, Commands &out);
    void begin_fill(Fetch &fetch, Commands &out);
    void build_targets(Fetch &fetch);
    void wait_for(Fetch &fetch, Target &target, Commands &out);
    bool finish(FetchId id, Commands &out);
    Grant pin(const Fetch &fetch, size_t request);

    const Places &places_;
    TensorTable &tensors_;
    BlockTable &blocks_;
    const PackTable &packs_;
    Addresses &addresses_;
    Gates &gates_;
    RecencyLists &recency_;
    VictimOrder &order_;
    Occupancy &occupancy_;
    TensorLocks &locks_;
    FetchQueue &fetches_;
    Victims &victims_;
    WriteBack &write_back_;
    const RoomOutlook &outlook_;
    Reservation &reservation_;
    Fills &fills_;
    bool advancing_ = false;
};

}  // namespace stepwell::residency
