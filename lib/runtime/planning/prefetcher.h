// SPDX-License-Identifier: Apache-2.0
// Prefetches for the next steps, after the commands of an event were issued.
#pragma once

#include "lib/runtime/addresses/metadata_user.h"
#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"

namespace stepwell {

class MetadataBudget;
class PlanStore;

class Prefetcher final : public DispatchHook, public MetadataUser, Grounded {
public:
    Prefetcher(const Ground &ground, MetadataBudget &metadata, PlanStore &plans)
        : Grounded(ground), metadata_(metadata), plans_(plans)
    {
    }

    void look_ahead() STW_REQUIRES(runtime_lock);
    void plan_now();

    bool granted(residency::Granted &granted, Commands &out) override STW_REQUIRES(runtime_lock);
    bool refused(residency::Refused &refused, Commands &out) override STW_REQUIRES(runtime_lock);
    void before_unlock() override STW_REQUIRES(runtime_lock);
    [[nodiscard]] residency::Instant due() const override STW_REQUIRES(runtime_lock)
    {
        return plan_wake_;
    }
    void on_timer_locked(residency::Instant now) override STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t metadata_bytes() const override STW_REQUIRES(runtime_lock)
    {
        return lookahead_bytes_;
    }

    // No hint begins between the two calls. See PlanPause.
    void begin_pause() STW_EXCLUDES(runtime_lock);
    void end_pause() STW_EXCLUDES(runtime_lock);

private:
    bool end_hint(residency::FetchId fetch, const Status &status) STW_REQUIRES(runtime_lock);
    void look_ahead_in(uint32_t phase) STW_REQUIRES(runtime_lock);
    bool make_lookahead(Phase &phase) STW_REQUIRES(runtime_lock);

    MetadataBudget &metadata_;
    PlanStore &plans_;
    uint32_t plan_pauses_ STW_GUARDED_BY(runtime_lock) = 0;  // calls that wait until nothing moves
    residency::Instant plan_wake_ STW_GUARDED_BY(runtime_lock) =
        residency::kNever;                                       // time of the next look ahead
    uint64_t lookahead_bytes_ STW_GUARDED_BY(runtime_lock) = 0;  // of all phases
};

}  // namespace stepwell
