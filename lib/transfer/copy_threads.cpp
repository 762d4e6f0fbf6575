// SPDX-License-Identifier: Apache-2.0
// The copy threads: memory to memory, zeros, maps without I/O, and the memory side of staged moves.
// They wait for work on a condition and for nothing else: never for storage or for a ring slot.
#include "lib/transfer/parts.h"

#include <algorithm>
#include <cinttypes>

namespace stepwell::transfer {

using residency::TransferKind;

namespace {

constexpr uint64_t kBounceBytes = 64 * 1024;  // on the copying thread's stack

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

Task *Engine::Parts::next_copy()
{
    Task *staged = write_ring.empty() ? nullptr : staged_writes.best();
    Task *task = more_urgent(copies.best(), staged);
    if (task == nullptr) return nullptr;
    if (task == staged) {
        staged_writes.remove(*task);
        take_ring(*task, write_ring);
    } else {
        copies.remove(*task);
    }
    task->begun = true;
    task->stage = Stage::kCopy;
    return task;
}

void Engine::Parts::copy_main()
{
    Outbox outbox;
    outbox.tasks.reserve(kOutboxMax);
    outbox.list.reserve(kOutboxMax);
    for (;;) {
        Task *task = nullptr;
        {
            MutexLock lock(mutex);
            while ((task = next_copy()) == nullptr && !thread_ends()) copy_ready.wait(mutex);
        }
        if (task == nullptr) break;
        run_copy(*task, outbox);
        flush(outbox);
    }
    thread_gone();
}

void Engine::Parts::run_copy(Task &task, Outbox &outbox)
{
    if (!task.status.ok()) {
        finish(task, outbox);
        return;
    }
    const Link link = copy_link(task);
    hop_begin(task, link);
    if (task.route != Route::kWriteStaged) task.status = map_block(task);
    if (task.status.ok()) task.status = copy_bytes(task);
    const bool moved = task.status.ok();
    hop_end(task, link, moved);
    if (moved && task.route == Route::kWriteStaged) {
        queue_write(task);
    } else {
        finish(task, outbox);
    }
}

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
                         memory.name.c_str(), status_text(code));
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
        STW_TRY(order_copy(job.to_memory, job.to_pointer, bytes, true));
        const stw_status code = memory.ops->zero(memory.memory, job.to_pointer, bytes);
        if (code >= 0) return {};
        return Status::error(code,
                             "Clearing block %u (%" PRIu64 " bytes) in memory '%s' failed: "
                             "%s.",
                             job.transfer.block, bytes, memory.name.c_str(), status_text(code));
    }
    case TransferKind::kMove:
    case TransferKind::kRelocate: break;
    }
    return move_bytes(task, job.to_memory, job.to_pointer, job.from_memory, job.from_pointer);
}

Status Engine::Parts::order_copy(uint32_t memory, const void *pointer, uint64_t bytes,
                                 bool writes) const
{
    if (options.before_copy == nullptr || options.memories[memory].cpu_access) return {};
    return options.before_copy(options.before_copy_user, memory, pointer, bytes, writes);
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
    if (task.route != Route::kReadStaged) STW_TRY(order_copy(from, source, transfer.bytes, false));
    if (task.route != Route::kWriteStaged) STW_TRY(order_copy(to, target, transfer.bytes, true));
    const stw_status code = to != from && !into.cpu_access && !out_of.cpu_access
                                ? bounce(into, static_cast<char *>(target), out_of,
                                         static_cast<const char *>(source), transfer.bytes)
                                : mover.ops->copy(mover.memory, target, source, transfer.bytes);
    if (code >= 0) return {};
    return Status::error(code,
                         "Copying block %u (%" PRIu64 " bytes) from memory '%s' to '%s' "
                         "failed: %s.",
                         transfer.block, transfer.bytes, out_of.name.c_str(), into.name.c_str(),
                         status_text(code));
}

}  // namespace stepwell::transfer
