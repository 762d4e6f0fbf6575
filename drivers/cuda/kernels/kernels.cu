// SPDX-License-Identifier: Apache-2.0
// The kernels of the image: a name for each body. The arithmetic is in the headers.
#include "drivers/cuda/kernels/list.h"
#include "drivers/cuda/kernels/map.h"
#include "drivers/cuda/kernels/scan.h"
#include "drivers/cuda/kernels/update.h"

using namespace stepwell::drivers::cuda;

#define STW_KERNEL(kernel, name, Arguments, body, threads, elements)                               \
    extern "C" __global__ void __launch_bounds__(threads)                                          \
        name(const __grid_constant__ Arguments arguments)                                          \
    {                                                                                              \
        const ThreadBlock block;                                                                   \
        body(block, arguments);                                                                    \
    }
STW_CUDA_KERNELS(STW_KERNEL)
