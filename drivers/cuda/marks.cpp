// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/marks.h"

#include <algorithm>

namespace stepwell::drivers::cuda {

Marks::~Marks()
{
    for (OfStream &each : streams_)
        for (const EventHandle event : each.events)
            if (event != nullptr) context_.api().event_destroy(event);
}

Marks::OfStream *Marks::find(StreamHandle stream, uint64_t *number_out)
{
    for (size_t i = 0; i < streams_.size(); ++i) {
        if (streams_[i].stream != stream) continue;
        *number_out = i;
        return &streams_[i];
    }
    *number_out = streams_.size();
    streams_.emplace_back();
    streams_.back().stream = stream;
    return &streams_.back();
}

int Marks::make(StreamHandle stream, uint64_t *mark_out)
{
    const Api &api = context_.api();
    const MutexLock lock(mutex_);
    uint64_t number = 0;
    OfStream &mine = *find(stream, &number);
    EventHandle &event = mine.events[(mine.count + 1) % kKept];
    int error = kSuccess;
    if (event == nullptr)
        error = api.event_create(&event, kEventBlockingSync | kEventDisableTiming);
    if (error == kSuccess) error = api.event_record(event, stream);
    // Its work is not over for having been destroyed, and nothing else tells when it is. The event
    // is of no record then, and a wait for it is none.
    if (error == kInvalidHandle || error == kContextIsDestroyed) error = api.context_synchronize();
    if (error != kSuccess) return error;
    *mark_out = number << kCountBits | ++mine.count;
    return kSuccess;
}

// One that was forgotten is older than the oldest that is kept, which will do.
EventHandle Marks::event_of(uint64_t mark) const
{
    const uint64_t number = mark >> kCountBits;
    const uint64_t count = mark & ((uint64_t{1} << kCountBits) - 1);
    if (number >= streams_.size() || count == 0 || count > streams_[number].count) return nullptr;
    const OfStream &of = streams_[number];
    const uint64_t oldest = of.count < kKept ? 1 : of.count - kKept + 1;
    return of.events[std::max(count, oldest) % kKept];
}

int Marks::wait(StreamHandle stream, uint64_t mark)
{
    const MutexLock lock(mutex_);
    const EventHandle event = event_of(mark);
    return event ? context_.api().stream_wait_event(stream, event, 0) : int{kInvalidHandle};
}

// An event that is recorded anew meanwhile is waited for up to the later mark.
int Marks::wait_here(uint64_t mark)
{
    EventHandle event = nullptr;
    {
        const MutexLock lock(mutex_);
        event = event_of(mark);
    }
    return event ? context_.api().event_synchronize(event) : int{kInvalidHandle};
}

int Marks::passed(uint64_t mark)
{
    const MutexLock lock(mutex_);
    const EventHandle event = event_of(mark);
    return event ? context_.api().event_query(event) : int{kInvalidHandle};
}

}  // namespace stepwell::drivers::cuda
