// SPDX-License-Identifier: Apache-2.0
// Which blocks of the host tier are registered with the drivers, for threads that copy: they look
// without a lock. Only the owner of the registrations writes, one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace stepwell::memory {

class RegisteredBlocks {
public:
    RegisteredBlocks(const char *base, uint64_t block_bytes, uint32_t blocks)
        : base_(base),
          block_bytes_(block_bytes),
          blocks_(blocks),
          drivers_of_(std::make_unique<std::atomic<int>[]>(blocks)),
          begins_(std::make_unique<std::atomic<int>[]>(blocks)),
          numbers_(std::make_unique<std::atomic<uint32_t>[]>(blocks))
    {
    }

    // Before any other thread looks.
    void set_drivers(int drivers) { drivers_ = drivers; }

    // A driver has registered the blocks in one piece (1), or no longer has (-1).
    void note(uint32_t first, uint32_t count, int change);
    // With the first driver: the number of the blocks' registration; 0: none.
    void set_number(uint32_t first, uint32_t count, uint32_t number);

    // This block is registered, with all drivers.
    [[nodiscard]] bool is_registered(const void *pointer) const;
    // And so is the block before it, at once with it.
    [[nodiscard]] bool is_joined(const void *pointer) const;
    // The blocks lie in one registration of the first driver, or in none.
    [[nodiscard]] bool are_joined(uint32_t first, uint32_t count) const;

private:
    [[nodiscard]] uint64_t block_of(const void *pointer) const;
    [[nodiscard]] bool is_registered(uint64_t block) const;

    const char *const base_;
    const uint64_t block_bytes_;
    const uint32_t blocks_;
    int drivers_ = 0;
    // By block: with how many drivers. Fewer only under the locks of copies.
    std::unique_ptr<std::atomic<int>[]> drivers_of_;
    // By block: how many of the ranges that are registered begin there.
    std::unique_ptr<std::atomic<int>[]> begins_;
    std::unique_ptr<std::atomic<uint32_t>[]> numbers_;
};

}  // namespace stepwell::memory
