// SPDX-License-Identifier: Apache-2.0
// Copies of one device on two streams of the module: one for all writes to the device, which
// therefore run in order, and one for reads. Both directions run at once, and neither waits for the
// program's streams unless after() says so. Inside a Scope; any thread, several at once.
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
    ~Copies();  // inside a Scope; no copy is in flight

    // All of them return CUDA's error.
    int open();
    // Some of the memory to be copied is system memory that is not registered.
    void never_batch() { batches_.store(false); }
    // The mark is recorded after the copy.
    int up(Address to, const void *from, uint64_t bytes, uint64_t *mark_out);
    int down(void *to, Address from, uint64_t bytes, uint64_t *mark_out);
    int inside(Address to, Address from, uint64_t bytes, uint64_t *mark_out);
    int zero(Address to, uint64_t bytes, uint64_t *mark_out);
    // All up or all down, in any order, with one mark after all of them. After an error none of
    // them is in flight.
    int several(bool up, const stw_memory_copy *copies, uint32_t n, uint64_t *mark_out);
    // Copies of these directions (STW_COPIES_*) that start from now on are ordered after the mark.
    int after(uint64_t mark, uint32_t copies);
    // After all copies that were started, and the work that they are ordered after, in each
    // direction. It has events of its own: a mark may be replaced by a later one, and on a busy
    // stream would never be seen to pass.
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
        Mutex mutex;  // a copy and its mark are enqueued together
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
