// SPDX-License-Identifier: Apache-2.0
// What decides whether updates come before their verdict: the trials, by the time of rounds.
#include "model.h"

#include "lib/update/early_trial.h"

namespace stepwell::update::test {
namespace {

// Rounds of a program that asks for early updates.
struct Rounds {
    void run(uint32_t n, uint64_t with_ns, uint64_t without_ns)
    {
        for (uint32_t i = 0; i < n; ++i) {
            const bool early = trial.goes();
            // Not all alike, by up to 2 %.
            const uint64_t ns = early ? with_ns : without_ns;
            now_ns += ns + random() % (ns / 50);
            trial.end_round(now_ns, true, early);
            this->early += early ? 1 : 0;
        }
    }
    EarlyTrial trial;
    std::mt19937_64 random{1};
    uint64_t now_ns = 1;
    uint32_t early = 0;
};

constexpr uint32_t kTrial = 1 + kEarlyTrialRounds;

TEST(EarlyTrial, GoesOnWhereItPays)
{
    Rounds rounds;
    rounds.run(1 + EarlyTrial::kFirst, 90, 100);
    EXPECT_EQ(rounds.early, 1 + EarlyTrial::kFirst);
    rounds.run(kTrial, 9000, 10000);
    EXPECT_EQ(rounds.early, 1 + EarlyTrial::kFirst) << "the trial";
    rounds.run(10 * (kEarlyTrialBetween + kTrial), 9000, 10000);
    EXPECT_EQ(rounds.early, 1 + EarlyTrial::kFirst + 10 * kEarlyTrialBetween);
    EXPECT_TRUE(rounds.trial.pays());
}

TEST(EarlyTrial, StopsWhereItDoesNot)
{
    Rounds rounds;
    rounds.run(1 + EarlyTrial::kFirst + kTrial, 11000, 10000);
    EXPECT_FALSE(rounds.trial.pays());
    const uint32_t before = rounds.early;
    rounds.run(kEarlyTrialBetween, 11000, 10000);
    EXPECT_EQ(rounds.early, before);
    rounds.run(kTrial, 11000, 10000);
    EXPECT_EQ(rounds.early, before + kTrial) << "tried again";
    EXPECT_FALSE(rounds.trial.pays());
    rounds.run(kEarlyTrialBetween + kTrial, 9000, 10000);
    EXPECT_TRUE(rounds.trial.pays()) << "as it has become better";
    EXPECT_TRUE(rounds.trial.goes());
}

// A round of a trial that took long, as the program saved something, decides nothing; neither do
// times that overlap.
TEST(EarlyTrial, GoesOnInDoubt)
{
    Rounds rounds;
    rounds.run(1 + EarlyTrial::kFirst + 2, 11000, 10000);
    rounds.now_ns += 1'000'000;
    rounds.run(kTrial - 2, 11000, 10000);
    EXPECT_TRUE(rounds.trial.pays());
    rounds.run(20 * (kEarlyTrialBetween + kTrial), 10000, 10000);
    EXPECT_TRUE(rounds.trial.pays());
}

// Rounds without early updates, for want of room or since the program asks for none, are no
// measure of them.
TEST(EarlyTrial, NeedsEarlyUpdates)
{
    EarlyTrial trial;
    uint64_t now_ns = 1;
    for (uint32_t i = 0; i < 1000; ++i) trial.end_round(now_ns += 100, true, false);
    EXPECT_TRUE(trial.goes());
    for (uint32_t i = 0; i < 1000; ++i) trial.end_round(now_ns += 100, i % 2 == 0, i % 2 == 0);
    EXPECT_TRUE(trial.goes());
    for (uint32_t i = 0; i < EarlyTrial::kFirst; ++i) trial.end_round(now_ns += 100, true, true);
    EXPECT_TRUE(trial.goes()) << "the first of them has no time";
    trial.end_round(now_ns += 100, true, true);
    EXPECT_FALSE(trial.goes());
    trial.end_round(now_ns += 100, false, false);
    EXPECT_TRUE(trial.goes()) << "a trial ends with them";
}

TEST(EarlyTrial, IsMadeByTheOptimizer)
{
    Conditions conditions;
    conditions.alone = true;
    World world(conditions);
    const Entry entry = world.add({20000, STW_F32, STW_F32, 0});
    const StepOptions early = early_of(&entry.parameter, 1);
    for (uint32_t round = 0; round < EarlyTrial::kFirst + kTrial + 1; ++round) {
        const bool goes = round <= EarlyTrial::kFirst;
        world.give_gradient(entry);
        const uint64_t scanned = world.pipeline->stats().scanned_bytes;
        ASSERT_TRUE(world.optimizer->step(early, nullptr).ok());
        ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
        EXPECT_EQ(world.pipeline->stats().scanned_bytes > scanned, goes) << round;
        StepOptions options;
        options.wants_verdict = true;
        StepResult result;
        ASSERT_TRUE(world.step_and_wait(options, &result).ok());
        EXPECT_EQ(result.early, goes ? 1U : 0U) << round;
        std::vector<ElementRange> parts;
        const bool measures = world.pipeline->wants_measure(entry.gradient, parts) != 0;
        EXPECT_EQ(measures, !goes) << round;
        world.expect_update(entry, STW_HYPER_INIT, round + 1, 1.0);
        world.expect_same(entry);
    }
}

}  // namespace
}  // namespace stepwell::update::test
