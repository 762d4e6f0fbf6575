// SPDX-License-Identifier: Apache-2.0
// A group over callbacks, of which the test is the engine and the other rank: what is started and
// when, how often the end is asked for, and what a failure leaves.
#include "lib/collective/callbacks.h"
#include "lib/collective/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

namespace stepwell::collective {
namespace {

using ::testing::HasSubstr;

// Rank 0 of two. Every work has the same id, as an engine may give it.
struct Engine {
    static constexpr uint64_t kWork = 7;
    uint32_t started = 0;
    uint32_t in_flight = 0;
    uint32_t most_in_flight = 0;
    uint32_t polls_of_nothing = 0;
    uint32_t pending_polls = 2;  // before the end
    uint32_t left = 0;
    uint32_t aborted = 0;
    stw_status start = STW_OK;
    stw_status end = STW_OK;
    stw_status abort = STW_OK;
    std::function<void(Record &)> other = [](Record &) {};  // what the other rank says instead
    std::function<void()> at_poll = [] {};

    stw_status begin(uint64_t *work_out)
    {
        if (start != STW_OK) return start;
        ++started;
        most_in_flight = std::max(most_in_flight, ++in_flight);
        left = pending_polls;
        *work_out = kWork;
        return STW_OK;
    }
    stw_status poll()
    {
        at_poll();
        if (in_flight == 0) {
            ++polls_of_nothing;
            return STW_OK;
        }
        if (left > 0) {
            --left;
            return STW_PENDING;
        }
        --in_flight;
        return end;
    }
};

Engine &of(void *user)
{
    return *static_cast<Engine *>(user);
}

stw_status gather(void *user, const void *shard, void *whole, uint64_t bytes, uint32_t, uint32_t,
                  void *, uint64_t *work_out)
{
    char *parts = static_cast<char *>(whole);
    std::memmove(parts, shard, bytes);
    std::memcpy(parts + bytes, parts, bytes);
    if (bytes == sizeof(Record)) {
        Record theirs;
        std::memcpy(&theirs, parts + bytes, bytes);
        if (theirs.kind == Kind::kJoin) theirs.counts[0] = 1;
        of(user).other(theirs);
        std::memcpy(parts + bytes, &theirs, bytes);
    }
    return of(user).begin(work_out);
}

stw_status scatter(void *user, const void *, void *, uint64_t, uint32_t, uint32_t, uint32_t, void *,
                   uint64_t *work_out)
{
    return of(user).begin(work_out);
}

stw_status reduce(void *user, void *, uint64_t, uint32_t, uint32_t, uint32_t, void *,
                  uint64_t *work_out)
{
    return of(user).begin(work_out);
}

stw_status poll(void *user, uint64_t work)
{
    EXPECT_EQ(work, Engine::kWork);
    return of(user).poll();
}

stw_status abort(void *user)
{
    ++of(user).aborted;
    return of(user).abort;
}

class GroupTest : public ::testing::Test {
protected:
    Result<std::unique_ptr<Group>> join(uint64_t timeout_ns = 60'000'000'000)
    {
        const stw_group_ops ops = {sizeof ops, 0, gather, scatter, reduce, poll, abort};
        stw_collective *collective = nullptr;
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        EXPECT_EQ(open_callbacks(ops, &engine_, 0, 2, &collective, &error), STW_OK);
        return Group::open(&kCallbacks, collective, timeout_ns, false);
    }
    void open(uint64_t timeout_ns = 60'000'000'000)
    {
        Result<std::unique_ptr<Group>> joined = join(timeout_ns);
        ASSERT_TRUE(joined.ok()) << joined.status().sentence();
        group_ = joined.take();
        engine_.started = 0;
    }
    Status agree()
    {
        std::vector<Record> records;
        return group_->agree(make_record(Kind::kGather, "w"), records);
    }
    Status gather_some() { return group_->all_gather(bytes_, bytes_, 4); }

    Engine engine_;
    std::unique_ptr<Group> group_;
    char bytes_[64] = {};
};

TEST_F(GroupTest, OneIsStartedAtATimeAndItsEndIsAskedForOnce)
{
    open();
    EXPECT_TRUE(agree().ok());
    EXPECT_TRUE(gather_some().ok());
    EXPECT_TRUE(group_->reduce_scatter(bytes_, bytes_, 4, STW_F32).ok());
    EXPECT_TRUE(group_->all_reduce(bytes_, 4, STW_F32).ok());
    EXPECT_EQ(engine_.started, 4u);
    EXPECT_EQ(engine_.most_in_flight, 1u);
    EXPECT_EQ(engine_.polls_of_nothing, 0u);
    const GroupTotals totals = group_->totals();
    EXPECT_EQ(totals.collectives, 3u);            // without the exchange
    EXPECT_EQ(totals.bytes, 4u + 4 * 4 + 4 * 4);  // the others' part; to them and from them
    EXPECT_EQ(totals.errors, 0u);
}

TEST_F(GroupTest, NothingIsStartedForNoBytes)
{
    open();
    EXPECT_TRUE(group_->all_gather(bytes_, bytes_, 0).ok());
    EXPECT_TRUE(group_->reduce_scatter(bytes_, bytes_, 0, STW_F32).ok());
    EXPECT_TRUE(group_->all_reduce(bytes_, 0, STW_F32).ok());
    EXPECT_EQ(engine_.started, 0u);
}

TEST_F(GroupTest, AfterAFailureNothingIsStartedAndTheFirstCauseIsSaid)
{
    open();
    engine_.end = STW_ERROR_IO;
    EXPECT_EQ(gather_some().code(), STW_ERROR_IO);
    engine_.end = STW_OK;
    EXPECT_EQ(agree().code(), STW_ERROR_IO);
    EXPECT_EQ(group_->all_reduce(bytes_, 4, STW_F32).code(), STW_ERROR_IO);
    EXPECT_EQ(group_->reduce_scatter(bytes_, bytes_, 4, STW_F32).code(), STW_ERROR_IO);
    group_->fail_with(Status::error(STW_ERROR_PEER, "another"));
    EXPECT_EQ(group_->broken().code(), STW_ERROR_IO);
    EXPECT_EQ(engine_.started, 1u);
    EXPECT_EQ(group_->totals().errors, 1u);
}

TEST_F(GroupTest, AnotherOrderBreaksTheGroupAndARankThatCannotDoesNot)
{
    open();
    engine_.other = [](Record &record) { set_status(record, Status::error(STW_ERROR_IO, "no")); };
    EXPECT_EQ(agree().code(), STW_ERROR_IO);
    EXPECT_TRUE(group_->broken().ok());
    engine_.other = [](Record &record) { record.spec = 1; };
    EXPECT_EQ(agree().code(), STW_ERROR_MISMATCH);
    EXPECT_TRUE(group_->broken().ok());
    engine_.other = [](Record &record) {
        record.names = 1;
        std::strcpy(record.name, "v");
    };
    const Status status = agree();
    EXPECT_EQ(status.code(), STW_ERROR_ORDER);
    EXPECT_THAT(status.sentence(), HasSubstr("'v'"));
    EXPECT_EQ(status.detail()->rank, 1);
    EXPECT_EQ(gather_some().code(), STW_ERROR_ORDER);
}

TEST_F(GroupTest, ARankThatWasToldAnotherNumberIsAMismatch)
{
    engine_.other = [](Record &record) { record.counts[0] = 0; };
    Result<std::unique_ptr<Group>> joined = join();
    EXPECT_EQ(joined.status().code(), STW_ERROR_MISMATCH);
    EXPECT_THAT(joined.status().sentence(), HasSubstr("rank 0"));
}

TEST_F(GroupTest, WhatIsGivenUpIsCancelledAndItsMemoryFreeOnlyIfTheEngineLetsGo)
{
    for (const stw_status abort : {STW_OK, STW_ERROR_UNSUPPORTED}) {
        engine_ = Engine();
        open();
        engine_.pending_polls = UINT32_MAX;
        engine_.abort = abort;
        engine_.at_poll = [&] { group_->give_up(); };
        EXPECT_EQ(gather_some().code(), STW_ERROR_CANCELLED);
        EXPECT_EQ(engine_.aborted, 1u);
        EXPECT_EQ(group_->holds_memory(), abort != STW_OK);
        EXPECT_EQ(agree().code(), STW_ERROR_CANCELLED);
        engine_.at_poll = [] {};
    }
}

TEST_F(GroupTest, WhoDoesNotComeIsToldWithWhatIsKnownOfIt)
{
    engine_.pending_polls = 0;  // what ends at the first poll is never late
    open(1'000'000);
    group_->set_witness([](uint32_t rank) { return "rank " + std::to_string(rank) + " sleeps"; });
    engine_.pending_polls = UINT32_MAX;
    const Status status = agree();
    EXPECT_EQ(status.code(), STW_ERROR_PEER);
    EXPECT_THAT(status.sentence(), HasSubstr("rank 1 sleeps"));
    EXPECT_THAT(status.sentence(), HasSubstr("'w'"));
    EXPECT_EQ(gather_some().code(), STW_ERROR_PEER);
}

TEST_F(GroupTest, HasOneUserAtATime)
{
    open();
    EXPECT_TRUE(group_->take());
    EXPECT_FALSE(group_->take());
    group_->give_up();
    group_->give();
    EXPECT_TRUE(group_->take());
    EXPECT_TRUE(gather_some().ok());  // the one before gave up, not this one
}

}  // namespace
}  // namespace stepwell::collective
