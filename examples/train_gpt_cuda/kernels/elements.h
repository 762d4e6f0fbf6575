// SPDX-License-Identifier: Apache-2.0
//
// What is computed of an element at a time: the GELU, in the tanh form of GPT-2, and the embedding.

#ifndef TRAIN_GPT_CUDA_ELEMENTS_H
#define TRAIN_GPT_CUDA_ELEMENTS_H

#include "arguments.h"
#include "portable.h"

namespace train_gpt::gpu {

inline constexpr uint32_t kElementThreads = 256;

inline constexpr float kGeluA = 0.7978845608F;  // sqrt(2 / pi)
inline constexpr float kGeluB = 0.044715F;

// tanh of the inner polynomial; where the exponential is infinite the quotient is 0.
GPT_CODE float gelu_tanh(float x)
{
    const float inner = kGeluA * (x + kGeluB * x * x * x);
    return 1.0F - 2.0F / (exponential(2.0F * inner) + 1.0F);
}

template <class Block, class Body>
GPT_CODE void for_elements(Block &block, uint64_t count, const Body &body)
{
    block.each_thread([&](uint32_t thread) {
        const uint64_t step = uint64_t{block.count()} * kElementThreads;
        uint64_t i = uint64_t{block.index()} * kElementThreads + thread;
        for (; i < count; i += step) body(i);
    });
}

template <class Block> GPT_CODE void gelu_forward(Block &block, const GeluArguments &arguments)
{
    const float *x = global<const float>(arguments.x);
    float *y = global<float>(arguments.y);
    for_elements(block, arguments.count,
                 [&](uint64_t i) { y[i] = 0.5F * x[i] * (1.0F + gelu_tanh(x[i])); });
}

template <class Block> GPT_CODE void gelu_backward(Block &block, const GeluArguments &arguments)
{
    const float *x = global<const float>(arguments.x);
    float *y = global<float>(arguments.y);
    for_elements(block, arguments.count, [&](uint64_t i) {
        const float t = gelu_tanh(x[i]);
        const float slope = kGeluA * (1.0F + 3.0F * kGeluB * x[i] * x[i]);
        y[i] *= 0.5F * (1.0F + t) + 0.5F * x[i] * (1.0F - t * t) * slope;
    });
}

template <class Block> GPT_CODE void embed(Block &block, const EmbedArguments &arguments)
{
    const auto *tokens = global<const uint8_t>(arguments.tokens);
    const float *token_table = global<const float>(arguments.token_table);
    const float *position_table = global<const float>(arguments.position_table);
    float *x = global<float>(arguments.x);
    const uint32_t width = arguments.width;
    for_elements(block, uint64_t{arguments.rows} * width, [&](uint64_t i) {
        const auto row = static_cast<uint32_t>(i / width);
        const auto column = static_cast<uint32_t>(i % width);
        x[i] = token_table[uint64_t{tokens[row]} * width + column] +
               position_table[uint64_t{row % arguments.sequence} * width + column];
    });
}

}  // namespace train_gpt::gpu

#endif
