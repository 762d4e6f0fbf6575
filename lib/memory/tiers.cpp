// SPDX-License-Identifier: Apache-2.0
#include "lib/memory/tiers.h"

#include <stepwell/types.h>

#include "lib/memory/driver_error.h"

#include <algorithm>

namespace stepwell::memory {

using residency::PlaceId;

Status Tier::open(const stw_services &services, const TierOptions &asked, observe::Log &log)
{
    ops = asked.ops;
    driver = ops->name;
    block_bytes = asked.block_bytes;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    stw_memory_options wanted{};
    wanted.struct_size = sizeof wanted;
    wanted.ordinal = ordinal;
    wanted.bytes = asked.bytes;
    wanted.block_bytes = static_cast<uint32_t>(block_bytes);
    wanted.address_bytes = asked.address_bytes;
    wanted.near_node = asked.near_node;
    wanted.options = options.empty() ? nullptr : options.c_str();
    const stw_status code = ops->open(&services, &wanted, &memory, &error);
    if (code != STW_OK) return from_driver(code, error, "the memory of a tier cannot be taken");
    const stw_memory_info about = info();
    base = static_cast<char *>(about.base);
    remark = about.remark;
    cpu_access = (ops->capabilities & STW_MEMORY_HOST_ACCESS) != 0;
    maps = (ops->capabilities & STW_MEMORY_CAN_MAP) != 0;
    constexpr uint64_t kAliases = STW_MEMORY_CAN_ALIAS | STW_MEMORY_STREAMS;
    aliases = (ops->capabilities & kAliases) == kAliases;
    if (aliases) alias_totals = std::make_unique<AliasTotals>();
    aliases_runs = aliases && (about.flags & STW_MEMORY_ALIASES_RUNS) != 0;
    shrinks =
        (ops->capabilities & STW_MEMORY_CAN_SHRINK) != 0 && (about.flags & STW_MEMORY_STAYS) == 0;
    const auto blocks = static_cast<uint32_t>(asked.bytes / block_bytes);
    const std::string name = format_text("device %u", device);
    if ((ops->capabilities & STW_MEMORY_STREAMS) != 0) {
        streams = std::make_unique<DeviceStreams>(ops, memory, blocks, name);
        find_updates(log);
    }
    if (streams && shrinks) {
        slot_memory = std::make_unique<SlotMemory>(ops, memory, streams.get(), blocks, name);
    }
    // A request that a device with streams cannot serve is refused with this remark, so it is no
    // warning here.
    const uint32_t level = streams ? STW_LOG_INFO : STW_LOG_WARNING;
    if (about.remark[0]) log.print(level, ops->name, "%s", about.remark);
    return {};
}

// A device without kernels is none that computes: its tensors are updated in the host tier.
void Tier::find_updates(observe::Log &log)
{
    if ((ops->capabilities & STW_MEMORY_UPDATES) == 0) return;
    void *stream = nullptr;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    if (ops->update_stream(memory, &stream, &error) >= 0 && streams->take_own(stream).ok()) {
        computes = true;
        for (uint32_t algorithm = 0; algorithm < 32; ++algorithm) {
            stw_update_work nothing{};
            nothing.struct_size = sizeof nothing;
            nothing.algorithm = algorithm;
            nothing.values_dtype = nothing.gradient_dtype = nothing.states_dtype = STW_F32;
            const bool known = ops->update_start(memory, &nothing) == STW_OK;
            if (known) algorithms |= 1u << algorithm;
        }
        return;
    }
    if (!remark.empty()) remark += ' ';
    remark += format_text("Tensors at home on device %u are updated in the host tier: %s", device,
                          error.sentence);
    log.print(STW_LOG_INFO, ops->name, "%s", error.sentence);
}

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
