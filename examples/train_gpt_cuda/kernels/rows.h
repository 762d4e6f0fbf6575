// SPDX-License-Identifier: Apache-2.0
//
// What is computed of a row at a time: layer norm, softmax, cross entropy. A thread block has one
// row; its threads add up every 128th element each, and then their sums by halves.

#ifndef TRAIN_GPT_CUDA_ROWS_H
#define TRAIN_GPT_CUDA_ROWS_H

#include "arguments.h"
#include "portable.h"

namespace train_gpt::gpu {

inline constexpr uint32_t kRowThreads = 128;

// One array for each number that a kernel makes of a row: whoever is late still reads the first
// while others write the second.
struct RowMemory {
    float first[kRowThreads];
    float second[kRowThreads];
};

struct Add {
    GPT_CODE float operator()(float a, float b) const { return a + b; }
};
struct Larger {
    GPT_CODE float operator()(float a, float b) const { return a > b ? a : b; }
};

// Ends with the result in numbers[0], for all threads.
template <class Block, class Join>
GPT_CODE void join_all(Block &block, float (&numbers)[kRowThreads], const Join &join)
{
    block.barrier();
    for (uint32_t half = kRowThreads / 2; half != 0; half /= 2) {
        block.each_thread([&](uint32_t thread) {
            if (thread < half) numbers[thread] = join(numbers[thread], numbers[thread + half]);
        });
        block.barrier();
    }
}

// numbers[0] = term(0) + term(1) + ..., over [0, count).
template <class Block, class Term>
GPT_CODE void sum_row(Block &block, uint32_t count, float (&numbers)[kRowThreads], const Term &term)
{
    block.each_thread([&](uint32_t thread) {
        float sum = 0.0F;
        for (uint32_t i = thread; i < count; i += kRowThreads) sum += term(i);
        numbers[thread] = sum;
    });
    join_all(block, numbers, Add());
}

template <class Block>
GPT_CODE void max_row(Block &block, uint32_t count, float (&numbers)[kRowThreads], const float *x)
{
    block.each_thread([&](uint32_t thread) {
        float top = x[0];
        for (uint32_t i = thread; i < count; i += kRowThreads) top = Larger()(top, x[i]);
        numbers[thread] = top;
    });
    join_all(block, numbers, Larger());
}

template <class Block, class Body>
GPT_CODE void each_element(Block &block, uint32_t count, const Body &body)
{
    block.each_thread([&](uint32_t thread) {
        for (uint32_t i = thread; i < count; i += kRowThreads) body(i);
    });
}

template <class Block> GPT_CODE void norm_forward(Block &block, const NormArguments &arguments)
{
    constexpr float kEpsilon = 1e-5F;
    auto &memory = block.template shared<RowMemory>();
    const uint32_t row = block.index();
    const uint32_t width = arguments.width;
    const float *x = global<const float>(arguments.x) + uint64_t{row} * width;
    const float *gain = global<const float>(arguments.gain);
    const float *bias = global<const float>(arguments.bias);
    float *y = global<float>(arguments.y) + uint64_t{row} * width;
    const float inverse = 1.0F / static_cast<float>(width);

    sum_row(block, width, memory.first, [&](uint32_t i) { return x[i]; });
    const float mean = inverse * memory.first[0];
    sum_row(block, width, memory.second, [&](uint32_t i) { return (x[i] - mean) * (x[i] - mean); });
    const float rstd = 1.0F / square_root(inverse * memory.second[0] + kEpsilon);
    each_element(block, width,
                 [&](uint32_t i) { y[i] = (x[i] - mean) * rstd * gain[i] + bias[i]; });
    block.each_thread([&](uint32_t thread) {
        if (thread != 0) return;
        global<float>(arguments.mean)[row] = mean;
        global<float>(arguments.rstd)[row] = rstd;
    });
}

template <class Block>
GPT_CODE void norm_backward_input(Block &block, const NormGradientArguments &arguments)
{
    auto &memory = block.template shared<RowMemory>();
    const uint32_t row = block.index();
    const uint32_t width = arguments.width;
    const float *x = global<const float>(arguments.x) + uint64_t{row} * width;
    const float *dy = global<const float>(arguments.dy) + uint64_t{row} * width;
    const float *gain = global<const float>(arguments.gain);
    float *dx = global<float>(arguments.dx) + uint64_t{row} * width;
    const float mean = global<const float>(arguments.mean)[row];
    const float rstd = global<const float>(arguments.rstd)[row];
    const float inverse = 1.0F / static_cast<float>(width);

    sum_row(block, width, memory.first, [&](uint32_t i) { return dy[i] * gain[i]; });
    sum_row(block, width, memory.second,
            [&](uint32_t i) { return dy[i] * gain[i] * (x[i] - mean) * rstd; });
    const float along_mean = inverse * memory.first[0];
    const float along_x = inverse * memory.second[0];
    each_element(block, width, [&](uint32_t i) {
        const float before = arguments.adds != 0 ? dx[i] : 0.0F;
        const float change = dy[i] * gain[i] - along_mean - (x[i] - mean) * rstd * along_x;
        dx[i] = before + rstd * change;
    });
}

template <class Block> GPT_CODE void softmax_causal(Block &block, const SoftmaxArguments &arguments)
{
    auto &memory = block.template shared<RowMemory>();
    const uint32_t columns = arguments.columns;
    const uint32_t seen = block.index() % columns + 1;
    float *p = global<float>(arguments.p) + uint64_t{block.index()} * columns;

    max_row(block, seen, memory.first, p);
    const float top = memory.first[0];
    sum_row(block, seen, memory.second, [&](uint32_t i) { return exponential(p[i] - top); });
    const float inverse = 1.0F / memory.second[0];
    each_element(block, columns,
                 [&](uint32_t i) { p[i] = i < seen ? exponential(p[i] - top) * inverse : 0.0F; });
}

template <class Block>
GPT_CODE void softmax_backward(Block &block, const SoftmaxArguments &arguments)
{
    auto &memory = block.template shared<RowMemory>();
    const uint32_t columns = arguments.columns;
    const uint32_t seen = block.index() % columns + 1;
    const float *p = global<const float>(arguments.p) + uint64_t{block.index()} * columns;
    float *dp = global<float>(arguments.dp) + uint64_t{block.index()} * columns;

    sum_row(block, seen, memory.first, [&](uint32_t i) { return p[i] * dp[i]; });
    const float delta = memory.first[0];
    each_element(block, columns, [&](uint32_t i) {
        dp[i] = i < seen ? arguments.scale * p[i] * (dp[i] - delta) : 0.0F;
    });
}

template <class Block>
GPT_CODE void cross_entropy(Block &block, const CrossEntropyArguments &arguments)
{
    auto &memory = block.template shared<RowMemory>();
    const uint32_t row = block.index();
    float *logits = global<float>(arguments.logits) + uint64_t{row} * arguments.classes;
    const uint32_t target = global<const uint8_t>(arguments.targets)[row];

    max_row(block, arguments.classes, memory.first, logits);
    const float top = memory.first[0];
    sum_row(block, arguments.classes, memory.second,
            [&](uint32_t i) { return exponential(logits[i] - top); });
    const float sum = memory.second[0];
    each_element(block, arguments.classes, [&](uint32_t i) {
        const float logit = logits[i] - top;
        if (i == target) global<float>(arguments.losses)[row] = logarithm(sum) - logit;
        const float share = exponential(logit) * (arguments.scale / sum);
        logits[i] = i == target ? share - arguments.scale : share;
    });
}

}  // namespace train_gpt::gpu

#endif
