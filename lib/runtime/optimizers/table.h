// SPDX-License-Identifier: Apache-2.0
// Optimizers: parameters, states, steps.
#pragma once

#include "lib/report/report.h"
#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"

#include <stepwell/optimizer.h>

namespace stepwell::update {
struct Entry;
struct StepOptions;
struct StepResult;
}  // namespace stepwell::update

namespace stepwell {

struct OptimizerBody;
class Placement;
class OwedZeros;
class RestoredTensors;
class TransferSink;
class TensorRegistry;
class Sleepers;
class Collectives;
class Sums;
class Wholes;
class DeviceUpdates;
class TierAccess;
struct KeptMaster;

class OptimizerTable final : public DispatchHook, Grounded {
public:
    OptimizerTable(const Ground &ground, Placement &placement, OwedZeros &zeros,
                   RestoredTensors &restored, TransferSink &sink, TensorRegistry &registry,
                   Sleepers &sleepers, Collectives &collectives, Wholes &wholes, Sums &sums,
                   DeviceUpdates &devices, TierAccess &pieces);
    ~OptimizerTable() override;

    Status create_optimizer(const stw_optimizer_options &options, stw_optimizer **optimizer_out);
    Status destroy_optimizer(stw_optimizer *optimizer);
    Status add_parameters(stw_optimizer *optimizer, const stw_optimizer_entry *entries, uint32_t n);
    Status set_hyper(stw_optimizer *optimizer, uint32_t group, const stw_hyper &hyper);
    Status optimizer_state(stw_optimizer *optimizer, stw_tensor *parameter, const char *state,
                           stw_tensor **tensor_out);
    // Once the update of the parameter that is under way is through. NOT_FOUND; else as
    // update::Optimizer::remakes_master().
    Status kept_master(stw_optimizer *optimizer, stw_tensor *parameter, uint64_t timeout_ns,
                       KeptMaster *kept_out);
    // By name, also a master that is in parts.
    Status find_tensor(const char *name, stw_tensor **tensor_out);
    Status get_count(stw_optimizer *optimizer, stw_tensor *parameter, uint64_t *count_out);
    Status set_count(stw_optimizer *optimizer, stw_tensor *parameter, uint64_t count);
    Status optimizer_step(stw_optimizer *optimizer, const stw_update_options &options,
                          stw_update_result *result_out);
    Status optimizer_result(stw_optimizer *optimizer, stw_update_result *result_out);
    // Begins to set back what speculative steps have updated, of every optimizer; gradients stay.
    Status reject_early();
    // Creates tensors; where there is no room for them, optimizers give that of older contents back
    // which they do not need now. changed: the one whose `changes` the caller holds.
    Status create_tensors(const stw_tensor_spec *specs, uint32_t n, stw_tensor **tensors_out,
                          OptimizerBody *changed = nullptr);
    Status open_update(uint32_t asked);
    [[nodiscard]] std::vector<stw_tensor *> held_by(const OptimizerBody &body) const
        STW_EXCLUDES(runtime_lock);

    uint32_t update_threads = 0;
    std::string update_threads_why;
    report::UpdateReport updates;
    std::vector<std::unique_ptr<OptimizerBody>> bodies STW_GUARDED_BY(runtime_lock);

    void interrupted(residency::Instant at) override STW_REQUIRES(runtime_lock);

private:
    [[nodiscard]] residency::PlaceId home_of_states(const OptimizerBody &body, uint64_t bytes);
    [[nodiscard]] bool may_split(const OptimizerBody &body, const stw_optimizer_entry &entry,
                                 const update::Entry &made) const;
    Status join_master(OptimizerBody &body, stw_tensor *parameter, stw_tensor **tensor_out);
    void drop_parts(OptimizerBody &body, const stw_tensor *parameter);
    [[nodiscard]] std::vector<OptimizerBody *> live() const STW_EXCLUDES(runtime_lock);
    [[nodiscard]] Status check_own_views(const OptimizerBody &body,
                                         const update::StepOptions &step) const;
    [[nodiscard]] Status check_update_room(const OptimizerBody &body,
                                           const std::vector<stw_tensor *> &parameters) const;
    // Null: there is none.
    static stw_tensor *find_state(const OptimizerBody &body, const stw_tensor *parameter,
                                  std::string_view name);
    // A tensor beside the elements of a parameter.
    struct StateForm {
        uint32_t dtype;
        bool reads_zero = false;
        bool is_bits = false;  // one per element
    };
    Status make_state(OptimizerBody &body, stw_tensor *parameter, const char *name,
                      const StateForm &form, residency::PlaceId home, residency::TensorId *id_out);
    Status check_entry(const OptimizerBody &body, const stw_optimizer_entry &entry) const;
    [[nodiscard]] collective::Range own_part(const stw_optimizer_entry &entry) const;
    void tell_early(OptimizerBody &body);
    [[nodiscard]] std::vector<stw_tensor *> changed_by(const OptimizerBody &body,
                                                       std::vector<stw_tensor *> named,
                                                       bool some) const;
    Status await_concealed(const std::vector<stw_tensor *> &changed, bool with_shared,
                           residency::Instant deadline) STW_EXCLUDES(runtime_lock);
    Status step_on_ranks(OptimizerBody &body, const std::vector<stw_tensor *> &tensors, bool some,
                         update::StepOptions step, update::StepResult *result);
    Status make_entry(OptimizerBody &body, const stw_optimizer_entry &entry,
                      update::Entry *entry_out);
    Status take_parameters(OptimizerBody &body, const stw_optimizer_entry *entries, uint32_t n);
    void forget_states(OptimizerBody &body, uint64_t keep, Commands &out);
    OptimizerBody &body_of(const stw_optimizer *optimizer) STW_EXCLUDES(runtime_lock);
    bool name_parameters(const OptimizerBody &body, const stw_update_options &options,
                         std::vector<stw_tensor *> *named);
    [[nodiscard]] Status find_parameter(const OptimizerBody &body, const stw_tensor *parameter,
                                        bool *updated_here) const;

    Placement &placement_;
    OwedZeros &zeros_;
    RestoredTensors &restored_;
    TransferSink &sink_;
    TensorRegistry &registry_;
    Sleepers &sleepers_;
    Collectives &collectives_;
    Wholes &wholes_;
    Sums &sums_;
    DeviceUpdates &devices_;
    TierAccess &pieces_;
};

}  // namespace stepwell
