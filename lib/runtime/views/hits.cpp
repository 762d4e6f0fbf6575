// SPDX-License-Identifier: Apache-2.0
// Hits, which pin a gate without the lock, and views of what the core granted.
#include "lib/runtime/views/hits.h"

#include "lib/residency/gate.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/views/ends.h"
#include "lib/runtime/views/streams.h"

#include <new>

namespace stepwell {

using residency::PlaceId;

namespace {

// Needs a check that it belongs to a device.
bool is_a_stream(const void *stream)
{
    return stream != STW_STREAM_HOST && stream != STW_STREAM_SYNCED;
}

}  // namespace

// A hit never waits: if the lock is held, it is not recorded.
void HitPath::push_after_drain(ThreadState &state, residency::TensorId tensor, PlaceId place,
                               uint64_t step)
{
    if (!dispatch_.mutex().try_lock()) return;
    try {
        recorder_.drain_hits();
        (void)ViewTable::push_hit(state, tensor, place, step);
    } catch (const std::bad_alloc &) {
        // not recorded
    }
    dispatch_.mutex().unlock();
}

// Not recorded yet: if another range of the call is no hit, none is. Inline, as a call would be a
// large part of a hit's time.
[[gnu::always_inline]] inline uint32_t HitPath::pin_hit(const RequestedRange &range, uint64_t step)
{
    ThreadState *state = views_.thread_state();
    if (!state || errors_.any()) return residency::kNone;
    const uint32_t index = views_.take_slot(state);
    if (index == residency::kNone) return residency::kNone;
    if (!range.tensor->doors[range.place].gate.try_pin()) {
        views_.give_slot(state, index);
        return residency::kNone;
    }
    ViewSlot &view = views_.slot(index);
    view.tensor = range.tensor;
    view.byte_begin = range.byte_begin;
    view.byte_count = range.byte_count;
    view.step = step;
    view.owner = state->number;
    view.scratch = residency::kNone;
    view.access = STW_READ;
    view.place = range.place;
    view.by_gate = 1;
    return index;
}

[[gnu::always_inline]] inline void HitPath::open_hit(uint32_t index, const RequestedRange &range,
                                                     uint64_t step, stw_view *view_out)
{
    ThreadState *state = views_.thread_state();
    if (!ViewTable::push_hit(*state, range.tensor->id, range.place, step)) {
        push_after_drain(*state, range.tensor->id, range.place, step);
    }
    const memory::Tier &place = machine_.tiers[range.place];
    const residency::Door &door = range.tensor->doors[range.place];
    char *own = place.maps || place.aliases
                    ? static_cast<char *>(range.tensor->addresses[range.place])
                    : nullptr;
    char *begin = own ? own : place.base + door.offset.load(std::memory_order_relaxed);
    describe_view(range, place, begin + range.byte_begin, views_.open(index), view_out);
}

// Like pin_hit(), if the stream is already ordered after earlier work on the bytes.
[[gnu::always_inline]] inline uint32_t HitPath::pin_hit_on(const RequestedRange &range,
                                                           uint64_t step, void *stream)
{
    const memory::DeviceStreams *streams = machine_.tiers[range.place].streams.get();
    memory::DeviceStreams::Id id = 0;
    if (streams ? !streams->knows(stream, &id) : is_a_stream(stream)) return residency::kNone;
    const uint32_t index = pin_hit(range, step);
    if (index == residency::kNone) return index;
    const bool is_ready = streams ? streams_.is_ordered(index, range, id)
                                  : !machine_.pins || !machine_.tiers.is_host(range.place) ||
                                        streams_.is_joined(range);
    if (is_ready) return index;
    undo_hit(index);
    return residency::kNone;
}

bool HitPath::fetch_hit(const RequestedRange &range, uint64_t step, void *stream,
                        stw_view *view_out)
{
    const uint32_t index = pin_hit_on(range, step, stream);
    if (index == residency::kNone) return false;
    open_hit(index, range, step, view_out);
    return true;
}

bool HitPath::fetch_hits(const RequestedRange *ranges, uint32_t n, uint64_t step, void *stream,
                         stw_view *views_out)
{
    uint32_t pinned[kHitsAtOnceMax];
    uint32_t count = 0;
    for (; count < n; ++count) {
        pinned[count] = pin_hit_on(ranges[count], step, stream);
        if (pinned[count] == residency::kNone) break;
    }
    if (count == n) {
        for (uint32_t i = 0; i < n; ++i) open_hit(pinned[i], ranges[i], step, &views_out[i]);
        return true;
    }
    while (count > 0) undo_hit(pinned[--count]);
    return false;
}

bool HitPath::add_hit(HitChain *chain, const RequestedRange &range, uint64_t step)
{
    if (machine_.tiers[range.place].streams) return false;
    const uint32_t index = pin_hit(range, step);
    if (index == residency::kNone) return false;
    views_.slot(index).next = residency::kNone;
    (chain->last == residency::kNone ? chain->first : views_.slot(chain->last).next) = index;
    chain->last = index;
    return true;
}

// The ranges are in the slots.
void HitPath::open_hits(const HitChain &chain, stw_view *views_out)
{
    for (uint32_t index = chain.first; index != residency::kNone; ++views_out) {
        const ViewSlot &view = views_.slot(index);
        const uint32_t next = view.next;
        RequestedRange range;
        range.tensor = view.tensor;
        range.place = view.place;
        range.byte_begin = view.byte_begin;
        range.byte_count = view.byte_count;
        const uint64_t size = range.tensor->element_bits / 8;
        range.element_begin = range.tensor->shard_begin + range.byte_begin / size;
        range.element_count = range.byte_count / size;
        open_hit(index, range, view.step, views_out);
        index = next;
    }
}

void HitPath::undo_hits(const HitChain &chain)
{
    for (uint32_t index = chain.first; index != residency::kNone;) {
        const uint32_t next = views_.slot(index).next;
        undo_hit(index);
        index = next;
    }
}

// The program never had the view, so it is not recorded in a step.
void HitPath::undo_hit(uint32_t index)
{
    stw_view view{};
    view.tensor = views_.slot(index).tensor;
    views_.slot(index).step = 0;
    view.cookie = views_.open(index);
    (void)ends_.release_one(view, STW_STREAM_SYNCED, {});
}

void HitPath::describe_view(const RequestedRange &range, const memory::Tier &place, void *pointer,
                            uint64_t cookie, stw_view *view_out)
{
    view_out->pointer = pointer;
    view_out->bytes = range.byte_count;
    view_out->element_begin = range.element_begin;
    view_out->element_count = range.element_count;
    view_out->tensor = range.tensor;
    view_out->cookie = cookie;
    view_out->access = range.access;
    view_out->scope = range.scope;
    view_out->tier = static_cast<uint32_t>(place.kind);
    view_out->device = place.device;
}

}  // namespace stepwell
