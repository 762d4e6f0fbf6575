// SPDX-License-Identifier: Apache-2.0
// A machine as data: places with budgets, and links with bandwidths between them. Replays run on
// it and bounds are computed for it; measured, read from a file or made up.
#pragma once

#include "lib/residency/types.h"

#include <cstdint>
#include <vector>

namespace stepwell::schedule {

constexpr uint32_t kNoLink = UINT32_MAX;
constexpr uint32_t kNoGroup = UINT32_MAX;

// A direction between two places.
struct Link {
    residency::PlaceId from = residency::kNoPlace;
    residency::PlaceId to = residency::kNoPlace;
    double bytes_per_s = 0;
    uint64_t latency_ns = 0;    // of each transfer, before its bytes
    uint32_t depth = 1;         // concurrent transfers: latencies overlap, bytes do not
    uint32_t group = kNoGroup;  // index in Machine::groups
};

// Links that share a capacity: the reads and writes of a disk, or ranks behind a switch.
struct LinkGroup {
    double bytes_per_s = 0;
};

struct Machine {
    residency::Config config;
    std::vector<Link> links;  // at most one for each pair of places
    std::vector<LinkGroup> groups;

    // OK, or names a link or group that carries nothing, leads nowhere or exists twice.
    [[nodiscard]] Status check() const;
    [[nodiscard]] uint32_t find_link(residency::PlaceId from, residency::PlaceId to) const;
};

}  // namespace stepwell::schedule
