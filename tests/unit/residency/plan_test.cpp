// SPDX-License-Identifier: Apache-2.0
// A policy that plans: what its worths decide, and what they do not.
#include "tests/unit/residency/core_fixture.h"

namespace stepwell::residency {
namespace {

class Worths final : public VictimPolicy {
public:
    [[nodiscard]] uint64_t next_use(TensorId) const override { return kNever; }
    [[nodiscard]] bool plans() const override { return true; }
    [[nodiscard]] double worth(TensorId tensor, PlaceId) const override
    {
        const auto found = of.find(tensor);
        return found == of.end() ? 0 : found->second;
    }
    [[nodiscard]] double write_back_worth() const override { return write_back; }

    std::map<TensorId, double> of;
    double write_back = 0;
};

class PlanTest : public CoreTest {
protected:
    void open_planned(uint32_t device_blocks, uint32_t nvme_blocks = 256)
    {
        open(device_blocks, 0, nvme_blocks);
        core_->set_victim_policy(&plan_);
    }
    TensorId make(const char *name, double worth, uint32_t blocks = 1)
    {
        plan_.of[core_->tensor_ids()] = worth;
        return create(name, blocks * kBlock);
    }

    // Unlike take(), checks nothing in between: for thousands of blocks.
    void carry_out(Commands &out)
    {
        while (!out.transfers.empty()) {
            const Commands commands = std::move(out);
            out = {};
            for (const Transfer &transfer : commands.transfers) {
                core_->transfer_done(transfer.id, {}, out);
            }
        }
    }

    Worths plan_;
};

// Far more than the candidates that are compared without a plan, and the last one used of all.
TEST_F(PlanTest, TheLeastWorthLeavesFirstHoweverManyAreColder)
{
    open_planned(100);
    for (int i = 0; i < 99; i++) make(("a" + std::to_string(i)).c_str(), -1);
    const TensorId least = make("least", -2);
    for (TensorId tensor = 0; tensor < 100; tensor++) fill(tensor);
    fill(make("one more", 0));
    EXPECT_FALSE(resident(least, kDevice));
    for (TensorId tensor = 0; tensor < 99; tensor++) EXPECT_TRUE(resident(tensor, kDevice));
}

TEST_F(PlanTest, AUseAsksForTheWorthAnewAndSoDoesAReplan)
{
    open_planned(3);
    const TensorId a = make("a", -1);
    const TensorId b = make("b", -2);
    const TensorId c = make("c", -3);
    for (const TensorId tensor : {a, b, c}) fill(tensor);
    plan_.of[c] = 0;
    release(ask(c, Access::kRead));
    fill(make("d", 0));
    EXPECT_FALSE(resident(b, kDevice));
    EXPECT_TRUE(resident(c, kDevice));
    plan_.of[c] = -5;  // nobody used it: not seen before a replan
    core_->replan();
    fill(make("e", 0));
    EXPECT_FALSE(resident(c, kDevice));
    EXPECT_TRUE(resident(a, kDevice));
}

TEST_F(PlanTest, ViewsRetentionPriorityAndScoresComeBeforeThePlan)
{
    open_planned(4);
    TensorSpec keep = spec("keep", kBlock);
    keep.policy.retention = Retention::kKeep;
    plan_.of = {{0, -9}, {1, -8}, {2, -7}, {3, 5}};
    const TensorId kept = create(keep);
    const TensorId held = create("held", kBlock);
    const TensorId scored = create("scored", kBlock);
    const TensorId plain = create("plain", kBlock);
    for (const TensorId tensor : {kept, held, scored, plain}) fill(tensor);
    const Score one{scored, 1};
    core_->score(kDevice, &one, 1);
    const FetchId view = ask(held, Access::kRead);
    fill(make("one more", 9));
    EXPECT_FALSE(resident(plain, kDevice));
    for (const TensorId tensor : {kept, held, scored}) EXPECT_TRUE(resident(tensor, kDevice));
    release(view);
}

TEST_F(PlanTest, ACleanBlockWorthLittleMoreLeavesBeforeADirtyOne)
{
    open_planned(3);
    const TensorId dirty = make("dirty", 3);  // above 0: not written back early
    const TensorId clean = make("clean", 4);
    const TensorId worthy = make("worthy", 9);
    fill(clean);
    fill(worthy);
    Commands out;
    core_->write_back_all(out);
    take(out);
    finish_all();
    fill(dirty);
    plan_.write_back = 0.5;
    const TensorId next = make("next", 10);
    plan_.write_back = 1;
    fill(next);
    EXPECT_TRUE(resident(dirty, kDevice));
    EXPECT_FALSE(resident(clean, kDevice));
    fill(make("last", 11));
    EXPECT_FALSE(resident(dirty, kDevice));  // the other is worth too much
    EXPECT_TRUE(resident(worthy, kDevice));
}

// A reserve of one block in eight: what is worth least is written before it has to leave.
TEST_F(PlanTest, WhatIsToLeaveIsWrittenBackEarlyAndWhatStaysIsNot)
{
    open_planned(8);
    TensorSpec low = spec("low", kBlock);
    TensorSpec high = spec("high", 7 * kBlock);
    low.policy.home = high.policy.home = kNvme;
    plan_.of = {{0, -1}, {1, 1}};
    const TensorId leaves = create(low);
    const TensorId stays = create_filled(high);
    fill(leaves);
    EXPECT_TRUE(resident(leaves, kNvme));
    EXPECT_FALSE(resident(stays, kNvme));
    plan_.of[leaves] = 2;
    release(ask(leaves, Access::kRead));
    fill(leaves);
    EXPECT_FALSE(resident(leaves, kNvme));
}

// A gradient, whose home is memory: it may be added to, until an update has it.
TEST_F(PlanTest, WhatIsClaimedIsWrittenBackEarlyWhereverItsHomeIs)
{
    for (const bool claimed : {false, true}) {
        open_planned(8);
        TensorSpec low = spec("low", kBlock);
        low.policy.home = kDevice;
        plan_.of = {{0, -1}, {1, 1}};
        const TensorId leaves = create(low);
        fill(leaves);
        if (claimed) core_->claim_tensor(core_->claim(), leaves);
        create_filled(spec("high", 7 * kBlock));
        EXPECT_EQ(resident(leaves, kNvme), claimed);
    }
}

// Of a tensor its end leaves first; what is gone is not looked at again.
TEST_F(PlanTest, ATensorOfMoreBlocksThanOneChoiceLooksAtLeavesToItsFirst)
{
    constexpr uint32_t kBlocks = 6000;
    open_planned(kBlocks + 1, 2 * kBlocks + 1);
    const TensorId coldest = make("coldest", 1);
    fill(coldest);
    const TensorId large = make("large", -1, kBlocks);
    const TensorId other = make("other", 1, kBlocks);
    for (const TensorId tensor : {large, other}) {
        FetchAsked asked;
        asked.requests = {all_of(tensor, Access::kWrite)};
        Commands out;
        core_->fetch(asked, out);
        carry_out(out);
        Release release;
        release.tensor = tensor;
        release.access = Access::kWrite;
        release.place = kDevice;
        release.byte_count = kBlocks * kBlock;
        core_->release(release, out);
        core_->write_back_all(out);  // what leaves clean is gone at once
        carry_out(out);
    }
    EXPECT_TRUE(resident(other, kDevice));
    EXPECT_TRUE(resident(coldest, kDevice));
    EXPECT_EQ(core_->missing_bytes(all_of(large, Access::kRead)), kBlocks * kBlock);
    core_->set_victim_policy(nullptr);
    EXPECT_EQ(core_->check(), "");
}

TEST_F(PlanTest, WhatLeavesNextIsCleanedAheadHoweverManyAreColder)
{
    open_planned(300, 400);
    for (int i = 0; i < 60; i++) make(("a" + std::to_string(i)).c_str(), 1, 4);
    const TensorId least = make("least", -2);
    for (TensorId tensor = 0; tensor <= 60; tensor++) fill(tensor);
    Commands out;
    EXPECT_EQ(core_->clean_ahead(kDevice, 10, out), 1u);  // the others stay
    ASSERT_EQ(out.transfers.size(), 1u);
    EXPECT_EQ(out.transfers[0].tensor, least);
    take(out);
    finish_all();
    EXPECT_TRUE(resident(least, kDevice) && resident(least, kNvme));
    EXPECT_EQ(core_->clean_ahead(kDevice, 10, out), 0u);
}

TEST_F(PlanTest, WhatIsHotIsNotCleanedAheadThoughThePlanLetsItLeave)
{
    open_planned(8, 16);
    const TensorId hot = make("hot", -2);
    const TensorId other = make("other", -1);
    fill(hot);
    fill(other);
    Commands out;
    core_->advise(hot, Advice::kHot, out);
    EXPECT_EQ(core_->clean_ahead(kDevice, 10, out), 1u);
    ASSERT_EQ(out.transfers.size(), 1u);
    EXPECT_EQ(out.transfers[0].tensor, other);
}

}  // namespace
}  // namespace stepwell::residency
