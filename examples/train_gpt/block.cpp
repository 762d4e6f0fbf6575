// SPDX-License-Identifier: Apache-2.0
//
// The block's arithmetic as a sequence of products and kernels, each shared out over the pool by
// ranges of rows or of columns whose size does not depend on the number of threads.

#include "block.h"

#include "gemm.h"
#include "kernels.h"

#include <algorithm>
#include <sys/mman.h>

namespace train_gpt {

namespace {

constexpr uint32_t kRows = 32;     // of one task
constexpr uint32_t kColumns = 64;  // of one task: 256 bytes, so tasks share no cache line

template <class Body> void for_rows(Pool &pool, uint32_t rows, Body &&body)
{
    pool.run((rows + kRows - 1) / kRows, [&](uint32_t task, uint32_t) {
        body(task * kRows, std::min(kRows, rows - task * kRows));
    });
}

template <class Body> void for_columns(Pool &pool, uint32_t rows, uint32_t width, Body &&body)
{
    pool.run((width + kColumns - 1) / kColumns, [&](uint32_t task, uint32_t) {
        const uint32_t begin = task * kColumns;
        body(Columns{rows, width, begin, std::min(width, begin + kColumns)});
    });
}

void norm_forward(Pool &pool, const Shape &shape, const float *x, const float *gain,
                  const float *bias, float *y, float *mean, float *rstd)
{
    for_rows(pool, shape.rows(), [&](uint32_t row, uint32_t count) {
        const uint64_t at = uint64_t{row} * shape.width;
        layer_norm_forward(count, shape.width, x + at, gain, bias, y + at, mean + row, rstd + row);
    });
}

// The gradient of the input is added to dx.
void norm_backward(Pool &pool, const Shape &shape, const float *x, const float *gain,
                   const float *mean, const float *rstd, const float *dy, float *dgain,
                   float *dbias, float *dx)
{
    for_columns(pool, shape.rows(), shape.width, [&](const Columns &columns) {
        layer_norm_backward_weight(columns, x, mean, rstd, dy, dgain, dbias);
    });
    for_rows(pool, shape.rows(), [&](uint32_t row, uint32_t count) {
        const uint64_t at = uint64_t{row} * shape.width;
        layer_norm_backward_input(count, shape.width, x + at, gain, mean + row, rstd + row, dy + at,
                                  dx + at);
    });
}

void bias_backward(Pool &pool, uint32_t rows, uint32_t width, const float *dy, float *dbias)
{
    for_columns(pool, rows, width,
                [&](const Columns &columns) { sum_columns(columns, dy, dbias); });
}

}  // namespace

Workspace::Workspace(const Shape &shape, uint32_t threads, uint32_t checkpoints)
{
    constexpr uint64_t kPageBytes = 4096;
    const uint64_t bytes = layout(shape, threads, checkpoints, nullptr) * sizeof(float);
    const uint64_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    void *mapping =
        mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return;
    mapping_ = mapping;
    bytes_ = whole;
    layout(shape, threads, checkpoints, static_cast<float *>(mapping));
}

Workspace::~Workspace()
{
    if (mapping_ != nullptr) munmap(mapping_, bytes_);
}

// Gives every member its place behind base and returns the floats taken; called with NULL to count.
uint64_t Workspace::layout(const Shape &shape, uint32_t threads, uint32_t checkpoints, float *base)
{
    constexpr uint64_t kAlignFloats = 64;
    const uint64_t rows = shape.rows();
    const uint64_t plane = rows * shape.width;
    uint64_t used = 0;
    const auto place = [&](float *&member, uint64_t floats) {
        member = base == nullptr ? nullptr : base + used;
        used += (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
    };
    for (float **member : {&stream, &dstream, &norm1, &norm2, &attention, &middle, &dnorm})
        place(*member, plane);
    place(qkv, 3 * plane);
    place(expanded, std::max(4 * plane, rows * kVocabulary));
    logits = expanded;
    place(gelu, 4 * plane);
    place(scratch, threads * attention_scratch_floats(shape.sequence));
    for (float **member : {&mean1, &rstd1, &mean2, &rstd2, &losses}) place(*member, rows);
    place(this->checkpoints, checkpoints * plane);
    return used;
}

Block::Block(Pool &pool, Workspace &space, const Shape &shape)
    : pool_(pool), space_(space), shape_(shape)
{
}

void Block::up_to_expanded(const Weights &w, const float *x)
{
    const uint32_t rows = shape_.rows();
    const uint32_t width = shape_.width;
    norm_forward(pool_, shape_, x, w[kNorm1Gain], w[kNorm1Bias], space_.norm1, space_.mean1,
                 space_.rstd1);
    linear_forward(pool_, rows, width, 3 * width, space_.norm1, w[kQkvWeight], w[kQkvBias], nullptr,
                   space_.qkv);
    attention_forward(pool_, shape_, space_.qkv, space_.scratch, space_.attention);
    linear_forward(pool_, rows, width, width, space_.attention, w[kProjectWeight], w[kProjectBias],
                   x, space_.middle);
    norm_forward(pool_, shape_, space_.middle, w[kNorm2Gain], w[kNorm2Bias], space_.norm2,
                 space_.mean2, space_.rstd2);
    linear_forward(pool_, rows, width, 4 * width, space_.norm2, w[kExpandWeight], w[kExpandBias],
                   nullptr, space_.expanded);
    for_rows(pool_, rows, [&](uint32_t row, uint32_t count) {
        const uint64_t at = uint64_t{row} * 4 * width;
        gelu_forward(uint64_t{count} * 4 * width, space_.expanded + at, space_.gelu + at);
    });
}

void Block::forward(const Weights &w)
{
    up_to_expanded(w, space_.stream);
    linear_forward(pool_, shape_.rows(), 4 * shape_.width, shape_.width, space_.gelu,
                   w[kContractWeight], w[kContractBias], space_.middle, space_.stream);
}

void Block::recompute(const Weights &w, const float *x)
{
    up_to_expanded(w, x);
}

void Block::backward_mlp(const Weights &w, const Gradients &g)
{
    const uint32_t rows = shape_.rows();
    const uint32_t width = shape_.width;
    float *dout = space_.dstream;
    linear_backward_weight(pool_, rows, 4 * width, width, space_.gelu, dout, g[kContractWeight]);
    bias_backward(pool_, rows, width, dout, g[kContractBias]);

    // The activations behind the GELU are dead now: their gradient takes the place.
    float *dexpanded = space_.gelu;
    linear_backward_input(pool_, rows, 4 * width, width, dout, w[kContractWeight], dexpanded);
    for_rows(pool_, rows, [&](uint32_t row, uint32_t count) {
        const uint64_t at = uint64_t{row} * 4 * width;
        gelu_backward(uint64_t{count} * 4 * width, space_.expanded + at, dexpanded + at);
    });
    linear_backward_weight(pool_, rows, width, 4 * width, space_.norm2, dexpanded,
                           g[kExpandWeight]);
    bias_backward(pool_, rows, 4 * width, dexpanded, g[kExpandBias]);
    linear_backward_input(pool_, rows, width, 4 * width, dexpanded, w[kExpandWeight], space_.dnorm);
    norm_backward(pool_, shape_, space_.middle, w[kNorm2Gain], space_.mean2, space_.rstd2,
                  space_.dnorm, g[kNorm2Gain], g[kNorm2Bias], space_.dstream);
}

void Block::backward_attention(const Weights &w, const Gradients &g, const float *x)
{
    const uint32_t rows = shape_.rows();
    const uint32_t width = shape_.width;
    float *dmiddle = space_.dstream;
    linear_backward_weight(pool_, rows, width, width, space_.attention, dmiddle, g[kProjectWeight]);
    bias_backward(pool_, rows, width, dmiddle, g[kProjectBias]);
    linear_backward_input(pool_, rows, width, width, dmiddle, w[kProjectWeight], space_.dnorm);

    float *dqkv = space_.expanded;
    attention_backward(pool_, shape_, space_.qkv, space_.attention, space_.dnorm, space_.scratch,
                       dqkv);
    linear_backward_weight(pool_, rows, width, 3 * width, space_.norm1, dqkv, g[kQkvWeight]);
    bias_backward(pool_, rows, 3 * width, dqkv, g[kQkvBias]);
    linear_backward_input(pool_, rows, width, 3 * width, dqkv, w[kQkvWeight], space_.dnorm);
    norm_backward(pool_, shape_, x, w[kNorm1Gain], space_.mean1, space_.rstd1, space_.dnorm,
                  g[kNorm1Gain], g[kNorm1Bias], space_.dstream);
}

void embed(Pool &pool, Workspace &space, const Shape &shape, const uint8_t *tokens,
           const float *token_table, const float *position_table)
{
    for_rows(pool, shape.rows(), [&](uint32_t row, uint32_t count) {
        embed_forward(row, row + count, shape.width, shape.sequence, tokens, token_table,
                      position_table, space.stream);
    });
}

void embed_gradient(Pool &pool, Workspace &space, const Shape &shape, const uint8_t *tokens,
                    float *token_gradient, float *position_gradient)
{
    for_columns(pool, shape.rows(), shape.width, [&](const Columns &columns) {
        embed_backward(columns, shape.sequence, tokens, space.dstream, token_gradient,
                       position_gradient);
    });
}

void head_forward(Pool &pool, Workspace &space, const Shape &shape, const HeadWeights &weights)
{
    norm_forward(pool, shape, space.stream, weights.gain, weights.bias, space.norm1, space.mean1,
                 space.rstd1);
    // logits = norm1 tokens^T: the table is [vocabulary, width], used the other way round here.
    linear_backward_input(pool, shape.rows(), kVocabulary, shape.width, space.norm1, weights.tokens,
                          space.logits);
}

double head_loss(Pool &pool, Workspace &space, const Shape &shape, const uint8_t *targets,
                 uint32_t rows)
{
    const float scale = 1.0F / static_cast<float>(rows);
    for_rows(pool, shape.rows(), [&](uint32_t row, uint32_t count) {
        cross_entropy(count, kVocabulary, targets + row, scale,
                      space.logits + uint64_t{row} * kVocabulary, space.losses + row);
    });
    double sum = 0.0;
    for (uint32_t row = 0; row < shape.rows(); ++row) sum += space.losses[row];
    return sum / rows;
}

void head_backward(Pool &pool, Workspace &space, const Shape &shape, const HeadWeights &weights,
                   const HeadGradients &gradients)
{
    const uint32_t rows = shape.rows();
    linear_backward_weight(pool, rows, kVocabulary, shape.width, space.logits, space.norm1,
                           gradients.tokens);
    linear_forward(pool, rows, kVocabulary, shape.width, space.logits, weights.tokens, nullptr,
                   nullptr, space.dnorm);
    std::fill(space.dstream, space.dstream + uint64_t{rows} * shape.width, 0.0F);
    norm_backward(pool, shape, space.stream, weights.gain, space.mean1, space.rstd1, space.dnorm,
                  gradients.gain, gradients.bias, space.dstream);
}

}  // namespace train_gpt
