// SPDX-License-Identifier: Apache-2.0
// The same bits on every instruction set, for every split and alignment, whatever floating-point
// mode the caller is in. Inputs are any bit patterns: NaNs with payloads and denormals included.
#include "tests/unit/update/kernels_support.h"

namespace stepwell::kernels::test {
namespace {

constexpr uint64_t kCount = 2 * kScanBlockElements + 1021;

// How the work is given to the kernels; the result must not depend on any of it.
struct Manner {
    uint32_t target = 0;
    uint64_t offset = 0;  // in elements, from a 64-byte boundary
    bool split = false;
    uint32_t mxcsr = kMxcsrDefault;
};

// Calls body(begin, count) for all of it, or for pieces of odd sizes.
template <class Body> void in_pieces(bool split, Body &&body)
{
    if (!split) return body(uint64_t{0}, kCount);
    uint64_t piece = 1;
    for (uint64_t at = 0; at < kCount; at += piece) {
        piece = std::min(piece * 3 % 257 + 1, kCount - at);
        body(at, piece);
    }
}

// Runs the body in the mode and checks that the mode comes back with its flags untouched.
template <class Body> void in_mode(uint32_t mxcsr, Body &&body)
{
    _mm_setcsr(mxcsr);
    body();
    const uint32_t after = _mm_getcsr();
    _mm_setcsr(kMxcsrDefault);
    EXPECT_EQ(after, mxcsr);
}

void append(std::vector<uint32_t> &all, Array &array)
{
    EXPECT_TRUE(array.surroundings_intact());
    const std::vector<uint32_t> bits = array.all_bits();
    all.insert(all.end(), bits.begin(), bits.end());
}

void append(std::vector<uint32_t> &all, double value)
{
    const auto bits = std::bit_cast<uint64_t>(value);
    all.push_back(static_cast<uint32_t>(bits));
    all.push_back(static_cast<uint32_t>(bits >> 32));
}

// Half of the elements are numbers of ordinary size, half are any bits.
void mix(Array &array, Random &random)
{
    array.randomize(random, 1.0);
    for (uint64_t i = 0; i < array.count(); i += 2) {
        array.set_bits(i, static_cast<uint32_t>(random.next()));
    }
}

struct Rule {
    Algorithm algorithm;
    double momentum;
    uint32_t flags;
    uint64_t step;
};

constexpr Rule kRules[] = {
    {Algorithm::kAdamW, 0.0, 0, 3},
    {Algorithm::kAdam, 0.0, STW_HYPER_MAXIMIZE, 9},
    {Algorithm::kSgd, 0.0, 0, 1},
    {Algorithm::kSgd, 0.9, 0, 1},
    {Algorithm::kSgd, 0.9, STW_HYPER_NESTEROV, 2},
    {Algorithm::kAdagrad, 0.0, 0, 4},
    {Algorithm::kLion, 0.0, STW_HYPER_MAXIMIZE, 5},
};

std::vector<uint32_t> update_bits(const Manner &manner, const Rule &rule, uint32_t values_dtype,
                                  uint32_t gradient_dtype)
{
    Random random(11);
    Array master(STW_F32, kCount, manner.offset);
    Array values(values_dtype, kCount, manner.offset);
    Array gradient(gradient_dtype, kCount, manner.offset);
    Array states[2] = {Array(STW_F32, kCount, manner.offset),
                       Array(STW_F32, kCount, manner.offset)};
    mix(master, random);
    mix(gradient, random);
    mix(values, random);
    for (Array &state : states) mix(state, random);
    stw_hyper h = STW_HYPER_INIT;
    h.weight_decay = 0.1;
    h.momentum = rule.momentum;
    h.flags = rule.flags;
    force_target_for_test(manner.target);
    in_mode(manner.mxcsr, [&] {
        const Coefficients c = make_coefficients(rule.algorithm, h, rule.step, 1.0 / 3.0);
        in_pieces(manner.split, [&](uint64_t at, uint64_t count) {
            const Chunk chunk = {values_dtype == STW_F32 ? master.data(at) : values.data(at),
                                 values_dtype,
                                 gradient_dtype,
                                 master.floats(at),
                                 gradient.data(at),
                                 {states[0].floats(at), states[1].floats(at)},
                                 count};
            update_chunk(rule.algorithm, c, chunk);
        });
    });
    std::vector<uint32_t> all;
    append(all, master);
    append(all, values);
    append(all, gradient);
    for (Array &state : states) append(all, state);
    return all;
}

std::vector<uint32_t> dtype_bits(const Manner &manner, uint32_t to, uint32_t from)
{
    Random random(12);
    Array source(from, kCount, manner.offset);
    Array converted(to, kCount, manner.offset);
    Array first(to, kCount, manner.offset);
    Array sum(to, kCount, manner.offset);
    mix(source, random);
    mix(sum, random);
    force_target_for_test(manner.target);
    in_mode(manner.mxcsr, [&] {
        in_pieces(manner.split, [&](uint64_t at, uint64_t n) {
            convert(converted.data(at), to, source.data(at), from, n);
            accumulate(Reduce::kFirst, first.data(at), to, source.data(at), from, n, 0.3);
            accumulate(Reduce::kAdd, sum.data(at), to, source.data(at), from, n, 0.3);
        });
    });
    std::vector<uint32_t> all;
    append(all, converted);
    append(all, first);
    append(all, sum);
    return all;
}

std::vector<uint32_t> average_bits(const Manner &manner)
{
    Random random(14);
    Array averages(STW_F32, kCount, manner.offset);
    Array values(STW_F32, kCount, manner.offset);
    mix(averages, random);
    mix(values, random);
    force_target_for_test(manner.target);
    in_mode(manner.mxcsr, [&] {
        in_pieces(manner.split, [&](uint64_t at, uint64_t count) {
            average(averages.floats(at), values.floats(at), count, 0.997);
        });
    });
    std::vector<uint32_t> all;
    append(all, averages);
    append(all, values);
    return all;
}

std::vector<uint32_t> narrow_bits(const Manner &manner)
{
    Random random(15);
    Array source(STW_F32, kCount, manner.offset);
    Array narrow(STW_BF16, kCount, manner.offset);
    mix(source, random);
    force_target_for_test(manner.target);
    in_mode(manner.mxcsr, [&] {
        in_pieces(manner.split, [&](uint64_t at, uint64_t count) {
            // Past 2^32 elements on the way.
            const Draw draw = {0xFFFFF000U + at, 5, 1};
            narrow_state(static_cast<uint16_t *>(narrow.data(at)), source.floats(at), count, draw);
        });
    });
    std::vector<uint32_t> all;
    append(all, narrow);
    append(all, source);
    return all;
}

// A scan is split at blocks only: that is its contract.
std::vector<uint32_t> scan_bits(const Manner &manner, uint32_t dtype)
{
    Random random(13);
    Array gradient(dtype, kCount, manner.offset);
    mix(gradient, random);
    std::vector<double> sums(scan_block_count(kCount));
    ScanResult result;
    double total = 0.0;
    force_target_for_test(manner.target);
    in_mode(manner.mxcsr, [&] {
        const uint64_t piece = manner.split ? kScanBlockElements : kCount;
        for (uint64_t at = 0; at < kCount; at += piece) {
            double *piece_sums = sums.data() + at / kScanBlockElements;
            const uint64_t count = std::min(piece, kCount - at);
            result = join(result, scan_blocks(gradient.data(at), dtype, count, piece_sums));
            total = combine_block_sums(total, piece_sums, scan_block_count(count));
        }
    });
    std::vector<uint32_t> all = {static_cast<uint32_t>(result.nonfinite),
                                 std::bit_cast<uint32_t>(result.maximum)};
    for (const double sum : sums) append(all, sum);
    append(all, total);
    return all;
}

std::vector<uint32_t> all_bits(const Manner &manner)
{
    std::vector<uint32_t> all;
    const auto add = [&all](const std::vector<uint32_t> &bits) {
        all.insert(all.end(), bits.begin(), bits.end());
    };
    add(average_bits(manner));
    add(narrow_bits(manner));
    for (const uint32_t a : kDtypes) {
        add(scan_bits(manner, a));
        for (const uint32_t b : kDtypes) {
            add(dtype_bits(manner, a, b));
            for (const Rule &rule : kRules) add(update_bits(manner, rule, a, b));
        }
    }
    return all;
}

class KernelBits : public KernelTest {};

TEST_F(KernelBits, AreTheSameOnEveryTargetForEverySplitAndMode)
{
    const std::vector<uint32_t> expected = all_bits({});
    // A target that every machine has and one that this machine prefers, or nothing is compared.
    ASSERT_GE(target_count(), 2U);
    for (uint32_t target = 0; target < target_count(); ++target) {
        SCOPED_TRACE(target_name(target));
        EXPECT_TRUE(all_bits({.target = target}) == expected) << "target";
        EXPECT_TRUE(all_bits({.target = target, .split = true}) == expected) << "split";
        EXPECT_TRUE(all_bits({.target = target, .mxcsr = kMxcsrHostile}) == expected) << "mode";
    }
}

TEST_F(KernelBits, DoNotDependOnAlignment)
{
    const std::vector<uint32_t> expected = all_bits({});
    for (const uint64_t offset : {1U, 7U, 16U}) {
        EXPECT_TRUE(all_bits({.offset = offset, .split = true}) == expected) << offset;
    }
}

// The mode that the test above sets would be noticed: it changes plain arithmetic.
TEST_F(KernelBits, HostileModeIsHostile)
{
    volatile float tiny = 0x1p-140F;
    volatile float one = 1.0F;
    _mm_setcsr(kMxcsrHostile);
    const float flushed = tiny * one;
    const float up = one + 0x1p-30F;
    _mm_setcsr(kMxcsrDefault);
    EXPECT_EQ(flushed, 0.0F);
    EXPECT_GT(up, 1.0F);
}

TEST_F(KernelBits, TargetsAreNamedAndBounded)
{
    EXPECT_LE(target_count(), kTargetsMax);
    EXPECT_FALSE(force_target_for_test(target_count()));
    EXPECT_STREQ(target_name(target_count()), "");
    EXPECT_STREQ(target_name(target_count() - 1), "baseline");
}

}  // namespace
}  // namespace stepwell::kernels::test
