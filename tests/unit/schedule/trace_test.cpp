// SPDX-License-Identifier: Apache-2.0
// Claims about what is recorded of a phase, and what it says of the future.
#include "lib/schedule/trace/trace.h"

#include <gtest/gtest.h>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::Instant;
using residency::kNever;
using residency::PlaceId;
using residency::TensorId;
using Order = std::vector<TensorId>;

constexpr uint64_t kBytes = 1000;

class TraceTest : public testing::Test {
protected:
    void fetch(TensorId tensor, uint32_t phase = 0, Lane lane = Lane::kProgram)
    {
        const residency::Request request{tensor, Access::kRead, 0, 0, kBytes};
        trace_.fetched(phase, lane, &request, 1, now_);
    }
    void fetch_all(const Order &order, uint32_t phase = 0)
    {
        for (const TensorId tensor : order) fetch(tensor, phase);
    }
    bool step(const Order &order, uint32_t phase = 0)
    {
        const bool planned = trace_.begin_step(phase, now_);
        fetch_all(order, phase);
        trace_.end_step(phase, now_, true);
        return planned;
    }
    // The next fetches that are expected, at most eight.
    Order ahead(uint32_t phase = 0)
    {
        Order order;
        while (order.size() < 8) {
            const auto expected = trace_.phase(phase)->ahead(order.size());
            if (!expected) break;
            order.push_back(expected->request.tensor);
        }
        return order;
    }
    const Step &recorded(uint32_t phase = 0) { return trace_.phase(phase)->recording; }

    Trace trace_;
    Instant now_ = 1000;
};

const Order kThereAndBack{1, 2, 3, 4, 4, 3, 2, 1};

// ---- what is expected ---------------------------------------------------------------------------

TEST_F(TraceTest, FirstStepForecastsNothing)
{
    EXPECT_FALSE(trace_.begin_step(0, now_));
    fetch(1);
    EXPECT_EQ(trace_.next_use(1), kNever);
    EXPECT_EQ(ahead(), Order{});
}

TEST_F(TraceTest, DistanceCountsToTheNextUseAndIntoTheNextStep)
{
    step({1, 2, 2, 1});
    EXPECT_TRUE(trace_.begin_step(0, now_));
    EXPECT_EQ(trace_.next_use(1), 0u);
    EXPECT_EQ(trace_.next_use(2), 1u);
    fetch(1);
    EXPECT_EQ(trace_.next_use(1), 2u);
    fetch_all({2, 2, 1});
    EXPECT_EQ(trace_.next_use(2), 1u);  // in the next step
}

TEST_F(TraceTest, WhatIsExpectedGoesOnIntoTheNextStep)
{
    step(kThereAndBack);
    trace_.begin_step(0, now_);
    fetch_all({1, 2, 3, 4, 4});
    EXPECT_EQ(ahead(), (Order{3, 2, 1, 1, 2, 3, 4, 4}));
    EXPECT_EQ(trace_.phase(0)->ahead(3)->distance, 3u);
}

TEST_F(TraceTest, BetweenStepsTheNextOneIsExpectedFromItsBeginning)
{
    step({1, 2});
    step({8, 9}, 1);
    step({1, 2});
    EXPECT_EQ(trace_.current(), std::vector<uint32_t>{1});
    EXPECT_EQ(ahead(1), (Order{8, 9, 1, 2}));
    EXPECT_EQ(trace_.next_use(8), 0u);
    EXPECT_EQ(trace_.next_use(2), 3u);
}

TEST_F(TraceTest, AnAbortedStepTeachesNothing)
{
    step({1, 2, 2, 1});
    trace_.begin_step(0, now_);
    fetch(7);
    trace_.end_step(0, now_, false);
    trace_.begin_step(0, now_);
    EXPECT_EQ(trace_.next_use(7), kNever);
    EXPECT_EQ(trace_.next_use(1), 0u);
}

TEST_F(TraceTest, TrainAndEvalAlternateAndBothArePlannedFromTheirFirstAccess)
{
    step({1, 2, 3, 3, 2, 1, 50});
    step({1, 2, 3}, 1);
    EXPECT_TRUE(trace_.begin_step(0, now_));
    EXPECT_EQ(trace_.next_use(50), 6u);
    fetch_all({1, 2, 3, 3, 2, 1, 50});
    trace_.end_step(0, now_, true);
    EXPECT_TRUE(trace_.begin_step(1, now_));
    EXPECT_EQ(trace_.next_use(1), 0u);
    EXPECT_EQ(trace_.next_use(50), 3u + 6u);  // after this step, in the other phase
}

TEST_F(TraceTest, OfTwoOpenStepsTheNearerUseCounts)
{
    step({1, 2, 3, 4});
    step({9, 4}, 1);
    trace_.begin_step(0, now_);
    trace_.begin_step(1, now_);
    EXPECT_EQ(trace_.next_use(4), 1u);
    EXPECT_EQ(trace_.next_use(1), 0u);
    fetch(9, 1);
    EXPECT_EQ(trace_.next_use(4), 0u);
    EXPECT_EQ(trace_.next_use(1), 0u);  // the other phase has not moved
    EXPECT_EQ(trace_.current(), (std::vector<uint32_t>{0, 1}));
}

// ---- deviations ---------------------------------------------------------------------------------

TEST_F(TraceTest, AnUnknownTensorMovesNothing)
{
    step(kThereAndBack);
    trace_.begin_step(0, now_);
    fetch_all({1, 99});
    EXPECT_EQ(trace_.next_use(99), kNever);
    EXPECT_EQ(trace_.next_use(2), 0u);
}

TEST_F(TraceTest, LeavingOutGoesOnBehindWhatWasLeftOut)
{
    step({1, 2, 3, 4, 5, 6});
    trace_.begin_step(0, now_);
    const uint64_t turn = trace_.phase(0)->turn();
    fetch_all({1, 4});
    EXPECT_EQ(ahead(), (Order{5, 6, 1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(trace_.phase(0)->turn(), turn);  // what was known of 5 and 6 still holds
    EXPECT_EQ(trace_.phase(0)->passed(), 4u);
}

TEST_F(TraceTest, AnInsertionOfSomethingUsedLaterIsTakenBackAtOnce)
{
    step({1, 2, 3, 4, 5, 6, 7, 8});
    trace_.begin_step(0, now_);
    fetch_all({1, 6, 2});
    EXPECT_EQ(ahead().front(), 3u);
}

TEST_F(TraceTest, OneThingInPlaceOfAnotherCostsThatOneAlone)
{
    step({1, 2, 3, 4, 5, 6, 7, 8});
    trace_.begin_step(0, now_);
    fetch_all({1, 2, 7, 4});  // not 3
    EXPECT_EQ(ahead().front(), 5u);
}

TEST_F(TraceTest, MoreMicroBatchesThanLastTimeRepeatTheOnesKnown)
{
    const Order once{1, 2, 3, 3, 2, 1};
    Order twice = once;
    twice.insert(twice.end(), once.begin(), once.end());
    step(twice);
    trace_.begin_step(0, now_);
    fetch_all(twice);
    fetch_all({1, 2});  // a third one
    EXPECT_EQ(ahead().front(), 3u);
    fetch_all({3, 3, 2});
    EXPECT_EQ(ahead().front(), 1u);
    EXPECT_LE(trace_.phase(0)->deviations(), 1u);
}

TEST_F(TraceTest, FewerMicroBatchesGoOnWithWhatComesAfterTheLast)
{
    step({1, 2, 2, 1, 1, 2, 2, 1, 70, 71, 72});
    trace_.begin_step(0, now_);
    fetch_all({1, 2, 2, 1, 70});
    EXPECT_EQ(ahead().front(), 71u);
}

TEST_F(TraceTest, RecomputingALayerIsFollowedWhereItWasSeenBefore)
{
    const Order step_order{1, 2, 3, 1, 2, 3, 3, 2, 1};
    step(step_order);
    trace_.begin_step(0, now_);
    fetch_all({1, 2, 3, 1, 2});
    EXPECT_EQ(ahead().front(), 3u);
    fetch_all({2, 3});  // once more, unforeseen
    EXPECT_EQ(ahead().front(), 3u);
}

TEST_F(TraceTest, StepsThatTakeTurnsAreExpectedInTurn)
{
    const Order first{1, 2, 3};
    const Order second{1, 5, 6, 7};
    for (int i = 0; i < 3; ++i) {
        step(first);
        step(second);
    }
    trace_.begin_step(0, now_);
    EXPECT_EQ(ahead(), (Order{1, 2, 3, 1, 5, 6, 7}));
}

TEST_F(TraceTest, AnotherWayThatIsKnownIsTakenWhenTheAccessesFitIt)
{
    step({1, 2, 3, 4});
    step({1, 2, 10, 11, 12, 13});
    step({1, 2, 3, 4});
    step({1, 2, 3, 4});
    step({1, 2, 3, 4});
    trace_.begin_step(0, now_);
    EXPECT_EQ(ahead().at(2), 3u);
    fetch_all({1, 2, 10});
    EXPECT_EQ(ahead().front(), 11u);
}

TEST_F(TraceTest, OneStrangeStepDiscardsNothing)
{
    step(kThereAndBack);
    step(kThereAndBack);
    step({30, 31, 32});
    EXPECT_TRUE(step(kThereAndBack));
    trace_.begin_step(0, now_);
    EXPECT_EQ(ahead(), kThereAndBack);
}

TEST_F(TraceTest, WhatFewStepsUseIsExpectedLaterThanWhatAllUse)
{
    // An expert for each step, and one for all; the rare one was used last.
    for (TensorId rare = 100; rare < 110; ++rare) step({1, 50, rare, 2});
    trace_.begin_step(0, now_);
    EXPECT_EQ(trace_.next_use(50), 1u);
    EXPECT_GT(trace_.next_use(109), 4u);
    EXPECT_GT(trace_.next_use(100), trace_.next_use(50));
    EXPECT_LT(trace_.next_use(100), kNever);
}

// ---- recording ----------------------------------------------------------------------------------

TEST_F(TraceTest, ACallIsRecordedWithItsRangesAndTheTimeComputedBefore)
{
    trace_.begin_step(0, now_);
    now_ += 500;
    const residency::Request call[] = {{1, Access::kRead, 0, 0, 100},
                                       {2, Access::kReadWrite, 1, 64, 200}};
    trace_.fetched(0, Lane::kProgram, call, 2, now_);
    trace_.waited(0, now_, now_ + 10'000);
    now_ += 10'000 + 70;
    trace_.released(0, Lane::kProgram, call[1], Hint::kFar, now_);
    const Step &step = recorded();
    ASSERT_EQ(step.size(), 3u);
    EXPECT_EQ(step[0].compute_ns, 500u);
    EXPECT_TRUE(step[0].with_next);
    EXPECT_EQ(step[1].compute_ns, 0u);
    EXPECT_FALSE(step[1].with_next);
    EXPECT_EQ(step[1].access, Access::kReadWrite);
    EXPECT_EQ(step[1].byte_begin, 64u);
    EXPECT_EQ(step[1].byte_count, 200u);
    EXPECT_EQ(step[2].act, Act::kRelease);
    EXPECT_EQ(step[2].hint, Hint::kFar);
    EXPECT_EQ(step[2].compute_ns, 70u);  // without the wait
}

TEST_F(TraceTest, ADiscardIsRecordedAndIsNoAccess)
{
    trace_.begin_step(0, now_);
    fetch(1);
    now_ += 30;
    trace_.discarded(0, Lane::kProgram, 1, now_);
    trace_.discarded(0, Lane::kUpdate, 2, now_);
    ASSERT_EQ(recorded().size(), 3u);
    EXPECT_EQ(recorded()[1].act, Act::kDiscard);
    EXPECT_EQ(recorded()[1].tensor, 1u);
    EXPECT_EQ(recorded()[1].compute_ns, 30u);
    EXPECT_EQ(recorded()[2].lane, Lane::kUpdate);
    trace_.end_step(0, now_, true);
    EXPECT_EQ(ahead(), (Order{1, 1})) << "this step and the one after it";
    EXPECT_EQ(trace_.next_use(2), kNever);
}

TEST_F(TraceTest, DiscardsWithoutAnotherStepTakeLittleMemory)
{
    constexpr uint64_t kAllowed = uint64_t{4} << 20;
    trace_.begin_step(0, now_);
    fetch(1);
    trace_.end_step(0, now_, true);
    for (int i = 0; i < 1'000'000; i++) trace_.discarded(kNoPhase, Lane::kProgram, 1, now_);
    EXPECT_LT(trace_.metadata_bytes(), kAllowed);
}

// A verdict may be known after its step has ended, and before the next one begins.
TEST_F(TraceTest, WhatIsDiscardedBetweenTwoStepsIsRecordedInTheNextOne)
{
    trace_.discarded(kNoPhase, Lane::kUpdate, 1, now_);  // before any step
    trace_.begin_step(0, now_);
    EXPECT_EQ(recorded().size(), 0u);
    fetch(1);
    trace_.end_step(0, now_, true);
    trace_.discarded(kNoPhase, Lane::kUpdate, 1, now_);
    EXPECT_EQ(recorded().size(), 0u);
    for (int step = 0; step < 2; step++) {
        trace_.begin_step(0, now_);
        fetch(1);
        ASSERT_EQ(recorded().size(), step == 0 ? 2u : 1u);
        EXPECT_EQ(recorded()[0].act, step == 0 ? Act::kDiscard : Act::kFetch);
        EXPECT_EQ(recorded()[0].tensor, 1u);
        trace_.end_step(0, now_, true);
    }
}

TEST_F(TraceTest, AWaitThatBeganLateLeavesTheComputingBeforeIt)
{
    trace_.begin_step(0, now_);
    fetch(1);
    trace_.waited(0, now_ + 300, now_ + 1300);  // for an operation
    now_ += 1700;
    fetch(2);
    EXPECT_EQ(recorded()[1].compute_ns, 700u);
}

TEST_F(TraceTest, AWaitIsNoComputingWhateverUpdatesDoMeanwhile)
{
    trace_.begin_step(0, now_);
    fetch(1);
    const Instant begin = now_;
    trace_.hit(0, 2, 0, kBytes);
    const residency::Request part{3, Access::kReadWrite, 0, 0, kBytes};
    now_ = begin + 800;
    trace_.fetched(0, Lane::kUpdate, &part, 1, now_);
    now_ = begin + 1200;
    trace_.released(0, Lane::kUpdate, part, Hint::kNone, now_);
    trace_.discarded(0, Lane::kUpdate, 4, now_);
    trace_.waited(0, begin + 300, begin + 1300);
    now_ = begin + 1700;
    fetch(5);
    const Step &step = recorded();
    ASSERT_EQ(step.size(), 6u);
    EXPECT_EQ(step[1].compute_ns, 350u);
    for (size_t i = 2; i < 5; ++i) EXPECT_EQ(step[i].compute_ns, 0u) << i;
    EXPECT_EQ(step[5].compute_ns, 350u);
}

TEST_F(TraceTest, HitsThatWereHeardOfLateShareTheTimeUpToTheNextEvent)
{
    trace_.begin_step(0, now_);
    fetch(1);
    now_ += 400;
    for (const TensorId tensor : {2u, 3u, 4u}) trace_.hit(0, tensor, 0, kBytes);
    fetch(5);
    const Step &step = recorded();
    ASSERT_EQ(step.size(), 5u);
    for (size_t i = 1; i < 5; ++i) EXPECT_EQ(step[i].compute_ns, 100u) << i;
    EXPECT_EQ(step[3].tensor, 4u);
    EXPECT_EQ(step[3].byte_count, kBytes);
}

TEST_F(TraceTest, AHitOfAPartIsOfTheBytesThatWereExpected)
{
    trace_.begin_step(0, now_);
    const residency::Request part{1, Access::kRead, 0, 128, 64};
    trace_.fetched(0, Lane::kProgram, &part, 1, now_);
    trace_.end_step(0, now_, true);
    trace_.begin_step(0, now_);
    trace_.hit(0, 1, 0, kBytes);
    EXPECT_EQ(recorded()[0].byte_begin, 128u);
    EXPECT_EQ(recorded()[0].byte_count, 64u);
}

TEST_F(TraceTest, AnUpdateBesideTheProgramNeitherTakesItsTimeNorItsPlace)
{
    const auto with_update = [&](bool early) {
        trace_.begin_step(0, now_);
        fetch(1);
        if (early) fetch(70, 0, Lane::kUpdate);
        now_ += 100;
        fetch(2);
        if (!early) fetch(70, 0, Lane::kUpdate);
        now_ += 100;
        fetch(3);
    };
    with_update(true);
    trace_.end_step(0, now_, true);
    with_update(false);
    EXPECT_EQ(trace_.phase(0)->deviations(), 0u);
    EXPECT_EQ(recorded()[1].compute_ns, 100u);
    trace_.end_step(0, now_, true);
    EXPECT_EQ(trace_.phase(0)->learned().size(), 1u);  // the same step
}

// Updates begin behind the step's last fetch and go on beside the next step.
TEST_F(TraceTest, WhatUpdatesBeginWithIsExpectedBehindTheStepEachTensorOnceAndWhole)
{
    const auto piece = [&](TensorId tensor, uint64_t begin) {
        const residency::Request request{tensor, Access::kReadWrite, residency::kAnyCpuPlace, begin,
                                         kBytes};
        trace_.fetched(0, Lane::kUpdate, &request, 1, now_);
    };
    for (int again = 0; again < 2; ++again) {
        trace_.begin_step(0, now_);
        piece(8, kBytes);
        fetch(1);
        piece(9, 0);
        piece(9, kBytes);
        fetch_all({2, 3});
        piece(7, 0);
        piece(8, 0);
        trace_.end_step(0, now_, true);
    }
    trace_.begin_step(0, now_);
    fetch_all({1, 2});
    EXPECT_EQ(ahead(), (Order{3, 7, 8, 8, 1, 9, 2, 3}));
    const PhaseTrace &phase = *trace_.phase(0);
    EXPECT_FALSE(phase.ahead(0)->update);
    for (const uint64_t i : {1, 2, 3, 5}) {
        EXPECT_TRUE(phase.ahead(i)->update) << i;
        EXPECT_EQ(phase.ahead(i)->compute_ns, 0u) << i;
    }
    const residency::Request both = phase.ahead(2)->request;
    EXPECT_EQ(both.byte_begin, 0u);
    EXPECT_EQ(both.byte_count, 2 * kBytes);
    EXPECT_EQ(both.place, residency::kAnyCpuPlace);
    for (uint64_t i = 1; i < 8; ++i)
        EXPECT_GT(phase.ahead(i)->distance, phase.ahead(i - 1)->distance);
}

TEST_F(TraceTest, HowFarAnUpdateComesByTheEndOfAStepIsNoOtherWay)
{
    for (const uint64_t pieces : {3u, 5u, 2u}) {
        trace_.begin_step(0, now_);
        for (TensorId tensor = 0; tensor < pieces; ++tensor) fetch(70 + tensor, 0, Lane::kUpdate);
        fetch_all({1, 2});
        trace_.end_step(0, now_, true);
    }
    ASSERT_EQ(trace_.phase(0)->learned().size(), 1u);
    EXPECT_EQ(trace_.phase(0)->learned()[0]->order(Lane::kUpdate).size(), 2u);  // as it went last
    EXPECT_EQ(ahead(), (Order{1, 2, 70, 71, 1, 2}));
}

// "phase:first tensor" of each turn.
std::vector<std::pair<uint32_t, TensorId>> turns(const Trace &trace, uint32_t phase)
{
    std::vector<std::pair<uint32_t, TensorId>> turns;
    for (const Trace::Turn &turn : trace.round(phase)) {
        turns.emplace_back(turn.phase, turn.way->fetch(0).tensor);
    }
    return turns;
}

TEST_F(TraceTest, StepsThatComeBackToThemselvesAreARound)
{
    using Turns = std::vector<std::pair<uint32_t, TensorId>>;
    EXPECT_TRUE(trace_.round(0).empty());
    for (int i = 0; i < 3; ++i) step({1, 2});
    EXPECT_EQ(turns(trace_, 0), (Turns{{0, 1}}));
    for (int i = 0; i < 3; ++i) {
        step({1, 2});
        step({5, 6}, 1);
    }
    EXPECT_EQ(turns(trace_, 1), (Turns{{1, 5}, {0, 1}}));
    EXPECT_EQ(turns(trace_, 0), (Turns{{0, 1}, {1, 5}}));
}

TEST_F(TraceTest, WaysOfAPhaseInTurnAreARoundToo)
{
    using Turns = std::vector<std::pair<uint32_t, TensorId>>;
    for (int i = 0; i < 4; ++i) {
        step({1, 2});
        step({3, 4});
    }
    EXPECT_EQ(turns(trace_, 0), (Turns{{0, 3}, {0, 1}}));
}

TEST_F(TraceTest, StepsOfWhichNoneIsUsualVary)
{
    for (TensorId tensor = 10; tensor < 18; ++tensor) step({1, tensor, 2});
    EXPECT_TRUE(trace_.phase(0)->varies());
    for (int i = 0; i < 20; ++i) step({1, 3, 2});
    EXPECT_FALSE(trace_.phase(0)->varies());
}

// What each step needs is sure, and what was drawn for the last one is not.
TEST_F(TraceTest, WhereStepsVaryThatAloneIsSureWhichNearlyAllUse)
{
    const auto unsure = [this](uint64_t fetch) { return trace_.phase(0)->ahead(fetch)->unsure; };
    for (TensorId tensor = 10; tensor < 13; ++tensor) step({1, tensor, 2});
    for (uint64_t i = 0; i < 3; ++i) EXPECT_FALSE(unsure(i));  // they may be ways in turn
    for (TensorId tensor = 13; tensor < 18; ++tensor) step({1, tensor, 2});
    EXPECT_EQ(ahead(), (Order{1, 17, 2, 1, 17, 2}));
    EXPECT_FALSE(unsure(0));
    EXPECT_TRUE(unsure(1));
    EXPECT_FALSE(unsure(2));
    for (int i = 0; i < 20; ++i) step({1, 3, 2});
    EXPECT_FALSE(unsure(1));
}

// Of another phase's step its own habits count.
TEST_F(TraceTest, WhatIsUnsureInOnePhaseMayBeSureInTheNext)
{
    for (TensorId tensor = 10; tensor < 18; ++tensor) {
        step({1, tensor, 2});
        step({5, 6}, 1);
    }
    trace_.begin_step(0, now_);
    fetch_all({1, 3, 2});
    EXPECT_EQ(ahead(), (Order{5, 6}));
    EXPECT_FALSE(trace_.phase(0)->ahead(0)->unsure);
    EXPECT_FALSE(trace_.phase(0)->ahead(1)->unsure);
}

TEST_F(TraceTest, OfStepsThatVaryMoreAreKeptThanWays)
{
    for (TensorId tensor = 100; tensor < 200; ++tensor) step({1, tensor, 2});
    const PhaseTrace &phase = *trace_.phase(0);
    EXPECT_EQ(phase.steps(), 100u);
    const std::vector<const Step *> seen = phase.seen();
    ASSERT_EQ(seen.size(), PhaseTrace::kSeenMax);
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ((*seen[i])[1].tensor, 136 + i);
    const uint64_t bytes = trace_.metadata_bytes();
    for (int i = 0; i < 200; ++i) step({1, 3, 2});
    EXPECT_LT(trace_.phase(0)->seen().size(), 10u);  // they do not vary any more
    EXPECT_LT(trace_.metadata_bytes(), bytes);
}

// So many lengths are ways of their own; more are one, of which the last length is expected.
TEST_F(TraceTest, StepsOfManyLengthsAreOneWay)
{
    const auto step_of = [this](uint64_t bytes) {
        trace_.begin_step(0, now_);
        for (const TensorId tensor : {1u, 2u, 3u}) {
            const residency::Request request{tensor, Access::kRead, 0, 0, bytes};
            trace_.fetched(0, Lane::kProgram, &request, 1, now_);
        }
        trace_.end_step(0, now_, true);
    };
    for (uint64_t i = 0; i < 9; ++i) step_of(500 + 100 * (i % 3));
    EXPECT_EQ(trace_.phase(0)->learned().size(), 3u);
    EXPECT_EQ(trace_.phase(0)->ahead(0)->request.byte_count, 500u);  // they come in turn
    step_of(900);
    ASSERT_EQ(trace_.phase(0)->learned().size(), 1u);
    const Learned &way = *trace_.phase(0)->learned()[0];
    EXPECT_EQ(way.seen, 10u);
    EXPECT_EQ(trace_.phase(0)->ahead(0)->request.byte_count, 900u);
    const uint64_t key = way.key();
    for (uint64_t i = 0; i < 20; ++i) step_of(300 + 7 * i);
    ASSERT_EQ(trace_.phase(0)->learned().size(), 1u);
    EXPECT_EQ(trace_.phase(0)->learned()[0]->key(), key);
    EXPECT_FALSE(trace_.phase(0)->varies());
    EXPECT_EQ(trace_.phase(0)->ahead(2)->request.byte_count, 300u + 7 * 19);
    EXPECT_EQ(trace_.phase(0)->deviations(), 0u);
    step({1, 2, 4});
    EXPECT_EQ(trace_.phase(0)->learned().size(), 2u);
}

TEST_F(TraceTest, AWayHasTheSameNumberWheneverItIsSeen)
{
    step({1, 2});
    const uint64_t key = trace_.phase(0)->learned()[0]->key();
    now_ += 500;
    step({1, 2});
    EXPECT_EQ(trace_.phase(0)->learned()[0]->key(), key);
    step({2, 1});
    EXPECT_NE(trace_.phase(0)->last()->key(), key);
}

TEST_F(TraceTest, AHitOnWhatWasFetchedJustBeforeIsNothingNewAfterItsEndEither)
{
    trace_.begin_step(0, now_);
    fetch(1);
    trace_.ended(0, 1, 0);
    trace_.hit(0, 1, 0, kBytes);
    trace_.ended(0, 1, 0);
    trace_.hit(0, 2, 0, kBytes);
    trace_.hit(0, 1, 0, kBytes);
    trace_.end_step(0, now_, true);
    EXPECT_EQ(ahead().size(), 6u);  // three, and those of the next step
}

TEST_F(TraceTest, ViewsThatEndPastTheLockShareTheTimeWithHits)
{
    trace_.begin_step(0, now_);
    fetch(1);
    now_ += 300;
    trace_.hit(0, 2, 0, kBytes);
    trace_.ended(0, 2, 0);
    fetch(3);
    const Step &step = recorded();
    ASSERT_EQ(step.size(), 4u);
    EXPECT_EQ(step[2].act, Act::kRelease);
    EXPECT_EQ(step[2].tensor, 2u);
    for (const size_t i : {1u, 2u, 3u}) EXPECT_EQ(step[i].compute_ns, 100u);
}

TEST_F(TraceTest, WhatAnUpdateHasLeftOutIsDueNow)
{
    trace_.begin_step(0, now_);
    fetch(1);
    for (const TensorId tensor : {70u, 71u}) fetch(tensor, 0, Lane::kUpdate);
    fetch_all({2, 3});
    trace_.end_step(0, now_, true);
    trace_.begin_step(0, now_);
    EXPECT_EQ(trace_.next_use(70), 1u);
    fetch_all({1, 2, 3});
    EXPECT_EQ(trace_.next_use(70), 0u);
    EXPECT_EQ(trace_.next_use(71), 1u);
}

TEST_F(TraceTest, TimesOfAWayAreAMeanThatForgets)
{
    for (const uint64_t gap : {400u, 800u}) {
        trace_.begin_step(0, now_);
        now_ += gap;
        fetch(1);
        trace_.end_step(0, now_, true);
    }
    EXPECT_EQ(trace_.phase(0)->ahead(0)->compute_ns, 500u);
}

// ---- declared steps -----------------------------------------------------------------------------

TEST_F(TraceTest, ADeclaredStepIsPlannedFromTheFirst)
{
    Step declared(3);
    for (size_t i = 0; i < 3; ++i) declared[i].tensor = static_cast<TensorId>(5 + i);
    EXPECT_TRUE(trace_.declare(0, declared));
    EXPECT_TRUE(trace_.begin_step(0, now_));
    EXPECT_EQ(trace_.next_use(7), 2u);
    fetch_all({5, 6, 7});
    trace_.end_step(0, now_, true);
    EXPECT_TRUE(trace_.declare(0, {}));
    EXPECT_TRUE(trace_.begin_step(0, now_));  // what was seen remains
    EXPECT_EQ(trace_.next_use(6), 1u);
}

TEST_F(TraceTest, TakingADeclarationBackLeavesNothingOfIt)
{
    Step declared(1);
    declared[0].tensor = 5;
    EXPECT_TRUE(trace_.declare(0, declared));
    EXPECT_TRUE(trace_.declare(0, {}));
    EXPECT_FALSE(trace_.begin_step(0, now_));
    EXPECT_EQ(trace_.next_use(5), kNever);
}

TEST_F(TraceTest, AStepThatGoesOtherThanDeclaredIsFollowedAsItGoes)
{
    Step declared(2);
    declared[0].tensor = 5;
    declared[1].tensor = 6;
    trace_.declare(0, declared);
    step({1, 2, 3});
    trace_.begin_step(0, now_);
    EXPECT_EQ(ahead().front(), 1u);
}

// ---- limits -------------------------------------------------------------------------------------

TEST_F(TraceTest, LearnsNoMoreThanItsLimitAllows)
{
    trace_.set_limit(16384);
    trace_.begin_step(0, now_);
    for (TensorId tensor = 0; tensor < 10000; ++tensor) fetch(tensor % 50);
    EXPECT_LE(trace_.metadata_bytes(), 16384u);
    trace_.end_step(0, now_, true);
    EXPECT_LE(trace_.metadata_bytes(), 16384u);
    EXPECT_TRUE(trace_.begin_step(0, now_));
    EXPECT_EQ(trace_.next_use(49), 49u);
    Step declared(1000);
    EXPECT_FALSE(trace_.declare(1, declared));
}

TEST_F(TraceTest, OldWaysGoWhenANewOneNeedsTheirRoom)
{
    trace_.set_limit(32768);
    Order last;
    for (TensorId way = 0; way < 20; ++way) {
        last.clear();
        for (TensorId i = 0; i < 60; ++i) last.push_back(way * 7 + i);
        step(last);
        EXPECT_LE(trace_.metadata_bytes(), 32768u);
    }
    trace_.begin_step(0, now_);
    EXPECT_EQ(ahead(), Order(last.begin(), last.begin() + 8));
}

}  // namespace
}  // namespace stepwell::schedule
