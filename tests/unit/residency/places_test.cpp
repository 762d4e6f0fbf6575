// SPDX-License-Identifier: Apache-2.0
// Places where addresses matter: a tensor's one address where the device maps, and runs of slots
// for views where it does not.
#include "tests/unit/residency/core_fixture.h"

#include <random>

namespace stepwell::residency {
namespace {

// ---- places that map ----------------------------------------------------------------------------

TEST_F(CoreTest, ABlockThatComesBackToItsSlotIsAtItsAddressStill)
{
    open(4, 0, 16);
    const TensorId a = create("a", 2 * kBlock);
    const TensorId b = create_filled("b", 2 * kBlock);
    fill(a);
    evict(a);
    evict(b);  // last in is first out: b's slots would be taken first
    const FetchId again = ask(a, Access::kWrite);
    EXPECT_TRUE(transfers_.empty());
    EXPECT_TRUE(granted(again));
}

TEST_F(CoreTest, ASlotThatAnotherBlockUsedMeanwhileIsMappedAgain)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", 2 * kBlock);
    const TensorId b = create("b", 2 * kBlock);
    evict(a);
    fill(b);
    evict(b);
    const FetchId again = ask(a, Access::kWrite);
    EXPECT_EQ(transfers_.size(), 2u);
    EXPECT_FALSE(granted(again));
    finish_all();
    EXPECT_TRUE(granted(again));
}

TEST_F(CoreTest, AMapThatFailedLeavesNobodyAtTheSlot)
{
    open(1, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create("b", kBlock);
    evict(a);
    const FetchId fails = ask(b, Access::kWrite);
    finish_next(failure());
    EXPECT_EQ(refusal(fails), STW_ERROR_IO);
    ask(a, Access::kWrite);
    ASSERT_EQ(transfers_.size(), 1u);
    EXPECT_EQ(transfers_[0].kind, TransferKind::kMap);
}

TEST_F(CoreTest, ATensorOfADestroyedOnesBlocksHasAddressesOfItsOwn)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", 2 * kBlock);
    Commands out;
    EXPECT_TRUE(core_->destroy(a, out).ok());
    take(out);
    const TensorId b = create("b", 2 * kBlock);
    ask(b, Access::kWrite);
    EXPECT_EQ(transfers_.size(), 2u);
}

// ---- places without maps -----------------------------------------------------------------------

TEST_F(CoreTest, AViewWithoutMapsIsOneRunOfSlots)
{
    open(4, 0, 16, false);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    const TensorId c = create("c", 3 * kBlock);
    const FetchId id = ask(c, Access::kWrite);
    finish_all();
    ASSERT_TRUE(granted(id));
    EXPECT_LE(granted_[id].grants[0].slot + 3, 4u);
    // One of the two had to leave; the run is whole.
    EXPECT_NE(resident(a, kDevice), resident(b, kDevice));
}

// Its blocks cannot move while it is in view, so it lies where the whole can come to lie around it.
TEST_F(CoreTest, AViewOfAMiddlePartLeavesRoomForTheWhole)
{
    open(6, 0, 16, false);
    const TensorId a = create_filled("a", 6 * kBlock);
    evict(a);
    Request middle = all_of(a, Access::kRead);
    middle.byte_begin = 2 * kBlock;
    middle.byte_count = 2 * kBlock;
    const FetchId part = ask({middle});
    finish_all();
    ASSERT_TRUE(granted(part));
    EXPECT_EQ(granted_[part].grants[0].slot, 2u);
    const FetchId whole = ask(a, Access::kRead);
    finish_all();
    ASSERT_TRUE(granted(whole));
    EXPECT_EQ(granted_[whole].grants[0].slot, 0u);
}

// What has to change its slot is counted once. Here it cannot leave for a while: a copy of what it
// was before is still on its way to the drive.
TEST_F(CoreTest, AFetchWhoseOwnBlocksMoveWaitsForWhatIsOnItsWay)
{
    open(6, 12, 32, false);
    TensorSpec streamed = spec("a", 4 * kBlock);
    streamed.policy.retention = Retention::kStream;
    streamed.reads_zero = true;
    const TensorId before = create("before", 5 * kBlock);
    const TensorId a = create_filled(streamed);
    const TensorId behind = create("behind", kBlock);
    Commands out;
    core_->evict(a, kDevice, out);
    EXPECT_TRUE(core_->discard(a, out).ok());
    take(out);
    const std::deque<Transfer> old = std::exchange(transfers_, {});
    ASSERT_EQ(old.size(), 4u);
    fill(before, kHost);
    Request part = all_of(a, Access::kRead, kHost);
    part.byte_count = 3 * kBlock;
    const FetchId first = ask({part});
    finish_all();
    ASSERT_TRUE(granted(first));
    ASSERT_EQ(granted_[first].grants[0].slot, 5u);
    release(first);
    release(ask(behind, Access::kWrite, kHost));
    ask(behind, Access::kRead);
    ASSERT_EQ(transfers_.size(), 1u);
    ASSERT_EQ(transfers_[0].from_slot, 8u);  // behind the three
    EXPECT_TRUE(core_->discard(before, out).ok());
    EXPECT_EQ(core_->shrink(kHost, 6, out), 0u);
    core_->set_budget(kHost, 6, out);
    take(out);
    const FetchId whole = ask(a, Access::kRead, kHost);
    EXPECT_EQ(refusal(whole), STW_OK);
    transfers_.insert(transfers_.end(), old.begin(), old.end());
    finish_all();
    EXPECT_TRUE(granted(whole));
}

TEST_F(CoreTest, NothingMovesAsideForWhatDoesNotFit)
{
    open(4, 0, 16, false);
    const TensorId stays = create_filled("stays", kBlock);
    Commands out;
    core_->evict(stays, kDevice, out);
    take(out);
    finish_next(failure());
    const TensorId a = create("a", 2 * kBlock);
    const TensorId b = create("b", 2 * kBlock);
    const FetchId both =
        ask({all_of(a, Access::kWrite), all_of(b, Access::kWrite)}, kFetchWaitRoom);
    EXPECT_FALSE(granted(both));
    EXPECT_EQ(transfers_.size(), 0u);
}

// What stays could move to a slot that the fetch has with blocks of its own.
TEST_F(CoreTest, OwnBlocksGiveWayToTheirRun)
{
    open(5, 0, 16, false);
    const TensorId a = create_filled("a", 4 * kBlock);
    Commands out;
    const auto leave = [&](TensorId tensor, const Status &status) {
        core_->evict(tensor, kDevice, out);
        take(out);
        while (!transfers_.empty()) finish_next(status);
    };
    leave(a, {});
    const TensorId before = create_filled("before", kBlock);
    leave(create_filled("stays", kBlock), failure());
    const TensorId behind = create_filled("behind", kBlock);
    leave(before, {});
    const uint32_t slots[] = {0, 3, 4};
    for (uint32_t i = 0; i < 3; ++i) {
        Request part = all_of(a, Access::kRead);
        part.byte_begin = i * kBlock;
        part.byte_count = kBlock;
        const FetchId fetch = ask({part});
        finish_all();
        ASSERT_TRUE(granted(fetch));
        ASSERT_EQ(granted_[fetch].grants[0].slot, slots[i]);
        release(fetch);
    }
    leave(behind, {});
    const FetchId all = ask(a, Access::kWrite);
    finish_all();
    EXPECT_TRUE(granted(all)) << refused_[all].sentence();
}

// Without nvme, what was fetched to another tier returns to the room that is promised to it.
TEST_F(CoreTest, ABlockReturnsToItsRoom)
{
    open(4, 1, 0);
    Commands out;
    EXPECT_EQ(core_->shrink(kHost, 0, out), 0u);
    core_->set_budget(kHost, 0, out);
    const TensorId a = create("a", 2 * kBlock);
    core_->set_budget(kHost, 1, out);
    take(out);
    Request part = all_of(a, Access::kWrite, kHost);
    part.byte_count = kBlock;
    release(ask({part}));
    const FetchId b = ask(create("b", kBlock), Access::kWrite, kHost);
    ASSERT_EQ(transfers_.size(), 1u) << refused_[b].sentence();
    EXPECT_EQ(transfers_[0].from, kHost);
    EXPECT_EQ(transfers_[0].to, kDevice);
    finish_all();
    EXPECT_TRUE(granted(b));
    EXPECT_EQ(core_->block_state(core_->blocks_of(a).first, kDevice), BlockState::kDirty);
}

// Whatever lies where: those that cannot leave move aside, and in the end the runs are there.
TEST_F(CoreTest, RunsThatFitBesideWhatCannotLeaveAreMade)
{
    constexpr uint32_t kSlots = 16;
    const char *const names[] = {"0", "1", "2",  "3",  "4",  "5",  "6",  "7",
                                 "8", "9", "10", "11", "12", "13", "14", "15"};
    for (uint32_t seed = 1; seed <= 2000; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        open(kSlots, 0, 64, false);
        granted_.clear();
        refused_.clear();
        uint32_t left = kSlots;
        for (uint32_t i = 0; i < kSlots; ++i) fill(create(names[i], kBlock));
        for (TensorId tensor = 0; tensor < kSlots; ++tensor) {
            const bool stays = random() % 3 == 0;
            if (!stays && random() % 2 == 0) continue;
            Commands out;
            core_->evict(tensor, kDevice, out);
            take(out);
            finish_next(stays ? failure() : Status());
            left -= stays;
        }
        std::vector<Request> requests;
        for (uint32_t i = 0; i < 4 && left > 1; ++i) {
            const uint32_t blocks = i == 3 ? left : 2 + random() % std::min(4u, left - 1);
            left -= blocks;
            requests.push_back(all_of(create(names[i], blocks * kBlock), Access::kWrite));
        }
        const FetchId all = ask(requests);
        for (int i = 0; i < 200 && !transfers_.empty(); ++i) finish_next();
        EXPECT_TRUE(granted(all)) << refused_[all].sentence();
    }
}

TEST_F(CoreTest, APlaceThatShrinksHasItsOldBudgetUntilItIsThere)
{
    open(0, 4, 0);
    const TensorId a = create("a", 3 * kBlock);
    fill(a, kHost);
    Commands out;
    EXPECT_EQ(core_->shrink(kHost, 2, out), 1u) << "it has nowhere to go";
    EXPECT_EQ(core_->settled_budget(kHost), 4u);
    core_->set_budget(kHost, 4, out);
    EXPECT_EQ(core_->shrink(kHost, 3, out), 0u);
    core_->set_budget(kHost, 3, out);
    EXPECT_EQ(core_->settled_budget(kHost), 3u);
    take(out);
}

}  // namespace
}  // namespace stepwell::residency
