// SPDX-License-Identifier: Apache-2.0
// A fetch by the update pipeline, from the call to the release; its address is the ticket.
#pragma once

#include "lib/runtime/dispatch/waiter.h"
#include "lib/update/tiers.h"

namespace stepwell {

class TierAccess;

struct PieceFetch {
    Waiter waiter;
    TierAccess *owner = nullptr;
    residency::ClaimId claim = 0;
    uint32_t count = 0;
    update::Piece pieces[update::kPiecesMax];
    residency::PlaceId places[update::kPiecesMax];
    residency::Slot slots[update::kPiecesMax];
    update::FetchDone done = nullptr;
    void *user = nullptr;
};

}  // namespace stepwell
