// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/marks.h"

#include <stepwell/types.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace stepwell::drivers::cuda {

namespace {

constexpr uint64_t kCaptureNs = 1'000'000'000;  // longest wait for the end of a capture
constexpr auto kAskEvery = std::chrono::microseconds(200);

}  // namespace

Marks::~Marks()
{
    for (OfStream &each : streams_)
        for (const EventHandle event : each.events)
            if (event != nullptr) context_.api().event_destroy(event);
}

// ------------------------------------------------------------------------------------ streams ----

// One handle means the default stream of the calling thread, another stream in each thread.
Marks::OfStream *Marks::find(StreamHandle stream, uint64_t id, uint64_t *number_out)
{
    for (size_t i = 0; i < streams_.size(); ++i) {
        if (streams_[i].stream != stream) continue;
        if (stream == STW_STREAM_PER_THREAD && streams_[i].id != id) continue;
        *number_out = i;
        return &streams_[i];
    }
    return nullptr;
}

// Reuses the entry of a forgotten stream whose marks have passed: new marks are ordered after them.
Marks::OfStream *Marks::take(StreamHandle stream, uint64_t id, uint64_t *number_out)
{
    const auto is_free = [this](const OfStream &each) {
        if (each.stream != nullptr) return false;
        return each.count == 0 ||
               context_.api().event_query(each.events[each.count % kKept]) == kSuccess;
    };
    auto found = std::find_if(streams_.begin(), streams_.end(), is_free);
    if (found == streams_.end()) found = streams_.emplace(streams_.end());
    found->stream = stream;
    found->id = id;
    found->own = found->gone = false;
    *number_out = static_cast<uint64_t>(found - streams_.begin());
    return &*found;
}

int Marks::identify(StreamHandle stream, uint64_t *number_out, MutexLock &lock)
{
    const Api &api = context_.api();
    unsigned long long id = 0;
    const int gone = api.stream_id ? api.stream_id(stream, &id) : int{kSuccess};
    OfStream *of = find(stream, id, number_out);
    for (; of != nullptr && of->recording; of = find(stream, id, number_out)) recorded_.wait(lock);
    if (of == nullptr) {
        (void)take(stream, id, number_out);
        return gone;
    }
    of->gone = gone != kSuccess;
    if (of->gone || of->id == id) return kSuccess;
    if (const int error = await_device()) return error;
    of->id = id;
    return kSuccess;
}

// For a stream that was destroyed and not forgotten. If any stream of the device records a graph,
// CUDA refuses this call and invalidates the capture. CUDA does not say which stream records one,
// and to query other streams, which may be destroyed as well, is no better.
int Marks::await_device() const
{
    return context_.api().context_synchronize();
}

int Marks::know(StreamHandle stream)
{
    MutexLock lock(mutex_);
    uint64_t number = 0;
    return identify(stream, &number, lock);
}

int Marks::forget(StreamHandle stream)
{
    MutexLock lock(mutex_);
    uint64_t number = 0;
    if (const int error = identify(stream, &number, lock)) return error;
    OfStream &of = streams_[number];
    if (const int error = record(of, lock)) return error;
    of.stream = nullptr;
    return kSuccess;
}

// -------------------------------------------------------------------------------------- marks ----

// A capture may begin between the query and the record: the record may belong to the graph then,
// and is not used.
int Marks::record(OfStream &of, MutexLock &lock)
{
    const Api &api = context_.api();
    if (!of.own && !of.gone && context_.captures(of.stream)) return kCaptureUnsupported;
    EventHandle &event = of.events[(of.count + 1) % kKept];
    int error = kSuccess;
    if (event == nullptr)
        error = api.event_create(&event, kEventBlockingSync | kEventDisableTiming);
    if (error != kSuccess) return error;
    error = of.gone ? int{kInvalidHandle} : record_event(of, event, lock);
    // The work of a destroyed stream may still run, and only a wait for the whole device covers it.
    // After that the event has no record, or one that has passed, so a wait for it returns at once.
    if (error == kInvalidHandle || error == kContextIsDestroyed)
        error = await_device();
    else if (error == kSuccess && !of.own && context_.captures(of.stream))
        error = kCaptureUnsupported;
    if (error == kSuccess) ++of.count;
    return error;
}

int Marks::record_event(OfStream &of, EventHandle event, MutexLock &lock)
{
    of.recording = true;
    const StreamHandle stream = of.stream;
    lock.pause();
    const int error = context_.api().event_record(event, stream);
    lock.resume();
    of.recording = false;
    recorded_.notify_all();
    return error;
}

int Marks::make(StreamHandle stream, uint64_t *mark_out)
{
    MutexLock lock(mutex_);
    uint64_t number = 0;
    if (const int error = identify(stream, &number, lock)) return error;
    OfStream &of = streams_[number];
    const int error = record(of, lock);
    if (error != kSuccess && (error != kCaptureUnsupported || of.gone)) return error;
    *mark_out = number << kCountBits | (of.count + (error == kSuccess ? 0 : 1));
    return kSuccess;
}

int Marks::make_own(StreamHandle stream, uint64_t *mark_out)
{
    MutexLock lock(mutex_);
    uint64_t number = 0;
    OfStream *of = find(stream, 0, &number);
    if (of == nullptr) of = take(stream, 0, &number);
    // The handle belonged to a stream of the program.
    else if (!of->own && await_device() != kSuccess)
        return kInvalidHandle;
    of->own = true;
    const int error = record(*of, lock);
    if (error == kSuccess) *mark_out = number << kCountBits | of->count;
    return error;
}

// A mark whose event was reused is older than the oldest kept mark, which is waited for instead.
int Marks::event_of(uint64_t mark, EventHandle *event_out, MutexLock &lock)
{
    const uint64_t number = mark >> kCountBits;
    const uint64_t count = mark & ((uint64_t{1} << kCountBits) - 1);
    if (number >= streams_.size() || count == 0 || count > streams_[number].count + 1)
        return kInvalidHandle;
    OfStream &of = streams_[number];
    while (count > of.count && of.recording) recorded_.wait(lock);
    if (count > of.count) {
        if (of.stream == nullptr) return kInvalidHandle;
        uint64_t same = number;
        if (const int error = identify(of.stream, &same, lock)) return error;
        // Only its own thread can record on a thread's default stream.
        if (same != number) return kCaptureUnsupported;
        if (const int error = record(of, lock)) return error;
    }
    const uint64_t oldest = of.count < kKept ? 1 : of.count - kKept + 2;
    *event_out = of.events[std::max(count, oldest) % kKept];
    return kSuccess;
}

// If the event is recorded anew meanwhile, the wait covers the later mark. That cannot be a
// deadlock: enqueued work waits only for work that was enqueued before.
int Marks::wait(StreamHandle stream, uint64_t mark)
{
    EventHandle event = nullptr;
    {
        MutexLock lock(mutex_);
        if (const int error = event_of(mark, &event, lock)) return error;
    }
    return context_.api().stream_wait_event(stream, event, 0);
}

int Marks::wait_here(uint64_t mark)
{
    const Deadline deadline = Deadline::after(kCaptureNs);
    for (;;) {
        EventHandle event = nullptr;
        int error = kSuccess;
        {
            MutexLock lock(mutex_);
            error = event_of(mark, &event, lock);
        }
        if (error == kSuccess) return context_.api().event_synchronize(event);
        if (error != kCaptureUnsupported || deadline.passed()) return error;
        std::this_thread::sleep_for(kAskEvery);
    }
}

int Marks::passed(uint64_t mark)
{
    MutexLock lock(mutex_);
    EventHandle event = nullptr;
    const int error = event_of(mark, &event, lock);
    if (error != kSuccess) return error == kCaptureUnsupported ? int{kNotReady} : error;
    return context_.api().event_query(event);
}

}  // namespace stepwell::drivers::cuda
