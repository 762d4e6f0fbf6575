// SPDX-License-Identifier: Apache-2.0
// The fixed address of a pack of tensors at a device whose blocks do not move: its blocks are
// mapped at that address in addition to the arena, and views use it. A mapping stays until the
// pack is in other slots, so a pack that returns to the same slots needs no driver call. Meanwhile
// another pack's bytes may be mapped there, which is harmless without a view.
#pragma once

#include "lib/memory/slot_memory.h"
#include "lib/memory/streams.h"
#include "lib/support/thread_annotations.h"

#include <atomic>
#include <memory>
#include <string>

namespace stepwell::memory {

// Driver calls of all aliases of one device: bytes mapped and time spent.
struct AliasTotals {
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> ns{0};
};

// Any thread, several at once.
class AddressAlias {
public:
    // `ops` have STW_MEMORY_CAN_ALIAS and STW_MEMORY_STREAMS; all of it is borrowed.
    // `as_runs`: all mapped blocks of the pack are one run, see STW_MEMORY_ALIASES_RUNS.
    AddressAlias(const stw_memory_ops *ops, stw_memory *memory, DeviceStreams *streams,
                 const SlotMemory *slots, uint64_t block_bytes, bool as_runs, AliasTotals *totals);
    AddressAlias(const AddressAlias &) = delete;
    AddressAlias &operator=(const AddressAlias &) = delete;
    ~AddressAlias();  // the driver unmaps after the work that end() recorded; does not wait

    // No view is made any more: records the marks of work that uses the address. Streams may be
    // destroyed before the tensor's last transfer completes.
    void end();
    // The memory closes together with its mappings, and waits for the device itself.
    void leave() { address_ = nullptr; }

    // UNSUPPORTED, LIMIT.
    stw_status reserve(uint32_t blocks);
    [[nodiscard]] char *address() const { return address_; }
    [[nodiscard]] uint32_t blocks() const { return blocks_; }
    [[nodiscard]] DeviceStreams::Users &users() { return users_; }

    // Whether a tensor of the pack, or a part of one, can be seen there.
    [[nodiscard]] bool shows(bool whole) const { return whole || !as_runs_ || blocks_ == 1; }
    // Whether the blocks from `index` on are mapped to these slots.
    [[nodiscard]] bool is_mapped_to(uint32_t index, SlotRange slots) const;
    // Maps them. Waits for work that uses earlier mappings of the address. MEMORY, DEVICE.
    Status map(uint32_t index, SlotRange slots);

    [[nodiscard]] uint64_t metadata_bytes() const { return metadata_bytes(blocks_); }
    static uint64_t metadata_bytes(uint32_t blocks)
    {
        return sizeof(AddressAlias) + blocks * sizeof(std::atomic<uint64_t>);
    }

private:
    void forget_other_runs(residency::Slot zero) STW_REQUIRES(mutex_);
    // A slot, and how often its memory was given back before; 0: no slot.
    [[nodiscard]] uint64_t word_of(residency::Slot slot) const;

    const stw_memory_ops *const ops_;
    stw_memory *const memory_;
    DeviceStreams *const streams_;
    const SlotMemory *const slots_;  // null: memory is never given back
    const uint64_t block_bytes_;
    const bool as_runs_;
    AliasTotals *const totals_;
    uint32_t blocks_ = 0;
    char *address_ = nullptr;
    std::unique_ptr<std::atomic<uint64_t>[]> mapped_;  // by block; written by one map() at a time
    DeviceStreams::Users users_;
    DeviceStreams::MarkList end_;  // the range is released after these
    Mutex mutex_;                  // serializes map()
};

}  // namespace stepwell::memory
