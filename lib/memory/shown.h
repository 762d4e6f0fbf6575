// SPDX-License-Identifier: Apache-2.0
// A tensor with one address for life at a device whose blocks stay where they are: its blocks are
// seen at that address as well, and views lie there. What was shown stays until the tensor lies in
// other slots, so one that comes back to the same needs no call. Another tensor's bytes may be seen
// there meanwhile, which is nobody's business without a view.
#pragma once

#include "lib/memory/slot_memory.h"
#include "lib/memory/streams.h"
#include "lib/support/thread_annotations.h"

#include <atomic>
#include <memory>
#include <string>

namespace stepwell::memory {

// What it took at one device.
struct ShownTotals {
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> ns{0};
};

// Any thread, several at once.
class ShownTensor {
public:
    // `ops` have STW_MEMORY_CAN_SHOW and STW_MEMORY_STREAMS; all of it is borrowed.
    // As runs: what is seen of the tensor lies side by side, see STW_MEMORY_SHOWS_RUNS.
    ShownTensor(const stw_memory_ops *ops, stw_memory *memory, DeviceStreams *streams,
                const SlotMemory *slots, uint64_t block_bytes, bool as_runs, ShownTotals *totals);
    ShownTensor(const ShownTensor &) = delete;
    ShownTensor &operator=(const ShownTensor &) = delete;
    ~ShownTensor();  // the work that end() saw ends first, nobody waits for that

    // Nobody gets a view any more. Streams may be gone before its last transfer is done.
    void end();
    // The memory closes with all that is seen of it, and waits for the device itself.
    void leave() { address_ = nullptr; }

    // UNSUPPORTED, LIMIT.
    stw_status reserve(uint32_t blocks);
    [[nodiscard]] char *address() const { return address_; }
    [[nodiscard]] uint32_t blocks() const { return blocks_; }
    [[nodiscard]] DeviceStreams::Users &users() { return users_; }

    // Whether its blocks from `index` on are seen in these slots.
    [[nodiscard]] bool shows(uint32_t index, SlotRange slots) const;
    // They are. Waits for work on what it showed there before. MEMORY, DEVICE.
    Status show(uint32_t index, SlotRange slots);

    [[nodiscard]] uint64_t metadata_bytes() const { return metadata_bytes(blocks_); }
    static uint64_t metadata_bytes(uint32_t blocks)
    {
        return sizeof(ShownTensor) + blocks * sizeof(std::atomic<uint64_t>);
    }

private:
    void forget_other_runs(residency::Slot zero) STW_REQUIRES(mutex_);
    // A slot, and how often its memory had gone; 0: none yet.
    [[nodiscard]] uint64_t word_of(residency::Slot slot) const;

    const stw_memory_ops *const ops_;
    stw_memory *const memory_;
    DeviceStreams *const streams_;
    const SlotMemory *const slots_;  // null: memory stays
    const uint64_t block_bytes_;
    const bool as_runs_;
    ShownTotals *const totals_;
    uint32_t blocks_ = 0;
    char *address_ = nullptr;
    std::unique_ptr<std::atomic<uint64_t>[]> shown_;  // by block; written by one show() at a time
    DeviceStreams::Users users_;
    DeviceStreams::MarkList end_;  // it ends behind these
    Mutex mutex_;                  // of show()
};

}  // namespace stepwell::memory
