// SPDX-License-Identifier: Apache-2.0
#include "lib/memory/tiers.h"

#include <stepwell/types.h>

#include <algorithm>

namespace stepwell::memory {

using residency::PlaceId;

stw_memory_info Tier::info() const
{
    stw_memory_info about{};
    about.struct_size = sizeof about;
    ops->info(memory, &about);
    return about;
}

TierSet::TierSet(uint32_t devices)
    : tiers_(devices + 2), host_(static_cast<PlaceId>(devices)), nearest_(host_)
{
    for (uint32_t device = 0; device < devices; ++device) {
        tiers_[device].kind = residency::Tier::kDevice;
        tiers_[device].device = device;
    }
    tiers_.back().kind = residency::Tier::kNvme;
}

void TierSet::opened()
{
    const auto first = std::find_if(tiers_.begin(), tiers_.begin() + host_,
                                    [](const Tier &tier) { return tier.memory != nullptr; });
    nearest_ = static_cast<PlaceId>(first - tiers_.begin());
}

void TierSet::close()
{
    for (const Tier &tier : tiers_)
        if (tier.memory) tier.ops->close(tier.memory);
}

PlaceId TierSet::place_of(uint32_t tier, uint32_t device) const
{
    if (tier == STW_TIER_DEFAULT && device == 0) return nearest_;
    PlaceId place = residency::kNoPlace;
    const bool on_device = tier == STW_TIER_DEVICE || tier == STW_TIER_DEFAULT;
    if (on_device && device < host_) place = static_cast<PlaceId>(device);
    if (tier == STW_TIER_HOST && device == 0) place = host_;
    if (tier == STW_TIER_NVME) place = nvme();
    return place != residency::kNoPlace && has(place) ? place : PlaceId{residency::kNoPlace};
}

uint32_t TierSet::near_node() const
{
    for (const Tier &tier : tiers_) {
        if (!tier.streams) continue;
        const stw_memory_info about = tier.info();
        if (about.numa_node >= 0) return static_cast<uint32_t>(about.numa_node) + 1;
    }
    return 0;
}

void TierSet::log_failures(observe::Log &log) const
{
    for (const Tier &tier : tiers_) {
        if (!tier.memory || (tier.ops->capabilities & STW_MEMORY_SAYS_WHY) == 0) continue;
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        while (tier.ops->next_failure(tier.memory, &error) != 0) {
            log.print(STW_LOG_WARNING, tier.ops->name,
                      "Device %u: %s. Of this call and error that is said once.", tier.device,
                      error.sentence);
        }
    }
}

}  // namespace stepwell::memory
