// SPDX-License-Identifier: Apache-2.0
// Advice: given where another order moves less, with the bytes that a replay of it moves.
#include "lib/schedule/advice/advice.h"
#include "tests/unit/schedule/training_fixture.h"

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::TensorId;

constexpr uint32_t kDiskBlocks = 4096;

std::vector<Advice> advice_for(const Machine &machine, const Training &training)
{
    Result<std::vector<Advice>> advised = advise(machine, training.specs, training.step);
    EXPECT_TRUE(advised.ok()) << advised.status().sentence();
    return advised.ok() ? advised.take() : std::vector<Advice>();
}

TEST(Advice, LargeLayersOfManyMicroBatchesAreReadOnceForAllOfThem)
{
    Training training(6, 4, 8);
    training.train_step(Activations::kReused);
    const Machine machine = machine_of(30, kDiskBlocks);
    const std::vector<Advice> advices = advice_for(machine, training);
    ASSERT_EQ(advices.size(), 1u);
    const Advice &advice = advices[0];
    EXPECT_EQ(advice.kind, AdviceKind::kGroup);
    EXPECT_EQ(advice.micro_batches, 4u);
    EXPECT_GE(advice.parts, 12u);
    EXPECT_EQ(advice.visits, 0u);
    EXPECT_LT(advice.then.nvme_read_bytes, advice.now.nvme_read_bytes / 2);
    EXPECT_LE(advice.then.nvme_bytes(), advice.now.nvme_bytes());
    EXPECT_LE(advice.then.step_ns, advice.now.step_ns);
    EXPECT_EQ(advice.now.host_to_device_bytes, 0u) << "the disk reaches this device by itself";
}

TEST(Advice, WhereActivationsAreLargerThanLayersNothingIsGrouped)
{
    Training training(6, 4, 1);
    training.activation_blocks = 10;
    training.train_step(Activations::kReused);
    // One micro-batch's activations fit; those of four would have to be written and read again.
    const std::vector<Advice> advices = advice_for(machine_of(70, kDiskBlocks), training);
    EXPECT_TRUE(advices.empty());
}

TEST(Advice, WhereAllFitsThereIsNothingToSay)
{
    Training training(4, 4, 2);
    training.train_step(Activations::kOwn);
    training.update(Lane::kProgram);
    EXPECT_TRUE(advice_for(machine_of(500, kDiskBlocks), training).empty());
}

TEST(Advice, AnUpdateThatBeginsWithWhatIsNearMovesLess)
{
    // The backward ends at layer 0, whose gradient and parameter are near; the update begins at 11.
    Training training(12, 1, 2);
    training.train_step(Activations::kOwn);
    std::reverse(training.weights.begin(), training.weights.end());
    std::reverse(training.grads.begin(), training.grads.end());
    std::reverse(training.moments.begin(), training.moments.end());
    training.update(Lane::kProgram);
    const std::vector<Advice> advices = advice_for(machine_of(48, kDiskBlocks), training);
    ASSERT_EQ(advices.size(), 1u);
    EXPECT_EQ(advices[0].kind, AdviceKind::kReverse);
    EXPECT_EQ(advices[0].visits, 12u);
    EXPECT_LT(advices[0].then.nvme_bytes(), advices[0].now.nvme_bytes());
}

TEST(Advice, WhatIsTakenIsNotAdvisedAgain)
{
    Training training(6, 4, 8);
    training.train_step(Activations::kOwn);
    const Machine machine = machine_of(30, kDiskBlocks);
    const std::optional<Order> order = group_micro_batches(training.specs, training.step);
    ASSERT_TRUE(order);
    const std::vector<Advice> before = advice_for(machine, training);
    ASSERT_FALSE(before.empty());
    training.step = order->step;
    training.specs = order->specs;
    EXPECT_TRUE(advice_for(machine, training).empty());
}

TEST(Advice, IsOfTheBytesThatAReplayOfTheOtherOrderMoves)
{
    Training training(6, 4, 8);
    training.train_step(Activations::kReused);
    const Machine machine = machine_of(30, kDiskBlocks);
    const std::vector<Advice> advices = advice_for(machine, training);
    ASSERT_EQ(advices.size(), 1u);
    const std::optional<Order> order = group_micro_batches(training.specs, training.step);
    uint64_t best = UINT64_MAX;
    for (const Candidate &candidate : known_candidates(order->specs)) {
        if (candidate.rule == Rule::kKept) continue;
        Result<Verdict> verdict = judge(candidate, machine, order->specs, order->step);
        ASSERT_TRUE(verdict.ok()) << verdict.status().sentence();
        const uint64_t bytes = verdict.value().links[kIn].bytes + verdict.value().links[kOut].bytes;
        best = std::min(best, bytes / verdict.value().steps);
    }
    EXPECT_EQ(advices[0].then.nvme_bytes(), best);
}

TEST(Advice, LargeTensorsAreReplayedInLargerBlocksWithTheSameBytes)
{
    Training training(8, 4, 2048);
    training.activation_blocks = 64;
    training.train_step(Activations::kReused);
    const Machine machine = machine_of(16 * 2048, 1'000'000);
    EXPECT_GT(replay_work(machine, training.specs, training.step), kReplayWork);
    const std::vector<Advice> coarse = advice_for(machine, training);
    ASSERT_EQ(coarse.size(), 1u);
    Training small(8, 4, 2048 / 16);
    small.activation_blocks = 64 / 16;
    small.train_step(Activations::kReused);
    const std::vector<Advice> fine = advice_for(machine_of(2048, 1'000'000), small);
    ASSERT_EQ(fine.size(), 1u);
    const auto near = [](uint64_t bytes, uint64_t sixteenth) {
        const auto ratio = static_cast<double>(bytes) / static_cast<double>(16 * sixteenth);
        EXPECT_GT(ratio, 0.97);
        EXPECT_LT(ratio, 1.03);
    };
    near(coarse[0].now.nvme_read_bytes, fine[0].now.nvme_read_bytes);
    near(coarse[0].then.nvme_read_bytes, fine[0].then.nvme_read_bytes);
}

TEST(Advice, AStepThatIsTooLargeIsRefusedWithItsSize)
{
    Training training(4, 60'000);
    training.train_step(Activations::kReused);
    Result<std::vector<Advice>> advised =
        advise(machine_of(100, kDiskBlocks), training.specs, training.step);
    ASSERT_FALSE(advised.ok());
    EXPECT_EQ(advised.status().code(), STW_ERROR_LIMIT);
    EXPECT_THAT(advised.status().sentence(), testing::HasSubstr("no more than 400000"));
}

TEST(Advice, AStepThatNoMachineCanGoThroughIsAnError)
{
    Training training(6, 4, 8);
    training.train_step(Activations::kOwn);
    Result<std::vector<Advice>> advised =
        advise(machine_of(9, kDiskBlocks), training.specs, training.step);
    ASSERT_FALSE(advised.ok());
    EXPECT_EQ(advised.status().code(), STW_ERROR_BUDGET) << advised.status().sentence();
}

}  // namespace
}  // namespace stepwell::schedule
