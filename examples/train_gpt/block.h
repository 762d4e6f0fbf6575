// SPDX-License-Identifier: Apache-2.0
//
// One transformer block, forward and backward, the embedding and the head, over raw pointers.
// Runs on the caller's thread and the pool; does not know where the weights live.

#ifndef TRAIN_GPT_BLOCK_H
#define TRAIN_GPT_BLOCK_H

#include "attention.h"
#include "pool.h"

#include <array>
#include <cstdint>

namespace train_gpt {

constexpr uint32_t kVocabulary = 256;  // a token is a byte

// The tensors of a block; those of the attention half come first.
enum Slot : uint32_t {
    kNorm1Gain,
    kNorm1Bias,
    kQkvWeight,
    kQkvBias,
    kProjectWeight,
    kProjectBias,
    kNorm2Gain,
    kNorm2Bias,
    kExpandWeight,
    kExpandBias,
    kContractWeight,
    kContractBias,
    kSlots
};
constexpr uint32_t kAttentionSlots = kNorm2Gain;

using Weights = std::array<const float *, kSlots>;
using Gradients = std::array<float *, kSlots>;

// Every byte of activations outside Stepwell: one mapping, made once.
class Workspace {
public:
    Workspace(const Shape &shape, uint32_t threads, uint32_t checkpoints);
    ~Workspace();
    Workspace(const Workspace &) = delete;
    Workspace &operator=(const Workspace &) = delete;

    uint64_t bytes() const { return bytes_; }  // of the mapping; 0: it could not be made

    float *stream = nullptr;   // [rows, width], the residual stream of forward
    float *dstream = nullptr;  // its gradient
    float *norm1 = nullptr;    // [rows, width]
    float *norm2 = nullptr;
    float *attention = nullptr;
    float *middle = nullptr;  // the stream between the two halves
    float *dnorm = nullptr;
    float *qkv = nullptr;       // [rows, 3 width]
    float *expanded = nullptr;  // [rows, 4 width]; its gradient and that of qkv reuse these two
    float *gelu = nullptr;
    float *logits = nullptr;   // [rows, vocabulary], lies in `expanded`
    float *scratch = nullptr;  // of attention, per thread
    float *mean1 = nullptr;    // [rows]
    float *rstd1 = nullptr;
    float *mean2 = nullptr;
    float *rstd2 = nullptr;
    float *losses = nullptr;
    float *checkpoints = nullptr;  // [checkpoints, rows, width]

private:
    uint64_t layout(const Shape &shape, uint32_t threads, uint32_t checkpoints, float *base);

    void *mapping_ = nullptr;
    uint64_t bytes_ = 0;
};

// One thread at a time; the pool and the workspace outlive it. shape.batch and shape.sequence may
// be smaller than the workspace was made for.
class Block {
public:
    Block(Pool &pool, Workspace &space, const Shape &shape);

    // workspace.stream becomes the block's output.
    void forward(const Weights &weights);
    // Makes again, from the block's input x, what backward needs.
    void recompute(const Weights &weights, const float *x);
    // workspace.dstream becomes the gradient at the middle, then at the block's input. Each half
    // writes its slots of the gradients.
    void backward_mlp(const Weights &weights, const Gradients &gradients);
    void backward_attention(const Weights &weights, const Gradients &gradients, const float *x);

private:
    void up_to_expanded(const Weights &weights, const float *x);

    Pool &pool_;
    Workspace &space_;
    Shape shape_;
};

struct HeadWeights {
    const float *gain;
    const float *bias;
    const float *tokens;  // the embedding table: the head is tied to it
};
struct HeadGradients {
    float *gain;
    float *bias;
    float *tokens;
};

void embed(Pool &pool, Workspace &space, const Shape &shape, const uint8_t *tokens,
           const float *token_table, const float *position_table);
void embed_gradient(Pool &pool, Workspace &space, const Shape &shape, const uint8_t *tokens,
                    float *token_gradient, float *position_gradient);
// workspace.stream to workspace.logits.
void head_forward(Pool &pool, Workspace &space, const Shape &shape, const HeadWeights &weights);
// workspace.logits become their gradient. `rows` is what the loss is the mean of, the rows of this
// rank and of others; the result is what these rows give to it.
double head_loss(Pool &pool, Workspace &space, const Shape &shape, const uint8_t *targets,
                 uint32_t rows);
// workspace.logits to workspace.dstream.
void head_backward(Pool &pool, Workspace &space, const Shape &shape, const HeadWeights &weights,
                   const HeadGradients &gradients);

}  // namespace train_gpt

#endif
