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
    OnGpu(const Shape &shape, uint32_t checkpoints, uint32_t micro_batches)
        : plane_(uint64_t{shape.rows()} * shape.width),
          gpu_(0),
          space_(gpu_, shape, checkpoints, micro_batches)
    {
    }

    const char *device_driver() const override { return "cuda"; }
    void *stream() const override { return gpu_.stream(); }
    bool on_processor() const override { return false; }
    uint64_t activation_bytes() const override { return space_.bytes(); }
    std::string name() const override { return gpu_.name() + ", fp32"; }
    float *checkpoint(uint32_t index) override
    {
        return reinterpret_cast<float *>(space_.checkpoints) + index * plane_;
    }

    void embed(const Shape &shape, const uint8_t *tokens, const float *token_table,
               const float *position_table) override
    {
        upload(space_.tokens, tokens, shape.rows());
        launches(shape).embed(token_table, position_table);
    }
    void keep_stream(const Shape &shape, float *to) override
    {
        gpu_.copy_inside(address(to), space_.stream, plane_bytes(shape));
    }
    void load_stream(const Shape &shape, const float *from) override
    {
        gpu_.copy_inside(space_.stream, address(from), plane_bytes(shape));
    }
    void keep_gradient(const Shape &shape, float *to) override
    {
        gpu_.copy_inside(address(to), space_.dstream, plane_bytes(shape));
    }
    void load_gradient(const Shape &shape, const float *from) override
    {
        gpu_.copy_inside(space_.dstream, address(from), plane_bytes(shape));
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
        upload(space_.targets, targets, shape.rows());
        launches(shape).head_loss(rows);
        gpu_.copy_to_host(space_.host_numbers + losses_, space_.losses,
                          shape.rows() * sizeof(float));
        losses_ += shape.rows();
        mean_of_ = rows;
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
    void embed_gradient(const Shape &shape, const uint8_t *tokens, float *token_gradient,
                        float *position_gradient) override
    {
        // Those on the device may be of another micro-batch.
        upload(space_.tokens, tokens, shape.rows());
        launches(shape).embed_gradient(token_gradient, position_gradient);
    }

    double loss() override
    {
        wait();
        double sum = 0.0;
        for (uint32_t row = 0; row < losses_; ++row) sum += space_.host_numbers[row];
        losses_ = 0;
        return sum / mean_of_;
    }
    const float *logits(uint32_t row) override
    {
        gpu_.copy_to_host(space_.host_numbers,
                          space_.logits + uint64_t{row} * kVocabulary * sizeof(float),
                          kVocabulary * sizeof(float));
        wait();
        return space_.host_numbers;
    }

private:
    static uint64_t address(const float *pointer) { return reinterpret_cast<uintptr_t>(pointer); }
    static uint64_t plane_bytes(const Shape &shape)
    {
        return uint64_t{shape.rows()} * shape.width * sizeof(float);
    }
    gpu::Launches launches(const Shape &shape) { return {gpu_, space_, shape}; }

    // Each upload of a step has a place of its own, because the device takes it later.
    void upload(uint64_t to, const uint8_t *bytes, uint32_t count)
    {
        uint8_t *from = space_.host_tokens + uploaded_;
        std::copy_n(bytes, count, from);
        gpu_.copy_to_device(to, from, count);
        uploaded_ += count;
    }
    // At the end of a step, or of a prediction: then the device has taken what was uploaded.
    void wait()
    {
        gpu_.wait();
        uploaded_ = 0;
    }

    const uint64_t plane_;
    gpu::Gpu gpu_;
    gpu::Workspace space_;
    uint32_t uploaded_ = 0;  // bytes of host_tokens since the last wait
    uint32_t losses_ = 0;    // since the last loss()
    uint32_t mean_of_ = 1;
};

}  // namespace

std::unique_ptr<Arithmetic> make_arithmetic(const Options &options, const Shape &shape,
                                            uint32_t checkpoints)
{
    return std::make_unique<OnGpu>(shape, checkpoints, options.micro_batches);
}

}  // namespace train_gpt
