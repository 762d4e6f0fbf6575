// SPDX-License-Identifier: Apache-2.0
// The table of launches, from the list.
#include "drivers/cuda/kernels/launch.h"

#include "drivers/cuda/kernels/list.h"

#include <algorithm>
#include <iterator>

namespace stepwell::drivers::cuda {

namespace {

// About 5 blocks of 256 threads run on an SM at a time. With several times that many, a late one
// delays nothing, and each still has a long loop.
constexpr uint64_t kThreadBlocksPerSm = 64;

#define STW_ENTRY(kernel, name, Arguments, body, threads, elements)                                \
    {#name, sizeof(Arguments), threads, elements},
constexpr KernelEntry kEntries[] = {STW_CUDA_KERNELS(STW_ENTRY)};
#undef STW_ENTRY

// The list is in the order of the enumeration.
#define STW_NUMBER(kernel, name, Arguments, body, threads, elements) Kernel::kernel,
constexpr Kernel kNumbers[] = {STW_CUDA_KERNELS(STW_NUMBER)};
#undef STW_NUMBER
static_assert(std::size(kNumbers) == kKernels);
static_assert([] {
    for (uint32_t i = 0; i < kKernels; ++i) {
        if (kNumbers[i] != static_cast<Kernel>(i)) return false;
    }
    return true;
}());

}  // namespace

const KernelEntry &kernel_entry(Kernel kernel)
{
    return kEntries[static_cast<uint32_t>(kernel)];
}

uint32_t thread_blocks(Kernel kernel, uint64_t elements, uint32_t sm_count)
{
    const uint64_t each = kernel_entry(kernel).elements;
    const uint64_t needed = elements / each + (elements % each != 0 ? 1 : 0);
    return static_cast<uint32_t>(
        std::min(needed, kThreadBlocksPerSm * std::clamp<uint64_t>(sm_count, 1, 4096)));
}

}  // namespace stepwell::drivers::cuda
