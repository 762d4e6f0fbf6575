// SPDX-License-Identifier: Apache-2.0
//
// The activations that are no tensors: one piece of the device's memory, and pinned memory of the
// host for what goes in and out of a step.

#ifndef TRAIN_GPT_CUDA_WORKSPACE_H
#define TRAIN_GPT_CUDA_WORKSPACE_H

#include "attention.h"
#include "gpu.h"

#include <cstdint>

namespace train_gpt::gpu {

class Workspace {
public:
    // micro_batches: how many of this shape a step has.
    Workspace(Gpu &gpu, const Shape &shape, uint32_t checkpoints, uint32_t micro_batches);
    ~Workspace();
    Workspace(const Workspace &) = delete;
    Workspace &operator=(const Workspace &) = delete;

    uint64_t bytes() const { return bytes_; }  // on the device

    uint64_t stream = 0;   // [rows, width], the residual stream of forward
    uint64_t dstream = 0;  // its gradient
    uint64_t norm1 = 0;    // [rows, width]
    uint64_t norm2 = 0;
    uint64_t attention = 0;
    uint64_t middle = 0;  // the stream between the two halves
    uint64_t dnorm = 0;
    uint64_t qkv = 0;       // [rows, 3 width]
    uint64_t expanded = 0;  // [rows, 4 width]; its gradient and that of qkv reuse these two
    uint64_t gelu = 0;
    uint64_t logits = 0;         // [rows, vocabulary], lies in `expanded`
    uint64_t probabilities = 0;  // [batch, heads, sequence, sequence], of one layer
    uint64_t dprobabilities = 0;
    uint64_t mean1 = 0;  // [rows]
    uint64_t rstd1 = 0;
    uint64_t mean2 = 0;
    uint64_t rstd2 = 0;
    uint64_t losses = 0;
    uint64_t tokens = 0;  // bytes [rows]
    uint64_t targets = 0;
    uint64_t checkpoints = 0;  // [checkpoints, rows, width]

    // Of the host.
    uint8_t *host_tokens = nullptr;  // of a step: [rows] for embed, the loss and embed's gradient
    float *host_numbers = nullptr;   // losses of a step, or logits [vocabulary]

private:
    uint64_t layout(const Shape &shape, uint32_t checkpoints);

    Gpu &gpu_;
    uint64_t memory_ = 0;
    uint64_t bytes_ = 0;
};

}  // namespace train_gpt::gpu

#endif
