// SPDX-License-Identifier: Apache-2.0
//
// Matrix products in fp32. A thread block makes a tile of 128 x 128 of the result and each thread 8
// x 8 of it in registers, while the operands go by in slices of 8: the next slice is loaded from
// memory while the threads multiply the one that is shared. Sums run over k in order, so a result
// is a function of the operands alone.

#ifndef TRAIN_GPT_CUDA_MATMUL_H
#define TRAIN_GPT_CUDA_MATMUL_H

#include "arguments.h"
#include "portable.h"

namespace train_gpt::gpu {

inline constexpr uint32_t kTile = 128;
inline constexpr uint32_t kDepth = 8;
inline constexpr uint32_t kMatmulThreads = 256;
inline constexpr uint32_t kThreadColumns = 16;  // threads side by side
inline constexpr uint32_t kHalf = kTile / 2;
// Four floats more than a row has: what a warp stores goes to different banks.
inline constexpr uint32_t kTileRow = kTile + 4;

struct MatmulMemory {
    alignas(16) float a[2][kDepth][kTileRow];
    alignas(16) float b[2][kDepth][kTileRow];
};

struct Accumulators {
    float at[8][8];
};

// A matrix [k, i] as the products see it: its slices are 8 of k times 128 of i. In memory it lies
// that way (kAcross) or the other way round.
template <bool kAcross> struct Slices {
    const float *data;
    uint32_t stride;
    uint32_t size;  // of i
    bool fours;     // every fourth float of a row has an address that is a multiple of 16

    // Where in a slice the four floats are that a thread brings.
    GPT_CODE static uint32_t depth(uint32_t thread)
    {
        return kAcross ? thread / (kTile / 4) : thread % 2 * 4;
    }
    GPT_CODE static uint32_t place(uint32_t thread)
    {
        return kAcross ? thread % (kTile / 4) * 4 : thread / 2;
    }

    // Zeros where the matrix ends.
    GPT_CODE Four load(uint32_t thread, uint32_t begin, uint32_t k_begin, uint32_t k_end) const
    {
        const uint32_t i = begin + place(thread);
        const uint32_t k = k_begin + depth(thread);
        Four four = {};
        if (i >= size || k >= k_end) return four;
        const float *from =
            kAcross ? data + uint64_t{k} * stride + i : data + uint64_t{i} * stride + k;
        const uint32_t there = kAcross ? size - i : k_end - k;
        if (fours && there >= 4) return load_four(from);
        GPT_UNROLL
        for (uint32_t j = 0; j < 4; ++j) {
            if (j < there) four.at[j] = from[j];
        }
        return four;
    }
    GPT_CODE static void put(float (&slice)[kDepth][kTileRow], uint32_t thread, const Four &four)
    {
        if constexpr (kAcross) {
            store_four(&slice[depth(thread)][place(thread)], four);
        } else {
            GPT_UNROLL
            for (uint32_t j = 0; j < 4; ++j) slice[depth(thread) + j][place(thread)] = four.at[j];
        }
    }
};

// Eight numbers of a slice that a thread multiplies: four of each half.
GPT_CODE void take_eight(const float *row, uint32_t first, float (&eight)[8])
{
    const Four low = load_four(row + first);
    const Four high = load_four(row + kHalf + first);
    GPT_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
        eight[j] = low.at[j];
        eight[4 + j] = high.at[j];
    }
}

GPT_CODE void multiply_slice(const float (&a)[kDepth][kTileRow], const float (&b)[kDepth][kTileRow],
                             uint32_t row, uint32_t column, Accumulators &sums)
{
    GPT_UNROLL
    for (uint32_t k = 0; k < kDepth; ++k) {
        float left[8];
        float right[8];
        take_eight(a[k], row, left);
        take_eight(b[k], column, right);
        GPT_UNROLL
        for (uint32_t i = 0; i < 8; ++i) {
            GPT_UNROLL
            for (uint32_t j = 0; j < 8; ++j) sums.at[i][j] += left[i] * right[j];
        }
    }
}

// One tile of one matrix of the batch.
struct TileOf {
    const MatmulArguments &arguments;
    uint32_t batch, row, column;

    GPT_CODE uint64_t offset(const Batch &of) const
    {
        return batch / arguments.inner * of.outer_step + batch % arguments.inner * of.inner_step;
    }
    GPT_CODE uint32_t k_begin() const { return arguments.mask == kMaskRows ? row : 0; }
    GPT_CODE uint32_t k_end() const
    {
        const bool ends = arguments.mask == kMaskColumns && row + kTile < arguments.k;
        return ends ? row + kTile : arguments.k;
    }
    GPT_CODE bool is_masked() const
    {
        return arguments.mask == kMaskResult && column > row + kTile - 1;
    }

    // Four floats of a row of the result.
    GPT_CODE void store(uint64_t at, uint32_t first, Four four, bool fours) const
    {
        const uint32_t there = arguments.n - first < 4 ? arguments.n - first : 4;
        const float *bias = global<const float>(arguments.bias);
        const float *residual = global<const float>(arguments.residual);
        GPT_UNROLL
        for (uint32_t j = 0; j < 4; ++j) {
            if (j >= there) continue;
            four.at[j] *= arguments.alpha;
            if (arguments.bias != 0) four.at[j] += bias[first + j];
            if (arguments.residual != 0) four.at[j] += residual[at + j];
        }
        float *to = global<float>(arguments.c) + at;
        if (fours && there == 4) return store_four(to, four);
        GPT_UNROLL
        for (uint32_t j = 0; j < 4; ++j) {
            if (j < there) to[j] = four.at[j];
        }
    }
    GPT_CODE void store_all(uint32_t thread_row, uint32_t thread_column,
                            const Accumulators &sums) const
    {
        const uint64_t begin = offset(arguments.c_batch);
        const bool fours =
            is_whole(global<float>(arguments.c) + begin) && arguments.c_stride % 4 == 0;
        GPT_UNROLL
        for (uint32_t i = 0; i < 8; ++i) {
            const uint32_t at_row = row + thread_row + (i < 4 ? i : kHalf + i - 4);
            if (at_row >= arguments.m) continue;
            GPT_UNROLL
            for (uint32_t half = 0; half < 2; ++half) {
                const uint32_t first = column + thread_column + half * kHalf;
                if (first >= arguments.n) continue;
                const float(&from)[8] = sums.at[i];
                const Four four = {
                    {from[4 * half], from[4 * half + 1], from[4 * half + 2], from[4 * half + 3]}};
                store(begin + uint64_t{at_row} * arguments.c_stride + first, first, four, fours);
            }
        }
    }
};

template <bool kAcross>
GPT_CODE Slices<kAcross> slices_of(uint64_t matrix, uint64_t offset, uint32_t stride, uint32_t size)
{
    const float *data = global<const float>(matrix) + offset;
    return {data, stride, size, is_whole(data) && stride % 4 == 0};
}

template <bool kTransposedA, bool kTransposedB, class Block>
GPT_CODE void multiply_tile(Block &block, const TileOf &tile)
{
    const MatmulArguments &arguments = tile.arguments;
    auto &memory = block.template shared<MatmulMemory>();
    const auto a = slices_of<kTransposedA>(arguments.a, tile.offset(arguments.a_batch),
                                           arguments.a_stride, arguments.m);
    const auto b = slices_of<!kTransposedB>(arguments.b, tile.offset(arguments.b_batch),
                                            arguments.b_stride, arguments.n);
    const uint32_t k_begin = tile.k_begin();
    const uint32_t k_end = tile.k_end();
    PerThread<Accumulators, kMatmulThreads> sums;

    block.each_thread([&](uint32_t thread) {
        a.put(memory.a[0], thread, a.load(thread, tile.row, k_begin, k_end));
        b.put(memory.b[0], thread, b.load(thread, tile.column, k_begin, k_end));
    });
    block.barrier();
    uint32_t now = 0;
    for (uint32_t k = k_begin; k < k_end; k += kDepth, now ^= 1) {
        block.each_thread([&](uint32_t thread) {
            const bool more = k + kDepth < k_end;
            Four next_a = {};
            Four next_b = {};
            if (more) {
                next_a = a.load(thread, tile.row, k + kDepth, k_end);
                next_b = b.load(thread, tile.column, k + kDepth, k_end);
            }
            const uint32_t row = thread / kThreadColumns * 4;
            const uint32_t column = thread % kThreadColumns * 4;
            if (tile.row + row < arguments.m && tile.column + column < arguments.n)
                multiply_slice(memory.a[now], memory.b[now], row, column, sums[thread]);
            if (more) {
                a.put(memory.a[now ^ 1], thread, next_a);
                b.put(memory.b[now ^ 1], thread, next_b);
            }
        });
        block.barrier();
    }
    block.each_thread([&](uint32_t thread) {
        tile.store_all(thread / kThreadColumns * 4, thread % kThreadColumns * 4, sums[thread]);
    });
}

template <bool kTransposedA, bool kTransposedB, class Block>
GPT_CODE void matmul(Block &block, const MatmulArguments &arguments)
{
    const uint32_t columns = (arguments.n + kTile - 1) / kTile;
    const uint32_t rows = (arguments.m + kTile - 1) / kTile;
    const uint32_t tile = block.index() % (rows * columns);
    const TileOf of = {arguments, block.index() / (rows * columns), tile / columns * kTile,
                       tile % columns * kTile};
    if (!of.is_masked()) multiply_tile<kTransposedA, kTransposedB>(block, of);
}

template <class Block> GPT_CODE void matmul_plain(Block &block, const MatmulArguments &arguments)
{
    matmul<false, false>(block, arguments);
}
// b is stored [n, k].
template <class Block>
GPT_CODE void matmul_by_transposed(Block &block, const MatmulArguments &arguments)
{
    matmul<false, true>(block, arguments);
}
// a is stored [k, m].
template <class Block>
GPT_CODE void matmul_of_transposed(Block &block, const MatmulArguments &arguments)
{
    matmul<true, false>(block, arguments);
}

}  // namespace train_gpt::gpu

#endif
