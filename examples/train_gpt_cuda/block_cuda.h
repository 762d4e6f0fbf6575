// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of train_gpt's block.h as launches on one stream: the same products and kernels in
// the same order, over addresses of the device. Nothing waits.

#ifndef TRAIN_GPT_CUDA_BLOCK_H
#define TRAIN_GPT_CUDA_BLOCK_H

#include "block.h"
#include "gpu.h"
#include "workspace.h"

#include <cstdint>

namespace train_gpt::gpu {

// One thread. The GPU and the workspace outlive it.
class Launches {
public:
    Launches(Gpu &gpu, Workspace &space, const Shape &shape);

    void embed(const float *token_table, const float *position_table);
    void embed_gradient(float *token_gradient, float *position_gradient);
    void forward(const Weights &weights);
    void recompute(const Weights &weights, uint64_t x);
    void backward_mlp(const Weights &weights, const Gradients &gradients);
    void backward_attention(const Weights &weights, const Gradients &gradients, uint64_t x);
    void head_forward(const HeadWeights &weights);
    // workspace.logits become their gradient, workspace.losses the losses of the rows.
    void head_loss(uint32_t rows);
    void head_backward(const HeadWeights &weights, const HeadGradients &gradients);

private:
    void norm_forward(uint64_t x, const float *gain, const float *bias, uint64_t y, uint64_t mean,
                      uint64_t rstd);
    void norm_backward(uint64_t x, const float *gain, uint64_t mean, uint64_t rstd, uint64_t dy,
                       float *dgain, float *dbias, bool adds);
    void linear_forward(uint32_t in, uint32_t out, uint64_t x, const float *w, const float *bias,
                        uint64_t residual, uint64_t y);
    void linear_backward_input(uint32_t in, uint32_t out, uint64_t dy, const float *w, uint64_t dx);
    void linear_backward_weight(uint32_t in, uint32_t out, uint64_t x, uint64_t dy, float *dw);
    void bias_backward(uint32_t width, uint64_t dy, float *dbias);
    void up_to_expanded(const Weights &weights, uint64_t x);
    void attention_forward();
    void attention_backward(uint64_t dout, uint64_t dqkv);
    MatmulArguments per_head(uint32_t m, uint32_t n, uint32_t k) const;
    void multiply(Kernel kernel, const MatmulArguments &arguments);

    Gpu &gpu_;
    Workspace &space_;
    Shape shape_;
};

}  // namespace train_gpt::gpu

#endif
