// SPDX-License-Identifier: Apache-2.0
// Claims about the board of shared reads: several ranks in this process, each with an object of its
// own over the same memory, and a clock that the test moves.
#include "lib/collective/read_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace stepwell::collective {
namespace {

using Answer = ReadBoard::Answer;
using Found = ReadBoard::Found;

constexpr uint64_t kBytes = 8192;
constexpr uint64_t kMs = 1'000'000;

BoardKey key(uint64_t block, uint64_t content = 0)
{
    return {block, content, kBytes};
}

class Board : public ::testing::Test {
protected:
    void open(uint32_t ranks)
    {
        const uint64_t bytes = ReadBoard::bytes_of(kBytes);
        memory.reset(std::aligned_alloc(4096, bytes));
        std::memset(memory.get(), 0, bytes);
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            boards.push_back(std::make_unique<ReadBoard>(
                memory.get(), kBytes, ranks, rank,
                [this](uint32_t other) { return gone.count(other) > 0; }));
        }
    }
    Found look(uint32_t rank, const BoardKey &at, bool patient = true)
    {
        return boards[rank]->look(at, now_ns, patient);
    }
    Answer answer(uint32_t rank, const BoardKey &at, bool patient = true)
    {
        return look(rank, at, patient).answer;
    }
    void offer(uint32_t rank, const Found &found, const BoardKey &at, uint8_t value)
    {
        const std::vector<uint8_t> data(kBytes, value);
        boards[rank]->offer(found, at, data.data(), boards[rank]->others(), now_ns);
    }
    // The rank reads the block and offers it.
    void read(uint32_t rank, const BoardKey &at, uint8_t value)
    {
        const Found found = look(rank, at);
        ASSERT_EQ(found.answer, Answer::kRead);
        offer(rank, found, at, value);
    }
    // What it copies; -1: nothing.
    int copied(uint32_t rank, const BoardKey &at)
    {
        const Found found = look(rank, at);
        std::vector<uint8_t> data(kBytes, 0xEE);
        if (found.answer != Answer::kCopy) return -1;
        if (!boards[rank]->copy(found, at, data.data())) return -1;
        for (const uint8_t byte : data) EXPECT_EQ(byte, data[0]);
        return data[0];
    }

    struct Free {
        void operator()(void *bytes) const { std::free(bytes); }
    };
    std::unique_ptr<void, Free> memory;
    std::vector<std::unique_ptr<ReadBoard>> boards;
    std::set<uint32_t> gone;
    uint64_t now_ns = 1000 * kMs;
};

TEST_F(Board, OneReadsAndTheOthersCopy)
{
    open(3);
    const Found found = look(0, key(1));
    ASSERT_EQ(found.answer, Answer::kRead);
    EXPECT_EQ(answer(1, key(1)), Answer::kLater);
    EXPECT_EQ(answer(2, key(1)), Answer::kLater);
    offer(0, found, key(1), 7);
    EXPECT_EQ(copied(1, key(1)), 7);
    EXPECT_EQ(copied(2, key(1)), 7);
}

TEST_F(Board, OtherContentOfTheSameBlockIsAnotherBlock)
{
    open(2);
    read(0, key(1, 10), 7);
    read(1, key(1, 11), 8);
    EXPECT_EQ(copied(1, key(1, 10)), 7);
    EXPECT_EQ(copied(0, key(1, 11)), 8);
    EXPECT_EQ(answer(0, {1, 10, kBytes - 1}), Answer::kRead);
}

TEST_F(Board, AReadThatIsWithdrawnIsTheNextOnes)
{
    open(2);
    const Found found = look(0, key(1));
    EXPECT_EQ(answer(1, key(1)), Answer::kLater);
    boards[0]->withdraw(found);
    EXPECT_EQ(answer(1, key(1)), Answer::kRead);
}

TEST_F(Board, ARankThatClosesWithdrawsItsReads)
{
    open(2);
    ASSERT_EQ(answer(0, key(1)), Answer::kRead);
    boards[0].reset();
    EXPECT_EQ(answer(1, key(1)), Answer::kRead);
}

TEST_F(Board, WhoIsImpatientReadsForItself)
{
    open(2);
    ASSERT_EQ(answer(0, key(1)), Answer::kRead);
    EXPECT_EQ(answer(1, key(1), false), Answer::kAlone);
    EXPECT_EQ(answer(1, key(2), false), Answer::kRead);
}

TEST_F(Board, ADeadReadersBlockIsTheNextOnesToRead)
{
    open(2);
    ASSERT_EQ(answer(0, key(1)), Answer::kRead);
    gone.insert(0);
    EXPECT_EQ(answer(1, key(1)), Answer::kLater);  // it is not asked at once
    now_ns += 11 * kMs;
    const Found found = look(1, key(1));
    ASSERT_EQ(found.answer, Answer::kRead);
    offer(1, found, key(1), 9);
    EXPECT_EQ(copied(1, key(1)), 9);
}

TEST_F(Board, ASlowReaderIsNotWaitedForAndItsLateOfferIsNoOnes)
{
    open(2);
    const Found slow = look(0, key(1));
    now_ns += 99 * kMs;
    EXPECT_EQ(answer(1, key(1)), Answer::kLater);
    now_ns += 2 * kMs;
    const Found found = look(1, key(1));
    ASSERT_EQ(found.answer, Answer::kRead);
    offer(0, slow, key(1), 6);
    EXPECT_EQ(answer(0, key(1)), Answer::kLater);
    offer(1, found, key(1), 9);
    EXPECT_EQ(copied(0, key(1)), 9);
    EXPECT_EQ(answer(0, key(2)), Answer::kRead);  // its count is right again
}

TEST_F(Board, EachRankReadsItsPartOfTheSlotsAtATime)
{
    open(4);
    std::vector<Found> found;
    for (uint32_t i = 0; i < kBoardSlots / 4; ++i) {
        found.push_back(look(0, key(i)));
        ASSERT_EQ(found.back().answer, Answer::kRead);
    }
    EXPECT_EQ(answer(0, key(100)), Answer::kLater);
    EXPECT_EQ(answer(0, key(100), false), Answer::kAlone);
    EXPECT_EQ(answer(1, key(100)), Answer::kRead);
    offer(0, found[0], key(0), 1);
    EXPECT_EQ(answer(0, key(101)), Answer::kRead);
}

TEST_F(Board, OfManyRanksEachMayReadTwo)
{
    open(kBoardRanksMax);
    for (uint32_t rank = 0; rank < kBoardSlots / 2; ++rank) {
        EXPECT_EQ(answer(rank, key(2 * rank)), Answer::kRead);
        EXPECT_EQ(answer(rank, key(2 * rank + 1)), Answer::kRead);
        EXPECT_EQ(answer(rank, key(2 * kBoardSlots)), Answer::kLater);
    }
    EXPECT_EQ(answer(63, key(100)), Answer::kLater);
    EXPECT_EQ(answer(63, key(100), false), Answer::kAlone);
}

TEST_F(Board, AFullBoardIsWaitedForOnlyWhileItMoves)
{
    open(2);
    for (uint32_t i = 0; i + 1 < kBoardSlots; ++i) read(0, key(i), 1);
    const Found last = look(0, key(50));
    ASSERT_EQ(last.answer, Answer::kRead);
    EXPECT_EQ(answer(1, key(100)), Answer::kLater);
    offer(0, last, key(50), 1);
    EXPECT_EQ(answer(1, key(100)), Answer::kAlone);
    // What the others took makes room, and may be copied until it is needed.
    EXPECT_EQ(copied(1, key(3)), 1);
    EXPECT_EQ(copied(1, key(3)), 1);
    EXPECT_EQ(answer(1, key(100)), Answer::kRead);
    EXPECT_NE(copied(1, key(3)), 1);
}

TEST_F(Board, WhatNobodyCameForGoes)
{
    open(2);
    for (uint32_t i = 0; i < kBoardSlots; ++i) read(0, key(i), 1);
    now_ns += 99 * kMs;
    EXPECT_EQ(answer(1, key(100)), Answer::kAlone);
    now_ns += 2 * kMs;
    EXPECT_EQ(answer(1, key(100)), Answer::kRead);
}

TEST_F(Board, WhatIsCopiedStaysUnlessItsCopierIsLost)
{
    open(2);
    for (uint32_t i = 0; i < kBoardSlots; ++i) read(0, key(i), 1);
    std::vector<Found> copying;
    for (uint32_t i = 0; i < kBoardSlots; ++i) copying.push_back(look(1, key(i)));
    now_ns += 1000 * kMs;
    EXPECT_EQ(answer(0, key(100)), Answer::kAlone);
    boards[1]->let_go(copying[5]);
    EXPECT_EQ(answer(0, key(100)), Answer::kRead);
    now_ns += 1001 * kMs;
    const Found found = look(0, key(101));
    EXPECT_EQ(found.answer, Answer::kRead);
    // It was not dead: what it has is not what it was promised, and it is told.
    std::vector<uint8_t> data(kBytes);
    EXPECT_FALSE(boards[1]->copy(copying[found.slot], key(found.slot), data.data()));
}

TEST_F(Board, WhatNobodyAwaitsIsNotOffered)
{
    open(2);
    const Found found = look(0, key(1));
    const std::vector<uint8_t> data(kBytes, 1);
    boards[0]->offer(found, key(1), data.data(), 0, now_ns);
    EXPECT_EQ(answer(1, key(1)), Answer::kRead);
}

TEST_F(Board, ManyRanksEachReadSomeAndAllGetAll)
{
    constexpr uint32_t kRanks = 8;
    constexpr uint32_t kBlocks = 100;
    open(kRanks);
    std::atomic<uint32_t> reads[kBlocks] = {};
    std::atomic<uint32_t> step{0};
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
            std::vector<uint8_t> data(kBytes);
            for (uint32_t block = 0; block < kBlocks; ++block) {
                Found found = boards[rank]->look(key(block), now_ns, true);
                while (found.answer == Answer::kLater) {
                    std::this_thread::yield();
                    found = boards[rank]->look(key(block), now_ns, true);
                }
                EXPECT_NE(found.answer, Answer::kAlone);
                if (found.answer == Answer::kRead) {
                    ++reads[block];
                    offer(rank, found, key(block), static_cast<uint8_t>(block));
                } else {
                    EXPECT_TRUE(boards[rank]->copy(found, key(block), data.data()));
                    for (const uint8_t byte : data) EXPECT_EQ(byte, static_cast<uint8_t>(block));
                }
                ++step;
                while (step < (block + 1) * kRanks) std::this_thread::yield();
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    for (const auto &count : reads) EXPECT_EQ(count, 1u);
}

}  // namespace
}  // namespace stepwell::collective
