// SPDX-License-Identifier: Apache-2.0
// Where each block of the cpu arena is: at home, or at a tensor's own address. Moves pages between
// the two without copying. Any thread; one lock, held across three short system calls.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/arena.h"
#include "drivers/common/mutex.h"
#include "drivers/cpu/address_space.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace stepwell::drivers {

class BlockMap {
public:
    // `arena` belongs to the caller and outlives this. `addresses` is a range of PROT_NONE.
    // *moved_bytes: bytes of the blocks that are at tensors' addresses.
    BlockMap(const Mapping &arena, Mapping addresses, uint32_t block_bytes,
             std::atomic<uint64_t> *moved_bytes);
    // False: no memory for the table.
    bool valid() const { return occupants_ != nullptr || addresses_.bytes() == 0; }

    stw_status reserve_address(uint64_t bytes, void **address_out);
    stw_status release_address(void *address, uint64_t bytes);
    // Readable, and writable if `writable`; changes the access of a block that is there already.
    stw_status map(uint32_t block, void *address, bool writable);
    stw_status home(uint32_t block);

    // The largest number of mappings of `blocks` blocks in `address_blocks` places.
    static uint64_t mappings_max(uint64_t blocks, uint64_t address_blocks);

private:
    struct FreeTable {
        void operator()(uint32_t *table) const { std::free(table); }
    };
    char *home_of(uint32_t block) const { return arena_base_ + block * uint64_t{block_bytes_}; }
    stw_status move(char *from, char *to, int protection) const;
    stw_status send_home(uint32_t block) STW_REQUIRES(mutex_);
    bool offset_of(const void *address, uint64_t *offset_out) const;
    uint64_t place_of(const char *address) const
    {
        return static_cast<uint64_t>(address - addresses_.base()) / block_bytes_;
    }

    char *arena_base_;
    uint64_t blocks_;
    uint32_t block_bytes_;
    std::atomic<uint64_t> *moved_bytes_;
    Mapping addresses_;
    Mutex mutex_;
    AddressSpace space_ STW_GUARDED_BY(mutex_);
    std::vector<char *> where_ STW_GUARDED_BY(mutex_);    // by block; nullptr: at home
    std::vector<bool> read_only_ STW_GUARDED_BY(mutex_);  // by block, where it is
    // By place in `addresses_`: 1 + the block there, 0: none. From calloc, so that the pages of
    // places never used cost nothing.
    std::unique_ptr<uint32_t[], FreeTable> occupants_;
};

}  // namespace stepwell::drivers
