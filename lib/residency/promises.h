// SPDX-License-Identifier: Apache-2.0
// Promises: how much of each place's budget is promised to packs, so that what was accepted can
// always be stored somewhere.
#pragma once

#include "lib/residency/pack_table.h"

#include <array>

namespace stepwell::residency {

class Promises {
public:
    Promises(const Places &places, PackTable &packs) : places_(places), packs_(packs) {}

    [[nodiscard]] uint32_t promised(PlaceId place) const { return promised_[place]; }
    void withhold(uint32_t blocks) { withheld_ = blocks; }
    Status make(Pack &pack);
    void keep(Pack &pack, PlaceId place, PlaceId home);
    void give_back(const Pack &pack);
    void move_farther(PlaceId place);
    [[nodiscard]] Status may_shrink(PlaceId place, uint32_t blocks) const;

private:
    [[nodiscard]] Status can_promise(PlaceId place, uint32_t blocks) const;
    [[nodiscard]] uint32_t promised_blocks(const Pack &pack, PlaceId place) const
    {
        const bool copies = pack.key.durable && !pack.frozen && places_.is_nvme(place);
        return pack.blocks * (copies ? places_.config().durable_copies : 1);
    }
    [[nodiscard]] PlaceId choose_place(const Pack &pack) const;
    [[nodiscard]] PlaceId choose_device(const Pack &pack, PlaceId last) const;

    const Places &places_;
    PackTable &packs_;
    std::array<uint32_t, kPlacesMax> promised_{};  // blocks of the budget
    uint32_t withheld_ = 0;                        // blocks of nvme that nobody may be promised
};

}  // namespace stepwell::residency
