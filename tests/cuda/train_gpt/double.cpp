// SPDX-License-Identifier: Apache-2.0
// The kernels of examples/train_gpt_cuda for the test double of the CUDA driver: the sources of the
// image, compiled for the processor, and what a launch of each touches.
#include "examples/train_gpt_cuda/launch.h"
#include "tests/cuda/double/kernel.h"
#include "tests/cuda/kernels/host_block.h"

namespace train_gpt::gpu {
namespace {

using stepwell::drivers::cuda::HostBlock;
using stepwell::drivers::cuda::run_grid;

// visit(address, bytes, writes) for each array of an argument; an address of 0 is none.

uint64_t floats(uint64_t count)
{
    return count * sizeof(float);
}

// From the first matrix of a batch to the end of the last: what lies between is touched too.
uint64_t span(const MatmulArguments &a, const Batch &batch, uint32_t rows, uint32_t stride,
              uint32_t columns)
{
    if (a.batches == 0 || rows == 0) return 0;
    const uint64_t last =
        (a.batches / a.inner - 1) * batch.outer_step + (a.inner - 1) * batch.inner_step;
    return floats(last + uint64_t{rows - 1} * stride + columns);
}

template <class Visit> void visit_arrays(Kernel kernel, MatmulArguments &a, const Visit &visit)
{
    const bool turned_a = kernel == Kernel::kMatmulOfTransposed;
    const bool turned_b = kernel == Kernel::kMatmulByTransposed;
    visit(a.a, span(a, a.a_batch, turned_a ? a.k : a.m, a.a_stride, turned_a ? a.m : a.k), false);
    visit(a.b, span(a, a.b_batch, turned_b ? a.n : a.k, a.b_stride, turned_b ? a.k : a.n), false);
    visit(a.bias, floats(a.n), false);
    visit(a.residual, span(a, a.c_batch, a.m, a.c_stride, a.n), false);
    visit(a.c, span(a, a.c_batch, a.m, a.c_stride, a.n), true);
}

template <class Visit> void visit_arrays(Kernel, NormArguments &a, const Visit &visit)
{
    visit(a.x, floats(uint64_t{a.rows} * a.width), false);
    visit(a.gain, floats(a.width), false);
    visit(a.bias, floats(a.width), false);
    visit(a.y, floats(uint64_t{a.rows} * a.width), true);
    visit(a.mean, floats(a.rows), true);
    visit(a.rstd, floats(a.rows), true);
}

template <class Visit>
void visit_arrays(Kernel kernel, NormGradientArguments &a, const Visit &visit)
{
    const bool weight = kernel == Kernel::kNormBackwardWeight;
    visit(a.x, floats(uint64_t{a.rows} * a.width), false);
    visit(a.dy, floats(uint64_t{a.rows} * a.width), false);
    visit(a.mean, floats(a.rows), false);
    visit(a.rstd, floats(a.rows), false);
    visit(a.gain, weight ? 0 : floats(a.width), false);
    visit(a.dx, weight ? 0 : floats(uint64_t{a.rows} * a.width), true);
    visit(a.dgain, weight ? floats(a.width) : 0, true);
    visit(a.dbias, weight ? floats(a.width) : 0, true);
}

template <class Visit> void visit_arrays(Kernel, ColumnsArguments &a, const Visit &visit)
{
    visit(a.x, floats(uint64_t{a.rows} * a.width), false);
    visit(a.sums, floats(a.width), true);
}

template <class Visit> void visit_arrays(Kernel, GeluArguments &a, const Visit &visit)
{
    visit(a.x, floats(a.count), false);
    visit(a.y, floats(a.count), true);
}

template <class Visit> void visit_arrays(Kernel kernel, SoftmaxArguments &a, const Visit &visit)
{
    const bool forward = kernel == Kernel::kSoftmaxCausal;
    visit(a.p, floats(uint64_t{a.rows} * a.columns), forward);
    visit(a.dp, floats(uint64_t{a.rows} * a.columns), true);
}

template <class Visit> void visit_arrays(Kernel, CrossEntropyArguments &a, const Visit &visit)
{
    visit(a.targets, a.rows, false);
    visit(a.logits, floats(uint64_t{a.rows} * a.classes), true);
    visit(a.losses, floats(a.rows), true);
}

template <class Visit> void visit_arrays(Kernel, EmbedArguments &a, const Visit &visit)
{
    constexpr uint32_t kTokens = 256;
    visit(a.tokens, a.rows, false);
    visit(a.token_table, floats(uint64_t{kTokens} * a.width), false);
    visit(a.position_table, floats(uint64_t{a.sequence} * a.width), false);
    visit(a.x, floats(uint64_t{a.rows} * a.width), true);
}

template <class Visit>
void visit_arrays(Kernel kernel, EmbedGradientArguments &a, const Visit &visit)
{
    const bool of_tokens = kernel == Kernel::kEmbedTokenGradient;
    visit(a.tokens, of_tokens ? a.rows : 0, false);
    visit(a.dx, floats(uint64_t{a.rows} * a.width), false);
    visit(a.gradient, floats(uint64_t{of_tokens ? a.classes : a.sequence} * a.width), true);
}

template <class Arguments>
uint32_t ranges_of(Kernel kernel, void **args, stw_double_range *ranges, uint32_t capacity)
{
    auto arguments = *static_cast<const Arguments *>(args[0]);
    uint32_t count = 0;
    visit_arrays(kernel, arguments, [&](uint64_t address, uint64_t bytes, bool writes) {
        if (address == 0 || bytes == 0) return;
        if (count < capacity) ranges[count] = {address, bytes, writes ? 1U : 0U, 0};
        ++count;
    });
    return count;
}

template <class Arguments> Arguments aliased(Kernel kernel, void **args, stw_double_alias_of alias)
{
    auto arguments = *static_cast<const Arguments *>(args[0]);
    visit_arrays(kernel, arguments, [&](uint64_t &address, uint64_t bytes, bool) {
        if (address != 0 && bytes != 0) address = reinterpret_cast<uintptr_t>(alias(address));
    });
    return arguments;
}

// The kernels count on exactly these threads, and on grids of one dimension.
void check_launch(Kernel kernel, const stw_double_launch &launch)
{
    const uint32_t threads = kKernels[static_cast<uint32_t>(kernel)].threads;
    const bool fits = launch.block[0] == threads && launch.block[1] == 1 && launch.block[2] == 1 &&
                      launch.grid[1] == 1 && launch.grid[2] == 1;
    if (!fits) __builtin_trap();
}

}  // namespace
}  // namespace train_gpt::gpu

using namespace train_gpt::gpu;

#define GPT_DOUBLE extern "C" __attribute__((visibility("default")))

#define GPT_DEFINE(kernel, name, Arguments, body, threads)                                         \
    GPT_DOUBLE void stw_double_kernel_##name(void **args, const stw_double_launch *launch,         \
                                             stw_double_alias_of alias)                            \
    {                                                                                              \
        check_launch(Kernel::kernel, *launch);                                                     \
        const auto arguments = aliased<Arguments>(Kernel::kernel, args, alias);                    \
        run_grid(launch->grid[0], threads, [&](HostBlock &block) { body(block, arguments); });     \
    }                                                                                              \
    GPT_DOUBLE uint32_t stw_double_ranges_##name(void **args, const stw_double_launch *,           \
                                                 stw_double_range *ranges, uint32_t capacity)      \
    {                                                                                              \
        return ranges_of<Arguments>(Kernel::kernel, args, ranges, capacity);                       \
    }                                                                                              \
    GPT_DOUBLE uint32_t stw_double_args_##name(uint32_t *sizes, uint32_t capacity)                 \
    {                                                                                              \
        if (capacity > 0) sizes[0] = sizeof(Arguments);                                            \
        return 1;                                                                                  \
    }

TRAIN_GPT_KERNELS(GPT_DEFINE)
