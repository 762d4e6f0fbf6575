// SPDX-License-Identifier: Apache-2.0
// Marks on consumers' streams: events, a few for each stream, reused in turn. CUDA binds a wait to
// the record that the event has at that time, so an event may be recorded anew at once. Inside a
// Scope; any thread.
//
// A stream that records a graph is not touched: its mark gets a number at once, and an event after
// the capture, at the next wait for the mark. Until then such a wait returns kCaptureUnsupported
// and is tried again.
//
// CUDA reuses the handle of a destroyed stream, so each mark compares the stream's unique number.
// If the number has changed, work of the old stream may still run, and only a wait for the whole
// device covers it.
//
// CUDA blocks a call that enqueues while the queue of its stream is full. Events are recorded and
// waited for without the lock, so that a full queue delays only threads that need the same stream.
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

    // All of them return CUDA's error, or kSuccess.

    // The program begins to use the stream: the handle means this stream from now on.
    int know(StreamHandle stream);
    // For a stream that was destroyed: after all work of the device.
    int make(StreamHandle stream, uint64_t *mark_out);
    // For a stream of the module, which is never captured and is destroyed after all uses of marks.
    int make_own(StreamHandle stream, uint64_t *mark_out);
    // The program destroys the stream: the handle means nothing from now on, its marks are made.
    int forget(StreamHandle stream);
    // Makes the stream, or the calling thread, wait for the mark. kInvalidHandle: there is no such
    // mark.
    int wait(StreamHandle stream, uint64_t mark);
    int wait_here(uint64_t mark);  // a second for the end of a capture, else as long as it takes
    int passed(uint64_t mark);     // kNotReady: not yet

private:
    static constexpr uint32_t kKept = 32;  // events of each stream, one of them for the next mark
    static constexpr uint32_t kCountBits = 48;

    // A mark is the index of its stream here and its count among the stream's marks, from 1. A
    // count one above the marks made is a mark whose event is recorded at the first wait for it.
    struct OfStream {
        StreamHandle stream = nullptr;  // null: forgotten
        uint64_t id = 0;                // CUDA's unique number; 0: unknown
        bool own = false;
        bool gone = false;       // destroyed without forget()
        bool recording = false;  // by one thread at a time, without the lock
        uint64_t count = 0;
        std::array<EventHandle, kKept> events{};
    };
    // No event is being recorded on the stream when this returns.
    int identify(StreamHandle stream, uint64_t *number_out, MutexLock &lock) STW_REQUIRES(mutex_);
    OfStream *find(StreamHandle stream, uint64_t id, uint64_t *number_out) STW_REQUIRES(mutex_);
    OfStream *take(StreamHandle stream, uint64_t id, uint64_t *number_out) STW_REQUIRES(mutex_);
    // Releases the lock while CUDA records the event.
    int record(OfStream &of, MutexLock &lock) STW_REQUIRES(mutex_);
    int record_event(OfStream &of, EventHandle event, MutexLock &lock) STW_REQUIRES(mutex_);
    int await_device() const;
    int event_of(uint64_t mark, EventHandle *event_out, MutexLock &lock) STW_REQUIRES(mutex_);

    const Context &context_;
    Mutex mutex_;
    Condition recorded_;
    std::deque<OfStream> streams_ STW_GUARDED_BY(mutex_);
};

}  // namespace stepwell::drivers::cuda
