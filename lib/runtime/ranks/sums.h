// SPDX-License-Identifier: Apache-2.0
// What is summed over ranks: gradients and norms, with the agreement before each.
#pragma once

#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/views/ends.h"

namespace stepwell::update {
struct StepOptions;
}  // namespace stepwell::update

namespace stepwell {

class SmallSums;
struct OptimizerBody;
class AddressTable;
class PrivateBuffers;
class TierAccess;
class Meters;
class GroupMemory;
class Shards;
class Collectives;
class Wholes;

class Sums final : ViewKind, CollectiveRunner, Grounded {
public:
    Sums(const Ground &ground, AddressTable &addresses, PrivateBuffers &buffers, TierAccess &pieces,
         Meters &meters, GroupMemory &group_memory, Shards &shards, Collectives &collectives,
         Wholes &wholes)
        : Grounded(ground),
          addresses_(addresses),
          buffers_(buffers),
          pieces_(pieces),
          meters_(meters),
          group_memory_(group_memory),
          shards_(shards),
          collectives_(collectives),
          wholes_(wholes)
    {
    }

    static Status agree_replicas(const stw_runtime_options &options, uint64_t blocks,
                                 Status status);
    Status end(const ViewSlot &view, ReleaseHint hint) override;
    Status queue_reduce(stw_tensor *tensor, residency::TensorId source, bool gives,
                        const Status &cause);
    std::shared_ptr<LocalVerdict> queue_verdict(OptimizerBody &body,
                                                const std::vector<stw_tensor *> &parameters,
                                                const std::vector<stw_tensor *> &changed,
                                                const update::StepOptions &step);

    ViewKind &views() { return *this; }
    CollectiveRunner &runner() { return *this; }

private:
    void run_verdict(Collective &work);
    void run_reduce(Collective &work);
    void run(Collective &work) override;

    Status agree_sum(collective::Record mine, SumAgreed *agreed);
    Status sum_over_ranks(residency::TensorId tensor, char *source, char *sums, uint64_t elements,
                          uint32_t dtype);
    void end_reduce(const Collective &work, const Status &status);
    std::vector<Collective *> small_sums(Collective &front);
    uint64_t fill_sums(const SmallSums &sums);
    Status take_sum(const SmallSums &sums, size_t i);
    void run_sums(SmallSums sums, const Status &put);
    void agree_verdict(collective::Record record, update::Verdict *all);
    static StepSpec describe_step(const OptimizerBody &body,
                                  const std::vector<stw_tensor *> &parameters,
                                  const update::StepOptions &step);

    AddressTable &addresses_;
    PrivateBuffers &buffers_;
    TierAccess &pieces_;
    Meters &meters_;
    GroupMemory &group_memory_;
    Shards &shards_;
    Collectives &collectives_;
    Wholes &wholes_;
};

}  // namespace stepwell
