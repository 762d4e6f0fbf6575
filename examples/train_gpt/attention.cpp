// SPDX-License-Identifier: Apache-2.0
//
// Attention by blocks of queries. Runs on the pool's threads, each with its own scratch.

#include "attention.h"

#include "gemm.h"
#include "kernels.h"

#include <algorithm>
#include <cmath>

namespace train_gpt {

namespace {

// Queries of one block. Keys behind the block's last query are skipped, so a smaller block wastes
// less on scores that the mask throws away; a larger one makes better products.
constexpr uint32_t kQueries = 64;

// Where one head of one batch entry lies in the matrices.
struct Head {
    uint32_t width;       // of the head
    uint32_t qkv_stride;  // 3 x width of the model
    uint32_t out_stride;
    uint64_t q;  // offsets into qkv
    uint64_t k;
    uint64_t v;
    uint64_t out;  // offset into out
    float scale;
};

Head head_of(const Shape &shape, uint32_t task)
{
    Head head;
    const uint64_t row = uint64_t{task / shape.heads} * shape.sequence;
    head.width = shape.head_width();
    head.qkv_stride = 3 * shape.width;
    head.out_stride = shape.width;
    head.q = row * head.qkv_stride + uint64_t{task % shape.heads} * head.width;
    head.k = head.q + shape.width;
    head.v = head.k + shape.width;
    head.out = row * head.out_stride + uint64_t{task % shape.heads} * head.width;
    head.scale = 1.0F / std::sqrt(static_cast<float>(head.width));
    return head;
}

// The probabilities of queries [begin, begin + queries) over keys [0, begin + queries).
void probabilities(const Head &head, const float *qkv, uint32_t begin, uint32_t queries, float *p)
{
    const uint32_t keys = begin + queries;
    const Operand q = {qkv + head.q + uint64_t{begin} * head.qkv_stride, head.qkv_stride};
    const Operand k = {qkv + head.k, head.qkv_stride, Form::kTransposed};
    multiply_alone(queries, keys, head.width, head.scale, q, k, 0.0F, p, keys);
    softmax_causal(queries, begin, keys, p);
}

void backward_block(const Head &head, const float *qkv, const float *out, const float *dout,
                    uint32_t begin, uint32_t queries, float beta, float *scratch, float *dqkv)
{
    const uint32_t keys = begin + queries;
    const float *block_out = out + head.out + uint64_t{begin} * head.out_stride;
    const float *block_dout = dout + head.out + uint64_t{begin} * head.out_stride;
    const uint64_t block_q = head.q + uint64_t{begin} * head.qkv_stride;
    float *p = scratch;
    float *dp = p + uint64_t{queries} * keys;

    probabilities(head, qkv, begin, queries, p);
    multiply_alone(queries, keys, head.width, 1.0F, {block_dout, head.out_stride},
                   {qkv + head.v, head.qkv_stride, Form::kTransposed}, 0.0F, dp, keys);
    // The sum over keys of p * dp is the inner product of out and its gradient.
    float delta[kQueries];
    for (uint32_t row = 0; row < queries; ++row) {
        const uint64_t offset = uint64_t{row} * head.out_stride;
        delta[row] = dot(head.width, block_out + offset, block_dout + offset);
    }
    multiply_alone(keys, head.width, queries, 1.0F, {p, keys, Form::kTransposed},
                   {block_dout, head.out_stride}, beta, dqkv + head.v, head.qkv_stride);
    softmax_backward(queries, keys, head.scale, p, delta, dp);
    multiply_alone(queries, head.width, keys, 1.0F, {dp, keys}, {qkv + head.k, head.qkv_stride},
                   0.0F, dqkv + block_q, head.qkv_stride);
    multiply_alone(keys, head.width, queries, 1.0F, {dp, keys, Form::kTransposed},
                   {qkv + block_q, head.qkv_stride}, beta, dqkv + head.k, head.qkv_stride);
}

}  // namespace

uint64_t attention_scratch_floats(uint32_t sequence)
{
    return uint64_t{2} * std::min(kQueries, sequence) * sequence;
}

void attention_forward(Pool &pool, const Shape &shape, const float *qkv, float *scratch, float *out)
{
    const uint64_t scratch_floats = attention_scratch_floats(shape.sequence);
    pool.run(shape.batch * shape.heads, [&](uint32_t task, uint32_t worker) {
        const Head head = head_of(shape, task);
        float *p = scratch + worker * scratch_floats;
        for (uint32_t begin = 0; begin < shape.sequence; begin += kQueries) {
            const uint32_t queries = std::min(kQueries, shape.sequence - begin);
            const uint32_t keys = begin + queries;
            probabilities(head, qkv, begin, queries, p);
            multiply_alone(queries, head.width, keys, 1.0F, {p, keys},
                           {qkv + head.v, head.qkv_stride}, 0.0F,
                           out + head.out + uint64_t{begin} * head.out_stride, head.out_stride);
        }
    });
}

void attention_backward(Pool &pool, const Shape &shape, const float *qkv, const float *out,
                        const float *dout, float *scratch, float *dqkv)
{
    const uint64_t scratch_floats = attention_scratch_floats(shape.sequence);
    pool.run(shape.batch * shape.heads, [&](uint32_t task, uint32_t worker) {
        const Head head = head_of(shape, task);
        // The last block sees every key, so it overwrites their gradients and the others add.
        float beta = 0.0F;
        for (uint32_t end = shape.sequence; end > 0; beta = 1.0F) {
            const uint32_t begin = (end - 1) / kQueries * kQueries;
            backward_block(head, qkv, out, dout, begin, end - begin, beta,
                           scratch + worker * scratch_floats, dqkv);
            end = begin;
        }
    });
}

}  // namespace train_gpt
