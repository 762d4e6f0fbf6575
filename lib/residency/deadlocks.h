// SPDX-License-Identifier: Apache-2.0
// Deadlocks: finds threads of the program that wait for each other's views, and the fetch that
// gives way. Owns the notes of one search.
#pragma once

#include "lib/residency/fetch_queue.h"
#include "lib/residency/recency.h"

#include <map>
#include <vector>

namespace stepwell::residency {

class Deadlocks {
public:
    Deadlocks(const TensorTable &tensors, const BlockTable &blocks, const PackTable &packs,
              const Gates &gates, const RecencyLists &recency, const TransferTable &transfers,
              const FetchQueue &fetches)
        : tensors_(tensors),
          blocks_(blocks),
          packs_(packs),
          gates_(gates),
          recency_(recency),
          transfers_(transfers),
          fetches_(fetches)
    {
    }

    [[nodiscard]] FetchId find(const std::vector<Held> &held, const std::vector<Sleeper> &sleepers,
                               uint32_t updates_waiting) const;
    [[nodiscard]] Status refusal(FetchId fetch) const;
    void note_wait(ClaimId claim, TensorId tensor);

private:
    [[nodiscard]] bool conflicts_with_view(const Fetch &fetch, const Held &view) const;
    [[nodiscard]] static bool lacks_room_of(const Fetch &fetch, const Held &view);
    [[nodiscard]] bool claim_moves(ClaimId claim, const Knot &knot) const;
    [[nodiscard]] bool comes_to(ClaimId claim, TensorId tensor, const Knot &knot) const;
    [[nodiscard]] bool locks_may_come(const Fetch &fetch, const Knot &knot) const;
    [[nodiscard]] bool room_may_come(const Fetch &fetch, const Knot &knot) const;
    [[nodiscard]] bool has_somebody_else(PlaceId place, const Knot &knot) const;
    void loosen(Knot &knot) const;

    const TensorTable &tensors_;
    const BlockTable &blocks_;
    const PackTable &packs_;
    const Gates &gates_;
    const RecencyLists &recency_;
    const TransferTable &transfers_;
    const FetchQueue &fetches_;
    std::map<ClaimId, TensorId> waits_;  // see note_wait()
    mutable Knot knot_;                  // of find(), kept for its memory
};

}  // namespace stepwell::residency
