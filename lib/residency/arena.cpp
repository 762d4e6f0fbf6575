// SPDX-License-Identifier: Apache-2.0
// Slots are found in O(1): a stack of free ones, from which slots taken by number are skipped.
#include "lib/residency/arena.h"

#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::residency {

Arena::Arena(uint32_t slots, uint32_t whole_slots, bool counts_only)
    : slots_(slots), whole_slots_(whole_slots), counts_only_(counts_only)
{
    STW_ASSERT(whole_slots <= slots);
    if (counts_only) return;
    owners_.assign(slots, kNone);
    listed_.assign(slots, 1);
    free_.reserve(slots);
    for (Slot slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
}

uint32_t Arena::free(bool whole) const
{
    return whole ? whole_slots_ - used_whole_ : slots_ - whole_slots_ - used_;
}

void Arena::count(bool whole)
{
    STW_ASSERT(free(whole) > 0);
    ++(whole ? used_whole_ : used_);
    peak_ = std::max(peak_, used());
}

Slot Arena::take(BlockId block, bool whole, Slot near)
{
    count(whole);
    if (counts_only_) return 0;
    if (near != kNoSlot && is_free(near)) {
        owners_[near] = block;
        return near;
    }
    while (!free_.empty()) {
        const Slot slot = free_.back();
        free_.pop_back();
        listed_[slot] = 0;
        if (owners_[slot] != kNone) continue;
        owners_[slot] = block;
        return slot;
    }
    STW_ASSERT(!"a counted free slot was not found");
    return kNoSlot;
}

void Arena::take_at(BlockId block, bool whole, Slot slot)
{
    STW_ASSERT(is_free(slot));
    count(whole);
    owners_[slot] = block;
}

void Arena::give(Slot slot, bool whole)
{
    uint32_t &used = whole ? used_whole_ : used_;
    STW_ASSERT(used > 0);
    --used;
    if (counts_only_) return;
    STW_ASSERT(owners_[slot] != kNone);
    owners_[slot] = kNone;
    if (listed_[slot]) return;
    listed_[slot] = 1;
    free_.push_back(slot);
}

}  // namespace stepwell::residency
