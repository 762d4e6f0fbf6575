// SPDX-License-Identifier: Apache-2.0
// Where tensors live: what preset and role say, and what a program's policy says instead, in places
// of the core.
#include "lib/runtime/runtime.h"

namespace stepwell {

using residency::PlaceId;

residency::Policy Runtime::default_policy(uint32_t role) const
{
    residency::Policy policy;
    for (PlaceId place = 0; place <= tiers_.nvme(); ++place) {
        if (tiers_.has(place)) policy.allowed |= 1u << place;
    }
    PlaceId home = tiers_.nvme();
    const bool passes =
        role == STW_ROLE_GRAD || role == STW_ROLE_ACTIVATION || role == STW_ROLE_CACHE;
    if (passes) home = tiers_.host();
    if (preset_ == STW_PRESET_ZERO_OFFLOAD) {
        home = role == STW_ROLE_PARAM ? tiers_.nearest() : tiers_.host();
    }
    while (home > 0 && !(policy.allowed & (1u << home))) --home;
    while (!(policy.allowed & (1u << home))) ++home;
    policy.home = home;
    return policy;
}

Status Runtime::to_policy(const stw_policy *from, uint32_t role,
                          residency::Policy *policy_out) const
{
    residency::Policy policy = default_policy(role);
    if (!from) {
        *policy_out = policy;
        return {};
    }
    if (from->allowed_tiers) {
        uint32_t allowed = 0;
        for (PlaceId place = 0; place <= tiers_.nvme(); ++place) {
            const uint32_t bit = 1u << (static_cast<uint32_t>(tiers_[place].kind) - 1);
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
        const PlaceId home = tiers_.place_of(from->home, from->home_device);
        if (home == residency::kNoPlace || !(policy.allowed & (1u << home))) {
            return Status::error(STW_ERROR_INVALID,
                                 "policy.home %u is a tier that does not exist here or that "
                                 "allowed_tiers leaves out",
                                 from->home);
        }
        policy.home = home;
    }
    while (!(policy.allowed & (1u << policy.home))) {
        policy.home = static_cast<PlaceId>((policy.home + 1) % (tiers_.nvme() + 1));
    }
    policy.retention = static_cast<residency::Retention>(from->retention);
    policy.priority = from->priority;
    *policy_out = policy;
    return {};
}

}  // namespace stepwell
