// SPDX-License-Identifier: Apache-2.0
// Events in, commands out. Commands are appended to the engine's queues under the lock, so that
// their order is the core's; answers wake their waiters; foreign code runs after the lock is
// released.
#include "lib/runtime/dispatch/dispatcher.h"

#include "lib/residency/core.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace stepwell {

using residency::Instant;

Dispatcher::Dispatcher(const residency::Config &config, residency::CommandSink &sink,
                       const observe::LogOptions &log_options, uint64_t timeout_ns)
    : core_(std::make_unique<Core>(config)),
      core(*core_),
      loop(sink),
      log(log_options),
      assertions_(assertion_log()),
      timeout_default_ns_(timeout_ns)
{
}

void Dispatcher::work_here() const
{
    set_assertion_log(assertions_);
}

void Dispatcher::add(DispatchHook &hook)
{
    STW_ASSERT(!timer_.joinable());  // the timer reads hooks without the lock
    MutexLock lock(mutex());
    hooks_.push_back(&hook);
    loop.add(hook);
}

void Dispatcher::add_answers()
{
    MutexLock lock(mutex());
    loop.add(*this);
}

Instant Dispatcher::now()
{
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

Dispatcher::Deferred Dispatcher::take_deferred()
{
    return std::exchange(deferred_, {});
}

void Dispatcher::call_out(const Deferred &deferred)
{
    for (const LogLine &line : deferred.lines) log.line(line.level, line.topic, line.text.c_str());
    for (Waiter *waiter : deferred.calls) waiter->call(*waiter);
}

void Dispatcher::settle()
{
    const Deferred deferred = take_deferred();
    if (deferred.calls.empty() && deferred.lines.empty()) return;
    const MutexUnlock unlocked(mutex());
    call_out(deferred);
}

void Dispatcher::say(uint32_t level, const char *topic, std::string text)
{
    deferred_.lines.push_back({level, topic, std::move(text)});
}

void Dispatcher::ask(Waiter &waiter, const residency::FetchAsked &asked, Commands &out)
{
    waiter.done = false;
    waiter.grants.clear();
    waiter.fetch = core.fetch(asked, out);
    waiters_[waiter.fetch] = &waiter;
    if (core.waits_for_locks(waiter.fetch)) give_way_soon();
}

Status Dispatcher::fetch_pieces(Waiter &waiter, const residency::FetchAsked &asked)
{
    act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        ask(waiter, asked, out);
        arm_timer(asked.deadline);
    });
    MutexLock lock(mutex());
    while (!waiter.done) waiter.cv.wait(mutex());
    return std::move(waiter.status);
}

Waiter *Dispatcher::find(residency::FetchId fetch) const
{
    const auto found = waiters_.find(fetch);
    return found == waiters_.end() ? nullptr : found->second;
}

bool Dispatcher::granted(residency::Granted &granted, Commands &)
{
    return answer(granted.fetch, Status(), granted.grants);
}

bool Dispatcher::refused(residency::Refused &refused, Commands &)
{
    std::vector<residency::Grant> none;
    return answer(refused.fetch, refused.status, none);
}

// False: the fetch has no waiter.
bool Dispatcher::answer(residency::FetchId fetch, const Status &status,
                        std::vector<residency::Grant> &grants)
{
    const auto found = waiters_.find(fetch);
    if (found == waiters_.end()) return false;
    Waiter &waiter = *found->second;
    waiters_.erase(found);
    waiter.status = status;
    waiter.grants = std::move(grants);
    waiter.done = true;
    if (waiter.listener) waiter.listener->answered(waiter);
    if (waiter.call) {
        deferred_.calls.push_back(&waiter);
    } else {
        waiter.cv.notify_all();
    }
    return true;
}

void Dispatcher::give_way()
{
    for (DispatchHook *hook : hooks_) hook->give_way();
}

void Dispatcher::after_round(Instant now, Commands &out)
{
    note_progress();
    const auto stuck = static_cast<uint32_t>(core.stuck_fetches().size());
    // A view that ended without the lock before stuck_ was set has notified nobody.
    if (stuck > stuck_.exchange(stuck)) core.tick(now, out);
}

void Dispatcher::note_progress()
{
    ++progress_made_;
    progress_.notify_all();
}

bool Dispatcher::wait_progress(Instant deadline)
{
    const Instant time = now();
    if (time >= deadline) return false;
    const uint64_t seen = progress_made_;
    {
        const MutexUnlock unlocked(mutex());
        give_way();
    }
    if (progress_made_ == seen)
        (void)progress_.wait_until(mutex(),
                                   std::min<uint64_t>(deadline, time + 3600ull * 1000000000ull));
    return true;
}

Status Dispatcher::interrupted_since(Instant begin) const
{
    if (begin > interrupted_at_) return {};
    return Status::error(STW_ERROR_INTERRUPTED,
                         "the wait was ended by stw_runtime_interrupt; the work itself continues");
}

}  // namespace stepwell
