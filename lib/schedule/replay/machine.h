// SPDX-License-Identifier: Apache-2.0
// A machine as data: places with budgets, and links between them that take time. What a replay runs
// on and what a bound is computed for; measured, read from a file or made up.
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
    uint64_t latency_ns = 0;    // of a transfer, before its bytes
    uint32_t depth = 1;         // transfers at once: their latencies overlap, their bytes do not
    uint32_t group = kNoGroup;  // of Machine::groups
};

// Links with one capacity between them: the reads and writes of a disk, the ranks behind a switch.
struct LinkGroup {
    double bytes_per_s = 0;
};

struct Machine {
    residency::Config config;
    std::vector<Link> links;  // at most one for each pair of places
    std::vector<LinkGroup> groups;

    // OK, or the link or group that can carry nothing, leads nowhere or is there twice.
    [[nodiscard]] Status check() const;
    [[nodiscard]] uint32_t find_link(residency::PlaceId from, residency::PlaceId to) const;
};

}  // namespace stepwell::schedule
