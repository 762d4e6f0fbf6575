// SPDX-License-Identifier: Apache-2.0
// What is trained, as data: layers of parts, their parameters, their work, what they leave behind.
// A transformer is one way to say it. All figures are of one GPU, but for `parameters`, which are
// of the whole model. Pure.
#pragma once

#include "lib/support/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::simulate {

// What is gathered, computed with and dropped as one: a matrix, or a tile of one.
struct Part {
    std::string name;
    uint64_t parameters = 0;
    double forward_flops = 0;
};

struct Layer {
    std::string name;
    uint64_t count = 1;  // so many of them, one behind the other
    std::vector<Part> parts;
    uint64_t checkpoint_bytes = 0;  // its input, kept for the backward pass; 0: nothing is kept
};

// Where it rests between two uses.
enum class Home : uint8_t { kAuto, kDevice, kHost, kNvme };

struct Placement {
    Home parameters = Home::kAuto;
    Home gradients = Home::kAuto;
    Home states = Home::kAuto;
    Home checkpoints = Home::kAuto;
};

struct Transformer {
    uint64_t layers = 0;
    uint64_t hidden = 0;
    uint64_t heads = 0;
    uint64_t sequence = 0;
    double batch_per_gpu =
        0;  // of a model-parallel group's batch, what each of its GPUs counts for
    uint64_t blocks_per_checkpoint = 1;
};

struct Model {
    std::string name;
    std::vector<Layer> layers;
    uint64_t parameter_bytes = 2;  // of each, where it is computed with
    uint64_t gradient_bytes = 2;
    uint64_t state_bytes = 12;   // of each parameter, what the optimizer keeps
    uint64_t working_bytes = 0;  // of activations between two checkpoints
    uint32_t model_parallel = 1;
    bool recomputes = true;  // the forward pass once more, between two checkpoints
    Placement placement;
    bool is_transformer = false;
    Transformer transformer;  // what the layers were made of

    [[nodiscard]] uint64_t parameters() const;
    [[nodiscard]] uint64_t layer_count() const;
    [[nodiscard]] double step_flops() const;  // forward, backward, and what is computed again
};

// Twelve tiles of hidden x hidden a layer: four of attention, eight of the feed-forward part.
std::vector<Layer> transformer_layers(const Transformer &transformer);
// Of the blocks between two checkpoints, on one GPU of a model-parallel group.
uint64_t transformer_working_bytes(const Transformer &transformer);
// The same model with about so many parameters: layers and hidden size grow together. INVALID for
// one that is no transformer, or where fewer than one layer is left.
Result<Model> scaled(const Model &model, double parameters);
// The same with another number of layers; of a layer list, every count by the same ratio.
Model with_layers(const Model &model, uint64_t layers);

}  // namespace stepwell::simulate
