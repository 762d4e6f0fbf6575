// SPDX-License-Identifier: Apache-2.0
// Claims about single policies and about the choice among them.
#include "lib/schedule/plan/choose.h"
#include "lib/schedule/plan/policies.h"
#include "tests/unit/schedule/replay_fixture.h"

#include <algorithm>
#include <random>

namespace stepwell::schedule {
namespace {

using residency::Access;

class PoliciesTest : public ReplayTest {
protected:
    // The steady step of a policy.
    StepResult steady(Policy &policy, const Step &step, size_t steps = 4)
    {
        EXPECT_TRUE(replay_->fill_what_is_read(step).ok());
        replay_->set_policy(&policy);
        StepResult last;
        for (size_t i = 0; i < steps; ++i) last = run(step);
        replay_->set_policy(nullptr);
        return last;
    }
    Step cycle(uint32_t tensors, Access access = Access::kRead)
    {
        Step step;
        for (residency::TensorId tensor = 0; tensor < tensors; ++tensor) {
            use(step, tensor, 0, access);
        }
        return step;
    }
};

TEST_F(PoliciesTest, NextUseLosesOneMissInACycleWhereRecencyLosesAll)
{
    const Step step = cycle(100);
    const Uses uses(step, 100);
    open(machine_of(99, 100), std::vector<uint32_t>(100, 1));
    NextUse next(uses);
    // What is read must be somewhere: of 100 in 99 blocks one or two are missing each time round.
    EXPECT_LE(steady(next, step).links[kIn].bytes, 2 * kBlock);
    open(machine_of(99, 100), std::vector<uint32_t>(100, 1));
    LastUse last;
    EXPECT_EQ(steady(last, step).links[kIn].bytes, 100 * kBlock);
}

TEST_F(PoliciesTest, NextUseKnowsWhereItIsThoughAStepDiffers)
{
    const Step step = cycle(4);
    const Uses uses(step, 4);
    NextUse next(uses);
    next.begin_step(step);
    EXPECT_EQ(next.next_use(2), 2u);
    next.access(step[0]);  // tensor 0
    EXPECT_EQ(next.next_use(0), 3u);
    EXPECT_EQ(next.next_use(2), 1u);
    next.access(step[4]);  // 2 before 1
    EXPECT_LT(next.worth(2, 0), next.worth(1, 0));
    next.begin_step(step);
    EXPECT_EQ(next.next_use(2), 2u);
    EXPECT_GT(next.worth(0, 0), next.worth(3, 0));
}

TEST_F(PoliciesTest, ARoleThatIsPinnedStays)
{
    std::vector<residency::TensorSpec> specs = tensors_of(std::vector<uint32_t>(8, 1));
    specs[6].role = specs[7].role = 3;
    const Step step = cycle(8);
    const Uses uses(step, 8);
    open(machine_of(4), std::vector<uint32_t>(8, 1));
    PinRole pin(uses, specs, 3);
    steady(pin, step);
    EXPECT_TRUE(replay_->core().residence(6) & 1);
    EXPECT_TRUE(replay_->core().residence(7) & 1);
    EXPECT_EQ(run(cycle(1)).links[kIn].bytes, kBlock);  // nobody plans any more
}

TEST_F(PoliciesTest, ZigZagFindsWhatTheStepBeginsWith)
{
    const Step step = cycle(8, Access::kReadWrite);
    const Uses uses(step, 8);
    open(machine_of(4), std::vector<uint32_t>(8, 1));
    ZigZag zigzag(uses);
    EXPECT_EQ(steady(zigzag, step).links[kIn].bytes, 5 * kBlock);
    for (residency::TensorId tensor = 0; tensor < 3; ++tensor) {
        EXPECT_TRUE(replay_->core().residence(tensor) & 1) << tensor;
    }
}

TEST_F(PoliciesTest, WhatIsUsedOftenStaysThoughItIsUsedLongAgo)
{
    open(machine_of(3), std::vector<uint32_t>(8, 1));
    OftenUsed often(0.9);
    Step usual;
    use(usual, 0);
    use(usual, 1);
    ASSERT_TRUE(replay_->fill_what_is_read(cycle(8)).ok());
    replay_->set_policy(&often);
    for (int i = 0; i < 10; i++) run(usual);
    Step rare;
    for (residency::TensorId tensor = 2; tensor < 8; ++tensor) use(rare, tensor);
    run(rare);
    EXPECT_EQ(run(usual).links[kIn].bytes, 0u);
    for (int i = 0; i < 60; i++) {  // and is forgotten
        Step now;
        use(now, 2);
        use(now, 3);
        use(now, 4);
        run(now);
    }
    EXPECT_EQ(run(usual).links[kIn].bytes, 2 * kBlock);
    replay_->set_policy(nullptr);
}

// Of four that are read once a step and two that are written once, two have room besides what is
// in use: those that are written, as they save both ways.
TEST_F(PoliciesTest, WhatIsKeptIsWhatSavesMost)
{
    Step step = cycle(4);
    use(step, 4, 0, Access::kReadWrite);
    use(step, 5, 0, Access::kReadWrite);
    const auto specs = tensors_of(std::vector<uint32_t>(6, 1));
    const Machine machine = machine_of(3);
    const Uses uses(step, 6);
    const Keeping keeping = plan_keeping(uses, specs, machine, kDevice);
    EXPECT_EQ(keeping.stays[4][0], Stay::kStays);
    EXPECT_EQ(keeping.stays[5][0], Stay::kStays);
    EXPECT_EQ(keeping.stays[0][0], Stay::kLeaves);
    EXPECT_EQ(keeping.saved_bytes, 4 * kBlock);
    open(machine, std::vector<uint32_t>(6, 1));
    Kept kept(uses, keeping, kDevice);
    const StepResult result = steady(kept, step);
    EXPECT_EQ(result.links[kIn].bytes, 4 * kBlock);
    EXPECT_EQ(result.links[kOut].bytes, 0u);
}

TEST_F(PoliciesTest, WhatDiesIsNotKept)
{
    Step step;
    use(step, 0, 0, Access::kWrite);
    step.back().hint = Hint::kDiscard;
    use(step, 1);
    const Uses uses(step, 2);
    const Keeping keeping = plan_keeping(uses, tensors_of({1, 1}), machine_of(2), kDevice);
    EXPECT_EQ(keeping.stays[0][0], Stay::kLeaves);
    EXPECT_EQ(keeping.stays[1][0], Stay::kStays);
}

// As a gradient between its update and the verdict. What is read meanwhile is used again sooner
// than it, but to keep it until then saves its write-back.
TEST_F(PoliciesTest, WhatDiesLaterIsKeptUntilThen)
{
    for (const bool next_step : {false, true}) {
        SCOPED_TRACE(next_step ? "it dies in the next step" : "it dies in its step");
        Event dies;
        dies.act = Act::kDiscard;
        dies.lane = Lane::kUpdate;
        dies.tensor = 0;
        Step step;
        const auto rest = [&]() {
            step.push_back(dies);
            for (const residency::TensorId tensor : {3, 4, 1, 2}) use(step, tensor);
        };
        if (next_step) rest();
        use(step, 0, 0, Access::kWrite);
        use(step, 1);
        use(step, 2);
        if (!next_step) rest();
        const std::vector<uint32_t> blocks(5, 1);
        const Uses uses(step, 5);
        const Machine machine = machine_of(2);
        const Keeping keeping = plan_keeping(uses, tensors_of(blocks), machine, kDevice);
        EXPECT_EQ(keeping.stays[0][0], Stay::kStays);
        open(machine, blocks);
        NextUse next(uses);
        EXPECT_EQ(steady(next, step).links[kOut].bytes, kBlock);
        open(machine, blocks);
        Kept kept(uses, keeping, kDevice);
        EXPECT_EQ(steady(kept, step).links[kOut].bytes, 0u);
    }
}

// A replay has one piece of an update in flight, and the runtime as many as half of the place has
// room for.
TEST_F(PoliciesTest, HalfOfThePlaceIsLeftToUpdates)
{
    Step step = cycle(8);
    const auto kept = [&](const Machine &machine) {
        const Uses uses(step, 9);
        const auto specs = tensors_of(std::vector<uint32_t>(9, 1));
        const Keeping keeping = plan_keeping(uses, specs, machine, kDevice);
        size_t kept = 0;
        for (const std::vector<Stay> &stays : keeping.stays)
            kept += static_cast<size_t>(std::count(stays.begin(), stays.end(), Stay::kStays));
        return kept;
    };
    const Machine machine = machine_of(6);
    EXPECT_EQ(kept(machine), 5u);
    use(step, 8, 0, Access::kReadWrite, Lane::kUpdate);
    step[16].place = step[17].place = residency::kAnyCpuPlace;
    EXPECT_EQ(kept(machine), 2u);
    Machine cuda = machine;
    cuda.config.places[kDevice].cpu_access = false;
    EXPECT_EQ(kept(cuda), 5u);
}

TEST(Choose, TakesTheBestAndNeverMoreOverALinkThanTheBestSinglePolicy)
{
    for (uint32_t seed = 0; seed < 40; ++seed) {
        std::mt19937 random(seed);
        std::vector<uint32_t> blocks;
        for (uint32_t i = 0; i < 20; ++i) blocks.push_back(1 + static_cast<uint32_t>(random() % 4));
        std::vector<residency::TensorSpec> specs = tensors_of(blocks);
        for (residency::TensorSpec &spec : specs) spec.role = static_cast<uint32_t>(random() % 3);
        Step step;
        for (uint32_t i = 0; i < 60; ++i) {
            use(step, static_cast<residency::TensorId>(random() % 20), 10,
                random() % 3 == 0 ? Access::kReadWrite : Access::kRead);
        }
        const Machine machine = machine_of(8 + static_cast<uint32_t>(random() % 20));
        Result<std::vector<Verdict>> chosen = choose(machine, specs, step);
        ASSERT_TRUE(chosen.ok()) << chosen.status().sentence();
        const Verdict &ours = chosen.value().front();
        const Verdict *single = nullptr;
        for (const Verdict &verdict : chosen.value()) {
            if (verdict.candidate.rule == Rule::kKept) continue;
            if (!single || verdict.link_ns < single->link_ns) single = &verdict;
        }
        ASSERT_NE(single, nullptr);
        SCOPED_TRACE("seed " + std::to_string(seed));
        EXPECT_LE(ours.link_ns, single->link_ns);
        for (size_t i = 0; i < ours.links.size(); ++i) {
            EXPECT_LE(ours.links[i].bytes, single->links[i].bytes);
        }
    }
}

// Steps draw from sixteen tensors, some more often, and from another sixteen after so many steps.
std::vector<Step> drawn_steps(uint32_t seed, size_t steps, size_t same_for)
{
    std::mt19937 random(seed);
    std::vector<Step> drawn(steps);
    for (size_t i = 0; i < steps; ++i) {
        const auto first = static_cast<residency::TensorId>(i / same_for % 4 * 16);
        for (int k = 0; k < 64; ++k) {
            const auto rank =
                static_cast<residency::TensorId>(std::min(random() % 16, random() % 16));
            use(drawn[i], first + rank, 10);
        }
    }
    return drawn;
}

TEST(Choose, OfDrawnStepsTheLongestMemoryUnlessAShortOneIsBetterForCertain)
{
    const auto chosen = [](const std::vector<Step> &steps) {
        std::vector<const Step *> seen;
        for (const Step &step : steps) seen.push_back(&step);
        const std::vector<residency::TensorSpec> specs = tensors_of(std::vector<uint32_t>(64, 1));
        Result<std::vector<Verdict>> verdicts = choose_online(machine_of(8), specs, seen);
        EXPECT_TRUE(verdicts.ok()) << verdicts.status().sentence();
        EXPECT_EQ(verdicts.value().size(), online_candidates().size());
        return verdicts.value().front().candidate;
    };
    for (uint32_t seed = 0; seed < 8; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        const Candidate steady = chosen(drawn_steps(seed, 40, 40));
        EXPECT_EQ(steady.rule, Rule::kOftenUsed);
        EXPECT_EQ(steady.number, 0.999);
        const Candidate moving = chosen(drawn_steps(seed, 40, 4));
        EXPECT_TRUE(moving.rule == Rule::kLastUse || moving.number < 0.9) << moving.name();
    }
}

// Of tensors that are alike about half stay: every second one, so that what comes and goes does so
// all the time. A part of the place is left for it.
TEST_F(PoliciesTest, WhatIsKeptOfTensorsAlikeLiesAllOverTheStep)
{
    constexpr uint32_t kTensors = 32;
    Step step;
    for (residency::TensorId i = 0; i < kTensors; ++i) use(step, i);
    const Uses uses(step, kTensors);
    const auto specs = tensors_of(std::vector<uint32_t>(kTensors, 1));
    const auto kept = [&](uint32_t way, uint32_t begin, uint32_t end) {
        const Keeping keeping = plan_keeping(uses, specs, machine_of(20), kDevice, way);
        size_t stays = 0;
        for (uint32_t i = begin; i < end; ++i) stays += keeping.stays[i][0] == Stay::kStays;
        return stays;
    };
    constexpr uint32_t kSpread = 6;
    EXPECT_EQ(kept(0, 0, kTensors), 19u);
    EXPECT_EQ(kept(kSpread, 0, kTensors), 19u);
    EXPECT_EQ(kept(kSpread + 3, 0, kTensors), 17u);
    for (uint32_t i = 0; i < kTensors; i += 4) {
        EXPECT_GE(kept(kSpread, i, i + 4), 2u);
        EXPECT_LE(kept(kSpread, i, i + 4), 3u);
    }
}

// The core lets nothing that is brought ahead take the room of what is needed before it.
TEST_F(PoliciesTest, WhatStaysIsNeededNow)
{
    Step step;
    for (residency::TensorId i = 0; i < 4; ++i) use(step, i);
    const Uses uses(step, 4);
    Keeping keeping;
    keeping.stays = {{Stay::kStays}, {Stay::kLeaves}, {Stay::kPart}, {Stay::kLeaves}};
    Kept policy(uses, keeping, kDevice);
    policy.begin_step(step);
    policy.access(step[0]);
    policy.access(step[2]);
    EXPECT_EQ(policy.next_use(0), 0u);  // in two accesses
    EXPECT_EQ(policy.next_use(1), 3u);
}

}  // namespace
}  // namespace stepwell::schedule
