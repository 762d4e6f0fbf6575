// SPDX-License-Identifier: Apache-2.0
// Claims about reads that processes share: the memory they get for it, and what becomes of a block
// when its reader dies, leaves or is stopped.
#include "lib/collective/shared_reads.h"
#include "tests/unit/collective/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <thread>

namespace stepwell::collective {
namespace {

using testing::Exchange;
using testing::ForkedRank;
using ::testing::HasSubstr;
using Answer = ReadBoard::Answer;

constexpr uint64_t kBlock = 65536;
constexpr BoardKey kKey{1, 2, kBlock};
// Only death ends a wait.
constexpr BoardLimits kForEver{UINT64_MAX / 2, UINT64_MAX / 2, UINT64_MAX / 2};

NodeOptions options_of(Exchange &exchange, uint32_t rank, uint32_t ranks)
{
    NodeOptions options;
    options.rank = rank;
    options.ranks = ranks;
    options.exchange = exchange.of(rank);
    options.host = {{1, 1}, 1, 1, geteuid(), 1};
    options.shared_block_bytes = kBlock;
    return options;
}

std::unique_ptr<Node> join(const NodeOptions &options)
{
    Result<std::unique_ptr<Node>> node = Node::join(options);
    EXPECT_TRUE(node.ok()) << node.status().sentence();
    return node.ok() ? node.take() : nullptr;
}

// All ranks in this process; `change` may alter their options before.
std::vector<std::unique_ptr<Node>> join_all(uint32_t ranks,
                                            const std::function<void(NodeOptions &)> &change)
{
    Exchange exchange(ranks);
    std::vector<std::unique_ptr<Node>> nodes(ranks);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            NodeOptions options = options_of(exchange, rank, ranks);
            change(options);
            nodes[rank] = join(options);
        });
    }
    for (std::thread &thread : threads) thread.join();
    return nodes;
}

Answer answer(SharedReads &reads)
{
    const ReadBoard::Found found = reads.look(kKey, true);
    if (found.answer == Answer::kCopy) reads.let_go(found);
    if (found.answer == Answer::kRead) reads.withdraw(found);
    return found.answer;
}

bool has_bytes(SharedReads &reads, uint8_t value)
{
    std::vector<uint8_t> data(kBlock);
    const ReadBoard::Found found = reads.look(kKey, true);
    if (found.answer != Answer::kCopy || !reads.copy(found, kKey, data.data())) return false;
    return data == std::vector<uint8_t>(kBlock, value);
}

TEST(SharedReads, WhatOneProcessOffersTheOthersCopy)
{
    Exchange exchange(3);
    std::vector<std::unique_ptr<ForkedRank>> ranks;
    for (uint32_t rank = 0; rank < 3; ++rank) {
        ranks.push_back(std::make_unique<ForkedRank>([&, rank] {
            std::unique_ptr<Node> node = join(options_of(exchange, rank, 3));
            auto reads = node ? SharedReads::open(*node, kForEver) : nullptr;
            if (!reads) _exit(1);
            if (rank == 0) {
                const ReadBoard::Found found = reads->look(kKey, true);
                if (found.answer != Answer::kRead) _exit(2);
                exchange.meet();
                exchange.meet();  // the others see that it reads
                reads->offer(found, kKey, std::vector<uint8_t>(kBlock, 7).data());
                exchange.meet();
            } else {
                exchange.meet();
                if (answer(*reads) != Answer::kLater) _exit(3);
                exchange.meet();
                exchange.meet();
                if (!has_bytes(*reads, 7)) _exit(4);
            }
            exchange.meet();
        }));
    }
    for (auto &rank : ranks) EXPECT_EQ(rank->wait(), 0);
}

TEST(SharedReads, ABlockWhoseReaderIsKilledIsAnothersToRead)
{
    Exchange exchange(2);
    Exchange all(3);  // and this process
    ForkedRank killed([&] {
        std::unique_ptr<Node> node = join(options_of(exchange, 0, 2));
        auto reads = SharedReads::open(*node, kForEver);
        (void)reads->look(kKey, true);
        all.meet();
        for (;;) sched_yield();
    });
    ForkedRank lives([&] {
        std::unique_ptr<Node> node = join(options_of(exchange, 1, 2));
        auto reads = SharedReads::open(*node, kForEver);
        all.meet();
        if (answer(*reads) != Answer::kLater) _exit(1);
        all.meet();
        while (answer(*reads) == Answer::kLater) sched_yield();
        if (answer(*reads) != Answer::kRead) _exit(2);
    });
    all.meet();
    // The meeting has room for three: this one is for the rank that is about to die as well.
    std::thread other([&] { all.meet(); });
    killed.end(SIGKILL);
    all.meet();
    other.join();
    EXPECT_EQ(lives.wait(), 0);
}

TEST(SharedReads, ARankThatLeavesWithdrawsAndIsNotAwaited)
{
    auto nodes = join_all(2, [](NodeOptions &) {});
    ASSERT_TRUE(nodes[0] && nodes[1]);
    auto first = SharedReads::open(*nodes[0], kForEver);
    auto second = SharedReads::open(*nodes[1], kForEver);
    ASSERT_TRUE(first && second);
    ASSERT_EQ(first->look(kKey, true).answer, Answer::kRead);
    EXPECT_EQ(answer(*second), Answer::kLater);
    first.reset();
    nodes[0].reset();
    const ReadBoard::Found found = second->look(kKey, true);
    ASSERT_EQ(found.answer, Answer::kRead);
    second->offer(found, kKey, std::vector<uint8_t>(kBlock, 7).data());
    EXPECT_EQ(answer(*second), Answer::kRead);
}

TEST(SharedReads, AForkOfARankMayForgetItAndTheRankGoesOn)
{
    auto nodes = join_all(2, [](NodeOptions &) {});
    auto first = SharedReads::open(*nodes[0], kForEver);
    auto second = SharedReads::open(*nodes[1], kForEver);
    ASSERT_TRUE(first && second);
    const ReadBoard::Found found = first->look(kKey, true);
    ForkedRank fork([&] {
        first.reset();
        nodes[0].reset();
    });
    EXPECT_EQ(fork.wait(), 0);
    EXPECT_EQ(answer(*second), Answer::kLater);
    first->offer(found, kKey, std::vector<uint8_t>(kBlock, 9).data());
    EXPECT_TRUE(has_bytes(*second, 9));
}

TEST(SharedReads, TheBoardCountsInTheHostsBudget)
{
    const uint64_t board = ReadBoard::bytes_of(kBlock);
    const auto joins = [](uint64_t limit) {
        return join_all(2, [limit](NodeOptions &options) {
            options.host_bytes = 1000;
            options.node_host_bytes = limit;
        });
    };
    for (const auto &node : joins(2000 + board)) {
        EXPECT_TRUE(node->board());
        EXPECT_EQ(node->board_remark(), "");
        EXPECT_EQ(node->host_bytes(), 2000 + board);
    }
    for (const auto &node : joins(2000 + board - 1)) {
        EXPECT_FALSE(node->board());
        EXPECT_EQ(node->host_bytes(), 2000u);
        EXPECT_THAT(node->board_remark(),
                    HasSubstr("node_host_bytes leaves " + std::to_string(board - 1)));
        EXPECT_EQ(SharedReads::open(*node), nullptr);
    }
}

TEST(SharedReads, WhereTheHostHasNoMemoryForItRanksJoinWithoutABoard)
{
    // More than any machine's /dev/shm has.
    for (const auto &node :
         join_all(2, [](NodeOptions &options) { options.shared_block_bytes = 1ull << 55; })) {
        ASSERT_TRUE(node);
        EXPECT_FALSE(node->board());
        EXPECT_THAT(node->board_remark(), HasSubstr("/dev/shm has not"));
        EXPECT_TRUE(node->disk_lanes(1));
    }
}

TEST(SharedReads, RanksWithoutADiskOrAloneHaveNoBoard)
{
    for (const auto &node : join_all(3, [](NodeOptions &options) {
             if (options.rank == 1) options.shared_block_bytes = 0;
         })) {
        EXPECT_FALSE(node->board());
        EXPECT_EQ(node->board_remark(), "");
    }
    for (const auto &node : join_all(1, [](NodeOptions &) {})) EXPECT_FALSE(node->board());
}

}  // namespace
}  // namespace stepwell::collective
