// SPDX-License-Identifier: Apache-2.0
// Simulates the training of a model on a machine with a number of ranks. Pure.
#pragma once

#include "lib/simulate/world.h"

namespace stepwell::simulate {

// What no schedule can beat: the work, and the bytes that must cross a link or be updated whatever
// is kept where.
struct Bound {
    double seconds = 0;
    std::string what;            // "computation", the name of a link, "collectives", "update"
    double bytes[kRoutes] = {};  // of one rank
};

struct Options {
    uint32_t ranks = 0;  // 0: all GPUs of the machine
    Schedule schedule;
    bool folded = true;
    uint64_t blocks_max = 16384;  // of a rank, about: more is finer and slower
    bool largest = true;          // also finds the largest model of this shape
    bool has_budgets = false;     // else those of the machine
    Budgets budgets;
    std::vector<double> slowness;  // by rank, if not folded
};

struct LinkLoad {
    std::string name;
    double busy = 0;   // the share of the step in which it carries bytes
    double bytes = 0;  // of one rank in a step
};

struct Answer {
    uint32_t ranks = 0;
    uint64_t parameters = 0;
    uint64_t parameters_max = 0;  // of this shape, with more layers
    double step_s = 0;            // expected: with the model's share of missed steps
    double compute_s = 0;
    double hit_step_s = 0;     // of a step without a miss
    double miss_step_s = 0;    // with the time that it costs later steps; 0: nothing can miss
    uint64_t speculated = 0;   // parameters, of all ranks
    double flops_per_gpu = 0;  // per second, with recomputation
    double useful_flops_per_gpu = 0;  // without
    std::string flop_convention;
    std::array<double, kCauses> stall_s = {};
    Bound bound;
    std::vector<LinkLoad> links;
    Budgets budgets;                             // of one rank
    uint64_t rest_bytes[kSimulatedPlaces] = {};  // by tier, of one rank
    uint64_t peak_bytes[kSimulatedPlaces] = {};
    uint64_t block_bytes = 0;
    uint64_t tensors = 0;
    uint64_t gathers = 0;  // in a step; tensors that are still gathered are not counted
    uint64_t events = 0;
    std::vector<Instant> rank_step_ns;  // of each simulated rank, of a step without a miss
};

Result<Answer> simulate(const Model &model, const Machine &machine, const Options &options);
Bound bound_of(const Layout &layout, const Model &model, const Machine &machine);

}  // namespace stepwell::simulate
