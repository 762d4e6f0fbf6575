// SPDX-License-Identifier: Apache-2.0
// Updates and sums on devices that compute. The driver's work goes on a stream of its own, which
// is ordered with the consumers' streams by the rules in streams.h.
#include "lib/runtime/updates/devices.h"

#include "lib/memory/driver_reason.h"
#include "lib/residency/core.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/updates/piece_fetch.h"
#include "lib/runtime/views/streams.h"

#include <algorithm>
#include <cinttypes>

namespace stepwell {

using residency::PlaceId;

PlaceId DeviceUpdates::place_for(uint32_t algorithm, const residency::TensorId *kept,
                                 uint32_t kept_count, const residency::TensorId *others,
                                 uint32_t other_count)
{
    MutexLock lock(dispatch_.mutex());
    const PlaceId place = dispatch_.core.spec(kept[0]).policy.home;
    if (!machine_.tiers.is_device(place) || !machine_.tiers[place].computes)
        return residency::kAnyCpuPlace;
    if (placement_.update_blocks[place] < update::kPiecesNeeded) return residency::kAnyCpuPlace;
    const bool known = machine_.tiers[place].updates_with(algorithm);
    if (algorithm != kSum && !known) return residency::kAnyCpuPlace;
    const auto may_be_there = [&](residency::TensorId tensor) STW_REQUIRES(runtime_lock) {
        return (dispatch_.core.spec(tensor).policy.allowed & (1u << place)) != 0;
    };
    const auto is_at_home = [&](residency::TensorId tensor) STW_REQUIRES(runtime_lock) {
        return dispatch_.core.spec(tensor).policy.home == place;
    };
    const bool there = std::all_of(kept, kept + kept_count, is_at_home) &&
                       std::all_of(kept, kept + kept_count, may_be_there) &&
                       std::all_of(others, others + other_count, may_be_there);
    return there ? place : residency::kAnyCpuPlace;
}

// Orders the next work after what others do with the pieces.
Status DeviceUpdates::order_update(const PieceFetch &fetch)
{
    for (uint32_t i = 0; i < fetch.count; ++i) {
        const memory::Tier &at = machine_.tiers[fetch.places[i]];
        const memory::SlotRange slot{fetch.slots[i], 1};
        const bool writes = fetch.pieces[i].access != residency::Access::kRead;
        STW_TRY(streams_.when_not_busy([&]() -> Status {
            if (at.slot_memory) STW_TRY(at.slot_memory->await(slot));
            return at.streams->begin(at.streams->own(), slot, writes);
        }));
    }
    return {};
}

// Orders later users of the pieces after the work.
void DeviceUpdates::end_update(const PieceFetch &fetch)
{
    for (uint32_t i = 0; i < fetch.count; ++i) {
        memory::DeviceStreams *const streams = machine_.tiers[fetch.places[i]].streams.get();
        if (!streams) continue;
        const bool wrote = fetch.pieces[i].access != residency::Access::kRead;
        streams->end(streams->own(), {fetch.slots[i], 1}, wrote);
    }
}

template <class Work> Status DeviceUpdates::compute(uint64_t ticket, const char *what, Work &&work)
{
    const auto &fetch = *reinterpret_cast<const PieceFetch *>(ticket);
    const memory::Tier &at = machine_.tiers[fetch.places[0]];
    STW_TRY(order_update(fetch));
    const stw_status code = work(*at.ops, at.memory);
    if (code >= 0) return {};
    const std::string reason = memory::driver_reason(at.ops, at.memory, code);
    std::string name;
    {
        MutexLock lock(dispatch_.mutex());
        name = dispatch_.core.spec(fetch.pieces[0].tensor).name;
    }
    return Status::error(code,
                         "device %u did not take %s of %" PRIu64 " bytes of %s from byte "
                         "%" PRIu64
                         " on (%s); if the device is lost, everything that needs it fails from "
                         "now on",
                         at.device, what, fetch.pieces[0].byte_count, tensor_text(name).c_str(),
                         fetch.pieces[0].byte_begin, reason.c_str());
}

Status DeviceUpdates::start_update(uint64_t ticket, const stw_update_work &work)
{
    return compute(ticket, "an update", [&](const stw_memory_ops &ops, stw_memory *memory) {
        return ops.update_start(memory, &work);
    });
}

Status DeviceUpdates::start_sum(uint64_t ticket, const stw_accumulate_work &work)
{
    return compute(ticket, "a sum", [&](const stw_memory_ops &ops, stw_memory *memory) {
        return ops.accumulate_start(memory, &work);
    });
}

Status DeviceUpdates::start_zeros(uint64_t ticket, void *destination, uint64_t bytes)
{
    return compute(ticket, "zeros", [&](const stw_memory_ops &ops, stw_memory *memory) {
        return ops.zero_start(memory, destination, bytes);
    });
}

Result<uint64_t> DeviceUpdates::start_scan(uint64_t ticket, const stw_scan_work &work)
{
    uint64_t scan = 0;
    STW_TRY(compute(ticket, "a scan", [&](const stw_memory_ops &ops, stw_memory *memory) {
        return ops.scan_start(memory, &work, &scan);
    }));
    return scan;
}

Status DeviceUpdates::end_scan(PlaceId place, uint64_t scan, double *sums_out,
                               kernels::ScanResult *result_out)
{
    const memory::Tier &at = machine_.tiers[place];
    stw_scan_result result{};
    result.struct_size = sizeof result;
    const stw_status code = at.ops->scan_end(at.memory, scan, sums_out, &result);
    if (code < 0) {
        return Status::error(
            code,
            "device %u gave no norm of a gradient (%s); it is lost, and everything that "
            "needs it fails from now on",
            at.device, memory::driver_reason(at.ops, at.memory, code).c_str());
    }
    *result_out = {result.nonfinite, result.maximum};
    return {};
}

}  // namespace stepwell
