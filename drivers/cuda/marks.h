// SPDX-License-Identifier: Apache-2.0
// Marks on consumers' streams: events, a few for each stream, used again in turn. A wait holds the
// record that it was told of, so an event may be recorded anew at once. Inside a Scope; any thread.
#pragma once

#include "drivers/common/mutex.h"
#include "drivers/cuda/context.h"

#include <array>
#include <cstdint>
#include <deque>

namespace stepwell::drivers::cuda {

class Marks {
public:
    explicit Marks(const Context &context) : context_(context) {}
    Marks(const Marks &) = delete;
    Marks &operator=(const Marks &) = delete;
    ~Marks();  // inside a Scope

    // CUDA's error, or kSuccess. Of a stream that was destroyed: behind all work of the device.
    int make(StreamHandle stream, uint64_t *mark_out);
    // The stream, or the calling thread, comes behind the mark; kInvalidHandle: there is no such
    // mark.
    int wait(StreamHandle stream, uint64_t mark);
    int wait_here(uint64_t mark);
    int passed(uint64_t mark);  // kNotReady: not yet

private:
    static constexpr uint32_t kKept = 32;  // of each stream
    static constexpr uint32_t kCountBits = 48;

    // A mark is the number of its stream here, and its own among those of the stream, from 1.
    struct OfStream {
        StreamHandle stream = nullptr;
        uint64_t count = 0;
        std::array<EventHandle, kKept> events{};
    };
    OfStream *find(StreamHandle stream, uint64_t *number_out) STW_REQUIRES(mutex_);
    EventHandle event_of(uint64_t mark) const STW_REQUIRES(mutex_);

    const Context &context_;
    Mutex mutex_;
    std::deque<OfStream> streams_ STW_GUARDED_BY(mutex_);
};

}  // namespace stepwell::drivers::cuda
