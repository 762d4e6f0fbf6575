// SPDX-License-Identifier: Apache-2.0
// A thread block run by the processor: one thread after another, from barrier to barrier. Thread
// blocks and threads run last first, since nothing may depend on their order, and shared memory is
// full of rubbish at first, since nothing may depend on that either.
#pragma once

#include <cstdint>
#include <cstring>

namespace stepwell::drivers::cuda {

class HostBlock {
public:
    HostBlock(uint32_t index, uint32_t count, uint32_t threads)
        : index_(index), count_(count), threads_(threads)
    {
    }
    [[nodiscard]] uint32_t index() const { return index_; }
    [[nodiscard]] uint32_t count() const { return count_; }
    [[nodiscard]] uint32_t threads() const { return threads_; }
    template <class Body> void each_thread(const Body &body) const
    {
        for (uint32_t thread = threads_; thread-- > 0;) body(thread);
    }
    void barrier() const {}
    template <class T> T &shared()
    {
        static_assert(sizeof(T) <= sizeof(memory_));
        if (!used_) std::memset(memory_, 0xFF, sizeof(T));
        used_ = true;
        return *reinterpret_cast<T *>(memory_);
    }

private:
    uint32_t index_;
    uint32_t count_;
    uint32_t threads_;
    bool used_ = false;  // a kernel has one struct of it
    alignas(16) unsigned char memory_[24576];
};

template <class Body> void run_grid(uint32_t blocks, uint32_t threads, const Body &body)
{
    for (uint32_t index = blocks; index-- > 0;) {
        HostBlock block(index, blocks, threads);
        body(block);
    }
}

}  // namespace stepwell::drivers::cuda
