// SPDX-License-Identifier: Apache-2.0
// Granted ranges as views: hits, which pin a gate without the lock, and what the core granted.
#include "lib/runtime/runtime.h"
#include "lib/runtime/snapshot.h"

#include <new>

namespace stepwell {

using residency::PlaceId;

namespace {

// To be looked at, and perhaps refused.
bool is_a_stream(const void *stream)
{
    return stream != STW_STREAM_HOST && stream != STW_STREAM_SYNCED;
}

}  // namespace

// A hit never waits: where the core is busy, it does not hear of this one.
void Runtime::push_after_drain(ThreadState &state, residency::TensorId tensor, PlaceId place,
                               uint64_t step)
{
    if (!dispatch_.mutex().try_lock()) return;
    try {
        drain_hits();
        (void)ViewTable::push_hit(state, tensor, place, step);
    } catch (const std::bad_alloc &) {
        // Then nobody hears of this one.
    }
    dispatch_.mutex().unlock();
}

// Nobody is told yet: one of several that are pinned may be no hit, and then none was.
// In line: a hit is short, and a call more is a good part of it.
[[gnu::always_inline]] inline uint32_t Runtime::pin_hit(const Range &range, uint64_t step)
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

[[gnu::always_inline]] inline void Runtime::open_hit(uint32_t index, const Range &range,
                                                     uint64_t step, stw_view *view_out)
{
    ThreadState *state = views_.thread_state();
    if (!ViewTable::push_hit(*state, range.tensor->id, range.place, step)) {
        push_after_drain(*state, range.tensor->id, range.place, step);
    }
    const memory::Tier &place = tiers_[range.place];
    const residency::Door &door = range.tensor->doors[range.place];
    char *own = place.maps || place.shows
                    ? static_cast<char *>(range.tensor->addresses[range.place])
                    : nullptr;
    char *begin = own ? own : place.base + door.offset.load(std::memory_order_relaxed);
    describe_view(range, place, begin + range.byte_begin, views_.open(index), view_out);
}

// As pin_hit, where no order is lacking between the stream and what was done there.
[[gnu::always_inline]] inline uint32_t Runtime::pin_hit_on(const Range &range, uint64_t step,
                                                           void *stream)
{
    const memory::DeviceStreams *streams = tiers_[range.place].streams.get();
    memory::DeviceStreams::Id id = 0;
    if (streams ? !streams->knows(stream, &id) : is_a_stream(stream)) return residency::kNone;
    const uint32_t index = pin_hit(range, step);
    if (index == residency::kNone) return index;
    const bool is_ready = streams ? is_ordered(index, range, id)
                                  : !pins_ || !tiers_.is_host(range.place) || is_joined(range);
    if (is_ready) return index;
    undo_hit(index);
    return residency::kNone;
}

bool Runtime::fetch_hit(const Range &range, uint64_t step, void *stream, stw_view *view_out)
{
    const uint32_t index = pin_hit_on(range, step, stream);
    if (index == residency::kNone) return false;
    open_hit(index, range, step, view_out);
    return true;
}

// Of a pinned range: the stream has come behind all that was done there, or has done it itself.
bool Runtime::is_ordered(uint32_t index, const Range &range, memory::DeviceStreams::Id stream)
{
    const memory::Tier &place = tiers_[range.place];
    const residency::Door &door = range.tensor->doors[range.place];
    const char *begin = place.base + door.offset.load(std::memory_order_relaxed);
    const memory::SlotRange slots = place.slots_of(begin + range.byte_begin, range.byte_count);
    views_.slot(index).first_slot = slots.first;
    if (place.shows) {
        const memory::ShownTensor *shown = range.tensor->shown[range.place];
        if (shown && place.shows_runs && range.byte_count != range.tensor->bytes) return false;
        const auto block = static_cast<uint32_t>(range.byte_begin / block_bytes_);
        if (shown && !shown->shows(block, slots)) return false;
    }
    return place.streams->is_free(stream, slots);
}

bool Runtime::fetch_hits(const Range *ranges, uint32_t n, uint64_t step, void *stream,
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

bool Runtime::add_hit(HitChain *chain, const Range &range, uint64_t step)
{
    if (tiers_[range.place].streams) return false;
    const uint32_t index = pin_hit(range, step);
    if (index == residency::kNone) return false;
    views_.slot(index).next = residency::kNone;
    (chain->last == residency::kNone ? chain->first : views_.slot(chain->last).next) = index;
    chain->last = index;
    return true;
}

// What a range was is in its slot.
void Runtime::open_hits(const HitChain &chain, stw_view *views_out)
{
    for (uint32_t index = chain.first; index != residency::kNone; ++views_out) {
        const ViewSlot &view = views_.slot(index);
        const uint32_t next = view.next;
        Range range;
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

void Runtime::undo_hits(const HitChain &chain)
{
    for (uint32_t index = chain.first; index != residency::kNone;) {
        const uint32_t next = views_.slot(index).next;
        undo_hit(index);
        index = next;
    }
}

// The program has never had it, so its end is none of a step's either.
void Runtime::undo_hit(uint32_t index)
{
    stw_view view{};
    view.tensor = views_.slot(index).tensor;
    views_.slot(index).step = 0;
    view.cookie = views_.open(index);
    (void)release_one(view, STW_STREAM_SYNCED, 0);
}

void Runtime::describe_view(const Range &range, const memory::Tier &place, void *pointer,
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

void *Runtime::view_pointer(const Range &range, const residency::Grant &grant) const
{
    if (shown_of(range, grant.place))
        return static_cast<char *>(range.tensor->addresses[grant.place]) + range.byte_begin;
    return arena_pointer(range, grant);
}

void *Runtime::arena_pointer(const Range &range, const residency::Grant &grant) const
{
    const memory::Tier &at = tiers_[grant.place];
    if (!at.maps) {
        return at.base + static_cast<uint64_t>(grant.slot) * block_bytes_ + grant.slot_offset;
    }
    if (range.scratch == residency::kNone) {
        return static_cast<char *>(range.tensor->addresses[grant.place]) + range.byte_begin;
    }
    return pack_addresses_[dispatch_.core.pack_of(range.scratch)].at[grant.place];
}

Status Runtime::fill_views(Waiter &waiter, stw_view *views_out)
{
    const FetchPlan &plan = waiter.plan;
    ThreadState *state = views_.thread_state();
    std::vector<uint32_t> slots;
    const size_t wanted = plan.gathered.size() + plan.ranges.size();
    while (slots.size() < wanted) {
        const uint32_t slot = views_.take_slot(state);
        if (slot == residency::kNone) break;
        slots.push_back(slot);
    }
    if (slots.size() < wanted) {
        for (const uint32_t slot : slots) views_.give_slot(state, slot);
        undo_grants(plan, waiter.grants);
        undo_wholes(waiter);
        return Status::error(STW_ERROR_LIMIT,
                             "%u views are open, as many as views_max allows; release some, or "
                             "raise views_max when opening the runtime",
                             views_.open_views());
    }
    Status ordered = begin_streams(waiter);
    if (!ordered.ok()) {
        for (const uint32_t slot : slots) views_.give_slot(state, slot);
        undo_grants(plan, waiter.grants);
        undo_wholes(waiter);
        tiers_.log_failures(dispatch_.log);
        return ordered;
    }
    for (size_t i = 0; i < plan.ranges.size(); ++i) {
        open_view(slots[i], plan.ranges[i], waiter.grants[i], waiter, views_out);
    }
    for (size_t i = 0; i < plan.gathered.size(); ++i) {
        const uint32_t slot = slots[plan.ranges.size() + i];
        Range range = plan.gathered[i];
        range.scratch = range.tensor->sharding->whole;
        // A view without bytes counts among those of the whole, on this rank as on the others.
        if (is_absent(plan)) range.element_count = range.byte_count = 0;
        open_view(slot, range, waiter.whole_grants[i], waiter, views_out);
    }
    waiter.whole_grants.clear();
    for (Range range : plan.absent) {
        range.element_count = range.byte_count = 0;
        describe_view(range, tiers_[range.place], nullptr, kCopyCookie, &views_out[range.index]);
    }
    for (const Range &range : plan.copied) {
        stw_view &out = views_out[range.index];
        void *pointer = range.element_count > 0 ? range.into : nullptr;
        describe_view(range, tiers_[tiers_.host()], pointer, kCopyCookie, &out);
        out.bytes = view_bytes(range);
    }
    return {};
}

void Runtime::open_view(uint32_t slot, const Range &range, const residency::Grant &grant,
                        const Waiter &waiter, stw_view *views_out)
{
    const ThreadState *state = views_.thread_state();
    ViewSlot &view = views_.slot(slot);
    view.tensor = range.tensor;
    view.byte_begin = range.byte_begin;
    view.byte_count = range.byte_count;
    view.step = waiter.plan.step;
    const bool stays = state && (waiter.plan.flags & STW_FETCH_HAND_OVER) == 0;
    view.owner = stays ? state->number : 0;
    view.scratch = range.scratch;
    view.access = static_cast<uint8_t>(range.access);
    view.place = grant.place;
    view.by_gate = grant.by_gate;
    view.dtype = static_cast<uint8_t>(range.dtype);
    view.absent = is_absent(waiter.plan);
    void *pointer = nullptr;
    const void *there = nullptr;
    {
        MutexLock lock(dispatch_.mutex());
        pointer = range.byte_count > 0 ? view_pointer(range, grant) : nullptr;
        there = pointer ? arena_pointer(range, grant) : nullptr;
        if (range.tensor->notes.moved) note_use(*range.tensor, waiter.begin, waiter.owner);
    }
    if (pointer && is_gathered(range)) {
        pointer = static_cast<char *>(pointer) + range.byte_begin;
        there = pointer;
    }
    const memory::Tier &at = tiers_[grant.place];
    if (at.streams && pointer) view.first_slot = at.slots_of(there, view_bytes(range)).first;
    if (range.access == STW_REDUCE && pointer) {
        at.ops->zero(at.memory, pointer, sum_bytes(range));
    }
    stw_view &out = views_out[range.index];
    describe_view(range, at, pointer, views_.open(slot), &out);
    out.bytes = view_bytes(range);
}

}  // namespace stepwell
