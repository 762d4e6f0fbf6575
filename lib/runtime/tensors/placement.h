// SPDX-License-Identifier: Apache-2.0
// Where tensors rest by policy, and where parameters are updated. Depends on options and budgets,
// never on current residency.
#pragma once

#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"
#include "lib/update/pipeline.h"

namespace stepwell {

class Placement final : Grounded {
public:
    Placement(const Ground &ground, uint32_t preset_of_all)
        : Grounded(ground), preset(preset_of_all)
    {
    }

    residency::Policy default_policy(uint32_t role) const;
    Status to_policy(const stw_policy *from, uint32_t role, residency::Policy *policy_out) const;
    Status check_places(const FetchPlan &plan) const;
    [[nodiscard]] std::vector<update::WindowOptions> device_windows() const
        STW_REQUIRES(runtime_lock);
    void count_trained(const residency::TensorSpec &wanted, stw_tensor *tensor)
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t update_window() const STW_REQUIRES(runtime_lock);  // bytes
    void expect_updates() STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status check_cpu_room() const;

    const uint32_t preset;
    uint64_t trained_bytes STW_GUARDED_BY(runtime_lock) = 0;  // see count_trained()
    // By place, for devices with streams: the budget, or the smaller one that it is changing to.
    std::vector<uint64_t> update_blocks STW_GUARDED_BY(runtime_lock);

    // For ranges at places of this process; copies to the caller's memory pass through.
    [[nodiscard]] Status fits(const std::vector<RequestedRange> &ranges) const
        STW_EXCLUDES(runtime_lock);
};

}  // namespace stepwell
