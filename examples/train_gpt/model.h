// SPDX-License-Identifier: Apache-2.0
//
// The model as Stepwell tensors: what exists, how it is named and initialised, which of it is
// fetched together. Owns the tensors and the optimizer; holds no bytes itself. One thread.

#ifndef TRAIN_GPT_MODEL_H
#define TRAIN_GPT_MODEL_H

#include "block.h"

#include <stepwell/stepwell.h>

#include <string>
#include <vector>

namespace train_gpt {

struct Layer {
    stw_tensor *parameters[kSlots];
    stw_tensor *gradients[kSlots];
};

// What is not in a block. The head is tied to the table of tokens.
enum Outer : uint32_t { kTokens, kPositions, kFinalGain, kFinalBias, kOuters };

struct ModelOptions {
    Shape shape;  // of a micro-batch of this rank
    uint32_t layers;
    uint64_t seed;
    bool checkpoints;  // as tensors
    bool durable;      // parameters and moments are part of generations
    uint32_t micro_batches = 1;
    uint32_t together = 1;  // of them, which a layer computes before the next layer does

    // The input of each layer waits from forward to backward. With several micro-batches the
    // output of the last layer also waits, for the head.
    uint32_t checkpoint_count() const { return together > 1 ? (layers + 1) * together : layers; }
};

struct ModelSize {
    uint64_t parameters;
    uint64_t state_bytes;  // parameters, gradients, two moments: of all ranks together
    uint64_t checkpoint_bytes;
    double flops_per_step;  // of the matrix products, forward, recomputation and backward
};
ModelSize model_size(const ModelOptions &options);

class Model {
public:
    Model(stw_runtime *runtime, const ModelOptions &options);
    ~Model();
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    // Streams the first contents into the tensors, a piece at a time.
    void initialise();
    // What of parameters, gradients and moments lies on this rank.
    uint64_t own_state_bytes() const;

    const ModelOptions &options() const { return options_; }
    const Layer &layer(uint32_t index) const { return layers_[index]; }
    // The stream before `layer`, of one of the micro-batches that are computed together; or NULL.
    stw_tensor *checkpoint(uint32_t layer, uint32_t place) const
    {
        return options_.checkpoints ? checkpoints_[layer * options_.together + place] : nullptr;
    }
    stw_tensor *parameter(Outer which) const { return parameters_[which]; }
    stw_tensor *gradient(Outer which) const { return gradients_[which]; }
    stw_optimizer *optimizer() const { return optimizer_; }

private:
    void create_outer();
    void create_layer(uint32_t index);
    void create_checkpoints(const std::string &name);
    void create_optimizer();
    stw_tensor *create(const stw_tensor_spec &spec);
    void fill_normal(stw_tensor *tensor, double deviation);

    stw_runtime *runtime_;  // not owned, outlives the model
    ModelOptions options_;
    std::vector<Layer> layers_;
    std::vector<stw_tensor *> checkpoints_;  // layer by layer
    stw_tensor *parameters_[kOuters] = {};
    stw_tensor *gradients_[kOuters] = {};
    stw_optimizer *optimizer_ = nullptr;
    std::vector<stw_tensor *> tensors_;  // all of them, in creation order
    uint64_t filled_ = 0;                // tensors with random contents so far
};

// The weights that decay; vectors do not.
constexpr uint32_t kDecayGroup = 0;
constexpr uint32_t kPlainGroup = 1;

}  // namespace train_gpt

#endif
