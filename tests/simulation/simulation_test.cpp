// SPDX-License-Identifier: Apache-2.0
// The seeded simulation as tests. STW_SEED=N replays one seed with its journal, STW_SEEDS=N sets
// how many are run. The quick suite runs few, the full suite those of the day, the long one
// thousands.
#include "lib/support/assert.h"
#include "tests/seed_of_the_day.h"
#include "tests/simulation/simulation.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

namespace stepwell::simulation {
namespace {

uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

void run_seeds(uint64_t count, Outcome (*program)(const Options &), uint64_t begin = 1)
{
    const uint64_t only = number_from("STW_SEED", 0);
    const uint64_t first = only != 0 ? only : begin;
    const uint64_t last = only != 0 ? only : begin + number_from("STW_SEEDS", count) - 1;
    uint64_t events = 0;
    uint64_t transfers = 0;
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t seed = first; seed <= last; seed++) {
        SCOPED_TRACE("STW_SEED=" + std::to_string(seed));
        Options options;
        options.seed = seed;
        const Outcome outcome = program(options);
        events += outcome.events;
        transfers += outcome.transfers;
        if (!outcome.failure.empty()) {
            ASSERT_EQ(run(options, program), "");
            FAIL() << "failed once, and not when run again: " << outcome.failure;
        }
        char text[256];
        ASSERT_EQ(assertion_failures(text, sizeof text), 0u) << text;
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    std::printf("%llu seeds, %llu events, %llu transfers, %.0f events/s\n",
                static_cast<unsigned long long>(last - first + 1),
                static_cast<unsigned long long>(events), static_cast<unsigned long long>(transfers),
                static_cast<double>(events) / spent.count());
    // A run in which nothing happens proves nothing.
    EXPECT_GT(events, 100 * (last - first + 1));
}

TEST(Simulation, RandomProgramsNeverLoseTheNewestBytes)
{
    run_seeds(5000, run_program);
}

TEST(Simulation, TwoRanksAgreeUnderAnyOrderOfCompletions)
{
    run_seeds(1000, run_ranks);
}

TEST(Simulation, ManyRanksWithDelaysAndFaultsNeverHang)
{
    run_seeds(500, run_many_ranks);
}

TEST(SimulationQuick, ManyRanksWithDelaysAndFaultsNeverHang)
{
    run_seeds(25, run_many_ranks);
}

// Survivors of this seed have made all their calls when the last collective waits for a rank that
// is gone.
TEST(SimulationQuick, RanksWithNothingElseToDoTimeOutOnOneThatIsGone)
{
    Options options;
    options.seed = 1702;
    EXPECT_EQ(run_many_ranks(options).failure, "");
}

TEST(SimulationQuick, RandomProgramsNeverLoseTheNewestBytes)
{
    run_seeds(50, run_program);
}

TEST(SimulationQuick, TwoRanksAgreeUnderAnyOrderOfCompletions)
{
    run_seeds(50, run_ranks);
}

TEST(SimulationOfTheDay, RandomProgramsNeverLoseTheNewestBytes)
{
    run_seeds(300, run_program, seed_of_the_day());
}

TEST(SimulationOfTheDay, TwoRanksAgreeUnderAnyOrderOfCompletions)
{
    run_seeds(300, run_ranks, seed_of_the_day());
}

TEST(SimulationOfTheDay, ManyRanksWithDelaysAndFaultsNeverHang)
{
    run_seeds(100, run_many_ranks, seed_of_the_day());
}

TEST(SimulationQuick, ASeedIsTheSameRunEveryTime)
{
    Options options;
    options.seed = 7;
    options.keep_journal = true;
    const Outcome once = run_program(options);
    const Outcome again = run_program(options);
    EXPECT_EQ(once.journal, again.journal);
    EXPECT_EQ(once.events, again.events);
}

}  // namespace
}  // namespace stepwell::simulation
