// SPDX-License-Identifier: Apache-2.0
// The memory that collectives work on. If the nearest tier is a device with streams and the
// group's engine takes its memory, that is the device's arena: tensors are gathered in place
// there. The engine's stream is ordered with consumers' streams and with copies like any other; a
// collective is waited for until it has ended, so no stream is ordered after it. The bucket of
// small tensors is the end of the arena, so all that the engine accesses lies in it.
#include "lib/runtime/ranks/memory.h"

#include "lib/memory/host_pins.h"
#include "lib/residency/core.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/views/streams.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace stepwell {

using residency::PlaceId;

Status GroupMemory::open_group_memory()
{
    Ranks &ranks = *machine_.ranks;
    const memory::Tier &at = machine_.tiers[ranks.place];
    ranks.on_device = at.streams && ranks.group.stream();
    if (!ranks.on_device) {
        if (at.cpu_access && ranks.group.takes_host_memory()) return {};
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "the group over '%s' works on memory that %s, and the nearest tier, "
                             "of driver '%s', is none",
                             ranks.group.driver(),
                             ranks.group.takes_host_memory() ? "the CPU can reach"
                                                             : "a device with streams has",
                             at.driver.c_str());
    }
    const collective::Group *groups[] = {&ranks.group, ranks.replicas};
    for (size_t i = 0; i < std::size(groups); ++i) {
        if (!groups[i]) continue;
        if (!groups[i]->stream()) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "the group of replicas over '%s' takes no memory of a device, and "
                                 "the other group works there; make both over one engine",
                                 groups[i]->driver());
        }
        Result<memory::DeviceStreams::Id> id = at.streams->id_of(groups[i]->stream());
        if (!id.ok()) {
            return Status::error(STW_ERROR_INVALID,
                                 "the group over '%s' is on another device than device %u, the "
                                 "nearest tier (%s); make it with options.device_ordinal %d, or "
                                 "lend a communicator of that device",
                                 groups[i]->driver(), at.device, id.status().sentence(),
                                 at.ordinal);
        }
        ranks.streams[i] = id.value();
    }
    const stw_memory_info info = at.info();
    uint64_t used = 0;
    {
        MutexLock lock(dispatch_.mutex());
        used = dispatch_.core.budget_blocks(ranks.place) * machine_.block_bytes;
    }
    ranks.arena_bytes = info.bytes;
    ranks.device_bucket = at.base + used;
    ranks.device_bucket_bytes = info.bytes - used;
    return register_group_memory((info.flags & STW_MEMORY_ONE_HANDLE) != 0);
}

// On all ranks or on none: a collective may be undefined for an engine if only some ranks have
// registered its memory. So a rank that was not asked to register takes part as well.
Status GroupMemory::register_group_memory(bool asked)
{
    Ranks &ranks = *machine_.ranks;
    collective::Group &group = ranks.group;
    if (asked) {
        const Status status =
            group.register_memory(machine_.tiers[ranks.place].base, ranks.arena_bytes);
        ranks.registered = status.ok();
        if (!status.ok())
            dispatch_.log.print(STW_LOG_WARNING, group.driver(), "%s", status.sentence());
    }
    const auto mine = static_cast<char>(ranks.registered);
    std::vector<char> all(group.size());
    STW_TRY(group.exchange(&mine, all.data(), sizeof mine));
    const auto other = std::find(all.begin(), all.end(), 0);
    if (!ranks.registered || other == all.end()) return {};
    leave_group_memory();
    dispatch_.log.print(
        STW_LOG_WARNING, group.driver(),
        "No memory is registered with the group: rank %u has none. Give the device of every "
        "rank the same options.",
        static_cast<uint32_t>(other - all.begin()));
    return {};
}

// Before the memory is freed; nothing is in flight.
void GroupMemory::leave_group_memory()
{
    // The groups destroy their streams before the device closes.
    const collective::Group *groups[] = {&machine_.ranks->group, machine_.ranks->replicas};
    for (const collective::Group *group : groups)
        if (machine_.ranks->on_device && group) (void)streams_.forget_stream(group->stream());
    if (machine_.ranks->registered)
        machine_.ranks->group.unregister_memory(machine_.tiers[machine_.ranks->place].base);
    machine_.ranks->registered = false;
}

bool GroupMemory::is_of_group(const void *memory) const
{
    if (!machine_.ranks->on_device) return false;
    const auto begin =
        static_cast<const char *>(memory) - machine_.tiers[machine_.ranks->place].base;
    return begin >= 0 && static_cast<uint64_t>(begin) < machine_.ranks->arena_bytes;
}

// Orders a copy by the library after all work enqueued on the memory. The copy is waited for
// before anything else uses the memory, so no stream is ordered after it, and the order of other
// users of the block is unchanged.
Status GroupMemory::order_copy(const void *memory, uint64_t bytes, bool writes, uint32_t copies)
{
    if (!is_of_group(memory)) return {};
    const memory::Tier &at = machine_.tiers[machine_.ranks->place];
    const memory::SlotRange slots = at.slots_of(memory, bytes);
    return streams_.when_not_busy([&]() -> Status {
        if (at.slot_memory) STW_TRY(at.slot_memory->await(slots));
        return writes ? at.streams->copies_behind(slots, copies)
                      : at.streams->before_copy(slots, false, copies);
    });
}

// Like memcpy, for any memory of the host or the device.
Status GroupMemory::move_bytes(void *to, const void *from, uint64_t bytes)
{
    if (bytes == 0) return {};
    if (!is_of_group(to) && !is_of_group(from)) {
        std::memcpy(to, from, bytes);
        return {};
    }
    const memory::Tier &at = machine_.tiers[machine_.ranks->place];
    const uint32_t copies = is_of_group(to) ? STW_COPIES_IN : STW_COPIES_OUT;
    STW_TRY(order_copy(from, bytes, false, copies));
    STW_TRY(order_copy(to, bytes, true, copies));
    if (machine_.pins) machine_.pins->begin(at.memory, is_of_group(to));
    const stw_status code = at.ops->copy(at.memory, to, from, bytes);
    if (machine_.pins) machine_.pins->end(at.memory, is_of_group(to), nullptr);
    if (code == STW_OK) return {};
    return Status::error(code, "%s were not copied for a collective: device %u is lost",
                         bytes_text(bytes).c_str(), at.device);
}

std::function<Status(void *, const void *, uint64_t)> GroupMemory::mover()
{
    return
        [this](void *to, const void *from, uint64_t bytes) { return move_bytes(to, from, bytes); };
}

Status GroupMemory::zero_bytes(void *memory, uint64_t bytes)
{
    if (bytes == 0) return {};
    if (!is_of_group(memory)) {
        std::memset(memory, 0, bytes);
        return {};
    }
    const memory::Tier &at = machine_.tiers[machine_.ranks->place];
    STW_TRY(order_copy(memory, bytes, true, STW_COPIES_IN));
    const stw_status code = at.ops->zero(at.memory, memory, bytes);
    if (code == STW_OK) return {};
    return Status::error(code, "%s were not set to zero for a collective: device %u is lost",
                         bytes_text(bytes).c_str(), at.device);
}

// Orders the engines' next work after other work on the memory.
Status GroupMemory::order_group(const void *memory, uint64_t bytes, bool writes)
{
    if (bytes == 0 || !is_of_group(memory)) return {};
    const memory::Tier &at = machine_.tiers[machine_.ranks->place];
    const memory::SlotRange slots = at.slots_of(memory, bytes);
    return streams_.when_not_busy([&]() -> Status {
        if (at.slot_memory) STW_TRY(at.slot_memory->await(slots));
        for (const memory::DeviceStreams::Id stream : machine_.ranks->streams) {
            if (stream != 0) STW_TRY(at.streams->begin(stream, slots, writes));
        }
        return {};
    });
}

}  // namespace stepwell
