// SPDX-License-Identifier: Apache-2.0
// Transfers whose target may be used before they end, by work that is ordered after them (a device
// with streams), and transfers that end together.
#include "tests/unit/residency/core_fixture.h"

#include <utility>

namespace stepwell::residency {
namespace {

class OrderedTest : public CoreTest {
protected:
    void SetUp() override { open(4, 4, 16, false); }
    // Its newest bytes are in the host tier alone.
    TensorId at_host(const char *name, uint64_t blocks)
    {
        const TensorId tensor = create(name, blocks * kBlock);
        release(ask(tensor, Access::kWrite, kHost));
        finish_all();
        return tensor;
    }
    void order_next()
    {
        ASSERT_FALSE(transfers_.empty());
        Commands out;
        core_->transfer_ordered(transfers_.front().id, out);
        take(out);
    }
};

TEST_F(OrderedTest, AReaderIsAnsweredWhenAllItsCopiesAreOrdered)
{
    const TensorId a = at_host("a", 2);
    const FetchId read = ask(a, Access::kRead);
    ASSERT_EQ(transfers_.size(), 2u);
    order_next();
    EXPECT_FALSE(granted(read));
    transfers_.push_back(transfers_.front());
    transfers_.pop_front();
    order_next();
    EXPECT_TRUE(granted(read));
    // And again before they are there.
    const FetchId again = ask(a, Access::kRead);
    EXPECT_TRUE(granted(again));
    finish_all();
    release(again);
    release(read);
    EXPECT_TRUE(errors_.empty());
}

TEST_F(OrderedTest, AWriterWaitsUntilTheyAreThereAndSoDoesTheRoomOfTheSource)
{
    const TensorId a = at_host("a", 1);
    const FetchId read = ask(a, Access::kRead);
    order_next();
    ASSERT_TRUE(granted(read));
    release(read);
    const FetchId write = ask(a, Access::kReadWrite);
    EXPECT_FALSE(granted(write));
    // Four blocks are all that the host has.
    const TensorId b = create("b", 4 * kBlock);
    const FetchId room = ask({all_of(b, Access::kWrite, kHost)}, kFetchWaitRoom);
    EXPECT_FALSE(granted(room));
    finish_all();
    EXPECT_TRUE(granted(write));
    EXPECT_TRUE(granted(room));
}

TEST_F(OrderedTest, WhatLeftMeanwhileIsNotBroughtByItsEnd)
{
    const TensorId a = at_host("a", 1);
    const FetchId read = ask(a, Access::kRead);
    order_next();
    release(read);
    Commands out;
    EXPECT_EQ(core_->evict(a, kDevice, out), 0u);  // the host has it too
    take(out);
    EXPECT_EQ(core_->usage(kDevice).used_blocks, 0u);
    finish_next();
    EXPECT_EQ(core_->usage(kDevice).used_blocks, 0u);
    EXPECT_EQ(core_->residence(a), 1u << kHost);
}

TEST_F(OrderedTest, OneThatFailsAfterAllIsToldAndBroughtAgain)
{
    const TensorId a = at_host("a", 1);
    const FetchId read = ask(a, Access::kRead);
    order_next();
    ASSERT_TRUE(granted(read));
    finish_next(Status::error(STW_ERROR_DEVICE, "the device is lost"));
    ASSERT_EQ(errors_.size(), 1u);
    EXPECT_EQ(errors_.front().tensor, a);
    EXPECT_EQ(core_->residence(a), 1u << kHost);
    release(read);
    const FetchId again = ask(a, Access::kRead);
    EXPECT_FALSE(granted(again));
    finish_all();
    EXPECT_TRUE(granted(again));
    release(again);
}

TEST_F(OrderedTest, ATensorMayGoWhileItsCopyIsUnderWay)
{
    const TensorId a = at_host("a", 2);
    const FetchId read = ask(a, Access::kRead);
    order_next();
    transfers_.push_back(transfers_.front());
    transfers_.pop_front();
    order_next();
    release(read);
    Commands out;
    EXPECT_TRUE(core_->destroy(a, out).ok());
    take(out);
    finish_all();
    EXPECT_EQ(core_->usage(kDevice).used_blocks, 0u);
    EXPECT_EQ(core_->usage(kHost).used_blocks, 0u);
}

}  // namespace
// Two blocks have left together: who waits for room hears of it when the core knows of both.
TEST_F(CoreTest, OfTransfersThatEndTogetherTheLastOneLetsFetchesGoOn)
{
    open(2, 0, 16);
    create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    const FetchId next = ask(create("c", kBlock), Access::kWrite);
    Commands out;
    core_->evict(b, kDevice, out);
    take(out);
    ASSERT_EQ(transfers_.size(), 2u);
    const std::deque<Transfer> ended = std::exchange(transfers_, {});
    core_->transfer_done(ended[0].id, {}, out, true);
    EXPECT_TRUE(out.transfers.empty());
    core_->transfer_done(ended[1].id, {}, out);
    EXPECT_EQ(out.transfers.size(), 1u);
    take(out);
    finish_all();
    EXPECT_TRUE(granted(next));
}

}  // namespace stepwell::residency
