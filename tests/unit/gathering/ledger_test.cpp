// SPDX-License-Identifier: Apache-2.0
// The ledger of gathered wholes: decisions by the order of calls alone.
#include "lib/gathering/agreed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stepwell::gathering {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LedgerTest : public testing::Test {
protected:
    WholeId add(uint32_t blocks)
    {
        return ledger_.add("w" + std::to_string(count_++), blocks).value();
    }
    void use(WholeId whole)
    {
        ASSERT_TRUE(ledger_.fetch({whole}, Access::kRead).status.ok());
        EXPECT_FALSE(ledger_.release(whole, Access::kRead));
    }
    WholeLedger ledger_{4};
    int count_ = 0;
};

TEST_F(LedgerTest, TheFirstFetchGathersTheNextHits)
{
    const WholeId a = add(2);
    WholeDecision first = ledger_.fetch({a}, Access::kRead);
    EXPECT_THAT(first.needs, ElementsAre(WholeNeed::kGather));
    EXPECT_THAT(first.gathers, ElementsAre(1u));
    WholeDecision second = ledger_.fetch({a}, Access::kRead);
    EXPECT_THAT(second.needs, ElementsAre(WholeNeed::kHit));
    EXPECT_THAT(second.gathers, ElementsAre(0u));
}

TEST_F(LedgerTest, TheLeastRecentlyCalledIsDropped)
{
    const WholeId a = add(2);
    const WholeId b = add(2);
    const WholeId c = add(2);
    use(a);
    use(b);
    use(a);
    EXPECT_THAT(ledger_.fetch({c}, Access::kRead).drops, ElementsAre(b));
    EXPECT_EQ(ledger_.used_blocks(), 4u);
}

TEST_F(LedgerTest, WhatOpenCallsPinIsNotDroppedAndTheRefusalChangesNothing)
{
    const WholeId a = add(3);
    const WholeId b = add(2);
    ASSERT_TRUE(ledger_.fetch({a}, Access::kRead).status.ok());
    const WholeDecision refused = ledger_.fetch({b}, Access::kRead);
    EXPECT_EQ(refused.status.code(), STW_ERROR_BUDGET);
    EXPECT_THAT(refused.status.sentence(), HasSubstr("2 bytes needed"));
    EXPECT_THAT(refused.status.sentence(), HasSubstr("4 bytes = 3 bytes in use"));
    EXPECT_THAT(refused.drops, IsEmpty());
    EXPECT_TRUE(ledger_.present(a));
    EXPECT_FALSE(ledger_.present(b));
    EXPECT_FALSE(ledger_.release(a, Access::kRead));
    // Gathers are counted by those that run: the refused one took no number.
    EXPECT_THAT(ledger_.fetch({b}, Access::kRead).gathers, ElementsAre(2u));
}

TEST_F(LedgerTest, AWriteOfTheShardsDropsTheWhole)
{
    const WholeId a = add(2);
    use(a);
    bool dropped = false;
    EXPECT_TRUE(ledger_.write(a, dropped).ok());
    EXPECT_TRUE(dropped);
    EXPECT_THAT(ledger_.fetch({a}, Access::kRead).needs, ElementsAre(WholeNeed::kGather));
    EXPECT_EQ(ledger_.write(a, dropped).code(), STW_ERROR_BUSY);
}

TEST_F(LedgerTest, AnUpdateUnderOpenViewsDropsTheWholeWithTheLastOfThem)
{
    const WholeId a = add(2);
    ASSERT_TRUE(ledger_.fetch({a}, Access::kRead).status.ok());
    ASSERT_TRUE(ledger_.fetch({a}, Access::kRead).status.ok());
    bool dropped = true;
    ledger_.update(a, dropped);
    EXPECT_FALSE(dropped);
    EXPECT_EQ(ledger_.fetch({a}, Access::kRead).status.code(), STW_ERROR_BUSY);
    EXPECT_FALSE(ledger_.release(a, Access::kRead));
    EXPECT_TRUE(ledger_.release(a, Access::kRead));
    EXPECT_EQ(ledger_.used_blocks(), 0u);
}

TEST_F(LedgerTest, WhatAwaitsAVerdictIsRefusedUntilThen)
{
    const WholeId a = add(2);
    const WholeId b = add(2);
    use(a);
    bool dropped = false;
    ledger_.update(a, dropped);
    ledger_.set_undecided(a, true);
    for (const Access access : {Access::kRead, Access::kWrite}) {
        const WholeDecision refused = ledger_.fetch({b, a}, access);
        EXPECT_EQ(refused.status.code(), STW_ERROR_BUSY);
        EXPECT_THAT(refused.status.sentence(), HasSubstr("\"w0\" was updated speculatively"));
        EXPECT_FALSE(ledger_.present(b));
    }
    ledger_.set_undecided(a, false);
    EXPECT_THAT(ledger_.fetch({a}, Access::kRead).gathers, ElementsAre(2u));
}

TEST_F(LedgerTest, AWriterIsAlone)
{
    const WholeId a = add(2);
    const WholeDecision fill = ledger_.fetch({a}, Access::kWrite);
    EXPECT_THAT(fill.needs, ElementsAre(WholeNeed::kFill));
    EXPECT_THAT(fill.gathers, ElementsAre(0u));
    EXPECT_EQ(ledger_.fetch({a}, Access::kRead).status.code(), STW_ERROR_BUSY);
    EXPECT_FALSE(ledger_.release(a, Access::kWrite));
    EXPECT_THAT(ledger_.fetch({a}, Access::kRead).needs, ElementsAre(WholeNeed::kHit));
}

TEST_F(LedgerTest, WhatCanNeverBeGatheredIsRefusedWhenItIsAdded)
{
    Result<WholeId> big = ledger_.add("big", 5);
    ASSERT_FALSE(big.ok());
    EXPECT_EQ(big.status().code(), STW_ERROR_BUDGET);
    EXPECT_THAT(big.status().sentence(), HasSubstr("5 bytes needed"));
}

TEST(BucketTest, SmallWholesOfOneCallShareACollectiveUpToTheBucketSize)
{
    WholeLedger ledger(64, 320);
    std::vector<WholeId> small;
    for (int i = 0; i < 33; ++i) small.push_back(ledger.add("small", 1, 10).value());
    const WholeId large = ledger.add("large", 1, 11).value();
    std::vector<WholeId> asked = small;
    asked.insert(asked.begin() + 1, large);
    const WholeDecision decision = ledger.fetch(asked, Access::kRead);
    // The large one between them has a collective of its own and closes no bucket.
    EXPECT_EQ(decision.gathers[0], 1u);
    EXPECT_EQ(decision.gathers[1], 2u);
    for (size_t i = 2; i < 33; ++i) EXPECT_EQ(decision.gathers[i], 1u) << i;
    EXPECT_EQ(decision.gathers[33], 3u);
    // A hit takes no part, and does not part those around it.
    bool dropped = false;
    for (const WholeId whole : small) ASSERT_FALSE(ledger.release(whole, Access::kRead));
    for (const size_t i : {3, 4}) ASSERT_TRUE(ledger.write(small[i], dropped).ok());
    EXPECT_THAT(ledger.fetch({small[3], small[0], small[4]}, Access::kRead).gathers,
                ElementsAre(4u, 0u, 4u));
    EXPECT_EQ(ledger.last_gather(), 4u);
}

TEST_F(LedgerTest, WithoutABucketEachGatherIsACollective)
{
    const WholeId a = add(1);
    const WholeId b = add(1);
    EXPECT_THAT(ledger_.fetch({a, b}, Access::kRead).gathers, ElementsAre(1u, 2u));
}

class LedgerAheadTest : public testing::Test {
protected:
    LedgerAheadTest()
    {
        for (const char *name : {"a", "b", "c", "d"})
            wholes_.push_back(ledger_.add(name, 2).value());
    }
    WholeDecision use(size_t index)
    {
        WholeDecision decision = ledger_.fetch({wholes_[index]}, Access::kRead);
        EXPECT_TRUE(decision.status.ok());
        EXPECT_FALSE(ledger_.release(wholes_[index], Access::kRead));
        return decision;
    }
    WholeLedger ledger_{6, 0, 2};
    std::vector<WholeId> wholes_;
};

TEST_F(LedgerAheadTest, WhatIsToLeaveLastMayBeOpenedUntilThen)
{
    ASSERT_TRUE(ledger_.fetch({wholes_[0]}, Access::kRead).status.ok());
    ledger_.leave_last(wholes_[0]);
    EXPECT_THAT(ledger_.fetch({wholes_[0]}, Access::kRead).needs, ElementsAre(WholeNeed::kHit));
    EXPECT_FALSE(ledger_.release(wholes_[0], Access::kRead));
    EXPECT_TRUE(ledger_.release(wholes_[0], Access::kRead));
    EXPECT_THAT(ledger_.fetch({wholes_[0]}, Access::kRead).needs, ElementsAre(WholeNeed::kGather));
    EXPECT_FALSE(ledger_.release(wholes_[0], Access::kRead));
}

TEST_F(LedgerAheadTest, WhatFollowedTheLastTimeIsGatheredInTheRoomOfWhatIsNotForeseen)
{
    for (const size_t index : {0, 1, 2, 3}) EXPECT_THAT(use(index).ahead, IsEmpty()) << index;
    EXPECT_THAT(use(0).ahead, IsEmpty());  // nothing is known of what follows d and a
    // Of c and d, which followed a and b, d is here: c comes in the room of a.
    const WholeDecision second = use(1);
    EXPECT_THAT(second.needs, ElementsAre(WholeNeed::kGather));
    EXPECT_THAT(second.ahead, ElementsAre(wholes_[2]));
    EXPECT_THAT(second.ahead_gathers, ElementsAre(second.gathers[0] + 1));
    EXPECT_THAT(use(2).needs, ElementsAre(WholeNeed::kHit));
}

TEST_F(LedgerAheadTest, WhatChangesBeforeItIsUsedIsNotGatheredAheadThereAgain)
{
    for (const size_t index : {0, 1, 2, 3, 0}) use(index);
    ASSERT_THAT(use(1).ahead, ElementsAre(wholes_[2]));
    bool dropped = false;
    ledger_.update(wholes_[2], dropped);
    EXPECT_TRUE(dropped);
    for (const size_t index : {2, 3, 0}) use(index);
    EXPECT_THAT(use(1).ahead, IsEmpty());
}

// A step ends with updates: its last fetch is not the moment to gather for the next step, and that
// is known from the first time on, without having gathered in vain.
TEST_F(LedgerAheadTest, NothingIsGatheredAheadOverAnUpdate)
{
    bool dropped = false;
    for (int step = 0; step < 4; ++step) {
        EXPECT_THAT(use(0).needs, ElementsAre(WholeNeed::kGather)) << step;
        for (const size_t index : {1, 2}) use(index);
        EXPECT_THAT(use(3).ahead, IsEmpty()) << step;
        for (const WholeId whole : wholes_) ledger_.update(whole, dropped);
    }
    EXPECT_THAT(use(0).ahead, ElementsAre(wholes_[1], wholes_[2]));
}

TEST_F(LedgerAheadTest, NothingIsDroppedThatIsPinned)
{
    for (const size_t index : {0, 1, 2, 3, 0}) use(index);
    for (const size_t index : {3, 0}) {
        ASSERT_TRUE(ledger_.fetch({wholes_[index]}, Access::kRead).status.ok());
    }
    // The place is another one now, so nothing is foreseen; and b takes the last room.
    EXPECT_THAT(ledger_.fetch({wholes_[1]}, Access::kRead).ahead, IsEmpty());
    EXPECT_EQ(ledger_.used_blocks(), 6u);
}

}  // namespace
}  // namespace stepwell::gathering
