// SPDX-License-Identifier: Apache-2.0
// `stepwell tune`: each directory alone over driver, size and depth of requests, then as it will be
// used, alone and together; memory copies. Everything through the library. One thread.
#pragma once

#include "directory.h"
#include "tier.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::cli {

constexpr double kTuneSeconds = 50;
// No pass begins later than this after the time that was asked for; one that runs ends by itself.
constexpr double kTuneSecondsMore = 10;
constexpr uint64_t kTuneBytes = 256 << 20;  // written at once in a directory
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
    bool cut = false;  // the time was over before all rounds of its part
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
    std::vector<std::string> left_out;  // the time was over before they had one round
    Figure together_read;               // rounds 0: there is one directory
    Figure together_write;
    Figure host_copy;
    double seconds = 0;
};

// What is measured, one pass at a time: a Tier, or what a test has in its place.
class Passes {
public:
    virtual ~Passes() = default;
    virtual Pass write(double seconds_most) = 0;
    virtual Pass read(double seconds_most) = 0;
    virtual Pass update(double seconds_most) = 0;
    virtual Identity identity() = 0;
};
std::unique_ptr<Passes> open_tier(const TierOptions &options);

struct TuneOptions {
    std::vector<Directory> directories;  // without an error
    double seconds = kTuneSeconds;
    uint64_t bytes = kTuneBytes;
    std::function<std::unique_ptr<Passes>(const TierOptions &)> open = open_tier;
    std::function<double()> now = now_s;
};

// What it is about, and how much of the time has gone, 0 to 1.
using Progress = std::function<void(const std::string &what, double share)>;

// "" or why this directory cannot be tuned.
std::string why_not_tuned(const Directory &directory, uint64_t bytes);

// Ends with the pass that runs when the time is up. Throws Failed, also where no directory had one
// round by then.
Tuned tune(const TuneOptions &options, const Progress &progress);

// What a reader must know of directories that the time was too short for, a line each.
std::vector<std::string> cut_short(const Tuned &tuned);

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
