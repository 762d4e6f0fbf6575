// SPDX-License-Identifier: Apache-2.0
// Steps and waits that are kept: the newest in order, sums by name, and nothing uncounted.
#include "lib/observe/step_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace stepwell::observe {
namespace {

TEST(StepHistory, KeepsTheNewestInOrder)
{
    StepHistory history;
    history.open();
    EXPECT_TRUE(history.newest().empty());
    const uint64_t bytes = history.metadata_bytes();
    for (uint64_t i = 0; i < kStepsKept + 10; ++i) {
        StepRecord record;
        record.begin_ns = i;
        history.add(record);
    }
    const std::vector<StepRecord> newest = history.newest();
    ASSERT_EQ(newest.size(), kStepsKept);
    EXPECT_EQ(history.added(), kStepsKept + 10);
    for (uint64_t i = 0; i < kStepsKept; ++i) ASSERT_EQ(newest[i].begin_ns, i + 10);
    EXPECT_EQ(history.metadata_bytes(), bytes) << "all memory is taken at open";
}

std::map<uint32_t, uint32_t> steps_by_phase(const StepHistory &history)
{
    std::map<uint32_t, uint32_t> counts;
    for (const StepRecord &record : history.newest()) ++counts[record.phase];
    return counts;
}

// Text that is generated after a training, a step for each letter, must not hide the training.
TEST(StepHistory, ManyStepsOfOnePhaseLeaveTheFewOfAnother)
{
    StepHistory history;
    history.open();
    constexpr uint32_t kTrain = 4;
    constexpr uint32_t kPredict = 9;
    uint64_t time = 0;
    const auto add = [&](uint32_t phase, uint32_t steps) {
        for (uint32_t i = 0; i < steps; ++i) {
            StepRecord record;
            record.phase = phase;
            record.begin_ns = time++;
            history.add(record);
        }
    };
    add(kTrain, 60);
    add(kPredict, 3 * kStepsKept);
    auto counts = steps_by_phase(history);
    EXPECT_EQ(counts[kTrain], 60u);
    EXPECT_EQ(counts[kPredict], kStepsKept - 60);
    EXPECT_EQ(history.newest().front().begin_ns, 0u) << "the first step of the training";
    EXPECT_EQ(history.newest()[60].begin_ns, 60 + 3 * kStepsKept - (kStepsKept - 60))
        << "the newest of the other";

    add(kTrain, kStepsKept);
    counts = steps_by_phase(history);
    EXPECT_EQ(counts[kTrain], kStepsKept / 2);
    EXPECT_EQ(counts[kPredict], kStepsKept / 2) << "no phase takes more than its half";
    EXPECT_TRUE(std::is_sorted(
        history.newest().begin(), history.newest().end(),
        [](const StepRecord &a, const StepRecord &b) { return a.begin_ns < b.begin_ns; }));
}

TEST(StepHistory, APhaseForEachStepGoesByAge)
{
    StepHistory history;
    history.open();
    for (uint32_t i = 0; i < kStepsKept + 3; ++i) {
        StepRecord record;
        record.phase = i;
        history.add(record);
    }
    ASSERT_EQ(history.newest().size(), kStepsKept);
    EXPECT_EQ(history.newest().front().phase, 3u);
    EXPECT_EQ(history.newest().back().phase, kStepsKept + 2);
}

TEST(StallLedger, SumsByNameAndCause)
{
    StallLedger ledger;
    ledger.add("a", Stall::kNvme, 5);
    ledger.add("b", Stall::kNvme, 1);
    ledger.add("a", Stall::kRoom, 7);
    const StallTotals &a = ledger.tensors().at("a");
    EXPECT_EQ(a.waits, 2u);
    EXPECT_EQ(a.ns[static_cast<uint32_t>(Stall::kNvme)], 5u);
    EXPECT_EQ(a.ns[static_cast<uint32_t>(Stall::kRoom)], 7u);
    EXPECT_EQ(a.total_ns(), 12u);
    EXPECT_EQ(ledger.tensors().at("b").total_ns(), 1u);
    EXPECT_EQ(ledger.others().waits, 0u);
}

TEST(StallLedger, WhatHasNoPlaceIsCountedWithTheOthers)
{
    StallLedger ledger;
    for (uint32_t i = 0; i < kStalledTensorsKept + 3; ++i) {
        ledger.add("tensor." + std::to_string(i), Stall::kUpdate, 2);
    }
    ledger.add("tensor.0", Stall::kUpdate, 2);
    EXPECT_EQ(ledger.tensors().size(), kStalledTensorsKept);
    EXPECT_EQ(ledger.tensors().at("tensor.0").waits, 2u) << "a name that has a place keeps it";
    EXPECT_EQ(ledger.others().waits, 3u);
    EXPECT_EQ(ledger.others().total_ns(), 6u);
    EXPECT_EQ(ledger.all().waits, kStalledTensorsKept + 4);
    EXPECT_GT(ledger.metadata_bytes(), kStalledTensorsKept * sizeof(StallTotals));
}

}  // namespace
}  // namespace stepwell::observe
