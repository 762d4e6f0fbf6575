// SPDX-License-Identifier: Apache-2.0
#include "lib/transfer/block_copier.h"

#include "lib/memory/driver_reason.h"

#include <algorithm>
#include <array>
#include <cinttypes>

namespace stepwell::transfer {

using residency::TransferKind;

namespace {

constexpr uint64_t kBounceBytes = 64 * 1024;  // on the copying thread's stack

// Copies between two memories that the CPU cannot access and whose drivers do not know each other.
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

BlockCopier::Sides BlockCopier::sides_of(const Task &task) const
{
    const Job &job = task.job;
    if (task.route == Route::kReadStaged) return {job.to_memory, job.to_pointer, task.data, true};
    if (task.route == Route::kWriteStaged) {
        return {job.from_memory, task.data, job.from_pointer, false};
    }
    const bool into = !options_.memories[job.to_memory].cpu_access;
    return {into ? job.to_memory : job.from_memory, job.to_pointer, job.from_pointer, into};
}

// Between host memory and a device with streams.
bool BlockCopier::may_start(const Task &task) const
{
    const Job &job = task.job;
    if (!task.status.ok()) return false;  // refused before it had a route
    if (job.transfer.kind != TransferKind::kMove || options_.order == nullptr) return false;
    if (task.route == Route::kCopy && !options_.memories[job.to_memory].cpu_access &&
        !options_.memories[job.from_memory].cpu_access) {
        return false;
    }
    return options_.memories[sides_of(task).device].has_streams();
}

// ---------------------------------------------------------------------------- enqueued copies --

void BlockCopier::set_waiting_apart(Batch &batch, Batch &rest) const
{
    rest.clear();
    if (batch.size() == 1) return;
    const auto waits = [this](const Task *task) {
        const Sides sides = sides_of(*task);
        return options_.order->waits(sides.device, sides.into ? sides.target : sides.source,
                                     task->job.transfer.bytes, sides.into, sides.into);
    };
    const auto first = std::stable_partition(batch.begin(), batch.end(),
                                             [&](const Task *task) { return !waits(task); });
    if (first == batch.begin()) return;
    rest.assign(first, batch.end());
    batch.erase(first, batch.end());
}

Status BlockCopier::order(const Task &task) const
{
    const Sides sides = sides_of(task);
    return order_copy(sides.device, sides.on_device(), task.job.transfer.bytes, sides.into,
                      sides.into);
}

// Blocks that are adjacent at both ends are one copy.
uint32_t BlockCopier::join(Batch &batch, stw_memory_copy *list, uint32_t *copy_of) const
{
    const bool into = sides_of(*batch.front()).into;
    CopyOrdering &order = *options_.order;
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

// In one call if possible: between the hooks no registration ends.
void BlockCopier::enqueue(Batch &batch) const
{
    const Sides first = sides_of(*batch.front());
    const Memory &memory = options_.memories[first.device];
    CopyOrdering &order = *options_.order;
    std::array<stw_memory_copy, kBatchMax> list{};
    std::array<uint32_t, kBatchMax> copy_of{};
    order.hold(first.device, first.into);
    const uint32_t n = join(batch, list.data(), copy_of.data());
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
        if (codes[at] < 0) batch[i]->status = failed(*batch[i], codes[at]);
    }
}

// What it brings is seen where its tensor is from now on. False: it is not, and the copy is over.
bool BlockCopier::map_started(Task &task, const Sides &sides) const
{
    CopyOrdering &order = *options_.order;
    const Memory &memory = options_.memories[sides.device];
    const uint64_t bytes = task.job.transfer.bytes;
    task.order_number = order.started(sides.device, sides.target, bytes, task.mark);
    task.status = map_alias(task);
    if (task.status.ok()) return true;
    (void)memory.ops->wait(memory.memory, task.mark);
    order.arrived(sides.device, sides.target, bytes, task.order_number);
    return false;
}

// ---------------------------------------------------------------------------- copies at once --

Status BlockCopier::map_block(const Task &task) const
{
    const Job &job = task.job;
    if (job.map_block == kNoMap) return {};
    const Memory &memory = options_.memories[job.to_memory];
    if ((memory.ops->capabilities & STW_MEMORY_CAN_MAP) == 0) {
        return Status::error(STW_ERROR_INTERNAL, "Memory '%s' maps no blocks.",
                             memory.name.c_str());
    }
    const stw_status code = memory.ops->map(memory.memory, job.map_block, job.to_pointer);
    if (code >= 0) return {};
    return Status::error(code, "Mapping block %u of memory '%s' failed: %s.", job.map_block,
                         memory.name.c_str(), memory::status_text(code));
}

Status BlockCopier::map_alias(const Task &task) const
{
    const bool leaves = task.route == Route::kWriteStaged;
    if (task.job.alias == nullptr || leaves || options_.order == nullptr) return {};
    Status status = options_.order->map_alias(task.job);
    if (status.ok()) return status;
    return Status::error(status.code(), "Block %u of memory '%s': %s.", task.job.transfer.block,
                         options_.memories[task.job.to_memory].name.c_str(), status.sentence());
}

Status BlockCopier::copy(const Task &task) const
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
        const Memory &memory = options_.memories[job.to_memory];
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

Status BlockCopier::order_copy(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                               bool into) const
{
    if (options_.order == nullptr || options_.memories[memory].cpu_access) return {};
    return options_.order->before(memory, pointer, bytes, writes, into);
}

// A driver copies inside its memory and between it and host memory, so of two memories the driver
// of the one that the CPU cannot access makes the copy.
Status BlockCopier::move_bytes(const Task &task, uint32_t to, void *target, uint32_t from,
                               const void *source) const
{
    const Memory &into = options_.memories[to];
    const Memory &out_of = options_.memories[from];
    const residency::Transfer &transfer = task.job.transfer;
    const Memory &mover = into.cpu_access ? out_of : into;
    // Of a staged move the other side is a slot of the ring, for which the device's number is
    // passed too. Between two memories that the CPU cannot access each driver orders its own side;
    // a copy inside one memory counts as a copy into it.
    const bool inside = to == from && task.route == Route::kCopy;
    if (task.route != Route::kReadStaged)
        STW_TRY(order_copy(from, source, transfer.bytes, false, inside));
    if (task.route != Route::kWriteStaged)
        STW_TRY(order_copy(to, target, transfer.bytes, true, true));
    const stw_status code = to != from && !into.cpu_access && !out_of.cpu_access
                                ? bounce(into, static_cast<char *>(target), out_of,
                                         static_cast<const char *>(source), transfer.bytes)
                                : mover.ops->copy(mover.memory, target, source, transfer.bytes);
    return code >= 0 ? Status() : failed(task, code);
}

Status BlockCopier::failed(const Task &task, stw_status code) const
{
    const residency::Transfer &transfer = task.job.transfer;
    const bool read = task.route == Route::kReadStaged;
    const bool write = task.route == Route::kWriteStaged;
    const Memory &from = options_.memories[read ? options_.host_memory() : task.job.from_memory];
    const Memory &to = options_.memories[write ? options_.host_memory() : task.job.to_memory];
    const Memory &mover = to.cpu_access ? from : to;
    return Status::error(code,
                         "Copying block %u (%" PRIu64 " bytes) from memory '%s' to '%s' "
                         "failed: %s.",
                         transfer.block, transfer.bytes, from.name.c_str(), to.name.c_str(),
                         memory::driver_reason(mover.ops, mover.memory, code).c_str());
}

}  // namespace stepwell::transfer
