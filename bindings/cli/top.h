// SPDX-License-Identifier: Apache-2.0
// `stepwell top`: what a process does with its tiers, once a second, until it ends.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

namespace stepwell::cli {

struct TopOptions {
    uint64_t process = 0;
    bool once = false;
    bool json = false;  // a line of JSON for each runtime and second
};

std::string top_text(const nlohmann::json &page);
// Returns the exit status: 0 when it was shown, also until the process ended; else 1.
int run_top(const TopOptions &options, std::FILE *out, std::FILE *err);

}  // namespace stepwell::cli
