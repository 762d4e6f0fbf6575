// SPDX-License-Identifier: Apache-2.0
//
// The processor: each call is done when it returns.

#include "arithmetic.h"

#include "gemm.h"
#include "must.h"

#include <algorithm>
#include <utility>

namespace train_gpt {

namespace {

class Processor final : public Arithmetic {
public:
    Processor(const Options &options, const Shape &shape, uint32_t checkpoints)
        : plane_(uint64_t{shape.rows()} * shape.width),
          pool_(options.threads),
          space_(shape, options.threads, checkpoints)
    {
        gemm_init();
        if (space_.bytes() == 0)
            give_up("no memory for the activations; take a smaller --batch, --sequence or --width");
    }

    const char *device_driver() const override { return "cpu"; }
    void *stream() const override { return STW_STREAM_HOST; }
    bool on_processor() const override { return true; }
    uint64_t activation_bytes() const override { return space_.bytes(); }
    std::string name() const override
    {
        return std::to_string(pool_.threads()) + " threads, OpenBLAS kernels " + gemm_kernels();
    }
    float *checkpoint(uint32_t index) override { return space_.checkpoints + index * plane_; }

    void embed(const Shape &shape, const uint8_t *tokens, const float *token_table,
               const float *position_table) override
    {
        train_gpt::embed(pool_, space_, shape, tokens, token_table, position_table);
    }
    void keep_stream(const Shape &shape, float *to) override
    {
        std::copy_n(space_.stream, uint64_t{shape.rows()} * shape.width, to);
    }
    void load_stream(const Shape &shape, const float *from) override
    {
        std::copy_n(from, uint64_t{shape.rows()} * shape.width, space_.stream);
    }
    void keep_gradient(const Shape &shape, float *to) override
    {
        std::copy_n(space_.dstream, uint64_t{shape.rows()} * shape.width, to);
    }
    void load_gradient(const Shape &shape, const float *from) override
    {
        std::copy_n(from, uint64_t{shape.rows()} * shape.width, space_.dstream);
    }
    void forward(const Shape &shape, const Weights &weights) override
    {
        Block(pool_, space_, shape).forward(weights);
    }
    void head_forward(const Shape &shape, const HeadWeights &weights) override
    {
        train_gpt::head_forward(pool_, space_, shape, weights);
    }
    void head_backward(const Shape &shape, const HeadWeights &weights,
                       const HeadGradients &gradients, const uint8_t *targets,
                       uint32_t rows) override
    {
        loss_ += head_loss(pool_, space_, shape, targets, rows);
        train_gpt::head_backward(pool_, space_, shape, weights, gradients);
    }
    void recompute(const Shape &shape, const Weights &weights, const float *input) override
    {
        Block(pool_, space_, shape).recompute(weights, input);
    }
    void backward_mlp(const Shape &shape, const Weights &weights,
                      const Gradients &gradients) override
    {
        Block(pool_, space_, shape).backward_mlp(weights, gradients);
    }
    void backward_attention(const Shape &shape, const Weights &weights, const Gradients &gradients,
                            const float *input) override
    {
        Block(pool_, space_, shape).backward_attention(weights, gradients, input);
    }
    void embed_gradient(const Shape &shape, const uint8_t *tokens, float *token_gradient,
                        float *position_gradient) override
    {
        train_gpt::embed_gradient(pool_, space_, shape, tokens, token_gradient, position_gradient);
    }
    double loss() override { return std::exchange(loss_, 0.0); }
    const float *logits(uint32_t row) override
    {
        return space_.logits + uint64_t{row} * kVocabulary;
    }

private:
    const uint64_t plane_;
    Pool pool_;
    Workspace space_;
    double loss_ = 0.0;
};

}  // namespace

std::unique_ptr<Arithmetic> make_arithmetic(const Options &options, const Shape &shape,
                                            uint32_t checkpoints)
{
    return std::make_unique<Processor>(options, shape, checkpoints);
}

}  // namespace train_gpt
