// SPDX-License-Identifier: Apache-2.0
//
// The kernels as the image has them: a name for each body. What they compute is in the headers. At
// least 512 threads are to fit an SM at a time: 128 registers each, which the products need.

#include "list.h"

using namespace train_gpt::gpu;

#define GPT_KERNEL(kernel, name, Arguments, body, threads)                                         \
    extern "C" __global__ void __launch_bounds__(threads, 512 / threads)                           \
        name(const __grid_constant__ Arguments arguments)                                          \
    {                                                                                              \
        const ThreadBlock block;                                                                   \
        body(block, arguments);                                                                    \
    }
TRAIN_GPT_KERNELS(GPT_KERNEL)
