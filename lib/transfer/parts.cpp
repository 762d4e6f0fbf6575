// SPDX-License-Identifier: Apache-2.0
// Jobs in, completions out: routing, queues, rings, wake-ups. Functions that submit and the
// engine's threads share.
#include "lib/transfer/parts.h"

#include "lib/transfer/storage_thread.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

namespace stepwell::transfer {

using residency::Class;
using residency::TransferKind;

namespace {

uint64_t round_up(uint64_t bytes, uint64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

bool from_nvme(const Job &job)
{
    return job.transfer.kind == TransferKind::kMove && job.from_memory == kNvme;
}

bool to_nvme(const Job &job)
{
    return job.transfer.kind == TransferKind::kMove && job.to_memory == kNvme;
}

}  // namespace

// -------------------------------------------------------------------------------------- submit --

Status Engine::Parts::check_side(const Job &job, uint32_t memory, const void *pointer) const
{
    if (memory < options.memories.size() && pointer != nullptr) return {};
    return Status::error(STW_ERROR_INTERNAL,
                         "Transfer %" PRIu64 " of block %u names memory %u of %zu, or no address.",
                         job.transfer.id, job.transfer.block, memory, options.memories.size());
}

Status Engine::Parts::check_job(const Job &job) const
{
    const residency::Transfer &transfer = job.transfer;
    if (from_nvme(job) && to_nvme(job)) {
        return Status::error(STW_ERROR_INTERNAL, "Block %u was to move from nvme to nvme.",
                             transfer.block);
    }
    if ((from_nvme(job) || to_nvme(job)) && store == nullptr) {
        return Status::error(STW_ERROR_INTERNAL, "Block %u was to move where no nvme tier is.",
                             transfer.block);
    }
    if (transfer.kind != TransferKind::kMap &&
        (transfer.bytes == 0 || transfer.bytes > options.block_bytes)) {
        return Status::error(STW_ERROR_INTERNAL,
                             "Block %u was to move %" PRIu64 " bytes of a block of %" PRIu64 ".",
                             transfer.block, transfer.bytes, options.block_bytes);
    }
    const bool has_from =
        transfer.kind == TransferKind::kMove || transfer.kind == TransferKind::kRelocate;
    if (!to_nvme(job)) STW_TRY(check_side(job, job.to_memory, job.to_pointer));
    if (has_from && !from_nvme(job)) STW_TRY(check_side(job, job.from_memory, job.from_pointer));
    return {};
}

// Gets the slot at the store, which decides the path and thereby the queue.
Status Engine::Parts::place(Task &task)
{
    const Job &job = task.job;
    const bool reads = from_nvme(job);
    const uint32_t memory = reads ? job.to_memory : job.from_memory;
    const bool direct = options.memories[memory].storage_reaches();
    Result<store::Placement> placement =
        reads ? store->begin_read(job.transfer.block)
              : store->begin_write(job.transfer.block, job.transfer.bytes);
    if (!placement.ok()) return placement.status();
    task.place = placement.value();
    task.placed = true;
    task.route = reads ? (direct ? Route::kRead : Route::kReadStaged)
                       : (direct ? Route::kWrite : Route::kWriteStaged);
    if (task.place.bytes != job.transfer.bytes) {
        return Status::error(STW_ERROR_INTERNAL,
                             "Block %u was written with %" PRIu64 " bytes and is to be read with "
                             "%" PRIu64 ".",
                             job.transfer.block, task.place.bytes, job.transfer.bytes);
    }
    const uint64_t alignment = store->info(task.place.path).alignment_bytes;
    task.io_bytes = round_up(job.transfer.bytes, alignment);
    task.data = reads ? job.to_pointer : job.from_pointer;
    if (direct && reinterpret_cast<uintptr_t>(task.data) % alignment != 0) {
        return Status::error(STW_ERROR_INTERNAL,
                             "Block %u lies at an address that is not aligned to the %" PRIu64
                             " bytes that '%s' needs.",
                             job.transfer.block, alignment, store->name(task.place.path).c_str());
    }
    return {};
}

void Engine::Parts::enqueue(Task &task)
{
    task.stage = Stage::kQueued;
    if (!task.status.ok() || task.route == Route::kCopy || task.route == Route::kWriteStaged) {
        CopyLane &lane = lane_of(task);
        const bool staged = task.status.ok() && task.route == Route::kWriteStaged;
        (staged ? lane.staged_writes : lane.copies).push(task);
        lane.ready.notify_one();
    } else if (is_ordered(task)) {
        ordering.push(task);
        order_ready.notify_one();
    } else {
        push_to_path(task);
    }
}

void Engine::Parts::push_to_path(Task &task)
{
    PathQueues &path = *paths[task.place.path];
    (task.route == Route::kRead         ? path.reads
     : task.route == Route::kReadStaged ? path.staged_reads
                                        : path.writes)
        .push(task);
    wake_path(task.place.path);
}

Status Engine::Parts::submit(const Job *jobs, uint32_t n)
{
    MutexLock lock(mutex);
    if (closing) {
        return Status::error(STW_ERROR_CLOSED, "The transfer engine is closed or closing.");
    }
    if (!pool.has_room(n)) {
        return Status::error(STW_ERROR_LIMIT,
                             "%u transfers more than the %u in flight would pass the maximum of "
                             "%u.",
                             n, pool.used(), options.jobs_max);
    }
    pool.ensure(n);
    const uint64_t now_ns = options.now();
    for (uint32_t i = 0; i < n; ++i) {
        Task &task = pool.take(jobs[i]);
        task.sequence = ++sequence;
        task.urgency = jobs[i].transfer.urgency;
        task.submitted_ns = now_ns;
        task.status = check_job(task.job);
        if (task.status.ok() && (from_nvme(task.job) || to_nvme(task.job))) {
            task.status = place(task);
        }
        enqueue(task);
    }
    return {};
}

void Engine::Parts::promote(residency::TransferId id)
{
    MutexLock lock(mutex);
    Task *task = pool.find(id);
    if (task == nullptr || task->urgency == Class::kDemand) return;
    ClassQueues *queue = task->queue;
    if (queue != nullptr) queue->remove(*task);
    task->urgency = Class::kDemand;
    if (queue == nullptr) return;  // a thread has it and looks at the class before each request
    queue->push(*task);
    if (task->placed) wake_path(task->place.path);
}

// ------------------------------------------------------------------------------------ wake-ups --

// Under the lock: `waiting` is set there before the thread polls, and a wake stays in effect until
// the next poll returns, so no task is missed; and no wake can reach a driver that is being closed.
void Engine::Parts::wake_path(uint32_t path)
{
    PathQueues &queues = *paths[path];
    if (!queues.waiting) return;
    queues.waiting = false;
    store->ops(path).wake(store->storage(path));
}

void Engine::Parts::wake_all()
{
    for (uint32_t i = 0; i < paths.size(); ++i) {
        paths[i]->waiting = false;
        store->ops(i).wake(store->storage(i));
    }
    for (const std::unique_ptr<CopyLane> &lane : lanes) {
        lane->ready.notify_all();
        lane->begun.notify_all();
    }
    order_ready.notify_all();
}

bool Engine::Parts::thread_ends()
{
    return stopping || (abandoned && pool.used() == 0);
}

// --------------------------------------------------------------------------------------- rings --

void Engine::Parts::take_ring(Task &task, std::vector<uint32_t> &ring)
{
    task.ring = ring.back();
    ring.pop_back();
    task.data = static_cast<uint8_t *>(options.staging) + task.ring * options.block_bytes;
}

// Slots of the read ring wait for copies alone, slots of the write ring for storage alone, and a
// task with a slot waits for no other slot: neither direction can block itself or the other one.
void Engine::Parts::give_ring_back(Task &task)
{
    if (task.ring == kNoRing) return;
    MutexLock lock(mutex);
    if (is_read(task)) {
        read_ring.push_back(task.ring);
        for (uint32_t i = 0; i < paths.size(); ++i) {
            if (paths[i]->staged_reads.best() != nullptr) wake_path(i);
        }
    } else {
        write_ring.push_back(task.ring);
        for (const std::unique_ptr<CopyLane> &lane : lanes) {
            if (lane->staged_writes.best() != nullptr) lane->ready.notify_one();
        }
    }
    task.ring = kNoRing;
}

void Engine::Parts::queue_copy(Task &task)
{
    MutexLock lock(mutex);
    task.stage = Stage::kCopy;
    CopyLane &lane = lane_of(task);
    lane.copies.push(task);
    lane.ready.notify_one();
}

void Engine::Parts::queue_path(Task &task)
{
    MutexLock lock(mutex);
    task.stage = Stage::kQueued;
    push_to_path(task);
}

// --------------------------------------------------------------------------------- completions --

void Engine::Parts::finish(Task &task, Outbox &outbox)
{
    if (task.placed && is_read(task)) store->end_read(task.place);
    if (task.placed && is_write(task)) store->end_write(task.place, task.status.ok());
    task.placed = false;
    give_ring_back(task);
    outbox.tasks.push_back(&task);
    outbox.list.push_back({task.job.transfer.id, std::move(task.status)});
    if (outbox.list.size() >= kOutboxMax) flush(outbox);
}

// The tasks are free before the callback, which may submit into their place; `callbacks` keeps
// close from returning while it runs.
void Engine::Parts::flush(Outbox &outbox)
{
    if (outbox.list.empty()) return;
    bool call = false;
    {
        MutexLock lock(mutex);
        for (Task *task : outbox.tasks) pool.give_back(*task);
        call = !muted;
        if (call) ++callbacks;
        if (abandoned && pool.used() == 0) wake_all();
    }
    if (call) {
        options.done(options.done_user, outbox.list.data(),
                     static_cast<uint32_t>(outbox.list.size()));
    }
    outbox.list.clear();
    outbox.tasks.clear();
    MutexLock lock(mutex);
    if (call) --callbacks;
    if (closing) changed.notify_all();
}

// Keeps close from returning while a hook runs. False: no hook may be called any more.
bool Engine::Parts::enter_hook()
{
    MutexLock lock(mutex);
    if (closing) return false;
    ++callbacks;
    return true;
}

void Engine::Parts::leave_hook()
{
    MutexLock lock(mutex);
    --callbacks;
    if (closing) changed.notify_all();
}

std::string Engine::Parts::describe(uint32_t lines_max) const
{
    struct Line {
        uint64_t sequence;
        std::string text;
    };
    std::vector<Line> lines;
    MutexLock lock(mutex);
    const uint64_t now_ns = options.now();
    pool.for_each([&](const Task &task) {
        static constexpr const char *kStages[] = {"free",
                                                  "queued",
                                                  "at storage",
                                                  "copying",
                                                  "behind work on streams",
                                                  "until a stream has recorded its graph"};
        const residency::Transfer &transfer = task.job.transfer;
        const uint64_t age_ns = now_ns > task.submitted_ns ? now_ns - task.submitted_ns : 0;
        std::string text = format_text(
            "transfer %" PRIu64 ": block %u, %s, class %u, place %u to %u, %s, for %" PRIu64 " ms",
            transfer.id, transfer.block, bytes_text(transfer.bytes).c_str(),
            static_cast<unsigned>(task.urgency), transfer.from, transfer.to,
            kStages[static_cast<uint32_t>(task.stage)], age_ns / 1'000'000);
        if (task.route != Route::kCopy) {
            text += format_text(", '%s' at offset %" PRIu64, store->name(task.place.path).c_str(),
                                task.place.offset);
        }
        lines.push_back({task.sequence, std::move(text)});
    });
    std::sort(lines.begin(), lines.end(),
              [](const Line &a, const Line &b) { return a.sequence < b.sequence; });
    std::string all;
    for (size_t i = 0; i < lines.size() && i < lines_max; ++i) {
        all += (i > 0 ? "; " : "") + lines[i].text;
    }
    if (lines.size() > lines_max) all += format_text("; and %zu more", lines.size() - lines_max);
    return all;
}

}  // namespace stepwell::transfer
