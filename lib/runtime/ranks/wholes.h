// SPDX-License-Identifier: Apache-2.0
// Gathered tensors: fetched and released by the program, gathered and kept by collectives.
#pragma once

#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/tensors/registry.h"
#include "lib/runtime/views/ends.h"

namespace stepwell {

class AddressTable;
class MetadataBudget;
class TransferSink;
class OwedZeros;
class Meters;
class GroupMemory;
class Shards;
class Collectives;

struct FetchPlan;
struct GatherLayout;

class Wholes final : public DispatchHook,
                     public ShardObserver,
                     ViewKind,
                     CollectiveRunner,
                     Grounded {
public:
    Wholes(const Ground &ground, AddressTable &addresses, MetadataBudget &metadata,
           TransferSink &sink, OwedZeros &zeros, Meters &meters, GroupMemory &group_memory,
           Shards &shards, Collectives &collectives)
        : Grounded(ground),
          addresses_(addresses),
          metadata_(metadata),
          sink_(sink),
          zeros_(zeros),
          meters_(meters),
          group_memory_(group_memory),
          shards_(shards),
          collectives_(collectives)
    {
    }

    [[nodiscard]] Status wholes_fit(std::vector<const stw_tensor *> &tensors) const
        STW_REQUIRES(runtime_lock);
    Status make_whole(stw_tensor &tensor) override STW_REQUIRES(runtime_lock);
    Status ask_wholes(Waiter &waiter);
    Status fetch_wholes(Waiter &waiter);
    void undo_wholes(Waiter &waiter);
    void release_refused(Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock);
    bool end_wholes_early(Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock);
    Status make_bucket(uint64_t bytes);
    Status end(const ViewSlot &view, ReleaseHint hint) override;
    Status write_shards(stw_tensor *tensor, Commands &out) override STW_REQUIRES(runtime_lock);
    Status await_gathers(stw_tensor *const *tensors, uint32_t n) override;
    Status may_unshard(const stw_tensor &tensor, Commands &out) override STW_REQUIRES(runtime_lock);
    void unshard(stw_tensor &tensor, Commands &out) override STW_REQUIRES(runtime_lock);
    void update_shards(const stw_tensor *tensor, Commands &out) STW_REQUIRES(runtime_lock);
    // True if one of them has an open view that will write its shards when it is released.
    [[nodiscard]] bool written_gathered(const std::vector<stw_tensor *> &tensors) const;
    // Gathers of these tensors are refused from this call on, or allowed again: see the ledger.
    void set_undecided(const std::vector<stw_tensor *> &tensors, bool undecided);
    void drop_partial(residency::TensorId tensor, Commands &out) override
        STW_REQUIRES(runtime_lock);

    ViewKind &views() { return *this; }
    CollectiveRunner &runner() { return *this; }
    void after_round(residency::Instant now, Commands &out) override STW_REQUIRES(runtime_lock);

private:
    void run_keep(Collective &work);
    void run_gather(Collective &work);
    Status empty_bucket(const Collective &work, const GatherLayout &layout, char *gathered);
    void pump_wholes(Commands &out) STW_REQUIRES(runtime_lock);
    void run(Collective &work) override;

    Status check_gathered(const FetchPlan &plan) const;
    void queue_gathers() STW_REQUIRES(runtime_lock);
    void answer_call(gathering::WholeGranted granted, Commands &out) STW_REQUIRES(runtime_lock);
    void refuse_call(gathering::WholeRefused refused, Commands &out) STW_REQUIRES(runtime_lock);
    void give_up_wholes(Waiter &waiter) STW_REQUIRES(runtime_lock);
    void release_wholes(Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock);
    void lose_gather(const Collective &work, const Status &status);
    Status gather_in_parts(const Collective &work, const char *shard, char *whole,
                           uint64_t rank_bytes);
    bool pin_shard(const Collective &work, Waiter &waiter, residency::FetchAsked &pin);

    AddressTable &addresses_;
    MetadataBudget &metadata_;
    TransferSink &sink_;
    OwedZeros &zeros_;
    Meters &meters_;
    GroupMemory &group_memory_;
    Shards &shards_;
    Collectives &collectives_;
};

}  // namespace stepwell
