// SPDX-License-Identifier: Apache-2.0
// Mutex, lock and condition with the annotations by which clang proves at build time which lock
// guards what (-Wthread-safety); other compilers see plain pthread objects. Waits go by the
// monotonic clock. Any thread. libstdc++'s own types carry no annotations, hence these.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <ctime>

#if defined(__clang__)
#define STW_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define STW_THREAD_ATTRIBUTE(x)
#endif

#define STW_CAPABILITY(name)     STW_THREAD_ATTRIBUTE(capability(name))
#define STW_SCOPED_CAPABILITY    STW_THREAD_ATTRIBUTE(scoped_lockable)
#define STW_GUARDED_BY(mutex)    STW_THREAD_ATTRIBUTE(guarded_by(mutex))
#define STW_PT_GUARDED_BY(mutex) STW_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
#define STW_REQUIRES(...)        STW_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define STW_ACQUIRE(...)         STW_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define STW_RELEASE(...)         STW_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define STW_TRY_ACQUIRE(...)     STW_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define STW_EXCLUDES(...)        STW_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define STW_RETURNS_LOCK(mutex)  STW_THREAD_ATTRIBUTE(lock_returned(mutex))
#define STW_ASSERTS_HELD(...)    STW_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define STW_NO_THREAD_ANALYSIS   STW_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace stepwell {

// Constant to begin with and never destroyed, as on Linux none needs to be: a static one serves
// threads that still run while the process ends.
class STW_CAPABILITY("mutex") Mutex {
public:
    Mutex() = default;
    Mutex(const Mutex &) = delete;
    Mutex &operator=(const Mutex &) = delete;

    void lock() STW_ACQUIRE() { pthread_mutex_lock(&mutex_); }
    void unlock() STW_RELEASE() { pthread_mutex_unlock(&mutex_); }
    bool try_lock() STW_TRY_ACQUIRE(true) { return pthread_mutex_trylock(&mutex_) == 0; }
    // For a function that is called under the lock by what knows nothing of it. Nothing checks it.
    void assume_held() STW_ASSERTS_HELD() {}

private:
    friend class Condition;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class STW_SCOPED_CAPABILITY MutexLock {
public:
    explicit MutexLock(Mutex &mutex) STW_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    ~MutexLock() STW_RELEASE()
    {
        if (held_) mutex_.unlock();
    }
    MutexLock(const MutexLock &) = delete;
    MutexLock &operator=(const MutexLock &) = delete;

    // Before its end, and for good.
    void unlock() STW_RELEASE()
    {
        held_ = false;
        mutex_.unlock();
    }

private:
    Mutex &mutex_;
    bool held_ = true;
};

// Gives a lock back that its caller holds, and takes it again at its end, an exception's too.
class STW_SCOPED_CAPABILITY MutexUnlock {
public:
    explicit MutexUnlock(Mutex &mutex) STW_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
    ~MutexUnlock() STW_RELEASE() { mutex_.lock(); }
    MutexUnlock(const MutexUnlock &) = delete;
    MutexUnlock &operator=(const MutexUnlock &) = delete;

private:
    Mutex &mutex_;
};

// A wait may end early for no reason: always in a loop around what is waited for.
class Condition {
public:
    Condition()
    {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&condition_, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    ~Condition() { pthread_cond_destroy(&condition_); }
    Condition(const Condition &) = delete;
    Condition &operator=(const Condition &) = delete;

    void wait(Mutex &mutex) STW_REQUIRES(mutex) { pthread_cond_wait(&condition_, &mutex.mutex_); }
    // False when the instant has passed (CLOCK_MONOTONIC, nanoseconds).
    bool wait_until(Mutex &mutex, uint64_t instant_ns) STW_REQUIRES(mutex)
    {
        timespec until{};
        until.tv_sec = static_cast<time_t>(instant_ns / 1'000'000'000);
        until.tv_nsec = static_cast<long>(instant_ns % 1'000'000'000);
        return pthread_cond_timedwait(&condition_, &mutex.mutex_, &until) == 0;
    }
    void notify_one() { pthread_cond_signal(&condition_); }
    void notify_all() { pthread_cond_broadcast(&condition_); }

private:
    pthread_cond_t condition_;
};

// The end of a wait; UINT64_MAX if no clock reaches it.
constexpr uint64_t deadline_after(uint64_t begin_ns, uint64_t timeout_ns)
{
    return timeout_ns < UINT64_MAX - begin_ns ? begin_ns + timeout_ns : UINT64_MAX;
}

// For wait_until; never for what a test or a simulation may want to control.
inline uint64_t wait_clock_ns()
{
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace stepwell
