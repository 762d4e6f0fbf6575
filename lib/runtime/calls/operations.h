// SPDX-License-Identifier: Apache-2.0
// Asynchronous fetches, and how the program is notified of their end.
#pragma once

#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

#include <stepwell/operation.h>

#include <thread>

namespace stepwell {

class PrivateBuffers;
class StreamOrder;
class Sleepers;
class Snapshots;
class Collectives;
class Wholes;
class Fetches;

class Operations final : public AnswerListener, Grounded {
public:
    Operations(const Ground &ground, PrivateBuffers &buffers, StreamOrder &streams,
               Sleepers &sleepers, Snapshots &snapshots, Collectives &collectives, Wholes &wholes,
               Fetches &fetches, uint32_t operations_max)
        : Grounded(ground),
          buffers_(buffers),
          streams_(streams),
          sleepers_(sleepers),
          snapshots_(snapshots),
          collectives_(collectives),
          wholes_(wholes),
          fetches_(fetches),
          operations_max_(operations_max)
    {
    }

    Status fetch_async(FetchPlan plan, stw_operation **operation_out);
    Status collect(stw_operation *operation, void *stream, stw_view *views_out, uint32_t n);
    Status poll(stw_operation *operation);
    Status wait(stw_operation *operation, uint64_t timeout_ns);
    Status cancel(stw_operation *operation);
    Status free_operation(stw_operation *operation);
    // The callback, or the eventfd, notified when the operation ends.
    Status on_done(stw_operation *operation, stw_done_fn done, void *user);
    Status notify_fd(stw_operation *operation, int fd);
    void stop_callbacks();
    Status await_callbacks(residency::Instant deadline) STW_REQUIRES(runtime_lock);

    uint32_t count STW_GUARDED_BY(runtime_lock) = 0;

    void answered(Waiter &waiter) override STW_REQUIRES(runtime_lock);
    void copied(Waiter &waiter) override;
    void gathered(Waiter &waiter) override;

private:
    void tell_end(Waiter &waiter) STW_REQUIRES(runtime_lock);
    static Status freed_meanwhile();
    void end_early(Waiter &waiter, Core &core, Commands &out) STW_REQUIRES(runtime_lock);
    Status start_callbacks() STW_REQUIRES(runtime_lock);
    void run_callbacks();
    Waiter *next_callback(stw_status *status_out) STW_EXCLUDES(runtime_lock);
    void end_callback(Waiter *waiter) STW_EXCLUDES(runtime_lock);

    PrivateBuffers &buffers_;
    StreamOrder &streams_;
    Sleepers &sleepers_;
    Snapshots &snapshots_;
    Collectives &collectives_;
    Wholes &wholes_;
    Fetches &fetches_;
    const uint32_t operations_max_;
    // Operations that have ended, in that order.
    Waiter *callbacks_first_ STW_GUARDED_BY(runtime_lock) = nullptr;
    Waiter *callbacks_last_ STW_GUARDED_BY(runtime_lock) = nullptr;
    // Freed before their callback returned.
    uint32_t callbacks_freed_ STW_GUARDED_BY(runtime_lock) = 0;
    Condition callbacks_ready_;
    bool callbacks_run_ STW_GUARDED_BY(runtime_lock) = false;  // the thread exists
    bool callbacks_end_ STW_GUARDED_BY(runtime_lock) = false;
    std::thread callbacks_thread_ STW_GUARDED_BY(runtime_lock);
};

}  // namespace stepwell
