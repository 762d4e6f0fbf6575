// SPDX-License-Identifier: Apache-2.0
#include "lib/schedule/lookahead/flights.h"

namespace stepwell::schedule {

void Flights::add(residency::FetchId fetch, const Flight &flight)
{
    by_fetch_[fetch] = flight;
    cost_ns_ += flight.cost_ns;
    bytes_[flight.place] += flight.bytes;
}

std::optional<Flight> Flights::take(residency::FetchId fetch)
{
    const auto found = by_fetch_.find(fetch);
    if (found == by_fetch_.end()) return {};
    const Flight flight = found->second;
    by_fetch_.erase(found);
    cost_ns_ -= flight.cost_ns;
    bytes_[flight.place] -= flight.bytes;
    return flight;
}

}  // namespace stepwell::schedule
