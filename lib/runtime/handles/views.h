// SPDX-License-Identifier: Apache-2.0
// The table of open views, and what each thread keeps to use it without a lock: a few free slots
// and a ring of hits that the core has not read yet. A cookie is a slot and its serial number, so
// a view can be released only once and a stale one is detected.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/handles.h"
#include "lib/support/thread_annotations.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace stepwell {

// Written by one thread and read by any. The order comes from the serial number.
template <class T> class Relaxed {
public:
    Relaxed(T value) : value_(value) {}
    Relaxed(const Relaxed &other) : value_(T{other}) {}
    Relaxed &operator=(const Relaxed &) = delete;
    Relaxed &operator=(T value)
    {
        value_.store(value, std::memory_order_relaxed);
        return *this;
    }
    operator T() const { return value_.load(std::memory_order_relaxed); }
    T operator->() const { return *this; }

private:
    std::atomic<T> value_;
};

// Scans for open views read slots that their threads may be reusing: the fields they look at are
// relaxed.
struct alignas(64) ViewSlot {
    std::atomic<uint64_t> serial{0};  // odd while open
    Relaxed<stw_tensor *> tensor = nullptr;
    Relaxed<uint64_t> byte_begin = 0;
    Relaxed<uint64_t> byte_count = 0;
    Relaxed<uint64_t> step = 0;                               // in which it was fetched; 0: none
    Relaxed<uint32_t> owner = 0;                              // the thread that fetched it
    Relaxed<residency::TensorId> scratch = residency::kNone;  // a private buffer
    Relaxed<uint8_t> access = 0;                              // STW_READ..STW_REDUCE
    Relaxed<residency::PlaceId> place = 0;
    uint8_t by_gate = 0;
    Relaxed<uint8_t> dtype = 0;        // of the private buffer; 0: the tensor's
    uint8_t absent = 0;                // of a gathered tensor, without bytes here
    Relaxed<uint8_t> exported = 0;     // moved into a DLPack tensor
    Relaxed<uint8_t> touched = 0;      // by an access without a view; ends where it is in the way
    Relaxed<uint8_t> copied = 0;       // by a copy, which ends it at once
    uint32_t next = residency::kNone;  // pinned by the same call; until it is open
    uint32_t first_slot = 0;           // at a place with streams
};
static_assert(sizeof(ViewSlot) == 64);

// The state of one thread in one runtime. Type-stable, from a process-wide pool.
struct alignas(64) ThreadState {
    static constexpr uint32_t kSlots = 64;
    static constexpr uint32_t kHits = 1024;

    std::atomic<uint32_t> tag{0};
    std::atomic<uint64_t> runtime_serial{0};
    std::atomic<bool> thread_lives{false};
    uint32_t number = 0;            // of the thread in its runtime, from 1
    std::atomic<int> thread_id{0};  // of the system
    // A tensor that it holds, from or to which it copies memory of the program.
    std::atomic<residency::TensorId> copied{residency::kNone};
    uint32_t slot_count = 0;
    std::array<uint32_t, kSlots> slots{};
    // One writer (the thread), one reader (under the core's lock).
    std::atomic<uint32_t> hits_head{0};
    std::atomic<uint32_t> hits_tail{0};
    std::array<uint64_t, kHits> hits{};  // phase of the step, tensor id, place, kEnded
};

// At the end of the library, with no runtime open.
void unload_thread_states();

class ViewTable {
public:
    // Bits of a cookie; the serial number is above them.
    static constexpr uint32_t kSlotBits = 24;

    ViewTable(uint32_t views_max, uint64_t runtime_serial);
    ~ViewTable();
    ViewTable(const ViewTable &) = delete;
    ViewTable &operator=(const ViewTable &) = delete;

    // This thread's state in this runtime; null if too many threads live: then use the table.
    ThreadState *thread_state();
    // The number of a thread by the system's id; 0: it has made no call yet.
    [[nodiscard]] uint32_t number_of(int thread_id);
    // kNone: the thread copies nothing.
    [[nodiscard]] residency::TensorId copied_by(int thread_id);
    // While there is one, this thread copies from or to the tensor.
    class Copying {
    public:
        Copying(ViewTable &views, residency::TensorId tensor) : state_(views.thread_state())
        {
            if (state_) state_->copied.store(tensor);
        }
        Copying(const Copying &) = delete;
        Copying &operator=(const Copying &) = delete;
        ~Copying()
        {
            if (state_) state_->copied.store(residency::kNone);
        }

    private:
        ThreadState *const state_;
    };
    // kNone if views_max are open.
    uint32_t take_slot(ThreadState *state)
    {
        if (state && state->slot_count > 0) return state->slots[--state->slot_count];
        return take_more(state);
    }
    void give_slot(ThreadState *state, uint32_t slot)
    {
        if (!state || state->slot_count == ThreadState::kSlots) return give_some(state, slot);
        state->slots[state->slot_count++] = slot;
    }

    ViewSlot &slot(uint32_t index) { return slots_[index]; }
    [[nodiscard]] const ViewSlot &slot(uint32_t index) const { return slots_[index]; }
    [[nodiscard]] uint64_t metadata_bytes() const { return views_max_ * sizeof(ViewSlot); }
    [[nodiscard]] uint32_t slots_used() const { return used_.load(std::memory_order_acquire); }
    // Returns the cookie.
    uint64_t open(uint32_t index)
    {
        ViewSlot &slot = slots_[index];
        const uint64_t serial = slot.serial.load(std::memory_order_relaxed) + 1;
        slot.serial.store(serial, std::memory_order_release);
        return (serial << kSlotBits) | index;
    }
    static uint32_t index_of(uint64_t cookie)
    {
        return static_cast<uint32_t>(cookie & ((1ull << kSlotBits) - 1));
    }
    // False for a torn struct as well.
    [[nodiscard]] bool is_view_of(uint64_t cookie, const stw_tensor *tensor) const
    {
        const uint32_t index = index_of(cookie);
        return index < slots_used() &&
               slots_[index].serial.load(std::memory_order_acquire) == cookie >> kSlotBits &&
               slots_[index].tensor == tensor;
    }
    // Only one caller gets the slot; kNone if the cookie is stale, was released, or is torn.
    uint32_t close(uint64_t cookie)
    {
        const uint32_t index = index_of(cookie);
        uint64_t serial = cookie >> kSlotBits;
        if ((serial & 1) == 0 || index >= slots_used()) return residency::kNone;
        const bool mine = slots_[index].serial.compare_exchange_strong(serial, serial + 1,
                                                                       std::memory_order_acq_rel);
        return mine ? index : residency::kNone;
    }
    [[nodiscard]] bool is_open(uint32_t index) const;
    [[nodiscard]] uint32_t open_views() const;

    // Marks threads whose views are released by others. Two numbers may share a mark.
    void note_release(uint32_t owner, const ThreadState *by)
    {
        if (owner == 0 || (by && by->number == owner)) return;
        std::atomic<bool> &mark = handed_over_[owner % kOwnersMarked];
        if (!mark.load(std::memory_order_relaxed)) mark.store(true, std::memory_order_relaxed);
    }
    [[nodiscard]] bool hands_over(uint32_t owner) const
    {
        return handed_over_[owner % kOwnersMarked].load(std::memory_order_relaxed);
    }

    // False if the ring is full: the core has to drain it first. A repeated hit is left out while
    // the one before is still in the ring (after a drain it may belong to a new step). `step`: its
    // upper half is the phase's number, of which the ring keeps 24 bits.
    static bool push_hit(ThreadState &state, residency::TensorId tensor, residency::PlaceId place,
                         uint64_t step)
    {
        const uint32_t head = state.hits_head.load(std::memory_order_acquire);
        const uint32_t tail = state.hits_tail.load(std::memory_order_relaxed);
        const uint64_t hit = ((step >> 32) << 40) | (static_cast<uint64_t>(tensor) << 8) | place;
        const auto before = [&](uint32_t entries, uint64_t what) {
            return tail - head >= entries &&
                   state.hits[(tail - entries) % ThreadState::kHits] == what;
        };
        if (before(1, hit) || (before(1, hit | kEnded) && before(2, hit))) return true;
        return push(state, hit);
    }
    // A view that ended without the lock. Left out if the ring is full.
    static void push_end(ThreadState &state, residency::TensorId tensor, residency::PlaceId place,
                         uint64_t step)
    {
        const uint32_t head = state.hits_head.load(std::memory_order_acquire);
        const uint32_t tail = state.hits_tail.load(std::memory_order_relaxed);
        const uint64_t end =
            ((step >> 32) << 40) | (static_cast<uint64_t>(tensor) << 8) | place | kEnded;
        // The end of a repeated hit that was left out.
        const bool again = head != tail && state.hits[(tail - 1) % ThreadState::kHits] == end;
        if (!again) push(state, end);
    }
    struct Heard {
        residency::TensorId tensor = residency::kNone;
        residency::PlaceId place = residency::kNoPlace;
        uint32_t thread = 0;
        uint64_t phase = 0;
        bool ended = false;  // the end of a view; else a hit
    };
    template <class Body> void drain_hits(Body &&body)
    {
        MutexLock lock(mutex_);
        for (ThreadState *state : states_) {
            uint32_t head = state->hits_head.load(std::memory_order_relaxed);
            const uint32_t tail = state->hits_tail.load(std::memory_order_acquire);
            for (; head != tail; ++head) {
                const uint64_t hit = state->hits[head % ThreadState::kHits];
                const auto place = static_cast<residency::PlaceId>(hit & (kEnded - 1));
                body(Heard{static_cast<residency::TensorId>(hit >> 8), place, state->number,
                           hit >> 40, (hit & kEnded) != 0});
            }
            state->hits_head.store(head, std::memory_order_release);
        }
    }

private:
    static constexpr uint32_t kOwnersMarked = 256;
    static constexpr uint64_t kEnded = 0x80;  // a flag beside the place
    static_assert(residency::kPlacesMax < kEnded);

    static bool push(ThreadState &state, uint64_t entry)
    {
        const uint32_t tail = state.hits_tail.load(std::memory_order_relaxed);
        const uint32_t head = state.hits_head.load(std::memory_order_acquire);
        if (tail - head == ThreadState::kHits) return false;
        state.hits[tail % ThreadState::kHits] = entry;
        state.hits_tail.store(tail + 1, std::memory_order_release);
        return true;
    }
    ThreadState *register_thread();
    uint32_t take_more(ThreadState *state);
    void give_some(ThreadState *state, uint32_t slot);
    uint32_t take_one() STW_REQUIRES(mutex_);

    const uint32_t views_max_;
    const uint64_t runtime_serial_;
    ViewSlot *slots_ = nullptr;      // views_max slots; zero pages until used
    std::atomic<uint32_t> used_{0};  // slots ever taken
    Mutex mutex_;
    std::vector<uint32_t> free_ STW_GUARDED_BY(mutex_);
    std::vector<ThreadState *> states_ STW_GUARDED_BY(mutex_);
    uint32_t threads_seen_ STW_GUARDED_BY(mutex_) = 0;
    std::array<std::atomic<bool>, kOwnersMarked> handed_over_{};
};

}  // namespace stepwell
