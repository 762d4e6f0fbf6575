// SPDX-License-Identifier: Apache-2.0
// Ranges of addresses and the memory of an arena: reserved, asked to be huge, populated at open or
// as it is used. The driver decides where each block is.
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

// Sole owner of a range of addresses and of all mappings in it.
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

// The alignment of a driver's memory: blocks and huge pages start at multiples of their sizes.
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

// The arena of a driver of host memory, and what the driver reports of it.
struct ArenaMemory {
    ArenaMemory() = default;
    ArenaMemory(const ArenaMemory &) = delete;
    ArenaMemory &operator=(const ArenaMemory &) = delete;
    ~ArenaMemory();

    Arena arena;
    uint32_t block_bytes = 0;
    int32_t numa_node = -1;
    bool locked = false;
    bool populates = true;                 // at open; else pages are allocated as they are used
    std::atomic<uint64_t> moved_bytes{0};  // of blocks that are outside the arena

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

    // A list of arenas whose pages are allocated as they are used, under one mutex.
    ArenaMemory *next_ = nullptr;
    std::vector<bool> given_back_;  // by block
    uint64_t given_bytes_ = 0;
};

// Bytes that the arenas of this process have reserved and not touched. MemAvailable and the cgroup
// count them as free, which they are not.
uint64_t owed_bytes();

void add_sentence(std::string *text, const std::string &sentence);

}  // namespace stepwell::drivers
