// SPDX-License-Identifier: Apache-2.0
// `stepwell tune`: each directory alone over driver, size and depth of requests, then as it will be
// used, alone and together; memory copies. Everything through the library. One thread.
#pragma once

#include "directory.h"
#include "tier.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stepwell::cli {

constexpr double kTuneSeconds = 50;
constexpr uint64_t kTuneBytes = 256 << 20;  // written at once in a directory
constexpr uint64_t kTuneBytesMin = 32 << 20;
// Beside the bytes themselves: superblock, and blocks on their way.
constexpr uint64_t kTuneBytesMore = 32 << 20;

// Of rates in bytes a second: what was usual, and between what it lay.
struct Figure {
    double median = 0;
    double least = 0;
    double most = 0;
    uint64_t rounds = 0;
};
Figure figure_of(const std::vector<double> &rates);

struct ChosenSetting {
    Setting setting;
    Figure rate;
};

// What the library calls machine and file system, by its report.
struct Identity {
    std::string kernel;
    std::string processor;
    uint64_t cores = 0;
    std::string device;
    std::string file_system;
    std::string file_system_id;
};

struct TunedDirectory {
    std::string path;
    std::string mount;
    Identity identity;
    ChosenSetting read;
    ChosenSetting write;
    Figure usual_read;  // with what the library does without a profile
    Figure usual_write;
    Figure mixed_read;  // of both at once
    Figure mixed_write;
};

struct Tuned {
    std::vector<TunedDirectory> directories;
    Figure together_read;  // rounds 0: there is one directory
    Figure together_write;
    Figure host_copy;
    double seconds = 0;
};

struct TuneOptions {
    std::vector<Directory> directories;  // without an error
    double seconds = kTuneSeconds;
    uint64_t bytes = kTuneBytes;
};

// What it is about, and how much of the time has gone, 0 to 1.
using Progress = std::function<void(const std::string &what, double share)>;

// "" or why this directory cannot be tuned.
std::string why_not_tuned(const Directory &directory, uint64_t bytes);

// Throws Failed.
Tuned tune(const TuneOptions &options, const Progress &progress);

// The settings that are tried, those that matter most first.
std::vector<Setting> settings_tried();

// Of all that were tried: the driver that is best at both together, and its best settings. What is
// usual stays where nothing is clearly better.
struct Tried {
    Setting setting;
    std::vector<double> reads;
    std::vector<double> writes;
};
void choose(const std::vector<Tried> &tried, TunedDirectory *directory);

}  // namespace stepwell::cli
