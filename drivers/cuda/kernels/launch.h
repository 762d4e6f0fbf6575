// SPDX-License-Identifier: Apache-2.0
// How kernels are launched: names for cuModuleGetFunction, the size of the one argument, the
// geometry. Independent of the CUDA API; the caller passes the address of the argument's struct
// from arguments.h to cuLaunchKernel, without dynamic shared memory.
#pragma once

#include "drivers/cuda/kernels/arguments.h"

#include <cstdint>

namespace stepwell::drivers::cuda {

enum class Kernel : uint32_t {
    kUpdateAdam,  // AdamW and Adam
    kUpdateSgd,   // without momentum
    kUpdateMomentum,
    kUpdateAdagrad,
    kUpdateLion,
    kAverage,
    kConvert,
    kAccumulate,
    kScan,
};
inline constexpr uint32_t kKernels = 9;

struct KernelEntry {
    const char *name;
    uint32_t argument_bytes;
    uint32_t threads;   // of a thread block
    uint32_t elements;  // for which one more thread block is started
};

const KernelEntry &kernel_entry(Kernel kernel);

// Thread blocks for a launch over that many elements on a device with that many SMs; 0 if there is
// nothing to launch. Any other number gives the same bits, and so do fewer threads in a block,
// except for the scan.
uint32_t thread_blocks(Kernel kernel, uint64_t elements, uint32_t sm_count);

}  // namespace stepwell::drivers::cuda

// The code for all devices, for cuModuleLoadDataEx. Empty if the build had no nvcc.
extern "C" const unsigned char stw_cuda_image[];
extern "C" const uint64_t stw_cuda_image_bytes;
