// SPDX-License-Identifier: Apache-2.0
// `stepwell bench`: what the library reaches on this machine, each figure beside what the machine
// gives without it, in turn and in the same run.
#pragma once

#include "directory.h"
#include "tune.h"

#include <string>
#include <vector>

namespace stepwell::cli {

constexpr double kBenchSeconds = 20;

struct BenchRow {
    std::string name;  // "nvme.read"
    std::string unit;
    double value = 0;  // median
    std::string reference;
    double reference_value = 0;
    // Of the rounds: ours over the reference (of times the other way round); higher is better.
    Figure ratio;
};

struct BenchOptions {
    Directory directory;  // without an error
    double seconds = kBenchSeconds;
    uint64_t bytes = kTuneBytes;
};

// Throws Failed.
std::vector<BenchRow> run_bench(const BenchOptions &options, const Progress &progress);

constexpr uint32_t kBenchFormat = 1;  // "format"; grows when a key changes its meaning
std::string bench_text(const std::vector<BenchRow> &rows);
std::string bench_json(const std::vector<BenchRow> &rows);

}  // namespace stepwell::cli
