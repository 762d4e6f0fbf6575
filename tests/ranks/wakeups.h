// SPDX-License-Identifier: Apache-2.0
// Wakeups: what comes when, the earliest first; of those at one time, the first that was arranged.
// A heap as of the standard library, but for what it costs: which of two is earlier nobody can
// foretell, so that is computed instead of branched on.
#pragma once

#include "lib/residency/types.h"

#include <vector>

namespace stepwell::ranks {

enum class Wake : uint8_t {
    kLink,        // a job comes to the end of its link
    kTransfer,    // one that no link carries, or that hung
    kCompute,     // the lane of the program
    kUpdate,      // the lane of updates
    kLoader,      // the lane of everything else
    kCollective,  // one is over
    kTick,        // a deadline
    kPlan,        // the lookahead wished to be asked
    kBudget,      // a shrink has waited long enough
    kFault,       // the next fault begins
    kHeal,        // one ends
};

// The time and the order of arrangement are one number: each is compared a few times on its way.
struct Wakeup {
    static constexpr uint32_t kOrderBits = 24;

    uint64_t key = 0;
    uint64_t number = 0;
    Wake what = Wake::kLink;
    uint8_t rank = 0;
    [[nodiscard]] residency::Instant at() const { return key >> kOrderBits; }
    [[nodiscard]] bool is_before(const Wakeup &other) const { return key < other.key; }
};

class Wakeups {
public:
    // False: so late, or so many, that they have no order.
    [[nodiscard]] bool push(residency::Instant at, Wake what, uint8_t rank, uint64_t number)
    {
        constexpr uint64_t kTimes = uint64_t{1} << (64 - Wakeup::kOrderBits);
        if (at >= kTimes || order_ >= uint64_t{1} << Wakeup::kOrderBits) return false;
        const Wakeup wakeup{at << Wakeup::kOrderBits | order_++, number, what, rank};
        heap_.push_back(wakeup);
        rise(heap_.size() - 1, wakeup);
        return true;
    }
    // Of one that is not empty.
    Wakeup take()
    {
        const Wakeup first = heap_.front();
        const Wakeup last = heap_.back();
        heap_.pop_back();
        const size_t size = heap_.size();
        if (size == 0) return first;
        // The hole goes down to the end, and what was last rises from there: mostly it stays.
        size_t hole = 0;
        for (size_t child = 1; child + 1 < size; child = 2 * hole + 1) {
            child += heap_[child + 1].is_before(heap_[child]);
            heap_[hole] = heap_[child];
            hole = child;
        }
        if (const size_t child = 2 * hole + 1; child < size) {
            heap_[hole] = heap_[child];
            hole = child;
        }
        rise(hole, last);
        return first;
    }

private:
    void rise(size_t hole, const Wakeup &wakeup)
    {
        while (hole > 0) {
            const size_t parent = (hole - 1) / 2;
            if (!wakeup.is_before(heap_[parent])) break;
            heap_[hole] = heap_[parent];
            hole = parent;
        }
        heap_[hole] = wakeup;
    }

    std::vector<Wakeup> heap_;
    uint64_t order_ = 0;
};

}  // namespace stepwell::ranks
