// SPDX-License-Identifier: Apache-2.0
#include "lib/transfer/hops.h"

#include <utility>

namespace stepwell::transfer {

using residency::Tier;
using residency::TransferKind;

Link Hops::storage_link(const Task &task) const
{
    const Job &job = task.job;
    const bool reads = is_read(task);
    const Memory &memory = options_.memories[reads ? job.to_memory : job.from_memory];
    if (memory.tier == Tier::kDevice && memory.storage_reaches()) {
        return reads ? Link::kNvmeToDevice : Link::kDeviceToNvme;
    }
    return reads ? Link::kNvmeToHost : Link::kHostToNvme;
}

Link Hops::copy_link(const Task &task) const
{
    if (task.route == Route::kReadStaged) return Link::kHostToDevice;
    if (task.route == Route::kWriteStaged) return Link::kDeviceToHost;
    if (task.job.transfer.kind != TransferKind::kMove) return Link::kNone;
    const Tier from = options_.memories[task.job.from_memory].tier;
    const Tier to = options_.memories[task.job.to_memory].tier;
    if (from == to) return Link::kNone;
    return to == Tier::kDevice ? Link::kHostToDevice : Link::kDeviceToHost;
}

uint32_t Hops::memory_of(const Task &task, Link link) const
{
    const Job &job = task.job;
    switch (link) {
    case Link::kNvmeToHost:
        return task.route == Route::kRead ? job.to_memory : options_.host_memory();
    case Link::kHostToNvme:
        return task.route == Route::kWrite ? job.from_memory : options_.host_memory();
    case Link::kNvmeToDevice:
    case Link::kHostToDevice: return job.to_memory;
    case Link::kDeviceToNvme:
    case Link::kDeviceToHost: return job.from_memory;
    case Link::kNone: break;
    }
    return job.to_memory;
}

void Hops::begin(Task &task, Link link)
{
    task.hop_start_ns = options_.now();
    task.hop_range = observe::nvtx_begin(observe::NvtxKind::kTransfer, task.job.transfer.bytes);
    links_.begin(link, memory_of(task, link), task.hop_start_ns);
}

void Hops::end(Task &task, Link link, bool moved)
{
    const uint64_t end_ns = options_.now();
    observe::nvtx_end(std::exchange(task.hop_range, observe::kNoRange));
    const uint32_t memory = memory_of(task, link);
    links_.end(link, memory, task.job.transfer.bytes, moved, end_ns);
    if (options_.span == nullptr) return;
    Span span;
    span.start_ns = task.hop_start_ns;
    span.end_ns = end_ns;
    span.link = link;
    span.memory = memory;
    span.block = task.job.transfer.block;
    span.tensor = task.job.transfer.tensor;
    span.bytes = task.job.transfer.bytes;
    span.urgency = task.job.transfer.urgency;
    options_.span(options_.span_user, span);
}

void Hops::retried(const Task &task)
{
    const Link link = storage_link(task);
    links_.retried(link, memory_of(task, link));
}

}  // namespace stepwell::transfer
