// SPDX-License-Identifier: Apache-2.0
// The order of work on a device when a view is opened and when it ends. The rules are in
// streams.h; this finds the blocks. Copies are ordered by StreamOrdering.
#include "lib/runtime/views/streams.h"

#include "lib/memory/host_pins.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/recording/grounds.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace stepwell {

using residency::PlaceId;

Status StreamOrder::check_stream(void *stream)
{
    if (stream == STW_STREAM_HOST || stream == STW_STREAM_SYNCED) return {};
    Status first;
    for (const memory::Tier &place : machine_.tiers) {
        if (!place.streams) continue;
        Result<memory::DeviceStreams::Id> id = place.streams->id_of(stream);
        if (id.ok()) return {};
        if (first.ok()) first = std::move(id.status());
    }
    if (!first.ok()) return first;
    return Status::error(STW_ERROR_INVALID,
                         "stream %p is not one of this device, which has none; pass "
                         "STW_STREAM_HOST",
                         stream);
}

Status StreamOrder::forget_stream(void *stream)
{
    if (stream == STW_STREAM_HOST || stream == STW_STREAM_SYNCED) return {};
    for (const memory::Tier &place : machine_.tiers)
        if (place.streams) STW_TRY(place.streams->forget(stream));
    return {};
}

Status StreamOrder::when_not_busy(const std::function<Status()> &order) const
{
    const residency::Instant deadline = dispatch_.deadline(0);
    for (;;) {
        Status status = order();
        if (status.code() != STW_ERROR_BUSY || dispatch_.now() >= deadline) return status;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

Status StreamOrder::check_stream_at(PlaceId place, void *stream)
{
    memory::DeviceStreams::Id id = 0;
    return machine_.tiers[place].streams ? stream_id(place, stream, &id) : Status();
}

Status StreamOrder::stream_id(PlaceId place, void *stream, memory::DeviceStreams::Id *id_out)
{
    const memory::Tier &at = machine_.tiers[place];
    if (stream == STW_STREAM_HOST) {
        return Status::error(STW_ERROR_INVALID,
                             "no stream is given, and device %u has streams: pass the one that "
                             "uses the bytes, STW_STREAM_LEGACY where frameworks say 0, or "
                             "STW_STREAM_SYNCED",
                             at.device);
    }
    Result<memory::DeviceStreams::Id> id = at.streams->id_of(stream);
    if (!id.ok()) return std::move(id.status());
    *id_out = id.value();
    return {};
}

// From the view's first slot on. A tensor smaller than a block lies in one; a larger one starts at
// a block.
memory::SlotRange StreamOrder::slots_of(const ViewSlot &view) const
{
    const bool buffer = view.scratch != residency::kNone;
    const uint64_t bytes = buffer ? buffer_bytes(view) : uint64_t{view.byte_count};
    const Sharding *sharding = view.tensor->sharding.get();
    // A view of a gathered tensor starts at its offset in that, unlike a buffer.
    const bool whole = buffer && sharding && view.scratch == sharding->whole;
    const uint64_t all =
        whole ? sharding->padded_elements() * (view.tensor->element_bits / 8) : view.tensor->bytes;
    const bool small = (buffer && !whole) || all < machine_.block_bytes;
    const uint64_t offset = small ? 0 : view.byte_begin % machine_.block_bytes;
    const uint64_t last = (offset + bytes - 1) / machine_.block_bytes;
    return {view.first_slot, static_cast<uint32_t>(last + 1)};
}

// CUDA refuses a copy across two registrations, and frameworks copy a view as a whole. A
// concurrent hit is not detected: a copy that it starts meanwhile is one of pageable memory.
void StreamOrder::join_registrations(const RequestedRange &range, const residency::Grant &grant)
{
    memory::HostPins::Range blocks;
    {
        const MutexLock lock(dispatch_.mutex());
        const memory::SlotRange slots = machine_.tiers[grant.place].slots_of(
            addresses_.arena_pointer(range, grant), sum_bytes(range));
        blocks = {slots.first, slots.count};
    }
    if (blocks.count == 1 || machine_.pins->are_joined(blocks.first, blocks.count)) return;
    const memory::HostPins::Range all = machine_.pins->registered_with(blocks);
    {
        const MutexLock lock(dispatch_.mutex());
        if (!dispatch_.core.are_quiet(machine_.tiers.host(), all.first, all.count,
                                      range.tensor->id))
            return;
    }
    machine_.pins->join(blocks, all);
}

// For a range that is pinned at the host tier.
bool StreamOrder::is_joined(const RequestedRange &range) const
{
    const residency::Door &door = range.tensor->doors[range.place];
    const memory::Tier &host = machine_.tiers[machine_.tiers.host()];
    const char *begin = host.base + door.offset.load(std::memory_order_relaxed) + range.byte_begin;
    const memory::SlotRange slots = host.slots_of(begin, range.byte_count);
    return slots.count == 1 || machine_.pins->are_joined(slots.first, slots.count);
}

// Orders the stream after the work of other views of the gathered tensor.
Status StreamOrder::begin_whole(const RequestedRange &range, const residency::Grant &grant,
                                void *stream)
{
    const memory::Tier &at = machine_.tiers[grant.place];
    if (!at.streams || range.byte_count == 0) return {};
    memory::DeviceStreams::Id id = 0;
    STW_TRY(stream_id(grant.place, stream, &id));
    const char *whole = addresses_.bytes_at(range.tensor->sharding->whole, grant);
    const memory::SlotRange slots = at.slots_of(whole + range.byte_begin, range.byte_count);
    return at.streams->begin(id, slots, range.access != STW_READ);
}

Status StreamOrder::begin_export(const stw_view &view, void *stream)
{
    const ViewSlot &slot = views_.slot(ViewTable::index_of(view.cookie));
    const memory::Tier &at = machine_.tiers[slot.place];
    if (!at.streams || view.bytes == 0) return {};
    memory::DeviceStreams::Id id = 0;
    STW_TRY(stream_id(slot.place, stream, &id));
    return at.streams->begin(id, slots_of(slot), slot.access != STW_READ);
}

// Most blocks are mapped when their transfers end; those that needed no transfer are mapped here.
Status StreamOrder::show_range(const RequestedRange &range, PlaceId place, memory::SlotRange slots)
{
    memory::AddressAlias *shown = addresses_.shown_of(range, place);
    const auto block = static_cast<uint32_t>(range.byte_begin / machine_.block_bytes);
    return shown && !shown->is_mapped_to(block, slots) ? shown->map(block, slots) : Status();
}

// For a pinned range: the stream is ordered after all work on it, or is the only one that worked.
bool StreamOrder::is_ordered(uint32_t index, const RequestedRange &range,
                             memory::DeviceStreams::Id stream)
{
    const memory::Tier &place = machine_.tiers[range.place];
    const residency::Door &door = range.tensor->doors[range.place];
    const char *begin = place.base + door.offset.load(std::memory_order_relaxed);
    const memory::SlotRange slots = place.slots_of(begin + range.byte_begin, range.byte_count);
    views_.slot(index).first_slot = slots.first;
    if (place.aliases) {
        const memory::AddressAlias *shown = range.tensor->shown[range.place];
        if (shown && !shown->shows(range.byte_count == range.tensor->bytes)) return false;
        const auto block = static_cast<uint32_t>(range.byte_begin / machine_.block_bytes);
        if (shown && !shown->is_mapped_to(block, slots)) return false;
    }
    return place.streams->is_free(stream, slots);
}

}  // namespace stepwell
