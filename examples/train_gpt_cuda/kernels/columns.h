// SPDX-License-Identifier: Apache-2.0
//
// Sums over rows: gradients of vectors and of the tables of the embedding. No two threads add to
// the same number: each sum has its owner, or lanes that are added in order.

#ifndef TRAIN_GPT_CUDA_COLUMNS_H
#define TRAIN_GPT_CUDA_COLUMNS_H

#include "arguments.h"
#include "portable.h"

namespace train_gpt::gpu {

inline constexpr uint32_t kColumns = 32;  // of a thread block: a warp reads 128 bytes of a row
inline constexpr uint32_t kLanes = 16;    // lane l adds rows l, l + 16, ...
inline constexpr uint32_t kColumnThreads = kColumns * kLanes;
inline constexpr uint32_t kTableThreads = 128;

template <uint32_t N> struct ColumnSums {
    float at[N];
};
template <uint32_t N> struct ColumnMemory {
    ColumnSums<N> lanes[kLanes][kColumns];
};

// add(row, column, sums) for each element, put(column, sums) at the end.
template <uint32_t N, class Block, class AddTo, class Put>
GPT_CODE void sum_columns_of(Block &block, uint32_t rows, uint32_t width, const AddTo &add,
                             const Put &put)
{
    auto &memory = block.template shared<ColumnMemory<N>>();
    block.each_thread([&](uint32_t thread) {
        const uint32_t lane = thread / kColumns;
        const uint32_t column = block.index() * kColumns + thread % kColumns;
        ColumnSums<N> sums = {};
        for (uint32_t row = lane; row < rows && column < width; row += kLanes)
            add(row, column, sums);
        memory.lanes[lane][thread % kColumns] = sums;
    });
    block.barrier();
    block.each_thread([&](uint32_t thread) {
        const uint32_t column = block.index() * kColumns + thread;
        if (thread >= kColumns || column >= width) return;
        ColumnSums<N> sums = memory.lanes[0][thread];
        for (uint32_t lane = 1; lane < kLanes; ++lane) {
            GPT_UNROLL
            for (uint32_t i = 0; i < N; ++i) sums.at[i] += memory.lanes[lane][thread].at[i];
        }
        put(column, sums);
    });
}

template <class Block> GPT_CODE void sum_columns(Block &block, const ColumnsArguments &arguments)
{
    const float *x = global<const float>(arguments.x);
    const uint32_t width = arguments.width;
    sum_columns_of<1>(
        block, arguments.rows, width,
        [&](uint32_t row, uint32_t column, ColumnSums<1> &sums) {
            sums.at[0] += x[uint64_t{row} * width + column];
        },
        [&](uint32_t column, const ColumnSums<1> &sums) {
            global<float>(arguments.sums)[column] = sums.at[0];
        });
}

template <class Block>
GPT_CODE void norm_backward_weight(Block &block, const NormGradientArguments &arguments)
{
    const float *x = global<const float>(arguments.x);
    const float *dy = global<const float>(arguments.dy);
    const float *mean = global<const float>(arguments.mean);
    const float *rstd = global<const float>(arguments.rstd);
    const uint32_t width = arguments.width;
    sum_columns_of<2>(
        block, arguments.rows, width,
        [&](uint32_t row, uint32_t column, ColumnSums<2> &sums) {
            const uint64_t at = uint64_t{row} * width + column;
            sums.at[0] += dy[at] * (x[at] - mean[row]) * rstd[row];
            sums.at[1] += dy[at];
        },
        [&](uint32_t column, const ColumnSums<2> &sums) {
            global<float>(arguments.dgain)[column] = sums.at[0];
            global<float>(arguments.dbias)[column] = sums.at[1];
        });
}

// A thread block has a token of the vocabulary and adds up the rows that have it.
template <class Block>
GPT_CODE void embed_token_gradient(Block &block, const EmbedGradientArguments &arguments)
{
    const auto *tokens = global<const uint8_t>(arguments.tokens);
    const float *dx = global<const float>(arguments.dx);
    const uint32_t width = arguments.width;
    float *gradient = global<float>(arguments.gradient) + uint64_t{block.index()} * width;
    block.each_thread([&](uint32_t thread) {
        for (uint32_t column = thread; column < width; column += kTableThreads) {
            float sum = 0.0F;
            for (uint32_t row = 0; row < arguments.rows; ++row) {
                if (tokens[row] == block.index()) sum += dx[uint64_t{row} * width + column];
            }
            gradient[column] += sum;
        }
    });
}

// A thread block has a position and adds up what all sequences have there.
template <class Block>
GPT_CODE void embed_position_gradient(Block &block, const EmbedGradientArguments &arguments)
{
    const float *dx = global<const float>(arguments.dx);
    const uint32_t width = arguments.width;
    float *gradient = global<float>(arguments.gradient) + uint64_t{block.index()} * width;
    block.each_thread([&](uint32_t thread) {
        for (uint32_t column = thread; column < width; column += kTableThreads) {
            float sum = 0.0F;
            for (uint32_t row = block.index(); row < arguments.rows; row += arguments.sequence)
                sum += dx[uint64_t{row} * width + column];
            gradient[column] = sum;
        }
    });
}

}  // namespace train_gpt::gpu

#endif
