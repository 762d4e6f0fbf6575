// SPDX-License-Identifier: Apache-2.0
// A mutex and a condition that clang's thread-safety analysis understands, and a deadline that
// cannot overflow. Drivers have their own copy because they include nothing of lib/.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if defined(__clang__)
#define STW_DRIVER_ATTRIBUTE(x) __attribute__((x))
#else
#define STW_DRIVER_ATTRIBUTE(x)
#endif
#ifndef STW_GUARDED_BY
#define STW_GUARDED_BY(mutex) STW_DRIVER_ATTRIBUTE(guarded_by(mutex))
#endif
#ifndef STW_REQUIRES
#define STW_REQUIRES(mutex) STW_DRIVER_ATTRIBUTE(requires_capability(mutex))
#endif

namespace stepwell::drivers {

class STW_DRIVER_ATTRIBUTE(capability("mutex")) Mutex {
public:
    Mutex() = default;
    Mutex(const Mutex &) = delete;
    Mutex &operator=(const Mutex &) = delete;

private:
    friend class MutexLock;
    std::mutex mutex_;
};

class STW_DRIVER_ATTRIBUTE(scoped_lockable) MutexLock {
public:
    explicit MutexLock(Mutex &mutex) STW_DRIVER_ATTRIBUTE(acquire_capability(mutex))
        : lock_(mutex.mutex_)
    {
    }
    ~MutexLock() STW_DRIVER_ATTRIBUTE(release_capability()) { lock_.unlock(); }
    // Around a call that blocks; between the two the caller may not use what the mutex guards.
    void pause() { lock_.unlock(); }
    void resume() { lock_.lock(); }
    MutexLock(const MutexLock &) = delete;
    MutexLock &operator=(const MutexLock &) = delete;

private:
    friend class Condition;
    std::unique_lock<std::mutex> lock_;
};

// A point of the monotonic clock. It bounds waits of the kernel, so it is never the library's
// clock, which a test may stop.
class Deadline {
public:
    using Clock = std::chrono::steady_clock;

    static Deadline after(uint64_t wait_ns)
    {
        const auto now = Clock::now();
        const auto room = Clock::time_point::max() - now;
        const uint64_t room_ns = static_cast<uint64_t>(std::chrono::nanoseconds(room).count());
        return Deadline(wait_ns >= room_ns ? Clock::time_point::max()
                                           : now + std::chrono::nanoseconds(wait_ns));
    }
    uint64_t remaining_ns() const
    {
        const auto now = Clock::now();
        return now >= at_ ? 0 : static_cast<uint64_t>(std::chrono::nanoseconds(at_ - now).count());
    }
    bool passed() const { return remaining_ns() == 0; }
    Clock::time_point at() const { return at_; }

private:
    explicit Deadline(Clock::time_point at) : at_(at) {}
    Clock::time_point at_;
};

class Condition {
public:
    void wait(MutexLock &lock) { condition_.wait(lock.lock_); }
    void wait_until(MutexLock &lock, const Deadline &deadline)
    {
        // Some libraries overflow on time_point::max(); a spurious return is always allowed.
        const auto hour = Deadline::Clock::now() + std::chrono::hours(1);
        condition_.wait_until(lock.lock_, deadline.at() < hour ? deadline.at() : hour);
    }
    void notify_one() { condition_.notify_one(); }
    void notify_all() { condition_.notify_all(); }

private:
    std::condition_variable condition_;
};

}  // namespace stepwell::drivers
