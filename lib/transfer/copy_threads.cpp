// SPDX-License-Identifier: Apache-2.0
// The copy threads: memory to memory, zeros, maps without I/O, and the memory side of staged moves.
// They wait for work on a condition only, never for storage or for a ring slot. A second thread of
// a lane waits for the copies that the first one enqueues, so neither directions nor devices wait
// for each other.
#include "lib/transfer/parts.h"

#include <algorithm>
#include <utility>

namespace stepwell::transfer {

namespace {

constexpr uint64_t kHeldBackNs = 1'000'000;

}  // namespace

Task *Engine::Parts::best_copy(const CopyLane &lane) const
{
    return more_urgent(lane.copies.best(),
                       write_ring.empty() ? nullptr : lane.staged_writes.best());
}

void Engine::Parts::take_copy(CopyLane &lane, Task &task)
{
    if (task.queue == &lane.staged_writes) {
        lane.staged_writes.remove(task);
        take_ring(task, write_ring);
    } else {
        lane.copies.remove(task);
    }
    task.begun = true;
    // A copy that is tried again stays in the stage "held" until it has been ordered.
    if (!task.held_back) task.stage = Stage::kCopy;
}

// Only copies that are queued now: no copy waits for a batch to fill.
void Engine::Parts::next_copies(CopyLane &lane, Batch &batch)
{
    batch.clear();
    if (lane.started.batches >= kStartedMax || lane.started.bytes >= kStartedBytes) return;
    uint64_t bytes = 0;
    while (batch.size() < kBatchMax && bytes < kBatchBytes) {
        Task *task = best_copy(lane);
        if (task == nullptr) return;
        if (!batch.empty() && task->urgency != batch.front()->urgency) return;
        take_copy(lane, *task);
        batch.push_back(task);
        bytes += task->job.transfer.bytes;
        if (!copier.may_start(*task)) return;
    }
}

void Engine::Parts::copy_main(CopyLane &lane)
{
    Outbox outbox;
    outbox.tasks.reserve(kOutboxMax);
    outbox.list.reserve(kOutboxMax);
    Batch batch, rest;
    batch.reserve(kBatchMax);
    rest.reserve(kBatchMax);
    for (;;) {
        {
            MutexLock lock(mutex);
            uint64_t until_ns = take_held_back(lane);
            for (next_copies(lane, batch); batch.empty() && !thread_ends();
                 next_copies(lane, batch)) {
                if (until_ns == UINT64_MAX)
                    lane.ready.wait(mutex);
                else
                    (void)lane.ready.wait_until(mutex, until_ns);
                until_ns = take_held_back(lane);
            }
        }
        if (batch.empty()) break;
        run_copies(lane, batch, rest, outbox);
        flush(outbox);
    }
    thread_gone();
}

void Engine::Parts::oldest_copies(const CopyLane &lane, Batch &batch) const
{
    batch.clear();
    for (Task *task : lane.started.tasks) {
        if (!batch.empty() && batch.front()->mark != task->mark) return;
        batch.push_back(task);
    }
}

void Engine::Parts::arrive_main(CopyLane &lane)
{
    Outbox outbox;
    outbox.tasks.reserve(kOutboxMax);
    outbox.list.reserve(kOutboxMax);
    Batch batch;
    batch.reserve(kBatchMax);
    for (;;) {
        {
            MutexLock lock(mutex);
            for (oldest_copies(lane, batch); batch.empty() && !thread_ends();
                 oldest_copies(lane, batch))
                lane.begun.wait(mutex);
        }
        if (batch.empty()) break;
        await_copies(lane, batch, outbox);
        flush(outbox);
    }
    thread_gone();
}

// BUSY: a stream that used the block records a graph, and its earlier work can be waited for only
// after the capture, whose end is not notified. The copy is tried again later, so that other copies
// do not wait with it.
bool Engine::Parts::hold_back(CopyLane &lane, Task &task)
{
    if (task.status.code() != STW_ERROR_BUSY) return false;
    task.status = {};
    task.held_back = true;
    MutexLock lock(mutex);
    task.stage = Stage::kHeld;
    lane.held_until_ns = wait_clock_ns() + kHeldBackNs;
    lane.held_back.push(task);
    return true;
}

// Queues copies again that were held back long enough.
uint64_t Engine::Parts::take_held_back(CopyLane &lane)
{
    if (lane.held_back.best() == nullptr) return UINT64_MAX;
    if (wait_clock_ns() < lane.held_until_ns) return lane.held_until_ns;
    while (Task *task = lane.held_back.best()) {
        lane.held_back.remove(*task);
        lane.copies.push(*task);
    }
    return UINT64_MAX;
}

// The blocks may be used; false: the task is over.
bool Engine::Parts::prepare_copy(Task &task, Outbox &outbox)
{
    if (!task.status.ok()) {
        finish(task, outbox);
        return false;
    }
    if (!std::exchange(task.held_back, false)) hops.begin(task, hops.copy_link(task));
    if (task.route != Route::kWriteStaged) task.status = copier.map_block(task);
    if (task.status.ok()) return true;
    end_copy(task, outbox);
    return false;
}

void Engine::Parts::run_copies(CopyLane &lane, Batch &batch, Batch &rest, Outbox &outbox)
{
    const auto over = [&](Task *task) { return !prepare_copy(*task, outbox); };
    batch.erase(std::remove_if(batch.begin(), batch.end(), over), batch.end());
    if (batch.empty()) return;
    if (copier.may_start(*batch.front())) {
        copier.set_waiting_apart(batch, rest);
        start_copies(lane, batch, outbox);
        if (!rest.empty()) start_copies(lane, rest, outbox);
        return;
    }
    Task &task = *batch.front();  // alone
    task.status = copier.copy(task);
    if (task.status.ok()) task.status = copier.map_alias(task);
    if (!hold_back(lane, task)) end_copy(task, outbox);
}

void Engine::Parts::end_copy(Task &task, Outbox &outbox)
{
    const bool moved = task.status.ok();
    hops.end(task, hops.copy_link(task), moved);
    if (moved && task.route == Route::kWriteStaged) {
        queue_path(task);
    } else {
        finish(task, outbox);
    }
}

// ------------------------------------------------------------------- copies that are enqueued --

// A lane for each device and direction: a copy never waits for a device that it does not use.
CopyLane &Engine::Parts::lane_of(const Task &task)
{
    if (!copier.may_start(task)) return *lanes.front();
    const BlockCopier::Sides sides = copier.sides_of(task);
    return *lanes[lanes_of[sides.device] + (sides.into ? 0 : 1)];
}

// All copies are in one direction of one device. Failed ones are completed here, the others are
// enqueued.
void Engine::Parts::start_copies(CopyLane &lane, Batch &batch, Outbox &outbox)
{
    const auto failed = [&](Task *task) {
        if (task->status.ok()) return false;
        end_copy(*task, outbox);
        return true;
    };
    const auto waits = [&](Task *task) { return hold_back(lane, *task) || failed(task); };
    for (Task *task : batch) task->status = copier.order(*task);
    batch.erase(std::remove_if(batch.begin(), batch.end(), waits), batch.end());
    if (batch.empty()) return;
    copier.enqueue(batch);
    batch.erase(std::remove_if(batch.begin(), batch.end(), failed), batch.end());
    const auto unmapped = [&](Task *task) {
        const BlockCopier::Sides sides = copier.sides_of(*task);
        if (!sides.into || copier.map_started(*task, sides)) return false;
        end_copy(*task, outbox);
        return true;
    };
    batch.erase(std::remove_if(batch.begin(), batch.end(), unmapped), batch.end());
    CopyOrdering &order = *options.order;
    for (const Task *task : batch) {
        if (!copier.sides_of(*task).into || !enter_hook()) continue;
        order.ordered(task->job.transfer.id);
        leave_hook();
    }
    hand_over(lane, batch);
}

// Passes the copies to the lane's other thread, which completes them: no completion comes before
// `ordered`.
void Engine::Parts::hand_over(CopyLane &lane, const Batch &batch)
{
    MutexLock lock(mutex);
    Started &started = lane.started;
    for (Task *task : batch) {
        if (started.tasks.empty() || started.tasks.back()->mark != task->mark) ++started.batches;
        started.tasks.push_back(task);
        task->stage = Stage::kCopy;
        started.bytes += task->job.transfer.bytes;
    }
    lane.begun.notify_one();
}

// All copies of the batch share one mark.
void Engine::Parts::await_copies(CopyLane &lane, const Batch &batch, Outbox &outbox)
{
    const Task &first = *batch.front();
    const Memory &memory = options.memories[copier.sides_of(first).device];
    const stw_status code = memory.ops->wait(memory.memory, first.mark);
    {
        MutexLock lock(mutex);
        const auto begin = lane.started.tasks.begin();
        lane.started.tasks.erase(begin, begin + static_cast<ptrdiff_t>(batch.size()));
        --lane.started.batches;
        for (const Task *task : batch) lane.started.bytes -= task->job.transfer.bytes;
        lane.ready.notify_one();
    }
    for (Task *task : batch) {
        const BlockCopier::Sides sides = copier.sides_of(*task);
        if (code < 0) task->status = copier.failed(*task, code);
        if (code >= 0 && sides.into) {
            options.order->arrived(sides.device, sides.target, task->job.transfer.bytes,
                                   task->order_number);
        }
        end_copy(*task, outbox);
    }
}

}  // namespace stepwell::transfer
