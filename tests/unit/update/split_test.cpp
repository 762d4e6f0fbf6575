// SPDX-License-Identifier: Apache-2.0
// Masters of bf16 parameters in parts: every fp32 pattern comes back, of the parameter that
// convert() makes of it.
#include "tests/unit/update/kernels_support.h"

#include <numeric>

namespace stepwell::kernels::test {
namespace {

class Split : public KernelTest {};

// A run of masters in parts.
struct Parts {
    explicit Parts(uint64_t count)
        : rounded(count), low(count), open((count + 7) / 8), merged(count)
    {
    }
    // As patterns, so that NaNs compare.
    const std::vector<uint32_t> &there_and_back(const std::vector<uint32_t> &masters)
    {
        const auto *values = reinterpret_cast<const float *>(masters.data());
        convert(rounded.data(), STW_BF16, values, STW_F32, masters.size());
        split_master({low.data(), open.data()}, values, masters.size());
        merge_master(reinterpret_cast<float *>(merged.data()), rounded.data(),
                     {low.data(), open.data()}, masters.size());
        return merged;
    }

    std::vector<uint16_t> rounded;
    std::vector<uint16_t> low;
    std::vector<uint8_t> open;
    std::vector<uint32_t> merged;
};

// Every upper half with lower halves around all that rounding looks at.
TEST_F(Split, LosesNothingOnAnyTarget)
{
    std::vector<uint32_t> lows = {0, 1, 2, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0x8002, 0xFFFE, 0xFFFF};
    Random random(5);
    for (int i = 0; i < 6; ++i) lows.push_back(static_cast<uint32_t>(random.next() & 0xFFFF));
    std::vector<uint32_t> masters;
    for (const uint32_t low : lows) {
        for (uint32_t upper = 0; upper < 65536; ++upper) masters.push_back(upper << 16 | low);
    }
    for (uint32_t target = 0; target < target_count(); ++target) {
        SCOPED_TRACE(target_name(target));
        ASSERT_TRUE(force_target_for_test(target));
        Parts parts(masters.size());
        EXPECT_TRUE(parts.there_and_back(masters) == masters);
    }
}

// 2^32 patterns, in 3 seconds of a processor.
TEST_F(Split, LosesNothingOfAnyMaster)
{
    constexpr uint64_t kRun = 1 << 16;
    Parts parts(kRun);
    std::vector<uint32_t> masters(kRun);
    for (uint64_t first = 0; first < uint64_t{1} << 32; first += kRun) {
        std::iota(masters.begin(), masters.end(), static_cast<uint32_t>(first));
        ASSERT_TRUE(parts.there_and_back(masters) == masters) << std::hex << first;
    }
}

// Runs of any length, whose last byte of bits is their own.
TEST_F(Split, TakesRunsOfAnyLength)
{
    Random random(7);
    for (uint32_t target = 0; target < target_count(); ++target) {
        SCOPED_TRACE(target_name(target));
        ASSERT_TRUE(force_target_for_test(target));
        for (uint64_t count = 1; count < 200; ++count) {
            std::vector<uint32_t> masters(count);
            for (uint32_t &master : masters) {
                const auto upper = static_cast<uint32_t>(random.next()) << 16;
                master = upper | (random.next() % 2 == 0 ? 0x8000 : 0x1234);
            }
            Parts parts(count);
            parts.open.push_back(0xA5);
            ASSERT_TRUE(parts.there_and_back(masters) == masters) << count;
            ASSERT_EQ(parts.open.back(), 0xA5) << count;
        }
    }
}

TEST_F(Split, AParameterAloneIsItsMaster)
{
    std::vector<uint16_t> patterns(65536);
    std::iota(patterns.begin(), patterns.end(), static_cast<uint16_t>(0));
    std::vector<uint32_t> merged(patterns.size());
    std::vector<uint16_t> low(patterns.size());
    std::vector<uint8_t> open(patterns.size() / 8);
    merge_master(reinterpret_cast<float *>(merged.data()), patterns.data(),
                 {low.data(), open.data()}, patterns.size());
    for (uint32_t i = 0; i < 65536; ++i) ASSERT_EQ(merged[i], i << 16);
}

}  // namespace
}  // namespace stepwell::kernels::test
