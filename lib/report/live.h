// SPDX-License-Identifier: Apache-2.0
// What `stepwell top` shows, as JSON text for the statistics page: totals since open, and rates of
// the time since the page before. Numbers and the names of runtime, tiers, links and phases; never
// names of tensors, paths or contents. Pure.
#pragma once

#include <stepwell/observe.h>

#include "lib/observe/step_history.h"
#include "lib/report/report.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::report {

constexpr uint32_t kLiveFormat = 1;  // "format" of the page; grows when a key changes its meaning
constexpr uint32_t kLivePhasesMax = 16;
constexpr uint32_t kLiveNameBytesMax = 64;  // longer names are cut

struct LivePhase {
    std::string name;
    uint64_t steps = 0;
    bool open = false;
    stw_step_stats last{};
};

struct LiveData {
    std::string name;
    std::string version;
    uint64_t process = 0;
    uint64_t process_start = 0;  // /proc/PID/stat: tells it from a later one with its number
    uint64_t elapsed_ns = 0;     // since open
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t waiting_fetches = 0;
    uint64_t transfers_in_flight = 0;
    uint64_t updates = 0;
    uint64_t errors = 0;
    observe::StallTotals stalls;
    std::vector<TierReport> tiers;
    std::vector<LinkReport> links;
    std::vector<LivePhase> phases;
};

// `before`: of the page before; null for the first one, whose rates are those since open.
std::string live_text(const LiveData &data, const LiveData *before);

}  // namespace stepwell::report
