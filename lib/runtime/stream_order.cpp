// SPDX-License-Identifier: Apache-2.0
// The order of work on a device when a view is opened and when it ends. The rules are in streams.h;
// here is where the blocks are. The order of copies is that of StreamOrdering.
#include "lib/runtime/runtime.h"
#include "lib/runtime/snapshot.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace stepwell {

using residency::PlaceId;

Status Runtime::check_stream(void *stream)
{
    if (stream == STW_STREAM_HOST || stream == STW_STREAM_SYNCED) return {};
    Status first;
    for (const memory::Tier &place : tiers_) {
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

Status Runtime::forget_stream(void *stream)
{
    if (stream == STW_STREAM_HOST || stream == STW_STREAM_SYNCED) return {};
    for (const memory::Tier &place : tiers_)
        if (place.streams) STW_TRY(place.streams->forget(stream));
    return {};
}

Status Runtime::when_not_busy(const std::function<Status()> &order) const
{
    const residency::Instant deadline = dispatch_.now() + dispatch_.timeout(0);
    for (;;) {
        Status status = order();
        if (status.code() != STW_ERROR_BUSY || dispatch_.now() >= deadline) return status;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

Status Runtime::check_stream_at(PlaceId place, void *stream)
{
    memory::DeviceStreams::Id id = 0;
    return tiers_[place].streams ? stream_id(place, stream, &id) : Status();
}

Status Runtime::stream_id(PlaceId place, void *stream, memory::DeviceStreams::Id *id_out)
{
    const memory::Tier &at = tiers_[place];
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

// From its first on. One that is smaller than a block lies in one; a larger one begins a block.
memory::SlotRange Runtime::slots_of(const ViewSlot &view) const
{
    const bool buffer = view.scratch != residency::kNone;
    const uint64_t bytes = buffer ? buffer_bytes(view) : uint64_t{view.byte_count};
    const Sharding *sharding = view.tensor->sharding.get();
    // A part of a gathered whole is no buffer: it begins where it lies in that.
    const bool whole = buffer && sharding && view.scratch == sharding->whole;
    const uint64_t all =
        whole ? sharding->padded_elements() * (view.tensor->element_bits / 8) : view.tensor->bytes;
    const bool small = (buffer && !whole) || all < block_bytes_;
    const uint64_t offset = small ? 0 : view.byte_begin % block_bytes_;
    const uint64_t last = (offset + bytes - 1) / block_bytes_;
    return {view.first_slot, static_cast<uint32_t>(last + 1)};
}

Status Runtime::begin_streams(const Waiter &waiter)
{
    const FetchPlan &plan = waiter.plan;
    for (size_t i = 0; i < plan.ranges.size(); ++i) {
        const Range &range = plan.ranges[i];
        const memory::Tier &at = tiers_[waiter.grants[i].place];
        if (range.byte_count == 0) continue;
        if (pins_ && tiers_.is_host(waiter.grants[i].place))
            join_registrations(range, waiter.grants[i]);
        if (!at.streams) continue;
        memory::DeviceStreams::Id id = 0;
        STW_TRY(stream_id(waiter.grants[i].place, plan.stream, &id));
        const void *pointer = nullptr;
        {
            MutexLock lock(dispatch_.mutex());
            pointer = arena_pointer(range, waiter.grants[i]);
        }
        const bool writes = range.access != STW_READ;
        const memory::SlotRange slots = at.slots_of(pointer, sum_bytes(range));
        if (at.slot_memory) STW_TRY(at.slot_memory->await(slots));
        if (at.shows) STW_TRY(show_range(range, waiter.grants[i].place, slots));
        // The zeros that a sum begins with are a copy of ours.
        if (range.access == STW_REDUCE)
            STW_TRY(at.streams->before_copy(slots, true, STW_COPIES_IN));
        STW_TRY(at.streams->begin(id, slots, writes));
    }
    if (is_absent(plan)) return {};
    for (size_t i = 0; i < waiter.whole_grants.size(); ++i) {
        STW_TRY(begin_whole(plan.gathered[i], waiter.whole_grants[i], plan.stream));
    }
    return {};
}

// CUDA refuses a copy over two registrations, and a framework copies a view as a whole. A hit that
// begins meanwhile is not seen: a copy that it starts is one of pageable memory for the moment.
void Runtime::join_registrations(const Range &range, const residency::Grant &grant)
{
    memory::HostPins::Range blocks;
    {
        const MutexLock lock(dispatch_.mutex());
        const memory::SlotRange slots =
            tiers_[grant.place].slots_of(arena_pointer(range, grant), sum_bytes(range));
        blocks = {slots.first, slots.count};
    }
    if (blocks.count == 1 || pins_->are_joined(blocks.first, blocks.count)) return;
    const memory::HostPins::Range all = pins_->registered_with(blocks);
    {
        const MutexLock lock(dispatch_.mutex());
        if (!dispatch_.core.are_quiet(tiers_.host(), all.first, all.count, range.tensor->id))
            return;
    }
    pins_->join(blocks, all);
}

// Of a range that is pinned at the host tier.
bool Runtime::is_joined(const Range &range) const
{
    const residency::Door &door = range.tensor->doors[range.place];
    const memory::Tier &host = tiers_[tiers_.host()];
    const char *begin = host.base + door.offset.load(std::memory_order_relaxed) + range.byte_begin;
    const memory::SlotRange slots = host.slots_of(begin, range.byte_count);
    return slots.count == 1 || pins_->are_joined(slots.first, slots.count);
}

// What was gathered is there: the stream comes behind others that have views of it.
Status Runtime::begin_whole(const Range &range, const residency::Grant &grant, void *stream)
{
    const memory::Tier &at = tiers_[grant.place];
    if (!at.streams || range.byte_count == 0) return {};
    memory::DeviceStreams::Id id = 0;
    STW_TRY(stream_id(grant.place, stream, &id));
    const char *whole = bytes_at(range.tensor->sharding->whole, grant);
    const memory::SlotRange slots = at.slots_of(whole + range.byte_begin, range.byte_count);
    return at.streams->begin(id, slots, range.access != STW_READ);
}

Status Runtime::begin_export(const stw_view &view, void *stream)
{
    const ViewSlot &slot = views_.slot(ViewTable::index_of(view.cookie));
    const memory::Tier &at = tiers_[slot.place];
    if (!at.streams || view.bytes == 0) return {};
    memory::DeviceStreams::Id id = 0;
    STW_TRY(stream_id(slot.place, stream, &id));
    return at.streams->begin(id, slots_of(slot), slot.access != STW_READ);
}

// Most are seen already, when their transfers are done; those that needed none are shown here.
Status Runtime::show_range(const Range &range, PlaceId place, memory::SlotRange slots)
{
    memory::ShownTensor *shown = shown_of(range, place);
    const auto block = static_cast<uint32_t>(range.byte_begin / block_bytes_);
    return shown && !shown->shows(block, slots) ? shown->show(block, slots) : Status();
}

// Null: what is asked for lies in the arena alone. Where a tensor is seen as one run that is so of
// parts, which only the library itself asks for.
memory::ShownTensor *Runtime::shown_of(const Range &range, PlaceId place) const
{
    const memory::Tier &at = tiers_[place];
    if (!at.shows || range.scratch != residency::kNone) return nullptr;
    const bool part = at.shows_runs && range.byte_count != range.tensor->bytes;
    return part ? nullptr : range.tensor->shown[place];
}

// Copies between the host tier and a device with streams then need no buffer between.
void Runtime::pin_host_memory()
{
    const memory::Tier &host = tiers_[tiers_.host()];
    if (!host.memory) return;
    memory::HostPins::Options options;
    for (const memory::Tier &place : tiers_)
        if (place.streams) options.devices.push_back({place.ops, place.memory, place.device});
    if (options.devices.empty()) return;
    options.base = host.base;
    options.bytes = host.info().bytes;
    options.block_bytes = block_bytes_;
    options.staging_bytes = staging_bytes_;
    options.scratch_bytes = scratch_ ? scratch_->usage().bytes : 0;
    options.log = &dispatch_.log;
    options.now_ns = [this] { return dispatch_.now(); };
    pins_ = std::make_unique<memory::HostPins>(std::move(options));
}

// What copies are ordered by, and what they ask the core.
void Runtime::open_ordering()
{
    transfer::StreamOrdering::Options options;
    options.tiers = &tiers_;
    options.pins = &pins_;
    options.log = &dispatch_.log;
    options.ordered = [this](residency::TransferId transfer) {
        dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            core.transfer_ordered(transfer, dispatch_.now(), out);
        });
    };
    options.run_of = [this](const residency::Transfer &transfer) {
        const MutexLock lock(dispatch_.mutex());
        return dispatch_.core.run_of(transfer.block, transfer.to);
    };
    ordering_ = std::make_unique<transfer::StreamOrdering>(std::move(options));
}

}  // namespace stepwell
