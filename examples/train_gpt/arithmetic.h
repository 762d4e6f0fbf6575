// SPDX-License-Identifier: Apache-2.0
//
// What the trainer computes with, on the processor or on a GPU: it is given the addresses of views,
// and its work is in the order of one stream, so a call may return before its work is done. Owns
// the activations that are no tensors. arithmetic_cpu.cpp is the processor; the rest of the program
// is the same.

#ifndef TRAIN_GPT_ARITHMETIC_H
#define TRAIN_GPT_ARITHMETIC_H

#include "block.h"
#include "options.h"

#include <memory>
#include <string>

namespace train_gpt {

// One thread at a time. Shapes may have a smaller batch and sequence than the one it was made for.
class Arithmetic {
public:
    Arithmetic() = default;
    virtual ~Arithmetic() = default;
    Arithmetic(const Arithmetic &) = delete;
    Arithmetic &operator=(const Arithmetic &) = delete;

    // Of the device tier whose views these calls take.
    virtual const char *device_driver() const = 0;
    // That views are fetched and released on.
    virtual void *stream() const = 0;
    // The views and the activations are memory of the process.
    virtual bool on_processor() const = 0;
    virtual uint64_t activation_bytes() const = 0;
    // What multiplies, for the user.
    virtual std::string name() const = 0;

    // Where a stream waits when it is no tensor; index: below `checkpoints` of make_arithmetic().
    virtual float *checkpoint(uint32_t index) = 0;

    virtual void embed(const Shape &shape, const uint8_t *tokens, const float *token_table,
                       const float *position_table) = 0;
    // The stream as it is now, the input of the next layer; and back, for another micro-batch.
    virtual void keep_stream(const Shape &shape, float *to) = 0;
    virtual void load_stream(const Shape &shape, const float *from) = 0;
    virtual void forward(const Shape &shape, const Weights &weights) = 0;
    virtual void head_forward(const Shape &shape, const HeadWeights &weights) = 0;

    // The same of the stream's gradient in backward.
    virtual void keep_gradient(const Shape &shape, float *to) = 0;
    virtual void load_gradient(const Shape &shape, const float *from) = 0;

    // `rows` is what the loss is the mean of, those of other micro-batches and ranks too.
    virtual void head_backward(const Shape &shape, const HeadWeights &weights,
                               const HeadGradients &gradients, const uint8_t *targets,
                               uint32_t rows) = 0;
    virtual void recompute(const Shape &shape, const Weights &weights, const float *input) = 0;
    virtual void backward_mlp(const Shape &shape, const Weights &weights,
                              const Gradients &gradients) = 0;
    virtual void backward_attention(const Shape &shape, const Weights &weights,
                                    const Gradients &gradients, const float *input) = 0;
    // token_gradient is added to.
    virtual void embed_gradient(const Shape &shape, const uint8_t *tokens, float *token_gradient,
                                float *position_gradient) = 0;

    // These wait until the work is done. What the rows of each head_backward() since the last call
    // give to the loss, added in that order:
    virtual double loss() = 0;
    // Of one row, after head_forward(); valid until the next call.
    virtual const float *logits(uint32_t row) = 0;
};

// shape: of a micro-batch. checkpoints: how many streams wait in here. Ends the program where there
// is no memory.
std::unique_ptr<Arithmetic> make_arithmetic(const Options &options, const Shape &shape,
                                            uint32_t checkpoints);

}  // namespace train_gpt

#endif
