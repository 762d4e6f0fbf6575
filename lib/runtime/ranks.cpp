// SPDX-License-Identifier: Apache-2.0
// The queue of collectives: who works it off, what each needs of memory, what becomes of it.
#include "lib/runtime/ranks.h"

#include "lib/collective/bucket.h"
#include "lib/runtime/optimizers.h"
#include "lib/runtime/processors.h"
#include "lib/support/assert.h"
#include "lib/support/signals.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>

namespace stepwell {
namespace {

using residency::PlaceId;

using collective::kBucketBytes;
// Fetches that follow, gathered while the program works on what it has: the next layer, and the one
// behind it where layers take turns of two tensors.
constexpr uint32_t kAheadMax = 2;

// Of all ranks the least, in blocks.
Status agree_blocks(const stw_runtime_options &options, uint64_t bucket_blocks,
                    uint64_t *blocks_out)
{
    const uint64_t block = options.block_bytes ? options.block_bytes : uint64_t{STW_BLOCK_2M};
    uint64_t budget = options.host_bytes;
    for (uint32_t i = options.device_count; i-- > 0;) {
        if (options.devices[i].budget_bytes >= block) budget = options.devices[i].budget_bytes;
    }
    budget -= std::min(budget, bucket_blocks * block);
    const uint64_t wanted = options.whole_bytes ? options.whole_bytes : budget / 2;
    const char *name = options.name ? options.name : program_invocation_short_name;
    collective::Record mine = collective::make_record(collective::Kind::kOpen, name);
    mine.counts[0] = wanted / block;
    mine.spec = block;
    collective::set_text(mine, "one with blocks of " + bytes_text(block));
    if (wanted / block == 0 || wanted >= budget) {
        collective::set_status(
            mine, Status::error(STW_ERROR_INVALID,
                                "whole_bytes is %s of the nearest tier's budget of %s; it takes at "
                                "least a block of %s and leaves one",
                                bytes_text(wanted).c_str(), bytes_text(budget).c_str(),
                                bytes_text(block).c_str()));
    }
    std::vector<collective::Record> all;
    STW_TRY(options.group->body->agree(mine, all));
    *blocks_out = UINT64_MAX;
    for (const collective::Record &rank : all) {
        *blocks_out = std::min(*blocks_out, rank.counts[0]);
    }
    return {};
}

}  // namespace

RankQueue::RankQueue(residency::Core &core, PlaceId place, uint64_t whole_blocks)
    : gathers(core, place, whole_blocks, kBucketBytes, kAheadMax)
{
}

Runtime::Ranks::Ranks(Runtime &owner, stw_group *group_handle, PlaceId at, uint64_t whole_blocks)
    : handle(group_handle),
      group(*group_handle->body),
      place(at),
      queue(owner.dispatch_.core, at, whole_blocks)
{
}

Runtime::RanksOwner::RanksOwner() = default;
Runtime::RanksOwner::~RanksOwner() = default;

// ---------------------------------------------------------------------------- open and close ----

// Before the core is made: the part of the nearest tier that all ranks can spare for wholes.
Status Runtime::agree_wholes(const stw_runtime_options &options, uint64_t *blocks_out)
{
    *blocks_out = 0;
    if (!options.group || !options.group->body || options.group->body->size() == 1) return {};
    Status status = agree_blocks(options, bucket_blocks(options), blocks_out);
    return replicas_of(options) ? agree_replicas(options, *blocks_out, std::move(status)) : status;
}

// Before memory is taken: the ranks of this host find each other and add up what they want of it.
Status Runtime::join_ranks(const stw_runtime_options &options, uint64_t whole_blocks)
{
    if (whole_blocks == 0) return {};
    ranks_.body = std::make_unique<Ranks>(*this, options.group, tiers_.nearest(), whole_blocks);
    ranks_->replicas = replicas_of(options);
    collective::Group &group = ranks_->group;
    collective::NodeOptions node;
    node.rank = group.rank();
    node.ranks = group.size();
    node.host_bytes = options.host_bytes;
    node.node_host_bytes = options.node_host_bytes;
    node.processors = own_processors();
    node.exchange = [&group](const void *record, void *records, uint32_t bytes) {
        return group.exchange(record, records, bytes);
    };
    Result<std::unique_ptr<collective::Node>> joined = collective::Node::join(node);
    if (!joined.ok()) return std::move(joined.status());
    ranks_->node = joined.take();
    group.set_witness([node = ranks_->node.get()](uint32_t rank) { return node->describe(rank); });
    return ranks_->replicas ? join_host(std::move(node)) : Status();
}

// The groups of replicas may have ranks on one host as well: its budget and its disks are those of
// them all. Each is numbered behind those of the groups before its own.
Status Runtime::join_host(collective::NodeOptions node)
{
    collective::Group &group = ranks_->group;
    collective::Group &replicas = *ranks_->replicas;
    node.rank = replicas.rank() * group.size() + group.rank();
    node.ranks = replicas.size() * group.size();
    node.exchange = [&](const void *record, void *records, uint32_t bytes) -> Status {
        std::vector<char> mine(size_t{group.size()} * bytes);
        std::vector<char> theirs(size_t{replicas.size()} * bytes);
        STW_TRY(group.exchange(record, mine.data(), bytes));
        for (uint32_t rank = 0; rank < group.size(); ++rank) {
            STW_TRY(replicas.exchange(&mine[size_t{rank} * bytes], theirs.data(), bytes));
            for (uint32_t other = 0; other < replicas.size(); ++other) {
                const size_t at = size_t{other} * group.size() + rank;
                std::memcpy(static_cast<char *>(records) + at * bytes,
                            &theirs[size_t{other} * bytes], bytes);
            }
        }
        return {};
    };
    Result<std::unique_ptr<collective::Node>> joined = collective::Node::join(node);
    if (!joined.ok()) return std::move(joined.status());
    ranks_->host = joined.take();
    return {};
}

// Disks that several ranks of this host store on are shared fairly between them.
void Runtime::share_disks(const stw_runtime_options &options, transfer::EngineOptions *engine)
{
    if (!ranks_.body || options.nvme_count == 0) return;
    std::vector<uint64_t> disks;
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        disks.push_back(collective::disk_of(options.nvme[i].path));
    }
    collective::Node &node = ranks_->host ? *ranks_->host : *ranks_->node;
    ranks_->disks = collective::DiskShares::open(node, disks);
    if (!ranks_->disks) return;
    engine->share_user = ranks_->disks.get();
    engine->may_send = [](void *user, uint32_t path, uint64_t bytes) {
        return static_cast<collective::DiskShares *>(user)->take(path, bytes);
    };
    engine->rests = [](void *user, uint32_t path) {
        static_cast<collective::DiskShares *>(user)->rest(path);
    };
}

Status Runtime::open_ranks()
{
    if (!ranks_.body) return {};
    ranks_->place = tiers_.nearest();
    {
        MutexLock lock(dispatch_.mutex());
        ranks_->queue.gathers.set_place(tiers_.nearest());
        dispatch_.loop.add(ranks_->queue.gathers);
    }
    STW_TRY(open_group_memory());
    if (works_here()) return {};
    const SignalsBlocked signals;
    try {
        ranks_->thread = std::thread([this] {
            MutexLock lock(dispatch_.mutex());
            while (!ranks_->queue.stops) {
                if (!work_one()) ranks_->wakes.wait(dispatch_.mutex());
            }
        });
    } catch (const std::system_error &error) {
        return Status::os_error(STW_ERROR_LIMIT, error.code().value(),
                                "no thread for the collectives of the group");
    }
    return {};
}

// What is queued has been waited for, or never ends: then the group is given up.
void Runtime::close_ranks()
{
    if (!ranks_.body) return;
    {
        MutexLock lock(dispatch_.mutex());
        ranks_->queue.stops = true;
    }
    ranks_->group.give_up();
    if (ranks_->replicas) ranks_->replicas->give_up();
    ranks_->wakes.notify_all();
    if (ranks_->thread.joinable()) ranks_->thread.join();
    leave_group_memory();
}

// Of a deferred close: views that are released later start nothing any more. Under the lock.
bool Runtime::ranks_stopped() const
{
    return ranks_.body && ranks_->queue.stops;
}

// Once storage is closed.
void Runtime::leave_ranks()
{
    if (!ranks_.body) return;
    ranks_->group.set_witness(nullptr);
    ranks_->disks.reset();
    ranks_->host.reset();
    ranks_->node.reset();
}

// Under the lock. Nothing of the group's is under way here.
bool Runtime::ranks_idle() const
{
    if (!ranks_.body) return true;
    if (ranks_->queue.stops)
        return !ranks_->queue.working;  // what is left in the queue is nobody's
    return ranks_->queue.collectives.empty() && !ranks_->queue.working &&
           ranks_->queue.gathers.idle();
}

bool Runtime::works_here() const
{
    return ranks_.body && (ranks_->group.caller_thread() ||
                           (ranks_->replicas && ranks_->replicas->caller_thread()));
}

Status Runtime::drain_ranks(residency::Instant begin, residency::Instant deadline)
{
    if (!ranks_.body) return {};
    MutexLock lock(dispatch_.mutex());
    if (wait_ranks(begin, deadline, [this]() STW_REQUIRES(runtime_lock) { return ranks_idle(); }))
        return {};
    STW_TRY(dispatch_.interrupted_since(begin));
    return Status::error(STW_ERROR_TIMEOUT,
                         "%zu collectives of the group were still queued when the timeout passed; "
                         "other ranks have not called for them, or are slow",
                         ranks_->queue.collectives.size() + (ranks_->queue.working ? 1 : 0));
}

// --------------------------------------------------------------------------------- the queue ----

void Runtime::queue_collective(std::unique_ptr<Collective> next)
{
    ranks_->queue.collectives.push_back(std::move(next));
    ranks_news_ = true;
}

// Works on the front of the queue when it can be. False: there is nothing to do now.
bool Runtime::work_one()
{
    RankQueue &queue = ranks_->queue;
    if (!queue.granted.empty()) {
        Waiter &waiter = *queue.granted.front();
        queue.granted.pop_front();
        const MutexUnlock unlocked(dispatch_.mutex());
        finish_gathered(waiter);
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

void Runtime::run_collective(Collective &work)
{
    using Kind = Collective::Kind;
    Ranks &ranks = *ranks_.body;
    const std::string &name = work.tensors.empty() ? work.name : work.tensors[0]->name;
    ranks.node->stands(ranks.group.sequence() + 1, name);
    switch (work.kind) {
    case Kind::kGather: run_gather(work); break;
    case Kind::kKeep: run_keep(work); break;
    case Kind::kReduce: run_reduce(work); break;
    case Kind::kVerdict: run_verdict(work); break;
    case Kind::kCommit: run_commit(*work.commit); break;
    }
    share_failure();
    if (ranks.holds_memory()) lose_bucket();
}

// The engine may still read or write it, for as long as the process lives.
void Runtime::lose_bucket()
{
    auto lost = std::make_unique<std::vector<char>>(std::move(ranks_->bucket));
    (void)lost.release();
    ranks_->bucket = {};
    ranks_->device_bucket_bytes = 0;
}

// Something came to its end: who waits for it looks again, and there may be more to work on.
void Runtime::tell_ranks()
{
    ranks_->wakes.notify_all();
    ranks_->answers.notify_all();
}

// Waits for the queue to come to what `done` says; where collectives may not leave the caller's
// thread it works there. Under the lock.
bool Runtime::wait_ranks(residency::Instant begin, residency::Instant deadline,
                         const std::function<bool()> &done)
{
    Condition &news = works_here() ? ranks_->wakes : ranks_->answers;
    while (!done()) {
        if (dispatch_.now() >= deadline || begin <= dispatch_.interrupted_at()) return false;
        if (works_here() && work_one()) continue;
        (void)news.wait_until(dispatch_.mutex(),
                              std::min<uint64_t>(deadline, dispatch_.now() + 100'000'000));
    }
    return true;
}

// What ranks have to agree on before a collective: which tensor, and that they can.
collective::Record Runtime::record_of(collective::Kind kind,
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

// ------------------------------------------------------------------------------------ memory ----

// Blocks until the pieces are there or the deadline passes, at most as long as the group waits for
// its ranks; with kFetchTry not at all.
Status Runtime::take_pieces(Waiter &waiter, residency::FetchAsked &asked)
{
    asked.flags |= residency::kFetchInternal | residency::kFetchWaitRoom;
    asked.deadline = std::min(asked.deadline, dispatch_.now() + ranks_->group.timeout_ns());
    waiter.grants.clear();
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        waiter.done = false;
        waiter.fetch = core.fetch(asked, dispatch_.now(), out);
        dispatch_.expect(waiter);
        dispatch_.arm_timer(asked.deadline);
    });
    MutexLock lock(dispatch_.mutex());
    while (!waiter.done) waiter.cv.wait(dispatch_.mutex());
    return std::move(waiter.status);
}

void Runtime::give_pieces(const Waiter &waiter, const residency::FetchAsked &asked, bool abandon)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (size_t i = 0; i < asked.requests.size(); ++i) {
            const residency::Request &request = asked.requests[i];
            residency::Release release;
            release.tensor = request.tensor;
            release.access = request.access;
            release.place = waiter.grants[i].place;
            release.byte_begin = request.byte_begin;
            release.byte_count = request.byte_count;
            release.internal = true;
            release.claim = asked.claim;
            release.abandon = abandon && request.access != residency::Access::kRead;
            core.release(release, dispatch_.now(), out);
        }
    });
}

char *Runtime::bytes_at(residency::TensorId tensor, const residency::Grant &grant)
{
    update::Piece piece;
    piece.tensor = tensor;
    MutexLock lock(dispatch_.mutex());
    return static_cast<char *>(piece_pointer(grant, piece));
}

// Bytes [begin, begin + bytes) of the shard, a block at a time, to or from memory of the group.
Status Runtime::copy_shard(const stw_tensor &tensor, residency::ClaimId claim, uint64_t begin,
                           uint64_t bytes, char *memory, bool writes)
{
    const uint64_t offset = pack_offset(tensor.id);
    for (uint64_t at = begin; at < begin + bytes;) {
        const uint64_t count =
            std::min(block_bytes_ - (offset + at) % block_bytes_, begin + bytes - at);
        if (!writes) hint_shards();
        residency::FetchAsked asked;
        asked.claim = claim;
        asked.requests.push_back({tensor.id,
                                  writes ? residency::Access::kWrite : residency::Access::kRead,
                                  residency::kAnyCpuPlace, at, count});
        Waiter waiter;
        residency::FetchAsked taken;
        STW_TRY(piece_of_shard(tensor, std::move(asked), waiter, &taken));
        char *shard = nullptr;
        {
            update::Piece piece;
            piece.tensor = tensor.id;
            piece.byte_begin = at;
            MutexLock lock(dispatch_.mutex());
            shard = static_cast<char *>(piece_pointer(waiter.grants[0], piece));
        }
        char *other = memory + (at - begin);
        Status moved = move_bytes(writes ? shard : other, writes ? other : shard, count);
        give_pieces(waiter, taken, false);
        STW_TRY(std::move(moved));
        at += count;
    }
    return {};
}

// Where shards of wholes are brought ahead: a tier farther than the wholes', if there is one.
PlaceId Runtime::shard_place() const
{
    return tiers_[tiers_.host()].memory ? tiers_.host() : tiers_.nearest();
}

// Of all gathers that are queued the shards in their order, a few blocks ahead of their copy: disks
// read on while bytes go between ranks.
void Runtime::hint_shards()
{
    constexpr size_t kAhead = 8;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        std::deque<residency::FetchId> &hints = ranks_->queue.hints;
        while (!hints.empty() && !core.is_waiting(hints.front())) hints.pop_front();
        const auto hint = [&](Collective &gather) STW_REQUIRES(runtime_lock) {
            uint64_t before = 0;
            for (const stw_tensor *tensor : gather.tensors) {
                const bool there =
                    ranks_->on_device && core.spec(tensor->id).policy.home == ranks_->place;
                if (there) gather.hinted = std::max(gather.hinted, before + tensor->bytes);
                const uint64_t offset = core.pack_offset(tensor->id);
                while (gather.hinted < before + tensor->bytes && hints.size() < kAhead) {
                    const uint64_t at = gather.hinted - before;
                    const uint64_t count =
                        std::min(block_bytes_ - (offset + at) % block_bytes_, tensor->bytes - at);
                    residency::FetchAsked asked;
                    asked.claim = gather.claim;
                    asked.flags = residency::kFetchPrefetch;
                    asked.urgency = residency::Class::kPlanned;
                    asked.requests.push_back(
                        {tensor->id, residency::Access::kRead, residency::kAnyCpuPlace, at, count});
                    hints.push_back(core.fetch(asked, dispatch_.now(), out));
                    gather.hinted += count;
                }
                before += tensor->bytes;
            }
        };
        if (ranks_->queue.working) hint(*ranks_->queue.working);
        for (const std::unique_ptr<Collective> &next : ranks_->queue.collectives) {
            if (hints.size() >= kAhead) break;
            if (next->kind == Collective::Kind::kGather) hint(*next);
        }
    });
}

}  // namespace stepwell
