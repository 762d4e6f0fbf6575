// SPDX-License-Identifier: Apache-2.0
// Moving averages, changes of dtype and sums of gradients: the GPU's kernels, run by the processor,
// against the processor's own.
#include "tests/cuda/kernels/support.h"

namespace stepwell::drivers::cuda::test {
namespace {

using kernels::test::KernelTest;

constexpr Geometry kGeometries[] = {{1, 1}, {3, 37}, {1, 256}, {13, 256}};

Array mixed(uint32_t dtype, uint64_t count, uint64_t offset, uint64_t seed)
{
    Random random(seed);
    Array array(dtype, count, offset);
    mix(array, random);
    return array;
}

// expected(array) is what the processor makes of `to`; launched(array) is told where `to` lies.
template <class Expected, class Launched>
void compare(uint32_t dtype, uint64_t count, const uint64_t (&offsets)[3], Expected &&expected,
             Launched &&launched)
{
    for (uint32_t target = 0; target < kernels::target_count(); ++target) {
        SCOPED_TRACE(std::string(kernels::target_name(target)) + ", " + std::to_string(count) +
                     " elements, offset " + std::to_string(offsets[0]));
        kernels::force_target_for_test(target);
        Array reference = mixed(dtype, count, offsets[0], 1);
        expected(reference);
        Array found = mixed(dtype, count, offsets[0], 1);
        launched(found);
        EXPECT_TRUE(same(reference, found));
    }
}

class CudaMap : public KernelTest {};

TEST_F(CudaMap, AverageHasTheBitsOfTheProcessor)
{
    for (const uint64_t count : kCounts) {
        for (const auto &offsets : kOffsets) {
            Array values = mixed(STW_F32, count, offsets[2], 2);
            compare(
                STW_F32, count, offsets,
                [&](Array &to) { kernels::average(to.floats(), values.floats(), count, 0.9999); },
                [&](Array &to) {
                    AverageArguments arguments = {device_address(to.data()),
                                                  device_address(values.data()), count,
                                                  static_cast<float>(1.0 - 0.9999), 0};
                    launch(Kernel::kAverage, &arguments, count, 1);
                });
        }
    }
}

TEST_F(CudaMap, ConversionsHaveTheBitsOfTheProcessor)
{
    for (const uint32_t to_dtype : kDtypes) {
        for (const uint32_t from_dtype : kDtypes) {
            SCOPED_TRACE(std::to_string(from_dtype) + " to " + std::to_string(to_dtype));
            for (const uint64_t count : kCounts) {
                for (const auto &offsets : kOffsets) {
                    Array from = mixed(from_dtype, count, offsets[2], 3);
                    compare(
                        to_dtype, count, offsets,
                        [&](Array &to) {
                            kernels::convert(to.data(), to_dtype, from.data(), from_dtype, count);
                        },
                        [&](Array &to) {
                            ConvertArguments arguments = {device_address(to.data()),
                                                          device_address(from.data()), count,
                                                          to_dtype, from_dtype};
                            launch(Kernel::kConvert, &arguments, count, 1);
                        });
                }
            }
        }
    }
}

// All there are of 16 bits, and of fp32 those whose upper half is any and whose lower half decides
// the rounding.
TEST_F(CudaMap, EveryPatternConvertsAsOnTheProcessor)
{
    constexpr uint32_t kLower[] = {0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x2000,
                                   0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    for (const uint32_t to_dtype : kDtypes) {
        for (const uint32_t from_dtype : kDtypes) {
            SCOPED_TRACE(std::to_string(from_dtype) + " to " + std::to_string(to_dtype));
            for (const uint32_t lower : kLower) {
                if (from_dtype != STW_F32 && lower != 0) continue;
                Array from(from_dtype, 65536);
                for (uint32_t i = 0; i < 65536; ++i) {
                    from.set_bits(i, from_dtype == STW_F32 ? i << 16 | lower : i);
                }
                Array expected(to_dtype, 65536);
                kernels::convert(expected.data(), to_dtype, from.data(), from_dtype, 65536);
                Array found(to_dtype, 65536);
                ConvertArguments arguments = {device_address(found.data()),
                                              device_address(from.data()), 65536, to_dtype,
                                              from_dtype};
                launch(Kernel::kConvert, &arguments, 65536, 1);
                ASSERT_TRUE(same(expected, found));
            }
        }
    }
}

TEST_F(CudaMap, SumsHaveTheBitsOfTheProcessor)
{
    const auto modes = {kernels::Reduce::kFirst, kernels::Reduce::kAdd};
    for (const uint32_t to_dtype : kDtypes) {
        for (const uint32_t from_dtype : kDtypes) {
            SCOPED_TRACE(std::to_string(from_dtype) + " to " + std::to_string(to_dtype));
            for (const uint64_t count : {uint64_t{1}, uint64_t{5}, uint64_t{4097}}) {
                for (const auto &offsets : kOffsets) {
                    for (const kernels::Reduce mode : modes) {
                        Array from = mixed(from_dtype, count, offsets[2], 4);
                        compare(
                            to_dtype, count, offsets,
                            [&](Array &to) {
                                kernels::accumulate(mode, to.data(), to_dtype, from.data(),
                                                    from_dtype, count, 1.0 / 3.0);
                            },
                            [&](Array &to) {
                                const bool first = mode == kernels::Reduce::kFirst;
                                AccumulateArguments arguments = {device_address(to.data()),
                                                                 device_address(from.data()),
                                                                 count,
                                                                 to_dtype,
                                                                 from_dtype,
                                                                 static_cast<float>(1.0 / 3.0),
                                                                 first ? kAccumulateFirst
                                                                       : kAccumulateAdd};
                                launch(Kernel::kAccumulate, &arguments, count, 1);
                            });
                    }
                }
            }
        }
    }
}

TEST_F(CudaMap, EveryGeometryGivesTheSameBits)
{
    constexpr uint64_t kCount = 10007;
    for (const auto &offsets : kOffsets) {
        for (const Geometry geometry : kGeometries) {
            Array from = mixed(STW_F16, kCount, offsets[2], 5);
            Array expected = mixed(STW_BF16, kCount, offsets[0], 1);
            kernels::accumulate(kernels::Reduce::kAdd, expected.data(), STW_BF16, from.data(),
                                STW_F16, kCount, 0.5);
            Array found = mixed(STW_BF16, kCount, offsets[0], 1);
            AccumulateArguments arguments = {device_address(found.data()),
                                             device_address(from.data()),
                                             kCount,
                                             STW_BF16,
                                             STW_F16,
                                             0.5F,
                                             kAccumulateAdd};
            launch(Kernel::kAccumulate, &arguments, geometry);
            EXPECT_TRUE(same(expected, found));
        }
    }
}

TEST_F(CudaMap, NamesWhatItTouches)
{
    Array from(STW_F16, 10);
    Array to(STW_F32, 10);
    ConvertArguments arguments = {device_address(to.data()), device_address(from.data()), 10,
                                  STW_F32, STW_F16};
    const std::vector<stw_double_range> ranges = ranges_of(Kernel::kConvert, &arguments);
    ASSERT_EQ(ranges.size(), 2U);
    EXPECT_EQ(ranges[0].address, arguments.source);
    EXPECT_EQ(ranges[0].bytes, 20U);
    EXPECT_EQ(ranges[0].writes, 0U);
    EXPECT_EQ(ranges[1].address, arguments.destination);
    EXPECT_EQ(ranges[1].bytes, 40U);
    EXPECT_EQ(ranges[1].writes, 1U);
}

}  // namespace
}  // namespace stepwell::drivers::cuda::test
