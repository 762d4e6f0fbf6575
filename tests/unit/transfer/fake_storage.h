// SPDX-License-Identifier: Apache-2.0
// A storage driver in memory that does what a test tells it: completes by hand or by itself, in
// order or shuffled, short, failing, with a medium that lies. Any thread; every wait is on a
// condition. A test that waits for what never comes fails after kPatienceNs.
#pragma once

#include <stepwell/driver.h>

#include "lib/support/thread_annotations.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace stepwell::testing {

constexpr uint64_t kPatienceNs = 60'000'000'000;

class FakeStorage {
public:
    // What becomes of one request: bytes moved or a negative errno. Under the fake's lock.
    using Script = std::function<int64_t(FakeStorage &, const stw_io &)>;

    explicit FakeStorage(uint32_t depth = 32, uint32_t alignment = 512)
        : depth_(depth), alignment_(alignment)
    {
    }

    // ---- to be set before the store is opened, or through with_lock -----------------------------
    bool by_hand = false;                // nothing completes before complete() is called
    uint32_t accept_max = UINT32_MAX;    // per submit
    stw_status submit_error = STW_OK;    // returned, with what accept_max allows taken
    std::mt19937_64 *shuffle = nullptr;  // completes in an order of its choice
    Script script;                       // null: do_io
    stw_status open_status = STW_OK;

    template <class Body> auto with_lock(Body body)
    {
        MutexLock lock(mutex_);
        changed_.notify_all();
        return body();
    }

    // What an honest medium does; for scripts.
    int64_t do_io(const stw_io &io)
    {
        if (io.offset_bytes + io.bytes > medium.size()) return 0;
        uint8_t *at = medium.data() + io.offset_bytes;
        if (io.kind == STW_IO_READ) std::memcpy(io.data, at, io.bytes);
        if (io.kind == STW_IO_WRITE) std::memcpy(at, io.data, io.bytes);
        return static_cast<int64_t>(io.bytes);
    }

    std::string options() const
    {
        char text[32];
        std::snprintf(text, sizeof text, "%" PRIxPTR, reinterpret_cast<uintptr_t>(this));
        return text;
    }

    static const stw_storage_ops &ops()
    {
        static const stw_storage_ops table = {
            sizeof(stw_storage_ops),
            STW_DRIVER_ABI,
            "fake",
            0,
            open,
            info,
            submit,
            poll,
            wake,
            flush,
            close,
            nullptr,
            nullptr,
        };
        return table;
    }

    // ---- by hand --------------------------------------------------------------------------------
    void complete(uint32_t n)
    {
        MutexLock lock(mutex_);
        for (; n > 0 && !pending_.empty(); --n) execute_one();
        changed_.notify_all();
    }
    bool wait_pending(size_t n)
    {
        return wait([&]() STW_NO_THREAD_ANALYSIS { return pending_.size() >= n; });
    }
    bool wait_logged(size_t n)
    {
        return wait([&]() STW_NO_THREAD_ANALYSIS { return log.size() >= n; });
    }
    bool wait_closed()
    {
        return wait([&]() STW_NO_THREAD_ANALYSIS { return closed_; });
    }
    // A poll that waits, with nothing pending: the engine's thread has nothing to do.
    size_t pending() const
    {
        MutexLock lock(mutex_);
        return pending_.size();
    }

    // ---- what happened; under with_lock while threads run ---------------------------------------
    std::vector<uint8_t> medium;
    std::vector<stw_io> log;  // accepted, in order
    size_t in_flight_peak = 0;
    uint64_t misaligned = 0;

private:
    static FakeStorage &self(stw_storage *storage)
    {
        return *reinterpret_cast<FakeStorage *>(storage);
    }

    template <class Ready> bool wait(Ready ready)
    {
        const uint64_t until_ns = wait_clock_ns() + kPatienceNs;
        MutexLock lock(mutex_);
        while (!ready()) {
            if (!changed_.wait_until(mutex_, until_ns)) return ready();
        }
        return true;
    }

    void execute_one() STW_REQUIRES(mutex_)
    {
        size_t at = 0;
        if (shuffle != nullptr) at = (*shuffle)() % pending_.size();
        const stw_io io = pending_[at];
        pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(at));
        ready_.push_back({io.tag, script ? script(*this, io) : do_io(io)});
    }

    static stw_status open(const stw_services *, const stw_storage_options *options,
                           stw_storage **out, stw_driver_error *error)
    {
        uintptr_t address = 0;
        if (std::sscanf(options->options, "%" SCNxPTR, &address) != 1) return STW_ERROR_INVALID;
        auto &fake = *reinterpret_cast<FakeStorage *>(address);
        MutexLock lock(fake.mutex_);
        if (fake.open_status < 0) {
            std::snprintf(error->sentence, sizeof error->sentence, "%s is full: %" PRIu64 " bytes.",
                          options->path, options->bytes);
            error->needed_bytes = options->bytes;
            return fake.open_status;
        }
        fake.medium.assign(options->bytes, 0);
        *out = reinterpret_cast<stw_storage *>(&fake);
        return STW_OK;
    }

    static void info(stw_storage *storage, stw_storage_info *out)
    {
        FakeStorage &fake = self(storage);
        MutexLock lock(fake.mutex_);
        out->alignment_bytes = fake.alignment_;
        out->queue_depth = fake.depth_;
        out->bytes = fake.medium.size();
    }

    static stw_status submit(stw_storage *storage, const stw_io *ios, uint32_t n,
                             uint32_t *accepted_out)
    {
        FakeStorage &fake = self(storage);
        MutexLock lock(fake.mutex_);
        uint32_t taken = 0;
        while (taken < n && taken < fake.accept_max &&
               fake.pending_.size() + fake.ready_.size() < fake.depth_) {
            const stw_io &io = ios[taken++];
            const uint64_t bits = reinterpret_cast<uintptr_t>(io.data) | io.offset_bytes | io.bytes;
            if (bits % fake.alignment_ != 0) ++fake.misaligned;
            fake.pending_.push_back(io);
            fake.log.push_back(io);
        }
        fake.in_flight_peak =
            std::max(fake.in_flight_peak, fake.pending_.size() + fake.ready_.size());
        *accepted_out = taken;
        fake.changed_.notify_all();
        return taken < n ? fake.submit_error : STW_OK;
    }

    static uint32_t poll(stw_storage *storage, stw_io_done *done, uint32_t capacity,
                         uint64_t wait_ns)
    {
        FakeStorage &fake = self(storage);
        const uint64_t until_ns = wait_clock_ns() + wait_ns;
        MutexLock lock(fake.mutex_);
        for (;;) {
            if (!fake.by_hand) {
                while (!fake.pending_.empty()) {
                    fake.execute_one();
                    if (fake.shuffle != nullptr && (*fake.shuffle)() % 3 == 0) break;
                }
            }
            uint32_t n = 0;
            for (; n < capacity && !fake.ready_.empty(); ++n) {
                done[n] = fake.ready_.front();
                fake.ready_.pop_front();
            }
            const bool woken = fake.woken_;
            fake.woken_ = false;
            if (n > 0 || woken || wait_ns == 0) return n;
            if (!fake.changed_.wait_until(fake.mutex_, until_ns)) wait_ns = 0;
        }
    }

    static void wake(stw_storage *storage)
    {
        FakeStorage &fake = self(storage);
        MutexLock lock(fake.mutex_);
        fake.woken_ = true;
        fake.changed_.notify_all();
    }

    static stw_status flush(stw_storage *) { return STW_OK; }

    static stw_status close(stw_storage *storage, uint64_t)
    {
        FakeStorage &fake = self(storage);
        MutexLock lock(fake.mutex_);
        if (!fake.pending_.empty() || !fake.ready_.empty()) return STW_ERROR_TIMEOUT;
        fake.closed_ = true;
        fake.changed_.notify_all();
        return STW_OK;
    }

    const uint32_t depth_;
    const uint32_t alignment_;
    mutable Mutex mutex_;
    Condition changed_;
    std::deque<stw_io> pending_ STW_GUARDED_BY(mutex_);
    std::deque<stw_io_done> ready_ STW_GUARDED_BY(mutex_);
    bool woken_ STW_GUARDED_BY(mutex_) = false;
    bool closed_ STW_GUARDED_BY(mutex_) = false;
};

// A clock that moves a microsecond whenever it is read.
inline const stw_services *fake_services()
{
    static std::atomic<uint64_t> now_ns{0};
    static const stw_services services = {
        sizeof(stw_services),
        STW_DRIVER_ABI,
        nullptr,
        [](void *) -> uint64_t { return now_ns.fetch_add(1000) + 1000; },
        [](void *, uint32_t, const char *, const char *) {},
    };
    return &services;
}

}  // namespace stepwell::testing
