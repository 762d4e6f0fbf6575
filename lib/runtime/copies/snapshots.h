// SPDX-License-Identifier: Apache-2.0
// Copies that a fetch asks for, into the caller's memory or into another dtype: chunk by chunk,
// consistent over all ranges.
#pragma once

#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"

#include <deque>
#include <thread>

namespace stepwell {

struct Snapshot;
class AddressTable;
class Placement;
class PrivateBuffers;
class OwedZeros;
class Sleepers;
class ViewEnds;
class HitPath;

class Snapshots final : public DispatchHook, Grounded {
public:
    Snapshots(const Ground &ground, AddressTable &addresses, Placement &placement,
              PrivateBuffers &buffers, OwedZeros &zeros, Sleepers &sleepers, ViewEnds &ends,
              HitPath &hits)
        : Grounded(ground),
          addresses_(addresses),
          placement_(placement),
          buffers_(buffers),
          zeros_(zeros),
          sleepers_(sleepers),
          ends_(ends),
          hits_(hits)
    {
    }

    Status copy_out(Waiter &waiter);
    Status start_snapshot(Waiter &waiter);
    void stop_copier();

    std::vector<Snapshot *> under_way STW_GUARDED_BY(runtime_lock);
    // Snapshots whose chunk was granted or refused.
    std::deque<Snapshot *> copier_queue STW_GUARDED_BY(runtime_lock);

    // The copies of the waiter have ended.
    void forget(const Waiter &waiter) STW_REQUIRES(runtime_lock);
    void interrupted(residency::Instant at) override STW_REQUIRES(runtime_lock);

private:
    bool copy_resident(const FetchPlan &plan);
    Status prepare_snapshot(Waiter &waiter);
    bool next_chunk(Snapshot &work);
    void ask_chunk(Snapshot &work, Core &core, Commands &out) STW_REQUIRES(runtime_lock);
    void ask_ahead(Snapshot &work, Core &core, Commands &out);
    void give_chunk_back(Snapshot &work, Core &core, Commands &out);
    void start_over(Snapshot &work, Core &core, Commands &out) STW_REQUIRES(runtime_lock);
    void drop_holds(Snapshot &work, Core &core, Commands &out);
    void end_snapshot(Snapshot &work, Core &core, Commands &out) STW_REQUIRES(runtime_lock);
    void copy_chunk(Snapshot &work);
    [[nodiscard]] bool is_torn(Snapshot &work) STW_REQUIRES(runtime_lock);
    Status start_copier();
    void run_copier();

    AddressTable &addresses_;
    Placement &placement_;
    PrivateBuffers &buffers_;
    OwedZeros &zeros_;
    Sleepers &sleepers_;
    ViewEnds &ends_;
    HitPath &hits_;
    // Copies the chunks of operations; started with the first one.
    std::thread copier_;
    Condition copier_wakes_;
    bool copier_stops_ STW_GUARDED_BY(runtime_lock) = false;
};

}  // namespace stepwell
