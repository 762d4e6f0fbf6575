// SPDX-License-Identifier: Apache-2.0
// What a replay brings ahead, as the runtime would: over a disk that moves a block in a
// millisecond.
#include "lib/schedule/plan/choose.h"
#include "lib/schedule/plan/policies.h"
#include "lib/schedule/replay/ahead.h"
#include "tests/unit/schedule/replay_fixture.h"

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::Instant;

class PrefetchTest : public ReplayTest {
protected:
    // Tensors of a block each.
    void start(uint32_t device_blocks, uint32_t tensors)
    {
        Machine machine = machine_of(device_blocks);
        for (Link &link : machine.links) link.bytes_per_s = 1000.0 * kBlock;
        blocks_.assign(tensors, 1);
        open(machine, blocks_);
    }
    // The step often enough to be steady, then once more.
    StepResult steady(const Step &step, Prefetcher *prefetcher)
    {
        const Uses uses(step, blocks_.size());
        NextUse policy(uses);
        replay_->set_policy(&policy);
        replay_->set_prefetcher(prefetcher);
        for (size_t i = 0; i < 4; ++i) run(step);
        StepResult result = run(step);
        replay_->set_prefetcher(nullptr);
        replay_->set_policy(nullptr);
        return result;
    }
    std::vector<residency::TensorSpec> specs() const { return tensors_of(blocks_); }

    std::vector<uint32_t> blocks_;
};

TEST_F(PrefetchTest, WhatIsUsedNextComesBehindTheComputingIntoTheNextStep)
{
    Step step;
    for (residency::TensorId i = 0; i < 12; ++i) use(step, i, 3 * kMs);
    start(6, 12);
    const StepResult alone = steady(step, nullptr);
    EXPECT_GE(alone.stall_ns, 6 * kMs);  // so many do not stay
    start(6, 12);
    AheadPrefetcher ahead(machine_, specs(), step);
    const StepResult planned = steady(step, &ahead);
    EXPECT_EQ(planned.stall_ns, 0u);
    EXPECT_EQ(planned.step_ns, 36 * kMs);
    // What waits for its use has the room of something that could have stayed.
    EXPECT_LT(planned.links[kIn].bytes, 10 * kBlock);
}

TEST_F(PrefetchTest, WhatFitsIsLeftAlone)
{
    Step step;
    for (residency::TensorId i = 0; i < 4; ++i) use(step, i, 3 * kMs, Access::kReadWrite);
    start(8, 4);
    AheadPrefetcher ahead(machine_, specs(), step);
    const StepResult planned = steady(step, &ahead);
    EXPECT_EQ(planned.stall_ns, 0u);
    EXPECT_EQ(planned.links[kIn].bytes + planned.links[kOut].bytes, 0u);
}

// Asks for nothing; counts how it is driven.
class Counter final : public Prefetcher {
public:
    void begin_step(const Step &, Instant) override { ++begun; }
    void end_step(Instant) override { ++ended_steps; }
    void access(const Event &, bool was_told, Instant) override { ++(was_told ? told : hits); }
    std::optional<residency::FetchAsked> next(const Moment &, const residency::Core &) override
    {
        ++looks;
        return {};
    }
    void clean(const Moment &moment, residency::Core &, residency::Commands &) override
    {
        ++cleans;
        woken_at = moment.now == wake_at ? moment.now : woken_at;
        if (moment.now >= wake_at) wake_at = residency::kNever;
    }
    [[nodiscard]] Instant wake() const override { return wake_at; }

    int begun = 0, ended_steps = 0, told = 0, hits = 0, looks = 0, cleans = 0;
    Instant wake_at = residency::kNever;
    Instant woken_at = 0;
};

TEST_F(PrefetchTest, OfHitsNobodyHearsBeforeSomethingElseHappens)
{
    Step step;
    use(step, 0, kMs);
    for (int i = 0; i < 5; ++i) use(step, 0, kMs);
    use(step, 1, kMs);
    start(4, 2);
    ASSERT_TRUE(replay_->fill_what_is_read(step).ok());
    Counter counter;
    replay_->set_prefetcher(&counter);
    run(step);
    EXPECT_EQ(counter.begun, 1);
    EXPECT_EQ(counter.ended_steps, 1);
    EXPECT_EQ(counter.told, 2);
    EXPECT_EQ(counter.hits, 5);
    // At the begin; then each miss, and each end of its transfer.
    EXPECT_EQ(counter.looks, 5);
    EXPECT_EQ(counter.cleans, counter.looks);
    counter.wake_at = replay_->now() + kMs / 2;
    const Instant wished = counter.wake_at;
    run(step);
    EXPECT_EQ(counter.told, 2);
    EXPECT_EQ(counter.hits, 12);
    EXPECT_EQ(counter.looks, 5 + 2);  // the begin and the wish
    EXPECT_EQ(counter.woken_at, wished);
}

// What is written is on the disk already when its room is needed.
TEST_F(PrefetchTest, WhatLeavesIsWrittenBackBefore)
{
    Step step;
    for (residency::TensorId i = 0; i < 16; ++i) use(step, i, 4 * kMs, Access::kReadWrite);
    start(8, 16);
    const StepResult alone = steady(step, nullptr);
    start(8, 16);
    AheadPrefetcher ahead(machine_, specs(), step);
    const StepResult planned = steady(step, &ahead);
    EXPECT_GT(alone.stall_ns, 0u);
    EXPECT_LE(planned.stall_ns, alone.stall_ns / 8);
    EXPECT_LE(planned.links[kOut].bytes, alone.links[kOut].bytes + kBlock);
}

// Half of the tensors are written anew in each step, into room that others have to leave.
TEST_F(PrefetchTest, RoomForWhatIsWrittenAnewIsMadeBefore)
{
    Step step;
    for (residency::TensorId i = 0; i < 16; ++i) {
        use(step, i, 6 * kMs, i % 2 == 0 ? Access::kReadWrite : Access::kWrite);
    }
    for (residency::TensorId i = 1; i < 16; i += 2) {
        Event event;
        event.tensor = i;
        event.act = Act::kDiscard;
        step.push_back(event);
    }
    start(4, 16);
    const StepResult alone = steady(step, nullptr);
    start(4, 16);
    AheadPrefetcher ahead(machine_, specs(), step);
    const StepResult planned = steady(step, &ahead);
    EXPECT_GT(alone.stall_ns, 8 * kMs);
    EXPECT_EQ(planned.stall_ns, 0u);
}

TEST_F(PrefetchTest, AVerdictSaysWhatTheRuntimeWouldWait)
{
    Step step;
    for (residency::TensorId i = 0; i < 12; ++i) use(step, i, 3 * kMs);
    start(6, 12);
    const Candidate candidate{Rule::kNextUse, 0};
    Result<Verdict> alone = judge(candidate, machine_, specs(), step);
    Result<Verdict> ahead = judge(candidate, machine_, specs(), step, Asking::kAhead);
    ASSERT_TRUE(alone.ok() && ahead.ok());
    EXPECT_GE(alone.value().stall_ns, 12 * kMs);  // of two steps
    EXPECT_EQ(ahead.value().stall_ns, 0u);
    EXPECT_EQ(ahead.value().step_ns, 72 * kMs);
    EXPECT_EQ(alone.value().step_ns, 72 * kMs + alone.value().stall_ns);
}

// Of those within half a percent of the shortest step, the first.
TEST(Fastest, IsTheShortestStepWhateverItMoves)
{
    std::vector<Verdict> verdicts(4);
    verdicts[0].step_ns = 1100;
    verdicts[1].step_ns = 1004;
    verdicts[2].step_ns = 1000;
    verdicts[3].step_ns = 1006;
    EXPECT_EQ(&fastest(verdicts), &verdicts[1]);
    verdicts[1].step_ns = 1006;
    EXPECT_EQ(&fastest(verdicts), &verdicts[2]);
}

}  // namespace
}  // namespace stepwell::schedule
