// SPDX-License-Identifier: Apache-2.0
// Commands are appended to the engine's queues under the lock, so that their order is the core's.
#include "lib/runtime/addresses/sink.h"

#include "lib/memory/host_pins.h"
#include "lib/observe/timeline.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/support/assert.h"
#include "lib/transfer/engine.h"
#include "lib/update/pipeline.h"

#include <algorithm>
#include <utility>

namespace stepwell {

using residency::PlaceId;
using residency::Slot;

residency::Instant TransferSink::now() const
{
    return Dispatcher::now();
}

transfer::Job TransferSink::job_of(const residency::Transfer &transfer) const
{
    transfer::Job job;
    job.transfer = transfer;
    const auto is_memory = [this](PlaceId place) {
        return place != residency::kNoPlace && !machine_.tiers.is_nvme(place);
    };
    if (is_memory(transfer.from)) {
        job.from_memory = transfer.from;
        job.from_pointer = addresses_.pointer_of(transfer.from, transfer.from_slot, transfer);
    }
    if (is_memory(transfer.to)) {
        job.to_memory = transfer.to;
        job.to_pointer = addresses_.pointer_of(transfer.to, transfer.to_slot, transfer);
        if (machine_.tiers[transfer.to].maps && !dispatch_.core.guards(transfer.block, transfer.to))
            job.map_block = transfer.to_slot;
        if (machine_.tiers[transfer.to].aliases) {
            job.alias = addresses_.alias_of(transfer.pack, transfer.to);
            job.alias_block = static_cast<uint32_t>(transfer.pack_offset / machine_.block_bytes);
        }
    }
    return job;
}

void TransferSink::forget(const residency::Forget &forget)
{
    store::Store *const store = machine_.engine->store();
    if (!store) return;
    if (forget.heir != residency::kNone) {
        store->hand_over(forget.block, forget.heir);
    } else {
        store->forget(forget.block);
    }
}

void TransferSink::pack_freed(residency::PackId pack)
{
    for (PackObserver *observer : observers_) observer->pack_freed(pack);
    addresses_.release_pack(pack);
}

// Tensors that were never used cause no other commands.
void TransferSink::forget_unused(const Commands &out)
{
    for (const residency::Forget &gone : out.forgets) forget(gone);
    for (const residency::PackId pack : out.freed_packs) pack_freed(pack);
}

// A transfer that the engine refuses (it is closed, or a limit is reached) ends as a failed one.
void TransferSink::submit(std::vector<residency::Transfer> &transfers, Commands &out)
{
    std::vector<transfer::Job> jobs;
    jobs.reserve(transfers.size());
    for (const residency::Transfer &transfer : transfers) {
        jobs.push_back(job_of(transfer));
        stw_tensor *handle = handles_.at(transfer.tensor);
        if (handle && !machine_.tiers.is_nvme(transfer.to)) handle->notes.moved = true;
    }
    const Status status = machine_.engine->submit(jobs.data(), static_cast<uint32_t>(jobs.size()));
    if (status.ok()) return;
    for (const residency::Transfer &transfer : transfers) {
        dispatch_.core.transfer_done(transfer.id, status, out, &transfer != &transfers.back());
    }
}

void TransferSink::promote(residency::TransferId transfer)
{
    machine_.engine->promote(transfer);
}

void TransferSink::failed(const residency::BackgroundError &error)
{
    errors_.add(error.tensor, error.status);
}

void TransferSink::engine_done(void *user, transfer::Completion *list, uint32_t n)
{
    static_cast<TransferSink *>(user)->end_transfers(list, n);
}

void TransferSink::end_transfers(const transfer::Completion *list, uint32_t n)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (uint32_t i = 0; i < n; ++i)
            core.transfer_done(list[i].id, list[i].status, out, i + 1 < n);
        recorder_.plan_due = true;
    });
    if (machine_.pipeline) machine_.pipeline->transfers_ended();
}

void TransferSink::engine_span(void *user, const transfer::Span &span)
{
    auto *self = static_cast<TransferSink *>(user);
    observe::Span out;
    out.start_ns = span.start_ns;
    out.end_ns = span.end_ns;
    out.kind = observe::SpanKind::kTransfer;
    out.lane = static_cast<uint16_t>(span.link);
    out.detail = span.memory < self->machine_.tiers.host() ? span.memory : 0;
    out.id = observe::transfer_id(span.block, span.tensor);
    out.bytes = span.bytes;
    self->machine_.timeline->record(out);
}

// Registrations with devices must end before the memory is decommitted.
stw_status TransferSink::give_back(PlaceId place, Slot first, uint32_t count)
{
    if (machine_.tiers.is_host(place) && machine_.pins) machine_.pins->gone(first, count);
    return machine_.tiers[place].ops->give_back(machine_.tiers[place].memory, first, count);
}

stw_status TransferSink::take_back(PlaceId place, Slot first, uint32_t count,
                                   stw_driver_error *error)
{
    const stw_status code =
        machine_.tiers[place].ops->take_back(machine_.tiers[place].memory, first, count, error);
    if (code == STW_OK && machine_.tiers.is_host(place) && machine_.pins)
        machine_.pins->back(first, count);
    return code;
}

// Moves the memory of a free slot to one that is being taken.
void TransferSink::swap_memory(std::vector<residency::Swap> &swaps)
{
    for (const residency::Swap &swap : swaps) {
        const memory::Tier &place = machine_.tiers[swap.place];
        if (place.slot_memory) {
            place.slot_memory->give(swap.bare);
            place.slot_memory->take(swap.backed);
            continue;
        }
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        (void)give_back(swap.place, swap.bare, 1);
        // If this is refused, the first access commits the page.
        (void)take_back(swap.place, swap.backed, 1, &error);
    }
}

}  // namespace stepwell
