// SPDX-License-Identifier: Apache-2.0
// Ranges of addresses and the memory of an arena: reserved, asked to be huge, populated at open or
// as it is used. Which block is where is the driver's matter.
#pragma once

#include <stepwell/driver.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>

namespace stepwell::drivers {

constexpr uint64_t kHugePageBytes = 2 << 20;

// The one owner of a range of addresses, and of whatever is mapped in it.
class Mapping {
public:
    Mapping() = default;
    Mapping(Mapping &&other) noexcept
        : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0))
    {
    }
    Mapping &operator=(Mapping &&other) noexcept
    {
        std::swap(base_, other.base_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Mapping()
    {
        if (base_ != nullptr) munmap(base_, bytes_);
    }
    // Anonymous and private, aligned as asked; false with errno set.
    bool map(uint64_t bytes, uint64_t alignment_bytes, int protection, int flags);

    char *base() const { return base_; }
    uint64_t bytes() const { return bytes_; }

private:
    char *base_ = nullptr;
    uint64_t bytes_ = 0;
};

struct Arena {
    Mapping mapping;
    bool huge_pages = false;
    std::string remark;
};

// Of a driver's memory: a block and a huge page both start at their own multiple.
uint64_t arena_alignment(const stw_memory_options &options);
// After an mmap failed, with the numbers of ulimit -v if there is one.
stw_status refuse_addresses(stw_status status, uint64_t bytes, const char *whose,
                            stw_driver_error *error_out);
// Addresses only, and only for memory that the machine has. With `huge` the kernel is asked for
// huge pages.
stw_status reserve_arena(const char *driver, const stw_memory_options &options, bool huge,
                         Arena *arena_out, stw_driver_error *error_out);
// Touches every page, so that no fault and no refusal comes later.
stw_status populate_arena(const char *driver, const Arena &arena, stw_driver_error *error_out);

// What a driver of such memory keeps beside its own, and says of it.
struct ArenaMemory {
    ArenaMemory() = default;
    ArenaMemory(const ArenaMemory &) = delete;
    ArenaMemory &operator=(const ArenaMemory &) = delete;
    ~ArenaMemory();

    Arena arena;
    uint32_t block_bytes = 0;
    int32_t numa_node = -1;
    bool locked = false;
    bool populates = true;                 // at open; else the kernel gives pages as they are used
    std::atomic<uint64_t> moved_bytes{0};  // of blocks that lie outside of the arena

    // At the end of an open: populates, or counts what is not populated as owed.
    stw_status settle(const char *driver, stw_driver_error *error_out);
    void info(stw_memory_info *info_out) const;
    stw_status give_back(uint32_t first_block, uint32_t count);
    stw_status take_back(const char *driver, uint32_t first_block, uint32_t count,
                         stw_driver_error *error_out);

private:
    friend uint64_t owed_bytes();
    bool has(uint32_t first_block, uint32_t count) const;
    void note_given(uint32_t first_block, uint32_t count, bool given);
    uint64_t owed() const;

    // Of those that are populated as they are used. Under one mutex for all of them.
    ArenaMemory *next_ = nullptr;
    std::vector<bool> given_back_;  // by block
    uint64_t given_bytes_ = 0;
};

// What the arenas of this process reserved, and have not touched: MemAvailable and the cgroup count
// it as free, and it is not.
uint64_t owed_bytes();

void add_sentence(std::string *text, const std::string &sentence);

}  // namespace stepwell::drivers
