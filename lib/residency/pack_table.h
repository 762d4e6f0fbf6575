// SPDX-License-Identifier: Apache-2.0
// PackTable: the packs of blocks that tensors lie in, by number, and the shared ones that take more
// tensors. Says where a tensor lies, and what a block is worth for the tensors in it.
#pragma once

#include "lib/residency/block_table.h"
#include "lib/residency/tensor_table.h"

#include <map>
#include <vector>

namespace stepwell::residency {

class PackTable {
public:
    using OpenPacks = std::map<PackKey, PackId>;

    PackTable(const Places &places, TensorTable &tensors, BlockTable &blocks)
        : places_(places), tensors_(tensors), blocks_(blocks)
    {
    }

    Pack &operator[](PackId pack) { return packs_[pack]; }
    const Pack &operator[](PackId pack) const { return packs_[pack]; }
    [[nodiscard]] size_t size() const { return packs_.size(); }

    // Room in the tables for a pack of so many blocks; the number that take() will return.
    PackId prepare(uint32_t blocks);
    PackId take(Pack &&pack);
    void give(PackId pack);
    [[nodiscard]] PackId find_open(const PackKey &key, const TensorSpec &spec) const;
    // Of one more tensor in a shared pack.
    [[nodiscard]] static uint64_t next_offset(const Pack &pack, uint64_t align_bytes)
    {
        return (pack.used_bytes + align_bytes - 1) / align_bytes * align_bytes;
    }
    void open(OpenPacks &&entry);  // of one, instead of the one with its key
    void close(const PackKey &key) { open_.erase(key); }
    void close(const PackKey &key, PackId pack);  // if it is that one

    [[nodiscard]] BlockRange blocks_of(const Tensor &tensor, uint64_t begin, uint64_t count) const
    {
        const uint64_t first = tensor.offset + begin;
        const uint64_t last = first + (count > 0 ? count - 1 : 0);
        return {places_.block_index(first), places_.block_index(last) + 1};
    }
    [[nodiscard]] TensorBlocks blocks_of(TensorId tensor) const;
    [[nodiscard]] Grant location(TensorId tensor, PlaceId place) const;
    [[nodiscard]] SlotRun run_of(BlockId block, PlaceId place) const;
    [[nodiscard]] uint64_t bytes_used(BlockId block) const;

    // Its room is promised here, and at no place that is as far or farther. Its blocks do not
    // leave, and keep their slots while their bytes are worked on at another place: so they can
    // always return, whatever fills both places.
    [[nodiscard]] bool is_home(const Pack &pack, PlaceId place) const
    {
        return pack.promised == place && (pack.key.policy.allowed & places_.beyond(place)) != 0;
    }
    // It is pinned here, or here is its home, and there are bytes that it is for.
    [[nodiscard]] bool never_leaves(BlockId block, PlaceId place) const
    {
        const Pack &pack = packs_[blocks_[block].pack];
        if (pack.pinned_home == place) return true;
        if (!is_home(pack, place)) return false;
        const bool has_bytes = blocks_.replica(block, place).valid && !is_worthless(block);
        return has_bytes || awaits_bytes(block, place);
    }
    // It is at home at another place, and may return there whenever it is not in use.
    [[nodiscard]] bool is_guest(const Pack &pack, PlaceId place) const
    {
        return pack.promised != place && pack.promised != kNoPlace && is_home(pack, pack.promised);
    }
    // The slot is kept for bytes that are at another place, or on their way there.
    [[nodiscard]] bool awaits_bytes(BlockId block, PlaceId place) const;
    // Counts the changes of homes, so that a waiting fetch knows when to look at them again.
    [[nodiscard]] uint64_t homes_changed() const { return homes_changed_; }
    void note_homes_changed() { ++homes_changed_; }

    void set_contents(TensorId tensor, Contents contents);
    [[nodiscard]] bool is_worthless(BlockId block) const;
    // The newest bytes are somewhere else too, or there are none.
    [[nodiscard]] bool is_duplicate(BlockId block, PlaceId place) const
    {
        if (!blocks_.replica(block, place).valid) return true;
        for (PlaceId other = 0; other < places_.count(); ++other) {
            const Replica &there = blocks_.replica(block, other);
            if (other != place && there.valid && !there.doomed) return true;
        }
        return is_worthless(block);
    }

    [[nodiscard]] uint64_t metadata_bytes() const;
    [[nodiscard]] uint64_t metadata_growth() const;  // by one pack more
    [[nodiscard]] static uint64_t metadata_bytes_max(uint64_t packs);

private:
    const Places &places_;
    TensorTable &tensors_;
    BlockTable &blocks_;
    Table<Pack> packs_;
    std::vector<PackId> free_;
    OpenPacks open_;
    uint64_t homes_changed_ = 0;
};

}  // namespace stepwell::residency
