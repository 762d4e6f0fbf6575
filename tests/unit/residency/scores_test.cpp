// SPDX-License-Identifier: Apache-2.0
// Scores of a policy of the program: what they decide, and what they do not.
#include "tests/unit/residency/core_fixture.h"

#include <limits>

namespace stepwell::residency {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class ScoresTest : public CoreTest {
protected:
    void score(TensorId tensor, double value, PlaceId place = kDevice)
    {
        const Score one{tensor, value};
        core_->score(place, &one, 1);
        EXPECT_EQ(core_->check(), "");
    }
    Candidate candidate(TensorId tensor, PlaceId place = kDevice)
    {
        std::vector<Candidate> found;
        for (PackId next = 0; next != kNone;) next = core_->candidates(place, next, 1, &found);
        for (const Candidate &at : found) {
            if (at.tensor == tensor) return at;
        }
        ADD_FAILURE() << "tensor " << tensor << " is no candidate";
        return {};
    }
};

TEST_F(ScoresTest, TheLowestScoreLeavesFirst)
{
    open(3, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    const TensorId c = create_filled("c", kBlock);
    score(a, 2);
    score(b, 1);
    score(c, -1);
    fill(create("d", kBlock));  // nobody scored it: 0
    EXPECT_FALSE(resident(c, kDevice));
    fill(create("e", kBlock));
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_TRUE(resident(b, kDevice));
}

TEST_F(ScoresTest, EqualScoresAreDecidedByRecency)
{
    open(3, 0, 16);
    const TensorId a = create("a", kBlock);
    const TensorId b = create("b", kBlock);
    const TensorId c = create("c", kBlock);
    for (const TensorId tensor : {a, b, c}) fill(tensor);
    for (const TensorId tensor : {a, b, c}) score(tensor, 5);
    release(ask(a, Access::kRead));
    const TensorId d = create("d", kBlock);
    score(d, 5);
    fill(d);
    EXPECT_FALSE(resident(b, kDevice));
    EXPECT_TRUE(resident(a, kDevice));
}

TEST_F(ScoresTest, RetentionAndPriorityComeBeforeScores)
{
    open(3, 0, 16);
    TensorSpec keep = spec("keep", kBlock);
    keep.policy.retention = Retention::kKeep;
    TensorSpec urgent = spec("urgent", kBlock);
    urgent.policy.priority = 1;
    const TensorId kept = create(keep);
    const TensorId prior = create(urgent);
    const TensorId plain = create("plain", kBlock);
    for (const TensorId tensor : {kept, prior, plain}) fill(tensor);
    score(kept, -kInfinity);
    score(prior, -1);
    score(plain, kInfinity);
    fill(create("d", kBlock));
    EXPECT_FALSE(resident(plain, kDevice));
    fill(create("e", kBlock));
    EXPECT_TRUE(resident(kept, kDevice));
    EXPECT_TRUE(resident(prior, kDevice));
    Commands out;
    core_->advise(kept, Advice::kCold, out);  // as if it were STREAM
    take(out);
    finish_all();
    fill(create("f", kBlock));
    EXPECT_FALSE(resident(kept, kDevice));
}

TEST_F(ScoresTest, PinsAndHomesAreNeverOverridden)
{
    open(3, 0, 16);
    TensorSpec pinned = spec("pinned", kBlock);
    pinned.policy.retention = Retention::kPin;
    const TensorId home = create(pinned);
    const TensorId viewed = create("viewed", kBlock);
    const TensorId other = create("other", kBlock);
    for (const TensorId tensor : {home, viewed, other}) fill(tensor);
    const FetchId view = ask(viewed, Access::kRead);
    score(home, -kInfinity);
    score(viewed, -kInfinity);
    score(other, kInfinity);
    fill(create("d", kBlock));
    EXPECT_TRUE(resident(home, kDevice));
    EXPECT_TRUE(resident(viewed, kDevice));
    EXPECT_FALSE(resident(other, kDevice));
    release(view);
}

TEST_F(ScoresTest, TheHottestOfManyLeavesIfItsScoreSaysSo)
{
    // More than are compared by recency.
    constexpr uint32_t kMany = 120;
    open(kMany, 0, 2 * kMany);
    std::vector<TensorId> tensors;
    for (uint32_t i = 0; i < kMany; ++i) {
        tensors.push_back(create(format_text("t%u", i).c_str(), kBlock));
        fill(tensors.back());
    }
    score(tensors.back(), -1);
    fill(create("more", kBlock));
    EXPECT_FALSE(resident(tensors.back(), kDevice));
    EXPECT_TRUE(resident(tensors.front(), kDevice));
}

TEST_F(ScoresTest, OfALargeTensorTheEndLeavesFirst)
{
    open(200, 0, 400);
    for (int i = 0; i < 100; ++i) fill(create(format_text("t%d", i).c_str(), kBlock));
    const TensorId large = create_filled("large", 100 * kBlock);
    score(large, -1);
    fill(create("more", 3 * kBlock));
    EXPECT_EQ(candidate(large).bytes, 97 * kBlock);
    const FetchId head = ask({{large, Access::kRead, kDevice, 0, 97 * kBlock}});
    EXPECT_TRUE(granted(head));  // nothing had to come back
    release(head);
}

TEST_F(ScoresTest, TheHighestScoreIsTheBlocks)
{
    open(2, 0, 16);
    const TensorId a = create("a", 1000);
    const TensorId b = create("b", 1000);
    const TensorId c = create("c", kBlock);
    ASSERT_EQ(core_->pack_of(a), core_->pack_of(b));
    fill(a);
    fill(b);
    fill(c);
    const Score both[] = {{a, -5}, {b, 5}};
    core_->score(kDevice, both, 2);
    score(c, 1);
    fill(create("d", kBlock));
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_FALSE(resident(c, kDevice));
}

TEST_F(ScoresTest, WhatComesIntoAScoredBlockCountsAsZero)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", 1000);
    const TensorId c = create_filled("c", kBlock);
    score(a, -5);
    score(c, -1);
    fill(create("b", 1000));  // into a's block
    fill(create("d", kBlock));
    EXPECT_TRUE(resident(a, kDevice));
    EXPECT_FALSE(resident(c, kDevice));
}

TEST_F(ScoresTest, ForgottenScoresDecideNothing)
{
    open(2, 0, 16);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    score(a, 5);
    score(b, -5);
    core_->forget_scores();
    EXPECT_EQ(core_->check(), "");
    fill(create("c", kBlock));
    EXPECT_FALSE(resident(a, kDevice));
    EXPECT_TRUE(resident(b, kDevice));
}

TEST_F(ScoresTest, ScoresOfAPlaceSayNothingOfAnother)
{
    open(2, 8, 16);
    const TensorId a = create_filled("a", kBlock);
    const TensorId b = create_filled("b", kBlock);
    score(a, 5, kHost);
    score(b, -5, kHost);
    fill(create("c", kBlock));
    EXPECT_FALSE(resident(a, kDevice));
    EXPECT_TRUE(resident(b, kDevice));
}

TEST_F(ScoresTest, ACandidateIsToldAsItIs)
{
    open(4, 4, 16);
    const TensorId a = create("a", kBlock + 100);
    const TensorId b = create("b", 100);
    const TensorId c = create("c", 100);
    EXPECT_EQ(candidate(a).bytes, 0u);
    EXPECT_FALSE(candidate(a).there);
    EXPECT_FALSE(candidate(a).shares);
    fill(a);
    EXPECT_EQ(candidate(a).bytes, kBlock + 100);
    EXPECT_EQ(candidate(a).dirty_bytes, kBlock + 100);
    EXPECT_EQ(candidate(a, kHost).bytes, 0u);
    EXPECT_TRUE(candidate(b).shares);
    fill(b);
    EXPECT_EQ(candidate(b).bytes, 100u);
    EXPECT_TRUE(candidate(c).there);
    EXPECT_EQ(candidate(c).bytes, 0u);  // empty
    const FetchId view = ask(b, Access::kRead);
    EXPECT_TRUE(candidate(b).pinned);
    release(view);
    EXPECT_FALSE(candidate(b).pinned);
}

}  // namespace
}  // namespace stepwell::residency
