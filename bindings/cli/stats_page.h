// SPDX-License-Identifier: Apache-2.0
// Reads the statistics pages of a process that uses the library, without touching the process. The
// layout is a contract, docs/command.md; the text in it is JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace stepwell::cli {

struct StatsPages {
    std::vector<nlohmann::json> runtimes;  // of the process, in the order in which they were opened
    std::string error;                     // one sentence, or ""
};

StatsPages read_stats_pages(uint64_t process);

}  // namespace stepwell::cli
