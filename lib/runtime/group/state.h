// SPDX-License-Identifier: Apache-2.0
// The state of a runtime with several ranks. Calls put their collectives into one queue, in the
// order of the calls; one thread executes them one at a time, so that all ranks start the same
// ones in the same order. Their tensors are claimed in the call, so later calls are ordered after
// them on every rank.
#pragma once

#include "lib/collective/group.h"
#include "lib/gathering/agreed.h"
#include "lib/memory/streams.h"
#include "lib/runtime/handles/lock.h"
#include "lib/update/verdict.h"

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

struct stw_group;
struct stw_runtime_options;
struct stw_tensor;

namespace stepwell::collective {
class DiskShares;
class Node;
}  // namespace stepwell::collective
namespace stepwell::update {
class Optimizer;
}  // namespace stepwell::update

namespace stepwell {

struct Waiter;

// This rank's part of a verdict, passed from the pipeline to the queue. The pipeline calls this
// with its leaf lock held, so it has a lock of its own and calls nothing.
class LocalVerdict final : public update::Agreement {
public:
    void publish(const update::Verdict &mine) override;
    // The step was not begun: the other ranks get the cause.
    void retract(Status cause);
    // Blocks until it is published; false: retracted, with the cause in the verdict's status.
    bool wait(update::Verdict *mine_out);

private:
    Mutex mutex_;
    Condition changed_;
    update::Verdict mine_ STW_GUARDED_BY(mutex_);
    bool published_ STW_GUARDED_BY(mutex_) = false;
    bool retracted_ STW_GUARDED_BY(mutex_) = false;
};

// The options of an optimizer step that must be equal on all ranks.
struct StepSpec {
    std::string words;
    uint64_t hash = 0;  // also covers more than `words`
};

struct CommitWork;

// An entry of the queue. Guarded by the runtime's lock until it is executed, then owned by the
// thread.
struct Collective {
    enum class Kind { kGather, kKeep, kReduce, kVerdict, kCommit };
    static constexpr size_t kKinds = 5;

    Kind kind = Kind::kGather;
    std::vector<stw_tensor *> tensors;  // under the claim, so they live
    residency::ClaimId claim = 0;
    // kGather
    gathering::StartGather start;
    bool started = false;  // its memory is ready, was refused, or is not wanted
    uint64_t hinted = 0;   // bytes of the shards, concatenated, for which hints were given
    // kReduce: `source` is summed into `sums`, or in place if that is kNone
    residency::TensorId source = residency::kNone;
    residency::TensorId sums = residency::kNone;
    bool adds = false;  // the pipeline adds the sums to the shard and drops them
    bool gives = true;  // this rank has a gradient
    Status cause;       // why this rank cannot take part
    // kVerdict
    update::Optimizer *optimizer = nullptr;
    std::string name;
    StepSpec step;
    std::shared_ptr<LocalVerdict> verdict;
    std::shared_ptr<CommitWork> commit;  // kCommit; shared, as the caller may have timed out
};

// Shared by calls and the thread that executes the queue.
struct RankQueue {
    RankQueue(residency::Core &core, residency::PlaceId place, uint64_t whole_blocks);

    gathering::WholeGathers gathers;
    std::vector<stw_tensor *> wholes;  // gathered tensors, by their number in the ledger
    std::deque<std::unique_ptr<Collective>> collectives;
    Collective *working = nullptr;  // taken from the front
    gathering::GatherId gathers_queued = 0;
    // Fetches of gathered tensors, by the ledger's number of the call, until they are answered.
    // One that was given up has no waiter: its pins are released with the answer.
    struct Call {
        Waiter *waiter = nullptr;
        std::vector<gathering::WholeId> wholes;
        residency::Access access = residency::Access::kRead;
        bool absent = false;
    };
    std::map<uint64_t, Call> calls;
    Call end_call(uint64_t number);
    std::deque<Waiter *> granted;  // operations that the thread continues
    // Prefetches of the shards of gathers, under the claims of these.
    struct Hint {
        residency::ClaimId claim = 0;
        residency::FetchId fetch = 0;
    };
    std::deque<Hint> hints;
    std::vector<residency::TensorId> voided;  // partial sums that were dropped while being added to
    bool stops = false;
};

struct Ranks {
    Ranks(residency::Core &core, stw_group *group, residency::PlaceId place, uint64_t whole_blocks);
    ~Ranks();

    stw_group *handle;
    collective::Group &group;
    collective::Group *replicas = nullptr;  // ranks with the same shards; null: none
    std::unique_ptr<collective::Node> node;
    std::unique_ptr<collective::Node> host;         // with ranks of other groups; null: no replicas
    std::unique_ptr<collective::DiskShares> disks;  // null: not shared
    residency::PlaceId place;                       // of gathered tensors
    RankQueue queue STW_GUARDED_BY(runtime_lock);
    // Used below by the thread that executes collectives.
    std::vector<char> bucket;
    // If collectives work on device memory: their streams on that device, and the end of its arena
    // as the bucket.
    bool on_device = false;
    memory::DeviceStreams::Id streams[2] = {};  // of the group, of the replicas
    char *device_bucket = nullptr;
    uint64_t device_bucket_bytes = 0;
    uint64_t arena_bytes = 0;
    bool registered = false;
    [[nodiscard]] char *bucket_data() { return on_device ? device_bucket : bucket.data(); }
    Condition wakes;     // notified when there may be work
    Condition answers;   // notified when there are results
    std::thread thread;  // none: collectives run on the callers' threads

    [[nodiscard]] bool holds_memory() const
    {
        return group.holds_memory() || (replicas && replicas->holds_memory());
    }
};

// Null: none, or this rank alone.
collective::Group *replicas_of(const stw_runtime_options &options);

// What ranks and replicas agreed on before sums; the same on all.
struct SumAgreed {
    uint64_t count = 0;  // the least of counts[0]
    bool alike = true;   // in counts[1]
    bool given = false;  // by some rank, counts[3]
};

}  // namespace stepwell
