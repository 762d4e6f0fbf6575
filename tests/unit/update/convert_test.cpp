// SPDX-License-Identifier: Apache-2.0
// Changes of dtype: every 16-bit pattern, every tie and its neighbours, on every target; and the
// accumulation of gradients against its definition.
#include "tests/unit/update/kernels_support.h"

namespace stepwell::kernels::test {
namespace {

constexpr uint32_t kPatterns = 65536;

class Convert : public KernelTest {
protected:
    template <class Body> static void on_every_target(Body &&body)
    {
        for (uint32_t target = 0; target < target_count(); ++target) {
            SCOPED_TRACE(target_name(target));
            ASSERT_TRUE(force_target_for_test(target));
            for (const uint32_t dtype : {STW_F16, STW_BF16}) body(dtype);
            if (HasFatalFailure()) return;
        }
    }
};

std::vector<float> widened(uint32_t dtype)
{
    std::vector<uint16_t> patterns(kPatterns);
    for (uint32_t i = 0; i < kPatterns; ++i) patterns[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(kPatterns);
    convert(wide.data(), STW_F32, patterns.data(), dtype, kPatterns);
    return wide;
}

uint16_t quiet_bit(uint32_t dtype)
{
    return dtype == STW_F16 ? 0x0200 : 0x0040;
}

TEST_F(Convert, WidensEveryPatternExactly)
{
    on_every_target([](uint32_t dtype) {
        const std::vector<float> wide = widened(dtype);
        for (uint32_t i = 0; i < kPatterns; ++i) {
            const double expected = decode(dtype, i);
            if (std::isnan(expected)) {
                ASSERT_TRUE(std::isnan(wide[i])) << i;
            } else {
                ASSERT_EQ(wide[i], expected) << i;
            }
            ASSERT_EQ(std::signbit(wide[i]), i >= 0x8000) << i;
        }
    });
}

TEST_F(Convert, NarrowsWhatItWidenedToTheSameBits)
{
    on_every_target([](uint32_t dtype) {
        const std::vector<float> wide = widened(dtype);
        std::vector<uint16_t> narrow(kPatterns);
        convert(narrow.data(), dtype, wide.data(), STW_F32, kPatterns);
        for (uint32_t i = 0; i < kPatterns; ++i) {
            const bool nan = std::isnan(decode(dtype, i));
            ASSERT_EQ(narrow[i], nan ? i | quiet_bit(dtype) : i) << i;
        }
    });
}

// Between each finite value and the next one away from zero: the middle, and one fp32 to each side.
TEST_F(Convert, RoundsTiesToEvenAndNeighboursToNearest)
{
    on_every_target([](uint32_t dtype) {
        std::vector<float> source;
        for (uint32_t i = 0; i < kPatterns; ++i) {
            const double low = decode(dtype, i);
            if (!std::isfinite(low)) continue;
            const Format f = format_of(dtype);
            const double limit = std::ldexp(1.0, f.exponent_max - f.exponent_bias);
            double high = decode(dtype, i + 1);
            if (std::isinf(high)) high = std::copysign(limit, low);
            const auto middle = static_cast<float>((low + high) / 2);
            source.push_back(middle);
            source.push_back(std::nextafter(middle, static_cast<float>(low)));
            source.push_back(std::nextafter(middle, static_cast<float>(high)));
        }
        std::vector<uint16_t> narrow(source.size());
        convert(narrow.data(), dtype, source.data(), STW_F32, source.size());
        for (uint64_t i = 0; i < source.size(); ++i) {
            ASSERT_EQ(decode(dtype, narrow[i]), round_to(dtype, source[i])) << source[i];
            ASSERT_EQ(narrow[i] >= 0x8000, std::signbit(source[i])) << source[i];
        }
    });
}

TEST_F(Convert, NarrowsAnyFp32)
{
    Random random(3);
    std::vector<float> source(200'000);
    for (float &value : source) value = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    on_every_target([&source](uint32_t dtype) {
        std::vector<uint16_t> narrow(source.size());
        convert(narrow.data(), dtype, source.data(), STW_F32, source.size());
        for (uint64_t i = 0; i < source.size(); ++i) {
            ASSERT_EQ(narrow[i] >= 0x8000, std::signbit(source[i]));
            if (std::isnan(source[i])) {
                ASSERT_TRUE(std::isnan(decode(dtype, narrow[i])));
                ASSERT_NE(narrow[i] & quiet_bit(dtype), 0);
            } else {
                ASSERT_EQ(decode(dtype, narrow[i]), round_to(dtype, source[i])) << source[i];
            }
        }
    });
}

TEST_F(Convert, SameDtypeCopiesBits)
{
    for (const uint32_t dtype : kDtypes) {
        Random random(dtype);
        Array from(dtype, 333);
        Array to(dtype, 333);
        from.randomize_bits(random);
        convert(to.data(), dtype, from.data(), dtype, 333);
        EXPECT_TRUE(from.all_bits() == to.all_bits());
    }
}

TEST_F(Convert, GoesBetweenTheTwoHalvesThroughFp32)
{
    const uint16_t f16[3] = {0x3C01, 0x7BFF, 0x0001};  // 1 + 2^-10, 65504, 2^-24
    uint16_t bf16[3] = {};
    convert(bf16, STW_BF16, f16, STW_F16, 3);
    EXPECT_EQ(bf16[0], 0x3F80);
    EXPECT_EQ(decode(STW_BF16, bf16[1]), 65536.0);
    EXPECT_EQ(decode(STW_BF16, bf16[2]), 0x1p-24);
}

TEST_F(Convert, FillRoundsOnce)
{
    // 1 + 2^-8 is a tie of bf16, 2^-40 decides it; through an fp32 it would be rounded to even.
    for (const double value : {1.0 + 0x1p-8 + 0x1p-40, 1.0 + 0x1p-8 - 0x1p-40, -1.0 - 0x1p-8,
                               1.0 + 0x1p-11 + 0x1p-40, 0.1, -0.0, 1e300, -1e300, 0x1p-160, 0x1p-25,
                               0x1p-25 + 0x1p-70, 65519.999999999, 65520.0}) {
        for (const uint32_t dtype : kDtypes) {
            Array array(dtype, 37, 3);
            fill(array.data(), dtype, 37, value);
            for (uint64_t i = 0; i < 37; ++i) {
                ASSERT_EQ(array.at(i), round_to(dtype, value)) << value << " dtype " << dtype;
                ASSERT_EQ(std::signbit(array.at(i)), std::signbit(value));
            }
            EXPECT_TRUE(array.surroundings_intact());
        }
    }
    uint16_t nan = 0;
    fill(&nan, STW_BF16, 1, NAN);
    EXPECT_TRUE(std::isnan(decode(STW_BF16, nan)));
}

class Accumulate : public KernelTest {};

// In double, product and sum of fp32 values are exact or nearly so; round_to() is the one rounding.
TEST_F(Accumulate, RoundsProductAndSumToFp32ThenToTheDtype)
{
    constexpr uint64_t kCount = 203;
    constexpr double kScale = 0x1.8p-3;
    for (const uint32_t to : kDtypes) {
        for (const uint32_t from : kDtypes) {
            Random random(5);
            Array destination(to, kCount);
            Array source(from, kCount);
            source.randomize(random, 8.0);
            accumulate(Reduce::kFirst, destination.data(), to, source.data(), from, kCount, kScale);
            std::vector<double> expected(kCount);
            for (uint64_t i = 0; i < kCount; ++i) {
                expected[i] = round_to(to, round_to(STW_F32, source.at(i) * kScale));
                ASSERT_EQ(destination.at(i), expected[i]) << to << " " << from;
            }
            source.randomize(random, 8.0);
            accumulate(Reduce::kAdd, destination.data(), to, source.data(), from, kCount, kScale);
            for (uint64_t i = 0; i < kCount; ++i) {
                const double product = round_to(STW_F32, source.at(i) * kScale);
                expected[i] = round_to(to, round_to(STW_F32, expected[i] + product));
                ASSERT_EQ(destination.at(i), expected[i]) << to << " " << from;
            }
            EXPECT_TRUE(destination.surroundings_intact() && source.surroundings_intact());
        }
    }
}

TEST_F(Accumulate, FirstContributionIgnoresWhatWasThere)
{
    float destination[5] = {NAN, INFINITY, 1.0F, -1.0F, NAN};
    const float source[5] = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F};
    accumulate(Reduce::kFirst, destination, STW_F32, source, STW_F32, 5, 2.0);
    for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(destination[i], 2.0F * source[i]);
}

}  // namespace
}  // namespace stepwell::kernels::test
