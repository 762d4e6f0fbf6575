// SPDX-License-Identifier: Apache-2.0
// Flights: prefetches that were asked for and have not ended, with their total link time and
// bytes. Pure; one thread at a time.
#pragma once

#include "lib/residency/types.h"

#include <array>
#include <map>
#include <optional>
#include <vector>

namespace stepwell::schedule {

struct Flight {
    uint64_t turn = 0;
    uint64_t position = 0;  // of the use, within the turn
    uint64_t cost_ns = 0;
    uint64_t bytes = 0;
    residency::PlaceId place = residency::kNoPlace;
};

class Flights {
public:
    void add(residency::FetchId fetch, const Flight &flight);
    // When the fetch has ended. nullopt: not one of these.
    std::optional<Flight> take(residency::FetchId fetch);

    [[nodiscard]] size_t count() const { return by_fetch_.size(); }
    [[nodiscard]] uint64_t cost_ns() const { return cost_ns_; }
    [[nodiscard]] uint64_t bytes(residency::PlaceId place) const { return bytes_[place]; }

private:
    std::map<residency::FetchId, Flight> by_fetch_;
    uint64_t cost_ns_ = 0;
    std::array<uint64_t, residency::kPlacesMax> bytes_{};
};

}  // namespace stepwell::schedule
