// SPDX-License-Identifier: Apache-2.0
//
// Cuts a product into tiles of the result. Runs on the pool's threads; knows no model.

#include "gemm.h"

#include <algorithm>
#include <cblas.h>
#include <cstring>

namespace train_gpt {

namespace {

// Large enough that packing a tile's operands costs little beside multiplying them, small enough
// that the smallest product of a layer still has work for every core, and that OpenBLAS touches
// only a few MiB of its packing buffers.
constexpr uint32_t kTile = 256;

Operand from_row(Operand a, uint32_t row)
{
    a.data += a.form == Form::kTransposed ? row : size_t{row} * a.stride;
    return a;
}

Operand from_column(Operand b, uint32_t column)
{
    b.data += b.form == Form::kTransposed ? size_t{column} * b.stride : column;
    return b;
}

template <class Prepare>
void multiply(Pool &pool, uint32_t m, uint32_t n, uint32_t k, Operand a, Operand b, float beta,
              float *c, Prepare &&prepare)
{
    const uint32_t tile_columns = (n + kTile - 1) / kTile;
    const uint32_t tile_rows = (m + kTile - 1) / kTile;
    pool.run(tile_rows * tile_columns, [&](uint32_t tile, uint32_t) {
        const uint32_t row = tile / tile_columns * kTile;
        const uint32_t column = tile % tile_columns * kTile;
        const uint32_t rows = std::min(kTile, m - row);
        const uint32_t columns = std::min(kTile, n - column);
        prepare(row, rows, column, columns);
        multiply_alone(rows, columns, k, 1.0F, from_row(a, row), from_column(b, column), beta,
                       c + size_t{row} * n + column, n);
    });
}

void no_preparation(uint32_t, uint32_t, uint32_t, uint32_t) {}

}  // namespace

void multiply_alone(uint32_t m, uint32_t n, uint32_t k, float alpha, Operand a, Operand b,
                    float beta, float *c, uint32_t c_stride)
{
    const auto blas = [](Form form) {
        return form == Form::kTransposed ? CblasTrans : CblasNoTrans;
    };
    cblas_sgemm(CblasRowMajor, blas(a.form), blas(b.form), static_cast<blasint>(m),
                static_cast<blasint>(n), static_cast<blasint>(k), alpha, a.data,
                static_cast<blasint>(a.stride), b.data, static_cast<blasint>(b.stride), beta, c,
                static_cast<blasint>(c_stride));
}

void gemm_init()
{
    openblas_set_num_threads(1);
}

std::string gemm_kernels()
{
    std::string name = openblas_get_corename();
#if defined(__x86_64__)
    // An OpenBLAS that is older than the processor falls back to kernels for AVX2.
    if ((name == "Haswell" || name == "Zen") && __builtin_cpu_supports("avx512f"))
        name += " (set OPENBLAS_CORETYPE=SkylakeX: this processor has AVX-512)";
#endif
    return name;
}

void linear_forward(Pool &pool, uint32_t rows, uint32_t in, uint32_t out, const float *x,
                    const float *w, const float *bias, const float *residual, float *y)
{
    // The tile starts as what is added to the product, while it is warm in the cache.
    const auto prepare = [=](uint32_t row, uint32_t count, uint32_t column, uint32_t columns) {
        for (uint32_t r = row; r < row + count; ++r) {
            float *to = y + size_t{r} * out + column;
            if (residual == nullptr)
                std::memset(to, 0, columns * sizeof(float));
            else if (residual != y)
                std::memcpy(to, residual + size_t{r} * out + column, columns * sizeof(float));
            for (uint32_t c = 0; bias != nullptr && c < columns; ++c) to[c] += bias[column + c];
        }
    };
    multiply(pool, rows, out, in, {x, in}, {w, out}, 1.0F, y, prepare);
}

void linear_backward_input(Pool &pool, uint32_t rows, uint32_t in, uint32_t out, const float *dy,
                           const float *w, float *dx)
{
    multiply(pool, rows, in, out, {dy, out}, {w, out, Form::kTransposed}, 0.0F, dx, no_preparation);
}

void linear_backward_weight(Pool &pool, uint32_t rows, uint32_t in, uint32_t out, const float *x,
                            const float *dy, float *dw)
{
    multiply(pool, in, out, rows, {x, in, Form::kTransposed}, {dy, out}, 0.0F, dw, no_preparation);
}

}  // namespace train_gpt
