// SPDX-License-Identifier: Apache-2.0
// The thread that makes the copies of operations: chunks of all of them in turn, as they are
// granted, so that one that waits keeps no other from going on.
#include "lib/runtime/snapshot.h"
#include "lib/support/signals.h"

#include <algorithm>
#include <system_error>

namespace stepwell {

Status cancelled()
{
    return Status::error(STW_ERROR_CANCELLED, "the operation was cancelled");
}

Status Runtime::start_copier()
{
    MutexLock lock(dispatch_.mutex());
    if (copier_.joinable()) return {};
    copier_stops_ = false;
    const SignalsBlocked signals;
    try {
        copier_ = std::thread([this] { run_copier(); });
    } catch (const std::system_error &error) {
        return Status::os_error(STW_ERROR_LIMIT, error.code().value(),
                                "no thread for the copies of operations");
    }
    return {};
}

void Runtime::stop_copier()
{
    {
        MutexLock lock(dispatch_.mutex());
        copier_stops_ = true;
    }
    copier_wakes_.notify_all();
    if (copier_.joinable()) copier_.join();
}

void Runtime::run_copier()
{
    MutexLock lock(dispatch_.mutex());
    for (;;) {
        while (!copier_stops_ && copier_queue_.empty()) copier_wakes_.wait(dispatch_.mutex());
        if (copier_queue_.empty()) return;
        Snapshot &work = *copier_queue_.front();
        copier_queue_.pop_front();
        const MutexUnlock unlocked(dispatch_.mutex());
        copy_chunk(work);
        if (!next_chunk(work)) finish_snapshot(*work.whole);
    }
}

// Copies first, then what is to be pinned is asked for. Starts nothing that can block.
Status Runtime::start_snapshot(Waiter &waiter)
{
    STW_TRY(start_copier());
    STW_TRY(prepare_snapshot(waiter));
    Snapshot &work = *waiter.snapshot;
    work.chunk.user = &work;
    work.chunk.call = [](Waiter &chunk) {
        auto *granted = static_cast<Snapshot *>(chunk.user);
        Runtime &runtime = *granted->runtime;
        MutexLock lock(runtime.dispatch_.mutex());
        // Who cancels may wait for the end.
        if (granted->whole->cancelled) {
            runtime.copier_queue_.push_front(granted);
        } else {
            runtime.copier_queue_.push_back(granted);
        }
        runtime.copier_wakes_.notify_one();
    };
    if (!next_chunk(work)) finish_snapshot(waiter);
    return {};
}

// The copies are made, or cannot be. Whoever sees `done` may free the waiter.
void Runtime::finish_snapshot(Waiter &waiter)
{
    Status status = std::move(waiter.snapshot->status);
    if (status.ok() && !waiter.plan.ranges.empty()) {
        const residency::Instant deadline = waiter.deadline;
        status = start_fetch(waiter);
        if (status.ok()) {
            MutexLock lock(dispatch_.mutex());
            dispatch_.arm_timer(deadline);
            return;
        }
    }
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        std::erase(snapshots_, waiter.snapshot.get());
        waiter.status = std::move(status);
        waiter.done = true;
        tell_end(waiter);
        waiter.cv.notify_all();
    });
}

// A thread that sleeps until the whole is over waits for what is asked now.
void Runtime::sleep_follows(residency::FetchId before, residency::FetchId after)
{
    if (before == 0) return;
    for (residency::Sleeper &sleeper : sleepers_) {
        if (sleeper.fetch == before) sleeper.fetch = after;
    }
}

}  // namespace stepwell
