// SPDX-License-Identifier: Apache-2.0
//
// How the kernels are launched: names for cuModuleGetFunction and the threads of a thread block.

#ifndef TRAIN_GPT_CUDA_LAUNCH_H
#define TRAIN_GPT_CUDA_LAUNCH_H

#include "kernels/list.h"

#include <cstdint>

namespace train_gpt::gpu {

#define TRAIN_GPT_NUMBER(kernel, name, Arguments, body, threads) kernel,
enum class Kernel : uint32_t { TRAIN_GPT_KERNELS(TRAIN_GPT_NUMBER) };
#undef TRAIN_GPT_NUMBER

struct KernelEntry {
    const char *name;
    uint32_t argument_bytes;
    uint32_t threads;
};

#define TRAIN_GPT_ENTRY(kernel, name, Arguments, body, threads) {#name, sizeof(Arguments), threads},
inline constexpr KernelEntry kKernels[] = {TRAIN_GPT_KERNELS(TRAIN_GPT_ENTRY)};
#undef TRAIN_GPT_ENTRY
inline constexpr uint32_t kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

inline uint64_t matmul_blocks(const MatmulArguments &arguments)
{
    const auto tiles = [](uint32_t size) { return uint64_t{(size + kTile - 1) / kTile}; };
    return arguments.batches * tiles(arguments.m) * tiles(arguments.n);
}

// Some elements for each thread.
inline uint64_t element_blocks(uint64_t count)
{
    constexpr uint64_t kEach = uint64_t{4} * kElementThreads;
    return (count + kEach - 1) / kEach;
}

inline uint64_t column_blocks(uint32_t width)
{
    return (width + kColumns - 1) / kColumns;
}

}  // namespace train_gpt::gpu

#endif
