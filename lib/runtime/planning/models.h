// SPDX-License-Identifier: Apache-2.0
// Copies of what a replay needs: the tensors of a step, the step, the machine.
#pragma once

#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/schedule/trace/step.h"
#include "lib/support/status.h"

struct stw_plan_advice;

namespace stepwell::schedule {
struct Machine;
}  // namespace stepwell::schedule

namespace stepwell {

struct StepModel;
class Meters;

class StepModels final : Grounded {
public:
    StepModels(const Ground &ground, Meters &meters) : Grounded(ground), meters_(meters) {}

    Status advise(const stw_phase *phase, stw_plan_advice *advice_out, uint32_t capacity,
                  uint32_t *count_out) const;
    void copy_steps(const std::vector<const schedule::Step *> &steps, StepModel *model) const
        STW_REQUIRES(runtime_lock);
    void settle_model(const std::vector<observe::LinkTotal> &totals, StepModel *model) const;
    static schedule::Step complete_step(schedule::Step step, const StepModel &model);

private:
    // EMPTY if the phase has no step yet. Holds the lock only while it copies.
    Result<StepModel> take_model(uint32_t phase) const;
    [[nodiscard]] std::vector<uint32_t> blocks_of_others(
        const std::vector<residency::TensorId> &used) const STW_REQUIRES(runtime_lock);
    [[nodiscard]] residency::Config room_beside(const std::vector<uint32_t> &others) const
        STW_REQUIRES(runtime_lock);
    void make_links(const std::vector<observe::LinkTotal> &totals,
                    schedule::Machine *machine) const;

    Meters &meters_;
};

}  // namespace stepwell
