// SPDX-License-Identifier: Apache-2.0
// The thread that makes the copies of operations: chunks of all of them in the order in which they
// are granted, so that no operation delays another.
#include "lib/runtime/copies/snapshots.h"

#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/copies/chunks.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/views/ends.h"
#include "lib/runtime/views/hits.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/support/thread.h"

#include <algorithm>

namespace stepwell {

Status Snapshots::start_copier()
{
    MutexLock lock(dispatch_.mutex());
    if (copier_.joinable()) return {};
    copier_stops_ = false;
    return start_thread(copier_, "stw-copier", "the copies of operations",
                        [this] { run_copier(); });
}

void Snapshots::stop_copier()
{
    {
        MutexLock lock(dispatch_.mutex());
        copier_stops_ = true;
    }
    copier_wakes_.notify_all();
    if (copier_.joinable()) copier_.join();
}

void Snapshots::run_copier()
{
    MutexLock lock(dispatch_.mutex());
    for (;;) {
        while (!copier_stops_ && copier_queue.empty()) copier_wakes_.wait(dispatch_.mutex());
        if (copier_queue.empty()) return;
        Snapshot &work = *copier_queue.front();
        copier_queue.pop_front();
        const MutexUnlock unlocked(dispatch_.mutex());
        copy_chunk(work);
        if (!next_chunk(work)) work.whole->listener->copied(*work.whole);
    }
}

// Copies first; what is to be pinned is asked for afterwards. Never blocks.
Status Snapshots::start_snapshot(Waiter &waiter)
{
    STW_TRY(start_copier());
    STW_TRY(prepare_snapshot(waiter));
    Snapshot &work = *waiter.snapshot;
    work.chunk.user = &work;
    work.chunk.call = [](Waiter &chunk) {
        auto *granted = static_cast<Snapshot *>(chunk.user);
        Snapshots &owner = *granted->owner;
        MutexLock lock(owner.dispatch_.mutex());
        // First: the thread that cancelled it may be waiting for its end.
        if (granted->whole->cancelled) {
            owner.copier_queue.push_front(granted);
        } else {
            owner.copier_queue.push_back(granted);
        }
        owner.copier_wakes_.notify_one();
    };
    if (!next_chunk(work)) waiter.listener->copied(waiter);
    return {};
}

void Snapshots::forget(const Waiter &waiter)
{
    std::erase(under_way, waiter.snapshot.get());
}

void Snapshots::interrupted(residency::Instant)
{
    for (Snapshot *work : under_way) work->whole->cv.notify_all();
}

}  // namespace stepwell
