// SPDX-License-Identifier: Apache-2.0
// Claims about a disk shared by processes. Ranks ask as fast as they can; what one has taken is
// compared after each request, never a time.
#include "lib/collective/disk_share.h"
#include "tests/unit/collective/exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <sched.h>

namespace stepwell::collective {
namespace {

using testing::Exchange;
using testing::ForkedRank;
using testing::Shared;

constexpr uint32_t kSharers = 4;
constexpr uint64_t kDisk = 77;
constexpr uint64_t kRequest = 4096;
constexpr uint64_t kLead = 16 * kRequest;
constexpr uint64_t kWork = 4000 * kRequest;

struct Progress {
    std::atomic<uint64_t> taken[kSharers];
    std::atomic<bool> works[kSharers];
    std::atomic<uint64_t> apart_bytes;
};

std::unique_ptr<Node> join(Exchange &exchange, uint32_t rank, uint32_t ranks)
{
    NodeOptions options;
    options.rank = rank;
    options.ranks = ranks;
    options.exchange = exchange.of(rank);
    options.host = {{1, 1}, 1, 1, geteuid(), 1};
    Result<std::unique_ptr<Node>> node = Node::join(options);
    EXPECT_TRUE(node.ok()) << node.status().sentence();
    return node.ok() ? node.take() : nullptr;
}

// Takes `work` bytes, and notes how far it got before the slowest that still wants some.
void ask(DiskShares &shares, uint32_t rank, Progress &progress, uint64_t work)
{
    for (uint64_t taken = 0; taken < work;) {
        if (!shares.take(0, kRequest)) {
            sched_yield();
            continue;
        }
        taken += kRequest;
        uint64_t slowest = taken;
        for (uint32_t i = 0; i < kSharers; ++i) {
            const uint64_t other = progress.taken[i];
            if (progress.works[i]) slowest = std::min(slowest, other);
        }
        progress.taken[rank] = taken;
        uint64_t apart = progress.apart_bytes;
        while (taken - slowest > apart &&
               !progress.apart_bytes.compare_exchange_weak(apart, taken - slowest)) {}
    }
    progress.works[rank] = false;
    shares.rest(0);
}

TEST(DiskShares, ProcessesStayWithinTheLead)
{
    Exchange exchange(kSharers);
    Shared<Progress> progress;
    std::vector<std::unique_ptr<ForkedRank>> ranks;
    for (uint32_t rank = 0; rank < kSharers; ++rank) {
        progress->works[rank] = true;
        ranks.push_back(std::make_unique<ForkedRank>([&, rank] {
            std::unique_ptr<Node> node = join(exchange, rank, kSharers);
            if (!node) _exit(1);
            auto shares = DiskShares::open(*node, {kDisk}, {kLead, 60'000'000'000});
            if (!shares || !shares->take(0, kRequest)) _exit(2);
            exchange.meet();  // all want some from here on
            ask(*shares, rank, *progress, kWork);
        }));
    }
    for (auto &rank : ranks) EXPECT_EQ(rank->wait(), 0);
    for (uint32_t rank = 0; rank < kSharers; ++rank) EXPECT_EQ(progress->taken[rank], kWork);
    // One request more at the begin and one not yet told; another rank may be between the two.
    EXPECT_LE(progress->apart_bytes, kLead + (kSharers + 2) * kRequest);
}

TEST(DiskShares, ARankThatIsKilledOrStoppedHoldsUpNobodyForLong)
{
    Exchange exchange(kSharers);
    Exchange all(kSharers + 1);  // and this process
    Exchange living(kSharers - 1);
    Shared<Progress> progress;
    const FairLimits limits{kLead, 1'000'000};
    const auto stays = [&](uint32_t rank) {
        std::unique_ptr<Node> node = join(exchange, rank, kSharers);
        auto shares = DiskShares::open(*node, {kDisk}, limits);
        all.meet();
        for (;;) (void)shares->take(0, kRequest);  // wants some until its end
    };
    const auto works = [&](uint32_t rank) {
        std::unique_ptr<Node> node = join(exchange, rank, kSharers);
        auto shares = DiskShares::open(*node, {kDisk}, limits);
        all.meet();
        living.meet();  // the others are not
        ask(*shares, rank, *progress, kWork);
    };
    ForkedRank killed([&] { stays(2); });
    ForkedRank stopped([&] { stays(3); });
    ForkedRank first([&] { works(0); });
    ForkedRank second([&] { works(1); });
    all.meet();
    killed.end(SIGKILL);
    stopped.stop();
    living.meet();
    EXPECT_EQ(first.wait(), 0);
    EXPECT_EQ(second.wait(), 0);
    EXPECT_EQ(progress->taken[0], kWork);
    EXPECT_EQ(progress->taken[1], kWork);
}

TEST(DiskShares, ARankAloneOnItsHostSharesWithNobody)
{
    Exchange exchange(1);
    std::unique_ptr<Node> node = join(exchange, 0, 1);
    ASSERT_TRUE(node);
    EXPECT_EQ(DiskShares::open(*node, {kDisk}), nullptr);
}

// Both ranks in this process, one after the other: what one wants the other sees.
class TwoRanks : public ::testing::Test {
protected:
    TwoRanks()
    {
        pthread_t thread;
        pthread_create(
            &thread, nullptr,
            [](void *self) -> void * {
                auto *test = static_cast<TwoRanks *>(self);
                test->nodes[1] = join(test->exchange, 1, 2);
                return nullptr;
            },
            this);
        nodes[0] = join(exchange, 0, 2);
        pthread_join(thread, nullptr);
    }
    Exchange exchange{2};
    std::unique_ptr<Node> nodes[2];
    static constexpr FairLimits kLimits{kLead, UINT64_MAX};
};

TEST_F(TwoRanks, PathsOnOneDiskHaveOneShare)
{
    auto one = DiskShares::open(*nodes[0], {kDisk}, kLimits);
    auto two = DiskShares::open(*nodes[1], {kDisk, kDisk, kDisk + 1}, kLimits);
    ASSERT_TRUE(one->take(0, kRequest));
    ASSERT_TRUE(two->take(0, kLead));
    EXPECT_FALSE(two->take(0, kRequest));
    EXPECT_FALSE(two->take(1, kRequest));
    EXPECT_TRUE(two->take(2, kRequest));
    // Rank 1 wants more as long as one of its paths does.
    ASSERT_TRUE(one->take(0, kLead));
    ASSERT_TRUE(one->take(0, kLead));
    EXPECT_FALSE(one->take(0, kLead));
    two->rest(0);
    two->rest(0);
    EXPECT_FALSE(one->take(0, kLead));
    two->rest(1);
    EXPECT_TRUE(one->take(0, kLead));
}

TEST_F(TwoRanks, ARankThatClosesWantsNoMore)
{
    auto one = DiskShares::open(*nodes[0], {kDisk}, kLimits);
    auto two = DiskShares::open(*nodes[1], {kDisk}, kLimits);
    ASSERT_TRUE(one->take(0, kRequest));
    ASSERT_TRUE(two->take(0, kLead));
    ASSERT_FALSE(two->take(0, kLead));
    one.reset();
    EXPECT_TRUE(two->take(0, kLead));
}

TEST_F(TwoRanks, AForkOfARankMayForgetItAndTheRankGoesOn)
{
    auto one = DiskShares::open(*nodes[0], {kDisk}, kLimits);
    auto two = DiskShares::open(*nodes[1], {kDisk}, kLimits);
    ASSERT_TRUE(one->take(0, kRequest));
    ASSERT_TRUE(two->take(0, kLead));
    ForkedRank fork([&] {
        one.reset();
        nodes[0].reset();
    });
    EXPECT_EQ(fork.wait(), 0);
    EXPECT_FALSE(two->take(0, kLead));
    EXPECT_FALSE(nodes[1]->standing(0).left);
}

TEST_F(TwoRanks, ADiskThatNobodyKnowsOrOneTooManyIsNotShared)
{
    std::vector<uint64_t> many;
    for (uint64_t i = 0; i <= kHostDisksMax; ++i) many.push_back(100 + i);
    many.push_back(0);
    auto one = DiskShares::open(*nodes[0], many, kLimits);
    auto two = DiskShares::open(*nodes[1], many, kLimits);
    for (uint32_t path = 0; path < many.size(); ++path) {
        EXPECT_TRUE(one->take(path, kRequest));
        EXPECT_TRUE(two->take(path, kLead));
        EXPECT_EQ(two->take(path, kLead), path >= kHostDisksMax) << path;
    }
}

TEST(DiskOf, IsTheDeviceOfTheFileSystem)
{
    EXPECT_NE(disk_of("/"), 0u);
    EXPECT_EQ(disk_of("/"), disk_of("/."));
    EXPECT_NE(disk_of("/"), disk_of("/proc"));
    EXPECT_EQ(disk_of("/nowhere/at/all"), 0u);
}

}  // namespace
}  // namespace stepwell::collective
