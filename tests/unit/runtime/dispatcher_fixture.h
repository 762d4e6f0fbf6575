// SPDX-License-Identifier: Apache-2.0
// A dispatcher over a small core and a disk whose transfers the test completes, with two hooks that
// record each call and check whether the lock is held. Threads wait on conditions, and only the
// timer waits for time to pass, so a lost wake-up makes a test hang.
#pragma once

#include "lib/residency/core.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/dispatch/waiter.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stepwell::dispatching {

using residency::Access;
using residency::FetchId;
using residency::Grant;
using residency::Instant;
using residency::kNever;
using residency::PlaceId;
using residency::TensorId;
using residency::Transfer;

constexpr PlaceId kHostPlace = 0;
constexpr PlaceId kNvmePlace = 1;
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kHourNs = 3600ull * 1000 * 1000 * 1000;
constexpr uint64_t kTimeoutNs = 7;

// By any thread; in a test with one thread, by the caller.
inline bool is_held(Mutex &mutex) STW_NO_THREAD_ANALYSIS
{
    if (!mutex.try_lock()) return true;
    mutex.unlock();
    return false;
}

// Events in their order, under a leaf lock of its own: half of them happen without the
// dispatcher's.
class Record {
public:
    void note(std::string what)
    {
        MutexLock lock(mutex_);
        notes_.push_back(std::move(what));
        noted_.notify_all();
    }
    void wait_for(const std::string &what)
    {
        MutexLock lock(mutex_);
        while (std::find(notes_.begin(), notes_.end(), what) == notes_.end()) noted_.wait(mutex_);
    }
    std::vector<std::string> take()
    {
        MutexLock lock(mutex_);
        return std::exchange(notes_, {});
    }

private:
    Mutex mutex_;
    Condition noted_;
    std::vector<std::string> notes_ STW_GUARDED_BY(mutex_);
};

using Notes = std::vector<std::string>;

inline residency::Config config_of(uint32_t host_blocks)
{
    residency::Config config;
    config.block_bytes = kBlockBytes;
    config.tensors_max = 64;
    residency::PlaceConfig host;
    host.blocks = host_blocks;
    host.cpu_access = true;
    residency::PlaceConfig nvme;
    nvme.tier = residency::Tier::kNvme;
    nvme.blocks = 64;
    config.places = {host, nvme};
    return config;
}

inline residency::FetchAsked asked_of(TensorId tensor, Access access, uint32_t flags = 0)
{
    residency::FetchAsked asked;
    residency::Request request;
    request.tensor = tensor;
    request.access = access;
    request.place = kHostPlace;
    request.byte_count = kBlockBytes;
    asked.requests = {request};
    asked.flags = flags;
    return asked;
}

inline residency::Release release_of(TensorId tensor, Access access)
{
    residency::Release release;
    release.tensor = tensor;
    release.access = access;
    release.place = kHostPlace;
    release.byte_count = kBlockBytes;
    return release;
}

// A block of its own, empty.
inline TensorId create_in(Dispatcher &dispatch, const std::string &name)
{
    residency::TensorSpec spec;
    spec.name = name;
    spec.bytes = kBlockBytes;
    spec.no_packing = true;
    spec.policy.allowed = 1u << kHostPlace | 1u << kNvmePlace;
    spec.policy.home = kHostPlace;
    MutexLock lock(dispatch.mutex());
    Result<TensorId> made = dispatch.core.create(std::move(spec));
    EXPECT_TRUE(made.ok()) << made.status().sentence();
    return made.ok() ? made.value() : residency::kNone;
}

// Transfers wait here until the test completes them.
class Disk final : public residency::CommandSink {
public:
    [[nodiscard]] Instant now() const override { return Dispatcher::now(); }
    void forget(const residency::Forget &) override {}
    void swap_memory(std::vector<residency::Swap> &) override {}
    void pack_freed(residency::PackId) override {}
    void submit(std::vector<Transfer> &transfers, Commands &) override STW_REQUIRES(runtime_lock)
    {
        queue.insert(queue.end(), transfers.begin(), transfers.end());
        more.notify_all();
    }
    void promote(residency::TransferId) override {}
    void failed(const residency::BackgroundError &error) override
    {
        ADD_FAILURE() << error.status.sentence();
    }

    std::deque<Transfer> queue STW_GUARDED_BY(runtime_lock);
    Condition more;
};

// Records each call, and checks that the lock is held or free as the interface says.
class Hook final : public DispatchHook {
public:
    Hook(const char *name, Record &record) : name_(name), record_(record) {}

    bool granted(residency::Granted &, Commands &) override STW_REQUIRES(runtime_lock)
    {
        locked("granted");
        return takes;
    }
    bool refused(residency::Refused &, Commands &) override STW_REQUIRES(runtime_lock)
    {
        locked("refused");
        return takes;
    }
    void after_round(Instant, Commands &) override STW_REQUIRES(runtime_lock)
    {
        progress_seen = dispatch->progress();
        if (in_round) std::exchange(in_round, nullptr)();
    }
    void before_unlock() override STW_REQUIRES(runtime_lock)
    {
        locked("before_unlock");
        transfers_seen = dispatch->core.transfers_in_flight();
        if (in_before_unlock) std::exchange(in_before_unlock, nullptr)();
    }
    void unlocked() override
    {
        free("unlocked");
        if (in_unlocked) std::exchange(in_unlocked, nullptr)();
    }
    void give_way() override { free("give_way"); }
    [[nodiscard]] Instant due() const override STW_REQUIRES(runtime_lock)
    {
        ++looks;
        looked.notify_all();
        return due_at;
    }
    void on_timer(Instant) override { free("on_timer"); }
    void on_timer_locked(Instant now) override STW_REQUIRES(runtime_lock)
    {
        locked("on_timer_locked");
        if (now < due_at) return;
        due_at = kNever;
        fired = now;
        ++fires;
        looked.notify_all();
    }
    void interrupted(Instant at) override STW_REQUIRES(runtime_lock)
    {
        locked("interrupted");
        interrupted_last = at;
    }

    Dispatcher *dispatch = nullptr;
    bool alone = true;   // no other thread takes the lock: unlocked calls must find it free
    bool takes = false;  // answers
    std::function<void()> in_round;
    std::function<void()> in_before_unlock;
    std::function<void()> in_unlocked;
    uint64_t progress_seen = 0;
    uint32_t transfers_seen = 0;
    Instant due_at STW_GUARDED_BY(runtime_lock) = kNever;
    Instant fired STW_GUARDED_BY(runtime_lock) = 0;
    uint32_t fires STW_GUARDED_BY(runtime_lock) = 0;
    mutable uint32_t looks STW_GUARDED_BY(runtime_lock) = 0;
    mutable Condition looked;
    Instant interrupted_last STW_GUARDED_BY(runtime_lock) = 0;

private:
    void locked(const char *what)
    {
        EXPECT_TRUE(is_held(dispatch->mutex())) << name_ << what;
        record_.note(name_ + what);
    }
    void free(const char *what)
    {
        EXPECT_FALSE(alone && is_held(dispatch->mutex())) << name_ << what;
        record_.note(name_ + what);
    }

    const std::string name_;
    Record &record_;
};

// A thread that waits under the lock. Once constructed it has released the lock: it sleeps.
class Sleeper {
public:
    Sleeper(Dispatcher &dispatch, std::function<void()> wait)
        : thread_([this, &dispatch, wait = std::move(wait)] {
              MutexLock lock(dispatch.mutex());
              asleep_ = true;
              begun_.notify_all();
              wait();
          })
    {
        MutexLock lock(dispatch.mutex());
        while (!asleep_) begun_.wait(dispatch.mutex());
    }
    ~Sleeper() { thread_.join(); }
    Sleeper(const Sleeper &) = delete;
    Sleeper &operator=(const Sleeper &) = delete;

private:
    bool asleep_ STW_GUARDED_BY(runtime_lock) = false;
    Condition begun_;
    std::thread thread_;  // last: it uses the other members
};

class DispatcherTest : public testing::Test, public AnswerListener {
protected:
    DispatcherTest()
    {
        observe::LogOptions log;
        log.user = this;
        log.callback = [](void *self, uint32_t, const char *topic, const char *text) {
            auto &test = *static_cast<DispatcherTest *>(self);
            EXPECT_FALSE(is_held(test.dispatch_->mutex())) << text;
            test.record_.note(std::string(topic) + ": " + text);
        };
        dispatch_ = std::make_unique<Dispatcher>(config_of(1), disk_, log, kTimeoutNs);
        first_.dispatch = last_.dispatch = dispatch_.get();
        dispatch_->add(first_);
        dispatch_->add_answers();
        dispatch_->add(last_);
    }
    ~DispatcherTest() override { dispatch_->stop_timer(); }

    void answered(Waiter &waiter) override STW_REQUIRES(runtime_lock)
    {
        EXPECT_TRUE(is_held(dispatch_->mutex()));
        EXPECT_TRUE(waiter.done);
        answered_at_ = Dispatcher::now();
        record_.note("answered");
    }
    static void called(Waiter &waiter)
    {
        auto &test = *static_cast<DispatcherTest *>(waiter.user);
        EXPECT_FALSE(test.first_.alone && is_held(test.dispatch_->mutex()));
        test.record_.note("called");
        if (test.in_call_) std::exchange(test.in_call_, nullptr)();
    }

    TensorId create(const char *name) { return create_in(*dispatch_, name); }
    void evict(TensorId tensor)
    {
        dispatch_->act([&](Core &core, Commands &out)
                           STW_REQUIRES(runtime_lock) { core.evict(tensor, kHostPlace, out); });
        finish_all();
    }
    // Written and evicted to nvme: a fetch of it waits for a transfer.
    TensorId create_at_nvme(const char *name)
    {
        const TensorId tensor = create(name);
        Waiter waiter;
        ask(waiter, tensor, Access::kWrite);
        finish_all();
        release(waiter, tensor, Access::kWrite);
        evict(tensor);
        (void)record_.take();
        return tensor;
    }
    void ask(Waiter &waiter, const residency::FetchAsked &asked)
    {
        dispatch_->act([&](Core &, Commands &out)
                           STW_REQUIRES(runtime_lock) { ask_locked(waiter, asked, out); });
    }
    void ask(Waiter &waiter, TensorId tensor, Access access, uint32_t flags = 0)
    {
        ask(waiter, asked_of(tensor, access, flags));
    }
    void ask_locked(Waiter &waiter, const residency::FetchAsked &asked, Commands &out)
        STW_REQUIRES(runtime_lock)
    {
        waiter.begin = Dispatcher::now();
        dispatch_->ask(waiter, asked, out);
    }
    void finish_all()
    {
        bool any = true;
        while (any) {
            dispatch_->act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
                any = !disk_.queue.empty();
                if (!any) return;
                const Transfer transfer = disk_.queue.front();
                disk_.queue.pop_front();
                core.transfer_done(transfer.id, {}, out);
            });
        }
    }
    void release(Waiter &waiter, TensorId tensor, Access access)
    {
        dispatch_->act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            ASSERT_TRUE(waiter.done && waiter.status.ok()) << waiter.status.sentence();
            if (waiter.grants.at(0).by_gate) {
                core.gate(tensor, kHostPlace).unpin();
                core.gate_idle(tensor, out);
                return;
            }
            core.release(release_of(tensor, access), out);
        });
    }
    void sleep_until_answered(Waiter &waiter) STW_REQUIRES(runtime_lock)
    {
        while (!waiter.done) waiter.cv.wait(dispatch_->mutex());
    }
    stw_status code_of(const Waiter &waiter)
    {
        MutexLock lock(dispatch_->mutex());
        EXPECT_TRUE(waiter.done);
        return waiter.status.code();
    }
    bool is_answered(const Waiter &waiter)
    {
        MutexLock lock(dispatch_->mutex());
        return waiter.done;
    }

    Record record_;
    Disk disk_;
    Hook first_{"first.", record_};
    Hook last_{"last.", record_};
    std::unique_ptr<Dispatcher> dispatch_;
    std::function<void()> in_call_;
    Instant answered_at_ = 0;
};

}  // namespace stepwell::dispatching
