// SPDX-License-Identifier: Apache-2.0
#include "tests/torch_double/memory.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace stepwell::torch_double {
namespace {

constexpr size_t kSmallBytes = size_t{1} << 20;

// Sizes repeat, so that what is freed finds a next owner.
size_t rounded(size_t bytes)
{
    const size_t unit = bytes <= kSmallBytes ? 512 : 2 * kSmallBytes;
    return (bytes + unit - 1) / unit * unit;
}

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

Block *Pool::take(size_t bytes, c10::StreamId stream)
{
    sweep();
    std::vector<Block *> &fitting = free_[{stream, bytes}];
    if (fitting.empty()) return nullptr;
    Block *block = fitting.back();
    fitting.pop_back();
    used_[block->address] = block;
    return block;
}

void Pool::put_free(Block *block)
{
    free_[{block->stream, block->bytes}].push_back(block);
    if (!of_device_) return;
    freed_[block->stream].push_back(
        {reinterpret_cast<Address>(block->address), block->bytes, 1, 0});
}

void Pool::give(Block *block)
{
    used_.erase(block->address);
    for (const c10::StreamId user : block->users) block->marks.emplace_back(user);
    if (block->users.empty())
        put_free(block);
    else
        waiting_.push_back(block);
    block->users.clear();
}

void Pool::use(void *address, c10::StreamId stream)
{
    const auto found = used_.find(address);
    if (found != used_.end()) found->second->users.insert(stream);
}

void Pool::sweep()
{
    waiting_.remove_if([this](Block *block) {
        block->marks.remove_if([](const Mark &mark) { return mark.is_over(); });
        if (!block->marks.empty()) return false;
        put_free(block);
        return true;
    });
}

std::vector<Block *> Pool::drop()
{
    sweep();
    std::vector<Block *> all;
    for (auto &[key, blocks] : free_) all.insert(all.end(), blocks.begin(), blocks.end());
    free_.clear();
    freed_.clear();
    return all;
}

std::vector<stw_double_range> Pool::take_freed(c10::StreamId stream)
{
    return std::exchange(freed_[stream], {});
}

DeviceMemory &DeviceMemory::get()
{
    static auto *one = new DeviceMemory;  // tensors outlive what is destroyed when a process ends
    return *one;
}

c10::DataPtr DeviceMemory::allocate(size_t asked)
{
    enter();
    if (asked == 0) return {nullptr, kDevice};
    const size_t bytes = rounded(asked);
    const std::lock_guard<std::mutex> lock(mutex_);
    Block *block = pool_.take(bytes, current_stream());
    if (block == nullptr) {
        block = new Block{make(bytes), bytes, current_stream(), {}, {}};
        pool_.put_new(block);
    }
    const std::vector<stw_double_range> freed = pool_.take_freed(current_stream());
    if (!freed.empty())
        check(stw_double_touch(current_handle(), "memory that is given out again", freed.data(),
                               static_cast<uint32_t>(freed.size())),
              "stw_double_touch");
    stats_.allocation[kAll].increase(1);
    stats_.allocated_bytes[kAll].increase(bytes);
    stats_.active_bytes[kAll].increase(bytes);
    stats_.requested_bytes[kAll].increase(bytes);
    return {block->address, block, &DeviceMemory::give, kDevice};
}

void *DeviceMemory::make(size_t bytes)
{
    Address address = 0;
    if (ask(cuMemAlloc_v2, &address, bytes) != kSuccess) {
        ++stats_.num_alloc_retries;
        STW_LATE_CALL(cuCtxSynchronize);
        drop();
        if (ask(cuMemAlloc_v2, &address, bytes) != kSuccess) ++stats_.num_ooms;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, address != 0, "late: out of memory. Tried to allocate ",
                     bytes, " bytes beside ", stats_.allocated_bytes[kAll].current,
                     " bytes that are allocated.");
    stats_.segment[kAll].increase(1);
    stats_.reserved_bytes[kAll].increase(bytes);
    return reinterpret_cast<void *>(address);
}

void DeviceMemory::drop()
{
    for (Block *block : pool_.drop()) {
        STW_LATE_CALL(cuMemFree_v2, reinterpret_cast<Address>(block->address));
        stats_.segment[kAll].decrease(1);
        stats_.reserved_bytes[kAll].decrease(block->bytes);
        delete block;
    }
}

void DeviceMemory::give(void *given)
{
    if (is_forked()) return;
    auto *block = static_cast<Block *>(given);
    DeviceMemory &self = get();
    const std::lock_guard<std::mutex> lock(self.mutex_);
    self.stats_.allocation[kAll].decrease(1);
    self.stats_.allocated_bytes[kAll].decrease(block->bytes);
    self.stats_.active_bytes[kAll].decrease(block->bytes);
    self.stats_.requested_bytes[kAll].decrease(block->bytes);
    self.pool_.give(block);
}

void DeviceMemory::copy_data(void *to, const void *from, size_t bytes) const
{
    STW_LATE_CALL(cuMemcpyDtoDAsync_v2, reinterpret_cast<Address>(to),
                  reinterpret_cast<Address>(from), bytes, current_handle());
}

void DeviceMemory::emptyCache(c10::MempoolId_t)
{
    STW_LATE_CALL(cuCtxSynchronize);
    const std::lock_guard<std::mutex> lock(mutex_);
    drop();
}

void DeviceMemory::recordStream(const c10::DataPtr &data, c10::Stream stream)
{
    if (data.get_deleter() != &DeviceMemory::give) return;  // memory of others
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto *block = static_cast<const Block *>(data.get_context());
    if (block->stream != stream.id()) pool_.use(block->address, stream.id());
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex)
{
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex)
{
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto *stats : {&stats_.allocation, &stats_.segment, &stats_.allocated_bytes,
                        &stats_.reserved_bytes, &stats_.active_bytes, &stats_.requested_bytes})
        (*stats)[kAll].reset_accumulated();
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex)
{
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto *stats : {&stats_.allocation, &stats_.segment, &stats_.allocated_bytes,
                        &stats_.reserved_bytes, &stats_.active_bytes, &stats_.requested_bytes})
        (*stats)[kAll].reset_peak();
}

std::pair<size_t, size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex)
{
    size_t free = 0, total = 0;
    STW_LATE_CALL(cuMemGetInfo_v2, &free, &total);
    return {free, total};
}

PinnedMemory &PinnedMemory::get()
{
    static auto *one = new PinnedMemory;
    return *one;
}

bool PinnedMemory::holds(const void *address)
{
    if (is_forked()) return false;
    unsigned type = 0;
    return ask(cuPointerGetAttribute, static_cast<void *>(&type), int{kPointerMemoryType},
               reinterpret_cast<Address>(address)) == kSuccess &&
           type == kMemoryTypeHost;
}

c10::DataPtr PinnedMemory::allocate(size_t asked)
{
    enter();
    if (asked == 0) return {nullptr, c10::DeviceType::CPU};
    const size_t bytes = std::bit_ceil(std::max<size_t>(asked, 512));
    const std::lock_guard<std::mutex> lock(mutex_);
    Block *block = pool_.take(bytes, 0);
    if (block == nullptr) {
        block = new Block{nullptr, bytes, 0, {}, {}};
        STW_LATE_CALL(cuMemHostAlloc, &block->address, bytes, 0U);
        pool_.put_new(block);
    }
    return {block->address, block, &PinnedMemory::give, c10::DeviceType::CPU};
}

void PinnedMemory::copy_data(void *to, const void *from, size_t bytes) const
{
    default_copy_data(to, from, bytes);
}

void PinnedMemory::give(void *given)
{
    if (is_forked()) return;
    PinnedMemory &self = get();
    const std::lock_guard<std::mutex> lock(self.mutex_);
    self.pool_.give(static_cast<Block *>(given));
}

void PinnedMemory::use(const c10::DataPtr &data)
{
    if (data.get_deleter() != &PinnedMemory::give) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    pool_.use(static_cast<const Block *>(data.get_context())->address, current_stream());
}

}  // namespace stepwell::torch_double
