// SPDX-License-Identifier: Apache-2.0
// Verdicts: the norm has one value whatever completes first, the clip is in the update, and a step
// that is skipped, measured or refused leaves everything as it was.
#include "model.h"

namespace stepwell::update::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Shape kVerdictShapes[] = {
    {30000, STW_F32, STW_F32, 0},  {20001, STW_BF16, STW_BF16, 2048},   {5, STW_F32, STW_F32, 64},
    {50000, STW_F32, STW_F16, 64}, {9000, STW_F16, STW_F32, 12 * 1024},
};

// Blocks of 4,096 elements of each tensor in order, then the tensors in order.
double reference_norm(World &world, const std::vector<Entry> &entries, double scale)
{
    double total = 0.0;
    for (const Entry &entry : entries) {
        const std::vector<uint8_t> &gradient = world.mirrors[entry.parameter].gradient;
        std::vector<double> sums(kernels::scan_block_count(entry.element_count));
        kernels::scan_blocks(gradient.data(), entry.gradient_dtype, entry.element_count,
                             sums.data());
        total += kernels::combine_block_sums(0.0, sums.data(), sums.size());
    }
    return scale * std::sqrt(total);
}

void poke(World &world, const Entry &entry, uint64_t element, float value)
{
    std::vector<uint8_t> &gradient = world.mirrors[entry.parameter].gradient;
    std::memcpy(gradient.data() + element * 4, &value, 4);
    world.tiers.set_bytes(entry.gradient, gradient.data());
}

TEST(Verdict, NormIsTheSameWhateverTheOrderOfCompletions)
{
    for (uint64_t order = 0; order < 12; ++order) {
        Conditions conditions;
        conditions.tier_threads = static_cast<uint32_t>(order % 4);
        conditions.threads = static_cast<uint32_t>(1 + order % 3);
        conditions.window_blocks = 3 + order * 5;
        World world(conditions);  // one seed: the same numbers
        std::vector<Entry> entries;
        for (const Shape &shape : kVerdictShapes) entries.push_back(world.add(shape));
        StepOptions options;
        options.flags = STW_UPDATE_MEASURE;
        options.gradient_scale = 0.125;
        options.wants_verdict = true;
        StepResult result;
        for (int again = 0; again < 3; ++again) {
            ASSERT_EQ(world.optimizer->step(options, &result).code(), STW_OK);
            EXPECT_EQ(result.norm, reference_norm(world, entries, 0.125));
        }
        EXPECT_EQ(result.clip_coefficient, 1.0);
        EXPECT_EQ(result.nonfinite, 0u);
        EXPECT_EQ(result.updated, 0u);
        for (const Entry &entry : entries) {
            world.expect_same(entry);
            EXPECT_EQ(world.tiers.contents(entry.gradient), Contents::kValid);
        }
    }
}

// Beside one great block, small sums that are added one by one are lost and those that were added
// before are not: any other order is another norm. All chunks are asked for before one is granted.
TEST(Verdict, SumsAreTakenInOrderOfAddress)
{
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        Conditions conditions;
        conditions.seed = seed;
        conditions.window_blocks = 80;  // the gradient lies askew: two blocks each
        World world(conditions);
        const Entry entry = world.add({100000, STW_F32, STW_F32, 0});
        std::vector<uint8_t> &gradient = world.mirrors[entry.parameter].gradient;
        const std::vector<float> great(kernels::kScanBlockElements, 0x1p27F);
        std::memcpy(gradient.data() + 12 * kBlockBytes, great.data(), kBlockBytes);
        world.tiers.set_bytes(entry.gradient, gradient.data());
        world.tiers.pause_after(1);
        StepOptions options;
        options.flags = STW_UPDATE_MEASURE;
        ASSERT_TRUE(world.optimizer->step(options, nullptr).ok());
        world.tiers.wait_asked(24);  // all but the first
        world.tiers.resume();
        ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
        StepResult result;
        ASSERT_EQ(world.optimizer->result(&result).code(), STW_OK);
        EXPECT_EQ(result.norm, reference_norm(world, {entry}, 1.0));
    }
}

TEST(Verdict, ClipScalesTheUpdate)
{
    for (const double norm_type : {0.0, kInfinity}) {
        World world({});
        std::vector<Entry> entries;
        for (const Shape &shape : kVerdictShapes) entries.push_back(world.add(shape));
        StepOptions options;
        options.gradient_scale = 0.5;
        options.clip_norm = 0.75;
        options.norm_type = norm_type;
        StepResult result;
        ASSERT_TRUE(world.step_and_wait(options, &result).ok());
        double norm = reference_norm(world, entries, 0.5);
        if (norm_type == kInfinity) {
            float maximum = 0.0F;
            for (const Entry &entry : entries) {
                std::vector<double> sums(kernels::scan_block_count(entry.element_count));
                const auto &gradient = world.mirrors[entry.parameter].gradient;
                maximum =
                    std::max(maximum, kernels::scan_blocks(gradient.data(), entry.gradient_dtype,
                                                           entry.element_count, sums.data())
                                          .maximum);
            }
            norm = 0.5 * static_cast<double>(maximum);
        }
        EXPECT_EQ(result.norm, norm);
        EXPECT_EQ(result.clip_coefficient, 0.75 / (norm + 1e-6));
        for (const Entry &entry : entries) {
            world.expect_update(entry, STW_HYPER_INIT, 1, 0.5 * result.clip_coefficient);
            world.expect_same(entry);
        }
    }
}

TEST(Verdict, ClipAboveTheNormChangesNothing)
{
    World world({});
    const Entry entry = world.add({20000, STW_F32, STW_F32, 0});
    StepOptions options;
    options.clip_norm = 1e9;
    StepResult result;
    ASSERT_TRUE(world.step_and_wait(options, &result).ok());
    EXPECT_EQ(result.clip_coefficient, 1.0);
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
}

TEST(Verdict, SkipLeavesEverythingAsItWas)
{
    for (const uint32_t keep : {0u, uint32_t{STW_UPDATE_KEEP_GRADIENTS}}) {
        World world({});
        const Entry a = world.add({20000, STW_F32, STW_F32, 0});
        const Entry b = world.add({20000, STW_BF16, STW_F32, 0});
        poke(world, b, 19999, std::numeric_limits<float>::quiet_NaN());
        poke(world, b, 4, -std::numeric_limits<float>::infinity());
        StepOptions options;
        options.flags = STW_UPDATE_SKIP_NONFINITE | keep;
        options.wants_verdict = true;
        StepResult result;
        ASSERT_EQ(world.optimizer->step(options, &result).code(), STW_SKIPPED);
        EXPECT_TRUE(result.skipped);
        EXPECT_EQ(result.nonfinite, 2u);
        EXPECT_EQ(result.norm, kInfinity);
        EXPECT_EQ(result.updated, 0u);
        ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
        for (const Entry &entry : {a, b}) {
            world.expect_same(entry);
            EXPECT_EQ(world.optimizer->count(entry.parameter).value(), 0u);
            EXPECT_EQ(world.tiers.contents(entry.gradient),
                      keep != 0 ? Contents::kValid : Contents::kEmpty);
            EXPECT_FALSE(world.tiers.claimed(entry.parameter));
        }
        EXPECT_EQ(world.tiers.contents(b.master), Contents::kEmpty);
        EXPECT_EQ(world.optimizer->result(nullptr).code(), STW_SKIPPED);
    }
}

TEST(Verdict, FiniteGradientsAreNotSkipped)
{
    World world({});
    const Entry entry = world.add({20000, STW_F32, STW_F32, 0});
    StepOptions options;
    options.flags = STW_UPDATE_SKIP_NONFINITE;
    ASSERT_EQ(world.step_and_wait(options).code(), STW_OK);
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
}

TEST(Verdict, UnreadableGradientStopsTheStep)
{
    World world({});
    const Entry a = world.add({20000, STW_F32, STW_F32, 0});
    const Entry b = world.add({20000, STW_F32, STW_F32, 0});
    world.tiers.refuse(b.gradient, 50000, STW_ERROR_IO);
    StepOptions options;
    options.clip_norm = 1.0;
    options.wants_verdict = true;
    StepResult result;
    result.updated = 77;
    EXPECT_EQ(world.optimizer->step(options, &result).code(), STW_ERROR_IO);
    EXPECT_EQ(result.updated, 77u);  // written on success only
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_EQ(world.optimizer->result(nullptr).code(), STW_ERROR_IO);
    for (const Entry &entry : {a, b}) {
        world.expect_same(entry);
        EXPECT_EQ(world.tiers.contents(entry.gradient), Contents::kValid);
        EXPECT_EQ(world.tiers.failed(entry.parameter), STW_OK);
    }
    // The refusal was for once: the same step again goes through.
    ASSERT_TRUE(world.step_and_wait(options).ok());
    EXPECT_EQ(world.optimizer->count(b.parameter).value(), 1u);
}

TEST(Verdict, IsPendingUntilItIsKnown)
{
    World world({});
    EXPECT_EQ(world.optimizer->result(nullptr).code(), STW_ERROR_NOT_FOUND);
    const Entry entry = world.add({20000, STW_F32, STW_F32, 0});
    world.tiers.pause();
    StepOptions options;
    options.clip_norm = 1.0;
    ASSERT_EQ(world.optimizer->step(options, nullptr).code(), STW_OK);
    EXPECT_EQ(world.optimizer->result(nullptr).code(), STW_PENDING);
    EXPECT_TRUE(world.optimizer->pending());
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    StepResult result;
    EXPECT_EQ(world.optimizer->result(&result).code(), STW_OK);
    EXPECT_EQ(result.norm, reference_norm(world, {entry}, 1.0));
}

TEST(Verdict, NobodyAskedForIsNotMeasured)
{
    World world({});
    const Entry entry = world.add({20000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    StepResult result;
    EXPECT_EQ(world.optimizer->result(&result).code(), STW_OK);
    EXPECT_TRUE(std::isnan(result.norm));
    EXPECT_EQ(result.updated, 1u);
    EXPECT_EQ(world.pipeline->stats().scanned_bytes, 0u);
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
}

TEST(Verdict, OfNothingIsZero)
{
    World world({});
    StepOptions options;
    options.wants_verdict = true;
    options.clip_norm = 1.0;
    StepResult result;
    ASSERT_EQ(world.optimizer->step(options, &result).code(), STW_OK);
    EXPECT_EQ(result.norm, 0.0);
    const Entry entry = world.add({20000, STW_F32, STW_F32, 0});
    world.tiers.discard(entry.gradient);
    ASSERT_EQ(world.optimizer->step(options, &result).code(), STW_OK);
    EXPECT_EQ(result.norm, 0.0);
    EXPECT_EQ(result.without_gradient, 1u);
    EXPECT_EQ(result.updated, 0u);
}

}  // namespace
}  // namespace stepwell::update::test
