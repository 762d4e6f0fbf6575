// SPDX-License-Identifier: Apache-2.0
// The tiers of a runtime: which memory each has, and what its driver can do there. A tier with its
// ordinal has the number of its place in the core: the devices, the host, nvme. Constant once it is
// open; any thread reads it without a lock.
// Must not know what lies in a tier, nor its budget, which may change.
#pragma once

#include <stepwell/driver.h>

#include "lib/memory/address_alias.h"
#include "lib/memory/slot_memory.h"
#include "lib/memory/streams.h"
#include "lib/observe/log.h"
#include "lib/residency/types.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::memory {

// Of a tier's memory, as stw_memory_options.
struct TierOptions {
    const stw_memory_ops *ops = nullptr;
    uint64_t bytes = 0;
    uint64_t block_bytes = 0;
    uint64_t address_bytes = 0;
    uint32_t near_node = 0;
};

struct Tier {
    residency::Tier kind = residency::Tier::kHost;
    uint32_t device = 0;
    int32_t ordinal = 0;                  // of the driver's devices
    const stw_memory_ops *ops = nullptr;  // null: nvme, or absent
    stw_memory *memory = nullptr;
    char *base = nullptr;
    uint64_t block_bytes = 0;
    bool cpu_access = false;
    bool direct = false;  // storage reaches it, and the CPU only as storage's checksums do
    bool maps = false;
    bool aliases = false;       // its driver maps blocks at a tensor's own address, address_alias.h
    bool aliases_runs = false;  // only whole tensors, see STW_MEMORY_ALIASES_RUNS
    std::unique_ptr<AliasTotals> alias_totals;  // null: without `aliases`
    bool shrinks = false;                       // its memory can go back to the system
    std::unique_ptr<DeviceStreams> streams;     // null: its consumers have none
    std::unique_ptr<SlotMemory> slot_memory;    // null: without streams, or it cannot shrink
    bool computes = false;                      // updates, on a stream of its own
    uint32_t algorithms = 0;                    // those it knows: a bit for each number
    std::string driver;
    std::string options;  // the driver's own text
    std::string remark;

    // Takes the memory; `ordinal`, `direct` and `options` are set before. What the driver remarks
    // is logged. Errors: the driver's.
    Status open(const stw_services &services, const TierOptions &asked, observe::Log &log);
    [[nodiscard]] bool storage_reaches() const { return cpu_access || direct; }
    [[nodiscard]] bool updates_with(uint32_t algorithm) const
    {
        return computes && algorithm < 32 && (algorithms >> algorithm & 1) != 0;
    }
    // Those that have a byte of these; of none, the one where they would begin.
    [[nodiscard]] SlotRange slots_of(const void *pointer, uint64_t bytes) const
    {
        const auto begin = static_cast<uint64_t>(static_cast<const char *>(pointer) - base);
        const uint64_t first = begin / block_bytes;
        const uint64_t last = bytes == 0 ? first : (begin + bytes - 1) / block_bytes;
        return {static_cast<residency::Slot>(first), static_cast<uint32_t>(last - first + 1)};
    }
    // As the driver says it; of a tier that has memory.
    [[nodiscard]] stw_memory_info info() const;

private:
    void find_updates(observe::Log &log);
};

class TierSet {
public:
    using PlaceId = residency::PlaceId;

    // None of them has memory yet.
    explicit TierSet(uint32_t devices);

    // While it opens.
    Tier &opening(PlaceId place) { return tiers_[place]; }
    void add_nvme() { has_nvme_ = true; }
    // All have the memory that they get.
    void opened();
    void close();

    [[nodiscard]] const Tier &operator[](PlaceId place) const { return tiers_[place]; }
    [[nodiscard]] auto begin() const { return tiers_.begin(); }
    [[nodiscard]] auto end() const { return tiers_.end(); }

    // Devices are the places before the host's; those up to the host's are memory.
    [[nodiscard]] PlaceId host() const { return host_; }
    [[nodiscard]] PlaceId nvme() const { return static_cast<PlaceId>(host_ + 1); }
    // The first device with memory, else the host.
    [[nodiscard]] PlaceId nearest() const { return nearest_; }
    [[nodiscard]] bool is_device(uint32_t place) const { return place < host_; }
    [[nodiscard]] bool is_host(uint32_t place) const { return place == host_; }
    [[nodiscard]] bool is_nvme(uint32_t place) const { return place == nvme(); }
    // It has a budget.
    [[nodiscard]] bool has(uint32_t place) const
    {
        return is_nvme(place) ? has_nvme_ : tiers_[place].memory != nullptr;
    }
    // Of STW_TIER_*, STW_TIER_DEFAULT included, and a device; kNoPlace: there is no such tier.
    [[nodiscard]] PlaceId place_of(uint32_t tier, uint32_t device) const;

    // As in stw_memory_options, of the first device behind a bus that knows: the host tier goes
    // there.
    [[nodiscard]] uint32_t near_node() const;
    // What drivers' calls said of themselves. With no lock held that a log callback might want.
    void log_failures(observe::Log &log) const;

private:
    std::vector<Tier> tiers_;  // by place
    PlaceId host_ = 0;
    PlaceId nearest_ = 0;
    bool has_nvme_ = false;
};

}  // namespace stepwell::memory
