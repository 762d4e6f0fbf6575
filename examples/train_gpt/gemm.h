// SPDX-License-Identifier: Apache-2.0
//
// Matrix products: OpenBLAS on one thread per tile, the tiles shared out by our pool. The tiles
// depend on the shapes alone, so the order of every sum, and every bit, does too. All matrices are
// row-major; rows is the number of tokens, a weight is [in, out].

#ifndef TRAIN_GPT_GEMM_H
#define TRAIN_GPT_GEMM_H

#include "pool.h"

#include <cstdint>
#include <string>

namespace train_gpt {

enum class Form { kPlain, kTransposed };

struct Operand {
    const float *data;
    uint32_t stride;  // floats from one row to the next
    Form form = Form::kPlain;
};

// c[m, n] = alpha a b + beta c on the calling thread.
void multiply_alone(uint32_t m, uint32_t n, uint32_t k, float alpha, Operand a, Operand b,
                    float beta, float *c, uint32_t c_stride);

// Must be called once before the first product: OpenBLAS starts no threads of its own.
void gemm_init();
// The kernels OpenBLAS chose when it was loaded, and a remark if better ones exist.
std::string gemm_kernels();

// y[rows, out] = x[rows, in] w + bias (+ residual[rows, out]); bias and residual may be NULL, y may
// be residual.
void linear_forward(Pool &pool, uint32_t rows, uint32_t in, uint32_t out, const float *x,
                    const float *w, const float *bias, const float *residual, float *y);
// dx[rows, in] = dy[rows, out] w^T
void linear_backward_input(Pool &pool, uint32_t rows, uint32_t in, uint32_t out, const float *dy,
                           const float *w, float *dx);
// dw[in, out] = x[rows, in]^T dy[rows, out]
void linear_backward_weight(Pool &pool, uint32_t rows, uint32_t in, uint32_t out, const float *x,
                            const float *dy, float *dw);

}  // namespace train_gpt

#endif
