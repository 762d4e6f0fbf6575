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
    bool frozen = false;  // no gradient, no state; backward computes the gradient of its input only
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
    Home activations = Home::kDevice;  // of each layer, if they are not recomputed
};

// All of a micro-batch before the next one, or all of a layer before the next layer. Activations,
// checkpoints and work of a model are of all of them.
struct MicroBatches {
    uint32_t count = 1;
    bool vertical = false;
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
    uint64_t lora_rank = 0;  // the matrices are frozen, with two small factors beside each; 0: no
    uint64_t experts = 1;    // feed-forward parts of a layer, each for its share of the tokens
    uint64_t experts_active = 1;  // for a token
};

struct Model {
    std::string name;
    std::vector<Layer> layers;
    uint64_t parameter_bytes = 2;  // of each parameter, as used in computations
    uint64_t gradient_bytes = 2;
    uint64_t state_bytes = 12;    // of each parameter, for the optimizer, with whole fp32 masters
    bool splits_masters = false;  // of bf16 parameters: the host has only what they lack
    uint64_t working_bytes = 0;   // of activations between two checkpoints
    uint32_t model_parallel = 1;
    MicroBatches micro_batches;
    bool recomputes = true;  // repeats the forward pass between two checkpoints
    Update update = Update::kBackward;
    double miss_rate = 0;  // the share of steps whose speculated updates are made again
    Placement placement;
    bool is_transformer = false;
    Transformer transformer;  // from which the layers were made

    [[nodiscard]] uint64_t parameters() const;
    [[nodiscard]] uint64_t layer_count() const;
    // Of so many parameters that are updated there.
    [[nodiscard]] uint64_t states_of(uint64_t count, bool on_device) const;
    // Of the device: between two checkpoints, and of all layers if they are neither recomputed nor
    // stored elsewhere.
    [[nodiscard]] uint64_t activation_bytes() const;
    // Of a layer and a micro-batch, between its forward and its backward pass: a checkpoint, or its
    // activations; 0: they stay on the device.
    [[nodiscard]] uint64_t kept_bytes(const Layer &layer) const;
    // Activations are tensors, which are evicted and fetched again.
    [[nodiscard]] bool swaps() const
    {
        return !recomputes && placement.activations != Home::kDevice;
    }
    // Forward, backward and recomputation; and without it.
    [[nodiscard]] double step_flops() const { return flops(recomputes ? 2 : 1); }
    [[nodiscard]] double useful_flops() const { return flops(1); }
    [[nodiscard]] static double backward_passes(bool frozen) { return frozen ? 1 : 2; }

private:
    [[nodiscard]] double flops(double forward_passes) const;
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
