/* SPDX-License-Identifier: Apache-2.0
 * A library of kernels, as STW_CUDA_DOUBLE_KERNELS names one: values[i] *= 2, for some values.
 */
#include "tests/cuda/double/kernel.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT stw_double_kernel stw_double_kernel_twice;
EXPORT stw_double_ranges stw_double_ranges_twice;
EXPORT stw_double_args stw_double_args_twice;

void stw_double_kernel_twice(void **args, const stw_double_launch *launch,
                             stw_double_alias_of alias)
{
    uint32_t *values = alias(*(uint64_t *)args[0]);
    uint32_t count = *(uint32_t *)args[1];
    uint32_t threads = launch->grid[0] * launch->block[0];
    for (uint32_t i = 0; i < count && i < threads; ++i) values[i] *= 2;
}

uint32_t stw_double_ranges_twice(void **args, const stw_double_launch *launch,
                                 stw_double_range *ranges, uint32_t capacity)
{
    (void)launch;
    if (capacity > 0) {
        ranges[0].address = *(uint64_t *)args[0];
        ranges[0].bytes = *(uint32_t *)args[1] * sizeof(uint32_t);
        ranges[0].writes = 1;
        ranges[0].reserved = 0;
    }
    return 1;
}

uint32_t stw_double_args_twice(uint32_t *sizes, uint32_t capacity)
{
    if (capacity > 0) sizes[0] = sizeof(uint64_t);
    if (capacity > 1) sizes[1] = sizeof(uint32_t);
    return 2;
}
