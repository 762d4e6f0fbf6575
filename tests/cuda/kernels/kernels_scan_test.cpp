// SPDX-License-Identifier: Apache-2.0
// The scan of a gradient: sums, counts and maxima of the GPU's kernel, run by the processor,
// against the processor's own. What is written is exactly one result for each run.
#include "tests/cuda/kernels/support.h"

#include <bit>

namespace stepwell::drivers::cuda::test {
namespace {

constexpr uint64_t kRuns[] = {kScanElements, kScanElements + 1, 3 * kScanElements + 17,
                              9 * kScanElements - 1, 21 * kScanElements};
constexpr double kGuard = -7.0;

struct Found {
    std::vector<double> sums;
    kernels::ScanResult result;
};

Found scan_on_processor(Array &gradient)
{
    Found found;
    found.sums.resize(kernels::scan_block_count(gradient.count()));
    found.result = kernels::scan_blocks(gradient.data(), gradient.dtype(), gradient.count(),
                                        found.sums.data());
    return found;
}

// With room for one result more, which has to stay as it is.
struct Results {
    std::vector<double> sums;
    std::vector<ScanCounts> counts;

    explicit Results(uint64_t runs) : sums(runs + 1, kGuard), counts(runs + 1, ScanCounts{77, 7.0F})
    {
    }
    ScanArguments arguments_for(Array &gradient)
    {
        return {device_address(gradient.data()), gradient.count(), device_address(sums.data()),
                device_address(counts.data()),   gradient.dtype(), 0};
    }
    Found take()
    {
        EXPECT_EQ(sums.back(), kGuard);
        EXPECT_EQ(counts.back().nonfinite, 77U);
        sums.pop_back();
        counts.pop_back();
        Found found = {sums, {}};
        for (const ScanCounts &run : counts) {
            found.result = kernels::join(found.result, {run.nonfinite, run.maximum});
        }
        return found;
    }
};

void expect_same(const Found &expected, const Found &found)
{
    ASSERT_EQ(expected.sums.size(), found.sums.size());
    for (uint64_t i = 0; i < expected.sums.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint64_t>(expected.sums[i]), std::bit_cast<uint64_t>(found.sums[i]))
            << "run " << i;
    }
    EXPECT_EQ(expected.result.nonfinite, found.result.nonfinite);
    EXPECT_EQ(std::bit_cast<uint32_t>(expected.result.maximum),
              std::bit_cast<uint32_t>(found.result.maximum));
}

Array gradient_of(uint32_t dtype, uint64_t count, uint64_t offset, uint64_t seed)
{
    Random random(seed);
    Array gradient(dtype, count, offset);
    mix(gradient, random);
    return gradient;
}

// Of infinities and NaNs.
uint32_t exponent_of(uint32_t dtype)
{
    if (dtype == STW_F32) return 0x7F800000;
    return dtype == STW_BF16 ? 0x7F80 : 0x7C00;
}

// Any finite bits, denormals and the largest ones among them.
void make_finite(Array &gradient, Random &random)
{
    mix(gradient, random);
    const uint32_t exponent = exponent_of(gradient.dtype());
    for (uint64_t i = 0; i < gradient.count(); ++i) {
        const uint32_t bits = gradient.bits(i);
        if ((bits & exponent) == exponent) gradient.set_bits(i, bits ^ (exponent & (0 - exponent)));
    }
}

class CudaScan : public kernels::test::KernelTest {};

TEST_F(CudaScan, HasTheBitsOfTheProcessor)
{
    std::vector<uint64_t> counts(std::begin(kCounts), std::end(kCounts));
    counts.insert(counts.end(), std::begin(kRuns), std::end(kRuns));
    for (const uint32_t dtype : kDtypes) {
        for (const uint64_t count : counts) {
            for (const uint64_t offset : {0, 1, 2, 31}) {
                SCOPED_TRACE("dtype " + std::to_string(dtype) + ", " + std::to_string(count) +
                             " elements, offset " + std::to_string(offset));
                Array gradient = gradient_of(dtype, count, offset, count + offset);
                Results results(kernels::scan_block_count(count));
                ScanArguments arguments = results.arguments_for(gradient);
                launch(Kernel::kScan, &arguments, count, 1);
                const Found found = results.take();
                for (uint32_t target = 0; target < kernels::target_count(); ++target) {
                    kernels::force_target_for_test(target);
                    expect_same(scan_on_processor(gradient), found);
                }
            }
        }
    }
}

// Runs without and with a non-finite element are read in different ways.
TEST_F(CudaScan, HasTheBitsOfTheProcessorForFiniteRunsAndForOneElementThatIsNot)
{
    for (const uint32_t dtype : kDtypes) {
        for (const uint64_t count : kRuns) {
            for (const uint64_t offset : {0, 1}) {
                SCOPED_TRACE("dtype " + std::to_string(dtype) + ", " + std::to_string(count) +
                             " elements, offset " + std::to_string(offset));
                Random random(count + offset);
                Array gradient(dtype, count, offset);
                make_finite(gradient, random);
                Results finite(kernels::scan_block_count(count));
                ScanArguments arguments = finite.arguments_for(gradient);
                launch(Kernel::kScan, &arguments, count, 1);
                const Found found = finite.take();
                EXPECT_EQ(found.result.nonfinite, 0U);
                expect_same(scan_on_processor(gradient), found);

                gradient.set_bits(random.next() % count, exponent_of(dtype));
                Results other(kernels::scan_block_count(count));
                arguments = other.arguments_for(gradient);
                launch(Kernel::kScan, &arguments, count, 1);
                expect_same(scan_on_processor(gradient), other.take());
            }
        }
    }
}

TEST_F(CudaScan, EveryNumberOfThreadBlocksGivesTheSameBits)
{
    for (const uint32_t dtype : kDtypes) {
        for (const uint64_t count : kRuns) {
            Array gradient = gradient_of(dtype, count, 0, 3);
            const Found expected = scan_on_processor(gradient);
            for (const uint32_t blocks : {1U, 2U, 5U, 40U}) {
                Results results(kernels::scan_block_count(count));
                ScanArguments arguments = results.arguments_for(gradient);
                launch(Kernel::kScan, &arguments, {blocks, kernel_entry(Kernel::kScan).threads});
                expect_same(expected, results.take());
            }
        }
    }
}

// The sum of two ways of cutting is the same, as is the norm that the host makes of it.
TEST_F(CudaScan, PiecesHaveTheNormOfTheWhole)
{
    constexpr uint64_t kCount = 7 * kScanElements + 100;
    Array gradient = gradient_of(STW_BF16, kCount, 1, 8);
    const Found whole = scan_on_processor(gradient);
    const double expected = kernels::combine_block_sums(0.0, whole.sums.data(), whole.sums.size());
    double total = 0.0;
    for (uint64_t at = 0; at < kCount; at += 3 * kScanElements) {
        const uint64_t count = std::min<uint64_t>(3 * kScanElements, kCount - at);
        Results results(kernels::scan_block_count(count));
        ScanArguments arguments = results.arguments_for(gradient);
        arguments.gradient = device_address(gradient.data(at));
        arguments.count = count;
        launch(Kernel::kScan, &arguments, count, 1);
        const Found found = results.take();
        total = kernels::combine_block_sums(total, found.sums.data(), found.sums.size());
    }
    EXPECT_EQ(std::bit_cast<uint64_t>(expected), std::bit_cast<uint64_t>(total));
}

TEST_F(CudaScan, NamesWhatItTouches)
{
    Array gradient(STW_F16, kScanElements + 1);
    Results results(2);
    ScanArguments arguments = results.arguments_for(gradient);
    const std::vector<stw_double_range> ranges = ranges_of(Kernel::kScan, &arguments);
    ASSERT_EQ(ranges.size(), 3U);
    EXPECT_EQ(ranges[0].bytes, 2 * (kScanElements + 1U));
    EXPECT_EQ(ranges[0].writes, 0U);
    EXPECT_EQ(ranges[1].bytes, 16U);
    EXPECT_EQ(ranges[2].bytes, 16U);
    EXPECT_EQ(ranges[2].writes, 1U);
}

}  // namespace
}  // namespace stepwell::drivers::cuda::test
