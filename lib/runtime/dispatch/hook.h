// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lib/residency/command_loop.h"
#include "lib/runtime/handles/lock.h"

namespace stepwell {

using residency::Commands;

// A room that takes part in events. Hooks are called in the order in which they were added.
class DispatchHook : public residency::EventHook {
public:
    // The commands of the event are carried out; the lock is about to be given back.
    virtual void before_unlock() STW_REQUIRES(runtime_lock) {}
    // With no lock held, after the event.
    virtual void unlocked() {}
    // Views that the library keeps for itself end. With no lock held.
    virtual void give_way() {}
    // The timer calls at each of its wake-ups, first with no lock, then under the lock; at the
    // latest when this is due. A hook compares with its own time. If that becomes earlier outside
    // of these calls, Dispatcher::arm_timer() has to be called.
    [[nodiscard]] virtual residency::Instant due() const STW_REQUIRES(runtime_lock)
    {
        return residency::kNever;
    }
    virtual void on_timer(residency::Instant) {}
    virtual void on_timer_locked(residency::Instant) STW_REQUIRES(runtime_lock) {}
    // Waits of the program that began before `at` end.
    virtual void interrupted(residency::Instant /*at*/) STW_REQUIRES(runtime_lock) {}
};

}  // namespace stepwell
