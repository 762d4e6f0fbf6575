// SPDX-License-Identifier: Apache-2.0
// The window: which chunk is requested next and how many may be in flight, and the calls on a
// pipeline. The update thread that made room requests chunks; no thread waits for a fetch.
#include "lib/update/pipeline.h"

#include "lib/support/assert.h"
#include "lib/update/parts.h"

#include <algorithm>
#include <cinttypes>

namespace stepwell::update {
namespace {

constexpr uint64_t kRunsInWindow = 4;  // chunks of several blocks that have room beside each other

// Sums of a chunk: one per scanned block of a block of the smallest dtype.
uint64_t sums_per_chunk(uint64_t block_bytes)
{
    return kernels::scan_block_count(block_bytes / 2) + 1;
}

}  // namespace

uint32_t element_bytes(uint32_t dtype)
{
    if (dtype == STW_F32) return 4;
    return dtype == STW_F16 || dtype == STW_BF16 ? 2 : 0;
}

Pipeline::Parts::Parts(const PipelineOptions &asked)
    : options(asked), tiers(*asked.tiers), block_bytes(asked.tiers->block_bytes()), chunks(this)
{
    MutexLock lock(mutex);
    windows.resize(1 + asked.device_windows.size());
    windows[0].limit = asked.window_bytes;
    for (size_t i = 0; i < asked.device_windows.size(); ++i) {
        windows[i + 1].place = asked.device_windows[i].place;
        windows[i + 1].limit = asked.device_windows[i].bytes;
    }
    totals.window_bytes = 0;
}

Pipeline::Parts::~Parts() = default;

ChunkPool::ChunkPool(Pipeline::Parts *pipeline) : chunks_(kChunksMax)
{
    for (Chunk &chunk : chunks_) {
        chunk.pipeline = pipeline;
        chunk.sums = std::make_unique<double[]>(sums_per_chunk(pipeline->block_bytes));
        give_back(chunk);
    }
}

Chunk &ChunkPool::take()
{
    Chunk &chunk = *free_;
    free_ = chunk.next;
    --free_count_;
    return chunk;
}

void ChunkPool::give_back(Chunk &chunk)
{
    chunk.job = nullptr;
    chunk.next = free_;
    free_ = &chunk;
    ++free_count_;
}

void ChunkPool::give_back_all(Chunk *list)
{
    while (list != nullptr) {
        Chunk *next = list->next;
        give_back(*list);
        list = next;
    }
}

// Ordinary chunks leave room for one that a call waits for, but have at least two of their own:
// with fewer, nothing would overlap. The first chunk of a job that a call waits for may exceed a
// full window: chunks in the window may wait for that job.
bool Pipeline::Parts::window_has_room(const Job &job, uint64_t cost_bytes) const
{
    const bool preferred = job.rank != kNotPreferred;
    if (chunks.free_count() <= (preferred ? 0 : kPreferredChunks)) return false;
    const Window &window = windows[job.window];
    if (window.chunks == 0 || (preferred && job.in_flight == 0)) return true;
    uint64_t limit = window.limit;
    if (!preferred && limit >= 3 * cost_bytes) limit -= cost_bytes;
    return window.bytes + cost_bytes <= limit;
}

void Pipeline::Parts::place_job(Job &job, PlaceId place)
{
    job.place = place;
    job.window = 0;
    for (uint32_t i = 1; i < windows.size(); ++i) {
        if (windows[i].place == place) job.window = i;
    }
    STW_ASSERT(windows[job.window].place == place);
    const uint64_t share = windows[job.window].limit / block_bytes / kRunsInWindow;
    const uint64_t pieces = job.window == 0 ? 0 : std::min<uint64_t>(share, kPiecesMax);
    job.run_pieces = static_cast<uint32_t>(pieces);
}

// The first job whose window has room: a job that waits at one place delays none at another place.
Job *Pipeline::Parts::next_job()
{
    Job *next = nullptr;
    for (const Window &window : windows) {
        if (window.ready.empty()) continue;
        Job *const job = *window.ready.begin();
        if (next != nullptr && !ReadyOrder()(job, next)) continue;
        if (window_has_room(*job, job->chunk_pieces() * block_bytes)) next = job;
    }
    return next;
}

Chunk *Pipeline::Parts::next_chunk()
{
    Job *const next = closing ? nullptr : next_job();
    if (next == nullptr) return nullptr;
    Job &job = *next;
    Chunk &chunk = chunks.take();
    chunk.job = &job;
    chunk.next = nullptr;
    chunk.opens = !job.open;
    chunk.answered = false;
    chunk.far_pieces = 0;
    chunk.busy_ns = 0;
    chunk.begun = false;
    job.cut(chunk);
    chunk.cost_bytes = chunk.piece_count * block_bytes;
    ++job.in_flight;
    if (!job.open || !job.more()) unready(job);
    ++chunks_in_flight;
    totals.window_bytes += chunk.cost_bytes;
    windows[job.window].bytes += chunk.cost_bytes;
    ++windows[job.window].chunks;
    totals.window_peak_bytes = std::max(totals.window_peak_bytes, totals.window_bytes);
    return &chunk;
}

void Pipeline::Parts::pump()
{
    for (bool first = true;; first = false) {
        // A copy: the result may come, and the chunk be reused, before fetch() returns.
        Piece pieces[kPiecesMax];
        uint32_t n = 0;
        ClaimId claim = 0;
        PlaceId place = kAnyCpuPlace;
        residency::Class urgency = residency::Class::kHint;
        Chunk *chunk = nullptr;
        {
            MutexLock lock(mutex);
            chunk = next_chunk();
            active += first && chunk != nullptr;
            if (chunk == nullptr) {
                if (first) return;
                break;
            }
            const Job &job = *chunk->job;
            n = chunk->piece_count;
            std::copy(chunk->pieces, chunk->pieces + n, pieces);
            claim = job.claim;
            place = job.place;
            if (job.urgent || job.rank != kNotPreferred) urgency = residency::Class::kDemand;
        }
        tiers.fetch(claim, pieces, n, place, urgency, &fetch_done, chunk);
    }
    end_activity();
}

// By an update thread: a call of the program requests nothing itself. To wake one takes a third of
// such a call, and is left to who ends a transfer, if any is on its way.
void Pipeline::Parts::ask_to_pump()
{
    {
        MutexLock lock(mutex);
        if (closing || pump_wanted || next_job() == nullptr) return;
        pump_wanted = true;
    }
    wake_wanted = true;  // before the question: what moves then ends later
    if (!tiers.moves()) wake_to_pump();
}

void Pipeline::Parts::wake_to_pump()
{
    if (wake_wanted.exchange(false)) work_ready.notify_one();  // the caller keeps the pipeline open
}

void Pipeline::Parts::fetch_done(void *user, const Status &status, uint64_t ticket,
                                 void *const *pointers)
{
    Chunk &chunk = *static_cast<Chunk *>(user);
    Parts &parts = *chunk.pipeline;
    MutexLock lock(parts.mutex);
    STW_ASSERT(!chunk.answered);
    chunk.answered = true;
    chunk.status = status;
    chunk.ticket = ticket;
    if (chunk.status.ok()) std::copy(pointers, pointers + chunk.piece_count, chunk.pointers);
    parts.arrived.append(chunk);
    // Under the lock: after it is released, a close may delete the pipeline.
    parts.work_ready.notify_one();
}

void Pipeline::Parts::report(TensorId tensor, const Status &cause)
{
    {
        MutexLock lock(mutex);
        ++totals.failures;
    }
    if (options.failed != nullptr) options.failed(options.failed_user, tensor, cause);
}

Waiter Pipeline::Parts::waiter(uint64_t timeout_ns) const
{
    const uint64_t now = wait_clock_ns();
    return {deadline_after(now, timeout_ns), now};
}

Status Pipeline::Parts::sleep(const Waiter &waiter)
{
    if (waiter.begin_ns <= interrupted_ns) {
        return Status::error(STW_ERROR_INTERRUPTED,
                             "The wait for updates was interrupted; they go on.");
    }
    if (wait_clock_ns() >= waiter.deadline_ns) {
        return Status::error(STW_ERROR_TIMEOUT,
                             "The timeout passed while %" PRIu64
                             " updates and sums were under way; they go on",
                             totals.jobs);
    }
    wake_to_pump();
    changed.wait_until(mutex, waiter.deadline_ns);
    return {};
}

// ------------------------------------------------------------------------------- the pipeline ----

Pipeline::Pipeline(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Pipeline::~Pipeline()
{
    const Status status = close(UINT64_MAX);
    STW_ASSERT(status.ok());
}

Result<std::unique_ptr<Pipeline>> Pipeline::open(const PipelineOptions &options)
{
    if (options.tiers == nullptr || options.thread_count == 0 ||
        options.thread_count > kThreadsMax) {
        return Status::error(STW_ERROR_INVALID,
                             "A pipeline of updates needs tiers and 1 to %u threads, not %u.",
                             kThreadsMax, options.thread_count);
    }
    const uint64_t block = options.tiers->block_bytes();
    // A unit of the scan, in the widest dtype, must not need more pieces than a fetch has.
    if (block == 0 || kernels::kScanBlockElements * 4 / block + 2 > kPiecesNeeded) {
        return Status::error(STW_ERROR_INVALID, "Blocks of %s are too small to stream updates.",
                             bytes_text(block).c_str());
    }
    std::unique_ptr<Pipeline> pipeline(new Pipeline(std::make_unique<Parts>(options)));
    STW_TRY(pipeline->parts_->start_threads());
    return pipeline;
}

void Pipeline::transfers_ended()
{
    parts_->wake_to_pump();
}

void Pipeline::prefer(TensorId tensor)
{
    MutexLock lock(parts_->mutex);
    if (tensor >= parts_->queues.size()) return;
    for (Turn *turn = parts_->queues[tensor].first; turn != nullptr; turn = turn->behind) {
        parts_->prefer_job(*turn->job);
    }
}

uint32_t Pipeline::blocked_chunks() const
{
    MutexLock lock(parts_->mutex);
    const bool moves = parts_->active > 0 || !parts_->idle();
    return moves ? 0 : parts_->chunks_in_flight;
}

bool Pipeline::undoes(TensorId tensor) const
{
    MutexLock lock(parts_->mutex);
    if (tensor >= parts_->queues.size()) return false;
    const Turn *const first = parts_->queues[tensor].first;
    return first != nullptr && first->job->undoes;
}

std::optional<uint32_t> Pipeline::verdict_from(TensorId tensor, bool early) const
{
    MutexLock lock(parts_->mutex);
    if (tensor >= parts_->queues.size()) return {};
    for (const Turn *at = parts_->queues[tensor].first; at != nullptr; at = at->behind) {
        if (early && !at->job->is_parked()) continue;
        if (const std::optional<uint32_t> thread = at->job->verdict_from()) return thread;
    }
    return {};
}

uint32_t Pipeline::tensors_to_undo() const
{
    uint32_t most = 0;
    MutexLock lock(parts_->mutex);
    for (const Parts::Queue &queue : parts_->queues) {
        for (const Turn *at = queue.first; at != nullptr; at = at->behind)
            most = std::max(most, at->job->tensors_to_undo());
    }
    return most;
}

bool Pipeline::is_parked(ClaimId claim) const
{
    MutexLock lock(parts_->mutex);
    return std::any_of(parts_->parked.begin(), parts_->parked.end(),
                       [claim](const Job *job) { return job->claim == claim; });
}

bool Pipeline::waits_only_for(uint32_t thread) const
{
    MutexLock lock(parts_->mutex);
    if (parts_->totals.jobs > parts_->jobs_behind_parked()) return false;
    return std::any_of(parts_->parked.begin(), parts_->parked.end(),
                       [thread](const Job *job) { return job->verdict_from() == thread; });
}

bool Pipeline::pending(TensorId tensor) const
{
    MutexLock lock(parts_->mutex);
    return tensor < parts_->queues.size() && parts_->queues[tensor].first != nullptr;
}

void Pipeline::set_window(PlaceId place, uint64_t bytes)
{
    MutexLock lock(parts_->mutex);
    for (Parts::Window &window : parts_->windows) {
        if (window.place == place) window.limit = bytes;
    }
}

Status Pipeline::drain(uint64_t timeout_ns)
{
    MutexLock lock(parts_->mutex);
    const Waiter waiter = parts_->waiter(timeout_ns);
    while (parts_->totals.jobs > parts_->jobs_behind_parked()) STW_TRY(parts_->sleep(waiter));
    return {};
}

void Pipeline::interrupt(uint64_t at_ns)
{
    MutexLock lock(parts_->mutex);
    parts_->interrupted_ns = std::max(parts_->interrupted_ns, at_ns);
    parts_->changed.notify_all();
}

Status Pipeline::close(uint64_t timeout_ns)
{
    {
        MutexLock lock(parts_->mutex);
        if (parts_->stopping) return {};
        parts_->closing = true;
        while (!parts_->parked.empty()) {
            Job &job = *parts_->parked.back();
            parts_->unpark(job);
            parts_->make_ready(job);
        }
        parts_->work_ready.notify_all();
        const Waiter waiter = parts_->waiter(timeout_ns);
        while (parts_->totals.jobs > 0) STW_TRY(parts_->sleep(waiter));
    }
    parts_->stop_threads();
    return {};
}

PipelineStats Pipeline::stats() const
{
    MutexLock lock(parts_->mutex);
    return parts_->totals;
}

}  // namespace stepwell::update
