// SPDX-License-Identifier: Apache-2.0
// Link counters.
#include "lib/transfer/links.h"

namespace stepwell::transfer {

namespace {

bool counted(Link link, uint32_t memory)
{
    return link != Link::kNone && static_cast<uint32_t>(link) < kLinks && memory < kMemoriesMax;
}

}  // namespace

void Links::begin(Link link, uint32_t memory, uint64_t now_ns)
{
    if (!counted(link, memory)) return;
    MutexLock lock(mutex_);
    entries_[static_cast<uint32_t>(link)][memory].meter.begin(now_ns);
}

void Links::end(Link link, uint32_t memory, uint64_t bytes, bool moved, uint64_t now_ns)
{
    if (!counted(link, memory)) return;
    MutexLock lock(mutex_);
    Entry &entry = entries_[static_cast<uint32_t>(link)][memory];
    entry.meter.end(moved ? bytes : 0, now_ns);
    ++(moved ? entry.transfers : entry.errors);
}

void Links::expect(Link link, uint32_t memory, uint64_t bytes_per_s)
{
    if (!counted(link, memory)) return;
    MutexLock lock(mutex_);
    entries_[static_cast<uint32_t>(link)][memory].meter.expect(bytes_per_s);
}

void Links::retried(Link link, uint32_t memory)
{
    if (!counted(link, memory)) return;
    MutexLock lock(mutex_);
    ++entries_[static_cast<uint32_t>(link)][memory].retries;
}

LinkStats Links::stats(Link link, uint32_t memory, uint64_t now_ns) const
{
    if (!counted(link, memory)) return {};
    MutexLock lock(mutex_);
    const Entry &entry = entries_[static_cast<uint32_t>(link)][memory];
    return {entry.meter.bytes(),       entry.transfers, entry.meter.busy_ns(now_ns),
            entry.meter.bytes_per_s(), entry.errors,    entry.retries};
}

}  // namespace stepwell::transfer
