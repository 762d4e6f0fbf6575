// SPDX-License-Identifier: Apache-2.0
// victim.h at the boundary.
#include "lib/api/check.h"
#include "lib/runtime/victims/scoring.h"

using namespace stepwell;
using namespace stepwell::api;

stw_status stw_runtime_set_victim_policy(stw_runtime *runtime, const stw_victim_policy *policy,
                                         uint64_t timeout_ns)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!policy) return runtime->body->victims.set_victim_policy(nullptr, timeout_ns);
        stw_victim_policy taken{};
        STW_TRY(take(&taken, policy, "policy"));
        if (!taken.rank) {
            return Status::error(STW_ERROR_INVALID,
                                 "policy.rank is null; to remove the policy pass NULL for it");
        }
        if (taken.victim_bytes == 0) taken.victim_bytes = kVictimBytesMin;
        if (taken.victim_bytes < kVictimBytesMin || taken.victim_bytes > 4096 ||
            taken.victim_bytes % alignof(stw_victim) != 0) {
            return Status::error(STW_ERROR_INVALID,
                                 "policy.victim_bytes is %u, not the size of a version of "
                                 "stw_victim; start from STW_VICTIM_POLICY_INIT",
                                 taken.victim_bytes);
        }
        return runtime->body->victims.set_victim_policy(&taken, timeout_ns);
    });
}
