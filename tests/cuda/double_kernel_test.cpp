// SPDX-License-Identifier: Apache-2.0
// Claims about modules and kernels, with a kernel that this program exports.
#include "tests/cuda/double_rig.h"

#include <atomic>
#include <cstdlib>

namespace {

std::atomic<uint32_t> threads_seen;

struct Arguments {
    uint64_t to;
    uint64_t from;
    uint32_t count;
    float factor;
};

Arguments read_arguments(void **arguments)
{
    return {*static_cast<uint64_t *>(arguments[0]), *static_cast<uint64_t *>(arguments[1]),
            *static_cast<uint32_t *>(arguments[2]), *static_cast<float *>(arguments[3])};
}

}  // namespace

extern "C" {

// to[i] = factor * from[i]
__attribute__((visibility("default"))) void stw_double_kernel_scale(void **arguments,
                                                                    const stw_double_launch *launch,
                                                                    stw_double_alias_of alias)
{
    const Arguments given = read_arguments(arguments);
    auto *to = static_cast<float *>(alias(given.to));
    const auto *from = static_cast<const float *>(alias(given.from));
    for (uint32_t i = 0; i < given.count; ++i) to[i] = given.factor * from[i];
    threads_seen = launch->grid[0] * launch->block[0];
}

__attribute__((visibility("default"))) uint32_t stw_double_ranges_scale(void **arguments,
                                                                        const stw_double_launch *,
                                                                        stw_double_range *ranges,
                                                                        uint32_t capacity)
{
    const Arguments given = read_arguments(arguments);
    const uint64_t bytes = uint64_t{given.count} * sizeof(float);
    if (capacity > 0) ranges[0] = {given.to, bytes, 1, 0};
    if (capacity > 1) ranges[1] = {given.from, bytes, 0, 0};
    return 2;
}

__attribute__((visibility("default"))) uint32_t stw_double_args_scale(uint32_t *sizes,
                                                                      uint32_t capacity)
{
    const uint32_t all[] = {8, 8, 4, 4};
    for (uint32_t i = 0; i < 4 && i < capacity; ++i) sizes[i] = all[i];
    return 4;
}

}  // extern "C"

namespace stepwell::cuda_double {
namespace {

constexpr uint32_t kCount = 1000;

class DoubleKernel : public DoubleTest {
protected:
    void SetUp() override
    {
        begin("devices=2");
        ASSERT_EQ(cuModuleLoadData(&module, "any image"), kSuccess);
        ASSERT_EQ(cuModuleGetFunction(&function, module, "scale"), kSuccess);
        one = stream();
        from = device(kCount * sizeof(float));
        to = device(kCount * sizeof(float));
        for (uint32_t i = 0; i < kCount; ++i)
            reinterpret_cast<float *>(bytes(from))[i] = static_cast<float>(i);
    }
    void TearDown() override
    {
        if (cuCtxSynchronize() == kSuccess) {
            EXPECT_EQ(cuMemFree_v2(from), kSuccess);
            EXPECT_EQ(cuMemFree_v2(to), kSuccess);
            EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
            EXPECT_EQ(cuModuleUnload(module), kSuccess);
        }
        DoubleTest::TearDown();
    }
    int launch(void *on, float factor, unsigned blocks = 4)
    {
        uint32_t count = kCount;
        void *arguments[] = {&to, &from, &count, &factor};
        return cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, on, arguments, nullptr);
    }
    float result(uint32_t i) { return reinterpret_cast<float *>(bytes(to))[i]; }

    void *module = nullptr;
    void *function = nullptr;
    void *one = nullptr;
    Address from = 0;
    Address to = 0;
};

TEST_F(DoubleKernel, RunsInStreamOrderWithItsArgumentsAsTheyWere)
{
    stw_double_hold(one);
    ASSERT_EQ(launch(one, 3), kSuccess);
    stw_double_let_go(one, 0);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(result(kCount - 1), 3 * (kCount - 1));
    EXPECT_EQ(threads_seen, 1024u);
}

TEST_F(DoubleKernel, IsJudgedByWhatItTouches)
{
    ASSERT_EQ(launch(one, 3), kSuccess);
    void *const two = stream();
    ASSERT_EQ(cuMemsetD8Async(from, 0, 4, two), kSuccess);
    expect_violation(STW_DOUBLE_OVERWRITTEN_IN_USE, {"scale #1", "reads these bytes"});
    ASSERT_EQ(cuCtxSynchronize(), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(two), kSuccess);
}

TEST_F(DoubleKernel, ARefusedLaunchDoesNothing)
{
    EXPECT_EQ(launch(one, 3, 0), kInvalidValue);
    EXPECT_EQ(cuLaunchKernel(this, 1, 1, 1, 1, 1, 1, 0, one, nullptr, nullptr), kInvalidHandle);
    EXPECT_EQ(stw_double_pending(one), 0u);
}

TEST_F(DoubleKernel, AStreamOfAnotherContextIsRefused)
{
    void *second = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(second), kSuccess);
    EXPECT_EQ(launch(one, 3), kInvalidHandle);
    expect_violation(STW_DOUBLE_WRONG_CONTEXT, {"cuLaunchKernel of scale"});
    ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), kSuccess);
}

TEST_F(DoubleKernel, MemoryOfAnotherDeviceBreaksTheContext)
{
    void *second = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(second), kSuccess);
    from = device(kCount * sizeof(float));
    ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
    ASSERT_EQ(launch(one, 3), kSuccess);
    expect_violation(STW_DOUBLE_WRONG_CONTEXT, {"scale #1", "another device"});
    EXPECT_EQ(cuStreamSynchronize(one), kIllegalAddress);
    ASSERT_EQ(cuCtxPushCurrent_v2(second), kSuccess);
    EXPECT_EQ(cuMemFree_v2(from), kSuccess);
    ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), kSuccess);
}

TEST_F(DoubleKernel, OneThatNobodyExportsIsNotFound)
{
    void *none = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&none, module, "absent"), kNotFound);
    EXPECT_EQ(none, nullptr);
}

TEST_F(DoubleKernel, AnUnloadedModuleIsNotUsedAgain)
{
    EXPECT_EQ(cuModuleUnload(module), kSuccess);
    void *none = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&none, module, "scale"), kInvalidHandle);
    expect_violation(STW_DOUBLE_DEAD_HANDLE, {"no module that is loaded"});
    ASSERT_EQ(cuModuleLoadDataEx(&module, "image", 0, nullptr, nullptr), kSuccess);
}

TEST_F(DoubleKernel, ALibraryOfKernelsIsLookedThroughToo)
{
    if (std::getenv("STW_CUDA_DOUBLE_KERNELS") == nullptr)
        GTEST_SKIP() << "STW_CUDA_DOUBLE_KERNELS names no library; the build's test run sets it";
    void *twice = nullptr;
    ASSERT_EQ(cuModuleGetFunction(&twice, module, "twice"), kSuccess);
    ASSERT_EQ(cuMemsetD8Async(to, 1, kCount * 4, one), kSuccess);
    uint32_t count = kCount;
    void *arguments[] = {&to, &count};
    ASSERT_EQ(cuLaunchKernel(twice, kCount, 1, 1, 1, 1, 1, 0, one, arguments, nullptr), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(bytes(to)[kCount * 4 - 1], 2);
}

TEST_F(DoubleKernel, ALibraryHasTheSameKernels)
{
    void *library = nullptr, *kernel = nullptr, *same = nullptr;
    ASSERT_EQ(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0),
              kSuccess);
    ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "scale"), kSuccess);
    ASSERT_EQ(cuKernelGetFunction(&same, kernel), kSuccess);
    EXPECT_EQ(same, function);
    int threads = 0;
    EXPECT_EQ(cuFuncGetAttribute(&threads, 0, same), kSuccess);
    EXPECT_EQ(threads, 1024);
    EXPECT_EQ(cuLibraryUnload(library), kSuccess);
}

}  // namespace
}  // namespace stepwell::cuda_double
