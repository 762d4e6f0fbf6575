// SPDX-License-Identifier: Apache-2.0
// What a seed decides before a run begins: the places, their budgets, the faults, and the tensors a
// program may make of them.
#pragma once

#include "tests/simulation/machine.h"
#include "tests/simulation/simulation.h"

namespace stepwell::simulation {

struct Setup {
    Config config;
    Faults faults;
    uint32_t all_places = 0;  // bits of those that exist
    uint32_t viewable = 0;    // bits of those where a view can be
    uint32_t cpu = 0;         // bits of those the CPU can work on
    PlaceId farthest = kNoPlace;
    bool full = false;             // tensors fill the tiers, and some are at home in a near one
    bool aliases = false;          // touches without a view are served, at devices
    std::vector<Policy> policies;  // a few, so that small tensors share blocks
};

Setup choose_setup(const Options &options, Random &random);
TensorSpec choose_tensor(const Setup &setup, Random &random, uint32_t number);
// A place where the tensor may be viewed, or kAnyCpuPlace.
PlaceId choose_place(const Setup &setup, Random &random, const Policy &policy);
std::string describe(const Setup &setup);

}  // namespace stepwell::simulation
