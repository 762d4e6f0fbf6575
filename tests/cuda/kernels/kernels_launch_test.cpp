// SPDX-License-Identifier: Apache-2.0
// The kernels as a driver launches them: by name out of the image, over the double of the CUDA
// driver, which runs them in the order of their streams and watches what they touch.
#include "drivers/cuda/kernels/launch.h"
#include "tests/cuda/double_rig.h"

namespace stepwell::cuda_double {
namespace {

namespace kernels = drivers::cuda;

constexpr uint32_t kCount = 5000;

class CudaKernelLaunch : public DoubleTest {
protected:
    void SetUp() override
    {
        begin("devices=1");
        ASSERT_EQ(cuModuleLoadData(&module, stw_cuda_image), kSuccess);
        one = stream();
        from = device(kCount * sizeof(uint16_t));
        to = device(kCount * sizeof(float));
        for (uint32_t i = 0; i < kCount; ++i) {
            reinterpret_cast<uint16_t *>(bytes(from))[i] = static_cast<uint16_t>(i);
        }
    }
    void TearDown() override
    {
        EXPECT_EQ(cuCtxSynchronize(), kSuccess);
        EXPECT_EQ(cuMemFree_v2(from), kSuccess);
        EXPECT_EQ(cuMemFree_v2(to), kSuccess);
        EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
        EXPECT_EQ(cuModuleUnload(module), kSuccess);
        DoubleTest::TearDown();
    }
    int launch(kernels::Kernel kernel, void *argument)
    {
        const kernels::KernelEntry &entry = kernels::kernel_entry(kernel);
        void *function = nullptr;
        EXPECT_EQ(cuModuleGetFunction(&function, module, entry.name), kSuccess);
        const uint32_t blocks = kernels::thread_blocks(kernel, kCount, 1);
        void *arguments[] = {argument};
        return cuLaunchKernel(function, blocks, 1, 1, entry.threads, 1, 1, 0, one, arguments,
                              nullptr);
    }
    int widen()
    {
        kernels::ConvertArguments arguments = {to, from, kCount, STW_F32, STW_BF16};
        return launch(kernels::Kernel::kConvert, &arguments);
    }

    void *module = nullptr;
    void *one = nullptr;
    Address from = 0;
    Address to = 0;
};

TEST_F(CudaKernelLaunch, EveryKernelIsFoundByItsName)
{
    for (uint32_t i = 0; i < kernels::kKernels; ++i) {
        const char *name = kernels::kernel_entry(static_cast<kernels::Kernel>(i)).name;
        void *function = nullptr;
        EXPECT_EQ(cuModuleGetFunction(&function, module, name), kSuccess) << name;
    }
}

TEST_F(CudaKernelLaunch, RunsInTheOrderOfItsStream)
{
    ASSERT_EQ(cuMemsetD8Async(to, 0xFF, kCount * sizeof(float), one), kSuccess);
    ASSERT_EQ(widen(), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    for (uint32_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(reinterpret_cast<uint32_t *>(bytes(to))[i], i << 16);
    }
}

TEST_F(CudaKernelLaunch, WhatItReadsMayNotBeWrittenBesideIt)
{
    ASSERT_EQ(widen(), kSuccess);
    void *const two = stream();
    ASSERT_EQ(cuMemsetD8Async(from + (kCount - 1) * sizeof(uint16_t), 0, 2, two), kSuccess);
    expect_violation(STW_DOUBLE_OVERWRITTEN_IN_USE, {"stw_convert", "reads these bytes"});
    ASSERT_EQ(cuCtxSynchronize(), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(two), kSuccess);
}

}  // namespace
}  // namespace stepwell::cuda_double
