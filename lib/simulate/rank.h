// SPDX-License-Identifier: Apache-2.0
// One rank of a world: its core, its lanes, what it holds. Private to world.cpp and rank.cpp.
#pragma once

#include "lib/simulate/world.h"

namespace stepwell::simulate {

struct World::View {
    Use use;
    bool by_gate = false;
};

struct World::Rank {
    struct LaneState {
        size_t cursor = 0;
        bool busy = false;  // with the operation under the cursor
        Instant since = 0;  // it has waited
        bool waits = false;
    };

    Rank(uint32_t number, const Layout &layout, size_t ops);

    const uint32_t number;
    schedule::Trace trace;
    residency::Core core;
    residency::Commands out;
    std::array<LaneState, kLanes> lanes;
    std::vector<bool> is_done;
    std::vector<Instant> began;
    std::vector<Instant> ended;
    std::vector<std::vector<View>> views;  // by tensor
    std::unordered_map<residency::FetchId, OpId> fetches;
    uint64_t in_flight = 0;
    OpId drains = kNoOp;
    uint32_t steps = 0;
    RankResult result;
};

}  // namespace stepwell::simulate
