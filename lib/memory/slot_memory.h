// SPDX-License-Identifier: Apache-2.0
// Memory that goes from slots of a device with streams, and comes to others. The core says which
// under the runtime's lock; work that was enqueued there has to end first, so it is done here, in
// the same order and without that lock: by who changes the budget, or by a copy or a view that
// needs a slot before that.
#pragma once

#include "lib/memory/streams.h"
#include "lib/support/thread_annotations.h"

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::memory {

// Any thread, several at once.
class SlotMemory {
public:
    // `ops` have STW_MEMORY_CAN_SHRINK; all but the name is borrowed.
    SlotMemory(const stw_memory_ops *ops, stw_memory *memory, DeviceStreams *streams,
               uint32_t slots, std::string device);

    // Under the runtime's lock. Nobody has the slot, or gets it before its memory is there again.
    void give(residency::Slot slot) { queue(slot, true); }
    void take(residency::Slot slot) { queue(slot, false); }

    // All that was said so far is done. `go_on` is asked where it has to wait. UNSUPPORTED, MEMORY,
    // DEVICE, or what `go_on` says: the rest is still to be done then.
    Status settle(const std::function<Status()> &go_on);
    // Before anything touches the slots: they have memory. MEMORY, DEVICE, TIMEOUT. BUSY: a stream
    // records a graph, see streams.h.
    Status await(SlotRange slots);

    // How often the slot's memory has gone: what was seen of it elsewhere is seen no more.
    [[nodiscard]] uint32_t times_gone(residency::Slot slot) const
    {
        return gone_[slot].load(std::memory_order_acquire);
    }

    [[nodiscard]] uint64_t metadata_bytes() const
    {
        return sizeof *this + slots_ * (1 + sizeof gone_[0]);
    }

private:
    struct Step {
        residency::Slot slot = 0;
        bool gives = false;
        bool begun = false;
        bool lacked = false;  // before it was said
    };
    void queue(residency::Slot slot, bool gives);
    Status work(const std::function<Status()> &go_on) STW_REQUIRES(working_);
    Status do_step(const Step &step, const std::function<Status()> &go_on) STW_REQUIRES(working_);
    Status take_back(residency::Slot slot) STW_REQUIRES(working_);
    [[nodiscard]] Status cannot_give(stw_status code) const;
    void set_lacks(residency::Slot slot, bool lacks) STW_REQUIRES(mutex_);

    const stw_memory_ops *const ops_;
    stw_memory *const memory_;
    DeviceStreams *const streams_;
    const uint32_t slots_;
    const std::string device_;
    Mutex working_;  // one at a time does what is next; before the other
    Mutex mutex_;
    std::deque<Step> steps_ STW_GUARDED_BY(mutex_);
    // By slot: used, or to be used, and its memory is not there yet.
    std::vector<uint8_t> lacks_ STW_GUARDED_BY(mutex_);
    std::atomic<uint32_t> lacking_{0};
    std::unique_ptr<std::atomic<uint32_t>[]> gone_;  // by slot
};

}  // namespace stepwell::memory
