// SPDX-License-Identifier: Apache-2.0
// Budgets that change while the program runs. A place that shrinks takes nothing over its new
// budget from the first moment on, and gives up its old one only when everything else has left.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::residency {

// A promise is to what may rest nowhere farther, or is pinned there.
Status Core::may_shrink(PlaceId place, uint32_t blocks) const
{
    const uint64_t needed = uint64_t{promised_[place]} + arenas_[place].whole_slots();
    if (blocks >= needed) return {};
    const uint64_t block = config_.block_bytes;
    const uint64_t aside = config_.places[place].aside_bytes;
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%s cannot shrink to %s: of its budget it needs %s; allow tensors another tier, or destroy "
        "some",
        place_name(place).c_str(), bytes_text(aside + blocks * block).c_str(),
        sum_text({{aside, "for staging and scratch"},
                  {arenas_[place].whole_slots() * block, "for gathered wholes"},
                  {promised_[place] * block, "promised to tensors that may rest nowhere farther"}})
            .c_str());
    ErrorDetail &detail = status.mutable_detail();
    detail.tier = static_cast<uint32_t>(config_.places[place].tier);
    detail.device = config_.places[place].device;
    detail.needed_bytes = needed * block;
    return status;
}

uint64_t Core::shrink(PlaceId place, uint32_t blocks, Commands &out)
{
    Arena &arena = arenas_[place];
    if (!is_shrinking(place)) {
        budgets_before_[place] = arena.budget();
        arena.set_budget(blocks);
    }
    STW_ASSERT(arena.budget() == blocks);
    const Fetch nobody;
    ++event_;
    while (!is_nvme(place) && arena.too_many() > coming_[place]) {
        const BlockId victim = pick_victim(place, nobody);
        if (victim == kNone || !start_eviction(victim, place, out)) break;
    }
    advance(out);
    return arena.too_many();
}

void Core::set_budget(PlaceId place, uint32_t blocks, Commands &out)
{
    STW_ASSERT(blocks <= arenas_[place].slots());
    budgets_before_[place] = kNone;
    arenas_[place].set_budget(blocks);
    promise_farther(place);
    may_write_back_ = true;
    advance(out);
}

Status Core::shrink_refusal(PlaceId place, uint32_t blocks) const
{
    const uint64_t block = config_.block_bytes;
    const uint64_t pinned = pinned_blocks(place, false, nullptr);
    const uint64_t wholes = arenas_[place].whole_slots();
    const uint64_t others = arenas_[place].used_ordinary() - pinned;
    const uint64_t aside = config_.places[place].aside_bytes;
    Status status = Status::error(
        STW_ERROR_BUDGET, "%s cannot shrink to %s: it holds %s; %s", place_name(place).c_str(),
        bytes_text(aside + blocks * block).c_str(),
        sum_text({{aside, "for staging and scratch"},
                  {wholes * block, "for gathered wholes"},
                  {pinned * block, "pinned by open views"},
                  {others * block, "that no other tier takes"}})
            .c_str(),
        pinned + wholes > blocks ? "release views" : "make room in the tiers behind it");
    ErrorDetail &detail = status.mutable_detail();
    detail.tier = static_cast<uint32_t>(config_.places[place].tier);
    detail.device = config_.places[place].device;
    detail.needed_bytes = arenas_[place].used() * block;
    detail.free_bytes = blocks * block;
    detail.pinned_bytes = pinned * block;
    return status;
}

// It asks for more than the place will hold, but no more than it did: that is decided first.
bool Core::awaits_budget(const Fetch &fetch) const
{
    for (PlaceId place = 0; place < places(); ++place) {
        if (!is_shrinking(place)) continue;
        const uint32_t wanted = targets_at(fetch, place);
        if (wanted > arenas_[place].budget() && wanted <= budgets_before_[place]) return true;
    }
    return false;
}

std::vector<Slot> Core::next_bare(PlaceId place, uint32_t n) const
{
    const Arena &arena = arenas_[place];
    std::vector<Slot> slots;
    if (arena.counts_only() || arena.backed() <= arena.budget()) return slots;
    n = std::min(n, arena.backed() - arena.budget());
    slots.reserve(n);
    for (Slot slot = arena.slots(); n > 0; --n) {
        slot = arena.next_bare(slot);
        if (slot == kNoSlot) break;
        slots.push_back(slot);
    }
    return slots;
}

std::vector<Slot> Core::make_bare(PlaceId place, uint32_t n)
{
    Arena &arena = arenas_[place];
    std::vector<Slot> slots;
    if (arena.counts_only() || arena.backed() <= arena.budget()) return slots;
    n = std::min(n, arena.backed() - arena.budget());
    slots.reserve(n);
    arena.make_bare(n, &slots);
    return slots;
}

std::vector<Slot> Core::make_backed(PlaceId place, uint32_t n)
{
    std::vector<Slot> slots;
    if (arenas_[place].counts_only()) return slots;
    slots.reserve(std::min(n, arenas_[place].slots()));
    arenas_[place].make_backed(n, &slots);
    return slots;
}

}  // namespace stepwell::residency
