// SPDX-License-Identifier: Apache-2.0
// The planner's thread: what is asked is answered once, the newest answer is the one there is, and
// a stop waits for nothing.
#include "lib/runtime/plan_thread/planner.h"
#include "lib/runtime/plan_thread/work.h"
#include "tests/unit/schedule/training_fixture.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

namespace stepwell {
namespace {

constexpr uint32_t kDiskBlocks = 4096;

schedule::PlanQuestion question_of(uint32_t layers, uint32_t batches, uint32_t device_blocks)
{
    schedule::Training training(layers, batches);
    training.train_step(schedule::Activations::kReused);
    schedule::PlanQuestion question;
    question.specs = std::move(training.specs);
    question.step = std::move(training.step);
    question.machine = schedule::machine_of(device_blocks, kDiskBlocks);
    return question;
}

// Of the work asked, by its number.
std::unique_ptr<PlanWork> work_of(uint64_t number)
{
    auto work = std::make_unique<PlanWork>();
    work->room = number;
    return work;
}

class PlannerTest : public testing::Test {
protected:
    // By the planner's thread.
    void prepare(PlanWork &work)
    {
        prepared_.push_back(work.room);
        thread_ = std::this_thread::get_id();
        pthread_sigmask(SIG_SETMASK, nullptr, &signals_);
        if (gated_) {
            begun_.release();
            gate_.acquire();
        }
        if (no_memory_) throw std::bad_alloc();
        work.question = question_of(layers_, batches_, blocks_);
    }
    std::unique_ptr<PlanWork> await()
    {
        for (;;) {
            std::unique_ptr<PlanWork> work = planner_.take();
            if (work) return work;
            std::this_thread::yield();
        }
    }
    void ask(uint64_t number)
    {
        const Status asked = planner_.ask(work_of(number));
        ASSERT_TRUE(asked.ok()) << asked.sentence();
    }

    bool gated_ = false;  // each question waits for the gate, once it was begun with
    std::counting_semaphore<> begun_{0};
    std::counting_semaphore<> gate_{0};
    std::atomic<bool> no_memory_{false};
    uint32_t layers_ = 2;
    uint32_t batches_ = 1;
    uint32_t blocks_ = 6;
    std::vector<uint64_t> prepared_;  // read when an answer of the last one is there
    std::thread::id thread_;
    sigset_t signals_{};
    Planner planner_{[this](PlanWork &work) { prepare(work); }};
};

TEST_F(PlannerTest, AQuestionIsAnsweredOnceByAThreadOfItsOwn)
{
    EXPECT_EQ(planner_.take(), nullptr);
    ask(1);
    const std::unique_ptr<PlanWork> answer = await();
    EXPECT_EQ(answer->room, 1u);
    ASSERT_TRUE(answer->status.ok()) << answer->status.sentence();
    ASSERT_NE(answer->plan, nullptr);
    EXPECT_FALSE(answer->plan->verdicts().empty());
    EXPECT_TRUE(answer->question.step.empty()) << "what it was made of is not kept";
    EXPECT_GT(answer->cpu_ns, 0u);
    EXPECT_EQ(planner_.cpu_ns(), answer->cpu_ns);
    EXPECT_NE(thread_, std::this_thread::get_id());
    EXPECT_EQ(sigismember(&signals_, SIGINT), 1) << "signals are for the program's threads";
    EXPECT_EQ(planner_.take(), nullptr);
}

TEST_F(PlannerTest, QuestionsOneAfterTheOtherAreAllAnswered)
{
    uint64_t cpu_ns = 0;
    for (uint64_t number = 1; number <= 3; ++number) {
        ask(number);
        const std::unique_ptr<PlanWork> answer = await();
        EXPECT_EQ(answer->room, number);
        EXPECT_NE(answer->plan, nullptr);
        cpu_ns += answer->cpu_ns;
        EXPECT_EQ(planner_.cpu_ns(), cpu_ns);
    }
    EXPECT_EQ(prepared_, (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(PlannerTest, ASecondQuestionReplacesTheOneThatWasNotBegunWith)
{
    gated_ = true;
    ask(1);
    begun_.acquire();
    ask(2);
    ask(3);
    gate_.release();
    EXPECT_EQ(await()->room, 1u);
    gate_.release();
    EXPECT_EQ(await()->room, 3u);
    EXPECT_EQ(prepared_, (std::vector<uint64_t>{1, 3}));
    EXPECT_EQ(planner_.take(), nullptr);
}

TEST_F(PlannerTest, AnAnswerThatNobodyTookIsReplacedByTheNewerOne)
{
    gated_ = true;
    for (uint64_t number = 1; number <= 3; ++number) {
        ask(number);
        begun_.acquire();  // so the one before it is answered
        if (number < 3) gate_.release();
    }
    const std::unique_ptr<PlanWork> answer = planner_.take();
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->room, 2u);
    EXPECT_EQ(planner_.take(), nullptr);
    EXPECT_GT(planner_.cpu_ns(), answer->cpu_ns) << "both took their time";
    gate_.release();
    EXPECT_EQ(await()->room, 3u);
}

// Of so many layers and micro-batches it takes minutes to make one.
TEST_F(PlannerTest, AStopGivesUpThePlanThatIsBeingMade)
{
    layers_ = 120;
    batches_ = 20;
    blocks_ = 200;
    gated_ = true;
    ask(1);
    begun_.acquire();
    gate_.release();
    planner_.stop();
    const std::unique_ptr<PlanWork> answer = planner_.take();
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->plan, nullptr);
    EXPECT_FALSE(answer->status.ok());
}

TEST_F(PlannerTest, AfterAStopNothingIsAnswered)
{
    ask(1);
    EXPECT_NE(await()->plan, nullptr);
    planner_.stop();
    planner_.stop();
    ask(2);
    planner_.stop();
    EXPECT_EQ(planner_.take(), nullptr);
    EXPECT_EQ(prepared_, (std::vector<uint64_t>{1}));
}

TEST_F(PlannerTest, WhatIsAskedAndWhatIsAnsweredGoWithThePlanner)
{
    gated_ = true;
    ask(1);
    begun_.acquire();
    ask(2);
    gate_.release(2);
}

TEST_F(PlannerTest, WithoutMemoryThereIsNoPlanAndTheNextQuestionIsAnswered)
{
    no_memory_ = true;
    ask(1);
    const std::unique_ptr<PlanWork> refused = await();
    EXPECT_EQ(refused->plan, nullptr);
    EXPECT_EQ(refused->status.code(), STW_ERROR_BUDGET);
    EXPECT_THAT(refused->status.sentence(), testing::HasSubstr("no memory is left"));
    no_memory_ = false;
    ask(2);
    EXPECT_NE(await()->plan, nullptr);
}

TEST_F(PlannerTest, AStepThatCannotBeReplayedHasNoPlanAndTheReasonIsSaid)
{
    blocks_ = 1;  // for calls that hold three
    ask(1);
    const std::unique_ptr<PlanWork> answer = await();
    EXPECT_EQ(answer->plan, nullptr);
    EXPECT_EQ(answer->status.code(), STW_ERROR_BUDGET) << answer->status.sentence();
}

}  // namespace
}  // namespace stepwell
