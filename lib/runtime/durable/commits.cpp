// SPDX-License-Identifier: Apache-2.0
// stw_commit: the claims, the write-back of newest bytes in nearer tiers, the vote. Runs on the
// caller's thread, or on that of collectives if there are several ranks. It only reads, so others
// read beside it.
#include "lib/runtime/durable/commits.h"

#include "lib/collective/commit.h"
#include "lib/residency/core.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/durable/opening.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/optimizers/table.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/shards.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/restored/durable.h"
#include "lib/runtime/restored/restored.h"
#include "lib/runtime/tensors/registry.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/updates/body.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/support/assert.h"
#include "lib/transfer/engine.h"
#include "lib/update/pipeline.h"

#include <sys/random.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <ctime>
#include <utility>

#include <stepwell/store.h>

namespace stepwell {

// Consecutive blocks of a tensor that have bytes.
struct BlockRun {
    stw_tensor *tensor = nullptr;
    residency::BlockId first = residency::kNone;
    uint32_t count = 0;
    uint64_t byte_begin = 0;
    uint64_t byte_count = 0;
};

// The slots that a generation keeps so far, each once, and the one of each block.
struct KeptBlocks {
    std::vector<store::Placement> blocks;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> by_slot;
    std::unordered_map<residency::BlockId, uint32_t> by_block;

    void add(residency::BlockId block, const store::Placement &place)
    {
        const auto next = static_cast<uint32_t>(blocks.size());
        const auto [at, added] = by_slot.try_emplace({place.path, place.slot}, next);
        if (added) blocks.push_back(place);
        by_block[block] = at->second;
    }
};

namespace {

using residency::Access;

constexpr uint32_t kBlocksAtOnce = 64;  // written back and held together

uint64_t random_token()
{
    uint64_t token = 0;
    while (token == 0) {
        if (getrandom(&token, sizeof token, 0) != sizeof token) token = 0;
    }
    return token;
}

uint64_t unix_time_ns()
{
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

// ------------------------------------------------------------------------------------- calls ----

void Commits::run(Collective &work)
{
    run_commit(*work.commit);
}

Status Commits::durable_view_writes()
{
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        const ViewSlot &view = views_.slot(index);
        if (!views_.is_open(index) || view.touched || view.access == STW_READ) continue;
        const stw_tensor *tensor = view.tensor;
        if ((tensor->flags & STW_TENSOR_DURABLE) == 0) continue;
        Status status = Status::error(STW_ERROR_BUSY,
                                      "durable tensor '%s' has an open view that may write it, so "
                                      "its contents in a generation are not settled; release it "
                                      "first",
                                      tensor->name.c_str());
        status.mutable_detail().tensor = tensor->name;
        return status;
    }
    return {};
}

Status Commits::update_without_verdict()
{
    for (OptimizerBody *body : live_optimizers()) {
        MutexLock changes(body->changes);
        const char *parameter = body->optimizer ? body->optimizer->awaits_verdict() : nullptr;
        if (!parameter) continue;
        Status status = Status::error(STW_ERROR_BUSY,
                                      "%s was updated speculatively by optimizer '%s', so its "
                                      "contents in a generation are not settled; take a step "
                                      "without STW_UPDATE_SPECULATE, its verdict, first",
                                      parameter_text(parameter).c_str(), body->name.c_str());
        status.mutable_detail().tensor = parameter;
        return status;
    }
    return {};
}

// Called by the program's thread: anything asked for later is ordered after this claim and, on
// every rank, after this collective.
Status Commits::begin_commit(const std::shared_ptr<CommitWork> &work)
{
    std::unique_ptr<Collective> next;
    if (machine_.ranks) {
        next = std::make_unique<Collective>();
        next->kind = Collective::Kind::kCommit;
        next->name = restored_.durable->name;
        next->commit = work;
    }
    Status status;
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        if (restored_.durable->tensors.commits) {
            status = Status::error(STW_ERROR_BUSY, "another thread is in stw_commit");
            return;
        }
        recorder_.drain_hits();
        for (stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
            if (tensor->flags & STW_TENSOR_DURABLE) work->tensors.push_back(tensor);
        }
        restored_.durable->tensors.commits = true;
        if (work->cause.ok()) work->cause = durable_view_writes();
        restored_.note_left_out(work.get());
        if (work->cause.ok()) work->claim = core.claim(residency::ClaimKind::kReads);
        for (const stw_tensor *tensor : work->tensors) {
            if (work->claim == 0) continue;
            core.claim_tensor(work->claim, tensor->id);
            machine_.pipeline->prefer(tensor->id);  // as TierAccess::claim_alone()
        }
        if (next) collectives_.queue_collective(std::move(next));
        dispatch_.give_way_soon();
    });
    return status;
}

Status Commits::commit(const stw_commit_options &options, uint64_t *generation_out)
{
    dispatch_.give_way();
    if (!restored_.durable) {
        return Status::error(STW_ERROR_INVALID,
                             "the runtime '%s' keeps nothing, so there is nothing to commit: open "
                             "it with a store_name",
                             machine_.name.c_str());
    }
    auto work = std::make_shared<CommitWork>();
    work->complete = (options.flags & STW_COMMIT_COMPLETE) != 0;
    work->label = options.label ? options.label : "";
    work->metadata.assign(static_cast<const char *>(options.metadata),
                          options.metadata ? options.metadata_bytes : 0);
    work->begin = dispatch_.now();
    work->deadline = dispatch_.deadline(work->begin, options.timeout_ns);
    // Owed zeros in shared blocks are contents too, so they are written first.
    STW_TRY(zeros_.write_all_zeros());
    work->cause = update_without_verdict();
    STW_TRY(begin_commit(work));
    if (!machine_.ranks) {
        run_commit(*work);
    } else {
        MutexLock lock(dispatch_.mutex());
        if (!collectives_.wait_ranks(work->begin, work->deadline,
                                     [&]() STW_REQUIRES(runtime_lock) { return work->done; })) {
            STW_TRY(dispatch_.interrupted_since(work->begin));
            return Status::error(STW_ERROR_TIMEOUT,
                                 "the ranks had not voted on a generation of the store '%s' when "
                                 "the timeout passed; the commit continues, and succeeds if all "
                                 "ranks take part",
                                 restored_.durable->name.c_str());
        }
    }
    STW_TRY(std::move(work->status));
    if (generation_out) *generation_out = work->generation;
    return {};
}

// -------------------------------------------------------------------------------- execution ----

void Commits::run_commit(CommitWork &work)
{
    Status status;
    try {
        status = commit_over_ranks(work);
    } catch (const std::bad_alloc &) {
        status = Status::error(STW_ERROR_MEMORY, "no memory for the tables of a generation");
    }
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (const stw_tensor *tensor : work.tensors) {
            if (work.claim != 0) core.unclaim_tensor(work.claim, tensor->id, false, out);
        }
        restored_.durable->tensors.infos = restored_.durable->generations->infos();
        if (status.ok()) {
            work.generation = restored_.durable->tensors.infos.front().id.number;
            restored_.note_kept(work);
        }
        restored_.durable->tensors.commits = false;
        work.status = std::move(status);
        work.done = true;
        recorder_.plan_due = true;
        sleepers_.look_again();  // what they wait for now may be their own verdict
    });
}

// The two exchanges over ranks, with this rank's work before and between them.
Status Commits::commit_over_ranks(CommitWork &work)
{
    collective::Commit commit(*restored_.durable->generations, restored_.durable->name,
                              random_token(), work.cause);
    std::vector<collective::Record> ranks;
    bool heard = false;
    Status agreed = opening_.agree_store(commit.opening(), ranks, &heard);
    STW_TRY(commit.opened(std::move(agreed), ranks));
    Result<store::Manifest> manifest = Status::remark(STW_ERROR_MEMORY);
    try {
        manifest = write_generation(work, commit.set());
    } catch (const std::bad_alloc &) {
        // Reported to the other ranks like any other failure.
    }
    commit.prepare(std::move(manifest));
    agreed = opening_.agree_store(commit.ballot(), ranks, &heard);
    return commit.close(std::move(agreed), heard);
}

// Waits until all earlier claims on the tensors are served and none of them is written; from then
// on the contents do not change.
Status Commits::await_claims(const CommitWork &work)
{
    MutexLock lock(dispatch_.mutex());
    Status status;
    for (const stw_tensor *tensor : work.tensors) {
        if (!status.ok()) break;
        status = await_claim(work, tensor);
    }
    dispatch_.core.note_wait(work.claim, residency::kNone);
    return status;
}

Status Commits::await_claim(const CommitWork &work, const stw_tensor *tensor)
{
    bool waits = false;
    while (dispatch_.core.claimed_by(tensor->id) != work.claim ||
           dispatch_.core.is_written(tensor->id)) {
        if (!machine_.ranks) STW_TRY(dispatch_.interrupted_since(work.begin));
        if (!std::exchange(waits, true)) {
            dispatch_.core.note_wait(work.claim, tensor->id);
            sleepers_.look_again();  // a thread that sleeps may be what it waits for
            dispatch_.settle();
            continue;
        }
        if (dispatch_.wait_progress(work.deadline)) continue;
        return Status::error(STW_ERROR_TIMEOUT,
                             "an update, a sum or a write of %s, or a fetch of it whose views were "
                             "not collected, was not over when the timeout of the commit passed",
                             tensor_text(tensor->name).c_str());
    }
    return {};
}

// Under the claims, so that contents do not change.
std::vector<BlockRun> Commits::runs_of(const CommitWork &work) const
{
    std::vector<BlockRun> runs;
    for (stw_tensor *tensor : work.tensors) {
        if (dispatch_.core.contents(tensor->id) == residency::Contents::kEmpty) continue;
        if (work.stale.count(tensor->id) > 0) continue;
        const residency::TensorBlocks lies = dispatch_.core.blocks_of(tensor->id);
        const uint64_t bytes = dispatch_.core.spec(tensor->id).bytes;
        for (uint32_t i = 0; i < lies.count; ++i) {
            if (!dispatch_.core.has_bytes(lies.first + i)) continue;
            const uint64_t begin = i == 0 ? 0 : i * machine_.block_bytes - lies.offset;
            const uint64_t end = std::min(bytes, (i + 1) * machine_.block_bytes - lies.offset);
            BlockRun *last = runs.empty() ? nullptr : &runs.back();
            const bool follows = last && last->tensor == tensor &&
                                 last->first + last->count == lies.first + i &&
                                 last->count < kBlocksAtOnce;
            if (!follows) {
                runs.push_back({tensor, lies.first + i, 1, begin, end - begin});
                continue;
            }
            ++last->count;
            last->byte_count += end - begin;
        }
    }
    return runs;
}

// Writes back what is newest in nearer tiers; blocks that are newest at nvme are not moved. They
// are held until the store keeps them.
Status Commits::keep_runs(const CommitWork &work, const BlockRun *runs, size_t n, uint32_t set,
                          KeptBlocks *kept)
{
    residency::FetchAsked asked;
    asked.claim = work.claim;
    asked.flags = residency::kFetchInternal | residency::kFetchWaitRoom;
    asked.deadline = work.deadline;
    for (size_t i = 0; i < n; ++i) {
        asked.requests.push_back({runs[i].tensor->id, Access::kRead, machine_.tiers.nvme(),
                                  runs[i].byte_begin, runs[i].byte_count});
    }
    Waiter waiter;
    STW_TRY(dispatch_.fetch_pieces(waiter, asked));
    Status status;
    try {
        for (size_t i = 0; i < n && status.ok(); ++i) {
            for (uint32_t block = 0; block < runs[i].count && status.ok(); ++block) {
                Result<store::Placement> place =
                    machine_.engine->store()->keep(runs[i].first + block, set);
                if (place.ok()) kept->add(runs[i].first + block, place.value());
                status = std::move(place.status());
            }
        }
    } catch (const std::bad_alloc &) {
        status = Status::remark(STW_ERROR_MEMORY);
    }
    shards_.give_pieces(waiter, asked, false);
    return status;
}

store::StoredTensor Commits::describe_stored(const stw_tensor &tensor, bool empty,
                                             const KeptBlocks &kept) const
{
    const residency::TensorBlocks lies = dispatch_.core.blocks_of(tensor.id);
    store::StoredTensor stored;
    stored.name = tensor.name;
    stored.words = registry_.words_of(tensor);
    stored.bytes = dispatch_.core.spec(tensor.id).bytes;
    stored.offset = lies.offset;
    if (lies.shares) stored.flags |= store::StoredTensor::kShares;
    if (empty || dispatch_.core.contents(tensor.id) == residency::Contents::kEmpty) return stored;
    stored.flags |= store::StoredTensor::kHasContents;
    for (uint32_t i = 0; i < lies.count; ++i) {
        const auto block = kept.by_block.find(lies.first + i);
        stored.blocks.push_back(block == kept.by_block.end() ? store::kNoBlock : block->second);
    }
    // A tensor of zeros only, in a shared block that was never written, counts as never written.
    const bool nothing = lies.shares && stored.blocks[0] == store::kNoBlock;
    if (nothing) stored.flags &= ~uint32_t{store::StoredTensor::kHasContents};
    if (nothing) stored.blocks.clear();
    return stored;
}

std::vector<OptimizerBody *> Commits::live_optimizers()
{
    std::vector<OptimizerBody *> bodies;
    MutexLock lock(dispatch_.mutex());
    for (const std::unique_ptr<OptimizerBody> &body : optimizers_.bodies) {
        if (body->handle) bodies.push_back(body.get());
    }
    return bodies;
}

std::vector<OptimizerBody *> Commits::durable_optimizers()
{
    std::vector<OptimizerBody *> bodies = live_optimizers();
    std::erase_if(bodies, [](const OptimizerBody *body) { return !body->durable; });
    return bodies;
}

// The claims have waited for pending updates, so they are counted.
std::vector<store::StoredCount> Commits::count_updates()
{
    std::vector<store::StoredCount> counts;
    for (OptimizerBody *body : durable_optimizers()) {
        MutexLock changes(body->changes);
        if (!body->optimizer) continue;  // destroyed meanwhile
        for (const stw_tensor *tensor : optimizers_.held_by(*body)) {
            Result<uint64_t> count = body->optimizer->completed(tensor->id);
            if (count.ok()) counts.push_back({body->name + "." + tensor->name, count.value()});
        }
    }
    return counts;
}

// This rank's part of the generation; `set` is that of this attempt.
Result<store::Manifest> Commits::write_generation(CommitWork &work, uint32_t set)
{
    STW_TRY(await_claims(work));
    // A resume would take a master for newer than its parameter, so stale ones are left out.
    for (OptimizerBody *body : durable_optimizers()) {
        MutexLock changes(body->changes);
        if (!body->optimizer) continue;  // destroyed meanwhile
        for (const residency::TensorId master : body->optimizer->stale_masters())
            work.stale.insert(master);
    }
    std::vector<BlockRun> runs;
    {
        MutexLock lock(dispatch_.mutex());
        for (const stw_tensor *tensor : work.tensors) {
            if (const Status *failed = errors_.find(tensor->id)) return *failed;
        }
        runs = runs_of(work);
    }
    KeptBlocks kept;
    for (size_t begin = 0; begin < runs.size();) {
        size_t end = begin;
        uint32_t blocks = 0;
        while (end < runs.size() && (end == begin || blocks + runs[end].count <= kBlocksAtOnce)) {
            blocks += runs[end++].count;
        }
        STW_TRY(keep_runs(work, &runs[begin], end - begin, set, &kept));
        begin = end;
    }
    store::Manifest manifest;
    manifest.time_unix_ns = unix_time_ns();
    manifest.left_out = work.left_out;
    manifest.label = std::move(work.label);
    manifest.metadata = std::move(work.metadata);
    manifest.counts = count_updates();
    MutexLock lock(dispatch_.mutex());
    for (const stw_tensor *tensor : work.tensors) {
        const bool empty = work.stale.count(tensor->id) > 0;
        manifest.tensors.push_back(describe_stored(*tensor, empty, kept));
    }
    manifest.blocks = std::move(kept.blocks);
    return manifest;
}

// ------------------------------------------------------------------------------------ queries ----

Status Commits::no_generation(uint64_t generation) const
{
    std::string there;
    for (const store::GenerationInfo &info : restored_.durable->tensors.infos) {
        there += format_text("%s%" PRIu64, there.empty() ? "" : ", ", info.id.number);
    }
    return Status::error(STW_ERROR_NOT_FOUND, "the store '%s' has no generation%s; it has %s",
                         restored_.durable->name.c_str(),
                         generation ? format_text(" %" PRIu64, generation).c_str() : " yet",
                         there.empty() ? "none" : there.c_str());
}

const store::GenerationInfo *Commits::info_of(uint64_t generation) const
{
    for (const store::GenerationInfo &info : restored_.durable->tensors.infos) {
        if (generation == 0 || info.id.number == generation) return &info;
    }
    return nullptr;
}

Status Commits::generation_info(uint64_t generation, stw_generation_info *info_out)
{
    if (!restored_.durable)
        return Status::error(STW_ERROR_INVALID, "the runtime has no store_name");
    MutexLock lock(dispatch_.mutex());
    const store::GenerationInfo *found = info_of(generation);
    if (!found) return no_generation(generation);
    stw_generation_info info{};
    info.struct_size = std::min<uint32_t>(info_out->struct_size, sizeof info);
    info.ranks = restored_.durable->ranks;
    info.generation = found->id.number;
    info.tensors = found->tensors;
    info.bytes = found->bytes;
    info.metadata_bytes = found->metadata.size();
    info.time_unix_ns = found->time_unix_ns;
    info.left_out = found->left_out;
    const size_t length = std::min<size_t>(found->label.size(), STW_LABEL_BYTES_MAX);
    std::memcpy(info.label, found->label.data(), length);
    std::memcpy(info_out, &info, info.struct_size);
    return {};
}

Status Commits::generation_metadata(uint64_t generation, void *buffer, uint64_t capacity_bytes,
                                    uint64_t *bytes_out)
{
    if (!restored_.durable)
        return Status::error(STW_ERROR_INVALID, "the runtime has no store_name");
    MutexLock lock(dispatch_.mutex());
    const store::GenerationInfo *found = info_of(generation);
    if (!found) return no_generation(generation);
    const uint64_t count = std::min<uint64_t>(capacity_bytes, found->metadata.size());
    if (count > 0) std::memcpy(buffer, found->metadata.data(), count);
    *bytes_out = found->metadata.size();
    return {};
}

}  // namespace stepwell
