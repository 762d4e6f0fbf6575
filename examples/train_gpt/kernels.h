// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a transformer that is not a matrix product: plain functions over a range of
// rows or of columns, on the calling thread. Every sum has a fixed order. Matrices are row-major.

#ifndef TRAIN_GPT_KERNELS_H
#define TRAIN_GPT_KERNELS_H

#include <cstdint>

namespace train_gpt {

// Columns [begin, end) of a matrix with `rows` rows; how gradients of vectors are shared out.
struct Columns {
    uint32_t rows;
    uint32_t width;
    uint32_t begin;
    uint32_t end;
};

void layer_norm_forward(uint32_t rows, uint32_t width, const float *x, const float *gain,
                        const float *bias, float *y, float *mean, float *rstd);
// Adds the gradient of the input to dx.
void layer_norm_backward_input(uint32_t rows, uint32_t width, const float *x, const float *gain,
                               const float *mean, const float *rstd, const float *dy, float *dx);
void layer_norm_backward_weight(const Columns &columns, const float *x, const float *mean,
                                const float *rstd, const float *dy, float *dgain, float *dbias);
// sums[c] = sum over rows of x[row, c]
void sum_columns(const Columns &columns, const float *x, float *sums);

// The tanh form of GPT-2.
void gelu_forward(uint64_t count, const float *x, float *y);
// dy becomes dx.
void gelu_backward(uint64_t count, const float *x, float *dy);

// Row r may look at columns [0, row_begin + r]; the rest of the `columns` become 0.
void softmax_causal(uint32_t rows, uint32_t row_begin, uint32_t columns, float *scores);
// ds = scale * p * (dp - delta), in place of dp, where delta[r] is the sum over c of p * dp.
void softmax_backward(uint32_t rows, uint32_t columns, float scale, const float *p,
                      const float *delta, float *dp);
// The inner product of one row of a and of b.
float dot(uint32_t count, const float *a, const float *b);

// logits become the gradient of scale * loss; losses[r] is -log p(target) of row r.
void cross_entropy(uint32_t rows, uint32_t classes, const uint8_t *targets, float scale,
                   float *logits, float *losses);

// x[t] = token_table[tokens[t]] + position_table[t % sequence], rows [begin, end)
void embed_forward(uint32_t begin, uint32_t end, uint32_t width, uint32_t sequence,
                   const uint8_t *tokens, const float *token_table, const float *position_table,
                   float *x);
// token_gradient is added to; position_gradient ([sequence, width]) is overwritten.
void embed_backward(const Columns &columns, uint32_t sequence, const uint8_t *tokens,
                    const float *dx, float *token_gradient, float *position_gradient);

// exp(x) to about 2 units in the last place for x in [-87, 88]; clamped outside.
float exp_fast(float x);

}  // namespace train_gpt

#endif
