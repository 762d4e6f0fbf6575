// SPDX-License-Identifier: Apache-2.0
// Packs by number, where tensors lie in them, and what their blocks are worth.
#include "lib/residency/pack_table.h"
#include "lib/support/growth.h"

#include <algorithm>
#include <utility>

namespace stepwell::residency {

uint64_t PackTable::bytes_used(BlockId block) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    const uint64_t begin = blocks_[block].index * places_.block_bytes();
    return std::min(places_.block_bytes(), pack.used_bytes - begin);
}

bool PackTable::awaits_bytes(BlockId block, PlaceId place) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.dead || !is_home(pack, place)) return false;
    for (PlaceId other = 0; other < places_.count(); ++other) {
        const Replica &there = blocks_.replica(block, other);
        if (other != place && (there.valid || there.filling) && !there.doomed) return true;
    }
    return false;
}

// The tensor has no contents and nobody is writing it: the replica holds zeros, or nothing.
bool PackTable::is_worthless(BlockId block) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    if (pack.with_contents > 0 || pack.tensors.size() != 1) return false;
    const Tensor &tensor = tensors_[pack.tensors[0]];
    return !tensor.writer && tensor.claim_users == 0;
}

TensorBlocks PackTable::blocks_of(TensorId id) const
{
    const Tensor &tensor = tensors_[id];
    const Pack &pack = packs_[tensor.pack];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    return {pack.first + range.first, range.second - range.first,
            tensor.offset - range.first * places_.block_bytes(), pack.shared};
}

Grant PackTable::location(TensorId id, PlaceId place) const
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    Grant grant;
    grant.place = place;
    grant.slot = blocks_.replica(packs_[tensor.pack].first + range.first, place).slot;
    grant.slot_offset = tensor.offset - range.first * places_.block_bytes();
    return grant;
}

SlotRun PackTable::run_of(BlockId block, PlaceId place) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    const auto follows = [&](BlockId next, BlockId behind) {
        const Slot slot = blocks_.replica(behind, place).slot;
        return slot != kNoSlot && blocks_.replica(next, place).slot == slot + 1;
    };
    BlockId first = block;
    BlockId last = block;
    while (first > pack.first && follows(first, first - 1)) --first;
    while (last + 1 < pack.first + pack.blocks && follows(last + 1, last)) ++last;
    return {first - pack.first, blocks_.replica(first, place).slot, last - first + 1};
}

PackId PackTable::prepare(uint32_t blocks)
{
    if (free_.empty()) {
        grow_to_hold(free_, packs_.size() + 1);
        packs_.emplace_back();
        free_.push_back(static_cast<PackId>(packs_.size() - 1));
    }
    blocks_.prepare(blocks);
    return free_.back();
}

// Uses what was prepared: nothing here can fail.
PackId PackTable::take(Pack &&pack)
{
    const PackId id = free_.back();
    free_.pop_back();
    pack.first = blocks_.take(id, pack.blocks);
    packs_[id] = std::move(pack);
    return id;
}

void PackTable::give(PackId id)
{
    Pack &pack = packs_[id];
    blocks_.give(pack.first, pack.blocks);
    pack = Pack{};
    free_.push_back(id);
}

// A shared block with room for the tensor; kNone when there is none.
PackId PackTable::find_open(const PackKey &key, const TensorSpec &spec) const
{
    const auto open = open_.find(key);
    if (open == open_.end()) return kNone;
    const uint64_t offset = next_offset(packs_[open->second], spec.align_bytes);
    return offset + spec.bytes <= places_.block_bytes() ? open->second : kNone;
}

void PackTable::open(OpenPacks &&entry)
{
    open_.erase(entry.begin()->first);
    open_.merge(entry);
}

void PackTable::close(const PackKey &key, PackId pack)
{
    const auto open = open_.find(key);
    if (open != open_.end() && open->second == pack) open_.erase(open);
}

void PackTable::set_contents(TensorId id, Contents contents)
{
    Tensor &tensor = tensors_[id];
    uint32_t &count = packs_[tensor.pack].with_contents;
    count -= tensor.contents != Contents::kEmpty;
    count += contents != Contents::kEmpty;
    tensor.contents = contents;
}

uint64_t PackTable::metadata_bytes() const
{
    return packs_.bytes() + free_.capacity() * sizeof(PackId);
}

uint64_t PackTable::metadata_growth() const
{
    if (!free_.empty()) return 0;
    return packs_.growth_bytes() + growth_bytes(free_, packs_.size() + 1);
}

uint64_t PackTable::metadata_bytes_max(uint64_t packs)
{
    return Table<Pack>::bytes_max(packs) + grown_capacity(packs, packs + 1) * sizeof(PackId);
}

}  // namespace stepwell::residency
