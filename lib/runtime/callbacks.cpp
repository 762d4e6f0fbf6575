// SPDX-License-Identifier: Apache-2.0
// Ends of operations told to those who wait in no thread: callbacks, on a thread of their own, so
// that a slow one holds up neither I/O nor deadlines; and eventfds of the program, written at once.
#include "lib/runtime/runtime.h"
#include "lib/support/signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace stepwell {
namespace {

// Adding 0 changes nothing, and only an eventfd takes it.
Status add_to_eventfd(int fd, uint64_t count)
{
    struct stat file {};
    int error = ::fstat(fd, &file) == 0 ? 0 : errno;
    // Else something lies behind the number that a write could harm.
    if (error == 0 && (file.st_mode & S_IFMT) != 0) error = EINVAL;
    if (error == 0 && ::write(fd, &count, sizeof count) < 0) error = errno;
    if (error == 0 || error == EAGAIN) return {};  // full: it is readable as it is
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

Status Runtime::on_done(stw_operation *operation, stw_done_fn done, void *user)
{
    stw_status status = STW_OK;
    {
        MutexLock lock(dispatch_.mutex());
        if (!operation->waiter) return freed_meanwhile();
        Waiter &waiter = *operation->waiter;
        if (waiter.callback != Callback::kNone) {
            return Status::error(STW_ERROR_EXISTS,
                                 "the operation has a callback, and it can have only one");
        }
        if (!waiter.done) {
            STW_TRY(start_callbacks());
            waiter.callback = Callback::kWanted;
            waiter.on_done = done;
            waiter.on_done_user = user;
            return {};
        }
        waiter.callback = Callback::kCalled;
        status = waiter.status.code();
    }
    done(user, operation, status);  // may free the operation
    return {};
}

Status Runtime::notify_fd(stw_operation *operation, int fd)
{
    if (fd < -1) return Status::error(STW_ERROR_INVALID, "descriptor %d; -1 means none", fd);
    if (fd >= 0) STW_TRY(check_eventfd(fd));
    MutexLock lock(dispatch_.mutex());
    if (!operation->waiter) return freed_meanwhile();
    Waiter &waiter = *operation->waiter;
    if (waiter.done) return fd >= 0 ? add_to_eventfd(fd, 1) : Status();
    waiter.notify_fd = fd;
    return {};
}

// Under the lock, so that whoever has freed the operation may close the descriptor.
void Runtime::tell_end(Waiter &waiter)
{
    if (waiter.notify_fd >= 0) {
        const Status status = add_to_eventfd(waiter.notify_fd, 1);
        if (!status.ok()) {
            dispatch_.say(
                STW_LOG_WARNING, "operation",
                format_text("nobody is told that an operation is over: %s; keep it open until the "
                            "operation is over, or withdraw it",
                            status.sentence()));
        }
        waiter.notify_fd = -1;
    }
    if (waiter.callback != Callback::kWanted) return;
    waiter.callback = Callback::kQueued;
    (callbacks_last_ ? callbacks_last_->next_callback : callbacks_first_) = &waiter;
    callbacks_last_ = &waiter;
    callbacks_ready_.notify_one();
}

// Under the lock. Programs without callbacks have no thread for them.
Status Runtime::start_callbacks()
{
    if (callbacks_run_) return {};
    const auto main = [](void *runtime) -> void * {
        static_cast<Runtime *>(runtime)->run_callbacks();
        return nullptr;
    };
    const SignalsBlocked signals;
    const int error = pthread_create(&callbacks_thread_, nullptr, main, this);
    if (error != 0) {
        return Status::os_error(STW_ERROR_LIMIT, error,
                                "the system starts no thread for callbacks; poll the operation, "
                                "or wait for it");
    }
    pthread_setname_np(callbacks_thread_, "stw-callbacks");
    callbacks_run_ = true;
    callbacks_end_ = false;
    return {};
}

void Runtime::stop_callbacks()
{
    {
        MutexLock lock(dispatch_.mutex());
        if (!callbacks_run_) return;
        callbacks_end_ = true;
    }
    callbacks_ready_.notify_one();
    pthread_join(callbacks_thread_, nullptr);
    MutexLock lock(dispatch_.mutex());
    callbacks_run_ = false;
}

void Runtime::run_callbacks()
{
    for (;;) {
        stw_status status = STW_OK;
        Waiter *waiter = next_callback(&status);
        if (!waiter) return;
        waiter->on_done(waiter->on_done_user, waiter->operation, status);
        // In a child that the callback forked, the lock may be held by a thread that is not there.
        if (handle_->fork_epoch.load() != fork_epoch.load()) return;
        end_callback(waiter);
    }
}

// Waits for it. Null: the thread ends.
Waiter *Runtime::next_callback(stw_status *status_out)
{
    MutexLock lock(dispatch_.mutex());
    while (!callbacks_first_ && !callbacks_end_) callbacks_ready_.wait(dispatch_.mutex());
    Waiter *waiter = callbacks_first_;
    if (!waiter) return nullptr;
    callbacks_first_ = waiter->next_callback;
    if (!callbacks_first_) callbacks_last_ = nullptr;
    const bool freed = !waiter->operation->waiter;  // or about to be
    *status_out = freed ? STW_ERROR_CANCELLED : waiter->status.code();
    return waiter;
}

void Runtime::end_callback(Waiter *waiter)
{
    MutexLock lock(dispatch_.mutex());
    waiter->callback = Callback::kCalled;
    if (!waiter->freed) return;
    operation_pool.give(waiter->operation);
    delete waiter;
    --callbacks_freed_;
    dispatch_.note_progress();
}

// Those of operations that are freed: nobody else knows of them any more.
Status Runtime::await_callbacks(residency::Instant deadline)
{
    if (callbacks_run_ && pthread_equal(pthread_self(), callbacks_thread_)) {
        return Status::error(STW_ERROR_BUSY,
                             "the runtime '%s' cannot be closed by a callback of its own "
                             "operations, for which the close would wait; close it elsewhere",
                             name_.c_str());
    }
    while (callbacks_freed_ > 0) {
        if (dispatch_.wait_progress(deadline)) continue;
        return Status::error(STW_ERROR_TIMEOUT,
                             "callbacks of %u operations of the runtime '%s' had not returned "
                             "when the timeout passed; nothing was closed",
                             callbacks_freed_, name_.c_str());
    }
    return {};
}

}  // namespace stepwell
