// SPDX-License-Identifier: Apache-2.0
// The moving average of parameters against its published formula in fp64, and what the way it is
// computed is for: it rests at its values, and slow ones come to them.
#include "tests/unit/update/kernels_support.h"

namespace stepwell::kernels::test {
namespace {

class Average : public KernelTest {};

// decay x average + (1 - decay) x values. The kernel rounds the weight, the difference, their
// product and the sum; what the average was off by before shrinks with it.
Tracked follow(const Tracked &before, double value, double decay)
{
    const double weight = 1.0 - decay;
    const double move = weight * std::abs(value - before.value);
    Tracked after;
    after.value = decay * before.value + weight * value;
    after.error = decay * before.error + 0x1.01p-24 * (3 * move + std::abs(after.value)) + 1e-14;
    return after;
}

TEST_F(Average, FollowsThePublishedFormula)
{
    constexpr uint64_t kCount = 533;
    for (const double decay : {0.1, 0.5, 0.9, 0.999, 0.9999, 0.99999}) {
        SCOPED_TRACE(decay);
        Random random(3);
        Array averages(STW_F32, kCount);
        Array values(STW_F32, kCount);
        averages.randomize(random, 1.0);
        std::vector<Tracked> expected(kCount);
        for (uint64_t i = 0; i < kCount; ++i) expected[i] = Tracked::exact(averages.at(i));
        for (uint64_t step = 0; step < 8; ++step) {
            values.randomize(random, 1.0);
            average(averages.floats(), values.floats(), kCount, decay);
            for (uint64_t i = 0; i < kCount; ++i) {
                expected[i] = follow(expected[i], values.at(i), decay);
                ASSERT_LE(expected[i].error, 1e-6) << "the bound shows nothing";
                ASSERT_LE(std::abs(averages.at(i) - expected[i].value), expected[i].error)
                    << "element " << i << " after step " << step;
            }
        }
        EXPECT_TRUE(averages.surroundings_intact() && values.surroundings_intact());
    }
}

// Weights of fp32 that do not sum to 1 would lead away from the values, at 0.9999 by 2 in 10,000.
TEST_F(Average, RestsAtItsValues)
{
    for (const double decay : {0.3, 0.999, 0.9999, 0.999999}) {
        float averages[] = {1.0F, -0.7F, 3e38F, 0x1p-140F, 0.0F};
        float values[5];
        std::memcpy(values, averages, sizeof(values));
        for (int step = 0; step < 100; ++step) average(averages, values, 5, decay);
        EXPECT_EQ(std::memcmp(values, averages, sizeof(values)), 0) << decay;
    }
    std::vector<float> slow(40, 0.0F);
    const std::vector<float> one(40, 1.0F);
    for (int step = 0; step < 100000; ++step) average(slow.data(), one.data(), 40, 0.9999);
    for (const float value : slow) EXPECT_NEAR(value, 1.0 - std::pow(0.9999, 100000), 0.002);
}

TEST_F(Average, KeepsDenormalsAndOneNan)
{
    float averages[] = {0.0F, 1.0F, 2.0F};
    const float values[] = {0x1p-139F, std::bit_cast<float>(0xFFC12345U), 4.0F};
    average(averages, values, 3, 0.5);
    EXPECT_EQ(averages[0], 0x1p-140F);
    EXPECT_EQ(std::bit_cast<uint32_t>(averages[1]), 0x7FC00000U);
    EXPECT_EQ(averages[2], 3.0F);
}

}  // namespace
}  // namespace stepwell::kernels::test
