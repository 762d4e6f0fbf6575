// SPDX-License-Identifier: Apache-2.0
#include "lib/transfer/stream_ordering.h"

#include "lib/transfer/engine.h"

namespace stepwell::transfer {

using memory::SlotRange;

Status StreamOrdering::before(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                              bool into)
{
    const memory::Tier &at = tier(memory);
    if (!at.streams || bytes == 0) return {};
    const SlotRange slots = at.slots_of(pointer, bytes);
    if (at.slot_memory) STW_TRY(at.slot_memory->await(slots));
    return at.streams->before_copy(slots, writes, into ? STW_COPIES_IN : STW_COPIES_OUT);
}

bool StreamOrdering::waits(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                           bool into)
{
    const memory::Tier &at = tier(memory);
    if (!at.streams || bytes == 0) return false;
    const uint32_t copies = into ? STW_COPIES_IN : STW_COPIES_OUT;
    return at.streams->would_wait(at.slots_of(pointer, bytes), writes, copies);
}

Status StreamOrdering::await(uint32_t memory, const void *pointer, uint64_t bytes, bool writes)
{
    const memory::Tier &at = tier(memory);
    if (!at.streams || bytes == 0) return {};
    const SlotRange slots = at.slots_of(pointer, bytes);
    if (at.slot_memory) STW_TRY(at.slot_memory->await(slots));
    return at.streams->await(slots, writes);
}

uint64_t StreamOrdering::started(uint32_t memory, const void *pointer, uint64_t bytes,
                                 uint64_t mark)
{
    const memory::Tier &at = tier(memory);
    return at.streams->copy_started(at.slots_of(pointer, bytes), mark);
}

void StreamOrdering::arrived(uint32_t memory, const void *pointer, uint64_t bytes, uint64_t number)
{
    const memory::Tier &at = tier(memory);
    at.streams->copy_arrived(at.slots_of(pointer, bytes), number);
}

void StreamOrdering::hold(uint32_t memory, bool into)
{
    if (pins()) pins()->begin(tier(memory).memory, into);
}

void StreamOrdering::let_go(uint32_t memory, bool into, const uint64_t *mark)
{
    if (pins()) pins()->end(tier(memory).memory, into, mark);
    options_.tiers->log_failures(*options_.log);
}

bool StreamOrdering::registered(const void *pointer)
{
    return pins() && pins()->is_registered(pointer);
}

bool StreamOrdering::joined(const void *pointer)
{
    return pins() && pins()->is_joined(pointer);
}

// The blocks beside a job's block that are in adjacent slots, now or once their copies are done.
residency::SlotRun StreamOrdering::run_of(const Job &job) const
{
    const residency::Slot slot = job.transfer.to_slot;
    const residency::SlotRun run = options_.run_of(job.transfer);
    const bool is_there = run.first_slot + (job.alias_block - run.first_index) == slot;
    return is_there ? run : residency::SlotRun{job.alias_block, slot, 1};
}

// The first block of a tensor to arrive is mapped together with the run around it, by one call of
// the driver. The other blocks of the run may be evicted meanwhile, but not this one.
Status StreamOrdering::map_alias(const Job &job)
{
    const SlotRange slot{job.transfer.to_slot, 1};
    if (job.alias->is_mapped_to(job.alias_block, slot)) return {};
    const memory::Tier &at = tier(job.transfer.to);
    const residency::SlotRun run = run_of(job);
    const SlotRange slots{run.first_slot, run.count};
    if (at.aliases_runs && run.count < job.alias->blocks()) return {};  // no view can use a part
    if (at.slot_memory) STW_TRY(at.slot_memory->await(slots));
    Status status = job.alias->map(run.first_index, slots);
    const residency::SlotRun now = status.ok() ? run : run_of(job);
    if (now.first_slot == run.first_slot && now.count >= run.count) return status;
    return job.alias->map(job.alias_block, slot);
}

}  // namespace stepwell::transfer
