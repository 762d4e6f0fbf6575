// SPDX-License-Identifier: Apache-2.0
// Free slots are kept on a stack; slots taken by number are skipped when they come to its top.
#include "lib/residency/arena.h"

#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::residency {
namespace {

constexpr uint32_t kLookMax = 256;  // free slots looked at for one that is not set aside

}  // namespace

Arena::Arena(uint32_t slots, uint32_t whole_slots, bool counts_only, bool maps)
    : slots_(slots),
      budget_(slots),
      backed_(slots),
      whole_slots_(whole_slots),
      counts_only_(counts_only)
{
    STW_ASSERT(whole_slots <= slots);
    if (counts_only) return;
    owners_.assign(slots, kNone);
    if (maps) mapped_.assign(slots, kNone);
    listed_.assign(slots, 1);
    aside_.assign(slots, 0);
    bare_.assign(slots, 0);
    free_.reserve(slots);
    for (Slot slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
}

void Arena::count(bool whole)
{
    STW_ASSERT(free(whole) > 0);
    ++(whole ? used_whole_ : used_);
    peak_ = std::max(peak_, used());
}

Slot Arena::take(BlockId block, bool whole, Slot wanted)
{
    count(whole);
    if (counts_only_) return 0;
    if (wanted != kNoSlot && is_free(wanted) && !bare_[wanted]) {
        owners_[wanted] = block;
        return wanted;
    }
    // The stack may name slots that were taken by number; those go. One that is set aside stays
    // for its pack while there is another within reach.
    size_t at = free_.size();
    Slot fallback = kNoSlot;
    for (uint32_t looked = 0; at > 0 && looked < kLookMax; ++looked) {
        const Slot slot = free_[--at];
        if (owners_[slot] != kNone || bare_[slot]) continue;
        if (fallback == kNoSlot) fallback = slot;
        if (aside_[slot]) continue;
        fallback = slot;
        break;
    }
    while (fallback == kNoSlot && at > 0) {
        const Slot slot = free_[--at];
        if (owners_[slot] == kNone && !bare_[slot]) fallback = slot;
    }
    STW_ASSERT(fallback != kNoSlot);
    owners_[fallback] = block;
    while (!free_.empty() && (owners_[free_.back()] != kNone || bare_[free_.back()])) {
        listed_[free_.back()] = 0;
        free_.pop_back();
    }
    return fallback;
}

Slot Arena::find_run(uint32_t slots) const
{
    uint32_t run = 0;
    for (Slot slot = 0; slot < slots_; ++slot) {
        run = owners_[slot] == kNone && !aside_[slot] && !bare_[slot] ? run + 1 : 0;
        if (run == slots) return slot + 1 - slots;
    }
    return kNoSlot;
}

void Arena::set_aside(Slot begin, uint32_t slots, bool aside)
{
    for (Slot slot = begin; slot < begin + slots; ++slot) aside_[slot] = aside;
}

Slot Arena::take_at(BlockId block, bool whole, Slot slot)
{
    STW_ASSERT(is_free(slot));
    count(whole);
    owners_[slot] = block;
    if (!bare_[slot]) return kNoSlot;
    bare_[slot] = 0;
    ++backed_;
    return bare_one(slots_);
}

// The highest that can be, of those below `below`.
Slot Arena::next_bare(Slot below) const
{
    for (Slot slot = below; slot > 0; --slot) {
        if (owners_[slot - 1] == kNone && !bare_[slot - 1]) return slot - 1;
    }
    return kNoSlot;
}

Slot Arena::bare_one(Slot below)
{
    const Slot slot = next_bare(below);
    if (slot == kNoSlot) return kNoSlot;
    bare_[slot] = 1;
    note_home(slot);
    --backed_;
    return slot;
}

void Arena::make_bare(uint32_t n, std::vector<Slot> *out)
{
    for (Slot slot = slots_; n > 0 && slot != kNoSlot; --n) {
        slot = bare_one(slot);
        if (slot != kNoSlot) out->push_back(slot);
    }
}

void Arena::make_backed(uint32_t n, std::vector<Slot> *out)
{
    for (Slot slot = 0; slot < slots_ && n > 0; ++slot) {
        if (!bare_[slot]) continue;
        bare_[slot] = 0;
        ++backed_;
        list(slot);
        out->push_back(slot);
        --n;
    }
}

const char *Arena::check() const
{
    if (counts_only_) return nullptr;
    uint32_t backed = 0;
    for (Slot slot = 0; slot < slots_; ++slot) {
        if (bare_[slot] && owners_[slot] != kNone) return "a block without memory";
        backed += bare_[slot] == 0;
    }
    if (backed != backed_) return "memory";
    return backed < std::min(budget_, slots_) ? "less memory than the budget" : nullptr;
}

void Arena::give(Slot slot, bool whole)
{
    uint32_t &used = whole ? used_whole_ : used_;
    STW_ASSERT(used > 0);
    --used;
    if (counts_only_) return;
    STW_ASSERT(owners_[slot] != kNone);
    owners_[slot] = kNone;
    list(slot);
}

void Arena::list(Slot slot)
{
    if (listed_[slot]) return;
    listed_[slot] = 1;
    free_.push_back(slot);
}

}  // namespace stepwell::residency
