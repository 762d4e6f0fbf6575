// SPDX-License-Identifier: Apache-2.0
// The lower bound against the best there is, found by trying everything, and against replays.
#include "lib/schedule/plan/bound.h"
#include "lib/schedule/plan/choose.h"
#include "tests/unit/schedule/exhaustive.h"
#include "tests/unit/schedule/replay_fixture.h"

#include <random>

namespace stepwell::schedule {
namespace {

using residency::Access;

using exhaustive::Problem;

Problem draw(std::mt19937 &random, uint32_t tensors_max, uint32_t accesses_max)
{
    const auto between = [&](uint32_t first, uint32_t last) {
        return first + static_cast<uint32_t>(random() % (last - first + 1));
    };
    Problem problem;
    problem.tensors = between(2, tensors_max);
    problem.blocks = between(1, 3);
    problem.any_start = between(0, 1) == 1;
    std::vector<bool> dead(problem.tensors);
    for (uint32_t left = between(1, accesses_max); left > 0; --left) {
        exhaustive::Access access;
        access.tensor = between(0, problem.tensors - 1);
        const uint32_t kind = between(0, 4);
        access.writes = kind >= 3 || dead[access.tensor];
        access.reads = kind != 4 && !dead[access.tensor];
        access.dies = access.writes && between(0, 3) == 0;
        access.ticks = between(0, 2);
        dead[access.tensor] = access.dies;
        problem.accesses.push_back(access);
    }
    return problem;
}

// Some accesses go on during those behind them, as far as the place holds them beside each other.
void prolong(std::mt19937 &random, Problem &problem)
{
    for (exhaustive::Access &access : problem.accesses) {
        if (access.dies) continue;
        access.longer = random() % 3;
        for (size_t i = 0; i < problem.accesses.size() && access.longer > 0; ++i) {
            auto held = exhaustive::held_at(problem, i);
            const exhaustive::Access &now = problem.accesses[i];
            const bool dies = now.dies && held[now.tensor];  // which is left to the last of them
            held[now.tensor] = true;
            const auto views = std::count(held.begin(), held.end(), true);
            if (dies || views > problem.blocks) access.longer = 0;
        }
    }
}

Problem repeated(const Problem &problem, uint32_t times)
{
    Problem all = problem;
    for (uint32_t i = 1; i < times; ++i) {
        all.accesses.insert(all.accesses.end(), problem.accesses.begin(), problem.accesses.end());
    }
    return all;
}

Step step_of(const Problem &problem)
{
    Step step;
    std::vector<std::pair<size_t, Event>> ends;  // by the access during which it ends
    for (size_t i = 0; i < problem.accesses.size(); ++i) {
        const exhaustive::Access &access = problem.accesses[i];
        const Access kind = !access.writes ? Access::kRead
                            : access.reads ? Access::kReadWrite
                                           : Access::kWrite;
        use(step, access.tensor, access.ticks * kBlockNs, kind);
        if (access.dies) step.back().hint = Hint::kDiscard;
        ends.push_back({i + access.longer, step.back()});
        step.pop_back();
        for (const auto &[end, event] : ends) {
            if (end == i || (end > i && i + 1 == problem.accesses.size())) step.push_back(event);
        }
    }
    return step;
}

Bound bound_of(const Problem &problem, uint32_t times = 1)
{
    const Machine machine = machine_of(problem.blocks);
    const auto specs = tensors_of(std::vector<uint32_t>(problem.tensors, 1));
    return bound_of(step_of(problem), specs, machine,
                    problem.any_start ? Start::kAny : Start::kCold, times);
}

// Of bytes in it is exact: any schedule that reads as few is one that the bound has found.
TEST(Bound, IsLowerByNoMoreThanTheComputingIsShorter)
{
    EXPECT_EQ(bound_with(100, 80, 80), 100u);
    EXPECT_EQ(bound_with(100, 80, 70), 90u);
    EXPECT_EQ(bound_with(100, 80, 0), 20u);
    EXPECT_EQ(bound_with(100, 100, 40), 40u);
    EXPECT_EQ(bound_with(100, 80, 95), 100u);
    EXPECT_EQ(bound_with(100, 80, 120), 120u);
}

// Of whole steps, too: with less to compute the bound falls by no more than that.
TEST(Bound, OfAStepThatComputesLessIsNoLowerThanIsSaid)
{
    for (uint32_t seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        Step step;
        for (int i = 0; i < 20; ++i) {
            use(step, random() % 8, 1 + random() % 5000);
        }
        const std::vector<residency::TensorSpec> specs = tensors_of(std::vector<uint32_t>(8, 1));
        const Machine machine = machine_of(3 + random() % 3);
        const Bound bound = bound_of(step, specs, machine, Start::kAny);
        uint64_t computed = 0;
        for (Event &event : step) {
            event.compute_ns -= event.compute_ns > 0 ? random() % event.compute_ns : 0;
            computed += event.compute_ns;
        }
        const Bound less = bound_of(step, specs, machine, Start::kAny);
        EXPECT_EQ(less.compute_ns, computed);
        EXPECT_LE(bound_with(bound.step_ns, bound.compute_ns, computed), less.step_ns) << seed;
    }
}

TEST(Bound, IsTheFewestBytesThatTinyStepsRead)
{
    uint32_t reading = 0;
    uint32_t writing = 0;
    uint32_t reached = 0;
    for (uint32_t seed = 0; seed < 5000; ++seed) {
        std::mt19937 random(seed);
        Problem problem = draw(random, 5, 10);
        if (seed % 2 == 1) prolong(random, problem);
        const exhaustive::Fewest fewest = exhaustive::fewest(problem);
        const Bound bound = bound_of(problem);
        ASSERT_EQ(bound.in_bytes[kDevice], fewest.reads * kBlock) << "seed " << seed;
        ASSERT_LE(bound.out_bytes[kDevice], fewest.writes * kBlock) << "seed " << seed;
        reading += fewest.reads > 0;
        writing += fewest.writes > 0;
        reached += fewest.writes > 0 && bound.out_bytes[kDevice] == fewest.writes * kBlock;
    }
    EXPECT_GT(reading, 1000u);
    EXPECT_GT(10 * reached, 8 * writing);
    EXPECT_GT(writing, 500u);
}

// On average, as each finds what the one before it has left.
TEST(Bound, IsNeverAboveTheFewestBytesOfStepsInARow)
{
    uint32_t higher = 0;
    for (uint32_t seed = 0; seed < 1000; ++seed) {
        std::mt19937 random(seed);
        Problem problem = draw(random, 5, 7);
        const Bound alone = bound_of(problem);
        for (const uint32_t times : {2u, 3u}) {
            const exhaustive::Fewest fewest = exhaustive::fewest(repeated(problem, times));
            const Bound bound = bound_of(problem, times);
            SCOPED_TRACE("seed " + std::to_string(seed));
            ASSERT_LE(bound.in_bytes[kDevice], fewest.reads * kBlock / times);
            ASSERT_LE(bound.out_bytes[kDevice], fewest.writes * kBlock / times);
            higher += bound.in_bytes[kDevice] > alone.in_bytes[kDevice];
            higher += bound.out_bytes[kDevice] > alone.out_bytes[kDevice];
        }
    }
    EXPECT_GT(higher, 200u);  // it says something
}

TEST(Bound, IsNeverAboveTheLeastTimeOfTinySteps)
{
    uint32_t reached = 0;
    for (uint32_t seed = 0; seed < 1000; ++seed) {
        std::mt19937 random(seed);
        const Problem problem = draw(random, 4, 8);
        const uint32_t ticks = exhaustive::Search(problem).least_ticks();
        ASSERT_NE(ticks, UINT32_MAX) << "seed " << seed;
        const Bound bound = bound_of(problem);
        ASSERT_LE(bound.step_ns, ticks * kBlockNs) << "seed " << seed;
        reached += bound.step_ns == ticks * kBlockNs && bound.step_ns > bound.compute_ns;
    }
    EXPECT_GT(reached, 100u);
}

// Random steps of tensors of several blocks, parts of them, two lanes.
Step draw_step(std::mt19937 &random, const std::vector<uint32_t> &blocks)
{
    Step step;
    for (uint32_t left = 30; left > 0; --left) {
        const auto tensor = static_cast<residency::TensorId>(random() % blocks.size());
        const Access kinds[] = {Access::kRead, Access::kRead, Access::kReadWrite, Access::kWrite};
        const Lane lane = random() % 4 == 0 ? Lane::kUpdate : Lane::kProgram;
        use(step, tensor, random() % 3 * kBlockNs, kinds[random() % 4], lane);
        if (random() % 3 != 0) continue;
        Event &fetch = step[step.size() - 2];
        fetch.byte_begin = random() % blocks[tensor] * kBlock;
        fetch.byte_count = kBlock;
        step.back().byte_begin = fetch.byte_begin;
        step.back().byte_count = kBlock;
    }
    return step;
}

TEST(Bound, IsNeverAboveWhatAnyPolicyReaches)
{
    for (uint32_t seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        std::vector<uint32_t> blocks;
        for (uint32_t left = 8; left > 0; --left) {
            blocks.push_back(1 + static_cast<uint32_t>(random() % 3));
        }
        Machine machine = machine_of(6 + static_cast<uint32_t>(random() % 8));
        machine.links[kIn].latency_ns = random() % 100;
        machine.links[kIn].depth = 1 + static_cast<uint32_t>(random() % 3);
        if (random() % 2) {
            machine.groups.push_back({1.2e9});
            for (Link &link : machine.links) link.group = 0;
        }
        const std::vector<residency::TensorSpec> specs = tensors_of(blocks);
        const Step step = draw_step(random, blocks);
        const Uses uses(step, specs.size());
        for (const Candidate &candidate : known_candidates(specs)) {
            Result<std::unique_ptr<Replay>> opened = Replay::open(machine, specs);
            Replay &replay = *opened.value();
            for (residency::TensorId tensor = 0; tensor < specs.size(); ++tensor) {
                ASSERT_TRUE(replay.fill(tensor).ok());
            }
            const auto policy = make_policy(candidate, machine, specs, uses);
            replay.set_policy(policy.get());
            for (const Start start : {Start::kCold, Start::kAny, Start::kAny}) {
                Result<StepResult> result = replay.step(step);
                ASSERT_TRUE(result.ok()) << result.status().sentence();
                const Bound bound = bound_of(step, specs, machine, start);
                SCOPED_TRACE(candidate.name() + ", seed " + std::to_string(seed));
                ASSERT_LE(bound.step_ns, result.value().step_ns);
                ASSERT_LE(bound.link_bytes[kIn], result.value().links[kIn].bytes);
                ASSERT_LE(bound.link_bytes[kOut], result.value().links[kOut].bytes);
            }
            replay.set_policy(nullptr);
        }
    }
}

TEST(Bound, SaysWhatLimits)
{
    const auto specs = tensors_of({4, 4});
    Step step;
    use(step, 0, 100);
    use(step, 1, 100);
    Machine machine = machine_of(4);
    const Bound reads = bound_of(step, specs, machine, Start::kAny);
    EXPECT_EQ(reads.limit, Limit::kReads);
    EXPECT_EQ(reads.place, kDevice);
    EXPECT_EQ(reads.in_bytes[kDevice], 4 * kBlock);
    EXPECT_EQ(reads.link_bytes[kIn], 4 * kBlock);
    EXPECT_EQ(bound_of(step, specs, machine, Start::kCold).in_bytes[kDevice], 8 * kBlock);
    const Bound compute = bound_of(step, specs, machine_of(8), Start::kAny);
    EXPECT_EQ(compute.limit, Limit::kCompute);
    EXPECT_EQ(compute.step_ns, 200u);
    Step writes;
    use(writes, 0, 0, Access::kWrite);
    use(writes, 1, 0, Access::kWrite);
    const Bound out = bound_of(writes, specs, machine, Start::kAny);
    EXPECT_EQ(out.limit, Limit::kWrites);
    EXPECT_EQ(out.out_bytes[kDevice], 4 * kBlock);
    machine.groups.push_back({1e8});
    for (Link &link : machine.links) link.group = 0;
    EXPECT_EQ(bound_of(step, specs, machine, Start::kAny).limit, Limit::kGroup);
}

// What is held has room that nothing brought ahead can be in.
TEST(Bound, CountsTheRoomOfOpenViews)
{
    const auto specs = tensors_of({3, 3});
    Step step;
    use(step, 0, 10 * kBlockNs);
    use(step, 1, 0);
    const Bound bound = bound_of(step, specs, machine_of(4), Start::kAny);
    // One block of the second at most is there when the first is released, and the other way round
    // in the step before.
    EXPECT_EQ(bound.in_bytes[kDevice], 2 * kBlock);
    EXPECT_EQ(bound.step_ns, 12 * kBlockNs);
    EXPECT_EQ(bound_of(step, specs, machine_of(6), Start::kAny).step_ns, 10 * kBlockNs);
}

}  // namespace
}  // namespace stepwell::schedule
