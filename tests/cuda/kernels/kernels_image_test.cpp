// SPDX-License-Identifier: Apache-2.0
// What nvcc made of the kernels: the instructions that round as the processor does and no others,
// and arguments as the table of launches says. Needs nvcc in the build, and no GPU.
#include "drivers/cuda/kernels/launch.h"

// gcc 12 takes parts of std::regex for uninitialized where the address sanitizer is on (its bug
// 105562).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace stepwell::drivers::cuda::test {
namespace {

std::string text_of(const char *path)
{
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Instructions on floating-point numbers other than those that round once to nearest even, are
// exact, or only move bits. An add or mul without .rn is one that may be fused later.
std::set<std::string> refused_instructions(const std::string &ptx)
{
    static const std::regex instruction(R"(\n\s*(?:@!?%\w+\s+)?([a-z][\w.]*)\s)");
    static const std::regex on_floats(R"(.*\.b?f(16|32|64)(x2)?\b.*)");
    static const std::regex accepted(
        R"((add|sub|mul|div|sqrt)\.rn\.f(32|64)|(neg|abs|max|mov|selp)\.f(32|64))"
        R"(|cvt\.f64\.f32|setp\.\w+\.f(32|64)|(ld|st)\.[\w.]+)");
    std::set<std::string> refused;
    for (auto at = std::sregex_iterator(ptx.begin(), ptx.end(), instruction);
         at != std::sregex_iterator(); ++at) {
        const std::string name = (*at)[1];
        const bool bad =
            name.find(".ftz") != std::string::npos || name.find(".approx") != std::string::npos;
        if (bad || (std::regex_match(name, on_floats) && !std::regex_match(name, accepted))) {
            refused.insert(name);
        }
    }
    return refused;
}

class CudaImage : public testing::Test {
protected:
    void SetUp() override
    {
        if (stw_cuda_image_bytes == 0) GTEST_SKIP() << "the build had no nvcc: the image is empty";
    }
};

TEST_F(CudaImage, FusesFlushesAndApproximatesNothing)
{
    for (const char *path : {STEPWELL_PTX_OLDEST, STEPWELL_PTX_NEWEST}) {
        const std::string ptx = text_of(path);
        EXPECT_NE(ptx.find("add.rn.f64"), std::string::npos) << path;
        EXPECT_EQ(refused_instructions(ptx), std::set<std::string>()) << path;
    }
}

// The same sources without the flags: what the test above looks for is there.
TEST_F(CudaImage, WouldFuseFlushAndApproximateWithoutItsFlags)
{
    const std::set<std::string> fused = refused_instructions(text_of(STEPWELL_PTX_FUSED));
    for (const char *name : {"fma.rn.f32", "fma.rn.f64", "add.f32", "mul.f32"}) {
        EXPECT_EQ(fused.count(name), 1U) << name;
    }
    const std::set<std::string> fast = refused_instructions(text_of(STEPWELL_PTX_FAST));
    for (const char *name : {"fma.rn.ftz.f32", "div.approx.ftz.f32", "sqrt.approx.ftz.f32"}) {
        EXPECT_EQ(fast.count(name), 1U) << name;
    }
}

TEST_F(CudaImage, HasTheKernelsOfTheTable)
{
    const std::string ptx = text_of(STEPWELL_PTX_NEWEST);
    for (uint32_t i = 0; i < kKernels; ++i) {
        const KernelEntry &entry = kernel_entry(static_cast<Kernel>(i));
        const std::string parameter = std::string(".param .align 8 .b8 ") + entry.name +
                                      "_param_0[" + std::to_string(entry.argument_bytes) + "]";
        EXPECT_NE(ptx.find(parameter), std::string::npos) << parameter;
    }
}

TEST_F(CudaImage, IsAFatBinary)
{
    constexpr uint32_t kMagic = 0xBA55ED50;
    uint32_t magic = 0;
    std::memcpy(&magic, stw_cuda_image, sizeof(magic));
    EXPECT_EQ(magic, kMagic);
    EXPECT_LT(stw_cuda_image_bytes, 1U << 20);
}

TEST(CudaLaunch, HasThreadBlocksForTheElementsAndNoMoreThanTheDeviceNeeds)
{
    for (uint32_t i = 0; i < kKernels; ++i) {
        const auto kernel = static_cast<Kernel>(i);
        const uint64_t each = kernel_entry(kernel).elements;
        EXPECT_EQ(thread_blocks(kernel, 0, 132), 0U);
        EXPECT_EQ(thread_blocks(kernel, 1, 132), 1U);
        EXPECT_EQ(thread_blocks(kernel, each, 132), 1U);
        EXPECT_EQ(thread_blocks(kernel, each + 1, 132), 2U);
        EXPECT_EQ(thread_blocks(kernel, UINT64_MAX, 132), 132U * 64);
        EXPECT_EQ(thread_blocks(kernel, UINT64_MAX, 0), 64U);
    }
}

}  // namespace
}  // namespace stepwell::drivers::cuda::test
