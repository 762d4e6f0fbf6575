// SPDX-License-Identifier: Apache-2.0
// Claims about steps in virtual time.
#include "tests/unit/schedule/replay_fixture.h"

#include <utility>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::Instant;
using testing::HasSubstr;

TEST_F(ReplayTest, AMissTakesWhatItsLinkTakesAndAHitTakesNothing)
{
    Machine machine = machine_of(4);
    machine.links[kIn].latency_ns = 100;
    open(machine, {2});
    Step step;
    use(step, 0, 1000);
    const StepResult cold = run(step);
    EXPECT_EQ(cold.stall_ns, 100 + kBlockNs + 100 + kBlockNs);  // one after the other
    EXPECT_EQ(cold.step_ns, cold.stall_ns + 1000);
    EXPECT_EQ(cold.compute_ns, 1000u);
    EXPECT_EQ(cold.links[kIn].bytes, 2 * kBlock);
    EXPECT_EQ(cold.hit_bytes, 0u);
    const StepResult warm = run(step);
    EXPECT_EQ(warm.step_ns, 1000u);
    EXPECT_EQ(warm.links[kIn].bytes, 0u);
    EXPECT_EQ(warm.hit_bytes, warm.read_bytes);
}

TEST_F(ReplayTest, ADeeperLinkHidesLatencyAndCarriesNoMore)
{
    Machine machine = machine_of(4);
    machine.links[kIn].latency_ns = 100;
    machine.links[kIn].depth = 2;
    open(machine, {2});
    Step step;
    use(step, 0);
    EXPECT_EQ(run(step).step_ns, 100 + 2 * kBlockNs);
}

TEST_F(ReplayTest, LinksOfAGroupShareWhatItCarries)
{
    const auto measure = [&](const Machine &machine) {
        open(machine, {1, 1, 1, 1});
        Step filled;
        use(filled, 2);
        use(filled, 3);
        EXPECT_TRUE(replay_->fill_what_is_read(filled).ok());
        Step written;
        use(written, 0, 0, Access::kWrite);
        use(written, 1, 0, Access::kWrite);
        run(written);
        Step reads;  // each waits until one of those has left; the second leaves while one comes
        use(reads, 2, 0, Access::kRead);
        use(reads, 3, 0, Access::kRead, Lane::kUpdate);
        return run(reads).step_ns;
    };
    Machine machine = machine_of(2);
    EXPECT_EQ(measure(machine), 3 * kBlockNs);
    for (Link &link : machine.links) link.group = 0;
    machine.groups.push_back({1e9});
    EXPECT_EQ(measure(machine), 4 * kBlockNs);
}

TEST_F(ReplayTest, WhatWasWrittenIsWrittenBackOnceAndOnlyWhenItLeaves)
{
    open(machine_of(2), {1, 1, 1});
    Step write;
    use(write, 0, 0, Access::kWrite);
    EXPECT_EQ(run(write).links[kOut].bytes, 0u);
    Step others;
    use(others, 1);
    use(others, 2);
    EXPECT_EQ(run(others).links[kOut].bytes, kBlock);
    Step again;
    use(again, 0);
    use(again, 1);
    use(again, 2);
    EXPECT_EQ(run(again).links[kOut].bytes, 0u);  // clean since
}

TEST_F(ReplayTest, RecencyLosesACycleThatIsOneBlockTooLong)
{
    open(machine_of(3), {1, 1, 1, 1});
    Step step;
    for (residency::TensorId tensor = 0; tensor < 4; ++tensor) use(step, tensor);
    run(step);
    const StepResult steady = run(step);
    EXPECT_EQ(steady.hit_bytes, 0u);
    EXPECT_EQ(steady.links[kIn].bytes, 4 * kBlock);
    EXPECT_EQ(steady.evictions[kDevice], 4u);
}

TEST_F(ReplayTest, LanesRunBesideEachOtherAndWaitForWhatTheOtherWrites)
{
    open(machine_of(4), {1, 1});
    Step step;
    use(step, 0, 1000, Access::kWrite);
    use(step, 1, 5000, Access::kWrite, Lane::kUpdate);  // nothing in common
    EXPECT_EQ(run(step).step_ns, 5000u);
    Step shared;
    use(shared, 0, 1000, Access::kWrite);
    use(shared, 0, 700, Access::kReadWrite, Lane::kUpdate);
    const StepResult after = run(shared);
    EXPECT_EQ(after.step_ns, 1700u);
    EXPECT_EQ(after.update_stall_ns, 1000u);
    Step read;
    use(read, 0, 1000);
    use(read, 0, 700, Access::kRead, Lane::kUpdate);
    EXPECT_EQ(run(read).step_ns, 1000u);
}

// Asks for one tensor when the step begins.
class Once : public Prefetcher {
public:
    explicit Once(residency::TensorId tensor) : tensor_(tensor) {}
    std::optional<residency::FetchAsked> next(const Moment &, const residency::Core &core) override
    {
        if (std::exchange(asked_, true)) return std::nullopt;
        residency::FetchAsked asked;
        residency::Request request;
        request.tensor = tensor_;
        request.place = kDevice;
        request.byte_count = core.spec(tensor_).bytes;
        asked.requests.push_back(request);
        asked.urgency = residency::Class::kPlanned;
        return asked;
    }
    void ended(residency::FetchId, const Status &status) override { there += status.ok(); }

    int there = 0;

private:
    residency::TensorId tensor_;
    bool asked_ = false;
};

TEST_F(ReplayTest, ACallWaitsForTheOtherLaneWithAllOfItsTensors)
{
    open(machine_of(4), {1, 1});
    Step step;
    use(step, 1, 0, Access::kReadWrite, Lane::kUpdate);
    step[0].compute_ns = 5 * kBlockNs;
    use(step, 0);
    use(step, 1);
    std::swap(step[3], step[4]);  // one call of both
    step[2].with_next = true;
    const StepResult result = run(step);
    EXPECT_EQ(result.step_ns, 7 * kBlockNs) << "1 is brought for the update, then 0 for the call";
}

// Looks again in every microsecond, whatever happens.
class Restless : public Prefetcher {
public:
    std::optional<residency::FetchAsked> next(const Moment &moment,
                                              const residency::Core &) override
    {
        wake_ = moment.now + 1000;
        return std::nullopt;
    }
    [[nodiscard]] residency::Instant wake() const override { return wake_; }

private:
    residency::Instant wake_ = residency::kNever;
};

// The program has the only block while it waits for the update, which waits for room.
TEST_F(ReplayTest, AnOrderThatCannotBeIsGivenUpWhateverThePrefetcherLooksFor)
{
    open(machine_of(1), {1, 1});
    Step step;
    use(step, 0);
    use(step, 1, 0, Access::kWrite, Lane::kUpdate);
    std::rotate(step.begin() + 1, step.begin() + 2, step.end());  // released after the update
    Event after;
    after.tensor = 1;
    after.act = Act::kDiscard;
    step.insert(step.end() - 1, after);
    Restless restless;
    replay_->set_prefetcher(&restless);
    const StepResult result = run(step);
    EXPECT_EQ(result.step_ns, kBlockNs);
    replay_->set_prefetcher(nullptr);
}

TEST_F(ReplayTest, WhatIsAskedAheadIsReadBehindTheComputingAndAfterDemand)
{
    open(machine_of(8), {1, 1, 3});
    Step step;
    use(step, 0, 5 * kBlockNs);
    use(step, 2);
    ASSERT_TRUE(replay_->fill_what_is_read(step).ok());
    Once ahead(2);
    replay_->set_prefetcher(&ahead);
    const StepResult planned = run(step);
    EXPECT_EQ(ahead.there, 1);
    // The first block of the plan is on the link already; the demand goes before the others.
    EXPECT_EQ(planned.stall_ns, 2 * kBlockNs);
    EXPECT_EQ(planned.step_ns, 7 * kBlockNs);
    EXPECT_EQ(planned.links[kIn].busy_ns, 4 * kBlockNs);
}

TEST_F(ReplayTest, TwiceTheSameIsTheSameAndItsSpansAreItsBytes)
{
    std::array<StepResult, 2> results;
    for (StepResult &result : results) {
        open(machine_of(3), {2, 1, 1});
        Step step;
        use(step, 0, 10, Access::kReadWrite);
        use(step, 1, 20);
        use(step, 2, 30, Access::kReadWrite);
        run(step);
        replay_->set_recording(true);
        result = run(step);
    }
    EXPECT_EQ(results[0].step_ns, results[1].step_ns);
    EXPECT_EQ(results[0].events, results[1].events);
    ASSERT_EQ(results[0].spans.size(), results[1].spans.size());
    uint64_t bytes = 0;
    for (const Span &span : results[0].spans) bytes += span.bytes;
    EXPECT_EQ(bytes, results[0].links[kIn].bytes + results[0].links[kOut].bytes);
    EXPECT_EQ(results[0].event_ends.back() - results[0].begin, results[0].step_ns);
}

TEST_F(ReplayTest, WhatCannotBeIsRefusedInASentence)
{
    open(machine_of(2), {3, 1});
    Step wide;
    use(wide, 0, 0, Access::kWrite);
    EXPECT_THAT(refusal(wide), HasSubstr("'t0'"));
    Step unmatched;
    use(unmatched, 1);
    unmatched.erase(unmatched.begin());
    open(machine_of(2), {3, 1});
    EXPECT_THAT(refusal(unmatched), HasSubstr("'t1' are released without a fetch"));
    Step empty;
    use(empty, 1);
    open(machine_of(2), {3, 1});
    EXPECT_THAT(refusal(empty), HasSubstr("'t1'"));
    Step unknown;
    use(unknown, 7);
    EXPECT_THAT(refusal(unknown), HasSubstr("event 0 names tensor 7 of 2"));
}

TEST(Machine, ALinkThatCarriesNothingOrLeadsNowhereIsRefused)
{
    Machine machine = machine_of(1);
    EXPECT_TRUE(machine.check().ok());
    machine.links[1].bytes_per_s = 0;
    EXPECT_THAT(machine.check().sentence(), HasSubstr("link 1"));
    machine = machine_of(1);
    machine.links[0].to = 5;
    EXPECT_THAT(machine.check().sentence(), HasSubstr("leads to no place"));
    machine = machine_of(1);
    machine.links.push_back(machine.links[0]);
    EXPECT_THAT(machine.check().sentence(), HasSubstr("link 2"));
    machine = machine_of(1);
    machine.groups.push_back({-1});
    EXPECT_THAT(machine.check().sentence(), HasSubstr("group 0"));
}

}  // namespace
}  // namespace stepwell::schedule
