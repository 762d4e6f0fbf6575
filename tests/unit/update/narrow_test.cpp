// SPDX-License-Identifier: Apache-2.0
// States in bf16: each element goes to a neighbour, in the mean to itself, and what shrinks slowly
// shrinks, which to nearest it would not.
#include "tests/unit/update/kernels_support.h"

namespace stepwell::kernels::test {
namespace {

class Narrow : public KernelTest {};

std::vector<uint16_t> narrowed(const std::vector<float> &values, const Draw &draw)
{
    std::vector<uint16_t> result(values.size());
    narrow_state(result.data(), values.data(), values.size(), draw);
    return result;
}

TEST_F(Narrow, TakesOneOfTheTwoNeighboursAsOftenAsItIsNear)
{
    constexpr uint64_t kCount = 1 << 16;
    for (const double part : {0.0, 0.01, 0.25, 0.5, 0.99}) {
        for (const double sign : {1.0, -1.0}) {
            const double low = sign * 1.5;
            const double high = sign * (1.5 + 0x1p-7);
            const auto value = static_cast<float>(low + (high - low) * part);
            const std::vector<uint16_t> bits =
                narrowed(std::vector<float>(kCount, value), {1000, 3, 0});
            uint64_t highs = 0;
            for (const uint16_t at : bits) {
                const double decoded = decode(STW_BF16, at);
                ASSERT_TRUE(decoded == low || decoded == high) << decoded;
                highs += decoded == high ? 1 : 0;
            }
            // Within five standard deviations of a fair draw.
            const double share = static_cast<double>(highs) / kCount;
            EXPECT_NEAR(share, part, 5 * std::sqrt(part * (1 - part) / kCount)) << value;
        }
    }
}

TEST_F(Narrow, DrawsAnewForEachElementStepAndState)
{
    constexpr uint64_t kCount = 4096;
    const std::vector<float> halves(kCount, 1.5F + 0x1p-8F);
    const std::vector<uint16_t> base = narrowed(halves, {0, 1, 0});
    const Draw others[] = {{0, 2, 0}, {0, 1, 1}, {1, 1, 0}, {uint64_t{1} << 32, 1, 0}};
    for (const Draw &draw : others) {
        const std::vector<uint16_t> other = narrowed(halves, draw);
        uint64_t same = 0;
        for (uint64_t i = 0; i < kCount; ++i) same += base[i] == other[i] ? 1 : 0;
        EXPECT_NEAR(static_cast<double>(same) / kCount, 0.5, 0.05);
    }
    EXPECT_EQ(narrowed(halves, {0, 1, 0}), base);
}

TEST_F(Narrow, KeepsWhatBf16Has)
{
    Random random(9);
    std::vector<float> values;
    std::vector<uint16_t> expected;
    for (uint32_t i = 0; i < 20000; ++i) {
        const auto bits = static_cast<uint16_t>(random.next());
        const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
        values.push_back(value);
        expected.push_back(std::isnan(value) ? 0x7FC0 : bits);  // one NaN
    }
    EXPECT_EQ(narrowed(values, {7, 7, 1}), expected);
}

// A second moment whose gradients have gone, at beta2 0.999: to nearest it would stay where it is.
TEST_F(Narrow, SlowMomentsDecay)
{
    constexpr uint64_t kCount = 2000;
    std::vector<uint16_t> moment(kCount, 0x3F80);  // 1
    std::vector<float> wide(kCount);
    for (uint64_t step = 1; step <= 1000; ++step) {
        convert(wide.data(), STW_F32, moment.data(), STW_BF16, kCount);
        for (float &value : wide) value *= 0.999F;
        narrow_state(moment.data(), wide.data(), kCount, {0, step, 1});
    }
    double sum = 0.0;
    for (const uint16_t at : moment) sum += decode(STW_BF16, at);
    EXPECT_NEAR(sum / kCount, std::pow(0.999, 1000), 0.01);
}

}  // namespace
}  // namespace stepwell::kernels::test
