// SPDX-License-Identifier: Apache-2.0
// The list of recency of each place: resident blocks from hottest to coldest, linked in place.
#include "lib/residency/recency.h"

namespace stepwell::residency {

void RecencyLists::unlist(BlockId block, PlaceId place)
{
    Replica &here = blocks_.replica(block, place);
    if (!here.listed) return;
    BlockId &above =
        here.hotter == kNone ? hottest_[place] : blocks_.replica(here.hotter, place).colder;
    BlockId &below =
        here.colder == kNone ? coldest_[place] : blocks_.replica(here.colder, place).hotter;
    above = here.colder;
    below = here.hotter;
    here.hotter = here.colder = kNone;
    here.listed = false;
    --listed_[place][packs_[blocks_[block].pack].agreed];
}

void RecencyLists::heat(BlockId block, PlaceId place)
{
    if (places_.is_nvme(place) || hottest_[place] == block) return;
    unlist(block, place);
    Replica &here = blocks_.replica(block, place);
    here.colder = hottest_[place];
    if (here.colder != kNone) blocks_.replica(here.colder, place).hotter = block;
    hottest_[place] = block;
    if (coldest_[place] == kNone) coldest_[place] = block;
    here.listed = true;
    ++listed_[place][packs_[blocks_[block].pack].agreed];
}

void RecencyLists::cool(BlockId block, PlaceId place)
{
    if (places_.is_nvme(place) || coldest_[place] == block) return;
    unlist(block, place);
    Replica &here = blocks_.replica(block, place);
    here.hotter = coldest_[place];
    if (here.hotter != kNone) blocks_.replica(here.hotter, place).colder = block;
    coldest_[place] = block;
    if (hottest_[place] == kNone) hottest_[place] = block;
    here.listed = true;
    ++listed_[place][packs_[blocks_[block].pack].agreed];
}

}  // namespace stepwell::residency
