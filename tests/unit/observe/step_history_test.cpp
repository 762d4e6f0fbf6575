// SPDX-License-Identifier: Apache-2.0
// Steps and waits that are kept: the newest in order, sums by name, and nothing uncounted.
#include "lib/observe/step_history.h"

#include <gtest/gtest.h>

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
