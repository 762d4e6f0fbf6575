// SPDX-License-Identifier: Apache-2.0
// Pool: type-stable storage for the objects behind C handles. An object's memory is never used for
// anything else, so a stale handle is detected by its tag. Address space is reserved once; pages
// are touched as objects are made. Lives as long as the process; any thread.
#pragma once

#include <sys/mman.h>

#include "lib/support/thread_annotations.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <new>

namespace stepwell {

template <class T> class Pool {
public:
    constexpr Pool(uint32_t objects_max, uint32_t tag) : objects_max_(objects_max), tag_(tag) {}

    // Null when the pool is full. Throws bad_alloc.
    T *take()
    {
        MutexLock lock(mutex_);
        if (!base_) reserve();
        T *object = nullptr;
        const bool rested = free_ && free_->size() > kReuseAfter;
        if (!rested && used_ < objects_max_) {
            object = base_ + used_++;
            new (object) T();
        } else if (free_ && !free_->empty()) {
            object = free_->front();
            free_->pop_front();
        }
        if (object) object->tag.store(tag_, std::memory_order_release);
        return object;
    }

    // Makes the handle invalid. The object is not used again before give().
    void retire(T *object) { object->tag.store(0, std::memory_order_release); }
    void give(T *object)
    {
        retire(object);
        MutexLock lock(mutex_);
        if (!free_) free_ = new (std::nothrow) std::deque<T *>();
        if (!free_) return;
        try {
            free_->push_back(object);
        } catch (const std::bad_alloc &) {
            return;  // never used again
        }
    }
    [[nodiscard]] uint32_t objects_max() const { return objects_max_; }

    // Whether this pool handed it out and it is in use.
    [[nodiscard]] bool is_live(const T *object) const
    {
        const T *base = base_.load(std::memory_order_acquire);
        const auto offset = reinterpret_cast<uintptr_t>(object) - reinterpret_cast<uintptr_t>(base);
        if (!base || offset >= sizeof(T) * static_cast<uintptr_t>(objects_max_)) return false;
        if (offset % sizeof(T) != 0) return false;
        return object->tag.load(std::memory_order_acquire) == tag_;
    }

private:
    // An object is used again only after this many others were freed, so stale handles are
    // detected for long.
    static constexpr size_t kReuseAfter = 64;

    void reserve() STW_REQUIRES(mutex_)
    {
        void *memory =
            mmap(nullptr, sizeof(T) * static_cast<size_t>(objects_max_), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        base_.store(static_cast<T *>(memory), std::memory_order_release);
    }

    const uint32_t objects_max_;
    const uint32_t tag_;
    Mutex mutex_;
    std::atomic<T *> base_{nullptr};
    uint32_t used_ STW_GUARDED_BY(mutex_) = 0;
    // Made at first use, so that no constructor runs at load.
    std::deque<T *> *free_ STW_GUARDED_BY(mutex_) STW_PT_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace stepwell
