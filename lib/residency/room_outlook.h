// SPDX-License-Identifier: Apache-2.0
// RoomOutlook: whether room that a place lacks will come by itself, what keeps it, and the
// sentences that say so. Owns nothing and changes nothing.
#pragma once

#include "lib/residency/gates.h"
#include "lib/residency/recency.h"
#include "lib/residency/transfer_table.h"

#include <vector>

namespace stepwell::residency {

class RoomOutlook {
public:
    RoomOutlook(const Places &places, const TensorTable &tensors, const BlockTable &blocks,
                const PackTable &packs, const Gates &gates, const RecencyLists &recency,
                const TransferTable &transfers)
        : places_(places),
          tensors_(tensors),
          blocks_(blocks),
          packs_(packs),
          gates_(gates),
          recency_(recency),
          transfers_(transfers)
    {
    }

    [[nodiscard]] bool room_will_come(PlaceId place) const;
    [[nodiscard]] Room stuck_or_never() const;
    static Room fall_short(Fetch &fetch, PlaceId place, Room room);
    [[nodiscard]] uint32_t pinned_blocks(PlaceId place, bool whole, const Fetch *except) const;
    [[nodiscard]] bool are_more_pinned(PlaceId place, bool whole, const Fetch &fetch,
                                       uint32_t most) const;
    [[nodiscard]] bool awaits_budget(const Fetch &fetch) const;
    [[nodiscard]] Status budget_refusal(const Fetch &fetch, PlaceId place, uint32_t needed) const;
    [[nodiscard]] Status shrink_refusal(PlaceId place, uint32_t blocks) const;
    [[nodiscard]] Status fits(const std::vector<Request> &requests,
                              const std::vector<Request> &buffers) const;

private:
    [[nodiscard]] bool asks_for_wholes(const Fetch &fetch, PlaceId place) const;

    const Places &places_;
    const TensorTable &tensors_;
    const BlockTable &blocks_;
    const PackTable &packs_;
    const Gates &gates_;
    const RecencyLists &recency_;
    const TransferTable &transfers_;
};

}  // namespace stepwell::residency
