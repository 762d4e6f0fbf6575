// SPDX-License-Identifier: Apache-2.0
// BlockTable: the blocks by number, the replica of each block at each place, and the ranges of
// block numbers that are free.
#pragma once

#include "lib/residency/block_ids.h"
#include "lib/residency/model.h"
#include "lib/residency/places.h"
#include "lib/support/assert.h"

#include <array>
#include <vector>

namespace stepwell::residency {

class BlockTable {
public:
    explicit BlockTable(const Places &places) : places_(places), width_(places.count()) {}

    Block &operator[](BlockId block) { return blocks_[block]; }
    const Block &operator[](BlockId block) const { return blocks_[block]; }
    [[nodiscard]] size_t size() const { return blocks_.size(); }
    [[nodiscard]] auto begin() { return blocks_.begin(); }
    [[nodiscard]] auto end() { return blocks_.end(); }
    [[nodiscard]] auto begin() const { return blocks_.begin(); }
    [[nodiscard]] auto end() const { return blocks_.end(); }
    Replica &replica(BlockId block, PlaceId place) { return replicas_[block * width_ + place]; }
    [[nodiscard]] const Replica &replica(BlockId block, PlaceId place) const
    {
        return replicas_[block * width_ + place];
    }

    void hold(BlockId block, PlaceId place)
    {
        ++replica(block, place).holds;
        ++holds_[place];
    }
    void let_go(BlockId block, PlaceId place)
    {
        STW_ASSERT(replica(block, place).holds > 0);
        --replica(block, place).holds;
        --holds_[place];
    }
    [[nodiscard]] uint64_t holds(PlaceId place) const { return holds_[place]; }  // of all blocks

    void prepare(uint32_t blocks);
    // Over what was prepared: the first of so many blocks in a row, as new ones of the pack.
    BlockId take(PackId pack, uint32_t blocks);
    void give(BlockId first, uint32_t blocks);

    [[nodiscard]] bool bytes_exist(BlockId block, uint32_t tried) const;
    // The nearest replica with the newest bytes that has not failed this fetch yet.
    [[nodiscard]] PlaceId choose_source(BlockId block, PlaceId place, uint32_t tried) const
    {
        for (PlaceId from = 0; from < width_; ++from) {
            const Replica &there = replica(block, from);
            if (from == place || (tried & (1u << from))) continue;
            if (there.valid && !there.doomed && !there.filling) return from;
        }
        return kNoPlace;
    }
    [[nodiscard]] BlockState block_state(BlockId block, PlaceId place) const;
    // A block that is being written at one place must not be used at another; small tensors that
    // share it are bound by this as well.
    [[nodiscard]] bool block_in_the_way(const Block &block, BlockId id, bool writes,
                                        PlaceId place) const
    {
        if (block.writers > 0 && block.writer_place != place) return true;
        return writes && is_used_elsewhere(id, place);
    }
    // Wanted there by the fetch that looks for room. At other places it may leave like any other.
    [[nodiscard]] bool is_own(BlockId block, PlaceId place, const Fetch &fetch) const
    {
        const Block &at = blocks_[block];
        return at.protector == fetch.id && (at.protected_places & (1u << place)) != 0;
    }

    [[nodiscard]] uint64_t metadata_bytes() const;
    [[nodiscard]] uint64_t metadata_growth(uint64_t blocks) const;  // by so many more
    [[nodiscard]] uint64_t metadata_bytes_max(uint64_t blocks) const;

private:
    [[nodiscard]] bool is_used_elsewhere(BlockId block, PlaceId place) const;

    const Places &places_;
    const PlaceId width_;  // replicas of a block: as many as there are places
    std::vector<Block> blocks_;
    std::vector<Replica> replicas_;  // blocks x places
    std::array<uint64_t, kPlacesMax> holds_{};
    BlockIds free_;
};

}  // namespace stepwell::residency
