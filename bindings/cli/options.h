// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include "simulate/simulate.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::cli {

enum class Command { kNone, kInfo, kTune, kBench, kReport, kTop, kSimulate, kEstimate, kVersion };

struct Options {
    Command command = Command::kNone;
    std::vector<std::string> paths;
    bool json = false;
    bool once = false;         // of top
    uint64_t process = 0;      // of top
    std::string output;        // of tune and report; "": the usual place
    double seconds = 0;        // 0: the command's own
    uint64_t bytes = 0;        // 0: the command's own
    SimulateOptions simulate;  // of simulate and estimate
};

// What is wrong is one sentence in `error`; what was asked for and ends the program (--help) is in
// `text`. Both "": run the command.
struct Parsed {
    Options options;
    std::string text;
    std::string error;
};

Parsed parse_options(int argc, const char *const *argv);

}  // namespace stepwell::cli
