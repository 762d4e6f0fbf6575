// SPDX-License-Identifier: Apache-2.0
// A plan: what replays chose, followed along a program that the core asks about.
#include "lib/schedule/plan/plan.h"
#include "lib/schedule/plan/policies.h"
#include "tests/unit/schedule/replay_fixture.h"

#include <cmath>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::kNone;
using residency::TensorId;
using testing::HasSubstr;

PlanQuestion question_of(uint32_t device_blocks, uint32_t tensors)
{
    PlanQuestion question;
    question.machine = machine_of(device_blocks, 2 * tensors);
    question.specs = tensors_of(std::vector<uint32_t>(tensors, 1));
    for (residency::TensorSpec &spec : question.specs) {
        spec.policy.allowed = 3;
        spec.policy.home = kDisk;
    }
    return question;
}

// Each tensor once, round and round: by recency nothing is ever found.
PlanQuestion cyclic(uint32_t device_blocks, uint32_t tensors)
{
    PlanQuestion question = question_of(device_blocks, tensors);
    for (TensorId tensor = 0; tensor < tensors; ++tensor) use(question.step, tensor, kMs);
    return question;
}

std::unique_ptr<Plan> made(PlanQuestion question)
{
    Result<std::unique_ptr<Plan>> plan = Plan::make(std::move(question), nullptr);
    EXPECT_TRUE(plan.ok()) << plan.status().sentence();
    return plan.ok() ? plan.take() : nullptr;
}

TEST(PlanTest, TheBestOfAllCandidatesIsUsedAndExpected)
{
    const std::unique_ptr<Plan> plan = made(cyclic(6, 12));
    ASSERT_TRUE(plan);
    const std::vector<Verdict> &verdicts = plan->verdicts();
    ASSERT_GT(verdicts.size(), 6u);
    const auto recency = std::find_if(verdicts.begin(), verdicts.end(), [](const Verdict &verdict) {
        return verdict.candidate.rule == Rule::kLastUse;
    });
    ASSERT_NE(recency, verdicts.end());
    EXPECT_LT(verdicts.front().links[kIn].bytes, recency->links[kIn].bytes * 4 / 5);
    EXPECT_TRUE(plan->repeats());
    EXPECT_EQ(plan->bound().compute_ns, 12 * kMs);
    EXPECT_GE(plan->expected().step_ns, plan->bound().step_ns);
    EXPECT_LE(plan->expected().step_ns, plan->bound().step_ns + kMs);
    ASSERT_FALSE(plan->computing().empty());
    EXPECT_GE(plan->computing().front().begin, plan->expected().begin);
    ASSERT_FALSE(plan->expected().spans.empty());
    EXPECT_GT(plan->bytes(), 12 * sizeof(residency::TensorSpec));
}

// A part of a round is bounded by itself, and begins where it is expected to: it reads what the one
// before it left no room for.
TEST(PlanTest, EachOfStepsInTurnHasItsBeginAndItsBound)
{
    PlanQuestion question = cyclic(6, 12);
    const auto third = question.step.begin() + static_cast<std::ptrdiff_t>(2 * 4);
    question.turns = {Step(question.step.begin(), third), Step(third, question.step.end())};
    const std::unique_ptr<Plan> plan = made(std::move(question));
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->turns().size(), 2u);
    const PlannedTurn &first = plan->turns()[0];
    const PlannedTurn &second = plan->turns()[1];
    EXPECT_EQ(first.compute_ns, 4 * kMs);
    EXPECT_EQ(second.compute_ns, 8 * kMs);
    EXPECT_EQ(first.begin_ns, 0u);
    EXPECT_GE(second.begin_ns, first.least_ns);
    EXPECT_LE(second.begin_ns, plan->expected().step_ns - second.least_ns);
    EXPECT_GE(first.least_ns, first.compute_ns);
    EXPECT_GE(second.least_ns, second.compute_ns);
    EXPECT_LE(first.least_ns + second.least_ns, plan->bound().step_ns);
    const std::unique_ptr<Plan> alone = made(cyclic(6, 12));
    ASSERT_EQ(alone->turns().size(), 1u);
    EXPECT_EQ(alone->turns()[0].least_ns, alone->bound().step_ns);
}

// On a link of a thousandth of the speed: the fastest four have new times, the others those that
// they had.
TEST(PlanTest, WhereTimesAloneHaveChangedTheBestOfAnEarlierPlanAreJudgedAnew)
{
    const std::unique_ptr<Plan> first = made(cyclic(6, 12));
    ASSERT_TRUE(first);
    PlanQuestion question = cyclic(6, 12);
    for (Link &link : question.machine.links) link.bytes_per_s /= 1000;
    question.judged = first->verdicts();
    const std::unique_ptr<Plan> second = made(std::move(question));
    ASSERT_TRUE(second);
    const std::vector<Verdict> &verdicts = second->verdicts();
    ASSERT_EQ(verdicts.size(), first->verdicts().size());
    const auto before = [&](const Verdict &verdict) -> const Verdict & {
        return *std::find_if(first->verdicts().begin(), first->verdicts().end(), [&](auto &other) {
            return other.candidate.name() == verdict.candidate.name();
        });
    };
    uint64_t slowest_ns = 0;  // of the four, as they were
    for (size_t i = 0; i < verdicts.size(); ++i) {
        EXPECT_EQ(verdicts[i].earlier, i >= 4) << i;
        const Verdict &known = before(verdicts[i]);
        if (i < 4) {
            EXPECT_GT(verdicts[i].step_ns, 2 * known.step_ns) << i;
            slowest_ns = std::max(slowest_ns, known.step_ns);
        } else {
            EXPECT_EQ(verdicts[i].step_ns, known.step_ns) << i;
            EXPECT_GE(known.step_ns, slowest_ns) << i;
        }
    }
    EXPECT_GT(second->expected().step_ns, 2 * first->expected().step_ns);
}

TEST(PlanTest, VerdictsOfAMachineWithOtherLinksAreNotTakenOver)
{
    const std::unique_ptr<Plan> first = made(cyclic(6, 12));
    ASSERT_TRUE(first);
    PlanQuestion question = cyclic(6, 12);
    question.judged = first->verdicts();
    for (Verdict &verdict : question.judged) verdict.links.pop_back();
    const std::unique_ptr<Plan> second = made(std::move(question));
    ASSERT_TRUE(second);
    ASSERT_EQ(second->verdicts().size(), first->verdicts().size());
    for (const Verdict &verdict : second->verdicts()) EXPECT_FALSE(verdict.earlier);
}

TEST(PlanTest, StepsThatDifferAreJudgedByWhatWasSeen)
{
    PlanQuestion question = question_of(3, 32);
    for (TensorId i = 0; i < 10; ++i) {
        question.seen.emplace_back();
        for (const TensorId tensor : {0u, 2 + 3 * i, 3 + 3 * i, 4 + 3 * i}) {
            use(question.seen.back(), tensor % 32, kMs);
        }
    }
    const std::unique_ptr<Plan> plan = made(std::move(question));
    ASSERT_TRUE(plan);
    EXPECT_FALSE(plan->repeats());
    EXPECT_EQ(plan->verdicts().front().candidate.rule, Rule::kOftenUsed);
    EXPECT_GT(plan->policy().worth(0, kDevice), plan->policy().worth(2, kDevice));
}

TEST(PlanTest, AStepThatCannotBeIsRefusedWithItsReason)
{
    PlanQuestion question = question_of(1, 2);
    use(question.step, 0);
    use(question.step, 1);
    std::swap(question.step[1], question.step[2]);  // both at once
    Result<std::unique_ptr<Plan>> plan = Plan::make(std::move(question), nullptr);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), STW_ERROR_BUDGET);
    EXPECT_THAT(plan.status().sentence(), HasSubstr("tensor 't1'"));
}

TEST(PlanTest, ItIsGivenUpWhenToldTo)
{
    const std::atomic<bool> stop{true};
    Result<std::unique_ptr<Plan>> plan = Plan::make(cyclic(6, 12), &stop);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), STW_ERROR_CANCELLED);
}

TEST(PlanTest, MoreBlocksThanTellAnythingAreJudgedInLargerOnes)
{
    PlanQuestion question;
    question.machine = machine_of(4000, 20000);
    question.specs = tensors_of(std::vector<uint32_t>(4, 2000));
    for (TensorId tensor = 0; tensor < 4; ++tensor) use(question.step, tensor, kMs);
    const std::unique_ptr<Plan> plan = made(std::move(question));
    ASSERT_TRUE(plan);
    const residency::Config &config = plan->machine().config;
    EXPECT_EQ(config.block_bytes, 2 * kBlock);
    EXPECT_EQ(config.places[kDevice].blocks, 2000u);
}

class FollowedTest : public testing::Test {
protected:
    void SetUp() override
    {
        PlanQuestion question = question_of(2, 4);
        for (const TensorId tensor : {0u, 1u, 2u, 1u}) use(question.step, tensor, kMs);
        plan_ = made(std::move(question));
        ASSERT_TRUE(plan_);
    }
    // By next use, whatever was chosen: what is said of it can be told by hand.
    void follow(std::vector<uint32_t> numbers)
    {
        numbers_ = std::move(numbers);
        planned_.follow(plan_.get(), &numbers_);
        planned_.begin_step();
    }
    [[nodiscard]] double worth(TensorId tensor) const { return planned_.worth(tensor, kDevice); }

    Trace trace_;
    Planned planned_{trace_};
    std::unique_ptr<Plan> plan_;
    std::vector<uint32_t> numbers_;
};

TEST_F(FollowedTest, WithoutAPlanTheTraceAloneIsAsked)
{
    EXPECT_FALSE(planned_.plans());
    EXPECT_EQ(planned_.next_use(7), residency::kNever);
    planned_.access(Lane::kProgram, 7);
    EXPECT_EQ(worth(7), 0);
}

TEST_F(FollowedTest, WorthIsOfTheTensorWithThatNumber)
{
    follow({kNone, 2, kNone, 1, 0, 3});
    EXPECT_TRUE(planned_.plans());
    EXPECT_EQ(worth(4), plan_->policy().worth(0, kDevice));
    EXPECT_EQ(worth(1), plan_->policy().worth(2, kDevice));
    EXPECT_EQ(worth(5), -INFINITY);  // the step does not use it
}

TEST_F(FollowedTest, NoHintTakesTheRoomOfWhatItKeeps)
{
    follow({0, 1, 2, 3});
    const residency::Request first{2, Access::kRead, kDevice, 0, kBlock};
    trace_.begin_step(0, 0);
    trace_.fetched(0, Lane::kProgram, &first, 1, 0);
    trace_.end_step(0, 0, true);
    trace_.begin_step(0, 0);
    for (TensorId tensor = 0; tensor < 4; ++tensor) {
        const bool keeps = plan_->policy().keeps(tensor);
        EXPECT_EQ(planned_.next_use(tensor), keeps ? 0 : trace_.next_use(tensor));
    }
}

TEST(KeptTest, WhatStaysUntilItsNextUseIsKept)
{
    Step step;
    for (const TensorId tensor : {0u, 1u}) use(step, tensor);
    const Uses uses(step, 3);
    const Kept kept(uses, {{{Stay::kStays}, {Stay::kLeaves}, {}}, 0}, kDevice);
    EXPECT_TRUE(kept.keeps(0));
    EXPECT_FALSE(kept.keeps(1));
    EXPECT_FALSE(kept.keeps(2));
    EXPECT_FALSE(kept.keeps(3));
}

TEST_F(FollowedTest, WhatIsUsedIsWorthSomethingElseAfterwards)
{
    follow({0, 1, 2, 3});
    const double before = worth(0);
    planned_.access(Lane::kProgram, 0);
    EXPECT_LT(worth(0), before);  // a whole step away
    planned_.access(Lane::kProgram, 0);
    EXPECT_EQ(worth(0), plan_->policy().worth(0, kDevice));
}

TEST_F(FollowedTest, StrangersLeaveFirstAndInTheOrderOfTheirUse)
{
    follow({0, 1, 2, 3});
    const double first = worth(90);
    planned_.access(Lane::kProgram, 0);
    EXPECT_GT(worth(91), first);
    EXPECT_LT(worth(91), worth(0));
    EXPECT_LT(worth(91), worth(2));
    planned_.follow(nullptr, nullptr);
    EXPECT_FALSE(planned_.plans());
}

}  // namespace
}  // namespace stepwell::schedule
