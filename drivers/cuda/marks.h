// SPDX-License-Identifier: Apache-2.0
// Marks on consumers' streams: events, a few for each stream, used again in turn. A wait holds the
// record that it was told of, so an event may be recorded anew at once. Inside a Scope; any thread.
//
// A stream that records a graph is not touched: its mark gets its number at once, and its event
// after the capture, when the next wait for the mark asks for it. Until then such a wait returns
// kCaptureUnsupported, and is tried again.
//
// CUDA gives the handle of a destroyed stream to the next one, so the stream behind a handle is
// looked at by its number at each mark. Where it is another one than it was, the work of the old
// one may still run and nothing else tells when it is over: the device is waited for.
//
// CUDA blocks a call that enqueues while the queue of its stream is full. Events are recorded and
// waited for without the lock, so that holds up only those who need the same stream.
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
    // The program begins to use the stream: this is the one that the handle means from now on.
    int know(StreamHandle stream);
    // Of a stream that was destroyed: behind all work of the device.
    int make(StreamHandle stream, uint64_t *mark_out);
    // Of a stream of our own, which records nothing and is destroyed when nothing uses marks.
    int make_own(StreamHandle stream, uint64_t *mark_out);
    // The program destroys the stream: the handle means nothing from now on, its marks are made.
    int forget(StreamHandle stream);
    // The stream, or the calling thread, comes behind the mark; kInvalidHandle: there is no such
    // mark.
    int wait(StreamHandle stream, uint64_t mark);
    int wait_here(uint64_t mark);  // a second for the end of a capture, else as long as it takes
    int passed(uint64_t mark);     // kNotReady: not yet

private:
    static constexpr uint32_t kKept = 32;  // of each stream, one of them for the next mark
    static constexpr uint32_t kCountBits = 48;

    // A mark is the number of its stream here, and its own among those of the stream, from 1. One
    // more than were made is a mark that is made when it is asked for.
    struct OfStream {
        StreamHandle stream = nullptr;  // null: it was forgotten
        uint64_t id = 0;                // CUDA's, which no other stream ever has; 0: not known
        bool own = false;
        bool gone = false;       // it was destroyed without our knowing
        bool recording = false;  // by one thread at a time, without the lock
        uint64_t count = 0;
        std::array<EventHandle, kKept> events{};
    };
    // No event is being recorded on it when this returns.
    int identify(StreamHandle stream, uint64_t *number_out, MutexLock &lock) STW_REQUIRES(mutex_);
    OfStream *find(StreamHandle stream, uint64_t id, uint64_t *number_out) STW_REQUIRES(mutex_);
    OfStream *take(StreamHandle stream, uint64_t id, uint64_t *number_out) STW_REQUIRES(mutex_);
    // Without the lock while CUDA records the event.
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
