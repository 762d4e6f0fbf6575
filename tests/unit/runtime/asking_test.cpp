// SPDX-License-Identifier: Apache-2.0
// When another plan is asked for: for what there is none, as long as planning is cheap.
#include "lib/runtime/plan_thread/asking.h"
#include "lib/runtime/plan_thread/work.h"

#include <gtest/gtest.h>

namespace stepwell {
namespace {

using Made = std::vector<std::unique_ptr<PlanWork>>;

constexpr uint64_t kMs = 1'000'000;

PlanWork work_of(std::vector<PlanTurn> round = {{0, 11}})
{
    PlanWork work;
    work.round = std::move(round);
    work.room = 7;
    work.speeds = {1000, 2000};
    work.compute_ns = 1000;
    work.update_bytes = 1000;
    return work;
}

Made made_of(PlanWork work)
{
    Made made;
    made.push_back(std::make_unique<PlanWork>(std::move(work)));
    return made;
}

template <class Body> bool answered_after(Body &&change)
{
    PlanWork asked = work_of();
    change(asked);
    return is_answered(made_of(work_of()), asked);
}

TEST(Asking, WhatWasAnsweredIsNotAskedAgain)
{
    EXPECT_FALSE(is_answered({}, work_of()));
    EXPECT_TRUE(is_answered(made_of(work_of()), work_of()));
}

TEST(Asking, AnAnswerWithoutAPlanIsAnAnswerToo)
{
    PlanWork refused = work_of();
    refused.status = Status::error(STW_ERROR_BUDGET, "no memory is left to make a plan");
    EXPECT_TRUE(is_answered(made_of(std::move(refused)), work_of()));
}

TEST(Asking, AnotherBudgetOrPolicyIsAnotherQuestion)
{
    EXPECT_FALSE(answered_after([](PlanWork &work) { work.room = 8; }));
}

// The more were seen, the more it takes; at last again and again, as what is drawn may drift.
TEST(Asking, OfStepsThatVaryManyMoreAreAnotherQuestion)
{
    const auto answered = [](uint64_t made_of_steps, uint64_t steps) {
        PlanWork one = work_of({{0, 0}});
        one.varies = true;
        one.steps_seen = made_of_steps;
        PlanWork asked = work_of({{0, 0}});
        asked.varies = true;
        asked.steps_seen = steps;
        return is_answered(made_of(std::move(one)), asked);
    };
    EXPECT_TRUE(answered(4, 7));
    EXPECT_FALSE(answered(4, 8));
    EXPECT_TRUE(answered(30, 59));
    EXPECT_FALSE(answered(30, 60));
    EXPECT_TRUE(answered(1000, 1063));
    EXPECT_FALSE(answered(1000, 1064));
    EXPECT_TRUE(answered_after([](PlanWork &work) { work.steps_seen = 100; }));  // it repeats
}

TEST(Asking, AnotherOrderIsAnotherQuestion)
{
    EXPECT_FALSE(answered_after([](PlanWork &work) { work.round[0].way = 12; }));
    EXPECT_FALSE(answered_after([](PlanWork &work) { work.round[0].phase = 1; }));
    EXPECT_FALSE(answered_after([](PlanWork &work) { work.round.push_back({1, 12}); }));
    EXPECT_FALSE(answered_after([](PlanWork &work) { work.varies = true; }));
}

TEST(Asking, ARoundIsTheSameWhereverItBegins)
{
    const Made made = made_of(work_of({{0, 11}, {1, 22}, {2, 33}}));
    EXPECT_TRUE(is_answered(made, work_of({{1, 22}, {2, 33}, {0, 11}})));
    EXPECT_TRUE(is_answered(made, work_of({{2, 33}, {0, 11}, {1, 22}})));
    EXPECT_FALSE(is_answered(made, work_of({{1, 22}, {0, 11}, {2, 33}})));
    EXPECT_FALSE(is_answered(made, work_of({{0, 11}, {1, 22}})));
}

// A quarter more, or as much less: both ways, at its edge and behind it.
TEST(Asking, WhatChangedByMoreThanAQuarterIsAnotherQuestion)
{
    for (const uint64_t near : {800, 1000, 1250}) {
        SCOPED_TRACE(near);
        EXPECT_TRUE(answered_after([&](PlanWork &work) { work.speeds[0] = double(near); }));
        EXPECT_TRUE(answered_after([&](PlanWork &work) { work.speeds[1] = 2 * double(near); }));
        EXPECT_TRUE(answered_after([&](PlanWork &work) { work.compute_ns = near; }));
        EXPECT_TRUE(answered_after([&](PlanWork &work) { work.update_bytes = near; }));
    }
    for (const uint64_t far : {0, 799, 1251, 5000}) {
        SCOPED_TRACE(far);
        EXPECT_FALSE(answered_after([&](PlanWork &work) { work.speeds[0] = double(far); }));
        EXPECT_FALSE(answered_after([&](PlanWork &work) { work.speeds[1] = 2 * double(far); }));
        EXPECT_FALSE(answered_after([&](PlanWork &work) { work.compute_ns = far; }));
        EXPECT_FALSE(answered_after([&](PlanWork &work) { work.update_bytes = far; }));
    }
    EXPECT_FALSE(answered_after([](PlanWork &work) { work.speeds.push_back(3000); }));
}

TEST(Asking, AnyOfThoseMadeMayBeTheAnswer)
{
    Made made = made_of(work_of());
    PlanWork wide = work_of();
    wide.room = 8;
    made.push_back(std::make_unique<PlanWork>(std::move(wide)));
    PlanWork asked = work_of();
    EXPECT_TRUE(is_answered(made, asked));
    asked.room = 8;
    EXPECT_TRUE(is_answered(made, asked));
    asked.room = 9;
    EXPECT_FALSE(is_answered(made, asked));
}

// Of a step that writes one tensor.
std::unique_ptr<schedule::Plan> plan_of_a_write()
{
    schedule::PlanQuestion question;
    schedule::Event event;
    question.specs.resize(1);
    question.specs[0].bytes = 4096;
    question.specs[0].policy.allowed = 1;
    question.specs[0].policy.home = 0;
    question.machine.config.block_bytes = 4096;
    question.machine.config.places.resize(1);
    question.machine.config.places[0].blocks = 4;
    event.tensor = 0;
    event.access = residency::Access::kWrite;
    event.byte_count = 4096;
    question.step.push_back(event);
    event.act = schedule::Act::kRelease;
    question.step.push_back(event);
    auto made = schedule::Plan::make(std::move(question), nullptr);
    EXPECT_TRUE(made.ok()) << made.status().sentence();
    return made.ok() ? made.take() : nullptr;
}

TEST(Asking, AnEarlierPlanForTheSameStepsIsFoundWhateverTheyTook)
{
    Made made = made_of(work_of({{0, 11}, {1, 22}}));
    made[0]->plan = plan_of_a_write();
    PlanWork asked = work_of({{1, 22}, {0, 11}});
    asked.compute_ns = 77777;
    asked.speeds = {1};
    EXPECT_EQ(find_same_steps(made, asked), made[0].get());
    made.push_back(std::make_unique<PlanWork>(work_of({{0, 11}, {1, 22}})));  // refused
    EXPECT_EQ(find_same_steps(made, asked), made[0].get());
    asked.varies = true;
    EXPECT_EQ(find_same_steps(made, asked), nullptr);
    asked.varies = false;
    asked.room = 8;
    EXPECT_EQ(find_same_steps(made, asked), nullptr);
    EXPECT_EQ(find_same_steps(made, work_of()), nullptr);
}

// A training that stops to make text must find its plan again, however often that one's changed.
TEST(Asking, WhatANewerPlanTookThePlaceOfGoesFirst)
{
    Made made;
    const auto add = [&](uint64_t way, uint64_t room, bool planned = true) {
        PlanWork work = work_of({{0, way}});
        work.room = room;
        made.push_back(std::make_unique<PlanWork>(std::move(work)));
        if (planned) made.back()->plan = plan_of_a_write();
        return made.back().get();
    };
    EXPECT_EQ(plan_to_drop(made, nullptr), 0u);
    const PlanWork *train = add(1, 7);
    EXPECT_EQ(plan_to_drop(made, train), 1u) << "the one that is followed stays";
    add(2, 9);
    EXPECT_EQ(plan_to_drop(made, nullptr), 0u) << "by age";
    add(2, 7, false);
    EXPECT_EQ(plan_to_drop(made, nullptr), 0u) << "what was refused took no place";
    add(2, 7);
    EXPECT_EQ(plan_to_drop(made, nullptr), 2u) << "of the same budgets";
    made.erase(made.begin() + 2);
    EXPECT_EQ(plan_to_drop(made, nullptr), 1u) << "of other budgets";
    EXPECT_EQ(plan_to_drop(made, made[1].get()), 0u);
}

TEST(Asking, PlanningIsCostlyBeyondAHundredthOfTheTime)
{
    EXPECT_FALSE(PlanAsking::is_costly(0, 0));
    EXPECT_FALSE(PlanAsking::is_costly(50 * kMs, 5'000 * kMs));
    EXPECT_TRUE(PlanAsking::is_costly(50 * kMs + 1, 5'000 * kMs));
}

TEST(Asking, ThreePlansAreAskedForAtOnceAndThenAHundredthOfTheTimeIsTheirs)
{
    PlanAsking asking;
    for (uint32_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(asking.may_ask(50 * kMs, 51 * kMs)) << i;
        asking.asked();
    }
    EXPECT_FALSE(asking.may_ask(50 * kMs, 51 * kMs));
    EXPECT_FALSE(asking.may_ask(50 * kMs, 5'000 * kMs - 1));
    EXPECT_TRUE(asking.may_ask(50 * kMs, 5'000 * kMs));
    asking.asked();
    EXPECT_TRUE(asking.may_ask(60 * kMs, 6'000 * kMs));
    EXPECT_FALSE(asking.may_ask(61 * kMs, 6'000 * kMs));
}

TEST(Asking, ARefusalIsRememberedForItsRoom)
{
    PlanAsking asking;
    EXPECT_FALSE(asking.is_refused(0));
    asking.refuse(7);
    EXPECT_TRUE(asking.is_refused(7));
    EXPECT_FALSE(asking.is_refused(8));
    asking.refuse(8);
    EXPECT_TRUE(asking.is_refused(8));
}

}  // namespace
}  // namespace stepwell
