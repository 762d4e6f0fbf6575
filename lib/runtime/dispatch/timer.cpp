// SPDX-License-Identifier: Apache-2.0
// The dispatcher's thread: deadlines of fetches for which no thread sleeps, timed work of hooks,
// and interrupts, which come from signal handlers.
#include "lib/residency/core.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/support/thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace stepwell {
namespace {

using residency::Instant;

void add_one(int eventfd)
{
    const uint64_t one = 1;
    (void)!::write(eventfd, &one, sizeof one);
}

}  // namespace

Dispatcher::~Dispatcher()
{
    if (timer_fd_ >= 0) ::close(timer_fd_);
}

Status Dispatcher::start_timer()
{
    timer_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (timer_fd_ < 0) return Status::os_error(STW_ERROR_LIMIT, errno, "no eventfd for the timer");
    return start_thread(timer_, "stw-timer", "the timer", [this] { run_timer(); });
}

void Dispatcher::stop_timer()
{
    if (!timer_.joinable()) return;
    {
        MutexLock lock(mutex());
        closing_ = true;
    }
    add_one(timer_fd_);
    timer_.join();
}

void Dispatcher::arm_timer(Instant deadline)
{
    if (deadline >= timer_target_) return;
    timer_target_ = deadline;
    add_one(timer_fd_);
}

void Dispatcher::interrupt()
{
    interrupted_ns_.store(now());
    add_one(timer_fd_);
}

void Dispatcher::run_timer()
{
    for (;;) {
        Instant target = residency::kNever;
        {
            MutexLock lock(mutex());
            if (closing_) return;
            target = core.next_deadline();
            for (const DispatchHook *hook : hooks_) target = std::min(target, hook->due());
            timer_target_ = target;
        }
        const Instant time = now();
        const uint64_t left = target > time ? target - time : 0;
        const timespec wait{static_cast<time_t>(left / 1000000000),
                            static_cast<long>(left % 1000000000)};
        pollfd waiting{timer_fd_, POLLIN, 0};
        if (::ppoll(&waiting, 1, target == residency::kNever ? nullptr : &wait, nullptr) > 0) {
            uint64_t count = 0;
            if (::read(timer_fd_, &count, sizeof count) < 0) continue;
        }
        for (DispatchHook *hook : hooks_) hook->on_timer(now());
        act([this](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
            core.tick(now(), out);
            for (DispatchHook *hook : hooks_) hook->on_timer_locked(now());
            // An interrupt does not end waits that begin after it.
            const Instant interrupted = interrupted_ns_.exchange(0);
            if (interrupted != 0) end_waits(interrupted, out);
        });
    }
}

void Dispatcher::end_waits(Instant interrupted, Commands &out)
{
    interrupted_at_ = std::max(interrupted_at_, interrupted);
    progress_.notify_all();
    std::vector<residency::FetchId> fetches;
    for (const auto &[fetch, waiter] : waiters_) {
        if (waiter->asynchronous) waiter->cv.notify_all();
        if (waiter->call || waiter->asynchronous) continue;
        if (waiter->begin <= interrupted) fetches.push_back(fetch);
    }
    for (DispatchHook *hook : hooks_) hook->interrupted(interrupted);
    for (const residency::FetchId fetch : fetches) {
        core.cancel(
            fetch,
            Status::error(STW_ERROR_INTERRUPTED, "the wait was ended by stw_runtime_interrupt"),
            out);
    }
}

}  // namespace stepwell
