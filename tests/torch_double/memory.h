// SPDX-License-Identifier: Apache-2.0
// Memory of the device and pinned memory of the host, as PyTorch's allocators for CUDA give them
// out: what is freed is at once the next allocation's on the same stream, whoever still reads it on
// another one. Blocks are not split, so one of another size would be spared by luck; therefore all
// that was freed on a stream counts as written by its next allocation, and the double names who was
// not ordered before that.
#pragma once

#include "tests/torch_double/device.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace stepwell::torch_double {

struct Block {
    void *address = nullptr;
    size_t bytes = 0;
    c10::StreamId stream = 0;       // that it was made for; of pinned memory 0
    std::set<c10::StreamId> users;  // other streams, which it waits for when it is freed
    std::list<Mark> marks;          // of these, once it is freed
};

// Blocks by size and stream. Under the lock of its owner.
class Pool {
public:
    explicit Pool(bool of_device) : of_device_(of_device) {}
    // nullptr: there is none of that size.
    Block *take(size_t bytes, c10::StreamId stream);
    void put_new(Block *block) { used_[block->address] = block; }
    void give(Block *block);
    void use(void *address, c10::StreamId stream);
    // The blocks that nothing uses any more, for the caller to free.
    std::vector<Block *> drop();
    // What became free on the stream since the last call; of a device alone.
    std::vector<stw_double_range> take_freed(c10::StreamId stream);

private:
    void sweep();
    void put_free(Block *block);

    const bool of_device_;
    std::map<std::pair<c10::StreamId, size_t>, std::vector<Block *>> free_;
    std::unordered_map<void *, Block *> used_;
    std::map<c10::StreamId, std::vector<stw_double_range>> freed_;
    std::list<Block *> waiting_;  // freed, and its users have not come so far
};

class DeviceMemory final : public c10::DeviceAllocator {
public:
    static DeviceMemory &get();

    c10::DataPtr allocate(size_t bytes) override;
    void copy_data(void *to, const void *from, size_t bytes) const override;
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
    void recordStream(const c10::DataPtr &data, c10::Stream stream) override;
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
    void resetAccumulatedStats(c10::DeviceIndex device) override;
    void resetPeakStats(c10::DeviceIndex device) override;
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

private:
    static void give(void *block);
    void *make(size_t bytes);
    void drop();

    std::mutex mutex_;
    Pool pool_{true};
    c10::CachingDeviceAllocator::DeviceStats stats_;
};

class PinnedMemory final : public c10::Allocator {
public:
    static PinnedMemory &get();
    static bool holds(const void *address);

    c10::DataPtr allocate(size_t bytes) override;
    void copy_data(void *to, const void *from, size_t bytes) const override;
    // A copy on the current stream uses it: it is not given out again before that is over.
    void use(const c10::DataPtr &data);

private:
    static void give(void *block);

    std::mutex mutex_;
    Pool pool_{false};
};

}  // namespace stepwell::torch_double
