// SPDX-License-Identifier: Apache-2.0
// The copy threads: memory to memory, zeros, maps without I/O, and the memory side of staged moves.
// They wait for work on a condition and for nothing else: never for storage or for a ring slot.
// What is enqueued on a device is waited for by a thread beside the one that enqueues, so neither
// directions nor devices ever wait for each other.
#include "lib/memory/driver_reason.h"
#include "lib/transfer/parts.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

namespace stepwell::transfer {

using residency::TransferKind;

namespace {

constexpr uint64_t kBounceBytes = 64 * 1024;  // on the copying thread's stack
constexpr uint64_t kHeldBackNs = 1'000'000;

// Between two memories that the CPU cannot reach, neither of which knows the other.
stw_status bounce(const Memory &into, char *target, const Memory &out_of, const char *source,
                  uint64_t bytes)
{
    alignas(4096) char buffer[kBounceBytes];
    for (uint64_t at = 0; at < bytes; at += kBounceBytes) {
        const uint64_t n = std::min(kBounceBytes, bytes - at);
        stw_status code = out_of.ops->copy(out_of.memory, buffer, source + at, n);
        if (code >= 0) code = into.ops->copy(into.memory, target + at, buffer, n);
        if (code < 0) return code;
    }
    return STW_OK;
}

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
    // One that is tried again is held, as far as is known, until it has been ordered.
    if (!task.held_back) task.stage = Stage::kCopy;
}

// What is queued at the moment: nothing waits for a batch to fill.
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
        if (!may_start(*task)) return;
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

// A stream that has worked there records a graph, and what it did before can be waited for when
// that is over. Nobody could be told so, and others need not wait with it.
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

// What was held back long enough is queued again.
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
    if (!std::exchange(task.held_back, false)) hop_begin(task, copy_link(task));
    if (task.route != Route::kWriteStaged) task.status = map_block(task);
    if (task.status.ok()) return true;
    end_copy(task, outbox);
    return false;
}

void Engine::Parts::run_copies(CopyLane &lane, Batch &batch, Batch &rest, Outbox &outbox)
{
    const auto over = [&](Task *task) { return !prepare_copy(*task, outbox); };
    batch.erase(std::remove_if(batch.begin(), batch.end(), over), batch.end());
    if (batch.empty()) return;
    if (may_start(*batch.front())) {
        set_waiting_apart(batch, rest);
        start_copies(lane, batch, outbox);
        if (!rest.empty()) start_copies(lane, rest, outbox);
        return;
    }
    Task &task = *batch.front();  // alone
    task.status = copy_bytes(task);
    if (task.status.ok()) task.status = map_alias(task);
    if (!hold_back(lane, task)) end_copy(task, outbox);
}

void Engine::Parts::end_copy(Task &task, Outbox &outbox)
{
    const bool moved = task.status.ok();
    hop_end(task, copy_link(task), moved);
    if (moved && task.route == Route::kWriteStaged) {
        queue_path(task);
    } else {
        finish(task, outbox);
    }
}

// ------------------------------------------------------------------- copies that are enqueued --

// Of a move; what the ring has is host memory.
struct Engine::Parts::Sides {
    uint32_t device = 0;  // whose driver copies
    void *target = nullptr;
    const void *source = nullptr;
    bool into = false;  // the device, else out of it
};

Engine::Parts::Sides Engine::Parts::sides_of(const Task &task) const
{
    const Job &job = task.job;
    if (task.route == Route::kReadStaged) return {job.to_memory, job.to_pointer, task.data, true};
    if (task.route == Route::kWriteStaged) {
        return {job.from_memory, task.data, job.from_pointer, false};
    }
    const bool into = !options.memories[job.to_memory].cpu_access;
    return {into ? job.to_memory : job.from_memory, job.to_pointer, job.from_pointer, into};
}

// Between host memory and a device with streams.
bool Engine::Parts::may_start(const Task &task) const
{
    const Job &job = task.job;
    if (!task.status.ok()) return false;  // refused before it had a route
    if (job.transfer.kind != TransferKind::kMove || options.order == nullptr) return false;
    if (task.route == Route::kCopy && !options.memories[job.to_memory].cpu_access &&
        !options.memories[job.from_memory].cpu_access) {
        return false;
    }
    return options.memories[sides_of(task).device].has_streams();
}

// Kept apart where one would wait for a device that the other one has nothing to do with.
CopyLane &Engine::Parts::lane_of(const Task &task)
{
    if (!may_start(task)) return *lanes.front();
    const Sides sides = sides_of(task);
    return *lanes[lanes_of[sides.device] + (sides.into ? 0 : 1)];
}

void Engine::Parts::set_waiting_apart(Batch &batch, Batch &rest) const
{
    rest.clear();
    if (batch.size() == 1) return;
    const auto waits = [this](const Task *task) {
        const Sides sides = sides_of(*task);
        return options.order->waits(sides.device, sides.into ? sides.target : sides.source,
                                    task->job.transfer.bytes, sides.into, sides.into);
    };
    const auto first = std::stable_partition(batch.begin(), batch.end(),
                                             [&](const Task *task) { return !waits(task); });
    if (first == batch.begin()) return;
    rest.assign(first, batch.end());
    batch.erase(first, batch.end());
}

// All in one direction of one device; what fails is over, the rest is behind the others.
void Engine::Parts::start_copies(CopyLane &lane, Batch &batch, Outbox &outbox)
{
    const auto failed = [&](Task *task) {
        if (task->status.ok()) return false;
        end_copy(*task, outbox);
        return true;
    };
    const auto waits = [&](Task *task) { return hold_back(lane, *task) || failed(task); };
    for (Task *task : batch) {
        const Sides sides = sides_of(*task);
        task->status = order_copy(sides.device, sides.into ? sides.target : sides.source,
                                  task->job.transfer.bytes, sides.into, sides.into);
    }
    batch.erase(std::remove_if(batch.begin(), batch.end(), waits), batch.end());
    if (batch.empty()) return;
    enqueue_copies(batch);
    batch.erase(std::remove_if(batch.begin(), batch.end(), failed), batch.end());
    const auto goes_unseen = [&](Task *task) {
        const Sides sides = sides_of(*task);
        if (!sides.into || show_started(*task, sides)) return false;
        end_copy(*task, outbox);
        return true;
    };
    batch.erase(std::remove_if(batch.begin(), batch.end(), goes_unseen), batch.end());
    CopyOrdering &order = *options.order;
    for (const Task *task : batch) {
        if (!sides_of(*task).into || !enter_hook()) continue;
        order.ordered(task->job.transfer.id);
        leave_hook();
    }
    hand_over(lane, batch);
}

// To the lane's other thread, which completes them: nobody hears of that before `ordered`.
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

// What it brings is seen where its tensor is from now on. False: it is not, and the copy is over.
bool Engine::Parts::show_started(Task &task, const Sides &sides)
{
    CopyOrdering &order = *options.order;
    const Memory &memory = options.memories[sides.device];
    const uint64_t bytes = task.job.transfer.bytes;
    task.order_number = order.started(sides.device, sides.target, bytes, task.mark);
    task.status = map_alias(task);
    if (task.status.ok()) return true;
    (void)memory.ops->wait(memory.memory, task.mark);
    order.arrived(sides.device, sides.target, bytes, task.order_number);
    return false;
}

// Blocks that lie side by side at both ends are one copy, whatever blocks they are.
uint32_t Engine::Parts::join_copies(Batch &batch, stw_memory_copy *list, uint32_t *copy_of) const
{
    const bool into = sides_of(*batch.front()).into;
    CopyOrdering &order = *options.order;
    std::sort(batch.begin(), batch.end(), [this](const Task *a, const Task *b) {
        return sides_of(*a).target < sides_of(*b).target;
    });
    uint32_t n = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
        const Sides sides = sides_of(*batch[i]);
        const uint64_t bytes = batch[i]->job.transfer.bytes;
        stw_memory_copy *const before = n > 0 ? &list[n - 1] : nullptr;
        const bool beside =
            before != nullptr &&
            static_cast<const char *>(before->destination) + before->bytes == sides.target &&
            static_cast<const char *>(before->source) + before->bytes == sides.source &&
            order.joined(into ? sides.source : sides.target);
        if (beside) {
            before->bytes += bytes;
        } else {
            list[n++] = {sides.target, sides.source, bytes};
        }
        copy_of[i] = n - 1;
    }
    return n;
}

// In one call where that is possible: between the hooks nothing is registered no more.
void Engine::Parts::enqueue_copies(Batch &batch)
{
    const Sides first = sides_of(*batch.front());
    const Memory &memory = options.memories[first.device];
    CopyOrdering &order = *options.order;
    std::array<stw_memory_copy, kBatchMax> list{};
    std::array<uint32_t, kBatchMax> copy_of{};
    order.hold(first.device, first.into);
    const uint32_t n = join_copies(batch, list.data(), copy_of.data());
    bool together = n > 1 && (memory.ops->capabilities & STW_MEMORY_CAN_BATCH) != 0;
    for (uint32_t i = 0; together && i < n; ++i)
        together = order.registered(first.into ? list[i].source : list[i].destination);
    std::array<uint64_t, kBatchMax> marks{};
    std::array<stw_status, kBatchMax> codes{};
    const uint64_t *last = nullptr;
    for (uint32_t at = 0; at < n; at += together ? n : 1) {
        codes[at] = together ? memory.ops->copies_start(memory.memory, list.data(), n, &marks[at])
                             : memory.ops->copy_start(memory.memory, list[at].destination,
                                                      list[at].source, list[at].bytes, &marks[at]);
        if (codes[at] >= 0) last = &marks[at];
    }
    order.let_go(first.device, first.into, last);
    for (size_t i = 0; i < batch.size(); ++i) {
        const uint32_t at = together ? 0 : copy_of[i];
        batch[i]->mark = marks[at];
        if (codes[at] < 0) batch[i]->status = copy_failed(*batch[i], codes[at]);
    }
}

// All behind one mark.
void Engine::Parts::await_copies(CopyLane &lane, const Batch &batch, Outbox &outbox)
{
    const Task &first = *batch.front();
    const Memory &memory = options.memories[sides_of(first).device];
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
        const Sides sides = sides_of(*task);
        if (code < 0) task->status = copy_failed(*task, code);
        if (code >= 0 && sides.into) {
            options.order->arrived(sides.device, sides.target, task->job.transfer.bytes,
                                   task->order_number);
        }
        end_copy(*task, outbox);
    }
}

// ------------------------------------------------------------------------------- and the rest --

Status Engine::Parts::map_block(const Task &task) const
{
    const Job &job = task.job;
    if (job.map_block == kNoMap) return {};
    const Memory &memory = options.memories[job.to_memory];
    if ((memory.ops->capabilities & STW_MEMORY_CAN_MAP) == 0) {
        return Status::error(STW_ERROR_INTERNAL, "Memory '%s' maps no blocks.",
                             memory.name.c_str());
    }
    const stw_status code = memory.ops->map(memory.memory, job.map_block, job.to_pointer);
    if (code >= 0) return {};
    return Status::error(code, "Mapping block %u of memory '%s' failed: %s.", job.map_block,
                         memory.name.c_str(), memory::status_text(code));
}

Status Engine::Parts::map_alias(const Task &task) const
{
    const bool leaves = task.route == Route::kWriteStaged;
    if (task.job.alias == nullptr || leaves || options.order == nullptr) return {};
    Status status = options.order->map_alias(task.job);
    if (status.ok()) return status;
    return Status::error(status.code(), "Block %u of memory '%s': %s.", task.job.transfer.block,
                         options.memories[task.job.to_memory].name.c_str(), status.sentence());
}

Status Engine::Parts::copy_bytes(Task &task) const
{
    const Job &job = task.job;
    const uint64_t bytes = job.transfer.bytes;
    if (task.route == Route::kReadStaged) {
        return move_bytes(task, job.to_memory, job.to_pointer, job.to_memory, task.data);
    }
    if (task.route == Route::kWriteStaged) {
        return move_bytes(task, job.from_memory, task.data, job.from_memory, job.from_pointer);
    }
    switch (job.transfer.kind) {
    case TransferKind::kMap: return {};
    case TransferKind::kZero: {
        const Memory &memory = options.memories[job.to_memory];
        STW_TRY(order_copy(job.to_memory, job.to_pointer, bytes, true, true));
        const stw_status code = memory.ops->zero(memory.memory, job.to_pointer, bytes);
        if (code >= 0) return {};
        return Status::error(code,
                             "Clearing block %u (%" PRIu64 " bytes) in memory '%s' failed: "
                             "%s.",
                             job.transfer.block, bytes, memory.name.c_str(),
                             memory::driver_reason(memory.ops, memory.memory, code).c_str());
    }
    case TransferKind::kMove:
    case TransferKind::kRelocate: break;
    }
    return move_bytes(task, job.to_memory, job.to_pointer, job.from_memory, job.from_pointer);
}

Status Engine::Parts::order_copy(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                                 bool into) const
{
    if (options.order == nullptr || options.memories[memory].cpu_access) return {};
    return options.order->before(memory, pointer, bytes, writes, into);
}

// A memory copies inside itself and to and from host memory, so of two memories the one that
// the CPU cannot reach has to do it.
Status Engine::Parts::move_bytes(const Task &task, uint32_t to, void *target, uint32_t from,
                                 const void *source) const
{
    const Memory &into = options.memories[to];
    const Memory &out_of = options.memories[from];
    const residency::Transfer &transfer = task.job.transfer;
    const Memory &mover = into.cpu_access ? out_of : into;
    // Of a staged move the other side is the ring's, which has the number of the device too.
    // Between two memories that the CPU cannot reach each has its own part; inside of one all is of
    // those into it.
    const bool inside = to == from && task.route == Route::kCopy;
    if (task.route != Route::kReadStaged)
        STW_TRY(order_copy(from, source, transfer.bytes, false, inside));
    if (task.route != Route::kWriteStaged)
        STW_TRY(order_copy(to, target, transfer.bytes, true, true));
    const stw_status code = to != from && !into.cpu_access && !out_of.cpu_access
                                ? bounce(into, static_cast<char *>(target), out_of,
                                         static_cast<const char *>(source), transfer.bytes)
                                : mover.ops->copy(mover.memory, target, source, transfer.bytes);
    return code >= 0 ? Status() : copy_failed(task, code);
}

Status Engine::Parts::copy_failed(const Task &task, stw_status code) const
{
    const residency::Transfer &transfer = task.job.transfer;
    const bool read = task.route == Route::kReadStaged;
    const bool write = task.route == Route::kWriteStaged;
    const Memory &from = options.memories[read ? staging_memory : task.job.from_memory];
    const Memory &to = options.memories[write ? staging_memory : task.job.to_memory];
    const Memory &mover = to.cpu_access ? from : to;
    return Status::error(code,
                         "Copying block %u (%" PRIu64 " bytes) from memory '%s' to '%s' "
                         "failed: %s.",
                         transfer.block, transfer.bytes, from.name.c_str(), to.name.c_str(),
                         memory::driver_reason(mover.ops, mover.memory, code).c_str());
}

}  // namespace stepwell::transfer
