// SPDX-License-Identifier: Apache-2.0
#include "lib/memory/address_alias.h"

#include "lib/memory/driver_reason.h"

#include <new>
#include <vector>

namespace stepwell::memory {

using residency::Slot;

AddressAlias::AddressAlias(const stw_memory_ops *ops, stw_memory *memory, DeviceStreams *streams,
                           const SlotMemory *slots, uint64_t block_bytes, bool as_runs,
                           AliasTotals *totals)
    : ops_(ops),
      memory_(memory),
      streams_(streams),
      slots_(slots),
      block_bytes_(block_bytes),
      as_runs_(as_runs),
      totals_(totals)
{
}

AddressAlias::~AddressAlias()
{
    if (address_ == nullptr) return;
    ops_->release_alias(memory_, address_, blocks_ * block_bytes_, end_.numbers.data(), end_.count);
}

// A lost device gives no marks, and runs nothing that would need them.
void AddressAlias::end()
{
    end_.count = 0;
    (void)streams_->marks_of(users_, &end_);
}

stw_status AddressAlias::reserve(uint32_t blocks)
{
    mapped_ = std::make_unique<std::atomic<uint64_t>[]>(blocks);
    void *address = nullptr;
    const stw_status code = ops_->reserve_alias(memory_, blocks * block_bytes_, &address);
    if (code < 0) return code;
    blocks_ = blocks;
    address_ = static_cast<char *>(address);
    return STW_OK;
}

uint64_t AddressAlias::word_of(Slot slot) const
{
    const uint64_t gone = slots_ ? slots_->times_gone(slot) : 0;
    return gone << 32 | (uint64_t{slot} + 1);
}

bool AddressAlias::is_mapped_to(uint32_t index, SlotRange slots) const
{
    for (uint32_t i = 0; i < slots.count; ++i)
        if (mapped_[index + i].load(std::memory_order_acquire) != word_of(slots.first + i))
            return false;
    return true;
}

// The driver unmaps other runs when it maps the run that has the pack's block 0 at slot `zero`.
void AddressAlias::forget_other_runs(Slot zero)
{
    for (uint32_t block = 0; block < blocks_; ++block)
        if (mapped_[block].load(std::memory_order_relaxed) != word_of(zero + block))
            mapped_[block].store(0, std::memory_order_release);
}

Status AddressAlias::map(uint32_t index, SlotRange slots)
try {
    MutexLock lock(mutex_);
    if (is_mapped_to(index, slots)) return {};
    DeviceStreams::MarkList marks;
    STW_TRY(streams_->marks_of(users_, &marks));
    // Read before the call: memory that is decommitted during it counts as not mapped.
    std::vector<uint64_t> words(slots.count);
    for (uint32_t i = 0; i < slots.count; ++i) words[i] = word_of(slots.first + i);
    if (as_runs_) forget_other_runs(slots.first - index);
    const uint64_t begin_ns = wait_clock_ns();
    const stw_status code =
        ops_->map_alias(memory_, slots.first, slots.count, address_ + index * block_bytes_,
                        marks.numbers.data(), marks.count);
    totals_->ns += wait_clock_ns() - begin_ns;
    if (code >= 0) totals_->bytes += slots.count * block_bytes_;
    for (uint32_t i = 0; i < slots.count; ++i) {
        if (code < 0 && is_mapped_to(index + i, {slots.first + i, 1})) continue;
        mapped_[index + i].store(code < 0 ? 0 : words[i], std::memory_order_release);
    }
    if (code >= 0) return {};
    return Status::error(code, "its blocks cannot be mapped at its address: %s",
                         driver_reason(ops_, memory_, code).c_str());
} catch (const std::bad_alloc &) {
    return Status::error(STW_ERROR_MEMORY, "no memory to map its blocks at its address");
}

}  // namespace stepwell::memory
