// SPDX-License-Identifier: Apache-2.0
// RecencyLists: for each place the resident blocks from hottest to coldest, linked through their
// replicas, and how many they are. The nvme place has no list. At the cold end are blocks that
// rest: they cannot leave before something happens to them, so a search for victims begins behind
// them.
#pragma once

#include "lib/residency/pack_table.h"

#include <array>

namespace stepwell::residency {

class RecencyLists {
public:
    using Listed = std::array<std::array<uint32_t, 2>, kPlacesMax>;  // ordinary blocks, and wholes

    RecencyLists(const Places &places, BlockTable &blocks, const PackTable &packs)
        : places_(places), blocks_(blocks), packs_(packs)
    {
        hottest_.fill(kNone);
        coldest_.fill(kNone);
        awake_.fill(kNone);
    }

    [[nodiscard]] BlockId coldest(PlaceId place) const { return coldest_[place]; }
    // Of those that do not rest.
    [[nodiscard]] BlockId coldest_awake(PlaceId place) const { return awake_[place]; }
    [[nodiscard]] const Listed &listed() const { return listed_; }
    // How often a block was put to an end of the list. Between two, blocks only left it.
    [[nodiscard]] uint64_t moves(PlaceId place) const { return moves_[place]; }
    void heat(BlockId block, PlaceId place);
    void cool(BlockId block, PlaceId place);
    void unlist(BlockId block, PlaceId place);
    void rest(BlockId block, PlaceId place);
    // The block may be able to leave from now on: there, or from any place, or all blocks.
    void wake(BlockId block, PlaceId place)
    {
        if (blocks_.replica(block, place).rests) heat(block, place);
    }
    void wake(BlockId block);
    void wake_all();
    // Those colder than `end` that will not leave go to the other end of the list, so that the next
    // search does not pass them again. kNone: all of the list may be such.
    template <class WillStay> void heat_colder(BlockId end, PlaceId place, WillStay &&will_stay)
    {
        const BlockId last = hottest_[place];
        for (BlockId at = awake_[place]; at != end && at != last;) {
            const BlockId next = blocks_.replica(at, place).hotter;
            if (will_stay(at)) heat(at, place);
            at = next;
        }
    }

private:
    void list(BlockId block, PlaceId place, BlockId above);

    const Places &places_;
    BlockTable &blocks_;
    const PackTable &packs_;
    std::array<BlockId, kPlacesMax> hottest_{};
    std::array<BlockId, kPlacesMax> coldest_{};
    std::array<BlockId, kPlacesMax> awake_{};  // the coldest that does not rest
    std::array<uint64_t, kPlacesMax> moves_{};
    Listed listed_{};
};

}  // namespace stepwell::residency
