// SPDX-License-Identifier: Apache-2.0
// The program's own order of eviction: its victim policy is called by a separate thread with no
// lock held.
#pragma once

#include "lib/runtime/addresses/metadata_user.h"
#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"
#include "lib/runtime/victims/scoring.h"

namespace stepwell {

class MetadataBudget;

class ProgramVictims final : public DispatchHook, public MetadataUser, Grounded {
public:
    ProgramVictims(const Ground &ground, MetadataBudget &metadata)
        : Grounded(ground), metadata_(metadata)
    {
    }

    Status set_victim_policy(const stw_victim_policy *policy, uint64_t timeout_ns);
    Status end_policy(uint64_t timeout_ns);
    void ask_policy() STW_REQUIRES(runtime_lock);

    std::unique_ptr<Scoring> scoring STW_GUARDED_BY(runtime_lock)
        STW_PT_GUARDED_BY(runtime_lock);  // null until a policy is set

    void after_round(residency::Instant now, Commands &out) override STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t metadata_bytes() const override STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t tensor_bytes(uint64_t tensors, bool at_most) const override
        STW_REQUIRES(runtime_lock);

private:
    [[nodiscard]] uint64_t policy_bytes(uint64_t tensors) const;
    void note_departures() STW_REQUIRES(runtime_lock);
    [[nodiscard]] bool has_policy() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status check_policy_room() const STW_REQUIRES(runtime_lock);
    Status start_policy_thread() STW_REQUIRES(runtime_lock);
    Status await_policy(uint64_t timeout_ns, bool closes) STW_REQUIRES(runtime_lock);
    bool await_scoring() STW_REQUIRES(runtime_lock);
    void run_policy();
    void score_place(residency::PlaceId place) STW_REQUIRES(runtime_lock);
    residency::Instant take_snapshot(residency::PlaceId place, uint32_t victim_bytes)
        STW_REQUIRES(runtime_lock);
    void show(const residency::Candidate &candidate, uint32_t victim_bytes, VictimTable &table)
        STW_REQUIRES(runtime_lock);
    residency::Instant apply_scores(residency::PlaceId place) STW_REQUIRES(runtime_lock);

    MetadataBudget &metadata_;
};

}  // namespace stepwell
