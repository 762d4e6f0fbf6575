/* SPDX-License-Identifier: Apache-2.0
 * What a kernel is to the test double of the CUDA driver: three functions that the process, or one
 * of the libraries named by STW_CUDA_DOUBLE_KERNELS, with colons between, exports under the names
 * below. They say what a launch touches, so that its order can be checked, and do on the host what
 * the kernel does on a device.
 */
#ifndef STW_CUDA_DOUBLE_KERNEL_H
#define STW_CUDA_DOUBLE_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stw_double_launch {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
    uint32_t reserved;
} stw_double_launch;

typedef struct stw_double_range {
    uint64_t address;
    uint64_t bytes;
    uint32_t writes;
    uint32_t reserved;
} stw_double_range;

/* Where the bytes of a device address lie in this process; a host address is its own alias. */
typedef void *(*stw_double_alias_of)(uint64_t address);

/* stw_double_kernel_<name>: run all threads of the grid. `args` is as cuLaunchKernel's
 * kernelParams; every device address in them goes through alias() before it is used. */
typedef void stw_double_kernel(void **args, const stw_double_launch *launch,
                               stw_double_alias_of alias);

/* stw_double_ranges_<name>: what a launch touches. Returns how many ranges there are; at most
 * `capacity` are written. */
typedef uint32_t stw_double_ranges(void **args, const stw_double_launch *launch,
                                   stw_double_range *ranges, uint32_t capacity);

/* stw_double_args_<name>: the sizes of the arguments, which a launch copies. Returns how many
 * arguments there are; at most `capacity` sizes are written. */
typedef uint32_t stw_double_args(uint32_t *sizes, uint32_t capacity);

#ifdef __cplusplus
}
#endif

#endif
