// SPDX-License-Identifier: Apache-2.0
// The model to train, as data: layers of parts, with parameters, work and checkpoints. A
// transformer is one way to describe it. All figures are for one GPU, except `parameters`, which
// are of the whole model. Pure.
#pragma once

#include "lib/support/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::simulate {

// Gathered, used and dropped as a unit: a matrix, or a tile of one.
struct Part {
    std::string name;
    uint64_t parameters = 0;
    double forward_flops = 0;
};

struct Layer {
    std::string name;
    uint64_t count = 1;  // of consecutive equal layers
    std::vector<Part> parts;
    uint64_t checkpoint_bytes = 0;  // its input, kept for the backward pass; 0: none
    uint64_t activation_bytes = 0;  // kept instead if the model does not recompute them
};

// Where tensors rest between uses.
enum class Home : uint8_t { kAuto, kDevice, kHost, kNvme };

struct Placement {
    Home parameters = Home::kAuto;
    Home gradients = Home::kAuto;
    Home states = Home::kAuto;
    Home checkpoints = Home::kAuto;
};

// When an optimizer's updates run.
enum class Update : uint8_t {
    kPending,      // after the last gradient, beside the next forward pass
    kExposed,      // after the last gradient, all of it before the next step begins
    kBackward,     // each after its gradient, in the backward pass, for good
    kSpeculative,  // likewise, as far as there is room to keep what was before, until the norm is
                   // known; if it has to be clipped they are made again; the rest are pending
};

struct Transformer {
    uint64_t layers = 0;
    uint64_t hidden = 0;
    uint64_t heads = 0;
    uint64_t sequence = 0;
    double batch_per_gpu = 0;  // each GPU's share of the batch of its model-parallel group
    uint64_t blocks_per_checkpoint = 1;
    bool stores_scores = false;  // of attention: without FlashAttention. The work is the same
};

struct Model {
    std::string name;
    std::vector<Layer> layers;
    uint64_t parameter_bytes = 2;  // of each parameter, as used in computations
    uint64_t gradient_bytes = 2;
    uint64_t state_bytes = 12;   // of each parameter, for the optimizer
    uint64_t working_bytes = 0;  // of activations between two checkpoints
    uint32_t model_parallel = 1;
    bool recomputes = true;  // repeats the forward pass between two checkpoints
    Update update = Update::kBackward;
    double miss_rate = 0;  // the share of steps whose speculated updates are made again
    Placement placement;
    bool is_transformer = false;
    Transformer transformer;  // from which the layers were made

    [[nodiscard]] uint64_t parameters() const;
    [[nodiscard]] uint64_t layer_count() const;
    // Of the device: between two checkpoints, and of all layers if they are not recomputed.
    [[nodiscard]] uint64_t activation_bytes() const;
    [[nodiscard]] double step_flops() const;    // forward, backward and recomputation
    [[nodiscard]] double useful_flops() const;  // without recomputation
};

// A layer has twelve tiles of hidden x hidden: four of attention, eight of the feed-forward part.
std::vector<Layer> transformer_layers(const Transformer &transformer);
// For the blocks between two checkpoints, on one GPU of a model-parallel group.
uint64_t transformer_working_bytes(const Transformer &transformer);
// The same model with about that many parameters: layers and hidden size grow together. INVALID if
// it is not a transformer, or if less than one layer is left.
Result<Model> scaled(const Model &model, double parameters);
// With another number of layers; in a list of layers every count changes by the same ratio.
Model with_layers(const Model &model, uint64_t layers);

}  // namespace stepwell::simulate
