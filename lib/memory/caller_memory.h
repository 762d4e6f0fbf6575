// SPDX-License-Identifier: Apache-2.0
// The program's own memory at the other side of a copy or a sum: the host's, or a device's that is
// no part of the driver's arena. The CPU reads and writes the host's; a device's is copied by its
// driver, after the work of the stream that the program names. Any thread; no lock is held while a
// device is waited for.
#pragma once

#include "lib/memory/tiers.h"
#include "lib/support/status.h"

#include <memory>

namespace stepwell::memory {

class CallerMemory {
public:
    // Where the memory is, as stw_copy_options name it.
    struct Place {
        uint32_t tier = 0;
        uint32_t device = 0;
        void *stream = nullptr;
    };

    // The host's.
    CallerMemory() = default;
    // Marks the stream, if the memory is a device's: what was enqueued on it is before each copy.
    // INVALID: there is no such device, not all of the bytes are its memory, or no stream of it.
    // UNSUPPORTED: its driver does not copy them. BUSY: the stream records a graph. DEVICE.
    static Result<CallerMemory> make(const TierSet &tiers, const Place &place, const void *pointer,
                                     uint64_t bytes);

    [[nodiscard]] bool on_device() const { return device_ != nullptr; }
    // The host's tier, or that of the device.
    [[nodiscard]] residency::PlaceId place() const { return place_; }
    // Returns when the work that was marked is over. Blocks. DEVICE.
    Status await() const;
    // Into this memory or out of it; the other side is the host's. Blocks until that work and the
    // copy are over. DEVICE.
    Status copy(void *to, const void *from, uint64_t bytes) const;

private:
    [[nodiscard]] Status status_of(stw_status code) const;

    const Tier *device_ = nullptr;  // null: the host's
    residency::PlaceId place_ = residency::kNoPlace;
    uint64_t mark_ = 0;
    bool marked_ = false;
};

// Parts of such memory where the CPU reads them, each until the next. One thread.
class OnHost {
public:
    explicit OnHost(const CallerMemory &memory) : memory_(memory) {}
    // DEVICE, MEMORY.
    Status bring(const void *from, uint64_t bytes, const void **here_out);

private:
    const CallerMemory &memory_;
    std::unique_ptr<char[]> room_;
    uint64_t size_ = 0;
};

}  // namespace stepwell::memory
