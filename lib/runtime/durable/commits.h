// SPDX-License-Identifier: Apache-2.0
// Generations: one commit at a time; a collective if there are several ranks.
#pragma once

#include "lib/runtime/ranks/collectives.h"

struct stw_commit_options;
struct stw_generation_info;

namespace stepwell::store {
struct GenerationInfo;
struct Manifest;
struct StoredCount;
struct StoredTensor;
}  // namespace stepwell::store

namespace stepwell {

struct BlockRun;
struct KeptBlocks;
struct OptimizerBody;
class RestoredTensors;
class OwedZeros;
class TensorRegistry;
class Sleepers;
class Shards;
class Collectives;
class OptimizerTable;
class DurableOpen;

class Commits final : public CollectiveRunner, Grounded {
public:
    Commits(const Ground &ground, RestoredTensors &restored, OwedZeros &zeros,
            TensorRegistry &registry, Sleepers &sleepers, Shards &shards, Collectives &collectives,
            OptimizerTable &optimizers, DurableOpen &opening)
        : Grounded(ground),
          restored_(restored),
          zeros_(zeros),
          registry_(registry),
          sleepers_(sleepers),
          shards_(shards),
          collectives_(collectives),
          optimizers_(optimizers),
          opening_(opening)
    {
    }

    Status commit(const stw_commit_options &options, uint64_t *generation_out);
    Status generation_info(uint64_t generation, stw_generation_info *info_out);
    Status generation_metadata(uint64_t generation, void *buffer, uint64_t capacity_bytes,
                               uint64_t *bytes_out);

    void run(Collective &work) override;

private:
    void run_commit(CommitWork &work);
    Status begin_commit(const std::shared_ptr<CommitWork> &work);
    [[nodiscard]] Status durable_view_writes();
    [[nodiscard]] Status update_without_verdict();
    std::vector<OptimizerBody *> live_optimizers();
    Status commit_over_ranks(CommitWork &work);
    Result<store::Manifest> write_generation(CommitWork &work, uint32_t set);
    Status await_claims(const CommitWork &work);
    Status await_claim(const CommitWork &work, const stw_tensor *tensor) STW_REQUIRES(runtime_lock);
    std::vector<BlockRun> runs_of(const CommitWork &work) const STW_REQUIRES(runtime_lock);
    Status keep_runs(const CommitWork &work, const BlockRun *runs, size_t n, uint32_t set,
                     KeptBlocks *kept);
    store::StoredTensor describe_stored(const stw_tensor &tensor, bool empty,
                                        const KeptBlocks &kept) const STW_REQUIRES(runtime_lock);
    std::vector<OptimizerBody *> durable_optimizers();
    std::vector<store::StoredCount> count_updates();
    [[nodiscard]] const store::GenerationInfo *info_of(uint64_t generation) const
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status no_generation(uint64_t generation) const STW_REQUIRES(runtime_lock);

    RestoredTensors &restored_;
    OwedZeros &zeros_;
    TensorRegistry &registry_;
    Sleepers &sleepers_;
    Shards &shards_;
    Collectives &collectives_;
    OptimizerTable &optimizers_;
    DurableOpen &opening_;
};

}  // namespace stepwell
