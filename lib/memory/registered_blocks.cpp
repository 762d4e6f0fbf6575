// SPDX-License-Identifier: Apache-2.0
#include "lib/memory/registered_blocks.h"

namespace stepwell::memory {

void RegisteredBlocks::note(uint32_t first, uint32_t count, int change)
{
    begins_[first].fetch_add(change, std::memory_order_relaxed);
    for (uint32_t block = first; block < first + count; ++block)
        drivers_of_[block].fetch_add(change, std::memory_order_release);
}

void RegisteredBlocks::set_number(uint32_t first, uint32_t count, uint32_t number)
{
    for (uint32_t block = first; block < first + count; ++block)
        numbers_[block].store(number, std::memory_order_relaxed);
}

uint64_t RegisteredBlocks::block_of(const void *pointer) const
{
    return static_cast<uint64_t>(static_cast<const char *>(pointer) - base_) / block_bytes_;
}

bool RegisteredBlocks::is_registered(uint64_t block) const
{
    return block < blocks_ && drivers_of_[block].load(std::memory_order_acquire) == drivers_;
}

bool RegisteredBlocks::is_registered(const void *pointer) const
{
    return is_registered(block_of(pointer));
}

// The beginning of a range is written before the range counts as registered.
bool RegisteredBlocks::is_joined(const void *pointer) const
{
    const uint64_t block = block_of(pointer);
    return block > 0 && is_registered(block) && is_registered(block - 1) &&
           begins_[block].load(std::memory_order_relaxed) == 0;
}

bool RegisteredBlocks::are_joined(uint32_t first, uint32_t count) const
{
    const uint32_t number = numbers_[first].load(std::memory_order_relaxed);
    for (uint32_t block = first + 1; block < first + count; ++block)
        if (numbers_[block].load(std::memory_order_relaxed) != number) return false;
    return true;
}

}  // namespace stepwell::memory
