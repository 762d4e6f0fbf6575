// SPDX-License-Identifier: Apache-2.0
// Pool: type-stable storage for the objects behind C handles. An object's memory is never used for
// anything else, so a stale handle is detected by its tag. Address space is reserved in segments,
// each twice as large as the one before; pages are touched as objects are made. Lives until the
// library is unloaded; any thread.
#pragma once

#include <sys/mman.h>

#include "lib/support/thread_annotations.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <new>
#include <utility>

namespace stepwell {

template <class T> class Pool {
public:
    constexpr Pool(uint32_t objects_max, uint32_t tag) : objects_max_(objects_max), tag_(tag) {}

    // Null when the pool is full. Throws bad_alloc.
    T *take()
    {
        MutexLock lock(mutex_);
        const bool rested = free_ && free_->size() > kReuseAfter;
        T *object = rested ? nullptr : make();
        if (!object && free_ && !free_->empty()) {
            object = free_->front();
            free_->pop_front();
        }
        if (!object) return nullptr;
        ++live_;
        object->tag.store(tag_, std::memory_order_release);
        return object;
    }

    // Makes the handle invalid. The object is not used again before give().
    void retire(T *object) { object->tag.store(0, std::memory_order_release); }
    void give(T *object)
    {
        retire(object);
        MutexLock lock(mutex_);
        --live_;
        if (!free_) free_ = new (std::nothrow) std::deque<T *>();
        if (!free_) return;
        try {
            free_->push_back(object);
        } catch (const std::bad_alloc &) {
            return;  // never used again
        }
    }
    [[nodiscard]] uint32_t objects_max() const { return objects_max_; }
    [[nodiscard]] uint32_t live() const
    {
        MutexLock lock(mutex_);
        return live_;
    }

    // Whether this pool handed it out and it is in use.
    [[nodiscard]] bool is_live(const T *object) const
    {
        // Most programs have no more than the first segment holds.
        const T *base = bases_[0].load(std::memory_order_acquire);
        if (base && offset_in(object, base) < objects_in(0) * sizeof(T)) [[likely]]
            return is_live_at(object, base);
        return is_live_later(object);
    }

    // Gives all memory back, at the end of the library: no handle is valid any more.
    void unload()
    {
        MutexLock lock(mutex_);
        delete std::exchange(free_, nullptr);
        while (segments_ > 0) {
            --segments_;
            T *base = bases_[segments_].exchange(nullptr);
            for (; used_ > 0; --used_) base[used_ - 1].~T();
            used_ = segments_ > 0 ? objects_in(segments_ - 1) : 0;
            munmap(base, bytes_in(segments_));
        }
        made_ = 0;
    }

private:
    // An object is used again only after this many others were freed, so stale handles are
    // detected for long.
    static constexpr size_t kReuseAfter = 64;
    static constexpr uint32_t kSegmentsMax = 16;
    static constexpr uint64_t kFirstBytes = 1ull << 20;

    static constexpr uint64_t bytes_in(uint32_t segment) { return kFirstBytes << segment; }
    static constexpr uint64_t objects_in(uint32_t segment) { return bytes_in(segment) / sizeof(T); }

    static uintptr_t offset_in(const T *object, const T *base)
    {
        return reinterpret_cast<uintptr_t>(object) - reinterpret_cast<uintptr_t>(base);
    }
    // The address lies in the segment that begins at `base`.
    bool is_live_at(const T *object, const T *base) const
    {
        return offset_in(object, base) % sizeof(T) == 0 &&
               object->tag.load(std::memory_order_acquire) == tag_;
    }
    // The address does not lie in the first segment.
    [[gnu::noinline]] bool is_live_later(const T *object) const
    {
        for (uint32_t segment = 1; segment < kSegmentsMax; ++segment) {
            const T *base = bases_[segment].load(std::memory_order_acquire);
            if (!base) return false;
            if (offset_in(object, base) < objects_in(segment) * sizeof(T))
                return is_live_at(object, base);
        }
        return false;
    }

    // Null where there are as many as there may be.
    T *make() STW_REQUIRES(mutex_)
    {
        if (made_ == objects_max_) return nullptr;
        if (segments_ == 0 || used_ == objects_in(segments_ - 1)) {
            if (segments_ == kSegmentsMax) return nullptr;
            void *memory = mmap(nullptr, bytes_in(segments_), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) throw std::bad_alloc();
            bases_[segments_++].store(static_cast<T *>(memory), std::memory_order_release);
            used_ = 0;
        }
        ++made_;
        return new (bases_[segments_ - 1].load(std::memory_order_relaxed) + used_++) T();
    }

    const uint32_t objects_max_;
    const uint32_t tag_;
    mutable Mutex mutex_;
    std::atomic<T *> bases_[kSegmentsMax] = {};
    uint32_t segments_ STW_GUARDED_BY(mutex_) = 0;
    uint64_t used_ STW_GUARDED_BY(mutex_) = 0;  // of the last segment
    uint32_t made_ STW_GUARDED_BY(mutex_) = 0;
    uint32_t live_ STW_GUARDED_BY(mutex_) = 0;
    // Made at first use, so that no constructor runs at load.
    std::deque<T *> *free_ STW_GUARDED_BY(mutex_) STW_PT_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace stepwell
