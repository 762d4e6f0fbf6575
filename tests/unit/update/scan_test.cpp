// SPDX-License-Identifier: Apache-2.0
// The scan: its sums against long double and against the order that kernels.h promises, its counts
// and its maximum.
#include "tests/unit/update/kernels_support.h"

#include <limits>

namespace stepwell::kernels::test {
namespace {

class Scan : public KernelTest {};

// The order of kernels.h, word by word, one element at a time.
double promised_sum(Array &array, uint64_t begin, uint64_t end)
{
    double lanes[16] = {};
    for (uint64_t i = begin; i < end; ++i) {
        const double value = array.at(i);
        if (std::isfinite(value)) lanes[(i - begin) % 16] += value * value;
    }
    for (uint32_t lane = 0; lane < 8; ++lane) lanes[lane] += lanes[lane + 8];
    for (uint32_t lane = 0; lane < 4; ++lane) lanes[lane] += lanes[lane + 4];
    for (uint32_t lane = 0; lane < 2; ++lane) lanes[lane] += lanes[lane + 2];
    return lanes[0] + lanes[1];
}

long double true_sum(Array &array, uint64_t begin, uint64_t end)
{
    long double sum = 0;
    for (uint64_t i = begin; i < end; ++i) {
        const long double value = array.at(i);
        sum += value * value;
    }
    return sum;
}

TEST_F(Scan, SumsOfSquaresAreRightToFp64AndInThePromisedOrder)
{
    for (const uint64_t count :
         {uint64_t{1}, uint64_t{15}, uint64_t{16}, uint64_t{17}, kScanBlockElements - 1,
          kScanBlockElements, kScanBlockElements + 1, 3 * kScanBlockElements + 100}) {
        for (const uint32_t dtype : kDtypes) {
            Random random(count);
            Array array(dtype, count);
            array.randomize(random, 3.0);
            std::vector<double> sums(scan_block_count(count) + 1, -1.0);
            const ScanResult result = scan_blocks(array.data(), dtype, count, sums.data());
            EXPECT_EQ(result.nonfinite, 0U);
            EXPECT_EQ(sums.back(), -1.0) << "one sum too many was written";
            for (uint64_t b = 0; b + 1 < sums.size(); ++b) {
                const uint64_t begin = b * kScanBlockElements;
                const uint64_t end = std::min(begin + kScanBlockElements, count);
                EXPECT_EQ(sums[b], promised_sum(array, begin, end)) << dtype << " " << count;
                // At most 256 + 4 additions reach one result, all of them of positive terms.
                const auto exact = static_cast<double>(true_sum(array, begin, end));
                EXPECT_NEAR(sums[b], exact, 262 * 0x1p-53 * exact);
            }
        }
    }
}

TEST_F(Scan, CountsWhatIsNotFiniteAndSumsTheRest)
{
    constexpr uint64_t kCount = kScanBlockElements + 77;
    for (const uint32_t dtype : kDtypes) {
        Random random(dtype);
        Array array(dtype, kCount);
        array.randomize_bits(random);
        array.set_bits(0, dtype == STW_F32 ? 0xFFFFFFFF : 0xFFFF);
        uint64_t nonfinite = 0;
        double maximum = 0.0;
        for (uint64_t i = 0; i < kCount; ++i) {
            const double value = array.at(i);
            if (std::isfinite(value)) maximum = std::max(maximum, std::abs(value));
            if (!std::isfinite(value)) ++nonfinite;
        }
        ASSERT_GT(nonfinite, 1U);
        double sums[2] = {};
        const ScanResult result = scan_blocks(array.data(), dtype, kCount, sums);
        EXPECT_EQ(result.nonfinite, nonfinite);
        EXPECT_EQ(result.maximum, maximum);
        EXPECT_EQ(sums[0], promised_sum(array, 0, kScanBlockElements));
        EXPECT_EQ(sums[1], promised_sum(array, kScanBlockElements, kCount));
    }
}

TEST_F(Scan, FindsOneBadElementAnywhere)
{
    constexpr uint64_t kCount = 50;
    for (uint64_t bad = 0; bad < kCount; ++bad) {
        for (const float value : {INFINITY, -INFINITY, NAN}) {
            float gradient[kCount] = {};
            gradient[bad] = value;
            double sum = 1.0;
            const ScanResult result = scan_blocks(gradient, STW_F32, kCount, &sum);
            ASSERT_EQ(result.nonfinite, 1U);
            ASSERT_EQ(result.maximum, 0.0F);
            ASSERT_EQ(sum, 0.0);
        }
    }
}

TEST_F(Scan, NeitherOverflowsNorLosesDenormals)
{
    const float largest = std::numeric_limits<float>::max();
    const float smallest = std::numeric_limits<float>::denorm_min();
    double sum = 0.0;
    const float large[3] = {largest, -largest, largest};
    EXPECT_EQ(scan_blocks(large, STW_F32, 3, &sum).maximum, largest);
    EXPECT_EQ(sum, 3.0 * largest * static_cast<double>(largest));
    const float small[2] = {smallest, -smallest};
    EXPECT_EQ(scan_blocks(small, STW_F32, 2, &sum).maximum, smallest);
    EXPECT_EQ(sum, 0x1p-297);
}

TEST_F(Scan, NothingHasNoBlocks)
{
    double sum = 7.0;
    const ScanResult result = scan_blocks(nullptr, STW_F32, 0, &sum);
    EXPECT_EQ(result.nonfinite, 0U);
    EXPECT_EQ(result.maximum, 0.0F);
    EXPECT_EQ(sum, 7.0);
    EXPECT_EQ(scan_block_count(0), 0U);
}

// Another order of these gives another result: the small ones vanish one by one beside the large.
TEST_F(Scan, BlockSumsAreCombinedInIndexOrder)
{
    const double sums[4] = {1.0, 0x1p-53, 0x1p-53, 0x1p-53};
    EXPECT_EQ(combine_block_sums(0.0, sums, 4), 1.0);
    EXPECT_EQ(combine_block_sums(0x1p-53, sums + 1, 3), 4 * 0x1p-53);
    EXPECT_EQ(combine_block_sums(combine_block_sums(0.0, sums, 2), sums + 2, 2), 1.0);
}

}  // namespace
}  // namespace stepwell::kernels::test
