// SPDX-License-Identifier: Apache-2.0
// What a plan gives, to the nanosecond: a program in virtual time over a disk that moves a block
// in one millisecond, one after the other, the more urgent first. With trace and lookahead, or not.
#include "lib/schedule/lookahead/lookahead.h"
#include "lib/schedule/trace/trace.h"
#include "tests/unit/residency/core_fixture.h"
#include "tests/unit/schedule/time.h"

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::Class;
using residency::Commands;
using residency::FetchAsked;
using residency::FetchId;
using residency::Instant;
using residency::kBlock;
using residency::kDevice;
using residency::kHost;
using residency::kNever;
using residency::kNvme;
using residency::TensorId;
using residency::Transfer;

struct Cost {
    Instant step_ns = 0;
    Instant stall_ns = 0;
    uint64_t reads = 0;    // blocks
    uint64_t written = 0;  // blocks
    uint64_t late = 0;     // of these, when their room was needed already
};

class PlannedTest : public residency::CoreTest {
protected:
    void start(uint32_t device, uint32_t layers, bool plans)
    {
        open(device, 0, 4 * layers);
        plans_ = plans;
        for (uint32_t i = 0; i < layers; ++i) {
            layers_.push_back(create(("layer" + std::to_string(i)).c_str(), kBlock));
            fill(layers_.back());
            evict(layers_.back());
        }
        if (plans) core_->set_victim_policy(&trace_);
        lookahead_.set_bandwidth(kNvme, kDevice, 1000 * kBlock);
        now_ = kMs;
    }

    // Everything that has happened by now, in its order.
    void run_to(Instant end)
    {
        for (;;) {
            if (!disk_busy_ && !transfers_.empty()) begin_transfer();
            const Instant next = std::min(disk_busy_ ? disk_ends_ : kNever, wake_);
            if (next > end) break;
            now_ = std::max(now_, next);
            if (disk_busy_ && disk_ends_ <= now_) end_transfer();
            look_ahead();
        }
        now_ = std::max(now_, end);
    }
    void begin_transfer()
    {
        auto first = transfers_.begin();
        for (auto at = first; at != transfers_.end(); ++at) {
            if (urgency(*at) > urgency(*first)) first = at;
        }
        moving_ = *first;
        transfers_.erase(first);
        disk_busy_ = true;
        disk_ends_ = now_ + kMs;
        cost_.reads += moving_.from == kNvme;
        cost_.written += moving_.to == kNvme;
        cost_.late += moving_.to == kNvme && moving_.urgency == Class::kDemand;
    }
    Class urgency(const Transfer &transfer)
    {
        const bool promoted =
            std::find(promotes_.begin(), promotes_.end(), transfer.id) != promotes_.end();
        return promoted ? Class::kDemand : transfer.urgency;
    }
    void end_transfer()
    {
        disk_busy_ = false;
        Commands out;
        core_->transfer_done(moving_.id, {}, out);
        take(out);
    }

    void look_ahead()
    {
        wake_ = kNever;
        if (!plans_) return;
        tell();
        const PhaseTrace &forecast = *trace_.phase(0);
        while (const std::optional<FetchAsked> asked = lookahead_.next(*core_, forecast, now_)) {
            Commands out;
            const FetchId id = core_->fetch(*asked, out);
            lookahead_.asked(id);
            hints_.push_back(id);
            take(out);
            tell();
        }
        wake_ = lookahead_.wake();
        if (lookahead_.horizon(kDevice) == kNever) return;
        Commands out;
        core_->clean_ahead(kDevice, lookahead_.horizon(kDevice), out);
        take(out);
    }
    void tell()
    {
        for (const FetchId id : hints_) {
            if (granted(id)) lookahead_.ended(id, Lookahead::End::kThere);
            if (refusal(id) != STW_OK) lookahead_.ended(id, Lookahead::End::kNoRoom);
        }
        std::erase_if(hints_, [&](FetchId id) { return granted(id) || refusal(id) != STW_OK; });
    }

    void use(TensorId tensor, Access access, Instant compute)
    {
        const Instant begin = now_;
        const residency::Request request = all_of(tensor, access);
        trace_.fetched(0, Lane::kProgram, &request, 1, now_);
        const FetchId id = ask({request});
        look_ahead();
        while (!granted(id)) {
            ASSERT_EQ(refusal(id), STW_OK);
            run_to(std::max(now_, disk_busy_ ? disk_ends_ : now_));
        }
        cost_.stall_ns += now_ - begin;
        trace_.waited(0, begin, now_);
        run_to(now_ + compute);
        release(id);
        if (access != Access::kRead) trace_.released(0, Lane::kProgram, request, Hint::kNone, now_);
        look_ahead();
    }
    Cost step(const std::vector<TensorId> &order, Access access, Instant compute)
    {
        cost_ = {};
        const Instant begin = now_;
        trace_.begin_step(0, now_);
        look_ahead();
        for (const TensorId tensor : order) use(tensor, access, compute);
        trace_.end_step(0, now_, true);
        look_ahead();
        cost_.step_ns = now_ - begin;
        return cost_;
    }

    Trace trace_;
    Lookahead lookahead_{kHost, kNvme};
    std::vector<TensorId> layers_;
    std::vector<FetchId> hints_;
    Transfer moving_;
    bool plans_ = false;
    bool disk_busy_ = false;
    Instant disk_ends_ = 0;
    Instant wake_ = kNever;
    Cost cost_;
};

// Ten layers through room for four, over and over.
TEST_F(PlannedTest, WithoutAPlanEveryLayerOfACycleIsWaitedFor)
{
    start(4, 10, false);
    for (int i = 0; i < 3; ++i) {
        const Cost cost = step(layers_, Access::kRead, 2 * kMs);
        EXPECT_EQ(cost.stall_ns, 10 * kMs);
        EXPECT_EQ(cost.reads, 10u);
    }
}

TEST_F(PlannedTest, WithAPlanTheSameCycleWaitsForNothingAndReadsNoMore)
{
    start(4, 10, true);
    EXPECT_EQ(step(layers_, Access::kRead, 2 * kMs).stall_ns, 10 * kMs);  // recorded
    // Nothing could be read between the two steps.
    EXPECT_EQ(step(layers_, Access::kRead, 2 * kMs).stall_ns, kMs);
    for (int i = 0; i < 3; ++i) {
        const Cost cost = step(layers_, Access::kRead, 2 * kMs);
        EXPECT_EQ(cost.stall_ns, 0u) << i;
        EXPECT_EQ(cost.step_ns, 20 * kMs) << i;
        EXPECT_LE(cost.reads, 10u) << i;
    }
}

TEST_F(PlannedTest, ADeclaredStepIsPlannedTheFirstTime)
{
    start(4, 10, true);
    Step declared;
    for (const TensorId tensor : layers_) {
        Event event;
        event.tensor = tensor;
        event.place = kDevice;
        event.byte_count = kBlock;
        declared.push_back(event);
    }
    ASSERT_TRUE(trace_.declare(0, declared));
    // Nothing can be there before the step begins: the first layer alone is waited for.
    EXPECT_EQ(step(layers_, Access::kRead, 2 * kMs).stall_ns, kMs);
}

TEST_F(PlannedTest, WithoutComputingTheDiskIsBusyThroughout)
{
    start(4, 10, true);
    step(layers_, Access::kRead, 0);
    step(layers_, Access::kRead, 0);
    const Cost cost = step(layers_, Access::kRead, 0);
    EXPECT_EQ(cost.step_ns, cost.reads * kMs);
    EXPECT_LT(cost.reads, 10u);  // what is needed soonest stays
}

TEST_F(PlannedTest, ADeviationCostsOneMissAndThePlanGoesOn)
{
    start(4, 10, true);
    for (int i = 0; i < 2; ++i) step(layers_, Access::kRead, 2 * kMs);
    std::vector<TensorId> order = layers_;
    std::swap(order[4], order[8]);  // 8 comes early, 4 late
    const Cost cost = step(order, Access::kRead, 2 * kMs);
    EXPECT_LE(cost.stall_ns, 2 * kMs);  // one for each of the two
    EXPECT_EQ(step(layers_, Access::kRead, 2 * kMs).stall_ns, 0u);
}

TEST_F(PlannedTest, WithoutAPlanRoomIsWaitedForUntilItWasWritten)
{
    start(4, 10, false);
    step(layers_, Access::kReadWrite, 4 * kMs);
    const Cost cost = step(layers_, Access::kReadWrite, 4 * kMs);
    EXPECT_EQ(cost.late, 10u);
    EXPECT_EQ(cost.stall_ns, 20 * kMs);  // a write and a read for each
}

TEST_F(PlannedTest, WithAPlanWhatWasWrittenIsOnDiskBeforeItsRoomIsNeeded)
{
    start(4, 10, true);
    for (int i = 0; i < 2; ++i) step(layers_, Access::kReadWrite, 4 * kMs);
    const Cost cost = step(layers_, Access::kReadWrite, 4 * kMs);
    EXPECT_EQ(cost.late, 0u);
    EXPECT_EQ(cost.stall_ns, 0u);
    EXPECT_LE(cost.written, 10u);
}

TEST_F(PlannedTest, WhatFitsIsNotWrittenForNothing)
{
    start(16, 10, true);
    for (int i = 0; i < 3; ++i) step(layers_, Access::kReadWrite, 4 * kMs);
    EXPECT_EQ(step(layers_, Access::kReadWrite, 4 * kMs).written, 0u);
}

}  // namespace
}  // namespace stepwell::schedule
