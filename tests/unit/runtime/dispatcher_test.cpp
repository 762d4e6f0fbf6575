// SPDX-License-Identifier: Apache-2.0
// The dispatcher: the order of an event, foreign code without the lock, wake-ups, the timer,
// interrupts.
#include "tests/unit/runtime/dispatcher_fixture.h"

namespace stepwell::dispatching {
namespace {

const Notes kAfterAnEvent = {"first.before_unlock", "last.before_unlock", "first.unlocked",
                             "last.unlocked"};

Notes then(Notes notes, const Notes &more)
{
    notes.insert(notes.end(), more.begin(), more.end());
    return notes;
}

// ---- the order of an event ---------------------------------------------------------------------

TEST_F(DispatcherTest, HooksAreCalledInTheOrderInWhichTheyWereAdded)
{
    dispatch_->act([](Core &, Commands &) {});
    EXPECT_EQ(record_.take(), kAfterAnEvent);
    dispatch_->give_way();
    EXPECT_EQ(record_.take(), (Notes{"first.give_way", "last.give_way"}));
}

TEST_F(DispatcherTest, AnAnswerThatNobodyExpectsGoesToEachHook)
{
    const TensorId tensor = create("a");
    dispatch_->act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        core.fetch(asked_of(tensor, Access::kRead), out);  // it is empty
        core.fetch(asked_of(tensor, Access::kWrite), out);
    });
    EXPECT_EQ(
        record_.take(),
        then({"first.granted", "last.granted", "first.refused", "last.refused"}, kAfterAnEvent));
}

TEST_F(DispatcherTest, AWaiterIsAnsweredAfterEarlierHooksAndInsteadOfLaterOnes)
{
    const TensorId tensor = create("a");
    Waiter refused;
    refused.listener = this;
    ask(refused, tensor, Access::kRead);
    EXPECT_EQ(record_.take(), then({"first.refused", "answered"}, kAfterAnEvent));
    EXPECT_EQ(code_of(refused), STW_ERROR_EMPTY);
    Waiter granted;
    granted.listener = this;
    ask(granted, tensor, Access::kWrite);
    EXPECT_EQ(record_.take(), then({"first.granted", "answered"}, kAfterAnEvent));
    EXPECT_EQ(code_of(granted), STW_OK);
    EXPECT_EQ(granted.grants.size(), 1u);
    MutexLock lock(dispatch_->mutex());
    EXPECT_EQ(dispatch_->find(granted.fetch), nullptr);
}

TEST_F(DispatcherTest, AnAnswerTakenByAnEarlierHookDoesNotReachTheWaiter)
{
    const TensorId tensor = create("a");
    first_.takes = true;
    Waiter waiter;
    ask(waiter, tensor, Access::kWrite);
    EXPECT_EQ(record_.take(), then({"first.granted"}, kAfterAnEvent));
    EXPECT_FALSE(is_answered(waiter));
    MutexLock lock(dispatch_->mutex());
    EXPECT_EQ(dispatch_->find(waiter.fetch), &waiter);
}

TEST_F(DispatcherTest, AWaiterThatIsNoLongerExpectedIsNotAnswered)
{
    const TensorId tensor = create_at_nvme("a");
    Waiter waiter;
    ask(waiter, tensor, Access::kRead);
    {
        MutexLock lock(dispatch_->mutex());
        dispatch_->forget_waiter(waiter.fetch);
        EXPECT_EQ(dispatch_->find(waiter.fetch), nullptr);
    }
    (void)record_.take();
    finish_all();
    EXPECT_FALSE(is_answered(waiter));
    const Notes notes = record_.take();
    EXPECT_EQ(std::count(notes.begin(), notes.end(), "last.granted"), 1);
}

TEST_F(DispatcherTest, TransfersAreBegunBeforeTheLockIsGivenBack)
{
    const TensorId tensor = create_at_nvme("a");
    uint64_t begun = 0;
    last_.in_before_unlock = [&]() STW_REQUIRES(runtime_lock) { begun = disk_.queue.size(); };
    Waiter waiter;
    ask(waiter, tensor, Access::kRead);
    EXPECT_EQ(begun, 1u);
    EXPECT_EQ(last_.transfers_seen, 1u);
}

TEST_F(DispatcherTest, TheTimeoutOfACallIsItsOwnOrTheRuntimes)
{
    EXPECT_EQ(dispatch_->timeout(0), kTimeoutNs);
    EXPECT_EQ(dispatch_->timeout(3), 3u);
}

// ---- foreign code ------------------------------------------------------------------------------

// The fakes check that the lock is free: log callbacks and calls may take it.
TEST_F(DispatcherTest, LinesAndThenCallsComeWithNoLockHeldAfterTheHooks)
{
    const TensorId tensor = create("a");
    Waiter waiter;
    waiter.listener = this;
    waiter.call = called;
    waiter.user = static_cast<DispatcherTest *>(this);
    last_.in_before_unlock = [&]() STW_REQUIRES(runtime_lock) {
        dispatch_->say(STW_LOG_ERROR, "test", "said before the lock goes");
    };
    dispatch_->act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        dispatch_->say(STW_LOG_ERROR, "test", "said in the event");
        ask_locked(waiter, asked_of(tensor, Access::kWrite), out);
    });
    EXPECT_EQ(record_.take(),
              then(then({"first.granted", "answered"}, kAfterAnEvent),
                   {"test: said in the event", "test: said before the lock goes", "called"}));
    dispatch_->act([](Core &, Commands &) {});
    EXPECT_EQ(record_.take(), kAfterAnEvent) << "each of them once";
}

TEST_F(DispatcherTest, AnEventInAHookWithoutTheLockLeavesItsOuterOneAlone)
{
    first_.in_unlocked = [&] {
        dispatch_->act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
            dispatch_->say(STW_LOG_ERROR, "test", "inner");
        });
    };
    dispatch_->act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        dispatch_->say(STW_LOG_ERROR, "test", "outer");
    });
    Notes expected = {"first.before_unlock", "last.before_unlock", "first.unlocked"};
    expected = then(expected, then(kAfterAnEvent, {"test: inner"}));
    EXPECT_EQ(record_.take(), then(expected, {"last.unlocked", "test: outer"}));
}

TEST_F(DispatcherTest, ACallMayBeginTheNextEvent)
{
    const TensorId first = create("a");
    const TensorId second = create("b");
    Waiter next;
    in_call_ = [&] { ask(next, second, Access::kRead); };
    Waiter waiter;
    waiter.call = called;
    waiter.user = this;
    ask(waiter, first, Access::kWrite);
    EXPECT_EQ(code_of(next), STW_ERROR_EMPTY);
}

// ---- sleeping threads are woken ----------------------------------------------------------------

TEST_F(DispatcherTest, AGrantWakesItsWaiter)
{
    const TensorId tensor = create_at_nvme("a");
    Waiter waiter;
    ask(waiter, tensor, Access::kRead);
    ASSERT_FALSE(is_answered(waiter));
    first_.alone = last_.alone = false;
    {
        const Sleeper sleeper(*dispatch_,
                              [&]() STW_REQUIRES(runtime_lock) { sleep_until_answered(waiter); });
        finish_all();
    }
    EXPECT_EQ(code_of(waiter), STW_OK);
    release(waiter, tensor, Access::kRead);
}

TEST_F(DispatcherTest, ARefusalWakesItsWaiter)
{
    const TensorId tensor = create_at_nvme("a");
    Waiter waiter;
    ask(waiter, tensor, Access::kRead);
    first_.alone = last_.alone = false;
    {
        const Sleeper sleeper(*dispatch_,
                              [&]() STW_REQUIRES(runtime_lock) { sleep_until_answered(waiter); });
        dispatch_->act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            core.cancel(waiter.fetch, Status::error(STW_ERROR_IO, "the test gave up"), out);
        });
    }
    EXPECT_EQ(code_of(waiter), STW_ERROR_IO);
}

TEST_F(DispatcherTest, AFetchThatDoesNotWaitIsRefusedInItsEvent)
{
    const TensorId tensor = create_at_nvme("a");
    Waiter waiter;
    ask(waiter, tensor, Access::kRead, residency::kFetchTry);
    EXPECT_EQ(code_of(waiter), STW_ERROR_BUSY);
}

TEST_F(DispatcherTest, AWaiterMayAskAgainOnceItIsAnswered)
{
    const TensorId tensor = create_at_nvme("a");
    Waiter waiter;
    for (uint32_t i = 0; i < 2; ++i) {
        ask(waiter, tensor, Access::kRead);
        EXPECT_FALSE(is_answered(waiter)) << i;
        finish_all();
        EXPECT_EQ(code_of(waiter), STW_OK);
        release(waiter, tensor, Access::kRead);
        evict(tensor);
    }
}

TEST_F(DispatcherTest, AFetchOfPiecesBlocksUntilTheyAreThere)
{
    const TensorId tensor = create_at_nvme("a");
    first_.alone = last_.alone = false;
    Waiter waiter;
    std::thread fetches([&] {
        EXPECT_TRUE(dispatch_->fetch_pieces(waiter, asked_of(tensor, Access::kRead)).ok());
        EXPECT_EQ(waiter.grants.size(), 1u);
    });
    {
        MutexLock lock(dispatch_->mutex());
        while (disk_.queue.empty()) disk_.more.wait(dispatch_->mutex());
    }
    finish_all();
    fetches.join();
    release(waiter, tensor, Access::kRead);
}

TEST_F(DispatcherTest, EachEventCountsAsProgressAndWakesThreadsThatWaitForIt)
{
    first_.alone = last_.alone = false;
    uint64_t seen = 0;
    const auto wait_for_more = [&]() STW_REQUIRES(runtime_lock) {
        seen = dispatch_->progress();
        while (dispatch_->progress() == seen) EXPECT_TRUE(dispatch_->wait_progress(kNever));
    };
    {
        const Sleeper sleeper(*dispatch_, wait_for_more);
        dispatch_->act([](Core &, Commands &) {});
    }
    EXPECT_EQ(first_.progress_seen, seen) << "counted where answers are given";
    EXPECT_EQ(last_.progress_seen, seen + 1);
    {
        const Sleeper sleeper(*dispatch_, wait_for_more);
        MutexLock lock(dispatch_->mutex());
        dispatch_->note_progress();
    }
    MutexLock lock(dispatch_->mutex());
    EXPECT_EQ(dispatch_->progress(), seen + 1);
    EXPECT_FALSE(dispatch_->wait_progress(Dispatcher::now())) << "the deadline has passed";
}

// ---- fetches that wait for a view to end -------------------------------------------------------

class StuckTest : public DispatcherTest {
protected:
    // The one block of memory is pinned by a view in a gate; another fetch waits for it.
    void hold_and_ask()
    {
        held_ = create_at_nvme("held");
        wanted_ = create_at_nvme("wanted");
        ask(holder_, held_, Access::kRead);
        finish_all();
        ASSERT_EQ(code_of(holder_), STW_OK);
        ASSERT_TRUE(holder_.grants.at(0).by_gate);
        {
            MutexLock lock(dispatch_->mutex());
            gate_ = &dispatch_->core.gate(held_, kHostPlace);
        }
        EXPECT_FALSE(dispatch_->has_stuck_fetch());
        ask(waiter_, wanted_, Access::kRead, residency::kFetchWaitRoom);
        EXPECT_FALSE(is_answered(waiter_));
    }

    TensorId held_ = residency::kNone;
    TensorId wanted_ = residency::kNone;
    Waiter holder_;
    Waiter waiter_;
    residency::Gate *gate_ = nullptr;
};

TEST_F(StuckTest, HasStuckFollowsTheCore)
{
    hold_and_ask();
    EXPECT_TRUE(dispatch_->has_stuck_fetch());
    release(holder_, held_, Access::kRead);
    EXPECT_FALSE(dispatch_->has_stuck_fetch());
    finish_all();
    EXPECT_EQ(code_of(waiter_), STW_OK);
    release(waiter_, wanted_, Access::kRead);
}

// Its end sees no stuck fetch yet, so it enters no event.
TEST_F(StuckTest, AViewThatEndsWhileAFetchGetsStuckIsNoticed)
{
    held_ = create_at_nvme("held");
    wanted_ = create_at_nvme("wanted");
    ask(holder_, held_, Access::kRead);
    finish_all();
    ASSERT_TRUE(holder_.grants.at(0).by_gate);
    bool told = true;
    first_.in_round = [&]() STW_REQUIRES(runtime_lock) {
        told = dispatch_->core.gate(held_, kHostPlace).unpin() || dispatch_->has_stuck_fetch();
    };
    ask(waiter_, wanted_, Access::kRead, residency::kFetchWaitRoom);
    EXPECT_FALSE(told);
    finish_all();
    EXPECT_EQ(code_of(waiter_), STW_OK);
    EXPECT_FALSE(dispatch_->has_stuck_fetch());
    release(waiter_, wanted_, Access::kRead);
}

// ---- the timer ---------------------------------------------------------------------------------

TEST_F(DispatcherTest, TheTimerCallsAllHooksWithoutTheLockAndThenUnderIt)
{
    {
        MutexLock lock(dispatch_->mutex());
        last_.due_at = 1;
    }
    ASSERT_TRUE(dispatch_->start_timer().ok());
    record_.wait_for("last.unlocked");
    EXPECT_EQ(record_.take(), then({"first.on_timer", "last.on_timer", "first.on_timer_locked",
                                    "last.on_timer_locked"},
                                   kAfterAnEvent));
    dispatch_->stop_timer();
    MutexLock lock(dispatch_->mutex());
    EXPECT_EQ(last_.fires, 1u);
    EXPECT_EQ(first_.fires, 0u);
}

TEST_F(DispatcherTest, TheTimerCallsAHookWhenItIsDue)
{
    first_.alone = last_.alone = false;
    const Instant due = Dispatcher::now() + 2'000'000;
    {
        MutexLock lock(dispatch_->mutex());
        first_.due_at = due;
    }
    ASSERT_TRUE(dispatch_->start_timer().ok());
    MutexLock lock(dispatch_->mutex());
    while (first_.fires == 0) first_.looked.wait(dispatch_->mutex());
    EXPECT_GE(first_.fired, due);
}

TEST_F(DispatcherTest, AnEarlierInstantWakesTheTimer)
{
    first_.alone = last_.alone = false;
    {
        MutexLock lock(dispatch_->mutex());
        first_.due_at = Dispatcher::now() + kHourNs;
    }
    ASSERT_TRUE(dispatch_->start_timer().ok());
    MutexLock lock(dispatch_->mutex());
    while (first_.looks == 0) first_.looked.wait(dispatch_->mutex());
    const Instant due = Dispatcher::now();
    first_.due_at = due;
    dispatch_->arm_timer(due);
    while (first_.fires == 0) first_.looked.wait(dispatch_->mutex());
    EXPECT_GE(first_.fired, due);
}

TEST_F(DispatcherTest, AFetchIsRefusedAtItsDeadline)
{
    const TensorId tensor = create_at_nvme("a");
    first_.alone = last_.alone = false;
    ASSERT_TRUE(dispatch_->start_timer().ok());
    Waiter waiter;
    waiter.listener = this;
    residency::FetchAsked asked = asked_of(tensor, Access::kRead);
    asked.deadline = Dispatcher::now() + 2'000'000;
    dispatch_->act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        ask_locked(waiter, asked, out);
        dispatch_->arm_timer(core.next_deadline());
    });
    {
        MutexLock lock(dispatch_->mutex());
        sleep_until_answered(waiter);
        EXPECT_GE(answered_at_, asked.deadline);
    }
    EXPECT_EQ(code_of(waiter), STW_ERROR_TIMEOUT);
}

// Nobody completes its transfer, and the timer sleeps for ever before it is asked for.
TEST_F(DispatcherTest, AFetchOfPiecesEndsAtItsDeadline)
{
    const TensorId tensor = create_at_nvme("a");
    first_.alone = last_.alone = false;
    ASSERT_TRUE(dispatch_->start_timer().ok());
    {
        MutexLock lock(dispatch_->mutex());
        while (first_.looks == 0) first_.looked.wait(dispatch_->mutex());
    }
    residency::FetchAsked asked = asked_of(tensor, Access::kRead);
    asked.deadline = Dispatcher::now() + 2'000'000;
    Waiter waiter;
    EXPECT_EQ(dispatch_->fetch_pieces(waiter, asked).code(), STW_ERROR_TIMEOUT);
    EXPECT_GE(Dispatcher::now(), asked.deadline);
}

TEST_F(DispatcherTest, StoppingTheTimerEndsItHoweverFarItsNextInstant)
{
    dispatch_->stop_timer();  // there is none
    {
        MutexLock lock(dispatch_->mutex());
        EXPECT_FALSE(dispatch_->is_closing());
        first_.due_at = Dispatcher::now() + kHourNs;
    }
    first_.alone = last_.alone = false;
    ASSERT_TRUE(dispatch_->start_timer().ok());
    {
        MutexLock lock(dispatch_->mutex());
        while (first_.looks == 0) first_.looked.wait(dispatch_->mutex());
    }
    dispatch_->stop_timer();
    MutexLock lock(dispatch_->mutex());
    EXPECT_TRUE(dispatch_->is_closing());
    EXPECT_EQ(first_.fires, 0u);
}

// ---- interrupts --------------------------------------------------------------------------------

// An operation goes on, and only the wait for it ends; internal fetches go on as well.
TEST_F(DispatcherTest, AnInterruptEndsTheWaitsThatBeganBeforeIt)
{
    Waiter early;
    Waiter operation;
    Waiter internal;
    Waiter late;
    operation.asynchronous = true;
    internal.call = called;
    internal.user = this;
    const TensorId tensor = create_at_nvme("a");
    const auto ask_for = [&](Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock) {
        ask_locked(waiter, asked_of(tensor, Access::kRead), out);
    };
    dispatch_->act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        ask_for(early, out);
        ask_for(operation, out);
        ask_for(internal, out);
    });
    first_.alone = last_.alone = false;
    const Instant before = Dispatcher::now();
    Instant after = 0;
    {
        const Sleeper sleeper(*dispatch_,
                              [&]() STW_REQUIRES(runtime_lock) { sleep_until_answered(early); });
        const Sleeper of_operation(*dispatch_, [&]() STW_REQUIRES(runtime_lock) {
            while (dispatch_->interrupted_since(operation.begin).ok())
                operation.cv.wait(dispatch_->mutex());
        });
        const Sleeper of_progress(*dispatch_, [&]() STW_REQUIRES(runtime_lock) {
            while (dispatch_->interrupted_since(before).ok()) dispatch_->wait_progress(kNever);
        });
        ASSERT_TRUE(dispatch_->start_timer().ok());
        // The timer cannot look at it before the late one waits as well.
        dispatch_->act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
            dispatch_->interrupt();
            const Instant then = Dispatcher::now();
            while (after <= then) after = Dispatcher::now();
            ask_for(late, out);
        });
    }
    EXPECT_EQ(code_of(early), STW_ERROR_INTERRUPTED);
    for (const Waiter *goes_on : {&operation, &internal, &late})
        EXPECT_FALSE(is_answered(*goes_on));
    {
        MutexLock lock(dispatch_->mutex());
        const Instant at = dispatch_->interrupted_at();
        EXPECT_TRUE(before <= at && at < after);
        EXPECT_EQ(first_.interrupted_last, at);
        EXPECT_EQ(last_.interrupted_last, at);
        EXPECT_EQ(dispatch_->interrupted_since(before).code(), STW_ERROR_INTERRUPTED);
        EXPECT_TRUE(dispatch_->interrupted_since(after).ok());
    }
    finish_all();
    record_.wait_for("called");
    for (const Waiter *waiter : {&operation, &internal, &late}) EXPECT_EQ(code_of(*waiter), STW_OK);
}

}  // namespace
}  // namespace stepwell::dispatching
