// SPDX-License-Identifier: Apache-2.0
//
// What the kernels are given: one struct by value each. Addresses are device addresses, of floats
// where nothing else is said; matrices are row-major. Both compilers see the same layout.

#ifndef TRAIN_GPT_CUDA_ARGUMENTS_H
#define TRAIN_GPT_CUDA_ARGUMENTS_H

#include <cstdint>

namespace train_gpt::gpu {

// What of a product of causal attention need not be computed, by tiles: the mask makes it zero.
enum Mask : uint32_t {
    kNoMask,
    kMaskResult,   // what lies above the diagonal of the result is not written
    kMaskColumns,  // columns of a beyond the row are zero
    kMaskRows      // rows of a (as it is stored) before the row of the result are zero
};

// Where the matrices of a batch lie: number z begins at z / inner x outer_step + z % inner x
// inner_step floats.
struct Batch {
    uint64_t outer_step;
    uint64_t inner_step;
};

// c[m, n] = alpha a b (+ bias[n]) (+ residual[m, n], laid out as c), for each matrix of the batch.
struct MatmulArguments {
    uint64_t a, b, c;
    uint64_t bias, residual;  // 0: none
    Batch a_batch, b_batch, c_batch;
    uint32_t batches, inner;
    uint32_t m, n, k;
    uint32_t a_stride, b_stride, c_stride;  // floats from one row to the next
    float alpha;
    uint32_t mask;
};
static_assert(sizeof(MatmulArguments) == 128);

struct NormArguments {
    uint64_t x, gain, bias, y;
    uint64_t mean, rstd;  // [rows]
    uint32_t rows, width;
};

struct NormGradientArguments {
    uint64_t x, gain, mean, rstd, dy;
    uint64_t dx;            // of the kernel of the input
    uint64_t dgain, dbias;  // of the kernel of the weights
    uint32_t rows, width;
    uint32_t adds;  // dx is added to, else overwritten
    uint32_t reserved;
};

// sums[width] = sums over the rows of x[rows, width]
struct ColumnsArguments {
    uint64_t x, sums;
    uint32_t rows, width;
};

struct GeluArguments {
    uint64_t x;
    uint64_t y;  // forward: gelu(x). Backward: y x the slope at x, in place
    uint64_t count;
};

// Of matrices [columns, columns], one after another: row r of each sees columns 0 to r.
struct SoftmaxArguments {
    uint64_t p;     // forward: scores, then probabilities
    uint64_t dp;    // backward: becomes the gradient of the scores
    uint32_t rows;  // of all matrices
    uint32_t columns;
    float scale;  // backward: of the scores
    uint32_t reserved;
};

struct CrossEntropyArguments {
    uint64_t logits;   // [rows, classes]; become the gradient of scale x loss
    uint64_t targets;  // bytes [rows]
    uint64_t losses;   // [rows]
    uint32_t rows, classes;
    float scale;
    uint32_t reserved;
};

struct EmbedArguments {
    uint64_t tokens;  // bytes [rows]
    uint64_t token_table, position_table;
    uint64_t x;  // [rows, width]
    uint32_t rows, width, sequence, reserved;
};

struct EmbedGradientArguments {
    uint64_t tokens;
    uint64_t dx;
    uint64_t gradient;  // of tokens: added to. Of positions: overwritten
    uint32_t rows, width, sequence, classes;
};

}  // namespace train_gpt::gpu

#endif
