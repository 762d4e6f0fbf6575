// SPDX-License-Identifier: Apache-2.0
// Copies of one device on streams of our own, one for each direction, so that both go at once and
// neither waits for the program's. Inside a Scope; any thread, several at once.
#pragma once

#include "drivers/common/mutex.h"
#include "drivers/cuda/marks.h"

#include <cstdint>
#include <vector>

namespace stepwell::drivers::cuda {

class Copies {
public:
    Copies(const Context &context, Marks &marks) : context_(context), marks_(marks) {}
    Copies(const Copies &) = delete;
    Copies &operator=(const Copies &) = delete;
    ~Copies();  // inside a Scope; nothing is under way

    int open();
    // All of them return when it is done, with CUDA's error.
    int up(Address to, const void *from, uint64_t bytes);
    int down(void *to, Address from, uint64_t bytes);
    int inside(Address to, Address from, uint64_t bytes);
    int zero(Address to, uint64_t bytes);
    // What is begun from now on comes behind the mark.
    int after(uint64_t mark);

private:
    struct Lane {
        StreamHandle stream = nullptr;
        Mutex mutex;
    };
    template <class Enqueue> int run(Lane &lane, Enqueue &&enqueue);
    int take_event(EventHandle *event_out);
    void give_event(EventHandle event);

    const Context &context_;
    Marks &marks_;
    Lane up_;
    Lane down_;
    Lane inside_;
    Mutex events_mutex_;
    std::vector<EventHandle> events_ STW_GUARDED_BY(events_mutex_);  // free
};

}  // namespace stepwell::drivers::cuda
