// SPDX-License-Identifier: Apache-2.0
// Step accounting against arithmetic done by hand.
#include "lib/observe/step_stats.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace stepwell::observe {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kGB = 1'000'000'000;

stw_step_stats stats_of(StepAccount &account, uint64_t now_ns, std::span<const LinkTotal> links,
                        StepBound *bound_out = nullptr)
{
    stw_step_stats stats{};
    stats.struct_size = sizeof stats;
    stats.step = 7;
    const StepBound bound = account.end(now_ns, links, &stats);
    if (bound_out != nullptr) *bound_out = bound;
    return stats;
}

TEST(StepAccount, BytesAreDifferencesOfTotalsAddedByDirection)
{
    std::vector<LinkTotal> links;
    for (uint32_t link = STW_LINK_NVME_TO_HOST; link <= STW_LINK_RANKS; ++link) {
        links.push_back({link, 0, 1000 * link, 0});
    }
    links.push_back({STW_LINK_HOST_TO_DEVICE, 1, 5, 0});
    StepAccount account;
    account.begin(0, links);
    uint64_t more = 1;
    for (LinkTotal &total : links) total.bytes += more, more *= 10;
    const stw_step_stats stats = stats_of(account, 10, links);
    EXPECT_EQ(stats.nvme_read_bytes, 1u + 10000u);
    EXPECT_EQ(stats.nvme_write_bytes, 10u + 100000u);
    EXPECT_EQ(stats.host_to_device_bytes, 100u + 10000000u);
    EXPECT_EQ(stats.device_to_host_bytes, 1000u);
    EXPECT_EQ(stats.collective_bytes, 1000000u);
    EXPECT_EQ(stats.step, 7u) << "what the caller set stays";
}

TEST(StepAccount, TheBoundIsComputeWhenLinksAreFast)
{
    LinkTotal link{STW_LINK_NVME_TO_DEVICE, 0, 0, 2 * kGB};
    StepAccount account;
    account.begin(100 * kMs, {&link, 1});
    link.bytes = 40 * kMs;  // 40 MB at 2 GB/s: 20 ms
    account.add_stall(Stall::kNvme, 30 * kMs);
    account.add_stall(Stall::kRoom, 10 * kMs);
    StepBound bound;
    const stw_step_stats stats = stats_of(account, 200 * kMs, {&link, 1}, &bound);
    EXPECT_EQ(stats.wall_ns, 100 * kMs);
    EXPECT_EQ(stats.stall_ns, 40 * kMs);
    EXPECT_EQ(stats.bound_ns, 60 * kMs);
    EXPECT_FALSE(bound.by_link);
    EXPECT_EQ(bound.link_ns, 20 * kMs);
    EXPECT_EQ(bound.link, uint32_t{STW_LINK_NVME_TO_DEVICE});
    EXPECT_EQ(bound.link_bytes[STW_LINK_NVME_TO_DEVICE], 40 * kMs);
    EXPECT_EQ(bound.link_bytes[STW_LINK_NVME_TO_HOST], 0u);
    EXPECT_EQ(largest_stall(stats), static_cast<int>(Stall::kNvme));
}

TEST(StepAccount, TheBoundIsTheSlowestLinkWhenComputeIsShort)
{
    LinkTotal links[] = {{STW_LINK_NVME_TO_HOST, 0, 10, 2 * kGB},
                         {STW_LINK_HOST_TO_NVME, 0, 10, kGB},
                         {STW_LINK_HOST_TO_DEVICE, 1, 10, 0}};
    StepAccount account;
    account.begin(0, links);
    for (LinkTotal &link : links) link.bytes += 80 * kMs;
    account.add_stall(Stall::kUpdate, 70 * kMs);
    StepBound bound;
    const stw_step_stats stats = stats_of(account, 100 * kMs, links, &bound);
    EXPECT_EQ(stats.bound_ns, 80 * kMs);
    EXPECT_TRUE(bound.by_link);
    EXPECT_EQ(bound.link, uint32_t{STW_LINK_HOST_TO_NVME});
    EXPECT_EQ(bound.compute_ns, 30 * kMs);
}

TEST(StepAccount, StallsOfManyThreadsAddUpAndMayExceedTheWall)
{
    StepAccount account;
    account.begin(0, {});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&account] {
            for (int i = 0; i < 1000; ++i) account.add_stall(Stall::kHostDevice, 3);
        });
    }
    for (auto &thread : threads) thread.join();
    const stw_step_stats stats = stats_of(account, 5000, {});
    EXPECT_EQ(stats.stall_host_device_ns, 12000u);
    EXPECT_EQ(stats.bound_ns, 0u);
}

TEST(StepAccount, ANewStepBeginsWithoutTheOldStalls)
{
    StepAccount account;
    account.begin(0, {});
    account.add_stall(Stall::kCollective, 5);
    account.begin(100, {});
    const stw_step_stats stats = stats_of(account, 110, {});
    EXPECT_EQ(stats.wall_ns, 10u);
    EXPECT_EQ(stats.stall_ns, 0u);
    EXPECT_EQ(largest_stall(stats), -1);
}

TEST(StepAccount, ExabytesDoNotOverflowTheBound)
{
    LinkTotal link{STW_LINK_NVME_TO_HOST, 0, 0, UINT64_C(1) << 32};
    StepAccount account;
    account.begin(0, {&link, 1});
    link.bytes = UINT64_C(1) << 62;
    const stw_step_stats stats = stats_of(account, 1, {&link, 1});
    EXPECT_EQ(stats.bound_ns, (UINT64_C(1) << 30) * 1'000'000'000);
}

TEST(PhaseAccount, KeepsTheLastStepAndTheMeanOfAll)
{
    PhaseAccount phase;
    EXPECT_EQ(phase.mean().wall_ns, 0u);
    stw_step_stats stats{};
    stats.wall_ns = 100, stats.stall_nvme_ns = 40, stats.nvme_read_bytes = 1000;
    phase.add(stats, {});
    stats.wall_ns = 200, stats.stall_nvme_ns = 0, stats.nvme_read_bytes = 3000;
    stats.planned = 1;
    StepBound bound;
    bound.ns = 150;
    phase.add(stats, bound);
    EXPECT_EQ(phase.steps(), 2u);
    EXPECT_EQ(phase.last().wall_ns, 200u);
    EXPECT_EQ(phase.last_bound().ns, 150u);
    EXPECT_EQ(phase.mean().wall_ns, 150u);
    EXPECT_EQ(phase.mean().stall_nvme_ns, 20u);
    EXPECT_EQ(phase.mean().nvme_read_bytes, 2000u);
    EXPECT_EQ(phase.mean().planned, 0u);
}

}  // namespace
}  // namespace stepwell::observe
