// SPDX-License-Identifier: Apache-2.0
// Dispatcher: the runtime's one lock and what happens under it. Takes events to the residency
// core, has its commands carried out, wakes threads that wait for answers, and has a thread for
// deadlines. Other rooms take part in events as hooks. Only the core decides where bytes are and
// who may use them.
#pragma once

#include "lib/observe/log.h"
#include "lib/residency/command_loop.h"
#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/handles/lock.h"
#include "lib/support/status.h"
#include "lib/support/thread_annotations.h"

#include <atomic>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace stepwell {

class AssertionLog;

class Dispatcher final : residency::EventHook {
    const std::unique_ptr<Core> core_;  // reached as `core`

public:
    // Uses `sink` from the first event on.
    Dispatcher(const residency::Config &config, residency::CommandSink &sink,
               const observe::LogOptions &log, uint64_t timeout_ns);
    ~Dispatcher();
    Dispatcher(const Dispatcher &) = delete;
    Dispatcher &operator=(const Dispatcher &) = delete;

    // Only before the first event and start_timer(): hooks are read without the lock.
    // add_answers() sets when waiters get their answers, in the order of the hooks.
    void add(DispatchHook &hook);
    void add_answers();

    Mutex &mutex() const STW_RETURNS_LOCK(runtime_lock) { return mutex_; }
    Core &core STW_GUARDED_BY(runtime_lock);
    residency::CommandLoop loop STW_GUARDED_BY(runtime_lock);
    observe::Log log;

    // One event: calls `body(core, out)` under the lock, then handles its consequences.
    template <class Body> void act(Body &&body) STW_EXCLUDES(runtime_lock)
    {
        Deferred deferred;
        work_here();
        {
            MutexLock lock(mutex());
            body(core, loop.out);
            loop.run();
            for (DispatchHook *hook : hooks_) hook->before_unlock();
            deferred = take_deferred();
        }
        for (DispatchHook *hook : hooks_) hook->unlocked();
        call_out(deferred);
    }
    // After a change under the lock that is not an event: logs and calls what it left to be done
    // without the lock, which is released meanwhile.
    void settle() STW_REQUIRES(runtime_lock);
    // Logs a line once the lock is released.
    void say(uint32_t level, const char *topic, std::string text) STW_REQUIRES(runtime_lock);

    // ---- fetches that wait for an answer -------------------------------------------------------
    // Asks the core for a waiter, which must live until it is answered. It may ask again
    // afterwards.
    void ask(Waiter &waiter, const residency::FetchAsked &asked, Commands &out)
        STW_REQUIRES(runtime_lock);
    // For the library's own pieces: blocks until they are granted or the deadline has passed.
    Status fetch_pieces(Waiter &waiter, const residency::FetchAsked &asked)
        STW_EXCLUDES(runtime_lock);
    // Null: a fetch without a waiter, or one that was answered.
    [[nodiscard]] Waiter *find(residency::FetchId fetch) const STW_REQUIRES(runtime_lock);
    void forget_waiter(residency::FetchId fetch) STW_REQUIRES(runtime_lock)
    {
        waiters_.erase(fetch);
    }
    // A fetch waits for a view to end. The end of a view must then take the lock.
    [[nodiscard]] bool has_stuck_fetch() const
    {
        return stuck_.load(std::memory_order_relaxed) != 0;
    }

    // Ends views that touches have left open. Waits do it themselves: ask() for fetches that wait
    // for locks, wait_progress() for all else.
    void give_way() STW_EXCLUDES(runtime_lock);
    // After the event, since a view that a touch keeps may be in the way.
    void give_way_soon() { gives_way_.store(true); }
    [[nodiscard]] bool gives_way_now() { return gives_way_.exchange(false); }

    // ---- progress ------------------------------------------------------------------------------
    // Incremented whenever a waited-for condition may have changed.
    [[nodiscard]] uint64_t progress() const STW_REQUIRES(runtime_lock) { return progress_made_; }
    void note_progress() STW_REQUIRES(runtime_lock);
    // False when the deadline has passed.
    bool wait_progress(residency::Instant deadline) STW_REQUIRES(runtime_lock);

    // ---- time ----------------------------------------------------------------------------------
    static residency::Instant now();
    // 0: the runtime's default.
    [[nodiscard]] uint64_t timeout(uint64_t timeout_ns) const
    {
        return timeout_ns ? timeout_ns : timeout_default_ns_;
    }
    // The end of a wait that begins now, or at `begin`; kNever if no clock reaches it.
    [[nodiscard]] residency::Instant deadline(uint64_t timeout_ns) const
    {
        return deadline(now(), timeout_ns);
    }
    [[nodiscard]] residency::Instant deadline(residency::Instant begin, uint64_t timeout_ns) const
    {
        return deadline_after(begin, timeout(timeout_ns));
    }
    Status start_timer();
    void stop_timer() STW_EXCLUDES(runtime_lock);
    void arm_timer(residency::Instant deadline) STW_REQUIRES(runtime_lock);
    [[nodiscard]] bool is_closing() const STW_REQUIRES(runtime_lock) { return closing_; }
    // Ends waits of the program. Async-signal-safe.
    void interrupt();
    // Time of the last interrupt that the timer has seen: waits that began earlier end.
    [[nodiscard]] residency::Instant interrupted_at() const STW_REQUIRES(runtime_lock)
    {
        return interrupted_at_;
    }
    [[nodiscard]] Status interrupted_since(residency::Instant begin) const
        STW_REQUIRES(runtime_lock);

private:
    // Left by an event for the time after the lock is released: lines of the log, calls of
    // waiters.
    struct LogLine {
        uint32_t level = STW_LOG_ERROR;
        const char *topic = "";
        std::string text;
    };
    struct Deferred {
        std::vector<Waiter *> calls;
        std::vector<LogLine> lines;
    };
    Deferred take_deferred() STW_REQUIRES(runtime_lock);
    void call_out(const Deferred &deferred) STW_EXCLUDES(runtime_lock);

    bool granted(residency::Granted &granted, Commands &out) override STW_REQUIRES(runtime_lock);
    bool refused(residency::Refused &refused, Commands &out) override STW_REQUIRES(runtime_lock);
    void after_round(residency::Instant now, Commands &out) override STW_REQUIRES(runtime_lock);
    bool answer(residency::FetchId fetch, const Status &status,
                std::vector<residency::Grant> &grants) STW_REQUIRES(runtime_lock);
    void run_timer();
    void end_waits(residency::Instant interrupted, Commands &out) STW_REQUIRES(runtime_lock);

    // The thread works for this runtime: what fails on it ends this one.
    void work_here() const;

    mutable Mutex mutex_;
    AssertionLog *const assertions_;  // of the thread that opened the runtime: the runtime's
    const uint64_t timeout_default_ns_;
    std::vector<DispatchHook *> hooks_;
    Deferred deferred_ STW_GUARDED_BY(runtime_lock);
    std::unordered_map<residency::FetchId, Waiter *> waiters_ STW_GUARDED_BY(runtime_lock);
    Condition progress_;
    uint64_t progress_made_ STW_GUARDED_BY(runtime_lock) = 0;
    std::atomic<uint32_t> stuck_{0};
    std::atomic<bool> gives_way_{false};

    int timer_fd_ = -1;
    std::thread timer_;
    residency::Instant timer_target_ STW_GUARDED_BY(runtime_lock) = residency::kNever;
    bool closing_ STW_GUARDED_BY(runtime_lock) = false;
    residency::Instant interrupted_at_ STW_GUARDED_BY(runtime_lock) = 0;
    std::atomic<residency::Instant> interrupted_ns_{0};  // time of the last one; 0: none
};

}  // namespace stepwell
