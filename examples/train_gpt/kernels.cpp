// SPDX-License-Identifier: Apache-2.0
//
// The element-wise and row-wise arithmetic, written so that compilers vectorise it without leave
// to reorder sums: a sum runs in sixteen fixed lanes. Serial; the caller shares out rows.

#include "kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

// One build for every machine: the loader picks the widest version the processor runs. Sanitizers
// do not stand the resolver, which runs before their own start.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TRAIN_GPT_RESOLVER_OK 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#undef TRAIN_GPT_RESOLVER_OK
#endif
#endif
#if !defined(TRAIN_GPT_RESOLVER_OK)
#define WIDEST
#elif defined(__clang__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#define INLINE __attribute__((always_inline)) inline

namespace train_gpt {

namespace {

constexpr uint32_t kLanes = 16;

INLINE float add_lanes(const float *lanes)
{
    float sums[kLanes];
    std::copy(lanes, lanes + kLanes, sums);
    for (uint32_t width = kLanes / 2; width > 0; width /= 2)
        for (uint32_t i = 0; i < width; ++i) sums[i] += sums[i + width];
    return sums[0];
}

// The sum of term(0) .. term(count - 1).
template <class Term> INLINE float sum_of(uint32_t count, Term term)
{
    float lanes[kLanes] = {};
    uint32_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (uint32_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
    for (uint32_t lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
    return add_lanes(lanes);
}

INLINE float max_of(uint32_t count, const float *x)
{
    float lanes[kLanes];
    std::fill(lanes, lanes + kLanes, x[0]);
    uint32_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (uint32_t lane = 0; lane < kLanes; ++lane)
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    for (; i < count; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    return *std::max_element(lanes, lanes + kLanes);
}

// exp(x) = 2^n exp(r), |r| <= log(2) / 2, with the polynomial of Cephes for exp(r).
INLINE float exp_inline(float x)
{
    constexpr float kLog2E = 1.44269504F;
    constexpr float kLog2High = 0.693359375F;
    constexpr float kLog2Low = -2.12194440e-4F;
    constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
    x = x < -87.0F ? -87.0F : x;
    x = x > 88.0F ? 88.0F : x;
    const float shifted = x * kLog2E + kRound;
    const float n = shifted - kRound;
    const float r = x - n * kLog2High - n * kLog2Low;
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * r * r + r + 1.0F;
    const int32_t exponent = std::bit_cast<int32_t>(shifted) << 23;
    return std::bit_cast<float>(std::bit_cast<int32_t>(p) + exponent);
}

constexpr float kGeluA = 0.7978845608F;  // sqrt(2 / pi)
constexpr float kGeluB = 0.044715F;

// tanh of the inner polynomial, written so that large |x| stays finite.
INLINE float gelu_tanh(float x)
{
    const float inner = kGeluA * (x + kGeluB * x * x * x);
    return 1.0F - 2.0F / (exp_inline(2.0F * inner) + 1.0F);
}

}  // namespace

float exp_fast(float x)
{
    return exp_inline(x);
}

WIDEST void layer_norm_forward(uint32_t rows, uint32_t width, const float *x, const float *gain,
                               const float *bias, float *y, float *mean, float *rstd)
{
    constexpr float kEpsilon = 1e-5F;
    const float inverse = 1.0F / static_cast<float>(width);
    for (uint32_t row = 0; row < rows; ++row, x += width, y += width) {
        const float m = inverse * sum_of(width, [x](uint32_t c) { return x[c]; });
        const float variance =
            inverse * sum_of(width, [x, m](uint32_t c) { return (x[c] - m) * (x[c] - m); });
        const float s = 1.0F / std::sqrt(variance + kEpsilon);
        for (uint32_t c = 0; c < width; ++c) y[c] = (x[c] - m) * s * gain[c] + bias[c];
        mean[row] = m;
        rstd[row] = s;
    }
}

WIDEST void layer_norm_backward_input(uint32_t rows, uint32_t width, const float *x,
                                      const float *gain, const float *mean, const float *rstd,
                                      const float *dy, float *dx)
{
    const float inverse = 1.0F / static_cast<float>(width);
    for (uint32_t row = 0; row < rows; ++row, x += width, dy += width, dx += width) {
        const float m = mean[row];
        const float s = rstd[row];
        const float along_mean =
            inverse * sum_of(width, [=](uint32_t c) { return dy[c] * gain[c]; });
        const float along_x =
            inverse * sum_of(width, [=](uint32_t c) { return dy[c] * gain[c] * (x[c] - m) * s; });
        for (uint32_t c = 0; c < width; ++c)
            dx[c] += s * (dy[c] * gain[c] - along_mean - (x[c] - m) * s * along_x);
    }
}

WIDEST void layer_norm_backward_weight(const Columns &columns, const float *x, const float *mean,
                                       const float *rstd, const float *dy, float *dgain,
                                       float *dbias)
{
    std::fill(dgain + columns.begin, dgain + columns.end, 0.0F);
    std::fill(dbias + columns.begin, dbias + columns.end, 0.0F);
    for (uint32_t row = 0; row < columns.rows; ++row, x += columns.width, dy += columns.width) {
        const float m = mean[row];
        const float s = rstd[row];
        for (uint32_t c = columns.begin; c < columns.end; ++c) {
            dgain[c] += dy[c] * (x[c] - m) * s;
            dbias[c] += dy[c];
        }
    }
}

WIDEST void sum_columns(const Columns &columns, const float *x, float *sums)
{
    std::fill(sums + columns.begin, sums + columns.end, 0.0F);
    for (uint32_t row = 0; row < columns.rows; ++row, x += columns.width)
        for (uint32_t c = columns.begin; c < columns.end; ++c) sums[c] += x[c];
}

WIDEST void gelu_forward(uint64_t count, const float *x, float *y)
{
    for (uint64_t i = 0; i < count; ++i) y[i] = 0.5F * x[i] * (1.0F + gelu_tanh(x[i]));
}

WIDEST void gelu_backward(uint64_t count, const float *x, float *dy)
{
    for (uint64_t i = 0; i < count; ++i) {
        const float t = gelu_tanh(x[i]);
        const float slope = kGeluA * (1.0F + 3.0F * kGeluB * x[i] * x[i]);
        dy[i] *= 0.5F * (1.0F + t) + 0.5F * x[i] * (1.0F - t * t) * slope;
    }
}

WIDEST void softmax_causal(uint32_t rows, uint32_t row_begin, uint32_t columns, float *scores)
{
    for (uint32_t row = 0; row < rows; ++row, scores += columns) {
        const uint32_t seen = row_begin + row + 1;
        const float top = max_of(seen, scores);
        for (uint32_t c = 0; c < seen; ++c) scores[c] = exp_inline(scores[c] - top);
        const float sum = sum_of(seen, [scores](uint32_t c) { return scores[c]; });
        const float inverse = 1.0F / sum;
        for (uint32_t c = 0; c < seen; ++c) scores[c] *= inverse;
        std::fill(scores + seen, scores + columns, 0.0F);
    }
}

WIDEST void softmax_backward(uint32_t rows, uint32_t columns, float scale, const float *p,
                             const float *delta, float *dp)
{
    for (uint32_t row = 0; row < rows; ++row, p += columns, dp += columns)
        for (uint32_t c = 0; c < columns; ++c) dp[c] = scale * p[c] * (dp[c] - delta[row]);
}

WIDEST float dot(uint32_t count, const float *a, const float *b)
{
    return sum_of(count, [a, b](uint32_t c) { return a[c] * b[c]; });
}

WIDEST void cross_entropy(uint32_t rows, uint32_t classes, const uint8_t *targets, float scale,
                          float *logits, float *losses)
{
    for (uint32_t row = 0; row < rows; ++row, logits += classes) {
        const float top = max_of(classes, logits);
        const float target = logits[targets[row]] - top;
        for (uint32_t c = 0; c < classes; ++c) logits[c] = exp_inline(logits[c] - top);
        const float sum = sum_of(classes, [logits](uint32_t c) { return logits[c]; });
        losses[row] = std::log(sum) - target;
        for (uint32_t c = 0; c < classes; ++c) logits[c] *= scale / sum;
        logits[targets[row]] -= scale;
    }
}

WIDEST void embed_forward(uint32_t begin, uint32_t end, uint32_t width, uint32_t sequence,
                          const uint8_t *tokens, const float *token_table,
                          const float *position_table, float *x)
{
    for (uint32_t t = begin; t < end; ++t) {
        const float *token = token_table + uint64_t{tokens[t]} * width;
        const float *position = position_table + uint64_t{t % sequence} * width;
        for (uint32_t c = 0; c < width; ++c) x[uint64_t{t} * width + c] = token[c] + position[c];
    }
}

WIDEST void embed_backward(const Columns &columns, uint32_t sequence, const uint8_t *tokens,
                           const float *dx, float *token_gradient, float *position_gradient)
{
    for (uint32_t t = 0; t < columns.rows; ++t, dx += columns.width) {
        float *token = token_gradient + uint64_t{tokens[t]} * columns.width;
        float *position = position_gradient + uint64_t{t % sequence} * columns.width;
        const bool first = t < sequence;
        for (uint32_t c = columns.begin; c < columns.end; ++c) {
            token[c] += dx[c];
            position[c] = (first ? 0.0F : position[c]) + dx[c];
        }
    }
}

}  // namespace train_gpt
