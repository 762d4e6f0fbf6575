// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/simulate/machines.h"

#include <map>

#include <gtest/gtest.h>

namespace stepwell::simulate {
namespace {

// Until nothing is in flight: when each tag of a rank ended.
std::map<std::pair<uint32_t, uint64_t>, Instant> ends(SharedLinks &links)
{
    std::map<std::pair<uint32_t, uint64_t>, Instant> result;
    links.flush(0);
    while (links.next() != residency::kNever) {
        const Instant now = links.next();
        std::vector<SharedLinks::Ended> ended;
        links.take(now, &ended);
        links.flush(now);
        for (const SharedLinks::Ended &end : ended) result[{end.rank, end.tag}] = now;
    }
    return result;
}

TEST(SharedLinks, BandwidthIsDividedAmongTheRanksThatUseIt)
{
    SharedLinks links(small_machine(), 8, false);
    const std::vector<uint32_t> drive = links.path_of(Route::kNvmeToHost);
    ASSERT_EQ(drive.size(), 1u);
    links.submit(0, 1, drive, 4'000'000, 0, 0);
    links.submit(1, 2, drive, 2'000'000, 0, 0);
    links.submit(4, 3, drive, 4'000'000, 0, 0);  // another node's
    auto when = ends(links);
    EXPECT_EQ((when[{1, 2}]), 1'100'000u);  // half of 4 GB/s, and the latency
    EXPECT_EQ((when[{0, 1}]), 1'600'000u);  // half of it, then all
    EXPECT_EQ((when[{4, 3}]), 1'100'000u);  // all of it
}

TEST(SharedLinks, ARankIsServedTheMostUrgentFirstAndOneAtATime)
{
    SharedLinks links(small_machine(), 1, false);
    const std::vector<uint32_t> drive = links.path_of(Route::kHostToNvme);
    links.submit(0, 1, drive, 4'000'000, 0, 0);
    links.submit(0, 2, drive, 4'000'000, 0, 0);
    links.submit(0, 3, drive, 4'000'000, 3, 0);
    auto when = ends(links);
    EXPECT_EQ((when[{0, 1}]), 1'100'000u);
    EXPECT_EQ((when[{0, 3}]), 2'100'000u);
    EXPECT_EQ((when[{0, 2}]), 3'100'000u);
}

TEST(SharedLinks, WhatIsPromotedGoesBeforeTheOthersThatWait)
{
    SharedLinks links(small_machine(), 2, false);
    const std::vector<uint32_t> in = links.path_of(Route::kHostToDevice);
    links.submit(0, 1, in, 6'000'000, 1, 0);
    links.submit(0, 2, in, 6'000'000, 1, 0);
    links.submit(0, 3, in, 6'000'000, 1, 0);
    links.submit(1, 3, in, 0, 0, 0);  // of another rank
    links.promote(0, 3, 3);
    links.promote(0, 4, 3);  // over already
    auto when = ends(links);
    EXPECT_LT((when[{0, 1}]), (when[{0, 3}]));  // was under way
    EXPECT_LT((when[{0, 3}]), (when[{0, 2}]));
}

TEST(SharedLinks, AReminderEndsAtItsTimeAndTakesNoLink)
{
    SharedLinks links(small_machine(), 1, false);
    const std::vector<uint32_t> drive = links.path_of(Route::kHostToNvme);
    links.submit(0, 1, drive, 4'000'000, 0, 0);
    links.remind(0, 2, 500);
    links.remind(0, 3, 20'000'000);
    EXPECT_EQ(links.in_flight(), 3u);
    auto when = ends(links);
    EXPECT_EQ((when[{0, 2}]), 500u);
    EXPECT_EQ((when[{0, 1}]), 1'100'000u);
    EXPECT_EQ((when[{0, 3}]), 20'000'000u);
}

TEST(SharedLinks, ATransferPassesItsLinksInTurn)
{
    SharedLinks links(small_machine(), 1, false);
    const std::vector<uint32_t> in = links.path_of(Route::kHostToDevice);
    ASSERT_EQ(in.size(), 2u);
    links.submit(0, 1, in, 42'000'000, 0, 0);
    EXPECT_EQ((ends(links)[{0, 1}]), 7'000'000u + 10'000 + 6'000'000);
    links.take_use(13'010'000);
    links.submit(0, 2, {}, 42, 0, 13'010'000);
    EXPECT_EQ((ends(links)[{0, 2}]), 13'010'000u);
    EXPECT_TRUE(links.idle());
}

TEST(SharedLinks, OfATransferUnderWayTheBytesThatPassedAreUsed)
{
    SharedLinks links(small_machine(), 1, false);
    const std::vector<uint32_t> drive = links.path_of(Route::kNvmeToHost);
    links.submit(0, 1, drive, 4'000'000, 0, 0);
    EXPECT_EQ(links.take_use(0)[0], 0);
    links.flush(0);
    EXPECT_DOUBLE_EQ(links.take_use(250'000)[0], 1e6);
    links.submit(0, 2, drive, 4'000'000, 0, 300'000);
    links.flush(300'000);
    EXPECT_DOUBLE_EQ(links.take_use(500'000)[0], 1e6);
    ends(links);
    EXPECT_DOUBLE_EQ(links.take_use(2'200'000)[0], 6e6);
}

TEST(SharedLinks, OneThatStandsForAllIsServedAsEachOfThem)
{
    const Machine machine = small_machine();
    SharedLinks folded(machine, 1, true);
    SharedLinks all(machine, 8, false);
    for (const uint64_t bytes : {1'000'003ull, 7ull, 999'999ull}) {
        folded.submit(0, bytes, folded.path_of(Route::kNvmeToHost), bytes, 0, 0);
        for (uint32_t rank = 0; rank < 8; ++rank)
            all.submit(rank, bytes, all.path_of(Route::kNvmeToHost), bytes, 0, 0);
    }
    const auto one = ends(folded);
    for (const auto &[which, when] : ends(all)) EXPECT_EQ(when, one.at({0, which.second}));
}

// 16 GB of an update and 4 GB from a drive of 4 GB/s, over a memory of 8 GB/s.
TEST(SharedLinks, HostMemoryIsDividedAmongUpdatesAndTransfers)
{
    Machine machine = small_machine();
    machine.gpus_per_node = machine.gpus_per_switch = machine.gpus_per_socket = 1;
    machine.shares_host_memory = true;
    machine.host_bytes_per_s = 8e9;
    machine.links[0].latency_ns = 0;
    for (const bool reads : {false, true}) {
        SharedLinks links(machine, 1, false);
        links.submit(0, 1, links.memory_path(), 16'000'000'000, 3, 0);
        if (reads) links.submit(0, 2, links.path_of(Route::kNvmeToHost), 4'000'000'000, 2, 0);
        auto when = ends(links);
        // 1 s on the drive's link, while the update moves 8 GB; then each has 4 GB/s.
        EXPECT_EQ((when[{0, 1}]), reads ? 2'500'000'000u : 2'000'000'000u);
        if (reads) {
            EXPECT_EQ((when[{0, 2}]), 2'000'000'000u);
        }
    }
}

}  // namespace
}  // namespace stepwell::simulate
