// SPDX-License-Identifier: Apache-2.0
// Deficit round robin without rounds: counts are compared where they are read.
#include "lib/collective/fair_share.h"

#include <algorithm>

namespace stepwell::collective {

FairShare::FairShare(FairLane *lanes, uint32_t ranks, uint32_t own, const FairLimits &limits)
    : lanes_(lanes), ranks_(ranks), own_(own), limits_(limits)
{
}

bool FairShare::wants(const FairLane &lane, uint64_t now_ns) const
{
    const uint64_t asked_ns = lane.asked_ns.load(std::memory_order_acquire);
    return asked_ns != 0 && (asked_ns >= now_ns || now_ns - asked_ns <= limits_.lapse_ns);
}

uint64_t FairShare::slowest_other(uint64_t now_ns) const
{
    uint64_t slowest = UINT64_MAX;
    for (uint32_t i = 0; i < ranks_; ++i) {
        if (i == own_ || !wants(lanes_[i], now_ns)) continue;
        slowest = std::min(slowest, lanes_[i].taken.load(std::memory_order_relaxed));
    }
    return slowest;
}

// Others' counts only grow while they want, so a count that is read late only makes one wait.
bool FairShare::take(uint64_t bytes, uint64_t now_ns)
{
    FairLane &own = lanes_[own_];
    uint64_t taken = own.taken.load(std::memory_order_relaxed);
    const uint64_t slowest = slowest_other(now_ns);
    bool granted = true;
    if (slowest != UINT64_MAX) {
        // Who wanted none for a while is owed nothing for it: else it could have the disk alone
        // until it has caught up. Nor does it owe what it took while nobody else wanted any.
        if (!wants(own, now_ns)) taken = std::max(taken, slowest);
        taken = std::min(taken, slowest + limits_.lead_bytes);
        granted = taken <= slowest || taken + bytes <= slowest + limits_.lead_bytes;
    }
    if (granted) taken += bytes;
    own.taken.store(taken, std::memory_order_relaxed);
    own.asked_ns.store(std::max<uint64_t>(now_ns, 1), std::memory_order_release);
    return granted;
}

}  // namespace stepwell::collective
