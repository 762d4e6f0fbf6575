// SPDX-License-Identifier: Apache-2.0
// The tensors that one rank has of a model, their sizes, and where each rests: by the model's
// placement, else tensor by tensor in the nearest tier with room. Refused if it does not fit, with
// the tensor, the moment and the bytes. Pure.
#pragma once

#include "lib/residency/types.h"
#include "lib/simulate/machine.h"
#include "lib/simulate/model.h"

#include <array>
#include <vector>

namespace stepwell::simulate {

using residency::PlaceId;
using residency::TensorId;

constexpr PlaceId kDevicePlace = 0;
constexpr PlaceId kHostPlace = 1;
constexpr PlaceId kNvmePlace = 2;
constexpr uint32_t kSimulatedPlaces = 3;

// A part of a layer on one rank. Sizes are in `specs`.
struct Tile {
    uint32_t layer = 0;
    uint64_t parameters = 0;  // of all ranks
    double forward_flops = 0;
    bool frozen = false;       // without gradient, state and update
    uint64_t whole_bytes = 0;  // of its model-parallel share, gathered
    uint64_t gradient_whole_bytes = 0;
    uint64_t update_bytes = 0;  // read and written by its update
    TensorId parameter = residency::kNone;
    TensorId gradient = residency::kNone;
    TensorId state = residency::kNone;
    TensorId kept =
        residency::kNone;  // the state before a speculated update; kNone: not speculated
    TensorId whole = residency::kNone;  // kNone: nothing to gather
    // Before the sum. Adjacent tiles use different ones; there are only two in all.
    TensorId gradient_whole = residency::kNone;
    PlaceId update_at = kHostPlace;
};

// For one rank; by default its share of the machine.
struct Budgets {
    uint64_t device_bytes = 0;
    uint64_t host_bytes = 0;
    uint64_t nvme_bytes = 0;
};
Budgets budgets_of(const Machine &machine);

struct Layout {
    uint32_t ranks = 1;
    uint32_t gather_ranks = 1;  // that hold slices of the same tensors
    uint64_t block_bytes = 0;
    Budgets budgets;
    uint32_t tiles_ahead = 0;        // fetched and gathered before they are needed, at most
    uint64_t whole_bytes = 0;        // of the device, for these
    uint64_t host_window_bytes = 0;  // room for updates on the host
    uint64_t working_bytes = 0;      // of the device, without tensors
    uint32_t layers = 0;
    uint32_t kept_sets = 1;  // of checkpoints: micro-batches that have them at once
    std::vector<residency::TensorSpec> specs;
    std::vector<Tile> tiles;  // in the order of the forward pass
    // By layer, then micro-batch: its checkpoint or activations; kNone: none that are a tensor.
    std::vector<TensorId> checkpoints;
    // By micro-batch, if each layer has all of them: the gradient between two layers.
    std::vector<TensorId> between;
    std::vector<TensorId> filled;  // parameters and states: exist before the first step
    uint64_t promised_bytes[kSimulatedPlaces] = {};
    uint64_t rest_bytes[kSimulatedPlaces] = {};  // by home
};

// blocks_max: about the number of blocks for all bytes of a rank; larger blocks are simulated
// faster.
Result<Layout> lay_out(const Model &model, const Machine &machine, uint32_t ranks,
                       const Budgets &budgets, uint64_t blocks_max);
// If something does not fit, the error also gives the bytes by which that tier must grow for all
// of it to fit.
Result<Layout> lay_out_told(const Model &model, const Machine &machine, uint32_t ranks,
                            const Budgets &budgets, uint64_t blocks_max);
// The largest number of layers of this shape that fits; 0: none.
uint64_t layers_max(const Model &model, const Machine &machine, uint32_t ranks,
                    const Budgets &budgets, uint64_t blocks_max);

}  // namespace stepwell::simulate
