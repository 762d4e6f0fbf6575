// SPDX-License-Identifier: Apache-2.0
//
// Every kernel once: what the program calls it, its name in the image, its argument, its body, and
// the threads of a thread block.

#ifndef TRAIN_GPT_CUDA_LIST_H
#define TRAIN_GPT_CUDA_LIST_H

#include "columns.h"
#include "elements.h"
#include "matmul.h"
#include "rows.h"

// clang-format off
#define TRAIN_GPT_KERNELS(X)                                                                       \
    X(kMatmul, gpt_matmul, MatmulArguments, matmul_plain, kMatmulThreads)                          \
    X(kMatmulByTransposed, gpt_matmul_by_transposed, MatmulArguments, matmul_by_transposed,        \
      kMatmulThreads)                                                                              \
    X(kMatmulOfTransposed, gpt_matmul_of_transposed, MatmulArguments, matmul_of_transposed,        \
      kMatmulThreads)                                                                              \
    X(kNormForward, gpt_norm_forward, NormArguments, norm_forward, kRowThreads)                    \
    X(kNormBackwardInput, gpt_norm_backward_input, NormGradientArguments, norm_backward_input,     \
      kRowThreads)                                                                                 \
    X(kNormBackwardWeight, gpt_norm_backward_weight, NormGradientArguments, norm_backward_weight,  \
      kColumnThreads)                                                                              \
    X(kSumColumns, gpt_sum_columns, ColumnsArguments, sum_columns, kColumnThreads)                 \
    X(kGeluForward, gpt_gelu_forward, GeluArguments, gelu_forward, kElementThreads)                \
    X(kGeluBackward, gpt_gelu_backward, GeluArguments, gelu_backward, kElementThreads)             \
    X(kSoftmaxCausal, gpt_softmax_causal, SoftmaxArguments, softmax_causal, kRowThreads)           \
    X(kSoftmaxBackward, gpt_softmax_backward, SoftmaxArguments, softmax_backward, kRowThreads)     \
    X(kCrossEntropy, gpt_cross_entropy, CrossEntropyArguments, cross_entropy, kRowThreads)         \
    X(kEmbed, gpt_embed, EmbedArguments, embed, kElementThreads)                                   \
    X(kEmbedTokenGradient, gpt_embed_token_gradient, EmbedGradientArguments, embed_token_gradient, \
      kTableThreads)                                                                               \
    X(kEmbedPositionGradient, gpt_embed_position_gradient, EmbedGradientArguments,                 \
      embed_position_gradient, kTableThreads)
// clang-format on

#endif
