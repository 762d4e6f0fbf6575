// SPDX-License-Identifier: Apache-2.0
// Gate: the one word through which a resident tensor is pinned without a lock. A fetch that hits
// pins by compare-and-swap while the gate is open; the core closes it before the bytes may move or
// be written, and whoever takes the last pin of a closed gate tells the core.
// Any thread may pin and unpin; only the core (under the shell's lock) opens and closes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stepwell::residency {

// open: 1 bit | turn: 31 bits, counts openings | pins: 32 bits
template <template <class> class Atomic = std::atomic> class BasicGate {
public:
    static constexpr uint64_t kOpen = 1ull << 63;
    static constexpr uint64_t kTurn = 1ull << 32;
    static constexpr uint64_t kPins = kTurn - 1;

    // False when closed. The turn in the word makes a pin that raced with a close and a reopening
    // at another address fail.
    bool try_pin() noexcept
    {
        uint64_t word = word_.load(std::memory_order_relaxed);
        while (word & kOpen) {
            if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
                return true;
            }
        }
        return false;
    }

    // One more pin beside one that is held; the gate may be closed meanwhile.
    void add_pin() noexcept { word_.fetch_add(1, std::memory_order_relaxed); }

    // True when this was the last pin of a closed gate: the core waits to hear of it.
    bool unpin() noexcept
    {
        const uint64_t before = word_.fetch_sub(1, std::memory_order_acq_rel);
        return (before & kOpen) == 0 && (before & kPins) == 1;
    }

    void open() noexcept
    {
        uint64_t word = word_.load(std::memory_order_relaxed);
        while ((word & kOpen) == 0) {
            const uint64_t turn = (word + kTurn) & ~(kOpen | kPins);
            if (word_.compare_exchange_weak(word, kOpen | turn | (word & kPins),
                                            std::memory_order_release, std::memory_order_relaxed)) {
                return;
            }
        }
    }

    // No new pins from now on; returns those that are left.
    uint32_t close() noexcept
    {
        return static_cast<uint32_t>(word_.fetch_and(~kOpen, std::memory_order_acq_rel) & kPins);
    }

    // Close only when nobody pins: the test and the closing are one step.
    bool try_close_idle() noexcept
    {
        uint64_t word = word_.load(std::memory_order_relaxed);
        while ((word & kPins) == 0) {
            if ((word & kOpen) == 0) return true;
            if (word_.compare_exchange_weak(word, word & ~kOpen, std::memory_order_acq_rel,
                                            std::memory_order_relaxed)) {
                return true;
            }
        }
        return false;
    }

    [[nodiscard]] bool is_open() const noexcept
    {
        return (word_.load(std::memory_order_acquire) & kOpen) != 0;
    }
    [[nodiscard]] uint32_t pins() const noexcept
    {
        return static_cast<uint32_t>(word_.load(std::memory_order_acquire) & kPins);
    }

private:
    Atomic<uint64_t> word_{0};
};

using Gate = BasicGate<>;
static_assert(sizeof(Gate) == 8);

// A gate and where the bytes behind it are: stored before it opens, read after a pin.
struct Door {
    Gate gate;
    std::atomic<uint64_t> offset;  // in the place's arena; of no use at places that map
};

// The doors of one tensor, at least one per place, in cache lines of their own: threads that use
// different tensors do not share one.
struct alignas(128) Doors {
    Door at[8];
};

}  // namespace stepwell::residency
