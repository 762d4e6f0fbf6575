// SPDX-License-Identifier: Apache-2.0
// Promises: how much of each place's budget is promised to packs, so that what was accepted can
// always be stored somewhere: in the farthest place that it may live in, or nearer if that is full.
#pragma once

#include "lib/residency/pack_table.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace stepwell::residency {

class Promises {
public:
    Promises(const Places &places, PackTable &packs) : places_(places), packs_(packs) {}

    [[nodiscard]] uint32_t promised(PlaceId place) const { return promised_[place]; }
    // Of these blocks, those promised to packs that could live farther and found no room there.
    [[nodiscard]] uint32_t displaced(PlaceId place) const { return at_home_[place]; }
    [[nodiscard]] uint32_t left(PlaceId place) const;  // of the budget, promised to none
    void withhold(uint32_t blocks) { withheld_ = blocks; }
    // Where no room is left in the farthest place: any nearer one, or the one it had before.
    enum class Nearer : uint8_t { kAny, kAsBefore };
    Status make(Pack &pack, PackId id, Nearer nearer);
    void keep(Pack &pack, PackId id, PlaceId place, PlaceId home);
    void give_back(const Pack &pack, PackId id);
    // The place has more room: packs whose room was promised nearer get it. Returns them.
    std::vector<PackId> move_farther(PlaceId place);  // all that may live there, after a budget
    std::vector<PackId> refill(PlaceId place);        // those that found it full
    // So many blocks of packs that are at home elsewhere are, or will be, at a place at once.
    void expect_visits(PlaceId place, uint32_t blocks)
    {
        visits_[place] = std::max(visits_[place], blocks);
    }
    [[nodiscard]] Status may_shrink(PlaceId place, uint32_t blocks) const;

private:
    [[nodiscard]] Status can_promise(PlaceId place, uint32_t blocks, uint32_t kept = 0) const;
    [[nodiscard]] uint32_t promised_blocks(const Pack &pack, PlaceId place) const
    {
        const bool copies = pack.key.durable && !pack.frozen && places_.is_nvme(place);
        return pack.blocks * (copies ? places_.config().durable_copies : 1);
    }
    [[nodiscard]] uint32_t kept_for_visits(PlaceId place, bool farthest = false) const;
    [[nodiscard]] PlaceId choose_place(const Pack &pack) const;
    [[nodiscard]] PlaceId choose_nearer(const Pack &pack, PlaceId farthest) const;
    [[nodiscard]] PlaceId choose_device(const Pack &pack, PlaceId last, bool beside_visits) const;
    [[nodiscard]] bool stays_farthest(const Pack &pack) const;
    [[nodiscard]] bool has_room_to_move(const Pack &pack, PlaceId farthest) const;
    [[nodiscard]] Status refusal(const Pack &pack, PlaceId farthest, uint32_t kept) const;
    [[nodiscard]] bool may_move(const Pack &pack, PlaceId place) const;
    [[nodiscard]] bool is_displaced(const Pack &pack) const;
    bool move(PackId id, PlaceId place);
    void displace(PackId id, const Pack &pack);

    const Places &places_;
    PackTable &packs_;
    std::array<uint32_t, kPlacesMax> promised_{};  // blocks of the budget
    std::array<uint32_t, kPlacesMax> visits_{};    // the most blocks that a fetch or a pack brings
    std::array<uint32_t, kPlacesMax> at_home_{};   // promised to packs that could live farther
    std::set<PackId> displaced_;                   // these packs
    uint32_t withheld_ = 0;                        // blocks of nvme that nobody may be promised
};

}  // namespace stepwell::residency
