// SPDX-License-Identifier: Apache-2.0
// The update threads: take a chunk whose bytes have come, do what its job does, give it back, and
// ask for the next ones. They wait for work only.
#include "lib/update/parts.h"

#include "lib/observe/nvtx.h"
#include "lib/support/assert.h"
#include "lib/support/thread.h"

namespace stepwell::update {

Status Pipeline::Parts::start_threads()
{
    threads.reserve(options.thread_count);
    for (uint32_t i = 0; i < options.thread_count; ++i) {
        std::thread thread;
        STW_TRY(start_thread(thread, "stw-update", "updates", [this] { worker_main(); }));
        threads.push_back(std::move(thread));
    }
    return {};
}

void Pipeline::Parts::stop_threads()
{
    {
        MutexLock lock(mutex);
        stopping = true;
        work_ready.notify_all();
    }
    for (std::thread &thread : threads) thread.join();
    threads.clear();
}

// While the pipeline closes, an idle update thread ends the jobs that have not begun.
Job *Pipeline::Parts::take_closed()
{
    if (!closing) return nullptr;
    for (Window &window : windows) {
        while (!window.ready.empty()) {
            Job &job = **window.ready.begin();
            unready(job);
            if (job.error.ok()) {
                job.error = Status::error(STW_ERROR_CLOSED,
                                          "The runtime was closed before the update was through.");
            }
            if (job.in_flight == 0) return &job;
        }
    }
    return nullptr;
}

void ChunkList::append(Chunk &chunk)
{
    chunk.next = nullptr;
    (first == nullptr ? first : last->next) = &chunk;
    last = &chunk;
}

Chunk *ChunkList::take()
{
    Chunk *const chunk = first;
    if (chunk == nullptr) return nullptr;
    first = chunk->next;
    if (first == nullptr) last = nullptr;
    return chunk;
}

bool Pipeline::Parts::idle() const
{
    return arrived.empty() && begun.empty() && !pump_wanted && !stopping;
}

// Arrived chunks are begun before results are waited for, so that a device always has work.
Chunk *Pipeline::Parts::take_work()
{
    return arrived.empty() ? begun.take() : arrived.take();
}

void Pipeline::Parts::worker_main()
{
    for (;;) {
        Chunk *chunk = nullptr;
        Job *closed = nullptr;
        bool asked = false;
        {
            MutexLock lock(mutex);
            while (arrived.empty() && (closed = take_closed()) == nullptr && idle()) {
                work_ready.wait(mutex);
            }
            chunk = closed == nullptr ? take_work() : nullptr;
            if (chunk == nullptr && closed == nullptr && !pump_wanted) return;
            asked = std::exchange(pump_wanted, false);
            wake_wanted = false;
            ++active;
        }
        if (asked) pump();  // the work may take long
        if (closed != nullptr) {
            closed->end();
        } else if (chunk != nullptr && chunk->begun) {
            finish(*chunk);
        } else if (chunk != nullptr) {
            work(*chunk);
        }
        pump();
        end_activity();
    }
}

void Pipeline::Parts::end_activity()
{
    {
        MutexLock lock(mutex);
        if (--active > 0 || (chunks_in_flight == 0 && parked.empty())) return;
    }
    tiers.updates_wait();
}

void Pipeline::Parts::work(Chunk &chunk)
{
    Job &job = *chunk.job;
    Status status = std::move(chunk.status);
    chunk.status = Status();
    const bool granted = status.ok();
    if (granted) {
        if (chunk.opens) open_job(chunk, status);
        if (status.ok()) status = run_chunk(chunk);
        tiers.release(chunk.ticket, chunk.far_pieces);
        if (chunk.begun) {
            MutexLock lock(mutex);
            begun.append(chunk);
            work_ready.notify_one();
            return;
        }
    } else if (chunk.opens) {
        status = job.refused(std::move(status));
    }
    bool ended = false;
    {
        MutexLock lock(mutex);
        ended = settle(chunk, granted, std::move(status));
    }
    if (ended) job.end();
}

void Pipeline::Parts::finish(Chunk &chunk)
{
    Job &job = *chunk.job;
    Status status = job.results(chunk);
    bool ended = false;
    {
        MutexLock lock(mutex);
        ended = settle(chunk, true, std::move(status));
    }
    if (ended) job.end();
}

// The other chunks of the job may come now, and are requested before the first one is worked on.
void Pipeline::Parts::open_job(Chunk &chunk, Status &status)
{
    Job &job = *chunk.job;
    status = job.opened();
    if (!status.ok()) return;
    {
        MutexLock lock(mutex);
        job.open = true;
        if (!job.more()) return;
        make_ready(job);
    }
    pump();
}

Status Pipeline::Parts::run_chunk(Chunk &chunk) const
{
    const observe::NvtxRange range(observe::NvtxKind::kUpdate);
    const uint64_t start_ns = wait_clock_ns();
    Status status = chunk.job->run(chunk);
    const uint64_t end_ns = wait_clock_ns();
    chunk.busy_ns = end_ns - start_ns;
    if (options.span != nullptr) {
        options.span(options.span_user, start_ns, end_ns, chunk.job->turns[0].tensor);
    }
    return status;
}

void Pipeline::Parts::count(const Chunk &chunk)
{
    ++totals.chunks;
    totals.busy_ns += chunk.busy_ns;
    for (uint32_t i = 0; i < chunk.piece_count; ++i) {
        const Piece &piece = chunk.pieces[i];
        (chunk.scans ? totals.scanned_bytes : totals.read_bytes) += piece.byte_count;
        if (chunk.job->place != kAnyCpuPlace) totals.device_bytes += piece.byte_count;
        if (piece.access != Access::kRead) totals.written_bytes += piece.byte_count;
    }
}

// True when this was the last chunk of its job's phase. The caller then owns the job.
bool Pipeline::Parts::settle(Chunk &chunk, bool granted, Status status)
{
    Job &job = *chunk.job;
    STW_ASSERT(job.in_flight > 0 && chunks_in_flight > 0);
    --job.in_flight;
    --chunks_in_flight;
    totals.window_bytes -= chunk.cost_bytes;
    windows[job.window].bytes -= chunk.cost_bytes;
    --windows[job.window].chunks;
    if (!status.ok()) {
        if (job.error.ok()) job.error = std::move(status);
        unready(job);
        chunks.give_back(chunk);
    } else if (granted) {
        count(chunk);
        chunks.give_back_all(job.settle(chunk));
    } else {
        chunks.give_back(chunk);
    }
    return job.in_flight == 0 && !job.ready && (!job.error.ok() || !job.more());
}

}  // namespace stepwell::update
