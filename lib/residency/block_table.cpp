// SPDX-License-Identifier: Apache-2.0
// Blocks by number, and what their replicas say together.
#include "lib/residency/block_table.h"
#include "lib/support/growth.h"

#include <new>

namespace stepwell::residency {

// Makes room for so many more in a row, so that nothing can fail once they are taken.
void BlockTable::prepare(uint32_t blocks)
{
    if (free_.has(blocks)) return;
    const size_t first = blocks_.size();
    grow_to_hold(blocks_, first + blocks);
    grow_to_hold(replicas_, (first + blocks) * width_);
    free_.give(static_cast<BlockId>(first), blocks);
    blocks_.resize(first + blocks);
    replicas_.resize((first + blocks) * width_);
}

BlockId BlockTable::take(PackId pack, uint32_t blocks)
{
    const BlockId first = free_.take(blocks);
    for (uint32_t i = 0; i < blocks; ++i) {
        Block &block = blocks_[first + i];
        const uint32_t epoch = block.epoch + 1;
        block = Block{};
        block.pack = pack;
        block.index = i;
        block.epoch = epoch;
        for (PlaceId place = 0; place < width_; ++place) {
            replica(first + i, place).last_slot = kNoSlot;  // of an address that is no more
        }
    }
    return first;
}

void BlockTable::give(BlockId first, uint32_t blocks)
{
    try {
        free_.give(first, blocks);
    } catch (const std::bad_alloc &) {
        // The numbers are not used again; everything else is.
    }
}

bool BlockTable::is_used_elsewhere(BlockId block, PlaceId place) const
{
    for (PlaceId other = 0; other < width_; ++other) {
        if (other != place && replica(block, other).marks > 0) return true;
    }
    return false;
}

// The newest bytes are at some place that the fetch has not tried, even if they cannot be read from
// there at the moment.
bool BlockTable::bytes_exist(BlockId block, uint32_t tried) const
{
    for (PlaceId from = 0; from < width_; ++from) {
        if ((tried & (1u << from)) == 0 && replica(block, from).valid) return true;
    }
    return false;
}

BlockState BlockTable::block_state(BlockId block, PlaceId place) const
{
    const Replica &here = replica(block, place);
    if (here.slot == kNoSlot) return BlockState::kAbsent;
    if (here.filling) return BlockState::kFilling;
    if (here.evicting) return BlockState::kDraining;
    if (!here.valid) return BlockState::kStale;
    for (PlaceId other = static_cast<PlaceId>(place + 1); other < width_; ++other) {
        if (replica(block, other).valid) return BlockState::kValid;
    }
    return places_.is_nvme(place) ? BlockState::kValid : BlockState::kDirty;
}

uint64_t BlockTable::metadata_bytes() const
{
    return blocks_.capacity() * sizeof(Block) + replicas_.capacity() * sizeof(Replica);
}

uint64_t BlockTable::metadata_growth(uint64_t blocks) const
{
    if (free_.has(static_cast<uint32_t>(blocks))) return 0;
    return growth_bytes(blocks_, blocks_.size() + blocks) +
           growth_bytes(replicas_, (blocks_.size() + blocks) * width_);
}

uint64_t BlockTable::metadata_bytes_max(uint64_t blocks) const
{
    return grown_capacity(blocks, blocks + 1) * sizeof(Block) +
           grown_capacity(blocks * width_, blocks * width_ + 1) * sizeof(Replica);
}

}  // namespace stepwell::residency
