// SPDX-License-Identifier: Apache-2.0
// A checkpoint of safetensors as a model: its headers have names, dtypes and shapes of all tensors.
// Throws Refused.
#pragma once

#include "lib/simulate/model.h"

#include <string>

namespace stepwell::cli {

// The settings of a training that a checkpoint does not contain.
struct CheckpointUse {
    std::string optimizer = "adamw";  // adamw, momentum, adagrad, sgd
    double tokens = 2048;             // of a step, on a GPU
    uint64_t activation_bytes = 0;    // saved in a step for the backward pass
};

// A file of safetensors, or a directory with such files.
bool is_checkpoint(const std::string &path);
// Layers are the tensors whose names have the same prefix up to a number, in the order of these
// numbers; before them is one layer of all other tensors. Tensors of integers are frozen.
simulate::Model read_checkpoint(const std::string &path, const CheckpointUse &use);

}  // namespace stepwell::cli
