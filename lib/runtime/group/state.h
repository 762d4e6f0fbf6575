// SPDX-License-Identifier: Apache-2.0
// What a runtime on several ranks has beyond one alone. Calls put their collectives into one queue,
// in the order of the calls; one thread works it off, one after the other, so that all ranks start
// the same ones in the same order. What each needs of memory is asked for under claims that were
// taken in the call: what is called later comes later on every rank.
#pragma once

#include "lib/collective/disk_share.h"
#include "lib/gathering/agreed.h"
#include "lib/memory/streams.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/update/optimizer.h"

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stepwell {

// This rank's part of a verdict, on its way from the pipeline to the queue. The pipeline calls with
// its leaf lock held, so this has a lock of its own, and nobody is called.
class LocalVerdict final : public update::Agreement {
public:
    void publish(const update::Verdict &mine) override;
    // The step was not begun: only the other ranks get the cause.
    void retract(Status cause);
    // Until it was published; false: retracted, with the cause in the verdict's status.
    bool wait(update::Verdict *mine_out);

private:
    Mutex mutex_;
    Condition changed_;
    update::Verdict mine_ STW_GUARDED_BY(mutex_);
    bool published_ STW_GUARDED_BY(mutex_) = false;
    bool retracted_ STW_GUARDED_BY(mutex_) = false;
};

// What an optimizer step must have in common on all ranks, lest their shards drift apart.
struct StepSpec {
    std::string words;
    uint64_t hash = 0;  // of more than the words
};

struct CommitWork;

// One entry of the queue. Under the runtime's lock until its turn, then the thread's.
struct Collective {
    enum class Kind { kGather, kKeep, kReduce, kVerdict, kCommit };
    static constexpr size_t kKinds = 5;

    Kind kind = Kind::kGather;
    std::vector<stw_tensor *> tensors;  // whose; under the claim, so they live
    residency::ClaimId claim = 0;
    // kGather
    gathering::StartGather start;
    bool started = false;  // its memory is there, cannot be had, or is not wanted
    uint64_t hinted = 0;   // bytes of the shards, one behind the other, that hints were given for
    // kReduce: the sums of `source` go to `sums`, or where that is none stay in it
    residency::TensorId source = residency::kNone;
    residency::TensorId sums = residency::kNone;
    bool adds = false;  // the pipeline adds them to the shard, and drops them
    bool gives = true;  // this rank has a gradient
    Status cause;       // this rank cannot take part
    // kVerdict
    update::Optimizer *optimizer = nullptr;
    std::string name;
    StepSpec step;
    std::shared_ptr<LocalVerdict> verdict;
    std::shared_ptr<CommitWork> commit;  // kCommit; whoever called may have given up
};

// What calls and the thread that works the queue off share.
struct RankQueue {
    RankQueue(residency::Core &core, residency::PlaceId place, uint64_t whole_blocks);

    gathering::WholeGathers gathers;
    std::vector<stw_tensor *> wholes;  // by their number in the ledger
    std::deque<std::unique_ptr<Collective>> collectives;
    Collective *working = nullptr;  // what was the front
    gathering::GatherId gathers_queued = 0;
    // Fetches of wholes, by the ledger's number of the call, until they are answered. One that was
    // given up has no waiter any more: its pins go with the answer.
    struct Call {
        Waiter *waiter = nullptr;
        std::vector<gathering::WholeId> wholes;
        residency::Access access = residency::Access::kRead;
        bool absent = false;
    };
    std::map<uint64_t, Call> calls;
    Call end_call(uint64_t number);
    std::deque<Waiter *> granted;  // operations, for the thread to go on with
    std::deque<residency::FetchId> hints;
    std::vector<residency::TensorId> voided;  // partial sums that were dropped while added to
    bool stops = false;
};

struct Ranks {
    Ranks(residency::Core &core, stw_group *group, residency::PlaceId place, uint64_t whole_blocks);

    stw_group *handle;
    collective::Group &group;
    collective::Group *replicas = nullptr;  // who holds the same shards; null: nobody else
    std::unique_ptr<collective::Node> node;
    std::unique_ptr<collective::Node> host;         // with those of other groups; null: no replicas
    std::unique_ptr<collective::DiskShares> disks;  // null: nobody to share with
    residency::PlaceId place;                       // of wholes
    RankQueue queue STW_GUARDED_BY(runtime_lock);
    // From here on used by the thread that executes collectives.
    std::vector<char> bucket;
    // Where collectives work on a device's memory: their streams as that device knows them, and the
    // end of its arena as the bucket.
    bool on_device = false;
    memory::DeviceStreams::Id streams[2] = {};  // of the group, of the replicas
    char *device_bucket = nullptr;
    uint64_t device_bucket_bytes = 0;
    uint64_t arena_bytes = 0;
    bool registered = false;
    [[nodiscard]] char *bucket_data() { return on_device ? device_bucket : bucket.data(); }
    Condition wakes;     // the thread that executes collectives: there may be work
    Condition answers;   // threads that wait for it
    std::thread thread;  // none where collectives stay on the caller's

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
