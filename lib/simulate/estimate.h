// SPDX-License-Identifier: Apache-2.0
// The smallest budgets with which a model trains at all, and as fast as with all there is. Pure.
#pragma once

#include "lib/simulate/simulate.h"

namespace stepwell::simulate {

constexpr uint32_t kEstimateShares = 16;  // resolution of the search, in shares of a tier's memory

struct Estimate {
    Answer whole;                  // with the whole machine
    Answer fast;                   // with the smallest budgets that are as fast
    Answer least;                  // with the smallest budgets that every fetch fits into
    std::string limit;             // of a step, with any budgets
    uint64_t parameter_bytes = 0;  // of the whole model, as are the next two
    uint64_t gradient_bytes = 0;
    uint64_t state_bytes = 0;
    // The share of a step in which the GPU waits, with the whole machine; up to 1/50 counts as
    // training without stall.
    double waits = 0;
    bool without_stall = false;
};

// A step is as fast if it takes at most 1/100 longer. Tiers are reduced one after the other, the
// device first, in steps of a sixteenth.
Result<Estimate> estimate(const Model &model, const Machine &machine, const Options &options);

}  // namespace stepwell::simulate
