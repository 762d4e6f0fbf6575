// SPDX-License-Identifier: Apache-2.0
// Arena: the slots of one place and who has them. A place of memory hands out numbered slots,
// singly or in runs; the nvme place only counts, since the store finds a slot for a block itself.
// Where the budget is below the slots, as many of them are bare: without memory behind them. Which
// ones may change with each slot that is taken, so a run can lie anywhere.
// Pure. One thread at a time.
#pragma once

#include "lib/residency/types.h"

#include <vector>

namespace stepwell::residency {

class Arena {
public:
    Arena() = default;
    Arena(uint32_t slots, uint32_t whole_slots, bool counts_only, bool maps = false);

    // Free for ordinary blocks, or for gathered wholes, which have their own part.
    [[nodiscard]] uint32_t free(bool whole = false) const
    {
        if (whole) return whole_slots_ - used_whole_;
        const uint32_t taken = whole_slots_ + used_;
        return budget_ > taken ? budget_ - taken : 0;
    }
    [[nodiscard]] uint32_t slots() const { return slots_; }
    // How many may be used; fewer than are used while the place shrinks.
    [[nodiscard]] uint32_t budget() const { return budget_; }
    void set_budget(uint32_t slots) { budget_ = slots; }
    [[nodiscard]] uint32_t too_many() const  // ordinary blocks; the wholes' part is theirs
    {
        const uint32_t taken = whole_slots_ + used_;
        return taken > budget_ ? taken - budget_ : 0;
    }
    [[nodiscard]] uint32_t whole_slots() const { return whole_slots_; }
    [[nodiscard]] uint32_t used() const { return used_ + used_whole_; }
    [[nodiscard]] uint32_t used_ordinary() const { return used_; }
    [[nodiscard]] uint32_t peak() const { return peak_; }
    [[nodiscard]] uint64_t metadata_bytes() const
    {
        return (owners_.size() + mapped_.size()) * sizeof(BlockId) +
               free_.capacity() * sizeof(Slot) + listed_.size() + aside_.size() + bare_.size();
    }
    [[nodiscard]] bool counts_only() const { return counts_only_; }

    // A slot for the block: `wanted` if that is free, else one that nobody has set aside, else any.
    Slot take(BlockId block, bool whole, Slot wanted = kNoSlot);
    // Returns the slot that has become bare for it, kNoSlot when it had memory.
    Slot take_at(BlockId block, bool whole, Slot slot);
    void give(Slot slot, bool whole);

    // Slots set aside for the rest of a pack, so that it comes to lie in one run. No promise: where
    // nothing else is free they are taken all the same.
    Slot find_run(uint32_t slots) const;
    void set_aside(Slot begin, uint32_t slots, bool aside);

    // Memory goes from the highest free slots that have some, and comes to the lowest that have
    // none; `n` of them, or as many as there are.
    void make_bare(uint32_t n, std::vector<Slot> *out);
    // The first of these below `below`; kNoSlot: there is none.
    [[nodiscard]] Slot next_bare(Slot below) const;
    void make_backed(uint32_t n, std::vector<Slot> *out);
    [[nodiscard]] uint32_t backed() const { return backed_; }
    [[nodiscard]] bool is_bare(Slot slot) const { return bare_[slot] != 0; }

    // What is wrong with the memory of its slots; null when nothing is.
    [[nodiscard]] const char *check() const;

    // The block in a slot, kNone when it is free.
    [[nodiscard]] BlockId owner(Slot slot) const { return owners_[slot]; }
    [[nodiscard]] bool is_free(Slot slot) const { return slot < slots_ && owners_[slot] == kNone; }

    // Of a place that maps: the slot was brought to the block's address, and is there until another
    // block's is noted, or its memory goes. Its block may have left it meanwhile.
    void note_mapped(Slot slot, BlockId block)
    {
        if (!mapped_.empty()) mapped_[slot] = block;
    }
    // At an address, and nothing of it is known.
    void note_away(Slot slot) { note_mapped(slot, kAway); }
    void note_home(Slot slot) { note_mapped(slot, kNone); }
    [[nodiscard]] bool is_away(Slot slot) const
    {
        return !mapped_.empty() && mapped_[slot] != kNone;
    }
    [[nodiscard]] bool is_mapped(Slot slot, BlockId block) const
    {
        return !mapped_.empty() && mapped_[slot] == block;
    }

private:
    static constexpr BlockId kAway = kNone - 1;

    void count(bool whole);
    void list(Slot slot);
    Slot bare_one(Slot below);

    uint32_t slots_ = 0;
    uint32_t budget_ = 0;
    uint32_t backed_ = 0;
    uint32_t whole_slots_ = 0;
    uint32_t used_ = 0;
    uint32_t used_whole_ = 0;
    uint32_t peak_ = 0;
    bool counts_only_ = false;
    std::vector<BlockId> owners_;
    std::vector<Slot> free_;  // may name slots that were taken by number, or bare, meanwhile
    std::vector<uint8_t> listed_;
    std::vector<uint8_t> aside_;
    std::vector<uint8_t> bare_;
    std::vector<BlockId> mapped_;  // empty where nothing maps
};

}  // namespace stepwell::residency
