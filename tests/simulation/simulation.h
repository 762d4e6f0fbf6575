// SPDX-License-Identifier: Apache-2.0
// A run of the simulation: one seed decides the places, the faults, the program and every delay.
#pragma once

#include <cstdint>
#include <string>

namespace stepwell::simulation {

constexpr uint32_t kBySeed = UINT32_MAX;

struct Options {
    uint64_t seed = 1;
    uint32_t steps_max = 600;
    uint32_t fault_per_million = kBySeed;  // of transfers
    bool keep_journal = false;
};

struct Outcome {
    std::string failure;  // empty: every check held
    uint64_t step = 0;    // of the failure
    uint64_t events = 0;  // into the core
    uint64_t transfers = 0;
    uint64_t grants = 0;
    uint64_t refusals = 0;
    std::string journal;
};

// A random program on one rank.
Outcome run_program(const Options &options);
// Ranks that make the same calls, each with its own delays and its own local load.
Outcome run_ranks(const Options &options);
// 8 to 64 of them, with ranks that are slow, cannot read their shards, or are gone half way.
Outcome run_many_ranks(const Options &options);

// The failure of a run, with the journal of a second one that kept it; "" when all is well.
std::string run(const Options &options, Outcome (*program)(const Options &) = run_program);

}  // namespace stepwell::simulation
