// SPDX-License-Identifier: Apache-2.0
// The queue of collectives: the thread that executes it, its memory, its failures.
#include "lib/runtime/ranks/collectives.h"

#include "lib/collective/bucket.h"
#include "lib/collective/disk_share.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/group/processors.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/ranks/memory.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/support/assert.h"
#include "lib/support/thread.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace stepwell {
namespace {

using residency::PlaceId;

using collective::kBucketBytes;
// Gathers ahead of their fetches, while the program works on earlier ones: the next layer, and the
// one after it if layers have two tensors each.
constexpr uint32_t kAheadMax = 2;

}  // namespace

RankQueue::RankQueue(residency::Core &core, PlaceId place, uint64_t whole_blocks)
    : gathers(core, place, whole_blocks, kBucketBytes, kAheadMax)
{
}

Ranks::~Ranks() = default;

Ranks::Ranks(residency::Core &core, stw_group *group_handle, PlaceId at, uint64_t whole_blocks)
    : handle(group_handle), group(*group_handle->body), place(at), queue(core, at, whole_blocks)
{
}

// ---------------------------------------------------------------------------- open and close ----

Status Collectives::open_ranks()
{
    machine_.ranks->place = machine_.tiers.nearest();
    {
        MutexLock lock(dispatch_.mutex());
        machine_.ranks->queue.gathers.set_place(machine_.tiers.nearest());
    }
    STW_TRY(group_memory_.open_group_memory());
    if (works_here()) return {};
    return start_thread(machine_.ranks->thread, "stw-collectives", "the collectives of the group",
                        [this] {
                            MutexLock lock(dispatch_.mutex());
                            while (!machine_.ranks->queue.stops) {
                                if (!work_one()) machine_.ranks->wakes.wait(dispatch_.mutex());
                            }
                        });
}

// The queue was drained, or never ends: then the group is given up.
void Collectives::close_ranks()
{
    if (!machine_.ranks) return;
    {
        MutexLock lock(dispatch_.mutex());
        machine_.ranks->queue.stops = true;
    }
    machine_.ranks->group.give_up();
    if (machine_.ranks->replicas) machine_.ranks->replicas->give_up();
    machine_.ranks->wakes.notify_all();
    if (machine_.ranks->thread.joinable()) machine_.ranks->thread.join();
    group_memory_.leave_group_memory();
}

// After a deferred close: views that are released later start nothing.
bool Collectives::ranks_stopped() const
{
    return machine_.ranks && machine_.ranks->queue.stops;
}

// No collective is queued or under way.
bool Collectives::is_idle() const
{
    if (!machine_.ranks) return true;
    if (machine_.ranks->queue.stops)
        return !machine_.ranks->queue.working;  // the rest of the queue is never executed
    return machine_.ranks->queue.collectives.empty() && !machine_.ranks->queue.working &&
           machine_.ranks->queue.gathers.idle();
}

bool Collectives::works_here() const
{
    return machine_.ranks &&
           (machine_.ranks->group.caller_thread() ||
            (machine_.ranks->replicas && machine_.ranks->replicas->caller_thread()));
}

Status Collectives::drain_ranks(residency::Instant begin, residency::Instant deadline)
{
    if (!machine_.ranks) return {};
    MutexLock lock(dispatch_.mutex());
    if (wait_ranks(begin, deadline, [this]() STW_REQUIRES(runtime_lock) { return is_idle(); }))
        return {};
    STW_TRY(dispatch_.interrupted_since(begin));
    return Status::error(STW_ERROR_TIMEOUT,
                         "%zu collectives of the group were still queued when the timeout passed; "
                         "other ranks have not called for them, or are slow",
                         machine_.ranks->queue.collectives.size() +
                             (machine_.ranks->queue.working ? 1 : 0));
}

// --------------------------------------------------------------------------------- the queue ----

void Collectives::queue_collective(std::unique_ptr<Collective> next)
{
    machine_.ranks->queue.collectives.push_back(std::move(next));
    ranks_news = true;
}

// Executes the front of the queue if it can start. False: nothing can be done now.
bool Collectives::work_one()
{
    RankQueue &queue = machine_.ranks->queue;
    if (!queue.granted.empty()) {
        Waiter &waiter = *queue.granted.front();
        queue.granted.pop_front();
        const MutexUnlock unlocked(dispatch_.mutex());
        waiter.listener->gathered(waiter);
        return true;
    }
    if (queue.working || queue.collectives.empty()) return false;
    const Collective &front = *queue.collectives.front();
    if (front.kind == Collective::Kind::kGather && !front.started) return false;
    const std::unique_ptr<Collective> work = std::move(queue.collectives.front());
    queue.collectives.pop_front();
    queue.working = work.get();
    {
        const MutexUnlock unlocked(dispatch_.mutex());
        run_collective(*work);
    }
    queue.working = nullptr;
    dispatch_.note_progress();
    tell_ranks();
    return true;
}

void Collectives::run_collective(Collective &work)
{
    Ranks &ranks = *machine_.ranks;
    const std::string &name = work.tensors.empty() ? work.name : work.tensors[0]->name;
    ranks.node->stands(ranks.group.sequence() + 1, name);
    runners_[static_cast<size_t>(work.kind)]->run(work);
    share_failure();
    if (ranks.holds_memory()) lose_bucket();
}

// Leaks the bucket: the engine may access it as long as the process lives.
void Collectives::lose_bucket()
{
    auto lost = std::make_unique<std::vector<char>>(std::move(machine_.ranks->bucket));
    (void)lost.release();
    machine_.ranks->bucket = {};
    machine_.ranks->device_bucket_bytes = 0;
}

// Something has ended: waiters look again, and the queue may continue.
void Collectives::tell_ranks()
{
    machine_.ranks->wakes.notify_all();
    machine_.ranks->answers.notify_all();
}

// Waits until `done`; if collectives run on the callers' threads, executes them here.
bool Collectives::wait_ranks(residency::Instant begin, residency::Instant deadline,
                             const std::function<bool()> &done)
{
    Condition &news = works_here() ? machine_.ranks->wakes : machine_.ranks->answers;
    while (!done()) {
        if (dispatch_.now() >= deadline || begin <= dispatch_.interrupted_at()) return false;
        if (works_here() && work_one()) continue;
        (void)news.wait_until(dispatch_.mutex(),
                              std::min<uint64_t>(deadline, dispatch_.now() + 100'000'000));
    }
    return true;
}

// What ranks compare before a collective: the tensors, and whether each rank can take part.
collective::Record Collectives::record_of(collective::Kind kind,
                                          const std::vector<stw_tensor *> &tensors,
                                          const Status &status)
{
    collective::Record record = collective::make_record(kind, tensors[0]->name);
    for (const stw_tensor *tensor : tensors) {
        record.spec = record.spec * 0x100000001b3ull ^ tensor->sharding->spec;
        record.bytes += tensor->sharding->partition.shard_bytes();
        record.names = collective::hash_name(record.names, tensor->name);
    }
    const std::string more = tensors.size() > 1
                                 ? format_text(", the first of %zu together, the last '%.64s'",
                                               tensors.size(), tensors.back()->name.c_str())
                                 : "";
    collective::set_text(record, tensors[0]->sharding->words + more);
    if (!status.ok()) collective::set_status(record, status);
    return record;
}

// A rank that has failed in one group has failed in the other.
void Collectives::share_failure()
{
    if (!machine_.ranks->replicas) return;
    machine_.ranks->replicas->fail_with(machine_.ranks->group.broken());
    machine_.ranks->group.fail_with(machine_.ranks->replicas->broken());
}

}  // namespace stepwell
