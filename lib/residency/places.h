// SPDX-License-Identifier: Apache-2.0
// Places: the configuration of the core, and the arena of slots of each place with its budget,
// which may change while the program runs. The lowest part: it knows neither tensors nor blocks.
#pragma once

#include "lib/residency/arena.h"
#include "lib/residency/types.h"

#include <array>
#include <string>
#include <vector>

namespace stepwell::residency {

class Places {
public:
    explicit Places(Config config);

    [[nodiscard]] const Config &config() const { return config_; }
    [[nodiscard]] uint64_t block_bytes() const { return config_.block_bytes; }
    [[nodiscard]] const PlaceConfig &operator[](PlaceId place) const
    {
        return config_.places[place];
    }
    [[nodiscard]] PlaceId count() const { return count_; }
    [[nodiscard]] PlaceId last() const { return static_cast<PlaceId>(count_ - 1); }
    Arena &arena(PlaceId place) { return arenas_[place]; }
    [[nodiscard]] const Arena &arena(PlaceId place) const { return arenas_[place]; }
    [[nodiscard]] std::string name(PlaceId place) const;  // for sentences

    // It has a budget now; without one, routes and promises skip it.
    [[nodiscard]] bool is_open(PlaceId place) const { return arenas_[place].budget() > 0; }
    [[nodiscard]] bool exists(PlaceId place) const { return config_.places[place].blocks > 0; }
    [[nodiscard]] bool is_nvme(PlaceId place) const
    {
        return config_.places[place].tier == Tier::kNvme;
    }
    // The other places with a budget that are as far or farther, a bit each. One that shrinks is
    // among them until the change has ended.
    [[nodiscard]] uint32_t beyond(PlaceId place) const { return beyond_[place]; }
    // Blocks are usually of a power of two, and a division is expensive.
    [[nodiscard]] uint32_t block_index(uint64_t offset) const
    {
        return static_cast<uint32_t>(block_shift_ > 0 ? offset >> block_shift_
                                                      : offset / config_.block_bytes);
    }

    // A place that shrinks has its new budget from the first call on, and remembers the old one
    // until set_budget() ends the change.
    void begin_shrink(PlaceId place, uint32_t blocks)
    {
        budgets_before_[place] = arenas_[place].budget();
        arenas_[place].set_budget(blocks);  // what is beyond another place changes at its end
    }
    void set_budget(PlaceId place, uint32_t blocks);
    [[nodiscard]] bool is_shrinking(PlaceId place) const { return budgets_before_[place] != kNone; }
    [[nodiscard]] uint32_t budget_before(PlaceId place) const { return budgets_before_[place]; }

    // Free slots, at most `n`, that lose their memory because the budget is below the slots.
    std::vector<Slot> make_bare(PlaceId place, uint32_t n);
    [[nodiscard]] std::vector<Slot> next_bare(PlaceId place, uint32_t n) const;
    std::vector<Slot> make_backed(PlaceId place, uint32_t n);

private:
    void look_beyond();

    Config config_;
    PlaceId count_ = 0;         // as many as the config has
    uint32_t block_shift_ = 0;  // of block_bytes; 0: not a power of two
    std::array<Arena, kPlacesMax> arenas_;
    std::array<uint32_t, kPlacesMax> budgets_before_{};  // kNone: it does not shrink
    std::array<uint32_t, kPlacesMax> beyond_{};
};

}  // namespace stepwell::residency
