// SPDX-License-Identifier: Apache-2.0
// Copies of one device on two streams of our own: one for all that is written there, so that it
// happens in order, one for what is read. Both directions go at once, and neither waits for the
// program's streams unless it is told to. Inside a Scope; any thread, several at once.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/mutex.h"
#include "drivers/cuda/marks.h"

#include <array>
#include <atomic>
#include <cstdint>

namespace stepwell::drivers::cuda {

class Copies {
public:
    Copies(const Context &context, Marks &marks) : context_(context), marks_(marks) {}
    Copies(const Copies &) = delete;
    Copies &operator=(const Copies &) = delete;
    ~Copies();  // inside a Scope; nothing is under way

    // All of them return CUDA's error.
    int open();
    // Some of what is copied is memory of the system's that is not registered.
    void never_batch() { batches_.store(false); }
    // The mark is behind it.
    int up(Address to, const void *from, uint64_t bytes, uint64_t *mark_out);
    int down(void *to, Address from, uint64_t bytes, uint64_t *mark_out);
    int inside(Address to, Address from, uint64_t bytes, uint64_t *mark_out);
    int zero(Address to, uint64_t bytes, uint64_t *mark_out);
    // All up or all down, in no order; the mark is behind all of them. On an error nothing of them
    // is under way any more.
    int several(bool up, const stw_memory_copy *copies, uint32_t n, uint64_t *mark_out);
    // Copies of these directions (STW_COPIES_*) that start from now on are ordered after the mark.
    int after(uint64_t mark, uint32_t copies);
    // Behind all that was begun, and behind what that came after, in each direction. Of events of
    // its own: a mark may stand for one that is older, and that of a busy direction never passes.
    class Fence {
    public:
        explicit Fence(const Context &context) : context_(context) {}
        Fence(const Fence &) = delete;
        Fence &operator=(const Fence &) = delete;
        ~Fence();
        int passed() const;  // kNotReady: not yet

    private:
        friend class Copies;
        const Context &context_;
        std::array<EventHandle, 2> events_{};
    };
    int set(Fence &fence);

private:
    struct Lane {
        StreamHandle stream = nullptr;
        Mutex mutex;  // what is enqueued and its mark stand together
    };
    int enqueue(bool up, StreamHandle stream, const stw_memory_copy *copies, uint32_t n);
    int one_by_one(bool up, StreamHandle stream, const stw_memory_copy *copies, uint32_t n) const;
    template <class Enqueue> int run(Lane &lane, uint64_t *mark_out, Enqueue &&enqueue);

    const Context &context_;
    Marks &marks_;
    std::atomic<bool> batches_{false};  // several copies may be one call
    Lane in_;
    Lane out_;
};

}  // namespace stepwell::drivers::cuda
