// SPDX-License-Identifier: Apache-2.0
// Operations: fetches that are collected later. Their end is notified by callbacks, on a separate
// thread so that a slow one delays neither I/O nor deadlines, and by eventfds, written at once.
#include "lib/runtime/calls/operations.h"

#include "lib/residency/core.h"
#include "lib/runtime/calls/fetches.h"
#include "lib/runtime/copies/snapshots.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/wholes.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/runtime/views/streams.h"
#include "lib/support/thread.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace stepwell {
namespace {

// Adding 0 changes nothing, and only an eventfd accepts the write.
Status add_to_eventfd(int fd, uint64_t count)
{
    struct stat file {};
    int error = ::fstat(fd, &file) == 0 ? 0 : errno;
    // Any other file could be damaged by the write.
    if (error == 0 && (file.st_mode & S_IFMT) != 0) error = EINVAL;
    if (error == 0 && ::write(fd, &count, sizeof count) < 0) error = errno;
    if (error == 0 || error == EAGAIN) return {};  // full, so it is readable already
    return Status::os_error(STW_ERROR_INVALID, error,
                            "descriptor %d is not an eventfd that is open for writing", fd);
}

Status check_eventfd(int fd)
{
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_NONBLOCK) == 0) {
        return Status::error(STW_ERROR_INVALID,
                             "descriptor %d may block, and the library must not: make it with "
                             "eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)",
                             fd);
    }
    return add_to_eventfd(fd, 0);
}

}  // namespace

Status Operations::on_done(stw_operation *operation, stw_done_fn done, void *user)
{
    stw_status status = STW_OK;
    {
        MutexLock lock(dispatch_.mutex());
        if (!operation->waiter) return freed_meanwhile();
        Waiter &waiter = *operation->waiter;
        if (waiter.notice.callback != Callback::kNone) {
            return Status::error(STW_ERROR_EXISTS,
                                 "the operation has a callback, and it can have only one");
        }
        if (!waiter.done) {
            STW_TRY(start_callbacks());
            waiter.notice.callback = Callback::kWanted;
            waiter.notice.on_done = done;
            waiter.notice.user = user;
            return {};
        }
        waiter.notice.callback = Callback::kCalled;
        status = waiter.status.code();
    }
    done(user, operation, status);  // may free the operation
    return {};
}

Status Operations::notify_fd(stw_operation *operation, int fd)
{
    if (fd < -1) return Status::error(STW_ERROR_INVALID, "descriptor %d; -1 means none", fd);
    if (fd >= 0) STW_TRY(check_eventfd(fd));
    MutexLock lock(dispatch_.mutex());
    if (!operation->waiter) return freed_meanwhile();
    Waiter &waiter = *operation->waiter;
    if (waiter.done) return fd >= 0 ? add_to_eventfd(fd, 1) : Status();
    waiter.notice.fd = fd;
    return {};
}

// Under the lock, so that the descriptor may be closed once the operation is freed.
void Operations::tell_end(Waiter &waiter)
{
    if (waiter.notice.fd >= 0) {
        const Status status = add_to_eventfd(waiter.notice.fd, 1);
        if (!status.ok()) {
            dispatch_.say(
                STW_LOG_WARNING, "operation",
                format_text("nobody is told that an operation is over: %s; keep it open until the "
                            "operation is over, or withdraw it",
                            status.sentence()));
        }
        waiter.notice.fd = -1;
    }
    if (waiter.notice.callback != Callback::kWanted) return;
    waiter.notice.callback = Callback::kQueued;
    (callbacks_last_ ? callbacks_last_->notice.next : callbacks_first_) = &waiter;
    callbacks_last_ = &waiter;
    callbacks_ready_.notify_one();
}

// Started with the first callback.
Status Operations::start_callbacks()
{
    if (callbacks_run_) return {};
    STW_TRY(start_thread(callbacks_thread_, "stw-callbacks",
                         "callbacks, without which an operation can be polled or waited for",
                         [this] { run_callbacks(); }));
    callbacks_run_ = true;
    callbacks_end_ = false;
    return {};
}

void Operations::stop_callbacks()
{
    std::thread thread;
    {
        MutexLock lock(dispatch_.mutex());
        if (!callbacks_run_) return;
        callbacks_end_ = true;
        thread = std::move(callbacks_thread_);
    }
    callbacks_ready_.notify_one();
    thread.join();
    MutexLock lock(dispatch_.mutex());
    callbacks_run_ = false;
}

void Operations::run_callbacks()
{
    for (;;) {
        stw_status status = STW_OK;
        Waiter *waiter = next_callback(&status);
        if (!waiter) return;
        waiter->notice.on_done(waiter->notice.user, waiter->operation, status);
        // In a child that the callback forked, the lock may be held by a thread that does not
        // exist there.
        if (machine_.handle->fork_epoch.load() != fork_epoch.load()) return;
        end_callback(waiter);
    }
}

// Blocks. Null: the thread ends.
Waiter *Operations::next_callback(stw_status *status_out)
{
    MutexLock lock(dispatch_.mutex());
    while (!callbacks_first_ && !callbacks_end_) callbacks_ready_.wait(dispatch_.mutex());
    Waiter *waiter = callbacks_first_;
    if (!waiter) return nullptr;
    callbacks_first_ = waiter->notice.next;
    if (!callbacks_first_) callbacks_last_ = nullptr;
    const bool freed = !waiter->operation->waiter;  // or is being freed
    *status_out = freed ? STW_ERROR_CANCELLED : waiter->status.code();
    return waiter;
}

void Operations::end_callback(Waiter *waiter)
{
    MutexLock lock(dispatch_.mutex());
    waiter->notice.callback = Callback::kCalled;
    if (!waiter->freed) return;
    operation_pool.give(waiter->operation);
    delete waiter;
    --callbacks_freed_;
    dispatch_.note_progress();
}

// Waits for callbacks of operations that were freed, to which no handle leads any more.
Status Operations::await_callbacks(residency::Instant deadline)
{
    if (callbacks_thread_.get_id() == std::this_thread::get_id()) {
        return Status::error(STW_ERROR_BUSY,
                             "the runtime '%s' cannot be closed by a callback of its own "
                             "operations, for which the close would wait; close it elsewhere",
                             machine_.name.c_str());
    }
    while (callbacks_freed_ > 0) {
        if (dispatch_.wait_progress(deadline)) continue;
        return Status::error(STW_ERROR_TIMEOUT,
                             "callbacks of %u operations of the runtime '%s' had not returned "
                             "when the timeout passed; nothing was closed",
                             callbacks_freed_, machine_.name.c_str());
    }
    return {};
}

Status Operations::fetch_async(FetchPlan plan, stw_operation **operation_out)
{
    dispatch_.give_way();
    STW_TRY(fetches_.sticky_errors(plan));
    {
        MutexLock lock(dispatch_.mutex());
        if (count >= operations_max_) {
            return Status::error(STW_ERROR_LIMIT,
                                 "%u operations exist, as many as operations_max allows; free "
                                 "those that are over",
                                 count);
        }
        ++count;
    }
    const auto uncount = [this](stw_operation *unused) {
        if (unused) operation_pool.give(unused);
        MutexLock lock(dispatch_.mutex());
        --count;
    };
    stw_operation *operation = nullptr;
    Waiter *waiter = nullptr;
    try {
        operation = operation_pool.take();
        if (operation) waiter = new Waiter();
    } catch (const std::bad_alloc &) {
        uncount(operation);
        throw;
    }
    if (!operation) {
        uncount(operation);
        return Status::error(STW_ERROR_LIMIT,
                             "this process has as many operations as there are handles for; free "
                             "those that are over");
    }
    waiter->plan = std::move(plan);
    waiter->owner = recorder_.owner_number();
    waiter->asynchronous = true;
    waiter->listener = this;
    waiter->operation = operation;
    operation->runtime = machine_.handle;
    operation->waiter = waiter;
    const bool gathers = !waiter->plan.gathered.empty();
    const bool nothing = !gathers && !waiter->plan.absent.empty();
    const bool copies = gathers || needs_copies(waiter->plan);
    Status status = gathers   ? wholes_.ask_wholes(*waiter)
                    : nothing ? Status()
                    : copies  ? snapshots_.start_snapshot(*waiter)
                              : fetches_.start_fetch(*waiter);
    if (nothing || !status.ok()) {
        MutexLock lock(dispatch_.mutex());
        waiter->done = true;
        waiter->status = std::move(status);
    }
    *operation_out = operation;
    return {};
}

// A callback may use its operation while another thread frees it: the waiter, which lives until
// the callback has returned, is looked up under the lock.
Status Operations::freed_meanwhile()
{
    return Status::error(STW_ERROR_INVALID,
                         "the operation handle is not alive: another thread freed it during this "
                         "call");
}

Status Operations::poll(stw_operation *operation)
{
    MutexLock lock(dispatch_.mutex());
    const Waiter *waiter = operation->waiter;
    if (!waiter) return freed_meanwhile();
    if (collectives_.works_here() && !waiter->done) {
        (void)collectives_.work_one();
        waiter = operation->waiter;
        if (!waiter) return freed_meanwhile();
    }
    return waiter->done ? waiter->status : Status::remark(STW_PENDING);
}

Status Operations::wait(stw_operation *operation, uint64_t timeout_ns)
{
    const residency::Instant begin = dispatch_.now();
    const residency::Instant deadline = dispatch_.deadline(begin, timeout_ns);
    MutexLock lock(dispatch_.mutex());
    Waiter *waiter = operation->waiter;
    if (!waiter) return freed_meanwhile();
    if (!waiter->done) {
        STW_TRY(dispatch_.interrupted_since(begin));
        // With timeout 0 the thread does not sleep: it returns and may still release views.
        sleepers_.sleep_on(*waiter, deadline, timeout_ns == 0);
    }
    if (waiter->done) return waiter->status;
    STW_TRY(dispatch_.interrupted_since(begin));
    if (timeout_ns > 0) STW_TRY(sleepers_.own_verdict(*waiter));
    return Status::remark(STW_PENDING);
}

// A snapshot ends after the chunk that is being copied.
void Operations::end_early(Waiter &waiter, Core &core, Commands &out)
{
    if (waiter.done) return;
    waiter.cancelled = true;
    if (wholes_.end_wholes_early(waiter, out)) return;
    core.cancel(waiter.fetch, cancelled(), out);
    if (!waiter.snapshot) return;
    core.cancel(waiter.snapshot->chunk.fetch, cancelled(), out);
    const auto mine = std::find(snapshots_.copier_queue.begin(), snapshots_.copier_queue.end(),
                                waiter.snapshot.get());
    if (mine != snapshots_.copier_queue.end())
        std::iter_swap(snapshots_.copier_queue.begin(), mine);
}

Status Operations::cancel(stw_operation *operation)
{
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        if (operation->waiter) {
            end_early(*operation->waiter, core, out);
        } else {
            status = freed_meanwhile();
        }
    });
    return status;
}

Status Operations::collect(stw_operation *operation, void *stream, stw_view *views_out, uint32_t n)
{
    Waiter *waiter = nullptr;
    {
        MutexLock lock(dispatch_.mutex());
        waiter = operation->waiter;
        if (!waiter) return freed_meanwhile();
        if (!waiter->done) return Status::remark(STW_PENDING);
        STW_TRY(Status(waiter->status));
        if (waiter->collected) {
            return Status::error(STW_ERROR_INVALID, "the views of this operation were collected");
        }
        const FetchPlan &plan = waiter->plan;
        const size_t requests =
            plan.ranges.size() + plan.copied.size() + plan.gathered.size() + plan.absent.size();
        if (n != requests) {
            return Status::error(STW_ERROR_INVALID, "%u views asked of a fetch of %zu requests", n,
                                 requests);
        }
        for (const RequestedRange &range : plan.ranges)
            STW_TRY(streams_.check_stream_at(range.place, stream));
        waiter->plan.stream = stream;
        waiter->collected = true;
    }
    return fetches_.finish_fetch(*waiter, views_out);
}

Status Operations::free_operation(stw_operation *operation)
{
    Waiter *waiter = nullptr;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        waiter = std::exchange(operation->waiter, nullptr);
        if (!waiter) return;
        operation_pool.retire(operation);
        end_early(*waiter, core, out);
        wholes_.release_refused(*waiter, out);
    });
    if (!waiter) return freed_meanwhile();
    bool collected = false;
    {
        MutexLock lock(dispatch_.mutex());
        // The chunk that is being copied is the last one.
        while (!waiter->done) waiter->cv.wait(dispatch_.mutex());
        collected = std::exchange(waiter->collected, true);
    }
    if (!collected) {
        if (waiter->status.ok()) fetches_.undo_grants(waiter->plan, waiter->grants);
        wholes_.undo_wholes(*waiter);
        buffers_.drop_scratches(waiter->plan);
    }
    MutexLock lock(dispatch_.mutex());
    --count;
    if (waiter->notice.callback == Callback::kQueued) {
        // The callback has not returned yet: end_callback() frees the rest.
        waiter->freed = true;
        ++callbacks_freed_;
        return {};
    }
    operation_pool.give(operation);
    delete waiter;
    return {};
}

// The snapshot is complete, or failed. A thread that sees `done` may free the waiter.
void Operations::copied(Waiter &waiter)
{
    Status status = std::move(waiter.snapshot->status);
    if (status.ok() && !waiter.plan.ranges.empty()) {
        status = fetches_.start_fetch(waiter);
        if (status.ok()) return;
    }
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        snapshots_.forget(waiter);
        waiter.status = std::move(status);
        waiter.done = true;
        tell_end(waiter);
        waiter.cv.notify_all();
    });
}

// The gathered tensors of an operation are ready: starts the rest of it, on the queue's thread.
// Once started, it may end and be freed at any time.
void Operations::gathered(Waiter &waiter)
{
    Status status = std::move(waiter.whole.status);
    if (status.ok() && (needs_copies(waiter.plan) || !waiter.plan.ranges.empty())) {
        status = needs_copies(waiter.plan) ? snapshots_.start_snapshot(waiter)
                                           : fetches_.start_fetch(waiter);
        if (status.ok()) return;
    }
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        waiter.status = std::move(status);
        waiter.done = true;
        tell_end(waiter);
        waiter.cv.notify_all();
    });
}

void Operations::answered(Waiter &waiter)
{
    fetches_.answered(waiter);
    if (waiter.asynchronous) tell_end(waiter);
}

}  // namespace stepwell
