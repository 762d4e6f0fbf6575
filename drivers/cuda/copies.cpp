// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/copies.h"

namespace stepwell::drivers::cuda {

Copies::~Copies()
{
    for (const EventHandle event : events_) context_.api().event_destroy(event);
    for (const Lane *lane : {&up_, &down_, &inside_})
        if (lane->stream != nullptr) context_.api().stream_destroy(lane->stream);
}

int Copies::open()
{
    int error = kSuccess;
    for (Lane *lane : {&up_, &down_, &inside_})
        if (error == kSuccess)
            error = context_.api().stream_create(&lane->stream, kStreamNonBlocking);
    return error;
}

// A thread that waits sleeps: copies are long, and the processors are the program's.
int Copies::take_event(EventHandle *event_out)
{
    {
        const MutexLock lock(events_mutex_);
        if (!events_.empty()) {
            *event_out = events_.back();
            events_.pop_back();
            return kSuccess;
        }
        events_.reserve(events_.capacity() + 1);  // so that it can be given back
    }
    return context_.api().event_create(event_out, kEventBlockingSync | kEventDisableTiming);
}

void Copies::give_event(EventHandle event)
{
    const MutexLock lock(events_mutex_);
    events_.push_back(event);
}

template <class Enqueue> int Copies::run(Lane &lane, Enqueue &&enqueue)
{
    EventHandle event = nullptr;
    if (const int error = take_event(&event)) return error;
    int error = kSuccess;
    {
        const MutexLock lock(lane.mutex);
        error = enqueue(lane.stream);
        if (error == kSuccess) error = context_.api().event_record(event, lane.stream);
    }
    if (error == kSuccess) error = context_.api().event_synchronize(event);
    give_event(event);
    return error;
}

int Copies::up(Address to, const void *from, uint64_t bytes)
{
    return run(up_, [&](StreamHandle stream) {
        return context_.api().copy_to_device(to, from, bytes, stream);
    });
}

int Copies::down(void *to, Address from, uint64_t bytes)
{
    return run(down_, [&](StreamHandle stream) {
        return context_.api().copy_to_host(to, from, bytes, stream);
    });
}

int Copies::inside(Address to, Address from, uint64_t bytes)
{
    return run(inside_, [&](StreamHandle stream) {
        return context_.api().copy_inside(to, from, bytes, stream);
    });
}

int Copies::zero(Address to, uint64_t bytes)
{
    return run(inside_,
               [&](StreamHandle stream) { return context_.api().set_bytes(to, 0, bytes, stream); });
}

int Copies::after(uint64_t mark)
{
    for (Lane *lane : {&up_, &down_, &inside_}) {
        const MutexLock lock(lane->mutex);
        if (const int error = marks_.wait(lane->stream, mark)) return error;
    }
    return kSuccess;
}

}  // namespace stepwell::drivers::cuda
