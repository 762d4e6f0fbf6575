// SPDX-License-Identifier: Apache-2.0
// Phases and their steps.
#pragma once

#include "lib/observe/step_history.h"
#include "lib/runtime/addresses/metadata_user.h"
#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"

namespace stepwell {

struct DeclaredUse;
class Placement;
class StreamOrder;
class ViewEnds;
class TierAccess;
class PlanStore;
class Prefetcher;
class ProgramVictims;
class Wholes;
class Meters;
class OptimizerTable;

class Steps final : public DispatchHook, public MetadataUser, Grounded {
public:
    Steps(const Ground &ground, Placement &placement, StreamOrder &streams, ViewEnds &ends,
          TierAccess &pieces, PlanStore &plans, Prefetcher &prefetcher, ProgramVictims &victims,
          Wholes &wholes, Meters &meters, OptimizerTable &optimizers)
        : Grounded(ground),
          placement_(placement),
          streams_(streams),
          ends_(ends),
          pieces_(pieces),
          plans_(plans),
          prefetcher_(prefetcher),
          victims_(victims),
          wholes_(wholes),
          meters_(meters),
          optimizers_(optimizers)
    {
    }

    Status create_phase(const char *name, stw_phase **phase_out);
    Status destroy_phase(stw_phase *phase);
    Status begin_step(stw_phase *phase);
    Status end_step(stw_phase *phase, stw_step_stats *stats_out);
    Status abort_step(stw_phase *phase, void *stream);
    Status declare_step(stw_phase *phase, std::vector<DeclaredUse> uses);

    observe::StepHistory history STW_GUARDED_BY(runtime_lock);

    void after_round(residency::Instant now, Commands &out) override STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t metadata_bytes() const override STW_REQUIRES(runtime_lock)
    {
        return history.metadata_bytes();
    }

private:
    void sample_tiers(residency::Instant time) STW_REQUIRES(runtime_lock);
    void close_step(Phase &phase) STW_REQUIRES(runtime_lock);

    Placement &placement_;
    StreamOrder &streams_;
    ViewEnds &ends_;
    TierAccess &pieces_;
    PlanStore &plans_;
    Prefetcher &prefetcher_;
    ProgramVictims &victims_;
    Wholes &wholes_;
    Meters &meters_;
    OptimizerTable &optimizers_;
    // Time of the last sample of bytes per tier.
    residency::Instant sampled_ns_ STW_GUARDED_BY(runtime_lock) = 0;
};

}  // namespace stepwell
