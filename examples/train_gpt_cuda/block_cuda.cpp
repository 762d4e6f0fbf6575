// SPDX-License-Identifier: Apache-2.0
//
// Attention makes its scores as whole matrices, one per sequence and head, all in one product, and
// leaves out the tiles that the mask makes zero.

#include "block_cuda.h"

#include <cmath>

namespace train_gpt::gpu {

namespace {

uint64_t address(const float *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer);
}

// A matrix of one product: where it is, its rows, and where in it the parts of the batch begin.
struct Matrix {
    uint64_t data;
    uint32_t stride;
    Batch batch;
};

}  // namespace

Launches::Launches(Gpu &gpu, Workspace &space, const Shape &shape)
    : gpu_(gpu), space_(space), shape_(shape)
{
}

void Launches::multiply(Kernel kernel, const MatmulArguments &arguments)
{
    gpu_.launch(kernel, arguments, matmul_blocks(arguments));
}

// y[rows, out] = x[rows, in] w + bias + residual
void Launches::linear_forward(uint32_t in, uint32_t out, uint64_t x, const float *w,
                              const float *bias, uint64_t residual, uint64_t y)
{
    MatmulArguments product = {};
    product.a = x, product.b = address(w), product.c = y;
    product.bias = address(bias), product.residual = residual;
    product.batches = product.inner = 1;
    product.m = shape_.rows(), product.n = out, product.k = in;
    product.a_stride = in, product.b_stride = out, product.c_stride = out;
    product.alpha = 1.0F;
    multiply(Kernel::kMatmul, product);
}

// dx[rows, in] = dy[rows, out] w^T
void Launches::linear_backward_input(uint32_t in, uint32_t out, uint64_t dy, const float *w,
                                     uint64_t dx)
{
    MatmulArguments product = {};
    product.a = dy, product.b = address(w), product.c = dx;
    product.batches = product.inner = 1;
    product.m = shape_.rows(), product.n = in, product.k = out;
    product.a_stride = out, product.b_stride = out, product.c_stride = in;
    product.alpha = 1.0F;
    multiply(Kernel::kMatmulByTransposed, product);
}

// dw[in, out] = x[rows, in]^T dy[rows, out]
void Launches::linear_backward_weight(uint32_t in, uint32_t out, uint64_t x, uint64_t dy, float *dw)
{
    MatmulArguments product = {};
    product.a = x, product.b = dy, product.c = address(dw);
    product.batches = product.inner = 1;
    product.m = in, product.n = out, product.k = shape_.rows();
    product.a_stride = in, product.b_stride = out, product.c_stride = out;
    product.alpha = 1.0F;
    multiply(Kernel::kMatmulOfTransposed, product);
}

void Launches::bias_backward(uint32_t width, uint64_t dy, float *dbias)
{
    gpu_.launch(Kernel::kSumColumns, ColumnsArguments{dy, address(dbias), shape_.rows(), width},
                column_blocks(width));
}

void Launches::norm_forward(uint64_t x, const float *gain, const float *bias, uint64_t y,
                            uint64_t mean, uint64_t rstd)
{
    gpu_.launch(
        Kernel::kNormForward,
        NormArguments{x, address(gain), address(bias), y, mean, rstd, shape_.rows(), shape_.width},
        shape_.rows());
}

// The gradient of the input goes to dstream; adds: to what is there.
void Launches::norm_backward(uint64_t x, const float *gain, uint64_t mean, uint64_t rstd,
                             uint64_t dy, float *dgain, float *dbias, bool adds)
{
    const NormGradientArguments arguments = {x,
                                             address(gain),
                                             mean,
                                             rstd,
                                             dy,
                                             space_.dstream,
                                             address(dgain),
                                             address(dbias),
                                             shape_.rows(),
                                             shape_.width,
                                             adds ? 1U : 0U,
                                             0};
    gpu_.launch(Kernel::kNormBackwardWeight, arguments, column_blocks(shape_.width));
    gpu_.launch(Kernel::kNormBackwardInput, arguments, shape_.rows());
}

// ---------------------------------------------------------------------------------- attention --

// Where the parts of one head of one sequence begin in matrices with `width` floats a row, and in
// the scores.
MatmulArguments Launches::per_head(uint32_t m, uint32_t n, uint32_t k) const
{
    MatmulArguments product = {};
    product.batches = shape_.batch * shape_.heads;
    product.inner = shape_.heads;
    product.m = m, product.n = n, product.k = k;
    product.alpha = 1.0F;
    return product;
}

void Launches::attention_forward()
{
    const uint32_t sequence = shape_.sequence;
    const uint32_t head = shape_.head_width();
    const uint32_t stride = 3 * shape_.width;
    const Batch in_qkv = {uint64_t{sequence} * stride, head};
    const Batch in_out = {uint64_t{sequence} * shape_.width, head};
    const uint64_t square = uint64_t{sequence} * sequence;
    const Batch in_scores = {shape_.heads * square, square};
    const uint64_t plane = shape_.width * sizeof(float);  // from q to k in a row, and on to v

    MatmulArguments scores = per_head(sequence, sequence, head);
    scores.a = space_.qkv, scores.a_stride = stride, scores.a_batch = in_qkv;
    scores.b = space_.qkv + plane, scores.b_stride = stride, scores.b_batch = in_qkv;
    scores.c = space_.probabilities, scores.c_stride = sequence, scores.c_batch = in_scores;
    scores.alpha = 1.0F / std::sqrt(static_cast<float>(head));
    scores.mask = kMaskResult;
    multiply(Kernel::kMatmulByTransposed, scores);

    const uint32_t rows = scores.batches * sequence;
    gpu_.launch(Kernel::kSoftmaxCausal,
                SoftmaxArguments{space_.probabilities, 0, rows, sequence, 1.0F, 0}, rows);

    MatmulArguments out = per_head(sequence, head, sequence);
    out.a = space_.probabilities, out.a_stride = sequence, out.a_batch = in_scores;
    out.b = space_.qkv + 2 * plane, out.b_stride = stride, out.b_batch = in_qkv;
    out.c = space_.attention, out.c_stride = shape_.width, out.c_batch = in_out;
    out.mask = kMaskColumns;
    multiply(Kernel::kMatmul, out);
}

// With the probabilities that recompute() left.
void Launches::attention_backward(uint64_t dout, uint64_t dqkv)
{
    const uint32_t sequence = shape_.sequence;
    const uint32_t head = shape_.head_width();
    const uint32_t stride = 3 * shape_.width;
    const Batch in_qkv = {uint64_t{sequence} * stride, head};
    const Batch in_out = {uint64_t{sequence} * shape_.width, head};
    const uint64_t square = uint64_t{sequence} * sequence;
    const Batch in_scores = {shape_.heads * square, square};
    const uint64_t plane = shape_.width * sizeof(float);
    const float scale = 1.0F / std::sqrt(static_cast<float>(head));

    // dp = dout v^T
    MatmulArguments dp = per_head(sequence, sequence, head);
    dp.a = dout, dp.a_stride = shape_.width, dp.a_batch = in_out;
    dp.b = space_.qkv + 2 * plane, dp.b_stride = stride, dp.b_batch = in_qkv;
    dp.c = space_.dprobabilities, dp.c_stride = sequence, dp.c_batch = in_scores;
    dp.mask = kMaskResult;
    multiply(Kernel::kMatmulByTransposed, dp);

    // dv = p^T dout
    MatmulArguments to_rows = per_head(sequence, head, sequence);
    to_rows.a = space_.probabilities, to_rows.a_stride = sequence, to_rows.a_batch = in_scores;
    to_rows.b = dout, to_rows.b_stride = shape_.width, to_rows.b_batch = in_out;
    to_rows.c = dqkv + 2 * plane, to_rows.c_stride = stride, to_rows.c_batch = in_qkv;
    to_rows.mask = kMaskRows;
    multiply(Kernel::kMatmulOfTransposed, to_rows);

    const uint32_t rows = dp.batches * sequence;
    gpu_.launch(
        Kernel::kSoftmaxBackward,
        SoftmaxArguments{space_.probabilities, space_.dprobabilities, rows, sequence, scale, 0},
        rows);

    // dk = ds^T q
    to_rows.a = space_.dprobabilities;
    to_rows.b = space_.qkv, to_rows.b_stride = stride, to_rows.b_batch = in_qkv;
    to_rows.c = dqkv + plane;
    multiply(Kernel::kMatmulOfTransposed, to_rows);

    // dq = ds k
    MatmulArguments dq = to_rows;
    dq.b = space_.qkv + plane;
    dq.c = dqkv;
    dq.mask = kMaskColumns;
    multiply(Kernel::kMatmul, dq);
}

// -------------------------------------------------------------------------------------- block --

void Launches::up_to_expanded(const Weights &w, uint64_t x)
{
    const uint32_t width = shape_.width;
    const uint64_t expanded = uint64_t{shape_.rows()} * 4 * width;
    norm_forward(x, w[kNorm1Gain], w[kNorm1Bias], space_.norm1, space_.mean1, space_.rstd1);
    linear_forward(width, 3 * width, space_.norm1, w[kQkvWeight], w[kQkvBias], 0, space_.qkv);
    attention_forward();
    linear_forward(width, width, space_.attention, w[kProjectWeight], w[kProjectBias], x,
                   space_.middle);
    norm_forward(space_.middle, w[kNorm2Gain], w[kNorm2Bias], space_.norm2, space_.mean2,
                 space_.rstd2);
    linear_forward(width, 4 * width, space_.norm2, w[kExpandWeight], w[kExpandBias], 0,
                   space_.expanded);
    gpu_.launch(Kernel::kGeluForward, GeluArguments{space_.expanded, space_.gelu, expanded},
                element_blocks(expanded));
}

void Launches::forward(const Weights &w)
{
    up_to_expanded(w, space_.stream);
    linear_forward(4 * shape_.width, shape_.width, space_.gelu, w[kContractWeight],
                   w[kContractBias], space_.middle, space_.stream);
}

void Launches::recompute(const Weights &w, uint64_t x)
{
    up_to_expanded(w, x);
}

void Launches::backward_mlp(const Weights &w, const Gradients &g)
{
    const uint32_t width = shape_.width;
    const uint64_t expanded = uint64_t{shape_.rows()} * 4 * width;
    const uint64_t dout = space_.dstream;
    linear_backward_weight(4 * width, width, space_.gelu, dout, g[kContractWeight]);
    bias_backward(width, dout, g[kContractBias]);

    // The activations behind the GELU are dead now: their gradient takes the place.
    const uint64_t dexpanded = space_.gelu;
    linear_backward_input(4 * width, width, dout, w[kContractWeight], dexpanded);
    gpu_.launch(Kernel::kGeluBackward, GeluArguments{space_.expanded, dexpanded, expanded},
                element_blocks(expanded));
    linear_backward_weight(width, 4 * width, space_.norm2, dexpanded, g[kExpandWeight]);
    bias_backward(4 * width, dexpanded, g[kExpandBias]);
    linear_backward_input(width, 4 * width, dexpanded, w[kExpandWeight], space_.dnorm);
    norm_backward(space_.middle, w[kNorm2Gain], space_.mean2, space_.rstd2, space_.dnorm,
                  g[kNorm2Gain], g[kNorm2Bias], true);
}

void Launches::backward_attention(const Weights &w, const Gradients &g, uint64_t x)
{
    const uint32_t width = shape_.width;
    const uint64_t dmiddle = space_.dstream;
    linear_backward_weight(width, width, space_.attention, dmiddle, g[kProjectWeight]);
    bias_backward(width, dmiddle, g[kProjectBias]);
    linear_backward_input(width, width, dmiddle, w[kProjectWeight], space_.dnorm);

    const uint64_t dqkv = space_.expanded;
    attention_backward(space_.dnorm, dqkv);
    linear_backward_weight(width, 3 * width, space_.norm1, dqkv, g[kQkvWeight]);
    bias_backward(3 * width, dqkv, g[kQkvBias]);
    linear_backward_input(width, 3 * width, dqkv, w[kQkvWeight], space_.dnorm);
    norm_backward(x, w[kNorm1Gain], space_.mean1, space_.rstd1, space_.dnorm, g[kNorm1Gain],
                  g[kNorm1Bias], true);
}

// --------------------------------------------------------------------------------- both ends --

void Launches::embed(const float *token_table, const float *position_table)
{
    const uint64_t elements = uint64_t{shape_.rows()} * shape_.width;
    gpu_.launch(Kernel::kEmbed,
                EmbedArguments{space_.tokens, address(token_table), address(position_table),
                               space_.stream, shape_.rows(), shape_.width, shape_.sequence, 0},
                element_blocks(elements));
}

void Launches::embed_gradient(float *token_gradient, float *position_gradient)
{
    EmbedGradientArguments arguments = {space_.tokens, space_.dstream, address(token_gradient),
                                        shape_.rows(), shape_.width,   shape_.sequence,
                                        kVocabulary};
    gpu_.launch(Kernel::kEmbedTokenGradient, arguments, kVocabulary);
    arguments.gradient = address(position_gradient);
    gpu_.launch(Kernel::kEmbedPositionGradient, arguments, shape_.sequence);
}

void Launches::head_forward(const HeadWeights &weights)
{
    norm_forward(space_.stream, weights.gain, weights.bias, space_.norm1, space_.mean1,
                 space_.rstd1);
    // logits = norm1 tokens^T: the table is [vocabulary, width], used the other way round here.
    linear_backward_input(kVocabulary, shape_.width, space_.norm1, weights.tokens, space_.logits);
}

void Launches::head_loss(uint32_t rows)
{
    gpu_.launch(Kernel::kCrossEntropy,
                CrossEntropyArguments{space_.logits, space_.targets, space_.losses, shape_.rows(),
                                      kVocabulary, 1.0F / static_cast<float>(rows), 0},
                shape_.rows());
}

void Launches::head_backward(const HeadWeights &weights, const HeadGradients &gradients)
{
    linear_backward_weight(kVocabulary, shape_.width, space_.logits, space_.norm1,
                           gradients.tokens);
    linear_forward(kVocabulary, shape_.width, space_.logits, weights.tokens, nullptr, 0,
                   space_.dnorm);
    norm_backward(space_.stream, weights.gain, space_.mean1, space_.rstd1, space_.dnorm,
                  gradients.gain, gradients.bias, false);
}

}  // namespace train_gpt::gpu
