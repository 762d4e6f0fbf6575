// SPDX-License-Identifier: Apache-2.0
// Where tensors rest: the defaults of preset and role, overridden by the program's policy, as
// places of the core.
#include "lib/runtime/tensors/placement.h"

#include "lib/memory/address_alias.h"
#include "lib/report/report.h"
#include "lib/residency/core.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/recording/grounds.h"

#include <unordered_set>

namespace stepwell {

using residency::PlaceId;

residency::Policy Placement::default_policy(uint32_t role) const
{
    residency::Policy policy;
    for (PlaceId place = 0; place <= machine_.tiers.nvme(); ++place) {
        if (machine_.tiers.has(place)) policy.allowed |= 1u << place;
    }
    PlaceId home = machine_.tiers.nvme();
    const bool passes =
        role == STW_ROLE_GRAD || role == STW_ROLE_ACTIVATION || role == STW_ROLE_CACHE;
    if (passes) home = machine_.tiers.host();
    if (preset == STW_PRESET_ZERO_OFFLOAD) {
        home = role == STW_ROLE_PARAM ? machine_.tiers.nearest() : machine_.tiers.host();
    }
    while (home > 0 && !(policy.allowed & (1u << home))) --home;
    while (!(policy.allowed & (1u << home))) ++home;
    policy.home = home;
    return policy;
}

Status Placement::to_policy(const stw_policy *from, uint32_t role,
                            residency::Policy *policy_out) const
{
    residency::Policy policy = default_policy(role);
    if (!from) {
        *policy_out = policy;
        return {};
    }
    if (from->allowed_tiers) {
        uint32_t allowed = 0;
        for (PlaceId place = 0; place <= machine_.tiers.nvme(); ++place) {
            const uint32_t bit = 1u << (static_cast<uint32_t>(machine_.tiers[place].kind) - 1);
            if (from->allowed_tiers & bit) allowed |= 1u << place;
        }
        policy.allowed &= allowed;
    }
    if (policy.allowed == 0) {
        return Status::error(STW_ERROR_INVALID,
                             "policy.allowed_tiers 0x%x names no tier that exists here",
                             from->allowed_tiers);
    }
    if (from->home != STW_TIER_DEFAULT) {
        const PlaceId home = machine_.tiers.place_of(from->home, from->home_device);
        if (home == residency::kNoPlace || !(policy.allowed & (1u << home))) {
            return Status::error(STW_ERROR_INVALID,
                                 "policy.home %u is a tier that does not exist here or that "
                                 "allowed_tiers leaves out",
                                 from->home);
        }
        policy.home = home;
    }
    while (!(policy.allowed & (1u << policy.home))) {
        policy.home = static_cast<PlaceId>((policy.home + 1) % (machine_.tiers.nvme() + 1));
    }
    policy.retention = static_cast<residency::Retention>(from->retention);
    policy.priority = from->priority;
    *policy_out = policy;
    return {};
}

// Half of the room in which the CPU works; the rest is left for the program. Plans count on that
// half, see update_blocks() in schedule/plan/keeping.cpp.
uint64_t Placement::update_window() const
{
    uint64_t room = dispatch_.core.budget_blocks(machine_.tiers.host());
    if (room == 0) room = dispatch_.core.budget_blocks(machine_.tiers.nearest());
    return std::max<uint64_t>(room / 2, 4) * machine_.block_bytes;
}

// Tensors that are created from now on leave room for the pieces of an update where the CPU works.
void Placement::expect_updates()
{
    PlaceId place = machine_.tiers.host();
    if (dispatch_.core.budget_blocks(place) == 0) place = machine_.tiers.nearest();
    dispatch_.core.expect_visits(place, update::kPiecesNeeded);
}

// A tensor is fetched only where its policy allows, and in parts only where parts have an address.
Status Placement::check_places(const FetchPlan &plan) const
{
    MutexLock lock(dispatch_.mutex());
    for (const RequestedRange &range : plan.ranges) {
        const memory::Tier &at = machine_.tiers[range.place];
        const bool part = range.byte_count != range.tensor->bytes && range.access != STW_REDUCE;
        const memory::AddressAlias *shown = at.aliases ? range.tensor->shown[range.place] : nullptr;
        if (part && shown && !shown->shows(false)) {
            return Status::error(
                STW_ERROR_INVALID,
                "%s has a fixed address, at which the memory of device %u is "
                "mapped in large pieces, so it can only be fetched completely, not "
                "%s of %s; the device option arena=shrinks allows parts to be "
                "fetched",
                tensor_text(range.tensor->name).c_str(), at.device,
                bytes_text(range.byte_count).c_str(), bytes_text(range.tensor->bytes).c_str());
        }
        const uint32_t allowed = dispatch_.core.spec(range.tensor->id).policy.allowed;
        if (allowed & (1u << range.place)) continue;
        return Status::error(
            STW_ERROR_INVALID,
            "%s cannot be fetched at the %s tier: its policy's "
            "allowed_tiers leave that tier out",
            tensor_text(range.tensor->name).c_str(),
            report::tier_name(static_cast<uint32_t>(machine_.tiers[range.place].kind)));
    }
    return {};
}

// Half of each device, as for the host.
std::vector<update::WindowOptions> Placement::device_windows() const
{
    std::vector<update::WindowOptions> windows;
    for (PlaceId place = 0; place < machine_.tiers.host(); ++place) {
        if (!machine_.tiers[place].computes) continue;
        const uint64_t blocks = std::max<uint64_t>(dispatch_.core.budget_blocks(place) / 2, 4);
        windows.push_back({place, blocks * machine_.block_bytes});
    }
    return windows;
}

// Counts what an update on a device needs there: parameters, gradients, and states at home on one.
void Placement::count_trained(const residency::TensorSpec &wanted, stw_tensor *tensor)
{
    const PlaceId home = wanted.policy.home;
    const bool state = wanted.role == STW_ROLE_OPTIMIZER_STATE && machine_.tiers.is_device(home);
    const bool trained = state || wanted.role == STW_ROLE_PARAM || wanted.role == STW_ROLE_GRAD;
    tensor->notes.trained = trained;
    if (trained) trained_bytes += wanted.bytes;
}

// Refuses updates, sums and copies before they begin.
Status Placement::check_cpu_room() const
{
    MutexLock lock(dispatch_.mutex());
    bool had_room = false;
    for (PlaceId place = 0; place <= machine_.tiers.host(); ++place) {
        if (!machine_.tiers[place].memory || !machine_.tiers[place].cpu_access) continue;
        if (dispatch_.core.budget_blocks(place) > 0) return {};
        had_room = true;
    }
    if (!had_room) return {};  // reported by the fetch itself
    return Status::error(STW_ERROR_BUDGET,
                         "no tier that the CPU works in has a budget now; raise one with "
                         "stw_tier_set_budget");
}

Status Placement::fits(const std::vector<RequestedRange> &ranges) const
{
    std::vector<residency::Request> requests;
    std::vector<residency::Request> buffers;
    std::unordered_set<residency::TensorId> summed;
    requests.reserve(ranges.size());
    for (const RequestedRange &range : ranges) {
        if (range.into) continue;  // copied block by block
        const residency::Access access = access_of(range.access);
        const bool sums = range.access == STW_REDUCE && range.byte_count > 0;
        const bool in_place =
            sums && summed.insert(range.tensor->id).second && may_sum_in_place(range);
        if (range.dtype != 0 || (sums && !in_place)) {
            buffers.push_back({range.tensor->id, access, range.place, 0, sum_bytes(range)});
        } else {
            requests.push_back(
                {range.tensor->id, access, range.place, range.byte_begin, range.byte_count});
        }
    }
    if (requests.empty() && buffers.empty()) return {};
    MutexLock lock(dispatch_.mutex());
    return dispatch_.core.fits(requests, buffers);
}

}  // namespace stepwell
