// SPDX-License-Identifier: Apache-2.0
// What leaves a place first, by example.
#include "tests/unit/residency/core_fixture.h"

namespace stepwell::residency {
namespace {

TEST_F(CoreTest, TheLeastRecentlyUsedLeavesFirst)
{
    open(3, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    create_filled("c", kBlock);
    const TensorId d = create("d", kBlock);
    release(ask(a, Access::kRead));  // b is the oldest now
    fill(d);
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_FALSE(resident(b, kDevice));
    EXPECT_TRUE(resident(b, kNvme));
}

// More than are compared: those that have nowhere to go are colder than all that may leave.
TEST_F(CoreTest, WhatLeavesIsFoundBehindAnyNumberThatStay)
{
    open(0, 100, 64);
    for (int i = 0; i < 90; ++i) {
        TensorSpec stays = spec(("stays" + std::to_string(i)).c_str(), kBlock);
        stays.policy.allowed = 1u << kHost;
        stays.policy.home = kHost;
        fill(create(stays), kHost);
    }
    std::vector<TensorId> passing;
    for (int i = 0; i < 12; ++i) {
        TensorSpec passes = spec(("passes" + std::to_string(i)).c_str(), kBlock);
        passes.policy.home = kNvme;
        passing.push_back(create(passes));
    }
    for (int i = 0; i < 11; ++i) fill(passing[i], kHost);
    EXPECT_FALSE(resident(passing[0], kHost));
    // All of them in use: nothing may leave, and the search for it ends.
    std::vector<FetchId> writers;
    for (int i = 1; i < 11; ++i) writers.push_back(ask(passing[i], Access::kWrite, kHost));
    finish_all();
    EXPECT_EQ(refusal(ask(passing[11], Access::kWrite, kHost)), STW_ERROR_BUDGET);
    release(writers[4]);
    const FetchId last = ask(passing[11], Access::kWrite, kHost);
    finish_all();
    EXPECT_TRUE(granted(last));
    EXPECT_FALSE(resident(passing[5], kHost));
}

// Its place has the only copy, so searches pass it over; then another one comes.
TEST_F(CoreTest, WhatCouldNotLeaveLeavesOnceItHasACopy)
{
    open(2, 4, 16);
    TensorSpec stays = spec("stays", kBlock);
    stays.policy.allowed = 1u << kDevice | 1u << kHost;
    stays.policy.home = kHost;
    const TensorId a = create(stays);
    fill(a, kHost);
    std::vector<TensorId> passing;
    for (int i = 0; i < 6; ++i) {
        TensorSpec passes = spec(("passes" + std::to_string(i)).c_str(), kBlock);
        passes.policy.home = kNvme;
        passing.push_back(create(passes));
    }
    for (int i = 0; i < 5; ++i) fill(passing[i], kHost);
    ASSERT_TRUE(resident(a, kHost));
    for (int i = 2; i < 5; ++i) ask(passing[i], Access::kWrite, kHost);
    finish_all();
    EXPECT_EQ(refusal(ask(passing[5], Access::kWrite, kHost)), STW_ERROR_BUDGET);
    const FetchId copied = ask(a, Access::kRead);
    finish_all();
    release(copied);
    const FetchId last = ask(passing[5], Access::kWrite, kHost);
    finish_all();
    EXPECT_TRUE(granted(last));
    EXPECT_FALSE(resident(a, kHost));
    EXPECT_TRUE(resident(a, kDevice));
}

// The farther tier has no room until then.
TEST_F(CoreTest, WhatCouldNotLeaveLeavesOnceAFartherTierHasRoom)
{
    open(0, 2, 8);
    Commands out;
    EXPECT_EQ(core_->shrink(kNvme, 0, out), 0u);
    core_->set_budget(kNvme, 0, out);
    const TensorId a = create("a", kBlock);
    const TensorId b = create("b", kBlock);
    fill(a, kHost);
    fill(b, kHost);
    TensorSpec third = spec("c", kBlock);
    ASSERT_FALSE(core_->create(third).ok());
    EXPECT_EQ(core_->shrink(kHost, 1, out), 1u) << "neither may leave";
    core_->set_budget(kHost, 2, out);
    core_->set_budget(kNvme, 8, out);
    take(out);
    EXPECT_EQ(core_->check(), "");
    fill(create(third), kHost);
    EXPECT_TRUE(resident(a, kNvme));
    EXPECT_FALSE(resident(a, kHost));
    EXPECT_TRUE(resident(b, kHost));
}

// Its policy lets it go nowhere until then.
TEST_F(CoreTest, WhatCouldNotLeaveLeavesOnceItsPolicyAllowsAFartherTier)
{
    open(0, 2, 8);
    TensorSpec stays = spec("stays", kBlock);
    stays.policy.allowed = 1u << kHost;
    stays.policy.home = kHost;
    const TensorId a = create(stays);
    const TensorId b = create("b", kBlock);
    const TensorId c = create("c", kBlock);
    fill(a, kHost);
    const FetchId view = ask(b, Access::kWrite, kHost);
    ASSERT_TRUE(granted(view));
    EXPECT_EQ(refusal(ask(c, Access::kWrite, kHost)), STW_ERROR_BUDGET);
    Policy policy = stays.policy;
    policy.allowed |= 1u << kNvme;
    policy.home = kNvme;
    EXPECT_TRUE(core_->set_policy(a, policy).ok());
    EXPECT_EQ(core_->check(), "");
    const FetchId last = ask(c, Access::kWrite, kHost);
    finish_all();
    EXPECT_TRUE(granted(last));
    EXPECT_FALSE(resident(a, kHost));
    EXPECT_TRUE(resident(a, kNvme));
}

class FarthestUse final : public VictimPolicy {
public:
    [[nodiscard]] uint64_t next_use(TensorId tensor) const override { return uses.at(tensor); }
    std::map<TensorId, uint64_t> uses;
};

TEST_F(CoreTest, TheFarthestKnownUseLeavesFirst)
{
    open(3, 0, 16);
    const TensorId a = create("a", kBlock);
    const TensorId b = create("b", kBlock);
    const TensorId c = create("c", kBlock);
    const TensorId d = create("d", kBlock);
    FarthestUse policy;
    policy.uses = {{a, 2}, {b, 1}, {c, 9}, {d, 3}};
    core_->set_victim_policy(&policy);
    fill(a);
    fill(b);
    fill(c);
    fill(d);
    EXPECT_FALSE(resident(c, kDevice));
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_TRUE(resident(b, kDevice));
    core_->set_victim_policy(nullptr);
}

TEST_F(CoreTest, TheFarthestKnownUsesLeaveForAFetchOfSeveralBlocks)
{
    open(5, 0, 32);
    FarthestUse policy;
    std::vector<TensorId> tensors;
    for (const uint64_t use : {4, 9, 1, 8, 2}) {
        tensors.push_back(create(("t" + std::to_string(use)).c_str(), kBlock));
        policy.uses[tensors.back()] = use;
    }
    const TensorId large = create("large", 3 * kBlock);
    policy.uses[large] = 3;
    core_->set_victim_policy(&policy);
    for (const TensorId tensor : tensors) fill(tensor);
    fill(large);
    for (const TensorId tensor : tensors)
        EXPECT_EQ(resident(tensor, kDevice), policy.uses[tensor] <= 2) << policy.uses[tensor];
    core_->set_victim_policy(nullptr);
}

TEST_F(CoreTest, RetentionComesBeforeRecency)
{
    open(3, 0, 16);
    TensorSpec keep = spec("keep", kBlock);
    keep.policy.retention = Retention::kKeep;
    TensorSpec stream = spec("stream", kBlock);
    stream.policy.retention = Retention::kStream;
    const TensorId a = create_filled(keep);
    const TensorId b = create_filled("b", kBlock);
    const TensorId c = create_filled(stream);
    create_filled("d", kBlock);
    const TensorId e = create("e", kBlock);
    EXPECT_FALSE(resident(c, kDevice));  // the newest, but streamed
    fill(e);
    EXPECT_FALSE(resident(b, kDevice));
    EXPECT_TRUE(resident(a, kDevice));  // the oldest, but kept
}

TEST_F(CoreTest, APinnedTensorNeverLeavesItsHome)
{
    open(2, 0, 16);
    TensorSpec pinned = spec("a", kBlock);
    pinned.policy.retention = Retention::kPin;
    const TensorId a = create_filled(pinned);
    fill(create("b", kBlock));
    fill(create("c", kBlock));
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_EQ(refusal(ask(create("d", 2 * kBlock), Access::kWrite)), STW_ERROR_BUDGET);
}

// It was passed over as the only copy, and is none any more while it moves to another slot.
TEST_F(CoreTest, WhatIsDiscardedWhileItMovesIsNotPassedOver)
{
    open(4, 0, 16, false);
    const TensorId first = create_filled("first", kBlock);
    TensorSpec stays = spec("stays", kBlock);
    stays.policy.allowed = 1u << kDevice;
    const TensorId discarded = create_filled(stays);
    release(ask(first, Access::kRead));
    for (const char *name : {"a", "b", "c"}) create_filled(name, kBlock);
    const FetchId run = ask(create("run", 3 * kBlock), Access::kWrite);
    while (!transfers_.empty() && transfers_.front().kind != TransferKind::kRelocate) finish_next();
    ASSERT_FALSE(transfers_.empty());
    Commands out;
    EXPECT_TRUE(core_->discard(discarded, out).ok());
    take(out);
    finish_all();
    EXPECT_TRUE(granted(run));
}

// An early write-back is of the lowest class: on a busy disk its turn may never come.
TEST_F(CoreTest, WhoWaitsForTheRoomOfAnEarlyWriteBackHastensIt)
{
    open(1, 0, 16);
    TensorSpec rests = spec("a", kBlock);
    rests.policy.home = kNvme;
    const TensorId a = create(rests);
    const TensorId b = create("b", kBlock);
    const FetchId written = ask(a, Access::kWrite);
    finish_all();
    release(written, true);
    ASSERT_EQ(transfers_.size(), 1u);
    EXPECT_EQ(transfers_.front().urgency, Class::kIdle);
    ask({all_of(b, Access::kWrite)}, kFetchPrefetch);
    EXPECT_TRUE(promotes_.empty());  // nobody waits for a hint
    const FetchId waits = ask(b, Access::kWrite);
    EXPECT_FALSE(granted(waits));
    EXPECT_EQ(promotes_, std::vector<TransferId>{transfers_.front().id});
    finish_all();
    EXPECT_TRUE(granted(waits));
}

// Views are not touched, so what is held long is the coldest of all.
TEST_F(CoreTest, ManyHeldBlocksDoNotHideWhatMayLeave)
{
    constexpr uint32_t kHeld = 5000;
    open(kHeld + 2, 0, kHeld + 4);
    const TensorId held = create_filled("held", kHeld * kBlock);
    const FetchId view = ask(held, Access::kRead);
    const TensorId first = create_filled("first", kBlock);
    const TensorId second = create_filled("second", kBlock);
    const TensorId third = create_filled("third", kBlock);
    const TensorId fourth = create("fourth", kBlock);
    EXPECT_FALSE(resident(first, kDevice));
    fill(fourth);
    EXPECT_FALSE(resident(second, kDevice));
    EXPECT_TRUE(resident(third, kDevice));
    release(view);
}

}  // namespace
}  // namespace stepwell::residency
