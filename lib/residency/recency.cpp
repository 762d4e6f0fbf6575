// SPDX-License-Identifier: Apache-2.0
// The list of recency of each place: resident blocks from hottest to coldest, linked in place.
#include "lib/residency/recency.h"

namespace stepwell::residency {

void RecencyLists::unlist(BlockId block, PlaceId place)
{
    Replica &here = blocks_.replica(block, place);
    if (!here.listed) return;
    if (awake_[place] == block) awake_[place] = here.hotter;
    BlockId &above =
        here.hotter == kNone ? hottest_[place] : blocks_.replica(here.hotter, place).colder;
    BlockId &below =
        here.colder == kNone ? coldest_[place] : blocks_.replica(here.colder, place).hotter;
    above = here.colder;
    below = here.hotter;
    here.hotter = here.colder = kNone;
    here.listed = here.rests = false;
    --listed_[place][packs_[blocks_[block].pack].agreed];
}

// Right below another one; kNone: as the hottest.
void RecencyLists::list(BlockId block, PlaceId place, BlockId above)
{
    Replica &here = blocks_.replica(block, place);
    BlockId &over = above == kNone ? hottest_[place] : blocks_.replica(above, place).colder;
    here.hotter = above;
    here.colder = over;
    over = block;
    (here.colder == kNone ? coldest_[place] : blocks_.replica(here.colder, place).hotter) = block;
    here.listed = true;
    ++moves_[place];
    ++listed_[place][packs_[blocks_[block].pack].agreed];
}

void RecencyLists::heat(BlockId block, PlaceId place)
{
    if (places_.is_nvme(place)) return;
    if (hottest_[place] == block && !blocks_.replica(block, place).rests) return;
    unlist(block, place);
    list(block, place, kNone);
    if (awake_[place] == kNone) awake_[place] = block;
}

void RecencyLists::cool(BlockId block, PlaceId place)
{
    if (places_.is_nvme(place) || awake_[place] == block) return;
    unlist(block, place);
    list(block, place, awake_[place]);
    awake_[place] = block;
}

void RecencyLists::rest(BlockId block, PlaceId place)
{
    unlist(block, place);
    list(block, place, awake_[place]);
    blocks_.replica(block, place).rests = true;
}

void RecencyLists::wake(BlockId block)
{
    for (PlaceId place = 0; place < places_.count(); ++place) wake(block, place);
}

void RecencyLists::wake_all()
{
    for (PlaceId place = 0; place < places_.count(); ++place) {
        for (BlockId at = coldest_[place]; at != awake_[place];
             at = blocks_.replica(at, place).hotter)
            blocks_.replica(at, place).rests = false;
        awake_[place] = coldest_[place];
        ++moves_[place];
    }
}

}  // namespace stepwell::residency
