// SPDX-License-Identifier: Apache-2.0
//
// Causal multi-head attention over q, k, v that lie side by side in one row per token. The scores
// are made again in backward, a block of queries at a time, so no [sequence, sequence] matrix is
// ever kept. One task per batch entry and head.

#ifndef TRAIN_GPT_ATTENTION_H
#define TRAIN_GPT_ATTENTION_H

#include "pool.h"

#include <cstdint>

namespace train_gpt {

struct Shape {
    uint32_t batch;
    uint32_t sequence;
    uint32_t width;
    uint32_t heads;

    uint32_t rows() const { return batch * sequence; }
    uint32_t head_width() const { return width / heads; }
};

// Floats of scratch each worker of the pool needs.
uint64_t attention_scratch_floats(uint32_t sequence);

// qkv [rows, 3 width] to out [rows, width].
void attention_forward(Pool &pool, const Shape &shape, const float *qkv, float *scratch,
                       float *out);
// dqkv is overwritten. out is what forward made of the same qkv.
void attention_backward(Pool &pool, const Shape &shape, const float *qkv, const float *out,
                        const float *dout, float *scratch, float *dqkv);

}  // namespace train_gpt

#endif
