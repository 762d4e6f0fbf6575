// SPDX-License-Identifier: Apache-2.0
// The move of one block. Its pages move from one address to another; the old address stays mapped
// without access, so that no mmap of another thread can use it.
#include "drivers/cpu/block_map.h"

#include <algorithm>
#include <cerrno>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4  // Linux 5.7
#endif

namespace stepwell::drivers {

BlockMap::BlockMap(const Mapping &arena, Mapping addresses, uint32_t block_bytes,
                   std::atomic<uint64_t> *moved_bytes)
    : arena_base_(arena.base()),
      blocks_(arena.bytes() / block_bytes),
      block_bytes_(block_bytes),
      moved_bytes_(moved_bytes),
      addresses_(std::move(addresses)),
      space_(addresses_.bytes()),
      where_(blocks_, nullptr),
      read_only_(blocks_, false)
{
    const uint64_t places = addresses_.bytes() / block_bytes;
    if (places > 0)
        occupants_.reset(static_cast<uint32_t *>(std::calloc(places, sizeof(uint32_t))));
}

// In the arena each block may differ from its neighbours, present or moved. At tensors' addresses
// each block has its own mapping (its pages keep their old offsets, so neighbours do not merge) and
// at most one gap after it.
uint64_t BlockMap::mappings_max(uint64_t blocks, uint64_t address_blocks)
{
    return blocks + std::min(address_blocks, 2 * blocks + 1);
}

// Access is removed first: a thread that still uses the old address faults, instead of reading
// zeros from new pages or losing writes to them.
stw_status BlockMap::move(char *from, char *to, int protection) const
{
    if (mprotect(from, block_bytes_, PROT_NONE) != 0) return STW_ERROR_LIMIT;
    if (mremap(from, block_bytes_, block_bytes_, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
               to) == MAP_FAILED) {
        const bool limit = errno == ENOMEM;
        mprotect(from, block_bytes_, PROT_READ | PROT_WRITE);
        return limit ? STW_ERROR_LIMIT : STW_ERROR_UNSUPPORTED;
    }
    if (mprotect(to, block_bytes_, protection) == 0) return STW_OK;
    // The last mapping exceeded the limit: the block is moved back, so that the table stays
    // correct.
    mremap(to, block_bytes_, block_bytes_, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, from);
    mprotect(from, block_bytes_, PROT_READ | PROT_WRITE);
    return STW_ERROR_LIMIT;
}

stw_status BlockMap::send_home(uint32_t block)
{
    char *from = where_[block];
    if (from == nullptr) return STW_OK;
    if (const stw_status status = move(from, home_of(block), PROT_READ | PROT_WRITE)) return status;
    where_[block] = nullptr;
    read_only_[block] = false;
    occupants_[place_of(from)] = 0;
    *moved_bytes_ -= block_bytes_;
    // The mapping left by the move merges with no neighbour; a new reservation does, which reduces
    // the number of mappings again. A failure costs one mapping.
    [[maybe_unused]] void *same =
        mmap(from, block_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
    return STW_OK;
}

bool BlockMap::offset_of(const void *address, uint64_t *offset_out) const
{
    const uint64_t base = reinterpret_cast<uintptr_t>(addresses_.base());
    const uint64_t asked = reinterpret_cast<uintptr_t>(address);
    *offset_out = asked - base;
    return asked >= base && *offset_out < addresses_.bytes() && *offset_out % block_bytes_ == 0;
}

stw_status BlockMap::reserve_address(uint64_t bytes, void **address_out)
{
    if (bytes == 0 || address_out == nullptr) return STW_ERROR_INVALID;
    if (bytes > addresses_.bytes()) return STW_ERROR_LIMIT;
    const uint64_t whole = (bytes + block_bytes_ - 1) / block_bytes_ * block_bytes_;
    MutexLock lock(mutex_);
    const auto offset = space_.reserve(whole);
    if (!offset) return STW_ERROR_LIMIT;
    *address_out = addresses_.base() + *offset;
    return STW_OK;
}

stw_status BlockMap::release_address(void *address, uint64_t bytes)
{
    uint64_t offset = 0;
    if (bytes == 0 || bytes > addresses_.bytes() || !offset_of(address, &offset))
        return STW_ERROR_INVALID;
    const uint64_t whole = (bytes + block_bytes_ - 1) / block_bytes_ * block_bytes_;
    MutexLock lock(mutex_);
    if (!space_.has(offset, whole)) return STW_ERROR_INVALID;
    const uint64_t first = offset / block_bytes_;
    for (uint64_t place = first; place < first + whole / block_bytes_; ++place) {
        if (occupants_[place] == 0) continue;
        if (const stw_status status = send_home(occupants_[place] - 1)) return status;
    }
    space_.release(offset, whole);
    return STW_OK;
}

stw_status BlockMap::map(uint32_t block, void *address, bool writable)
{
    uint64_t offset = 0;
    if (block >= blocks_ || !offset_of(address, &offset)) return STW_ERROR_INVALID;
    char *to = static_cast<char *>(address);
    MutexLock lock(mutex_);
    if (!space_.is_reserved(offset, block_bytes_)) return STW_ERROR_INVALID;
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    if (where_[block] == to) {
        // The block is a mapping already, so no limit applies.
        if (read_only_[block] == writable && mprotect(to, block_bytes_, protection) != 0)
            return STW_ERROR_LIMIT;
        read_only_[block] = !writable;
        return STW_OK;
    }
    const uint32_t occupant = occupants_[place_of(to)];
    if (occupant != 0)
        if (const stw_status status = send_home(occupant - 1)) return status;
    // Moved through its home if it is at another address: the arena never loses a mapping.
    if (const stw_status status = send_home(block)) return status;
    if (const stw_status status = move(home_of(block), to, protection)) return status;
    where_[block] = to;
    read_only_[block] = !writable;
    occupants_[place_of(to)] = block + 1;
    *moved_bytes_ += block_bytes_;
    return STW_OK;
}

stw_status BlockMap::home(uint32_t block)
{
    if (block >= blocks_) return STW_ERROR_INVALID;
    MutexLock lock(mutex_);
    return send_home(block);
}

}  // namespace stepwell::drivers
