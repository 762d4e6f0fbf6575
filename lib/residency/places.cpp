// SPDX-License-Identifier: Apache-2.0
// The places of the core: configuration, budgets, memory of slots.
#include "lib/residency/places.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace stepwell::residency {

Places::Places(Config config) : config_(std::move(config))
{
    STW_ASSERT(config_.places.size() <= kPlacesMax);
    count_ = static_cast<PlaceId>(config_.places.size());
    if (std::has_single_bit(config_.block_bytes)) {
        block_shift_ = static_cast<uint32_t>(std::countr_zero(config_.block_bytes));
    }
    for (PlaceId place = 0; place < count_; ++place) {
        const PlaceConfig &wanted = config_.places[place];
        arenas_[place] =
            Arena(wanted.blocks, wanted.whole_blocks, wanted.tier == Tier::kNvme, wanted.maps);
    }
    budgets_before_.fill(kNone);
    look_beyond();
}

void Places::look_beyond()
{
    for (PlaceId place = 0; place < count_; ++place) {
        beyond_[place] = 0;
        for (PlaceId other = 0; other < count_; ++other) {
            const bool far = config_.places[other].tier >= config_.places[place].tier;
            if (other != place && far && (is_open(other) || is_shrinking(other)))
                beyond_[place] |= 1u << other;
        }
    }
}

void Places::set_budget(PlaceId place, uint32_t blocks)
{
    STW_ASSERT(blocks <= arenas_[place].slots());
    budgets_before_[place] = kNone;
    arenas_[place].set_budget(blocks);
    look_beyond();
}

std::vector<Slot> Places::next_bare(PlaceId place, uint32_t n) const
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

std::vector<Slot> Places::make_bare(PlaceId place, uint32_t n)
{
    Arena &arena = arenas_[place];
    std::vector<Slot> slots;
    if (arena.counts_only() || arena.backed() <= arena.budget()) return slots;
    n = std::min(n, arena.backed() - arena.budget());
    slots.reserve(n);
    arena.make_bare(n, &slots);
    return slots;
}

std::vector<Slot> Places::make_backed(PlaceId place, uint32_t n)
{
    std::vector<Slot> slots;
    if (arenas_[place].counts_only()) return slots;
    slots.reserve(std::min(n, arenas_[place].slots()));
    arenas_[place].make_backed(n, &slots);
    return slots;
}

std::string Places::name(PlaceId place) const
{
    const PlaceConfig &config = config_.places[place];
    if (config.tier == Tier::kNvme) return "the nvme tier";
    if (config.tier == Tier::kHost) return "the host tier";
    return format_text("device %u", config.device);
}

}  // namespace stepwell::residency
