// SPDX-License-Identifier: Apache-2.0
// Budgets of tiers, changed while the runtime is in use.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

namespace stepwell {

class Placement;
class Snapshots;
class RestoredTensors;
class TransferSink;
class Prefetcher;

struct BudgetChange {
    residency::PlaceId place = 0;
    uint32_t before = 0;  // blocks
    uint32_t after = 0;
    residency::Instant begin = 0;
    residency::Instant deadline = 0;
};

class Budgets final : Grounded {
public:
    Budgets(const Ground &ground, Placement &placement, Snapshots &snapshots,
            RestoredTensors &restored, TransferSink &sink, Prefetcher &prefetcher)
        : Grounded(ground),
          placement_(placement),
          snapshots_(snapshots),
          restored_(restored),
          sink_(sink),
          prefetcher_(prefetcher)
    {
    }

    // Takes effect only if it returns OK.
    Status set_budget(residency::PlaceId place, uint64_t bytes, uint64_t timeout_ns);

private:
    [[nodiscard]] bool works_on_tensors() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status check_undo(const BudgetChange &change) const STW_REQUIRES(runtime_lock);
    Status go_on_with(const BudgetChange &change) const STW_EXCLUDES(runtime_lock);
    [[nodiscard]] std::string name_of(residency::PlaceId place) const STW_EXCLUDES(runtime_lock);
    Status give_slots_back(const BudgetChange &change);
    Status take_slots_back(const BudgetChange &change);
    [[nodiscard]] bool others_work(residency::PlaceId place) const STW_REQUIRES(runtime_lock);
    Status blocks_of_budget(residency::PlaceId place, uint64_t bytes, uint32_t *blocks_out) const
        STW_REQUIRES(runtime_lock);
    Status wait_for_budget(const BudgetChange &change, const char *what) STW_REQUIRES(runtime_lock);
    Status shrink(const BudgetChange &change);
    Status wait_for_claims(const BudgetChange &change);
    Status empty_down_to(const BudgetChange &change);
    Status shrink_store(const BudgetChange &change);
    void unpin_before(const BudgetChange &change);
    Status give_memory_back(const BudgetChange &change);
    Status grow(const BudgetChange &change);
    Status take_memory_back(const BudgetChange &change);

    Placement &placement_;
    Snapshots &snapshots_;
    RestoredTensors &restored_;
    TransferSink &sink_;
    Prefetcher &prefetcher_;
    bool budget_changes_ STW_GUARDED_BY(runtime_lock) = false;  // a set_budget() is under way
};

}  // namespace stepwell
