// SPDX-License-Identifier: Apache-2.0
// Updates and sums on devices that compute. What the driver is asked for goes on a stream of its
// own, which is ordered with the consumers' by the rules in streams.h.
#include "lib/memory/driver_reason.h"
#include "lib/runtime/optimizers.h"
#include "lib/runtime/piece_fetch.h"

#include <algorithm>
#include <cinttypes>

namespace stepwell {

using residency::PlaceId;

// As for the host, half of it.
std::vector<update::WindowOptions> Runtime::device_windows() const
{
    std::vector<update::WindowOptions> windows;
    for (PlaceId place = 0; place < tiers_.host(); ++place) {
        if (!tiers_[place].computes) continue;
        const uint64_t blocks = std::max<uint64_t>(dispatch_.core.budget_blocks(place) / 2, 4);
        windows.push_back({place, blocks * block_bytes_});
    }
    return windows;
}

PlaceId Runtime::place_for(uint32_t algorithm, const residency::TensorId *kept, uint32_t kept_count,
                           const residency::TensorId *others, uint32_t other_count)
{
    MutexLock lock(dispatch_.mutex());
    const PlaceId place = dispatch_.core.spec(kept[0]).policy.home;
    if (!tiers_.is_device(place) || !tiers_[place].computes) return residency::kAnyCpuPlace;
    if (update_blocks_[place] < update::kPiecesNeeded) return residency::kAnyCpuPlace;
    const bool known = tiers_[place].updates_with(algorithm);
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

// What an update on a device keeps busy there: parameters, gradients, and states at home on one.
void Runtime::count_trained(const residency::TensorSpec &wanted, stw_tensor *tensor)
{
    const PlaceId home = wanted.policy.home;
    const bool state = wanted.role == STW_ROLE_OPTIMIZER_STATE && tiers_.is_device(home);
    const bool trained = state || wanted.role == STW_ROLE_PARAM || wanted.role == STW_ROLE_GRAD;
    tensor->notes.trained = trained;
    if (trained) trained_bytes_ += wanted.bytes;
}

// In the order of parameters, as many as fit into half of the device beside what is there for them:
// the other half is for activations and for what is worked on. A function of the calls alone.
PlaceId Runtime::home_of_states(const OptimizerBody &body, uint64_t bytes)
{
    const memory::Tier &nearest = tiers_[tiers_.nearest()];
    const bool is_ours = nearest.updates_with(body.algorithm);
    if (preset_ != STW_PRESET_AUTO || body.has_policy || ranks_.body || !is_ours)
        return residency::kNoPlace;
    MutexLock lock(dispatch_.mutex());
    const uint64_t half = dispatch_.core.budget_blocks(tiers_.nearest()) / 2 * block_bytes_;
    return trained_bytes_ + bytes <= half ? tiers_.nearest() : PlaceId{residency::kNoPlace};
}

// What is begun next comes behind what others do with the pieces.
Status Runtime::order_update(const PieceFetch &fetch)
{
    for (uint32_t i = 0; i < fetch.count; ++i) {
        const memory::Tier &at = tiers_[fetch.places[i]];
        const memory::SlotRange slot{fetch.slots[i], 1};
        const bool writes = fetch.pieces[i].access != residency::Access::kRead;
        STW_TRY(when_not_busy([&]() -> Status {
            if (at.slot_memory) STW_TRY(at.slot_memory->await(slot));
            return at.streams->begin(at.streams->own(), slot, writes);
        }));
    }
    return {};
}

// Those that have the pieces next come behind it.
void Runtime::end_update(const PieceFetch &fetch)
{
    for (uint32_t i = 0; i < fetch.count; ++i) {
        memory::DeviceStreams *const streams = tiers_[fetch.places[i]].streams.get();
        if (!streams) continue;
        const bool wrote = fetch.pieces[i].access != residency::Access::kRead;
        streams->end(streams->own(), {fetch.slots[i], 1}, wrote);
    }
}

template <class Work> Status Runtime::compute(uint64_t ticket, const char *what, Work &&work)
{
    const auto &fetch = *reinterpret_cast<const PieceFetch *>(ticket);
    const memory::Tier &at = tiers_[fetch.places[0]];
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
                         " on (%s); what needs the device fails from now on if it is lost",
                         at.device, what, fetch.pieces[0].byte_count, tensor_text(name).c_str(),
                         fetch.pieces[0].byte_begin, reason.c_str());
}

Status Runtime::start_update(uint64_t ticket, const stw_update_work &work)
{
    return compute(ticket, "an update", [&](const stw_memory_ops &ops, stw_memory *memory) {
        return ops.update_start(memory, &work);
    });
}

Status Runtime::start_sum(uint64_t ticket, const stw_accumulate_work &work)
{
    return compute(ticket, "a sum", [&](const stw_memory_ops &ops, stw_memory *memory) {
        return ops.accumulate_start(memory, &work);
    });
}

Status Runtime::start_zeros(uint64_t ticket, void *destination, uint64_t bytes)
{
    return compute(ticket, "zeros", [&](const stw_memory_ops &ops, stw_memory *memory) {
        return ops.zero_start(memory, destination, bytes);
    });
}

Result<uint64_t> Runtime::start_scan(uint64_t ticket, const stw_scan_work &work)
{
    uint64_t scan = 0;
    STW_TRY(compute(ticket, "a scan", [&](const stw_memory_ops &ops, stw_memory *memory) {
        return ops.scan_start(memory, &work, &scan);
    }));
    return scan;
}

Status Runtime::end_scan(PlaceId place, uint64_t scan, double *sums_out,
                         kernels::ScanResult *result_out)
{
    const memory::Tier &at = tiers_[place];
    stw_scan_result result{};
    result.struct_size = sizeof result;
    const stw_status code = at.ops->scan_end(at.memory, scan, sums_out, &result);
    if (code < 0) {
        return Status::error(
            code,
            "device %u gave no norm of a gradient (%s); it is lost, and what needs "
            "it fails from now on",
            at.device, memory::driver_reason(at.ops, at.memory, code).c_str());
    }
    *result_out = {result.nonfinite, result.maximum};
    return {};
}

}  // namespace stepwell
