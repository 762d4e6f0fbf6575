// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lib/residency/command_loop.h"
#include "lib/runtime/handles/lock.h"

namespace stepwell::residency {
class Core;
}  // namespace stepwell::residency

namespace stepwell {

using residency::Commands;
using residency::Core;
struct Waiter;

// A room that takes part in events. Hooks are called in the order in which they were added.
class DispatchHook : public residency::EventHook {
public:
    // The commands of the event are carried out; the lock is about to be released.
    virtual void before_unlock() STW_REQUIRES(runtime_lock) {}
    // After the event, with no lock held.
    virtual void unlocked() {}
    // Ends views that the library keeps for itself. With no lock held.
    virtual void give_way() {}
    // The timer calls on_timer() with no lock and then on_timer_locked(), at each of its wake-ups
    // and at the latest at this time. Hooks compare with their own times. If due() becomes earlier
    // outside of these calls, call Dispatcher::arm_timer().
    [[nodiscard]] virtual residency::Instant due() const STW_REQUIRES(runtime_lock)
    {
        return residency::kNever;
    }
    virtual void on_timer(residency::Instant) {}
    virtual void on_timer_locked(residency::Instant) STW_REQUIRES(runtime_lock) {}
    // Ends waits of the program that began before `at`.
    virtual void interrupted(residency::Instant /*at*/) STW_REQUIRES(runtime_lock) {}
};

// A room whose fetches may outlive the call that asked.
class AnswerListener {
public:
    virtual ~AnswerListener() = default;
    virtual void answered(Waiter &waiter) STW_REQUIRES(runtime_lock) = 0;
    // The copies are made, or the gathered tensors are ready: the listener asks for the rest. With
    // no lock held.
    virtual void copied(Waiter &) {}
    virtual void gathered(Waiter &) {}
};

}  // namespace stepwell
