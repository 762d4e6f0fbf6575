// SPDX-License-Identifier: Apache-2.0
//
// A GPU: each call enqueues its work on one stream, on which the trainer fetches and releases.

#include "arithmetic.h"
#include "block_cuda.h"

#include <algorithm>

namespace train_gpt {

namespace {

class OnGpu final : public Arithmetic {
public:
    OnGpu(const Shape &shape, uint32_t checkpoints)
        : plane_(uint64_t{shape.rows()} * shape.width), gpu_(0), space_(gpu_, shape, checkpoints)
    {
    }

    const char *device_driver() const override { return "cuda"; }
    void *stream() const override { return gpu_.stream(); }
    bool on_processor() const override { return false; }
    uint64_t activation_bytes() const override { return space_.bytes(); }
    std::string name() const override { return gpu_.name() + ", fp32"; }
    float *checkpoint(uint32_t layer) override
    {
        return reinterpret_cast<float *>(space_.checkpoints) + layer * plane_;
    }

    void embed(const Shape &shape, const uint8_t *tokens, const float *token_table,
               const float *position_table) override
    {
        upload(space_.tokens, tokens, 0, shape.rows());
        launches(shape).embed(token_table, position_table);
    }
    void keep_input(const Shape &shape, float *checkpoint) override
    {
        gpu_.copy_inside(address(checkpoint), space_.stream,
                         uint64_t{shape.rows()} * shape.width * sizeof(float));
    }
    void forward(const Shape &shape, const Weights &weights) override
    {
        launches(shape).forward(weights);
    }
    void head_forward(const Shape &shape, const HeadWeights &weights) override
    {
        launches(shape).head_forward(weights);
    }
    void head_backward(const Shape &shape, const HeadWeights &weights,
                       const HeadGradients &gradients, const uint8_t *targets,
                       uint32_t rows) override
    {
        upload(space_.targets, targets, shape.rows(), shape.rows());
        launches(shape).head_loss(rows);
        losses_ = shape.rows();
        mean_of_ = rows;
        gpu_.copy_to_host(space_.host_numbers, space_.losses, losses_ * sizeof(float));
        launches(shape).head_backward(weights, gradients);
    }
    void recompute(const Shape &shape, const Weights &weights, const float *input) override
    {
        launches(shape).recompute(weights, address(input));
    }
    void backward_mlp(const Shape &shape, const Weights &weights,
                      const Gradients &gradients) override
    {
        launches(shape).backward_mlp(weights, gradients);
    }
    void backward_attention(const Shape &shape, const Weights &weights, const Gradients &gradients,
                            const float *input) override
    {
        launches(shape).backward_attention(weights, gradients, address(input));
    }
    void embed_gradient(const Shape &shape, const uint8_t *, float *token_gradient,
                        float *position_gradient) override
    {
        launches(shape).embed_gradient(token_gradient, position_gradient);
    }

    double loss() override
    {
        gpu_.wait();
        double sum = 0.0;
        for (uint32_t row = 0; row < losses_; ++row) sum += space_.host_numbers[row];
        return sum / mean_of_;
    }
    const float *logits(uint32_t row) override
    {
        gpu_.copy_to_host(space_.host_numbers,
                          space_.logits + uint64_t{row} * kVocabulary * sizeof(float),
                          kVocabulary * sizeof(float));
        gpu_.wait();
        return space_.host_numbers;
    }

private:
    static uint64_t address(const float *pointer) { return reinterpret_cast<uintptr_t>(pointer); }
    gpu::Launches launches(const Shape &shape) { return {gpu_, space_, shape}; }

    // What the step before took from the same place is over: loss() and logits() wait for it.
    void upload(uint64_t to, const uint8_t *bytes, uint32_t at, uint32_t count)
    {
        std::copy_n(bytes, count, space_.host_tokens + at);
        gpu_.copy_to_device(to, space_.host_tokens + at, count);
    }

    const uint64_t plane_;
    gpu::Gpu gpu_;
    gpu::Workspace space_;
    uint32_t losses_ = 0;
    uint32_t mean_of_ = 1;
};

}  // namespace

std::unique_ptr<Arithmetic> make_arithmetic(const Options &, const Shape &shape,
                                            uint32_t checkpoints)
{
    return std::make_unique<OnGpu>(shape, checkpoints);
}

}  // namespace train_gpt
