// SPDX-License-Identifier: Apache-2.0
// `stepwell simulate` and `stepwell estimate`: files in, text, JSON or a plot out. Throws Refused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace stepwell::cli {

struct SimulateOptions {
    // A file, or the name of one that is installed; a checkpoint of safetensors, see below.
    std::string model;
    std::string machine;  // likewise; a profile of `stepwell tune`; or "this-host"
    uint32_t ranks = 0;   // 0: all
    bool exposed_update = false;
    bool no_overlap = false;
    std::string sweep;       // "ranks=64,128", "params=0.5T,1T"; "": one point
    std::string plot;        // a file for the sweep as SVG; "": none
    std::string gpu_memory;  // of a machine that a profile does not tell it of
    std::string gpu_flops;
    bool json = false;
    // These are for a checkpoint, which does not contain them.
    std::string optimizer = "adamw";
    std::string tokens = "2048";      // of a step on a GPU, a quantity
    std::string activations = "0 B";  // bytes that a step saves for backward, a quantity
};

// "" or what is wrong with the words of a sweep.
std::string why_no_sweep(const std::string &sweep);

using SimulateProgress = std::function<void(const std::string &what, double share)>;

struct Simulated {
    std::string text;      // what is printed
    bool answers = false;  // at least one point
};
Simulated run_simulate(const SimulateOptions &options, const SimulateProgress &progress);
// What is printed.
std::string run_estimate(const SimulateOptions &options);

}  // namespace stepwell::cli
