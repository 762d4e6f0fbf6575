// SPDX-License-Identifier: Apache-2.0
#include "lib/collective/processors.h"

#include <gtest/gtest.h>

namespace stepwell::collective {
namespace {

Processors on(uint32_t first, uint32_t count, double quota = 0, uint64_t quota_of = 0)
{
    Processors made;
    for (uint32_t cpu = first; cpu < first + count; ++cpu) {
        made.allowed[cpu / 64] |= uint64_t{1} << cpu % 64;
    }
    made.quota = quota;
    made.quota_of = quota_of;
    return made;
}

TEST(ProcessorShare, AloneItIsAllThatTheProcessMayRunOn)
{
    EXPECT_EQ(processor_share({on(0, 64)}, 0), 64);
    EXPECT_EQ(processor_share({on(60, 70)}, 0), 70);
}

TEST(ProcessorShare, RanksThatMayRunAnywhereShareAllOfThem)
{
    const std::vector<Processors> ranks(4, on(0, 64));
    for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(processor_share(ranks, rank), 16);
}

TEST(ProcessorShare, WhatALauncherHasBoundIsNotSharedAgain)
{
    EXPECT_EQ(processor_share({on(0, 16), on(16, 16), on(32, 32)}, 1), 16);
    EXPECT_EQ(processor_share({on(0, 16), on(8, 8)}, 0), 12);
}

TEST(ProcessorShare, AQuotaIsSharedByThoseItIsFor)
{
    EXPECT_EQ(processor_share({on(0, 64, 2.5, 7)}, 0), 2.5);
    EXPECT_EQ(processor_share({on(0, 64, 6, 7), on(0, 64, 6, 7)}, 1), 3);
    EXPECT_EQ(processor_share({on(0, 64, 6, 7), on(0, 64, 6, 8)}, 1), 6);
    EXPECT_EQ(processor_share({on(0, 2, 6, 7), on(0, 2)}, 0), 1) << "no more than there is";
}

}  // namespace
}  // namespace stepwell::collective
